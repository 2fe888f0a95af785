//! Reads are planned without I/O: which memory and which bytes of which file hold what is asked for.
//!
//! The exact place of a batch is known in memory, by the sparse index, or from an earlier read of an index interval;
//! when it is not, the plan says so, the store reads the interval, and the plan is made again.

use std::collections::VecDeque;

use super::index::Place;
use super::op::Span;
use super::partition::Log;
use super::segment::Segment;
use crate::batch::HEADER_BYTES;

/// A file span is no longer than this, so that one answer does not pull a whole segment in.
const PLAN_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// One read of an index interval, bytes.
pub(crate) const INTERVAL_BYTES: u32 = 16 * 1024;
/// Places remembered per log.
const LOCATED_MAX: usize = 16;

#[derive(Debug)]
pub enum ReadPlan {
    /// Whole batches from the one that holds the offset, in order. `last_offset` is the exclusive end: the next offset
    /// to ask for; when a file is read up to an index entry of an older run it is not known exactly and is a lower bound.
    Spans {
        spans: Vec<Span>,
        bytes: u32,
        first_offset: i64,
        last_offset: i64,
    },
    /// Nothing in `[offset..end)`, or the first batch is larger than `bytes_max`.
    Empty,
    OutOfRange,
    /// What lies where the batch should be is none.
    Corrupt,
    /// The place is being read; plan again when the log is named by `take_progress`.
    NeedsRead,
}

/// A batch whose place is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub base_offset: i64,
    pub last_offset: i64,
    pub at: u64,
    pub len: u64,
}

/// What reads of index intervals told, and what is wanted next.
#[derive(Debug, Default)]
pub(crate) struct Located {
    /// (segment base, batch)
    found: VecDeque<(i64, Found)>,
    pub wanted: Vec<Interval>,
    pub reading: Vec<Interval>,
    /// Closed segments whose indexes are to be read.
    pub wanted_indexes: Vec<i64>,
    pub peeks: super::time::Peeks,
    /// Where no batch was found though there should be one.
    bad: Option<(i64, u64)>,
}

/// Bytes to be read from `at` on of segment `base`, to find the batch that holds `offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interval {
    pub base: i64,
    pub at: u64,
    pub offset: i64,
    /// From this byte on the file was not read for certain: the segment's memory began here when the read was asked for.
    pub file_end: u64,
}

impl Located {
    fn remember(&mut self, base: i64, found: Found) {
        if self.found.len() == LOCATED_MAX {
            self.found.pop_front();
        }
        self.found.push_back((base, found));
    }

    /// The batch that holds `offset`, or the nearest known one before it.
    fn nearest(&self, base: i64, offset: i64) -> Option<Found> {
        self.found
            .iter()
            .filter(|(b, f)| *b == base && f.base_offset <= offset)
            .map(|(_, f)| *f)
            .max_by_key(|f| f.base_offset)
    }

    pub fn want(&mut self, segment: &Segment, at: u64, offset: i64) {
        let it = Interval {
            base: segment.base,
            at,
            offset,
            file_end: segment.memory_start(),
        };
        if !self.wanted.contains(&it) && !self.reading.contains(&it) {
            self.wanted.push(it);
        }
    }

    pub fn want_index(&mut self, base: i64) {
        if !self.wanted_indexes.contains(&base) {
            self.wanted_indexes.push(base);
        }
    }

    pub fn wants(&self) -> bool {
        !self.wanted.is_empty() || !self.wanted_indexes.is_empty() || !self.peeks.wanted.is_empty()
    }

    /// The log ends: nothing is planned any more.
    pub fn forget_wishes(&mut self) {
        self.wanted.clear();
        self.wanted_indexes.clear();
        self.peeks.wanted.clear();
    }

    /// The segment is no more.
    pub fn forget(&mut self, base: i64) {
        self.found.retain(|(b, _)| *b != base);
    }
}

/// Header fields of a batch that is known to be whole and right.
pub(crate) fn header_at(at: u64, h: &[u8]) -> Option<Found> {
    let i64_at = |i: usize| i64::from_be_bytes(h[i..i + 8].try_into().expect("eight bytes"));
    let i32_at = |i: usize| i32::from_be_bytes(h[i..i + 4].try_into().expect("four bytes"));
    if h.len() < HEADER_BYTES {
        return None;
    }
    let len = u64::try_from(i32_at(8)).ok()? + 12;
    let delta = i32_at(23);
    if len < HEADER_BYTES as u64 || delta < 0 {
        return None;
    }
    let base_offset = i64_at(0);
    Some(Found {
        base_offset,
        last_offset: base_offset.checked_add(i64::from(delta))?,
        at,
        len,
    })
}

