//! A process of several shards over one log dir that crashes at any boundary of operations and boots again, beside a model
//! of what each log must hold.

use super::rig::{Batch, batch, tp};
use crate::batch::CheckedBatch;
use crate::log::faulty::{Completion, Disk, Loss};
use crate::log::{
    AppendAs, Config, DiskOp, Finish, Ids, LogState, OpId, Opened, ReadPlan, Replay, Step, Stopped,
    Store, StoreConfig,
};
use crate::model::{Instant, Now, ShardIndex};

/// A batch as the log must hold it.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub base: i64,
    pub last: i64,
    pub epoch: i32,
    pub bytes: Vec<u8>,
    /// Producer, its epoch and first sequence, as sent.
    pub producer: i64,
    pub records: i32,
}

#[derive(Default)]
pub(crate) struct Model {
    pub kept: Vec<Kept>,
    /// Below this a killed process loses nothing, below that not even a power loss does.
    pub written: i64,
    pub flushed: i64,
    /// Next sequence of each of the producers.
    pub sequences: [i32; 2],
    pub checked: bool,
    /// The log began anew here.
    pub floor: i64,
    /// What a cut that is under way takes: it is all gone or not.
    pub removed: Vec<Kept>,
    /// The log start was never above this, and is never below that again.
    pub start_seen: i64,
    pub start_durable: i64,
}

impl Model {
    pub fn end(&self) -> i64 {
        self.kept.last().map_or(self.floor, |k| k.last + 1)
    }

    /// What a reader from `start` on gets.
    pub fn bytes(&self, start: i64) -> Vec<u8> {
        let kept = self.kept.iter().filter(|k| k.last >= start);
        kept.flat_map(|k| k.bytes.clone()).collect()
    }
}

pub(crate) struct World {
    pub disk: Disk,
    pub stores: Vec<Store>,
    pub opened: Opened,
    pub logs: Vec<Model>,
    pub now: Now,
    pub epoch: i32,
    pub config: StoreConfig,
    pub log: Config,
    pub seed: u64,
    pub boots: u32,
    pub deletes: bool,
    pub cuts: bool,
    /// Epochs stay as they are at some boots, which no controller does: recovery must not rely on it.
    pub same_epochs: bool,
}

pub(crate) const PRODUCERS: [i64; 2] = [100, 200];

impl World {
    pub fn new(seed: u64, logs: usize, config: StoreConfig, log: Config) -> World {
        let mut world = World {
            disk: Disk::new(seed),
            stores: Vec::new(),
            opened: Opened::default(),
            logs: (0..logs).map(|_| Model::default()).collect(),
            now: Now {
                mono: Instant(1_000_000),
                wall: 5_000_000,
            },
            epoch: 0,
            config,
            log,
            seed,
            boots: 0,
            deletes: false,
            cuts: false,
            same_epochs: false,
        };
        world.boot();
        world
    }

    fn chance(&mut self, n: u64) -> bool {
        self.disk.rng.one_in(n)
    }

    /// The store that has the log.
    pub fn home(&self, partition: usize) -> usize {
        partition % self.stores.len()
    }

    /// Replays and opens every log, perhaps after crashes in between.
    pub fn boot(&mut self) {
        let shards = 1 + self.disk.rng.below(3) as u16;
        loop {
            self.boots += 1;
            let mut replay = Replay::new(shards);
            let mut last = None;
            let opened = loop {
                match replay.next(last.take()) {
                    Step::Op(op) => last = Some(self.disk.run(&op)),
                    Step::Done(opened) => break Some(opened),
                    Step::Failed(why) => panic!("seed {}: {why}", self.seed),
                }
                if self.chance(60) {
                    break None;
                }
            };
            match opened {
                Some(opened) => {
                    assert!(
                        opened.breaks.is_empty(),
                        "seed {}: {:?}",
                        self.seed,
                        opened.breaks
                    );
                    self.opened = *opened;
                    break;
                }
                None => self.lose(),
            }
        }
        if !self.same_epochs || self.epoch == 0 || self.chance(2) {
            self.epoch += 1;
        }
        for shard in 0..shards {
            let ids = Ids {
                first: 1,
                stride: 2,
            };
            let store = Store::new(
                ShardIndex(shard),
                self.config.clone(),
                self.opened.clone(),
                ids,
            );
            self.stores.push(store);
        }
        for partition in 0..self.logs.len() {
            self.logs[partition].checked = false;
            let home = self.home(partition);
            self.stores[home].open(
                tp(partition as i32),
                "t",
                self.log.clone(),
                self.epoch,
                self.now,
            );
        }
    }

