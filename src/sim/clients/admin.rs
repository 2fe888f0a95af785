//! Creates the topics of the plan through any shard, and later deletes some, makes them anew, lets them grow, moves their
//! partitions from shard to shard, deletes records and changes configs.

use std::collections::VecDeque;

use super::links::{Answer, Links};
use super::{Ctx, Input, PROCESS};
use crate::model::{ErrorCode, Instant, NodeId, ShardIndex, TopicId};
use crate::sim::plan::{AdminPlan, TopicPlan};
use crate::wire::ApiKey;
use crate::wire::msg::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use crate::wire::msg::alter_partition_reassignments_response::AlterPartitionReassignmentsResponse;
use crate::wire::msg::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use crate::wire::msg::create_partitions_response::CreatePartitionsResponse;
use crate::wire::msg::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use crate::wire::msg::create_topics_response::CreateTopicsResponse;
use crate::wire::msg::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use crate::wire::msg::delete_records_response::DeleteRecordsResponse;
use crate::wire::msg::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use crate::wire::msg::delete_topics_response::DeleteTopicsResponse;
use crate::wire::msg::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use crate::wire::msg::incremental_alter_configs_response::IncrementalAlterConfigsResponse;

/// A topic has no more partitions than this.
const PARTITIONS_MAX: i32 = 8;

/// Configs that change while topics are used, and what they change to.
const CONFIGS: [(&str, [&str; 3]); 5] = [
    ("retention.bytes", ["-1", "50000", "300000"]),
    ("retention.ms", ["-1", "200", "1000"]),
    ("internal.segment.bytes", ["70000", "120000", "400000"]),
    ("segment.ms", ["100", "5000", "604800000"]),
    ("index.interval.bytes", ["0", "256", "4096"]),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    Create(usize),
    /// By id, if it is known and the seed says so.
    Delete(usize, Option<TopicId>),
    Grow(usize, i32),
    /// A partition, to a shard.
    Move(usize, i32, u16),
    /// Records of a partition below an offset; -1: below the high watermark.
    Trim(usize, i32, i64),
    /// One of `CONFIGS`, and which of its values.
    Config(usize, usize, usize),
}

impl Job {
    fn topic(self) -> usize {
        match self {
            Job::Create(topic)
            | Job::Delete(topic, _)
            | Job::Grow(topic, _)
            | Job::Move(topic, ..)
            | Job::Trim(topic, ..)
            | Job::Config(topic, ..) => topic,
        }
    }
}

pub(crate) struct Admin {
    plan: AdminPlan,
    links: Links<Job>,
    topics: Vec<TopicPlan>,
    /// What is to be done, in order; the first one until it is known to be done.
    jobs: VecDeque<Job>,
    /// The ids of the topics, where an answer gave them.
    ids: Vec<Option<TopicId>>,
    asking: bool,
    /// How often the first job was asked for.
    asks: u32,
    not_before: Instant,
}

impl Admin {
    pub fn new(plan: AdminPlan, topics: &[TopicPlan]) -> Admin {
        Admin {
            plan,
            links: Links::new(),
            topics: topics.to_vec(),
            jobs: (0..topics.len()).map(Job::Create).collect(),
            ids: vec![None; topics.len()],
            asking: false,
            asks: 0,
            not_before: Instant(0),
        }
    }

    pub fn is_done(&self) -> bool {
        self.jobs.is_empty() && !self.asking
    }

    pub fn waits_for(&self) -> String {
        match self.jobs.front() {
            Some(job) => format!("{job:?}, {}", self.links.describe()),
            None => "an answer".into(),
        }
    }

    pub fn on(&mut self, input: Input, ctx: &mut Ctx<'_>) {
        match input {
            Input::Wake => {}
            Input::Bytes(conn, bytes) => {
                for answer in self.links.bytes(ctx, conn, &bytes) {
                    self.asking = false;
                    self.answered(&answer, ctx);
                }
            }
            Input::Gone(conn) => {
                if !self.links.gone(ctx, conn).is_empty() {
                    self.asking = false;
                }
            }
        }
        if self.plan.cut_one_in > 0
            && !ctx.calm
            && ctx.rng.one_in(self.plan.cut_one_in)
            && !self.links.cut(ctx).is_empty()
        {
            self.asking = false;
        }
        if self.jobs.is_empty() && !ctx.calm && self.plan.pause_ms.1 > 0 {
            self.think(ctx);
        }
        self.ask(ctx);
    }

