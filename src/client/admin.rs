//! Requests and answers of the admin tools, as plain values.

use super::Error;
use super::blocking::Client;
use super::cluster::Metadata;
use super::consumer::StartAt;
use crate::wire::ApiKey;
use crate::wire::msg::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use crate::wire::msg::alter_partition_reassignments_response::AlterPartitionReassignmentsResponse;
use crate::wire::msg::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use crate::wire::msg::create_partitions_response::CreatePartitionsResponse;
use crate::wire::msg::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use crate::wire::msg::create_topics_response::CreateTopicsResponse;
use crate::wire::msg::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use crate::wire::msg::delete_records_response::DeleteRecordsResponse;
use crate::wire::msg::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use crate::wire::msg::delete_topics_response::DeleteTopicsResponse;
use crate::wire::msg::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use crate::wire::msg::describe_configs_response::DescribeConfigsResponse;
use crate::wire::msg::describe_log_dirs_request::DescribeLogDirsRequest;
use crate::wire::msg::describe_log_dirs_response::DescribeLogDirsResponse;
use crate::wire::msg::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use crate::wire::msg::list_offsets_response::ListOffsetsResponse;
use crate::wire::msg::metadata_request::{MetadataRequest, MetadataRequestTopic};
use crate::wire::msg::metadata_response::MetadataResponse;

#[derive(Clone, Debug, Default)]
pub struct NewTopic {
    pub name: String,
    /// -1: the broker's default.
    pub partitions: i32,
    pub replication_factor: i16,
    pub configs: Vec<(String, String)>,
    /// By hand instead: the nodes of each partition.
    pub assignment: Vec<Vec<i32>>,
}

#[derive(Clone, Debug)]
pub struct ConfigEntry {
    pub name: String,
    pub value: Option<String>,
    /// Set for this resource, not a default of some kind.
    pub is_own: bool,
    pub is_sensitive: bool,
}

/// Resource types of DescribeConfigs.
pub const RESOURCE_TOPIC: i8 = 2;
pub const RESOURCE_BROKER: i8 = 4;

/// Sources of a value that belong to a topic itself.
const SOURCE_DYNAMIC_TOPIC: i8 = 1;

const TIMEOUT_MS: i32 = 30_000;

/// A partition, and where it starts now.
pub type NewStart = (i32, Result<i64, Error>);

/// A partition by its topic's name.
pub type Named = (String, i32);

