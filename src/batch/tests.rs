//! Laws of the room. `vectors.txt` holds batches as Apache Kafka's Java library (kafka-clients 4.4.0) builds them:
//! `MemoryRecordsBuilder` with producer (4711, epoch 3, sequence 17) and the five records of [`expected`], once per
//! codec, and `MemoryRecords.withEndTransactionMarker(42, 1700000000000, -1, 4711, 3, COMMIT with coordinator epoch 9)`.
//! What Kafka's `LogValidator` answers was asked of that class with the same inputs.

use proptest::prelude::*;

use super::*;
use crate::model::ErrorCode;

const T: i64 = 1_700_000_000_000;

fn vector(name: &str) -> Vec<u8> {
    let line = include_str!("vectors.txt")
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .expect("a known vector");
    (0..line.len() / 2)
        .map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

const CODECS: [Codec; 5] = [
    Codec::None,
    Codec::Gzip,
    Codec::Snappy,
    Codec::Lz4,
    Codec::Zstd,
];

type Fields = (
    i64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(String, Option<Vec<u8>>)>,
);

fn expected() -> Vec<Fields> {
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    let big = (0..1000u32).map(|i| (i % 7) as u8).collect();
    vec![
        (T, None, bytes("first"), vec![]),
        (T + 5, bytes("k1"), None, vec![]),
        (
            T - 70_000,
            bytes("k2"),
            bytes("older"),
            vec![("h1".into(), bytes("v1")), ("h2".into(), None)],
        ),
        (T + 5, bytes(""), bytes(""), vec![]),
        (T + 1, bytes("big"), Some(big), vec![]),
    ]
}

fn build(records: &[Fields], codec: Codec) -> Builder {
    let mut builder = Builder::new().codec(codec);
    for (timestamp, key, value, headers) in records {
        let headers: Vec<_> = headers
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_deref()))
            .collect();
        builder.push(*timestamp, key.as_deref(), value.as_deref(), &headers);
    }
    builder
}

fn read(bytes: &[u8]) -> Vec<(i64, Fields)> {
    let (batch, _) = Batch::parse(bytes).expect("a batch");
    let records = batch.records().expect("readable");
    let all = records.iter().map(|record| {
        let r = record.expect("a record");
        let headers = r.headers().map(|h| {
            let key = String::from_utf8(h.key.to_vec()).expect("utf-8");
            (key, h.value.map(<[u8]>::to_vec))
        });
        let headers = headers.collect();
        let (key, value) = (r.key.map(<[u8]>::to_vec), r.value.map(<[u8]>::to_vec));
        (r.offset, (r.timestamp, key, value, headers))
    });
    all.collect()
}

/// Makes length and CRC right after `bytes` was changed.
fn reseal(bytes: &mut [u8]) {
    let length = (bytes.len() - LOG_OVERHEAD) as i32;
    bytes[at::LENGTH..at::LENGTH + 4].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[at::ATTRIBUTES..]);
    bytes[at::CRC..at::CRC + 4].copy_from_slice(&crc.to_be_bytes());
}

fn changed(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    reseal(&mut bytes);
    bytes
}

fn stored(checked: &CheckedBatch<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    checked.write_to(&mut out, 100, 7);
    assert_eq!(out.len(), checked.len());
    out
}

fn check<'a>(
    bytes: &'a [u8],
    rules: &ProduceRules,
    now: i64,
) -> Result<CheckedBatch<'a>, BatchError> {
    check_produce(bytes, rules, now, &mut Codecs::default())
}

fn code(bytes: &[u8], rules: &ProduceRules) -> ErrorCode {
    match check(bytes, rules, T) {
        Ok(_) => ErrorCode::None,
        Err(error) => error.code,
    }
}

fn rules() -> ProduceRules {
    ProduceRules::default()
}

fn fixed(codec: Codec) -> ProduceRules {
    ProduceRules {
        compression: CompressionType::Fixed(Compression::of(codec)),
        ..rules()
    }
}