enum Locate {
    At(Found),
    /// Read here, then ask again.
    Read(u64),
    /// Read the segment's index, then ask again.
    Index,
    /// The segment ends before it: a file that somebody took away lies between.
    Beyond,
    Corrupt,
}

impl Log {
    /// Plans a read of `[offset..end)`; `end` is the high watermark, the last stable offset or the log end. With
    /// `at_least_one` the first batch is given even if it alone is larger than `bytes_max`.
    pub(crate) fn plan(
        &mut self,
        offset: i64,
        end: i64,
        bytes_max: u32,
        at_least_one: bool,
    ) -> ReadPlan {
        if offset < self.start || offset > self.appended {
            return ReadPlan::OutOfRange;
        }
        let end = end.min(self.appended);
        if offset >= end || (bytes_max == 0 && !at_least_one) {
            return ReadPlan::Empty;
        }
        let mut i = self.segments.partition_point(|s| s.base <= offset) - 1;
        let mut offset = offset;
        let first = loop {
            match locate(&self.segments[i], &self.located, offset) {
                Locate::At(found) => break found,
                Locate::Read(at) => {
                    self.located.want(&self.segments[i], at, offset);
                    return ReadPlan::NeedsRead;
                }
                Locate::Index => {
                    self.located.want_index(self.segments[i].base);
                    return ReadPlan::NeedsRead;
                }
                // As Kafka does it, reading goes on with what there is.
                Locate::Beyond if i + 1 < self.segments.len() => {
                    i += 1;
                    offset = self.segments[i].base;
                    if offset >= end {
                        return ReadPlan::Empty;
                    }
                }
                Locate::Beyond | Locate::Corrupt => return ReadPlan::Corrupt,
            }
        };
        let segment = &self.segments[i];
        let bytes_max = u64::from(bytes_max).min(PLAN_BYTES_MAX);
        if first.len > bytes_max && !at_least_one {
            return ReadPlan::Empty;
        }
        // Where the bytes for `end` begin.
        let (limit, limit_offset) = if end >= segment.next {
            (segment.end, segment.next)
        } else {
            match locate(segment, &self.located, end) {
                Locate::At(found) => (found.at, found.base_offset),
                Locate::Read(at) => {
                    self.located.want(segment, at, end);
                    return ReadPlan::NeedsRead;
                }
                Locate::Index => {
                    self.located.want_index(segment.base);
                    return ReadPlan::NeedsRead;
                }
                Locate::Beyond => (segment.end, segment.next),
                Locate::Corrupt => return ReadPlan::Corrupt,
            }
        };
        if limit <= first.at {
            return ReadPlan::Empty;
        }
        let (to, last_offset) = cut(segment, first, limit, limit_offset, bytes_max);
        let Some(spans) = spans(segment, first.at, to) else {
            // A closed segment whose file is not open: reading anything of it opens it.
            self.located.want(segment, first.at, offset);
            return ReadPlan::NeedsRead;
        };
        ReadPlan::Spans {
            spans,
            bytes: (to - first.at) as u32,
            first_offset: first.base_offset,
            last_offset,
        }
    }

    /// The interval came back.
    pub(crate) fn interval_read(&mut self, interval: Interval, bytes: &[u8]) {
        let Log {
            segments, located, ..
        } = self;
        let Interval {
            base,
            at,
            offset,
            file_end,
        } = interval;
        let Ok(i) = segments.binary_search_by_key(&base, |s| s.base) else {
            return;
        };
        let segment = &mut segments[i];
        let mut bytes = bytes[..bytes.len().min((file_end - at) as usize)].to_vec();
        let unmoved = segment.memory_start() == file_end;
        if unmoved && at + bytes.len() as u64 == file_end {
            // A header that straddles the border.
            let more = (segment.end - file_end).min(HEADER_BYTES as u64);
            segment.pieces(file_end, file_end + more, |piece| {
                bytes.extend_from_slice(piece)
            });
        }
        let mut from = 0usize;
        let mut nearest = None;
        while let Some(found) = bytes
            .get(from..)
            .and_then(|h| header_at(at + from as u64, h))
        {
            if found.at >= segment.end || found.base_offset < base {
                break;
            }
            segment.index.learn(Place {
                base: segment.relative(found.base_offset),
                last: segment.relative(found.last_offset),
                at: found.at as u32,
            });
            nearest = Some(found);
            if found.last_offset >= offset {
                break;
            }
            from += usize::try_from(found.len).unwrap_or(usize::MAX / 2);
        }
        match nearest {
            Some(found) => located.remember(base, found),
            None if unmoved => located.bad = Some((base, at)),
            None => {}
        }
    }
}

