//! ListOffsets and OffsetForLeaderEpoch.

use corelane::batch::Builder;
use corelane::model::{ErrorCode, Uuid};
use corelane::wire::msg::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use corelane::wire::msg::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};

use crate::produce::{NOW, batch, to};
use crate::rig::{Rig, Setup, error, node};

fn of(topic: &str, asked: &[(i32, i64)]) -> ListOffsetsRequest<'static> {
    let partitions = asked
        .iter()
        .map(|(partition_index, timestamp)| ListOffsetsPartition {
            partition_index: *partition_index,
            timestamp: *timestamp,
            ..Default::default()
        });
    ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic {
            name: topic.to_string().into(),
            partitions: partitions.collect(),
        }],
        ..Default::default()
    }
}

/// Code, offset, timestamp and leader epoch of every partition.
fn told(
    rig: &mut Rig,
    version: i16,
    request: &ListOffsetsRequest<'static>,
) -> Vec<(ErrorCode, i64, i64, i32)> {
    let answer = rig.once(version, request);
    let parts = answer.topics.iter().flat_map(|t| &t.partitions);
    parts
        .map(|p| (error(p.error_code), p.offset, p.timestamp, p.leader_epoch))
        .collect()
}

fn at(times: &[i64]) -> Vec<u8> {
    let mut builder = Builder::new();
    for time in times {
        builder.push(NOW + time, None, Some(b"v"), &[]);
    }
    builder.build()
}

#[test]
fn specials_and_timestamps_at_every_version() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    for times in [&[10, 20][..], &[50, 30], &[40]] {
        rig.produce(("t", id), 0, at(times));
    }
    for version in 1..=11 {
        let epoch = if version >= 4 { 0 } else { -1 };
        let none = (ErrorCode::None, -1, -1, -1);
        let found = |offset, time| (ErrorCode::None, offset, time, epoch);
        let mut ask = |timestamp: i64| told(&mut rig, version, &of("t", &[(0, timestamp)]))[0];
        assert_eq!(ask(-1), found(5, -1), "v{version}: the end");
        assert_eq!(ask(-2), found(0, -1), "the start");
        let since = |first: i16, answer| match version >= first {
            true => answer,
            false => (ErrorCode::UnsupportedVersion, -1, -1, -1),
        };
        assert_eq!(
            ask(-3),
            since(7, found(2, NOW + 50)),
            "the largest timestamp"
        );
        assert_eq!(ask(-4), since(8, found(0, -1)), "the earliest here");
        assert_eq!(ask(-5), since(9, none), "nothing is tiered");
        assert_eq!(ask(-6), since(11, none), "and nothing waits to be");
        assert_eq!(ask(-7), (ErrorCode::UnsupportedVersion, -1, -1, -1));
        // The first record that is as young.
        assert_eq!(ask(0), found(0, NOW + 10));
        assert_eq!(ask(NOW + 10), found(0, NOW + 10));
        assert_eq!(ask(NOW + 11), found(1, NOW + 20));
        assert_eq!(ask(NOW + 21), found(2, NOW + 50));
        assert_eq!(ask(NOW + 50), found(2, NOW + 50));
        assert_eq!(ask(NOW + 51), none);
    }
}

#[test]
fn an_empty_partition_starts_and_ends_at_0() {
    let mut rig = Rig::new();
    rig.create("t", 1);
    let mut ask = |timestamp| told(&mut rig, 7, &of("t", &[(0, timestamp)]))[0];
    assert_eq!(ask(-1), (ErrorCode::None, 0, -1, 0));
    assert_eq!(ask(-2), (ErrorCode::None, 0, -1, 0));
    assert_eq!(ask(-3), (ErrorCode::None, -1, -1, -1));
    assert_eq!(ask(5), (ErrorCode::None, -1, -1, -1));
}

