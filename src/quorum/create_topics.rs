//! CreateTopics: names, configs, counts and replicas of new topics.

use std::collections::{BTreeMap, BTreeSet};

use crate::meta::config::{StaticConfig, validate_topic};
use crate::meta::{
    ApiError, CreatedTopic, Image, NewTopic, Partition, Record, Resource, topic_name_fault,
};
use crate::model::{ErrorCode, NodeId, Rng, TopicId, TopicPartition, Uuid, limit};

use super::controller::{repeated, too_many_partitions};
use super::placement::{Placement, check_manual};

/// Kafka's own topic for this log; nobody may create it.
const CLUSTER_METADATA: &str = "__cluster_metadata";

pub(super) fn create_topics(
    image: &Image,
    topics: &[NewTopic],
    auto: bool,
    rng: &mut Rng,
) -> (Vec<Record>, Vec<CreatedTopic>) {
    let repeated = repeated(topics.iter().map(|topic| topic.name.as_str()));
    let asked: Vec<NewTopic> = topics
        .iter()
        .filter(|topic| !repeated.contains(topic.name.as_str()) && topic.name != CLUSTER_METADATA)
        .map(|topic| match auto {
            true => internal(image, topic).unwrap_or_else(|| topic.clone()),
            false => topic.clone(),
        })
        .collect();
    let too_many = partitions_in_all(&asked, image.statics()) > limit::PARTITIONS_PER_REQUEST_MAX;
    let mut new = NewTopics {
        image,
        placement: Placement::new(image),
        unified: BTreeMap::new(),
        records: Vec::new(),
    };
    let mut results = Vec::new();
    for topic in &asked {
        let result = if too_many {
            Err(too_many_partitions())
        } else {
            new.create(topic, auto, rng)
        };
        results.push(result.unwrap_or_else(|error| refused(&topic.name, error)));
    }
    for name in repeated {
        let error = ApiError::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
        results.push(refused(name, error));
    }
    if topics.iter().any(|topic| topic.name == CLUSTER_METADATA) {
        let error = ApiError::bare(ErrorCode::TopicAuthorizationFailed);
        results.push(refused(CLUSTER_METADATA, error));
    }
    (new.records, results)
}

fn refused(name: &str, error: ApiError) -> CreatedTopic {
    CreatedTopic {
        name: name.to_string(),
        id: Uuid::ZERO,
        error: Some(error),
        partitions: -1,
        replication_factor: -1,
        configs: Vec::new(),
    }
}

fn partitions_in_all(topics: &[NewTopic], statics: &StaticConfig) -> usize {
    let default = statics.number("num.partitions");
    topics
        .iter()
        .map(|topic| match topic.partitions {
            _ if !topic.assignments.is_empty() => topic.assignments.len(),
            -1 => usize::try_from(default).unwrap_or(0),
            n => usize::try_from(n).unwrap_or(0),
        })
        .sum()
}

struct NewTopics<'a> {
    image: &'a Image,
    placement: Placement,
    /// Topics of this command that will exist, under their name with `.` written `_`.
    unified: BTreeMap<String, String>,
    records: Vec<Record>,
}

impl NewTopics<'_> {
    fn create(
        &mut self,
        topic: &NewTopic,
        auto: bool,
        rng: &mut Rng,
    ) -> Result<CreatedTopic, ApiError> {
        let name = topic.name.as_str();
        if let Some(existing) = self.image.topic_by_name(name) {
            if auto {
                return Ok(self.answer(
                    name,
                    existing.id,
                    &existing.overrides,
                    existing.partitions.len(),
                    existing.partitions.first().map_or(0, |p| p.replicas.len()),
                ));
            }
            return Err(ApiError::new(
                ErrorCode::TopicAlreadyExists,
                format!("Topic '{name}' already exists."),
            ));
        }
        if let Some(fault) = topic_name_fault(name) {
            return Err(ApiError::new(
                ErrorCode::InvalidTopicException,
                format!("Topic name is invalid: {fault}"),
            ));
        }
        self.check_collision(name)?;
        let overrides = configs(topic)?;
        validate_topic(&overrides, self.image.in_force())
            .map_err(|message| ApiError::new(ErrorCode::InvalidConfig, message))?;
        let replicas = if topic.assignments.is_empty() {
            self.automatic(topic)?
        } else {
            manual(self.image, topic)?
        };

        let id = new_id(self.image, rng);
        self.unified
            .insert(name.replace('.', "_"), name.to_string());
        let answer = self.answer(name, id, &overrides, replicas.len(), replicas[0].len());
        self.records.push(Record::Topic {
            name: name.into(),
            id,
        });
        for (key, value) in overrides {
            self.records.push(Record::Config {
                resource: Resource::Topic,
                name: name.to_string(),
                key,
                value: Some(value),
            });
        }
        for (index, replicas) in replicas.into_iter().enumerate() {
            self.records.push(new_partition(id, index, replicas));
        }
        Ok(answer)
    }

    /// Two names that differ in `.` and `_` only would share their metrics.
    fn check_collision(&self, name: &str) -> Result<(), ApiError> {
        let other = match self.image.colliding(name) {
            Some(other) => Some(&**other),
            None => self
                .unified
                .get(&name.replace('.', "_"))
                .map(String::as_str),
        };
        match other {
            Some(other) => Err(ApiError::new(
                ErrorCode::InvalidTopicException,
                format!("Topic '{name}' collides with existing topic: {other}"),
            )),
            None => Ok(()),
        }
    }

    fn automatic(&mut self, topic: &NewTopic) -> Result<Vec<Vec<NodeId>>, ApiError> {
        if topic.replication_factor < -1 || topic.replication_factor == 0 {
            return Err(ApiError::new(
                ErrorCode::InvalidReplicationFactor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            ));
        }
        if topic.partitions < -1 || topic.partitions == 0 {
            return Err(ApiError::new(
                ErrorCode::InvalidPartitions,
                "Number of partitions was set to an invalid non-positive value.",
            ));
        }
        let or_default = |value: i64, name: &str| match value {
            -1 => self.image.statics().number(name),
            value => value,
        };
        let count = or_default(i64::from(topic.partitions), "num.partitions");
        let factor = or_default(
            i64::from(topic.replication_factor),
            "default.replication.factor",
        );
        self.placement
            .place(count as usize, factor.max(1) as usize, &[])
            .map_err(|message| {
                ApiError::new(
                    ErrorCode::InvalidReplicationFactor,
                    format!("Unable to replicate the partition {factor} time(s): {message}"),
                )
            })
    }

    fn answer(
        &self,
        name: &str,
        id: TopicId,
        overrides: &BTreeMap<String, String>,
        partitions: usize,
        factor: usize,
    ) -> CreatedTopic {
        CreatedTopic {
            name: name.to_string(),
            id,
            error: None,
            partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
            replication_factor: i16::try_from(factor).unwrap_or(i16::MAX),
            configs: self.image.describe_overrides(overrides),
        }
    }
}

