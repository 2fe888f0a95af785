//! One segment: its file, how much of it is where, its index, and the part of it that is in memory.
//!
//! ```text
//! bytes of the file   0 ......... synced ..... staged ..... issued ..... end ..... allocated
//!                     flushed      |written     |handed to   |appended   |space on disk
//!                     in the file  |to the file |a write     |in memory
//! ```
//! `issued` may be in the journal only. The tail in memory covers at least `[floor(staged)..end)`.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::block::{Block, MemSpan};
use super::index::{Index, Place};
use super::op::FileRef;
use super::pool::{BLOCK_BYTES_MAX, Pool};
use crate::batch::Batch;
use crate::model::limit::BLOCK_BYTES;
use crate::model::{Instant, WallMs};

/// Memory that holds `[at..at + block.len())` of the segment's file.
#[derive(Debug)]
struct TailBlock {
    at: u64,
    block: Rc<Block>,
}

/// Where a segment is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Takes appends.
    Active,
    /// Rolled; what remains in memory is on its way to the file.
    Sealed,
    /// Its closing chain (exact length, indexes, snapshot) is on its way.
    Closing,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub base: i64,
    /// The offset behind the last batch.
    pub next: i64,
    pub phase: Phase,
    pub file: Option<Rc<FileRef>>,
    pub allocated: u64,
    pub allocating: bool,
    pub end: u64,
    pub issued: u64,
    /// The offset at byte `issued`.
    pub issued_next: i64,
    pub staged: u64,
    pub synced: u64,
    /// The whole of `[staged..direct_to)` goes straight to the file.
    pub direct_to: u64,
    /// The journal wants its file back: `[..urge_to)` must be flushed in this one.
    pub urge_to: u64,
    /// A write of this file is in flight. One at a time: no block is written twice at once.
    pub writing: bool,
    /// That write flushes the file too.
    pub writing_sync: bool,
    pub flushing: bool,
    pub read_opening: bool,
    tail: VecDeque<TailBlock>,
    pub index: Index,
    /// `index` is to be read from disk before it tells anything.
    pub index_on_disk: bool,
    pub index_reading: bool,
    pub first_timestamp: Option<i64>,
    /// -1: no batch has one.
    pub max_timestamp: i64,
    /// What is said of the largest timestamp is true; a closed segment of an earlier run has it in its index.
    pub max_known: bool,
    /// Last offset of the batch with the largest timestamp.
    pub max_timestamp_last: i64,
    pub created: WallMs,
    /// An index file of an earlier clean stop lies beside it and no longer tells all.
    pub stale_index: bool,
    /// How far it is good, to be written when that is flushed.
    pub note: Option<super::progress::Note>,
    /// That is being written.
    pub noting: bool,
    /// Such a file lies beside it.
    pub has_note: bool,
    /// The end when the last note was taken.
    pub noted_to: u64,
    /// Producer state at `next`, taken when the segment was rolled.
    pub snapshot: Option<Bytes>,
    block_bytes: usize,
    block_born: Instant,
}

pub(crate) fn floor(at: u64) -> u64 {
    at - at % BLOCK_BYTES as u64
}

pub(crate) fn ceil(at: u64) -> u64 {
    at.next_multiple_of(BLOCK_BYTES as u64)
}

impl Segment {
    /// The largest timestamp that stands for "lost with the index": above all others, so that nothing is deleted or passed over by it.
    pub const MAX_LOST: i64 = i64::MAX;

    pub fn new(base: i64, now: WallMs) -> Segment {
        Segment {
            base,
            next: base,
            phase: Phase::Active,
            file: None,
            allocated: 0,
            allocating: false,
            end: 0,
            issued: 0,
            issued_next: base,
            staged: 0,
            synced: 0,
            direct_to: 0,
            urge_to: 0,
            writing: false,
            writing_sync: false,
            flushing: false,
            read_opening: false,
            tail: VecDeque::new(),
            index: Index::default(),
            index_on_disk: false,
            index_reading: false,
            first_timestamp: None,
            max_timestamp: -1,
            max_known: true,
            max_timestamp_last: -1,
            created: now,
            stale_index: false,
            note: None,
            noting: false,
            has_note: false,
            noted_to: 0,
            snapshot: None,
            block_bytes: BLOCK_BYTES,
            block_born: Instant(0),
        }
    }

