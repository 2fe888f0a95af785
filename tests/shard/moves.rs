//! Partitions that move between the shards of a process while it runs.

use corelane::log::faulty::Loss;
use corelane::model::{ConnId, ErrorCode, NodeId, TopicPartition, Uuid};
use corelane::shard::{Event, PeerMsg};
use corelane::wire::msg::fetch_response::FetchResponse;
use corelane::wire::msg::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use corelane::wire::msg::produce_response::ProduceResponse;

use crate::fetch::from;
use crate::produce::{batch, builder, first, to};
use crate::replicas::{Part, moves};
use crate::rig::{Rig, Setup, error, node};

/// A move of partition 0 of "t", as the client asks for it.
const TO: [&[Part]; 3] = [&[(0, Some(&[0]))], &[(0, Some(&[1]))], &[(0, Some(&[2]))]];

struct Three {
    rig: Rig,
    id: Uuid,
    /// A connection to each shard.
    conns: Vec<ConnId>,
}

impl Three {
    /// Three shards, and a topic of one partition on the first.
    fn new() -> Three {
        let mut rig = Rig::with(Setup {
            shards: 3,
            ..Setup::default()
        });
        let id = rig.create("t", 1);
        Three::of(rig, id)
    }

    fn of(mut rig: Rig, id: Uuid) -> Three {
        let conns = (0..rig.shards.len()).map(|shard| rig.open_to(shard));
        let conns = conns.collect();
        Three { rig, id, conns }
    }

    fn move_to(&mut self, shard: usize) {
        let answer = self.rig.once(1, &moves(&[("t", TO[shard])]));
        assert_eq!(answer.responses[0].partitions[0].error_code, 0);
        self.is_led_by(shard);
    }

    fn is_led_by(&self, shard: usize) {
        let tp = TopicPartition {
            topic: self.id,
            partition: 0,
        };
        let new = NodeId(node(shard as u16));
        for any in &self.rig.shards {
            let state = any.image().partition(tp).expect("it is there");
            assert_eq!((state.leader, &state.replicas[..]), (new, &[new][..]));
            assert_eq!(state.isr, [new]);
        }
    }

    fn produce(&mut self, shard: usize, bytes: Vec<u8>) -> (ErrorCode, i64) {
        let request = to(-1, ("t", self.id), 0, bytes);
        let answer = self.rig.ask(self.conns[shard], 12, &request);
        (error(first(&answer).error_code), first(&answer).base_offset)
    }

    fn fetch(&mut self, shard: usize) -> (ErrorCode, Vec<u8>) {
        let request = from("t", self.id, 0, 0);
        read(&self.rig.ask(self.conns[shard], 18, &request))
    }
}

fn read(answer: &FetchResponse<'_>) -> (ErrorCode, Vec<u8>) {
    let part = &answer.responses[0].partitions[0];
    (error(part.error_code), part.records.as_bytes().to_vec())
}

#[test]
fn a_moved_partition_is_whole_on_the_new_shard_and_the_old_one_says_where_it_is() {
    let mut three = Three::new();
    let mut expected = Vec::new();
    // Wherever it has been before, every time.
    for (round, shard) in [0, 1, 0, 2, 1, 0, 2].into_iter().enumerate() {
        three.move_to(shard);
        for value in ["a", "b"] {
            let (code, offset) = three.produce(shard, batch(&[value]));
            assert_eq!(code, ErrorCode::None);
            expected.push(offset);
        }
        for other in (0..3).filter(|other| *other != shard) {
            let told = three.produce(other, batch(&["x"])).0;
            assert_eq!(told, ErrorCode::NotLeaderOrFollower, "round {round}");
            assert_eq!(three.fetch(other).0, ErrorCode::NotLeaderOrFollower);
        }
        let (code, bytes) = three.fetch(shard);
        assert_eq!(code, ErrorCode::None);
        let one = batch(&["a"]).len();
        assert_eq!(bytes.len(), expected.len() * one);
    }
    assert_eq!(expected, (0..14).collect::<Vec<i64>>());
    let list = ListPartitionReassignmentsRequest::default();
    let answer = three.rig.once(0, &list);
    assert_eq!((answer.error_code, answer.topics.len()), (0, 0));
}

#[test]
fn who_waits_on_the_old_shard_is_told_to_look_for_the_leader() {
    let mut three = Three::new();
    let mut request = from("t", three.id, 0, 0);
    request.max_wait_ms = 60_000;
    let waiting = three.conns[0];
    let fetch = three.rig.send(waiting, 12, &request);
    three.rig.run();
    let producer = three.rig.open();
    three.rig.hold_disk = true;
    let produce = to(-1, ("t", three.id), 0, batch(&["a"]));
    let produce = three.rig.send(producer, 12, &produce);
    three.rig.run();
    let admin = three.rig.open_to(2);
    let moved = three.rig.send(admin, 1, &moves(&[("t", TO[1])]));
    three.rig.run_quorum();
    let told: FetchResponse<'_> = three
        .rig
        .answer::<corelane::wire::msg::fetch_request::FetchRequest<'static>>(waiting, 12, fetch)
        .expect("it waits no more");
    let part = &told.responses[0].partitions[0];
    assert_eq!(error(part.error_code), ErrorCode::NotLeaderOrFollower);
    assert_eq!(part.current_leader.leader_id, node(1));
    let told: ProduceResponse<'_> = three
        .rig
        .answer::<corelane::wire::msg::produce_request::ProduceRequest<'static>>(
            producer, 12, produce,
        )
        .expect("it waits no more");
    assert_eq!(
        error(first(&told).error_code),
        ErrorCode::NotLeaderOrFollower
    );
    // The disk of the old shard does nothing: the new one must not open the log yet, nor say that it has.
    assert!(!three.rig.has_answer(admin));
    let early = three.produce(1, batch(&["b"])).0;
    assert_eq!(early, ErrorCode::NotLeaderOrFollower);
    three.rig.hold_disk = false;
    three.rig.run();
    let answer = three
        .rig
        .answer::<corelane::wire::msg::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest<'static>>(admin, 1, moved)
        .expect("it is moved");
    assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    // What was appended before the move is there, although its producer was told to ask again.
    assert_eq!(three.produce(1, batch(&["b"])), (ErrorCode::None, 1));
}

