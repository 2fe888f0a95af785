//! This shard's part in the cluster: proposals to the controller, deltas from it, and on its shard the controller itself.
//!
//! A change is answered once every shard of the process has applied it and serves every leader that it made: shards
//! report the metadata offset that they have *served*. Channels may drop messages when full: the controller sends a
//! shard that lags its deltas again, and a proposal without an outcome ends as REQUEST_TIMED_OUT.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::api::{Asked, Call};
use super::conn::ReplyTo;
use super::handover::Held;
use super::park::{ParkId, Parked};
use super::{Actions, CONTROLLER_SHARD, PeerMsg, Shard};
use crate::meta::{ApiError, Command, Outcome, OutcomeResult, Record, Resource};
use crate::model::limit::{DELTAS_KEPT_MAX, DELTAS_RESEND_MS, UNANSWERED_MAX};
use crate::model::{ErrorCode, Instant, ShardIndex, TopicPartition};
use crate::quorum::Quorum;

/// A proposal of this shard that has no outcome yet.
#[derive(Debug)]
pub struct ProposalWait {
    token: u64,
    then: Then,
}

/// What a proposal's outcome is for.
#[derive(Debug)]
pub enum Then {
    /// Answers a client.
    Answer {
        to: ReplyTo,
        version: i16,
        correlation_id: i32,
        command: Command,
    },
    /// Answers a client whose request this shard has looked through itself.
    Forwarded {
        call: Call,
        asked: Box<Asked>,
    },
    /// A topic that a client asked Metadata for.
    AutoCreate {
        topic: String,
    },
    ProducerIds,
    Register,
}

/// What a shard knows of its own place.
#[derive(Default, Debug)]
pub struct Follower {
    proposed: BTreeMap<u64, ParkId>,
    next_token: u64,
    registering: bool,
    /// The served offset last reported.
    reported: Option<u64>,
    /// The metadata offset behind the registration of this start, once it is applied: what was opened for it is to be served first.
    registered: Option<u64>,
    /// Topics whose auto creation is under way.
    pub auto_creating: Vec<String>,
}

/// The controller of a process, on one of its shards.
#[derive(Debug)]
pub struct Controller {
    pub quorum: Quorum,
    next_token: u64,
    /// Who proposed what is in the quorum.
    origins: BTreeMap<u64, (ShardIndex, u64)>,
    /// Committed outcomes that some shard has not served yet, by offset.
    unserved: VecDeque<(u64, ShardIndex, u64, Outcome)>,
    /// What each shard says it has served: records `[0..served)`.
    served: Vec<Option<u64>>,
    /// The last committed records, for shards that lag; the first has offset `kept_from`.
    kept: VecDeque<Record>,
    kept_from: u64,
    resend_at: Instant,
}

impl Controller {
    pub fn new(quorum: Quorum, shards: usize) -> Controller {
        Controller {
            quorum,
            next_token: 0,
            origins: BTreeMap::new(),
            unserved: VecDeque::new(),
            served: vec![None; shards],
            kept: VecDeque::new(),
            kept_from: 0,
            resend_at: Instant(0),
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let resend = (!self.unserved.is_empty()).then_some(self.resend_at);
        [self.quorum.next_deadline(), resend]
            .into_iter()
            .flatten()
            .min()
    }

    /// Proposals that were taken and have no outcome.
    fn unanswered(&self) -> usize {
        self.origins.len() + self.unserved.len()
    }

    fn keep(&mut self, offset: u64, records: &[Record]) {
        if self.kept.is_empty() {
            self.kept_from = offset;
        }
        self.kept.extend(records.iter().cloned());
        while self.kept.len() > DELTAS_KEPT_MAX {
            self.kept.pop_front();
            self.kept_from += 1;
        }
    }
}

impl Shard {
    /// Whether the image knows this start of the process.
    fn is_registered(&self) -> bool {
        self.broker_epoch().is_some()
    }

    /// Whether requests are taken: the process is registered, and every partition that this gave to the shard is open, or fenced.
    /// Until then they wait, so that nobody who asks at a start is told that partitions have no leader.
    pub fn is_ready(&self) -> bool {
        let opening = self.opening.first().map(|(offset, _)| *offset);
        let registered = self.follower.registered;
        registered.is_some_and(|offset| opening.is_none_or(|opening| opening >= offset))
    }

