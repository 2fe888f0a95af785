//! Reads that plans ask for: index intervals, whole batches, indexes of closed segments; and which files are open for it.

use std::rc::Rc;

use bytes::Bytes;

use super::index::Index;
use super::op::{DiskDone, DiskError, DiskOp, DiskResult, FileId, FileRef};
use super::ops::{LogIndex, Task, segment_path};
use super::partition::{Fenced, Log};
use super::read::{INTERVAL_BYTES, Interval};
use super::segment::{Phase, Segment};
use super::store::Store;
use crate::model::limit::INDEX_CACHE_BYTES;

impl Store {
    /// Issues the reads that the log's plans want, and opens the files that they need.
    pub(super) fn pump_reads(&mut self, index: LogIndex) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if !log.located.wants() {
            return;
        }
        let mut waiting = Vec::new();
        for interval in std::mem::take(&mut log.located.wanted) {
            match open_file(log, interval.base) {
                FileOf::Open(file) => {
                    log.located.reading.push(interval);
                    let Interval { at, .. } = interval;
                    let len = INTERVAL_BYTES;
                    self.ops.issue(
                        Task::Read {
                            log: index,
                            interval,
                        },
                        DiskOp::Read { file, at, len },
                    );
                }
                FileOf::Waits => waiting.push(interval),
                FileOf::Closed(path) => {
                    waiting.push(interval);
                    open_for_reading(&mut self.ops, index, interval.base, path);
                }
                FileOf::Gone => {}
            }
        }
        log.located.wanted = waiting;
        let mut waiting = Vec::new();
        for (base, at, len) in std::mem::take(&mut log.located.peeks.wanted) {
            match open_file(log, base) {
                FileOf::Open(file) => {
                    log.located.peeks.reading.push((base, at, len));
                    let task = Task::Peek {
                        log: index,
                        base,
                        at,
                        len,
                    };
                    self.ops.issue(task, DiskOp::Read { file, at, len });
                }
                FileOf::Waits => waiting.push((base, at, len)),
                FileOf::Closed(path) => {
                    waiting.push((base, at, len));
                    open_for_reading(&mut self.ops, index, base, path);
                }
                FileOf::Gone => {}
            }
        }
        log.located.peeks.wanted = waiting;
        for base in std::mem::take(&mut log.located.wanted_indexes) {
            let dir = log.dir.clone();
            let Some(s) = log.segment_mut(base) else {
                continue;
            };
            if s.index_reading || !s.index_on_disk {
                continue;
            }
            s.index_reading = true;
            let task = Task::IndexRead {
                log: index,
                base,
                offsets: None,
            };
            let path = segment_path(&dir, base, "index");
            self.ops.issue(task, DiskOp::ReadFile { path });
        }
    }

    pub(super) fn read_opened(
        &mut self,
        index: LogIndex,
        base: i64,
        file: FileId,
        result: DiskResult,
    ) {
        let file = Rc::new(FileRef { id: file });
        let segment = self.logs[index as usize]
            .as_deref_mut()
            .and_then(|l| l.segment_mut(base));
        let s = match (segment, result) {
            (Some(s), Ok(_)) => s,
            // Nothing is wrong with it. Who waits for it asks again when its time is up.
            (Some(s), Err(DiskError::NoSpace)) => {
                s.read_opening = false;
                return;
            }
            (Some(_), Err(e)) => {
                let why = format!("segment {base} cannot be opened: {e}");
                return self.fence(index, Fenced::Io(why));
            }
            // It went while it was opened: retention, or a cut.
            (None, Ok(_)) => return self.doomed.push(file),
            (None, Err(_)) => return,
        };
        s.read_opening = false;
        s.file = Some(file);
        self.note_reading(index, base);
        self.pump_reads(index);
    }

    /// A closed segment's file is open. At the bound the file that was opened first is closed.
    pub(super) fn note_reading(&mut self, index: LogIndex, base: i64) {
        self.opened_for_reading.push_back((index, base));
        while self.opened_for_reading.len() > self.config.closed_files_max
            && let Some((index, base)) = self.opened_for_reading.pop_front()
        {
            let segment = self.logs[index as usize]
                .as_deref_mut()
                .and_then(|l| l.segment_mut(base));
            if let Some(s) = segment
                && s.phase == Phase::Closed
            {
                self.doomed.extend(s.file.take());
            }
        }
    }

    /// A closed segment's index is in memory. At the bound those that came first leave: they are on disk.
    pub(super) fn note_index(&mut self, index: LogIndex, base: i64, bytes: u32) {
        self.index_bytes += u64::from(bytes);
        self.indexes.push_back((index, base, bytes));
        while self.index_bytes > INDEX_CACHE_BYTES
            && self.indexes.len() > 1
            && let Some((index, base, bytes)) = self.indexes.pop_front()
        {
            self.index_bytes -= u64::from(bytes);
            let segment = self.logs[index as usize]
                .as_deref_mut()
                .and_then(|l| l.segment_mut(base));
            if let Some(s) = segment
                && s.phase == Phase::Closed
            {
                s.index = Index::default();
                s.index_on_disk = true;
            }
        }
    }

    pub(super) fn index_file_read(
        &mut self,
        index: LogIndex,
        base: i64,
        offsets: Option<Bytes>,
        result: DiskResult,
    ) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let dir = log.dir.clone();
        let Some(s) = log.segment_mut(base) else {
            return;
        };
        let bytes = match result {
            Ok(DiskDone::Read(bytes)) => Some(bytes),
            Ok(_) | Err(_) => None,
        };
        let (offsets, times) = match (offsets, bytes) {
            (None, Some(offsets)) => {
                let task = Task::IndexRead {
                    log: index,
                    base,
                    offsets: Some(offsets),
                };
                let path = segment_path(&dir, base, "timeindex");
                self.ops.issue(task, DiskOp::ReadFile { path });
                return;
            }
            (Some(offsets), Some(times)) => (offsets, times),
            (_, None) => (Bytes::from_static(b"?"), Bytes::new()),
        };
        s.index_reading = false;
        s.index_on_disk = false;
        match Index::decode(&offsets, &times, s.end) {
            Some(read) => {
                if let Some(last) = read.times().last()
                    && !s.max_known
                {
                    s.max_timestamp = last.timestamp;
                    s.max_timestamp_last = s.base + i64::from(last.last);
                }
                s.index = read;
            }
            None => {
                // Everything can still be found, by walking.
                tracing::warn!(log = %dir, base, "the index of a closed segment is damaged");
                if !s.max_known {
                    s.max_timestamp = Segment::MAX_LOST;
                }
            }
        }
        s.max_known = true;
        let bytes = s.index.bytes();
        self.note_index(index, base, bytes);
        self.note_progress(index);
    }

    pub(super) fn interval_read(
        &mut self,
        index: LogIndex,
        interval: Interval,
        result: DiskResult,
    ) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        log.located.reading.retain(|r| *r != interval);
        match result {
            Ok(DiskDone::Read(bytes)) => log.interval_read(interval, &bytes),
            Ok(_) => {}
            Err(e) => {
                self.fence(
                    index,
                    Fenced::Io(format!("segment {} cannot be read: {e}", interval.base)),
                );
                return;
            }
        }
        self.note_progress(index);
    }

    pub(super) fn peeked(&mut self, index: LogIndex, wanted: (i64, u64, u32), result: DiskResult) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        log.located.peeks.reading.retain(|r| *r != wanted);
        match result {
            Ok(DiskDone::Read(bytes)) => log.located.peeks.keep(wanted, bytes),
            Ok(_) => {}
            Err(e) => {
                self.fence(
                    index,
                    Fenced::Io(format!("segment {} cannot be read: {e}", wanted.0)),
                );
                return;
            }
        }
        self.note_progress(index);
    }
}

enum FileOf {
    Open(FileId),
    /// It is being opened.
    Waits,
    /// To be opened at this path.
    Closed(String),
    Gone,
}

fn open_file(log: &mut Log, base: i64) -> FileOf {
    let path = segment_path(&log.dir, base, "log");
    match log.segment_mut(base) {
        None => FileOf::Gone,
        Some(s) => match &s.file {
            Some(file) => FileOf::Open(file.id),
            None if s.phase == Phase::Closed && !s.read_opening => {
                s.read_opening = true;
                FileOf::Closed(path)
            }
            None => FileOf::Waits,
        },
    }
}

fn open_for_reading(ops: &mut super::ops::Ops, log: LogIndex, base: i64, path: String) {
    let file = ops.file();
    let op = DiskOp::Open {
        file,
        path,
        create: false,
        allocate: 0,
    };
    ops.issue(Task::ReadOpen { log, base, file }, op);
}
