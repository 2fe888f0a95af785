use corelane::log::faulty::Loss;
use corelane::shard::Event;
use corelane::wire::msg::api_versions_request::ApiVersionsRequest;
use corelane::wire::msg::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use corelane::wire::msg::metadata_request::MetadataRequest;

use crate::produce::{batch, to};
use crate::rig::{Rig, Setup};

fn create(name: &'static str) -> CreateTopicsRequest<'static> {
    CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: name.into(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        }],
        timeout_ms: 10_000,
        ..Default::default()
    }
}

#[test]
fn requests_of_one_connection_are_served_one_after_the_other() {
    let mut rig = Rig::new();
    let conn = rig.open();
    let ids = [
        rig.send(conn, 7, &create("a")),
        rig.send(conn, 12, &MetadataRequest::default()),
        rig.send(conn, 7, &create("b")),
        rig.send(
            conn,
            12,
            &MetadataRequest {
                topics: None,
                ..Default::default()
            },
        ),
    ];
    rig.run();
    assert_eq!(
        rig.answer::<CreateTopicsRequest>(conn, 7, ids[0])
            .unwrap()
            .topics[0]
            .error_code,
        0
    );
    assert!(rig.answer::<MetadataRequest>(conn, 12, ids[1]).is_some());
    assert_eq!(
        rig.answer::<CreateTopicsRequest>(conn, 7, ids[2])
            .unwrap()
            .topics[0]
            .error_code,
        0
    );
    let seen = rig
        .answer::<MetadataRequest>(conn, 12, ids[3])
        .expect("answered");
    assert_eq!(seen.topics.len(), 2, "what was answered before is seen");
}

/// A client shuts its half down behind its last request: the answers still come, then the connection closes.
#[test]
fn a_half_closed_connection_is_answered_and_then_closed() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    let sent = rig.send(conn, 12, &to(-1, ("t", id), 0, batch(&["a"])));
    rig.half_close(conn);
    rig.run();
    let answered =
        rig.answer::<corelane::wire::msg::produce_request::ProduceRequest>(conn, 12, sent);
    assert!(answered.is_some() && rig.is_closed(conn));

    let conn = rig.open();
    rig.half_close(conn);
    rig.run();
    assert!(rig.is_closed(conn), "nothing is left to answer");
}

#[test]
fn a_half_closed_connection_whose_last_request_has_no_answer_is_closed_too() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let conn = rig.open();
    rig.send(conn, 12, &to(0, ("t", id), 0, batch(&["a"])));
    rig.half_close(conn);
    rig.run();
    assert!(rig.is_closed(conn));
    assert_eq!(
        rig.produce(("t", id), 0, batch(&["b"])).1,
        1,
        "the records of acks=0 are there"
    );
    assert_eq!(rig.shards[0].conns_open(), 0);
}

#[test]
fn a_client_that_leaves_while_its_request_waits_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    rig.hold_disk = true;
    let conns = [rig.open(), rig.open()];
    rig.send(conns[0], 12, &to(-1, ("t", id), 0, batch(&["a"])));
    rig.send(conns[1], 7, &create("b"));
    rig.run();
    for conn in conns {
        rig.drop_conn(conn);
    }
    rig.hold_disk = false;
    rig.run();
    rig.pass_ms(20_000);
    assert_eq!(rig.topics(), ["b", "t"]);
    assert_eq!(rig.produce(("t", id), 0, batch(&["b"])).1, 1);
}

#[test]
fn nothing_is_served_before_the_process_is_registered() {
    let mut rig = Rig::cold(Setup::default());
    rig.hold_disk = true;
    let conn = rig.open();
    let sent = rig.send(
        conn,
        3,
        &ApiVersionsRequest {
            client_software_name: "rig".into(),
            client_software_version: "1".into(),
            ..Default::default()
        },
    );
    rig.run();
    assert!(rig.frame(conn).is_none());
    rig.hold_disk = false;
    rig.run();
    assert!(rig.answer::<ApiVersionsRequest>(conn, 3, sent).is_some());
}

#[test]
fn a_stop_closes_connections_and_ends_once_everything_is_written() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    let id = rig.create("t", 2);
    let conn = rig.open();
    rig.hold_disk = true;
    rig.send(conn, 12, &to(1, ("t", id), 0, batch(&["a"])));
    let other = rig.open();
    rig.send(other, 7, &create("late"));
    rig.run();
    for shard in 0..2 {
        rig.event(shard, Event::Stop);
    }
    rig.run();
    assert!(rig.is_closed(conn) && rig.is_closed(other));
    assert!(!rig.stopped[0], "the controller's log is not written");
    rig.hold_disk = false;
    rig.pass_ms(10_000);
    assert_eq!(rig.stopped, [true, true]);
    assert!(rig.disk.is_idle(), "nothing is under way");
}

#[test]
fn a_failed_metadata_log_ends_the_process() {
    let mut rig = Rig::new();
    rig.disk.faults.broken = Some("__cluster_metadata".into());
    let answer = rig.once(7, &create("a"));
    assert_eq!(answer.topics[0].error_code, 56, "KAFKA_STORAGE_ERROR");
    let why = rig.shards[0]
        .failed()
        .expect("the process must end")
        .to_string();
    assert!(why.contains("I/O error"), "{why}");
}

/// The controller's answers come late in a turn; a request behind one starts without another event.
#[test]
fn a_request_behind_an_answer_starts_although_the_answer_is_not_read_yet() {
    let mut rig = Rig::new();
    rig.hold_sends = true;
    let conn = rig.open();
    let only_asked = CreateTopicsRequest {
        validate_only: true,
        ..create("a")
    };
    let ids = [
        rig.send(conn, 7, &only_asked),
        rig.send(conn, 12, &MetadataRequest::default()),
    ];
    rig.run();
    assert!(rig.answer::<CreateTopicsRequest>(conn, 7, ids[0]).is_some());
    assert!(rig.answer::<MetadataRequest>(conn, 12, ids[1]).is_some());
}

#[test]
fn a_client_that_does_not_read_is_not_served_without_bound() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let value = "x".repeat(900_000);
    for _ in 0..4 {
        rig.produce(("t", id), 0, batch(&[value.as_str()]));
    }
    rig.hold_sends = true;
    let conn = rig.open();
    let request = crate::fetch::from("t", id, 0, 0);
    let sent = 200;
    for _ in 0..sent {
        rig.send(conn, 12, &request);
    }
    rig.run();
    let mut answers = 0;
    while rig.frame(conn).is_some() {
        answers += 1;
    }
    assert!(
        answers < 20 && rig.is_paused(conn),
        "{answers} answers of 900 kB wait to be read"
    );
    rig.hold_sends = false;
    rig.tell_sent();
    rig.run();
    while rig.frame(conn).is_some() {
        answers += 1;
    }
    assert_eq!((answers, rig.is_paused(conn)), (sent, false));
}

#[test]
fn a_process_of_another_cluster_is_refused_and_must_end() {
    let rig = Rig::new();
    let mut disk = rig.disk;
    disk.crash(Loss::All);
    let other = corelane::model::Uuid([7; 16]);
    let rig = Rig::with(Setup {
        disk,
        cluster_id: Some(other),
        ..Setup::default()
    });
    let why = rig.shards[0].failed().expect("refused");
    assert!(
        why.contains("this process belongs to BwcHBwcHBwcHBwcHBwcHBw"),
        "{why}"
    );
}
