//! A process from its first check to its last shard's end.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use super::boot::{self, FileSystem, QuorumSeed};
use super::config::{BootError, ServerConfig};
use super::drive::{self, Clock, Left, Metadata, Order, Seed};
use super::fit;
use super::http::{self, LogFilter, Phase};
use super::mesh::Inboxes;
use super::metronome::{self, TurnCount};
use super::ports::{self, Ports};
use super::properties::{self, LogDir};
use super::ring::Waker;
use crate::log::{Opened, Stopped, StoreConfig};
use crate::meta::Command;
use crate::model::limit::{SIGNAL_REPEAT_MS, STOP_MS};
use crate::model::{NodeId, Rng, ShardIndex, Uuid};
use crate::shard::{CONTROLLER_SHARD, ShardConfig};

/// What shards and signals say to the main thread.
pub(super) enum News {
    /// The shard serves clients.
    Serving,
    Ended {
        shard: ShardIndex,
        result: Result<Left, String>,
    },
    Signal(i32),
}

/// Serves until SIGTERM or SIGINT. A second signal ends the process at once.
pub fn run(config: ServerConfig, log_filter: LogFilter) -> Result<(), BootError> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    fit::require(&config)?;
    let (news, news_taken) = flume::unbounded();
    let started = Arc::new(AtomicBool::new(false));
    catch_signals(news.clone(), Arc::clone(&started))?;
    let dir = properties::open(&config.log_dir, config.process, random_id)?;
    let disk = FileSystem::of(&dir.path)?;
    let ports = ports::bind(&config.listeners, config.shards)?;
    let operator = http::bind(&config)?;
    let opened = boot::replay(&dir.path, config.shards)?;
    let greeting = greeting(&config, &dir, &disk, &ports);
    let about = http::About {
        process: config.process,
        cluster: dir.cluster.to_string(),
        log_dir: dir.path.display().to_string(),
        log_filter,
    };
    let mut plan = Plan::new(config, &dir, &disk, opened, &ports, news)?;
    started.store(true, Ordering::Relaxed);
    // `dir` holds the lock until the last shard has ended.
    let mut process = Process::start(&mut plan, ports, news_taken, greeting)?;
    if let Some(socket) = operator {
        process.open_operator_port(socket, about)?;
    }
    process.watch()
}

fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes");
    u64::from_ne_bytes(bytes)
}

fn random_id() -> Uuid {
    Rng::seeded(random_u64()).uuid()
}

