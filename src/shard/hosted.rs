//! The partitions that this shard leads, and who waits for their ends.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch::ProduceRules;
use crate::meta::{
    StaticConfig, Topic, config::CompressionType as TopicCompression,
    config::TimestampType as TopicTimestamp,
};
use crate::replica::Partition;

use super::park::ParkId;
use super::stats::Traffic;

/// Somebody waits until an end reaches `end`.
#[derive(Clone, Copy, Debug)]
pub struct EndWait {
    /// Exclusive.
    pub end: i64,
    pub park: ParkId,
    /// Which of the parked request's items.
    pub item: u32,
}

#[derive(Debug)]
pub struct Hosted {
    pub topic: Arc<Topic>,
    pub rules: ProduceRules,
    /// `None` until the log is open.
    pub replica: Option<Partition>,
    /// acks=1, by written end.
    pub written_waits: VecDeque<EndWait>,
    /// acks=all, by high watermark.
    pub committed_waits: VecDeque<EndWait>,
    /// Fetches and look-ups that want to look again when anything moves.
    pub watchers: Vec<ParkId>,
    /// The metadata offset that this shard has not served until the log is open.
    pub opening_since: Option<u64>,
    pub traffic: Traffic,
}

impl Hosted {
    pub fn new(topic: Arc<Topic>, opening_since: u64) -> Hosted {
        Hosted {
            rules: produce_rules(&topic),
            topic,
            replica: None,
            written_waits: VecDeque::new(),
            committed_waits: VecDeque::new(),
            watchers: Vec::new(),
            opening_since: Some(opening_since),
            traffic: Traffic::default(),
        }
    }

    /// Whoever waits for an end of the log, which will not come here.
    pub fn take_waits(&mut self) -> Vec<EndWait> {
        self.written_waits
            .drain(..)
            .chain(self.committed_waits.drain(..))
            .collect()
    }
}

/// What the topic's configs ask of a produced batch.
pub fn produce_rules(topic: &Topic) -> ProduceRules {
    use crate::batch::{Codec, Compression, CompressionType, TimestampType};
    let config = &topic.config;
    let fixed = |codec, level| CompressionType::Fixed(Compression { codec, level });
    ProduceRules {
        max_message_bytes: config.max_message_bytes.max(0) as u32,
        record_bytes_max: config.max_decompressed_message_bytes.max(0) as u32,
        compression: match config.compression_type {
            TopicCompression::Producer => CompressionType::Producer,
            TopicCompression::Uncompressed => fixed(Codec::None, 0),
            TopicCompression::Gzip => fixed(Codec::Gzip, config.compression_gzip_level),
            TopicCompression::Snappy => fixed(Codec::Snappy, 0),
            TopicCompression::Lz4 => fixed(Codec::Lz4, config.compression_lz4_level),
            TopicCompression::Zstd => fixed(Codec::Zstd, config.compression_zstd_level),
        },
        timestamp_type: match config.message_timestamp_type {
            TopicTimestamp::CreateTime => TimestampType::CreateTime,
            TopicTimestamp::LogAppendTime => TimestampType::LogAppendTime,
        },
        timestamp_before_max_ms: config.message_timestamp_before_max_ms,
        timestamp_after_max_ms: config.message_timestamp_after_max_ms,
        compacted: config.cleanup_policy.compact,
        validate_compressed: config.validate_compressed_records,
    }
}

/// The log's part of the topic's configs, and what the broker says for all of them.
pub fn log_config(topic: &Topic, statics: &StaticConfig) -> crate::log::Config {
    let config = &topic.config;
    crate::log::Config {
        segment_bytes: config.segment_bytes.max(1) as u64,
        segment_ms: config.segment_ms,
        segment_jitter_ms: config.segment_jitter_ms,
        index_interval_bytes: config.index_interval_bytes.max(0) as u32,
        index_bytes_max: config.segment_index_bytes.max(12) as u32,
        flush_messages: config.flush_messages,
        flush_ms: config.flush_ms,
        write_caching: config.write_caching,
        message_bytes_max: config.max_message_bytes.max(0) as u32,
        retention_ms: config.retention_ms,
        retention_bytes: config.retention_bytes,
        retention_deletes: config.cleanup_policy.delete,
        file_delete_delay_ms: config.file_delete_delay_ms,
        producer_id_expiration_ms: statics.number("producer.id.expiration.ms"),
    }
}
