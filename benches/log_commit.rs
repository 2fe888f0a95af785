//! What a turn's commit costs: small appends of many logs at once, each acknowledged when it is flushed, through the journal and, for
//! comparison, straight to a file and a flush of its own per log.
//!
//! `cargo bench --bench log_commit -- [--dir DIR] [--seconds 3] [--bytes 512] [--logs 1,16,256,2000]` prints one JSON object a case: how long a
//! turn takes from its appends until all of them are flushed, and the writes and flushes that it issued. DIR must be on the disk that is to be
//! measured; what is made there is removed again.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Clock, SystemTime};

use corelane::batch::{Builder, CheckedBatch};
use corelane::disk::{self, Disk, blocking};
use corelane::log::{
    AppendAs, Config, DiskOp, Ids, Log, OpId, Opened, Replay, Step, Store, StoreConfig,
};
use corelane::model::{Instant, Now, ShardIndex, TopicPartition, Uuid};
use corelane::node::ring::{Ring, Waker};
use corelane::shard::Event;

struct Options {
    dir: PathBuf,
    seconds: f64,
    bytes: usize,
    logs: Vec<usize>,
}

fn main() {
    let options = options();
    for &logs in &options.logs {
        for (name, direct_threshold_bytes) in [("journal", 32 * 1024), ("file per log", 1)] {
            let dir = options
                .dir
                .join(format!("log-commit-{}-{logs}", std::process::id()));
            std::fs::create_dir_all(&dir).expect("a directory in --dir");
            let line = measure(&options, &dir, name, logs, direct_threshold_bytes);
            std::fs::remove_dir_all(&dir).expect("what was made is removed");
            println!("{line}");
        }
    }
}

fn options() -> Options {
    let mut options = Options {
        dir: std::env::temp_dir(),
        seconds: 3.0,
        bytes: 512,
        logs: vec![1, 16, 256, 2000],
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        // What cargo itself passes.
        if name == "--bench" {
            continue;
        }
        let value = args
            .next()
            .unwrap_or_else(|| panic!("{name} wants a value"));
        match name.as_str() {
            "--dir" => options.dir = PathBuf::from(value),
            "--seconds" => options.seconds = value.parse().expect("seconds"),
            "--bytes" => options.bytes = value.parse().expect("bytes"),
            "--logs" => {
                options.logs = value
                    .split(',')
                    .map(|n| n.parse().expect("numbers of logs"))
                    .collect();
            }
            other => panic!("{other} is unknown: --dir, --seconds, --bytes, --logs"),
        }
    }
    options
}

fn measure(options: &Options, dir: &Path, name: &str, logs: usize, threshold: u32) -> String {
    let config = StoreConfig {
        journal_file_bytes: 16 * 1024 * 1024,
        journal_files_max: 4,
        direct_threshold_bytes: threshold,
        // The time of commits is the subject, not that of what a full journal or an old flush brings.
        ..StoreConfig::default()
    };
    let mut rig = Rig::new(dir, config);
    for partition in 0..logs {
        rig.open(partition);
    }
    rig.until_all(logs, |log| log.is_ready());
    let mut builder = Builder::new();
    builder.push(0, None, Some(&vec![7; options.bytes]), &[]);
    let bytes = builder.build();
    // The first turns allocate.
    for _ in 0..5 {
        rig.turn(logs, &bytes);
    }
    (rig.writes, rig.flushes) = (0, 0);
    let mut turns_us: Vec<u64> = Vec::new();
    let started = Clock::now();
    while started.elapsed().as_secs_f64() < options.seconds || turns_us.len() < 10 {
        turns_us.push(rig.turn(logs, &bytes));
    }
    turns_us.sort_unstable();
    let at = |share: f64| turns_us[((turns_us.len() - 1) as f64 * share) as usize];
    let turns = turns_us.len() as f64;
    format!(
        "{{\"way\":\"{name}\",\"logs\":{logs},\"bytes\":{},\"turns\":{turns},\"p50_us\":{},\"p99_us\":{},\"max_us\":{},\
         \"writes_a_turn\":{:.2},\"flushes_a_turn\":{:.2}}}",
        bytes.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        rig.writes as f64 / turns,
        rig.flushes as f64 / turns,
    )
}

fn tp(partition: usize) -> TopicPartition {
    TopicPartition {
        topic: Uuid([5; 16]),
        partition: partition as i32,
    }
}

