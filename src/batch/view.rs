//! [`Batch`]: a borrowed view of one whole batch.

use super::codec::{Codec, Codecs};
use super::record::Records;
use super::{BatchError, HEADER_BYTES, LOG_OVERHEAD, at, bit, sequence_after, varint};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimestampType {
    #[default]
    CreateTime,
    LogAppendTime,
}

/// The kind of a control record: the second half of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlType {
    Abort,
    Commit,
    LeaderChange,
    SnapshotHeader,
    SnapshotFooter,
    KraftVersion,
    KraftVoters,
    /// Consumers pass over it.
    Unknown(i16),
}

impl ControlType {
    pub fn code(self) -> i16 {
        match self {
            ControlType::Abort => 0,
            ControlType::Commit => 1,
            ControlType::LeaderChange => 2,
            ControlType::SnapshotHeader => 3,
            ControlType::SnapshotFooter => 4,
            ControlType::KraftVersion => 5,
            ControlType::KraftVoters => 6,
            ControlType::Unknown(code) => code,
        }
    }

    fn of(code: i16) -> ControlType {
        match code {
            0 => ControlType::Abort,
            1 => ControlType::Commit,
            2 => ControlType::LeaderChange,
            3 => ControlType::SnapshotHeader,
            4 => ControlType::SnapshotFooter,
            5 => ControlType::KraftVersion,
            6 => ControlType::KraftVoters,
            code => ControlType::Unknown(code),
        }
    }
}

/// Why bytes are no batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// The bytes end before the batch does; it has (at least) this many.
    Short {
        needs: usize,
    },
    Corrupt(&'static str),
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParseError::Short { needs } => write!(f, "the batch ends short of its {needs} bytes"),
            ParseError::Corrupt(reason) => f.write_str(reason),
        }
    }
}

