//! [`Log`]: the state of one partition's log. What it does with the disk is in `commit`, `chain` and `load`.

use std::collections::VecDeque;

use super::config::Config;
use super::epochs::LeaderEpochs;
use super::ops::{Chain, LogIndex};
use super::planted::{Bug, planted};
use super::pool::Pool;
use super::producers::{BatchMeta, ProducerStates};
use super::read::Located;
use super::segment::Segment;
use crate::batch::CheckedBatch;
use crate::model::{ErrorCode, Instant, Now, TopicPartition};

/// Why a replica is out of use until its operator or a new replica helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fenced {
    /// The disk refused a read, a write or a flush; what it holds is unknown.
    Io(String),
    /// Offsets `[from..to)` were flushed once and are gone; `i64::MAX`: perhaps some were, and nobody knows how many.
    Loss { from: i64, to: i64 },
    /// What lies in the directory is not a log that could be opened.
    Damaged(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogState {
    /// Its directory is being made or read; nothing can be appended or read yet.
    Loading,
    Ready,
    /// Its end is being cut; appends are refused with a retriable error until the cut is durable.
    Cutting,
    /// It is given up and cannot be read.
    Closed,
    Fenced(Fenced),
}

/// How far the journal is: sequences of the last frame written and of the last one flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks {
    pub written: u64,
    pub flushed: u64,
}

/// On what way bytes get to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// In memory only.
    Pending,
    /// In the journal frame with this sequence.
    Journal(u64),
    /// In the segment file.
    Direct,
}

/// Neighbouring batches of one segment that share a fate; from where the one before ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub end: i64,
    pub base: i64,
    pub byte_end: u64,
    pub bytes: u64,
    /// Some batch in it may be seen only when flushed.
    pub needs_flush: bool,
    pub way: Way,
}

#[derive(Debug)]
pub struct Log {
    pub(crate) index: LogIndex,
    pub(crate) tp: TopicPartition,
    pub(crate) dir: String,
    pub(crate) config: Config,
    pub(crate) state: LogState,
    pub(crate) start: i64,
    pub(crate) appended: i64,
    pub(crate) written: i64,
    pub(crate) safe: i64,
    pub(crate) flushed: i64,
    pub(crate) high_watermark: i64,
    /// Oldest first, at least one once the state is Ready.
    pub(crate) segments: VecDeque<Segment>,
    /// What is not flushed yet, in order.
    pub(crate) extents: VecDeque<Extent>,
    /// Bytes of `extents` that are not written yet.
    pub(crate) unwritten_bytes: u64,
    pub(crate) epochs: LeaderEpochs,
    pub(crate) epochs_dirty: bool,
    pub(crate) epochs_writing: bool,
    pub(crate) producers: ProducerStates,
    /// Everything below is to be flushed as soon as it can be.
    pub(crate) want_flush_to: i64,
    pub(crate) flush_due: Option<Instant>,
    pub(crate) chains: VecDeque<Chain>,
    pub(crate) chain_running: bool,
    /// Space was refused; asked for again at this time.
    pub(crate) full_until: Option<Instant>,
    /// Number of the journal file that has an entry of this log, and the entry's place there.
    pub(crate) journal_entry: Option<(u64, usize)>,
    /// The log start is only in this journal file so far.
    pub(crate) start_in: Option<u64>,
    pub(crate) start_pending: bool,
    /// The start that outlives a loss of power.
    pub(crate) start_durable: i64,
    /// A later start, and the frame that carries it.
    pub(crate) start_frame: Option<(i64, u64)>,
    /// Of the leader that opened it.
    pub(crate) leader_epoch: i32,
    pub(crate) ending: Option<super::ending::Ending>,
    pub(crate) loading: Option<Box<super::load::Loading>>,
    /// `producers` tells of everything below this offset (while loading).
    pub(crate) producers_at: i64,
    /// Something was written since the log was opened: a clean stop has side files to write.
    pub(crate) written_to: bool,
    /// Retention waits for a segment that is being closed.
    pub(crate) retain_when_closed: bool,
    pub(crate) located: Located,
    pub(crate) in_fresh: bool,
    pub(crate) in_queue: bool,
    pub(crate) in_unflushed: bool,
    pub(crate) in_urging: bool,
    pub(crate) in_progress: bool,
}

