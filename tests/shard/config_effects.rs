//! What a topic's config changes when it is altered on a topic that exists: one law for each that is honoured.

use corelane::batch::{Builder, Codec};
use corelane::log;
use corelane::model::{ErrorCode, Uuid};

use crate::alter_configs::{SET, TOPIC, alter, fine};
use crate::produce::{NOW, batch, builder, first, to};
use crate::rig::{Rig, error};

fn set(rig: &mut Rig, pairs: &[(&'static str, &'static str)]) {
    let ops: Vec<_> = pairs
        .iter()
        .map(|(key, value)| (*key, SET, Some(*value)))
        .collect();
    assert_eq!(alter(rig, TOPIC, "t", &ops), fine());
}

fn rig() -> (Rig, Uuid) {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    (rig, id)
}

fn code(rig: &mut Rig, id: Uuid, bytes: Vec<u8>) -> ErrorCode {
    rig.produce(("t", id), 0, bytes).0
}

fn log(rig: &Rig) -> &log::Log {
    rig.shards[0].store().logs().next().expect("one log")
}

/// Keyless records with one timestamp.
fn at(timestamp: i64) -> Vec<u8> {
    let mut builder = Builder::new();
    builder.push(timestamp, None, Some(b"v"), &[]);
    builder.build()
}

#[test]
fn what_the_log_goes_by_reaches_it() {
    type Get = fn(&log::Config) -> i64;
    let cases: &[(&'static str, &'static str, i64, Get)] = &[
        ("segment.bytes", "2000000", 2_000_000, |c| {
            c.segment_bytes as i64
        }),
        ("segment.ms", "11", 11, |c| c.segment_ms),
        ("segment.jitter.ms", "12", 12, |c| c.segment_jitter_ms),
        ("segment.index.bytes", "1200", 1200, |c| {
            i64::from(c.index_bytes_max)
        }),
        ("index.interval.bytes", "13", 13, |c| {
            i64::from(c.index_interval_bytes)
        }),
        ("flush.messages", "14", 14, |c| c.flush_messages),
        ("flush.ms", "15", 15, |c| c.flush_ms),
        ("retention.bytes", "16", 16, |c| c.retention_bytes),
        ("retention.ms", "17", 17, |c| c.retention_ms),
        ("max.message.bytes", "18", 18, |c| {
            i64::from(c.message_bytes_max)
        }),
        ("file.delete.delay.ms", "19", 19, |c| c.file_delete_delay_ms),
        ("write.caching", "true", 1, |c| i64::from(c.write_caching)),
        ("cleanup.policy", "compact", 0, |c| {
            i64::from(c.retention_deletes)
        }),
    ];
    let (mut rig, _) = rig();
    for (key, value, expected, get) in cases {
        assert_ne!(get(log(&rig).config()), *expected, "{key} before");
        set(&mut rig, &[(key, value)]);
        assert_eq!(get(log(&rig).config()), *expected, "{key}");
    }
}

#[test]
fn max_message_bytes_bounds_a_batch() {
    let (mut rig, id) = rig();
    set(&mut rig, &[("max.message.bytes", "100")]);
    let large = "x".repeat(200);
    assert_eq!(
        code(&mut rig, id, batch(&[&large])),
        ErrorCode::MessageTooLarge
    );
    assert_eq!(code(&mut rig, id, batch(&["x"])), ErrorCode::None);
}

#[test]
fn message_timestamp_type_stamps_records_on_arrival() {
    let (mut rig, id) = rig();
    let told = |rig: &mut Rig| {
        let answer = rig.once(12, &to(1, ("t", id), 0, at(NOW)));
        first(&answer).log_append_time_ms
    };
    assert_eq!(told(&mut rig), -1);
    set(&mut rig, &[("message.timestamp.type", "LogAppendTime")]);
    assert_eq!(told(&mut rig), rig.now.wall);
}

#[test]
fn message_timestamp_bounds_hold_on_both_sides() {
    let (mut rig, id) = rig();
    let old = at(NOW - 10_000);
    assert_eq!(code(&mut rig, id, old.clone()), ErrorCode::None);
    set(&mut rig, &[("message.timestamp.before.max.ms", "9000")]);
    assert_eq!(code(&mut rig, id, old), ErrorCode::InvalidTimestamp);
    let early = at(NOW + 10_000);
    assert_eq!(code(&mut rig, id, early.clone()), ErrorCode::None);
    set(&mut rig, &[("message.timestamp.after.max.ms", "9000")]);
    assert_eq!(code(&mut rig, id, early), ErrorCode::InvalidTimestamp);
}

