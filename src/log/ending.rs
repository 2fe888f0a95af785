//! How logs end: given up, deleted, or stopped with the process.
//!
//! A log that ends is no longer found by its name. What it has in memory goes to its segments and is flushed; then its
//! files are made Kafka's (given up, stopped); then its past in the journal is ended by a mark (given up, deleted), so
//! that boot never takes what follows for a continuation. A crash at any point before the mark is flushed leaves the log
//! as it was; after it, the segments alone tell.

use std::collections::VecDeque;

use super::config::Config;
use super::generation::Known;
use super::op::{DiskDone, DiskOp, DiskResult, OpId};
use super::ops::{Chain, LogIndex, Task, Then, parse_partition_metadata, segment_path};
use super::partition::{Fenced, Log, LogState};
use super::progress;
use super::segment::Phase;
use super::store::Store;
use crate::model::{Instant, Now, ShardIndex, TopicId, TopicPartition};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Close,
    Delete,
    /// The log lives on, without what is at or above this offset.
    Cut(i64),
    /// The whole store stops: no mark, for no frame of this generation is read again.
    Stop,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// What is in memory goes to the segments, and what is under way comes to its end.
    Settle,
    /// Exact lengths and side files are written.
    Files,
    /// The next frame takes a mark.
    Mark,
    /// The frame with the mark is not flushed yet.
    Marked(u64),
    /// Deleted: whose directory is it?
    Look,
    /// Deleted: the directory is renamed.
    Rename,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub how: How,
    step: Step,
}

/// A log of a stopped store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoppedLog {
    pub tp: TopicPartition,
    /// The directory's name: `<topic>-<partition>`.
    pub dir: String,
    /// Base offset of the first segment.
    pub first: i64,
    pub known: Known,
}

/// How a log was given up since boot: what whoever opens it next must know, be it this store or another of the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    /// Of the last opening; the higher one is the later one.
    pub leader_epoch: i32,
    /// A fenced one stays so until the next boot: what it has in the journal is missing in its segments.
    pub log: Result<StoppedLog, Fenced>,
}

/// What a store leaves; for [`super::Finish`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stopped {
    pub shard: ShardIndex,
    /// Every log is flushed, and its files are exact.
    pub clean: bool,
    pub logs: Vec<StoppedLog>,
    /// Logs that were given up before, for those that nobody has opened since.
    pub left: Vec<Left>,
}

impl Store {
    /// Gives the log up: flushed, its files as Kafka leaves them, its past in the journal ended.
    pub fn close(&mut self, tp: TopicPartition, now: Now) {
        self.now = now;
        self.end(tp, How::Close);
    }

    /// How the log was given up, if it was, as far as this store knows.
    pub fn left(&self, tp: TopicPartition) -> Option<&Left> {
        self.left.get(&tp)
    }

    /// Another store gave the log up and says how; to be told before it is opened here.
    pub fn take_over(&mut self, tp: TopicPartition, left: Left) {
        let later = |known: &Left| known.leader_epoch < left.leader_epoch;
        if self.left.get(&tp).is_none_or(later) {
            self.left.insert(tp, left);
        }
    }

    /// The topic is deleted: how its logs were given up concerns nobody.
    pub fn forget_left(&mut self, topic: TopicId) {
        self.left.retain(|tp, _| tp.topic != topic);
    }

    /// Whether the log is being given up, or deleted, and still has something to do with its files.
    pub fn is_ending(&self, tp: TopicPartition) -> bool {
        self.ending.contains_key(&tp)
    }

    /// Where the logs end that are being given up; for the simulator.
    pub fn giving_up(&self) -> impl Iterator<Item = (TopicPartition, i64)> {
        let logs = self.logs.iter().filter_map(|log| log.as_deref());
        let closes = |log: &&Log| log.ending.is_some_and(|ending| ending.how == How::Close);
        logs.filter(closes).map(|log| (log.tp, log.appended))
    }

    /// Deletes a log that another store gave up, without opening it.
    pub fn delete_unopened(&mut self, tp: TopicPartition, topic: &str, config: Config, now: Now) {
        self.now = now;
        self.add(tp, topic, config);
        self.end(tp, How::Delete);
    }

    /// Deletes the log and its directory. Data of it that is not written yet never is.
    pub fn delete(&mut self, tp: TopicPartition, now: Now) {
        self.now = now;
        self.end(tp, How::Delete);
    }

