use corelane::model::{ConnId, ErrorCode, Uuid};
use corelane::wire::Records;
use corelane::wire::msg::fetch_request::{
    FetchPartition, FetchRequest, FetchTopic, ForgottenTopic,
};
use corelane::wire::msg::fetch_response::{FetchResponse, PartitionData};

use crate::produce::{batch, to};
use crate::rig::{Rig, Setup, error, node};

/// Everything of one partition from an offset, at once, without a session.
pub fn from(name: &str, id: Uuid, partition: i32, offset: i64) -> FetchRequest<'static> {
    parts(name, id, &[(partition, offset)])
}

fn parts(name: &str, id: Uuid, parts: &[(i32, i64)]) -> FetchRequest<'static> {
    let parts = parts.iter().map(|(partition, offset)| FetchPartition {
        partition: *partition,
        fetch_offset: *offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    });
    FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![FetchTopic {
            topic: name.to_string().into(),
            topic_id: id,
            partitions: parts.collect(),
        }],
        ..Default::default()
    }
}

fn first<'a>(answer: &'a FetchResponse<'_>) -> &'a PartitionData<'a> {
    &answer.responses[0].partitions[0]
}

fn code(answer: &FetchResponse<'_>) -> ErrorCode {
    error(first(answer).error_code)
}

/// Partition and bytes of records of everything that an answer names.
fn sizes(answer: &FetchResponse<'_>) -> Vec<(i32, usize)> {
    let topics = answer.responses.iter();
    topics
        .flat_map(|t| {
            t.partitions
                .iter()
                .map(|p| (p.partition_index, p.records.as_bytes().len()))
        })
        .collect()
}

impl Rig {
    /// The bytes of one partition from an offset on.
    pub fn fetched(&mut self, name: &str, id: Uuid, partition: i32, offset: i64) -> Vec<u8> {
        let answer = self.once(18, &from(name, id, partition, offset));
        assert_eq!(code(&answer), ErrorCode::None);
        first(&answer).records.as_bytes().to_vec()
    }

    fn topic_with(&mut self, partitions: i32, batches: &[(i32, &str)]) -> Uuid {
        let id = self.create("t", partitions);
        for (partition, value) in batches {
            let (error, _) = self.produce(("t", id), *partition, batch(&[value]));
            assert_eq!(error, ErrorCode::None);
        }
        id
    }
}

/// What the log stores of a produced batch: base offset and leader epoch stamped outside the checksum.
fn stored(mut bytes: Vec<u8>, base_offset: i64, leader_epoch: i32) -> Vec<u8> {
    bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
    bytes
}

#[test]
fn every_version_gives_the_batches_as_they_were_sent() {
    let mut rig = Rig::new();
    let id = rig.topic_with(2, &[(1, "a"), (1, "b"), (1, "c")]);
    let expected = [stored(batch(&["b"]), 1, 0), stored(batch(&["c"]), 2, 0)].concat();
    for version in 4..=18 {
        let answer = rig.once(version, &from("t", id, 1, 1));
        assert_eq!(
            (
                answer.error_code,
                answer.session_id,
                answer.throttle_time_ms
            ),
            (0, 0, 0)
        );
        let topic = &answer.responses[0];
        assert_eq!(
            topic.topic,
            if version < 13 { "t" } else { "" },
            "v{version}"
        );
        assert_eq!(topic.topic_id, if version < 13 { Uuid::ZERO } else { id });
        let part = first(&answer);
        assert_eq!((part.partition_index, code(&answer)), (1, ErrorCode::None));
        assert_eq!((part.high_watermark, part.last_stable_offset), (3, 3));
        assert_eq!(part.log_start_offset, if version >= 5 { 0 } else { -1 });
        assert_eq!(part.preferred_read_replica, -1);
        assert_eq!(part.records.as_bytes(), expected, "v{version}");
        assert_eq!(part.aborted_transactions, None, "null for read_uncommitted");
        let committed = FetchRequest {
            isolation_level: 1,
            ..from("t", id, 1, 1)
        };
        let answer = rig.once(version, &committed);
        assert_eq!(first(&answer).aborted_transactions, Some(Vec::new()));
        assert_eq!(first(&answer).records.as_bytes(), expected);
        // At the end of the log: empty, not null.
        let answer = rig.once(version, &from("t", id, 1, 3));
        assert_eq!(
            first(&answer).records,
            Records::Bytes((&[][..]).into()),
            "v{version}"
        );
    }
}

