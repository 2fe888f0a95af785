//! Values and codes are those that Apache Kafka 4.4.0 gave to the same requests; what survives a crash is better on purpose.

use corelane::log::faulty::Loss;
use corelane::model::ErrorCode;
use corelane::wire::msg::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use corelane::wire::msg::delete_records_response::DeleteRecordsResponse;
use corelane::wire::msg::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

use crate::produce::batch;
use crate::rig::{Rig, Setup, error};

type Part = (i32, i64, ErrorCode);

fn below(topics: &[(&'static str, &[(i32, i64)])]) -> DeleteRecordsRequest<'static> {
    let topics = topics.iter().map(|(name, parts)| DeleteRecordsTopic {
        name: (*name).into(),
        partitions: parts
            .iter()
            .map(|(partition_index, offset)| DeleteRecordsPartition {
                partition_index: *partition_index,
                offset: *offset,
            })
            .collect(),
    });
    DeleteRecordsRequest {
        topics: topics.collect(),
        timeout_ms: 5000,
    }
}

fn told(answer: &DeleteRecordsResponse<'_>) -> Vec<(String, Vec<Part>)> {
    let topics = answer.topics.iter().map(|topic| {
        let parts = topic.partitions.iter();
        let parts = parts.map(|p| (p.partition_index, p.low_watermark, error(p.error_code)));
        (topic.name.to_string(), parts.collect())
    });
    topics.collect()
}

fn delete(rig: &mut Rig, topic: &'static str, parts: &[(i32, i64)]) -> Vec<Part> {
    let answer = rig.once(2, &below(&[(topic, parts)]));
    told(&answer).remove(0).1
}

fn start(rig: &mut Rig, topic: &'static str) -> i64 {
    let request = ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic {
            name: topic.into(),
            partitions: vec![ListOffsetsPartition {
                partition_index: 0,
                current_leader_epoch: -1,
                timestamp: -2,
            }],
        }],
        ..Default::default()
    };
    rig.once(7, &request).topics[0].partitions[0].offset
}

fn with_ten_records() -> Rig {
    let mut rig = Rig::new();
    let id = rig.create("dt", 2);
    let values = ["v"; 10];
    assert_eq!(
        rig.produce(("dt", id), 0, batch(&values)),
        (ErrorCode::None, 0)
    );
    rig
}

#[test]
fn every_version_moves_the_start_and_tells_it() {
    let mut rig = with_ten_records();
    for (version, offset) in [(0, 2), (1, 3), (2, 4)] {
        let answer = rig.once(version, &below(&[("dt", &[(0, offset)])]));
        assert_eq!(
            told(&answer),
            [("dt".to_string(), vec![(0, offset, ErrorCode::None)])]
        );
        assert_eq!(start(&mut rig, "dt"), offset);
    }
    assert_eq!(
        delete(&mut rig, "dt", &[(0, 1)]),
        [(0, 4, ErrorCode::None)],
        "below the start"
    );
    assert_eq!(
        delete(&mut rig, "dt", &[(0, -1)]),
        [(0, 10, ErrorCode::None)]
    );
    assert_eq!(start(&mut rig, "dt"), 10);
}

#[test]
fn what_cannot_be_deleted_is_refused_with_kafkas_codes() {
    let mut rig = with_ten_records();
    rig.create_with("dc", 1, &[("cleanup.policy", "compact")]);
    rig.create_with("dcd", 1, &[("cleanup.policy", "compact,delete")]);
    rig.create_with("dnone", 1, &[("cleanup.policy", "")]);
    let range = ErrorCode::OffsetOutOfRange;
    for offset in [11, -2, i64::MIN, i64::MAX] {
        assert_eq!(delete(&mut rig, "dt", &[(0, offset)]), [(0, -1, range)]);
    }
    let unknown = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(delete(&mut rig, "nope", &[(0, 1)]), [(0, -1, unknown)]);
    assert_eq!(delete(&mut rig, "a b", &[(0, 1)]), [(0, -1, unknown)]);
    let both = delete(&mut rig, "dt", &[(9, 1), (-1, 0)]);
    assert_eq!(both, [(-1, -1, unknown), (9, -1, unknown)]);
    assert_eq!(
        delete(&mut rig, "dc", &[(0, 0)]),
        [(0, -1, ErrorCode::PolicyViolation)]
    );
    assert_eq!(
        delete(&mut rig, "dcd", &[(0, 0)]),
        [(0, 0, ErrorCode::None)]
    );
    assert_eq!(
        delete(&mut rig, "dnone", &[(0, 0)]),
        [(0, 0, ErrorCode::None)]
    );
    assert_eq!(start(&mut rig, "dt"), 0, "nothing moved");
}

#[test]
fn partitions_and_topics_that_are_named_twice_are_answered_once() {
    let mut rig = with_ten_records();
    let answer = rig.once(2, &below(&[("dt", &[(0, 1), (0, 2)]), ("dt", &[(1, 0)])]));
    assert_eq!(
        told(&answer),
        [(
            "dt".to_string(),
            vec![(0, 2, ErrorCode::None), (1, 0, ErrorCode::None)]
        )]
    );
    assert!(rig.once(2, &below(&[])).topics.is_empty());
    assert!(rig.once(2, &below(&[("dt", &[])])).topics.is_empty());
}

#[test]
fn the_answer_waits_for_the_device_and_what_was_deleted_stays_deleted() {
    let mut rig = with_ten_records();
    rig.hold_disk = true;
    let conn = rig.open();
    let id = rig.send(conn, 2, &below(&[("dt", &[(0, 6)])]));
    rig.run();
    assert!(!rig.has_answer(conn), "not on the device yet");
    rig.hold_disk = false;
    rig.run();
    let answer = rig
        .answer::<DeleteRecordsRequest<'_>>(conn, 2, id)
        .expect("answered");
    assert_eq!(told(&answer)[0].1, [(0, 6, ErrorCode::None)]);
    let mut rig = rig.restart(Loss::All);
    assert_eq!(start(&mut rig, "dt"), 6);
    // The high watermark of a log that was just opened is its end.
    assert_eq!(
        delete(&mut rig, "dt", &[(0, -1)]),
        [(0, 10, ErrorCode::None)]
    );
}

#[test]
fn a_device_that_does_not_answer_in_time_is_a_timeout() {
    let mut rig = with_ten_records();
    rig.hold_disk = true;
    let conn = rig.open();
    let id = rig.send(conn, 2, &below(&[("dt", &[(0, 6)])]));
    rig.pass_ms(4_999);
    assert!(!rig.has_answer(conn));
    rig.pass_ms(2);
    let answer = rig
        .answer::<DeleteRecordsRequest<'_>>(conn, 2, id)
        .expect("answered");
    assert_eq!(told(&answer)[0].1, [(0, -1, ErrorCode::RequestTimedOut)]);
}

#[test]
fn only_the_leader_deletes_and_a_topic_that_goes_meanwhile_is_unknown() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    rig.create("dt", 2);
    let parts = delete(&mut rig, "dt", &[(0, -1), (1, -1)]);
    let codes: Vec<ErrorCode> = parts.iter().map(|(_, _, code)| *code).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::NotLeaderOrFollower]);

    let mut rig = with_ten_records();
    rig.hold_disk = true;
    let conn = rig.open();
    let id = rig.send(conn, 2, &below(&[("dt", &[(0, 6)])]));
    rig.run();
    rig.delete_before_writes("dt");
    rig.run();
    let answer = rig
        .answer::<DeleteRecordsRequest<'_>>(conn, 2, id)
        .expect("answered");
    let code = told(&answer)[0].1[0].2;
    assert_eq!(code, ErrorCode::UnknownTopicOrPartition);
}
