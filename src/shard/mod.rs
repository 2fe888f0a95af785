//! One core's world: the state machine that a turn advances.
//!
//! Owns connections and reply slots, the partitions that this shard leads, parked requests, fetch sessions, this shard's
//! copy of the image, and on the controller's shard the metadata quorum. Takes [`Event`]s, gives [`Actions`]; the node
//! drives it with real sockets and files, the simulator with its own.
//!
//! Invariants: answers of a connection leave in request order; nothing is acknowledged before the log says it is written
//! (acks=1) or safe (acks=all); no partition serves before its log is open and the process is registered. Must not know
//! clocks, files, sockets or the runtime.

pub mod api;
mod cluster;
pub mod config;
pub mod conn;
pub mod event;
mod handover;
mod hosted;
mod park;
mod partitions;
pub mod peer;
pub mod session;
pub mod stats;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use config::{CONTROLLER_SHARD, Listener, ShardConfig};
pub use event::{Actions, Chunk, Event};
pub use peer::PeerMsg;

use crate::batch::Codecs;
use crate::log::Store;
use crate::meta::Image;
use crate::model::limit::{TURN_EVENTS_MAX, TURN_FRAME_BYTES_MAX, UNWRITTEN_BYTES_MAX};
use crate::model::{Instant, NodeId, Now, Rarely, Rng, TopicPartition};
use crate::quorum::Quorum;
use cluster::{Controller, Follower};
use conn::Conns;
use handover::Handover;
use hosted::Hosted;
use park::{ParkId, ParkingLot};
use session::Sessions;
pub use stats::{Counters, Snapshot};

#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
    node: NodeId,
    now: Now,
    rng: Rng,
    image: Image,
    conns: Conns,
    hosted: BTreeMap<TopicPartition, Hosted>,
    /// Partitions whose log is still being opened, with the metadata offset that is not served before.
    opening: BTreeSet<(u64, TopicPartition)>,
    store: Store,
    codecs: Codecs,
    parked: ParkingLot,
    sessions: Sessions,
    follower: Follower,
    handover: Handover,
    controller: Option<Controller>,
    producer_ids: api::producer_id::ProducerIds,
    telemetry: api::telemetry::Telemetry,
    /// Requests that wait for the sizes of the file system.
    log_dirs_waiting: Vec<ParkId>,
    /// Parked requests to look at again before the turn ends.
    woken: Vec<ParkId>,
    stopping: bool,
    /// Why the cluster does not take this process.
    refused: Option<String>,
    pub counters: Counters,
    bad_input: Rarely,
}

impl Shard {
    /// `image` is what the boot of the quorum read; `quorum` is given to the controller's shard alone.
    pub fn new(
        config: ShardConfig,
        mut image: Image,
        store: Store,
        quorum: Option<Quorum>,
    ) -> Shard {
        image.see_as(config.node());
        let slots = image
            .statics()
            .number("max.incremental.fetch.session.cache.slots");
        let slots = usize::try_from(slots).expect("the table has only positive ones");
        Shard {
            node: config.node(),
            rng: Rng::seeded(config.seed),
            controller: quorum.map(|quorum| Controller::new(quorum, usize::from(config.shards))),
            config,
            now: Now::default(),
            image,
            conns: Conns::default(),
            hosted: BTreeMap::new(),
            opening: BTreeSet::new(),
            store,
            codecs: Codecs::default(),
            parked: ParkingLot::default(),
            sessions: Sessions::new(slots),
            follower: Follower::default(),
            handover: Handover::default(),
            producer_ids: api::producer_id::ProducerIds::default(),
            telemetry: api::telemetry::Telemetry::default(),
            log_dirs_waiting: Vec::new(),
            woken: Vec::new(),
            stopping: false,
            refused: None,
            counters: Counters::default(),
            bad_input: Rarely::default(),
        }
    }

    /// One turn: a bounded batch of events, due timers, requests that may start, then at most one journal write and one
    /// write per bulk log.
    pub fn turn(&mut self, now: Now, events: &mut VecDeque<Event>, actions: &mut Actions) {
        self.now = now;
        self.conns.now = now.mono;
        self.boot(actions);
        for _ in 0..TURN_EVENTS_MAX {
            let Some(event) = events.pop_front() else {
                break;
            };
            self.event(event, actions);
        }
        self.progress(actions);
        self.expire(actions);
        self.start_requests(actions);
        self.lead_cluster(actions);
        // Before the commit, which writes what ending the logs asks for: nothing else may come that would bring another turn.
        self.stop_if_asked(actions);
        self.store.tick(now, &mut actions.disk);
        self.store.commit(now, &mut actions.disk);
        self.progress(actions);
        self.hand_over(actions);
        self.report_served(actions);
        actions.again |= !events.is_empty() || self.may_start_more();
        actions.wake_at = self.next_deadline();
    }

