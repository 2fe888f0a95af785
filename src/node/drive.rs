//! The turn loop of one shard, on its pinned thread.
//!
//! ```text
//! completions, messages, bytes -> events -> Shard::turn -> sends, disk operations, messages -> one submission
//! ```
//!
//! A loop that has more to do goes on at once. One that has not waits in the ring, with the system call that submits what the turn left:
//! a shard pays one `io_uring_enter` a turn, busy or not.
//!
//! The executor gives the shard its pinned thread and carries the loop, its one task. It is never parked: parking costs half a dozen system
//! calls, and glommio 0.9 may park although a task is runnable, when its preemption timer fires between two of its looks. A thread outside
//! that nudged it could not be told in time: a poll of the ring's descriptor is not woken by deferred task work (Linux 6.18), so that one
//! shard in some twenty starts slept for good with a request in its socket.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use glommio::{LocalExecutorBuilder, Placement};

use super::boot::{QuorumSeed, STORE_IDS};
use super::mesh::Mesh;
use super::metronome::TurnCount;
use super::process::News;
use super::ring::{Ring, Waker};
use crate::disk::{self, Disk};
use crate::log::{Opened, Stopped, Store, StoreConfig};
use crate::meta::Image;
use crate::model::limit::{STOP_SEND_MS, TURN_EVENTS_MAX};
use crate::model::{Instant, Now};
use crate::net::Net;
use crate::shard::stats::Histogram;
use crate::shard::{Actions, Event, Shard, ShardConfig, Snapshot};

/// Everything that a shard starts with; made by the process, moved to the shard's thread.
pub(super) struct Seed {
    pub config: ShardConfig,
    pub cpu: usize,
    pub dir: PathBuf,
    pub metadata: Metadata,
    pub store: StoreConfig,
    pub opened: Opened,
    pub sockets: Vec<TcpListener>,
    pub conns_max: usize,
    pub mesh: Mesh,
    pub waker: Waker,
    pub orders: flume::Receiver<Order>,
    pub turns: TurnCount,
    pub news: flume::Sender<News>,
    pub clock: Clock,
}

/// Where a shard has its first image from.
pub(super) enum Metadata {
    /// The controller's shard reads the metadata log.
    Quorum(QuorumSeed),
    Image(Box<Image>),
}

/// What the process tells a shard; its waker is called afterwards.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Stop,
    /// How is it? There is room for the answer.
    Tell(flume::Sender<Box<Told>>),
}

/// A shard and its turns at one instant.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub shard: Snapshot,
    pub cpu: usize,
    pub turns: Histogram,
    pub turns_slow: u64,
}

/// A turn that takes longer is counted apart, microseconds.
const TURN_SLOW_US: u64 = 1_000;

/// What a shard that stopped leaves.
pub(super) struct Left {
    pub stopped: Stopped,
    /// Kafka's, of this start; `None` before its registration.
    pub broker_epoch: Option<i64>,
}

/// The clocks; `start` is that of the process, so that instants of all shards compare.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    start: std::time::Instant,
}

impl Clock {
    pub fn new() -> Clock {
        Clock {
            start: std::time::Instant::now(),
        }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono: self.mono(),
            wall: wall.as_millis() as i64,
        }
    }

    /// From 1 up: 0 is "never" in some places.
    fn mono(&self) -> Instant {
        Instant(self.start.elapsed().as_micros() as u64 + 1)
    }
}

/// How the preemption timer is set: never, in practice. The loop yields to nobody, and glommio 0.9 parks an executor for ever when this
/// timer fires before the first look at its tasks: with 1 ms a shard on a contended core did not start, once in a hundred times.
const PREEMPT: Duration = Duration::from_secs(3600);

/// Memory that glommio registers for files of its own, bytes; nothing here uses it.
const IO_MEMORY_BYTES: usize = 64 * 1024;

/// Entries of glommio's rings.
const EXECUTOR_RING_ENTRIES: usize = 32;

/// Runs a shard until it has stopped, and gives what its store leaves; the error is for the operator.
pub(super) fn run(seed: Seed) -> Result<Left, String> {
    #[cfg(feature = "planted-bugs")]
    super::plant::from_environment();
    let cpu = seed.cpu;
    let executor = LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name("shard")
        .io_memory(IO_MEMORY_BYTES)
        .ring_depth(EXECUTOR_RING_ENTRIES)
        .preempt_timer(PREEMPT)
        .make()
        .map_err(|error| format!("the executor on CPU {cpu} does not start: {error}"))?;
    executor.run(drive(seed))
}

