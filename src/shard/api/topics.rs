//! CreateTopics (19) 2 to 7, DeleteTopics (20) 1 to 6, CreatePartitions (37) 0 to 3: any shard takes them and forwards
//! them to the controller; the answer leaves once every shard of the process serves the change.

use std::borrow::Cow;

use super::{Call, Flow, answer, error_of};
use crate::meta::{
    ApiError, Command, CreatedTopic, NewPartitions, NewTopic, Outcome, OutcomeResult, TopicRef,
};
use crate::model::{ErrorCode, NodeId};
use crate::shard::cluster::Then;
use crate::shard::conn::ReplyTo;
use crate::shard::{Actions, Shard};
use crate::wire::msg::create_partitions_request::CreatePartitionsRequest;
use crate::wire::msg::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use crate::wire::msg::create_topics_request::CreateTopicsRequest;
use crate::wire::msg::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use crate::wire::msg::delete_topics_request::DeleteTopicsRequest;
use crate::wire::msg::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use crate::wire::{ApiKey, Malformed, Reader};

impl Shard {
    pub(super) fn create_topics(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = CreateTopicsRequest::decode(r, call.version)?;
        let topics = request.topics.iter().map(|topic| NewTopic {
            name: topic.name.to_string(),
            partitions: topic.num_partitions,
            replication_factor: topic.replication_factor,
            assignments: topic
                .assignments
                .iter()
                .map(|assignment| (assignment.partition_index, nodes(&assignment.broker_ids)))
                .collect(),
            configs: topic
                .configs
                .iter()
                .map(|config| {
                    (
                        config.name.to_string(),
                        config.value.as_ref().map(|value| value.to_string()),
                    )
                })
                .collect(),
        });
        let command = Command::CreateTopics {
            topics: topics.collect(),
            validate_only: request.validate_only,
            auto: false,
        };
        Ok(self.forward(call, command, request.timeout_ms, actions))
    }

    pub(super) fn delete_topics(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DeleteTopicsRequest::decode(r, call.version)?;
        let topics = if call.version >= 6 {
            let topics = request.topics.iter();
            topics
                .map(|topic| TopicRef {
                    name: topic.name.as_ref().map(|name| name.to_string()),
                    id: topic.topic_id,
                })
                .collect()
        } else {
            let names = request.topic_names.iter();
            names
                .map(|name| TopicRef {
                    name: Some(name.to_string()),
                    id: Default::default(),
                })
                .collect()
        };
        Ok(self.forward(
            call,
            Command::DeleteTopics { topics },
            request.timeout_ms,
            actions,
        ))
    }

    pub(super) fn create_partitions(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = CreatePartitionsRequest::decode(r, call.version)?;
        let topics = request.topics.iter().map(|topic| NewPartitions {
            name: topic.name.to_string(),
            count: topic.count,
            assignments: topic.assignments.as_ref().map(|all| {
                all.iter()
                    .map(|assignment| nodes(&assignment.broker_ids))
                    .collect()
            }),
        });
        let command = Command::CreatePartitions {
            topics: topics.collect(),
            validate_only: request.validate_only,
        };
        Ok(self.forward(call, command, request.timeout_ms, actions))
    }

    fn forward(
        &mut self,
        call: Call,
        command: Command,
        timeout_ms: i32,
        actions: &mut Actions,
    ) -> Flow {
        let then = Then::Answer {
            to: call.to,
            version: call.version,
            correlation_id: call.correlation_id,
            command: command.clone(),
        };
        let id = self.propose(command, then, timeout_ms.max(0) as u64, actions);
        if let Some(conn) = self.conns.get_mut(call.to.conn) {
            conn.parked = Some(id);
        }
        Flow::Parked
    }

