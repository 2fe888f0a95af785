//! [`CheckedBatch`]: what a log may append.

use std::borrow::Cow;

use super::codec::Codec;
use super::view::{Batch, ParseError, TimestampType, last_sequence};
use super::walk::Walk;
use super::{HEADER_BYTES, LOG_OVERHEAD, NONE, at, bit};
use crate::model::WallMs;

/// A batch that passed the checks. The header is a copy, so that it can be stamped; the records stay where they were
/// received unless they had to change.
#[derive(Clone, Debug)]
pub struct CheckedBatch<'a> {
    header: [u8; HEADER_BYTES],
    payload: Cow<'a, [u8]>,
    first_timestamp: i64,
    max_timestamp_offset_delta: i32,
    log_append_time: i64,
    /// Something under the CRC changed.
    unsealed: bool,
}

impl<'a> CheckedBatch<'a> {
    /// A batch that this program built itself: only length, magic and CRC are checked.
    pub fn own(bytes: &'a [u8]) -> Result<CheckedBatch<'a>, ParseError> {
        let (batch, len) = Batch::parse(bytes)?;
        if len != bytes.len() {
            return Err(ParseError::Corrupt("bytes after the batch"));
        }
        let log_append_time = match batch.timestamp_type() {
            TimestampType::CreateTime => NONE,
            TimestampType::LogAppendTime => batch.max_timestamp(),
        };
        let mut max_timestamp_offset_delta = 0;
        if log_append_time == NONE
            && let Ok(records) = batch.records()
        {
            let of_max = records
                .iter()
                .map_while(Result::ok)
                .find(|record| record.timestamp == batch.max_timestamp());
            if let Some(record) = of_max {
                let delta = record.offset.saturating_sub(batch.base_offset());
                max_timestamp_offset_delta = i32::try_from(delta).unwrap_or(0);
            }
        }
        Ok(CheckedBatch {
            header: *batch.bytes().first_chunk().expect("a whole header"),
            payload: Cow::Borrowed(batch.payload()),
            first_timestamp: batch.base_timestamp(),
            max_timestamp_offset_delta,
            log_append_time,
            unsealed: false,
        })
    }

    pub(super) fn of(batch: Batch<'a>, walk: &Walk) -> CheckedBatch<'a> {
        let mut checked = CheckedBatch {
            header: *batch.bytes().first_chunk().expect("a whole header"),
            payload: Cow::Borrowed(batch.payload()),
            first_timestamp: walk.first_timestamp,
            max_timestamp_offset_delta: walk.max_timestamp_index,
            log_append_time: NONE,
            unsealed: false,
        };
        checked.put(at::MAX_TIMESTAMP, &walk.max_timestamp.to_be_bytes());
        checked
    }

    pub(super) fn replace_payload(&mut self, payload: Vec<u8>, codec: Codec) {
        let length = (HEADER_BYTES - LOG_OVERHEAD + payload.len()) as i32;
        self.header[at::LENGTH..at::LENGTH + 4].copy_from_slice(&length.to_be_bytes());
        let attributes = self.view().attributes() & !bit::CODEC | codec as i16;
        self.put(at::ATTRIBUTES, &attributes.to_be_bytes());
        self.payload = Cow::Owned(payload);
        self.unsealed = true;
    }

    /// The topic's kind of time; a client's LogAppendTime bit does not survive on a CreateTime topic.
    pub(super) fn stamp_times(&mut self, timestamp_type: TimestampType, now: WallMs) {
        let mut attributes = self.view().attributes() & !bit::LOG_APPEND_TIME;
        if timestamp_type == TimestampType::LogAppendTime {
            attributes |= bit::LOG_APPEND_TIME;
            self.put(at::MAX_TIMESTAMP, &now.to_be_bytes());
            self.max_timestamp_offset_delta = 0;
            self.log_append_time = now;
        }
        self.put(at::ATTRIBUTES, &attributes.to_be_bytes());
    }

    /// Makes the CRC right again after changes.
    pub(super) fn seal(&mut self) {
        if !std::mem::take(&mut self.unsealed) {
            return;
        }
        let crc = crc32c::crc32c(&self.header[at::ATTRIBUTES..]);
        let crc = crc32c::crc32c_append(crc, &self.payload);
        self.header[at::CRC..at::CRC + 4].copy_from_slice(&crc.to_be_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let field = &mut self.header[at..at + bytes.len()];
        if field != bytes {
            field.copy_from_slice(bytes);
            self.unsealed = true;
        }
    }

    /// The header fields; its payload is not there.
    fn view(&self) -> Batch<'_> {
        Batch::of_whole(&self.header)
    }

    /// Bytes of header and payload: what the log appends.
    #[allow(clippy::len_without_is_empty)] // a batch has a header at least
    pub fn len(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// The header with base offset and leader epoch, both outside the CRC.
    #[inline]
    pub fn header(&self, base_offset: i64, leader_epoch: i32) -> [u8; HEADER_BYTES] {
        let mut header = self.header;
        header[at::BASE_OFFSET..at::LENGTH].copy_from_slice(&base_offset.to_be_bytes());
        header[at::LEADER_EPOCH..at::MAGIC].copy_from_slice(&leader_epoch.to_be_bytes());
        header
    }

    /// What follows the header.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub fn write_to(&self, out: &mut Vec<u8>, base_offset: i64, leader_epoch: i32) {
        out.extend_from_slice(&self.header(base_offset, leader_epoch));
        out.extend_from_slice(&self.payload);
    }

    /// The payload is not the bytes that came, but rewritten ones.
    pub fn is_rewritten(&self) -> bool {
        matches!(self.payload, Cow::Owned(_))
    }

    /// The base offset that the batch came with (0 from clients).
    pub fn base_offset(&self) -> i64 {
        self.view().base_offset()
    }

    pub fn attributes(&self) -> i16 {
        self.view().attributes()
    }

    pub fn records_count(&self) -> i32 {
        self.view().records_count()
    }

    pub fn last_offset_delta(&self) -> i32 {
        self.view().last_offset_delta()
    }

    pub fn base_timestamp(&self) -> i64 {
        self.view().base_timestamp()
    }

    /// Timestamp of the first record, as the producer set it.
    pub fn first_timestamp(&self) -> i64 {
        self.first_timestamp
    }

    pub fn max_timestamp(&self) -> i64 {
        self.view().max_timestamp()
    }

    /// Offset delta of the first record that has the max timestamp; 0 for LogAppendTime.
    pub fn max_timestamp_offset_delta(&self) -> i32 {
        self.max_timestamp_offset_delta
    }

    /// -1 unless the topic stamps append time.
    pub fn log_append_time(&self) -> i64 {
        self.log_append_time
    }

    pub fn producer_id(&self) -> i64 {
        self.view().producer_id()
    }

    pub fn producer_epoch(&self) -> i16 {
        self.view().producer_epoch()
    }

    pub fn base_sequence(&self) -> i32 {
        self.view().base_sequence()
    }

    pub fn last_sequence(&self) -> i32 {
        last_sequence(self.base_sequence(), self.last_offset_delta())
    }

    pub fn has_producer_id(&self) -> bool {
        self.view().has_producer_id()
    }

    pub fn is_transactional(&self) -> bool {
        self.view().is_transactional()
    }

    pub fn is_control(&self) -> bool {
        self.view().is_control()
    }
}
