//! A shard's thread without a shard: ring, net and disk, and a closure that answers events.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use corelane::disk::{self, Disk};
use corelane::log::DiskOp;
use corelane::log::{DiskResult, OpId};
use corelane::model::Instant;
use corelane::net::{self, Net};
use corelane::node::ring::{Ring, Waker};
use corelane::shard::{Actions, Event};

pub struct Rig {
    pub net: Net,
    pub disk: Disk,
    pub ring: Ring,
    pub events: VecDeque<Event>,
    started: Clock,
    next_op: u64,
}

impl Rig {
    pub fn new(dir: &std::path::Path) -> Rig {
        let waker = Waker::new().unwrap();
        let ring = Ring::new(waker.clone()).expect("io_uring");
        Rig {
            net: Net::new(100_000),
            disk: Disk::new(dir, move || waker.wake()).unwrap(),
            ring,
            events: VecDeque::new(),
            started: Clock::now(),
            next_op: 0,
        }
    }

    pub fn now(&self) -> Instant {
        Instant(self.started.elapsed().as_micros() as u64)
    }

    /// One turn: completions, receives, the handler for each event, what it asked for.
    pub fn turn(&mut self, wait: Duration, mut handle: impl FnMut(Event, &mut Actions)) {
        let idle = self.events.is_empty() && !self.net.has_work() && !self.ring.has_completions();
        if idle {
            self.ring.wait(Some(wait)).unwrap();
        }
        let mut completions = Vec::new();
        self.ring.reap(|c| completions.push(c)).unwrap();
        for c in completions {
            if c.user_data & disk::USER_DATA_BIT != 0 {
                self.disk.completed(c.user_data, c.result, &mut self.events);
            } else {
                self.net.completed(c.user_data, c.result, c.flags);
            }
        }
        self.disk.drain(&mut self.events);
        let now = self.now();
        self.net.receive(now, &mut self.events);
        let mut actions = Actions::default();
        for event in self.events.drain(..) {
            handle(event, &mut actions);
        }
        for (conn, chunk) in actions.sends {
            self.net.send(conn, chunk, |file| self.disk.cached(file));
        }
        for conn in actions.closes {
            self.net.close(conn);
        }
        for (conn, paused) in actions.pauses {
            self.net.pause(conn, paused);
        }
        for (op, work) in actions.disk {
            self.disk.submit(op, work, &mut self.events);
        }
        self.net.flush(&mut self.events);
        self.submit();
    }

    fn submit(&mut self) {
        self.ring.push(&mut self.net.sqes).unwrap();
        self.ring.push(&mut self.disk.sqes).unwrap();
        self.ring.submit().unwrap();
    }

    /// Carries out operations side by side; results in the order of `ops`.
    pub fn run(&mut self, ops: Vec<DiskOp>) -> Vec<DiskResult> {
        let first = self.next_op;
        let count = ops.len();
        self.next_op += count as u64;
        for (index, op) in ops.into_iter().enumerate() {
            self.disk
                .submit(OpId(first + index as u64), op, &mut self.events);
        }
        self.submit();
        let mut results: Vec<Option<DiskResult>> = vec![None; count];
        let deadline = Clock::now() + Duration::from_secs(60);
        while results.iter().any(Option::is_none) {
            assert!(Clock::now() < deadline, "disk operations hang");
            self.turn(Duration::from_millis(5), |event, _| {
                if let Event::Disk { op, result } = event {
                    let before = results[(op.0 - first) as usize].replace(result);
                    assert!(before.is_none(), "one completion an operation");
                }
            });
        }
        results.into_iter().map(Option::unwrap).collect()
    }

    pub fn run_one(&mut self, op: DiskOp) -> DiskResult {
        self.run(vec![op]).remove(0)
    }
}

pub struct Server {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<net::Stats>>,
}

impl Server {
    /// Serves on a thread of its own; `make` makes the handler there, so it may hold what cannot move between threads.
    pub fn start<H>(make: impl FnOnce(&mut Rig) -> H + Send + 'static) -> Server
    where
        H: FnMut(Event, &mut Actions),
    {
        let listener = net::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let dir = test_dir("server");
            let mut rig = Rig::new(&dir);
            let mut handle = make(&mut rig);
            rig.net.listen(listener);
            rig.submit();
            while !stopping.load(Ordering::Relaxed) {
                rig.turn(Duration::from_millis(20), &mut handle);
            }
            let _ = std::fs::remove_dir_all(dir);
            rig.net.stats
        });
        Server {
            address,
            stop,
            thread: Some(thread),
        }
    }

    pub fn stop(mut self) -> net::Stats {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap();
            }
        }
    }
}

/// A fresh folder on a real disk: below the build directory unless `CORELANE_TEST_DIR` says otherwise.
pub fn test_dir(name: &str) -> PathBuf {
    use std::sync::atomic::AtomicU64;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let base = std::env::var_os("CORELANE_TEST_DIR")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
    let dir = base.join(format!(
        "shells-{name}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
