//! The end of a turn: which bytes go where, in which write, and what is flushed.

use super::frame::{self, FrameHeader, FrameWriter, PartHeader, PartKind};
use super::journal::Held;
use super::op::{DiskError, DiskOp, DiskResult, OpId};
use super::ops::{LogIndex, Task};
use super::partition::{Fenced, Log, LogState, Way};
use super::planted::{Bug, planted};
use super::segment::{Phase, Segment, ceil, floor};
use super::store::Store;
use crate::model::{Instant, Now};

/// Blocks that one direct write takes at most (an iovec has 1024 entries).
const WRITE_SPANS_MAX: usize = 512;
/// Logs looked at to see whether a frame beside another is worth it.
const GATHERED_LOGS_MAX: usize = 64;
/// Tail blocks looked at per commit when the cache is over its budget.
const EVICT_TRIES: usize = 64;

/// One log's part of the frame being built.
struct Planned {
    log: LogIndex,
    kind: PartKind,
    base: i64,
    from: u64,
    to: u64,
}

impl Store {
    /// The end of a turn: at most one journal frame for all small appends, one direct write per bulk log, and the
    /// flushes that someone waits for. Also hands over whatever other operations the turn's calls asked for.
    pub fn commit(&mut self, now: Now, out: &mut Vec<(OpId, DiskOp)>) {
        self.now = now;
        while !self.fresh.is_empty() {
            for index in std::mem::take(&mut self.fresh) {
                if let Some(log) = self.logs[index as usize].as_deref_mut() {
                    log.in_fresh = false;
                    self.pump(index);
                }
            }
        }
        self.commit_frame();
        self.journal.flush_if_wanted(&mut self.ops);
        if self.pool.live_bytes() > self.config.tail_cache_bytes {
            self.evict();
        }
        self.ops.hand_over(out, self.now.mono);
    }

    /// Whatever is due for one log: gives pending bytes a way, writes, flushes, allocates, closes.
    pub(super) fn pump(&mut self, index: LogIndex) {
        let marks = self.journal.marks;
        let journal_unavailable = self.journal.is_unavailable();
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        match log.state {
            LogState::Ready | LogState::Cutting if !log.is_deleting() => {}
            LogState::Ready
            | LogState::Cutting
            | LogState::Loading
            | LogState::Closed
            | LogState::Fenced(_) => {
                return self.end_step(index);
            }
        }
        let threshold = u64::from(self.config.direct_threshold_bytes);
        let draining = log.is_draining();
        let mut for_journal = log.start_pending;
        let mut i = log.segments.len();
        while i > 0 && log.segments[i - 1].phase != Phase::Closed {
            i -= 1;
        }
        for i in i..log.segments.len() {
            let s = &mut log.segments[i];
            let pending = s.end - s.issued;
            if pending == 0 {
                continue;
            }
            if s.file.is_none() || ceil(s.end) > s.allocated {
                // What follows it waits too: ways are given in order.
                break;
            }
            if pending >= threshold || s.phase == Phase::Sealed || journal_unavailable || draining {
                s.direct_to = s.end;
                s.issued = s.end;
                s.issued_next = s.next;
                let base = s.base;
                log.assign(base, Way::Direct, marks);
            } else {
                for_journal = true;
            }
        }
        if for_journal && !log.in_queue {
            log.in_queue = true;
            self.queue.push_back(index);
        }
        self.pump_writes(index);
        self.pump_flushes(index);
        self.pump_space(index);
        self.pump_progress(index);
        self.pump_reads(index);
        self.pump_chains(index);
        self.end_step(index);
    }