    /// Kafka's broker epoch of this start, once the process is registered.
    pub fn broker_epoch(&self) -> Option<i64> {
        let process = self.image.process(self.config.process)?;
        (process.incarnation == self.config.incarnation).then_some(process.epoch)
    }

    fn note_registration(&mut self) {
        if self.follower.registered.is_none() && self.is_registered() {
            self.follower.registered = Some(self.image.applied());
        }
    }

    /// The first turns of the controller's shard propose the registration of the process.
    pub(super) fn boot(&mut self, actions: &mut Actions) {
        if self.config.shard != CONTROLLER_SHARD || self.follower.registering {
            return;
        }
        self.follower.registering = true;
        if let Some(command) = self.config.register.clone() {
            self.propose(command, Then::Register, u64::MAX / 2_000_000, actions);
        }
    }

    /// Sends a command to the controller; its outcome goes where `then` says, or its time runs out.
    pub(super) fn propose(
        &mut self,
        command: Command,
        then: Then,
        timeout_ms: u64,
        actions: &mut Actions,
    ) -> ParkId {
        self.follower.next_token += 1;
        let token = self.follower.next_token;
        let id = self.parked.reserve();
        self.parked.put(
            id,
            Parked::Proposal(ProposalWait { token, then }),
            self.now.mono.after_ms(timeout_ms),
        );
        self.follower.proposed.insert(token, id);
        self.say(
            CONTROLLER_SHARD,
            PeerMsg::Propose { token, command },
            actions,
        );
        id
    }

    /// Says something to a shard of the process, this one included.
    fn say(&mut self, to: ShardIndex, msg: PeerMsg, actions: &mut Actions) {
        if to == self.config.shard {
            self.peer(to, msg, actions);
        } else {
            actions.peers.push((to, msg));
        }
    }

    pub(super) fn peer(&mut self, from: ShardIndex, msg: PeerMsg, actions: &mut Actions) {
        match msg {
            PeerMsg::Propose { token, command } => self.proposed(from, token, command, actions),
            PeerMsg::Outcome { token, outcome } => self.outcome(token, outcome, actions),
            PeerMsg::Deltas {
                from: offset,
                records,
            } => self.deltas(offset, &records, actions),
            PeerMsg::Snapshot { applied, records } => self.snapshot(applied, &records, actions),
            PeerMsg::Release { tp, since } => self.release_asked(from, tp, since),
            PeerMsg::Released { tp, since, left } => self.released(from, tp, since, left),
            PeerMsg::Served { served } => self.served(from, served),
            PeerMsg::CatchUp { from: offset } => self.catch_up(from, offset, actions),
        }
    }

    // -- every shard

    fn deltas(&mut self, from: u64, records: &Arc<[Record]>, actions: &mut Actions) {
        let applied = self.image.applied();
        if from > applied {
            return self.say(
                CONTROLLER_SHARD,
                PeerMsg::CatchUp { from: applied },
                actions,
            );
        }
        if from + records.len() as u64 <= applied {
            // The controller sends this again: what this shard said of it was lost.
            self.follower.reported = None;
        }
        for (offset, record) in (from..).zip(records.iter()).skip((applied - from) as usize) {
            let removed = match record {
                Record::RemoveTopic { id } => Some(*id),
                _ => None,
            };
            let held = self.held_before(record);
            self.image.apply(offset, record);
            self.applied(offset, record, held, actions);
            if let Some(id) = removed {
                self.topic_removed(id, actions);
            }
        }
        self.note_registration();
        self.report_served(actions);
    }

    /// A whole image in place of deltas that are no longer kept.
    fn snapshot(&mut self, applied: u64, records: &Arc<[Record]>, actions: &mut Actions) {
        if applied <= self.image.applied() {
            self.follower.reported = None;
            return self.report_served(actions);
        }
        self.image = self.image.restored(applied, records);
        // Not served before the partitions of its last record are.
        // Who led what before the last record is not told.
        self.reconcile_all(applied - 1, Held::BySibling, actions);
        self.note_registration();
        self.reconfigure_all();
        self.telemetry.changed();
        self.report_served(actions);
    }