impl Client {
    /// Metadata of the named topics, or of all.
    pub fn metadata(&mut self, topics: Option<&[&str]>) -> Result<Metadata, Error> {
        let request = MetadataRequest {
            topics: topics.map(|topics| {
                let of = |name: &&str| MetadataRequestTopic {
                    name: Some((*name).to_string().into()),
                    ..Default::default()
                };
                topics.iter().map(of).collect()
            }),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let answer = self.call_any(ApiKey::Metadata, |w, v| request.encode(w, v))?;
        let response = answer.decode(MetadataResponse::decode)?;
        if response.error_code != 0 {
            return Err(Error::broker(response.error_code, None));
        }
        Ok(Metadata::of(&response))
    }

    /// Gives the result of each topic, in the order asked.
    pub fn create_topics(
        &mut self,
        topics: &[NewTopic],
        validate_only: bool,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let of = |t: &NewTopic| {
            let by_hand = !t.assignment.is_empty();
            CreatableTopic {
                name: t.name.clone().into(),
                num_partitions: if by_hand { -1 } else { t.partitions },
                replication_factor: if by_hand { -1 } else { t.replication_factor },
                assignments: t
                    .assignment
                    .iter()
                    .enumerate()
                    .map(|(i, nodes)| CreatableReplicaAssignment {
                        partition_index: i as i32,
                        broker_ids: nodes.clone(),
                    })
                    .collect(),
                configs: t
                    .configs
                    .iter()
                    .map(|(name, value)| CreatableTopicConfig {
                        name: name.clone().into(),
                        value: Some(value.clone().into()),
                    })
                    .collect(),
            }
        };
        let request = CreateTopicsRequest {
            topics: topics.iter().map(of).collect(),
            timeout_ms: TIMEOUT_MS,
            validate_only,
        };
        let answer = self.call_any(ApiKey::CreateTopics, |w, v| request.encode(w, v))?;
        let response = answer.decode(CreateTopicsResponse::decode)?;
        let results = topics.iter().map(|topic| {
            let found = response.topics.iter().find(|t| t.name == topic.name);
            let found = found.ok_or(Error::Malformed("a topic is missing".to_string()))?;
            match found.error_code {
                0 => Ok(()),
                code => Err(Error::broker(code, found.error_message.as_deref())),
            }
        });
        Ok(results.collect())
    }

    /// Lets a topic have `count` partitions in all; the nodes of each new one by hand, or chosen by the controller.
    pub fn create_partitions(
        &mut self,
        topic: &str,
        count: i32,
        assignments: Option<&[Vec<i32>]>,
    ) -> Result<(), Error> {
        let by_hand = |nodes: &Vec<i32>| CreatePartitionsAssignment {
            broker_ids: nodes.clone(),
        };
        let request = CreatePartitionsRequest {
            topics: vec![CreatePartitionsTopic {
                name: topic.into(),
                count,
                assignments: assignments.map(|all| all.iter().map(by_hand).collect()),
            }],
            timeout_ms: TIMEOUT_MS,
            validate_only: false,
        };
        let answer = self.call_any(ApiKey::CreatePartitions, |w, v| request.encode(w, v))?;
        let response = answer.decode(CreatePartitionsResponse::decode)?;
        let found = response.results.iter().find(|t| t.name == topic);
        let found = found.ok_or(Error::Malformed("the topic is missing".to_string()))?;
        match found.error_code {
            0 => Ok(()),
            code => Err(Error::broker(code, found.error_message.as_deref())),
        }
    }

    /// Gives the result of each topic, in the order asked.
    pub fn delete_topics(&mut self, names: &[String]) -> Result<Vec<Result<(), Error>>, Error> {
        let request = DeleteTopicsRequest {
            topics: names
                .iter()
                .map(|name| DeleteTopicState {
                    name: Some(name.clone().into()),
                    ..Default::default()
                })
                .collect(),
            topic_names: names.iter().map(|name| name.clone().into()).collect(),
            timeout_ms: TIMEOUT_MS,
        };
        let answer = self.call_any(ApiKey::DeleteTopics, |w, v| request.encode(w, v))?;
        let response = answer.decode(DeleteTopicsResponse::decode)?;
        let results = names.iter().map(|name| {
            let is_it = |t: &&_| -> bool {
                let t: &crate::wire::msg::delete_topics_response::DeletableTopicResult<'_> = t;
                t.name.as_deref() == Some(name)
            };
            let found = response.responses.iter().find(is_it);
            let found = found.ok_or(Error::Malformed("a topic is missing".to_string()))?;
            match found.error_code {
                0 => Ok(()),
                code => Err(Error::broker(code, found.error_message.as_deref())),
            }
        });
        Ok(results.collect())
    }

    /// The configuration of each resource of one type, in the order asked. Broker resources must be asked of their node.
    pub fn describe_configs(
        &mut self,
        resource_type: i8,
        names: &[String],
    ) -> Result<Vec<Result<Vec<ConfigEntry>, Error>>, Error> {
        let request = DescribeConfigsRequest {
            resources: names
                .iter()
                .map(|name| DescribeConfigsResource {
                    resource_type,
                    resource_name: name.clone().into(),
                    configuration_keys: None,
                })
                .collect(),
            ..Default::default()
        };
        let answer = self.call_any(ApiKey::DescribeConfigs, |w, v| request.encode(w, v))?;
        let response = answer.decode(DescribeConfigsResponse::decode)?;
        let results = names.iter().map(|name| {
            let found = response.results.iter().find(|r| r.resource_name == *name);
            let found = found.ok_or(Error::Malformed("a resource is missing".to_string()))?;
            if found.error_code != 0 {
                let message = found.error_message.as_deref();
                return Err(Error::broker(found.error_code, message));
            }
            let entry =
                |c: &crate::wire::msg::describe_configs_response::DescribeConfigsResourceResult<
                    '_,
                >| {
                    ConfigEntry {
                        name: c.name.to_string(),
                        value: c.value.as_ref().map(|v| v.to_string()),
                        is_own: c.config_source == SOURCE_DYNAMIC_TOPIC,
                        is_sensitive: c.is_sensitive,
                    }
                };
            Ok(found.configs.iter().map(entry).collect())
        });
        Ok(results.collect())
    }

    /// Deletes the records below an offset of each of these partitions; gives where each starts then.
    pub fn delete_records(
        &mut self,
        topic: &str,
        below: &[(i32, i64)],
    ) -> Result<Vec<NewStart>, Error> {
        let metadata = self.metadata(Some(&[topic]))?;
        self.adopt(&metadata);
        let mut results = Vec::new();
        for (partition_index, offset) in below {
            let leader = metadata.leader(topic, *partition_index).unwrap_or(-1);
            let request = DeleteRecordsRequest {
                topics: vec![DeleteRecordsTopic {
                    name: topic.into(),
                    partitions: vec![DeleteRecordsPartition {
                        partition_index: *partition_index,
                        offset: *offset,
                    }],
                }],
                timeout_ms: TIMEOUT_MS,
            };
            let answer = self.call(leader, ApiKey::DeleteRecords, |w, v| request.encode(w, v))?;
            let response = answer.decode(DeleteRecordsResponse::decode)?;
            let found = response.topics.iter().flat_map(|t| &t.partitions).next();
            let found = found.ok_or(Error::Malformed("a partition is missing".to_string()))?;
            let result = match found.error_code {
                0 => Ok(found.low_watermark),
                code => Err(Error::broker(code, None)),
            };
            results.push((*partition_index, result));
        }
        Ok(results)
    }

    /// Gives partitions new replicas; the result of each, in the order asked.
    pub fn reassign(
        &mut self,
        moves: &[(Named, Vec<i32>)],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let of = |((topic, partition_index), replicas): &(Named, Vec<i32>)| ReassignableTopic {
            name: topic.clone().into(),
            partitions: vec![ReassignablePartition {
                partition_index: *partition_index,
                replicas: Some(replicas.clone()),
            }],
        };
        let request = AlterPartitionReassignmentsRequest {
            timeout_ms: TIMEOUT_MS,
            topics: moves.iter().map(of).collect(),
            ..Default::default()
        };
        let api = ApiKey::AlterPartitionReassignments;
        let answer = self.call_any(api, |w, v| request.encode(w, v))?;
        let response = answer.decode(AlterPartitionReassignmentsResponse::decode)?;
        if response.error_code != 0 {
            let message = response.error_message.as_deref();
            return Err(Error::broker(response.error_code, message));
        }
        let results = moves.iter().map(|((topic, partition), _)| {
            let named = response.responses.iter().filter(|t| t.name == *topic);
            let mut all = named.flat_map(|t| &t.partitions);
            let found = all.find(|p| p.partition_index == *partition);
            let found = found.ok_or(Error::Malformed("a partition is missing".to_string()))?;
            match found.error_code {
                0 => Ok(()),
                code => Err(Error::broker(code, found.error_message.as_deref())),
            }
        });
        Ok(results.collect())
    }

    /// The partitions that a node has, with the bytes of their logs.
    pub fn log_sizes(&mut self, node: i32) -> Result<Vec<(Named, i64)>, Error> {
        let request = DescribeLogDirsRequest { topics: None };
        let answer = self.call(node, ApiKey::DescribeLogDirs, |w, v| request.encode(w, v))?;
        let response = answer.decode(DescribeLogDirsResponse::decode)?;
        let mut sizes = Vec::new();
        for dir in &response.results {
            if dir.error_code != 0 {
                return Err(Error::broker(dir.error_code, None));
            }
            for topic in &dir.topics {
                let of = topic.partitions.iter();
                sizes.extend(of.map(|p| {
                    let named = (topic.name.to_string(), p.partition_index);
                    (named, p.partition_size)
                }));
            }
        }
        Ok(sizes)
    }

    /// The end of each of these partitions, which this node leads; those that it does not lead any more are left out.
    pub fn ends(&mut self, node: i32, partitions: &[Named]) -> Result<Vec<(Named, i64)>, Error> {
        let of = |(topic, partition_index): &Named| ListOffsetsTopic {
            name: topic.clone().into(),
            partitions: vec![ListOffsetsPartition {
                partition_index: *partition_index,
                current_leader_epoch: -1,
                timestamp: -1,
            }],
        };
        let request = ListOffsetsRequest {
            replica_id: -1,
            topics: partitions.iter().map(of).collect(),
            timeout_ms: TIMEOUT_MS,
            ..Default::default()
        };
        let answer = self.call(node, ApiKey::ListOffsets, |w, v| request.encode(w, v))?;
        let response = answer.decode(ListOffsetsResponse::decode)?;
        let told = response.topics.iter().flat_map(|topic| {
            let partitions = topic.partitions.iter().filter(|p| p.error_code == 0);
            partitions.map(|p| ((topic.name.to_string(), p.partition_index), p.offset))
        });
        Ok(told.collect())
    }

    /// The offset of `at` in each partition of a topic: (partition, offset), -1 where there is none.
    pub fn list_offsets(&mut self, topic: &str, at: StartAt) -> Result<Vec<(i32, i64)>, Error> {
        let metadata = self.metadata(Some(&[topic]))?;
        let known = metadata.topics.get(topic);
        let known = known.ok_or(Error::Malformed("the topic is missing".to_string()))?;
        if known.error.is_error() {
            return Err(Error::Broker {
                code: known.error,
                message: String::new(),
            });
        }
        self.adopt(&metadata);
        let mut offsets = Vec::new();
        for (index, partition) in known.partitions.iter().enumerate() {
            let index = index as i32;
            let request = ListOffsetsRequest {
                replica_id: -1,
                topics: vec![ListOffsetsTopic {
                    name: topic.into(),
                    partitions: vec![ListOffsetsPartition {
                        partition_index: index,
                        current_leader_epoch: -1,
                        timestamp: match at {
                            StartAt::Beginning => -2,
                            StartAt::End => -1,
                            StartAt::Time(time) | StartAt::Offset(time) => time,
                        },
                    }],
                }],
                timeout_ms: TIMEOUT_MS,
                ..Default::default()
            };
            let answer = self.call(partition.leader, ApiKey::ListOffsets, |w, v| {
                request.encode(w, v)
            })?;
            let response = answer.decode(ListOffsetsResponse::decode)?;
            let found = response.topics.iter().flat_map(|t| &t.partitions).next();
            let found = found.ok_or(Error::Malformed("a partition is missing".to_string()))?;
            if found.error_code != 0 {
                return Err(Error::broker(found.error_code, None));
            }
            offsets.push((index, found.offset));
        }
        Ok(offsets)
    }
}