#[test]
fn batches_of_the_java_library_are_read_whole() {
    for codec in CODECS {
        let bytes = vector(codec.name());
        let (batch, len) = Batch::parse(&bytes).expect("a batch");
        assert_eq!(len, bytes.len());
        assert_eq!(batch.codec(), Some(codec));
        assert_eq!((batch.records_count(), batch.last_offset_delta()), (5, 4));
        assert_eq!((batch.base_timestamp(), batch.max_timestamp()), (T, T + 5));
        assert_eq!((batch.producer_id(), batch.producer_epoch()), (4711, 3));
        assert_eq!((batch.base_sequence(), batch.last_sequence()), (17, 21));
        let records: Vec<_> = read(&bytes).into_iter().map(|(_, r)| r).collect();
        assert_eq!(records, expected(), "{codec:?}");
    }
}

#[test]
fn the_builder_makes_the_bytes_of_the_java_library() {
    let built = build(&expected(), Codec::None)
        .producer(4711, 3, 17)
        .build();
    assert_eq!(built, vector("none"));
    let marker = Builder::end_txn_marker(true, 9, 4711, 3, T);
    let theirs = vector("commit-marker");
    // The library stamped offset 42 into it, outside the CRC.
    assert_eq!(marker[8..], theirs[8..]);
    let (batch, _) = Batch::parse(&theirs).expect("a batch");
    assert!(batch.is_control() && batch.is_transactional());
    assert_eq!(batch.control_type(), Some(ControlType::Commit));
    assert_eq!(batch.base_offset(), 42);
}

#[test]
fn checks_take_what_kafka_takes_and_store_it_unchanged() {
    for codec in CODECS {
        let bytes = vector(codec.name());
        let checked = check(&bytes, &rules(), T).expect("accepted");
        assert!(!checked.is_rewritten());
        assert_eq!(checked.max_timestamp(), T + 5);
        assert_eq!(checked.first_timestamp(), T);
        assert_eq!(
            checked.max_timestamp_offset_delta(),
            1,
            "the first of the two"
        );
        let stored = stored(&checked);
        assert_eq!(stored[..8], 100i64.to_be_bytes());
        assert_eq!(stored[12..16], 7i32.to_be_bytes());
        assert_eq!(stored[16..], bytes[16..]);
        assert_eq!(read(&stored)[4].0, 104);
    }
}

#[test]
fn lying_max_timestamp_is_replaced_by_the_true_one() {
    for codec in CODECS {
        let lying = changed(&vector(codec.name()), |b| {
            b[at::MAX_TIMESTAMP..at::PRODUCER_ID].copy_from_slice(&5i64.to_be_bytes());
        });
        let checked = check(&lying, &rules(), T).expect("accepted");
        let stored = stored(&checked);
        let (batch, _) = Batch::parse(&stored).expect("a right checksum");
        assert_eq!(batch.max_timestamp(), T + 5);
    }
}

#[test]
fn append_time_is_stamped_on_log_append_time_topics_only() {
    let append_time = ProduceRules {
        timestamp_type: TimestampType::LogAppendTime,
        ..rules()
    };
    for codec in CODECS {
        let bytes = vector(codec.name());
        let claimed = changed(&bytes, |b| b[at::ATTRIBUTES + 1] |= 8);
        // CreateTime: the claim is cleared, the true times stay (Kafka's LogValidator).
        let out = stored(&check(&claimed, &rules(), T).expect("accepted"));
        assert_eq!(out[16..], bytes[16..]);
        // LogAppendTime: a claim is an error, for every record.
        let error = check(&claimed, &append_time, T).expect_err("refused");
        assert_eq!(error.code, ErrorCode::InvalidTimestamp);
        assert_eq!(error.record_errors.len(), 5);
        let now = T + 86_400_000;
        let checked = check(&bytes, &append_time, now).expect("accepted");
        assert_eq!(checked.log_append_time(), now);
        assert_eq!(checked.max_timestamp_offset_delta(), 0);
        assert!(read(&stored(&checked)).iter().all(|(_, r)| r.0 == now));
    }
}

