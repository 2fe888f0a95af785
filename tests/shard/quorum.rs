//! What is told of the quorum, of features and of what has configs; texts are those that Apache Kafka 4.4.0 gave to the same
//! requests.

use corelane::model::ErrorCode;
use corelane::wire::msg::describe_quorum_request::{
    DescribeQuorumRequest, PartitionData, TopicData,
};
use corelane::wire::msg::list_config_resources_request::ListConfigResourcesRequest;
use corelane::wire::msg::unregister_broker_request::UnregisterBrokerRequest;
use corelane::wire::msg::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};

use crate::rig::{Rig, Setup, error};

fn rig() -> Rig {
    Rig::with(Setup {
        shards: 2,
        ..Setup::default()
    })
}

fn quorum(topics: &[(&'static str, i32)]) -> DescribeQuorumRequest<'static> {
    let topics = topics.iter().map(|(topic, partition_index)| TopicData {
        topic_name: (*topic).into(),
        partitions: vec![PartitionData {
            partition_index: *partition_index,
        }],
    });
    DescribeQuorumRequest {
        topics: topics.collect(),
    }
}

/// Whichever node is asked.
#[test]
fn the_quorum_is_one_voter_that_has_everything() {
    let mut rig = rig();
    rig.create("t", 3);
    for (shard, version) in [(0, 0), (1, 1), (0, 2), (1, 2)] {
        let conn = rig.open_to(shard);
        let answer = rig.ask(conn, version, &quorum(&[("__cluster_metadata", 0)]));
        assert_eq!(error(answer.error_code), ErrorCode::None);
        let told = &answer.topics[0].partitions[0];
        assert_eq!((told.leader_id, told.leader_epoch), (0, 1));
        let applied = rig.shards[0].image().applied() as i64;
        assert_eq!(told.high_watermark, applied);
        assert_eq!((told.current_voters.len(), told.observers.len()), (1, 0));
        let voter = &told.current_voters[0];
        assert_eq!((voter.replica_id, voter.log_end_offset), (0, applied));
        let time = if version >= 1 { rig.now.wall } else { -1 };
        assert_eq!(
            (voter.last_fetch_timestamp, voter.last_caught_up_timestamp),
            (time, time)
        );
        if version >= 2 {
            assert_eq!(answer.error_message.as_deref(), Some(""));
            assert_eq!((answer.nodes.len(), answer.nodes[0].node_id), (1, 0));
            let listener = &answer.nodes[0].listeners[0];
            assert_eq!((&*listener.host, listener.port), ("broker.example", 9092));
        }
    }
}

#[test]
fn there_is_one_quorum_only() {
    let mut rig = rig();
    for topics in [
        &[("t", 0)][..],
        &[("__cluster_metadata", 1)],
        &[("__cluster_metadata", 0), ("t", 0)],
    ] {
        let answer = rig.once(2, &quorum(topics));
        assert_eq!((answer.error_code, answer.topics.len()), (0, topics.len()));
        for topic in &answer.topics {
            let told = &topic.partitions[0];
            assert_eq!(error(told.error_code), ErrorCode::UnknownTopicOrPartition);
            assert_eq!(
                told.error_message.as_deref(),
                Some("This server does not host this topic-partition.")
            );
        }
    }
    assert!(rig.once(2, &quorum(&[])).topics.is_empty());
}

fn update(name: &'static str, level: i16, kind: i8) -> UpdateFeaturesRequest<'static> {
    UpdateFeaturesRequest {
        feature_updates: vec![FeatureUpdateKey {
            feature: name.into(),
            max_version_level: level,
            allow_downgrade: kind != 1,
            upgrade_type: kind,
        }],
        ..Default::default()
    }
}

#[test]
fn features_stay_where_they_are_and_texts_are_kafkas() {
    let mut rig = rig();
    for version in 0..=2 {
        let answer = rig.once(version, &update("metadata.version", 33, 1));
        assert_eq!((answer.error_code, &answer.error_message), (0, &None));
        let results: Vec<_> = answer
            .results
            .iter()
            .map(|r| (&*r.feature, r.error_code, r.error_message.as_deref()))
            .collect();
        match version {
            2 => assert!(results.is_empty()),
            _ => assert_eq!(results, [("metadata.version", 0, Some("NONE"))]),
        }
    }
    let cases = [
        (
            update("nope", 1, 1),
            "Invalid update version 1 for feature nope. Local controller 0 does not support this feature.",
        ),
        (
            update("metadata.version", 999, 1),
            "Invalid update version 999 for feature metadata.version. Local controller 0 only supports versions 7-33",
        ),
        (
            update("metadata.version", 1, 3),
            "Invalid update version 1 for feature metadata.version. Local controller 0 only supports versions 7-33",
        ),
        (
            update("metadata.version", 30, 1),
            "Invalid update version 30 for feature metadata.version. Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        ),
        (
            update("metadata.version", 30, 2),
            "Unsupported metadata.version downgrade from 33 to 30. Refusing to perform the requested downgrade because it might delete metadata information.",
        ),
        (
            update("metadata.version", 30, 3),
            "Unsupported metadata.version downgrade from 33 to 30. Unsafe metadata downgrade is not supported in this version.",
        ),
        (
            update("metadata.version", 33, 9),
            "Invalid update version 33 for feature metadata.version. The controller does not support the given upgrade type.",
        ),
        (
            update("metadata.version", -3, 1),
            "Invalid update version -3 for feature metadata.version. A feature version cannot be less than 0.",
        ),
    ];
    for (request, why) in cases {
        for version in 1..=2 {
            let answer = rig.once(version, &request);
            assert_eq!(error(answer.error_code), ErrorCode::InvalidUpdateVersion);
            let text = format!(
                "The update failed for all features since the following feature had an error: {why}"
            );
            assert_eq!(answer.error_message.as_deref(), Some(&*text));
            assert!(answer.results.is_empty());
        }
    }
}

#[test]
fn a_node_that_runs_is_not_unregistered_and_another_is_unknown() {
    let mut rig = rig();
    let mut ask = |broker_id| {
        let answer = rig.once(0, &UnregisterBrokerRequest { broker_id });
        let text = answer.error_message.as_deref().map(String::from);
        (error(answer.error_code), text.expect("a text"))
    };
    for id in [77, -1] {
        let text = format!("Broker ID {id} is not currently registered");
        assert_eq!(ask(id), (ErrorCode::BrokerIdNotRegistered, text));
    }
    assert_eq!(ask(1).0, ErrorCode::InvalidRequest);
}

#[test]
fn what_may_have_configs_is_listed_by_kind() {
    let mut rig = rig();
    rig.create("t", 1);
    rig.create("c", 1);
    let mut ask = |version, kinds: &[i8]| {
        let request = ListConfigResourcesRequest {
            resource_types: kinds.to_vec(),
        };
        let answer = rig.once(version, &request);
        let names = answer.config_resources.iter();
        let names = names.map(|r| (r.resource_name.to_string(), r.resource_type));
        (error(answer.error_code), names.collect::<Vec<_>>())
    };
    let named = |names: &[(&str, i8)]| {
        let names = names.iter().map(|(name, kind)| (name.to_string(), *kind));
        (ErrorCode::None, names.collect::<Vec<_>>())
    };
    assert_eq!(
        ask(1, &[]),
        named(&[("0", 8), ("1", 8), ("0", 4), ("1", 4), ("c", 2), ("t", 2)])
    );
    assert_eq!(ask(1, &[2]), named(&[("c", 2), ("t", 2)]));
    assert_eq!(ask(1, &[2, 2]), named(&[("c", 2), ("t", 2)]));
    assert_eq!(ask(1, &[4]), named(&[("0", 4), ("1", 4)]));
    assert_eq!(ask(1, &[16]), named(&[]));
    assert_eq!(ask(0, &[]), named(&[]));
    assert_eq!(ask(1, &[77, 2]), (ErrorCode::UnsupportedVersion, vec![]));
}
