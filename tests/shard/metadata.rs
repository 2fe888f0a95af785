use std::collections::BTreeSet;

use corelane::model::{ErrorCode, Uuid};
use corelane::wire::msg::describe_cluster_request::DescribeClusterRequest;
use corelane::wire::msg::describe_topic_partitions_request::{
    Cursor, DescribeTopicPartitionsRequest, TopicRequest,
};
use corelane::wire::msg::metadata_request::{MetadataRequest, MetadataRequestTopic};
use corelane::wire::msg::metadata_response::{MetadataResponse, MetadataResponseTopic};

use crate::rig::{Rig, Setup, error, node};

fn of(names: &[&'static str]) -> MetadataRequest<'static> {
    let topics = names.iter().map(|name| MetadataRequestTopic {
        name: Some((*name).into()),
        ..Default::default()
    });
    MetadataRequest {
        topics: Some(topics.collect()),
        allow_auto_topic_creation: false,
        ..Default::default()
    }
}

fn all(version: i16) -> MetadataRequest<'static> {
    MetadataRequest {
        topics: if version == 0 { Some(Vec::new()) } else { None },
        ..Default::default()
    }
}

fn names(answer: &MetadataResponse<'_>) -> Vec<String> {
    let topics = answer.topics.iter();
    topics
        .map(|t| t.name.as_deref().unwrap_or("-").to_string())
        .collect()
}

fn only<'a>(answer: &'a MetadataResponse<'a>) -> &'a MetadataResponseTopic<'a> {
    assert_eq!(answer.topics.len(), 1);
    &answer.topics[0]
}

#[test]
fn all_none_some_and_unknown_topics_at_every_version() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    let a = rig.create("a", 3);
    rig.create("b", 1);
    for version in 0..=13 {
        let answer = rig.once(version, &all(version));
        assert_eq!(names(&answer), ["a", "b"], "v{version}");
        let mut brokers: Vec<_> = answer.brokers.iter().map(|b| (b.node_id, b.port)).collect();
        brokers.sort_unstable();
        assert_eq!(brokers, [(node(0), 9092), (node(1), 9093)]);
        assert!(answer.brokers.iter().all(|b| b.host == "broker.example"));
        if version >= 1 {
            // Unset, the rack is the process.
            assert!(
                answer
                    .brokers
                    .iter()
                    .all(|b| b.rack.as_deref() == Some("0"))
            );
            let listed: BTreeSet<i32> = answer.brokers.iter().map(|b| b.node_id).collect();
            assert!(
                listed.contains(&answer.controller_id),
                "kafka-go relies on it"
            );
        }
        if version >= 2 {
            let cluster = rig.shards[0].image().cluster_id().to_string();
            assert_eq!(answer.cluster_id.as_deref(), Some(cluster.as_str()));
        }
        let topic = &answer.topics[0];
        assert_eq!(
            (error(topic.error_code), topic.is_internal),
            (ErrorCode::None, false)
        );
        assert_eq!(topic.topic_id, if version >= 10 { a } else { Uuid::ZERO });
        assert_eq!(topic.partitions.len(), 3);
        for (index, partition) in (0..).zip(&topic.partitions) {
            assert_eq!(partition.partition_index, index);
            assert_eq!(error(partition.error_code), ErrorCode::None);
            assert_eq!(partition.replica_nodes, [partition.leader_id]);
            assert_eq!(partition.isr_nodes, [partition.leader_id]);
            assert_eq!(partition.leader_epoch, if version >= 7 { 0 } else { -1 });
            assert!(partition.offline_replicas.is_empty());
        }

        if version >= 1 {
            assert_eq!(names(&rig.once(version, &of(&[]))), Vec::<String>::new());
        }
        assert_eq!(names(&rig.once(version, &of(&["b"]))), ["b"]);
        assert_eq!(
            names(&rig.once(version, &of(&["b", "a", "b"]))),
            ["b", "a"],
            "twice is once"
        );
        if version >= 4 {
            let answer = rig.once(version, &of(&["missing"]));
            let topic = only(&answer);
            assert_eq!(error(topic.error_code), ErrorCode::UnknownTopicOrPartition);
            assert_eq!(
                (topic.name.as_deref(), topic.partitions.len()),
                (Some("missing"), 0)
            );
        }
        let answer = rig.once(version, &of(&["not a name"]));
        assert_eq!(
            error(only(&answer).error_code),
            ErrorCode::InvalidTopicException
        );
    }
    assert_eq!(rig.topics(), ["a", "b"]);
}

