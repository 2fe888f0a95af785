//! Creates the topics of the plan, through any shard.

use super::links::Links;
use super::{Ctx, Input};
use crate::model::ErrorCode;
use crate::sim::plan::TopicPlan;
use crate::wire::ApiKey;
use crate::wire::msg::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use crate::wire::msg::create_topics_response::CreateTopicsResponse;

pub(crate) struct Admin {
    links: Links<usize>,
    /// With whether its creation was answered.
    topics: Vec<(TopicPlan, bool)>,
    asking: bool,
}

impl Admin {
    pub fn new(topics: &[TopicPlan]) -> Admin {
        Admin {
            links: Links::new(),
            topics: topics.iter().map(|topic| (topic.clone(), false)).collect(),
            asking: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.topics.iter().all(|(_, done)| *done) && !self.asking
    }

    pub fn waits_for(&self) -> String {
        match self.topics.iter().find(|(_, done)| !done) {
            Some((topic, _)) => format!("the creation of topic {}", topic.name),
            None => "an answer".into(),
        }
    }

    pub fn on(&mut self, input: Input, ctx: &mut Ctx<'_>) {
        match input {
            Input::Wake => {}
            Input::Bytes(conn, bytes) => {
                for answer in self.links.bytes(ctx, conn, &bytes) {
                    self.asking = false;
                    let mut r = answer.reader();
                    match CreateTopicsResponse::decode(&mut r, answer.version) {
                        Ok(response) => self.created(&response, answer.tag, ctx),
                        Err(e) => ctx.fail(format!("CreateTopics cannot be read: {e}")),
                    }
                }
            }
            Input::Gone(conn) => {
                if !self.links.gone(ctx, conn).is_empty() {
                    self.asking = false;
                }
            }
        }
        self.create_next(ctx);
    }

    fn create_next(&mut self, ctx: &mut Ctx<'_>) {
        let Some(index) = self.topics.iter().position(|(_, done)| !done) else {
            return;
        };
        if self.asking {
            return;
        }
        ctx.wake_in(10_000);
        if ctx.shards == 0 {
            return;
        }
        let shard = ctx.rng.below(ctx.shards as u64) as usize;
        let version = ctx.rng.range(2, 8) as i16;
        let topic = &self.topics[index].0;
        self.asking = self.links.call(
            ctx,
            shard,
            ApiKey::CreateTopics,
            version,
            Some(index),
            |w, v| {
                let configs = topic
                    .configs
                    .iter()
                    .map(|(name, value)| CreatableTopicConfig {
                        name: (*name).into(),
                        value: Some(value.as_str().into()),
                    });
                let topic = CreatableTopic {
                    name: topic.name.as_str().into(),
                    num_partitions: topic.partitions,
                    replication_factor: 1,
                    configs: configs.collect(),
                    ..Default::default()
                };
                let request = CreateTopicsRequest {
                    topics: vec![topic],
                    timeout_ms: 1_000,
                    ..Default::default()
                };
                request.encode(w, v);
            },
        );
    }

    fn created(&mut self, response: &CreateTopicsResponse<'_>, index: usize, ctx: &mut Ctx<'_>) {
        let (topic, done) = &mut self.topics[index];
        let Some(result) = response.topics.iter().find(|t| t.name == topic.name) else {
            return ctx.fail(format!("CreateTopics does not name {}", topic.name));
        };
        match ErrorCode::from_code(result.error_code) {
            ErrorCode::None => {
                *done = true;
                if !result.topic_id.is_zero() {
                    ctx.oracle.topic_created(&topic.name, result.topic_id);
                }
            }
            // An earlier attempt whose answer was lost.
            ErrorCode::TopicAlreadyExists => *done = true,
            ErrorCode::RequestTimedOut | ErrorCode::NotController => {}
            ErrorCode::KafkaStorageError if ctx.oracle.refusals_allowed => {}
            error => ctx.fail(format!("CreateTopics of {}: {}", topic.name, error.name())),
        }
    }
}