#[test]
fn a_move_forgets_no_batch_of_an_idempotent_producer_and_no_log_start() {
    use corelane::wire::msg::delete_records_request::{
        DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
    };
    let mut three = Three::new();
    let sent = |sequence| builder(&["v"]).producer(7, 0, sequence).build();
    for sequence in 0..6 {
        three.produce(0, sent(sequence));
    }
    let delete = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "t".into(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset: 2,
            }],
        }],
        timeout_ms: 1000,
    };
    let conn = three.conns[0];
    let answer = three.rig.ask(conn, 2, &delete);
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    three.move_to(1);
    for sequence in 1..6 {
        let told = three.produce(1, sent(sequence));
        assert_eq!(told, (ErrorCode::None, i64::from(sequence)));
    }
    assert_eq!(three.produce(1, sent(6)), (ErrorCode::None, 6));
    assert_eq!(three.fetch(1).0, ErrorCode::OffsetOutOfRange, "0 is below");
    let conn = three.conns[1];
    let above = three.rig.ask(conn, 18, &from("t", three.id, 0, 2));
    assert_eq!(read(&above).1.len(), 5 * sent(0).len());
    assert_eq!(above.responses[0].partitions[0].log_start_offset, 2);
}

#[test]
fn moves_and_restarts_lose_nothing_in_any_order() {
    for loss in [Loss::All, Loss::Some, Loss::Killed] {
        let mut three = Three::new();
        let mut end = 0;
        for shard in [1, 2, 0, 2, 1] {
            for _ in 0..3 {
                three.move_to(shard);
                assert_eq!(
                    three.produce(shard, batch(&["a"])),
                    (ErrorCode::None, end),
                    "{loss:?}"
                );
                end += 1;
            }
            let (rig, id) = (three.rig, three.id);
            three = Three::of(rig.restart(loss), id);
            three.is_led_by(shard);
            assert_eq!(
                three.fetch(shard).1.len(),
                end as usize * batch(&["a"]).len()
            );
        }
    }
}

/// The new shard asks again when the first question, or its answer, is lost.
#[test]
fn a_question_that_is_lost_is_asked_again() {
    let mut three = Three::new();
    three.produce(0, batch(&["a"]));
    // An answer that nobody waits for, and one to an older question, change nothing.
    let tp = TopicPartition {
        topic: three.id,
        partition: 0,
    };
    let stray = PeerMsg::Released {
        tp,
        since: 1,
        left: None,
    };
    three.rig.lose_peers = true;
    let admin = three.rig.open();
    three.rig.send(admin, 1, &moves(&[("t", TO[1])]));
    three.rig.run();
    for from in [0, 2] {
        let from = corelane::model::ShardIndex(from);
        let msg = stray.clone();
        three.rig.event(1, Event::Peer { from, msg });
    }
    three.rig.run();
    assert_eq!(
        three.produce(1, batch(&["b"])).0,
        ErrorCode::NotLeaderOrFollower
    );
    three.rig.lose_peers = false;
    // The controller sends the deltas again, then the shard asks.
    three.rig.pass_ms(500);
    assert_eq!(three.produce(1, batch(&["b"])), (ErrorCode::None, 1));
}

#[test]
fn a_topic_that_is_deleted_while_its_partition_moves_leaves_nothing() {
    let mut three = Three::new();
    three.produce(0, batch(&["a"]));
    three.rig.hold_disk = true;
    let admin = three.rig.open();
    three.rig.send(admin, 1, &moves(&[("t", TO[1])]));
    three.rig.run_quorum();
    three.rig.delete_before_writes("t");
    three.rig.hold_disk = false;
    three.rig.run();
    three.rig.pass_ms(120_000);
    assert!(three.rig.topics().is_empty());
    let left: Vec<String> = three.rig.disk.paths().into_iter().collect();
    assert!(!left.iter().any(|path| path.starts_with("t-0")), "{left:?}");
    // One of that name is another one.
    three.id = three.rig.create("t", 1);
    let shard = (0..3).find(|s| three.produce(*s, batch(&["n"])) == (ErrorCode::None, 0));
    assert!(shard.is_some());
}

#[test]
fn a_fenced_partition_stays_fenced_wherever_it_moves() {
    let mut three = Three::new();
    three.produce(0, batch(&["a"]));
    three.rig.disk.faults.broken = Some("t-0/".into());
    let large = "x".repeat(200_000);
    let code = three.produce(0, batch(&[&large])).0;
    assert_eq!(code, ErrorCode::KafkaStorageError);
    three.rig.disk.faults.broken = None;
    three.move_to(1);
    assert_eq!(
        three.produce(1, batch(&["b"])).0,
        ErrorCode::KafkaStorageError
    );
    // The next start reads what is there.
    let (rig, id) = (three.rig, three.id);
    let mut three = Three::of(rig.restart(Loss::Killed), id);
    assert_eq!(three.produce(1, batch(&["b"])), (ErrorCode::None, 1));
}
