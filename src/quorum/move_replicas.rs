//! AlterPartitionReassignments: which moves of replicas may be, and what they make of a partition.
//!
//! Between shards of a process a partition moves at once, without a copy: it is closed on the one and opened on the other
//! (`shard/handover.rs`), so no such move is ever seen under way. Moves between machines are refused, with the reason.

use crate::meta::{ApiError, Image, Moves, Partition, PartitionChange, PartitionResults, Record};
use crate::model::{ErrorCode, NodeId, TopicPartition};

use super::placement::check_manual;

pub(super) fn move_replicas(
    image: &Image,
    moves: &Moves,
    factor_may_change: bool,
) -> (Vec<Record>, PartitionResults) {
    let mut records = Vec::new();
    let mut results = Vec::new();
    for (name, partitions) in moves {
        let told = partitions.iter().map(|(number, replicas)| {
            let planned = plan(image, name, *number, replicas.as_deref(), factor_may_change);
            let error = match planned {
                Ok(more) => {
                    records.extend(more);
                    None
                }
                Err(error) => Some(error),
            };
            (*number, error)
        });
        let told = told.collect();
        results.push((name.clone(), told));
    }
    (records, results)
}

fn plan(
    image: &Image,
    name: &str,
    number: i32,
    target: Option<&[NodeId]>,
    factor_may_change: bool,
) -> Result<Vec<Record>, ApiError> {
    let unknown = |text: String| ApiError::new(ErrorCode::UnknownTopicOrPartition, text);
    let topic = image
        .topic_by_name(name)
        .ok_or_else(|| unknown(format!("Unable to find a topic named {name}.")))?;
    let partition = topic
        .partition(number)
        .ok_or_else(|| unknown(format!("Unable to find partition {name}:{number}.")))?;
    let Some(target) = target else {
        return Err(ApiError::bare(ErrorCode::NoReassignmentInProgress));
    };
    check_manual(image, target, None)?;
    let (now, then) = (partition.replicas.len(), target.len());
    if now != then && !factor_may_change {
        return Err(ApiError::new(
            ErrorCode::InvalidReplicationFactor,
            format!("The replication factor is changed from {now} to {then}"),
        ));
    }
    let tp = TopicPartition {
        topic: topic.id,
        partition: number,
    };
    between(tp, partition, target)
}

fn between(
    tp: TopicPartition,
    partition: &Partition,
    target: &[NodeId],
) -> Result<Vec<Record>, ApiError> {
    if partition.replicas == target {
        return Ok(Vec::new());
    }
    // Replicas of a partition never share a process, so that a process names one on either side.
    let of = |process: i32| {
        target
            .iter()
            .copied()
            .find(|node| node.process() == process)
    };
    let moved = |nodes: &[NodeId]| -> Option<Vec<NodeId>> {
        nodes.iter().map(|node| of(node.process())).collect()
    };
    if partition.replicas.len() == target.len()
        && moved(&partition.replicas).is_some()
        && let Some(isr) = moved(&partition.isr)
    {
        let leader = of(partition.leader.process());
        let change = PartitionChange {
            replicas: Some(target.to_vec()),
            isr: Some(isr),
            leader: leader.filter(|leader| *leader != partition.leader),
        };
        return Ok(vec![Record::PartitionChange { tp, change }]);
    }
    let numbers = |nodes: &[NodeId]| {
        let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
        numbers.join(", ")
    };
    Err(ApiError::new(
        ErrorCode::InvalidReplicaAssignment,
        format!(
            "The replicas cannot move from [{}] to [{}]: moving replicas between machines is not supported yet.",
            numbers(&partition.replicas),
            numbers(target)
        ),
    ))
}
