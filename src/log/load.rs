//! Opening a log's directory, or making it: one operation after the other, as a cursor that the store drives.
//!
//! After a clean stop the side files are trusted. Otherwise every segment without its `.index` (the last step of closing
//! one) and the last segment are walked; the log ends at the first batch that does not continue it, and what lies behind
//! is durably erased before anything is served.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use super::ending::deleted_dir;
use super::epochs::LeaderEpochs;
use super::generation::Known;
use super::index::Index;
use super::op::{DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, FileRef};
use super::ops::{
    Chain, LogIndex, Task, Then, parse_partition_metadata, partition_metadata, segment_path,
};
use super::partition::{Fenced, Log, LogState};
use super::planted::{Bug, planted};
use super::producers::ProducerStates;
use super::progress::{self, Progress};
use super::scan::Scan;
use super::segment::{Phase, Segment, ceil, floor};
use super::store::Store;
use crate::model::Instant;
use crate::model::limit::BLOCK_BYTES;

/// How long a directory of another topic is left to whoever has it, and how often it is looked at, milliseconds.
const MOVE_AWAY_MS: u64 = 2_000;
const MOVE_AWAY_POLL_MS: u64 = 20;

/// Where the cursor is: what its operation in flight is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Metadata,
    MoveAway,
    List,
    Epochs,
    Snapshot { offset: i64 },
    OffsetIndex,
    TimeIndex,
    Progress,
    OpenSegment,
    Drain { back: bool },
    Scan,
    Partial,
    Settle,
    Remove,
    Sweep,
}

/// The state of the cursor.
#[derive(Debug)]
pub(crate) struct Loading {
    at: At,
    leader_epoch: i32,
    since: Instant,
    clean: bool,
    known: Known,
    /// Base offsets of the segment files, with their lengths.
    files: BTreeMap<i64, u64>,
    indexed: BTreeSet<i64>,
    /// Offsets of the producer snapshots.
    snapshots: BTreeSet<i64>,
    /// Segments with a note of how far they are good.
    noted: BTreeSet<i64>,
    /// The note of the segment being read, ...
    progress: Option<Progress>,
    /// ... how far it says that it is good, and what was known of producers before.
    believed: Option<(u64, ProducerStates, i64)>,
    /// From this segment on files are walked.
    walk_from: i64,
    /// The segment being read.
    base: i64,
    file: FileId,
    offsets: bytes::Bytes,
    scan: Option<Scan>,
    /// Segments behind a gap or a cut, to be removed.
    surplus: Vec<i64>,
    /// Files to be removed before anything is served: a removal that came later could meet a new file of that name.
    trash: Vec<String>,
    swept: bool,
    /// The log is cut here.
    limit: Option<i64>,
    /// All segments are removed, and the log begins anew.
    restarts: bool,
    cut_said: Option<&'static str>,
}

