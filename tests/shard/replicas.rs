//! Elections, moves, log dirs and producers of partitions. Codes and texts are those that Apache Kafka 4.4.0 gave to the same
//! requests, where it has one broker too.

use corelane::model::ErrorCode;
use corelane::wire::msg::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use corelane::wire::msg::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use corelane::wire::msg::describe_log_dirs_request::{
    DescribableLogDirTopic, DescribeLogDirsRequest,
};
use corelane::wire::msg::describe_log_dirs_response::DescribeLogDirsResult;
use corelane::wire::msg::describe_producers_request::{DescribeProducersRequest, TopicRequest};
use corelane::wire::msg::describe_producers_response::PartitionResponse;
use corelane::wire::msg::elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
use corelane::wire::msg::list_partition_reassignments_request::ListPartitionReassignmentsRequest;

use crate::produce::{NOW, batch, builder};
use crate::rig::{Rig, Setup, error};

fn elect(kind: i8, topics: Option<&[(&'static str, &[i32])]>) -> ElectLeadersRequest<'static> {
    let topics = topics.map(|topics| {
        let topics = topics.iter().map(|(topic, partitions)| TopicPartitions {
            topic: (*topic).into(),
            partitions: partitions.to_vec(),
        });
        topics.collect()
    });
    ElectLeadersRequest {
        election_type: kind,
        topic_partitions: topics,
        timeout_ms: 5000,
    }
}

type Told = (i32, ErrorCode, Option<String>);

#[test]
fn a_partition_that_has_its_leader_needs_no_election() {
    let mut rig = Rig::new();
    rig.create("dt", 2);
    rig.create("empty", 1);
    let mut ask = |version, request: &ElectLeadersRequest<'static>| {
        let answer = rig.once(version, request);
        let topics = answer.replica_election_results.iter().map(|topic| {
            let parts = topic.partition_result.iter().map(|p| {
                let text = p.error_message.as_deref().map(String::from);
                (p.partition_id, error(p.error_code), text)
            });
            (topic.topic.to_string(), parts.collect::<Vec<Told>>())
        });
        (error(answer.error_code), topics.collect::<Vec<_>>())
    };
    let not_needed = |partition| {
        let text = "Leader election not needed for topic partition.".to_string();
        (partition, ErrorCode::ElectionNotNeeded, Some(text))
    };
    for (version, kind) in [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)] {
        let answer = ask(version, &elect(kind, Some(&[("dt", &[0, 1])])));
        let expected = vec![("dt".to_string(), vec![not_needed(0), not_needed(1)])];
        assert_eq!(
            answer,
            (ErrorCode::None, expected),
            "v{version} kind {kind}"
        );
        let answer = ask(version, &elect(kind, None));
        let all = ["dt", "empty"].map(|name| (name.to_string(), Vec::new()));
        assert_eq!(answer, (ErrorCode::None, all.to_vec()), "all of them");
    }
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let answer = ask(2, &elect(0, Some(&[("dt", &[0, 9]), ("nope", &[1])])));
    let no_partition = (9, unknown, Some("No such partition as dt-9".to_string()));
    let no_topic = (1, unknown, Some("No such topic as nope".to_string()));
    assert_eq!(
        answer.1,
        [
            ("dt".to_string(), vec![not_needed(0), no_partition]),
            ("nope".to_string(), vec![no_topic])
        ]
    );
    let wrong = ErrorCode::InvalidRequest;
    let answer = ask(2, &elect(5, Some(&[("dt", &[0])])));
    let told = (0, wrong, Some("Unknown election type 5".to_string()));
    assert_eq!(answer, (wrong, vec![("dt".to_string(), vec![told])]));
    assert_eq!(ask(2, &elect(0, Some(&[]))), (ErrorCode::None, vec![]));
}

pub type Part = (i32, Option<&'static [i32]>);

pub fn moves(topics: &[(&'static str, &[Part])]) -> AlterPartitionReassignmentsRequest<'static> {
    let topics = topics.iter().map(|(name, parts)| ReassignableTopic {
        name: (*name).into(),
        partitions: parts
            .iter()
            .map(|(partition_index, replicas)| ReassignablePartition {
                partition_index: *partition_index,
                replicas: replicas.map(<[i32]>::to_vec),
            })
            .collect(),
    });
    AlterPartitionReassignmentsRequest {
        topics: topics.collect(),
        ..Default::default()
    }
}

#[test]
fn moves_that_change_nothing_succeed_and_wrong_ones_say_why() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    rig.create("dt", 1);
    let mut ask = |version, topic, part: Part| {
        let answer = rig.once(version, &moves(&[(topic, &[part])]));
        assert!(answer.allow_replication_factor_change);
        assert_eq!((answer.error_code, &answer.error_message), (0, &None));
        let told = &answer.responses[0].partitions[0];
        assert_eq!(told.partition_index, part.0);
        let text = told.error_message.as_deref().map(String::from);
        (error(told.error_code), text)
    };
    assert_eq!(ask(0, "dt", (0, Some(&[0]))), (ErrorCode::None, None));
    assert_eq!(ask(1, "dt", (0, Some(&[0]))), (ErrorCode::None, None));
    let none = ErrorCode::NoReassignmentInProgress;
    assert_eq!(ask(1, "dt", (0, None)), (none, None));
    let (unknown, wrong) = (
        ErrorCode::UnknownTopicOrPartition,
        ErrorCode::InvalidReplicaAssignment,
    );
    let cases: &[(&'static str, Part, ErrorCode, &str)] = &[
        (
            "nope",
            (0, Some(&[0])),
            unknown,
            "Unable to find a topic named nope.",
        ),
        (
            "dt",
            (9, Some(&[0])),
            unknown,
            "Unable to find partition dt:9.",
        ),
        ("dt", (9, None), unknown, "Unable to find partition dt:9."),
        (
            "dt",
            (0, Some(&[])),
            wrong,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            "dt",
            (0, Some(&[0, 0])),
            wrong,
            "The manual partition assignment includes the broker 0 more than once.",
        ),
        (
            "dt",
            (0, Some(&[77])),
            wrong,
            "The manual partition assignment includes broker 77, but no such broker is registered.",
        ),
        (
            "dt",
            (0, Some(&[0, 1])),
            wrong,
            "The manual partition assignment includes the brokers 0 and 1, which are on the same machine.",
        ),
    ];
    for (topic, part, code, text) in cases {
        assert_eq!(ask(1, topic, *part), (*code, Some(text.to_string())));
    }
    let nothing = rig.once(1, &moves(&[]));
    assert_eq!(
        (nothing.error_code, nothing.error_message.as_deref()),
        (0, Some(""))
    );
    let list = rig.once(0, &ListPartitionReassignmentsRequest::default());
    assert_eq!((list.error_code, list.topics.len()), (0, 0));
}

fn dirs(
    rig: &mut Rig,
    version: i16,
    topics: Option<&[(&'static str, i32)]>,
) -> DescribeLogDirsResult<'static> {
    let topics = topics.map(|topics| {
        let topics = topics
            .iter()
            .map(|(topic, partition)| DescribableLogDirTopic {
                topic: (*topic).into(),
                partitions: vec![*partition],
            });
        topics.collect()
    });
    let mut answer = rig.once(version, &DescribeLogDirsRequest { topics });
    assert_eq!((answer.error_code, answer.results.len()), (0, 1));
    answer.results.remove(0)
}

/// Topic, partition and size of what is listed.
fn listed(result: &DescribeLogDirsResult<'_>) -> Vec<(String, i32, i64)> {
    let topics = result.topics.iter().flat_map(|topic| {
        let parts = topic.partitions.iter();
        parts.map(|p| {
            assert_eq!((p.offset_lag, p.is_future_key), (0, false));
            (topic.name.to_string(), p.partition_index, p.partition_size)
        })
    });
    topics.collect()
}

#[test]
fn a_node_tells_the_size_of_its_partitions_and_of_the_disk() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    rig.disk.faults.space = 1 << 30;
    let id = rig.create("dt", 2);
    let bytes = batch(&["some", "values"]);
    let size = bytes.len() as i64;
    let (code, _) = rig.produce(("dt", id), 0, bytes);
    assert_eq!(code, ErrorCode::None);
    for version in 1..=5 {
        let result = dirs(&mut rig, version, None);
        assert_eq!(
            (error(result.error_code), &*result.log_dir),
            (ErrorCode::None, "/data")
        );
        assert_eq!(
            listed(&result),
            [("dt".to_string(), 0, size)],
            "its own only"
        );
        let told = (result.total_bytes, result.usable_bytes);
        if version >= 4 {
            assert_eq!(told, (1 << 30, (1 << 30) - rig.disk.used() as i64));
        } else {
            assert_eq!(told, (-1, -1));
        }
    }
    let one = dirs(&mut rig, 5, Some(&[("dt", 0), ("dt", 1), ("nope", 0)]));
    assert_eq!(listed(&one), [("dt".to_string(), 0, size)]);
    assert!(listed(&dirs(&mut rig, 5, Some(&[]))).is_empty());
    let other = rig.open_to(1);
    let answer = rig.ask(other, 5, &DescribeLogDirsRequest { topics: None });
    assert_eq!(listed(&answer.results[0]), [("dt".to_string(), 1, 0)]);
}

#[test]
fn replicas_stay_in_the_one_log_dir() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    });
    rig.create("dt", 2);
    for version in 1..=2 {
        let mut ask = |path: &'static str, topic: &'static str, partition| {
            let request = AlterReplicaLogDirsRequest {
                dirs: vec![AlterReplicaLogDir {
                    path: path.into(),
                    topics: vec![AlterReplicaLogDirTopic {
                        name: topic.into(),
                        partitions: vec![partition],
                    }],
                }],
            };
            let answer = rig.once(version, &request);
            assert_eq!(answer.results[0].topic_name, topic);
            error(answer.results[0].partitions[0].error_code)
        };
        assert_eq!(ask("/data", "dt", 0), ErrorCode::None);
        assert_eq!(ask("/no/such", "dt", 0), ErrorCode::LogDirNotFound);
        assert_eq!(ask("no/such", "nope", 0), ErrorCode::LogDirNotFound);
        assert_eq!(ask("/data", "nope", 0), ErrorCode::UnknownTopicOrPartition);
        assert_eq!(ask("/data", "dt", 9), ErrorCode::UnknownTopicOrPartition);
        assert_eq!(
            ask("/data", "dt", 1),
            ErrorCode::ReplicaNotAvailable,
            "another node's"
        );
    }
}

fn producers(
    rig: &mut Rig,
    topic: &'static str,
    partitions: &[i32],
) -> Vec<PartitionResponse<'static>> {
    let request = DescribeProducersRequest {
        topics: vec![TopicRequest {
            name: topic.into(),
            partition_indexes: partitions.to_vec(),
        }],
    };
    let mut answer = rig.once(0, &request);
    assert_eq!(answer.topics[0].name, topic);
    answer.topics.remove(0).partitions
}

#[test]
fn producers_of_a_partition_are_told_with_their_last_batch() {
    let mut rig = Rig::new();
    let id = rig.create("dt", 2);
    let bytes = builder(&["a", "b", "c", "d", "e"])
        .producer(42, 3, 0)
        .build();
    assert_eq!(rig.produce(("dt", id), 0, bytes), (ErrorCode::None, 0));
    let told = producers(&mut rig, "dt", &[0, 1]);
    assert_eq!((told[0].error_code, &told[0].error_message), (0, &None));
    let producer = &told[0].active_producers[0];
    assert_eq!((producer.producer_id, producer.producer_epoch), (42, 3));
    assert_eq!((producer.last_sequence, producer.last_timestamp), (4, NOW));
    assert_eq!(
        (
            producer.coordinator_epoch,
            producer.current_txn_start_offset
        ),
        (-1, -1)
    );
    assert!(told[1].active_producers.is_empty());
    let failed = |told: Vec<PartitionResponse<'static>>| {
        let text = told[0].error_message.as_deref().map(String::from);
        (error(told[0].error_code), text)
    };
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let text = "This server does not host this topic-partition.".to_string();
    assert_eq!(
        failed(producers(&mut rig, "nope", &[0])),
        (unknown, Some(text))
    );
    assert_eq!(failed(producers(&mut rig, "dt", &[7])), (unknown, None));
    assert_eq!(failed(producers(&mut rig, "dt", &[-1])), (unknown, None));
    let text = "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'";
    let invalid = ErrorCode::InvalidTopicException;
    assert_eq!(
        failed(producers(&mut rig, "a b", &[0])),
        (invalid, Some(text.to_string()))
    );
}
