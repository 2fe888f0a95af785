//! Look-ups by time, planned like reads: what is not in memory is asked for, and the caller comes again.
//!
//! Kafka's rules: the first segment whose largest timestamp reaches the target, in it the first record at or after the
//! log start that does. Nothing at or above `end` is found.

use std::collections::VecDeque;

use bytes::Bytes;

use super::partition::Log;
use super::read::header_at;
use super::segment::{Phase, Segment};
use super::store::Store;
use crate::batch::{Batch, Codecs, HEADER_BYTES};
use crate::model::TopicPartition;

/// Bytes read at a time while batches are only passed over.
const PEEK_BYTES: u64 = 64 * 1024;
/// Pieces of files kept per log while a look-up goes on.
const PEEKS_MAX: usize = 4;
/// Look-ups whose progress a log remembers.
const PROGRESS_MAX: usize = 16;
/// Indexes asked for at a time.
const INDEXES_MAX: usize = 32;
/// Where a batch has its largest timestamp.
const MAX_TIMESTAMP_AT: usize = 35;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimePlan {
    Found {
        offset: i64,
        timestamp: i64,
    },
    NotFound,
    /// Something is being read; ask again when the log is named by `take_progress`.
    NeedsRead,
}

/// Pieces of segment files that look-ups asked for.
#[derive(Debug, Default)]
pub(crate) struct Peeks {
    kept: VecDeque<(i64, u64, Bytes)>,
    pub wanted: Vec<(i64, u64, u32)>,
    pub reading: Vec<(i64, u64, u32)>,
    /// This piece came back short.
    bad: Option<(i64, u64, u32)>,
    /// (target, segment base, byte): nothing before this byte of the segment reaches the target.
    progress: VecDeque<(i64, i64, u64)>,
    newest: Option<Newest>,
}

/// A segment that is walked for its largest timestamp, because its index is lost or tells of a record below the log start.
#[derive(Clone, Copy, Debug)]
struct Newest {
    base: i64,
    /// The log start when the walk began.
    start: i64,
    /// Everything before this byte is known.
    at: u64,
    /// Timestamp and offset of the first record with the largest one.
    best: Option<(i64, i64)>,
}

impl Peeks {
    pub fn keep(&mut self, wanted: (i64, u64, u32), bytes: Bytes) {
        if bytes.len() < wanted.2 as usize {
            self.bad = Some(wanted);
        }
        if self.kept.len() == PEEKS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((wanted.0, wanted.1, bytes));
    }

    /// `[at..at + len)` of the segment's file.
    fn get(&self, base: i64, at: u64, len: u64) -> Option<&[u8]> {
        self.kept.iter().rev().find_map(|(b, from, bytes)| {
            let skip = usize::try_from(at.checked_sub(*from)?).ok()?;
            bytes
                .get(skip..)?
                .get(..usize::try_from(len).ok()?)
                .filter(|_| *b == base)
        })
    }

    /// Asks for a piece; false: it is known to be missing.
    fn want(&mut self, base: i64, at: u64, len: u64) -> bool {
        let it = (base, at, u32::try_from(len).unwrap_or(u32::MAX));
        if self.bad == Some(it) {
            return false;
        }
        if !self.wanted.contains(&it) && !self.reading.contains(&it) {
            self.wanted.push(it);
        }
        true
    }

    fn start(&self, target: i64, base: i64) -> u64 {
        self.progress
            .iter()
            .filter(|(t, b, _)| (*t, *b) == (target, base))
            .map(|(_, _, at)| *at)
            .max()
            .unwrap_or(0)
    }

    fn note(&mut self, target: i64, base: i64, at: u64) {
        self.progress.retain(|(t, b, _)| (*t, *b) != (target, base));
        if self.progress.len() == PROGRESS_MAX {
            self.progress.pop_front();
        }
        self.progress.push_back((target, base, at));
    }

    fn done(&mut self, target: i64) {
        self.kept.clear();
        self.progress.retain(|(t, ..)| *t != target);
    }
}

impl Store {
    /// The first record at or after the log start and below `end` whose timestamp is at least `timestamp`.
    pub fn offset_for_timestamp(
        &mut self,
        tp: TopicPartition,
        timestamp: i64,
        end: i64,
    ) -> TimePlan {
        self.look_up(tp, end, |log, codecs| log.find_time(timestamp, codecs))
    }

    /// The first record with the largest timestamp of the log, if it is below `end`.
    pub fn offset_of_max_timestamp(&mut self, tp: TopicPartition, end: i64) -> TimePlan {
        self.look_up(tp, end, Log::find_max_time)
    }

    fn look_up(
        &mut self,
        tp: TopicPartition,
        end: i64,
        find: impl FnOnce(&mut Log, &mut Codecs) -> TimePlan,
    ) -> TimePlan {
        let Some(index) = self.index_of(tp) else {
            return TimePlan::NotFound;
        };
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("named logs exist");
        if !log.is_ready() {
            return TimePlan::NotFound;
        }
        match find(log, &mut self.codecs) {
            TimePlan::Found { offset, .. } if offset >= end => TimePlan::NotFound,
            TimePlan::NeedsRead => {
                self.touch(index);
                TimePlan::NeedsRead
            }
            plan => plan,
        }
    }
}