    fn lose(&mut self) {
        let loss = [Loss::All, Loss::Some, Loss::Killed][self.disk.rng.below(3) as usize];
        self.disk.crash(loss);
        if loss != Loss::Killed {
            for log in &mut self.logs {
                log.written = log.flushed;
            }
        }
    }

    pub fn crash(&mut self) {
        self.note_ends();
        self.stores.clear();
        self.lose();
        self.boot();
    }

    /// What the logs promise now.
    pub fn note_ends(&mut self) {
        for partition in 0..self.logs.len() {
            let home = self.home(partition);
            let Some(log) = self.stores[home].log(tp(partition as i32)) else {
                continue;
            };
            assert!(
                !matches!(log.state(), LogState::Fenced(_)),
                "seed {} log {partition}: {:?}",
                self.seed,
                log.state()
            );
            if !log.is_ready() {
                continue;
            }
            let (written, flushed, safe) = (log.written(), log.flushed(), log.safe());
            if self.logs[partition].checked {
                let model = &mut self.logs[partition];
                model.written = model.written.max(written);
                model.flushed = model.flushed.max(flushed);
                let log = self.stores[home].log_mut(tp(partition as i32)).unwrap();
                log.set_high_watermark(safe);
                model.start_seen = model.start_seen.max(log.start());
            } else {
                self.check_log(partition);
            }
        }
    }

    /// A log came back: it holds a prefix of what was appended, and everything that was promised.
    pub fn check_log(&mut self, partition: usize) {
        let seed = self.seed;
        let home = self.home(partition);
        let log = self.stores[home].log(tp(partition as i32)).unwrap();
        let end = log.appended();
        let start = log.start();
        assert_eq!(log.flushed(), end);
        let model = &mut self.logs[partition];
        assert!(
            start <= model.start_seen && start >= model.start_durable,
            "seed {seed} log {partition}: starts at {start}, not in {}..={}",
            model.start_durable,
            model.start_seen
        );
        (model.start_durable, model.start_seen) = (start, start);
        assert!(
            end >= model.written,
            "seed {seed} log {partition}: ends at {end}, promised {}",
            model.written
        );
        model.kept.retain(|k| k.last < end);
        for k in std::mem::take(&mut model.removed) {
            if k.base == model.end() && k.last < end {
                model.kept.push(k);
            }
        }
        // What was deleted by request need not have been flushed; if it was lost, nothing is known of it.
        if end == start && model.flushed < start {
            model.kept.clear();
            model.floor = start;
        }
        assert_eq!(
            model.end(),
            end,
            "seed {seed} log {partition}: ends between batches"
        );
        (model.written, model.flushed) = (end, end);
        model.checked = true;
        for k in model.kept.iter().filter(|k| k.base >= start) {
            assert_eq!(log.epochs().epoch_at(k.base), Some(k.epoch), "seed {seed}");
        }
        for (i, id) in PRODUCERS.iter().enumerate() {
            let own: Vec<&Kept> = model.kept.iter().filter(|k| k.producer == *id).collect();
            let batches = log.producers().get(*id).map_or(&[][..], |p| p.batches());
            let expected: Vec<i64> = own.iter().rev().take(5).rev().map(|k| k.last).collect();
            let got: Vec<i64> = batches.iter().map(|b| b.last_offset).collect();
            assert_eq!(got, expected, "seed {seed} log {partition} producer {id}");
            model.sequences[i] = own.iter().map(|k| k.records).sum();
        }
        let expected = model.bytes(start);
        let got = self.read(partition, end);
        assert!(
            got == expected,
            "seed {seed} log {partition}: other bytes than were appended"
        );
    }