#[test]
fn topics_by_id() {
    let mut rig = Rig::new();
    let id = rig.create("a", 1);
    let by = |name: Option<&'static str>, topic_id: Uuid| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            topic_id,
            name: name.map(Into::into),
        }]),
        ..Default::default()
    };
    for version in 10..=13 {
        let answer = rig.once(version, &by(None, id));
        let topic = only(&answer);
        let known = version >= 12;
        let expected = if known {
            ErrorCode::None
        } else {
            ErrorCode::InvalidRequest
        };
        assert_eq!(error(topic.error_code), expected, "v{version}");
        if known {
            assert_eq!((topic.name.as_deref(), topic.topic_id), (Some("a"), id));
            let answer = rig.once(version, &by(None, Uuid([5; 16])));
            let topic = only(&answer);
            assert_eq!(error(topic.error_code), ErrorCode::UnknownTopicId);
            assert_eq!(
                (topic.name.as_deref(), topic.topic_id),
                (None, Uuid([5; 16]))
            );
        }
        let answer = rig.once(version, &by(None, Uuid::ZERO));
        assert_eq!(
            error(only(&answer).error_code),
            ErrorCode::InvalidRequest,
            "v{version}"
        );
    }
}

#[test]
fn operations_are_told_when_asked_for() {
    let mut rig = Rig::new();
    rig.create("a", 1);
    for version in 8..=13 {
        let silent = rig.once(version, &of(&["a"]));
        assert_eq!(only(&silent).topic_authorized_operations, i32::MIN);
        let answer = rig.once(
            version,
            &MetadataRequest {
                include_topic_authorized_operations: true,
                include_cluster_authorized_operations: true,
                ..of(&["a"])
            },
        );
        // READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11.
        assert_eq!(only(&answer).topic_authorized_operations, 0b1101_1111_1000);
        if version <= 10 {
            // CREATE 5, ALTER 7, DESCRIBE 8, CLUSTER_ACTION 9, 10, 11, IDEMPOTENT_WRITE 12.
            assert_eq!(answer.cluster_authorized_operations, 0b1_1111_1010_0000);
        }
    }
}

#[test]
fn a_missing_topic_is_created_on_the_way_by_kafkas_rules() {
    for version in 0..=13 {
        let mut rig = Rig::with(Setup {
            statics: vec![("num.partitions", "3")],
            ..Setup::default()
        });
        let answer = rig.once(
            version,
            &MetadataRequest {
                allow_auto_topic_creation: true,
                ..of(&["new"])
            },
        );
        assert_eq!(
            error(only(&answer).error_code),
            ErrorCode::UnknownTopicOrPartition
        );
        let answer = rig.once(version, &of(&["new"]));
        assert_eq!(
            error(only(&answer).error_code),
            ErrorCode::None,
            "v{version}"
        );
        assert_eq!(only(&answer).partitions.len(), 3);

        // Up to version 3 the flag does not exist and creation is allowed.
        rig.once(version, &of(&["unwanted"]));
        assert_eq!(rig.topics().contains(&"unwanted".to_string()), version < 4);
        rig.once(
            version,
            &MetadataRequest {
                allow_auto_topic_creation: true,
                ..of(&["in valid", "..", "__consumer_offsets"])
            },
        );
        let created = rig.topics();
        assert!(
            !created
                .iter()
                .any(|name| name == "in valid" || name == "..")
        );
    }
}

#[test]
fn nothing_is_created_when_the_broker_forbids_it_or_all_topics_are_asked_for() {
    let mut rig = Rig::with(Setup {
        auto_create_topics: false,
        ..Setup::default()
    });
    rig.once(
        12,
        &MetadataRequest {
            allow_auto_topic_creation: true,
            ..of(&["new"])
        },
    );
    assert!(rig.topics().is_empty());
    let mut rig = Rig::new();
    rig.once(12, &all(12));
    assert!(rig.topics().is_empty());
}

