//! The consumer by assignment, pure: positions, fetching from every leader at once, resets.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::Error;
use super::cluster::{Answer, Cluster};
use crate::batch::{Batch, ParseError};
use crate::model::{ErrorCode, Instant, Uuid, WallMs};
use crate::wire::ApiKey;
use crate::wire::msg::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use crate::wire::msg::fetch_response::FetchResponse;
use crate::wire::msg::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use crate::wire::msg::list_offsets_response::ListOffsetsResponse;

#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    pub fetch_max_wait_ms: i32,
    pub fetch_min_bytes: i32,
    pub fetch_max_bytes: i32,
    pub partition_max_bytes: i32,
    /// Fetched and not taken: no more is fetched for a partition above its share.
    pub buffer_bytes_max: usize,
    /// Where to go on after OFFSET_OUT_OF_RANGE; `None` is an error.
    pub reset: Option<StartAt>,
    pub retry_backoff_ms: u64,
    pub check_crcs: bool,
}

impl Default for ConsumerConfig {
    fn default() -> ConsumerConfig {
        ConsumerConfig {
            fetch_max_wait_ms: 500,
            fetch_min_bytes: 1,
            fetch_max_bytes: 50 * 1024 * 1024,
            partition_max_bytes: 1024 * 1024,
            buffer_bytes_max: 64 * 1024 * 1024,
            reset: None,
            retry_backoff_ms: 100,
            check_crcs: true,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartAt {
    Beginning,
    End,
    Offset(i64),
    /// The first record at or after this time; the end if there is none.
    Time(WallMs),
}

/// Whole batches of one partition, as they were fetched. The first may begin before `from`, the last may be cut off.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub topic: Rc<str>,
    pub partition: i32,
    /// Records below this offset are not asked for.
    pub from: i64,
    /// The position after these batches.
    pub end: i64,
    pub high_watermark: i64,
    pub bytes: Bytes,
}

impl Fetched {
    /// The batches in order; a cut-off end is not one.
    pub fn batches(&self) -> impl Iterator<Item = Batch<'_>> {
        let mut rest: &[u8] = &self.bytes;
        std::iter::from_fn(move || {
            let (batch, len) = Batch::view(rest).ok()?;
            rest = &rest[len..];
            Some(batch)
        })
    }
}

/// What a consumer's request was: (assignment, position) of each partition.
#[derive(Debug)]
pub enum Asked {
    Fetch(Vec<(usize, i64)>),
    Offsets(Vec<usize>),
}

struct Assigned {
    topic: Rc<str>,
    partition: i32,
    start: Option<StartAt>,
    position: i64,
    high_watermark: i64,
    asked: bool,
    buffered: usize,
    not_before: Instant,
}

pub struct ConsumerCore {
    config: ConsumerConfig,
    assigned: Vec<Assigned>,
    fetched: VecDeque<(usize, Fetched)>,
    errors: VecDeque<(Rc<str>, i32, Error)>,
    /// The partition that comes first in the next request, so that all have their turn.
    turn: usize,
    next_due: Option<Instant>,
}

impl ConsumerCore {
    pub fn new(config: ConsumerConfig) -> ConsumerCore {
        ConsumerCore {
            config,
            assigned: Vec::new(),
            fetched: VecDeque::new(),
            errors: VecDeque::new(),
            turn: 0,
            next_due: None,
        }
    }

    pub fn assign(
        &mut self,
        topic: &str,
        partition: i32,
        start: StartAt,
        cluster: &mut Cluster<Asked>,
    ) {
        cluster.want_topic(topic);
        let (start, position) = match start {
            StartAt::Offset(offset) => (None, offset),
            other => (Some(other), -1),
        };
        let topic = match self.assigned.iter().find(|a| &*a.topic == topic) {
            Some(other) => other.topic.clone(),
            None => topic.into(),
        };
        self.assigned.push(Assigned {
            topic,
            partition,
            start,
            position,
            high_watermark: -1,
            asked: false,
            buffered: 0,
            not_before: Instant::default(),
        });
    }