    /// A closed one of an earlier run; its index is on disk.
    pub fn closed(base: i64, next: i64, bytes: u64, now: WallMs) -> Segment {
        Segment {
            next,
            phase: Phase::Closed,
            end: bytes,
            issued: bytes,
            issued_next: next,
            staged: bytes,
            synced: bytes,
            allocated: bytes,
            index_on_disk: true,
            max_known: false,
            ..Segment::new(base, now)
        }
    }

    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Nothing more comes: the last entry of Kafka's time index is the largest timestamp, which look-ups take for the
    /// segment's.
    pub fn end_times(&mut self) {
        if self.max_timestamp >= 0 {
            let newest = (self.max_timestamp, self.relative(self.max_timestamp_last));
            self.index.append_time(newest);
        }
    }

    pub fn relative(&self, offset: i64) -> u32 {
        (offset - self.base) as u32
    }

    /// Appends to the tail. `more` tells how many bytes of the same batch follow, for the size of a new block.
    /// Returns how many blocks became full.
    pub fn put(&mut self, mut bytes: &[u8], more: usize, pool: &mut Pool, now: Instant) -> usize {
        let mut filled = 0;
        while !bytes.is_empty() {
            let room = self.tail.back().map_or(0, |t| t.block.room());
            if room == 0 {
                self.grow(bytes.len() + more, pool, now);
                continue;
            }
            let (now_in, rest) = bytes.split_at(room.min(bytes.len()));
            let last = self.tail.back().expect("a block with room");
            last.block.append(now_in);
            filled += usize::from(last.block.room() == 0);
            self.end += now_in.len() as u64;
            bytes = rest;
        }
        filled
    }

    /// A new block at the end: large for logs that fill theirs quickly, 4 KiB for idle ones.
    fn grow(&mut self, coming: usize, pool: &mut Pool, now: Instant) {
        assert!(
            self.end.is_multiple_of(BLOCK_BYTES as u64),
            "blocks are filled before the next begins"
        );
        let age_us = now.since_us(self.block_born);
        if !self.tail.is_empty() && age_us < 100_000 {
            self.block_bytes = (self.block_bytes * 2).min(BLOCK_BYTES_MAX / 4);
        } else if age_us > 1_000_000 {
            self.block_bytes = (self.block_bytes / 2).max(BLOCK_BYTES);
        }
        let block = pool.take(self.block_bytes.max(coming.min(BLOCK_BYTES_MAX)));
        self.block_born = now;
        self.tail.push_back(TailBlock {
            at: self.end,
            block,
        });
    }

    /// The bytes that a reopened file has in its last, partial block: the tail must hold them before it grows.
    pub fn restore_tail(&mut self, partial: &[u8], pool: &mut Pool) {
        assert!(self.tail.is_empty() && floor(self.end) + partial.len() as u64 == self.end);
        if !partial.is_empty() {
            let block = pool.take(BLOCK_BYTES);
            block.append(partial);
            self.tail.push_back(TailBlock {
                at: floor(self.end),
                block,
            });
        }
    }

    /// From this byte on the segment is in memory.
    pub fn memory_start(&self) -> u64 {
        self.tail.front().map_or(self.end, |t| t.at)
    }

    fn block_of(&self, at: u64) -> usize {
        self.tail.partition_point(|t| t.at <= at) - 1
    }