#[test]
fn ten_thousand_names_in_one_request_take_one_turn_each_their_answer() {
    let mut rig = Rig::with(Setup {
        auto_create_topics: false,
        ..Setup::default()
    });
    let names: Vec<String> = (0..20_000).map(|i| format!("t{}", i % 10_000)).collect();
    let topics = names.iter().map(|name| MetadataRequestTopic {
        name: Some(name.as_str().into()),
        ..Default::default()
    });
    let answer = rig.once(
        12,
        &MetadataRequest {
            topics: Some(topics.collect()),
            ..Default::default()
        },
    );
    assert_eq!(answer.topics.len(), 10_000);
}

#[test]
fn the_cluster_is_described() {
    let mut rig = Rig::with(Setup {
        shards: 3,
        ..Setup::default()
    });
    for version in 0..=2 {
        let answer = rig.once(version, &DescribeClusterRequest::default());
        assert_eq!(error(answer.error_code), ErrorCode::None);
        let ids: Vec<i32> = answer.brokers.iter().map(|b| b.broker_id).collect();
        assert_eq!(ids, [node(0), node(1), node(2)]);
        assert_eq!(
            answer.cluster_id,
            rig.shards[0].image().cluster_id().to_string()
        );
        assert_eq!(answer.cluster_authorized_operations, i32::MIN);
        if version >= 1 {
            let asked = |endpoint_type| DescribeClusterRequest {
                endpoint_type,
                ..Default::default()
            };
            let answer = rig.once(version, &asked(2));
            assert_eq!(error(answer.error_code), ErrorCode::MismatchedEndpointType);
            let answer = rig.once(version, &asked(3));
            assert_eq!(error(answer.error_code), ErrorCode::UnsupportedEndpointType);
        }
    }
}

#[test]
fn partitions_are_described_page_by_page() {
    let mut rig = Rig::new();
    for (name, partitions) in [("c", 2), ("a", 3), ("b", 4)] {
        rig.create(name, partitions);
    }
    let ask = |topics: &[&'static str], limit: i32, cursor: Option<(&'static str, i32)>| {
        DescribeTopicPartitionsRequest {
            topics: topics
                .iter()
                .map(|name| TopicRequest {
                    name: (*name).into(),
                })
                .collect(),
            response_partition_limit: limit,
            cursor: cursor.map(|(topic, partition_index)| Cursor {
                topic_name: topic.into(),
                partition_index,
            }),
        }
    };
    let mut pages = |request: &DescribeTopicPartitionsRequest<'static>| {
        let answer = rig.once(0, request);
        let topics: Vec<String> = answer
            .topics
            .iter()
            .map(|t| {
                let indexes: Vec<i32> = t.partitions.iter().map(|p| p.partition_index).collect();
                format!(
                    "{} {} {indexes:?}",
                    t.name.as_deref().unwrap_or("-"),
                    t.error_code
                )
            })
            .collect();
        let next = answer
            .next_cursor
            .map(|c| (c.topic_name.to_string(), c.partition_index));
        (topics.join(", "), next)
    };
    let a = |next: &str, at: i32| Some((next.to_string(), at));
    assert_eq!(
        pages(&ask(&[], 2000, None)),
        ("a 0 [0, 1, 2], b 0 [0, 1, 2, 3], c 0 [0, 1]".into(), None)
    );
    assert_eq!(
        pages(&ask(&[], 5, None)),
        ("a 0 [0, 1, 2], b 0 [0, 1]".into(), a("b", 2))
    );
    assert_eq!(
        pages(&ask(&[], 5, Some(("b", 2)))),
        ("b 0 [2, 3], c 0 [0, 1]".into(), None)
    );
    assert_eq!(
        pages(&ask(&[], 3, None)),
        ("a 0 [0, 1, 2]".into(), a("b", 0))
    );
    assert_eq!(
        pages(&ask(&[], 0, None)),
        ("a 0 [0]".into(), a("a", 1)),
        "at least one"
    );
    assert_eq!(
        pages(&ask(&["c", "x", "a"], 9, None)),
        ("a 0 [0, 1, 2], c 0 [0, 1], x 3 []".into(), None)
    );
}
