//! Metadata (3), versions 0 to 13, and DescribeTopicPartitions (75), version 0; KIP-4, KIP-430, KIP-516, KIP-700, KIP-966.
//!
//! Answered from this shard's image. A missing topic may be created on the way, by Kafka's rules: the answer says
//! UNKNOWN_TOPIC_OR_PARTITION and the client asks again.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Call, Flow, answer};
use crate::meta::{Command, NewTopic, Partition, Topic, is_valid_topic_name};
use crate::model::limit::{AUTO_CREATION_TIMEOUT_MS, AUTO_CREATIONS_MAX};
use crate::model::{ConnId, ErrorCode, NodeId, TopicId};
use crate::shard::cluster::Then;
use crate::shard::{Actions, CONTROLLER_SHARD, Shard};
use crate::wire::msg::describe_topic_partitions_request::DescribeTopicPartitionsRequest;
use crate::wire::msg::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use crate::wire::msg::metadata_request::{MetadataRequest, MetadataRequestTopic};
use crate::wire::msg::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use crate::wire::{Malformed, Reader};

/// Operations on a topic that nobody is refused: Kafka's codes READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
/// DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11 as bits.
const TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;

/// The same for the cluster: CREATE 5, ALTER 7, DESCRIBE 8, CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11,
/// IDEMPOTENT_WRITE 12.
pub(super) const CLUSTER_OPERATIONS: i32 =
    1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// Operations were not asked for.
pub(super) const NO_OPERATIONS: i32 = i32::MIN;

impl Shard {
    pub(super) fn metadata(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = MetadataRequest::decode(r, call.version)?;
        let all = match &request.topics {
            None => true,
            Some(topics) => call.version == 0 && topics.is_empty(),
        };
        let topics = if all {
            let topics: Vec<Arc<Topic>> = self.image.topics().cloned().collect();
            topics
                .iter()
                .map(|topic| self.topic_metadata(topic, call))
                .collect()
        } else {
            let may_create = request.allow_auto_topic_creation && self.config.auto_create_topics;
            let mut named: Vec<MetadataResponseTopic<'static>> = Vec::new();
            let mut seen = BTreeSet::new();
            for topic in request.topics.iter().flatten() {
                let found = self.topic_asked(topic, call, may_create, actions);
                // A topic named twice gives one entry.
                if seen.insert((found.name.clone(), found.topic_id)) {
                    named.push(found);
                }
            }
            named
        };
        let operations = request.include_topic_authorized_operations;
        let topics = topics
            .into_iter()
            .map(|mut topic: MetadataResponseTopic<'_>| {
                let known = topic.error_code == ErrorCode::None.code();
                topic.topic_authorized_operations = if operations && known {
                    TOPIC_OPERATIONS
                } else {
                    NO_OPERATIONS
                };
                topic
            });
        let response = MetadataResponse {
            topics: topics.collect(),
            brokers: self.brokers(call.to.conn),
            cluster_id: Some(self.image.cluster_id().to_string().into()),
            controller_id: self.controller_node().0,
            cluster_authorized_operations: match request.include_cluster_authorized_operations {
                true => CLUSTER_OPERATIONS,
                false => NO_OPERATIONS,
            },
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    /// The node that clients send administration to. Any shard takes it; the controller's own saves a hop.
    pub(super) fn controller_node(&self) -> NodeId {
        NodeId::of(self.config.process, CONTROLLER_SHARD)
    }

    fn brokers(&self, conn: ConnId) -> Vec<MetadataResponseBroker<'_>> {
        let listener = self.listener_of(conn);
        let nodes = self.image.nodes();
        nodes
            .filter_map(|node| {
                let endpoint = node.endpoint(listener)?;
                Some(MetadataResponseBroker {
                    node_id: node.id.0,
                    host: endpoint.host.as_str().into(),
                    port: i32::from(endpoint.port),
                    rack: Some(node.rack().into()),
                })
            })
            .collect()
    }