#[test]
fn timestamps_out_of_bounds_name_their_records() {
    let narrow = ProduceRules {
        timestamp_before_max_ms: 60_000,
        timestamp_after_max_ms: 4,
        ..rules()
    };
    for codec in CODECS {
        let error = check(&vector(codec.name()), &narrow, T).expect_err("refused");
        assert_eq!(error.code, ErrorCode::InvalidTimestamp);
        let at_fault: Vec<_> = error.record_errors.iter().map(|e| e.batch_index).collect();
        assert_eq!(at_fault, [1, 2, 3]);
    }
    // The bounds themselves are inside; "no timestamp" has none.
    let edge = |timestamp| build(&[(timestamp, None, None, vec![])], Codec::None).build();
    assert_eq!(code(&edge(T + 3_600_000), &rules()), ErrorCode::None);
    assert_eq!(
        code(&edge(T + 3_600_001), &rules()),
        ErrorCode::InvalidTimestamp
    );
    assert_eq!(code(&edge(T - 60_000), &narrow), ErrorCode::None);
    assert_eq!(
        code(&edge(T - 60_001), &narrow),
        ErrorCode::InvalidTimestamp
    );
    assert_eq!(code(&edge(-1), &narrow), ErrorCode::None);
    assert_eq!(code(&edge(-5), &rules()), ErrorCode::None);
}

#[test]
fn compacted_topics_need_keys() {
    let compacted = ProduceRules {
        compacted: true,
        ..rules()
    };
    let error = check(&vector("lz4"), &compacted, T).expect_err("refused");
    assert_eq!(error.code, ErrorCode::InvalidRecord);
    assert_eq!(error.record_errors.len(), 1);
    assert_eq!(error.record_errors[0].batch_index, 0);
}

#[test]
fn shape_is_checked_with_kafkas_codes() {
    let good = vector("none");
    let code_of = |bytes: &[u8]| code(bytes, &rules());
    let change = |f: fn(&mut Vec<u8>)| code_of(&changed(&good, f));
    assert_eq!(code_of(&[]), ErrorCode::InvalidRecord);
    assert_eq!(code_of(&good[..good.len() - 1]), ErrorCode::InvalidRecord);
    assert_eq!(
        code_of(&[&good[..], &good[..]].concat()),
        ErrorCode::InvalidRecord
    );
    // What follows and is no whole batch is ignored.
    assert_eq!(code_of(&[&good[..], &good[..40]].concat()), ErrorCode::None);
    for (magic, expected) in [
        (0, ErrorCode::InvalidRecord),
        (1, ErrorCode::InvalidRecord),
        (3, ErrorCode::CorruptMessage),
        (255, ErrorCode::CorruptMessage),
    ] {
        let mut bytes = good.clone();
        bytes[at::MAGIC] = magic;
        assert_eq!(code_of(&bytes), expected, "magic {magic}");
    }
    for length in [i32::MAX, -1, 0, 13, 14, 48] {
        let mut bytes = good.clone();
        bytes[at::LENGTH..at::LENGTH + 4].copy_from_slice(&length.to_be_bytes());
        assert_eq!(code_of(&bytes), ErrorCode::CorruptMessage, "{length}");
    }
    let mut flipped = good.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    assert_eq!(code_of(&flipped), ErrorCode::CorruptMessage);
    assert_eq!(change(|b| b[7] = 1), ErrorCode::InvalidRecord); // base offset 1
    assert_eq!(
        change(|b| b[at::ATTRIBUTES + 1] |= 0x20),
        ErrorCode::InvalidRecord
    ); // control
    assert_eq!(
        change(|b| b[at::ATTRIBUTES + 1] |= 5),
        ErrorCode::InvalidRecord
    ); // codec 5
    assert_eq!(change(|b| b[at::ATTRIBUTES] = 0xff), ErrorCode::None); // unknown bits
    assert_eq!(
        change(|b| b[at::BASE_SEQUENCE] = 0xff),
        ErrorCode::InvalidRecord
    );
    assert_eq!(change(|b| b[at::PRODUCER_ID] = 0xff), ErrorCode::None); // a negative id is none
    for count in [0, -1, 4, 6, i32::MAX] {
        let bytes = changed(&good, |b| {
            b[at::RECORDS_COUNT..HEADER_BYTES].copy_from_slice(&i32::to_be_bytes(count));
        });
        assert_eq!(code_of(&bytes), ErrorCode::InvalidRecord, "count {count}");
    }
}

