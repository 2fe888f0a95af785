//! Commands to records. Pure decisions: nothing here changes an image.
//!
//! Codes, messages and their order are Kafka's (ReplicationControlManager, ControllerApis); where a replica may live is
//! not: the unit of failure is the machine, so replicas of a partition never share a process.

use std::collections::{BTreeMap, BTreeSet};

use crate::meta::{
    ApiError, Command, DeletedTopic, Image, NewPartitions, Outcome, OutcomeResult, PartitionChange,
    ProducerIdBlock, Record, ShardEndpoints, Topic, TopicRef,
};
use crate::model::{ErrorCode, NodeId, Rng, ShardIndex, TopicId, TopicPartition, Uuid, limit};

use super::alter_configs::alter_configs;
use super::create_topics::{create_topics, new_partition};
use super::elect::elect_leaders;
use super::features::update_features;
use super::move_replicas::move_replicas;
use super::placement::{Placement, check_manual};

/// Producer ids in a block (Kafka).
pub const PRODUCER_ID_BLOCK: i32 = 1000;

/// Largest process number, so that every node id fits an int.
pub const PROCESS_MAX: i32 = i32::MAX / 1000 - 1;

/// What to write for `command`, and the answer once that is committed. `image` must include everything decided before.
pub fn decide(image: &Image, command: &Command, rng: &mut Rng) -> (Vec<Record>, Outcome) {
    let (records, result) = match command {
        Command::CreateTopics {
            topics,
            validate_only,
            auto,
        } => {
            let (records, results) = create_topics(image, topics, *auto, rng);
            let records = if *validate_only { Vec::new() } else { records };
            (records, OutcomeResult::CreateTopics(results))
        }
        Command::DeleteTopics { topics } => {
            let (records, results) = delete_topics(image, topics);
            (records, OutcomeResult::DeleteTopics(results))
        }
        Command::CreatePartitions {
            topics,
            validate_only,
        } => {
            let (records, results) = create_partitions(image, topics);
            let records = if *validate_only { Vec::new() } else { records };
            (records, OutcomeResult::CreatePartitions(results))
        }
        Command::AlterConfigs {
            changes,
            validate_only,
        } => {
            let (records, results) = alter_configs(image, changes);
            let records = if *validate_only { Vec::new() } else { records };
            (records, OutcomeResult::AlterConfigs(results))
        }
        Command::ElectLeaders {
            unclean,
            partitions,
        } => {
            let (records, results) = elect_leaders(image, *unclean, partitions.as_deref());
            (records, OutcomeResult::ElectLeaders(results))
        }
        Command::MoveReplicas {
            moves,
            factor_may_change,
        } => {
            let (records, results) = move_replicas(image, moves, *factor_may_change);
            (records, OutcomeResult::MoveReplicas(results))
        }
        Command::UpdateFeatures {
            updates,
            validate_only,
        } => match update_features(image, controller(image), updates) {
            Err(error) => (Vec::new(), OutcomeResult::Failed(error)),
            Ok(_) if *validate_only => (Vec::new(), OutcomeResult::FeaturesUpdated),
            Ok(records) => (records, OutcomeResult::FeaturesUpdated),
        },
        Command::UnregisterNode { node } => {
            let error = cannot_unregister(image, *node);
            (Vec::new(), OutcomeResult::Failed(error))
        }
        Command::DescribeQuorum => unreachable!("the quorum answers it itself"),
        Command::AllocateProducerIds { node } => allocate_producer_ids(image, *node),
        Command::RegisterProcess {
            process,
            incarnation,
            rack,
            shards,
            cluster_id,
        } => match check_registration(image, *process, shards, *cluster_id) {
            Err(error) => (Vec::new(), OutcomeResult::Failed(error)),
            Ok(()) => {
                let mut records = Vec::new();
                if image.cluster_id().is_zero() {
                    records.push(Record::Cluster {
                        id: cluster_id.unwrap_or_else(|| rng.uuid()),
                    });
                }
                records.push(Record::Process {
                    process: *process,
                    incarnation: *incarnation,
                    epoch: -1,
                    rack: rack.clone(),
                    shards: shards.clone(),
                });
                rehome(image, *process, shards.len(), &mut records);
                (records, OutcomeResult::Registered)
            }
        },
    };
    let offset = image.applied() + records.len() as u64;
    (records, Outcome { result, offset })
}

pub(super) fn unknown_topic() -> ApiError {
    ApiError::new(
        ErrorCode::UnknownTopicOrPartition,
        "This server does not host this topic-partition.",
    )
}