    fn pump_writes(&mut self, index: LogIndex) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        // Nothing is tried again after an error, and one that is deleted may be closing its files: whoever urges looks at neither.
        if log.is_deleting() || matches!(log.state, LogState::Fenced(_)) {
            return;
        }
        let wants_flush = log.want_flush_to > log.flushed && !planted(Bug::SkipFlush);
        let draining = log.is_draining();
        for s in log
            .segments
            .iter_mut()
            .rev()
            .take_while(|s| s.phase != Phase::Closed)
        {
            if s.writing || s.file.is_none() {
                continue;
            }
            let direct = s.direct_to > s.staged;
            let mut to = s.direct_to.max(s.urge_to.min(s.issued));
            if s.phase == Phase::Sealed || draining {
                to = to.max(s.issued);
            } else if s.issued - s.staged >= u64::from(self.config.destage_bytes) {
                to = to.max(floor(s.issued));
            }
            if to <= s.staged {
                continue;
            }
            if !direct {
                if self.destages >= self.config.destage_writes_max {
                    if !log.in_urging {
                        log.in_urging = true;
                        self.urging.push_back(index);
                    }
                    continue;
                }
                self.destages += 1;
            }
            let at = floor(s.staged);
            let mut data = Vec::new();
            s.spans(at, to, |span| data.push(span));
            if data.len() > WRITE_SPANS_MAX {
                // Whole blocks, all of them full: the rest follows when this is written.
                data.truncate(WRITE_SPANS_MAX);
                to = at + data.iter().map(|d| d.len() as u64).sum::<u64>();
            }
            if ceil(to) >= s.end {
                s.clear_padding();
            }
            let sync = s.phase == Phase::Sealed
                || draining
                || s.urge_to > s.synced
                || (direct && wants_flush);
            let file = s.file.as_ref().expect("checked above").id;
            s.writing = true;
            s.writing_sync = sync;
            let task = Task::SegmentWrite {
                log: index,
                base: s.base,
                to,
                sync,
                off_path: !direct,
            };
            self.ops.issue(
                task,
                DiskOp::Write {
                    file,
                    at,
                    data,
                    sync,
                },
            );
        }
    }

    fn pump_flushes(&mut self, index: LogIndex) {
        let marks = self.journal.marks;
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if matches!(log.state, LogState::Fenced(_)) {
            return;
        }
        let draining = log.is_draining();
        for s in log
            .segments
            .iter_mut()
            .rev()
            .take_while(|s| s.phase != Phase::Closed)
        {
            let due = s.synced < s.staged
                && !s.flushing
                && !s.writing
                && (s.phase == Phase::Sealed || draining || s.urge_to > s.synced);
            if due {
                s.flushing = true;
                let file = s.file.as_ref().expect("what is staged is in a file").id;
                let task = Task::SegmentFlush {
                    log: index,
                    base: s.base,
                    to: s.staged,
                };
                self.ops.issue(task, DiskOp::Flush { file });
            }
        }
        if log.want_flush_to <= log.flushed || planted(Bug::SkipFlush) {
            return;
        }
        // Everything up to there has to be flushed, whatever it itself asked for: only a prefix survives.
        let mut from = log.flushed;
        for i in 0..log.extents.len() {
            if from >= log.want_flush_to {
                break;
            }
            let e = log.extents[i];
            from = e.end;
            if !log.extent_written(&e, marks) || log.extent_flushed(&e, marks) {
                continue;
            }
            match e.way {
                Way::Pending => {}
                Way::Journal(sequence) => self.journal.want_flushed(sequence),
                Way::Direct => {
                    let Some(s) = log.segment_mut(e.base) else {
                        continue;
                    };
                    let under_way = s.flushing || (s.writing && s.writing_sync);
                    if !under_way {
                        s.flushing = true;
                        let file = s.file.as_ref().expect("what is staged is in a file").id;
                        let task = Task::SegmentFlush {
                            log: index,
                            base: s.base,
                            to: s.staged,
                        };
                        self.ops.issue(task, DiskOp::Flush { file });
                    }
                }
            }
        }
    }

    /// Asks for more space while half of the last step is left, so that appends seldom wait for it.
    fn pump_space(&mut self, index: LogIndex) {
        let (min, max) = (
            self.config.allocate_bytes_min,
            self.config.allocate_bytes_max,
        );
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if log.full_until.is_some() {
            return;
        }
        let cap = ceil(log.config.segment_bytes);
        for s in log
            .segments
            .iter_mut()
            .rev()
            .take_while(|s| s.phase != Phase::Closed)
        {
            let Some(file) = &s.file else { continue };
            // What is all in its file needs no space, and growing it would falsify the length of one that was closed before.
            let sealed = s.phase == Phase::Sealed && s.staged == s.end;
            if s.allocating || sealed || s.phase == Phase::Closing {
                continue;
            }
            let step = s.allocated.clamp(min, max);
            let needed = ceil(s.end);
            let ahead = if s.phase == Phase::Active {
                step / 2
            } else {
                0
            };
            let limit = cap.max(needed);
            if needed + ahead <= s.allocated || s.allocated >= limit {
                continue;
            }
            let to = ceil((s.allocated.max(needed) + step).min(limit));
            s.allocating = true;
            // Longer than its data from now on, also if nothing is ever appended: a clean stop has to cut it.
            log.written_to = true;
            let task = Task::SegmentAllocate {
                log: index,
                base: s.base,
                to,
            };
            self.ops.issue(task, DiskOp::Allocate { file: file.id, to });
        }
    }

    // -- the frame

    fn commit_frame(&mut self) {
        if self.queue.is_empty() || self.failed.is_some() || !self.may_start_frame() {
            return;
        }
        let first = self.queue.iter().find_map(|index| {
            let (_, _, from, to) = self.logs[*index as usize].as_deref()?.part()?;
            Some(frame::HEADER_BYTES + frame::PART_BYTES + (to - from) as usize)
        });
        let threshold = self.config.direct_threshold_bytes as usize;
        let needed = first
            .unwrap_or(0)
            .min(frame::HEADER_BYTES + frame::PART_BYTES + threshold);
        let room = self.journal.room(needed, &self.config, &mut self.ops);
        if room == 0 {
            if self.journal.in_flight.is_empty() {
                self.make_room();
            }
            return;
        }
        if self.journal.is_squeezed() {
            // Early: what holds the oldest file may need frames itself.
            self.release_journal();
        }
        let threshold = u64::from(self.config.direct_threshold_bytes);
        let mut planned = Vec::with_capacity(self.queue.len());
        let mut size = frame::HEADER_BYTES;
        let mut sync = self.journal.want_flush;
        let mut direct = Vec::new();
        while let Some(&index) = self.queue.front() {
            let Some(log) = self.logs[index as usize].as_deref_mut() else {
                self.queue.pop_front();
                continue;
            };
            let ready = log.wants_mark() || (log.is_ready() && !log.is_deleting());
            let part = log.part().filter(|_| ready);
            let Some((kind, base, from, to)) = part else {
                log.in_queue = false;
                self.queue.pop_front();
                continue;
            };
            let bytes = to - from;
            if bytes >= threshold {
                // It grew while the last frame was under way.
                log.in_queue = false;
                self.queue.pop_front();
                direct.push(index);
                continue;
            }
            let more = frame::PART_BYTES + bytes as usize;
            if size + more > room {
                if planned.is_empty() && kind == PartKind::Data {
                    // The rest of the file is too small for this one alone: it must not hold all others up.
                    log.in_queue = false;
                    self.queue.pop_front();
                    log.force_direct(self.journal.marks);
                    direct.push(index);
                    continue;
                }
                break;
            }
            size += more;
            let first_offset = log.part_offset(kind, base);
            sync |= log.want_flush_to > first_offset || log.start_pending || kind == PartKind::Mark;
            log.in_queue = false;
            self.queue.pop_front();
            planned.push(Planned {
                log: index,
                kind,
                base,
                from,
                to,
            });
        }
        for index in direct {
            self.pump(index);
        }
        if !planned.is_empty() {
            self.write_frame(planned, size, sync && !planted(Bug::SkipFlush));
        }
    }

    /// Whether a frame may start now, beside those in flight: what small appends gather meanwhile makes the next one cheaper.
    fn may_start_frame(&self) -> bool {
        let in_flight = self.journal.in_flight.len();
        if in_flight == 0 {
            return true;
        }
        if in_flight >= self.config.frames_in_flight_max as usize || !self.journal.may_start() {
            return false;
        }
        let mut bytes = 0;
        for &index in self.queue.iter().take(GATHERED_LOGS_MAX) {
            let part = self.logs[index as usize].as_deref().and_then(Log::part);
            bytes += part.map_or(0, |(_, _, from, to)| to - from);
            if bytes >= u64::from(self.config.frame_beside_bytes_min) {
                return true;
            }
        }
        false
    }

    fn write_frame(&mut self, planned: Vec<Planned>, size: usize, sync: bool) {
        let header = FrameHeader {
            generation: self.journal.generation,
            sequence: self.journal.next_sequence(),
            flushed: self.journal.marks.flushed,
            live_from: self.journal.live_from(),
            shard: u32::from(self.journal.shard().0),
            at: self.journal.at(),
        };
        let block = self.journal.spare(size);
        let logs = &self.logs;
        block.append_with(size, |bytes| {
            let mut writer = FrameWriter::new(bytes);
            for p in &planned {
                let log = logs[p.log as usize].as_deref().expect("planned above");
                let part = PartHeader {
                    kind: p.kind,
                    tp: log.tp,
                    leader_epoch: log.epochs.latest().map_or(-1, |e| e.epoch),
                    segment_base: p.base,
                    at: p.from,
                    first_offset: log.part_offset(p.kind, p.base),
                    flushed: log.flushed,
                    high_watermark: log.high_watermark,
                    log_start: log.start,
                };
                writer.part(&part, (p.to - p.from) as u32);
                if p.from < p.to {
                    let segment = log.segment(p.base).expect("planned above");
                    segment.pieces(p.from, p.to, |piece| writer.data(piece));
                }
            }
            writer.finish(&header);
        });
        let marks = self.journal.marks;
        let mut indexes = Vec::with_capacity(planned.len());
        for p in planned {
            let log = self.logs[p.log as usize]
                .as_deref_mut()
                .expect("planned above");
            indexes.push(p.log);
            // A cut must be told for as long as the generation file tells of a longer log.
            let cut = p.kind == PartKind::Mark && log.is_ending_by_cut();
            if log.start_pending || cut {
                log.start_pending = false;
                log.start_in = Some(self.journal.note_start(p.log));
                log.start_frame = Some((log.start, header.sequence));
                self.starts_under_way.push(p.log);
            }
            if p.kind == PartKind::Data {
                let held = Held {
                    log: p.log,
                    base: p.base,
                    byte_end: p.to,
                };
                self.journal.note(held, &mut log.journal_entry);
                let segment = log.segment_mut(p.base).expect("planned above");
                segment.issued = segment.end;
                segment.issued_next = segment.next;
                log.assign(p.base, Way::Journal(header.sequence), marks);
            }
            if p.kind == PartKind::Mark {
                log.mark_issued(header.sequence);
            }
        }
        if sync {
            self.journal.want_flush = false;
        }
        self.journal.write(block, indexes, sync, &mut self.ops);
    }

    // -- completions

    pub(super) fn allocated(&mut self, index: LogIndex, base: i64, to: u64, result: DiskResult) {
        let retry = self.now.mono.after_ms(self.config.allocate_retry_ms);
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let Some(s) = log.segment_mut(base) else {
            return;
        };
        s.allocating = false;
        match result {
            Ok(_) => {
                s.allocated = s.allocated.max(to);
                self.pump(index);
            }
            Err(DiskError::NoSpace) => self.set_full(index, retry),
            Err(e) => self.fence(index, Fenced::Io(format!("space cannot be allocated: {e}"))),
        }
    }

    pub(super) fn set_full(&mut self, index: LogIndex, retry: Instant) {
        if let Some(log) = self.logs[index as usize].as_deref_mut() {
            tracing::warn!(log = %log.dir, "no space left on the device");
            if log.full_until.is_none() {
                self.full.push(index);
            }
            log.full_until = Some(retry);
            self.note_progress(index);
        }
    }

    pub(super) fn segment_written(&mut self, task: Task, result: DiskResult) {
        let Task::SegmentWrite {
            log: index,
            base,
            to,
            sync,
            off_path,
        } = task
        else {
            unreachable!("only segment writes come here");
        };
        if off_path {
            self.destages -= 1;
        }
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let fenced = matches!(log.state, LogState::Fenced(_));
        let Some(s) = log.segment_mut(base) else {
            return;
        };
        s.writing = false;
        s.writing_sync = false;
        if fenced {
            // Behind an error a success proves nothing: the kernel tells of a failed flush once.
            return;
        }
        if let Err(e) = result {
            self.fence(
                index,
                Fenced::Io(format!("segment {base} cannot be written: {e}")),
            );
            return;
        }
        s.staged = s.staged.max(to);
        if sync {
            s.synced = s.synced.max(to);
        }
        if planted(Bug::SkipFlush) {
            s.synced = s.staged;
        }
        self.advance(index);
        self.pump(index);
        self.release_journal();
    }

    pub(super) fn segment_flushed(
        &mut self,
        index: LogIndex,
        base: i64,
        to: u64,
        result: DiskResult,
    ) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let fenced = matches!(log.state, LogState::Fenced(_));
        let Some(s) = log.segment_mut(base) else {
            return;
        };
        s.flushing = false;
        if fenced {
            return;
        }
        if let Err(e) = result {
            self.fence(
                index,
                Fenced::Io(format!("segment {base} cannot be flushed: {e}")),
            );
            return;
        }
        // Only what was written before the flush was issued: `to`.
        let to = if planted(Bug::CountFlushForLaterWrite) {
            s.staged
        } else {
            to
        };
        s.synced = s.synced.max(to);
        self.advance(index);
        self.pump(index);
        self.release_journal();
    }

    // -- giving journal files back

    /// The next frame has no place: the logs that hold the oldest file write what it holds to their segments.
    fn make_room(&mut self) {
        if self.journal.is_stuck() {
            // Straight to the segments.
            for index in std::mem::take(&mut self.queue) {
                if let Some(log) = self.logs[index as usize].as_deref_mut() {
                    log.in_queue = false;
                    if log.wants_mark() {
                        self.marked(index);
                        continue;
                    }
                    log.force_direct(self.journal.marks);
                    self.pump(index);
                }
            }
            return;
        }
        self.release_journal();
        if self.journal.wants_release_frame() {
            self.write_frame(Vec::new(), frame::HEADER_BYTES, true);
        } else if let Some(starts) = self.journal.last_starts() {
            // Small state is all that holds the oldest file. The frame that carries it anew says too that it is given back.
            let planned: Vec<Planned> = starts
                .into_iter()
                .filter_map(|index| {
                    let log = self.logs[index as usize].as_deref_mut()?;
                    log.start_pending = true;
                    let base = log.segments.back().map_or(log.start, |s| s.base);
                    let (kind, from, to) = (PartKind::State, 0, 0);
                    Some(Planned {
                        log: index,
                        kind,
                        base,
                        from,
                        to,
                    })
                })
                .collect();
            self.journal.release_oldest();
            let size = frame::HEADER_BYTES + planned.len() * frame::PART_BYTES;
            self.write_frame(planned, size, true);
        }
    }

    /// Gives back the oldest file if nothing needs it any more, and asks for it if the next one will be missed.
    pub(super) fn release_journal(&mut self) {
        let squeezed = self.journal.is_squeezed();
        let logs = &mut self.logs;
        while let Some(oldest) = self.journal.oldest() {
            let is_out_of_use = |i: LogIndex| match logs[i as usize].as_deref() {
                Some(log) => matches!(log.state, LogState::Fenced(_)),
                None => self.unsaved.contains_key(&i),
            };
            while let Some(held) = oldest.parts.get(oldest.done) {
                let log = logs[held.log as usize].as_deref();
                if is_out_of_use(held.log) && !log.is_some_and(|log| log.has_synced(held)) {
                    oldest.kept.push(held.log);
                } else if log.is_some_and(|log| !log.has_synced(held)) {
                    break;
                }
                oldest.done += 1;
            }
            let number = oldest.number;
            let (kept, starts) = (&mut oldest.kept, &mut oldest.starts);
            starts.retain(|i| {
                let here = match logs[*i as usize].as_deref() {
                    Some(log) => log.start_in == Some(number),
                    None => is_out_of_use(*i),
                };
                if here && is_out_of_use(*i) {
                    kept.push(*i);
                    return false;
                }
                here
            });
            oldest.kept.retain(|i| is_out_of_use(*i));
            if oldest.done == oldest.parts.len()
                && oldest.starts.is_empty()
                && oldest.kept.is_empty()
            {
                self.journal.release_oldest();
                continue;
            }
            if squeezed && oldest.done == oldest.parts.len() && !oldest.kept.is_empty() {
                self.read_journal();
                break;
            }
            if squeezed && !oldest.urged {
                oldest.urged = true;
                for held in &oldest.parts[oldest.done..] {
                    let Some(log) = logs[held.log as usize].as_deref_mut() else {
                        continue;
                    };
                    if let Some(s) = log.segment_mut(held.base) {
                        s.urge_to = s.urge_to.max(held.byte_end);
                    }
                    if !log.in_urging {
                        log.in_urging = true;
                        self.urging.push_back(held.log);
                    }
                }
                for &index in &oldest.starts {
                    let Some(log) = logs[index as usize].as_deref_mut() else {
                        continue;
                    };
                    log.start_pending = true;
                    if !log.in_queue {
                        log.in_queue = true;
                        self.queue.push_back(index);
                    }
                }
            }
            break;
        }
        self.pump_urging();
    }

    pub(super) fn pump_urging(&mut self) {
        while self.destages < self.config.destage_writes_max
            && let Some(index) = self.urging.pop_front()
        {
            if let Some(log) = self.logs[index as usize].as_deref_mut() {
                log.in_urging = false;
                self.touch_or_pump(index);
            }
        }
    }

    fn touch_or_pump(&mut self, index: LogIndex) {
        self.pump_writes(index);
        self.pump_flushes(index);
    }

    // -- memory

    /// Gives up the oldest full blocks that are in their files; those that are not are written first.
    fn evict(&mut self) {
        for _ in 0..EVICT_TRIES {
            if self.pool.live_bytes() <= self.config.tail_cache_bytes {
                return;
            }
            let Some((index, base)) = self.full_blocks.pop_front() else {
                return;
            };
            let Some(log) = self.logs[index as usize].as_deref_mut() else {
                continue;
            };
            let Some(s) = log.segment_mut(base) else {
                continue;
            };
            if s.evict(&mut self.pool) || !s.has_tail() {
                continue;
            }
            s.urge_to = s.urge_to.max(floor(s.issued));
            self.full_blocks.push_back((index, base));
            self.pump_writes(index);
        }
    }
}

