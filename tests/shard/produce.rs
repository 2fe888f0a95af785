use corelane::batch::{Builder, Codec, TimestampType};
use corelane::model::{ConnId, ErrorCode, Uuid};
use corelane::wire::Records;
use corelane::wire::msg::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use corelane::wire::msg::produce_response::{PartitionProduceResponse, ProduceResponse};

use crate::rig::{Rig, Setup, error, node};

pub const NOW: i64 = 1_700_000_000_000;

/// A batch of values, each record at the rig's start time.
pub fn batch(values: &[&str]) -> Vec<u8> {
    builder(values).build()
}

pub fn builder(values: &[&str]) -> Builder {
    let mut builder = Builder::new();
    for value in values {
        builder.push(NOW, Some(b"k"), Some(value.as_bytes()), &[]);
    }
    builder
}

fn of_producer(values: &[&str], id: i64, epoch: i16, sequence: i32) -> Vec<u8> {
    builder(values).producer(id, epoch, sequence).build()
}

/// One partition's batch; topics by name and by id, as the version asks.
pub fn to(
    acks: i16,
    topic: (&str, Uuid),
    partition: i32,
    bytes: Vec<u8>,
) -> ProduceRequest<'static> {
    many(acks, topic, vec![(partition, bytes)])
}

fn many(
    acks: i16,
    (name, id): (&str, Uuid),
    parts: Vec<(i32, Vec<u8>)>,
) -> ProduceRequest<'static> {
    let parts = parts
        .into_iter()
        .map(|(index, bytes)| PartitionProduceData {
            index,
            records: Records::Bytes(bytes.into()),
        });
    ProduceRequest {
        acks,
        timeout_ms: 1000,
        topic_data: vec![TopicProduceData {
            name: name.to_string().into(),
            topic_id: id,
            partition_data: parts.collect(),
        }],
        ..Default::default()
    }
}

pub fn first<'a>(answer: &'a ProduceResponse<'_>) -> &'a PartitionProduceResponse<'a> {
    &answer.responses[0].partition_responses[0]
}

fn code(answer: &ProduceResponse<'_>) -> ErrorCode {
    error(first(answer).error_code)
}

/// Code and base offset.
fn told(answer: &ProduceResponse<'_>) -> (ErrorCode, i64) {
    (code(answer), first(answer).base_offset)
}

impl Rig {
    pub fn produce(
        &mut self,
        topic: (&str, Uuid),
        partition: i32,
        bytes: Vec<u8>,
    ) -> (ErrorCode, i64) {
        told(&self.once(12, &to(-1, topic, partition, bytes)))
    }
}

#[test]
fn every_version_appends_and_tells_offsets() {
    let mut rig = Rig::new();
    let id = rig.create("t", 2);
    let mut offset = 0;
    for version in 3..=13 {
        for acks in [1, -1] {
            let answer = rig.once(version, &to(acks, ("t", id), 1, batch(&["a", "b"])));
            let topic = &answer.responses[0];
            assert_eq!(topic.name, if version < 13 { "t" } else { "" });
            assert_eq!(topic.topic_id, if version < 13 { Uuid::ZERO } else { id });
            let part = first(&answer);
            assert_eq!(
                told(&answer),
                (ErrorCode::None, offset),
                "v{version} acks {acks}"
            );
            assert_eq!((part.index, part.log_append_time_ms), (1, -1));
            assert_eq!(part.log_start_offset, if version >= 5 { 0 } else { -1 });
            offset += 2;
        }
    }
}

#[test]
fn acks_1_waits_for_the_write_and_acks_all_for_the_flush() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let (one, all) = (rig.open(), rig.open());
    rig.hold_disk = true;
    rig.send(one, 12, &to(1, ("t", id), 0, batch(&["a"])));
    let first = rig.send(all, 12, &to(-1, ("t", id), 0, batch(&["b"])));
    rig.run();
    assert!(
        rig.frame(one).is_none() && rig.frame(all).is_none(),
        "nothing is written"
    );
    rig.hold_disk = false;
    rig.run();
    assert!(rig.frame(one).is_some());
    let answer = rig
        .answer::<ProduceRequest>(all, 12, first)
        .expect("flushed");
    assert_eq!(told(&answer), (ErrorCode::None, 1));
}