    /// Cuts what lies at or above `end` off: whole batches, from the one that holds it on. The log is
    /// [`LogState::Cutting`], then Loading, then Ready again.
    pub fn truncate(&mut self, tp: TopicPartition, end: i64, now: Now) {
        self.now = now;
        let Some(index) = self.index_of(tp) else {
            return;
        };
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        if !log.is_ready() || end >= log.appended {
            return;
        }
        log.state = LogState::Cutting;
        log.ending = Some(Ending {
            how: How::Cut(end.max(log.start)),
            step: Step::Settle,
        });
        log.located.forget_wishes();
        self.note_progress(index);
        self.touch(index);
    }

    /// Ends every log for a clean stop. To be called again every turn until [`Store::is_stopped`].
    pub fn stop(&mut self, now: Now, out: &mut Vec<(OpId, DiskOp)>) {
        self.now = now;
        if self.stopped.is_none() {
            self.stopped = Some(Stopped {
                shard: self.journal.shard(),
                clean: true,
                logs: Vec::new(),
                left: self.left.values().cloned().collect(),
            });
            let all: Vec<TopicPartition> = self.logs.iter().flatten().map(|log| log.tp).collect();
            for tp in all {
                self.end(tp, How::Stop);
            }
        }
        if self.logs.iter().all(Option::is_none) && !self.files_closed && self.journal.is_still() {
            self.files_closed = true;
            for (_, path) in std::mem::take(&mut self.deletions) {
                self.ops.issue(Task::Loose, DiskOp::Remove { path });
            }
            let files: Vec<_> = self.journal.all_files().collect();
            for file in files {
                self.ops.issue(Task::Loose, DiskOp::Close { file });
            }
            for file in std::mem::take(&mut self.doomed) {
                self.ops.issue(Task::Loose, DiskOp::Close { file: file.id });
            }
        }
        self.ops.hand_over(out, self.now.mono);
    }

    /// Nothing of this store is under way any more.
    pub fn is_stopped(&self) -> bool {
        self.files_closed && self.ops.in_flight() == 0
    }

