//! Looks things up: offsets by time, ends of epochs, configs, topics. What it is told must agree with what others know.

use super::links::{Answer, Links};
use super::view::View;
use super::{Ctx, Input};
use crate::model::{ErrorCode, TopicPartition};
use crate::sim::oracle::{EPOCH_MS, ProbeKnown};
use crate::sim::plan::{ProberPlan, TopicPlan};
use crate::sim::topics::Asked as NameAsked;
use crate::wire::ApiKey;
use crate::wire::msg::api_versions_request::ApiVersionsRequest;
use crate::wire::msg::api_versions_response::ApiVersionsResponse;
use crate::wire::msg::describe_cluster_request::DescribeClusterRequest;
use crate::wire::msg::describe_cluster_response::DescribeClusterResponse;
use crate::wire::msg::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use crate::wire::msg::describe_configs_response::DescribeConfigsResponse;
use crate::wire::msg::describe_topic_partitions_request::{
    DescribeTopicPartitionsRequest, TopicRequest,
};
use crate::wire::msg::describe_topic_partitions_response::DescribeTopicPartitionsResponse;
use crate::wire::msg::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use crate::wire::msg::list_offsets_response::ListOffsetsResponse;
use crate::wire::msg::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use crate::wire::msg::offset_for_leader_epoch_response::OffsetForLeaderEpochResponse;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
/// Kafka's resource type of topics in DescribeConfigs.
const TOPIC: i8 = 2;

/// What an epoch in a request is, seen from the leader's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Current {
    None,
    Older,
    Right,
    Newer,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    topic: usize,
    tp: TopicPartition,
    known: ProbeKnown,
    asked: NameAsked,
    current: Current,
}

#[derive(Clone, Copy, Debug)]
enum Tag {
    Metadata,
    List { place: Place, timestamp: i64 },
    EpochEnd { place: Place, epoch: i32 },
    Configs { topic: usize, asked: NameAsked },
    Describe { topic: usize, asked: NameAsked },
    Cluster { shards: usize },
    Versions,
}

pub(crate) struct Prober {
    plan: ProberPlan,
    links: Links<Tag>,
    view: View,
}

impl Prober {
    pub fn new(plan: ProberPlan, topics: &[TopicPlan]) -> Prober {
        Prober {
            plan,
            links: Links::new(),
            view: View::new(topics.iter().map(|topic| topic.name.clone()).collect()),
        }
    }

    pub fn is_done(&self) -> bool {
        self.links.in_flight_total() == 0
    }

    pub fn waits_for(&self) -> String {
        self.links.describe()
    }

    pub fn on(&mut self, input: Input, ctx: &mut Ctx<'_>) {
        match input {
            Input::Wake => {}
            Input::Bytes(conn, bytes) => {
                for answer in self.links.bytes(ctx, conn, &bytes) {
                    self.answered(&answer, ctx);
                }
            }
            Input::Gone(conn) => {
                if !self.links.gone(ctx, conn).is_empty() {
                    self.view.lost();
                }
            }
        }
        if ctx.calm {
            return;
        }
        if self.plan.cut_one_in > 0
            && ctx.rng.one_in(self.plan.cut_one_in)
            && !self.links.cut(ctx).is_empty()
        {
            self.view.lost();
        }
        self.view.stale |= ctx.rng.one_in(20);
        self.view.refresh(ctx, &mut self.links, Tag::Metadata);
        if ctx.shards > 0 && self.links.in_flight_total() == 0 {
            match ctx.rng.below(8) {
                0..=3 => self.list(ctx),
                4 | 5 => self.epoch_end(ctx),
                _ => self.describe(ctx),
            }
        }
        let (from, to) = self.plan.pause_us;
        let pause = ctx.rng.range(from, to);
        ctx.wake_in(pause);
    }

