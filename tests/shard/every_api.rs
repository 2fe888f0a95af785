//! Every API that is advertised, in every version, called with generated bodies: the answer is read to its last byte by a
//! codec that shares no code with the broker's.

use corelane::model::Rng as Random;
use corelane::shard::api::advertised;
use corelane::wire::{ApiKey, RequestHeader, Writer};

use crate::rig::{Rig, Setup};
use crate::schema_codec::{Schemas, Value};

fn frame(api: ApiKey, version: i16, correlation_id: i32, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    RequestHeader {
        api_key: api.code(),
        api_version: version,
        correlation_id,
        client_id: Some("every".into()),
    }
    .encode(&mut w);
    w.raw(body);
    w.into_bytes()
}

/// Whether a request with this body has no answer.
fn is_silent(api: ApiKey, body: &Value) -> bool {
    api == ApiKey::Produce && body["Acks"] == Value::Int(0)
}

fn served() -> Vec<(ApiKey, i16)> {
    let all = advertised().into_iter();
    // Produce is advertised from 0 and served from 3.
    all.flat_map(|(api, min, max)| (min.max(api.versions().0)..=max).map(move |v| (api, v)))
        .collect()
}

/// Sends one body and gives what came back.
fn call(
    rig: &mut Rig,
    schemas: &Schemas,
    api: ApiKey,
    version: i16,
    body: &Value,
) -> Option<Value> {
    let conn = rig.open();
    let bytes = schemas.request(api.code()).encode(version, body);
    rig.send_frame(conn, frame(api, version, 4711, &bytes));
    rig.run();
    // Long polls and timeouts of generated bodies may be of any length.
    let mut waited = 0;
    while !rig.has_answer(conn) && !rig.is_closed(conn) && !is_silent(api, body) {
        assert!(
            waited < 40,
            "{api:?} v{version} is never answered: {body:?}"
        );
        rig.pass_ms(1 << waited);
        waited += 1;
    }
    let answer = rig.frame(conn).map(|answer| {
        let (correlation, value) = schemas
            .read_response(api.code(), version, &answer)
            .unwrap_or_else(|why| panic!("{api:?} v{version}: {why} in the answer to {body:?}"));
        assert_eq!(correlation, 4711);
        value
    });
    rig.drop_conn(conn);
    rig.run();
    answer
}

#[test]
fn an_empty_body_is_answered_and_read_by_another_codec() {
    let schemas = Schemas::load();
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    rig.create("t", 2);
    for (api, version) in served() {
        let body = schemas.request(api.code()).minimal(version);
        let answer = call(&mut rig, &schemas, api, version, &body);
        assert_eq!(
            answer.is_none(),
            is_silent(api, &body),
            "{api:?} v{version}"
        );
    }
}

#[test]
fn any_body_is_answered_or_closes_its_connection() {
    let schemas = Schemas::load();
    for (api, version) in served() {
        let mut rig = Rig::with(Setup {
            shards: 2,
            ..Setup::default()
        });
        rig.create("t", 2);
        let mut random = Random::seeded(u64::from(api.code() as u16) << 16 | version as u64);
        for _ in 0..40 {
            let mut body = schemas.request(api.code()).arbitrary(version, &mut random);
            make_likely(&mut body, &mut random);
            let answer = call(&mut rig, &schemas, api, version, &body);
            assert_eq!(
                answer.is_none(),
                is_silent(api, &body),
                "{api:?} v{version} {body:?}"
            );
        }
    }
}

/// Names and numbers of a generated body that hit something now and then, and times that end.
fn make_likely(value: &mut Value, random: &mut Random) {
    match value {
        Value::Struct(fields) => {
            for (name, field) in fields {
                match (name.as_str(), &mut *field) {
                    ("Name" | "Topic" | "TopicName" | "ResourceName", Value::Text(text)) => {
                        *text = ["t", "new", "__consumer_offsets", "a b"][random.below(4) as usize]
                            .into();
                    }
                    ("MaxWaitMs" | "TimeoutMs" | "timeoutMs", Value::Int(ms)) => {
                        *ms = random.below(100) as i64
                    }
                    ("Acks", Value::Int(acks)) => *acks = random.below(4) as i64 - 1,
                    ("Index" | "Partition" | "PartitionIndex", Value::Int(index)) => {
                        *index = random.below(3) as i64
                    }
                    ("IsolationLevel", Value::Int(level)) => *level = random.below(2) as i64,
                    ("SessionId", Value::Int(id)) => *id = 0,
                    ("SessionEpoch", Value::Int(epoch)) => *epoch = random.below(2) as i64 - 1,
                    ("Count" | "NumPartitions", Value::Int(count)) => {
                        *count = random.below(6) as i64 - 1
                    }
                    ("ReplicationFactor", Value::Int(factor)) => {
                        *factor = random.below(4) as i64 - 1
                    }
                    _ => make_likely(field, random),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| make_likely(value, random)),
        _ => {}
    }
}

/// Bytes of a request that were cut, stretched or changed anywhere: answered or closed, and the shard lives on.
#[test]
fn damaged_bodies_never_harm_the_shard() {
    let schemas = Schemas::load();
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    rig.create("t", 2);
    let mut random = Random::seeded(99);
    for (api, version) in served() {
        for _ in 0..20 {
            let body = schemas.request(api.code()).arbitrary(version, &mut random);
            let mut bytes = schemas.request(api.code()).encode(version, &body);
            match random.below(3) {
                0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                1 => bytes.extend([0; 7]),
                _ => {
                    for _ in 0..=random.below(4) {
                        if !bytes.is_empty() {
                            let at = random.below(bytes.len() as u64) as usize;
                            bytes[at] = random.next_u64() as u8;
                        }
                    }
                }
            }
            let conn = rig.open();
            rig.send_frame(conn, frame(api, version, 1, &bytes));
            rig.run();
            while let Some(answer) = rig.frame(conn) {
                let read = schemas.read_response(api.code(), version, &answer);
                assert!(read.is_ok(), "{api:?} v{version}: {read:?}");
            }
            if !rig.is_closed(conn) {
                rig.drop_conn(conn);
            }
            rig.run();
        }
    }
    assert_eq!(rig.shards[0].conns_open(), 0);
    let body = schemas.request(3).minimal(12);
    assert!(call(&mut rig, &schemas, ApiKey::Metadata, 12, &body).is_some());
}
