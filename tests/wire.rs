//! The generated codec against three things it shares no code with: the schema interpreter, the `kafka-protocol` crate, and hostile bytes.

#[path = "support/counting_alloc.rs"]
mod counting_alloc;
#[path = "support/every_version.rs"]
mod every_version;
#[path = "support/schema_codec.rs"]
mod schema_codec;

use bytes::{Bytes, BytesMut};
use corelane::wire::{Writer, msg};
use counting_alloc::peak_of;
use every_version::{for_every_version, recode, rounds};
use kafka_protocol::messages::{ApiKey as TheirKey, RequestKind, ResponseKind};
use kafka_protocol::protocol::{Decodable, Encodable, Message as _};
use schema_codec::{Message, Value};

#[global_allocator]
static ALLOCATOR: counting_alloc::Counting = counting_alloc::Counting;

#[test]
fn every_message_of_every_version_round_trips_to_the_same_bytes() {
    for_every_version(|index, message, version, rng| {
        for round in 0..rounds() {
            let value = if round == 0 {
                message.minimal(version)
            } else {
                message.arbitrary(version, rng)
            };
            let bytes = message.encode(version, &value);
            let context = || format!("{} v{version} {value:?}", message.name);
            let (again, left) =
                recode(index, version, &bytes).unwrap_or_else(|why| panic!("{why} {}", context()));
            assert_eq!((left, &again), (0, &bytes), "{}", context());
            // And the interpreter reads its own value back: a fault in its encoding is not hidden by one in its decoding.
            assert_eq!(
                message.decode(version, &again),
                Ok((value.clone(), bytes.len())),
                "{}",
                context()
            );
        }
    });
}

#[test]
fn default_of_every_message_is_the_schemas_default() {
    for_every_version(|index, message, version, _| {
        let mut w = Writer::new();
        msg::encode_default(index, version, &mut w);
        // The interpreter takes a field that is not given at its default.
        let expected = message.encode(version, &Value::of([]));
        assert_eq!(w.into_bytes(), expected, "{} v{version}", message.name);
    });
}

#[test]
fn unknown_tagged_fields_are_skipped_everywhere() {
    for_every_version(|index, message, version, rng| {
        let value = message.arbitrary(version, rng);
        let bytes = message.encode_with_unknown_tags(version, &value, rng);
        assert_eq!(
            recode(index, version, &bytes),
            Ok((message.encode(version, &value), 0)),
            "{} v{version}",
            message.name
        );
    });
}

#[test]
fn bytes_behind_a_message_are_left_and_counted() {
    for_every_version(|index, message, version, rng| {
        let mut bytes = message.encode(version, &message.arbitrary(version, rng));
        bytes.extend_from_slice(b"left over");
        let (_, left) = recode(index, version, &bytes).expect("a valid message");
        assert_eq!(left, 9, "{} v{version}", message.name);
    });
}

#[test]
fn every_truncation_of_every_message_is_malformed() {
    for_every_version(|index, message, version, rng| {
        for value in [message.minimal(version), message.arbitrary(version, rng)] {
            let bytes = message.encode(version, &value);
            for end in 0..bytes.len().min(3000) {
                let cut = recode(index, version, &bytes[..end]);
                assert!(
                    cut.is_err(),
                    "{} v{version} cut at {end} of {}",
                    message.name,
                    bytes.len()
                );
            }
        }
    });
}

/// What decoding a message of so many bytes may hold: the structs in memory are larger than their bytes, and each array on the way down
/// reserves up to 64 KiB ahead.
fn memory_allowed(bytes: usize) -> usize {
    512 * bytes + 4 * 64 * 1024
}

#[test]
fn huge_counts_and_lengths_at_any_place_reserve_next_to_nothing() {
    const LIES: [&[u8]; 6] = [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xfe",
        b"\x7f\xff",
        b"\xff\xfe",
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x07",
    ];
    for_every_version(|index, message, version, rng| {
        for value in [message.minimal(version), message.arbitrary(version, rng)] {
            let honest = message.encode(version, &value);
            for at in 0..honest.len().min(400) {
                for lie in LIES {
                    let mut bytes = honest.clone();
                    let end = (at + lie.len()).min(bytes.len());
                    bytes.splice(at..end, lie.iter().copied());
                    // Decoding only: what decodes may be encoded as large as it was.
                    let (_, peak) =
                        peak_of(|| recode(index, version, &bytes).map(|(again, _)| again.len()));
                    assert!(
                        peak <= memory_allowed(bytes.len()),
                        "{} v{version}: {peak} bytes for {}",
                        message.name,
                        bytes.len()
                    );
                }
            }
        }
    });
}

