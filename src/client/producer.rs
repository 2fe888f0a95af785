//! The producer, pure: accumulates records into batches, sends them over a [`Cluster`], retries.
//!
//! A record is named by its topic, partition and index (0, 1, 2, ... in the order in which the partition got them), so that millions of
//! records in flight cost nothing to name.
//!
//! Retries keep the order: while a batch of a partition waits to be sent again, nothing else of that partition is sent, and what was in
//! flight behind it is waited for. With idempotence the broker refuses anything out of order and knows what it has.

use std::collections::VecDeque;

use super::Error;
use super::cluster::{Answer, Cluster, Target};
use super::partition::{self, Sticky};
use crate::batch::{Builder, Codecs, Compression, sequence_after};
use crate::model::{ErrorCode, Instant, Rng, Uuid, WallMs};
use crate::wire::msg::init_producer_id_request::InitProducerIdRequest;
use crate::wire::msg::init_producer_id_response::InitProducerIdResponse;
use crate::wire::msg::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use crate::wire::msg::produce_response::ProduceResponse;
use crate::wire::{ApiKey, Records};

#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// 0, 1 or -1 (all).
    pub acks: i16,
    /// Needs acks -1.
    pub idempotence: bool,
    pub batch_bytes: usize,
    pub linger_ms: u64,
    pub in_flight_max: usize,
    pub compression: Compression,
    pub request_bytes_max: usize,
    /// Records waiting or in flight; at the bound [`ProducerCore::push`] gives the record back.
    pub buffer_bytes_max: usize,
    pub delivery_timeout_ms: u64,
    pub request_timeout_ms: i32,
    pub retry_backoff_ms: u64,
    /// Seeds the choice of partitions for records without a key.
    pub seed: u64,
}

impl Default for ProducerConfig {
    /// Kafka's defaults, but for the request size.
    fn default() -> ProducerConfig {
        ProducerConfig {
            acks: -1,
            idempotence: true,
            batch_bytes: 16 * 1024,
            linger_ms: 5,
            in_flight_max: 5,
            compression: Compression::default(),
            request_bytes_max: 1024 * 1024,
            buffer_bytes_max: 32 * 1024 * 1024,
            delivery_timeout_ms: 120_000,
            request_timeout_ms: 30_000,
            retry_backoff_ms: 100,
            seed: 1,
        }
    }
}

/// A topic of this producer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopicHandle(usize);

/// What became of `count` records of a partition, from index `first` on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    pub topic: TopicHandle,
    pub partition: i32,
    pub first: u64,
    pub count: u64,
    /// The offset of the first one; -1 if the broker did not say (acks=0, or a duplicate whose offset it forgot).
    pub result: Result<i64, Error>,
    /// The broker's time on topics with LogAppendTime, else -1.
    pub append_time: WallMs,
    /// When the batch was sent last, and when it was begun.
    pub sent_at: Instant,
    pub begun_at: Instant,
}

/// Why a record was not taken now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The buffer is full: go on when deliveries have come.
    Full,
    /// Nothing is known of the topic yet.
    NoMetadata,
    /// The topic has no such partition.
    NoPartition,
}

/// A record to be sent; borrowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    pub partition: Option<i32>,
    pub timestamp: WallMs,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

struct Open {
    builder: Builder,
    first: u64,
    begun_at: Instant,
}