async fn drive(seed: Seed) -> Result<Left, String> {
    let mut driver = Driver::new(seed)?;
    loop {
        driver.turn()?;
        if driver.is_over() {
            let stopped = driver.shard.store().stopped().cloned();
            return Ok(Left {
                stopped: stopped.ok_or("it ended before it stopped")?,
                broker_epoch: driver.shard.broker_epoch(),
            });
        }
        if driver.has_work() {
            // Reaping enters the kernel anyway.
            if !driver.ring.has_completions() {
                driver.ring.submit().map_err(of_ring)?;
            }
        } else {
            driver.rest()?;
        }
    }
}

fn of_ring(error: std::io::Error) -> String {
    format!("io_uring fails: {error}")
}

struct Driver {
    ring: Ring,
    net: Net,
    disk: Disk,
    shard: Shard,
    mesh: Mesh,
    orders: flume::Receiver<Order>,
    turns: TurnCount,
    news: flume::Sender<News>,
    clock: Clock,
    /// As read at the start of the turn.
    now: Now,
    events: VecDeque<Event>,
    actions: Actions,
    /// The inbox may have more.
    more_messages: bool,
    serving: bool,
    cpu: usize,
    turn_times: Histogram,
    turns_slow: u64,
    stopped_at: Option<Instant>,
    #[cfg(feature = "planted-bugs")]
    hold: super::plant::Hold,
}

impl Driver {
    fn new(seed: Seed) -> Result<Driver, String> {
        let ring = Ring::new(seed.waker.clone()).map_err(of_ring)?;
        let waker = seed.waker;
        let disk = Disk::new(&seed.dir, move || waker.wake())
            .map_err(|error| format!("the helper threads of the disk do not start: {error}"))?;
        let mut net = Net::new(seed.conns_max);
        for socket in seed.sockets {
            net.listen(socket);
        }
        let (image, quorum) = match seed.metadata {
            Metadata::Image(image) => (*image, None),
            Metadata::Quorum(of_quorum) => {
                let booted = of_quorum.open(&seed.dir, &seed.opened)?;
                (booted.image, Some(booted.quorum))
            }
        };
        let index = seed.config.shard;
        let store = Store::new(index, seed.store, seed.opened, STORE_IDS);
        let shard = Shard::new(seed.config, image, store, quorum);
        Ok(Driver {
            ring,
            net,
            disk,
            shard,
            mesh: seed.mesh,
            orders: seed.orders,
            turns: seed.turns,
            news: seed.news,
            now: seed.clock.now(),
            clock: seed.clock,
            events: VecDeque::new(),
            actions: Actions {
                // The first turn needs no reason.
                again: true,
                ..Actions::default()
            },
            more_messages: false,
            serving: false,
            cpu: seed.cpu,
            turn_times: Histogram::default(),
            turns_slow: 0,
            stopped_at: None,
            #[cfg(feature = "planted-bugs")]
            hold: super::plant::Hold::from_environment(),
        })
    }

    fn turn(&mut self) -> Result<(), String> {
        self.turns.step();
        self.now = self.clock.now();
        self.gather()?;
        if self.is_due() {
            self.actions.again = false;
            self.shard
                .turn(self.now, &mut self.events, &mut self.actions);
        }
        self.carry_out();
        self.ring.push(&mut self.net.sqes).map_err(of_ring)?;
        #[cfg(feature = "planted-bugs")]
        let held = self.hold.holds(self.now.mono, self.disk.sqes.is_empty());
        #[cfg(not(feature = "planted-bugs"))]
        let held = false;
        if !held {
            self.ring.push(&mut self.disk.sqes).map_err(of_ring)?;
        }
        self.turns.step();
        let us = self.clock.mono().since_us(self.now.mono);
        self.turn_times.record(us);
        self.turns_slow += u64::from(us > TURN_SLOW_US);
        self.tell();
        match self.shard.failed() {
            Some(why) => Err(format!("the process cannot go on: {why}")),
            None => Ok(()),
        }
    }

