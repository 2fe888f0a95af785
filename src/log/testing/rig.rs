//! A store on a [`Disk`] in virtual time, and batches to append.

use crate::batch::{Builder, CheckedBatch};
use crate::log::faulty::{Completion, Disk};
use crate::log::{
    AppendAs, AppendError, Appended, Config, Ids, LogState, Opened, ReadPlan, Replay, Step, Store,
    StoreConfig,
};
use crate::model::{Instant, Now, ShardIndex, TopicPartition, Uuid};

pub(crate) fn tp(partition: i32) -> TopicPartition {
    TopicPartition {
        topic: Uuid([7; 16]),
        partition,
    }
}

/// Bytes of one batch as a producer sends it.
#[derive(Clone, Debug)]
pub(crate) struct Batch(pub Vec<u8>);

/// `records` records of about `bytes` bytes in all.
pub(crate) fn batch(records: usize, bytes: usize, fill: u8) -> Batch {
    Batch(builder(records, bytes, fill).build())
}

fn builder(records: usize, bytes: usize, fill: u8) -> Builder {
    let mut builder = Builder::new();
    let value = vec![fill; bytes / records];
    for i in 0..records {
        builder.push(1_000_000 + i as i64, None, Some(&value), &[]);
    }
    builder
}

impl Batch {
    pub fn of_producer(records: usize, bytes: usize, id: i64, epoch: i16, sequence: i32) -> Batch {
        Batch(
            builder(records, bytes, id as u8)
                .producer(id, epoch, sequence)
                .build(),
        )
    }

    /// What the log holds of it at this offset.
    pub fn stamped(&self, base_offset: i64, leader_epoch: i32) -> Vec<u8> {
        let mut out = Vec::new();
        CheckedBatch::own(&self.0)
            .unwrap()
            .write_to(&mut out, base_offset, leader_epoch);
        out
    }
}

/// Boot's replay, undisturbed.
pub(crate) fn replay(disk: &mut Disk, shards: u16) -> Opened {
    let mut replay = Replay::new(shards);
    let mut last = None;
    loop {
        match replay.next(last.take()) {
            Step::Op(op) => last = Some(disk.run(&op)),
            Step::Done(opened) => return *opened,
            Step::Failed(why) => panic!("{why}"),
        }
    }
}

pub(crate) struct Rig {
    pub disk: Disk,
    pub store: Store,
    pub now: Now,
    pub leader_epoch: i32,
}

impl Rig {
    pub fn new(seed: u64, config: StoreConfig) -> Rig {
        let mut disk = Disk::new(seed);
        let opened = replay(&mut disk, 1);
        Rig::on(disk, config, opened)
    }

    pub fn on(disk: Disk, config: StoreConfig, opened: Opened) -> Rig {
        let ids = Ids {
            first: 5,
            stride: 7,
        };
        Rig {
            disk,
            store: Store::new(ShardIndex(0), config, opened, ids),
            now: Now {
                mono: Instant(1_000_000),
                wall: 2_000_000,
            },
            leader_epoch: 1,
        }
    }

    pub fn open(&mut self, partition: i32, config: &Config) {
        self.store.open(
            tp(partition),
            "t",
            config.clone(),
            self.leader_epoch,
            self.now,
        );
    }

    /// A store with logs `[0..logs)`, all ready.
    pub fn ready(seed: u64, config: StoreConfig, logs: i32, log: &Config) -> Rig {
        let mut rig = Rig::new(seed, config);
        for partition in 0..logs {
            rig.open(partition, log);
        }
        rig.settle();
        for partition in 0..logs {
            assert_eq!(
                rig.store.log(tp(partition)).unwrap().state(),
                &LogState::Ready
            );
        }
        rig
    }

    pub fn append(
        &mut self,
        partition: i32,
        batch: &Batch,
        acks_all: bool,
    ) -> Result<Appended, AppendError> {
        let checked = CheckedBatch::own(&batch.0).unwrap();
        let how = AppendAs {
            leader_epoch: self.leader_epoch,
            acks_all,
            now: self.now,
        };
        self.store.append(tp(partition), &checked, how)
    }

    /// The end of a turn: what it wants done goes to the disk.
    pub fn commit(&mut self) {
        let mut out = Vec::new();
        self.store.commit(self.now, &mut out);
        self.submit(out);
        self.store.check();
    }

    fn submit(&mut self, out: Vec<(crate::log::OpId, crate::log::DiskOp)>) {
        for (id, op) in out {
            self.disk.submit(0, id, op, self.now.mono);
        }
    }

    /// One completion, whichever, as one turn.
    pub fn step(&mut self) -> bool {
        let Some(done) = self.disk.complete_one() else {
            return false;
        };
        self.deliver(done);
        true
    }

    pub fn deliver(&mut self, done: Completion) {
        let mut out = Vec::new();
        assert!(self.store.on_disk(done.id, done.result, self.now, &mut out));
        self.submit(out);
        self.commit();
    }

    /// Until the disk has nothing to do.
    pub fn settle(&mut self) {
        self.commit();
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "the store goes round in circles");
        }
    }

    pub fn pass_ms(&mut self, ms: u64) {
        self.now.mono = self.now.mono.after_ms(ms);
        self.now.wall += ms as i64;
        let mut out = Vec::new();
        self.store.tick(self.now, &mut out);
        self.submit(out);
        self.commit();
    }

    /// Everything from `offset` on that a reader with `end` as the bound gets, reading on as the plans say.
    pub fn read_from(
        &mut self,
        partition: i32,
        mut offset: i64,
        end: i64,
        bytes_max: u32,
    ) -> Vec<u8> {
        let mut all = Vec::new();
        let mut tries = 0;
        loop {
            match self.store.read(tp(partition), offset, end, bytes_max, true) {
                ReadPlan::Spans {
                    spans,
                    bytes,
                    first_offset,
                    ..
                } => {
                    let got: Vec<u8> = spans
                        .iter()
                        .flat_map(|s| self.disk.bytes_of(0, s))
                        .collect();
                    assert_eq!(got.len(), bytes as usize);
                    let (first, _) = crate::batch::Batch::view(&got).unwrap();
                    assert_eq!(first.base_offset(), first_offset);
                    assert!(first.base_offset() <= offset && first.last_offset() >= offset);
                    let mut at = 0;
                    while let Ok((batch, len)) = crate::batch::Batch::parse(&got[at..]) {
                        offset = batch.last_offset() + 1;
                        at += len;
                    }
                    assert_eq!(at, got.len(), "plans end on borders of batches");
                    all.extend_from_slice(&got);
                }
                ReadPlan::NeedsRead => {
                    tries += 1;
                    assert!(tries < 1000, "reads help");
                    self.settle();
                }
                ReadPlan::Empty => return all,
                ReadPlan::OutOfRange => panic!("{offset} is out of range"),
                ReadPlan::Corrupt => panic!("there is no batch at {offset}"),
            }
        }
    }
}