    /// What the store leaves, once it is stopped.
    pub fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref().filter(|_| self.is_stopped())
    }

    fn end(&mut self, tp: TopicPartition, how: How) {
        let Some(index) = self.unname(tp) else {
            return;
        };
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        log.ending = Some(Ending {
            how,
            step: Step::Settle,
        });
        log.start_pending = false;
        log.located.forget_wishes();
        *self.ending.entry(tp).or_default() += 1;
        self.touch(index);
    }

    /// Takes the next step if nothing is in its way.
    pub(super) fn end_step(&mut self, index: LogIndex) {
        let flushed = self.journal.marks.flushed;
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let Some(Ending { how, step }) = log.ending else {
            return;
        };
        let alive = matches!(log.state, LogState::Ready | LogState::Cutting);
        let drains = how != How::Delete && alive;
        match step {
            Step::Settle => {
                if !drains && !log.chain_running {
                    log.chains.clear();
                }
                if drains && how == How::Stop && log.full_until.is_some() {
                    // What waits for space was refused to its producers; boot finds what is in the journal.
                    log.state = LogState::Loading;
                    log.chains.clear();
                    return self.end_step(index);
                }
                if !self.ops.is_quiet(index) || !log.chains.is_empty() {
                    return;
                }
                if !drains {
                    return match how {
                        How::Delete => self.ask_mark(index),
                        How::Close | How::Stop => self.gone(index, false),
                        How::Cut(_) => log.ending = None,
                    };
                }
                let settled = log.extents.is_empty()
                    && log.segments.iter().all(|s| {
                        s.synced == s.end && matches!(s.phase, Phase::Active | Phase::Closed)
                    });
                if !settled {
                    return;
                }
                if matches!(how, How::Cut(_)) {
                    return self.ask_mark(index);
                }
                if !log.written_to {
                    return self.files_done(index);
                }
                let steps = log.end_files();
                log.chains.push_back(Chain {
                    steps,
                    then: Then::EndFilesWritten,
                });
                self.set_end_step(index, Step::Files);
                self.run_chain(index);
            }
            Step::Files => {
                // The chain leads on, unless the log was fenced on the way.
                if log.chains.is_empty() && self.ops.is_quiet(index) && !alive {
                    self.gone(index, false);
                }
            }
            Step::Mark => {
                if self.failed.is_some() || self.journal.is_unavailable() {
                    self.marked(index);
                }
            }
            Step::Marked(sequence) => {
                if self.failed.is_some() || sequence <= flushed {
                    self.marked(index);
                }
            }
            Step::Look | Step::Rename => {}
        }
    }

    fn set_end_step(&mut self, index: LogIndex, step: Step) {
        if let Some(ending) = self.logs[index as usize]
            .as_deref_mut()
            .and_then(|log| log.ending.as_mut())
        {
            ending.step = step;
        }
    }

    pub(super) fn files_done(&mut self, index: LogIndex) {
        let how = self.logs[index as usize]
            .as_deref()
            .and_then(|log| log.ending)
            .map(|ending| ending.how);
        match how {
            Some(How::Stop) => self.gone(index, true),
            Some(How::Close) => self.ask_mark(index),
            Some(How::Delete | How::Cut(_)) | None => {}
        }
    }

    fn ask_mark(&mut self, index: LogIndex) {
        self.set_end_step(index, Step::Mark);
        if self.failed.is_some() || self.journal.is_unavailable() {
            return self.marked(index);
        }
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        self.marking.push(index);
        if !log.in_queue {
            log.in_queue = true;
            self.queue.push_back(index);
        }
    }

    /// The journal moved on: marks may be flushed.
    pub(super) fn look_at_marks(&mut self) {
        for index in self.marking.clone() {
            self.end_step(index);
        }
    }

    /// The log's past is ended.
    pub(super) fn marked(&mut self, index: LogIndex) {
        self.marking.retain(|i| *i != index);
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        match log.ending.map(|ending| ending.how) {
            Some(How::Delete) => {
                // Another shard may have moved it out of the way of a new topic of that name, and made its own.
                let path = format!("{}/partition.metadata", log.dir);
                self.ops
                    .issue(Task::End { log: index }, DiskOp::ReadFile { path });
                self.set_end_step(index, Step::Look);
            }
            Some(How::Cut(end)) if !matches!(log.state, LogState::Fenced(_)) => {
                // Else a file could wait for bytes that were cut off to reach their segment, and what follows for that file.
                self.journal.forget(index);
                self.reload(index, end);
            }
            Some(How::Cut(_)) => log.ending = None,
            Some(How::Close | How::Stop) | None => self.gone(index, true),
        }
    }

    pub(super) fn end_step_done(&mut self, index: LogIndex, result: DiskResult) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let Some(Ending { step, .. }) = log.ending else {
            return;
        };
        match (step, result) {
            (Step::Look, Ok(DiskDone::Read(bytes)))
                if parse_partition_metadata(&bytes) == Some(log.tp.topic) =>
            {
                let (from, to) = (log.dir.clone(), log.deleted_dir());
                self.ops
                    .issue(Task::End { log: index }, DiskOp::Rename { from, to });
                self.set_end_step(index, Step::Rename);
            }
            (Step::Rename, Ok(_)) => {
                let delay_ms = u64::try_from(log.config.file_delete_delay_ms).unwrap_or(0);
                let due = self.now.mono.after_ms(delay_ms);
                let path = log.deleted_dir();
                self.deletions.insert((due, path));
                self.gone(index, true);
            }
            (_, result) => {
                if let Err(e) = result {
                    tracing::warn!(log = %log.dir, error = %e, "a deleted log's directory cannot be moved away");
                }
                self.gone(index, true);
            }
        }
    }

    /// The log is no more, and a log that waited for its directory may be opened.
    fn gone(&mut self, index: LogIndex, clean: bool) {
        self.marking.retain(|i| *i != index);
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let how = log.ending.map(|ending| ending.how);
        let known = Known {
            start: log.start,
            high_watermark: log.high_watermark,
            flushed: log.flushed,
            doubtful: false,
        };
        let (tp, dir) = (log.tp, log.dir.clone());
        let left = StoppedLog {
            tp,
            dir: dir.clone(),
            first: log.segments.front().map_or(log.start, |s| s.base),
            known,
        };
        let deleted = how == Some(How::Delete);
        if !clean && !deleted && (log.journal_entry.is_some() || log.start_in.is_some()) {
            self.unsaved.insert(index, tp);
        }
        let leader_epoch = log.leader_epoch;
        if let LogState::Fenced(why) = &log.state
            && !deleted
        {
            let log = Err(why.clone());
            self.left.insert(tp, Left { leader_epoch, log });
        }
        match how {
            Some(How::Stop) => {
                if let Some(stopped) = &mut self.stopped {
                    stopped.clean &= clean;
                    stopped.logs.push(left);
                }
            }
            Some(How::Close) => {
                // It may be opened again before the next boot, here or by another store.
                if clean {
                    let log = Ok(left);
                    self.left.insert(tp, Left { leader_epoch, log });
                }
            }
            Some(How::Delete | How::Cut(_)) | None => {
                self.opened.logs.remove(&tp);
                self.left.remove(&tp);
                self.unsaved.retain(|_, unsaved| *unsaved != tp);
            }
        }
        for segment in &mut log.segments {
            self.doomed.extend(segment.file.take());
        }
        self.remove(index);
        if let Some(count) = self.ending.get_mut(&tp) {
            *count -= 1;
            if *count == 0 {
                self.ending.remove(&tp);
            }
        }
        let waiting = std::mem::take(&mut self.waiting_open);
        for (index, leader_epoch) in waiting {
            self.load_when_free(index, leader_epoch);
        }
        self.close_doomed();
    }

    /// Starts to open a log, unless one that ends still has its directory.
    pub(super) fn load_when_free(&mut self, index: LogIndex, leader_epoch: i32) {
        let Some(log) = self.logs[index as usize].as_deref() else {
            return;
        };
        let taken =
            self.logs.iter().filter_map(|l| l.as_deref()).any(|other| {
                other.ending.is_some() && other.index != index && other.dir == log.dir
            });
        if taken {
            self.waiting_open.push((index, leader_epoch));
        } else if let Some(Left { log: Err(why), .. }) = self.left.get(&log.tp) {
            self.fence(index, why.clone());
        } else if let Some(why) = self.opened.hurt.get(&log.tp) {
            self.fence(index, Fenced::Io(why.clone()));
        } else {
            self.start_loading(index, leader_epoch);
        }
    }

    /// Removes directories whose time has come.
    pub(super) fn remove_deleted(&mut self) {
        while let Some((due, _)) = self.deletions.first()
            && *due <= self.now.mono
        {
            let (_, path) = self.deletions.pop_first().expect("there is a first");
            self.ops.issue(Task::Loose, DiskOp::Remove { path });
        }
    }

    pub(super) fn next_deletion(&self) -> Option<Instant> {
        self.deletions.first().map(|(due, _)| *due)
    }
}

