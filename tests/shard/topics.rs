use corelane::meta::Command;
use corelane::model::limit::UNANSWERED_MAX;
use corelane::model::{ErrorCode, NodeId, ShardIndex, Uuid};
use corelane::shard::{Event, PeerMsg};
use corelane::wire::msg::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use corelane::wire::msg::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use corelane::wire::msg::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};

use crate::produce::batch;
use crate::rig::{Rig, Setup, error, node};

fn topic(name: &str, partitions: i32, factor: i16) -> CreatableTopic<'static> {
    CreatableTopic {
        name: name.to_string().into(),
        num_partitions: partitions,
        replication_factor: factor,
        ..Default::default()
    }
}

fn with(name: &str, configs: &[(&'static str, Option<&'static str>)]) -> CreatableTopic<'static> {
    let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
        name: (*name).into(),
        value: value.map(Into::into),
    });
    CreatableTopic {
        configs: configs.collect(),
        ..topic(name, 1, 1)
    }
}

fn by_hand(name: &str, assignments: &[&[i32]]) -> CreatableTopic<'static> {
    let assignments =
        (0..)
            .zip(assignments)
            .map(|(partition_index, ids)| CreatableReplicaAssignment {
                partition_index,
                broker_ids: ids.to_vec(),
            });
    CreatableTopic {
        assignments: assignments.collect(),
        ..topic(name, -1, -1)
    }
}

fn create(topics: Vec<CreatableTopic<'static>>) -> CreateTopicsRequest<'static> {
    CreateTopicsRequest {
        topics,
        timeout_ms: 10_000,
        ..Default::default()
    }
}

fn codes(
    rig: &mut Rig,
    version: i16,
    request: &CreateTopicsRequest<'static>,
) -> Vec<(String, ErrorCode)> {
    let answer = rig.once(version, request);
    let topics = answer.topics.iter();
    topics
        .map(|t| (t.name.to_string(), error(t.error_code)))
        .collect()
}

#[test]
fn every_version_creates_and_tells_what_it_made() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    for version in 2..=7 {
        let name = format!("t{version}");
        let configured = CreatableTopic {
            num_partitions: 3,
            ..with(&name, &[("retention.ms", Some("7000"))])
        };
        let answer = rig.once(version, &create(vec![configured]));
        let made = &answer.topics[0];
        assert_eq!(
            (error(made.error_code), &made.error_message),
            (ErrorCode::None, &None)
        );
        let topic = rig.shards[0]
            .image()
            .topic_by_name(&name)
            .expect("exists")
            .clone();
        assert_eq!(topic.partitions.len(), 3);
        assert_eq!(
            made.topic_id,
            if version >= 7 { topic.id } else { Uuid::ZERO }
        );
        if version >= 5 {
            assert_eq!((made.num_partitions, made.replication_factor), (3, 1));
            let configs = made.configs.as_deref().expect("told");
            let retention = configs
                .iter()
                .find(|c| c.name == "retention.ms")
                .expect("listed");
            assert_eq!(
                (retention.value.as_deref(), retention.config_source),
                (Some("7000"), 1)
            );
            let policy = configs
                .iter()
                .find(|c| c.name == "cleanup.policy")
                .expect("listed");
            assert_eq!(
                (policy.value.as_deref(), policy.config_source),
                (Some("delete"), 5)
            );
        }
    }
}

/// The answer to a creation leaves when its leaders serve, whichever node was asked.
#[test]
fn a_topic_that_was_told_can_be_used_at_once() {
    let mut rig = Rig::with(Setup {
        shards: 3,
        ..Setup::default()
    });
    let conn = rig.open_to(2);
    let answer = rig.ask(conn, 7, &create(vec![topic("t", 6, 1)]));
    let id = answer.topics[0].topic_id;
    let leaders: Vec<i32> = rig.shards[1]
        .image()
        .topic(id)
        .expect("seen by all")
        .partitions
        .iter()
        .map(|p| p.leader.0)
        .collect();
    let mut sorted = leaders.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [node(0), node(0), node(1), node(1), node(2), node(2)]
    );
    for (partition, leader) in (0..).zip(leaders) {
        let conn = rig.open_to(leader as usize);
        let request = crate::produce::to(1, ("t", id), partition, batch(&["a"]));
        assert_eq!(
            crate::produce::first(&rig.ask(conn, 12, &request)).error_code,
            0
        );
    }
}