#[test]
fn errors_of_single_partitions() {
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
    rig.produce(("t", id), near, batch(&["a", "b"]));
    for version in 4..=18 {
        let unknown = if version < 13 {
            ErrorCode::UnknownTopicOrPartition
        } else {
            ErrorCode::UnknownTopicId
        };
        let answer = rig.once(version, &from("x", Uuid([3; 16]), 0, 0));
        assert_eq!(code(&answer), unknown, "v{version}");
        assert_eq!(
            first(&answer).aborted_transactions,
            Some(Vec::new()),
            "seen on Kafka"
        );
        let answer = rig.once(version, &from("t", id, 2, 0));
        assert_eq!(code(&answer), ErrorCode::UnknownTopicOrPartition);

        let answer = rig.once(version, &from("t", id, far, 0));
        assert_eq!(code(&answer), ErrorCode::NotLeaderOrFollower);
        if version >= 12 {
            let leader = &first(&answer).current_leader;
            assert_eq!((leader.leader_id, leader.leader_epoch), (node(1), 0));
        }
        if version >= 16 {
            let found = &answer.node_endpoints[0];
            assert_eq!(
                (found.node_id, &*found.host, found.port),
                (node(1), "broker.example", 9093)
            );
        }

        for offset in [-1, 3, i64::MAX] {
            let answer = rig.once(version, &from("t", id, near, offset));
            assert_eq!(
                code(&answer),
                ErrorCode::OffsetOutOfRange,
                "v{version} at {offset}"
            );
            let part = first(&answer);
            assert_eq!((part.high_watermark, part.last_stable_offset), (-1, -1));
        }
        if version >= 9 {
            for (epoch, expected) in [
                (-1, ErrorCode::None),
                (0, ErrorCode::None),
                (1, ErrorCode::UnknownLeaderEpoch),
                (-2, ErrorCode::FencedLeaderEpoch),
            ] {
                let mut request = from("t", id, near, 0);
                request.topics[0].partitions[0].current_leader_epoch = epoch;
                assert_eq!(
                    code(&rig.once(version, &request)),
                    expected,
                    "v{version} epoch {epoch}"
                );
            }
        }
    }
}

#[test]
fn an_unknown_isolation_level_is_refused() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let answer = rig.once(
        12,
        &FetchRequest {
            isolation_level: 7,
            ..from("t", id, 0, 0)
        },
    );
    assert_eq!(error(answer.error_code), ErrorCode::InvalidRequest);
}

