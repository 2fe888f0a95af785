//! The checks of the produce path, in Kafka's order and with its codes, where it has good ones.
//!
//! Where Apache Kafka answers -1 for garbage inside a batch with a right CRC, this answers INVALID_RECORD, which clients
//! do not retry; CORRUPT_MESSAGE, which they do, is for bytes that a wire can have damaged.

use std::borrow::Cow;

use super::checked::CheckedBatch;
use super::codec::{Codec, Codecs, Compression};
use super::record;
use super::view::{Batch, TimestampType, i32_at};
use super::walk::{RecordRules, Walk};
use super::{HEADER_BYTES, LOG_OVERHEAD, at};
use crate::model::{ErrorCode, WallMs, limit};

/// What one topic asks of a batch. Kept with the topic's configuration and passed by reference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProduceRules {
    /// `max.message.bytes`: bytes of a whole batch, as received and again as stored.
    pub max_message_bytes: u32,
    /// `max.decompressed.message.bytes`: of one record of a compressed batch.
    pub record_bytes_max: u32,
    pub compression: CompressionType,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms` and `.after.max.ms`.
    pub timestamp_before_max_ms: i64,
    pub timestamp_after_max_ms: i64,
    /// The cleanup policy has `compact`: a record needs a key.
    pub compacted: bool,
    /// `validate.compressed.records`: off, the header of a compressed batch is believed and nothing is decompressed,
    /// unless the batch is compressed anew.
    pub validate_compressed: bool,
}

impl Default for ProduceRules {
    /// Kafka's defaults.
    fn default() -> ProduceRules {
        ProduceRules {
            max_message_bytes: 1_048_588,
            record_bytes_max: i32::MAX as u32,
            compression: CompressionType::Producer,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            compacted: false,
            validate_compressed: true,
        }
    }
}

/// `compression.type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CompressionType {
    /// As the producer sent it.
    #[default]
    Producer,
    /// Batches of another codec are compressed anew; a difference of level alone does nothing.
    Fixed(Compression),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchError {
    pub code: ErrorCode,
    pub message: Cow<'static, str>,
    /// The records at fault, at most `limit::RECORD_ERRORS_MAX`.
    pub record_errors: Vec<RecordError>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordError {
    /// Index of the record in its batch.
    pub batch_index: i32,
    pub message: String,
}

impl BatchError {
    pub(super) fn invalid(message: &'static str) -> BatchError {
        BatchError::of(ErrorCode::InvalidRecord, message)
    }

    fn of(code: ErrorCode, message: &'static str) -> BatchError {
        BatchError {
            code,
            message: message.into(),
            record_errors: Vec::new(),
        }
    }
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for BatchError {}

/// The only batch of one partition's `records`, before anything of it is checked but its shape.
/// Bytes after it that are no whole batch are ignored, as Kafka does.
pub fn first_batch(bytes: &[u8]) -> Result<Batch<'_>, BatchError> {
    let Some(len) = next_batch_bytes(bytes)? else {
        return Err(BatchError::invalid(
            "a partition of a produce request needs a record batch",
        ));
    };
    if bytes[at::MAGIC] != 2 {
        return Err(BatchError::invalid(
            "a produce request may only contain record batches of format 2",
        ));
    }
    if len < HEADER_BYTES {
        return Err(BatchError::of(
            ErrorCode::CorruptMessage,
            "the batch is shorter than its own header",
        ));
    }
    if next_batch_bytes(&bytes[len..])?.is_some() {
        return Err(BatchError::invalid(
            "a partition of a produce request may have only one record batch",
        ));
    }
    Ok(Batch::of_whole(&bytes[..len]))
}

/// Smallest batch of any format, without [`LOG_OVERHEAD`].
const SMALLEST_BYTES: i32 = 14;

/// Length of the whole batch that `bytes` starts with, `None` if there is none.
fn next_batch_bytes(bytes: &[u8]) -> Result<Option<usize>, BatchError> {
    if bytes.len() < LOG_OVERHEAD {
        return Ok(None);
    }
    let length = i32_at(bytes, at::LENGTH);
    // The largest length overflows in Kafka; it is nothing that a request could hold.
    if !(SMALLEST_BYTES..=i32::MAX - LOG_OVERHEAD as i32).contains(&length) {
        return Err(BatchError::of(
            ErrorCode::CorruptMessage,
            "the length of the batch is impossible",
        ));
    }
    let Some(magic) = bytes.get(at::MAGIC) else {
        return Ok(None);
    };
    if *magic > 2 {
        return Err(BatchError::of(
            ErrorCode::CorruptMessage,
            "the batch has an unknown format",
        ));
    }
    let len = length as usize + LOG_OVERHEAD;
    Ok((len <= bytes.len()).then_some(len))
}

/// Checks one partition's `records` of a produce request. `now` is the broker's time.
pub fn check_produce<'a>(
    bytes: &'a [u8],
    rules: &ProduceRules,
    now: WallMs,
    codecs: &mut Codecs,
) -> Result<CheckedBatch<'a>, BatchError> {
    let batch = first_batch(bytes)?;
    check_header(&batch, rules)?;
    let source = batch
        .codec()
        .ok_or_else(|| BatchError::invalid("the batch has an unknown codec"))?;
    let target = match rules.compression {
        CompressionType::Producer => Compression::of(source),
        CompressionType::Fixed(compression) => compression,
    };
    let (walk, rewritten) = check_records(&batch, rules, now, (source, target), codecs)?;
    let mut checked = CheckedBatch::of(batch, &walk);
    if let Some(payload) = rewritten {
        checked.replace_payload(payload, target.codec);
        if checked.len() > rules.max_message_bytes as usize {
            return Err(too_large(checked.len(), rules));
        }
    }
    checked.stamp_times(rules.timestamp_type, now);
    checked.seal();
    Ok(checked)
}