    /// Something new, after a pause.
    fn think(&mut self, ctx: &mut Ctx<'_>) {
        if self.not_before == Instant(0) {
            let (from, to) = self.plan.pause_ms;
            self.not_before = ctx.now.after_ms(ctx.rng.range(from, to));
        }
        if ctx.now < self.not_before {
            return ctx.wake_in(self.not_before.0 - ctx.now.0);
        }
        self.not_before = Instant(0);
        let topic = ctx.rng.below(self.topics.len() as u64) as usize;
        if ctx.shards > 1 && ctx.rng.one_in(2) {
            // Several at once, back and forth: one may begin before another is over.
            for _ in 0..ctx.rng.range(1, 6) {
                let partition = ctx.rng.below(self.topics[topic].partitions as u64) as i32;
                let shard = ctx.rng.below(ctx.shards as u64) as u16;
                self.jobs.push_back(Job::Move(topic, partition, shard));
            }
            return ctx.wake_in(1);
        }
        if ctx.rng.one_in(3) {
            let partition = ctx.rng.below(self.topics[topic].partitions as u64) as i32;
            let end = ctx.oracle.end_of(self.ids[topic], partition);
            let offset = match ctx.rng.below(4) {
                0 => -1,
                _ => ctx.rng.range(0, end.max(0) as u64 + 3) as i64,
            };
            self.jobs.push_back(Job::Trim(topic, partition, offset));
            return ctx.wake_in(1);
        }
        if ctx.rng.one_in(3) {
            let which = ctx.rng.below(CONFIGS.len() as u64) as usize;
            let value = ctx.rng.below(3) as usize;
            self.jobs.push_back(Job::Config(topic, which, value));
            return ctx.wake_in(1);
        }
        if ctx.rng.one_in(2) {
            let more = self.topics[topic].partitions + ctx.rng.range(1, 3) as i32;
            if more <= PARTITIONS_MAX {
                self.jobs.push_back(Job::Grow(topic, more));
            }
            return ctx.wake_in(1);
        }
        let id = self.ids[topic].filter(|_| ctx.rng.one_in(2));
        self.jobs.push_back(Job::Delete(topic, id));
        self.jobs.push_back(Job::Create(topic));
    }