    pub fn read(&mut self, partition: usize, end: i64) -> Vec<u8> {
        let home = self.home(partition);
        let log = self.stores[home].log(tp(partition as i32)).unwrap();
        let mut offset = log.start();
        let mut all = Vec::new();
        let mut tries = 0;
        loop {
            match self.stores[home].read(tp(partition as i32), offset, end, 1 << 20, true) {
                ReadPlan::Spans { spans, .. } => {
                    for span in &spans {
                        all.extend(self.disk.bytes_of(home as u16, span));
                    }
                    let mut at = 0;
                    while let Ok((batch, len)) = crate::batch::Batch::parse(&all[at..]) {
                        offset = batch.last_offset() + 1;
                        at += len;
                    }
                    assert_eq!(
                        at,
                        all.len(),
                        "seed {} log {partition} spans {spans:?} at {:?} store {:?}",
                        self.seed,
                        crate::batch::Batch::parse(&all[at..]),
                        self.stores[home].log(tp(partition as i32))
                    );
                }
                ReadPlan::NeedsRead => {
                    tries += 1;
                    assert!(tries < 2000, "seed {}: reads help", self.seed);
                    self.commit(home);
                    let done = self
                        .disk
                        .complete_where(|op| {
                            matches!(
                                op,
                                DiskOp::Read { .. } | DiskOp::Open { .. } | DiskOp::ReadFile { .. }
                            )
                        })
                        .expect("a read is under way");
                    self.deliver(done);
                }
                ReadPlan::Empty => return all,
                ReadPlan::OutOfRange => panic!("seed {}: {offset} is out of range", self.seed),
                ReadPlan::Corrupt => panic!("seed {}: no batch at {offset}", self.seed),
            }
        }
    }

    pub fn append(&mut self, partition: usize, acks_all: bool) {
        let home = self.home(partition);
        if !self.logs[partition].checked {
            return;
        }
        let records = 1 + self.disk.rng.below(3) as usize;
        let bytes = [60, 200, 900, 3_000, 9_000][self.disk.rng.below(5) as usize];
        let producer = self.disk.rng.below(3) as usize;
        let sent = match PRODUCERS.get(producer) {
            Some(id) => {
                let sequence = self.logs[partition].sequences[producer];
                Batch::of_producer(records, bytes, *id, 0, sequence)
            }
            None => batch(records, bytes, self.epoch as u8),
        };
        let checked = CheckedBatch::own(&sent.0).unwrap();
        let how = AppendAs {
            leader_epoch: self.epoch,
            acks_all,
            now: self.now,
        };
        let result = self.stores[home].append(tp(partition as i32), &checked, how);
        let Ok(appended) = result else {
            return;
        };
        assert!(!appended.duplicate, "seed {}", self.seed);
        let model = &mut self.logs[partition];
        assert_eq!(appended.base_offset, model.end(), "seed {}", self.seed);
        if producer < PRODUCERS.len() {
            model.sequences[producer] += records as i32;
        }
        model.kept.push(Kept {
            base: appended.base_offset,
            last: appended.last_offset,
            epoch: self.epoch,
            bytes: sent.stamped(appended.base_offset, self.epoch),
            producer: PRODUCERS.get(producer).copied().unwrap_or(-1),
            records: records as i32,
        });
    }

    pub fn submit(&mut self, home: usize, out: Vec<(OpId, DiskOp)>) {
        for (id, op) in out {
            self.disk.submit(home as u16, id, op, self.now.mono);
        }
    }

    pub fn commit(&mut self, home: usize) {
        let mut out = Vec::new();
        self.stores[home].commit(self.now, &mut out);
        self.submit(home, out);
        self.stores[home].check();
    }

    pub fn deliver(&mut self, done: Completion) {
        let home = usize::from(done.owner);
        let mut out = Vec::new();
        let mine = self.stores[home].on_disk(done.id, done.result, self.now, &mut out);
        assert!(mine);
        self.submit(home, out);
        self.commit(home);
    }

    pub fn tick(&mut self, ms: u64) {
        self.now.mono = self.now.mono.after_ms(ms);
        self.now.wall += ms as i64;
        for home in 0..self.stores.len() {
            let mut out = Vec::new();
            self.stores[home].tick(self.now, &mut out);
            self.submit(home, out);
            self.commit(home);
        }
        self.note_ends();
    }