struct Sealed {
    bytes: Vec<u8>,
    /// Bytes that count against the buffer.
    held: usize,
    first: u64,
    count: i32,
    begun_at: Instant,
    sent_at: Instant,
    state: Flight,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flight {
    Sent,
    Retry { at: Instant },
}

#[derive(Default)]
struct PartitionState {
    open: Option<Open>,
    /// Sealed in order, not sent yet.
    ready: VecDeque<Open>,
    /// Sent at least once and not decided, in order.
    flight: VecDeque<Sealed>,
    next_index: u64,
    next_sequence: i32,
}

struct TopicState {
    name: String,
    partitions: Vec<PartitionState>,
    sticky: Sticky,
    available: Vec<i32>,
    generation: u64,
}

/// What a producer's request was.
#[derive(Debug)]
pub enum Sent {
    InitProducerId,
    /// (topic, partition, first index) of each batch.
    Produce(Vec<(usize, i32, u64)>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Identity {
    /// Not idempotent.
    Off,
    Needed {
        not_before: Instant,
    },
    Asked,
    Known {
        id: i64,
        epoch: i16,
    },
}

pub struct ProducerCore {
    config: ProducerConfig,
    topics: Vec<TopicState>,
    identity: Identity,
    /// After a lost sequence: a new id once nothing is in flight.
    renew: bool,
    held: usize,
    /// Records that are not decided.
    undecided: u64,
    flushing: bool,
    delivered: Vec<Delivered>,
    rng: Rng,
    codecs: Codecs,
    next_due: Option<Instant>,
}

impl ProducerCore {
    pub fn new(mut config: ProducerConfig) -> ProducerCore {
        config.idempotence &= config.acks == -1;
        if config.idempotence {
            // The broker remembers five batches.
            config.in_flight_max = config.in_flight_max.min(5);
        }
        ProducerCore {
            identity: if config.idempotence {
                Identity::Needed {
                    not_before: Instant::default(),
                }
            } else {
                Identity::Off
            },
            rng: Rng::seeded(config.seed),
            codecs: Codecs::default(),
            topics: Vec::new(),
            renew: false,
            held: 0,
            undecided: 0,
            flushing: false,
            delivered: Vec::new(),
            next_due: None,
            config,
        }
    }

    pub fn config(&self) -> &ProducerConfig {
        &self.config
    }

    pub fn topic(&mut self, name: &str, cluster: &mut Cluster<Sent>) -> TopicHandle {
        if let Some(i) = self.topics.iter().position(|t| t.name == name) {
            return TopicHandle(i);
        }
        cluster.want_topic(name);
        self.topics.push(TopicState {
            name: name.to_string(),
            partitions: Vec::new(),
            sticky: Sticky::default(),
            available: Vec::new(),
            generation: 0,
        });
        TopicHandle(self.topics.len() - 1)
    }

    pub fn topic_name(&self, topic: TopicHandle) -> &str {
        &self.topics[topic.0].name
    }

    /// Takes a record; gives its partition and index there.
    pub fn push(
        &mut self,
        topic: TopicHandle,
        message: &Message<'_>,
        cluster: &Cluster<Sent>,
        now: Instant,
    ) -> Result<(i32, u64), Refused> {
        let bytes = message.key.map_or(0, <[u8]>::len) + message.value.map_or(0, <[u8]>::len) + 70;
        if self.held + bytes > self.config.buffer_bytes_max && self.held > 0 {
            return Err(Refused::Full);
        }
        let topic = &mut self.topics[topic.0];
        topic.follow(cluster);
        if topic.partitions.is_empty() {
            return Err(Refused::NoMetadata);
        }
        let index = match (message.partition, message.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition::of_key(key, topic.partitions.len()),
            (None, None) => {
                let batch_bytes = self.config.batch_bytes;
                topic
                    .sticky
                    .next(&topic.available, bytes, batch_bytes, &mut self.rng)
            }
        };
        let partition = usize::try_from(index)
            .ok()
            .and_then(|i| topic.partitions.get_mut(i))
            .ok_or(Refused::NoPartition)?;
        if let Some(open) = &partition.open
            && open.builder.len_uncompressed() + bytes > self.config.batch_bytes
        {
            partition.ready.extend(partition.open.take());
        }
        let first = partition.next_index;
        let open = partition.open.get_or_insert_with(|| Open {
            builder: Builder::new().compression(self.config.compression),
            first,
            begun_at: now,
        });
        let before = open.builder.len_uncompressed();
        open.builder.push(
            message.timestamp,
            message.key,
            message.value,
            message.headers,
        );
        self.held += open.builder.len_uncompressed() - before;
        self.undecided += 1;
        partition.next_index += 1;
        Ok((index, first))
    }

    /// Nothing waits for its linger any more until all are decided.
    pub fn flush(&mut self) {
        self.flushing = self.undecided > 0;
    }

    /// Records taken and not decided.
    pub fn undecided(&self) -> u64 {
        self.undecided
    }

    pub fn has_delivered(&self) -> bool {
        !self.delivered.is_empty()
    }

    pub fn take_delivered(&mut self) -> Vec<Delivered> {
        std::mem::take(&mut self.delivered)
    }

    /// When something is due again, if nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_due
    }

    /// Sends what can be sent.
    pub fn turn(&mut self, cluster: &mut Cluster<Sent>, now: Instant) {
        self.next_due = None;
        self.identify(cluster, now);
        self.expire(now);
        for t in 0..self.topics.len() {
            self.topics[t].follow(cluster);
        }
        // Leaders in the order of their first due batch.
        let mut targets: Vec<Target> = Vec::new();
        for t in 0..self.topics.len() {
            for p in 0..self.topics[t].partitions.len() {
                if !self.is_due(t, p, now) {
                    continue;
                }
                match cluster.metadata().leader(&self.topics[t].name, p as i32) {
                    Some(leader) if !targets.contains(&leader) => targets.push(leader),
                    Some(_) => {}
                    None => cluster.refresh(),
                }
            }
        }
        for target in targets {
            if !cluster.connect(target) {
                continue;
            }
            while cluster.in_flight(target) < self.config.in_flight_max
                && self.send_to(target, cluster, now)
            {}
        }
        if self.undecided == 0 {
            self.flushing = false;
        }
    }

    fn due_at(&mut self, at: Instant) {
        self.next_due = Some(self.next_due.map_or(at, |due| due.min(at)));
    }

    fn can_send(&self) -> bool {
        match self.identity {
            Identity::Off => true,
            Identity::Known { .. } => !self.renew,
            Identity::Needed { .. } | Identity::Asked => false,
        }
    }

    /// Whether this partition has something to send now.
    fn is_due(&mut self, t: usize, p: usize, now: Instant) -> bool {
        let linger = self.config.linger_ms;
        let flushing = self.flushing;
        let can_send = self.can_send();
        let partition = &mut self.topics[t].partitions[p];
        let retry = partition.flight.iter().find_map(|b| match b.state {
            Flight::Retry { at } => Some(at),
            Flight::Sent => None,
        });
        let due_at = match (retry, &partition.open) {
            (Some(at), _) => {
                let sent = partition.flight.iter().any(|b| b.state == Flight::Sent);
                if sent {
                    return false;
                }
                at
            }
            (None, _) if !partition.ready.is_empty() => now,
            (None, Some(open)) => {
                let linger_end = open.begun_at.after_ms(linger);
                if flushing { now } else { linger_end }
            }
            (None, None) => return false,
        };
        // What is in flight may be resent; what is new needs an identity.
        if retry.is_none() && !can_send {
            return false;
        }
        if due_at > now {
            self.due_at(due_at);
        }
        due_at <= now
    }

    /// One request with one batch of every due partition of `target`; false if there was nothing.
    fn send_to(&mut self, target: Target, cluster: &mut Cluster<Sent>, now: Instant) -> bool {
        let mut chosen: Vec<(usize, usize, usize)> = Vec::new();
        let mut bytes = 0;
        for t in 0..self.topics.len() {
            for p in 0..self.topics[t].partitions.len() {
                if cluster.metadata().leader(&self.topics[t].name, p as i32) != Some(target)
                    || !self.is_due(t, p, now)
                {
                    continue;
                }
                let Some(at) = self.stage(t, p, now) else {
                    continue;
                };
                let batch = &self.topics[t].partitions[p].flight[at];
                bytes += batch.bytes.len();
                chosen.push((t, p, at));
                if bytes >= self.config.request_bytes_max {
                    break;
                }
            }
        }
        if chosen.is_empty() {
            return false;
        }
        let acks = self.config.acks;
        let tag = Sent::Produce(
            chosen
                .iter()
                .map(|(t, p, at)| {
                    (
                        *t,
                        *p as i32,
                        self.topics[*t].partitions[*p].flight[*at].first,
                    )
                })
                .collect(),
        );
        let topics = &self.topics;
        let timeout_ms = self.config.request_timeout_ms;
        let ids: Vec<Uuid> = topics
            .iter()
            .map(|t| {
                cluster
                    .metadata()
                    .topics
                    .get(&t.name)
                    .map_or(Uuid::ZERO, |t| t.id)
            })
            .collect();
        let sent = cluster.request(target, ApiKey::Produce, tag, acks != 0, |w, version| {
            let mut request = ProduceRequest {
                acks,
                timeout_ms,
                ..Default::default()
            };
            for (t, p, at) in &chosen {
                let name = topics[*t].name.as_str();
                let data = PartitionProduceData {
                    index: *p as i32,
                    records: Records::Bytes(
                        topics[*t].partitions[*p].flight[*at]
                            .bytes
                            .as_slice()
                            .into(),
                    ),
                };
                match request.topic_data.last_mut() {
                    Some(topic) if topic.name == name => topic.partition_data.push(data),
                    _ => request.topic_data.push(TopicProduceData {
                        name: name.into(),
                        topic_id: ids[*t],
                        partition_data: vec![data],
                    }),
                }
            }
            request.encode(w, version);
        });
        for (t, p, at) in chosen {
            let batch = &mut self.topics[t].partitions[p].flight[at];
            batch.sent_at = now;
            if !sent {
                batch.state = Flight::Retry {
                    at: now.after_ms(self.config.retry_backoff_ms),
                };
            } else if acks == 0 {
                let batch = self.topics[t].partitions[p]
                    .flight
                    .remove(at)
                    .expect("just sent");
                self.decide(t, p as i32, batch, Ok(-1), -1);
            }
        }
        sent
    }

    /// Puts the next batch of a partition into flight (or finds the one to send again); gives its place.
    fn stage(&mut self, t: usize, p: usize, now: Instant) -> Option<usize> {
        let partition = &mut self.topics[t].partitions[p];
        if let Some(at) = partition
            .flight
            .iter()
            .position(|b| b.state != Flight::Sent)
        {
            partition.flight[at].state = Flight::Sent;
            return Some(at);
        }
        if partition.flight.len() >= self.config.in_flight_max {
            return None;
        }
        let mut open = partition
            .ready
            .pop_front()
            .or_else(|| partition.open.take())?;
        let count = open.builder.records_count();
        let sequence = partition.next_sequence;
        if let Identity::Known { id, epoch } = self.identity {
            open.builder.set_producer(id, epoch, sequence);
            partition.next_sequence = sequence_after(sequence, count);
        }
        let bytes = open.builder.build_with(&mut self.codecs);
        partition.flight.push_back(Sealed {
            bytes,
            held: open.builder.len_uncompressed() - crate::batch::HEADER_BYTES,
            first: open.first,
            count,
            begun_at: open.begun_at,
            sent_at: now,
            state: Flight::Sent,
        });
        Some(partition.flight.len() - 1)
    }

    fn decide(
        &mut self,
        t: usize,
        partition: i32,
        batch: Sealed,
        result: Result<i64, Error>,
        append_time: WallMs,
    ) {
        self.held = self.held.saturating_sub(batch.held);
        self.undecided -= batch.count as u64;
        self.delivered.push(Delivered {
            topic: TopicHandle(t),
            partition,
            first: batch.first,
            count: batch.count as u64,
            result,
            append_time,
            sent_at: batch.sent_at,
            begun_at: batch.begun_at,
        });
    }

    /// Fails what is older than the delivery timeout.
    fn expire(&mut self, now: Instant) {
        let timeout = self.config.delivery_timeout_ms;
        for t in 0..self.topics.len() {
            for p in 0..self.topics[t].partitions.len() {
                let mut failed = Vec::new();
                let partition = &mut self.topics[t].partitions[p];
                let late = |begun_at: Instant| begun_at.after_ms(timeout) <= now;
                while let Some(batch) = partition.flight.front()
                    && late(batch.begun_at)
                    && batch.state != Flight::Sent
                {
                    failed.extend(partition.flight.pop_front());
                    // Its sequence numbers are used up, and whether the broker has them is unknown.
                    self.renew |= self.config.idempotence;
                }
                if partition.flight.is_empty() {
                    while let Some(open) = partition.ready.front()
                        && late(open.begun_at)
                    {
                        failed.extend(partition.ready.pop_front().map(Sealed::unsent));
                    }
                    if partition
                        .open
                        .as_ref()
                        .is_some_and(|open| late(open.begun_at))
                    {
                        failed.extend(partition.open.take().map(Sealed::unsent));
                    }
                }
                for batch in failed {
                    let error = Error::Timeout("the delivery timeout passed".to_string());
                    self.decide(t, p as i32, batch, Err(error), -1);
                }
            }
        }
        if self.undecided > 0 {
            self.due_at(now.after_ms(1000));
        }
    }

    fn identify(&mut self, cluster: &mut Cluster<Sent>, now: Instant) {
        if self.renew {
            let idle = |t: &TopicState| t.partitions.iter().all(|p| p.flight.is_empty());
            if self.topics.iter().all(idle) {
                self.renew = false;
                self.identity = Identity::Needed { not_before: now };
                for partition in self.topics.iter_mut().flat_map(|t| &mut t.partitions) {
                    partition.next_sequence = 0;
                }
            }
        }
        let Identity::Needed { not_before } = self.identity else {
            return;
        };
        if not_before > now {
            self.due_at(not_before);
            return;
        }
        let Some(target) = cluster.any() else { return };
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let tag = Sent::InitProducerId;
        if cluster.request(target, ApiKey::InitProducerId, tag, true, |w, v| {
            request.encode(w, v)
        }) {
            self.identity = Identity::Asked;
        } else {
            self.identity = Identity::Needed {
                not_before: now.after_ms(self.config.retry_backoff_ms),
            };
        }
    }

    /// Takes the answer of a request of this producer.
    pub fn on_answer(&mut self, answer: Answer<Sent>, cluster: &mut Cluster<Sent>, now: Instant) {
        match &answer.tag {
            Sent::InitProducerId => {
                let response = answer.decode(InitProducerIdResponse::decode);
                self.identity = match response {
                    Ok(r) if r.error_code == 0 => Identity::Known {
                        id: r.producer_id,
                        epoch: r.producer_epoch,
                    },
                    _ => Identity::Needed {
                        not_before: now.after_ms(self.config.retry_backoff_ms),
                    },
                };
            }
            Sent::Produce(batches) => match answer.decode(ProduceResponse::decode) {
                Ok(response) => {
                    let by_id = answer.version >= 13;
                    let results: Vec<_> = batches
                        .iter()
                        .map(|(t, p, _)| self.find(&response, by_id, *t, *p, cluster))
                        .collect();
                    for ((t, p, first), result) in batches.iter().zip(results) {
                        match result {
                            Some((code, message, offset, time)) => self.on_result(
                                *t, *p, *first, code, message, offset, time, cluster, now,
                            ),
                            None => self.retry(*t, *p, *first, now),
                        }
                    }
                }
                Err(_) => {
                    cluster.refresh();
                    for (t, p, first) in batches {
                        self.retry(*t, *p, *first, now);
                    }
                }
            },
        }
    }

    #[allow(clippy::type_complexity)] // (code, message, base offset, append time), local to the caller
    fn find(
        &self,
        response: &ProduceResponse<'_>,
        by_id: bool,
        t: usize,
        p: i32,
        cluster: &Cluster<Sent>,
    ) -> Option<(ErrorCode, String, i64, WallMs)> {
        let name = &self.topics[t].name;
        let id = cluster.metadata().topics.get(name).map(|t| t.id);
        let single = response.responses.len() == 1;
        let topic = response.responses.iter().find(|topic| {
            if by_id {
                // The id may have changed since the request: then a lone topic is ours all the same.
                Some(topic.topic_id) == id || single
            } else {
                topic.name == name.as_str()
            }
        })?;
        let partition = topic.partition_responses.iter().find(|r| r.index == p)?;
        let mut message = partition
            .error_message
            .as_deref()
            .unwrap_or_default()
            .to_string();
        for error in partition.record_errors.iter().take(3) {
            let text = error
                .batch_index_error_message
                .as_deref()
                .unwrap_or_default();
            message = format!("{message}; record {}: {text}", error.batch_index);
        }
        let code = ErrorCode::from_code(partition.error_code);
        Some((
            code,
            message,
            partition.base_offset,
            partition.log_append_time_ms,
        ))
    }

    #[allow(clippy::too_many_arguments)] // the fields of one answer
    fn on_result(
        &mut self,
        t: usize,
        p: i32,
        first: u64,
        code: ErrorCode,
        message: String,
        offset: i64,
        append_time: WallMs,
        cluster: &mut Cluster<Sent>,
        now: Instant,
    ) {
        let flight = &mut self.topics[t].partitions[p as usize].flight;
        let Some(at) = flight.iter().position(|b| b.first == first) else {
            return;
        };
        let result = match code {
            ErrorCode::None => Ok(offset),
            ErrorCode::DuplicateSequenceNumber => Ok(-1),
            // Something before it failed and is sent again first.
            ErrorCode::OutOfOrderSequenceNumber if at > 0 => return self.retry(t, p, first, now),
            code if code.is_retriable() && code != ErrorCode::CorruptMessage => {
                cluster.refresh();
                return self.retry(t, p, first, now);
            }
            code => Err(Error::Broker { code, message }),
        };
        // A refused batch leaves a hole in the sequence.
        self.renew |= result.is_err() && self.config.idempotence;
        let batch = flight.remove(at).expect("found above");
        self.decide(t, p, batch, result, append_time);
    }

    fn retry(&mut self, t: usize, p: i32, first: u64, now: Instant) {
        let at = now.after_ms(self.config.retry_backoff_ms);
        let flight = &mut self.topics[t].partitions[p as usize].flight;
        if let Some(batch) = flight.iter_mut().find(|b| b.first == first) {
            batch.state = Flight::Retry { at };
        }
    }
}

impl Sealed {
    fn unsent(open: Open) -> Sealed {
        Sealed {
            bytes: Vec::new(),
            held: open.builder.len_uncompressed() - crate::batch::HEADER_BYTES,
            first: open.first,
            count: open.builder.records_count(),
            begun_at: open.begun_at,
            sent_at: Instant::default(),
            state: Flight::Sent,
        }
    }
}

impl TopicState {
    /// Takes over what metadata says, if it is new.
    fn follow(&mut self, cluster: &Cluster<Sent>) {
        if self.generation == cluster.metadata_generation {
            return;
        }
        self.generation = cluster.metadata_generation;
        let Some(topic) = cluster.metadata().topics.get(&self.name) else {
            return;
        };
        if topic.partitions.len() > self.partitions.len() {
            self.partitions
                .resize_with(topic.partitions.len(), PartitionState::default);
        }
        let all = 0..topic.partitions.len() as i32;
        self.available = all
            .clone()
            .filter(|p| topic.partitions[*p as usize].leader >= 0)
            .collect();
        if self.available.is_empty() {
            self.available = all.collect();
        }
    }
}