    fn applied(&mut self, offset: u64, record: &Record, held: Held, actions: &mut Actions) {
        match record {
            Record::Partition { tp, .. } | Record::PartitionChange { tp, .. } => {
                if self.is_registered() {
                    self.reconcile(*tp, offset, held, actions);
                }
            }
            Record::Process { process, .. } => {
                if *process == self.config.process {
                    self.reconcile_all(offset, held, actions);
                }
            }
            Record::Config {
                resource: Resource::Topic,
                name,
                ..
            } => {
                if let Some(topic) = self.image.topic_by_name(name).cloned() {
                    self.reconfigure(&topic);
                }
            }
            Record::Config {
                resource: Resource::Broker,
                ..
            } => self.reconfigure_all(),
            Record::Config {
                resource: Resource::ClientMetrics,
                ..
            } => self.telemetry.changed(),
            Record::Config {
                resource: Resource::Group,
                ..
            } => {}
            Record::Cluster { .. }
            | Record::Topic { .. }
            | Record::RemoveTopic { .. }
            | Record::ProducerIds { .. }
            | Record::Feature { .. }
            | Record::NoOp => {}
        }
    }

    fn reconfigure_all(&mut self) {
        let topics: Vec<_> = self.image.topics().cloned().collect();
        for topic in &topics {
            self.reconfigure(topic);
        }
    }

    fn topic_removed(&mut self, id: crate::model::TopicId, actions: &mut Actions) {
        let first = TopicPartition {
            topic: id,
            partition: 0,
        };
        let last = TopicPartition {
            topic: id,
            partition: i32::MAX,
        };
        let gone: Vec<_> = self.hosted.range(first..=last).map(|(tp, _)| *tp).collect();
        for tp in gone {
            self.drop_partition(tp, true, actions);
        }
        self.store.forget_left(id);
    }