    /// Frozen memory of `[from..to)`, block by block.
    pub fn spans(&self, from: u64, to: u64, mut each: impl FnMut(MemSpan)) {
        assert!(
            self.memory_start() <= from && to <= self.end,
            "only the tail is in memory"
        );
        let mut at = from;
        let mut i = if from < to { self.block_of(from) } else { 0 };
        while at < to {
            let t = &self.tail[i];
            let end = to.min(t.at + t.block.len() as u64);
            each(MemSpan::new(
                &t.block,
                (at - t.at) as usize,
                (end - t.at) as usize,
            ));
            at = end;
            i += 1;
        }
    }

    /// The bytes of `[from..to)`, piece by piece.
    pub fn pieces(&self, from: u64, to: u64, mut each: impl FnMut(&[u8])) {
        assert!(
            self.memory_start() <= from && to <= self.end,
            "only the tail is in memory"
        );
        let mut at = from;
        let mut i = if from < to { self.block_of(from) } else { 0 };
        while at < to {
            let t = &self.tail[i];
            let end = to.min(t.at + t.block.len() as u64);
            each(&t.block.bytes()[(at - t.at) as usize..(end - t.at) as usize]);
            at = end;
            i += 1;
        }
    }

    pub fn copy(&self, from: u64, out: &mut [u8]) {
        let mut filled = 0;
        self.pieces(from, from + out.len() as u64, |piece| {
            out[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        });
    }

    /// What follows the end in its block goes to disk with the next write: it must be zeros.
    pub fn clear_padding(&self) {
        if let Some(last) = self.tail.back() {
            last.block.clear_padding();
        }
    }

    /// Gives up the oldest block if it is wholly in the file; whether it did.
    pub fn evict(&mut self, pool: &mut Pool) -> bool {
        let keep_from = if self.phase == Phase::Closed {
            self.staged
        } else {
            floor(self.staged)
        };
        let Some(first) = self.tail.front() else {
            return false;
        };
        let end = first.at + first.block.len() as u64;
        if end > keep_from || (self.phase != Phase::Closed && first.block.room() > 0) {
            return false;
        }
        pool.give(self.tail.pop_front().expect("there is one").block);
        true
    }

    pub fn drop_tail(&mut self, pool: &mut Pool) {
        for t in self.tail.drain(..) {
            pool.give(t.block);
        }
    }

    pub fn has_tail(&self) -> bool {
        !self.tail.is_empty()
    }

    /// The timestamps that a batch brings.
    pub fn note_timestamps(&mut self, base_offset: i64, last_offset: i64, max_timestamp: i64) {
        // Kafka rolls by the first batch's largest timestamp.
        if base_offset == self.base && max_timestamp >= 0 {
            self.first_timestamp = Some(max_timestamp);
        }
        if max_timestamp > self.max_timestamp {
            self.max_timestamp = max_timestamp;
            self.max_timestamp_last = last_offset;
        }
    }

    pub fn place(&self, base_offset: i64, last_offset: i64, at: u64) -> Place {
        Place {
            base: self.relative(base_offset),
            last: self.relative(last_offset),
            at: at as u32,
        }
    }

    /// Indexes the batch at the end, whose timestamps are noted.
    pub fn index_batch(&mut self, place: Place, len: u32, interval: u32) {
        let newest = (
            self.max_timestamp,
            self.relative(self.max_timestamp_last.max(self.base)),
        );
        self.index.append(place, len, interval, newest);
    }

    /// A batch met while walking the segment.
    pub fn note_batch(&mut self, at: u64, batch: &Batch<'_>, interval: u32) {
        let last = batch.last_offset();
        self.note_timestamps(batch.base_offset(), last, batch.max_timestamp());
        let known = self
            .index
            .places()
            .last()
            .is_some_and(|p| u64::from(p.at) >= at);
        if last - self.base > i64::from(i32::MAX) || batch.base_offset() < self.base {
            return;
        }
        let place = self.place(batch.base_offset(), last, at);
        if known {
            self.index.learn(place);
            self.index.skip(batch.len() as u32);
        } else {
            self.index_batch(place, batch.len() as u32, interval);
        }
    }
}