    /// (topic, partition, next offset to be fetched, high watermark); -1 while unknown.
    pub fn positions(&self) -> impl Iterator<Item = (&str, i32, i64, i64)> {
        self.assigned
            .iter()
            .map(|a| (&*a.topic, a.partition, a.position, a.high_watermark))
    }

    /// What was fetched next, in the order in which it came.
    pub fn take(&mut self) -> Option<Fetched> {
        let (i, fetched) = self.fetched.pop_front()?;
        self.assigned[i].buffered -= fetched.bytes.len();
        Some(fetched)
    }

    pub fn has_fetched(&self) -> bool {
        !self.fetched.is_empty() || !self.errors.is_empty()
    }

    pub fn take_error(&mut self) -> Option<(Rc<str>, i32, Error)> {
        self.errors.pop_front()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.next_due
    }

    /// Asks for offsets and records where nothing was asked for.
    pub fn turn(&mut self, cluster: &mut Cluster<Asked>, now: Instant) {
        self.next_due = None;
        let share = self.config.buffer_bytes_max / self.assigned.len().max(1);
        let mut fetch: Vec<(i32, Vec<usize>)> = Vec::new();
        let mut offsets: Vec<(i32, Vec<usize>)> = Vec::new();
        for k in 0..self.assigned.len() {
            let i = (self.turn + k) % self.assigned.len();
            let a = &self.assigned[i];
            if a.asked || a.buffered > share {
                continue;
            }
            if a.not_before > now {
                let at = a.not_before;
                self.next_due = Some(self.next_due.map_or(at, |due| due.min(at)));
                continue;
            }
            let Some(leader) = cluster.metadata().leader(&a.topic, a.partition) else {
                if cluster.has_metadata() {
                    self.missing(i, cluster, now);
                }
                continue;
            };
            if !cluster.connect(leader) || cluster.in_flight(leader) > 0 {
                continue;
            }
            let groups = if a.start.is_some() {
                &mut offsets
            } else {
                &mut fetch
            };
            match groups.iter_mut().find(|(target, _)| *target == leader) {
                Some((_, list)) => list.push(i),
                None => groups.push((leader, vec![i])),
            }
        }
        self.turn = self.turn.wrapping_add(1);
        for (target, list) in offsets {
            self.ask_offsets(target, list, cluster);
        }
        for (target, list) in fetch {
            if cluster.in_flight(target) == 0 {
                self.ask_fetch(target, list, cluster);
            }
        }
    }

    /// Metadata has no leader for it: an error if the topic or partition does not exist, else later.
    fn missing(&mut self, i: usize, cluster: &mut Cluster<Asked>, now: Instant) {
        cluster.refresh();
        let a = &mut self.assigned[i];
        a.not_before = now.after_ms(self.config.retry_backoff_ms);
        if let Some(topic) = cluster.metadata().topics.get(&*a.topic)
            && topic.error.is_error()
        {
            let error = Error::Broker {
                code: topic.error,
                message: String::new(),
            };
            self.errors.push_back((a.topic.clone(), a.partition, error));
            // Not in a loop.
            a.not_before = now.after_ms(1000);
        }
    }

    fn ask_offsets(&mut self, target: i32, list: Vec<usize>, cluster: &mut Cluster<Asked>) {
        let mut request = ListOffsetsRequest {
            replica_id: -1,
            timeout_ms: 30_000,
            ..Default::default()
        };
        for i in &list {
            let a = &self.assigned[*i];
            let partition = ListOffsetsPartition {
                partition_index: a.partition,
                current_leader_epoch: -1,
                timestamp: match a.start {
                    Some(StartAt::Beginning) => -2,
                    Some(StartAt::Time(time)) => time,
                    _ => -1,
                },
            };
            match request.topics.iter_mut().find(|t| *t.name == *a.topic) {
                Some(topic) => topic.partitions.push(partition),
                None => request.topics.push(ListOffsetsTopic {
                    name: (&*a.topic).into(),
                    partitions: vec![partition],
                }),
            }
        }
        let tag = Asked::Offsets(list.clone());
        if cluster.request(target, ApiKey::ListOffsets, tag, true, |w, v| {
            request.encode(w, v)
        }) {
            list.iter().for_each(|i| self.assigned[*i].asked = true);
        }
    }

