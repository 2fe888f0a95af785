//! The process under test: its start, the turns of its shards, and its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::clients::PROCESS;
use super::oracle::name;
use super::plan::pick;
use super::queue::What;
use super::world::World;
use crate::batch::Batch;
use crate::log::faulty::Loss;
use crate::log::{self, DiskOp, DiskResult, Finish, Ids, Opened, Replay, Store};
use crate::meta::{Command, Endpoint, Image, ShardEndpoints, StaticConfig};
use crate::model::limit::REQUEST_BYTES_MAX;
use crate::model::{Instant, Now, Rng, ShardIndex, TopicId, TopicPartition, Uuid};
use crate::quorum::{self, Booted, Quorum};
use crate::shard::{Actions, Chunk, Event, Listener, PeerMsg, Shard, ShardConfig};

/// Turns of one shard without an event between them at most: more is a shard that goes round in circles.
const IDLE_TURNS_MAX: u32 = 20_000;

const PORT: u16 = 9092;

/// The directory of the metadata quorum.
const CLUSTER_METADATA: &str = "__cluster_metadata-0";

pub(super) struct Running {
    shard: Shard,
    events: VecDeque<Event>,
    turn_at: Option<Instant>,
    /// The last turn keeps the core until then.
    busy_until: Instant,
    idle_turns: u32,
    /// It has stopped in an orderly way.
    stopped: bool,
}

/// What is on its way from one shard to another.
#[derive(Default)]
pub(super) struct Channel {
    queue: VecDeque<PeerMsg>,
    last_at: Instant,
}

#[derive(Default)]
pub(super) struct Process {
    pub shards: Vec<Running>,
    mesh: BTreeMap<(usize, usize), Channel>,
    opened: Opened,
}

fn wall(now: Instant, clock_ms: i64) -> i64 {
    super::oracle::EPOCH_MS + (now.0 / 1000) as i64 + clock_ms
}

/// Why a start came to nothing.
enum Halt {
    Crash(Loss),
    Failed(String),
}

impl World {
    /// Starts the process with so many shards; a start may crash or fail and is tried again.
    pub(super) fn boot(&mut self, shards: usize) {
        self.trace.event(self.now, "boot", &[shards as u64]);
        let again = match self.recover(shards) {
            Ok((opened, booted)) => {
                self.check_topics(&booted.image);
                self.draw_crash_soon();
                return self.start_shards(shards, &booted.image, Some(booted.quorum), &opened);
            }
            Err(Halt::Crash(loss)) => {
                self.crash(loss);
                1
            }
            Err(Halt::Failed(why)) => {
                if !self.oracle.refusals_allowed {
                    self.oracle
                        .fail(format!("the process does not start: {why}"));
                }
                50
            }
        };
        self.queue.push(self.now.after_ms(again), What::Boot);
    }

    /// What the disk has to say, read before any shard starts.
    fn recover(&mut self, shards: usize) -> Result<(Opened, Box<Booted>), Halt> {
        self.crash_in_boot = self.draw_crash_in_boot();
        let mut replay = Replay::new(shards as u16);
        let mut last = None;
        let opened = loop {
            match replay.next(last) {
                log::Step::Op(op) => last = Some(self.boot_op(&op)?),
                log::Step::Done(opened) => break opened,
                log::Step::Failed(why) => return Err(Halt::Failed(why)),
            }
        };
        let statics = Arc::new(StaticConfig::default());
        let options = quorum::Options {
            process: PROCESS,
            snapshot_records: self.plan.snapshot_records,
            ids: Ids {
                first: 1,
                stride: 2,
            },
        };
        let mut boot = Quorum::boot(options, statics, Rng::seeded(self.rng.next_u64()));
        let mut last = None;
        let booted = loop {
            match boot.next(last) {
                quorum::Step::Op(op) => last = Some(self.boot_op(&op)?),
                quorum::Step::Done(booted) => break booted,
                quorum::Step::Failed(why) => return Err(Halt::Failed(why)),
            }
        };
        for (from, to) in opened.strays(|tp| booted.image.partition(tp).is_some()) {
            // A disk that fails here leaves it where it is.
            let _ = self.boot_op(&DiskOp::Rename { from, to })?;
        }
        Ok((*opened, booted))
    }