    fn topic_asked(
        &mut self,
        asked: &MetadataRequestTopic<'_>,
        call: Call,
        may_create: bool,
        actions: &mut Actions,
    ) -> MetadataResponseTopic<'static> {
        let by_id = !asked.topic_id.is_zero();
        let refuse = |error: ErrorCode| MetadataResponseTopic {
            error_code: error.code(),
            name: asked.name.as_ref().map(|name| Cow::Owned(name.to_string())),
            topic_id: asked.topic_id,
            topic_authorized_operations: NO_OPERATIONS,
            ..Default::default()
        };
        let Some(name) = asked.name.as_deref() else {
            if !by_id || call.version < 12 {
                return refuse(ErrorCode::InvalidRequest);
            }
            return match self.image.topic(asked.topic_id).cloned() {
                Some(topic) => self.topic_metadata(&topic, call),
                None => refuse(ErrorCode::UnknownTopicId),
            };
        };
        if by_id && call.version < 12 {
            return refuse(ErrorCode::InvalidRequest);
        }
        let found = if by_id {
            self.image.topic(asked.topic_id)
        } else {
            self.image.topic_by_name(name)
        };
        match found.cloned() {
            Some(topic) => self.topic_metadata(&topic, call),
            None if by_id => refuse(ErrorCode::UnknownTopicId),
            None if !is_valid_topic_name(name) => refuse(ErrorCode::InvalidTopicException),
            None => {
                if may_create {
                    self.auto_create(name, actions);
                }
                refuse(ErrorCode::UnknownTopicOrPartition)
            }
        }
    }

    fn auto_create(&mut self, name: &str, actions: &mut Actions) {
        let under_way = &mut self.follower.auto_creating;
        if under_way.len() >= AUTO_CREATIONS_MAX || under_way.iter().any(|topic| topic == name) {
            return;
        }
        under_way.push(name.to_string());
        let command = Command::CreateTopics {
            topics: vec![NewTopic::named(name)],
            validate_only: false,
            auto: true,
        };
        let then = Then::AutoCreate {
            topic: name.to_string(),
        };
        self.propose(command, then, AUTO_CREATION_TIMEOUT_MS, actions);
    }

    fn topic_metadata(&self, topic: &Topic, call: Call) -> MetadataResponseTopic<'static> {
        let partitions = (0..).zip(&topic.partitions);
        MetadataResponseTopic {
            error_code: ErrorCode::None.code(),
            name: Some(Cow::Owned(topic.name.to_string())),
            topic_id: topic.id,
            is_internal: topic.is_internal(),
            partitions: partitions
                .map(|(partition_index, partition)| MetadataResponsePartition {
                    error_code: self.leader_error(partition, call).code(),
                    partition_index,
                    leader_id: partition.leader.0,
                    leader_epoch: partition.leader_epoch,
                    replica_nodes: ids(&partition.replicas),
                    isr_nodes: ids(&partition.isr),
                    offline_replicas: self.offline(partition),
                })
                .collect(),
            topic_authorized_operations: NO_OPERATIONS,
        }
    }

    /// What Metadata says of a partition's leader.
    fn leader_error(&self, partition: &Partition, call: Call) -> ErrorCode {
        match self.image.node(partition.leader) {
            None => ErrorCode::LeaderNotAvailable,
            Some(node) if node.endpoint(self.listener_of(call.to.conn)).is_some() => {
                ErrorCode::None
            }
            Some(_) if call.version >= 6 => ErrorCode::ListenerNotFound,
            Some(_) => ErrorCode::LeaderNotAvailable,
        }
    }

    fn offline(&self, partition: &Partition) -> Vec<i32> {
        let replicas = partition.replicas.iter();
        replicas
            .filter(|node| self.image.node(**node).is_none())
            .map(|node| node.0)
            .collect()
    }

    pub(super) fn describe_topic_partitions(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DescribeTopicPartitionsRequest::decode(r, call.version)?;
        let mut names: Vec<String> = match request.topics.is_empty() {
            true => self
                .image
                .topics()
                .map(|topic| topic.name.to_string())
                .collect(),
            false => request
                .topics
                .iter()
                .map(|topic| topic.name.to_string())
                .collect(),
        };
        names.sort_unstable();
        names.dedup();
        let (from_topic, mut from_partition) = match &request.cursor {
            Some(cursor) => (
                cursor.topic_name.to_string(),
                cursor.partition_index.max(0) as usize,
            ),
            None => (String::new(), 0),
        };
        names.retain(|name| *name >= from_topic);
        let statics = self.image.statics();
        let limit_max = statics.number("max.request.partition.size.limit");
        let limit = request
            .response_partition_limit
            .clamp(1, i32::try_from(limit_max).unwrap_or(i32::MAX)) as usize;
        let mut room = limit;
        let mut topics = Vec::new();
        let mut next_cursor = None;
        for name in &names {
            let skip = if *name == from_topic {
                std::mem::take(&mut from_partition)
            } else {
                0
            };
            if room == 0 {
                next_cursor = Some(Cursor {
                    topic_name: name.as_str().into(),
                    partition_index: 0,
                });
                break;
            }
            let Some(topic) = self.image.topic_by_name(name) else {
                topics.push(unknown_topic(name));
                continue;
            };
            let partitions: Vec<_> = (0..).zip(&topic.partitions).skip(skip).take(room).collect();
            room -= partitions.len();
            let end = skip + partitions.len();
            topics.push(self.topic_description(topic, call, &partitions));
            if end < topic.partitions.len() {
                next_cursor = Some(Cursor {
                    topic_name: name.as_str().into(),
                    partition_index: end as i32,
                });
                break;
            }
        }
        let response = DescribeTopicPartitionsResponse {
            topics,
            next_cursor,
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn topic_description(
        &self,
        topic: &Topic,
        call: Call,
        partitions: &[(i32, &Partition)],
    ) -> DescribeTopicPartitionsResponseTopic<'static> {
        let describe = |(partition_index, partition): &(i32, &Partition)| {
            DescribeTopicPartitionsResponsePartition {
                error_code: self.leader_error(partition, call).code(),
                partition_index: *partition_index,
                leader_id: partition.leader.0,
                leader_epoch: partition.leader_epoch,
                replica_nodes: ids(&partition.replicas),
                isr_nodes: ids(&partition.isr),
                eligible_leader_replicas: Some(Vec::new()),
                last_known_elr: Some(Vec::new()),
                offline_replicas: self.offline(partition),
            }
        };
        DescribeTopicPartitionsResponseTopic {
            error_code: ErrorCode::None.code(),
            name: Some(Cow::Owned(topic.name.to_string())),
            topic_id: topic.id,
            is_internal: topic.is_internal(),
            partitions: partitions.iter().map(describe).collect(),
            topic_authorized_operations: TOPIC_OPERATIONS,
        }
    }
}

fn unknown_topic(name: &str) -> DescribeTopicPartitionsResponseTopic<'static> {
    let error = if is_valid_topic_name(name) {
        ErrorCode::UnknownTopicOrPartition
    } else {
        ErrorCode::InvalidTopicException
    };
    DescribeTopicPartitionsResponseTopic {
        error_code: error.code(),
        name: Some(Cow::Owned(name.to_string())),
        topic_id: TopicId::default(),
        topic_authorized_operations: NO_OPERATIONS,
        ..Default::default()
    }
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}