/// KIP-595: a client that fetched in an epoch which ended before its offset truncates first.
#[test]
fn a_client_that_has_diverged_is_told_where() {
    let mut rig = Rig::new();
    let id = rig.topic_with(1, &[(0, "a"), (0, "b")]);
    let ask = |epoch: i32, offset: i64| {
        let mut request = from("t", id, 0, offset);
        request.max_wait_ms = 10_000;
        request.topics[0].partitions[0].last_fetched_epoch = epoch;
        request
    };
    for version in 12..=18 {
        let answer = rig.once(version, &ask(0, 9));
        let part = first(&answer);
        assert_eq!(code(&answer), ErrorCode::None, "v{version}");
        assert_eq!(
            (part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
            (0, 2)
        );
        assert!(part.records.as_bytes().is_empty());
        let answer = rig.once(version, &ask(3, 1));
        assert_eq!(
            code(&answer),
            ErrorCode::OffsetOutOfRange,
            "an epoch that never was"
        );
        let answer = rig.once(version, &ask(0, 1));
        assert_eq!(first(&answer).diverging_epoch.epoch, -1);
        assert!(!first(&answer).records.as_bytes().is_empty());
    }
}

// -- sizes

#[test]
fn the_first_batch_comes_whole_however_small_the_limits_are() {
    let mut rig = Rig::new();
    let large = "x".repeat(5000);
    let id = rig.topic_with(2, &[(0, &large), (0, "b"), (1, &large)]);
    let whole = stored(batch(&[large.as_str()]), 0, 0);
    for (max_bytes, partition_max_bytes) in [(0, 0), (1, 1 << 20), (1 << 20, 1), (100, 100)] {
        let mut request = parts("t", id, &[(0, 0), (1, 0)]);
        request.max_bytes = max_bytes;
        for part in &mut request.topics[0].partitions {
            part.partition_max_bytes = partition_max_bytes;
        }
        let answer = rig.once(12, &request);
        // The batch of the second partition is held back: only the first one may exceed the limits.
        assert_eq!(
            sizes(&answer),
            [(0, whole.len()), (1, 0)],
            "{max_bytes} {partition_max_bytes}"
        );
        assert_eq!(first(&answer).records.as_bytes(), whole);
    }
}

#[test]
fn partitions_are_filled_in_the_order_of_the_request_up_to_the_limit() {
    let mut rig = Rig::new();
    let value = "x".repeat(1000);
    let id = rig.topic_with(3, &[(0, &value), (1, &value), (2, &value)]);
    let one = batch(&[value.as_str()]).len();
    let mut request = parts("t", id, &[(2, 0), (0, 0), (1, 0)]);
    request.max_bytes = 2 * one as i32;
    assert_eq!(sizes(&rig.once(12, &request)), [(2, one), (0, one), (1, 0)]);
    request.max_bytes = 3 * one as i32;
    assert_eq!(
        sizes(&rig.once(12, &request)),
        [(2, one), (0, one), (1, one)]
    );
}

// -- waiting

fn poll(name: &str, id: Uuid, offset: i64, wait_ms: i32, min_bytes: i32) -> FetchRequest<'static> {
    FetchRequest {
        max_wait_ms: wait_ms,
        min_bytes,
        ..from(name, id, 0, offset)
    }
}

fn answered(rig: &mut Rig, conn: ConnId, sent: i32) -> Option<FetchResponse<'static>> {
    rig.answer::<FetchRequest>(conn, 12, sent)
}

#[test]
fn a_fetch_without_data_waits_for_it() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    let sent = rig.send(conn, 12, &poll("t", id, 0, 500, 1));
    rig.pass_ms(100);
    assert!(rig.frame(conn).is_none());
    rig.produce(("t", id), 0, batch(&["a"]));
    let answer = answered(&mut rig, conn, sent).expect("data came");
    assert_eq!(
        first(&answer).records.as_bytes(),
        stored(batch(&["a"]), 0, 0)
    );
}

#[test]
fn a_fetch_is_answered_empty_when_its_time_is_up() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    let sent = rig.send(conn, 12, &poll("t", id, 0, 500, 1));
    rig.pass_ms(499);
    assert!(rig.frame(conn).is_none());
    rig.pass_ms(1);
    let answer = answered(&mut rig, conn, sent).expect("its time is up");
    assert_eq!(sizes(&answer), [(0, 0)]);
}

#[test]
fn a_fetch_waits_for_its_min_bytes() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let one = batch(&["a"]).len() as i32;
    let conn = rig.open();
    let sent = rig.send(conn, 12, &poll("t", id, 0, 500, 2 * one));
    rig.run();
    rig.produce(("t", id), 0, batch(&["a"]));
    assert!(rig.frame(conn).is_none(), "half of it");
    rig.produce(("t", id), 0, batch(&["b"]));
    let answer = answered(&mut rig, conn, sent).expect("enough");
    assert_eq!(sizes(&answer), [(0, 2 * one as usize)]);

    let sent = rig.send(conn, 12, &poll("t", id, 0, 500, 100 * one));
    rig.pass_ms(500);
    let answer = answered(&mut rig, conn, sent).expect("its time is up");
    assert_eq!(sizes(&answer), [(0, 2 * one as usize)], "what there is");
}

#[test]
fn min_bytes_above_the_limits_are_not_waited_for() {
    let mut rig = Rig::new();
    let id = rig.topic_with(1, &[(0, "a")]);
    let one = batch(&["a"]).len() as i32;
    let request = FetchRequest {
        max_bytes: one,
        ..poll("t", id, 0, 500, 100 * one)
    };
    assert_eq!(sizes(&rig.once(12, &request)), [(0, one as usize)]);
}

