//! What a client knows of topics and leaders, by Metadata.

use std::collections::BTreeMap;

use super::links::{Answer, Links};
use super::{Ctx, PROCESS};
use crate::model::{ErrorCode, TopicId, TopicPartition};
use crate::sim::topics::Asked;
use crate::wire::ApiKey;
use crate::wire::msg::metadata_request::{MetadataRequest, MetadataRequestTopic};
use crate::wire::msg::metadata_response::MetadataResponse;

/// Topic ids are in Metadata from this version on.
const TOPIC_IDS_SINCE: i16 = 10;

#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub id: TopicId,
    /// The shard that leads each partition, if one does.
    pub leaders: Vec<Option<usize>>,
}

/// Knows the topics of these names.
pub(super) struct View {
    names: Vec<String>,
    topics: BTreeMap<usize, Topic>,
    asking: bool,
    pub stale: bool,
    /// What was known of each topic when the question under way left.
    asked: Vec<Asked>,
    /// Topics that are others than before, since last asked for.
    renewed: Vec<usize>,
}

impl View {
    pub fn new(names: Vec<String>) -> View {
        View {
            names,
            topics: BTreeMap::new(),
            asking: false,
            stale: true,
            asked: Vec::new(),
            renewed: Vec::new(),
        }
    }

    /// Topics that were deleted and made again under the same name: nothing that was known of them is right any more.
    pub fn take_renewed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.renewed)
    }

    pub fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        self.names.iter().map(String::as_str).enumerate()
    }

    pub fn name(&self, topic: usize) -> &str {
        &self.names[topic]
    }

    pub fn topic(&self, topic: usize) -> Option<&Topic> {
        self.topics.get(&topic)
    }

    pub fn topics(&self) -> impl Iterator<Item = (usize, &Topic)> {
        self.topics.iter().map(|(index, topic)| (*index, topic))
    }

    pub fn partitions(&self) -> usize {
        self.topics.values().map(|topic| topic.leaders.len()).sum()
    }

    pub fn is_complete(&self) -> bool {
        self.topics.len() == self.names.len()
    }

    pub fn tp(&self, (topic, partition): (usize, i32)) -> Option<TopicPartition> {
        let topic = self.topics.get(&topic)?.id;
        Some(TopicPartition { topic, partition })
    }

    pub fn leader(&self, (topic, partition): (usize, i32)) -> Option<usize> {
        *self.topics.get(&topic)?.leaders.get(partition as usize)?
    }

    /// Asks for Metadata when something is missing or stale.
    pub fn refresh<T>(&mut self, ctx: &mut Ctx<'_>, links: &mut Links<T>, tag: T) {
        if self.asking || !self.stale && self.is_complete() || ctx.shards == 0 {
            return;
        }
        let shard = ctx.rng.below(ctx.shards as u64) as usize;
        let version = ctx.rng.range(TOPIC_IDS_SINCE as u64, 14) as i16;
        self.asked = self
            .names
            .iter()
            .map(|name| ctx.oracle.topics.asked(name))
            .collect();
        let names = &self.names;
        let sent = links.call(ctx, shard, ApiKey::Metadata, version, Some(tag), |w, v| {
            let topics = names.iter().map(|name| MetadataRequestTopic {
                name: Some(name.as_str().into()),
                ..Default::default()
            });
            let request = MetadataRequest {
                topics: Some(topics.collect()),
                allow_auto_topic_creation: false,
                ..Default::default()
            };
            request.encode(w, v);
        });
        self.asking = sent;
    }

    /// The request for Metadata was lost.
    pub fn lost(&mut self) {
        self.asking = false;
    }

    pub fn answered<T>(&mut self, ctx: &mut Ctx<'_>, answer: &Answer<T>) {
        self.asking = false;
        self.stale = false;
        let mut r = answer.reader();
        let response = match MetadataResponse::decode(&mut r, answer.version) {
            Ok(response) => response,
            Err(e) => return ctx.fail(format!("Metadata cannot be read: {e}")),
        };
        for topic in &response.topics {
            let name = topic.name.as_deref().unwrap_or_default();
            let Some(index) = self.names.iter().position(|known| known == name) else {
                ctx.fail(format!("Metadata names {name}, nobody asked"));
                continue;
            };
            let asked = self.asked[index];
            let error = ErrorCode::from_code(topic.error_code);
            let shown = match error {
                ErrorCode::UnknownTopicOrPartition => None,
                _ => Some((topic.topic_id, topic.partitions.len())),
            };
            if error != ErrorCode::LeaderNotAvailable
                && let Err(wrong) = ctx.oracle.topics.shown(name, shown, asked)
            {
                ctx.fail(wrong);
            }
            match error {
                ErrorCode::None => {}
                // Not created yet, or the shard that was asked does not know of it yet.
                ErrorCode::UnknownTopicOrPartition | ErrorCode::LeaderNotAvailable => {
                    self.stale = true;
                    continue;
                }
                error => {
                    ctx.fail(format!("Metadata of {name}: {}", error.name()));
                    continue;
                }
            }
            let mut leaders = vec![None; topic.partitions.len()];
            for partition in &topic.partitions {
                let shard = partition.leader_id - PROCESS * 1000;
                let Some(leader) = leaders.get_mut(partition.partition_index as usize) else {
                    ctx.fail(format!("Metadata of {name}: partitions are not dense"));
                    continue;
                };
                *leader = usize::try_from(shard).ok();
                self.stale |= leader.is_none();
            }
            let id = topic.topic_id;
            ctx.oracle.topics.named(name, id);
            let before = self.topics.insert(index, Topic { id, leaders });
            if before.is_some_and(|before| before.id != id) {
                self.renewed.push(index);
            }
        }
    }
}