    fn place(&mut self, ctx: &mut Ctx<'_>) -> Option<(Place, usize, i32)> {
        let topics: Vec<(usize, usize)> = self
            .view
            .topics()
            .map(|(index, topic)| (index, topic.leaders.len()))
            .collect();
        if topics.is_empty() {
            return None;
        }
        let (topic, partitions) = topics[ctx.rng.below(topics.len() as u64) as usize];
        let at = (topic, ctx.rng.below(partitions.max(1) as u64) as i32);
        let (tp, leader) = (self.view.tp(at)?, self.view.leader(at)?);
        let known = ctx.oracle.probe(tp);
        let current = match ctx.rng.below(6) {
            0 if known.leader_epoch > 0 => Current::Older,
            1 => Current::Newer,
            2 => Current::Right,
            _ => Current::None,
        };
        let epoch = match current {
            Current::None => -1,
            Current::Older => known.leader_epoch - 1,
            Current::Right => known.leader_epoch,
            Current::Newer => known.leader_epoch + 1,
        };
        let place = Place {
            topic,
            tp,
            known,
            asked: ctx.oracle.topics.asked(self.view.name(topic)),
            current,
        };
        Some((place, leader, epoch))
    }

    fn list(&mut self, ctx: &mut Ctx<'_>) {
        let Some((place, leader, current_leader_epoch)) = self.place(ctx) else {
            return;
        };
        let timestamp = match ctx.rng.below(5) {
            0 => LATEST,
            1 => EARLIEST,
            2 => MAX_TIMESTAMP,
            _ => EPOCH_MS + ctx.rng.below(ctx.oracle.batches() + 2) as i64,
        };
        // The largest timestamp can be asked for from version 7 on, fences come with version 4.
        let version_min = match (timestamp, place.current) {
            (MAX_TIMESTAMP, _) => 7,
            (_, Current::None) => 1,
            _ => 4,
        };
        let version = ctx.rng.range(version_min, 12) as i16;
        let tag = Some(Tag::List { place, timestamp });
        let name = self.view.name(place.topic).to_string();
        let isolation_level = ctx.rng.below(2) as i8;
        self.links
            .call(ctx, leader, ApiKey::ListOffsets, version, tag, |w, v| {
                let partition = ListOffsetsPartition {
                    partition_index: place.tp.partition,
                    current_leader_epoch,
                    timestamp,
                };
                let topic = ListOffsetsTopic {
                    name: name.into(),
                    partitions: vec![partition],
                };
                let request = ListOffsetsRequest {
                    replica_id: -1,
                    isolation_level,
                    topics: vec![topic],
                    ..Default::default()
                };
                request.encode(w, v);
            });
    }

    fn epoch_end(&mut self, ctx: &mut Ctx<'_>) {
        let Some((place, leader, current_leader_epoch)) = self.place(ctx) else {
            return;
        };
        let epoch = ctx.rng.below((place.known.leader_epoch + 3) as u64) as i32;
        let version = ctx.rng.range(2, 5) as i16;
        let tag = Some(Tag::EpochEnd { place, epoch });
        let name = self.view.name(place.topic).to_string();
        let api = ApiKey::OffsetForLeaderEpoch;
        self.links.call(ctx, leader, api, version, tag, |w, v| {
            let partition = OffsetForLeaderPartition {
                partition: place.tp.partition,
                current_leader_epoch,
                leader_epoch: epoch,
            };
            let topic = OffsetForLeaderTopic {
                topic: name.into(),
                partitions: vec![partition],
            };
            let request = OffsetForLeaderEpochRequest {
                replica_id: -1,
                topics: vec![topic],
            };
            request.encode(w, v);
        });
    }