#[test]
fn every_refusal() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    let id = rig.create("t", 2);
    let topic = rig.shards[0].image().topic(id).expect("exists");
    let far = topic
        .partitions
        .iter()
        .position(|p| p.leader.0 == node(1))
        .expect("one") as i32;
    let near = 1 - far;
    for version in 1..=11 {
        let mut code = |request: &ListOffsetsRequest<'static>| {
            let all = told(&mut rig, version, request);
            all.iter().map(|p| p.0).collect::<Vec<_>>()
        };
        assert_eq!(
            code(&of("x", &[(0, -1)])),
            [ErrorCode::UnknownTopicOrPartition]
        );
        assert_eq!(
            code(&of("t", &[(2, -1)])),
            [ErrorCode::UnknownTopicOrPartition]
        );
        assert_eq!(
            code(&of("t", &[(far, -1)])),
            [ErrorCode::NotLeaderOrFollower]
        );
        let twice = code(&of("t", &[(near, -1), (near, -2), (far, -1)]));
        assert_eq!(
            twice,
            [
                ErrorCode::InvalidRequest,
                ErrorCode::InvalidRequest,
                ErrorCode::NotLeaderOrFollower
            ]
        );
        if version >= 4 {
            for (epoch, expected) in [
                (0, ErrorCode::None),
                (1, ErrorCode::UnknownLeaderEpoch),
                (-2, ErrorCode::FencedLeaderEpoch),
            ] {
                let mut request = of("t", &[(near, -1)]);
                request.topics[0].partitions[0].current_leader_epoch = epoch;
                assert_eq!(code(&request), [expected], "v{version}");
            }
        }
    }
}

#[test]
fn the_end_is_what_consumers_may_see() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    rig.produce(("t", id), 0, batch(&["a"]));
    rig.hold_disk = true;
    let conn = rig.open();
    rig.send(conn, 12, &to(-1, ("t", id), 0, batch(&["b"])));
    rig.run();
    for isolation_level in [0, 1] {
        let request = ListOffsetsRequest {
            isolation_level,
            ..of("t", &[(0, -1)])
        };
        assert_eq!(told(&mut rig, 7, &request)[0].1, 1);
    }
    assert_eq!(told(&mut rig, 7, &of("t", &[(0, NOW + 1)]))[0].1, -1);
    rig.hold_disk = false;
    rig.run();
    assert_eq!(told(&mut rig, 7, &of("t", &[(0, -1)]))[0].1, 2);
}

#[test]
fn epochs_end_where_kafka_says() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    let id = rig.create("t", 2);
    let topic = rig.shards[0].image().topic(id).expect("exists");
    let far = topic
        .partitions
        .iter()
        .position(|p| p.leader.0 == node(1))
        .expect("one") as i32;
    let near = 1 - far;
    for version in 2..=4 {
        let mut ask = |name: &str, partition, current, epoch| {
            let answer = rig.once(
                version,
                &OffsetForLeaderEpochRequest {
                    replica_id: -1,
                    topics: vec![OffsetForLeaderTopic {
                        topic: name.to_string().into(),
                        partitions: vec![OffsetForLeaderPartition {
                            partition,
                            current_leader_epoch: current,
                            leader_epoch: epoch,
                        }],
                    }],
                },
            );
            let end = &answer.topics[0].partitions[0];
            assert_eq!((&*answer.topics[0].topic, end.partition), (name, partition));
            (error(end.error_code), end.leader_epoch, end.end_offset)
        };
        let refused = |code| (code, -1, -1);
        // Seen on Kafka: an empty partition has its epoch, from 0.
        assert_eq!(
            ask("t", near, -1, 0),
            (ErrorCode::None, 0, i64::from(version) - 2)
        );
        assert_eq!(
            ask("t", near, 0, 0),
            (ErrorCode::None, 0, i64::from(version) - 2)
        );
        assert_eq!(
            ask("t", near, -1, 1),
            refused(ErrorCode::None),
            "an epoch to come"
        );
        assert_eq!(ask("t", near, -1, -1), refused(ErrorCode::None), "none");
        assert_eq!(ask("t", near, 1, 0), refused(ErrorCode::UnknownLeaderEpoch));
        assert_eq!(ask("t", near, -2, 0), refused(ErrorCode::FencedLeaderEpoch));
        assert_eq!(
            ask("t", far, -1, 0),
            refused(ErrorCode::NotLeaderOrFollower)
        );
        assert_eq!(
            ask("t", 2, -1, 0),
            refused(ErrorCode::UnknownTopicOrPartition)
        );
        assert_eq!(
            ask("x", 0, -1, 0),
            refused(ErrorCode::UnknownTopicOrPartition)
        );
        rig.produce(("t", Uuid::ZERO), near, batch(&["a"]));
    }
}