#[test]
fn every_refusal_has_kafkas_code() {
    let mut rig = Rig::new();
    rig.create("here", 1);
    let cases = [
        (topic("here", 1, 1), ErrorCode::TopicAlreadyExists),
        (topic("a b", 1, 1), ErrorCode::InvalidTopicException),
        (topic("", 1, 1), ErrorCode::InvalidTopicException),
        (topic("he.re", 1, 1), ErrorCode::None),
        (topic("he_re", 1, 1), ErrorCode::InvalidTopicException),
        (topic("p0", 0, 1), ErrorCode::InvalidPartitions),
        (topic("p-2", -2, 1), ErrorCode::InvalidPartitions),
        (topic("f0", 1, 0), ErrorCode::InvalidReplicationFactor),
        (topic("f2", 1, 2), ErrorCode::InvalidReplicationFactor),
        (topic("many", 10_001, 1), ErrorCode::PolicyViolation),
        (
            with("c1", &[("retention.ms", None)]),
            ErrorCode::InvalidConfig,
        ),
        (
            with("c2", &[("no.such.config", Some("1"))]),
            ErrorCode::InvalidConfig,
        ),
        (
            with("c3", &[("segment.bytes", Some("abc"))]),
            ErrorCode::InvalidConfig,
        ),
        (
            with("c4", &[("min.insync.replicas", Some("0"))]),
            ErrorCode::InvalidConfig,
        ),
        (
            with("c5", &[("cleanup.policy", Some("compact,foo"))]),
            ErrorCode::InvalidConfig,
        ),
        (by_hand("m1", &[&[7]]), ErrorCode::InvalidReplicaAssignment),
        (
            by_hand("m2", &[&[0], &[0, 0]]),
            ErrorCode::InvalidReplicaAssignment,
        ),
        (by_hand("m3", &[&[]]), ErrorCode::InvalidReplicaAssignment),
        (
            CreatableTopic {
                num_partitions: 1,
                ..by_hand("m4", &[&[0]])
            },
            ErrorCode::InvalidRequest,
        ),
        (by_hand("m5", &[&[0], &[0]]), ErrorCode::None),
        (
            topic("__cluster_metadata", 1, 1),
            ErrorCode::TopicAuthorizationFailed,
        ),
    ];
    for version in 2..=7 {
        for validate_only in [true, false] {
            for (topic, expected) in &cases {
                let mut topic = topic.clone();
                if *expected == ErrorCode::None && !validate_only {
                    continue;
                }
                if topic.name == "he_re" {
                    // Collides only once the other one is there.
                    topic = by_hand("m6", &[&[0], &[1]]);
                    let code = codes(&mut rig, version, &create(vec![topic]))[0].1;
                    assert_eq!(code, ErrorCode::InvalidReplicaAssignment);
                    continue;
                }
                let request = CreateTopicsRequest {
                    validate_only,
                    ..create(vec![topic.clone()])
                };
                let answer = rig.once(version, &request);
                let got = &answer.topics[0];
                assert_eq!(error(got.error_code), *expected, "v{version} {topic:?}");
                if expected.is_error() && *expected != ErrorCode::TopicAuthorizationFailed {
                    assert!(got.error_message.is_some(), "{topic:?}");
                }
            }
        }
    }
    assert_eq!(rig.topics(), ["here"], "nothing came of it");
    rig.create("he.re", 1);
    let got = codes(&mut rig, 7, &create(vec![topic("he_re", 1, 1)]));
    assert_eq!(got[0].1, ErrorCode::InvalidTopicException);
}

