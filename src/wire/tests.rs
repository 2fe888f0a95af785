//! Laws of whole messages, from literal bytes. `tests/wire.rs` has those that hold for every message.

use super::msg::fetch_request::FetchRequest;
use super::msg::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use super::msg::find_coordinator_request::FindCoordinatorRequest;
use super::msg::metadata_request::MetadataRequest;
use super::msg::offset_fetch_request::OffsetFetchRequest;
use super::msg::produce_request::ProduceRequest;
use super::*;

#[test]
fn produce_request_borrows_its_records_from_the_frame() {
    // Produce v9: transactional id null, acks -1, timeout 30000, one topic "t", one partition 0, records "abc", no tags.
    let frame = b"\x00\xff\xff\x00\x00\x75\x30\x02\x02t\x02\x00\x00\x00\x00\x04abc\x00\x00\x00";
    let mut r = Reader::new(frame);
    let produce = ProduceRequest::decode(&mut r, 9).unwrap();
    assert_eq!(r.remaining(), 0);
    assert_eq!((produce.acks, produce.timeout_ms), (-1, 30000));
    let topic = &produce.topic_data[0];
    assert!(matches!(topic.name, Cow::Borrowed("t")));
    let records = &topic.partition_data[0].records;
    assert!(matches!(records, Records::Bytes(Cow::Borrowed(b"abc"))));
    let mut w = Writer::new();
    produce.encode(&mut w, 9);
    assert_eq!(w.as_bytes(), frame);
}