#[test]
fn acks_0_has_no_answer_and_an_error_closes_the_connection() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    for version in 3..=13 {
        let conn = rig.open();
        rig.send(conn, version, &to(0, ("t", id), 0, batch(&["a"])));
        rig.run();
        assert!(
            rig.frame(conn).is_none() && !rig.is_closed(conn),
            "v{version}"
        );
        // The answer to what comes behind it is the next one on the connection.
        let answer = rig.ask(conn, version, &to(1, ("t", id), 0, batch(&["b"])));
        assert_eq!(code(&answer), ErrorCode::None);
        rig.send(conn, version, &to(0, ("t", id), 7, batch(&["a"])));
        rig.run();
        assert!(
            rig.is_closed(conn) && rig.frame(conn).is_none(),
            "v{version}"
        );
    }
}

/// Each request has two faults, and the one that Kafka checks first is told (semantics of KafkaApis and ReplicaManager).
#[test]
fn faults_are_found_in_kafkas_order() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    let id = rig.create("t", 2);
    let internal = rig.create("__consumer_offsets", 2);
    let elsewhere = |rig: &Rig, id: Uuid| {
        let topic = rig.shards[0].image().topic(id).expect("exists");
        let at = topic.partitions.iter().position(|p| p.leader.0 == node(1));
        at.expect("two shards share the partitions") as i32
    };
    let (far, near) = (elsewhere(&rig, id), 1 - elsewhere(&rig, id));
    let far_internal = elsewhere(&rig, internal);

    let garbage = b"no batch".to_vec();
    let mut magic1 = batch(&["a"]);
    magic1[16] = 1;
    let zstd = builder(&["a"]).codec(Codec::Zstd).build();
    let mut broken = batch(&["a"]);
    *broken.last_mut().expect("bytes") ^= 1;
    let two = [batch(&["a"]), batch(&["b"])].concat();
    let mut based = batch(&["a"]);
    based[7] = 1;
    let large = batch(&["x".repeat(1_100_000).as_str()]);
    let mut large_broken = large.clone();
    *large_broken.last_mut().expect("bytes") ^= 1;
    let mut large_based = large_broken.clone();
    large_based[7] = 1;

    let t = ("t", id);
    let i = ("__consumer_offsets", internal);
    let cases = [
        (
            "topic before batch",
            12,
            to(1, ("x", id), 0, garbage.clone()),
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            "topic id before batch",
            13,
            to(1, ("t", Uuid([8; 16])), 0, garbage.clone()),
            ErrorCode::UnknownTopicId,
        ),
        (
            "partition before batch",
            12,
            to(1, t, 2, garbage.clone()),
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            "negative partition",
            12,
            to(1, t, -1, batch(&["a"])),
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            "batch before acks",
            12,
            to(7, t, near, garbage),
            ErrorCode::InvalidRecord,
        ),
        (
            "two batches before acks",
            12,
            to(7, t, near, two),
            ErrorCode::InvalidRecord,
        ),
        (
            "format before acks",
            12,
            to(7, t, near, magic1),
            ErrorCode::InvalidRecord,
        ),
        (
            "codec of the version before acks",
            6,
            to(7, t, near, zstd.clone()),
            ErrorCode::UnsupportedCompressionType,
        ),
        (
            "zstd from version 7 on",
            7,
            to(1, t, near, zstd),
            ErrorCode::None,
        ),
        (
            "acks before internal",
            12,
            to(7, i, 0, batch(&["a"])),
            ErrorCode::InvalidRequiredAcks,
        ),
        (
            "internal before leader",
            12,
            to(1, i, far_internal, batch(&["a"])),
            ErrorCode::InvalidTopicException,
        ),
        (
            "leader before checksum",
            12,
            to(1, t, far, broken.clone()),
            ErrorCode::NotLeaderOrFollower,
        ),
        (
            "base offset before size",
            12,
            to(1, t, near, large_based),
            ErrorCode::InvalidRecord,
        ),
        (
            "size before checksum",
            12,
            to(1, t, near, large_broken),
            ErrorCode::MessageTooLarge,
        ),
        (
            "size",
            12,
            to(1, t, near, large),
            ErrorCode::MessageTooLarge,
        ),
        (
            "base offset",
            12,
            to(1, t, near, based),
            ErrorCode::InvalidRecord,
        ),
        (
            "checksum",
            12,
            to(1, t, near, broken),
            ErrorCode::CorruptMessage,
        ),
        (
            "no batch",
            12,
            to(1, t, near, Vec::new()),
            ErrorCode::InvalidRecord,
        ),
    ];
    for (what, version, request, expected) in cases {
        let answer = rig.once(version, &request);
        assert_eq!(code(&answer), expected, "{what}");
        if expected.is_error() {
            let part = first(&answer);
            assert_eq!(
                (part.base_offset, part.log_start_offset),
                (-1, -1),
                "{what}"
            );
        }
    }
}

