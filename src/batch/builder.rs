//! [`Builder`]: makes batches, for the client, for markers and internal logs, and for tests.

use super::codec::{Codec, Codecs, Compression};
use super::view::{ControlType, TimestampType};
use super::{HEADER_BYTES, LOG_OVERHEAD, at, bit, record};

#[derive(Clone, Debug)]
pub struct Builder {
    base_offset: i64,
    leader_epoch: i32,
    compression: Compression,
    attributes: i16,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    count: i32,
    records: Vec<u8>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl Builder {
    /// An uncompressed batch at offset 0 without a producer id.
    pub fn new() -> Builder {
        Builder {
            base_offset: 0,
            leader_epoch: -1,
            compression: Compression::of(Codec::None),
            attributes: 0,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            base_timestamp: -1,
            max_timestamp: -1,
            count: 0,
            records: Vec::new(),
        }
    }

    pub fn codec(mut self, codec: Codec) -> Builder {
        self.compression = Compression::of(codec);
        self
    }

    pub fn compression(mut self, compression: Compression) -> Builder {
        self.compression = compression;
        self
    }

    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Builder {
        self.set_producer(id, epoch, base_sequence);
        self
    }

    /// The same on a batch that has records: a producer knows its sequence only when it sends.
    pub fn set_producer(&mut self, id: i64, epoch: i16, base_sequence: i32) {
        self.producer_id = id;
        self.producer_epoch = epoch;
        self.base_sequence = base_sequence;
    }

    pub fn transactional(mut self, transactional: bool) -> Builder {
        self.attributes &= !bit::TRANSACTIONAL;
        if transactional {
            self.attributes |= bit::TRANSACTIONAL;
        }
        self
    }

    pub fn timestamp_type(mut self, timestamp_type: TimestampType) -> Builder {
        self.attributes &= !bit::LOG_APPEND_TIME;
        if timestamp_type == TimestampType::LogAppendTime {
            self.attributes |= bit::LOG_APPEND_TIME;
        }
        self
    }

    pub fn base_offset(mut self, base_offset: i64) -> Builder {
        self.base_offset = base_offset;
        self
    }

    pub fn leader_epoch(mut self, leader_epoch: i32) -> Builder {
        self.leader_epoch = leader_epoch;
        self
    }

    pub fn push(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        if self.count == 0 {
            self.base_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        record::write(
            &mut self.records,
            timestamp.wrapping_sub(self.base_timestamp),
            self.count,
            key,
            value,
            headers,
        );
        self.count += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn records_count(&self) -> i32 {
        self.count
    }

    /// Bytes of the batch if it is not compressed.
    pub fn len_uncompressed(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    /// The batch.
    pub fn build(&self) -> Vec<u8> {
        self.build_with(&mut Codecs::default())
    }

    /// The same with contexts that are kept from batch to batch.
    pub fn build_with(&self, codecs: &mut Codecs) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        if self.compression.codec == Codec::None {
            out.extend_from_slice(&self.records);
        } else {
            codecs.compress(self.compression, &self.records, &mut out);
        }
        let length = i32::try_from(out.len() - LOG_OVERHEAD).expect("a batch is under 2 GiB");
        let attributes = self.attributes | self.compression.codec as i16;
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(at::BASE_OFFSET, &self.base_offset.to_be_bytes());
        put(at::LENGTH, &length.to_be_bytes());
        put(at::LEADER_EPOCH, &self.leader_epoch.to_be_bytes());
        put(at::MAGIC, &[2]);
        put(at::ATTRIBUTES, &attributes.to_be_bytes());
        put(at::LAST_OFFSET_DELTA, &(self.count - 1).to_be_bytes());
        put(at::BASE_TIMESTAMP, &self.base_timestamp.to_be_bytes());
        put(at::MAX_TIMESTAMP, &self.max_timestamp.to_be_bytes());
        put(at::PRODUCER_ID, &self.producer_id.to_be_bytes());
        put(at::PRODUCER_EPOCH, &self.producer_epoch.to_be_bytes());
        put(at::BASE_SEQUENCE, &self.base_sequence.to_be_bytes());
        put(at::RECORDS_COUNT, &self.count.to_be_bytes());
        let crc = crc32c::crc32c(&out[at::ATTRIBUTES..]);
        out[at::CRC..at::CRC + 4].copy_from_slice(&crc.to_be_bytes());
        out
    }

    /// The marker that ends a transaction in a partition.
    pub fn end_txn_marker(
        commit: bool,
        coordinator_epoch: i32,
        producer_id: i64,
        producer_epoch: i16,
        timestamp: i64,
    ) -> Vec<u8> {
        let control_type = if commit {
            ControlType::Commit
        } else {
            ControlType::Abort
        };
        let mut value = [0; 6]; // version 0, then the epoch
        value[2..].copy_from_slice(&coordinator_epoch.to_be_bytes());
        let mut builder = Builder::new()
            .producer(producer_id, producer_epoch, -1)
            .transactional(true);
        builder.push_control(control_type, &value, timestamp);
        builder.build()
    }

    /// A batch of one control record.
    pub fn control(control_type: ControlType, value: &[u8], timestamp: i64) -> Vec<u8> {
        let mut builder = Builder::new();
        builder.push_control(control_type, value, timestamp);
        builder.build()
    }

    fn push_control(&mut self, control_type: ControlType, value: &[u8], timestamp: i64) {
        self.attributes |= bit::CONTROL;
        let mut key = [0; 4]; // version 0, then the type
        key[2..].copy_from_slice(&control_type.code().to_be_bytes());
        self.push(timestamp, Some(&key), Some(value), &[]);
    }
}