#[test]
fn a_refused_topic_leaves_the_others_of_its_request_alone() {
    let mut rig = Rig::new();
    let request = create(vec![
        topic("good", 1, 1),
        topic("b d", 1, 1),
        topic("twice", 1, 1),
        topic("twice", 2, 1),
    ]);
    let mut got = codes(&mut rig, 7, &request);
    got.sort();
    assert_eq!(
        got,
        [
            ("b d".to_string(), ErrorCode::InvalidTopicException),
            ("good".to_string(), ErrorCode::None),
            ("twice".to_string(), ErrorCode::InvalidRequest),
        ]
    );
    assert_eq!(rig.topics(), ["good"]);
}

#[test]
fn a_creation_whose_outcome_is_not_known_in_time_says_so() {
    let mut rig = Rig::new();
    rig.hold_disk = true;
    let conn = rig.open();
    let request = CreateTopicsRequest {
        timeout_ms: 300,
        ..create(vec![topic("t", 1, 1)])
    };
    let sent = rig.send(conn, 7, &request);
    rig.pass_ms(299);
    assert!(rig.frame(conn).is_none());
    rig.pass_ms(1);
    let answer = rig
        .answer::<CreateTopicsRequest>(conn, 7, sent)
        .expect("its time is up");
    assert_eq!(
        error(answer.topics[0].error_code),
        ErrorCode::RequestTimedOut
    );
    rig.hold_disk = false;
    rig.run();
    assert!(rig.frame(conn).is_none(), "answered once");
    assert_eq!(rig.topics(), ["t"], "decided is decided");
}

#[test]
fn topics_are_deleted_by_name_and_by_id() {
    for version in 1..=6 {
        let mut rig = Rig::new();
        let id = rig.create("t", 2);
        rig.produce(("t", id), 0, batch(&["a"]));
        let by = |name: Option<&'static str>, topic_id: Uuid| DeleteTopicsRequest {
            topics: vec![DeleteTopicState {
                name: name.map(Into::into),
                topic_id,
            }],
            topic_names: name.map(Into::into).into_iter().collect(),
            timeout_ms: 10_000,
        };
        let mut ask = |request: &DeleteTopicsRequest<'static>| {
            let answer = rig.once(version, request);
            let got = &answer.responses[0];
            (
                got.name.as_deref().map(str::to_string),
                error(got.error_code),
            )
        };
        assert_eq!(
            ask(&by(Some("x"), Uuid::ZERO)),
            (Some("x".into()), ErrorCode::UnknownTopicOrPartition)
        );
        if version >= 6 {
            assert_eq!(
                ask(&by(None, Uuid([4; 16]))),
                (None, ErrorCode::UnknownTopicId)
            );
            assert_eq!(
                ask(&by(None, Uuid::ZERO)),
                (None, ErrorCode::InvalidRequest)
            );
            assert_eq!(
                ask(&by(Some("t"), id)),
                (Some("t".into()), ErrorCode::InvalidRequest)
            );
            assert_eq!(ask(&by(None, id)), (Some("t".into()), ErrorCode::None));
        } else {
            assert_eq!(
                ask(&by(Some("t"), Uuid::ZERO)),
                (Some("t".into()), ErrorCode::None)
            );
        }
        assert!(rig.topics().is_empty());
        // Made again it is another topic, and empty.
        let again = rig.create("t", 2);
        assert_ne!(again, id);
    }
}

#[test]
fn deletion_can_be_forbidden() {
    let mut rig = Rig::with(Setup {
        statics: vec![("delete.topic.enable", "false")],
        ..Setup::default()
    });
    rig.create("t", 1);
    for version in 1..=6 {
        let answer = rig.once(
            version,
            &DeleteTopicsRequest {
                topics: vec![DeleteTopicState {
                    name: Some("t".into()),
                    ..Default::default()
                }],
                topic_names: vec!["t".into()],
                timeout_ms: 10_000,
            },
        );
        let expected = if version >= 3 {
            ErrorCode::TopicDeletionDisabled
        } else {
            ErrorCode::InvalidRequest
        };
        assert_eq!(
            error(answer.responses[0].error_code),
            expected,
            "v{version}"
        );
    }
}