/// How a batch is appended.
#[derive(Clone, Copy, Debug)]
pub struct AppendAs {
    pub leader_epoch: i32,
    /// The producer waits until the batch is flushed.
    pub acks_all: bool,
    pub now: Now,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    pub base_offset: i64,
    pub last_offset: i64,
    /// -1 unless the topic stamps it.
    pub log_append_time: i64,
    pub log_start: i64,
    /// Nothing was appended: these are the offsets of the first time. They may not be written yet.
    pub duplicate: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppendError {
    pub code: ErrorCode,
    pub message: String,
}

impl AppendError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> AppendError {
        AppendError {
            code,
            message: message.into(),
        }
    }
}

impl Log {
    pub(crate) fn new(index: LogIndex, tp: TopicPartition, dir: String, config: Config) -> Log {
        Log {
            index,
            tp,
            dir,
            config,
            state: LogState::Loading,
            start: 0,
            appended: 0,
            written: 0,
            safe: 0,
            flushed: 0,
            high_watermark: 0,
            segments: VecDeque::new(),
            extents: VecDeque::new(),
            unwritten_bytes: 0,
            epochs: LeaderEpochs::default(),
            epochs_dirty: false,
            epochs_writing: false,
            producers: ProducerStates::default(),
            want_flush_to: 0,
            flush_due: None,
            chains: VecDeque::new(),
            chain_running: false,
            full_until: None,
            journal_entry: None,
            start_in: None,
            start_pending: false,
            start_durable: 0,
            start_frame: None,
            leader_epoch: -1,
            ending: None,
            loading: None,
            producers_at: 0,
            written_to: false,
            retain_when_closed: false,
            located: Located::default(),
            in_fresh: false,
            in_queue: false,
            in_unflushed: false,
            in_urging: false,
            in_progress: false,
        }
    }

    pub fn tp(&self) -> TopicPartition {
        self.tp
    }

    pub fn state(&self) -> &LogState {
        &self.state
    }

    pub fn is_ready(&self) -> bool {
        self.state == LogState::Ready
    }

    /// First offset that may be read.
    pub fn start(&self) -> i64 {
        self.start
    }

    /// The start that was asked for and is on the device: what lies below does not come back.
    pub fn start_durable(&self) -> i64 {
        self.start_durable
    }

    /// The log end offset: behind the last batch in memory.
    pub fn appended(&self) -> i64 {
        self.appended
    }

    /// Everything below is written: it survives a killed process.
    pub fn written(&self) -> i64 {
        self.written
    }

    /// Everything below is written, and flushed where a producer asked for acks=all: what may be seen.
    pub fn safe(&self) -> i64 {
        self.safe
    }

    /// Everything below survives a power loss.
    pub fn flushed(&self) -> i64 {
        self.flushed
    }

    /// As last told by [`Log::set_high_watermark`], or as recovered.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// Noted in the journal with the log's next append and in the checkpoint of a clean stop.
    pub fn set_high_watermark(&mut self, offset: i64) {
        self.high_watermark = offset;
    }

