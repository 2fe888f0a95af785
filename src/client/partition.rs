//! Which partition a record goes to: Kafka's default partitioner. Keys by murmur2; records without a key stick to one partition until a
//! batch's worth of bytes went there, then to another at random (KIP-794 without its adaptive part).

use crate::model::Rng;

/// The hash of Kafka's partitioner: 32-bit MurmurHash2 with seed 0x9747b28c.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ h >> 15
}

/// The partition of a key among `partitions` (not 0).
pub fn of_key(key: &[u8], partitions: usize) -> i32 {
    ((murmur2(key) & 0x7fff_ffff) as usize % partitions) as i32
}

/// The sticky choice for records without a key.
#[derive(Clone, Debug, Default)]
pub struct Sticky {
    current: Option<i32>,
    bytes: usize,
}

impl Sticky {
    /// A partition of `available` (not empty), after which `bytes` more went there.
    pub fn next(
        &mut self,
        available: &[i32],
        bytes: usize,
        batch_bytes: usize,
        rng: &mut Rng,
    ) -> i32 {
        let current = match self.current {
            Some(current) if self.bytes < batch_bytes && available.contains(&current) => current,
            _ => {
                self.bytes = 0;
                available[rng.below(available.len() as u64) as usize]
            }
        };
        self.current = Some(current);
        self.bytes += bytes;
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_gives_the_values_of_kafkas_own_test() {
        // UtilsTest.testMurmur2 of Apache Kafka.
        for (text, hash) in [
            ("21", -973932308),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58897971,
            ),
            ("abc", 479470107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
    }

    #[test]
    fn sticky_leaves_after_a_batch_and_when_its_partition_is_gone() {
        let mut rng = Rng::seeded(3);
        let mut sticky = Sticky::default();
        let first = sticky.next(&[0, 1, 2], 50, 100, &mut rng);
        assert_eq!(sticky.next(&[0, 1, 2], 50, 100, &mut rng), first);
        let rest: Vec<i32> = (0..3).filter(|p| *p != first).collect();
        assert_ne!(sticky.next(&rest, 1, 100, &mut rng), first);
        let mut seen = [false; 3];
        for _ in 0..100 {
            seen[sticky.next(&[0, 1, 2], 100, 100, &mut rng) as usize] = true;
        }
        assert_eq!(seen, [true; 3]);
    }
}