#[test]
fn gap_is_counted_in_the_frame_but_not_written() {
    let partition = |records| FetchResponse {
        responses: vec![FetchableTopicResponse {
            partitions: vec![PartitionData {
                records,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    for version in [4, 12] {
        let encode = |records| {
            let mut w = Writer::new();
            let start = w.begin_frame();
            write_response_header(&mut w, ApiKey::Fetch, version, 1);
            partition(records).encode(&mut w, version);
            w.end_frame(start);
            (w.gaps.clone(), w.into_bytes())
        };
        let payload = vec![7; 300];
        let (gaps, mut bytes) = encode(Records::Gap(300));
        bytes.splice(gaps[0]..gaps[0], payload.iter().copied());
        assert_eq!(gaps.len(), 1);
        assert_eq!(bytes, encode(Records::Bytes(payload.into())).1);
        assert_eq!(bytes[..4], (bytes.len() as i32 - 4).to_be_bytes());
    }
}

#[test]
fn kafka_defaults_are_the_defaults() {
    let fetch = msg::fetch_request::FetchRequest::default();
    assert_eq!(
        (fetch.replica_id, fetch.session_epoch, fetch.max_bytes),
        (-1, -1, i32::MAX)
    );
    assert_eq!(fetch.cluster_id, None);
    assert!(msg::metadata_request::MetadataRequest::default().allow_auto_topic_creation);
    // Nullable without `default: null` is empty, not null.
    assert_eq!(
        msg::metadata_request::MetadataRequest::default().topics,
        Some(vec![])
    );
}

#[test]
fn api_table_matches_kafka() {
    assert_eq!(ApiKey::from_i16(0), Some(ApiKey::Produce));
    assert_eq!(ApiKey::Produce.versions(), (3, 13));
    assert_eq!(ApiKey::InitProducerId.versions(), (0, 6));
    assert_eq!(ApiKey::InitProducerId.latest_stable(), 5);
    assert_eq!(ApiKey::SaslHandshake.first_flexible(), i16::MAX);
    // 95 keys of Kafka 4.4, of which 4 to 7 have no version left.
    assert_eq!(ApiKey::all().count(), 91);
    assert_eq!((4..8).find_map(ApiKey::from_i16), None);
    assert!(ApiKey::all().all(|api| ApiKey::from_i16(api.code()) == Some(api)));
}

#[test]
fn answer_to_an_unknown_api_versions_is_readable_by_everyone() {
    // What Apache Kafka 4.4 answers to ApiVersions above its highest version: header and body of version 0, error 35, and the one row
    // that lets the client choose. Clients hung up on anything else (librdkafka#3057).
    use msg::api_versions_response::{ApiVersion, ApiVersionsResponse};
    let answer = ApiVersionsResponse {
        error_code: 35,
        api_keys: vec![ApiVersion {
            api_key: 18,
            min_version: 0,
            max_version: 5,
        }],
        ..Default::default()
    };
    let mut w = Writer::new();
    write_response_header(&mut w, ApiKey::ApiVersions, 99, 7);
    answer.encode(&mut w, 0);
    let expected = b"\0\0\0\x07\0\x23\0\0\0\x01\0\x12\0\0\0\x05";
    assert_eq!(w.as_bytes(), expected);
}

#[test]
fn hostile_counts_of_hot_requests_are_malformed() {
    // apache/kafka#12399, kafka-protocol-rs#200: an array of 2^31-1 topics, then one of partitions behind an honest topic.
    let metadata = b"\x7f\xff\xff\xff";
    assert!(MetadataRequest::decode(&mut Reader::new(metadata), 1).is_err());
    let topics = b"\0\xff\xff\0\0\x75\x30\xff\xff\xff\xff\x0f";
    assert!(ProduceRequest::decode(&mut Reader::new(topics), 9).is_err());
    let nested = b"\0\xff\xff\0\0\x75\x30\x02\x02t\xff\xff\xff\xff\x07\0\0\0";
    assert!(ProduceRequest::decode(&mut Reader::new(nested), 9).is_err());
}

#[test]
fn metadata_of_a_negative_count_asks_for_all_topics() {
    let decode = |count: i32, version| {
        let mut bytes = count.to_be_bytes().to_vec();
        bytes.push(1);
        MetadataRequest::decode(&mut Reader::new(&bytes), version)
            .map(|m| m.topics.map(|t| t.len()))
    };
    // As seen on Apache Kafka: -2 reads as null. Version 0 has no null.
    assert_eq!(decode(-1, 4), Ok(None));
    assert_eq!(decode(-2, 4), Ok(None));
    assert_eq!(decode(0, 4), Ok(Some(0)));
    assert!(decode(-1, 0).is_err());
}

#[test]
fn find_coordinator_moves_its_key_into_an_array_at_version_4() {
    // redpanda#27794: the old field below, the array from version 4 on.
    let old = b"\x02g\0\0";
    let request = FindCoordinatorRequest::decode(&mut Reader::new(old), 3).unwrap();
    assert_eq!((&*request.key, request.coordinator_keys.len()), ("g", 0));
    let new = b"\0\x04\x02a\x01\x02c\0";
    let mut r = Reader::new(new);
    let request = FindCoordinatorRequest::decode(&mut r, 4).unwrap();
    assert_eq!(request.coordinator_keys, ["a", "", "c"]);
    assert_eq!((&*request.key, r.remaining()), ("", 0));
}

#[test]
fn offset_fetch_moves_its_group_into_an_array_at_version_8() {
    // Version 7: group "g", topics null (all of them), require stable.
    let old = b"\x02g\0\x01\0";
    let request = OffsetFetchRequest::decode(&mut Reader::new(old), 7).unwrap();
    assert_eq!((&*request.group_id, &request.topics), ("g", &None));
    assert!(request.require_stable && request.groups.is_empty());
    // Version 8: groups "g" with topics null and "h" with none.
    let new = b"\x03\x02g\0\0\x02h\x01\0\x01\0";
    let mut r = Reader::new(new);
    let request = OffsetFetchRequest::decode(&mut r, 8).unwrap();
    assert_eq!(r.remaining(), 0);
    let groups: Vec<_> = request
        .groups
        .iter()
        .map(|g| (&*g.group_id, g.topics.as_ref().map(Vec::len)))
        .collect();
    assert_eq!(groups, [("g", None), ("h", Some(0))]);
}

/// A sessionless Fetch of version 12 with no topics, up to its tagged fields.
const FETCH_V12: &[u8] =
    b"\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\0\0\xff\xff\xff\xff\x01\x01\x01";

#[test]
fn tagged_fields_are_read_as_leniently_as_kafka_does() {
    let fetch = |tags: &[u8], version| {
        let bytes = [FETCH_V12, tags].concat();
        let mut r = Reader::new(&bytes);
        let request = FetchRequest::decode(&mut r, version)?;
        assert_eq!(r.remaining(), 0);
        Ok::<_, Malformed>(request.cluster_id.map(|id| id.to_string()))
    };
    let id = |text: &str| Ok(Some(text.to_string()));
    assert_eq!(fetch(b"\x00", 12), Ok(None));
    assert_eq!(fetch(b"\x01\x00\x02\x02c", 12), id("c"));
    // Unknown tags before and behind, unsorted; a tag twice (the last one counts); a known field of another size than announced.
    assert_eq!(fetch(b"\x03\x09\x03abc\x00\x02\x02c\x05\x00", 12), id("c"));
    assert_eq!(fetch(b"\x02\x00\x02\x02c\x00\x02\x02d", 12), id("d"));
    assert_eq!(fetch(b"\x01\x00\x7f\x02c", 12), id("c"));
    // The tag of a later version, an unknown one that is longer than the frame, more tags than bytes.
    assert!(fetch(b"\x01\x01\x0d\0\0\0\x01\0\0\0\0\0\0\0\0\0", 12).is_err());
    assert!(fetch(b"\x01\x09\x7f", 12).is_err());
    assert!(fetch(b"\xff\xff\xff\xff\x0f\x09\x00", 12).is_err());
}

#[test]
fn what_a_version_lacks_is_left_out() {
    let request = FetchRequest {
        cluster_id: Some("c".into()),
        rack_id: "r".into(),
        session_id: 5,
        ..Default::default()
    };
    let mut w = Writer::new();
    request.encode(&mut w, 4);
    let again = FetchRequest::decode(&mut Reader::new(w.as_bytes()), 4).unwrap();
    assert_eq!(again, FetchRequest::default());
}

#[test]
fn version_that_a_message_does_not_have_is_malformed() {
    for version in [-1, 2, 14, i16::MIN, i16::MAX] {
        assert!(ProduceRequest::decode(&mut Reader::new(&[0; 64]), version).is_err());
    }
}

#[test]
fn nullable_struct_in_a_tag_has_a_varint_in_front() {
    // Bytes of Apache Kafka 4.4's own class for this record: with null, and with a session timeout of 5.
    use msg::consumer_group_member_metadata_value::{
        ClassicMemberMetadata, ConsumerGroupMemberMetadataValue,
    };
    let value = |classic_member_metadata| ConsumerGroupMemberMetadataValue {
        classic_member_metadata,
        ..Default::default()
    };
    let head = b"\x01\x01\x01\x01\x01\x01\xff\xff\xff\xff\x01";
    let some = ClassicMemberMetadata {
        session_timeout_ms: 5,
        ..Default::default()
    };
    for (value, tags) in [
        (value(None), &b"\x01\x00\x01\x00"[..]),
        (value(Some(some)), b"\x01\x00\x07\x01\0\0\0\x05\x01\x00"),
        (value(Some(Default::default())), b"\x00"),
    ] {
        let bytes = [head, tags].concat();
        let mut w = Writer::new();
        value.encode(&mut w, 0);
        assert_eq!(w.as_bytes(), bytes);
        let again = ConsumerGroupMemberMetadataValue::decode(&mut Reader::new(&bytes), 0);
        assert_eq!(again, Ok(value));
    }
}