    pub fn size_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.end).sum()
    }

    pub fn segments_count(&self) -> usize {
        self.segments.len()
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn epochs(&self) -> &LeaderEpochs {
        &self.epochs
    }

    pub fn producers(&self) -> &ProducerStates {
        &self.producers
    }

    /// The disk is full: batches from this offset on wait for space. The shard answers their producers with
    /// KAFKA_STORAGE_ERROR; they are not taken back, and become visible when there is space.
    pub fn stalled_from(&self) -> Option<i64> {
        self.full_until?;
        let waiting = self.segments.iter().find(|s| s.issued < s.end)?;
        Some(waiting.issued_next)
    }

    pub(crate) fn active(&mut self) -> &mut Segment {
        self.segments
            .back_mut()
            .expect("a log that takes appends has a segment")
    }

    pub(crate) fn segment(&self, base: i64) -> Option<&Segment> {
        let i = self.segments.binary_search_by_key(&base, |s| s.base).ok()?;
        self.segments.get(i)
    }

    pub(crate) fn segment_mut(&mut self, base: i64) -> Option<&mut Segment> {
        let i = self.segments.binary_search_by_key(&base, |s| s.base).ok()?;
        self.segments.get_mut(i)
    }

    pub(crate) fn extent_written(&self, e: &Extent, marks: Marks) -> bool {
        if planted(Bug::AcknowledgeBeforeWritten) {
            return true;
        }
        let staged = || self.segment(e.base).is_none_or(|s| s.staged >= e.byte_end);
        match e.way {
            Way::Pending => false,
            Way::Journal(sequence) => sequence <= marks.written || staged(),
            Way::Direct => staged(),
        }
    }

    pub(crate) fn extent_flushed(&self, e: &Extent, marks: Marks) -> bool {
        if planted(Bug::SkipFlush) {
            return self.extent_written(e, marks);
        }
        let synced = || self.segment(e.base).is_none_or(|s| s.synced >= e.byte_end);
        match e.way {
            Way::Pending => false,
            Way::Journal(sequence) => sequence <= marks.flushed || synced(),
            Way::Direct => synced(),
        }
    }

    /// Moves the ends as far as what is done allows. A flush counts as a prefix only: an acks=all batch in the journal
    /// behind an unflushed direct write would be cut off by a power loss. Returns whether an end moved.
    pub(crate) fn advance(&mut self, marks: Marks) -> bool {
        let before = (self.written, self.safe, self.flushed);
        while let Some(e) = self.extents.front() {
            if !self.extent_flushed(e, marks) {
                break;
            }
            self.flushed = e.end;
            self.extents.pop_front();
        }
        let (mut written, mut safe) = (self.flushed, self.flushed);
        let mut waits = false;
        let mut unwritten = 0;
        let mut gap = false;
        for e in &self.extents {
            gap |= !self.extent_written(e, marks);
            if gap {
                unwritten += e.bytes;
                continue;
            }
            written = e.end;
            waits |= e.needs_flush;
            if !waits {
                safe = e.end;
            }
        }
        self.unwritten_bytes = unwritten;
        // Merging extents may hide how far the ends were; they never go back.
        self.written = self.written.max(written);
        self.safe = self.safe.max(safe);
        before != (self.written, self.safe, self.flushed)
    }

    /// Gives pending extents of the segment up to its end a way; neighbours whose first part is written are merged.
    pub(crate) fn assign(&mut self, base: i64, way: Way, marks: Marks) {
        let mut i = self.extents.len();
        while i > 0 && self.extents[i - 1].way == Way::Pending {
            i -= 1;
        }
        while i < self.extents.len() && self.extents[i].base == base {
            let e = Extent {
                way,
                ..self.extents[i]
            };
            let merge = i.checked_sub(1).map(|j| self.extents[j]).is_some_and(|p| {
                let alike = match (p.way, way) {
                    (Way::Journal(_), Way::Journal(_)) | (Way::Direct, Way::Direct) => true,
                    (Way::Pending | Way::Journal(_) | Way::Direct, _) => false,
                };
                alike
                    && p.base == base
                    && p.needs_flush == e.needs_flush
                    // What a flush is wanted for keeps its own end, or the flush would never be seen to reach it.
                    && p.end > self.want_flush_to
                    && (p.way == way || self.extent_written(&p, marks))
            });
            if merge {
                self.extents.remove(i);
                let p = &mut self.extents[i - 1];
                let unwritten = if p.way == way { p.bytes } else { 0 };
                *p = Extent {
                    bytes: unwritten + e.bytes,
                    ..e
                };
            } else {
                self.extents[i] = e;
                i += 1;
            }
        }
    }

    /// Is a new segment due before this batch? Kafka's rules (LogSegment.shouldRoll).
    pub(crate) fn should_roll(&self, batch: &CheckedBatch<'_>, now: Now) -> bool {
        let Some(active) = self.segments.back() else {
            return false;
        };
        if active.is_empty() {
            return false;
        }
        let config = &self.config;
        let last_offset = self.appended + i64::from(batch.last_offset_delta());
        let limit_ms = config.segment_ms.saturating_sub(config.segment_jitter_ms);
        let age_ms = match active.first_timestamp {
            Some(first) => batch.max_timestamp().saturating_sub(first),
            None => now.wall.saturating_sub(active.created),
        };
        active.end + batch.len() as u64 > config.segment_bytes
            || age_ms > limit_ms
            || active.index.bytes() + 12 >= config.index_bytes_max
            || last_offset - active.base > i64::from(i32::MAX)
    }

    /// Copies the batch into the tail, stamped, and moves the log's end. Returns how many tail blocks became full.
    pub(crate) fn put(
        &mut self,
        batch: &CheckedBatch<'_>,
        how: &AppendAs,
        pool: &mut Pool,
    ) -> usize {
        let base_offset = if planted(Bug::ReuseOffset) && self.appended > 0 {
            self.appended - 1
        } else {
            self.appended
        };
        let delta = i64::from(batch.last_offset_delta());
        let last_offset = base_offset + delta;
        let len = batch.len();
        if self.epochs.assign(how.leader_epoch, base_offset) {
            self.epochs_dirty = true;
        }
        let interval = self.config.index_interval_bytes;
        let needs_flush = (how.acks_all && !self.config.write_caching)
            || last_offset + 1 - self.flushed >= self.config.flush_messages;
        let segment = self
            .segments
            .back_mut()
            .expect("a log that takes appends has a segment");
        let at = segment.end;
        let header = batch.header(base_offset, how.leader_epoch);
        let payload = batch.payload();
        let filled = segment.put(&header, payload.len(), pool, how.now.mono)
            + segment.put(payload, 0, pool, how.now.mono);
        segment.next = last_offset + 1;
        segment.note_timestamps(base_offset, last_offset, batch.max_timestamp());
        let place = segment.place(base_offset, last_offset, at);
        segment.index_batch(place, len as u32, interval);
        let e = Extent {
            end: last_offset + 1,
            base: segment.base,
            byte_end: segment.end,
            bytes: len as u64,
            needs_flush,
            way: Way::Pending,
        };
        match self.extents.back_mut() {
            Some(last)
                if last.way == Way::Pending
                    && last.base == e.base
                    && last.needs_flush == needs_flush =>
            {
                *last = Extent {
                    bytes: last.bytes + e.bytes,
                    ..e
                };
            }
            _ => self.extents.push_back(e),
        }
        self.unwritten_bytes += e.bytes;
        self.appended = last_offset + 1;
        self.written_to = true;
        if needs_flush {
            self.want_flush_to = self.appended;
        }
        if batch.has_producer_id() {
            let meta = BatchMeta {
                first_sequence: batch.base_sequence(),
                last_sequence: batch.last_sequence(),
                last_offset,
                offset_delta: batch.last_offset_delta(),
                timestamp: batch.max_timestamp(),
            };
            self.producers.update(
                batch.producer_id(),
                batch.producer_epoch(),
                meta,
                how.now.wall,
            );
        }
        filled
    }

    /// What must hold at any time between turns.
    pub(crate) fn check(&self) {
        let name = &self.dir;
        assert!(
            self.flushed <= self.safe,
            "{name}: flushed {} <= safe {}",
            self.flushed,
            self.safe
        );
        assert!(
            self.safe <= self.written,
            "{name}: safe {} <= written {}",
            self.safe,
            self.written
        );
        assert!(
            self.written <= self.appended,
            "{name}: written {} <= appended {}",
            self.written,
            self.appended
        );
        assert!(
            self.start <= self.appended,
            "{name}: start {} <= appended {}",
            self.start,
            self.appended
        );
        if self.loading.is_some() || self.state == LogState::Loading {
            return;
        }
        let mut next = None;
        for s in &self.segments {
            assert!(
                next.is_none_or(|n| n == s.base),
                "{name}: segment {} follows the one before",
                s.base
            );
            next = Some(s.next);
            assert!(
                s.synced <= s.staged && s.staged <= s.issued && s.issued <= s.end,
                "{name}: order of {s:?}"
            );
            let writes = s.phase == super::segment::Phase::Active || s.staged < s.end;
            assert!(
                !writes || s.memory_start() <= super::segment::floor(s.staged),
                "{name}: the tail covers what the next write takes"
            );
        }
        if let Some(next) = next {
            assert_eq!(
                next, self.appended,
                "{name}: the last segment ends where the log does"
            );
        }
        let mut end = self.flushed;
        for e in &self.extents {
            assert!(
                e.end > end || planted(Bug::ReuseOffset),
                "{name}: extents in order"
            );
            end = e.end;
        }
        assert!(
            self.extents.is_empty() || end == self.appended,
            "{name}: extents reach the end"
        );
    }
}