    /// Whether the shard has something to do. Nothing has come when the write of a pair is complete and its flush is not.
    fn is_due(&self) -> bool {
        let deadline = self.actions.wake_at;
        self.actions.again || self.has_events() || deadline.is_some_and(|at| at <= self.now.mono)
    }

    /// Whether there are events that must not wait for others. That bytes of an answer are with the kernel concerns the shard at once
    /// only where it waits for that: a turn for each answer sent would be half of all turns.
    fn has_events(&self) -> bool {
        self.events.iter().any(|event| match event {
            Event::Sent { conn, .. } => self.net.is_paused(*conn),
            _ => true,
        })
    }

    /// What came from outside since the last turn becomes events.
    fn gather(&mut self) -> Result<(), String> {
        let (net, disk, events) = (&mut self.net, &mut self.disk, &mut self.events);
        self.ring
            .reap(|done| {
                if done.user_data & disk::USER_DATA_BIT != 0 {
                    disk.completed(done.user_data, done.result, events);
                } else {
                    net.completed(done.user_data, done.result, done.flags);
                }
            })
            .map_err(of_ring)?;
        self.disk.drain(&mut self.events);
        if self.ring.take_woken() {
            self.more_messages = true;
            self.take_orders();
        }
        if self.more_messages {
            let room = TURN_EVENTS_MAX.saturating_sub(self.events.len());
            self.more_messages = self.mesh.receive(room, &mut self.events);
        }
        self.net.receive(self.now.mono, &mut self.events);
        Ok(())
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Stop => {
                    self.net.unlisten();
                    self.events.push_back(Event::Stop);
                }
                Order::Tell(answers) => {
                    let told = Told {
                        shard: self.shard.report(),
                        cpu: self.cpu,
                        turns: self.turn_times,
                        turns_slow: self.turns_slow,
                    };
                    // Whoever asked asks once at a time, so there is room; it may be gone.
                    let _ = answers.try_send(Box::new(told));
                }
            }
        }
    }

    /// In the order that [`Actions`] asks for: sends before disk operations, which may close a file that a send names.
    fn carry_out(&mut self) {
        let Actions {
            sends,
            closes,
            pauses,
            disk,
            peers,
            wake_at: _,
            again: _,
            stopped: _,
        } = &mut self.actions;
        for (conn, chunk) in sends.drain(..) {
            self.net.send(conn, chunk, |file| self.disk.cached(file));
        }
        for conn in closes.drain(..) {
            self.net.close(conn);
        }
        for (conn, paused) in pauses.drain(..) {
            self.net.pause(conn, paused);
        }
        for (op, work) in disk.drain(..) {
            self.disk.submit(op, work, &mut self.events);
        }
        for (to, msg) in peers.drain(..) {
            self.mesh.send(to, msg, &mut self.events);
        }
        self.mesh.flush(&mut self.events);
        self.net.flush(&mut self.events);
    }

    /// Tells the process what it waits for.
    fn tell(&mut self) {
        if !self.serving && self.shard.is_ready() {
            self.serving = true;
            let _ = self.news.send(News::Serving);
        }
        if self.actions.stopped && self.stopped_at.is_none() {
            self.stopped_at = Some(self.now.mono);
        }
    }

    fn is_over(&self) -> bool {
        let Some(since) = self.stopped_at else {
            return false;
        };
        let sent = self.net.connections() == 0 || since.after_ms(STOP_SEND_MS) <= self.now.mono;
        sent && self.disk.in_flight() == 0
    }

    /// The next turn has something to do without any new completion.
    fn has_work(&mut self) -> bool {
        self.actions.again
            || self.has_events()
            || self.more_messages
            || self.net.has_work()
            || self.ring.has_completions()
            || !self.disk.sqes.is_empty()
    }

    /// When a turn is due although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let stop = self.stopped_at.map(|at| at.after_ms(STOP_SEND_MS));
        let kept = self.mesh.has_kept().then(|| self.now.mono.after_ms(1));
        [self.actions.wake_at, self.net.next_deadline(), stop, kept]
            .into_iter()
            .flatten()
            .min()
    }

    /// Waits for something to do.
    fn rest(&mut self) -> Result<(), String> {
        let left_us = self.deadline().map(|at| at.since_us(self.now.mono));
        if left_us == Some(0) {
            return self.ring.submit().map_err(of_ring);
        }
        self.ring
            .wait(left_us.map(Duration::from_micros))
            .map_err(of_ring)
    }
}