#[test]
fn partitions_are_added_and_never_taken_away() {
    for version in 0..=3 {
        let mut rig = Rig::with(Setup {
            shards: 2,
            ..Setup::default()
        });
        let id = rig.create("t", 2);
        let mut ask = |name: &str, count, by_hand: Option<Vec<Vec<i32>>>, validate_only| {
            let answer = rig.once(
                version,
                &CreatePartitionsRequest {
                    topics: vec![CreatePartitionsTopic {
                        name: name.to_string().into(),
                        count,
                        assignments: by_hand.map(|all| {
                            all.into_iter()
                                .map(|broker_ids| CreatePartitionsAssignment { broker_ids })
                                .collect()
                        }),
                    }],
                    timeout_ms: 10_000,
                    validate_only,
                },
            );
            let topic = rig.shards[1].image().topic(id).expect("exists");
            (error(answer.results[0].error_code), topic.partitions.len())
        };
        assert_eq!(
            ask("x", 3, None, false),
            (ErrorCode::UnknownTopicOrPartition, 2)
        );
        for count in [2, 1, 0, -1] {
            assert_eq!(
                ask("t", count, None, false),
                (ErrorCode::InvalidPartitions, 2),
                "{count}"
            );
        }
        assert_eq!(
            ask("t", 10_001, None, false),
            (ErrorCode::PolicyViolation, 2)
        );
        assert_eq!(ask("t", 4, None, true), (ErrorCode::None, 2), "only asked");
        assert_eq!(ask("t", 4, None, false), (ErrorCode::None, 4));
        assert_eq!(
            ask("t", 6, Some(vec![vec![0]]), false),
            (ErrorCode::InvalidReplicaAssignment, 4)
        );
        assert_eq!(
            ask("t", 5, Some(vec![vec![9]]), false),
            (ErrorCode::InvalidReplicaAssignment, 4)
        );
        assert_eq!(
            ask("t", 5, Some(vec![vec![node(1)]]), false),
            (ErrorCode::None, 5)
        );
        let conn = rig.open_to(1);
        let request = crate::produce::to(-1, ("t", id), 4, batch(&["a"]));
        assert_eq!(
            crate::produce::first(&rig.ask(conn, 12, &request)).error_code,
            0,
            "serves when told"
        );
    }
}

/// A shard that does not come to serve what is committed must not make the controller keep outcomes without end.
#[test]
fn changes_that_are_not_served_have_a_bound() {
    let mut rig = Rig::new();
    let first = rig.open();
    let waits = rig.send(first, 7, &create(vec![topic("first", 1, 1)]));
    // Its partition does not open, so that nothing is served from here on.
    rig.run_quorum();
    assert!(!rig.has_answer(first));
    let from = ShardIndex(0);
    let propose = |rig: &mut Rig, token| {
        let command = Command::AllocateProducerIds {
            node: NodeId(node(0)),
        };
        let msg = PeerMsg::Propose { token, command };
        rig.event(0, Event::Peer { from, msg });
    };
    for token in 1..UNANSWERED_MAX as u64 {
        propose(&mut rig, 1_000_000 + token);
    }
    rig.run_quorum();
    let applied = rig.shards[0].image().applied();
    let second = rig.open();
    let answer = rig.ask(second, 7, &create(vec![topic("second", 1, 1)]));
    assert_eq!(
        error(answer.topics[0].error_code),
        ErrorCode::RequestTimedOut
    );
    assert!(error(answer.topics[0].error_code).is_retriable());
    assert_eq!(rig.shards[0].image().applied(), applied, "nothing changed");
    rig.hold_disk = false;
    rig.run();
    let answer = rig.answer::<CreateTopicsRequest>(first, 7, waits);
    assert_eq!(answer.expect("it is served").topics[0].error_code, 0);
    let answer = rig.ask(second, 7, &create(vec![topic("second", 1, 1)]));
    assert_eq!(answer.topics[0].error_code, 0);
}