#[test]
fn wrong_insides_are_invalid_records_for_every_codec() {
    for codec in CODECS {
        let good = vector(codec.name());
        let counted = |count: i32| {
            changed(&good, |b| {
                b[at::LAST_OFFSET_DELTA..at::BASE_TIMESTAMP]
                    .copy_from_slice(&(count - 1).to_be_bytes());
                b[at::RECORDS_COUNT..HEADER_BYTES].copy_from_slice(&count.to_be_bytes());
            })
        };
        for bytes in [
            counted(4),
            counted(6),
            changed(&good, |b| b.truncate(HEADER_BYTES)),
            changed(&good, |b| b.truncate(b.len() - 1)),
            changed(&good, |b| b.extend_from_slice(&[1, 2, 3])),
            changed(&good, |b| b[HEADER_BYTES..].fill(0xff)),
            changed(&good, |b| b[HEADER_BYTES..].fill(0)),
        ] {
            assert_eq!(
                code(&bytes, &rules()),
                ErrorCode::InvalidRecord,
                "{codec:?}"
            );
        }
    }
}

#[test]
fn odd_offsets_are_renumbered_if_plain_and_refused_if_compressed() {
    // The first record's offset delta, byte 3 of it, becomes 7; Kafka's LogValidator takes this too.
    let odd = changed(&vector("none"), |b| b[HEADER_BYTES + 3] = 14);
    let checked = check(&odd, &rules(), T).expect("accepted");
    assert!(checked.is_rewritten());
    let offsets: Vec<_> = read(&stored(&checked)).iter().map(|r| r.0).collect();
    assert_eq!(offsets, [100, 101, 102, 103, 104]);
    let records: Vec<_> = read(&stored(&checked)).into_iter().map(|r| r.1).collect();
    assert_eq!(records, expected());
    let gzipped = check(&odd, &fixed(Codec::Gzip), T).expect("accepted");
    assert_eq!(read(&stored(&gzipped))[0].0, 100);

    let body = &odd[HEADER_BYTES..];
    for codec in &CODECS[1..] {
        let bytes = changed(&odd, |b| {
            b.truncate(HEADER_BYTES);
            b[at::ATTRIBUTES + 1] |= *codec as u8;
            Codecs::default().compress(Compression::of(*codec), body, b);
        });
        assert_eq!(
            code(&bytes, &rules()),
            ErrorCode::InvalidRecord,
            "{codec:?}"
        );
    }
}

#[test]
fn topics_with_a_codec_store_in_it() {
    for source in CODECS {
        let bytes = vector(source.name());
        for target in CODECS {
            let checked = check(&bytes, &fixed(target), T).expect("accepted");
            assert_eq!(checked.is_rewritten(), source != target);
            let stored = stored(&checked);
            let (batch, _) = Batch::parse(&stored).expect("a batch");
            assert_eq!(batch.codec(), Some(target));
            assert_eq!(batch.producer_id(), 4711);
            let records: Vec<_> = read(&stored).into_iter().map(|r| r.1).collect();
            assert_eq!(records, expected(), "{source:?} to {target:?}");
        }
    }
}