#[test]
fn min_bytes_0_and_no_partitions_are_answered_at_once() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    assert_eq!(sizes(&rig.once(12, &poll("t", id, 0, 500, 0))), [(0, 0)]);
    let empty = FetchRequest {
        topics: Vec::new(),
        ..poll("t", id, 0, 500, 1)
    };
    assert!(rig.once(12, &empty).responses.is_empty());
}

#[test]
fn an_error_of_one_partition_is_told_at_once() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let request = FetchRequest {
        max_wait_ms: 500,
        ..parts("t", id, &[(0, 0), (7, 0)])
    };
    let answer = rig.once(12, &request);
    let codes: Vec<_> = answer.responses[0]
        .partitions
        .iter()
        .map(|p| error(p.error_code))
        .collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::UnknownTopicOrPartition]);
}

#[test]
fn nothing_is_seen_before_it_is_as_durable_as_its_producer_asked() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    rig.hold_disk = true;
    let producer = rig.open();
    rig.send(producer, 12, &to(-1, ("t", id), 0, batch(&["a"])));
    rig.run();
    let answer = rig.once(12, &from("t", id, 0, 0));
    assert_eq!(
        (first(&answer).high_watermark, sizes(&answer)),
        (0, vec![(0, 0)])
    );
    // Between the high watermark and the log's end is nothing yet, and no error.
    let answer = rig.once(12, &from("t", id, 0, 1));
    assert_eq!(
        (code(&answer), sizes(&answer)),
        (ErrorCode::None, vec![(0, 0)])
    );
    rig.hold_disk = false;
    rig.run();
    let answer = rig.once(12, &from("t", id, 0, 0));
    assert_eq!(first(&answer).high_watermark, 1);
}

#[test]
fn a_topic_deleted_under_a_waiting_fetch_is_unknown_to_it() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let (by_name, by_id) = (rig.open(), rig.open());
    let named = rig.send(by_name, 12, &poll("t", id, 0, 30_000, 1));
    let with_id = rig.send(by_id, 17, &poll("t", id, 0, 30_000, 1));
    rig.run();
    rig.delete("t");
    let answer = answered(&mut rig, by_name, named).expect("told at once");
    assert_eq!(code(&answer), ErrorCode::UnknownTopicOrPartition);
    let answer = rig
        .answer::<FetchRequest>(by_id, 17, with_id)
        .expect("told at once");
    assert_eq!(code(&answer), ErrorCode::UnknownTopicId);
}

#[test]
fn a_client_that_leaves_is_no_longer_waited_for() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    for _ in 0..10 {
        let conn = rig.open();
        rig.send(conn, 12, &poll("t", id, 0, 30_000, 1));
        rig.run();
        rig.drop_conn(conn);
    }
    rig.run();
    assert_eq!(rig.produce(("t", id), 0, batch(&["a"])).0, ErrorCode::None);
    assert_eq!(rig.shards[0].conns_open(), 0);
}

// -- sessions (KIP-227)

fn session(id: i32, epoch: i32, request: FetchRequest<'static>) -> FetchRequest<'static> {
    FetchRequest {
        session_id: id,
        session_epoch: epoch,
        ..request
    }
}

fn nothing() -> FetchRequest<'static> {
    FetchRequest {
        topics: Vec::new(),
        ..from("t", Uuid::ZERO, 0, 0)
    }
}

#[test]
fn a_session_names_what_changed_and_nothing_else() {
    for version in [7, 12, 13, 18] {
        let mut rig = Rig::new();
        let id = rig.topic_with(3, &[(0, "a")]);
        let conn = rig.open();
        let full = rig.ask(
            conn,
            version,
            &session(0, 0, parts("t", id, &[(0, 0), (1, 0), (2, 0)])),
        );
        assert_eq!(sizes(&full).len(), 3, "a full answer names all");
        let s = full.session_id;
        assert!(s > 0);
        // The client goes on behind what it got; nothing is new.
        let answer = rig.ask(conn, version, &session(s, 1, parts("t", id, &[(0, 1)])));
        assert_eq!(
            (answer.session_id, sizes(&answer)),
            (s, vec![]),
            "v{version}"
        );
        rig.produce(("t", id), 1, batch(&["b"]));
        let answer = rig.ask(conn, version, &session(s, 2, nothing()));
        assert_eq!(sizes(&answer), [(1, batch(&["b"]).len())]);
        // Asked for again without an advance: the same data again.
        let answer = rig.ask(conn, version, &session(s, 3, nothing()));
        assert_eq!(sizes(&answer), [(1, batch(&["b"]).len())]);
    }
}

