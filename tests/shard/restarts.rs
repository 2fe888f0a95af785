//! What a process finds again after a loss of power, a kill or a clean stop.

use corelane::log::faulty::Loss;
use corelane::model::{ErrorCode, Uuid};
use corelane::shard::Event;
use corelane::wire::msg::fetch_request::FetchRequest;
use corelane::wire::msg::init_producer_id_request::InitProducerIdRequest;
use corelane::wire::msg::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};

use crate::fetch::from;
use crate::produce::{batch, builder, to};
use crate::rig::{Rig, Setup, error};

const ENDS: [Loss; 3] = [Loss::All, Loss::Some, Loss::Killed];

/// Topics, their ids and configs, the cluster's id and producer ids are those of before; the leader epoch is a new one.
#[test]
fn what_the_cluster_agreed_on_is_there_again() {
    for loss in ENDS {
        let mut rig = Rig::with(Setup {
            shards: 2,
            ..Setup::default()
        });
        let id = rig.create_with("t", 3, &[("retention.ms", "7")]);
        rig.create("gone", 1);
        rig.delete("gone");
        let cluster = rig.shards[0].image().cluster_id();
        let request = InitProducerIdRequest {
            transactional_id: None,
            ..Default::default()
        };
        let before = rig.once(5, &request).producer_id;
        let mut rig = rig.restart(loss);
        assert_eq!(rig.topics(), ["t"]);
        for shard in &rig.shards {
            let topic = shard.image().topic(id).expect("it is there");
            assert_eq!((&*topic.name, topic.config.retention_ms), ("t", 7));
            assert!(topic.partitions.iter().all(|p| p.leader_epoch == 1));
            assert_eq!(shard.image().cluster_id(), cluster);
        }
        assert!(rig.once(5, &request).producer_id > before);
    }
}

#[test]
fn acknowledged_records_are_there_again_and_offsets_go_on() {
    for loss in ENDS {
        let mut rig = Rig::new();
        let id = rig.create("t", 2);
        for value in ["a", "b", "c"] {
            assert_eq!(
                rig.produce(("t", id), 1, batch(&[value])).0,
                ErrorCode::None
            );
        }
        let before = rig.fetched("t", id, 1, 0);
        let mut rig = rig.restart(loss);
        assert_eq!(rig.fetched("t", id, 1, 0), before, "{loss:?}");
        assert_eq!(
            rig.produce(("t", id), 1, batch(&["d"])),
            (ErrorCode::None, 3)
        );
        assert_eq!(
            rig.produce(("t", id), 0, batch(&["x"])),
            (ErrorCode::None, 0)
        );
        let mut rig = rig.restart(loss);
        assert_eq!(
            rig.fetched("t", id, 1, 0).len(),
            before.len() + batch(&["d"]).len()
        );
    }
}

#[test]
fn all_five_batches_of_a_producer_are_remembered() {
    for loss in ENDS {
        let mut rig = Rig::new();
        let id = rig.create("t", 1);
        let sent = |sequence| builder(&["v"]).producer(7, 0, sequence).build();
        for sequence in 0..6 {
            rig.produce(("t", id), 0, sent(sequence));
        }
        let mut rig = rig.restart(loss);
        for sequence in 1..6 {
            let told = rig.produce(("t", id), 0, sent(sequence));
            assert_eq!(told, (ErrorCode::None, i64::from(sequence)), "{loss:?}");
        }
        assert_eq!(
            rig.produce(("t", id), 0, sent(0)).0,
            ErrorCode::OutOfOrderSequenceNumber
        );
        assert_eq!(rig.produce(("t", id), 0, sent(6)), (ErrorCode::None, 6));
    }
}