impl Log {
    fn find_time(&mut self, target: i64, codecs: &mut Codecs) -> TimePlan {
        for i in self.first_segment()..self.segments.len() {
            let s = &self.segments[i];
            if s.is_empty() {
                continue;
            }
            if !s.max_known {
                self.want_max_timestamps(i);
                return TimePlan::NeedsRead;
            }
            if s.max_timestamp < target {
                continue;
            }
            match self.find_in(i, target, codecs) {
                TimePlan::NotFound => {}
                plan => {
                    if plan != TimePlan::NeedsRead {
                        self.located.peeks.done(target);
                    }
                    return plan;
                }
            }
        }
        self.located.peeks.done(target);
        TimePlan::NotFound
    }

    fn find_max_time(&mut self, codecs: &mut Codecs) -> TimePlan {
        let first = self.first_segment();
        if let Some(i) = (first..self.segments.len())
            .find(|i| !self.segments[*i].max_known && !self.segments[*i].is_empty())
        {
            self.want_max_timestamps(i);
            return TimePlan::NeedsRead;
        }
        let mut largest: (i64, Place) = (-1, Place::Nowhere);
        for i in first..self.segments.len() {
            let s = &self.segments[i];
            if s.is_empty() {
                continue;
            }
            // The first segment is the only one that may have its newest record below the log start.
            let told = s.max_timestamp != Segment::MAX_LOST && s.max_timestamp_last >= self.start;
            let one = if told {
                (s.max_timestamp, Place::Segment(i))
            } else {
                match self.walk_newest(i, codecs) {
                    Some(Some((timestamp, offset))) => (timestamp, Place::Offset(offset)),
                    Some(None) => continue,
                    None => return TimePlan::NeedsRead,
                }
            };
            if one.0 > largest.0 {
                largest = one;
            }
        }
        match largest {
            (_, Place::Nowhere) => TimePlan::NotFound,
            (timestamp, Place::Offset(offset)) => TimePlan::Found { offset, timestamp },
            (timestamp, Place::Segment(i)) => {
                let mut plan = self.find_in(i, timestamp, codecs);
                // It is in the batch that holds the log start, and before it.
                if plan == TimePlan::NotFound && self.segments[i].base < self.start {
                    plan = match self.walk_newest(i, codecs) {
                        Some(Some((timestamp, offset))) => TimePlan::Found { offset, timestamp },
                        Some(None) => TimePlan::NotFound,
                        None => TimePlan::NeedsRead,
                    };
                }
                if plan != TimePlan::NeedsRead {
                    self.located.peeks.done(timestamp);
                }
                plan
            }
        }
    }

    /// The largest timestamp of a segment at or above the log start, and the offset of the first record that has it. `None`: something
    /// is being read.
    fn walk_newest(&mut self, i: usize, codecs: &mut Codecs) -> Option<Option<(i64, i64)>> {
        let Log {
            segments,
            located,
            start,
            ..
        } = self;
        let s = &mut segments[i];
        if s.index_on_disk {
            located.want_index(s.base);
            return None;
        }
        let peeks = &mut located.peeks;
        let known = peeks.newest.take();
        let known = known.filter(|w| (w.base, w.start) == (s.base, *start));
        let mut walk = known.unwrap_or_else(|| Newest {
            base: s.base,
            start: *start,
            at: {
                let from = s.relative((*start).max(s.base));
                s.index.before(from).map_or(0, |place| u64::from(place.at))
            },
            best: None,
        });
        let mut copy = Vec::new();
        while walk.at + HEADER_BYTES as u64 <= s.end {
            let ahead = PEEK_BYTES.min(s.end - walk.at);
            let header = bytes_of(s, peeks, walk.at, HEADER_BYTES as u64, ahead, &mut copy);
            let Some(header) = header else {
                let waits = wait(peeks) == TimePlan::NeedsRead;
                peeks.newest = Some(walk).filter(|_| waits);
                return (!waits).then_some(walk.best);
            };
            let Some(found) = header_at(walk.at, header) else {
                break;
            };
            let may_be = walk.best.is_none_or(|(best, _)| newest_of(header) > best);
            if may_be && found.last_offset >= *start && walk.at + found.len <= s.end {
                let Some(bytes) = bytes_of(s, peeks, walk.at, found.len, found.len, &mut copy)
                else {
                    let waits = wait(peeks) == TimePlan::NeedsRead;
                    peeks.newest = Some(walk).filter(|_| waits);
                    return (!waits).then_some(walk.best);
                };
                let (offset, timestamp) = newest_in_batch(bytes, *start, codecs).unzip();
                if let (Some(offset), Some(timestamp)) = (offset, timestamp)
                    && walk.best.is_none_or(|(best, _)| timestamp > best)
                {
                    walk.best = Some((timestamp, offset));
                }
            }
            walk.at += found.len;
        }
        if s.max_timestamp == Segment::MAX_LOST
            && s.phase == Phase::Closed
            && *start <= s.base
            && let Some((timestamp, offset)) = walk.best
        {
            (s.max_timestamp, s.max_timestamp_last) = (timestamp, offset);
        }
        Some(walk.best)
    }