impl Store {
    pub(super) fn start_loading(&mut self, index: LogIndex, leader_epoch: i32) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("just added");
        let left = self.left.get(&log.tp).map(|left| &left.log);
        let (known, clean) = match left {
            Some(Ok(left)) => (left.known, true),
            Some(Err(_)) | None => (
                self.opened.logs.get(&log.tp).copied().unwrap_or_default(),
                self.opened.clean,
            ),
        };
        log.loading = Some(Box::new(Loading {
            at: At::Metadata,
            leader_epoch,
            since: self.now.mono,
            clean,
            known,
            files: BTreeMap::new(),
            indexed: BTreeSet::new(),
            snapshots: BTreeSet::new(),
            noted: BTreeSet::new(),
            progress: None,
            believed: None,
            walk_from: 0,
            base: 0,
            file: FileId(0),
            offsets: bytes::Bytes::new(),
            scan: None,
            surplus: Vec::new(),
            trash: Vec::new(),
            swept: false,
            limit: None,
            restarts: false,
            cut_said: None,
        }));
        let path = format!("{}/partition.metadata", log.dir);
        self.load(index, At::Metadata, DiskOp::ReadFile { path });
    }

    /// A log that is all in its files is read again, without what is at or above `end`.
    pub(super) fn reload(&mut self, index: LogIndex, end: i64) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        for mut segment in std::mem::take(&mut log.segments) {
            segment.drop_tail(&mut self.pool);
            self.doomed.extend(segment.file.take());
        }
        let known = Known {
            start: log.start,
            high_watermark: log.high_watermark.min(end),
            // A cut is no loss.
            flushed: 0,
            doubtful: false,
        };
        log.ending = None;
        log.state = LogState::Loading;
        // Until it is read, nothing may be said of it that is above the cut.
        log.set_ends(log.start, log.start);
        log.located = Default::default();
        log.epochs = LeaderEpochs::default();
        log.producers = ProducerStates::default();
        log.producers_at = 0;
        log.written_to = true;
        self.start_loading(index, -1);
        if let Some(loading) = self.logs[index as usize]
            .as_deref_mut()
            .and_then(|log| log.loading.as_deref_mut())
        {
            (loading.known, loading.clean, loading.limit) = (known, false, Some(end));
        }
    }

    fn load(&mut self, index: LogIndex, at: At, op: DiskOp) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        log.loading.as_deref_mut().expect("it is being loaded").at = at;
        self.ops.issue(Task::Load { log: index }, op);
    }

    pub(super) fn load_step_done(&mut self, index: LogIndex, result: DiskResult) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if log.state != LogState::Loading || log.ending.is_some() {
            return;
        }
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let dir = log.dir.clone();
        match (loading.at, result) {
            (At::Metadata, Err(DiskError::NotFound)) => {
                self.load(index, At::List, DiskOp::List { path: dir })
            }
            (At::Metadata, Ok(DiskDone::Read(bytes))) => match parse_partition_metadata(&bytes) {
                Some(topic) if topic == log.tp.topic => {
                    self.load(index, At::List, DiskOp::List { path: dir })
                }
                Some(other) => {
                    // A deleted topic's shard is about to move it; one that nobody has is in the way for good.
                    let since = loading.since;
                    let moved = deleted_dir(&dir, other);
                    if self.now.mono < since.after_ms(MOVE_AWAY_MS) {
                        self.load_again
                            .push((self.now.mono.after_ms(MOVE_AWAY_POLL_MS), index));
                        return;
                    }
                    tracing::warn!(dir, topic = %other, "a directory of another topic is in the way");
                    let due = self
                        .now
                        .mono
                        .after_ms(u64::try_from(log.config.file_delete_delay_ms).unwrap_or(0));
                    self.deletions.insert((due, moved.clone()));
                    self.load(
                        index,
                        At::MoveAway,
                        DiskOp::Rename {
                            from: dir,
                            to: moved,
                        },
                    );
                }
                None => self.fence(
                    index,
                    Fenced::Damaged("partition.metadata cannot be read".into()),
                ),
            },
            (At::MoveAway, Ok(_) | Err(DiskError::NotFound)) => self.make_log(index),
            (At::List, Err(DiskError::NotFound)) => self.listed(index, &[]),
            (At::List, Ok(DiskDone::List(entries))) => self.listed(index, &entries),
            (At::Epochs, Ok(DiskDone::Read(bytes))) => {
                let epochs = std::str::from_utf8(&bytes)
                    .ok()
                    .and_then(LeaderEpochs::decode);
                if let Some(epochs) = epochs {
                    log.epochs = epochs;
                } else {
                    // Told by the batches themselves.
                    loading.indexed.clear();
                }
                self.ask_snapshot(index);
            }
            (At::Epochs, Err(DiskError::NotFound)) => self.ask_snapshot(index),
            (At::Snapshot { offset }, result) => self.snapshot_read(index, offset, result),
            (At::OffsetIndex, Ok(DiskDone::Read(bytes))) => {
                loading.offsets = bytes;
                let path = segment_path(&dir, loading.base, "timeindex");
                self.load(index, At::TimeIndex, DiskOp::ReadFile { path });
            }
            (At::TimeIndex, Ok(DiskDone::Read(times))) => self.index_read(index, &times),
            (At::OffsetIndex | At::TimeIndex, Err(DiskError::NotFound)) => {
                loading.indexed.remove(&loading.base);
                self.next_segment(index);
            }
            (At::Progress, Ok(DiskDone::Read(bytes))) => {
                loading.progress = Progress::decode(&bytes, self.now.wall);
                self.open_segment(index, Index::default());
            }
            (At::Progress, Err(DiskError::NotFound)) => self.open_segment(index, Index::default()),
            (At::OpenSegment, Ok(DiskDone::Opened { len })) => self.segment_opened(index, len),
            (At::Drain { back: false }, Ok(_)) => {
                let len = loading.files[&loading.base];
                let op = DiskOp::Truncate {
                    file: loading.file,
                    len,
                };
                self.load(index, At::Drain { back: true }, op);
            }
            (At::Drain { back: true }, Ok(_)) => self.ask_scan(index),
            (At::Scan, Ok(DiskDone::Read(bytes))) => self.scanned(index, &bytes),
            (At::Partial, Ok(DiskDone::Read(bytes))) => self.partial_read(index, &bytes),
            (At::Settle, Ok(_)) => self.settled(index),
            (At::Remove, Ok(_)) => self.remove_surplus(index),
            (At::Sweep, Ok(_)) => self.loaded(index),
            (at, Ok(done)) => {
                self.fence(
                    index,
                    Fenced::Damaged(format!("{at:?} was answered by {done:?}")),
                );
            }
            (at, Err(e)) => self.fence(
                index,
                Fenced::Io(format!("it cannot be opened ({at:?}): {e}")),
            ),
        }
    }

    pub(super) fn load_again_now(&mut self, index: LogIndex) {
        let Some(log) = self.logs[index as usize].as_deref() else {
            return;
        };
        if log.state == LogState::Loading && log.ending.is_none() {
            let path = format!("{}/partition.metadata", log.dir);
            self.load(index, At::Metadata, DiskOp::ReadFile { path });
        }
    }

    /// The directory, metadata and first segment of a log that is not there.
    fn make_log(&mut self, index: LogIndex) {
        let allocate = self.config.allocate_bytes_min;
        let now = self.now.wall;
        let file = self.ops.file();
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.take().expect("it is being loaded");
        if let Some(lost) = lost(&loading.known, loading.known.start) {
            self.fence(index, lost);
            return;
        }
        let base = loading.known.start;
        log.set_ends(base, base);
        log.start_durable = base;
        log.epochs.assign(loading.leader_epoch, base);
        log.epochs_dirty = true;
        log.written_to = true;
        log.segments.push_back(Segment::new(base, now));
        let steps = VecDeque::from([
            DiskOp::MakeDir {
                path: log.dir.clone(),
            },
            DiskOp::Replace {
                path: format!("{}/partition.metadata", log.dir),
                data: partition_metadata(log.tp.topic),
            },
            DiskOp::Open {
                file,
                path: segment_path(&log.dir, base, "log"),
                create: true,
                allocate: allocate.min(ceil(log.config.segment_bytes)),
            },
        ]);
        log.chains.push_back(Chain {
            steps,
            then: Then::SegmentOpened { base, file },
        });
        self.run_chain(index);
    }

    fn listed(&mut self, index: LogIndex, entries: &[DirEntry]) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let dir = log.dir.clone();
        for e in entries {
            let Some((stem, suffix)) = e.name.split_once('.') else {
                continue;
            };
            let base = (stem.len() == 20)
                .then(|| stem.parse::<i64>().ok())
                .flatten();
            match (base, suffix) {
                (Some(base), "log") => {
                    loading.files.insert(base, e.len);
                }
                (Some(base), "index") => {
                    loading.indexed.insert(base);
                }
                (Some(base), "snapshot") => {
                    loading.snapshots.insert(base);
                }
                (Some(base), progress::SUFFIX) => {
                    loading.noted.insert(base);
                }
                (_, suffix) => {
                    // What a crash left of a deletion or a replacement.
                    let leftover = ["deleted", "cleaned", "tmp"]
                        .iter()
                        .any(|s| suffix.ends_with(s));
                    if leftover {
                        let path = format!("{dir}/{}", e.name);
                        loading.trash.push(path);
                    }
                }
            }
        }
        if loading.files.is_empty() {
            self.make_log(index);
            return;
        }
        // A segment's log is taken away before its indexes.
        let orphans: Vec<i64> = loading
            .indexed
            .iter()
            .copied()
            .filter(|b| !loading.files.contains_key(b))
            .collect();
        for base in orphans {
            loading.indexed.remove(&base);
            for suffix in ["index", "timeindex"] {
                loading.trash.push(segment_path(&dir, base, suffix));
            }
        }
        let orphans = loading.noted.iter().copied();
        let orphans: Vec<i64> = orphans.filter(|b| !loading.files.contains_key(b)).collect();
        for base in orphans {
            loading.noted.remove(&base);
            loading
                .trash
                .push(segment_path(&dir, base, progress::SUFFIX));
        }
        if let Some(limit) = loading.limit {
            // Newest first, and the index of the last that stays: a crash in between must not leave a segment that is
            // shorter than it was and passes for closed.
            let first = *loading.files.keys().next().expect("there is a segment");
            loading.surplus = loading
                .files
                .split_off(&limit.max(first + 1))
                .into_keys()
                .collect();
            self.remove_surplus(index);
            return;
        }
        self.ask_epochs(index);
    }

    fn ask_epochs(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let path = format!("{}/leader-epoch-checkpoint", log.dir);
        self.load(index, At::Epochs, DiskOp::ReadFile { path });
    }

    /// Every segment but the last that has its index is closed: it is not walked.
    fn first_to_walk(loading: &Loading) -> i64 {
        let last = *loading
            .files
            .keys()
            .next_back()
            .expect("there is a segment");
        let open = loading
            .files
            .keys()
            .copied()
            .find(|b| *b == last || !loading.indexed.contains(b));
        open.expect("the last is one")
    }

    fn ask_snapshot(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        loading.walk_from = Self::first_to_walk(loading);
        // The newest that the log is sure to reach; after a clean stop the one at its end.
        let newest = if loading.clean {
            i64::MAX
        } else {
            loading.walk_from
        };
        match loading.snapshots.range(..=newest).next_back() {
            Some(&offset) => {
                let path = segment_path(&log.dir, offset, "snapshot");
                self.load(index, At::Snapshot { offset }, DiskOp::ReadFile { path });
            }
            None => {
                // Nothing to start from: all segments tell. (A log of which nothing was rolled has none.)
                loading.walk_from = *loading.files.keys().next().expect("there is a segment");
                self.start_segments(index);
            }
        }
    }

    fn snapshot_read(&mut self, index: LogIndex, offset: i64, result: DiskResult) {
        let now = self.now.wall;
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let states = match result {
            Ok(DiskDone::Read(bytes)) => ProducerStates::from_snapshot(&bytes, now),
            Ok(_) | Err(DiskError::NotFound) => None,
            Err(e) => {
                self.fence(
                    index,
                    Fenced::Io(format!("a producer snapshot cannot be read: {e}")),
                );
                return;
            }
        };
        let Some(states) = states else {
            // An older one, and more to walk.
            tracing::warn!(log = %log.dir, offset, "a producer snapshot is damaged");
            loading.snapshots.remove(&offset);
            self.ask_snapshot(index);
            return;
        };
        if !planted(Bug::LoseProducers) {
            log.producers = states;
        }
        log.producers_at = offset;
        // Batches from `offset` on are still to be told.
        let holder = loading
            .files
            .range(..=offset)
            .next_back()
            .map_or(0, |(b, _)| *b);
        loading.walk_from = loading.walk_from.min(holder);
        self.start_segments(index);
    }

    fn start_segments(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let first = *loading.files.keys().next().expect("there is a segment");
        loading.base = first;
        // The checkpoint may have been ahead of a log start that a crash took back.
        let start = loading.known.start.max(first);
        if log.epochs.entries().first().is_none_or(|e| e.start > start) {
            loading.walk_from = first;
        }
        self.next_segment(index);
    }

    /// Takes up segment `loading.base`.
    fn next_segment(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let now = self.now.wall;
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        while loading.base < loading.walk_from && loading.indexed.contains(&loading.base) {
            // Closed, and known to be whole: its index is read when someone needs it.
            let base = loading.base;
            let next = *loading
                .files
                .range(base + 1..)
                .next()
                .expect("it is not the last")
                .0;
            log.segments
                .push_back(Segment::closed(base, next, loading.files[&base], now));
            loading.base = next;
        }
        let base = loading.base;
        let is_last = loading.files.keys().next_back() == Some(&base);
        if loading.clean && is_last && loading.indexed.contains(&base) && log.producers_at >= base {
            let path = segment_path(&log.dir, base, "index");
            self.load(index, At::OffsetIndex, DiskOp::ReadFile { path });
            return;
        }
        if !loading.clean && loading.noted.contains(&base) {
            let path = segment_path(&log.dir, base, progress::SUFFIX);
            self.load(index, At::Progress, DiskOp::ReadFile { path });
            return;
        }
        self.open_segment(index, Index::default());
    }

    fn index_read(&mut self, index: LogIndex, times: &[u8]) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let decoded = Index::decode(&loading.offsets, times, loading.files[&loading.base]);
        match decoded {
            Some(decoded) => self.open_segment(index, decoded),
            None => self.open_segment(index, Index::default()),
        }
    }

    fn open_segment(&mut self, index: LogIndex, known_index: Index) {
        let now = self.now.wall;
        let file = self.ops.file();
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        loading.file = file;
        let mut segment = Segment::new(loading.base, now);
        segment.stale_index = loading.indexed.contains(&loading.base);
        segment.has_note = loading.noted.contains(&loading.base);
        if let Some(last) = known_index.times().last() {
            segment.max_timestamp = last.timestamp;
            segment.max_timestamp_last = segment.base + i64::from(last.last);
            segment.first_timestamp = known_index.times().first().map(|t| t.timestamp);
        }
        segment.index = known_index;
        let path = segment_path(&log.dir, loading.base, "log");
        log.segments.push_back(segment);
        self.load(
            index,
            At::OpenSegment,
            DiskOp::Open {
                file,
                path,
                create: false,
                allocate: 0,
            },
        );
    }

    fn segment_opened(&mut self, index: LogIndex, len: u64) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let file = loading.file;
        let s = log.segments.back_mut().expect("it was just pushed");
        s.file = Some(Rc::new(FileRef { id: file }));
        loading.files.insert(loading.base, len);
        let is_last = loading.files.keys().next_back() == Some(&loading.base);
        // From the last indexed batch on if the file can be trusted, from the start otherwise.
        let trusted = loading.clean && is_last;
        let (at, next) = match s.index.places().last() {
            Some(last) if trusted => (u64::from(last.at), None),
            _ => (0, Some(s.base)),
        };
        if !trusted || next.is_some() {
            s.index = Index::default();
        }
        let epoch = log.epochs.epoch_at(s.base - 1).unwrap_or(-1);
        let mut scan = Scan::new(at, next.unwrap_or(s.base), epoch, !is_last || trusted);
        if trusted {
            scan.epoch = -1;
        }
        let progress = loading.progress.take();
        // The note may be of a log start that a crash took back: then nobody would know the epochs below it.
        let floor = loading.known.start.max(s.base);
        let tells =
            |epochs: &LeaderEpochs| epochs.entries().first().is_some_and(|e| e.start <= floor);
        let progress = progress
            .filter(|p| !trusted && p.at <= len && (tells(&p.epochs) || tells(&log.epochs)));
        if progress.is_none() && loading.noted.remove(&loading.base) {
            // It must not be believed of what is appended from here on.
            s.has_note = false;
            let path = segment_path(&log.dir, loading.base, progress::SUFFIX);
            loading.trash.push(path);
        }
        if let Some(p) = progress {
            scan = Scan::new(p.from.0, p.from.1, -1, !is_last);
            s.index = p.index;
            s.first_timestamp = p.first_timestamp;
            (s.max_timestamp, s.max_timestamp_last) = (p.max_timestamp, p.max_timestamp_last);
            s.noted_to = p.at;
            for e in p.epochs.entries() {
                log.epochs.met(e.epoch, e.start);
            }
            let mut before = (std::mem::take(&mut log.producers), log.producers_at);
            if p.next > before.1 && !planted(Bug::LoseProducers) {
                (log.producers, log.producers_at) = (p.producers, p.next);
            } else {
                log.producers = before.0.clone();
            }
            loading.believed = Some((p.at, std::mem::take(&mut before.0), before.1));
        }
        scan.limit = loading.limit.unwrap_or(i64::MAX);
        loading.scan = Some(scan);
        // No write of a closed segment can be under way, and its length is what tells where it ends.
        let closed = !is_last && loading.indexed.contains(&loading.base);
        let drained = loading.limit.is_some();
        if trusted || closed || drained {
            self.ask_scan(index);
        } else {
            let op = DiskOp::Truncate {
                file,
                len: len + BLOCK_BYTES as u64,
            };
            self.load(index, At::Drain { back: false }, op);
        }
    }

    fn ask_scan(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let (at, len) = loading.scan.as_ref().expect("a scan is on").wanted();
        let file = loading.file;
        self.load(index, At::Scan, DiskOp::Read { file, at, len });
    }

    fn scanned(&mut self, index: LogIndex, bytes: &[u8]) {
        let now = self.now.wall;
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let interval = log.config.index_interval_bytes;
        let Log {
            loading,
            segments,
            producers,
            epochs,
            producers_at,
            ..
        } = log;
        let loading = loading.as_deref_mut().expect("it is being loaded");
        let scan = loading.scan.as_mut().expect("a scan is on");
        let segment = segments.back_mut().expect("one is being read");
        scan.feed(bytes, |at, batch| {
            segment.note_batch(at, batch, interval);
            epochs.met(batch.leader_epoch(), batch.base_offset());
            if batch.base_offset() >= *producers_at && !planted(Bug::LoseProducers) {
                producers.note_batch(batch, now);
            }
        });
        if scan.done {
            self.scan_done(index);
        } else {
            self.ask_scan(index);
        }
    }

    /// The end of this segment is known.
    fn scan_done(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let scan = loading.scan.take().expect("a scan is on");
        let s = log.segments.back_mut().expect("one is being read");
        let len = loading.files[&loading.base];
        let following = loading
            .files
            .range(loading.base + 1..)
            .next()
            .map(|(b, _)| *b);
        if loading.clean && following.is_none() && scan.end != len {
            // The stop was not as clean as its mark says: read all of it.
            tracing::warn!(log = %log.dir, "the last segment is not what a clean stop leaves");
            loading.clean = false;
            log.segments.pop_back();
            self.open_segment(index, Index::default());
            return;
        }
        if let Some((at, producers, producers_at)) = loading.believed.take()
            && scan.end < at
        {
            tracing::warn!(log = %log.dir, base = loading.base, "a segment is not what was noted of it");
            (log.producers, log.producers_at) = (producers, producers_at);
            loading.noted.remove(&loading.base);
            let path = segment_path(&log.dir, loading.base, progress::SUFFIX);
            loading.trash.push(path);
            if let Some(mut s) = log.segments.pop_back() {
                self.doomed.extend(s.file.take());
            }
            self.open_segment(index, Index::default());
            return;
        }
        s.end = scan.end;
        s.next = scan.next;
        (s.issued, s.issued_next, s.staged, s.synced) = (s.end, s.next, s.end, s.end);
        (s.direct_to, s.urge_to) = (s.end, s.end);
        if let Some(reason) = scan.stopped_by {
            loading.cut_said = Some(reason);
        }
        match following {
            // Only a compacted segment ends below its successor's base. One of which the end was never written does not
            // show it by its length, so that counts after a clean stop alone.
            Some(next) if scan.next == next || (loading.clean && scan.end == len) => {
                // Not closed properly: it is now.
                s.next = next;
                s.issued_next = next;
                s.phase = Phase::Sealed;
                s.end_times();
                s.snapshot = Some(log.producers.snapshot());
                self.settle(index);
            }
            Some(next) => {
                tracing::error!(log = %log.dir, offset = scan.next, "the log has a gap; segments from {next} on are cut off");
                loading.surplus = loading.files.split_off(&next).into_keys().collect();
                self.check_loss(index);
            }
            None => self.check_loss(index),
        }
    }

    /// The log's end is known. Was it further once?
    fn check_loss(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let s = log.segments.back().expect("one was read");
        let end = s.next;
        if end < loading.known.start && !loading.known.doubtful {
            self.restart(index);
            return;
        }
        if let Some(lost) = lost(&loading.known, end) {
            // Nothing is cut: what is left may help an operator.
            self.fence(index, lost);
            return;
        }
        if let Some(reason) = loading.cut_said {
            tracing::warn!(log = %log.dir, offset = end, reason, "bytes behind the end of the log are cut");
        }
        let at = floor(s.end);
        let op = DiskOp::Read {
            file: loading.file,
            at,
            len: (s.end - at) as u32,
        };
        self.load(index, At::Partial, op);
    }

    /// All that is left was deleted by request, and what is to follow is gone: the log begins anew at its start.
    fn restart(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let start = loading.known.start;
        tracing::warn!(log = %log.dir, start, "the log ends below its start and begins anew");
        for segment in std::mem::take(&mut log.segments) {
            self.doomed.extend(segment.file);
        }
        log.epochs = LeaderEpochs::default();
        log.producers = ProducerStates::default();
        loading.surplus = loading.files.keys().copied().collect();
        loading.restarts = true;
        self.remove_surplus(index);
    }

    fn partial_read(&mut self, index: LogIndex, bytes: &[u8]) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let s = log.segments.back_mut().expect("one was read");
        if floor(s.end) + bytes.len() as u64 != s.end {
            self.fence(
                index,
                Fenced::Damaged("the last block cannot be read again".into()),
            );
            return;
        }
        s.restore_tail(bytes, &mut self.pool);
        self.settle(index);
    }

    /// Flushes what was kept and durably erases whatever lies behind it, as far as a write can have reached.
    fn settle(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let s = log.segments.back_mut().expect("one was read");
        let file = loading.file;
        let len = loading.files[&loading.base];
        s.allocated = floor(s.end);
        if planted(Bug::ServeBeforeFlush) {
            s.allocated = floor(len);
            self.settled(index);
        } else if loading.clean && len == s.end {
            self.settled(index);
        } else if planted(Bug::ForgetTail) {
            s.allocated = floor(len);
            self.load(index, At::Settle, DiskOp::Flush { file });
        } else {
            log.written_to = true;
            let op = DiskOp::Truncate { file, len: s.end };
            self.load(index, At::Settle, op);
        }
    }

    fn settled(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        match loading.files.range(loading.base + 1..).next() {
            Some((next, _)) => {
                loading.base = *next;
                self.next_segment(index);
            }
            None => self.remove_surplus(index),
        }
    }

    fn remove_surplus(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        if let Some(base) = loading.surplus.pop() {
            // Newest first: a crash in between leaves a log with a gap again, not one that looks whole.
            if loading.noted.remove(&base) {
                // Before the segment: it must never be found beside another one of this name.
                loading.surplus.push(base);
                let path = segment_path(&log.dir, base, progress::SUFFIX);
                self.load(index, At::Remove, DiskOp::Remove { path });
                return;
            }
            for suffix in ["index", "timeindex"] {
                loading.trash.push(segment_path(&log.dir, base, suffix));
            }
            let path = segment_path(&log.dir, base, "log");
            self.load(index, At::Remove, DiskOp::Remove { path });
            return;
        }
        if loading.restarts {
            self.make_log(index);
            return;
        }
        if loading.limit.is_some() && log.segments.is_empty() {
            let last = *loading
                .files
                .keys()
                .next_back()
                .expect("there is a segment");
            if loading.indexed.remove(&last) {
                let path = segment_path(&log.dir, last, "index");
                self.load(index, At::Remove, DiskOp::Remove { path });
            } else if loading.noted.remove(&last) {
                let path = segment_path(&log.dir, last, progress::SUFFIX);
                self.load(index, At::Remove, DiskOp::Remove { path });
            } else {
                self.ask_epochs(index);
            }
            return;
        }
        self.loaded(index);
    }

    fn loaded(&mut self, index: LogIndex) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        let loading = log.loading.as_deref_mut().expect("it is being loaded");
        let end = log.segments.back().expect("one was read").next;
        let first = log.segments.front().expect("one was read").base;
        if !loading.swept {
            loading.swept = true;
            // Kafka keeps the snapshots at segment borders; the one at the end is of a clean stop.
            let bases: Vec<i64> = log.segments.iter().map(|s| s.base).collect();
            for s in &log.segments {
                if s.phase == Phase::Closed && loading.noted.contains(&s.base) {
                    let path = segment_path(&log.dir, s.base, progress::SUFFIX);
                    loading.trash.push(path);
                }
            }
            let clean_end = loading.clean.then_some(end);
            for offset in &loading.snapshots {
                if Some(*offset) != clean_end && bases.binary_search(offset).is_err() {
                    let path = segment_path(&log.dir, *offset, "snapshot");
                    loading.trash.push(path);
                }
            }
        }
        if let Some(path) = loading.trash.pop() {
            self.load(index, At::Sweep, DiskOp::Remove { path });
            return;
        }
        let loading = log.loading.take().expect("it is being loaded");
        let start = loading.known.start.clamp(first, end.max(first));
        // What boot told is durable. After a cut the start may be one that no frame told: where the journal had no place, the
        // cut left no mark either.
        let durable = match loading.limit {
            Some(_) => log.start_durable.min(start),
            None => start,
        };
        log.set_ends(start, end);
        log.start_durable = durable;
        log.start_pending |= durable < start;
        log.high_watermark = loading.known.high_watermark.clamp(start, end);
        log.epochs.truncate_end(end);
        log.epochs.truncate_start(start);
        log.producers.truncate_end(end);
        if log.epochs.assign(loading.leader_epoch, end) {
            log.epochs_dirty = true;
        }
        log.epochs_dirty |= loading.limit.is_some();
        log.state = LogState::Ready;
        self.note_progress(index);
        self.touch(index);
    }
}

impl Log {
    pub(super) fn set_ends(&mut self, start: i64, end: i64) {
        self.start = start;
        (self.appended, self.written, self.safe, self.flushed) = (end, end, end, end);
        self.high_watermark = self.high_watermark.clamp(start, end);
        self.want_flush_to = end;
    }
}

/// What a log that ends here has lost.
fn lost(known: &Known, end: i64) -> Option<Fenced> {
    let to = if known.doubtful {
        i64::MAX
    } else {
        known.flushed
    };
    (end < to).then_some(Fenced::Loss { from: end, to })
}
