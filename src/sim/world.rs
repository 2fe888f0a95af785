//! The loop of virtual time: what is due next, and to whom it goes.

use super::clients::{Admin, Client, Consumer, Ctx, Input, Prober, Producer, Vandal};
use super::net::Net;
use super::oracle::Oracle;
use super::plan::{ConsumerPlan, Fault, Plan, pick};
use super::process::Process;
use super::queue::{Queue, What};
use super::trace::{Trace, sum};
use super::{Faults, Options, Report};
use crate::batch::Codecs;
use crate::log::faulty::{Disk, Loss};
use crate::model::{ConnId, Instant, Rng, Uuid};
use crate::shard::{Chunk, Event};

/// Everything must be decided and read so long after the storm, in virtual time.
const CALM_MS: u64 = 120_000;

/// A run with more events goes round in circles.
const EVENTS_MAX: u64 = 2_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Storm,
    /// Producers get everything decided.
    Settle,
    /// Consumers come to rest.
    Rest,
    /// A reader reads every log.
    Judge,
    Over,
}

pub(super) struct World {
    pub(super) plan: Plan,
    seed: u64,
    pub(super) now: Instant,
    pub(super) queue: Queue,
    pub(super) rng: Rng,
    pub(super) trace: Trace,
    pub(super) disk: Disk,
    /// When the disk is looked at next.
    pub(super) disk_at: Option<Instant>,
    pub(super) process: Process,
    pub(super) net: Net,
    clients: Vec<Client>,
    client_at: Vec<Option<Instant>>,
    client_rng: Rng,
    codecs: Codecs,
    pub(super) oracle: Oracle,
    pub(super) cluster_id: Uuid,
    phase: Phase,
    /// Index of the next fault.
    next_fault: usize,
    /// A crash that waits for so many acknowledgements in all.
    crash_at_acks: Option<(u64, Loss, usize)>,
    acks: u64,
    /// The start under way crashes after so many operations.
    pub(super) crash_in_boot: Option<(u64, Loss)>,
    pub(super) crashes: Vec<Loss>,
    /// How far the wall clock is off.
    pub(super) clock_ms: i64,
    /// Some log is to be cut as soon as one can be.
    pub(super) diverging: bool,
    /// A stop is under way: how long the process stays down then, and its shards after that.
    pub(super) stopping: Option<(u64, usize)>,
    pub(super) stop_should_be_clean: bool,
    /// Shards of the next start.
    pub(super) next_shards: usize,
    /// The end of a slow or full disk.
    fault_ends: Option<Instant>,
    pub(super) lives: u64,
}

/// How a process may crash.
fn crashes(faults: &Faults) -> Vec<Loss> {
    let mut crashes = Vec::new();
    if faults.has("power") {
        crashes.extend([Loss::All, Loss::Some]);
    }
    if faults.has("kill") {
        crashes.push(Loss::Killed);
    }
    crashes
}

impl World {
    pub fn new(options: &Options) -> World {
        let mut rng = Rng::seeded(options.seed);
        let faults = options.faults.draw_some(&mut rng);
        let plan = Plan::draw(&mut rng, &faults);
        let mut disk = Disk::new(rng.next_u64());
        disk.faults.latency_us = plan.disk_latency_us;
        let net = Net::new(plan.net_latency_us, Rng::seeded(rng.next_u64()));
        let admin = Admin::new(plan.admin.clone(), &plan.topics);
        let mut clients = vec![Client::Admin(admin)];
        for producer in &plan.producers {
            clients.push(Client::Producer(Producer::new(
                producer.clone(),
                &plan.topics,
            )));
        }
        for consumer in &plan.consumers {
            let consumer = Consumer::new(consumer.clone(), &plan.topics, false);
            clients.push(Client::Consumer(consumer));
        }
        for prober in &plan.probers {
            let prober = Prober::new(prober.clone(), &plan.topics);
            clients.push(Client::Prober(prober));
        }
        for vandal in &plan.vandals {
            clients.push(Client::Vandal(Vandal::new(vandal.clone())));
        }
        let mut world = World {
            seed: options.seed,
            now: Instant(0),
            queue: Queue::default(),
            trace: Trace::new(options.seed, options.trace),
            disk,
            disk_at: None,
            process: Process::default(),
            net,
            client_at: vec![None; clients.len()],
            clients,
            client_rng: Rng::seeded(rng.next_u64()),
            codecs: Codecs::default(),
            oracle: Oracle::default(),
            cluster_id: rng.uuid(),
            phase: Phase::Storm,
            next_fault: 0,
            crash_at_acks: None,
            crash_in_boot: None,
            stopping: None,
            stop_should_be_clean: false,
            crashes: crashes(&faults),
            diverging: false,
            clock_ms: 0,
            acks: 0,
            next_shards: plan.shards,
            fault_ends: None,
            lives: 0,
            rng,
            plan,
        };
        world.trace.say(world.now, || format!("{:#?}", world.plan));
        world.queue.push(Instant(1), What::Boot);
        for client in 0..world.clients.len() {
            world.wake_client(client, Instant(1_000 + client as u64));
        }
        for (at, _) in &world.plan.faults {
            world.queue.push(*at, What::Fault);
        }
        world.queue.push(world.plan.storm, What::Calm);
        world
    }

