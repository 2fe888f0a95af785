//! The typed config of a topic: what its log and its shard look at, without parsing.

use std::collections::BTreeMap;

use super::table::{topic_def, topic_defs};
use super::value::Value;
use super::{StaticConfig, VALUE_BYTES_MAX};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// What a stored batch is compressed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompressionType {
    /// As the producer sent it.
    Producer,
    Uncompressed,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupPolicy {
    pub delete: bool,
    pub compact: bool,
}

/// Every config of a topic in force: its own, else the broker's, else the default. Times are milliseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct TopicConfig {
    pub min_insync_replicas: i32,
    pub segment_bytes: i32,
    pub segment_ms: i64,
    pub segment_jitter_ms: i64,
    pub segment_index_bytes: i32,
    pub flush_messages: i64,
    pub flush_ms: i64,
    /// -1 is no limit.
    pub retention_bytes: i64,
    /// -1 is no limit.
    pub retention_ms: i64,
    pub max_message_bytes: i32,
    /// Of one record of a compressed batch.
    pub max_decompressed_message_bytes: i32,
    pub index_interval_bytes: i32,
    pub delete_retention_ms: i64,
    pub min_compaction_lag_ms: i64,
    pub max_compaction_lag_ms: i64,
    pub file_delete_delay_ms: i64,
    pub min_cleanable_dirty_ratio: f64,
    pub cleanup_policy: CleanupPolicy,
    pub unclean_leader_election_enable: bool,
    pub compression_type: CompressionType,
    pub compression_gzip_level: i32,
    pub compression_lz4_level: i32,
    pub compression_zstd_level: i32,
    pub preallocate: bool,
    pub message_timestamp_type: TimestampType,
    pub message_timestamp_before_max_ms: i64,
    pub message_timestamp_after_max_ms: i64,
    /// Corelane: acks=all is answered at written, not flushed.
    pub write_caching: bool,
    /// Corelane: walk the records of compressed batches.
    pub validate_compressed_records: bool,
}

/// The value of one topic config in force, canonical.
pub(super) fn effective(
    name: &str,
    overrides: &BTreeMap<String, String>,
    statics: &StaticConfig,
) -> Value {
    let def = topic_def(name).unwrap_or_else(|| panic!("'{name}' is in the table"));
    // An override that does not fit was written by another version: the next source counts, as if it were not there.
    if let Some(value) = overrides.get(name).and_then(|text| def.parse(text).ok()) {
        return value;
    }
    match statics.synonym(&def.synonyms) {
        Some((_, value)) => value,
        None => def.default_value(),
    }
}

impl TopicConfig {
    /// `overrides` are the topic's own configs.
    pub fn new(overrides: &BTreeMap<String, String>, statics: &StaticConfig) -> TopicConfig {
        let value = |name: &str| effective(name, overrides, statics);
        let long = |name: &str| match value(name) {
            Value::Number(n) => n,
            other => panic!("'{name}' is a number, not {other:?}"),
        };
        let int = |name: &str| i32::try_from(long(name)).expect("an INT of the table");
        let bool = |name: &str| value(name) == Value::Bool(true);
        let text = |name: &str| value(name).to_text().unwrap_or_default();
        let policy = match value("cleanup.policy") {
            Value::List(items) => CleanupPolicy {
                delete: items.iter().any(|item| item == "delete"),
                compact: items.iter().any(|item| item == "compact"),
            },
            other => panic!("'cleanup.policy' is a list, not {other:?}"),
        };
        let segment_bytes = match value("internal.segment.bytes") {
            Value::Number(n) => i32::try_from(n).expect("an INT of the table"),
            _ => int("segment.bytes"),
        };
        TopicConfig {
            min_insync_replicas: int("min.insync.replicas"),
            segment_bytes,
            segment_ms: long("segment.ms"),
            segment_jitter_ms: long("segment.jitter.ms"),
            segment_index_bytes: int("segment.index.bytes"),
            flush_messages: long("flush.messages"),
            flush_ms: long("flush.ms"),
            retention_bytes: long("retention.bytes"),
            retention_ms: long("retention.ms"),
            max_message_bytes: int("max.message.bytes"),
            max_decompressed_message_bytes: int("max.decompressed.message.bytes"),
            index_interval_bytes: int("index.interval.bytes"),
            delete_retention_ms: long("delete.retention.ms"),
            min_compaction_lag_ms: long("min.compaction.lag.ms"),
            max_compaction_lag_ms: long("max.compaction.lag.ms"),
            file_delete_delay_ms: long("file.delete.delay.ms"),
            min_cleanable_dirty_ratio: match value("min.cleanable.dirty.ratio") {
                Value::Double(n) => n,
                other => panic!("'min.cleanable.dirty.ratio' is a double, not {other:?}"),
            },
            cleanup_policy: policy,
            unclean_leader_election_enable: bool("unclean.leader.election.enable"),
            compression_type: match text("compression.type").as_str() {
                "uncompressed" => CompressionType::Uncompressed,
                "gzip" => CompressionType::Gzip,
                "snappy" => CompressionType::Snappy,
                "lz4" => CompressionType::Lz4,
                "zstd" => CompressionType::Zstd,
                _ => CompressionType::Producer,
            },
            compression_gzip_level: int("compression.gzip.level"),
            compression_lz4_level: int("compression.lz4.level"),
            compression_zstd_level: int("compression.zstd.level"),
            preallocate: bool("preallocate"),
            message_timestamp_type: match text("message.timestamp.type").as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            message_timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            write_caching: bool("write.caching"),
            validate_compressed_records: bool("validate.compressed.records"),
        }
    }
}

