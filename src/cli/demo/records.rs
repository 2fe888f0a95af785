//! Records that know what they are: whoever reads one can tell which it should be, and whether any byte is wrong.

use crate::model::Rng;

/// Run, partition, index.
const HEAD_BYTES: usize = 16;

const POOL_BYTES: usize = 1 << 20;

/// One record's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// Which producer sent it.
    pub run: u32,
    pub partition: u32,
    /// Its number among those of the run in the partition.
    pub index: u64,
}

/// Random bytes, of which every record has a piece that depends on its identity.
pub struct Payload {
    pool: Vec<u8>,
}

impl Payload {
    pub fn new() -> Payload {
        let mut rng = Rng::seeded(0x5eed);
        let mut pool = Vec::with_capacity(POOL_BYTES);
        while pool.len() < POOL_BYTES {
            pool.extend_from_slice(&rng.next_u64().to_ne_bytes());
        }
        Payload { pool }
    }

    fn piece(&self, id: Id, bytes: usize) -> &[u8] {
        let mixed = (u64::from(id.run) << 56 ^ u64::from(id.partition) << 40 ^ id.index)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = (mixed >> 20) as usize % (POOL_BYTES - bytes);
        &self.pool[start..start + bytes]
    }

    /// Makes `out` the value of this record. It has at least 16 bytes.
    pub fn fill(&self, id: Id, bytes: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&id.run.to_be_bytes());
        out.extend_from_slice(&id.partition.to_be_bytes());
        out.extend_from_slice(&id.index.to_be_bytes());
        out.extend_from_slice(self.piece(id, bytes - HEAD_BYTES));
    }

    /// Which record this is; an error if it is none of ours, or not as it was sent.
    pub fn check(&self, value: &[u8], bytes: usize) -> Result<Id, String> {
        let Some((head, piece)) = value.split_first_chunk::<HEAD_BYTES>() else {
            return Err(format!("a value of {} bytes", value.len()));
        };
        if value.len() != bytes {
            return Err(format!("a value of {} bytes, not {bytes}", value.len()));
        }
        let id = Id {
            run: u32::from_be_bytes(head[..4].try_into().expect("four bytes")),
            partition: u32::from_be_bytes(head[4..8].try_into().expect("four bytes")),
            index: u64::from_be_bytes(head[8..].try_into().expect("eight bytes")),
        };
        match piece == self.piece(id, bytes - HEAD_BYTES) {
            true => Ok(id),
            false => Err(format!("the value of {id:?} has changed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_bytes_and_any_change_is_seen() {
        let payload = Payload::new();
        let id = Id {
            run: 1,
            partition: 3,
            index: 123_456,
        };
        let mut value = Vec::new();
        for bytes in [16, 100, 500 * 1024] {
            payload.fill(id, bytes, &mut value);
            assert_eq!(payload.check(&value, bytes), Ok(id));
            assert!(payload.check(&value, bytes + 1).is_err());
            assert!(payload.check(&value[..bytes - 1], bytes).is_err());
            for at in [7, 15, bytes - 1] {
                value[at] ^= 1;
                // In the shortest one there is nothing but the identity.
                assert_ne!(payload.check(&value, bytes), Ok(id), "{bytes} {at}");
                value[at] ^= 1;
            }
        }
    }
}