/// A store on a real directory, as a shard drives it.
struct Rig {
    store: Store,
    disk: Disk,
    ring: Ring,
    events: VecDeque<Event>,
    started: Clock,
    writes: u64,
    flushes: u64,
}

impl Rig {
    fn new(dir: &Path, config: StoreConfig) -> Rig {
        let waker = Waker::new().expect("an eventfd");
        let ids = Ids {
            first: 1,
            stride: 1,
        };
        Rig {
            store: Store::new(ShardIndex(0), config, replay(dir), ids),
            ring: Ring::new(waker.clone()).expect("io_uring"),
            disk: Disk::new(dir, move || waker.wake()).expect("a helper thread"),
            events: VecDeque::new(),
            started: Clock::now(),
            writes: 0,
            flushes: 0,
        }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .expect("after 1970");
        Now {
            mono: Instant(self.started.elapsed().as_micros() as u64),
            wall: wall.as_millis() as i64,
        }
    }

    fn open(&mut self, partition: usize) {
        let now = self.now();
        self.store
            .open(tp(partition), "bench", Config::default(), 1, now);
    }

    /// Appends to every log and waits until all of it is flushed; microseconds.
    fn turn(&mut self, logs: usize, batch: &[u8]) -> u64 {
        let begun = Clock::now();
        let how = AppendAs {
            leader_epoch: 1,
            acks_all: true,
            now: self.now(),
        };
        for partition in 0..logs {
            let batch = CheckedBatch::own(batch).expect("a batch of our own");
            self.store
                .append(tp(partition), &batch, how)
                .expect("space and an open log");
        }
        self.until_all(logs, |log| log.flushed() == log.appended());
        begun.elapsed().as_micros() as u64
    }

    /// Turns of the store until `done` holds for every log; only the logs that moved are looked at, as a shard does.
    fn until_all(&mut self, logs: usize, done: impl Fn(&Log) -> bool) {
        let mut waits = vec![true; logs];
        let mut left = logs;
        loop {
            let mut out = Vec::new();
            self.store.tick(self.now(), &mut out);
            self.store.commit(self.now(), &mut out);
            self.submit(out);
            for tp in self.store.take_progress() {
                let log = self.store.log(tp).expect("it is open");
                let waits = &mut waits[tp.partition as usize];
                if *waits && done(log) {
                    *waits = false;
                    left -= 1;
                }
            }
            if left == 0 {
                return;
            }
            self.wait();
        }
    }

    fn submit(&mut self, out: Vec<(OpId, DiskOp)>) {
        for (op, work) in out {
            match &work {
                DiskOp::Write { sync, .. } => {
                    self.writes += 1;
                    self.flushes += u64::from(*sync);
                }
                DiskOp::Flush { .. } => self.flushes += 1,
                _ => {}
            }
            self.disk.submit(op, work, &mut self.events);
        }
        self.ring
            .push(&mut self.disk.sqes)
            .expect("the ring takes it");
        self.ring.submit().expect("the kernel takes it");
    }

    fn wait(&mut self) {
        assert!(self.store.failed().is_none(), "{:?}", self.store.failed());
        if self.events.is_empty() && !self.ring.has_completions() {
            self.ring
                .wait(Some(Duration::from_millis(100)))
                .expect("the ring waits");
        }
        let mut completions = Vec::new();
        self.ring
            .reap(|c| completions.push(c))
            .expect("completions");
        for c in completions {
            if c.user_data & disk::USER_DATA_BIT != 0 {
                self.disk.completed(c.user_data, c.result, &mut self.events);
            }
        }
        self.disk.drain(&mut self.events);
        let mut out = Vec::new();
        let now = self.now();
        for event in std::mem::take(&mut self.events) {
            if let Event::Disk { op, result } = event {
                assert!(self.store.on_disk(op, result, now, &mut out));
            }
        }
        self.submit(out);
    }
}

fn replay(dir: &Path) -> Opened {
    let mut disk = blocking::Disk::new(dir);
    let mut replay = Replay::new(1);
    let mut last = None;
    loop {
        match replay.next(last.take()) {
            Step::Op(op) => last = Some(disk.run(op)),
            Step::Done(opened) => return *opened,
            Step::Failed(why) => panic!("{why}"),
        }
    }
}