    fn ask(&mut self, ctx: &mut Ctx<'_>) {
        let Some(job) = self.jobs.front().copied() else {
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
        let timeout_ms = if ctx.rng.one_in(4) { 10 } else { 1_000 };
        let topic = &self.topics[job.topic()];
        ctx.trace
            .say(ctx.now, || format!("  client {} asks for {job:?}", ctx.me));
        self.asking = match job {
            Job::Create(_) => {
                let version = ctx.rng.range(2, 8) as i16;
                ctx.oracle.topics.creating(&topic.name, &topic.configs);
                let api = ApiKey::CreateTopics;
                self.links
                    .call(ctx, shard, api, version, Some(job), |w, v| {
                        creation(topic, timeout_ms).encode(w, v)
                    })
            }
            Job::Delete(_, id) => {
                let version = match id {
                    Some(_) => 6,
                    None => ctx.rng.range(1, 7) as i16,
                };
                ctx.oracle.topics.deleting(&topic.name);
                let api = ApiKey::DeleteTopics;
                self.links
                    .call(ctx, shard, api, version, Some(job), |w, v| {
                        deletion(&topic.name, id, timeout_ms, v).encode(w, v)
                    })
            }
            Job::Grow(_, count) => {
                let version = ctx.rng.below(4) as i16;
                let api = ApiKey::CreatePartitions;
                self.links
                    .call(ctx, shard, api, version, Some(job), |w, v| {
                        let topic = CreatePartitionsTopic {
                            name: topic.name.as_str().into(),
                            count,
                            assignments: None,
                        };
                        let request = CreatePartitionsRequest {
                            topics: vec![topic],
                            timeout_ms,
                            validate_only: false,
                        };
                        request.encode(w, v);
                    })
            }
            Job::Move(_, partition_index, shard_wanted) => {
                let version = ctx.rng.below(2) as i16;
                let api = ApiKey::AlterPartitionReassignments;
                let node = NodeId::of(PROCESS, ShardIndex(shard_wanted));
                self.links
                    .call(ctx, shard, api, version, Some(job), |w, v| {
                        let partition = ReassignablePartition {
                            partition_index,
                            replicas: Some(vec![node.0]),
                        };
                        let topic = ReassignableTopic {
                            name: topic.name.as_str().into(),
                            partitions: vec![partition],
                        };
                        let request = AlterPartitionReassignmentsRequest {
                            timeout_ms,
                            topics: vec![topic],
                            ..Default::default()
                        };
                        request.encode(w, v);
                    })
            }
            Job::Trim(_, partition_index, offset) => {
                let version = ctx.rng.below(3) as i16;
                ctx.oracle.trimming(&topic.name, partition_index, offset);
                let api = ApiKey::DeleteRecords;
                self.links
                    .call(ctx, shard, api, version, Some(job), |w, v| {
                        let partition = DeleteRecordsPartition {
                            partition_index,
                            offset,
                        };
                        let topic = DeleteRecordsTopic {
                            name: topic.name.as_str().into(),
                            partitions: vec![partition],
                        };
                        let request = DeleteRecordsRequest {
                            topics: vec![topic],
                            timeout_ms,
                        };
                        request.encode(w, v);
                    })
            }
            Job::Config(_, which, value) => {
                let version = ctx.rng.below(2) as i16;
                ctx.oracle.topics.altering(&topic.name);
                let api = ApiKey::IncrementalAlterConfigs;
                let (key, values) = CONFIGS[which];
                self.links
                    .call(ctx, shard, api, version, Some(job), |w, v| {
                        let config = AlterableConfig {
                            name: key.into(),
                            config_operation: 0,
                            value: Some(values[value].into()),
                        };
                        let resource = AlterConfigsResource {
                            resource_type: 2,
                            resource_name: topic.name.as_str().into(),
                            configs: vec![config],
                        };
                        let request = IncrementalAlterConfigsRequest {
                            resources: vec![resource],
                            validate_only: false,
                        };
                        request.encode(w, v);
                    })
            }
        };
        self.asks += u32::from(self.asking);
    }

    fn answered(&mut self, answer: &Answer<Job>, ctx: &mut Ctx<'_>) {
        let mut r = answer.reader();
        let job = answer.tag;
        let name = self.topics[job.topic()].name.clone();
        let (error, id) = match job {
            Job::Create(_) => match CreateTopicsResponse::decode(&mut r, answer.version) {
                Ok(response) => match response.topics.iter().find(|t| t.name == name) {
                    Some(topic) => (topic.error_code, topic.topic_id),
                    None => return ctx.fail(format!("CreateTopics does not name {name}")),
                },
                Err(e) => return ctx.fail(format!("CreateTopics cannot be read: {e}")),
            },
            Job::Delete(_, id) => match DeleteTopicsResponse::decode(&mut r, answer.version) {
                Ok(response) => match response.responses.first() {
                    Some(topic) if topic.name.as_deref() == Some(name.as_str()) => {
                        (topic.error_code, topic.topic_id)
                    }
                    // An id that is not known has no name.
                    Some(topic) if id == Some(topic.topic_id) => (topic.error_code, topic.topic_id),
                    _ => return ctx.fail(format!("DeleteTopics does not name {name}")),
                },
                Err(e) => return ctx.fail(format!("DeleteTopics cannot be read: {e}")),
            },
            Job::Grow(..) => match CreatePartitionsResponse::decode(&mut r, answer.version) {
                Ok(response) => match response.results.iter().find(|t| t.name == name) {
                    Some(topic) => (topic.error_code, TopicId::default()),
                    None => return ctx.fail(format!("CreatePartitions does not name {name}")),
                },
                Err(e) => return ctx.fail(format!("CreatePartitions cannot be read: {e}")),
            },
            Job::Move(..) => {
                match AlterPartitionReassignmentsResponse::decode(&mut r, answer.version) {
                    // The whole request was refused.
                    Ok(response) if response.error_code != 0 => {
                        (response.error_code, TopicId::default())
                    }
                    Ok(response) => match response.responses.first() {
                        Some(topic) if topic.name == name && topic.partitions.len() == 1 => {
                            (topic.partitions[0].error_code, TopicId::default())
                        }
                        _ => return ctx.fail(format!("a move does not name {name}")),
                    },
                    Err(e) => return ctx.fail(format!("a move cannot be read: {e}")),
                }
            }
            Job::Trim(_, partition, _) => {
                match DeleteRecordsResponse::decode(&mut r, answer.version) {
                    Ok(response) => match response.topics.first() {
                        Some(topic) if topic.name == name && topic.partitions.len() == 1 => {
                            let told = &topic.partitions[0];
                            if told.error_code == 0
                                && let Some(id) = self.ids[job.topic()]
                            {
                                ctx.oracle.trimmed(id, partition, told.low_watermark);
                            }
                            (told.error_code, TopicId::default())
                        }
                        _ => return ctx.fail(format!("DeleteRecords does not name {name}")),
                    },
                    Err(e) => return ctx.fail(format!("DeleteRecords cannot be read: {e}")),
                }
            }
            Job::Config(..) => {
                match IncrementalAlterConfigsResponse::decode(&mut r, answer.version) {
                    Ok(response) => match response.responses.first() {
                        Some(told) if told.resource_name == name => {
                            (told.error_code, TopicId::default())
                        }
                        _ => return ctx.fail(format!("a change of configs does not name {name}")),
                    },
                    Err(e) => return ctx.fail(format!("a change of configs cannot be read: {e}")),
                }
            }
        };
        self.decided(job, ErrorCode::from_code(error), id, ctx);
    }

    fn decided(&mut self, job: Job, error: ErrorCode, id: TopicId, ctx: &mut Ctx<'_>) {
        let index = job.topic();
        let topic = &mut self.topics[index];
        let again = self.asks > 1;
        let partitions = topic.partitions as usize;
        ctx.trace.say(ctx.now, || {
            format!("  client {} hears {error:?} of {job:?}", ctx.me)
        });
        match (job, error) {
            (Job::Create(_), ErrorCode::None) => {
                ctx.oracle.topics.created(&topic.name, id, partitions, true);
                self.ids[index] = (!id.is_zero()).then_some(id);
            }
            // An earlier attempt whose answer was lost.
            (Job::Create(_), ErrorCode::TopicAlreadyExists) if again => {
                ctx.oracle
                    .topics
                    .created(&topic.name, id, partitions, false);
            }
            (Job::Delete(..), ErrorCode::None) => {
                ctx.oracle.topics.deleted(&topic.name, true);
                self.ids[index] = None;
                // What is made under its name need not be like it.
                topic.partitions = ctx.rng.range(1, 5) as i32;
            }
            (Job::Delete(..), ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId)
                if again =>
            {
                ctx.oracle.topics.deleted(&topic.name, false);
                self.ids[index] = None;
            }
            (Job::Grow(_, count), ErrorCode::None) => {
                topic.partitions = count;
                ctx.oracle.topics.grown(&topic.name, count as usize);
            }
            (Job::Grow(_, count), ErrorCode::InvalidPartitions) if again => {
                topic.partitions = count;
            }
            (Job::Move(..), ErrorCode::None) => {}
            // Since it was planned, the process has started with fewer shards.
            (Job::Move(_, _, 1..), ErrorCode::InvalidReplicaAssignment) => {}
            // Out of range: it ends below. In time: a store whose only journal file is full tells no start until it has another one.
            (
                Job::Trim(..),
                ErrorCode::None | ErrorCode::OffsetOutOfRange | ErrorCode::RequestTimedOut,
            ) => {}
            // Another shard leads it, or does not know it yet.
            (
                Job::Trim(..),
                ErrorCode::NotLeaderOrFollower | ErrorCode::UnknownTopicOrPartition,
            ) => return ctx.wake_in(1_000),
            (Job::Trim(..), ErrorCode::KafkaStorageError) if ctx.oracle.fences_allowed => {}
            (Job::Config(_, which, value), ErrorCode::None) => {
                let (key, values) = CONFIGS[which];
                ctx.oracle.topics.altered(&topic.name, key, values[value]);
            }
            (_, ErrorCode::RequestTimedOut | ErrorCode::NotController) => return,
            (_, ErrorCode::KafkaStorageError) if ctx.oracle.refusals_allowed => return,
            (job, error) => {
                let name = &topic.name;
                return ctx.fail(format!("{job:?} of {name}: {}", error.name()));
            }
        }
        self.asks = 0;
        self.jobs.pop_front();
        // Not always at once: others meet a topic that is gone.
        let pause = ctx.rng.range(1, 30_000);
        ctx.wake_in(pause);
    }
}

fn creation(topic: &TopicPlan, timeout_ms: i32) -> CreateTopicsRequest<'_> {
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
    CreateTopicsRequest {
        topics: vec![topic],
        timeout_ms,
        ..Default::default()
    }
}

fn deletion(
    name: &str,
    id: Option<TopicId>,
    timeout_ms: i32,
    version: i16,
) -> DeleteTopicsRequest<'_> {
    let mut request = DeleteTopicsRequest {
        timeout_ms,
        ..Default::default()
    };
    if version < 6 {
        request.topic_names = vec![name.into()];
        return request;
    }
    request.topics = vec![DeleteTopicState {
        name: id.is_none().then(|| name.into()),
        topic_id: id.unwrap_or_default(),
    }];
    request
}