    /// Answers the client whose command has this outcome.
    pub(in crate::shard) fn answer_outcome(
        &mut self,
        to: ReplyTo,
        version: i16,
        correlation_id: i32,
        command: &Command,
        outcome: &Outcome,
        actions: &mut Actions,
    ) {
        let call = |api: ApiKey| Call {
            to,
            api,
            version,
            correlation_id,
        };
        let (call, bytes) = match command {
            Command::CreateTopics { topics, .. } => {
                let call = call(ApiKey::CreateTopics);
                (call, created(call, topics, &outcome.result))
            }
            Command::DeleteTopics { topics } => {
                let call = call(ApiKey::DeleteTopics);
                (call, deleted(call, topics, &outcome.result))
            }
            Command::CreatePartitions { topics, .. } => {
                let call = call(ApiKey::CreatePartitions);
                (call, grown(call, topics, &outcome.result))
            }
            Command::AlterConfigs { .. }
            | Command::ElectLeaders { .. }
            | Command::MoveReplicas { .. }
            | Command::UpdateFeatures { .. }
            | Command::UnregisterNode { .. }
            | Command::DescribeQuorum
            | Command::AllocateProducerIds { .. }
            | Command::RegisterProcess { .. } => return,
        };
        self.reply(call, bytes, actions);
    }
}

fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

/// What failed the whole command, for each of its items.
fn failure(result: &OutcomeResult) -> Option<ApiError> {
    match result {
        OutcomeResult::Failed(error) => Some(error.clone()),
        _ => Some(ApiError::bare(ErrorCode::UnknownServerError)),
    }
}

fn created(call: Call, asked: &[NewTopic], result: &OutcomeResult) -> Vec<u8> {
    let refused = |topic: &NewTopic| CreatedTopic {
        name: topic.name.clone(),
        id: Default::default(),
        error: failure(result),
        partitions: -1,
        replication_factor: -1,
        configs: Vec::new(),
    };
    let topics = match result {
        OutcomeResult::CreateTopics(topics) => topics.clone(),
        _ => asked.iter().map(refused).collect(),
    };
    let topics = topics.iter().map(|topic| {
        let (error, error_message) = error_of(&topic.error);
        let configs = topic.configs.iter().map(|config| CreatableTopicConfigs {
            name: config.name.clone(),
            value: config.value.as_deref().map(Cow::from),
            read_only: config.read_only,
            config_source: config.source.code(),
            is_sensitive: config.sensitive,
        });
        CreatableTopicResult {
            name: topic.name.as_str().into(),
            topic_id: topic.id,
            error_code: error.code(),
            error_message: error_message.map(Cow::from),
            num_partitions: topic.partitions,
            replication_factor: topic.replication_factor,
            configs: Some(configs.collect()),
            ..Default::default()
        }
    });
    let response = CreateTopicsResponse {
        topics: topics.collect(),
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}

fn deleted(call: Call, asked: &[TopicRef], result: &OutcomeResult) -> Vec<u8> {
    let item = |name: &Option<String>, topic_id, error: &Option<ApiError>| {
        let (mut error, error_message) = error_of(error);
        // The code came with version 3.
        if error == ErrorCode::TopicDeletionDisabled && call.version < 3 {
            error = ErrorCode::InvalidRequest;
        }
        DeletableTopicResult {
            name: name.clone().map(Cow::from),
            topic_id,
            error_code: error.code(),
            error_message: error_message.map(Cow::from),
        }
    };
    let responses = match result {
        OutcomeResult::DeleteTopics(topics) => topics
            .iter()
            .map(|topic| item(&topic.name, topic.id, &topic.error))
            .collect(),
        _ => asked
            .iter()
            .map(|topic| item(&topic.name, topic.id, &failure(result)))
            .collect(),
    };
    let response = DeleteTopicsResponse {
        responses,
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}

fn grown(call: Call, asked: &[NewPartitions], result: &OutcomeResult) -> Vec<u8> {
    let item = |name: &str, error: &Option<ApiError>| {
        let (error, error_message) = error_of(error);
        CreatePartitionsTopicResult {
            name: Cow::Owned(name.to_string()),
            error_code: error.code(),
            error_message: error_message.map(Cow::from),
        }
    };
    let results = match result {
        OutcomeResult::CreatePartitions(topics) => topics
            .iter()
            .map(|(name, error)| item(name, error))
            .collect(),
        _ => asked
            .iter()
            .map(|topic| item(&topic.name, &failure(result)))
            .collect(),
    };
    let response = CreatePartitionsResponse {
        results,
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
