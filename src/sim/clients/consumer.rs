//! A consumer: fetches with or without sessions and checks every byte against what was sent.

use std::collections::BTreeMap;

use super::links::{Answer, Links};
use super::view::View;
use super::{ByPart, Ctx, Input};
use crate::model::{ErrorCode, Instant, TopicPartition};
use crate::sim::oracle::{ProbeKnown, name};
use crate::sim::plan::{ConsumerPlan, TopicPlan};
use crate::sim::topics::Asked as NameAsked;
use crate::wire::ApiKey;
use crate::wire::msg::fetch_request::{FetchPartition, FetchRequest, FetchTopic, ForgottenTopic};
use crate::wire::msg::fetch_response::{FetchResponse, PartitionData};

/// Topics come by id from this version of Fetch on.
const TOPIC_IDS_SINCE: i16 = 13;

/// The log's start is in answers from this version on.
const LOG_START_SINCE: i16 = 5;

#[derive(Clone, Debug)]
enum Tag {
    Metadata,
    /// To a shard; partitions with their offsets and the high watermarks known by then, and whether only they are asked.
    Fetch {
        shard: usize,
        asked: Vec<Asked>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    at: (usize, i32),
    tp: TopicPartition,
    offset: i64,
    known: ProbeKnown,
    /// What was known of the topic's name, if it is asked for by name.
    by_name: Option<NameAsked>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    offset: i64,
    /// The life of the process in which the offset is known to be right.
    life: u64,
    at_end: bool,
}

/// A fetch session with one shard.
#[derive(Default)]
struct Session {
    id: i32,
    epoch: i32,
    /// What the shard believes that we want.
    told: BTreeMap<((usize, i32), TopicPartition), i64>,
}

pub(crate) struct Consumer {
    plan: ConsumerPlan,
    links: Links<Tag>,
    view: View,
    positions: ByPart<Position>,
    sessions: BTreeMap<usize, Session>,
    /// Reads everything once, in the calm, and is done.
    judge: bool,
    stopped: bool,
    /// After an error, not before then.
    retry_at: Instant,
}

impl Consumer {
    pub fn new(plan: ConsumerPlan, topics: &[TopicPlan], judge: bool) -> Consumer {
        let names = plan.topics.iter().map(|i| topics[*i].name.clone());
        Consumer {
            view: View::new(names.collect()),
            links: Links::new(),
            positions: ByPart::new(),
            sessions: Default::default(),
            judge,
            stopped: false,
            retry_at: Instant(0),
            plan,
        }
    }

    /// No more fetches are begun.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    pub fn is_done(&self) -> bool {
        let finished = self.stopped
            || self.judge
                && self.view.is_complete()
                && self.positions.len() == self.view.partitions()
                && self.positions.values().all(|p| p.at_end);
        finished && self.links.in_flight_total() == 0
    }

    pub fn waits_for(&self) -> String {
        let ends: Vec<String> = self
            .positions
            .iter()
            .map(|((topic, partition), p)| format!("{topic}-{partition} at {}", p.offset))
            .collect();
        format!("{}, {}", ends.join(" "), self.links.describe())
    }

    pub fn on(&mut self, input: Input, ctx: &mut Ctx<'_>) {
        match input {
            Input::Wake => {}
            Input::Bytes(conn, bytes) => {
                for answer in self.links.bytes(ctx, conn, &bytes) {
                    self.answered(answer, ctx);
                }
            }
            Input::Gone(conn) => {
                let lost = self.links.gone(ctx, conn);
                self.lost(lost);
            }
        }
        if self.is_done() && (self.stopped || self.judge) {
            return;
        }
        if self.plan.cut_one_in > 0 && !ctx.calm && ctx.rng.one_in(self.plan.cut_one_in) {
            let lost = self.links.cut(ctx);
            self.lost(lost);
        }
        // Topics grow, and are made anew.
        self.view.stale |= !ctx.calm && ctx.rng.one_in(50);
        self.view.refresh(ctx, &mut self.links, Tag::Metadata);
        if !self.stopped && self.retry_at <= ctx.now {
            self.fetch_all(ctx);
        }
        let (from, to) = self.plan.pause_us;
        let pause = ctx.rng.range(from, to).max(500);
        ctx.wake_in(pause);
    }

    fn lost(&mut self, tags: Vec<Tag>) {
        for tag in tags {
            match tag {
                Tag::Metadata => self.view.lost(),
                Tag::Fetch { shard, .. } => {
                    self.sessions.remove(&shard);
                    self.view.stale = true;
                }
            }
        }
    }