#[test]
fn null_records_are_refused_and_answered() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let mut request = to(1, ("t", id), 0, Vec::new());
    request.topic_data[0].partition_data[0].records = Records::Null;
    assert_eq!(code(&rig.once(12, &request)), ErrorCode::InvalidRecord);
}

#[test]
fn internal_topics_take_records_of_the_admin_client_only() {
    let mut rig = Rig::new();
    let id = rig.create("__consumer_offsets", 1);
    let request = to(1, ("__consumer_offsets", id), 0, batch(&["a"]));
    for (client, expected) in [
        (Some("__admin_client"), ErrorCode::None),
        (Some("rig"), ErrorCode::InvalidTopicException),
        (None, ErrorCode::InvalidTopicException),
    ] {
        let conn = rig.open();
        let id = rig.send_as(conn, 12, client, &request);
        rig.run();
        let answer = rig
            .answer::<ProduceRequest>(conn, 12, id)
            .expect("answered");
        assert_eq!(code(&answer), expected, "{client:?}");
    }
}

#[test]
fn a_node_that_does_not_lead_says_who_does() {
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
    for version in 3..=13 {
        let answer = rig.once(version, &to(1, ("t", id), far, batch(&["a"])));
        assert_eq!(code(&answer), ErrorCode::NotLeaderOrFollower);
        if version >= 10 {
            let leader = &first(&answer).current_leader;
            assert_eq!((leader.leader_id, leader.leader_epoch), (node(1), 0));
            let found = &answer.node_endpoints[0];
            assert_eq!(
                (found.node_id, &*found.host, found.port),
                (node(1), "broker.example", 9093)
            );
        }
    }
    let conn = rig.open_to(1);
    let answer = rig.ask(conn, 12, &to(-1, ("t", id), far, batch(&["a"])));
    assert_eq!(told(&answer), (ErrorCode::None, 0));
}

#[test]
fn a_fault_of_one_partition_leaves_the_others_alone() {
    let mut rig = Rig::new();
    let id = rig.create("t", 2);
    let request = many(
        -1,
        ("t", id),
        vec![
            (0, batch(&["a"])),
            (5, batch(&["b"])),
            (1, batch(&["c", "d"])),
            (1, batch(&["again"])),
        ],
    );
    let answer = rig.once(12, &request);
    let parts: Vec<_> = answer.responses[0]
        .partition_responses
        .iter()
        .map(|p| (p.index, error(p.error_code), p.base_offset))
        .collect();
    // The same partition twice is answered once, as Kafka does.
    assert_eq!(
        parts,
        [
            (0, ErrorCode::None, 0),
            (5, ErrorCode::UnknownTopicOrPartition, -1),
            (1, ErrorCode::None, 0),
        ]
    );
    assert_eq!(
        rig.produce(("t", id), 1, batch(&["e"])),
        (ErrorCode::None, 2)
    );
}