impl Log {
    /// Everything of it goes to its segments, and is flushed there.
    pub(super) fn is_draining(&self) -> bool {
        self.ending.is_some_and(|e| e.how != How::Delete)
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.ending.is_some_and(|e| e.how == How::Delete)
    }

    pub(super) fn is_ending_by_cut(&self) -> bool {
        self.ending.is_some_and(|e| matches!(e.how, How::Cut(_)))
    }

    pub(super) fn wants_mark(&self) -> bool {
        self.ending.is_some_and(|e| e.step == Step::Mark)
    }

    pub(super) fn mark_issued(&mut self, sequence: u64) {
        if let Some(ending) = &mut self.ending {
            ending.step = Step::Marked(sequence);
        }
    }

    /// What a mark says is flushed of the log; -1: it is deleted. A cut may take more than it was asked to, a whole batch.
    pub(super) fn mark_offset(&self) -> i64 {
        match self.ending.map(|e| e.how) {
            Some(How::Delete) => -1,
            Some(How::Cut(_)) => self.start,
            Some(How::Close | How::Stop) | None => self.appended,
        }
    }

    /// Kafka's name for a directory that is to be removed: `<dir>.<unique id>-delete`.
    pub(super) fn deleted_dir(&self) -> String {
        deleted_dir(&self.dir, self.tp.topic)
    }

    /// What makes the last segment and the log's side files Kafka's.
    fn end_files(&mut self) -> VecDeque<DiskOp> {
        let last = self.segments.len() - 1;
        let s = &mut self.segments[last];
        s.end_times();
        let file = s.file.as_ref().expect("a ready log's last segment is open");
        let mut steps = VecDeque::from([DiskOp::Truncate {
            file: file.id,
            len: s.end,
        }]);
        let note = s
            .has_note
            .then(|| segment_path(&self.dir, s.base, progress::SUFFIX));
        steps.extend(self.side_files(last));
        steps.extend(note.map(|path| DiskOp::Remove { path }));
        steps
    }
}

pub(super) fn deleted_dir(dir: &str, topic: TopicId) -> String {
    set_aside(dir, topic, "delete")
}

/// Kafka's name for a directory that is no log any more: `<dir>.<unique id>-<why>`.
pub(super) fn set_aside(dir: &str, topic: TopicId, why: &str) -> String {
    use std::fmt::Write;
    let mut name = format!("{dir}.");
    for byte in topic.0 {
        let _ = write!(name, "{byte:02x}");
    }
    name.push('-');
    name.push_str(why);
    name
}