/// The batch of the segment that holds `offset`.
fn locate(segment: &Segment, located: &Located, offset: i64) -> Locate {
    if segment.index_on_disk {
        return Locate::Index;
    }
    if let Some(found) = indexed(segment, offset) {
        return Locate::At(found);
    }
    let relative = segment.relative(offset);
    let entry = segment.index.before(relative);
    let mut at = entry.map_or(0, |p| u64::from(p.at));
    if let Some(known) = located.nearest(segment.base, offset)
        && known.at >= at
    {
        if known.last_offset >= offset {
            return Locate::At(known);
        }
        at = known.at + known.len;
    }
    let memory = segment.memory_start();
    if at < memory {
        return if located.bad == Some((segment.base, at)) {
            Locate::Corrupt
        } else {
            Locate::Read(at)
        };
    }
    let mut h = [0; HEADER_BYTES];
    while at + HEADER_BYTES as u64 <= segment.end {
        segment.copy(at, &mut h);
        match header_at(at, &h) {
            Some(found) if found.last_offset >= offset => return Locate::At(found),
            Some(found) => at += found.len,
            None => return Locate::Corrupt,
        }
    }
    match at < segment.end {
        true => Locate::Corrupt,
        false => Locate::Beyond,
    }
}

/// The batch that holds `offset`, if the index alone tells.
fn indexed(segment: &Segment, offset: i64) -> Option<Found> {
    let (place, next) = segment.index.exact(segment.relative(offset))?;
    let end = match next {
        Some(next) => u64::from(next.at),
        None => (place.last + 1 == segment.relative(segment.next)).then_some(segment.end)?,
    };
    Some(Found {
        base_offset: segment.base + i64::from(place.base),
        last_offset: segment.base + i64::from(place.last),
        at: u64::from(place.at),
        len: end - u64::from(place.at),
    })
}

/// Where a plan from `first` of at most `bytes_max` ends: on a batch's border, with the offset there.
fn cut(
    segment: &Segment,
    first: Found,
    limit: u64,
    limit_offset: i64,
    bytes_max: u64,
) -> (u64, i64) {
    let wish = first.at.saturating_add(bytes_max.max(first.len));
    if wish >= limit {
        return (limit, limit_offset);
    }
    // In memory the last whole batch before the wish is a few headers away.
    let entry = segment
        .index
        .at_or_before_byte(wish)
        .filter(|p| u64::from(p.at) > first.at);
    let mut at = entry.map_or(first.at, |p| u64::from(p.at));
    let mut offset = entry.map_or(first.base_offset, |p| {
        if p.base == Place::UNKNOWN {
            0
        } else {
            segment.base + i64::from(p.base)
        }
    });
    let mut h = [0; HEADER_BYTES];
    while at >= segment.memory_start() && at + HEADER_BYTES as u64 <= limit {
        segment.copy(at, &mut h);
        let Some(found) = header_at(at, &h) else {
            break;
        };
        if at + found.len > wish {
            offset = found.base_offset;
            break;
        }
        at += found.len;
        offset = found.last_offset + 1;
    }
    if at <= first.at {
        (first.at + first.len, first.last_offset + 1)
    } else {
        (at, offset.max(first.last_offset + 1))
    }
}

/// Memory and file spans of `[from..to)`; `None`: the file is not open.
fn spans(segment: &Segment, from: u64, to: u64) -> Option<Vec<Span>> {
    let memory = segment.memory_start();
    let mut spans = Vec::with_capacity(2);
    if from < memory {
        let file = segment.file.as_ref()?;
        let end = to.min(memory);
        spans.push(Span::File {
            file: file.clone(),
            at: from,
            len: (end - from) as u32,
            more: memory - end,
        });
    }
    if to > memory {
        segment.spans(from.max(memory), to, |span| spans.push(Span::Memory(span)));
    }
    Some(spans)
}