#[test]
fn bad_records_are_named() {
    let mut rig = Rig::new();
    let compacted = rig.create_with("compacted", 1, &[("cleanup.policy", "compact")]);
    let id = rig.create("t", 1);
    let mut builder = Builder::new();
    builder.push(NOW, Some(b"k"), Some(b"v"), &[]);
    builder.push(NOW, None, Some(b"v"), &[]);
    let bytes = builder.build();
    let answer = rig.once(12, &to(1, ("compacted", compacted), 0, bytes.clone()));
    assert_eq!(code(&answer), ErrorCode::InvalidRecord);
    let bad: Vec<i32> = first(&answer)
        .record_errors
        .iter()
        .map(|e| e.batch_index)
        .collect();
    assert_eq!(bad, [1]);
    assert!(first(&answer).error_message.is_some());
    let answer = rig.once(7, &to(1, ("compacted", compacted), 0, bytes));
    assert_eq!(
        (code(&answer), first(&answer).record_errors.len()),
        (ErrorCode::InvalidRecord, 0)
    );

    // message.timestamp.after.max.ms is an hour.
    let mut builder = Builder::new();
    builder.push(NOW + 3_601_000, None, Some(b"v"), &[]);
    let answer = rig.once(12, &to(1, ("t", id), 0, builder.build()));
    assert_eq!(code(&answer), ErrorCode::InvalidTimestamp);
    assert_eq!(first(&answer).record_errors[0].batch_index, 0);
}

#[test]
fn the_brokers_time_is_told_where_the_topic_asks_for_it() {
    let mut rig = Rig::new();
    let id = rig.create_with("t", 1, &[("message.timestamp.type", "LogAppendTime")]);
    rig.pass_ms(5000);
    let answer = rig.once(12, &to(-1, ("t", id), 0, batch(&["a"])));
    assert_eq!(first(&answer).log_append_time_ms, rig.now.wall);
    let bytes = rig.fetched("t", id, 0, 0);
    let (stored, _) = corelane::batch::Batch::view(&bytes).expect("a batch");
    assert_eq!(stored.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(stored.max_timestamp(), rig.now.wall);
}

#[test]
fn transactional_batches_are_refused_as_kafka_does_without_a_transaction() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let bytes = builder(&["a"])
        .producer(5, 0, 0)
        .transactional(true)
        .build();
    for (version, named, expected) in [
        (12, false, ErrorCode::TransactionalIdAuthorizationFailed),
        (12, true, ErrorCode::TransactionAbortable),
        (11, true, ErrorCode::TransactionAbortable),
        (10, true, ErrorCode::InvalidTxnState),
    ] {
        let mut request = to(-1, ("t", id), 0, bytes.clone());
        request.transactional_id = named.then(|| "tx".into());
        assert_eq!(
            code(&rig.once(version, &request)),
            expected,
            "v{version} {named}"
        );
    }
    assert_eq!(
        rig.produce(("t", id), 0, batch(&["a"])),
        (ErrorCode::None, 0),
        "nothing was stored"
    );
}

// -- idempotent producers

#[test]
fn a_repeated_batch_is_answered_with_its_old_offset_and_not_stored_again() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let t = ("t", id);
    for sequence in 0..6 {
        let sent = of_producer(&["a"], 9, 0, sequence);
        assert_eq!(
            rig.produce(t, 0, sent),
            (ErrorCode::None, i64::from(sequence))
        );
    }
    // The last five are remembered.
    for sequence in (1..6).rev() {
        let again = of_producer(&["a"], 9, 0, sequence);
        assert_eq!(
            rig.produce(t, 0, again),
            (ErrorCode::None, i64::from(sequence))
        );
    }
    let old = of_producer(&["a"], 9, 0, 0);
    assert_eq!(
        rig.produce(t, 0, old),
        (ErrorCode::OutOfOrderSequenceNumber, -1)
    );
    assert_eq!(rig.produce(t, 0, batch(&["b"])), (ErrorCode::None, 6));
}