    fn ask_fetch(&mut self, target: i32, list: Vec<usize>, cluster: &mut Cluster<Asked>) {
        let mut request = FetchRequest {
            replica_id: -1,
            max_wait_ms: self.config.fetch_max_wait_ms,
            min_bytes: self.config.fetch_min_bytes,
            max_bytes: self.config.fetch_max_bytes,
            // No session.
            session_epoch: -1,
            ..Default::default()
        };
        for i in &list {
            let a = &self.assigned[*i];
            let partition = FetchPartition {
                partition: a.partition,
                current_leader_epoch: -1,
                fetch_offset: a.position,
                last_fetched_epoch: -1,
                log_start_offset: -1,
                partition_max_bytes: self.config.partition_max_bytes,
                ..Default::default()
            };
            match request.topics.iter_mut().find(|t| *t.topic == *a.topic) {
                Some(topic) => topic.partitions.push(partition),
                None => request.topics.push(FetchTopic {
                    topic: (&*a.topic).into(),
                    topic_id: topic_id(cluster, &a.topic),
                    partitions: vec![partition],
                }),
            }
        }
        let tag = Asked::Fetch(
            list.iter()
                .map(|i| (*i, self.assigned[*i].position))
                .collect(),
        );
        if cluster.request(target, ApiKey::Fetch, tag, true, |w, v| {
            request.encode(w, v)
        }) {
            list.iter().for_each(|i| self.assigned[*i].asked = true);
        }
    }

    pub fn on_answer(&mut self, answer: Answer<Asked>, cluster: &mut Cluster<Asked>, now: Instant) {
        let later = now.after_ms(self.config.retry_backoff_ms);
        match &answer.tag {
            Asked::Offsets(list) => {
                list.iter().for_each(|i| self.assigned[*i].asked = false);
                match answer.decode(ListOffsetsResponse::decode) {
                    Ok(response) => list
                        .iter()
                        .for_each(|i| self.on_offset(*i, &response, cluster, later)),
                    Err(error) => self.all_failed(list.iter(), error, cluster, later),
                }
            }
            Asked::Fetch(list) => {
                list.iter()
                    .for_each(|(i, _)| self.assigned[*i].asked = false);
                match answer.decode(FetchResponse::decode) {
                    Ok(response) if response.error_code != 0 => {
                        let error = Error::broker(response.error_code, None);
                        self.all_failed(list.iter().map(|(i, _)| i), error, cluster, later)
                    }
                    Ok(response) => {
                        let frame = answer.body.as_ref().map(|(frame, _)| frame.clone());
                        let frame = frame.unwrap_or_default();
                        self.on_fetch(list, &response, &frame, cluster, later, answer.version);
                    }
                    Err(error) => {
                        self.all_failed(list.iter().map(|(i, _)| i), error, cluster, later)
                    }
                }
            }
        }
    }

    fn all_failed<'i>(
        &mut self,
        list: impl Iterator<Item = &'i usize>,
        error: Error,
        cluster: &mut Cluster<Asked>,
        later: Instant,
    ) {
        for i in list {
            self.failed(*i, error.clone(), cluster, later);
        }
    }

    fn failed(&mut self, i: usize, error: Error, cluster: &mut Cluster<Asked>, later: Instant) {
        cluster.refresh();
        let a = &mut self.assigned[i];
        a.not_before = later;
        let retriable = match &error {
            Error::Broker { code, .. } => code.is_retriable(),
            Error::Connection(_) | Error::Timeout(_) => true,
            Error::Malformed(_) | Error::Unsupported(_) => false,
        };
        if !retriable {
            self.errors.push_back((a.topic.clone(), a.partition, error));
        }
    }