fn too_large(len: usize, rules: &ProduceRules) -> BatchError {
    BatchError {
        code: ErrorCode::MessageTooLarge,
        message: format!(
            "The record batch size is {len} bytes, which exceeds the maximum configured value of {}",
            rules.max_message_bytes
        )
        .into(),
        record_errors: Vec::new(),
    }
}

/// What Kafka checks before it looks at records, in its order.
fn check_header(batch: &Batch<'_>, rules: &ProduceRules) -> Result<(), BatchError> {
    if batch.base_offset() != 0 {
        return Err(BatchError::invalid(
            "the base offset of a produced batch must be 0",
        ));
    }
    if batch.len() > rules.max_message_bytes as usize {
        return Err(too_large(batch.len(), rules));
    }
    if !batch.crc_is_right() {
        return Err(BatchError::of(
            ErrorCode::CorruptMessage,
            "the batch does not match its checksum",
        ));
    }
    let count = batch.records_count();
    if batch.last_offset_delta() < 0 {
        return Err(BatchError::invalid("the batch has an invalid offset range"));
    }
    if count <= 0 {
        return Err(BatchError::invalid("the batch has no records"));
    }
    if i64::from(batch.last_offset_delta()) + 1 != i64::from(count) {
        return Err(BatchError::invalid(
            "the offset range of the batch differs from its records count",
        ));
    }
    if batch.is_control() {
        return Err(BatchError::invalid("clients may not write control records"));
    }
    if batch.has_producer_id() && batch.base_sequence() < 0 {
        return Err(BatchError::invalid(
            "a batch with a producer id needs a sequence number",
        ));
    }
    Ok(())
}

/// Walks the records; gives the new payload if the batch has to change.
fn check_records(
    batch: &Batch<'_>,
    rules: &ProduceRules,
    now: WallMs,
    (source, target): (Codec, Compression),
    codecs: &mut Codecs,
) -> Result<(Walk, Option<Vec<u8>>), BatchError> {
    let (earliest, latest) = RecordRules::bounds(
        rules.timestamp_type,
        now,
        rules.timestamp_before_max_ms,
        rules.timestamp_after_max_ms,
    );
    let record_rules = RecordRules {
        earliest,
        latest,
        key_needed: rules.compacted,
        append_time_claimed: rules.timestamp_type == TimestampType::LogAppendTime
            && batch.timestamp_type() == TimestampType::LogAppendTime,
        bytes_max: match source {
            Codec::None => usize::MAX,
            _ => rules.record_bytes_max as usize,
        },
    };
    let mut walk = Walk::new(record_rules, batch.base_timestamp(), batch.records_count());
    let payload = batch.payload();

    if source == Codec::None {
        walk_whole(&mut walk, payload)?;
        let renumbered = (!walk.dense).then(|| record::renumbered(payload));
        if target.codec == Codec::None {
            return Ok((walk, renumbered));
        }
        let mut out = Vec::new();
        codecs.compress(target, renumbered.as_deref().unwrap_or(payload), &mut out);
        return Ok((walk, Some(out)));
    }

    let bytes_max = decompressed_bytes_max(rules);
    let mut rewritten = None;
    if target.codec == source {
        if !rules.validate_compressed {
            walk.believe(batch.max_timestamp());
            return Ok((walk, None));
        }
        codecs.walk(source, payload, bytes_max, &mut walk)?;
    } else {
        let mut plain = Vec::new();
        codecs.decompress(source, payload, bytes_max, &mut plain)?;
        walk_whole(&mut walk, &plain)?;
        if target.codec == Codec::None {
            rewritten = Some(plain);
        } else {
            let mut out = Vec::new();
            codecs.compress(target, &plain, &mut out);
            rewritten = Some(out);
        }
    }
    if !walk.dense {
        return Err(BatchError::invalid(
            "the offsets inside a compressed batch must be consecutive",
        ));
    }
    Ok((walk, rewritten))
}

fn walk_whole(walk: &mut Walk, payload: &[u8]) -> Result<(), BatchError> {
    let taken = walk.feed(payload, u32::MAX).map_err(BatchError::invalid)?;
    walk.finish(payload.len() - taken)
}

/// No consumer of the usual ones reads more than `limit::DECOMPRESSED_BYTES_MAX` from one batch, so no one sends it;
/// where an operator raised `max.message.bytes` far, room for an eightfold expansion is left.
fn decompressed_bytes_max(rules: &ProduceRules) -> usize {
    (rules.max_message_bytes as usize)
        .saturating_mul(8)
        .max(limit::DECOMPRESSED_BYTES_MAX)
}
