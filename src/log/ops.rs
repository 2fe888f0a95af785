//! Operations on their way: ids, what each is for, and the queue that the next call with an `out` hands over.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::op::{DiskOp, FileId, OpId};
use crate::model::Instant;

/// Index of a log in its store; never given out twice.
pub(crate) type LogIndex = u32;

/// Where a store's operation and file ids come from: `first`, `first + stride`, ... so that several stores of one shard
/// (and its metadata log) never collide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    pub first: u64,
    pub stride: u64,
}

/// What an operation in flight is for.
#[derive(Debug)]
pub(crate) enum Task {
    JournalOpen,
    /// Zeroes a new journal file, so that later frames overwrite written blocks.
    JournalClear {
        to: u64,
    },
    JournalWrite {
        sequence: u64,
    },
    JournalFlush {
        /// Frames written when the flush was issued: it counts for these and no later one.
        sequence: u64,
    },
    /// The oldest journal file is read back for what logs out of use have in it, ...
    JournalRead {
        number: u64,
    },
    /// ... and that is copied.
    JournalKeep {
        number: u64,
    },
    SegmentAllocate {
        log: LogIndex,
        base: i64,
        to: u64,
    },
    SegmentWrite {
        log: LogIndex,
        base: i64,
        to: u64,
        sync: bool,
        /// Nobody waits for it: it counts towards the bound on such writes.
        off_path: bool,
    },
    SegmentFlush {
        log: LogIndex,
        base: i64,
        /// Bytes staged when the flush was issued.
        to: u64,
    },
    /// How far a segment is good is noted.
    Progress {
        log: LogIndex,
        base: i64,
    },
    /// The front step of the log's front chain.
    Chain {
        log: LogIndex,
    },
    /// A closed segment is opened for reading.
    ReadOpen {
        log: LogIndex,
        base: i64,
        file: FileId,
    },
    /// An index interval, for a plan.
    Read {
        log: LogIndex,
        interval: super::read::Interval,
    },
    /// Whole batches, for a look-up by time.
    Peek {
        log: LogIndex,
        base: i64,
        at: u64,
        len: u32,
    },
    /// The index files of a closed segment: first the offsets, then the times.
    IndexRead {
        log: LogIndex,
        base: i64,
        offsets: Option<Bytes>,
    },
    /// The cursor that opens an existing log.
    Load {
        log: LogIndex,
    },
    /// The end of a log: its directory is looked at, or moved away.
    End {
        log: LogIndex,
    },
    /// The file system is asked for its sizes.
    Space,
    /// Nothing waits for it; a failure leaves a file too many.
    Loose,
}

impl Task {
    pub fn log(&self) -> Option<LogIndex> {
        match self {
            Task::SegmentAllocate { log, .. }
            | Task::SegmentWrite { log, .. }
            | Task::SegmentFlush { log, .. }
            | Task::Progress { log, .. }
            | Task::Chain { log }
            | Task::ReadOpen { log, .. }
            | Task::Read { log, .. }
            | Task::Peek { log, .. }
            | Task::IndexRead { log, .. }
            | Task::Load { log }
            | Task::End { log } => Some(*log),
            Task::JournalOpen
            | Task::JournalClear { .. }
            | Task::JournalWrite { .. }
            | Task::JournalFlush { .. }
            | Task::JournalRead { .. }
            | Task::JournalKeep { .. }
            | Task::Space
            | Task::Loose => None,
        }
    }
}

/// Operations that follow one another, and what the last one means.
#[derive(Debug)]
pub(crate) struct Chain {
    pub steps: VecDeque<DiskOp>,
    pub then: Then,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    SegmentOpened {
        base: i64,
        file: FileId,
    },
    SegmentClosed {
        base: i64,
    },
    EpochsWritten,
    /// The segment is no longer one of the log's files.
    SegmentRemoved {
        base: i64,
    },
    /// The files of a log that ends are as Kafka leaves them.
    EndFilesWritten,
}

#[derive(Debug)]
pub(crate) struct Ops {
    ids: Ids,
    next_op: u64,
    next_file: u64,
    queue: Vec<(OpId, DiskOp)>,
    tasks: FxHashMap<OpId, Task>,
    /// Operations in the order of issue, with the time; those that are done are still in it until they are the oldest.
    issued: VecDeque<(OpId, Instant)>,
    /// Operations in flight, by log; logs with none are not in it.
    of_log: FxHashMap<LogIndex, u32>,
}

impl Ops {
    pub fn new(ids: Ids) -> Ops {
        Ops {
            ids,
            next_op: ids.first,
            next_file: ids.first,
            queue: Vec::new(),
            tasks: FxHashMap::default(),
            issued: VecDeque::new(),
            of_log: FxHashMap::default(),
        }
    }

    pub fn issue(&mut self, task: Task, op: DiskOp) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += self.ids.stride;
        if let Some(log) = task.log() {
            *self.of_log.entry(log).or_default() += 1;
        }
        self.tasks.insert(id, task);
        self.queue.push((id, op));
        id
    }

    pub fn file(&mut self) -> FileId {
        let id = FileId(self.next_file);
        self.next_file += self.ids.stride;
        id
    }

    /// What the operation was for; `None`: not ours.
    pub fn finish(&mut self, op: OpId) -> Option<Task> {
        let task = self.tasks.remove(&op)?;
        while let Some((id, _)) = self.issued.front()
            && !self.tasks.contains_key(id)
        {
            self.issued.pop_front();
        }
        if let Some(log) = task.log()
            && let Some(count) = self.of_log.get_mut(&log)
        {
            *count -= 1;
            if *count == 0 {
                self.of_log.remove(&log);
            }
        }
        Some(task)
    }

    /// Nothing of this log is in flight.
    pub fn is_quiet(&self, log: LogIndex) -> bool {
        !self.of_log.contains_key(&log)
    }

    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    pub fn hand_over(&mut self, out: &mut Vec<(OpId, DiskOp)>, now: Instant) {
        self.issued
            .extend(self.queue.iter().map(|(id, _)| (*id, now)));
        out.append(&mut self.queue);
    }

    /// When the oldest operation under way was handed over.
    pub fn oldest(&self) -> Option<Instant> {
        self.issued.front().map(|(_, at)| *at)
    }
}

/// `<topic>-<partition>`, Kafka's directory name.
pub(crate) fn dir_name(topic: &str, partition: i32) -> String {
    format!("{topic}-{partition}")
}

pub(crate) fn segment_path(dir: &str, base: i64, suffix: &str) -> String {
    format!("{dir}/{base:020}.{suffix}")
}

pub(crate) fn partition_metadata(topic: crate::model::TopicId) -> Bytes {
    Bytes::from(format!("version: 0\ntopic_id: {topic}\n"))
}

/// The topic id in a `partition.metadata`.
pub(crate) fn parse_partition_metadata(text: &[u8]) -> Option<crate::model::TopicId> {
    let text = std::str::from_utf8(text).ok()?;
    let mut version = false;
    let mut topic = None;
    for line in text.lines() {
        match line.split_once(':')? {
            ("version", v) => version = v.trim() == "0",
            ("topic_id", id) => topic = crate::model::Uuid::parse(id.trim()),
            _ => return None,
        }
    }
    topic.filter(|_| version)
}
