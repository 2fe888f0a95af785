//! How far a segment that is still written to is known to be good: a small file beside it, `<base>.progress`.
//!
//! Without it a start after a kill reads an active segment from its first byte, a GiB of it, and twice: for what the journal
//! has beyond it, and for index, producers and epochs. With it both begin at the last note. A note is made every
//! [`super::StoreConfig::progress_bytes`] of a segment, off the acknowledge path, and holds what only a walk could tell:
//! the index, the producers, the epochs and the timestamps of everything below `at`.
//!
//! Invariants
//! - What a note tells of was flushed in its segment before the note was written.
//! - It goes before its segment is cut or removed, and after the segment's index is written when that is closed.
//! - It is believed only if the walk from its last indexed batch on finds the batches up to `at`; else all is walked.

use bytes::Bytes;

use super::epochs::LeaderEpochs;
use super::index::{Index, Place};
use super::op::{DiskOp, DiskResult};
use super::ops::{LogIndex, Task, segment_path};
use super::producers::ProducerStates;
use super::segment::{Phase, Segment};
use super::store::Store;
use crate::model::WallMs;

const MAGIC: &[u8; 8] = b"CLPROG1\n";
const FIXED_BYTES: usize = 8 + 4 + 8 * 7 + 4 * 4;

/// A note that waits for its segment to be flushed up to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub at: u64,
    /// The offset there.
    pub next: i64,
    first_timestamp: Option<i64>,
    pub max_timestamp: i64,
    pub max_timestamp_last: i64,
    producers: Bytes,
    epochs: String,
}

/// A note as it is read.
#[derive(Debug)]
pub(crate) struct Progress {
    pub at: u64,
    pub next: i64,
    /// The last indexed batch before `at`: place and base offset. The walk begins there.
    pub from: (u64, i64),
    pub first_timestamp: Option<i64>,
    pub max_timestamp: i64,
    pub max_timestamp_last: i64,
    pub producers: ProducerStates,
    pub epochs: LeaderEpochs,
    pub index: Index,
}

impl Store {
    /// Takes a note of the active segment if one is due, and writes one that is flushed.
    pub(super) fn pump_progress(&mut self, index: LogIndex) {
        let every = self.config.progress_bytes;
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        let draining = log.is_draining();
        let Some(s) = log.segments.back_mut() else {
            return;
        };
        if s.phase != Phase::Active || s.noting || draining {
            return;
        }
        if s.note.is_none() && s.end - s.noted_to >= every {
            s.noted_to = s.end;
            s.note = Some(Note {
                at: s.end,
                next: s.next,
                first_timestamp: s.first_timestamp,
                max_timestamp: s.max_timestamp,
                max_timestamp_last: s.max_timestamp_last,
                producers: log.producers.snapshot(),
                epochs: log.epochs.encode(),
            });
        }
        let Some(note) = s.note.take_if(|note| note.at <= s.synced) else {
            return;
        };
        let Some(data) = note.encode(s) else {
            return;
        };
        (s.noting, s.has_note) = (true, true);
        let base = s.base;
        let path = segment_path(&log.dir, base, SUFFIX);
        self.ops.issue(
            Task::Progress { log: index, base },
            DiskOp::Replace { path, data },
        );
    }

    /// Without the note a start takes longer, and that is all.
    pub(super) fn progress_noted(&mut self, index: LogIndex, base: i64, result: DiskResult) {
        let Some(log) = self.logs[index as usize].as_deref_mut() else {
            return;
        };
        if let Err(e) = result {
            tracing::warn!(log = %log.dir, error = %e, "the progress of a segment cannot be noted");
        }
        if let Some(s) = log.segment_mut(base) {
            s.noting = false;
        }
        self.pump(index);
    }
}

pub(crate) const SUFFIX: &str = "progress";

impl Note {
    /// `None`: no batch below it is indexed.
    fn encode(&self, segment: &Segment) -> Option<Bytes> {
        let (places, times) = segment.index.below(self.at, segment.relative(self.next));
        let last = places.last().filter(|p| p.base != Place::UNKNOWN)?;
        let mut out = Vec::with_capacity(FIXED_BYTES + places.len() * 8 + times.len() * 12);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0; 4]);
        for number in [
            self.at as i64,
            self.next,
            i64::from(last.at),
            segment.base + i64::from(last.base),
            self.first_timestamp.unwrap_or(i64::MIN),
            self.max_timestamp,
            self.max_timestamp_last,
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        let parts = [
            self.producers.clone(),
            Bytes::copy_from_slice(self.epochs.as_bytes()),
            super::index::encode_offsets(places),
            super::index::encode_times(times),
        ];
        for part in &parts {
            out.extend_from_slice(&(part.len() as u32).to_be_bytes());
        }
        for part in &parts {
            out.extend_from_slice(part);
        }
        let crc = crc32c::crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_be_bytes());
        Some(Bytes::from(out))
    }
}

impl Progress {
    /// `None` for anything but a whole note.
    pub fn decode(bytes: &[u8], now: WallMs) -> Option<Progress> {
        let head = bytes.get(..FIXED_BYTES)?;
        let crc = u32::from_be_bytes(head[8..12].try_into().expect("four bytes"));
        if &head[..8] != MAGIC || crc != crc32c::crc32c(&bytes[12..]) {
            return None;
        }
        let number = |i: usize| {
            let at = 12 + i * 8;
            i64::from_be_bytes(head[at..at + 8].try_into().expect("eight bytes"))
        };
        let mut rest = &bytes[FIXED_BYTES..];
        let mut part = |i: usize| {
            let at = 12 + 7 * 8 + i * 4;
            let len = u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
            let (part, behind) = rest.split_at_checked(len as usize)?;
            rest = behind;
            Some(part)
        };
        let (producers, epochs) = (part(0)?, part(1)?);
        let (offsets, times) = (part(2)?, part(3)?);
        let at = u64::try_from(number(0)).ok()?;
        let from = (u64::try_from(number(2)).ok()?, number(3));
        let first = number(4);
        (from.0 < at && from.1 < number(1)).then_some(())?;
        Some(Progress {
            at,
            next: number(1),
            from,
            first_timestamp: (first != i64::MIN).then_some(first),
            max_timestamp: number(5),
            max_timestamp_last: number(6),
            producers: ProducerStates::from_snapshot(producers, now)?,
            epochs: LeaderEpochs::decode(std::str::from_utf8(epochs).ok()?)?,
            index: Index::decode(offsets, times, at)?,
        })
    }
}
