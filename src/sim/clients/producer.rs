//! A producer: makes batches, keeps the order of each partition, retries until the broker says yes or cannot.
//!
//! After a failure nothing more of that partition is sent until everything in flight is settled; then all undecided
//! batches go again, in order and with the same bytes.

use std::collections::VecDeque;

use super::links::{Answer, Links};
use super::view::View;
use super::{ByPart, Ctx, Input};
use crate::batch::Builder;
use crate::model::{ErrorCode, Instant, TopicPartition};
use crate::sim::oracle::{BatchId, EPOCH_MS, ProbeKnown, Promise};
use crate::sim::plan::{ProducerPlan, TopicPlan, pick};
use crate::sim::topics::Asked as NameAsked;
use crate::wire::msg::init_producer_id_request::InitProducerIdRequest;
use crate::wire::msg::init_producer_id_response::InitProducerIdResponse;
use crate::wire::msg::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use crate::wire::msg::produce_response::{PartitionProduceResponse, ProduceResponse};
use crate::wire::{ApiKey, Records};

/// Batches of a partition that are undecided at most: the broker remembers five of each producer.
const UNDECIDED_MAX: usize = 5;
/// Partitions in one request at most.
const PARTITIONS_MAX: usize = 4;
/// Topics come by id from this version of Produce on.
const TOPIC_IDS_SINCE: i16 = 13;

#[derive(Clone, Debug)]
enum Tag {
    Metadata,
    ProducerId,
    /// Partitions and their batches, and what was known of the names of their topics, if they were sent by name.
    Produce(Vec<Item>),
}

#[derive(Clone, Copy, Debug)]
struct Item {
    at: (usize, i32),
    tp: TopicPartition,
    batch: BatchId,
    known: ProbeKnown,
    by_name: Option<NameAsked>,
}

struct Undecided {
    batch: BatchId,
    in_flight: bool,
}

#[derive(Default)]
struct Part {
    next_sequence: i32,
    undecided: VecDeque<Undecided>,
    /// Something failed: wait for what is in flight, then send all again.
    settling: bool,
    /// The last answer was a success: more than one batch may be in flight. A first batch goes alone, because a broker
    /// that knows nothing of a producer takes any first sequence; and so does one that was refused, because those behind
    /// it might be taken (the refused attempt was not the first) and move it out of what the broker remembers.
    going: bool,
    /// Not before then.
    retry_at: Instant,
    /// Batches that the broker acknowledged.
    decided: u64,
    /// Losses of power before the first batch.
    losses: Option<u32>,
}

enum Id {
    None,
    Asking,
    Have(i64, i16),
}

pub(crate) struct Producer {
    plan: ProducerPlan,
    links: Links<Tag>,
    view: View,
    parts: ByPart<Part>,
    id: Id,
    /// Of the topics of the plan.
    write_caching: Vec<bool>,
}

impl Producer {
    pub fn new(plan: ProducerPlan, topics: &[TopicPlan]) -> Producer {
        let of = |f: fn(&TopicPlan) -> String| plan.topics.iter().map(|i| f(&topics[*i])).collect();
        let write_caching = plan.topics.iter().map(|i| topics[*i].write_caching);
        Producer {
            write_caching: write_caching.collect(),
            links: Links::new(),
            view: View::new(of(|topic| topic.name.clone())),
            parts: ByPart::new(),
            id: Id::None,
            plan,
        }
    }

    pub fn is_done(&self) -> bool {
        self.parts.values().all(|part| part.undecided.is_empty())
            && self.links.in_flight_total() == 0
    }