#[test]
fn size_is_limited_as_received_and_as_stored() {
    let bytes = vector("none");
    let limit = |max_message_bytes, rules: ProduceRules| ProduceRules {
        max_message_bytes,
        ..rules
    };
    let len = bytes.len() as u32;
    assert_eq!(code(&bytes, &limit(len, rules())), ErrorCode::None);
    assert_eq!(
        code(&bytes, &limit(len - 1, rules())),
        ErrorCode::MessageTooLarge
    );
    // 5 MB in a few KB are fine where they stay compressed, and too large where they do not.
    let big = (T, None, Some(vec![0; 5_000_000]), vec![]);
    let zstd = build(&[big], Codec::Zstd).build();
    assert!(zstd.len() < 50_000);
    assert_eq!(code(&zstd, &limit(50_000, rules())), ErrorCode::None);
    let plain = limit(1_048_588, fixed(Codec::None));
    assert_eq!(code(&zstd, &plain), ErrorCode::MessageTooLarge);
}

#[test]
fn bombs_are_refused_at_the_bound() {
    let limit = crate::model::limit::DECOMPRESSED_BYTES_MAX;
    for codec in &CODECS[1..] {
        let mut builder = Builder::new().codec(*codec);
        let chunk = vec![0; 16 << 20];
        for _ in 0..=(limit >> 24) {
            builder.push(T, None, Some(&chunk), &[]);
        }
        let bytes = builder.build();
        let rules = ProduceRules {
            max_message_bytes: limit as u32 / 8,
            ..rules()
        };
        let error = check(&bytes, &rules, T).expect_err("refused");
        assert_eq!(error.code, ErrorCode::InvalidRecord, "{codec:?}");
        assert!(error.message.contains("limit"), "{codec:?}: {error}");
    }
}

#[test]
fn snappy_is_read_raw_and_framed_and_nothing_else() {
    let plain = &vector("none")[HEADER_BYTES..];
    let raw = snap::raw::Encoder::new()
        .compress_vec(plain)
        .expect("compresses");
    let header = &vector("snappy")[HEADER_BYTES..HEADER_BYTES + 16];
    let block = |bytes: &[u8]| {
        let raw = snap::raw::Encoder::new().compress_vec(bytes).expect("ok");
        [&(raw.len() as u32).to_be_bytes()[..], &raw].concat()
    };
    let three = [
        header,
        &block(&plain[..100]),
        &block(&plain[100..101]),
        &block(&plain[101..]),
    ]
    .concat();
    let with = |payload: &[u8]| {
        let bytes = changed(&vector("snappy"), |b| {
            b.truncate(HEADER_BYTES);
            b.extend_from_slice(payload);
        });
        code(&bytes, &rules())
    };
    assert_eq!(with(&raw), ErrorCode::None);
    assert_eq!(with(&three), ErrorCode::None);
    for bad in [
        &[][..],
        header,
        &[header, &[0xff; 4]].concat(),
        &[header, &[0x7f, 0xff, 0xff, 0xff]].concat(),
        &three[..three.len() - 1],
        // Claims 4 GiB in five bytes.
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
    ] {
        assert_eq!(with(bad), ErrorCode::InvalidRecord);
    }
}

#[test]
fn lz4_checksums_are_verified_and_linked_blocks_refused() {
    use std::io::Write;
    let plain = &vector("none")[HEADER_BYTES..];
    let frame = |info: lz4_flex::frame::FrameInfo| {
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    };
    use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};
    let independent = || {
        FrameInfo::new()
            .block_mode(BlockMode::Independent)
            .block_size(BlockSize::Max64KB)
    };
    let with = |payload: &[u8]| {
        let bytes = changed(&vector("lz4"), |b| {
            b.truncate(HEADER_BYTES);
            b.extend_from_slice(payload);
        });
        code(&bytes, &rules())
    };
    let checked = frame(
        independent()
            .block_checksums(true)
            .content_checksum(true)
            .content_size(Some(plain.len() as u64)),
    );
    assert_eq!(with(&checked), ErrorCode::None);
    assert_eq!(
        with(&frame(independent().block_size(BlockSize::Max4MB))),
        ErrorCode::None
    );
    let linked = frame(independent().block_mode(BlockMode::Linked));
    assert_eq!(with(&linked), ErrorCode::InvalidRecord);
    for at in [6, 14, checked.len() - 1, checked.len() / 2] {
        let mut broken = checked.clone();
        broken[at] ^= 1;
        assert_eq!(with(&broken), ErrorCode::InvalidRecord, "byte {at}");
    }
}