/// Before any shard has `started` there is nothing to stop: a replay that is cut off is done again by the next start.
fn catch_signals(news: flume::Sender<News>, started: Arc<AtomicBool>) -> Result<(), BootError> {
    let cannot = |error| BootError(format!("cannot wait for signals: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(cannot)?;
    // A file that meets a limit is an error of that file, not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(cannot)?;
    let wait = move || {
        let mut earlier: Option<Instant> = None;
        for signal in signals.forever() {
            if !started.load(Ordering::Relaxed) {
                info!(signal, "ended before anything was started");
                std::process::exit(0);
            }
            match earlier {
                // One press of a key, or one `timeout`, may reach the process twice: by itself and in its group.
                Some(at) if at.elapsed().as_millis() < u128::from(SIGNAL_REPEAT_MS) => continue,
                _ => {}
            }
            if earlier.is_some() || news.send(News::Signal(signal)).is_err() {
                warn!("a second signal: ending at once");
                std::process::exit(128 + signal);
            }
            earlier = Some(Instant::now());
        }
    };
    let thread = std::thread::Builder::new()
        .name("signals".into())
        .stack_size(128 * 1024);
    thread.spawn(wait).map(drop).map_err(cannot)
}

/// The line that says what started.
fn greeting(config: &ServerConfig, dir: &LogDir, disk: &FileSystem, ports: &[Ports]) -> String {
    let first = NodeId::of(config.process, ShardIndex(0)).0;
    let nodes = match ports.len() {
        1 => format!("node {first}"),
        count => format!("nodes {first}-{}", first + count as i32 - 1),
    };
    let listeners: Vec<String> = (0..config.listeners.len())
        .map(|at| {
            let listener = &config.listeners[at];
            let bound: Vec<String> = ports
                .iter()
                .map(|ports| ports.listeners[at].port.to_string())
                .collect();
            let told = &ports[0].endpoints.endpoints[at];
            let told = match told.host == listener.host {
                true => String::new(),
                false => format!(" (clients are told {}:{})", told.host, told.port),
            };
            let host = match listener.host.as_str() {
                "" => "*",
                host => host,
            };
            format!("{}://{host}:{}{told}", listener.name, bound.join(","))
        })
        .collect();
    let durability = match config.statics.bool("write.caching") {
        _ if disk.is_memory() => {
            "NOTHING IS DURABLE: the data directory is in memory, and gone when the power is"
        }
        false => "acks=all waits for the disk's flush",
        true => "acks=all does not wait for the disk's flush (write.caching=true)",
    };
    format!(
        "Corelane {} serves: {nodes} on {}; data in {} ({}); {durability}",
        env!("CARGO_PKG_VERSION"),
        listeners.join(", "),
        dir.path.display(),
        disk.name
    )
}

/// What all shards of a process start with.
struct Plan {
    config: ServerConfig,
    dir: PathBuf,
    store: StoreConfig,
    opened: Opened,
    incarnation: Uuid,
    register: Command,
    wakers: Vec<Waker>,
    inboxes: Inboxes,
    news: flume::Sender<News>,
    clock: Clock,
    rng: Rng,
}

impl Plan {
    fn new(
        config: ServerConfig,
        dir: &LogDir,
        disk: &FileSystem,
        opened: Opened,
        ports: &[Ports],
        news: flume::Sender<News>,
    ) -> Result<Plan, BootError> {
        let mut rng = Rng::seeded(random_u64());
        let incarnation = rng.uuid();
        let register = Command::RegisterProcess {
            process: config.process,
            incarnation,
            rack: config.statics.text("broker.rack"),
            shards: ports.iter().map(|p| p.endpoints.clone()).collect(),
            cluster_id: Some(dir.cluster),
        };
        let wakers = (0..config.shards).map(|_| Waker::new());
        Ok(Plan {
            dir: dir.path.clone(),
            store: boot::store_config(&config.statics, disk, config.shards),
            opened,
            incarnation,
            register,
            wakers: wakers
                .collect::<Result<_, _>>()
                .map_err(|error| BootError(format!("cannot make an eventfd: {error}")))?,
            inboxes: Inboxes::new(usize::from(config.shards)),
            news,
            clock: Clock::new(),
            rng,
            config,
        })
    }

    fn start(&mut self, ports: Ports, metadata: Metadata) -> Result<Member, BootError> {
        let shard = ports.endpoints.shard;
        let index = usize::from(shard.0);
        let (orders, orders_taken) = flume::unbounded();
        let turns = TurnCount::default();
        let statics = &self.config.statics;
        let seed = Seed {
            config: ShardConfig {
                process: self.config.process,
                shard,
                shards: self.config.shards,
                incarnation: self.incarnation,
                listeners: ports.listeners,
                log_dir: self.dir.display().to_string(),
                register: (shard == CONTROLLER_SHARD).then(|| self.register.clone()),
                auto_create_topics: statics.bool("auto.create.topics.enable"),
                fetch_bytes_max: statics.number("fetch.max.bytes") as i32,
                request_bytes_max: statics.number("socket.request.max.bytes") as u32,
                seed: self.rng.next_u64(),
            },
            cpu: self.config.cpus[index % self.config.cpus.len()],
            dir: self.dir.clone(),
            metadata,
            store: self.store.clone(),
            opened: self.opened.clone(),
            sockets: ports.sockets,
            conns_max: statics.number("max.connections") as usize,
            mesh: self.inboxes.mesh(shard, &self.wakers),
            waker: self.wakers[index].clone(),
            orders: orders_taken,
            turns: turns.clone(),
            news: self.news.clone(),
            clock: self.clock,
        };
        start_shard(seed, self.news.clone())?;
        Ok(Member {
            waker: self.wakers[index].clone(),
            orders,
            turns,
        })
    }
}

/// The running process, as its main thread sees it.
struct Process {
    members: Vec<Member>,
    news: flume::Receiver<News>,
    greeting: String,
    serving: usize,
    ended: usize,
    stopping_since: Option<Instant>,
    /// To the thread of the operator's port, if there is one.
    phases: Option<flume::Sender<Phase>>,
    failed: Option<String>,
    /// What the shards left.
    stopped: Vec<Stopped>,
    broker_epoch: Option<i64>,
    dir: PathBuf,
    opened: Opened,
}

/// One shard of it.
struct Member {
    waker: Waker,
    orders: flume::Sender<Order>,
    turns: TurnCount,
}

impl Process {
    fn start(
        plan: &mut Plan,
        ports: Vec<Ports>,
        news: flume::Receiver<News>,
        greeting: String,
    ) -> Result<Process, BootError> {
        let mut ports = ports.into_iter();
        let controller = ports.next().expect("a process has a shard");
        let (image, image_taken) = flume::bounded(1);
        let seed = QuorumSeed {
            process: plan.config.process,
            statics: Arc::clone(&plan.config.statics),
            rng: Rng::seeded(plan.rng.next_u64()),
            image,
        };
        let mut members = vec![plan.start(controller, Metadata::Quorum(seed))?];
        let image = match image_taken.recv() {
            Ok(image) => image.map_err(BootError)?,
            Err(flume::RecvError::Disconnected) => return Err(ended_early(&news)),
        };
        for ports in ports {
            members.push(plan.start(ports, Metadata::Image(Box::new(image.clone())))?);
        }
        Ok(Process {
            members,
            news,
            greeting,
            serving: 0,
            ended: 0,
            stopping_since: None,
            phases: None,
            failed: None,
            stopped: Vec::new(),
            broker_epoch: None,
            dir: plan.dir.clone(),
            opened: plan.opened.clone(),
        })
    }

    fn open_operator_port(
        &mut self,
        socket: TcpListener,
        about: http::About,
    ) -> Result<(), BootError> {
        let (phases, phases_taken) = flume::unbounded();
        let members = self.members.iter().map(|member| http::Asked {
            orders: member.orders.clone(),
            waker: member.waker.clone(),
        });
        let address = socket.local_addr();
        let started = address.and_then(|address| {
            http::start(socket, members.collect(), about, phases_taken)?;
            Ok(address)
        });
        let address = started
            .map_err(|error| BootError(format!("the operator's port does not open: {error}")))?;
        info!("metrics, health and status on http://{address}");
        self.phases = Some(phases);
        Ok(())
    }

    fn tell_phase(&self, phase: Phase) {
        if let Some(phases) = &self.phases {
            // The thread may have ended; it has said why.
            let _ = phases.send(phase);
        }
    }

    /// Until all shards have ended.
    fn watch(mut self) -> Result<(), BootError> {
        let turns = self.members.iter().map(|member| member.turns.clone());
        let (_end, ended) = flume::bounded(0);
        metronome::start(turns.collect(), ended)
            .map_err(|error| BootError(format!("the metronome does not start: {error}")))?;
        while self.ended < self.members.len() {
            match self.next_news() {
                Some(news) => self.take(news)?,
                None => {
                    error!(
                        "the shards did not stop within {STOP_MS} ms; what they had not written is replayed at the next start"
                    );
                    return Err(BootError("the stop took too long".to_string()));
                }
            }
        }
        if let Some(why) = self.failed {
            return Err(BootError(why));
        }
        match boot::finish(&self.dir, self.opened, self.stopped, self.broker_epoch) {
            Ok(true) => info!("stopped"),
            Ok(false) => warn!("stopped; not all logs could be closed, the next start checks them"),
            Err(why) => warn!("stopped, but the next start checks all logs: {why}"),
        }
        Ok(())
    }

    /// `None` when a stop has taken too long.
    fn next_news(&self) -> Option<News> {
        match self.stopping_since {
            None => self.news.recv().ok(),
            Some(since) => {
                let left = Duration::from_millis(STOP_MS).saturating_sub(since.elapsed());
                self.news.recv_timeout(left).ok()
            }
        }
    }

    fn take(&mut self, news: News) -> Result<(), BootError> {
        match news {
            News::Serving => {
                self.serving += 1;
                if self.serving == self.members.len() {
                    self.tell_phase(Phase::Serving);
                    info!("{}", self.greeting);
                }
                Ok(())
            }
            News::Ended { shard, result } => {
                self.ended += 1;
                match result {
                    Ok(left) => {
                        self.stopped.push(left.stopped);
                        self.broker_epoch = self.broker_epoch.max(left.broker_epoch);
                    }
                    Err(why) => {
                        let why = format!("shard {}: {why}", shard.0);
                        error!("{why}");
                        // The first is the cause.
                        self.failed.get_or_insert(why);
                    }
                }
                // One machine is the unit of failure: what is left would answer for partitions that nobody serves.
                self.stop();
                Ok(())
            }
            News::Signal(signal) => {
                info!(signal, "stopping");
                self.stop();
                Ok(())
            }
        }
    }

    fn stop(&mut self) {
        if self.stopping_since.is_some() {
            return;
        }
        self.stopping_since = Some(Instant::now());
        self.tell_phase(Phase::Stopping);
        for member in &self.members {
            // A shard that has ended takes no orders.
            let _ = member.orders.send(Order::Stop);
            member.waker.wake();
        }
    }
}

/// Why the first shard's thread ended before it read the metadata.
fn ended_early(news: &flume::Receiver<News>) -> BootError {
    for said in news.iter() {
        if let News::Ended {
            result: Err(why), ..
        } = said
        {
            return BootError(why);
        }
    }
    BootError("the first shard did not start".to_string())
}

fn start_shard(seed: Seed, news: flume::Sender<News>) -> Result<(), BootError> {
    let shard = seed.config.shard;
    let body = move || {
        let mut ended = Ended {
            shard,
            news,
            result: None,
        };
        ended.result = Some(drive::run(seed));
    };
    std::thread::Builder::new()
        .name(format!("shard-{}", shard.0))
        .spawn(body)
        .map(drop)
        .map_err(|error| BootError(format!("the thread of a shard does not start: {error}")))
}

/// Tells of the end of a shard's thread, also by a panic.
struct Ended {
    shard: ShardIndex,
    news: flume::Sender<News>,
    result: Option<Result<Left, String>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let bug = || Err("a bug ended its thread; see the lines above".to_string());
        let result = self.result.take().unwrap_or_else(bug);
        let _ = self.news.send(News::Ended {
            shard: self.shard,
            result,
        });
    }
}