    fn describe(&mut self, ctx: &mut Ctx<'_>) {
        let shard = ctx.rng.below(ctx.shards as u64) as usize;
        let topics = self.view.names().count() as u64;
        let topic = ctx.rng.below(topics) as usize;
        let name = self.view.name(topic).to_string();
        let asked = ctx.oracle.topics.asked(&name);
        match ctx.rng.below(4) {
            0 => {
                let version = ctx.rng.range(1, 5) as i16;
                let tag = Some(Tag::Configs { topic, asked });
                let api = ApiKey::DescribeConfigs;
                self.links.call(ctx, shard, api, version, tag, |w, v| {
                    let resource = DescribeConfigsResource {
                        resource_type: TOPIC,
                        resource_name: name.into(),
                        configuration_keys: None,
                    };
                    let request = DescribeConfigsRequest {
                        resources: vec![resource],
                        include_synonyms: true,
                        include_documentation: true,
                    };
                    request.encode(w, v);
                });
            }
            1 => {
                let tag = Some(Tag::Describe { topic, asked });
                let api = ApiKey::DescribeTopicPartitions;
                self.links.call(ctx, shard, api, 0, tag, |w, v| {
                    let request = DescribeTopicPartitionsRequest {
                        topics: vec![TopicRequest { name: name.into() }],
                        response_partition_limit: 2_000,
                        cursor: None,
                    };
                    request.encode(w, v);
                });
            }
            2 => {
                let version = ctx.rng.below(3) as i16;
                let shards = ctx.shards;
                let tag = Some(Tag::Cluster { shards });
                let api = ApiKey::DescribeCluster;
                self.links.call(ctx, shard, api, version, tag, |w, v| {
                    let request = DescribeClusterRequest {
                        endpoint_type: 1,
                        ..Default::default()
                    };
                    request.encode(w, v);
                });
            }
            _ => {
                let version = ctx.rng.below(5) as i16;
                let (tag, api) = (Some(Tag::Versions), ApiKey::ApiVersions);
                self.links.call(ctx, shard, api, version, tag, |w, v| {
                    let request = ApiVersionsRequest {
                        client_software_name: "sim".into(),
                        client_software_version: "1".into(),
                        ..Default::default()
                    };
                    request.encode(w, v);
                });
            }
        }
    }

    // -- answers

    fn answered(&mut self, answer: &Answer<Tag>, ctx: &mut Ctx<'_>) {
        if let Tag::Metadata = answer.tag {
            self.view.answered(ctx, answer);
            self.view.take_renewed();
            return;
        }
        if let Err(why) = self.read(answer, ctx) {
            ctx.fail(format!("{:?} {}: {why}", answer.tag, answer.version));
        }
    }

