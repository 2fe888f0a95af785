//! What a log remembers of its idempotent producers: the last five batches of each.
//!
//! Kafka's rules (ProducerAppendInfo, ProducerStateEntry), with two things better on purpose: all five batches survive
//! a restart (Kafka keeps one), and a producer expires by when the broker last saw it, not by its records' timestamps.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::batch::{Batch, sequence_after};
use crate::model::{ErrorCode, WallMs};

/// Batches remembered per producer: the most that an idempotent client has in flight.
pub const WINDOW: usize = 5;

/// One batch of a producer, as a duplicate of it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchMeta {
    pub first_sequence: i32,
    pub last_sequence: i32,
    pub last_offset: i64,
    pub offset_delta: i32,
    pub timestamp: i64,
}

impl BatchMeta {
    pub fn base_offset(&self) -> i64 {
        self.last_offset - i64::from(self.offset_delta)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Producer {
    pub epoch: i16,
    /// Oldest first; `[0..count)` are set.
    batches: [BatchMeta; WINDOW],
    count: u8,
    pub coordinator_epoch: i32,
    /// First offset of the open transaction, -1 if there is none.
    pub txn_first_offset: i64,
    /// Broker's time of the last append.
    pub seen: WallMs,
}

impl Producer {
    fn new(epoch: i16) -> Producer {
        Producer {
            epoch,
            batches: [BatchMeta::default(); WINDOW],
            count: 0,
            coordinator_epoch: -1,
            txn_first_offset: -1,
            seen: 0,
        }
    }

    pub fn batches(&self) -> &[BatchMeta] {
        &self.batches[..usize::from(self.count)]
    }

    pub fn last(&self) -> Option<&BatchMeta> {
        self.batches().last()
    }

    fn push(&mut self, batch: BatchMeta) {
        if usize::from(self.count) == WINDOW {
            self.batches.rotate_left(1);
            self.count -= 1;
        }
        self.batches[usize::from(self.count)] = batch;
        self.count += 1;
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProducerStates {
    producers: BTreeMap<i64, Producer>,
}

impl ProducerStates {
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    pub fn get(&self, producer_id: i64) -> Option<&Producer> {
        self.producers.get(&producer_id)
    }

    /// By producer id.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.producers.iter().map(|(id, p)| (*id, p))
    }

    /// May this batch be appended? `Ok(Some(_))` is a duplicate: answer with that batch's offsets and append nothing.
    pub fn check(
        &self,
        producer_id: i64,
        epoch: i16,
        first_sequence: i32,
        last_sequence: i32,
    ) -> Result<Option<BatchMeta>, ErrorCode> {
        let Some(producer) = self.producers.get(&producer_id) else {
            return Ok(None);
        };
        if epoch < producer.epoch {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        if epoch > producer.epoch {
            return if first_sequence == 0 {
                Ok(None)
            } else {
                Err(ErrorCode::OutOfOrderSequenceNumber)
            };
        }
        let twin = producer
            .batches()
            .iter()
            .find(|b| b.first_sequence == first_sequence && b.last_sequence == last_sequence);
        if let Some(twin) = twin {
            return Ok(Some(*twin));
        }
        let expected = producer
            .last()
            .map_or(0, |b| sequence_after(b.last_sequence, 1));
        if first_sequence == expected {
            Ok(None)
        } else {
            Err(ErrorCode::OutOfOrderSequenceNumber)
        }
    }

    /// A batch was appended (or met in recovery).
    pub fn update(&mut self, producer_id: i64, epoch: i16, batch: BatchMeta, seen: WallMs) {
        let producer = self
            .producers
            .entry(producer_id)
            .or_insert_with(|| Producer::new(epoch));
        if producer.epoch != epoch {
            producer.epoch = epoch;
            producer.count = 0;
        }
        producer.push(batch);
        producer.seen = producer.seen.max(seen);
    }

    /// Forgets producers not seen for `expiration_ms`; how many.
    pub fn expire(&mut self, now: WallMs, expiration_ms: i64) -> usize {
        let before = self.producers.len();
        self.producers
            .retain(|_, p| p.txn_first_offset >= 0 || now.saturating_sub(p.seen) < expiration_ms);
        before - self.producers.len()
    }

    /// Forgets batches that end at or after `end`. Older batches that had left the window do not come back: a duplicate
    /// of one is then refused as out of order, never appended.
    pub fn truncate_end(&mut self, end: i64) {
        self.producers.retain(|_, p| {
            while p.last().is_some_and(|b| b.last_offset >= end) {
                p.count -= 1;
            }
            p.count > 0
        });
    }

    /// Kafka's `.snapshot`, version 1, with what Kafka does not keep behind it (covered by the checksum; Kafka reads
    /// the entries it knows and ignores the rest).
    pub fn snapshot(&self) -> Bytes {
        let mut out = Vec::with_capacity(10 + self.producers.len() * 120 + 8);
        out.extend_from_slice(&1i16.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.producers.len() as i32).to_be_bytes());
        for (id, p) in &self.producers {
            let last = p.last().copied().unwrap_or(BatchMeta {
                first_sequence: -1,
                last_sequence: -1,
                last_offset: -1,
                offset_delta: 0,
                timestamp: -1,
            });
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&p.epoch.to_be_bytes());
            out.extend_from_slice(&last.last_sequence.to_be_bytes());
            out.extend_from_slice(&last.last_offset.to_be_bytes());
            out.extend_from_slice(&last.offset_delta.to_be_bytes());
            out.extend_from_slice(&last.timestamp.to_be_bytes());
            out.extend_from_slice(&p.coordinator_epoch.to_be_bytes());
            out.extend_from_slice(&p.txn_first_offset.to_be_bytes());
        }
        if !self.producers.is_empty() {
            out.extend_from_slice(WINDOWS_MAGIC);
            for p in self.producers.values() {
                out.extend_from_slice(&p.seen.to_be_bytes());
                out.push(p.count);
                for b in p.batches() {
                    out.extend_from_slice(&b.first_sequence.to_be_bytes());
                    out.extend_from_slice(&b.last_sequence.to_be_bytes());
                    out.extend_from_slice(&b.last_offset.to_be_bytes());
                    out.extend_from_slice(&b.offset_delta.to_be_bytes());
                    out.extend_from_slice(&b.timestamp.to_be_bytes());
                }
            }
        }
        let crc = crc32c::crc32c(&out[6..]);
        out[2..6].copy_from_slice(&crc.to_be_bytes());
        Bytes::from(out)
    }

    /// `None`: not a snapshot, or a damaged one. `seen` is for producers whose last appearance it does not tell.
    pub fn from_snapshot(bytes: &[u8], seen: WallMs) -> Option<ProducerStates> {
        let mut r = Cursor { bytes, at: 0 };
        if r.i16()? != 1 {
            return None;
        }
        if r.i32()? as u32 != crc32c::crc32c(bytes.get(6..)?) {
            return None;
        }
        let count = usize::try_from(r.i32()?).ok()?;
        let mut states = ProducerStates::default();
        for _ in 0..count {
            let id = r.i64()?;
            let mut p = Producer::new(r.i16()?);
            let last_sequence = r.i32()?;
            let last_offset = r.i64()?;
            let offset_delta = r.i32()?;
            let timestamp = r.i64()?;
            p.coordinator_epoch = r.i32()?;
            p.txn_first_offset = r.i64()?;
            p.seen = seen;
            if last_sequence >= 0 && offset_delta >= 0 {
                p.push(BatchMeta {
                    first_sequence: sequence_before(last_sequence, offset_delta),
                    last_sequence,
                    last_offset,
                    offset_delta,
                    timestamp,
                });
            }
            states.producers.insert(id, p);
        }
        if states.producers.len() == count && r.take(WINDOWS_MAGIC.len()) == Some(WINDOWS_MAGIC) {
            // The entries were written in the order of their ids.
            for p in states.producers.values_mut() {
                p.seen = r.i64()?;
                let batches = usize::from(r.take(1)?[0]);
                if batches > WINDOW {
                    return None;
                }
                p.count = 0;
                for _ in 0..batches {
                    p.push(BatchMeta {
                        first_sequence: r.i32()?,
                        last_sequence: r.i32()?,
                        last_offset: r.i64()?,
                        offset_delta: r.i32()?,
                        timestamp: r.i64()?,
                    });
                }
            }
        }
        Some(states)
    }

    /// A batch met while walking a segment.
    pub fn note_batch(&mut self, batch: &Batch<'_>, seen: WallMs) {
        if !batch.has_producer_id() || batch.is_control() {
            return;
        }
        let meta = BatchMeta {
            first_sequence: batch.base_sequence(),
            last_sequence: batch.last_sequence(),
            last_offset: batch.last_offset(),
            offset_delta: batch.last_offset_delta(),
            timestamp: batch.max_timestamp(),
        };
        self.update(batch.producer_id(), batch.producer_epoch(), meta, seen);
    }
}

/// Marks the windows of five behind Kafka's entries.
const WINDOWS_MAGIC: &[u8] = b"CLwin\x01";

/// The sequence `delta` before `last`, wrapping below 0 to 2^31 - 1.
fn sequence_before(last: i32, delta: i32) -> i32 {
    let first = i64::from(last) - i64::from(delta);
    (if first < 0 { first + (1 << 31) } else { first }) as i32
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + n)?;
        self.at += n;
        Some(taken)
    }