fn delete_topics(image: &Image, topics: &[TopicRef]) -> (Vec<Record>, Vec<DeletedTopic>) {
    let refused = |name: Option<&str>, id: TopicId, error: ApiError| DeletedTopic {
        name: name.map(str::to_string),
        id,
        error: Some(error),
    };
    let wrong = |message: &str| ApiError::new(ErrorCode::InvalidRequest, message);
    if !image.statics().bool("delete.topic.enable") {
        let error = ApiError::new(
            ErrorCode::TopicDeletionDisabled,
            "Topic deletion is disabled.",
        );
        let results = topics
            .iter()
            .map(|t| refused(t.name.as_deref(), t.id, error.clone()))
            .collect();
        return (Vec::new(), results);
    }
    let mut results = Vec::new();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ids: BTreeMap<TopicId, usize> = BTreeMap::new();
    for topic in topics {
        match (&topic.name, topic.id.is_zero()) {
            (Some(name), true) => *names.entry(name).or_default() += 1,
            (None, false) => *ids.entry(topic.id).or_default() += 1,
            (Some(name), false) => results.push(refused(
                Some(name),
                topic.id,
                wrong("You may not specify both topic name and topic id."),
            )),
            (None, true) => results.push(refused(
                None,
                topic.id,
                wrong("Neither topic name nor id were specified."),
            )),
        }
    }
    let mut delete: Vec<&Topic> = Vec::new();
    for (id, times) in &ids {
        match image.topic(*id) {
            _ if *times > 1 => {
                results.push(refused(None, *id, wrong("Duplicate topic id.")));
            }
            None => results.push(refused(
                None,
                *id,
                ApiError::new(
                    ErrorCode::UnknownTopicId,
                    "This server does not host this topic ID.",
                ),
            )),
            Some(topic) => delete.push(topic),
        }
    }
    for (name, times) in &names {
        match image.topic_by_name(name) {
            _ if *times > 1 => {
                results.push(refused(
                    Some(name),
                    Uuid::ZERO,
                    wrong("Duplicate topic name."),
                ));
            }
            None => results.push(refused(Some(name), Uuid::ZERO, unknown_topic())),
            Some(topic) if ids.contains_key(&topic.id) => results.push(refused(
                Some(name),
                topic.id,
                wrong("The provided topic name maps to an ID that was already supplied."),
            )),
            Some(topic) => delete.push(topic),
        }
    }
    let records = delete
        .iter()
        .map(|topic| Record::RemoveTopic { id: topic.id })
        .collect();
    results.extend(delete.iter().map(|topic| DeletedTopic {
        name: Some(topic.name.to_string()),
        id: topic.id,
        error: None,
    }));
    (records, results)
}

type PartitionsResults = Vec<(String, Option<ApiError>)>;

fn create_partitions(image: &Image, topics: &[NewPartitions]) -> (Vec<Record>, PartitionsResults) {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for topic in topics {
        *times.entry(&topic.name).or_default() += 1;
    }
    let unique: Vec<&NewPartitions> = topics
        .iter()
        .filter(|topic| times[topic.name.as_str()] == 1)
        .collect();
    let total: usize = unique
        .iter()
        .map(|topic| match &topic.assignments {
            Some(assignments) if !assignments.is_empty() => assignments.len(),
            _ => usize::try_from(topic.count).unwrap_or(0),
        })
        .sum();
    let mut records = Vec::new();
    let mut results = Vec::new();
    let mut placement = Placement::new(image);
    for topic in unique {
        let result = if total > limit::PARTITIONS_PER_REQUEST_MAX {
            Err(too_many_partitions())
        } else {
            add_partitions(image, topic, &mut placement)
        };
        let error = match result {
            Ok(more) => {
                records.extend(more);
                None
            }
            Err(error) => Some(error),
        };
        results.push((topic.name.clone(), error));
    }
    for name in times.iter().filter(|(_, n)| **n > 1).map(|(name, _)| *name) {
        let error = ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
        results.push((name.to_string(), Some(error)));
    }
    (records, results)
}

pub(super) fn too_many_partitions() -> ApiError {
    ApiError::new(
        ErrorCode::PolicyViolation,
        "Excessively large number of partitions per request.",
    )
}

fn add_partitions(
    image: &Image,
    topic: &NewPartitions,
    placement: &mut Placement,
) -> Result<Vec<Record>, ApiError> {
    let Some(existing) = image.topic_by_name(&topic.name) else {
        return Err(ApiError::bare(ErrorCode::UnknownTopicOrPartition));
    };
    let (name, count) = (&topic.name, topic.count);
    let now = existing.partitions.len();
    let wanted = usize::try_from(count).unwrap_or(0);
    if wanted == now {
        return Err(ApiError::new(
            ErrorCode::InvalidPartitions,
            format!("Topic already has {now} partition(s)."),
        ));
    }
    if wanted < now {
        return Err(ApiError::new(
            ErrorCode::InvalidPartitions,
            format!(
                "The topic {name} currently has {now} partition(s); {count} would not be an increase."
            ),
        ));
    }
    let additional = wanted - now;
    let factor = existing.partitions.first().map_or(1, |p| p.replicas.len());
    let assignments = match &topic.assignments {
        Some(assignments) if assignments.len() != additional => {
            return Err(ApiError::new(
                ErrorCode::InvalidReplicaAssignment,
                format!(
                    "Attempted to add {additional} additional partition(s), but only {} assignment(s) were specified.",
                    assignments.len()
                ),
            ));
        }
        Some(assignments) => {
            for replicas in assignments {
                check_manual(image, replicas, Some(factor))?;
            }
            assignments.clone()
        }
        None => placement
            .place(additional, factor, &existing.partitions)
            .map_err(|message| ApiError::new(ErrorCode::InvalidReplicationFactor, message))?,
    };
    Ok(assignments
        .into_iter()
        .enumerate()
        .map(|(i, replicas)| new_partition(existing.id, now + i, replicas))
        .collect())
}