/// Checks the configs of a topic as Kafka's `LogConfig.validate` does; the error is its message (INVALID_CONFIG).
pub fn validate_topic(
    overrides: &BTreeMap<String, String>,
    statics: &StaticConfig,
) -> Result<(), String> {
    if overrides
        .values()
        .any(|value| value.len() > VALUE_BYTES_MAX)
    {
        return Err(format!(
            "The configuration value cannot be added because it exceeds the maximum value size of {VALUE_BYTES_MAX} bytes."
        ));
    }
    if let Some(unknown) = overrides.keys().find(|name| topic_def(name).is_none()) {
        return Err(format!("Unknown topic config name: {unknown}"));
    }
    for def in topic_defs() {
        if let Some(text) = overrides.get(def.name) {
            def.parse(text)?;
        }
    }
    let number = |name: &str| match effective(name, overrides, statics) {
        Value::Number(n) => n,
        _ => 0,
    };
    let (min, max) = (
        number("min.compaction.lag.ms"),
        number("max.compaction.lag.ms"),
    );
    if min > max {
        return Err(format!(
            "conflict topic config setting min.compaction.lag.ms ({min}) > max.compaction.lag.ms ({max})"
        ));
    }
    if effective("remote.storage.enable", overrides, statics) == Value::Bool(true) {
        return Err(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
                .to_string(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    }

    #[test]
    fn a_topic_value_wins_over_the_broker_and_the_broker_over_the_default() {
        let mut statics = StaticConfig::default();
        let none = BTreeMap::new();
        assert_eq!(TopicConfig::new(&none, &statics).retention_ms, 604_800_000);
        statics.set("log.retention.hours", "1").unwrap();
        statics.set("message.max.bytes", "2000").unwrap();
        let config = TopicConfig::new(&none, &statics);
        assert_eq!(
            (config.retention_ms, config.max_message_bytes),
            (3_600_000, 2000)
        );
        let own = map(&[("retention.ms", "5"), ("cleanup.policy", "compact,delete")]);
        let config = TopicConfig::new(&own, &statics);
        assert_eq!(config.retention_ms, 5);
        assert!(config.cleanup_policy.compact && config.cleanup_policy.delete);
    }

    #[test]
    fn unknown_and_conflicting_configs_are_refused_in_kafkas_words() {
        let statics = StaticConfig::default();
        let refuse = |pairs: &[(&str, &str)]| validate_topic(&map(pairs), &statics).unwrap_err();
        assert_eq!(
            refuse(&[("retention.mss", "1")]),
            "Unknown topic config name: retention.mss"
        );
        assert_eq!(
            refuse(&[
                ("min.compaction.lag.ms", "5"),
                ("max.compaction.lag.ms", "4")
            ]),
            "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)"
        );
        assert_eq!(
            refuse(&[("segment.bytes", "1048575")]),
            "Invalid value 1048575 for configuration segment.bytes: Value must be at least 1048576"
        );
        assert!(validate_topic(&map(&[("segment.bytes", "1048576")]), &statics).is_ok());
    }
}
