//! Record batches, format 2: the only shape in which records travel and rest.
//!
//! Owns: the borrowed view of a batch ([`Batch`]), the walk over its records in place ([`walk`]), the codecs, the checks
//! of the produce path ([`check_produce`], which is the only way to a [`CheckedBatch`] from a client's bytes) and the
//! [`Builder`].
//!
//! Invariants:
//! * A [`CheckedBatch`] has a right CRC, a records count that is its offset range, dense offset deltas and a true max
//!   timestamp; a log appends nothing else. Base offset and leader epoch are outside the CRC and are stamped by the log.
//! * The path of an uncompressed batch that needs no rewriting is one CRC pass and one walk, without an allocation.
//! * Nothing is decompressed without a bound, and never more than a window of it is held unless it is to be kept.
//!
//! Must not know: offsets of a log, topics, requests, clocks. "Now" is passed in.
//!
//! Formats 0 and 1 are not read: clients of Kafka 4 neither send nor ask for them.

mod builder;
mod check;
mod checked;
mod codec;
mod record;
#[cfg(test)]
mod tests;
mod varint;
mod view;
mod walk;

pub use builder::Builder;
pub use check::{
    BatchError, CompressionType, ProduceRules, RecordError, check_produce, first_batch,
};
pub use checked::CheckedBatch;
pub use codec::{Codec, Codecs, Compression};
pub use record::{Header, Headers, Record, Records, RecordsIter};
pub use view::{Batch, ControlType, ParseError, TimestampType};

/// Bytes of a batch before its records.
pub const HEADER_BYTES: usize = 61;

/// Bytes of base offset and length: what `batchLength` does not count.
pub const LOG_OVERHEAD: usize = 12;

/// "No timestamp", "no producer id", "no sequence".
pub const NONE: i64 = -1;

/// Where the fields of a batch are: `[0..8)` base offset, `[8..12)` length, and so on. The CRC covers `[21..)`.
pub(crate) mod at {
    pub const BASE_OFFSET: usize = 0;
    pub const LENGTH: usize = 8;
    pub const LEADER_EPOCH: usize = 12;
    pub const MAGIC: usize = 16;
    pub const CRC: usize = 17;
    pub const ATTRIBUTES: usize = 21;
    pub const LAST_OFFSET_DELTA: usize = 23;
    pub const BASE_TIMESTAMP: usize = 27;
    pub const MAX_TIMESTAMP: usize = 35;
    pub const PRODUCER_ID: usize = 43;
    pub const PRODUCER_EPOCH: usize = 51;
    pub const BASE_SEQUENCE: usize = 53;
    pub const RECORDS_COUNT: usize = 57;
}

/// Bits of the attributes.
pub(crate) mod bit {
    pub const CODEC: i16 = 0x07;
    pub const LOG_APPEND_TIME: i16 = 0x08;
    pub const TRANSACTIONAL: i16 = 0x10;
    pub const CONTROL: i16 = 0x20;
    pub const DELETE_HORIZON: i16 = 0x40;
}

/// The sequence `delta` after `base`; sequences wrap after 2^31 - 1 to 0.
pub fn sequence_after(base: i32, delta: i32) -> i32 {
    let sum = i64::from(base) + i64::from(delta);
    if sum > i64::from(i32::MAX) {
        (sum - i64::from(i32::MAX) - 1) as i32
    } else {
        sum as i32
    }
}