#[test]
fn trusted_compressed_records_are_not_decompressed() {
    let trusting = ProduceRules {
        validate_compressed: false,
        ..rules()
    };
    let garbage = changed(&vector("zstd"), |b| b[HEADER_BYTES..].fill(0xff));
    assert_eq!(code(&garbage, &trusting), ErrorCode::None);
    assert_eq!(code(&garbage, &rules()), ErrorCode::InvalidRecord);
}

#[test]
fn parse_tells_torn_from_corrupt() {
    let good = vector("gzip");
    for len in 0..good.len() {
        let error = Batch::parse(&good[..len]).expect_err("torn");
        assert!(matches!(error, ParseError::Short { needs } if needs > len));
    }
    let mut flipped = good.clone();
    flipped[HEADER_BYTES] ^= 1;
    assert!(matches!(
        Batch::parse(&flipped),
        Err(ParseError::Corrupt(_))
    ));
    assert!(matches!(
        Batch::parse(&[0; 4096]),
        Err(ParseError::Corrupt(_))
    ));
}

#[test]
fn sequences_wrap_to_zero() {
    assert_eq!(sequence_after(i32::MAX - 1, 1), i32::MAX);
    assert_eq!(sequence_after(i32::MAX, 1), 0);
    assert_eq!(sequence_after(i32::MAX - 2, 4), 1);
}

fn any_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300))
}

fn any_records() -> impl Strategy<Value = Vec<Fields>> {
    let headers = proptest::collection::vec(("[a-z]{0,5}", any_bytes()), 0..3);
    let record = (T - 100_000..T + 100_000, any_bytes(), any_bytes(), headers);
    proptest::collection::vec(record, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_built_is_accepted_and_read(records in any_records(), codec in 0..5usize) {
        let bytes = build(&records, CODECS[codec]).build();
        let checked = check(&bytes, &rules(), T).expect("accepted");
        let max = records.iter().map(|r| r.0).max().expect("some");
        prop_assert_eq!(checked.max_timestamp(), max);
        let of_max = records.iter().position(|r| r.0 == max).expect("some");
        prop_assert_eq!(checked.max_timestamp_offset_delta(), of_max as i32);
        let out = read(&stored(&checked));
        prop_assert_eq!(out.into_iter().map(|r| r.1).collect::<Vec<_>>(), records);
    }

    #[test]
    fn damaged_insides_are_errors_or_readable(
        records in any_records(),
        codec in 0..5usize,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let bytes = build(&records, CODECS[codec]).build();
        let damaged = changed(&bytes, |b| {
            let payload = &mut b[HEADER_BYTES..];
            for (at, value) in &damage {
                payload[at.index(payload.len())] = *value;
            }
        });
        if let Ok(checked) = check(&damaged, &rules(), T) {
            let out = stored(&checked);
            let (batch, _) = Batch::parse(&out).expect("a batch");
            let all = batch.records().expect("readable");
            for (i, record) in all.iter().enumerate() {
                prop_assert_eq!(record.expect("a record").offset, 100 + i as i64);
            }
            prop_assert_eq!(all.iter().count(), records.len());
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Batch::parse(&bytes);
        let _ = check(&bytes, &rules(), T);
        for codec in &CODECS[1..] {
            let mut whole = vector(codec.name());
            whole.truncate(HEADER_BYTES);
            whole.extend_from_slice(&bytes);
            reseal(&mut whole);
            let _ = check(&whole, &rules(), T);
        }
    }
}
