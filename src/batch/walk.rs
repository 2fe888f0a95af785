//! The walk over the records of a batch: every length and count is checked, nothing is copied or allocated.
//!
//! A [`Walk`] is fed windows of bytes and takes whole records from them, so that it works the same over a payload in
//! memory, over windows of a decompressed stream, and in slices of a turn.

use super::check::{BatchError, RecordError};
use super::varint;
use super::{NONE, TimestampType};
use crate::model::{ErrorCode, WallMs, limit};

/// What each record must keep.
#[derive(Clone, Copy, Debug)]
pub struct RecordRules {
    /// CreateTime: a timestamp outside `[earliest..=latest]` is an error, except -1 (none).
    pub earliest: WallMs,
    pub latest: WallMs,
    /// A compacted topic: a record needs a key.
    pub key_needed: bool,
    /// The topic stamps append time and the batch claims to have one: every record is an error.
    pub append_time_claimed: bool,
    /// A longer record is an error.
    pub bytes_max: usize,
}

impl RecordRules {
    /// The time bounds of a topic, `now - before .. now + after`, saturating.
    pub fn bounds(
        timestamp_type: TimestampType,
        now: WallMs,
        before_max_ms: i64,
        after_max_ms: i64,
    ) -> (WallMs, WallMs) {
        match timestamp_type {
            TimestampType::CreateTime => (
                now.saturating_sub(before_max_ms),
                now.saturating_add(after_max_ms),
            ),
            TimestampType::LogAppendTime => (i64::MIN, i64::MAX),
        }
    }
}

#[derive(Debug)]
pub struct Walk {
    rules: RecordRules,
    base_timestamp: i64,
    count: i32,
    index: i32,
    /// Timestamp of the first record.
    pub first_timestamp: i64,
    pub max_timestamp: i64,
    /// Index of the first record that has the max timestamp.
    pub max_timestamp_index: i32,
    /// Record i had offset delta i, for every i so far.
    pub dense: bool,
    errors: Vec<RecordError>,
    timestamp_error: bool,
}

/// Why a walk ends: the static text says what of the record is wrong.
pub type Malformed = &'static str;

impl Walk {
    pub fn new(rules: RecordRules, base_timestamp: i64, count: i32) -> Walk {
        Walk {
            rules,
            base_timestamp,
            count,
            index: 0,
            first_timestamp: NONE,
            max_timestamp: NONE,
            max_timestamp_index: 0,
            dense: true,
            errors: Vec::new(),
            timestamp_error: false,
        }
    }

    /// Takes the whole records at the start of `window`, at most `budget` of them; gives the bytes taken.
    #[inline]
    pub fn feed(&mut self, window: &[u8], budget: u32) -> Result<usize, Malformed> {
        let mut at = 0;
        let end = self
            .index
            .saturating_add(i32::try_from(budget).unwrap_or(i32::MAX))
            .min(self.count);
        while self.index < end {
            let mut body = at;
            let Some(len) = varint::read_i32(window, &mut body) else {
                if window.len() - at >= varint::VARINT_BYTES_MAX {
                    return Err("a record's length is no varint");
                }
                break;
            };
            let len = usize::try_from(len).map_err(|_| "a record's length is negative")?;
            if len > self.rules.bytes_max {
                return Err("a record is larger than max.decompressed.message.bytes");
            }
            if len > window.len() - body {
                break;
            }
            self.record(&window[body..body + len])?;
            at = body + len;
        }
        Ok(at)
    }

    /// Instead of walking: believes the header.
    pub fn believe(&mut self, max_timestamp: i64) {
        self.index = self.count;
        self.first_timestamp = self.base_timestamp;
        self.max_timestamp = max_timestamp;
    }

    pub fn is_complete(&self) -> bool {
        self.index == self.count
    }