    fn i16(&mut self) -> Option<i16> {
        self.take(2)
            .map(|b| i16::from_be_bytes(b.try_into().expect("two bytes")))
    }

    fn i32(&mut self) -> Option<i32> {
        self.take(4)
            .map(|b| i32::from_be_bytes(b.try_into().expect("four bytes")))
    }

    fn i64(&mut self) -> Option<i64> {
        self.take(8)
            .map(|b| i64::from_be_bytes(b.try_into().expect("eight bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(states: &mut ProducerStates, first: i32, last: i32, last_offset: i64) {
        let batch = BatchMeta {
            first_sequence: first,
            last_sequence: last,
            last_offset,
            offset_delta: if last >= first { last - first } else { 2 },
            timestamp: 1000,
        };
        states.update(7, 0, batch, 50);
    }

    #[test]
    fn the_last_five_batches_are_duplicates_and_the_sixth_is_out_of_order() {
        let mut states = ProducerStates::default();
        for i in 0..7 {
            add(&mut states, i * 2, i * 2 + 1, i64::from(i * 2 + 1));
        }
        for i in 2..7 {
            let twin = states
                .check(7, 0, i * 2, i * 2 + 1)
                .unwrap()
                .expect("a duplicate");
            assert_eq!(twin.base_offset(), i64::from(i * 2));
        }
        let refused = [(2, 3), (0, 1), (12, 12), (10, 13), (15, 15)];
        for (first, last) in refused {
            assert_eq!(
                states.check(7, 0, first, last),
                Err(ErrorCode::OutOfOrderSequenceNumber),
                "{first}..={last}"
            );
        }
        assert_eq!(states.check(7, 0, 14, 20), Ok(None));
    }

    #[test]
    fn epochs_and_unknown_producers_follow_kafkas_rules() {
        let mut states = ProducerStates::default();
        assert_eq!(
            states.check(7, 3, 99, 99),
            Ok(None),
            "unknown: any sequence"
        );
        let batch = BatchMeta {
            first_sequence: 99,
            last_sequence: 99,
            last_offset: 5,
            offset_delta: 0,
            timestamp: 0,
        };
        states.update(7, 3, batch, 0);
        assert_eq!(
            states.check(7, 2, 100, 100),
            Err(ErrorCode::InvalidProducerEpoch)
        );
        assert_eq!(
            states.check(7, 4, 100, 100),
            Err(ErrorCode::OutOfOrderSequenceNumber)
        );
        assert_eq!(states.check(7, 4, 0, 3), Ok(None));
        assert_eq!(states.check(8, 0, 4, 4), Ok(None));
    }

    #[test]
    fn sequences_wrap_after_the_largest_to_zero() {
        let mut states = ProducerStates::default();
        add(&mut states, i32::MAX - 1, i32::MAX, 10);
        assert_eq!(states.check(7, 0, 0, 4), Ok(None));
        assert_eq!(
            states.check(7, 0, 1, 4),
            Err(ErrorCode::OutOfOrderSequenceNumber)
        );
        // A batch that wraps inside: MAX, 0, 1.
        let mut states = ProducerStates::default();
        add(&mut states, i32::MAX, 1, 12);
        assert_eq!(states.check(7, 0, 2, 2), Ok(None));
        let back = ProducerStates::from_snapshot(&states.snapshot(), 0).unwrap();
        assert_eq!(
            back.check(7, 0, i32::MAX, 1)
                .unwrap()
                .unwrap()
                .base_offset(),
            10
        );
    }

    #[test]
    fn five_batches_survive_a_snapshot() {
        let mut states = ProducerStates::default();
        for i in 0..6 {
            add(&mut states, i, i, i64::from(i));
        }
        assert_eq!(
            ProducerStates::from_snapshot(&states.snapshot(), 9),
            Some(states.clone())
        );
        let empty = ProducerStates::default();
        assert_eq!(
            empty.snapshot()[..],
            [0, 1, 0x48, 0x67, 0x4b, 0xc7, 0, 0, 0, 0]
        );
        assert_eq!(
            ProducerStates::from_snapshot(&empty.snapshot(), 9),
            Some(empty)
        );
    }

    #[test]
    fn a_snapshot_of_kafka_gives_the_last_batch_and_a_damaged_one_nothing() {
        let mut states = ProducerStates::default();
        add(&mut states, 3, 5, 105);
        // Kafka's own bytes: the same without what is behind the entries.
        let mut kafka = states.snapshot()[..10 + 46].to_vec();
        let crc = crc32c::crc32c(&kafka[6..]);
        kafka[2..6].copy_from_slice(&crc.to_be_bytes());
        let read = ProducerStates::from_snapshot(&kafka, 77).unwrap();
        assert_eq!(
            read.get(7).unwrap().batches(),
            states.get(7).unwrap().batches()
        );
        assert_eq!(read.get(7).unwrap().seen, 77);
        for i in 0..kafka.len() {
            let mut bad = kafka.clone();
            bad[i] ^= 0x10;
            assert_eq!(ProducerStates::from_snapshot(&bad, 0), None, "byte {i}");
            assert_eq!(
                ProducerStates::from_snapshot(&kafka[..i], 0),
                None,
                "cut at {i}"
            );
        }
    }

    #[test]
    fn expiry_goes_by_when_the_broker_saw_the_producer() {
        let mut states = ProducerStates::default();
        add(&mut states, 0, 0, 0); // record timestamp 1000, seen at 50
        assert_eq!(states.expire(149, 100), 0);
        assert_eq!(states.expire(150, 100), 1);
    }

    #[test]
    fn truncation_forgets_cut_batches_only() {
        let mut states = ProducerStates::default();
        for i in 0..3 {
            add(&mut states, i, i, i64::from(i));
        }
        states.truncate_end(2);
        assert_eq!(states.check(7, 0, 2, 2), Ok(None));
        assert!(states.check(7, 0, 1, 1).unwrap().is_some());
        states.truncate_end(0);
        assert!(states.is_empty());
    }
}