    fn fetch_all(&mut self, ctx: &mut Ctx<'_>) {
        let life = ctx.oracle.life;
        let mut by_shard: BTreeMap<usize, Vec<Asked>> = Default::default();
        let parts: Vec<(usize, i32)> = self
            .view
            .topics()
            .flat_map(|(index, topic)| (0..topic.leaders.len() as i32).map(move |p| (index, p)))
            .collect();
        for at in parts {
            let (Some(tp), Some(leader)) = (self.view.tp(at), self.view.leader(at)) else {
                continue;
            };
            let position = self.positions.entry(at).or_insert(Position {
                offset: 0,
                life,
                at_end: false,
            });
            if position.life != life {
                // A crash may have taken what was read: Kafka's consumers ask OffsetForLeaderEpoch.
                let Some(offset) = ctx.oracle.resume(tp, position.offset, position.life) else {
                    continue;
                };
                (position.offset, position.life, position.at_end) = (offset, life, false);
            }
            if self.judge && position.at_end {
                continue;
            }
            let by_name = (self.plan.version < TOPIC_IDS_SINCE)
                .then(|| ctx.oracle.topics.asked(self.view.name(at.0)));
            let asked = Asked {
                at,
                tp,
                offset: position.offset,
                known: ctx.oracle.probe(tp),
                by_name,
            };
            by_shard.entry(leader).or_default().push(asked);
        }
        for (shard, asked) in by_shard {
            if self.links.in_flight(shard) == 0 {
                if shard >= ctx.shards {
                    self.view.stale |= ctx.shards > 0;
                    continue;
                }
                self.fetch(shard, asked, ctx);
            }
        }
    }

    fn fetch(&mut self, shard: usize, asked: Vec<Asked>, ctx: &mut Ctx<'_>) {
        let plan = &self.plan;
        let session = self.sessions.entry(shard).or_default();
        if !plan.sessions {
            session.epoch = -1;
        }
        let mut topics: Vec<FetchTopic<'static>> = Vec::new();
        let mut told = Vec::new();
        for item in &asked {
            if session.epoch > 0 && session.told.get(&(item.at, item.tp)) == Some(&item.offset) {
                continue;
            }
            told.push(((item.at, item.tp), item.offset));
            let (id, name) = match plan.version >= TOPIC_IDS_SINCE {
                true => (item.tp.topic, String::new()),
                false => (Default::default(), self.view.name(item.at.0).to_string()),
            };
            let partition = FetchPartition {
                partition: item.at.1,
                fetch_offset: item.offset,
                partition_max_bytes: plan.partition_bytes_max,
                ..Default::default()
            };
            let same = |topic: &&mut FetchTopic<'_>| topic.topic_id == id && topic.topic == name;
            match topics.iter_mut().find(same) {
                Some(topic) => topic.partitions.push(partition),
                None => topics.push(FetchTopic {
                    topic: name.into(),
                    topic_id: id,
                    partitions: vec![partition],
                }),
            }
        }
        let forgotten = match session.epoch > 0 {
            true => forget(session, &asked, plan.version, &self.view),
            false => Vec::new(),
        };
        let request = FetchRequest {
            replica_id: -1,
            max_wait_ms: plan.max_wait_ms,
            min_bytes: plan.min_bytes,
            max_bytes: plan.bytes_max,
            isolation_level: plan.isolation_level,
            session_id: session.id,
            session_epoch: session.epoch,
            topics,
            forgotten_topics_data: forgotten,
            ..Default::default()
        };
        ctx.trace.say(ctx.now, || {
            let asked: Vec<_> = asked.iter().map(|a| (a.at, a.offset)).collect();
            format!("  client {} fetches {asked:?} of shard {shard}", ctx.me)
        });
        let tag = Some(Tag::Fetch { shard, asked });
        let sent = self
            .links
            .call(ctx, shard, ApiKey::Fetch, plan.version, tag, |w, v| {
                request.encode(w, v)
            });
        match sent {
            true => session.told.extend(told),
            // What was to be forgotten is not.
            false => drop(self.sessions.remove(&shard)),
        }
    }

    fn answered(&mut self, answer: Answer<Tag>, ctx: &mut Ctx<'_>) {
        let mut r = answer.reader();
        match &answer.tag {
            Tag::Metadata => {
                self.view.answered(ctx, &answer);
                for topic in self.view.take_renewed() {
                    self.positions.retain(|at, _| at.0 != topic);
                }
            }
            Tag::Fetch { shard, asked } => match FetchResponse::decode(&mut r, answer.version) {
                Ok(response) => self.fetched(*shard, asked, &response, ctx),
                Err(e) => ctx.fail(format!("Fetch cannot be read: {e}")),
            },
        }
    }