    /// The segment that holds the log start.
    fn first_segment(&self) -> usize {
        self.segments
            .partition_point(|s| s.base <= self.start)
            .saturating_sub(1)
    }

    /// Asks for what closed segments know, from this one on.
    fn want_max_timestamps(&mut self, from: usize) {
        let unknown: Vec<i64> = self
            .segments
            .range(from..)
            .filter(|s| !s.max_known)
            .take(INDEXES_MAX)
            .map(|s| s.base)
            .collect();
        for base in unknown {
            self.located.want_index(base);
        }
    }

    /// The first record of one segment.
    fn find_in(&mut self, i: usize, target: i64, codecs: &mut Codecs) -> TimePlan {
        let Log {
            segments,
            located,
            start,
            ..
        } = self;
        let s = &segments[i];
        if s.index_on_disk {
            located.want_index(s.base);
            return TimePlan::NeedsRead;
        }
        let from = s.index.before_time(target).map_or(0, |t| t.last);
        let from = from.max(s.relative((*start).max(s.base)));
        let place = s.index.before(from).map_or(0, |p| u64::from(p.at));
        let peeks = &mut located.peeks;
        let mut at = place.max(peeks.start(target, s.base));
        let mut copy = Vec::new();
        while at + HEADER_BYTES as u64 <= s.end {
            let ahead = PEEK_BYTES.min(s.end - at);
            let Some(header) = bytes_of(s, peeks, at, HEADER_BYTES as u64, ahead, &mut copy) else {
                peeks.note(target, s.base, at);
                return wait(peeks);
            };
            let Some(found) = header_at(at, header) else {
                return TimePlan::NotFound;
            };
            if newest_of(header) >= target && found.last_offset >= *start && at + found.len <= s.end
            {
                let Some(bytes) = bytes_of(s, peeks, at, found.len, found.len, &mut copy) else {
                    peeks.note(target, s.base, at);
                    return wait(peeks);
                };
                if let Some(plan) = first_in_batch(bytes, target, *start, codecs) {
                    return plan;
                }
            }
            at += found.len;
        }
        TimePlan::NotFound
    }
}

/// Where the largest timestamp is.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    Segment(usize),
    Offset(i64),
}

/// The largest timestamp that a batch's header tells.
fn newest_of(header: &[u8]) -> i64 {
    let bytes = &header[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8];
    i64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Offset and timestamp of the first record with the largest timestamp of those at or above `start`.
fn newest_in_batch(bytes: &[u8], start: i64, codecs: &mut Codecs) -> Option<(i64, i64)> {
    let (batch, _) = Batch::view(bytes).ok()?;
    let records = batch.records_with(codecs).ok()?;
    records
        .iter()
        .filter_map(Result::ok)
        .filter(|r| r.offset >= start)
        .map(|r| (r.offset, r.timestamp))
        .reduce(|best, one| if one.1 > best.1 { one } else { best })
        .filter(|(_, timestamp)| *timestamp >= 0)
}

fn wait(peeks: &Peeks) -> TimePlan {
    if peeks.wanted.is_empty() && peeks.reading.is_empty() {
        // The file is shorter than it was: reads will say so.
        TimePlan::NotFound
    } else {
        TimePlan::NeedsRead
    }
}

/// `[at..at + len)` of the segment, from memory, from what was read, or both. `None`: `ahead` bytes are asked for.
fn bytes_of<'a>(
    s: &Segment,
    peeks: &'a mut Peeks,
    at: u64,
    len: u64,
    ahead: u64,
    copy: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    let memory = s.memory_start();
    copy.clear();
    if at < memory {
        let in_file = len.min(memory - at);
        if peeks.get(s.base, at, in_file).is_none() {
            peeks.want(s.base, at, ahead.max(len).min(memory - at));
            return None;
        }
        let bytes = peeks.get(s.base, at, in_file)?;
        if in_file == len {
            return Some(bytes);
        }
        copy.extend_from_slice(bytes);
    }
    s.pieces(at.max(memory), at + len, |piece| {
        copy.extend_from_slice(piece);
    });
    Some(copy)
}

fn first_in_batch(bytes: &[u8], target: i64, start: i64, codecs: &mut Codecs) -> Option<TimePlan> {
    let (batch, _) = Batch::view(bytes).ok()?;
    let records = batch.records_with(codecs).ok()?;
    let record = records
        .iter()
        .filter_map(Result::ok)
        .find(|r| r.offset >= start && r.timestamp >= target)?;
    Some(TimePlan::Found {
        offset: record.offset,
        timestamp: record.timestamp,
    })
}
