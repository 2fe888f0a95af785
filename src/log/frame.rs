//! The bytes of a journal frame.
//!
//! A frame is what one turn commits: a header, then parts, padded to whole blocks. It is valid iff its checksum is
//! right and it names the current generation. Integers are little-endian; the format is ours alone.
//!
//! ```text
//! header 64: magic u32 | crc32c u32 of [8..) | body bytes u32 | parts u32 | generation u64 | sequence u64
//!            | flushed up to sequence u64 | live from sequence u64 | shard u32 | 0 u32 | place in the file u64
//! part   80: kind u8, 0 u24 | partition i32 | topic id 16 | leader epoch i32 | bytes u32 | segment base i64
//!            | byte position u64 | first offset i64 | flushed end i64 | high watermark i64 | log start i64, then the bytes
//! ```

use bytes::Bytes;

use crate::model::limit::BLOCK_BYTES;
use crate::model::{TopicPartition, Uuid};

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const PART_BYTES: usize = 80;
const MAGIC: u32 = u32::from_le_bytes(*b"CLJ1");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeader {
    pub generation: u64,
    pub sequence: u64,
    /// Frames up to here were flushed when this one was written: one of them missing is loss.
    pub flushed: u64,
    /// Frames before this one hold nothing that matters any more: they may be missing, and must not be read.
    pub live_from: u64,
    pub shard: u32,
    /// Its own byte position in its file: a frame inside a record (someone's backup of a journal) is not one.
    pub at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartKind {
    /// Batches that continue a log.
    Data,
    /// Only the small state that every part carries: log start and high watermark.
    State,
    /// The log's past in this journal ends here; `first_offset` is where the log ended then.
    Mark,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartHeader {
    pub kind: PartKind,
    pub tp: TopicPartition,
    pub leader_epoch: i32,
    pub segment_base: i64,
    /// Where in the segment's file the bytes belong.
    pub at: u64,
    pub first_offset: i64,
    /// The log was flushed up to here: a log that ends below is loss.
    pub flushed: i64,
    pub high_watermark: i64,
    pub log_start: i64,
}

/// Fills the bytes of one frame in place. The caller knows all parts beforehand, so their sum is the buffer's length.
pub(crate) struct FrameWriter<'a> {
    bytes: &'a mut [u8],
    at: usize,
    parts: u32,
}

impl<'a> FrameWriter<'a> {
    pub fn new(bytes: &'a mut [u8]) -> FrameWriter<'a> {
        FrameWriter {
            bytes,
            at: HEADER_BYTES,
            parts: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Starts a part; its bytes follow by [`FrameWriter::data`].
    pub fn part(&mut self, part: &PartHeader, len: u32) {
        let kind = match part.kind {
            PartKind::Data => 0u32,
            PartKind::State => 1,
            PartKind::Mark => 2,
        };
        self.put(&kind.to_le_bytes());
        self.put(&part.tp.partition.to_le_bytes());
        self.put(&part.tp.topic.0);
        self.put(&part.leader_epoch.to_le_bytes());
        self.put(&len.to_le_bytes());
        self.put(&part.segment_base.to_le_bytes());
        self.put(&part.at.to_le_bytes());
        self.put(&part.first_offset.to_le_bytes());
        self.put(&part.flushed.to_le_bytes());
        self.put(&part.high_watermark.to_le_bytes());
        self.put(&part.log_start.to_le_bytes());
        self.parts += 1;
    }

    pub fn data(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Fills the header in.
    pub fn finish(self, header: &FrameHeader) {
        assert_eq!(self.at, self.bytes.len(), "a frame is as long as its parts");
        let body = (self.at - HEADER_BYTES) as u32;
        let h = &mut self.bytes[..HEADER_BYTES];
        h.fill(0);
        h[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        h[8..12].copy_from_slice(&body.to_le_bytes());
        h[12..16].copy_from_slice(&self.parts.to_le_bytes());
        h[16..24].copy_from_slice(&header.generation.to_le_bytes());
        h[24..32].copy_from_slice(&header.sequence.to_le_bytes());
        h[32..40].copy_from_slice(&header.flushed.to_le_bytes());
        h[40..48].copy_from_slice(&header.live_from.to_le_bytes());
        h[48..52].copy_from_slice(&header.shard.to_le_bytes());
        h[56..64].copy_from_slice(&header.at.to_le_bytes());
        let crc = crc32c::crc32c(&self.bytes[8..]);
        self.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A part as found in a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub header: PartHeader,
    pub bytes: Bytes,
}

/// A valid frame as found in a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub header: FrameHeader,
    pub parts: Vec<Part>,
    /// Bytes it takes in the file, padding included.
    pub file_bytes: usize,
}

/// The frame at the start of `bytes`, if there is a whole and right one, of whatever generation.
pub(crate) fn decode(bytes: &Bytes) -> Option<Frame> {
    let h = bytes.get(..HEADER_BYTES)?;
    if u32_at(h, 0) != MAGIC {
        return None;
    }
    let end = HEADER_BYTES.checked_add(u32_at(h, 8) as usize)?;
    let all = bytes.get(..end)?;
    if crc32c::crc32c(&all[8..]) != u32_at(h, 4) {
        return None;
    }
    let mut frame = Frame {
        header: FrameHeader {
            generation: u64_at(h, 16),
            sequence: u64_at(h, 24),
            flushed: u64_at(h, 32),
            live_from: u64_at(h, 40),
            shard: u32_at(h, 48),
            at: u64_at(h, 56),
        },
        parts: Vec::new(),
        file_bytes: end.next_multiple_of(BLOCK_BYTES),
    };
    let mut at = HEADER_BYTES;
    for _ in 0..u32_at(h, 12) {
        let p = all.get(at..at + PART_BYTES)?;
        let kind = match u32_at(p, 0) {
            0 => PartKind::Data,
            1 => PartKind::State,
            2 => PartKind::Mark,
            _ => return None,
        };
        let header = PartHeader {
            kind,
            tp: TopicPartition {
                partition: u32_at(p, 4) as i32,
                topic: Uuid(p[8..24].try_into().expect("16 bytes")),
            },
            leader_epoch: u32_at(p, 24) as i32,
            segment_base: u64_at(p, 32) as i64,
            at: u64_at(p, 40),
            first_offset: u64_at(p, 48) as i64,
            flushed: u64_at(p, 56) as i64,
            high_watermark: u64_at(p, 64) as i64,
            log_start: u64_at(p, 72) as i64,
        };
        let len = u32_at(p, 28) as usize;
        at += PART_BYTES;
        if len > end - at {
            return None;
        }
        frame.parts.push(Part {
            header,
            bytes: bytes.slice(at..at + len),
        });
        at += len;
    }
    (at == end).then_some(frame)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (FrameHeader, PartHeader, Vec<u8>) {
        let header = FrameHeader {
            generation: 3,
            sequence: 17,
            flushed: 15,
            live_from: 4,
            shard: 2,
            at: 8192,
        };
        let part = PartHeader {
            kind: PartKind::Data,
            tp: TopicPartition {
                topic: Uuid([9; 16]),
                partition: 5,
            },
            leader_epoch: 7,
            segment_base: 100,
            at: 4099,
            first_offset: 123,
            flushed: 120,
            high_watermark: 119,
            log_start: 100,
        };
        let mut bytes = vec![0xaa; HEADER_BYTES + 2 * PART_BYTES + 5];
        let mut writer = FrameWriter::new(&mut bytes);
        writer.part(&part, 5);
        writer.data(b"hello");
        writer.part(
            &PartHeader {
                kind: PartKind::Mark,
                ..part
            },
            0,
        );
        writer.finish(&header);
        (header, part, bytes)
    }

    #[test]
    fn a_frame_comes_back_as_it_was_written() {
        let (header, part, bytes) = sample();
        let frame = decode(&Bytes::from(bytes)).unwrap();
        assert_eq!((frame.header, frame.file_bytes), (header, 4096));
        assert_eq!(frame.parts.len(), 2);
        assert_eq!(
            (frame.parts[0].header, &frame.parts[0].bytes[..]),
            (part, &b"hello"[..])
        );
        assert_eq!(frame.parts[1].header.kind, PartKind::Mark);
    }

    #[test]
    fn a_frame_with_any_byte_changed_or_missing_is_none() {
        let (_, _, bytes) = sample();
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 0x40;
            assert_eq!(decode(&Bytes::from(bad)), None, "byte {i}");
            assert_eq!(
                decode(&Bytes::copy_from_slice(&bytes[..i])),
                None,
                "cut at {i}"
            );
        }
    }
}