    fn boot_op(&mut self, op: &DiskOp) -> Result<DiskResult, Halt> {
        if let Some((ops, loss)) = &mut self.crash_in_boot {
            if *ops == 0 {
                return Err(Halt::Crash(*loss));
            }
            *ops -= 1;
        }
        Ok(self.disk.run(op))
    }

    /// What was answered as created is there, what was answered as deleted is not.
    fn check_topics(&mut self, image: &Image) {
        for wrong in self.oracle.topics.check(image) {
            self.oracle.fail(wrong);
        }
    }

    fn start_shards(
        &mut self,
        shards: usize,
        image: &Image,
        mut quorum: Option<Quorum>,
        opened: &Opened,
    ) {
        let incarnation = self.rng.uuid();
        let cluster_id = self.cluster_id;
        self.process.mesh.clear();
        self.process.opened = opened.clone();
        for index in 0..shards {
            let config = self.shard_config(index, shards, incarnation, cluster_id);
            let store = Store::new(
                config.shard,
                self.plan.store.clone(),
                opened.clone(),
                Ids {
                    first: 2,
                    stride: 2,
                },
            );
            let quorum = if index == 0 { quorum.take() } else { None };
            let running = Running {
                shard: Shard::new(config, image.clone(), store, quorum),
                events: VecDeque::new(),
                turn_at: None,
                busy_until: self.now,
                idle_turns: 0,
                stopped: false,
            };
            self.process.shards.push(running);
            self.wake(index, self.now);
        }
    }

    fn shard_config(
        &mut self,
        index: usize,
        shards: usize,
        incarnation: Uuid,
        cluster_id: Uuid,
    ) -> ShardConfig {
        let listener = |shard: usize| Listener {
            name: "PLAINTEXT".into(),
            host: "sim".into(),
            port: PORT + shard as u16,
        };
        let endpoints = (0..shards).map(|shard| ShardEndpoints {
            shard: ShardIndex(shard as u16),
            endpoints: vec![Endpoint {
                listener: "PLAINTEXT".into(),
                host: "sim".into(),
                port: PORT + shard as u16,
            }],
        });
        let register = Command::RegisterProcess {
            process: PROCESS,
            incarnation,
            rack: None,
            shards: endpoints.collect(),
            cluster_id: Some(cluster_id),
        };
        ShardConfig {
            process: PROCESS,
            shard: ShardIndex(index as u16),
            shards: shards as u16,
            incarnation,
            listeners: vec![listener(index)],
            log_dir: "/data".into(),
            register: (index == 0).then_some(register),
            auto_create_topics: false,
            fetch_bytes_max: 55 * 1024 * 1024,
            request_bytes_max: REQUEST_BYTES_MAX,
            seed: self.rng.next_u64(),
        }
    }

    /// Once every shard has stopped, the clean stop is noted and the process ends.
    fn shard_stopped(&mut self) {
        if !self.process.shards.iter().all(|running| running.stopped) {
            return;
        }
        let Some((down_ms, shards)) = self.stopping else {
            return self
                .oracle
                .fail("the process stopped and nobody asked".into());
        };
        let stores = self.process.shards.iter().map(|r| r.shard.store());
        let stopped: Vec<_> = stores.filter_map(|s| s.stopped().cloned()).collect();
        self.crash_in_boot = self.draw_crash_in_boot();
        let mut finish = Finish::new(self.process.opened.clone(), stopped, -1);
        let mut last = None;
        let ended = loop {
            match finish.next(last) {
                log::Step::Op(op) => match self.boot_op(&op) {
                    Ok(result) => last = Some(result),
                    Err(halt) => break Err(halt),
                },
                log::Step::Done(clean) => break Ok(clean),
                log::Step::Failed(why) => break Err(Halt::Failed(why)),
            }
        };
        self.trace
            .event(self.now, "stopped", &[u64::from(matches!(ended, Ok(true)))]);
        let sound = !self.oracle.refusals_allowed && self.stop_should_be_clean;
        let mut loss = Loss::Killed;
        match ended {
            Ok(false) if sound => self.oracle.fail("a stop was not clean".into()),
            Err(Halt::Failed(why)) if sound => {
                self.oracle.fail(format!("a clean stop failed: {why}"));
            }
            // Everything is flushed: losing power now takes nothing that a kill would not.
            Ok(true) if !self.crashes.is_empty() => loss = pick(&mut self.rng, &self.crashes),
            Ok(_) | Err(_) => {}
        }
        self.end(loss, Loss::Killed);
        self.next_shards = shards;
        self.queue.push(self.now.after_ms(down_ms), What::Boot);
    }