    pub fn waits_for(&self) -> String {
        let undecided: usize = self.parts.values().map(|p| p.undecided.len()).sum();
        format!("{undecided} undecided batches, {}", self.links.describe())
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
                self.lost(lost, ctx);
            }
        }
        self.go_on(ctx);
    }

    fn lost(&mut self, tags: Vec<Tag>, ctx: &mut Ctx<'_>) {
        for tag in tags {
            match tag {
                Tag::Metadata => self.view.lost(),
                Tag::ProducerId => self.id = Id::None,
                Tag::Produce(items) => {
                    self.view.stale = true;
                    for item in items {
                        self.settle(item.at, item.batch, ctx);
                    }
                }
            }
        }
    }

    fn go_on(&mut self, ctx: &mut Ctx<'_>) {
        if self.plan.cut_one_in > 0 && !ctx.calm && ctx.rng.one_in(self.plan.cut_one_in) {
            let lost = self.links.cut(ctx);
            self.lost(lost, ctx);
        }
        // Topics grow, and are made anew.
        self.view.stale |= !ctx.calm && ctx.rng.one_in(100);
        self.view.refresh(ctx, &mut self.links, Tag::Metadata);
        self.ask_id(ctx);
        if self.view.is_complete() && !ctx.calm {
            for _ in 0..ctx.rng.below(3) {
                self.make_batch(ctx);
            }
        }
        while self.send(ctx) {}
        let busy = !ctx.calm || !self.is_done();
        if busy {
            let (from, to) = self.plan.pause_us;
            let pause = ctx.rng.range(from, to);
            ctx.wake_in(pause);
        }
    }

    fn ask_id(&mut self, ctx: &mut Ctx<'_>) {
        if !self.plan.idempotent || !matches!(self.id, Id::None) || ctx.shards == 0 {
            return;
        }
        let shard = ctx.rng.below(ctx.shards as u64) as usize;
        let version = ctx.rng.below(6) as i16;
        let tag = Some(Tag::ProducerId);
        let sent = self
            .links
            .call(ctx, shard, ApiKey::InitProducerId, version, tag, |w, v| {
                let request = InitProducerIdRequest {
                    transactional_id: None,
                    producer_id: -1,
                    producer_epoch: -1,
                    transaction_timeout_ms: 60_000,
                    ..Default::default()
                };
                request.encode(w, v);
            });
        if sent {
            self.id = Id::Asking;
        }
    }

    fn make_batch(&mut self, ctx: &mut Ctx<'_>) {
        let topic = ctx.rng.below(self.plan.topics.len() as u64) as usize;
        let Some(known) = self.view.topic(topic) else {
            return;
        };
        let at = (topic, ctx.rng.below(known.leaders.len() as u64) as i32);
        let meant = TopicPartition {
            topic: known.id,
            partition: at.1,
        };
        let mut builder = Builder::new().codec(self.plan.codec);
        let part = self.parts.entry(at).or_default();
        part.losses.get_or_insert(ctx.oracle.power_losses);
        if part.undecided.len() >= UNDECIDED_MAX || part.settling {
            return;
        }
        let bulk = self.plan.bulk_one_in > 0 && ctx.rng.one_in(self.plan.bulk_one_in);
        let (records, bytes) = match bulk {
            true => (ctx.rng.range(1, 20), self.plan.bulk_bytes),
            false => (ctx.rng.range(1, 6), pick(ctx.rng, &[8, 100, 700])),
        };
        match self.id {
            Id::Have(id, epoch) => builder.set_producer(id, epoch, part.next_sequence),
            Id::None | Id::Asking if self.plan.idempotent => return,
            Id::None | Id::Asking => {}
        }
        let timestamp = ctx.oracle.next_timestamp();
        let fill = timestamp.to_be_bytes();
        for record in 0..records {
            let len = (bytes / records).max(1) as usize;
            let mut value: Vec<u8> = fill.iter().copied().cycle().take(len).collect();
            value[0] = record as u8;
            let key = record.to_be_bytes();
            let key = (record % 2 == 0).then_some(&key[..]);
            builder.push(timestamp, key, Some(&value), &[]);
        }
        let (me, sequence, idempotent) = (ctx.me, part.next_sequence, self.plan.idempotent);
        ctx.trace.say(ctx.now, || {
            format!("  client {me} makes batch {} of {records} records for {at:?}, sequence {sequence}, idempotent {idempotent}", timestamp - EPOCH_MS)
        });
        part.next_sequence += records as i32;
        let promise = Promise {
            acks: self.plan.acks,
            idempotent: self.plan.idempotent,
        };
        let bytes = builder.build_with(ctx.codecs);
        let batch = ctx.oracle.batch(bytes.into(), promise, meant);
        part.undecided.push_back(Undecided {
            batch,
            in_flight: false,
        });
    }

    /// Sends one request, if there is something to send. False: nothing more for now.
    fn send(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let mut shard = None;
        let mut items: Vec<Item> = Vec::new();
        let by_name = self.plan.version < TOPIC_IDS_SINCE;
        for (at, part) in &mut self.parts {
            let flying = part.undecided.iter().any(|u| u.in_flight);
            if part.settling {
                if flying || part.retry_at > ctx.now {
                    continue;
                }
                part.settling = false;
            }
            if flying && !part.going && self.plan.idempotent {
                continue;
            }
            let (Some(leader), Some(tp)) = (self.view.leader(*at), self.view.tp(*at)) else {
                continue;
            };
            if leader >= ctx.shards || shard.is_some_and(|shard| shard != leader) {
                self.view.stale |= leader >= ctx.shards && ctx.shards > 0;
                continue;
            }
            if shard.is_none() && self.links.in_flight(leader) >= self.plan.depth {
                continue;
            }
            let Some(next) = part.undecided.iter_mut().find(|u| !u.in_flight) else {
                continue;
            };
            shard = Some(leader);
            items.push(Item {
                at: *at,
                tp,
                batch: next.batch,
                known: ctx.oracle.probe(tp),
                by_name: by_name.then(|| ctx.oracle.topics.asked(self.view.name(at.0))),
            });
            if items.len() >= PARTITIONS_MAX {
                break;
            }
        }
        let Some(shard) = shard else { return false };
        let acks = self.plan.acks;
        let tag = (acks != 0).then(|| Tag::Produce(items.clone()));
        let request = self.request(&items, ctx);
        let sent = self
            .links
            .call(ctx, shard, ApiKey::Produce, self.plan.version, tag, request);
        if !sent {
            return false;
        }
        for Item { at, batch, .. } in items {
            ctx.oracle.sent(batch, by_name);
            let part = self.parts.get_mut(&at).expect("it has a batch");
            if acks == 0 {
                part.undecided.retain(|u| u.batch != batch);
            } else if let Some(u) = part.undecided.iter_mut().find(|u| u.batch == batch) {
                u.in_flight = true;
            }
        }
        true
    }

    /// Writes the body of a Produce.
    fn request(
        &self,
        items: &[Item],
        ctx: &Ctx<'_>,
    ) -> impl FnOnce(&mut crate::wire::Writer, i16) + use<> {
        let mut topics: Vec<TopicProduceData<'static>> = Vec::new();
        for Item { at, tp, batch, .. } in items {
            let id = match self.plan.version >= TOPIC_IDS_SINCE {
                true => tp.topic,
                false => Default::default(),
            };
            let name = self.view.name(at.0).to_string();
            let data = PartitionProduceData {
                index: at.1,
                records: Records::Bytes(ctx.oracle.bytes(*batch).to_vec().into()),
            };
            match topics.iter_mut().find(|topic| topic.name == name) {
                Some(topic) => topic.partition_data.push(data),
                None => topics.push(TopicProduceData {
                    name: name.into(),
                    topic_id: id,
                    partition_data: vec![data],
                }),
            }
        }
        let (acks, timeout_ms) = (self.plan.acks, self.plan.timeout_ms);
        move |w, v| {
            let request = ProduceRequest {
                transactional_id: None,
                acks,
                timeout_ms,
                topic_data: topics,
            };
            request.encode(w, v);
        }
    }

    fn answered(&mut self, answer: Answer<Tag>, ctx: &mut Ctx<'_>) {
        let mut r = answer.reader();
        match &answer.tag {
            Tag::Metadata => {
                self.view.answered(ctx, &answer);
                for topic in self.view.take_renewed() {
                    self.renewed(topic);
                }
            }
            Tag::ProducerId => match InitProducerIdResponse::decode(&mut r, answer.version) {
                Ok(response) => self.id_came(&response, ctx),
                Err(e) => ctx.fail(format!("InitProducerId cannot be read: {e}")),
            },
            Tag::Produce(items) => match ProduceResponse::decode(&mut r, answer.version) {
                Ok(response) => self.produced(&response, items, ctx),
                Err(e) => ctx.fail(format!("Produce cannot be read: {e}")),
            },
        }
    }

    fn id_came(&mut self, response: &InitProducerIdResponse, ctx: &mut Ctx<'_>) {
        self.id = Id::None;
        match ErrorCode::from_code(response.error_code) {
            ErrorCode::None => {
                ctx.oracle.producer_id(response.producer_id);
                self.id = Id::Have(response.producer_id, response.producer_epoch);
            }
            ErrorCode::CoordinatorLoadInProgress => {}
            error => ctx.fail(format!("InitProducerId: {}", error.name())),
        }
    }

    fn produced(&mut self, response: &ProduceResponse<'_>, items: &[Item], ctx: &mut Ctx<'_>) {
        let mut seen = 0;
        for topic in &response.responses {
            for partition in &topic.partition_responses {
                let is_it = |item: &&Item| {
                    item.tp.partition == partition.index
                        && match topic.topic_id.is_zero() {
                            true => self.view.name(item.at.0) == topic.name,
                            false => item.tp.topic == topic.topic_id,
                        }
                };
                let Some(item) = items.iter().find(is_it).copied() else {
                    ctx.fail(format!(
                        "Produce names {} {} {}, nobody asked",
                        topic.name, topic.topic_id, partition.index
                    ));
                    continue;
                };
                seen += 1;
                self.decided(item, partition, ctx);
            }
        }
        if seen != items.len() {
            ctx.fail(format!(
                "Produce answers {seen} of {} partitions",
                items.len()
            ));
        }
    }

    fn decided(&mut self, item: Item, said: &PartitionProduceResponse<'_>, ctx: &mut Ctx<'_>) {
        let Item { at, tp, batch, .. } = item;
        let error = ErrorCode::from_code(said.error_code);
        ctx.trace.event(
            ctx.now,
            "produced",
            &[
                ctx.me as u64,
                batch,
                said.error_code as u64,
                said.base_offset as u64,
            ],
        );
        match error {
            ErrorCode::None => {
                let surely = item.by_name.is_none_or(|since| {
                    let name = self.view.name(at.0);
                    ctx.oracle.topics.is_surely(name, tp.topic, since)
                });
                if surely {
                    ctx.oracle.acked(tp, batch, said.base_offset);
                }
                if item.by_name.is_none() && item.known.life == ctx.oracle.life {
                    ctx.oracle.served(tp, item.known);
                }
                *ctx.acks += 1;
                let part = self.parts.entry(at).or_default();
                // Not if its topic was found to be another one since.
                if part.undecided.iter().any(|u| u.batch == batch) {
                    part.undecided.retain(|u| u.batch != batch);
                    part.decided += 1;
                    part.going = true;
                }
            }
            ErrorCode::NotLeaderOrFollower
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId => {
                self.view.stale = true;
                self.settle(at, batch, ctx);
            }
            ErrorCode::RequestTimedOut => self.settle(at, batch, ctx),
            ErrorCode::KafkaStorageError if ctx.oracle.refusals_allowed => {
                self.settle(at, batch, ctx)
            }
            ErrorCode::OutOfOrderSequenceNumber if self.plan.idempotent => {
                let since = item.by_name.map(|since| (since, tp));
                self.out_of_order(at, batch, since, ctx);
            }
            error => ctx.fail(format!("Produce of batch {batch}: {}", error.name())),
        }
    }

    /// The batch is sent again once nothing of its partition is in flight.
    fn settle(&mut self, at: (usize, i32), batch: BatchId, ctx: &mut Ctx<'_>) {
        let pause = ctx.rng.range(500, 20_000);
        ctx.wake_in(pause);
        let part = self.parts.entry(at).or_default();
        // Not if its topic was found to be another one since.
        if let Some(u) = part.undecided.iter_mut().find(|u| u.batch == batch) {
            u.in_flight = false;
            part.retry_at = ctx.now.after_us(pause);
            (part.settling, part.going) = (true, false);
        }
    }

    /// The topic of this name is another one: what was undecided is given up, sequences begin anew.
    fn renewed(&mut self, topic: usize) {
        if self.plan.idempotent && self.plan.version < TOPIC_IDS_SINCE {
            // Something of the old sequences may have reached, or may still reach, the new topic.
            self.id = Id::None;
            self.parts.clear();
        }
        self.parts.retain(|at, _| at.0 != topic);
    }

    /// The broker misses a batch before this one: right when one before it failed, else it forgot what it had
    /// acknowledged, which it may only where nobody asked for more.
    fn out_of_order(
        &mut self,
        at: (usize, i32),
        batch: BatchId,
        by_name: Option<(NameAsked, TopicPartition)>,
        ctx: &mut Ctx<'_>,
    ) {
        let part = self.parts.entry(at).or_default();
        let first = part.undecided.front().is_some_and(|u| u.batch == batch);
        if !first || part.settling {
            return self.settle(at, batch, ctx);
        }
        // A topic of the same name that this producer does not know of yet may have taken some of them.
        let other = by_name.is_some_and(|(since, tp)| {
            let name = self.view.name(at.0);
            !ctx.oracle.topics.is_surely(name, tp.topic, since)
        });
        let lost = other || self.write_caching[at.0] && Some(ctx.oracle.power_losses) > part.losses;
        if !lost {
            let decided = part.decided;
            return ctx.fail(format!(
                "Produce of batch {batch}: the broker forgot the sequence of {decided} acknowledged batches"
            ));
        }
        // As Kafka's producer does: a new id, and what is undecided is given up.
        self.id = Id::None;
        self.parts.clear();
    }
}