    /// The log is cut somewhere.
    pub fn cut(&mut self, partition: usize) {
        if !self.logs[partition].checked {
            return;
        }
        let home = self.home(partition);
        let name = tp(partition as i32);
        let start = self.stores[home].log(name).unwrap().start();
        let model = &mut self.logs[partition];
        let end = start + self.disk.rng.below((model.end() - start) as u64 + 1) as i64;
        if end == model.end() {
            return;
        }
        let kept = std::mem::take(&mut model.kept);
        (model.kept, model.removed) = kept.into_iter().partition(|k| k.last < end);
        model.written = model.written.min(model.end().max(start));
        model.flushed = model.flushed.min(model.written);
        model.checked = false;
        self.stores[home].truncate(name, end, self.now);
        self.commit(home);
    }

    /// Records are deleted up to some offset.
    pub fn delete_records(&mut self, partition: usize) {
        if !self.logs[partition].checked {
            return;
        }
        let home = self.home(partition);
        let name = tp(partition as i32);
        let log = self.stores[home].log(name).unwrap();
        let (start, high) = (log.start(), log.high_watermark());
        let offset = start + self.disk.rng.below((high.max(start) - start) as u64 + 1) as i64;
        let given = self.stores[home].advance_start(name, offset, self.now);
        assert_eq!(given, Ok(offset));
        self.note_ends();
    }

    /// Something happens.
    pub fn step(&mut self) {
        match self.disk.rng.below(100) {
            0..=34 => {
                let partition = self.disk.rng.below(self.logs.len() as u64) as usize;
                let acks_all = self.chance(2);
                self.append(partition, acks_all);
            }
            35..=54 => {
                let home = self.disk.rng.below(self.stores.len() as u64) as usize;
                self.commit(home);
            }
            55..=96 => {
                if let Some(done) = self.disk.complete_one() {
                    self.deliver(done);
                    self.note_ends();
                }
            }
            98 if self.deletes => {
                let partition = self.disk.rng.below(self.logs.len() as u64) as usize;
                self.delete_records(partition);
            }
            97 if self.cuts => {
                let partition = self.disk.rng.below(self.logs.len() as u64) as usize;
                self.cut(partition);
            }
            _ => self.tick(150),
        }
    }

    /// Until nothing is under way.
    pub fn settle(&mut self) {
        for home in 0..self.stores.len() {
            self.commit(home);
        }
        let mut steps = 0;
        while let Some(done) = self.disk.complete_one() {
            self.deliver(done);
            steps += 1;
            assert!(steps < 100_000, "seed {}: no end", self.seed);
        }
        self.note_ends();
        for model in &mut self.logs {
            model.start_durable = model.start_seen;
        }
    }

    /// A clean stop; false: a crash came in between, and the process is up again.
    pub fn stop(&mut self, may_crash: bool) -> bool {
        let mut steps = 0;
        let mut stopped: Vec<Stopped> = Vec::new();
        self.note_ends();
        while stopped.len() < self.stores.len() {
            stopped.clear();
            for home in 0..self.stores.len() {
                let mut out = Vec::new();
                self.stores[home].stop(self.now, &mut out);
                self.submit(home, out);
                self.commit(home);
                stopped.extend(self.stores[home].stopped().cloned());
            }
            if let Some(done) = self.disk.complete_one() {
                self.deliver(done);
            } else {
                self.tick(150);
            }
            steps += 1;
            assert!(
                steps < 10_000,
                "seed {}: it stops some day: {:?}",
                self.seed,
                self.stores[0]
            );
            if may_crash && self.chance(100) {
                self.crash_while_stopping();
                return false;
            }
        }
        assert!(self.disk.is_idle());
        for log in stopped.iter().flat_map(|s| &s.logs) {
            let model = &mut self.logs[log.tp.partition as usize];
            if model.checked {
                model.written = model.end();
                model.flushed = model.end();
            }
        }
        let mut finish = Finish::new(self.opened.clone(), stopped, 7);
        let mut last = None;
        let clean = loop {
            match finish.next(last.take()) {
                Step::Op(op) => last = Some(self.disk.run(&op)),
                Step::Done(clean) => break clean,
                Step::Failed(why) => panic!("seed {}: {why}", self.seed),
            }
            if may_crash && self.chance(20) {
                self.crash_while_stopping();
                return false;
            }
        };
        self.stores.clear();
        // After a clean stop nothing is unflushed: no loss takes anything.
        self.disk
            .crash(if clean { Loss::All } else { Loss::Killed });
        true
    }

    fn crash_while_stopping(&mut self) {
        self.stores.clear();
        self.lose();
        self.boot();
    }
}