fn allocate_producer_ids(image: &Image, node: NodeId) -> (Vec<Record>, OutcomeResult) {
    let first = image.next_producer_id();
    let failed = |code, message: &str| {
        let error = ApiError::new(code, message);
        (Vec::new(), OutcomeResult::Failed(error))
    };
    if image.node(node).is_none() {
        return failed(
            ErrorCode::BrokerIdNotRegistered,
            "No such node is registered.",
        );
    }
    let Some(next) = first.checked_add(i64::from(PRODUCER_ID_BLOCK)) else {
        return failed(
            ErrorCode::UnknownServerError,
            "All producer ids have been given out.",
        );
    };
    let block = ProducerIdBlock {
        first,
        len: PRODUCER_ID_BLOCK,
    };
    (
        vec![Record::ProducerIds { node, next }],
        OutcomeResult::ProducerIds(block),
    )
}

/// The node that decides: today the first of the one process.
fn controller(image: &Image) -> NodeId {
    let process = image
        .processes()
        .next()
        .map_or(0, |process| process.process);
    NodeId::of(process, ShardIndex(0))
}

/// Nodes come and go with their process, so that there is none yet that could be taken away by hand.
fn cannot_unregister(image: &Image, node: NodeId) -> ApiError {
    let number = node.0;
    match image.node(node) {
        None => ApiError::new(
            ErrorCode::BrokerIdNotRegistered,
            format!("Broker ID {number} is not currently registered"),
        ),
        Some(_) => ApiError::new(
            ErrorCode::InvalidRequest,
            format!(
                "Node {number} is a shard of a process that runs; it goes when the process starts with fewer shards."
            ),
        ),
    }
}

fn check_registration(
    image: &Image,
    process: i32,
    shards: &[ShardEndpoints],
    cluster_id: Option<Uuid>,
) -> Result<(), ApiError> {
    let wrong = |message: String| Err(ApiError::new(ErrorCode::InvalidRegistration, message));
    if !(0..=PROCESS_MAX).contains(&process) {
        return wrong(format!(
            "Process number {process} is not between 0 and {PROCESS_MAX}."
        ));
    }
    if shards.is_empty() || shards.len() > limit::SHARDS_MAX {
        return wrong(format!(
            "A process has 1 to {} shards, not {}.",
            limit::SHARDS_MAX,
            shards.len()
        ));
    }
    let dense = |(i, shard): (usize, &ShardEndpoints)| usize::from(shard.shard.0) == i;
    if !shards.iter().enumerate().all(dense) {
        return wrong("Shards are not numbered from 0.".to_string());
    }
    match cluster_id {
        Some(id) if !image.cluster_id().is_zero() && id != image.cluster_id() => {
            Err(ApiError::new(
                ErrorCode::InconsistentClusterId,
                format!(
                    "The cluster's id is {}, but this process belongs to {id}.",
                    image.cluster_id()
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Moves replicas off shards that the process no longer has: shard s goes to shard s modulo the new count. Data stays
/// where it is; another shard of the process opens it.
fn rehome(image: &Image, process: i32, count: usize, records: &mut Vec<Record>) {
    let home = |node: NodeId| {
        if node.process() == process && usize::from(node.shard().0) >= count {
            let shard = usize::from(node.shard().0) % count;
            NodeId::of(process, ShardIndex(shard as u16))
        } else {
            node
        }
    };
    let moved = |nodes: &[NodeId]| -> Option<Vec<NodeId>> {
        let new: Vec<NodeId> = nodes.iter().copied().map(home).collect();
        (new != nodes).then_some(new)
    };
    for topic in image.topics() {
        for (index, partition) in topic.partitions.iter().enumerate() {
            let Some(replicas) = moved(&partition.replicas) else {
                continue;
            };
            let leader = home(partition.leader);
            records.push(Record::PartitionChange {
                tp: TopicPartition {
                    topic: topic.id,
                    partition: index as i32,
                },
                change: PartitionChange {
                    replicas: Some(replicas),
                    isr: moved(&partition.isr),
                    leader: (leader != partition.leader).then_some(leader),
                },
            });
        }
    }
}

/// Names that occur more than once.
pub(super) fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}