    /// The process is gone; of its disk remains what `loss` says.
    pub(super) fn crash(&mut self, loss: Loss) {
        self.trace.event(self.now, "crash", &[loss as u64]);
        self.end(loss, loss);
    }

    /// `loss` is what becomes of the disk, `allowed` what may be missing then.
    fn end(&mut self, loss: Loss, allowed: Loss) {
        if self.stopping.take().is_some() {
            self.oracle.stopped();
        }
        self.net.crash(self.now, &mut self.queue);
        self.process = Process::default();
        self.disk.crash(loss);
        self.disk_at = None;
        self.disk.faults.broken = None;
        self.oracle.crashed(allowed);
        self.oracle.fences_allowed = false;
        self.oracle.refusals_allowed = self.disk.faults.space != u64::MAX;
    }

    // -- events and turns

    pub(super) fn give(&mut self, index: usize, event: Event) {
        let delay = self.rng.below(5);
        if let Some(running) = self.process.shards.get_mut(index) {
            running.events.push_back(event);
            running.idle_turns = 0;
            let at = running.busy_until.max(self.now.after_us(delay));
            self.wake(index, at);
        }
    }

    fn wake(&mut self, index: usize, at: Instant) {
        let running = &mut self.process.shards[index];
        if running.turn_at.is_none_or(|before| at < before) {
            running.turn_at = Some(at);
            self.queue.push(at, What::Turn { shard: index });
        }
    }

    pub(super) fn turn(&mut self, index: usize) {
        let now = Now {
            mono: self.now,
            wall: wall(self.now, self.clock_ms),
        };
        let Some(running) = self.process.shards.get_mut(index) else {
            return;
        };
        if running.turn_at != Some(self.now) || running.stopped {
            return;
        }
        running.turn_at = None;
        let events = running.events.len();
        let mut actions = Actions::default();
        running.shard.turn(now, &mut running.events, &mut actions);
        running.shard.check();
        running.idle_turns += 1;
        let idle_turns = running.idle_turns;
        if idle_turns > IDLE_TURNS_MAX {
            let wake_at = actions.wake_at;
            self.oracle.fail(format!(
                "shard {index} had {idle_turns} turns without an event; it wakes at {wake_at:?} and it is {:?}",
                self.now
            ));
        }
        self.trace.event(
            self.now,
            "turn",
            &[
                index as u64,
                events as u64,
                actions.sends.len() as u64,
                actions.disk.len() as u64,
                actions.peers.len() as u64,
            ],
        );
        self.look(index);
        self.act(index, actions);
        if self.diverging && self.is_storm() {
            self.diverge(index, now);
        }
    }

    /// Cuts a log of this shard above what is safe, if one has something there.
    fn diverge(&mut self, index: usize, now: Now) {
        let Some(running) = self.process.shards.get_mut(index) else {
            return;
        };
        let logs = running.shard.store().logs();
        let can: Vec<(TopicPartition, i64, i64)> = logs
            .filter(|log| log.is_ready() && log.appended() > log.safe())
            .map(|log| (log.tp(), log.safe(), log.appended()))
            .collect();
        if can.is_empty() || running.stopped || self.stopping.is_some() {
            return;
        }
        let (tp, safe, appended) = pick(&mut self.rng, &can);
        let end = self.rng.range(safe as u64, appended as u64) as i64;
        self.diverging = false;
        self.trace.event(self.now, "diverge", &[end as u64]);
        self.trace
            .say(self.now, || format!("  {} is cut at {end}", name(tp)));
        let mut actions = Actions::default();
        running.shard.cut(tp, end, now, &mut actions);
        self.oracle.cut(tp);
        self.act(index, actions);
        self.wake(index, self.process.shards[index].busy_until);
    }