#[test]
fn mutated_messages_never_panic_and_never_reserve_much() {
    for_every_version(|index, message, version, rng| {
        for _ in 0..10 * rounds() {
            let mut bytes = message.encode(version, &message.arbitrary(version, rng));
            for _ in 0..=rng.below(4) {
                if bytes.is_empty() {
                    break;
                }
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = [0, 0xff, 0x80, 0x7f, rng.next_u64() as u8][rng.below(5) as usize];
            }
            let (result, peak) = peak_of(|| recode(index, version, &bytes));
            assert!(
                peak <= memory_allowed(bytes.len()),
                "{} v{version}: {peak} bytes for {}",
                message.name,
                bytes.len()
            );
            // What was understood is understood again: encoding made a valid message of it.
            if let Ok((again, _)) = result {
                assert_eq!(
                    recode(index, version, &again),
                    Ok((again.clone(), 0)),
                    "{} v{version}",
                    message.name
                );
            }
        }
    });
}

// ---- kafka-protocol

/// What kafka-protocol makes of the bytes, if it knows the message and version; it must take all of them.
fn theirs(message: &Message, version: i16, bytes: &[u8]) -> Option<Theirs> {
    macro_rules! data {
        ($($name:ident)*) => {
            match message.name.as_str() {
                $(stringify!($name) => {
                    type T = kafka_protocol::messages::$name;
                    let known = T::VERSIONS;
                    (known.min <= version && version <= known.max).then(|| {
                        let mut input = Bytes::copy_from_slice(bytes);
                        let mut out = BytesMut::new();
                        T::decode(&mut input, version).and_then(|m| m.encode(&mut out, version)).map(|()| (out.to_vec(), input.len()))
                            .map_err(|why| format!("{why:#}"))
                    })
                })*
                _ => None,
            }
        };
    }
    if message.kind == "request" || message.kind == "response" {
        let key = TheirKey::try_from(message.api?).ok()?;
        let known = key.valid_versions();
        if version < known.min || version > known.max {
            return None;
        }
        let mut input = Bytes::copy_from_slice(bytes);
        let mut out = BytesMut::new();
        let result = if message.kind == "request" {
            RequestKind::decode(key, &mut input, version)
                .and_then(|kind| kind.encode(&mut out, version))
        } else {
            ResponseKind::decode(key, &mut input, version)
                .and_then(|kind| kind.encode(&mut out, version))
        };
        let result = result.map_err(|why| format!("{why:#}"));
        // Its table of keys names versions that one side of the exchange lacks.
        if result
            .as_ref()
            .is_err_and(|why| why.contains("specified version not supported"))
        {
            return None;
        }
        return Some(result.map(|()| (out.to_vec(), input.len())));
    }
    data!(RequestHeader ResponseHeader ConsumerProtocolAssignment ConsumerProtocolSubscription DefaultPrincipalData EndTxnMarker
          LeaderChangeMessage SnapshotFooterRecord SnapshotHeaderRecord VotersRecord KRaftVersionRecord)
}

/// The bytes encoded again and the count of those left, or why not.
type Theirs = Result<(Vec<u8>, usize), String>;

#[test]
fn kafka_protocol_reads_and_writes_the_same_bytes() {
    let (mut compared, mut unknown) = (0, Vec::new());
    for_every_version(|index, message, version, rng| {
        for round in 0..rounds() {
            let mut value = if round == 0 {
                message.minimal(version)
            } else {
                message.arbitrary(version, rng)
            };
            // There, a field named Version shadows the version of the message while decoding.
            if let Value::Struct(fields) = &mut value
                && message.kind == "data"
                && let Some(field) = fields.get_mut("Version")
            {
                *field = Value::Int(version.into());
            }
            let ours = recode(index, version, &message.encode(version, &value))
                .expect("a valid message")
                .0;
            let Some(theirs) = theirs(message, version, &ours) else {
                unknown.push(format!("{} v{version}", message.name));
                return;
            };
            let (again, left) = theirs
                .unwrap_or_else(|why| panic!("{} v{version}: {why}: {value:?}", message.name));
            assert_eq!(left, 0, "{} v{version}", message.name);
            assert_eq!(again, ours, "{} v{version} {value:?}", message.name);
            assert_eq!(
                recode(index, version, &again),
                Ok((ours, 0)),
                "{} v{version}",
                message.name
            );
        }
        compared += 1;
    });
    // kafka-protocol 0.18 is of Kafka 4.1: it lacks the streams APIs, the newest versions and the records of internal topics.
    println!("compared {compared} pairs of message and version; not known there: {unknown:?}");
    assert!(compared > 500, "only {compared} pairs were compared");
}