    fn on_offset(
        &mut self,
        i: usize,
        response: &ListOffsetsResponse<'_>,
        cluster: &mut Cluster<Asked>,
        later: Instant,
    ) {
        let a = &mut self.assigned[i];
        let found = response
            .topics
            .iter()
            .filter(|t| *t.name == *a.topic)
            .flat_map(|t| &t.partitions)
            .find(|p| p.partition_index == a.partition);
        match found {
            None => self.failed(
                i,
                Error::Malformed("a partition is missing".into()),
                cluster,
                later,
            ),
            Some(p) if p.error_code != 0 => {
                self.failed(i, Error::broker(p.error_code, None), cluster, later)
            }
            // No record is that late.
            Some(p) if p.offset < 0 => a.start = Some(StartAt::End),
            Some(p) => {
                a.position = p.offset;
                a.start = None;
            }
        }
    }

    fn on_fetch(
        &mut self,
        list: &[(usize, i64)],
        response: &FetchResponse<'_>,
        frame: &Bytes,
        cluster: &mut Cluster<Asked>,
        later: Instant,
        version: i16,
    ) {
        for topic in &response.responses {
            for data in &topic.partitions {
                let asked = list.iter().find(|(i, _)| {
                    let a = &self.assigned[*i];
                    let same_topic = if version >= 13 {
                        topic_id(cluster, &a.topic) == topic.topic_id
                    } else {
                        topic.topic == *a.topic
                    };
                    same_topic && a.partition == data.partition_index
                });
                let Some((i, position)) = asked else { continue };
                let code = ErrorCode::from_code(data.error_code);
                if code == ErrorCode::OffsetOutOfRange && self.config.reset.is_some() {
                    self.assigned[*i].start = self.config.reset;
                    continue;
                }
                if code.is_error() {
                    self.failed(*i, Error::broker(data.error_code, None), cluster, later);
                    continue;
                }
                self.assigned[*i].high_watermark = data.high_watermark;
                let records = data.records.as_bytes();
                if records.is_empty() || self.assigned[*i].position != *position {
                    continue;
                }
                match end_of(records, *position, self.config.check_crcs) {
                    Ok(end) if end > *position => {
                        let a = &mut self.assigned[*i];
                        a.position = end;
                        a.buffered += records.len();
                        let fetched = Fetched {
                            topic: a.topic.clone(),
                            partition: a.partition,
                            from: *position,
                            end,
                            high_watermark: data.high_watermark,
                            bytes: frame.slice_ref(records),
                        };
                        self.fetched.push_back((*i, fetched));
                    }
                    Ok(_) => {
                        let error = Error::Malformed("a fetch without one whole batch".into());
                        self.failed(*i, error, cluster, later);
                    }
                    Err(reason) => self.failed(*i, Error::Malformed(reason.into()), cluster, later),
                }
            }
        }
    }
}

fn topic_id(cluster: &Cluster<Asked>, topic: &str) -> Uuid {
    let topic = cluster.metadata().topics.get(topic);
    topic.map_or(Uuid::ZERO, |t| t.id)
}

/// The offset after the last whole batch.
fn end_of(records: &[u8], from: i64, check: bool) -> Result<i64, &'static str> {
    let (mut rest, mut end) = (records, from);
    loop {
        let parsed = if check {
            Batch::parse(rest)
        } else {
            Batch::view(rest)
        };
        match parsed {
            Ok((batch, len)) => {
                end = end.max(batch.last_offset().saturating_add(1));
                rest = &rest[len..];
            }
            Err(ParseError::Short { .. }) => return Ok(end),
            Err(ParseError::Corrupt(reason)) => return Err(reason),
        }
    }
}