#[test]
fn a_repeat_that_comes_before_the_first_is_written_waits_with_it() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    rig.hold_disk = true;
    let request = to(-1, ("t", id), 0, of_producer(&["a", "b"], 9, 0, 0));
    let ids = [rig.send(conn, 12, &request), rig.send(conn, 12, &request)];
    rig.run();
    assert!(rig.frame(conn).is_none());
    rig.hold_disk = false;
    rig.run();
    for id in ids {
        let answer = rig.answer::<ProduceRequest>(conn, 12, id).expect("written");
        assert_eq!(told(&answer), (ErrorCode::None, 0));
    }
}

#[test]
fn sequences_and_epochs_must_follow() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let mut send = |producer, epoch, sequence, values: &[&str]| {
        rig.produce(("t", id), 0, of_producer(values, producer, epoch, sequence))
    };
    // An unknown producer may start anywhere.
    assert_eq!(send(1, 3, 40, &["a", "b"]), (ErrorCode::None, 0));
    assert_eq!(
        send(1, 3, 43, &["c"]).0,
        ErrorCode::OutOfOrderSequenceNumber,
        "a gap"
    );
    assert_eq!(
        send(1, 3, 41, &["b"]).0,
        ErrorCode::OutOfOrderSequenceNumber,
        "a part of one"
    );
    assert_eq!(
        send(1, 3, 40, &["a", "b", "c"]).0,
        ErrorCode::OutOfOrderSequenceNumber,
        "more than one"
    );
    assert_eq!(
        send(1, 2, 42, &["c"]).0,
        ErrorCode::InvalidProducerEpoch,
        "an old epoch"
    );
    assert_eq!(
        send(1, 4, 42, &["c"]).0,
        ErrorCode::OutOfOrderSequenceNumber,
        "a new epoch starts at 0"
    );
    assert_eq!(send(1, 3, 42, &["c"]), (ErrorCode::None, 2));
    assert_eq!(send(1, 4, 0, &["d"]), (ErrorCode::None, 3));
    assert_eq!(send(1, 3, 43, &["e"]).0, ErrorCode::InvalidProducerEpoch);
    // Behind the largest number comes 0.
    assert_eq!(send(2, 0, i32::MAX - 1, &["a", "b"]), (ErrorCode::None, 4));
    assert_eq!(send(2, 0, 0, &["c"]), (ErrorCode::None, 6));
    assert_eq!(
        send(3, 0, i32::MAX, &["a", "b"]),
        (ErrorCode::None, 7),
        "and inside a batch"
    );
    assert_eq!(send(3, 0, 1, &["c"]), (ErrorCode::None, 9));
    assert_eq!(
        send(4, 0, -1, &["a"]).0,
        ErrorCode::InvalidRecord,
        "a producer needs sequences"
    );
}

// -- what happens to waiting requests

fn held(rig: &mut Rig, acks: i16, id: Uuid) -> (ConnId, i32) {
    let conn = rig.open();
    rig.hold_disk = true;
    let sent = rig.send(conn, 12, &to(acks, ("t", id), 0, batch(&["a"])));
    rig.run();
    assert!(rig.frame(conn).is_none(), "it waits");
    (conn, sent)
}

#[test]
fn a_produce_that_is_not_written_in_time_says_so_and_may_be_stored_all_the_same() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let (conn, sent) = held(&mut rig, -1, id);
    rig.pass_ms(999);
    assert!(rig.frame(conn).is_none());
    rig.pass_ms(1);
    let answer = rig
        .answer::<ProduceRequest>(conn, 12, sent)
        .expect("its time is up");
    assert_eq!(told(&answer), (ErrorCode::RequestTimedOut, -1));
    rig.hold_disk = false;
    rig.run();
    assert!(rig.frame(conn).is_none(), "answered once");
    assert_eq!(
        rig.produce(("t", id), 0, batch(&["b"])),
        (ErrorCode::None, 1)
    );
}

