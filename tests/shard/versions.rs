use corelane::model::ErrorCode;
use corelane::wire::msg::api_versions_request::ApiVersionsRequest;
use corelane::wire::{ApiKey, Reader, RequestHeader, Writer};

use crate::rig::{Rig, error};

fn named(name: &'static str, version: &'static str) -> ApiVersionsRequest<'static> {
    ApiVersionsRequest {
        client_software_name: name.into(),
        client_software_version: version.into(),
        ..Default::default()
    }
}

#[test]
fn every_version_lists_what_is_served() {
    let mut rig = Rig::new();
    for version in 0..=5 {
        let answer = rig.once(version, &named("rig", "1.0"));
        assert_eq!(error(answer.error_code), ErrorCode::None, "v{version}");
        let range = |api: ApiKey| {
            let found = answer.api_keys.iter().find(|k| k.api_key == api.code());
            found.map(|k| (k.min_version, k.max_version))
        };
        // As Kafka advertises them; Produce from 0 for librdkafka (KAFKA-18659).
        assert_eq!(range(ApiKey::Produce), Some((0, 13)));
        assert_eq!(range(ApiKey::Fetch), Some((4, 18)));
        assert_eq!(range(ApiKey::ListOffsets), Some((1, 11)));
        assert_eq!(range(ApiKey::Metadata), Some((0, 13)));
        assert_eq!(range(ApiKey::ApiVersions), Some((0, 5)));
        assert_eq!(range(ApiKey::CreateTopics), Some((2, 7)));
        assert_eq!(range(ApiKey::DeleteTopics), Some((1, 6)));
        assert_eq!(range(ApiKey::InitProducerId), Some((0, 5)), "6 is unstable");
        let keys: Vec<i16> = answer.api_keys.iter().map(|k| k.api_key).collect();
        assert!(keys.is_sorted());
        assert_eq!(answer.throttle_time_ms, 0);
        if version >= 3 {
            let level = &answer.finalized_features[0];
            assert_eq!(
                (
                    &*level.name,
                    level.min_version_level,
                    level.max_version_level
                ),
                ("metadata.version", 33, 33)
            );
            assert!(answer.finalized_features_epoch >= 0);
        }
    }
}

/// KIP-511: a version that is not known is answered in version 0, whatever its body holds.
#[test]
fn a_version_too_high_is_answered_in_version_0_with_the_range() {
    let mut rig = Rig::new();
    for version in [6, 7, 100, i16::MAX] {
        let conn = rig.open();
        let mut w = Writer::new();
        w.i16(ApiKey::ApiVersions.code());
        w.i16(version);
        w.i32(77);
        w.i16(-1);
        w.raw(&[0]);
        w.raw(b"whatever comes in that version");
        rig.send_frame(conn, w.into_bytes());
        rig.run();
        let frame = rig.frame(conn).expect("an answer");
        // Correlation id, error 35, one entry: key 18 from 0 to 5.
        let expected = [&[0, 0, 0, 77, 0, 35, 0, 0, 0, 1][..], &[0, 18, 0, 0, 0, 5]].concat();
        assert_eq!(frame, expected, "v{version}");
        assert!(!rig.is_closed(conn), "the client asks again on it");
        assert_eq!(rig.ask(conn, 5, &named("rig", "1.0")).error_code, 0);
    }
}

#[test]
fn a_version_too_high_of_anything_else_closes_the_connection() {
    let mut rig = Rig::new();
    for (api, version) in [
        (ApiKey::Metadata, 14),
        (ApiKey::Metadata, -1),
        (ApiKey::Fetch, 3),
        (ApiKey::Produce, 2),
        (ApiKey::Produce, 14),
        (ApiKey::CreateTopics, 1),
        (ApiKey::InitProducerId, 6),
        (ApiKey::Vote, 0),
    ] {
        let conn = rig.open();
        let mut w = Writer::new();
        RequestHeader {
            api_key: api.code(),
            api_version: version,
            correlation_id: 1,
            client_id: None,
        }
        .encode(&mut w);
        w.raw(&[0; 40]);
        rig.send_frame(conn, w.into_bytes());
        rig.run();
        assert!(
            rig.is_closed(conn) && rig.frame(conn).is_none(),
            "{api:?} v{version}"
        );
    }
    for frame in [
        &[][..],
        &[0, 3],
        &[0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff],
    ] {
        let conn = rig.open();
        rig.send_frame(conn, frame.to_vec());
        rig.run();
        assert!(rig.is_closed(conn), "{frame:?}");
    }
}

#[test]
fn the_software_must_be_named_as_kafka_asks() {
    let mut rig = Rig::new();
    let cases = [
        ("apache-kafka-java", "4.0.0", ErrorCode::None),
        ("a", "1", ErrorCode::None),
        ("", "1", ErrorCode::InvalidRequest),
        ("-a", "1", ErrorCode::InvalidRequest),
        ("a", "1-", ErrorCode::InvalidRequest),
        ("a b", "1", ErrorCode::InvalidRequest),
    ];
    for version in 3..=5 {
        for (name, software_version, expected) in cases {
            let answer = rig.once(version, &named(name, software_version));
            assert_eq!(
                error(answer.error_code),
                expected,
                "{name} {software_version}"
            );
        }
    }
}

/// KIP-1242.
#[test]
fn a_client_of_another_cluster_is_told_to_bootstrap_again() {
    let mut rig = Rig::new();
    let cluster = rig.shards[0].image().cluster_id().to_string();
    let mut ask = |cluster: Option<&str>, node_id: i32| {
        let request = ApiVersionsRequest {
            cluster_id: cluster.map(|c| c.to_string().into()),
            node_id,
            ..named("rig", "1")
        };
        error(rig.once(5, &request).error_code)
    };
    assert_eq!(ask(None, -1), ErrorCode::None);
    assert_eq!(ask(Some(&cluster), 0), ErrorCode::None);
    assert_eq!(ask(Some(&cluster), 1), ErrorCode::RebootstrapRequired);
    assert_eq!(ask(Some("another"), 0), ErrorCode::RebootstrapRequired);
    assert_eq!(ask(None, 0), ErrorCode::InvalidRequest);
    assert_eq!(ask(Some(&cluster), -1), ErrorCode::InvalidRequest);
}

#[test]
fn bytes_behind_a_body_are_ignored_and_counted() {
    let mut rig = Rig::new();
    let conn = rig.open();
    let mut w = Writer::new();
    RequestHeader {
        api_key: ApiKey::ApiVersions.code(),
        api_version: 0,
        correlation_id: 5,
        client_id: Some("c".into()),
    }
    .encode(&mut w);
    w.raw(b"left over");
    rig.send_frame(conn, w.into_bytes());
    rig.run();
    let frame = rig.frame(conn).expect("an answer");
    let mut r = Reader::new(&frame);
    assert_eq!(r.i32(), 5);
    assert_eq!(rig.shards[0].counters.trailing_bytes, 9);
}
