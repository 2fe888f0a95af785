//! What takes several operations one after the other: rolling, closing a segment, checkpoints.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::op::{DiskDone, DiskError, DiskOp, DiskResult, FileRef};
use super::ops::{Chain, LogIndex, Task, Then, segment_path};
use super::partition::{Fenced, Log, LogState};
use super::progress;
use super::segment::{Phase, Segment, ceil, floor};
use super::store::Store;

impl Store {
    /// Seals the active segment and begins a new one at the log's end. Appends to it queue in memory until its file is
    /// durable; the old one is written, flushed and closed in the background.
    pub(super) fn roll(&mut self, index: LogIndex) {
        let allocate = self.config.allocate_bytes_min;
        let now = self.now.wall;
        let file = self.ops.file();
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let base = log.appended;
        let snapshot = log.producers.snapshot();
        let old = log.active();
        assert!(
            old.next == base && old.base < base,
            "a rolled segment holds something"
        );
        old.phase = Phase::Sealed;
        old.note = None;
        old.snapshot = Some(snapshot);
        old.end_times();
        let (old_base, stale) = (old.base, std::mem::take(&mut old.stale_index));
        let mut steps = VecDeque::with_capacity(2);
        if stale {
            // An index that tells of a part only must not pass for the whole once this is not the last segment.
            steps.push_back(DiskOp::Remove {
                path: segment_path(&log.dir, old_base, "index"),
            });
        }
        steps.push_back(DiskOp::Open {
            file,
            path: segment_path(&log.dir, base, "log"),
            create: true,
            allocate: allocate.min(ceil(log.config.segment_bytes)),
        });
        log.segments.push_back(Segment::new(base, now));
        // Before closings that may be waiting, behind a step that is under way and behind older segments.
        let opens = |c: &Chain| matches!(c.then, Then::SegmentOpened { .. });
        let older = log.chains.iter().rposition(opens).map_or(0, |i| i + 1);
        let place = older.max(usize::from(log.chain_running));
        log.chains.insert(
            place.min(log.chains.len()),
            Chain {
                steps,
                then: Then::SegmentOpened { base, file },
            },
        );
        self.touch(index);
    }

    pub(super) fn pump_chains(&mut self, index: LogIndex) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let first_open = log
            .segments
            .iter()
            .rposition(|s| s.phase == Phase::Closed)
            .map_or(0, |i| i + 1);
        for i in first_open..log.segments.len() {
            let s = &log.segments[i];
            let done = s.phase == Phase::Sealed
                && s.synced == s.end
                && !s.writing
                && !s.flushing
                && !s.noting
                && !s.allocating;
            if done {
                let chain = log.closing_chain(i);
                log.segments[i].phase = Phase::Closing;
                log.chains.push_back(chain);
            }
        }
        if log.epochs_dirty && !log.epochs_writing {
            log.epochs_dirty = false;
            log.epochs_writing = true;
            let steps = VecDeque::from([log.epochs_op()]);
            log.chains.push_back(Chain {
                steps,
                then: Then::EpochsWritten,
            });
        }
        self.run_chain(index);
    }

    pub(super) fn run_chain(&mut self, index: LogIndex) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if log.chain_running || log.full_until.is_some() {
            return;
        }
        let Some(step) = log.chains.front().and_then(|c| c.steps.front()) else {
            return;
        };
        log.chain_running = true;
        self.ops.issue(Task::Chain { log: index }, step.clone());
    }

    pub(super) fn chain_step_done(&mut self, index: LogIndex, result: DiskResult) {
        let retry = self.now.mono.after_ms(self.config.allocate_retry_ms);
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        log.chain_running = false;
        let done = match result {
            Ok(done) => done,
            Err(DiskError::NoSpace) => {
                self.set_full(index, retry);
                return;
            }
            Err(e) => {
                self.fence(
                    index,
                    Fenced::Io(format!("a step on the log's files failed: {e}")),
                );
                return;
            }
        };
        // A fenced log has given up its chains.
        let Some(chain) = log.chains.front_mut() else {
            return;
        };
        chain.steps.pop_front();
        if chain.steps.is_empty() {
            let then = log.chains.pop_front().expect("it was the front").then;
            self.chain_done(index, then, done);
        }
        self.pump(index);
        self.run_chain(index);
    }

    fn chain_done(&mut self, index: LogIndex, then: Then, done: DiskDone) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        match then {
            Then::SegmentOpened { base, file } => {
                let file = Rc::new(FileRef { id: file });
                let Some(s) = log.segment_mut(base) else {
                    self.doomed.push(file);
                    return;
                };
                s.file = Some(file);
                if let DiskDone::Opened { len } = done {
                    s.allocated = floor(len);
                }
                if log.state == LogState::Loading {
                    log.state = LogState::Ready;
                    self.note_progress(index);
                }
            }
            Then::SegmentClosed { base } => {
                if let Some(s) = log.segment_mut(base) {
                    s.phase = Phase::Closed;
                    s.allocated = s.end;
                    s.snapshot = None;
                    if s.has_tail() {
                        self.full_blocks.push_back((index, base));
                    }
                    let index_bytes = s.index.bytes();
                    self.note_reading(index, base);
                    self.note_index(index, base, index_bytes);
                }
                let log = self.logs[index as usize].as_deref_mut();
                if log.is_some_and(|log| std::mem::take(&mut log.retain_when_closed)) {
                    self.retain_log(index);
                }
                self.release_journal();
            }
            Then::EpochsWritten => log.epochs_writing = false,
            Then::EndFilesWritten => self.files_done(index),
            Then::SegmentRemoved { base } => self.segment_removed(index, base),
        }
    }
}

impl Log {
    pub(super) fn epochs_op(&self) -> DiskOp {
        DiskOp::Replace {
            path: format!("{}/leader-epoch-checkpoint", self.dir),
            data: Bytes::from(self.epochs.encode()),
        }
    }

    /// What makes a flushed, sealed segment one of Kafka's: exact length and side files. The offset index comes last:
    /// where it exists beside a segment that is not the last, all the rest is durable.
    pub(super) fn closing_chain(&self, i: usize) -> Chain {
        let s = &self.segments[i];
        let file = s
            .file
            .as_ref()
            .expect("a sealed segment was written to its file")
            .id;
        let mut steps = VecDeque::with_capacity(6);
        steps.push_back(DiskOp::Truncate { file, len: s.end });
        steps.extend(self.side_files(i));
        if s.has_note {
            let path = segment_path(&self.dir, s.base, progress::SUFFIX);
            steps.push_back(DiskOp::Remove { path });
        }
        Chain {
            steps,
            then: Then::SegmentClosed { base: s.base },
        }
    }

    pub(super) fn side_files(&self, i: usize) -> Vec<DiskOp> {
        let s = &self.segments[i];
        let snapshot = s
            .snapshot
            .clone()
            .unwrap_or_else(|| self.producers.snapshot());
        vec![
            DiskOp::Replace {
                path: segment_path(&self.dir, s.next, "snapshot"),
                data: snapshot,
            },
            DiskOp::Replace {
                path: segment_path(&self.dir, s.base, "timeindex"),
                data: s.index.encode_times(),
            },
            self.epochs_op(),
            DiskOp::Replace {
                path: segment_path(&self.dir, s.base, "index"),
                data: s.index.encode_offsets(),
            },
        ]
    }
}