#[test]
fn a_topic_deleted_under_a_waiting_produce_is_unknown_to_it() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    let sent = rig.send(conn, 12, &to(-1, ("t", id), 0, batch(&["a"])));
    rig.delete_before_writes("t");
    rig.run();
    let answer = rig
        .answer::<ProduceRequest>(conn, 12, sent)
        .expect("the topic is gone");
    assert_eq!(told(&answer), (ErrorCode::UnknownTopicOrPartition, -1));
}

#[test]
fn a_failed_write_answers_the_storage_error_and_so_does_all_that_follows() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let (conn, sent) = held(&mut rig, -1, id);
    rig.disk.faults.error_one_in = 1;
    rig.hold_disk = false;
    rig.run();
    let answer = rig
        .answer::<ProduceRequest>(conn, 12, sent)
        .expect("it failed");
    assert_eq!(told(&answer), (ErrorCode::KafkaStorageError, -1));
    rig.disk.faults.error_one_in = 0;
    assert_eq!(
        rig.produce(("t", id), 0, batch(&["b"])),
        (ErrorCode::KafkaStorageError, -1)
    );
}

#[test]
fn answers_of_pipelined_produces_come_in_the_order_of_requests() {
    let mut rig = Rig::new();
    let id = rig.create("t", 2);
    let conn = rig.open();
    let requests = [
        (-1, 0, "a"),
        (1, 1, "b"),
        (0, 0, "c"),
        (-1, 5, "d"),
        (-1, 0, "e"),
    ];
    let ids = requests.map(|(acks, partition, value)| {
        rig.send(conn, 12, &to(acks, ("t", id), partition, batch(&[value])))
    });
    // Partition 5 of the acks=-1 request fails at once and still waits for those before it.
    rig.run();
    let mut got = Vec::new();
    for (sent, (acks, ..)) in ids.into_iter().zip(requests) {
        if acks != 0 {
            got.push(told(
                &rig.answer::<ProduceRequest>(conn, 12, sent)
                    .expect("answered"),
            ));
        }
    }
    assert_eq!(
        got,
        [
            (ErrorCode::None, 0),
            (ErrorCode::None, 0),
            (ErrorCode::UnknownTopicOrPartition, -1),
            (ErrorCode::None, 2),
        ]
    );
}

#[test]
fn the_topics_limit_counts_the_bytes_of_the_whole_batch() {
    let mut rig = Rig::new();
    let exact = batch(&["x".repeat(1000).as_str()]);
    let limit = exact.len().to_string();
    let id = rig.create_with("t", 1, &[("max.message.bytes", &limit)]);
    assert_eq!(rig.produce(("t", id), 0, exact), (ErrorCode::None, 0));
    let over = batch(&["x".repeat(1001).as_str()]);
    assert_eq!(
        rig.produce(("t", id), 0, over).0,
        ErrorCode::MessageTooLarge
    );
    // What counts is what is sent, not what it expands to.
    let packed = builder(&["x".repeat(500_000).as_str()])
        .codec(Codec::Zstd)
        .build();
    assert_eq!(rig.produce(("t", id), 0, packed), (ErrorCode::None, 1));
}

#[test]
fn a_repeat_is_told_the_time_of_the_first_append() {
    let mut rig = Rig::new();
    let id = rig.create_with("t", 1, &[("message.timestamp.type", "LogAppendTime")]);
    let request = to(-1, ("t", id), 0, of_producer(&["a"], 9, 0, 0));
    let time = first(&rig.once(12, &request)).log_append_time_ms;
    assert_eq!(time, rig.now.wall);
    rig.pass_ms(7000);
    let again = rig.once(12, &request);
    assert_eq!(
        (told(&again), first(&again).log_append_time_ms),
        ((ErrorCode::None, 0), time)
    );
}
