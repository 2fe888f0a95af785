//! [`Store`]: all logs of one shard in one log dir, and their journal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::config::{Config, StoreConfig};
use super::ending::{Left, Stopped};
use super::journal::{Journal, JournalCounts};
use super::op::{DiskDone, DiskError, DiskOp, DiskResult, FileRef, OpId, Space};
use super::ops::{Ids, LogIndex, Ops, Task};
use super::partition::{AppendAs, AppendError, Appended, Fenced, Log, LogState};
use super::planted::{Bug, planted};
use super::pool::Pool;
use super::read::ReadPlan;
use super::recover::Opened;
use super::retain::Rounds;
use crate::batch::{CheckedBatch, Codecs};
use crate::model::{ErrorCode, Instant, Now, ShardIndex, TopicPartition};

#[derive(Debug)]
pub struct Store {
    pub(super) config: StoreConfig,
    pub(super) ops: Ops,
    pub(super) pool: Pool,
    pub(super) journal: Journal,
    pub(super) opened: Opened,
    /// By index; a closed or deleted log leaves a hole.
    pub(super) logs: Vec<Option<Box<Log>>>,
    by_tp: FxHashMap<TopicPartition, LogIndex>,
    /// Logs appended to, or otherwise with something to do, since the last commit.
    pub(super) fresh: Vec<LogIndex>,
    /// Logs with small appends (or small state) that wait for the next journal frame.
    pub(super) queue: VecDeque<LogIndex>,
    progress: Vec<LogIndex>,
    /// Logs without space.
    pub(super) full: Vec<LogIndex>,
    pub(super) flush_due: BTreeSet<(Instant, LogIndex)>,
    /// Logs that hold the oldest journal file.
    pub(super) urging: VecDeque<LogIndex>,
    /// Segment writes off the acknowledge path in flight.
    pub(super) destages: u32,
    /// One entry per tail block that became full, oldest first.
    pub(super) full_blocks: VecDeque<(LogIndex, i64)>,
    /// Files to close as soon as no planned send holds them.
    pub(super) doomed: Vec<Rc<FileRef>>,
    /// Logs whose mark is to be written or flushed.
    pub(super) marking: Vec<LogIndex>,
    /// Logs whose start is in a frame that is not flushed yet.
    pub(super) starts_under_way: Vec<LogIndex>,
    /// Logs that wait for one that ends to leave their directory, with their leader epochs.
    pub(super) waiting_open: Vec<(LogIndex, i32)>,
    /// Logs to look at again: another's directory is in their way.
    pub(super) load_again: Vec<(Instant, LogIndex)>,
    /// Directories of deleted logs, and when they go.
    pub(super) deletions: BTreeSet<(Instant, String)>,
    /// Logs given up since boot, here or by another store of which this one was told.
    pub(super) left: BTreeMap<TopicPartition, Left>,
    /// How many logs of a name are ending.
    pub(super) ending: BTreeMap<TopicPartition, u32>,
    /// Logs that ended and have something in the journal that they have nowhere else.
    pub(super) unsaved: BTreeMap<LogIndex, TopicPartition>,
    pub(super) stopped: Option<Stopped>,
    pub(super) files_closed: bool,
    pub(super) failed: Option<String>,
    /// Closed segments whose file is open, in the order of opening.
    pub(super) opened_for_reading: VecDeque<(LogIndex, i64)>,
    /// Indexes of closed segments in memory, in the order of coming, with their bytes.
    pub(super) indexes: VecDeque<(LogIndex, i64, u32)>,
    pub(super) index_bytes: u64,
    pub(super) codecs: Codecs,
    pub(super) rounds: Rounds,
    unwritten: u64,
    space: Asking,
    pub(super) now: Now,
}

/// Where the question for the sizes of the file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asking {
    Nothing,
    UnderWay,
    Told(Option<Space>),
}