    fn event(&mut self, event: Event, actions: &mut Actions) {
        match event {
            Event::Open { conn, peer, local } => {
                self.counters.connections_opened += 1;
                self.conns.open(conn, peer, local);
            }
            Event::Frame { conn, frame } => self.conns.frame(conn, frame, actions),
            Event::HalfClosed { conn } => self.conns.half_closed(conn, actions),
            Event::Closed { conn } => self.closed(conn),
            Event::Sent { conn, bytes } => self.conns.sent(conn, bytes, actions),
            Event::Disk { op, result } => self.disk(op, result, actions),
            Event::Peer { from, msg } => self.peer(from, msg, actions),
            Event::Stop => self.stopping = true,
        }
    }

    fn disk(
        &mut self,
        op: crate::log::OpId,
        result: crate::log::DiskResult,
        actions: &mut Actions,
    ) {
        if let Some(controller) = &mut self.controller
            && controller.quorum.on_disk(op, result.clone(), self.now)
        {
            return;
        }
        let mine = self.store.on_disk(op, result, self.now, &mut actions.disk);
        assert!(mine, "a completion belongs to whoever issued the operation");
    }

    /// Starts requests in the order that connections allow, until the turn has taken its share of bytes.
    fn start_requests(&mut self, actions: &mut Actions) {
        let mut bytes = 0;
        while bytes < TURN_FRAME_BYTES_MAX && self.is_taking_requests() {
            let Some((conn, frame)) = self.conns.next(actions) else {
                return;
            };
            bytes += frame.len();
            self.request(conn, &frame, actions);
        }
    }

    /// While too much is appended and not written, nothing starts: the disk's completions bring the next turn.
    fn is_taking_requests(&self) -> bool {
        self.is_ready() && self.store.unwritten_bytes() < UNWRITTEN_BYTES_MAX
    }

    /// Whether a request could start at once: one that did not fit into the turn, or one behind an answer of it.
    fn may_start_more(&self) -> bool {
        self.is_taking_requests() && self.conns.has_startable()
    }

    /// Wakes what waited for the ends that moved, until nothing moves any more.
    fn progress(&mut self, actions: &mut Actions) {
        for tp in self.store.take_progress() {
            self.log_moved(tp, actions);
        }
        while let Some(id) = self.woken.pop() {
            self.look_again(id, actions);
        }
        if let Some(space) = self.store.take_space() {
            self.space_told(space, actions);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let controller = self.controller.as_ref().and_then(Controller::next_deadline);
        [
            self.parked.next_deadline(),
            self.store.next_deadline(),
            self.handover.next_deadline(),
            controller,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Ends in an orderly way: parked requests are let go, the store writes its clean state, then the shard has stopped.
    fn stop_if_asked(&mut self, actions: &mut Actions) {
        if !self.stopping {
            return;
        }
        for conn in self.conns.ids() {
            self.conns.close(conn, actions);
        }
        self.parked.take_all();
        self.store.stop(self.now, &mut actions.disk);
        let decided = self.controller.as_ref().is_none_or(|c| c.quorum.is_idle());
        actions.stopped = decided && self.store.is_stopped();
    }

    /// Walks every invariant; the simulator calls it after every turn.
    pub fn check(&self) {
        self.conns.check();
        self.parked.check();
        self.sessions.check();
        self.store.check();
        for (tp, hosted) in &self.hosted {
            if let (Some(replica), Some(log)) = (&hosted.replica, self.store.log(*tp)) {
                replica.check(log);
            }
        }
    }

    pub fn image(&self) -> &Image {
        &self.image
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Why the process must end: what the cluster agreed on cannot be written any more, or it does not take this process.
    pub fn failed(&self) -> Option<&str> {
        let quorum = self.controller.as_ref().and_then(|c| c.quorum.failed());
        quorum.or(self.refused.as_deref())
    }

    pub fn conns_open(&self) -> usize {
        self.conns.len()
    }
}
