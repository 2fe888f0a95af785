//! ElectLeaders: preferred leaders, and leaders that were not in sync where there is no other way.

use crate::meta::{ApiError, Image, Partition, PartitionChange, PartitionResults, Record, Topic};
use crate::model::{ErrorCode, NodeId, TopicPartition};

pub(super) fn elect_leaders(
    image: &Image,
    unclean: bool,
    partitions: Option<&[(String, Vec<i32>)]>,
) -> (Vec<Record>, PartitionResults) {
    let mut records = Vec::new();
    let mut results = Vec::new();
    let Some(asked) = partitions else {
        for topic in image.topics() {
            let mut told = Vec::new();
            for number in (0..).take(topic.partitions.len()) {
                match elect(image, unclean, topic, number) {
                    Err(error) if error.code == ErrorCode::ElectionNotNeeded => {}
                    result => told.push((number, note(result, &mut records))),
                }
            }
            results.push((topic.name.to_string(), told));
        }
        return (records, results);
    };
    for (name, numbers) in asked {
        let told = numbers.iter().map(|number| {
            let result = match image.topic_by_name(name) {
                Some(topic) => elect(image, unclean, topic, *number),
                None => Err(ApiError::new(
                    ErrorCode::UnknownTopicOrPartition,
                    format!("No such topic as {name}"),
                )),
            };
            (*number, note(result, &mut records))
        });
        let told = told.collect();
        results.push((name.clone(), told));
    }
    (records, results)
}

fn note(result: Result<Record, ApiError>, records: &mut Vec<Record>) -> Option<ApiError> {
    match result {
        Ok(record) => {
            // A partition that is named twice changes once.
            if !records.contains(&record) {
                records.push(record);
            }
            None
        }
        Err(error) => Some(error),
    }
}

fn elect(image: &Image, unclean: bool, topic: &Topic, number: i32) -> Result<Record, ApiError> {
    let partition = topic.partition(number).ok_or_else(|| {
        ApiError::new(
            ErrorCode::UnknownTopicOrPartition,
            format!("No such partition as {}-{number}", topic.name),
        )
    })?;
    let change = if unclean {
        by_need(image, partition)?
    } else {
        by_preference(image, partition)?
    };
    Ok(Record::PartitionChange {
        tp: TopicPartition {
            topic: topic.id,
            partition: number,
        },
        change,
    })
}

fn not_needed() -> ApiError {
    ApiError::new(
        ErrorCode::ElectionNotNeeded,
        "Leader election not needed for topic partition.",
    )
}

fn by_preference(image: &Image, partition: &Partition) -> Result<PartitionChange, ApiError> {
    let preferred = partition.replicas.first().copied().unwrap_or(NodeId::NONE);
    if partition.leader == preferred {
        return Err(not_needed());
    }
    if !partition.isr.contains(&preferred) || image.node(preferred).is_none() {
        return Err(ApiError::new(
            ErrorCode::PreferredLeaderNotAvailable,
            "The preferred leader was not available.",
        ));
    }
    Ok(PartitionChange {
        leader: Some(preferred),
        ..PartitionChange::default()
    })
}

fn by_need(image: &Image, partition: &Partition) -> Result<PartitionChange, ApiError> {
    if partition.leader != NodeId::NONE {
        return Err(not_needed());
    }
    let replicas = partition.replicas.iter().copied();
    let alive = |node: &NodeId| image.node(*node).is_some();
    let in_sync = partition.isr.iter().copied().find(alive);
    let leader = in_sync.or_else(|| replicas.clone().find(alive));
    let leader = leader.ok_or_else(|| {
        ApiError::new(
            ErrorCode::EligibleLeadersNotAvailable,
            "Eligible topic partition leaders are not available.",
        )
    })?;
    Ok(PartitionChange {
        leader: Some(leader),
        // Whoever was not in sync has what it has: the others follow it.
        isr: in_sync.is_none().then(|| vec![leader]),
        ..PartitionChange::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::meta::ShardEndpoints;
    use crate::model::{ShardIndex, Uuid};

    const TOPIC: Uuid = Uuid([1; 16]);

    /// Processes 0 and 1 of one shard each, and a partition on both and on one that is gone.
    fn image(leader: i32, isr: &[i32]) -> Image {
        let nodes = |ids: &[i32]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
        let process = |process| Record::Process {
            process,
            incarnation: Uuid([7; 16]),
            epoch: -1,
            rack: None,
            shards: vec![ShardEndpoints {
                shard: ShardIndex(0),
                endpoints: Vec::new(),
            }],
        };
        let records = [
            process(0),
            process(1),
            Record::Topic {
                name: "t".into(),
                id: TOPIC,
            },
            Record::Partition {
                tp: TopicPartition {
                    topic: TOPIC,
                    partition: 0,
                },
                state: Partition {
                    replicas: nodes(&[0, 1000, 2000]),
                    isr: nodes(isr),
                    leader: NodeId(leader),
                    leader_epoch: 4,
                    partition_epoch: 9,
                },
            },
        ];
        let mut image = Image::new(Arc::default());
        for record in &records {
            image.apply(image.applied(), record);
        }
        image
    }

    fn outcome(image: &mut Image, unclean: bool) -> Result<(i32, Vec<i32>), ErrorCode> {
        let asked = [("t".to_string(), vec![0])];
        let (records, results) = elect_leaders(image, unclean, Some(&asked));
        if let Some(error) = &results[0].1[0].1 {
            return Err(error.code);
        }
        for record in &records {
            image.apply(image.applied(), record);
            image.check();
        }
        let partition = &image.topic_by_name("t").unwrap().partitions[0];
        assert_eq!((partition.leader_epoch, partition.partition_epoch), (5, 10));
        let isr = partition.isr.iter().map(|node| node.0);
        Ok((partition.leader.0, isr.collect()))
    }

    #[test]
    fn the_preferred_leader_takes_over_when_it_is_in_sync() {
        assert_eq!(
            outcome(&mut image(1000, &[0, 1000]), false),
            Ok((0, vec![0, 1000]))
        );
        assert_eq!(
            outcome(&mut image(1000, &[1000]), false),
            Err(ErrorCode::PreferredLeaderNotAvailable)
        );
        assert_eq!(
            outcome(&mut image(0, &[0, 1000]), false),
            Err(ErrorCode::ElectionNotNeeded)
        );
    }

    #[test]
    fn need_takes_who_is_in_sync_and_then_who_is_alive() {
        assert_eq!(
            outcome(&mut image(-1, &[1000]), true),
            Ok((1000, vec![1000]))
        );
        assert_eq!(outcome(&mut image(-1, &[2000]), true), Ok((0, vec![0])));
        assert_eq!(
            outcome(&mut image(1000, &[1000]), true),
            Err(ErrorCode::ElectionNotNeeded)
        );
    }

    #[test]
    fn all_partitions_are_those_that_need_it() {
        let (records, results) = elect_leaders(&image(0, &[0]), false, None);
        assert_eq!(
            (records.len(), results),
            (0, vec![("t".to_string(), vec![])])
        );
        let (records, results) = elect_leaders(&image(1000, &[0, 1000]), false, None);
        assert_eq!(
            (records.len(), results),
            (1, vec![("t".to_string(), vec![(0, None)])])
        );
    }
}