    fn fetched(
        &mut self,
        shard: usize,
        asked: &[Asked],
        response: &FetchResponse<'_>,
        ctx: &mut Ctx<'_>,
    ) {
        match ErrorCode::from_code(response.error_code) {
            ErrorCode::None => {}
            ErrorCode::FetchSessionIdNotFound | ErrorCode::InvalidFetchSessionEpoch => {
                self.sessions.remove(&shard);
                return;
            }
            error => return ctx.fail(format!("Fetch: {}", error.name())),
        }
        if let Some(session) = self.sessions.get_mut(&shard)
            && self.plan.sessions
        {
            if session.epoch == 0 {
                session.id = response.session_id;
            }
            // Id 0: the broker keeps no session for us.
            session.epoch = if session.id == 0 {
                0
            } else {
                session.epoch + 1
            };
        }
        for topic in &response.responses {
            for partition in &topic.partitions {
                let is_it = |asked: &&Asked| {
                    asked.tp.partition == partition.partition_index
                        && match topic.topic_id.is_zero() {
                            true => self.view.name(asked.at.0) == topic.topic,
                            false => asked.tp.topic == topic.topic_id,
                        }
                };
                match asked.iter().find(is_it) {
                    Some(asked) => self.partition(*asked, partition, ctx),
                    None => ctx.fail(format!(
                        "Fetch names {} {} {}, nobody asked",
                        topic.topic, topic.topic_id, partition.partition_index
                    )),
                }
            }
        }
    }

    fn partition(&mut self, asked: Asked, said: &PartitionData<'_>, ctx: &mut Ctx<'_>) {
        let tp = asked.tp;
        if asked.known.life != ctx.oracle.life {
            return;
        }
        match ErrorCode::from_code(said.error_code) {
            ErrorCode::None => {}
            ErrorCode::NotLeaderOrFollower
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId => {
                self.view.stale = true;
                self.retry_at = ctx.now.after_us(ctx.rng.range(500, 10_000));
                return;
            }
            // By name it may be another topic, with fewer records.
            ErrorCode::OffsetOutOfRange
                if asked.by_name.is_some_and(|since| {
                    let name = self.view.name(asked.at.0);
                    !ctx.oracle.topics.is_surely(name, tp.topic, since)
                }) =>
            {
                self.view.stale = true;
                self.retry_at = ctx.now.after_us(ctx.rng.range(500, 10_000));
                return;
            }
            // Old segments went: on from where the log begins now.
            ErrorCode::OffsetOutOfRange if asked.offset < ctx.oracle.start_of(tp) => {
                let start = ctx.oracle.start_of(tp);
                if let Some(position) = self.positions.get_mut(&asked.at)
                    && self.view.tp(asked.at) == Some(tp)
                {
                    position.offset = start;
                    position.at_end = false;
                }
                return;
            }
            ErrorCode::KafkaStorageError if ctx.oracle.refusals_allowed => {
                self.retry_at = ctx.now.after_us(ctx.rng.range(500, 10_000));
                return;
            }
            error => {
                return ctx.fail(format!(
                    "Fetch of {} at {}: {}",
                    name(tp),
                    asked.offset,
                    error.name()
                ));
            }
        }
        match asked.by_name {
            // By name the answer may be of another topic than was meant.
            Some(since) => {
                let name = self.view.name(asked.at.0);
                if !ctx.oracle.topics.is_surely(name, tp.topic, since) {
                    return;
                }
            }
            None => ctx.oracle.served(tp, asked.known),
        }
        ctx.oracle
            .high_watermark(tp, said.high_watermark, asked.known.high_watermark);
        // No transaction is open, so readers of either isolation see the same.
        if said.last_stable_offset != said.high_watermark {
            ctx.fail(format!(
                "Fetch of {}: the last stable offset is {}, the high watermark {}",
                name(tp),
                said.last_stable_offset,
                said.high_watermark
            ));
        }
        if self.plan.version >= LOG_START_SINCE {
            ctx.oracle.start_is(tp, said.log_start_offset, asked.known);
        }
        let bytes = said.records.as_bytes();
        let next = ctx
            .oracle
            .fetched(tp, asked.offset, said.high_watermark, bytes);
        if self.judge {
            ctx.oracle.checked(tp, next);
        }
        if self.view.tp(asked.at) != Some(tp) {
            return;
        }
        if let Some(position) = self.positions.get_mut(&asked.at) {
            position.offset = next;
            position.at_end = next >= said.high_watermark;
        }
    }
}

/// What the session has and nobody wants any more.
fn forget(
    session: &mut Session,
    asked: &[Asked],
    version: i16,
    view: &View,
) -> Vec<ForgottenTopic<'static>> {
    let by_id = version >= TOPIC_IDS_SINCE;
    let wanted = |at: (usize, i32), tp: TopicPartition| {
        let same = |a: &Asked| if by_id { a.tp == tp } else { a.at == at };
        asked.iter().any(same)
    };
    let mut forgotten = Vec::new();
    session.told.retain(|(at, tp), _| {
        let keep = asked.iter().any(|a| a.tp == *tp);
        if !keep && !wanted(*at, *tp) {
            forgotten.push(ForgottenTopic {
                topic: match by_id {
                    true => Default::default(),
                    false => view.name(at.0).to_string().into(),
                },
                topic_id: if by_id { tp.topic } else { Default::default() },
                partitions: vec![tp.partition],
            });
        }
        keep
    });
    forgotten
}