/// KIP-320: a client that knows the epoch before notices, and is told where it ended.
#[test]
fn a_restart_is_a_new_epoch_to_clients() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    rig.produce(("t", id), 0, batch(&["a", "b"]));
    let mut rig = rig.restart(Loss::All);
    rig.produce(("t", id), 0, batch(&["c"]));
    let mut rig = rig.restart(Loss::All);

    for (current, expected) in [
        (0, ErrorCode::FencedLeaderEpoch),
        (1, ErrorCode::FencedLeaderEpoch),
        (2, ErrorCode::None),
        (3, ErrorCode::UnknownLeaderEpoch),
    ] {
        let mut request = from("t", id, 0, 0);
        request.topics[0].partitions[0].current_leader_epoch = current;
        let answer = rig.once(12, &request);
        let part = &answer.responses[0].partitions[0];
        assert_eq!(error(part.error_code), expected, "epoch {current}");
        if expected.is_error() {
            assert_eq!(part.current_leader.leader_epoch, 2);
        }
    }
    let mut end = |leader_epoch| {
        let answer = rig.once(
            4,
            &OffsetForLeaderEpochRequest {
                replica_id: -1,
                topics: vec![OffsetForLeaderTopic {
                    topic: "t".into(),
                    partitions: vec![OffsetForLeaderPartition {
                        partition: 0,
                        current_leader_epoch: -1,
                        leader_epoch,
                    }],
                }],
            },
        );
        let end = &answer.topics[0].partitions[0];
        (end.leader_epoch, end.end_offset)
    };
    assert_eq!(
        [end(0), end(1), end(2), end(3)],
        [(0, 2), (1, 3), (2, 3), (-1, -1)]
    );
    // A follower or consumer that read on in epoch 0 beyond its end truncates there.
    for (epoch, offset, diverging) in [
        (0, 5, (0, 2)),
        (1, 5, (1, 3)),
        (0, 2, (-1, -1)),
        (1, 2, (-1, -1)),
    ] {
        let mut request = from("t", id, 0, offset);
        request.topics[0].partitions[0].last_fetched_epoch = epoch;
        let answer = rig.once(12, &request);
        let told = &answer.responses[0].partitions[0].diverging_epoch;
        assert_eq!(
            (told.epoch, told.end_offset),
            diverging,
            "epoch {epoch} at {offset}"
        );
    }
}

#[test]
fn a_stop_keeps_everything_and_fewer_shards_take_over() {
    let mut rig = Rig::with(Setup {
        shards: 3,
        ..Setup::default()
    });
    let id = rig.create("t", 6);
    for partition in 0..6 {
        let leader = rig.shards[0].image().topic(id).expect("exists").partitions[partition].leader;
        let conn = rig.open_to(leader.0 as usize);
        rig.ask(conn, 12, &to(1, ("t", id), partition as i32, batch(&["a"])));
    }
    for shard in 0..3 {
        rig.event(shard, Event::Stop);
    }
    rig.pass_ms(10_000);
    assert_eq!(rig.stopped, [true; 3]);
    let mut rig = rig.restart_with(Loss::All, 2);
    for partition in 0..6 {
        let leader = rig.shards[0].image().topic(id).expect("exists").partitions[partition].leader;
        let conn = rig.open_to(leader.0 as usize);
        let answer = rig.ask(conn, 12, &from("t", id, partition as i32, 0));
        let part = &answer.responses[0].partitions[0];
        assert_eq!(
            (error(part.error_code), part.high_watermark),
            (ErrorCode::None, 1)
        );
    }
}

/// Whoever asks while a start recovers its partitions is served once they are open, never sent to look for a leader elsewhere.
#[test]
fn a_request_at_a_start_waits_for_the_partitions() {
    for loss in ENDS {
        let mut rig = Rig::new();
        let id = rig.create("t", 20);
        for partition in 0..20 {
            rig.produce(("t", id), partition, batch(&["a"]));
        }
        let mut rig = rig.restart_cold(loss, 1);
        let asked: Vec<_> = (0..20)
            .map(|partition| {
                let conn = rig.open();
                (conn, rig.send(conn, 12, &from("t", id, partition, 0)))
            })
            .collect();
        rig.run();
        for (conn, correlation) in asked {
            let answer = rig.answer::<FetchRequest>(conn, 12, correlation);
            let part = &answer.expect("it is answered").responses[0].partitions[0];
            let told = (error(part.error_code), part.high_watermark);
            assert_eq!(told, (ErrorCode::None, 1), "{loss:?}");
        }
    }
}

/// A topic made again under its old name starts empty, also when the process ended in between.
#[test]
fn a_topic_made_again_has_nothing_of_the_old_one() {
    for loss in ENDS {
        let mut rig = Rig::new();
        let old = rig.create("t", 1);
        rig.produce(("t", old), 0, batch(&["old"]));
        rig.delete("t");
        let new = rig.create("t", 1);
        assert_ne!(old, new);
        assert_eq!(
            rig.produce(("t", new), 0, batch(&["new"])),
            (ErrorCode::None, 0)
        );
        let stored = rig.fetched("t", new, 0, 0);
        assert_eq!(stored.len(), batch(&["new"]).len());
        let mut rig = rig.restart(loss);
        assert_eq!(rig.fetched("t", new, 0, 0), stored, "{loss:?}");
        let answer = rig.once(13, &from("", old, 0, 0));
        assert_eq!(
            error(answer.responses[0].partitions[0].error_code),
            ErrorCode::UnknownTopicId
        );
        assert_ne!(new, Uuid::ZERO);
    }
}