    /// Until all is decided and read, an oracle objects, or time is up.
    pub fn run(&mut self) {
        let end = self.plan.storm.after_ms(CALM_MS);
        while self.phase != Phase::Over && self.oracle.failure().is_none() {
            let Some((at, what)) = self.queue.pop() else {
                return self.hang("nothing is left to happen");
            };
            self.now = at;
            if at > end {
                return self.hang("time is up");
            }
            if self.trace.events() > EVENTS_MAX {
                return self.hang("there is no end of events");
            }
            self.happens(what);
            if self.phase != Phase::Storm {
                self.proceed();
            }
        }
        if self.oracle.failure().is_none() {
            self.finish();
        }
    }

    fn hang(&mut self, why: &str) {
        let waiting: Vec<String> = self
            .clients
            .iter()
            .enumerate()
            .filter(|(_, client)| !client.is_done())
            .map(|(index, client)| format!("client {index} waits for {}", client.waits_for()))
            .collect();
        let phase = self.phase;
        let what = format!(
            "hang in {phase:?}: {why}: {}{}",
            waiting.join("; "),
            self.describe()
        );
        self.oracle.fail(what);
    }

    pub fn report(&mut self, panicked: Option<String>) -> Report {
        Report {
            seed: self.seed,
            hash: self.trace.hash(),
            events: self.trace.events(),
            acknowledged: self.oracle.acknowledged,
            lives: self.lives,
            virtual_ms: self.now.0 / 1000,
            failure: panicked.or(self.oracle.failure().map(str::to_string)),
        }
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Turn { shard } => self.turn(shard),
            What::Disk => self.disk_due(),
            What::Peer { from, to } => self.peer(from, to),
            What::Accept(conn) => self.accept(conn),
            What::Arrive(conn) => self.arrive(conn),
            What::ShardGone(conn) => self.shard_gone(conn),
            What::Send(conn) => self.send(conn),
            What::Reach(conn) => {
                if let Some((client, bytes)) = self.net.reached(conn) {
                    self.client(client, Input::Bytes(conn, bytes));
                }
            }
            What::ClientGone(conn) => self.client_gone(conn),
            What::Client(client) => {
                if self.client_at[client] == Some(self.now) {
                    self.client_at[client] = None;
                    self.client(client, Input::Wake);
                }
            }
            What::Boot => {
                if self.process.shards.is_empty() {
                    self.lives += 1;
                    self.boot(self.next_shards);
                }
            }
            What::Fault => self.fault(),
            What::CrashAgain { life } => self.crash_again(life),
            What::FaultEnds => self.fault_ends(),
            What::Calm => self.calm(),
        }
    }

    // -- faults

    fn fault(&mut self) {
        let Some((_, fault)) = self.plan.faults.get(self.next_fault).copied() else {
            return;
        };
        self.next_fault += 1;
        if self.phase != Phase::Storm {
            return;
        }
        self.trace.say(self.now, || format!("{fault:?}"));
        self.trace
            .event(self.now, "fault", &[self.next_fault as u64]);
        match fault {
            Fault::Crash {
                loss,
                down_ms,
                shards,
            } => self.crash_and_restart(loss, down_ms, shards),
            Fault::CrashOnAck {
                loss,
                acks,
                shards,
                slow,
            } => {
                self.crash_at_acks = Some((self.acks + acks, loss, shards));
                self.slow_disk(slow);
            }
            Fault::Stop { down_ms, shards } => self.stop(down_ms, shards),
            Fault::Slow { factor, for_ms } => {
                self.slow_disk(factor);
                self.fault_lasts(for_ms);
            }
            Fault::Broken { what } => {
                self.oracle.fences_allowed = true;
                self.oracle.refusals_allowed = true;
                self.disk.faults.broken = Some(what.to_string());
            }
            Fault::Diverge => self.diverging = true,
            Fault::Clock { offset_ms } => self.clock_ms = offset_ms,
            Fault::Full { bytes, for_ms } => {
                self.oracle.refusals_allowed = true;
                self.disk.faults.space = self.disk.used() + bytes;
                self.fault_lasts(for_ms);
            }
        }
    }

    /// Once in a while a process that just started crashes again soon.
    pub(super) fn draw_crash_soon(&mut self) {
        if self.lives > 1 && self.phase == Phase::Storm && self.rng.one_in(3) {
            let life = self.oracle.life;
            let at = self.now.after_us(self.rng.range(500, 20_000));
            self.queue.push(at, What::CrashAgain { life });
        }
    }

    fn crash_again(&mut self, life: u64) {
        if self.phase == Phase::Storm && self.oracle.life == life && !self.crashes.is_empty() {
            let loss = pick(&mut self.rng, &self.crashes);
            self.crash_and_restart(loss, 1, self.next_shards);
        }
    }

    pub(super) fn is_storm(&self) -> bool {
        self.phase == Phase::Storm
    }

    fn slow_disk(&mut self, factor: u64) {
        let (from, to) = self.plan.disk_latency_us;
        self.disk.faults.latency_us = (from * factor, to * factor);
    }

    /// Once in a while a start does not get to its end.
    pub(super) fn draw_crash_in_boot(&mut self) -> Option<(u64, Loss)> {
        if self.phase != Phase::Storm || self.crashes.is_empty() || !self.rng.one_in(4) {
            return None;
        }
        let loss = pick(&mut self.rng, &self.crashes);
        Some((self.rng.below(60), loss))
    }

    fn fault_lasts(&mut self, ms: u64) {
        let ends = self.now.after_ms(ms);
        self.fault_ends = Some(ends);
        self.queue.push(ends, What::FaultEnds);
    }

    fn fault_ends(&mut self) {
        if self.fault_ends == Some(self.now) {
            self.mend_disk();
        }
    }

    fn mend_disk(&mut self) {
        self.fault_ends = None;
        self.disk.faults.latency_us = self.plan.disk_latency_us;
        self.disk.faults.space = u64::MAX;
    }

    fn stop(&mut self, down_ms: u64, shards: usize) {
        if self.stopping.is_some() || self.process.shards.is_empty() {
            return;
        }
        self.stopping = Some((down_ms, shards));
        self.stop_should_be_clean = self.all_open() && self.clients[0].is_done();
        self.net.excuse();
        for index in 0..self.process.shards.len() {
            self.give(index, Event::Stop);
        }
    }

    pub(super) fn crash_and_restart(&mut self, loss: Loss, down_ms: u64, shards: usize) {
        self.crash_at_acks = None;
        self.slow_disk(1);
        self.disk.faults.broken = None;
        if !self.process.shards.is_empty() {
            self.crash(loss);
        }
        self.next_shards = shards;
        self.queue.push(self.now.after_ms(down_ms), What::Boot);
    }

    /// The storm is over: the disk is sound from here on, and a process that was hurt starts again.
    fn calm(&mut self) {
        self.trace.event(self.now, "calm", &[]);
        self.phase = Phase::Settle;
        self.mend_disk();
        self.crash_at_acks = None;
        if self.is_hurt() || self.disk.faults.broken.is_some() {
            self.crash_and_restart(Loss::Killed, 1, self.next_shards);
        }
        if self.process.shards.is_empty() {
            self.queue.push(self.now, What::Boot);
        }
    }

    /// From phase to phase, as soon as clients are done.
    fn proceed(&mut self) {
        let done = |clients: &[Client], which: fn(&Client) -> bool| {
            clients.iter().filter(|c| which(c)).all(Client::is_done)
        };
        match self.phase {
            Phase::Storm | Phase::Over => {}
            Phase::Settle => {
                if done(&self.clients, |c| !matches!(c, Client::Consumer(_))) {
                    self.phase = Phase::Rest;
                    for client in &mut self.clients {
                        if let Client::Consumer(consumer) = client {
                            consumer.stop();
                        }
                    }
                }
            }
            Phase::Rest => {
                if done(&self.clients, |c| matches!(c, Client::Consumer(_))) {
                    self.phase = Phase::Judge;
                    let judge = self.judge();
                    self.clients.push(Client::Consumer(judge));
                    self.client_at.push(None);
                    self.wake_client(self.clients.len() - 1, self.now);
                }
            }
            Phase::Judge => {
                if self.clients.last().is_some_and(Client::is_done) {
                    self.phase = Phase::Over;
                }
            }
        }
    }

    fn judge(&mut self) -> Consumer {
        let plan = ConsumerPlan {
            // By id: a name may have been that of another topic.
            version: self.rng.range(13, 19) as i16,
            sessions: false,
            isolation_level: self.rng.below(2) as i8,
            topics: (0..self.plan.topics.len()).collect(),
            max_wait_ms: 0,
            min_bytes: 0,
            bytes_max: 10_000_000,
            partition_bytes_max: 1_000_000,
            pause_us: (500, 1_000),
            cut_one_in: 0,
        };
        Consumer::new(plan, &self.plan.topics, true)
    }

    // -- clients

    fn wake_client(&mut self, client: usize, at: Instant) {
        if self.client_at[client].is_none_or(|before| at < before) {
            self.client_at[client] = Some(at);
            self.queue.push(at, What::Client(client));
        }
    }

    fn client(&mut self, index: usize, input: Input) {
        let mut wake_at = None;
        let mut ctx = Ctx {
            me: index,
            now: self.now,
            rng: &mut self.client_rng,
            net: &mut self.net,
            queue: &mut self.queue,
            oracle: &mut self.oracle,
            trace: &mut self.trace,
            codecs: &mut self.codecs,
            shards: match self.stopping {
                Some(_) => 0,
                None => self.process.shards.len(),
            },
            calm: self.phase != Phase::Storm,
            wake_at: &mut wake_at,
            acks: &mut self.acks,
        };
        self.clients[index].on(input, &mut ctx);
        if let Some(at) = wake_at {
            self.wake_client(index, at);
        }
        if let Some((acks, loss, shards)) = self.crash_at_acks
            && self.acks >= acks
            && self.phase == Phase::Storm
        {
            self.crash_and_restart(loss, 1, shards);
        }
    }

    // -- connections, on the shard's side

    fn accept(&mut self, id: ConnId) {
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        let shard = conn.shard;
        if conn.is_crashed() || shard >= self.process.shards.len() {
            return;
        }
        conn.open_at_shard = true;
        let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 40_000));
        let local = std::net::SocketAddr::from(([127, 0, 0, 1], 9092 + shard as u16));
        self.give(
            shard,
            Event::Open {
                conn: id,
                peer,
                local,
            },
        );
    }

    fn arrive(&mut self, id: ConnId) {
        if let Some(item) = self.net.arrived(id) {
            self.deliver(id, item);
        }
    }

    /// A piece of what the peer sends, or the end of it.
    fn deliver(&mut self, id: ConnId, item: Option<bytes::Bytes>) {
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        if !conn.open_at_shard {
            return;
        }
        let shard = conn.shard;
        let Some(piece) = item else {
            return self.give(shard, Event::HalfClosed { conn: id });
        };
        match conn.frames(piece) {
            Ok(frames) => {
                for frame in frames {
                    self.give(shard, Event::Frame { conn: id, frame });
                }
            }
            // The shell cannot follow the stream any further.
            Err(_) => self.finish_close(id),
        }
    }

    pub(super) fn pause(&mut self, id: ConnId, paused: bool, _: Instant) {
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        conn.paused = paused;
        if !paused {
            let held: Vec<_> = conn.held.drain(..).collect();
            for item in held {
                self.deliver(id, item);
            }
        }
    }

    pub(super) fn queue_send(&mut self, id: ConnId, chunk: Chunk, now: Instant) {
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        if !conn.open_at_shard {
            return;
        }
        conn.outbound.push_back(chunk);
        if !conn.sending {
            conn.sending = true;
            self.queue.push(now, What::Send(id));
        }
    }

    /// The kernel takes a piece.
    fn send(&mut self, id: ConnId) {
        let delay = self.rng.below(30);
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        let shard = conn.shard;
        let Some(chunk) = conn.outbound.pop_front() else {
            conn.sending = false;
            return;
        };
        let more = !conn.outbound.is_empty();
        conn.sending = more;
        let finish = !more && conn.closing;
        let bytes = self.bytes_of(shard, &chunk);
        drop(chunk);
        self.trace.event(self.now, "send", &[id.0, sum(&bytes)]);
        let event = Event::Sent {
            conn: id,
            bytes: bytes.len(),
        };
        self.net.leave(id, bytes, self.now, &mut self.queue);
        self.give(shard, event);
        if more {
            self.queue.push(self.now.after_us(delay), What::Send(id));
        }
        if finish {
            self.finish_close(id);
        }
    }

    /// The shard wants the connection closed after what it gave to send.
    pub(super) fn close(&mut self, id: ConnId) {
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        conn.closing = true;
        if conn.outbound.is_empty() {
            self.finish_close(id);
        }
    }

    fn finish_close(&mut self, id: ConnId) {
        self.shard_gone(id);
        self.net.close_to_client(id, self.now, &mut self.queue);
    }

    /// The connection has ended on the shard's side.
    fn shard_gone(&mut self, id: ConnId) {
        let Some(conn) = self.net.conns.get_mut(&id) else {
            return;
        };
        conn.outbound.clear();
        let (shard, left) = (conn.shard, conn.left);
        if std::mem::take(&mut conn.open_at_shard) {
            self.give(shard, Event::Closed { conn: id });
        }
        if left {
            self.net.conns.remove(&id);
        }
    }

    /// The client hears that the connection is closed.
    fn client_gone(&mut self, id: ConnId) {
        let Some(conn) = self.net.conns.get(&id) else {
            return;
        };
        let (client, left) = (conn.client, conn.left);
        if !left {
            self.client(client, Input::Gone(id));
        }
        self.net.conns.remove(&id);
    }
}