    fn read(&mut self, answer: &Answer<Tag>, ctx: &mut Ctx<'_>) -> Result<(), String> {
        let (mut r, version) = (answer.reader(), answer.version);
        let unreadable = |e| format!("cannot be read: {e}");
        match answer.tag {
            Tag::Metadata => {}
            Tag::List { place, timestamp } => {
                let response = ListOffsetsResponse::decode(&mut r, version).map_err(unreadable)?;
                let partition = response.topics.first().and_then(|t| t.partitions.first());
                let partition = partition.ok_or("no partition is answered")?;
                let error = ErrorCode::from_code(partition.error_code);
                if self.may_be_used(&place, error, version >= 4, ctx)? {
                    // Epochs are told from version 4 on.
                    let epoch = if version >= 4 {
                        partition.leader_epoch
                    } else {
                        -1
                    };
                    let found = (partition.offset, partition.timestamp, epoch);
                    listed(place, timestamp, found, ctx);
                }
            }
            Tag::EpochEnd { place, epoch } => {
                let response =
                    OffsetForLeaderEpochResponse::decode(&mut r, version).map_err(unreadable)?;
                let partition = response.topics.first().and_then(|t| t.partitions.first());
                let partition = partition.ok_or("no partition is answered")?;
                let error = ErrorCode::from_code(partition.error_code);
                if self.may_be_used(&place, error, true, ctx)? {
                    let end = (partition.leader_epoch, partition.end_offset);
                    ctx.oracle.epoch_end(place.tp, epoch, end, place.known);
                }
            }
            Tag::Configs { topic, asked } => {
                let response =
                    DescribeConfigsResponse::decode(&mut r, version).map_err(unreadable)?;
                let result = response.results.first().ok_or("nothing is described")?;
                let name = self.view.name(topic);
                match ErrorCode::from_code(result.error_code) {
                    ErrorCode::None => {}
                    ErrorCode::UnknownTopicOrPartition => {
                        return match ctx.oracle.topics.exists_everywhere(name, asked) {
                            true => {
                                Err(format!("topic {name} exists and a shard does not know it"))
                            }
                            false => Ok(()),
                        };
                    }
                    error => return Err(error.name().to_string()),
                }
                let expected = ctx.oracle.topics.configs(name, asked).unwrap_or_default();
                for (key, value) in expected {
                    // Kafka shows configs that it calls internal to nobody.
                    if key.starts_with("internal.") {
                        continue;
                    }
                    let shown = result.configs.iter().find(|config| config.name == *key);
                    let shown = shown.and_then(|config| config.value.as_deref());
                    if shown != Some(value.as_str()) {
                        return Err(format!("{key} is {value} and shown as {shown:?}"));
                    }
                }
            }
            Tag::Describe { topic, asked } => {
                let response =
                    DescribeTopicPartitionsResponse::decode(&mut r, version).map_err(unreadable)?;
                let result = response.topics.first().ok_or("nothing is described")?;
                let shown = match ErrorCode::from_code(result.error_code) {
                    ErrorCode::None => Some((result.topic_id, result.partitions.len())),
                    ErrorCode::UnknownTopicOrPartition => None,
                    error => return Err(error.name().to_string()),
                };
                let name = self.view.name(topic);
                ctx.oracle.topics.shown(name, shown, asked)?;
            }
            Tag::Cluster { shards } => {
                let response =
                    DescribeClusterResponse::decode(&mut r, version).map_err(unreadable)?;
                let error = ErrorCode::from_code(response.error_code);
                if error != ErrorCode::None {
                    return Err(error.name().to_string());
                }
                if response.brokers.len() != shards && ctx.shards == shards {
                    return Err(format!("{} nodes of {shards}", response.brokers.len()));
                }
            }
            Tag::Versions => {
                let response = ApiVersionsResponse::decode(&mut r, version).map_err(unreadable)?;
                if response.error_code != 0 || response.api_keys.is_empty() {
                    return Err(format!("error {}", response.error_code));
                }
            }
        }
        Ok(())
    }

    /// Whether the answer is one about the partition that was meant.
    fn may_be_used(
        &mut self,
        place: &Place,
        error: ErrorCode,
        fenced: bool,
        ctx: &mut Ctx<'_>,
    ) -> Result<bool, String> {
        let same_life = place.known.life == ctx.oracle.life;
        let name = self.view.name(place.topic);
        let surely = ctx
            .oracle
            .topics
            .is_surely(name, place.tp.topic, place.asked);
        let sure = same_life && surely && place.known.leader_epoch >= 0;
        let wanted = match place.current {
            _ if !fenced => ErrorCode::None,
            Current::None | Current::Right => ErrorCode::None,
            Current::Older => ErrorCode::FencedLeaderEpoch,
            Current::Newer => ErrorCode::UnknownLeaderEpoch,
        };
        match error {
            ErrorCode::NotLeaderOrFollower
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::RequestTimedOut => {
                self.view.stale = true;
                Ok(false)
            }
            ErrorCode::KafkaStorageError if ctx.oracle.refusals_allowed => Ok(false),
            error if !sure => match error {
                ErrorCode::None | ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch => {
                    Ok(false)
                }
                error => Err(error.name().to_string()),
            },
            error if error == wanted => Ok(error == ErrorCode::None),
            error => Err(format!("{} in place of {}", error.name(), wanted.name())),
        }
    }
}

fn listed(place: Place, timestamp: i64, found: (i64, i64, i32), ctx: &mut Ctx<'_>) {
    let Place { tp, known, .. } = place;
    let (offset, _, epoch) = found;
    let found = (offset >= 0).then_some(found);
    match timestamp {
        LATEST => ctx.oracle.latest(tp, offset, epoch, known),
        EARLIEST => ctx.oracle.start_is(tp, offset, known),
        MAX_TIMESTAMP => ctx.oracle.found_newest(tp, found, known),
        wanted => ctx.oracle.found_by_time(tp, wanted, found, known),
    }
}
