use std::collections::BTreeSet;

use corelane::model::ErrorCode;
use corelane::wire::msg::init_producer_id_request::InitProducerIdRequest;

use crate::rig::{Rig, Setup, error};

fn fresh() -> InitProducerIdRequest<'static> {
    InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 60_000,
        ..Default::default()
    }
}

#[test]
fn every_version_gives_a_fresh_id_of_epoch_0() {
    let mut rig = Rig::new();
    let mut seen = BTreeSet::new();
    for version in 0..=5 {
        let answer = rig.once(version, &fresh());
        assert_eq!(
            (error(answer.error_code), answer.producer_epoch),
            (ErrorCode::None, 0)
        );
        assert!(
            answer.producer_id >= 0 && seen.insert(answer.producer_id),
            "v{version}"
        );
    }
}

#[test]
fn ids_are_never_given_twice_whichever_node_is_asked_over_many_blocks() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    let conns = [rig.open_to(0), rig.open_to(1)];
    let mut seen = BTreeSet::new();
    for i in 0..4200 {
        let answer = rig.ask(conns[i % 2], 5, &fresh());
        assert_eq!(error(answer.error_code), ErrorCode::None);
        assert!(
            seen.insert(answer.producer_id),
            "{} twice",
            answer.producer_id
        );
    }
}

#[test]
fn all_who_wait_for_a_block_are_answered_from_it() {
    let mut rig = Rig::new();
    rig.hold_disk = true;
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let conn = rig.open();
            (conn, rig.send(conn, 5, &fresh()))
        })
        .collect();
    rig.run();
    rig.hold_disk = false;
    rig.run();
    let mut ids = BTreeSet::new();
    for (conn, sent) in waiting {
        let answer = rig
            .answer::<InitProducerIdRequest>(conn, 5, sent)
            .expect("answered");
        assert_eq!(error(answer.error_code), ErrorCode::None);
        ids.insert(answer.producer_id);
    }
    assert_eq!(ids.len(), 20);
}

#[test]
fn a_block_that_does_not_come_in_time_is_asked_for_again() {
    let mut rig = Rig::new();
    rig.hold_disk = true;
    let conn = rig.open();
    let sent = rig.send(conn, 5, &fresh());
    rig.run();
    rig.pass_ms(5000);
    let answer = rig
        .answer::<InitProducerIdRequest>(conn, 5, sent)
        .expect("time is up");
    assert_eq!(
        error(answer.error_code),
        ErrorCode::CoordinatorLoadInProgress
    );
    assert_eq!((answer.producer_id, answer.producer_epoch), (-1, -1));
    rig.hold_disk = false;
    rig.run();
    assert_eq!(
        error(rig.ask(conn, 5, &fresh()).error_code),
        ErrorCode::None
    );
}

#[test]
fn transactional_ids_are_refused() {
    let mut rig = Rig::new();
    for (name, expected) in [
        ("", ErrorCode::InvalidRequest),
        ("tx", ErrorCode::CoordinatorNotAvailable),
    ] {
        let request = InitProducerIdRequest {
            transactional_id: Some(name.into()),
            ..fresh()
        };
        let answer = rig.once(5, &request);
        assert_eq!(
            (error(answer.error_code), answer.producer_id),
            (expected, -1)
        );
    }
}