impl Store {
    /// `opened` is what boot's replay found.
    pub fn new(shard: ShardIndex, config: StoreConfig, opened: Opened, ids: Ids) -> Store {
        assert!(
            config
                .journal_file_bytes
                .is_multiple_of(crate::model::limit::BLOCK_BYTES as u32)
                && config.direct_threshold_bytes <= config.journal_file_bytes / 4,
            "a frame holds several small appends"
        );
        let mut store = Store {
            journal: Journal::new(shard, opened.generation),
            config,
            ops: Ops::new(ids),
            pool: Pool::default(),
            opened,
            logs: Vec::new(),
            by_tp: FxHashMap::default(),
            fresh: Vec::new(),
            queue: VecDeque::new(),
            progress: Vec::new(),
            full: Vec::new(),
            flush_due: BTreeSet::new(),
            urging: VecDeque::new(),
            destages: 0,
            full_blocks: VecDeque::new(),
            doomed: Vec::new(),
            marking: Vec::new(),
            starts_under_way: Vec::new(),
            waiting_open: Vec::new(),
            load_again: Vec::new(),
            deletions: BTreeSet::new(),
            left: BTreeMap::new(),
            ending: BTreeMap::new(),
            unsaved: BTreeMap::new(),
            stopped: None,
            files_closed: false,
            failed: None,
            opened_for_reading: VecDeque::new(),
            indexes: VecDeque::new(),
            index_bytes: 0,
            codecs: Codecs::default(),
            rounds: Rounds::default(),
            unwritten: 0,
            space: Asking::Nothing,
            now: Now::default(),
        };
        store.journal.prepare(&store.config, &mut store.ops);
        store
    }

    // -- logs

    /// Opens the log's directory, or makes it if there is none. Until the state is Ready nothing can be appended or read.
    /// A directory of another topic id in the way is renamed `-delete` first. A log that was fenced stays so until the next
    /// boot: what it has in the journal is missing in its segments.
    pub fn open(
        &mut self,
        tp: TopicPartition,
        topic: &str,
        config: Config,
        leader_epoch: i32,
        now: Now,
    ) {
        self.now = now;
        let index = self.add(tp, topic, config);
        if let Some(log) = self.log_mut(tp) {
            log.leader_epoch = leader_epoch;
        }
        self.load_when_free(index, leader_epoch);
    }

    pub(super) fn add(&mut self, tp: TopicPartition, topic: &str, config: Config) -> LogIndex {
        let index = LogIndex::try_from(self.logs.len())
            .expect("fewer than 2^32 logs in the life of a shard");
        let dir = super::ops::dir_name(topic, tp.partition);
        let before = self.by_tp.insert(tp, index);
        assert!(before.is_none(), "{dir} is created or opened once");
        self.logs
            .push(Some(Box::new(Log::new(index, tp, dir, config))));
        index
    }

    pub(super) fn remove(&mut self, index: LogIndex) {
        if let Some(mut log) = self.logs[index as usize].take() {
            if self.by_tp.get(&log.tp) == Some(&index) {
                self.by_tp.remove(&log.tp);
            }
            self.unwritten -= log.unwritten_bytes;
            for segment in &mut log.segments {
                segment.drop_tail(&mut self.pool);
            }
        }
    }

    pub fn log(&self, tp: TopicPartition) -> Option<&Log> {
        let index = *self.by_tp.get(&tp)?;
        self.logs[index as usize].as_deref()
    }

    pub fn log_mut(&mut self, tp: TopicPartition) -> Option<&mut Log> {
        let index = *self.by_tp.get(&tp)?;
        self.logs[index as usize].as_deref_mut()
    }

    /// In the order in which they were created or opened.
    pub fn logs(&self) -> impl Iterator<Item = &Log> {
        self.logs
            .iter()
            .filter_map(|l| l.as_deref())
            .filter(|log| log.ending.is_none())
    }

    /// The log is no longer found by its name.
    pub(super) fn unname(&mut self, tp: TopicPartition) -> Option<LogIndex> {
        self.by_tp.remove(&tp)
    }

    pub(super) fn index_of(&self, tp: TopicPartition) -> Option<LogIndex> {
        self.by_tp.get(&tp).copied()
    }