#[test]
fn a_forgotten_partition_is_named_no_more_and_the_last_one_ends_the_session() {
    let mut rig = Rig::new();
    let id = rig.topic_with(2, &[(0, "a"), (1, "b")]);
    let conn = rig.open();
    let s = rig
        .ask(conn, 18, &session(0, 0, parts("t", id, &[(0, 0), (1, 0)])))
        .session_id;
    let forget = |partitions: Vec<i32>| FetchRequest {
        forgotten_topics_data: vec![ForgottenTopic {
            topic_id: id,
            partitions,
            ..Default::default()
        }],
        ..nothing()
    };
    let answer = rig.ask(conn, 18, &session(s, 1, forget(vec![0])));
    assert_eq!(sizes(&answer), [(1, batch(&["b"]).len())]);
    let answer = rig.ask(conn, 18, &session(s, 2, forget(vec![1])));
    assert_eq!((answer.session_id, sizes(&answer)), (0, vec![]));
    let answer = rig.ask(conn, 18, &session(s, 3, nothing()));
    assert_eq!(error(answer.error_code), ErrorCode::FetchSessionIdNotFound);
}

#[test]
fn sessions_and_epochs_that_are_wrong_are_refused() {
    let mut rig = Rig::new();
    let id = rig.topic_with(1, &[(0, "a")]);
    let conn = rig.open();
    let s = rig
        .ask(conn, 12, &session(0, 0, from("t", id, 0, 0)))
        .session_id;
    let mut told = |version, session_id, epoch, request: FetchRequest<'static>| {
        // On another connection: a session is not bound to one.
        let answer = rig.once(version, &session(session_id, epoch, request));
        if answer.error_code != 0 {
            assert!(answer.responses.is_empty());
        }
        error(answer.error_code)
    };
    assert_eq!(
        told(12, s, 2, nothing()),
        ErrorCode::InvalidFetchSessionEpoch
    );
    assert_eq!(
        told(12, s, 1, nothing()),
        ErrorCode::None,
        "it survived that"
    );
    assert_eq!(
        told(12, s, 1, nothing()),
        ErrorCode::InvalidFetchSessionEpoch
    );
    assert_eq!(
        told(13, s, 2, nothing()),
        ErrorCode::FetchSessionTopicIdError
    );
    assert_eq!(
        told(12, s + 1, 2, nothing()),
        ErrorCode::FetchSessionIdNotFound
    );
    assert_eq!(told(12, 0, 2, nothing()), ErrorCode::FetchSessionIdNotFound);
    assert_eq!(
        told(12, s, -1, from("t", id, 0, 0)),
        ErrorCode::None,
        "closes it"
    );
    assert_eq!(told(12, s, 2, nothing()), ErrorCode::FetchSessionIdNotFound);
}

#[test]
fn a_partition_in_error_is_named_again_when_it_heals() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    let answer = rig.ask(conn, 12, &session(0, 0, parts("t", id, &[(0, 0), (1, 0)])));
    let s = answer.session_id;
    let answer = rig.ask(conn, 12, &session(s, 1, nothing()));
    let codes: Vec<_> = answer.responses[0]
        .partitions
        .iter()
        .map(|p| (p.partition_index, p.error_code))
        .collect();
    assert_eq!(codes, [(1, 3)], "the error is told each time");
    rig.grow("t", 2);
    let answer = rig.ask(conn, 12, &session(s, 2, nothing()));
    assert_eq!(sizes(&answer), [(1, 0)], "its high watermark is news");
    assert_eq!(first(&answer).high_watermark, 0);
    let answer = rig.ask(conn, 12, &session(s, 3, nothing()));
    assert_eq!(sizes(&answer), []);
}