/// The configs that a topic is asked to have.
fn configs(topic: &NewTopic) -> Result<BTreeMap<String, String>, ApiError> {
    let nulls: Vec<&str> = topic
        .configs
        .iter()
        .filter(|(_, value)| value.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if !nulls.is_empty() {
        return Err(ApiError::new(
            ErrorCode::InvalidConfig,
            format!(
                "Null value not supported for topic configs: {}",
                nulls.join(",")
            ),
        ));
    }
    Ok(topic
        .configs
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
        .collect())
}

fn manual(image: &Image, topic: &NewTopic) -> Result<Vec<Vec<NodeId>>, ApiError> {
    let request = |message: &str| Err(ApiError::new(ErrorCode::InvalidRequest, message));
    if topic.replication_factor != -1 {
        return request(
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        );
    }
    if topic.partitions != -1 {
        return request(
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        );
    }
    let wrong = |message: String| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
    let mut partitions: BTreeMap<i32, &Vec<NodeId>> = BTreeMap::new();
    let mut factor = None;
    for (index, replicas) in &topic.assignments {
        if partitions.insert(*index, replicas).is_some() {
            return wrong(format!(
                "Found multiple manual partition assignments for partition {index}"
            ));
        }
        check_manual(image, replicas, factor)?;
        factor = Some(replicas.len());
    }
    let dense: BTreeSet<i32> = (0..partitions.len() as i32).collect();
    if !partitions.keys().eq(dense.iter()) {
        return wrong("partitions should be a consecutive 0-based integer sequence".to_string());
    }
    Ok(partitions.into_values().cloned().collect())
}

pub(super) fn new_partition(topic: TopicId, index: usize, replicas: Vec<NodeId>) -> Record {
    Record::Partition {
        tp: TopicPartition {
            topic,
            partition: i32::try_from(index).expect("counts are bounded"),
        },
        state: Partition {
            isr: replicas.clone(),
            leader: replicas[0],
            replicas,
            leader_epoch: 0,
            partition_epoch: 0,
        },
    }
}

/// An id that no topic has. Kafka reserves ids that print with a leading `-` (tools take them for an option), zero and one.
fn new_id(image: &Image, rng: &mut Rng) -> TopicId {
    loop {
        let mut id = rng.uuid();
        // The bits of a random UUID, as Java makes it.
        id.0[6] = id.0[6] & 0x0f | 0x40;
        id.0[8] = id.0[8] & 0x3f | 0x80;
        if image.topic(id).is_none() && !id.to_string().starts_with('-') {
            return id;
        }
    }
}

/// What auto creation makes of an internal topic: as its broker configs say, with no more replicas than there are machines.
fn internal(image: &Image, topic: &NewTopic) -> Option<NewTopic> {
    let (prefix, mut configs) = match topic.name.as_str() {
        "__consumer_offsets" => (
            "offsets.topic",
            vec![
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
            ],
        ),
        "__transaction_state" => (
            "transaction.state.log",
            vec![
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("unclean.leader.election.enable", "false"),
            ],
        ),
        "__share_group_state" => (
            "share.coordinator.state.topic",
            vec![
                ("cleanup.policy", "delete"),
                ("compression.type", "producer"),
                ("retention.ms", "-1"),
            ],
        ),
        _ => return None,
    };
    let statics = image.statics();
    let number = |key: &str| statics.number(&format!("{prefix}.{key}"));
    let segment = number("segment.bytes").max(1 << 20).to_string();
    configs.push(("segment.bytes", &segment));
    let isr;
    if prefix != "offsets.topic" {
        isr = number("min.isr").to_string();
        configs.push(("min.insync.replicas", &isr));
    }
    let machines = image.processes().count() as i64;
    Some(NewTopic {
        partitions: i32::try_from(number("num.partitions")).unwrap_or(i32::MAX),
        replication_factor: i16::try_from(number("replication.factor").min(machines).max(1))
            .unwrap_or(1),
        configs: configs
            .into_iter()
            .map(|(key, value)| (key.to_string(), Some(value.to_string())))
            .collect(),
        ..NewTopic::named(&topic.name)
    })
}