    /// Why nothing can be written any more: the journal or the device failed.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Bytes appended that are not written yet. Above a bound of its own the shard reads no more Produce requests.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten
    }

    /// Memory of the newest records, bytes.
    pub fn tail_bytes(&self) -> u64 {
        self.pool.live_bytes()
    }

    /// Memory of the indexes of closed segments, bytes.
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// What the journal has done since the start.
    pub fn journal_counts(&self) -> JournalCounts {
        self.journal.counts()
    }

    // -- append and read

    /// Appends one checked batch in memory. What it returns is acknowledged only when the log's ends say so.
    pub fn append(
        &mut self,
        tp: TopicPartition,
        batch: &CheckedBatch<'_>,
        how: AppendAs,
    ) -> Result<Appended, AppendError> {
        self.now = how.now;
        let Some(index) = self.index_of(tp) else {
            return Err(AppendError::new(
                ErrorCode::NotLeaderOrFollower,
                "the log is not here",
            ));
        };
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        match &log.state {
            LogState::Ready => {}
            LogState::Loading | LogState::Cutting | LogState::Closed => {
                return Err(AppendError::new(
                    ErrorCode::NotLeaderOrFollower,
                    "the log is not ready",
                ));
            }
            LogState::Fenced(_) => {
                return Err(AppendError::new(
                    ErrorCode::KafkaStorageError,
                    "the replica is out of use",
                ));
            }
        }
        if batch.len() as u64 > log.config.segment_bytes {
            let message = format!(
                "a batch of {} bytes does not fit a segment of {}",
                batch.len(),
                log.config.segment_bytes
            );
            return Err(AppendError::new(ErrorCode::RecordListTooLarge, message));
        }
        if batch.has_producer_id() && !batch.is_control() {
            match log.producers.check(
                batch.producer_id(),
                batch.producer_epoch(),
                batch.base_sequence(),
                batch.last_sequence(),
            ) {
                Ok(None) => {}
                Ok(Some(twin)) => {
                    return Ok(Appended {
                        base_offset: twin.base_offset(),
                        last_offset: twin.last_offset,
                        log_append_time: if batch.log_append_time() < 0 {
                            -1
                        } else {
                            twin.timestamp
                        },
                        log_start: log.start,
                        duplicate: true,
                    });
                }
                Err(code) => {
                    let message = format!(
                        "producer {} epoch {} sequence {}",
                        batch.producer_id(),
                        batch.producer_epoch(),
                        batch.base_sequence()
                    );
                    return Err(AppendError::new(code, message));
                }
            }
        }
        let roll = log.should_roll(batch, how.now);
        if log.full_until.is_some() {
            let fits = log
                .segments
                .back()
                .is_some_and(|s| s.end + batch.len() as u64 <= s.allocated);
            if roll || !fits {
                return Err(AppendError::new(
                    ErrorCode::KafkaStorageError,
                    "no space left on the device",
                ));
            }
        }
        if roll {
            self.roll(index);
        }
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        let base_offset = log.appended;
        let filled = log.put(batch, &how, &mut self.pool);
        self.unwritten += batch.len() as u64;
        let base = log.active().base;
        self.full_blocks
            .extend(std::iter::repeat_n((index, base), filled));
        let appended = Appended {
            base_offset,
            last_offset: log.appended - 1,
            log_append_time: batch.log_append_time(),
            log_start: log.start,
            duplicate: false,
        };
        self.touch(index);
        Ok(appended)
    }

    /// Plans a read of `[offset..end)`; see [`ReadPlan`]. An unknown log reads as out of range: ask for its state first.
    pub fn read(
        &mut self,
        tp: TopicPartition,
        offset: i64,
        end: i64,
        bytes_max: u32,
        at_least_one: bool,
    ) -> ReadPlan {
        let Some(index) = self.index_of(tp) else {
            return ReadPlan::OutOfRange;
        };
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        if log.segments.is_empty() {
            return ReadPlan::OutOfRange;
        }
        let plan = log.plan(offset, end, bytes_max, at_least_one);
        if matches!(plan, ReadPlan::NeedsRead) {
            self.touch(index);
        }
        plan
    }

    /// Asks the file system for its sizes; [`Store::take_space`] gives them. One question under way answers all who ask.
    pub fn ask_space(&mut self) {
        if self.space != Asking::UnderWay {
            self.space = Asking::UnderWay;
            self.ops.issue(Task::Space, DiskOp::Space);
        }
    }

    /// The answer to [`Store::ask_space`], once; `Some(None)` when there is an error in place of it.
    pub fn take_space(&mut self) -> Option<Option<Space>> {
        match self.space {
            Asking::Told(space) => {
                self.space = Asking::Nothing;
                Some(space)
            }
            Asking::Nothing | Asking::UnderWay => None,
        }
    }

    // -- bookkeeping

    /// The log has something to do at the next commit.
    pub(super) fn touch(&mut self, index: LogIndex) {
        if let Some(log) = self.logs[index as usize].as_deref_mut()
            && !log.in_fresh
        {
            log.in_fresh = true;
            self.fresh.push(index);
        }
    }

    pub(super) fn note_progress(&mut self, index: LogIndex) {
        if let Some(log) = self.logs[index as usize].as_deref_mut()
            && !log.in_progress
        {
            log.in_progress = true;
            self.progress.push(index);
        }
    }

    /// Logs whose ends or state changed, or whose awaited read is there, since the last call.
    pub fn take_progress(&mut self) -> Vec<TopicPartition> {
        let mut named = Vec::with_capacity(self.progress.len());
        for index in self.progress.drain(..) {
            if let Some(log) = self.logs[index as usize].as_deref_mut() {
                log.in_progress = false;
                if log.ending.is_none() {
                    named.push(log.tp);
                }
            }
        }
        named
    }

    /// Recomputes a log's ends after something of it was written or flushed.
    pub(super) fn advance(&mut self, index: LogIndex) {
        let marks = self.journal.marks;
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if matches!(log.state, LogState::Fenced(_)) {
            return;
        }
        let unwritten = log.unwritten_bytes;
        let moved = log.advance(marks);
        self.unwritten = self.unwritten - unwritten + log.unwritten_bytes;
        if !moved {
            return;
        }
        if log.flushed < log.written && log.flush_due.is_none() {
            let wait_ms = self
                .config
                .flush_interval_ms
                .min(u64::try_from(log.config.flush_ms).unwrap_or(u64::MAX));
            let due = self.now.mono.after_ms(wait_ms);
            log.flush_due = Some(due);
            self.flush_due.insert((due, index));
        }
        self.note_progress(index);
    }

    pub(super) fn fence(&mut self, index: LogIndex, why: Fenced) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if matches!(log.state, LogState::Fenced(_)) {
            return;
        }
        tracing::error!(log = %log.dir, reason = ?why, "replica fenced");
        log.state = LogState::Fenced(why);
        self.unwritten -= std::mem::take(&mut log.unwritten_bytes);
        log.chains.clear();
        self.note_progress(index);
    }

    /// The journal or the whole device cannot be trusted any more.
    pub(super) fn fail(&mut self, why: String) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(reason = why, "the log dir failed for this shard");
        for index in 0..self.logs.len() as LogIndex {
            self.fence(index, Fenced::Io(why.clone()));
        }
        self.failed = Some(why);
        self.look_at_marks();
    }

    // -- completions

    /// An operation is complete; false: it is not of this store.
    pub fn on_disk(
        &mut self,
        op: OpId,
        result: DiskResult,
        now: Now,
        out: &mut Vec<(OpId, DiskOp)>,
    ) -> bool {
        let Some(task) = self.ops.finish(op) else {
            return false;
        };
        self.now = now;
        let log = task.log();
        self.complete(task, result);
        if let Some(index) = log {
            self.end_step(index);
        }
        self.ops.hand_over(out, self.now.mono);
        true
    }

    fn complete(&mut self, task: Task, result: DiskResult) {
        match task {
            Task::JournalOpen => match result {
                Ok(_) => {
                    self.journal.opened(&self.config, &mut self.ops);
                    self.retry_queue();
                }
                Err(DiskError::NoSpace) => {
                    let retry = self.now.mono.after_ms(self.config.allocate_retry_ms);
                    self.journal.open_failed(retry);
                    self.retry_queue();
                }
                Err(e) => self.fail(format!("the journal cannot be opened: {e}")),
            },
            Task::JournalClear { to } => match result {
                Ok(_) => {
                    self.journal.cleared(to, &self.config, &mut self.ops);
                    self.retry_queue();
                }
                Err(e) => self.fail(format!("the journal cannot be written: {e}")),
            },
            Task::JournalWrite { sequence } => match result {
                Ok(_) => self.journal_written(sequence),
                Err(e) => self.fail(format!("the journal cannot be written: {e}")),
            },
            Task::JournalFlush { sequence } => match result {
                Ok(_) => self.journal_flushed(sequence),
                Err(e) => self.fail(format!("the journal cannot be flushed: {e}")),
            },
            Task::JournalRead { number } => self.journal_read(number, result),
            Task::JournalKeep { number } => self.journal_kept(number, result),
            Task::SegmentAllocate { log, base, to } => self.allocated(log, base, to, result),
            task @ Task::SegmentWrite { .. } => self.segment_written(task, result),
            Task::SegmentFlush { log, base, to } => self.segment_flushed(log, base, to, result),
            Task::Progress { log, base } => self.progress_noted(log, base, result),
            Task::Chain { log } => self.chain_step_done(log, result),
            Task::ReadOpen { log, base, file } => self.read_opened(log, base, file, result),
            Task::Read { log, interval } => self.interval_read(log, interval, result),
            Task::Peek { log, base, at, len } => self.peeked(log, (base, at, len), result),
            Task::IndexRead { log, base, offsets } => {
                self.index_file_read(log, base, offsets, result);
            }
            Task::Load { log } => self.load_step_done(log, result),
            Task::End { log } => self.end_step_done(log, result),
            Task::Space => {
                let space = match result {
                    Ok(DiskDone::Space(space)) => Some(space),
                    _ => None,
                };
                self.space = Asking::Told(space);
            }
            Task::Loose => {
                if let Err(e) = result {
                    tracing::warn!(error = %e, "a file could not be removed or closed");
                }
            }
        }
    }

    /// Waiting logs are looked at again: the journal's room changed.
    fn retry_queue(&mut self) {
        if self.journal.is_unavailable() {
            for index in std::mem::take(&mut self.queue) {
                if let Some(log) = self.logs[index as usize].as_deref_mut() {
                    log.in_queue = false;
                    self.touch(index);
                }
            }
        }
    }

    fn journal_written(&mut self, sequence: u64) {
        self.journal.wrote(sequence);
        while let Some((logs, flushed)) = self.journal.next_written() {
            for index in logs {
                self.advance(index);
                self.pump(index);
                if !flushed
                    && let Some(log) = self.logs[index as usize].as_deref_mut()
                    && !log.in_unflushed
                {
                    log.in_unflushed = true;
                    self.journal.unflushed.push(index);
                }
            }
            if flushed {
                self.advance_unflushed();
                self.look_at_marks();
            }
        }
        if planted(Bug::SkipFlush) {
            self.journal.flushed(self.journal.marks.written);
        }
        self.look_at_starts();
    }

    fn journal_flushed(&mut self, sequence: u64) {
        self.journal.flushing = false;
        let sequence = if planted(Bug::CountFlushForLaterWrite) {
            self.journal.marks.written
        } else {
            sequence
        };
        self.journal.flushed(sequence);
        self.advance_unflushed();
        self.look_at_marks();
        self.look_at_starts();
    }

    /// Log starts whose frame is flushed now are durable.
    fn look_at_starts(&mut self) {
        let flushed = self.journal.marks.flushed;
        for index in std::mem::take(&mut self.starts_under_way) {
            let Some(log) = self.logs[index as usize].as_deref_mut() else {
                continue;
            };
            match log.start_frame {
                Some((_, frame)) if frame > flushed => self.starts_under_way.push(index),
                Some((start, _)) => {
                    log.start_frame = None;
                    log.start_durable = log.start_durable.max(start);
                    self.note_progress(index);
                }
                None => {}
            }
        }
    }

    fn advance_unflushed(&mut self) {
        let marks = self.journal.marks;
        let waiting = std::mem::take(&mut self.journal.unflushed);
        for index in waiting {
            let Some(log) = self.logs[index as usize].as_deref_mut() else {
                continue;
            };
            log.in_unflushed = false;
            self.advance(index);
            if marks.flushed < marks.written
                && let Some(log) = self.logs[index as usize].as_deref_mut()
            {
                // Frames written after that flush was issued may hold more of it.
                log.in_unflushed = true;
                self.journal.unflushed.push(index);
            }
            self.touch(index);
        }
    }

    // -- for the simulator

    /// Walks all invariants.
    pub fn check(&self) {
        let mut unwritten = 0;
        for log in self.logs.iter().filter_map(|l| l.as_deref()) {
            log.check();
            unwritten += log.unwritten_bytes;
        }
        assert_eq!(unwritten, self.unwritten);
        assert!(self.journal.marks.flushed <= self.journal.marks.written);
    }
}