#[test]
fn a_full_cache_gives_no_sessions_until_an_idle_one_can_go() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    let open = |rig: &mut Rig| {
        rig.ask(conn, 12, &session(0, 0, from("t", id, 0, 0)))
            .session_id
    };
    let mut sessions: Vec<i32> = (0..1000).map(|_| open(&mut rig)).collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!((sessions.len(), sessions[0] > 0), (1000, true));
    assert_eq!(open(&mut rig), 0, "full requests go on");
    rig.pass_ms(120_000);
    assert!(open(&mut rig) > 0, "two minutes idle");
}

/// An incremental fetch names nothing when nothing changed on the client's side; it waits all the same.
#[test]
fn an_idle_session_waits_its_time_and_wakes_for_data() {
    let mut rig = Rig::new();
    let id = rig.create("t", 3);
    let conn = rig.open();
    let full = session(0, 0, parts("t", id, &[(0, 0), (1, 0), (2, 0)]));
    let s = rig.ask(conn, 12, &full).session_id;
    let idle = |epoch| FetchRequest {
        max_wait_ms: 500,
        ..session(s, epoch, nothing())
    };
    for epoch in 1..4 {
        let sent = rig.send(conn, 12, &idle(epoch));
        rig.pass_ms(499);
        assert!(rig.frame(conn).is_none(), "epoch {epoch}");
        rig.pass_ms(1);
        let answer = answered(&mut rig, conn, sent).expect("its time is up");
        assert_eq!((answer.session_id, sizes(&answer)), (s, vec![]));
    }
    let sent = rig.send(conn, 12, &idle(4));
    rig.pass_ms(100);
    rig.produce(("t", id), 2, batch(&["a"]));
    let answer = answered(&mut rig, conn, sent).expect("at once");
    assert_eq!(sizes(&answer), [(2, batch(&["a"]).len())]);
}

#[test]
fn a_forgotten_partition_that_comes_back_is_read_from_where_the_client_says() {
    let mut rig = Rig::new();
    let id = rig.topic_with(2, &[(1, "a"), (1, "b"), (1, "c")]);
    let conn = rig.open();
    let full = session(0, 0, parts("t", id, &[(0, 0), (1, 0)]));
    let s = rig.ask(conn, 12, &full).session_id;
    let forget = FetchRequest {
        forgotten_topics_data: vec![ForgottenTopic {
            topic: "t".into(),
            partitions: vec![1],
            ..Default::default()
        }],
        ..nothing()
    };
    assert_eq!(sizes(&rig.ask(conn, 12, &session(s, 1, forget))), []);
    for epoch in 2..5 {
        rig.produce(("t", id), 1, batch(&["d"]));
        assert_eq!(sizes(&rig.ask(conn, 12, &session(s, epoch, nothing()))), []);
    }
    let again = rig.ask(conn, 12, &session(s, 5, parts("t", id, &[(1, 5)])));
    assert_eq!(
        first(&again).records.as_bytes(),
        stored(batch(&["d"]), 5, 0)
    );
}

/// A reader of one batch at a time is told the real end from the first answer on, and comes to it.
#[test]
fn small_fetches_come_to_the_end_that_the_first_one_told() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    for i in 0..50 {
        rig.produce(("t", id), 0, batch(&[format!("value {i}").as_str()]));
    }
    let mut offset = 0;
    while offset < 50 {
        let mut request = from("t", id, 0, offset);
        request.max_bytes = 1;
        let answer = rig.once(12, &request);
        let part = first(&answer);
        assert_eq!(part.high_watermark, 50);
        let (got, len) = corelane::batch::Batch::view(part.records.as_bytes()).expect("a batch");
        assert_eq!(
            (got.base_offset(), len),
            (offset, part.records.as_bytes().len())
        );
        offset = got.last_offset() + 1;
    }
}

/// Kafka 4 does not look at the codec of what it serves: version 9 gets zstd too.
#[test]
fn zstd_is_served_to_every_version() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let zstd = crate::produce::builder(&["a"])
        .codec(corelane::batch::Codec::Zstd)
        .build();
    rig.produce(("t", id), 0, zstd.clone());
    for version in [4, 9, 10, 18] {
        let answer = rig.once(version, &from("t", id, 0, 0));
        assert_eq!(
            first(&answer).records.as_bytes(),
            stored(zstd.clone(), 0, 0),
            "v{version}"
        );
    }
}