/// One whole batch, borrowed. Made by [`Batch::parse`] (CRC checked) or [`Batch::view`] (not checked).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch<'a> {
    /// At least `HEADER_BYTES`, exactly this batch.
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The batch at the start of `bytes` with its length in bytes; length, magic and CRC are checked.
    pub fn parse(bytes: &'a [u8]) -> Result<(Batch<'a>, usize), ParseError> {
        let (batch, len) = Batch::view(bytes)?;
        if !batch.crc_is_right() {
            return Err(ParseError::Corrupt("the batch does not match its checksum"));
        }
        Ok((batch, len))
    }

    /// The same without the CRC, for bytes that were checked before.
    pub fn view(bytes: &'a [u8]) -> Result<(Batch<'a>, usize), ParseError> {
        if bytes.len() < HEADER_BYTES {
            return Err(ParseError::Short {
                needs: HEADER_BYTES,
            });
        }
        let length = i32_at(bytes, at::LENGTH);
        if bytes[at::MAGIC] != 2 {
            return Err(ParseError::Corrupt("the batch is not of format 2"));
        }
        if length < (HEADER_BYTES - LOG_OVERHEAD) as i32 {
            return Err(ParseError::Corrupt(
                "the batch is shorter than its own header",
            ));
        }
        let len = length as usize + LOG_OVERHEAD;
        let Some(bytes) = bytes.get(..len) else {
            return Err(ParseError::Short { needs: len });
        };
        Ok((Batch { bytes }, len))
    }

    /// `bytes` is one whole batch of format 2 whose length was checked.
    pub(super) fn of_whole(bytes: &'a [u8]) -> Batch<'a> {
        assert!(bytes.len() >= HEADER_BYTES);
        Batch { bytes }
    }

    pub fn crc_is_right(&self) -> bool {
        crc32c::crc32c(&self.bytes[at::ATTRIBUTES..]) == self.crc()
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of header and records.
    #[allow(clippy::len_without_is_empty)] // a batch has a header at least
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What follows the header: records, or one compressed blob of them.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    pub fn base_offset(&self) -> i64 {
        i64_at(self.bytes, at::BASE_OFFSET)
    }

    /// Saturates: nothing about an offset is known before the batch is in a log.
    pub fn last_offset(&self) -> i64 {
        self.base_offset()
            .saturating_add(i64::from(self.last_offset_delta()))
    }

    pub fn leader_epoch(&self) -> i32 {
        i32_at(self.bytes, at::LEADER_EPOCH)
    }

    pub fn crc(&self) -> u32 {
        i32_at(self.bytes, at::CRC) as u32
    }

    pub fn attributes(&self) -> i16 {
        i16_at(self.bytes, at::ATTRIBUTES)
    }

    pub fn last_offset_delta(&self) -> i32 {
        i32_at(self.bytes, at::LAST_OFFSET_DELTA)
    }

    pub fn base_timestamp(&self) -> i64 {
        i64_at(self.bytes, at::BASE_TIMESTAMP)
    }

    pub fn max_timestamp(&self) -> i64 {
        i64_at(self.bytes, at::MAX_TIMESTAMP)
    }

    pub fn producer_id(&self) -> i64 {
        i64_at(self.bytes, at::PRODUCER_ID)
    }

    pub fn producer_epoch(&self) -> i16 {
        i16_at(self.bytes, at::PRODUCER_EPOCH)
    }

    pub fn base_sequence(&self) -> i32 {
        i32_at(self.bytes, at::BASE_SEQUENCE)
    }

    pub fn last_sequence(&self) -> i32 {
        last_sequence(self.base_sequence(), self.last_offset_delta())
    }

    pub fn records_count(&self) -> i32 {
        i32_at(self.bytes, at::RECORDS_COUNT)
    }

    /// Kafka's rule: any negative id is none.
    pub fn has_producer_id(&self) -> bool {
        self.producer_id() >= 0
    }

    /// `None`: a codec that nobody knows.
    pub fn codec(&self) -> Option<Codec> {
        Codec::of(self.attributes() & bit::CODEC)
    }

    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes() & bit::LOG_APPEND_TIME != 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        }
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes() & bit::TRANSACTIONAL != 0
    }

    pub fn is_control(&self) -> bool {
        self.attributes() & bit::CONTROL != 0
    }

    /// The time until which compaction keeps this batch's tombstones and markers, once it has met them.
    pub fn delete_horizon(&self) -> Option<i64> {
        (self.attributes() & bit::DELETE_HORIZON != 0).then(|| self.base_timestamp())
    }

    /// The kind of a control batch, by its first record; `None` if it is not one or cannot be read.
    pub fn control_type(&self) -> Option<ControlType> {
        if !self.is_control() || self.codec() != Some(Codec::None) {
            return None;
        }
        let key = first_key(self.payload())?;
        (key.len() >= 4).then(|| ControlType::of(i16_at(key, 2)))
    }

    /// The records, decompressed if need be (bounded by `limit::DECOMPRESSED_BYTES_MAX`).
    pub fn records(&self) -> Result<Records<'a>, BatchError> {
        self.records_with(&mut Codecs::default())
    }

    /// The same with contexts that are kept from batch to batch.
    pub fn records_with(&self, codecs: &mut Codecs) -> Result<Records<'a>, BatchError> {
        Records::of(*self, codecs)
    }
}

pub(super) fn last_sequence(base_sequence: i32, last_offset_delta: i32) -> i32 {
    if base_sequence < 0 {
        base_sequence
    } else {
        sequence_after(base_sequence, last_offset_delta.max(0))
    }
}

fn first_key(payload: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    varint::read_i32(payload, &mut at)?;
    at += 1;
    varint::read_i64(payload, &mut at)?;
    varint::read_i32(payload, &mut at)?;
    let len = usize::try_from(varint::read_i32(payload, &mut at)?).ok()?;
    payload.get(at..at.checked_add(len)?)
}

/// Big-endian integers at places that the caller knows to be inside.
#[inline(always)]
pub(super) fn i16_at(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

#[inline(always)]
pub(super) fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline(always)]
pub(super) fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