impl Log {
    /// What the log has for the next frame: (kind, segment, from byte, to byte).
    fn part(&self) -> Option<(PartKind, i64, u64, u64)> {
        if self.wants_mark() {
            return Some((
                PartKind::Mark,
                self.segments.back().map_or(self.appended, |s| s.base),
                0,
                0,
            ));
        }
        let pending = self.next_pending().filter(|s| s.phase == Phase::Active);
        match pending {
            Some(s) => Some((PartKind::Data, s.base, s.issued, s.end)),
            None if self.start_pending => Some((
                PartKind::State,
                self.segments.back().map_or(self.start, |s| s.base),
                0,
                0,
            )),
            None => None,
        }
    }

    /// The segment with the oldest bytes that have no way yet, if it can take them.
    fn next_pending(&self) -> Option<&Segment> {
        let open = |s: &&Segment| s.phase != Phase::Closed;
        let first = self
            .segments
            .iter()
            .rev()
            .take_while(open)
            .filter(|s| s.issued < s.end)
            .last();
        first.filter(|s| s.file.is_some() && ceil(s.end) <= s.allocated)
    }

    fn part_offset(&self, kind: PartKind, base: i64) -> i64 {
        match kind {
            PartKind::Mark => self.mark_offset(),
            PartKind::Data | PartKind::State => {
                self.segment(base).map_or(self.appended, |s| s.issued_next)
            }
        }
    }

    /// Is what `held` names flushed in the log's segments?
    fn has_synced(&self, held: &Held) -> bool {
        for s in self.segments.iter().rev() {
            if s.base > held.base || s.phase == Phase::Closed {
                continue;
            }
            let needed = if s.base == held.base {
                held.byte_end
            } else {
                s.end
            };
            if s.synced < needed {
                return false;
            }
        }
        true
    }

    fn force_direct(&mut self, marks: super::partition::Marks) {
        let Some(base) = self.next_pending().map(|s| s.base) else {
            return;
        };
        let Some(s) = self.segment_mut(base) else {
            return;
        };
        s.direct_to = s.end;
        s.issued = s.end;
        s.issued_next = s.next;
        self.assign(base, Way::Direct, marks);
    }
}