#[test]
fn a_compacted_topic_asks_for_keys() {
    let (mut rig, id) = rig();
    assert_eq!(code(&mut rig, id, at(NOW)), ErrorCode::None);
    set(&mut rig, &[("cleanup.policy", "compact")]);
    assert_eq!(code(&mut rig, id, at(NOW)), ErrorCode::InvalidRecord);
}

#[test]
fn compression_type_and_level_make_what_is_stored_smaller() {
    let text = "abcdefgh ".repeat(1000);
    let mut sizes = Vec::new();
    let codecs = [
        ("uncompressed", "compression.gzip.level", "1"),
        ("gzip", "compression.gzip.level", "9"),
        ("lz4", "compression.lz4.level", "9"),
        ("zstd", "compression.zstd.level", "3"),
        ("snappy", "compression.gzip.level", "1"),
    ];
    for (codec, key, level) in codecs {
        let (mut rig, id) = rig();
        set(&mut rig, &[("compression.type", codec), (key, level)]);
        assert_eq!(code(&mut rig, id, batch(&[&text])), ErrorCode::None);
        sizes.push(log(&rig).size_bytes());
    }
    assert!(sizes[0] > 9000, "{sizes:?}");
    assert!(sizes[1..].iter().all(|size| *size < 2000), "{sizes:?}");
}

#[test]
fn compressed_records_are_trusted_where_the_topic_says_so() {
    let (mut rig, id) = rig();
    let mut bytes = builder(&["value"]).codec(Codec::Gzip).build();
    // The last byte of the compressed stream, and a checksum that fits.
    let last = bytes.len() - 1;
    bytes[last] ^= 0xff;
    let crc = crc32c::crc32c(&bytes[21..]).to_be_bytes();
    bytes[17..21].copy_from_slice(&crc);
    assert_eq!(code(&mut rig, id, bytes.clone()), ErrorCode::InvalidRecord);
    set(&mut rig, &[("validate.compressed.records", "false")]);
    assert_eq!(code(&mut rig, id, bytes), ErrorCode::None);
}

#[test]
fn a_segment_rolls_at_its_new_age() {
    let (mut rig, id) = rig();
    assert_eq!(code(&mut rig, id, at(NOW)), ErrorCode::None);
    assert_eq!(code(&mut rig, id, at(NOW + 20_000)), ErrorCode::None);
    assert_eq!(log(&rig).segments_count(), 1);
    set(&mut rig, &[("segment.ms", "10000")]);
    assert_eq!(code(&mut rig, id, at(NOW + 20_001)), ErrorCode::None);
    assert_eq!(log(&rig).segments_count(), 2);
}

#[test]
fn old_records_and_too_many_of_them_go() {
    for config in [("retention.ms", "1"), ("retention.bytes", "0")] {
        let (mut rig, id) = rig();
        assert_eq!(code(&mut rig, id, at(NOW)), ErrorCode::None);
        rig.pass_ms(600_000);
        assert_eq!(log(&rig).start(), 0, "kept so far");
        set(&mut rig, &[config]);
        rig.pass_ms(600_000);
        assert_eq!(log(&rig).start(), 1, "{config:?}");
    }
}

#[test]
fn write_caching_answers_before_the_flush() {
    let (mut rig, id) = rig();
    set(&mut rig, &[("write.caching", "true")]);
    let conn = rig.open();
    let request = to(-1, ("t", id), 0, at(NOW));
    let answer = rig.ask(conn, 12, &request);
    assert_eq!(error(first(&answer).error_code), ErrorCode::None);
    let log = log(&rig);
    assert!(log.flushed() < log.written(), "answered, not flushed");
}

#[test]
fn flush_messages_flushes_without_being_asked() {
    for (messages, flushed) in [("9223372036854775807", 0), ("2", 2)] {
        let (mut rig, id) = rig();
        set(&mut rig, &[("flush.messages", messages)]);
        for _ in 0..2 {
            let answer = rig.once(12, &to(1, ("t", id), 0, at(NOW)));
            assert_eq!(first(&answer).error_code, 0);
        }
        assert_eq!(log(&rig).flushed(), flushed, "flush.messages={messages}");
    }
}