    /// The oracle's look at the logs of a shard.
    fn look(&mut self, index: usize) {
        let shard = &self.process.shards[index].shard;
        let wall = wall(self.now, self.clock_ms);
        let mut opened = Vec::new();
        for (tp, appended) in shard.store().giving_up() {
            self.oracle.given_up(tp, appended);
        }
        for log in shard.store().logs() {
            let epoch = shard
                .image()
                .partition(log.tp())
                .map_or(-1, |partition| partition.leader_epoch);
            let topic = shard.image().topic(log.tp().topic);
            let of_topic = topic.map_or("", |topic| &*topic.name);
            if let Some(end) = self.oracle.look(log, of_topic, epoch, wall)
                && let Some(topic) = topic
            {
                let dir = format!("{}-{}/", topic.name, log.tp().partition);
                opened.push((log.tp(), dir, end));
            }
        }
        for (tp, dir, end) in opened {
            self.check_segment(tp, &dir, end);
        }
        let shard = &self.process.shards[index].shard;
        for note in self.oracle.notes.drain(..) {
            self.trace.say(self.now, || note);
        }
        if let Some(why) = shard.store().failed()
            && !self.oracle.fences_allowed
        {
            self.oracle
                .fail(format!("shard {index} gave its disk up: {why}"));
        }
    }

    /// A log that opens holds everything in its segments, and nothing whole lies behind its end: it could be taken for
    /// a part of the log later.
    fn check_segment(&mut self, tp: TopicPartition, dir: &str, end: i64) {
        let paths = self.disk.paths();
        let last = paths
            .iter()
            .rfind(|path| path.starts_with(dir) && path.ends_with(".log"));
        let Some(bytes) = last.and_then(|path| self.disk.file(path)) else {
            return self
                .oracle
                .fail(format!("{} is open and has no segment", name(tp)));
        };
        let (mut at, mut next) = (0, None);
        while let Ok((batch, len)) = Batch::parse(&bytes[at..])
            && batch.base_offset() < end
        {
            next = Some(batch.last_offset() + 1);
            at += len;
        }
        if next.is_some_and(|next| next != end) {
            self.oracle.fail(format!(
                "{} is open up to {end}, its segment holds records up to {next:?}",
                name(tp)
            ));
        }
        if let Some(stale) = bytes[at..].iter().position(|byte| *byte != 0) {
            self.oracle.fail(format!(
                "{}: something lies {stale} bytes behind the end of a log that just opened",
                name(tp)
            ));
        }
    }

    fn act(&mut self, index: usize, actions: Actions) {
        let cost = self.rng.range(self.plan.turn_us.0, self.plan.turn_us.1);
        let done = self.now.after_us(cost);
        for (conn, chunk) in actions.sends {
            self.queue_send(conn, chunk, done);
        }
        for conn in actions.closes {
            self.close(conn);
        }
        for (conn, paused) in actions.pauses {
            self.pause(conn, paused, done);
        }
        for (id, op) in actions.disk {
            self.disk.submit(index as u16, id, op, done);
        }
        self.watch_disk();
        for (to, msg) in actions.peers {
            self.say(index, usize::from(to.0), msg, done);
        }
        let running = &mut self.process.shards[index];
        running.busy_until = done;
        running.stopped = actions.stopped;
        if actions.stopped {
            return self.shard_stopped();
        }
        let more = actions.again || !running.events.is_empty();
        if more {
            self.wake(index, done);
        }
        if let Some(at) = actions.wake_at {
            self.wake(index, at.max(done));
        }
    }

    /// The mesh: in order for each pair; what does not fit is dropped.
    fn say(&mut self, from: usize, to: usize, msg: PeerMsg, now: Instant) {
        if to >= self.process.shards.len() {
            return self
                .oracle
                .fail(format!("shard {from} speaks to shard {to}, there is none"));
        }
        self.trace
            .say(self.now, || format!("  {from} says to {to}: {msg:?}"));
        let (low, high) = self.plan.peer_latency_us;
        let at = now.after_us(self.rng.range(low, high));
        let channel = self.process.mesh.entry((from, to)).or_default();
        let full = channel.queue.len() >= self.plan.mesh_max;
        self.trace
            .event(self.now, "peer", &[from as u64, to as u64, u64::from(full)]);
        if full {
            return;
        }
        channel.last_at = channel.last_at.max(at);
        channel.queue.push_back(msg);
        self.queue.push(channel.last_at, What::Peer { from, to });
    }