    /// After the last window: `rest` bytes were left over.
    pub fn finish(&mut self, rest: usize) -> Result<(), BatchError> {
        if !self.is_complete() {
            return Err(BatchError::invalid(
                "the batch has fewer records than it declares",
            ));
        }
        if rest != 0 {
            return Err(BatchError::invalid(
                "the batch has bytes after its last record",
            ));
        }
        if self.errors.is_empty() {
            return Ok(());
        }
        let record_errors = std::mem::take(&mut self.errors);
        let (code, message) = if self.timestamp_error {
            (
                ErrorCode::InvalidTimestamp,
                "One or more records have been rejected due to invalid timestamp",
            )
        } else {
            (
                ErrorCode::InvalidRecord,
                "One or more records have been rejected, see the errors of the records",
            )
        };
        Err(BatchError {
            code,
            message: message.into(),
            record_errors,
        })
    }

    /// `[attributes 1][timestamp delta][offset delta][key][value][headers]`, exactly.
    #[inline(always)]
    fn record(&mut self, body: &[u8]) -> Result<(), Malformed> {
        let mut at = 1; // attributes: unused, any value
        let timestamp_delta = varint::read_i64(body, &mut at)
            .ok_or("a record's timestamp is no varint or is cut off")?;
        let offset_delta = varint::read_i32(body, &mut at)
            .ok_or("a record's offset is no varint or is cut off")?;
        let key = skip_bytes(body, &mut at).ok_or("a record's key is cut off")?;
        skip_bytes(body, &mut at).ok_or("a record's value is cut off")?;
        let headers = varint::read_i32(body, &mut at).ok_or("a record's headers are cut off")?;
        if headers != 0 {
            skip_headers(body, &mut at, headers)?;
        }
        if at != body.len() {
            return Err("a record has bytes after its last field");
        }
        let timestamp = self
            .base_timestamp
            .checked_add(timestamp_delta)
            .ok_or("a record's timestamp overflows")?;
        self.dense &= offset_delta == self.index;
        if self.index == 0 {
            self.first_timestamp = timestamp;
        }
        if timestamp > self.max_timestamp {
            self.max_timestamp = timestamp;
            self.max_timestamp_index = self.index;
        }
        let rules = &self.rules;
        let timestamp_is_wrong = (timestamp < rules.earliest || timestamp > rules.latest)
            && timestamp != NONE
            || rules.append_time_claimed;
        let key_is_missing = rules.key_needed && !key;
        if timestamp_is_wrong || key_is_missing {
            self.refuse(timestamp, key_is_missing);
        }
        self.index += 1;
        Ok(())
    }

    #[cold]
    fn refuse(&mut self, timestamp: i64, key_is_missing: bool) {
        // Kafka looks at the key first, and at the time only if that is right.
        self.timestamp_error |= !key_is_missing;
        if self.errors.len() >= limit::RECORD_ERRORS_MAX {
            return;
        }
        let message = if key_is_missing {
            "Compacted topic cannot accept message without key".to_string()
        } else if self.rules.append_time_claimed {
            "Producer should not set timestamp type to LogAppendTime".to_string()
        } else {
            format!(
                "Timestamp {timestamp} of message is out of range. The timestamp should be within [{}, {}]",
                self.rules.earliest, self.rules.latest
            )
        };
        self.errors.push(RecordError {
            batch_index: self.index,
            message,
        });
    }
}

/// Skips length and bytes; says whether they were there (any negative length is null, as in Kafka).
#[inline(always)]
fn skip_bytes(body: &[u8], at: &mut usize) -> Option<bool> {
    let len = varint::read_i32(body, at)?;
    if len < 0 {
        return Some(false);
    }
    let len = len as usize;
    if len > body.len() - *at {
        return None;
    }
    *at += len;
    Some(true)
}

#[cold]
fn skip_headers(body: &[u8], at: &mut usize, count: i32) -> Result<(), Malformed> {
    // A header is two bytes at least.
    if count < 0 || count as usize > (body.len() - *at) / 2 {
        return Err("a record's header count is wrong");
    }
    for _ in 0..count {
        if skip_bytes(body, at) != Some(true) {
            return Err("a record's header key is null or cut off");
        }
        skip_bytes(body, at).ok_or("a record's header value is cut off")?;
    }
    Ok(())
}
