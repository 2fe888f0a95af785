//! AlterPartitionReassignments: which moves of replicas may be, and what they make of a partition.
//!
//! Nothing moves yet: a move to where the replicas are is a success, and any other one is refused with its reason. A move
//! between shards of a process (close here, open there) and one between machines (copy, then drop) belong into [`plan`].

use crate::meta::{ApiError, Image, Moves, Partition, PartitionResults, Record};
use crate::model::{ErrorCode, NodeId};

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
    between(partition, target)
}

fn between(partition: &Partition, target: &[NodeId]) -> Result<Vec<Record>, ApiError> {
    if partition.replicas == target {
        return Ok(Vec::new());
    }
    let numbers = |nodes: &[NodeId]| {
        let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
        numbers.join(", ")
    };
    Err(ApiError::new(
        ErrorCode::InvalidReplicaAssignment,
        format!(
            "The replicas cannot move from [{}] to [{}]: moving replicas is not supported yet.",
            numbers(&partition.replicas),
            numbers(target)
        ),
    ))
}