    /// Makes everything that this shard hosts agree with the image.
    fn reconcile_all(&mut self, offset: u64, held: Held, actions: &mut Actions) {
        if !self.is_registered() {
            return;
        }
        let mut all: Vec<TopicPartition> = self.hosted.keys().copied().collect();
        for topic in self.image.topics() {
            for (partition, state) in (0..).zip(&topic.partitions) {
                if state.leader == self.node {
                    all.push(TopicPartition {
                        topic: topic.id,
                        partition,
                    });
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        for tp in all {
            self.reconcile(tp, offset, held, actions);
        }
    }

    /// Tells the controller up to where this shard serves, when that moved.
    pub(super) fn report_served(&mut self, actions: &mut Actions) {
        let opening = self.opening.first().map(|(offset, _)| *offset);
        let served = opening.unwrap_or(u64::MAX).min(self.image.applied());
        if self.follower.reported != Some(served) {
            self.follower.reported = Some(served);
            self.say(CONTROLLER_SHARD, PeerMsg::Served { served }, actions);
        }
    }

    fn outcome(&mut self, token: u64, outcome: Outcome, actions: &mut Actions) {
        let Some(id) = self.follower.proposed.remove(&token) else {
            return;
        };
        let Some(Parked::Proposal(wait)) = self.parked.take(id) else {
            return;
        };
        self.proposal_done(wait, outcome, actions);
    }

    pub(super) fn proposal_expired(&mut self, wait: ProposalWait, actions: &mut Actions) {
        self.follower.proposed.remove(&wait.token);
        let timed_out = ApiError::new(
            ErrorCode::RequestTimedOut,
            "The controller did not answer in time; the outcome is unknown.",
        );
        let outcome = Outcome::local(OutcomeResult::Failed(timed_out));
        self.proposal_done(wait, outcome, actions);
    }

    fn proposal_done(&mut self, wait: ProposalWait, outcome: Outcome, actions: &mut Actions) {
        match wait.then {
            Then::Answer {
                to,
                version,
                correlation_id,
                command,
            } => {
                self.answer_outcome(to, version, correlation_id, &command, &outcome, actions);
            }
            Then::Forwarded { call, asked } => self.forwarded(call, *asked, &outcome, actions),
            Then::AutoCreate { topic } => self.follower.auto_creating.retain(|name| *name != topic),
            Then::ProducerIds => self.producer_ids_arrived(&outcome, actions),
            Then::Register => {
                if let OutcomeResult::Failed(error) = outcome.result {
                    let why = error
                        .message
                        .unwrap_or_else(|| error.code.name().to_string());
                    self.refused = Some(why);
                }
            }
        }
    }

    // -- the controller's shard

    fn proposed(&mut self, from: ShardIndex, token: u64, command: Command, actions: &mut Actions) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        // Without its registration a process cannot serve, so that one is always taken; there is one of it a start.
        let must = matches!(command, Command::RegisterProcess { .. });
        if controller.unanswered() >= UNANSWERED_MAX && !must {
            let error = ApiError::new(
                ErrorCode::RequestTimedOut,
                "Too many changes of the metadata are not served yet; nothing was changed.",
            );
            let outcome = Outcome::local(OutcomeResult::Failed(error));
            return self.say(from, PeerMsg::Outcome { token, outcome }, actions);
        }
        controller.next_token += 1;
        controller
            .origins
            .insert(controller.next_token, (from, token));
        controller
            .quorum
            .propose(controller.next_token, command, self.now);
    }

    fn served(&mut self, from: ShardIndex, served: u64) {
        if let Some(controller) = &mut self.controller {
            controller.served[usize::from(from.0)] = Some(served);
        }
    }

    fn catch_up(&mut self, shard: ShardIndex, from: u64, actions: &mut Actions) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        let end = controller.kept_from + controller.kept.len() as u64;
        if from >= end && !controller.kept.is_empty() {
            return;
        }
        let msg = if from >= controller.kept_from && !controller.kept.is_empty() {
            let records: Arc<[Record]> = controller
                .kept
                .iter()
                .skip((from - controller.kept_from) as usize)
                .cloned()
                .collect();
            PeerMsg::Deltas { from, records }
        } else {
            PeerMsg::Snapshot {
                applied: self.image.applied(),
                records: self.image.snapshot().into(),
            }
        };
        self.say(shard, msg, actions);
    }

    /// Takes what the quorum committed: deltas to every shard, outcomes once all have served them.
    pub(super) fn lead_cluster(&mut self, actions: &mut Actions) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.quorum.tick(self.now);
        let committed = controller.quorum.take(&mut actions.disk);
        let shards = controller.served.len();
        for entry in committed {
            let Some(controller) = &mut self.controller else {
                return;
            };
            controller.keep(entry.offset, &entry.records);
            if let Some((token, outcome)) = entry.outcome
                && let Some((shard, token)) = controller.origins.remove(&token)
            {
                controller
                    .unserved
                    .push_back((outcome.offset, shard, token, outcome));
            }
            if !entry.records.is_empty() {
                for shard in 0..shards {
                    let records = Arc::clone(&entry.records);
                    self.say(
                        ShardIndex(shard as u16),
                        PeerMsg::Deltas {
                            from: entry.offset,
                            records,
                        },
                        actions,
                    );
                }
            }
        }
        self.report_served(actions);
        self.answer_served(actions);
    }

    fn answer_served(&mut self, actions: &mut Actions) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        let served = controller
            .served
            .iter()
            .map(|served| served.unwrap_or(0))
            .min()
            .unwrap_or(0);
        let mut ready = Vec::new();
        controller
            .unserved
            .retain(|(offset, shard, token, outcome)| {
                let done = *offset <= served;
                if done {
                    ready.push((*shard, *token, outcome.clone()));
                }
                !done
            });
        let lagging: Vec<(ShardIndex, u64)> =
            if controller.unserved.is_empty() || self.now.mono < controller.resend_at {
                Vec::new()
            } else {
                controller.resend_at = self.now.mono.after_ms(DELTAS_RESEND_MS);
                let end = controller.kept_from + controller.kept.len() as u64;
                let lags = |served: &Option<u64>| served.unwrap_or(0) < end;
                let shards = (0..).map(ShardIndex).zip(&controller.served);
                shards
                    .filter(|(_, served)| lags(served))
                    .map(|(shard, served)| (shard, served.unwrap_or(0)))
                    .collect()
            };
        for (shard, token, outcome) in ready {
            self.say(shard, PeerMsg::Outcome { token, outcome }, actions);
        }
        for (shard, from) in lagging {
            if shard != self.config.shard {
                self.catch_up(shard, from, actions);
            }
        }
    }
}