    pub(super) fn peer(&mut self, from: usize, to: usize) {
        let Some(channel) = self.process.mesh.get_mut(&(from, to)) else {
            return;
        };
        // Stale when the process started again since.
        if channel.last_at < self.now || channel.queue.is_empty() {
            return;
        }
        if let Some(msg) = channel.queue.pop_front() {
            let from = ShardIndex(from as u16);
            self.give(to, Event::Peer { from, msg });
        }
    }

    // -- disk

    pub(super) fn watch_disk(&mut self) {
        if let Some(due) = self.disk.next_due()
            && self.disk_at.is_none_or(|at| due < at)
        {
            self.disk_at = Some(due);
            self.queue.push(due, What::Disk);
        }
    }

    pub(super) fn disk_due(&mut self) {
        if self.disk_at != Some(self.now) {
            return;
        }
        self.disk_at = None;
        while let Some(done) = self.disk.complete_due(self.now) {
            self.trace.event(
                self.now,
                "disk",
                &[
                    u64::from(done.owner),
                    done.id.0,
                    u64::from(done.result.is_ok()),
                ],
            );
            let event = Event::Disk {
                op: done.id,
                result: done.result,
            };
            self.give(usize::from(done.owner), event);
        }
        self.watch_disk();
    }

    /// The bytes of a piece of an answer, read when the kernel takes it.
    pub(super) fn bytes_of(&self, shard: usize, chunk: &Chunk) -> Vec<u8> {
        match chunk {
            Chunk::Bytes(bytes) => bytes.to_vec(),
            Chunk::Span(span) => self.disk.bytes_of(shard as u16, span),
        }
    }

    /// Whether every log is open: only then a stop can leave all of them as Kafka's.
    pub(super) fn all_open(&self) -> bool {
        let stores = self.process.shards.iter().map(|r| r.shard.store());
        let open: usize = stores
            .map(|store| store.logs().filter(|log| log.is_ready()).count())
            .sum();
        let partitions = |running: &Running| -> usize {
            let topics = running.shard.image().topics();
            topics.map(|topic| topic.partitions.len()).sum()
        };
        self.process.shards.iter().all(|r| partitions(r) == open)
    }

    /// Everything is decided and read: what is there must be what was promised, and nothing else.
    pub(super) fn finish(&mut self) {
        let image = self.process.shards[0].shard.image();
        let live: BTreeSet<TopicId> = image.topics().map(|topic| topic.id).collect();
        let dirs: BTreeSet<String> = image
            .topics()
            .flat_map(|topic| (0..topic.partitions.len()).map(|p| format!("{}-{p}", topic.name)))
            .collect();
        self.oracle.finish(&live);
        // A crash may leave the directory of a topic that was just deleted, until another of its name is made.
        if self.lives > 1 {
            return;
        }
        for path in self.disk.paths() {
            let Some((dir, _)) = path.split_once('/') else {
                continue;
            };
            let other = dir == CLUSTER_METADATA || dir.ends_with("-delete");
            if !dirs.contains(dir) && !other && path.ends_with("partition.metadata") {
                self.oracle
                    .fail(format!("{path} is left of a topic that is not there"));
            }
        }
    }

    /// Whether some replica is out of use: only a start of the process mends that.
    pub(super) fn is_hurt(&self) -> bool {
        self.process.shards.iter().any(|running| {
            let store = running.shard.store();
            store.failed().is_some()
                || store
                    .logs()
                    .any(|log| matches!(log.state(), crate::log::LogState::Fenced(_)))
        })
    }

    /// What the shards have open, for the report of a hang.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (index, running) in self.process.shards.iter().enumerate() {
            let store = running.shard.store();
            text.push_str(&format!(
                "\n  shard {index}: {} connections, {} bytes unwritten",
                running.shard.conns_open(),
                store.unwritten_bytes()
            ));
            self.trace.say(self.now, || format!("{store:?}"));
            for log in store.logs() {
                text.push_str(&format!(
                    "\n    {}: {:?} appended {} written {} safe {} flushed {}",
                    name(log.tp()),
                    log.state(),
                    log.appended(),
                    log.written(),
                    log.safe(),
                    log.flushed()
                ));
            }
        }
        text
    }
}
