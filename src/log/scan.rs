//! Walking the batches of a segment file of which nothing is known.

use crate::batch::{Batch, ParseError};

/// Bytes read at a time.
pub(crate) const CHUNK_BYTES: u32 = 1024 * 1024;
/// A batch longer than this is not one of ours (the largest request is 100 MiB).
const BATCH_BYTES_MAX: usize = 128 * 1024 * 1024;

/// A walk over one segment: fed with consecutive chunks, it hands out batch after batch as long as each continues the
/// log: the right offset, an epoch not lower, a right CRC.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Where the last good batch ends.
    pub end: u64,
    pub next: i64,
    pub epoch: i32,
    /// Offsets may jump forward (compacted segments).
    pub gaps: bool,
    /// A batch that reaches this offset is no longer taken.
    pub limit: i64,
    /// Bytes `[end..end + buffer.len())` of the file.
    buffer: Vec<u8>,
    wants: usize,
    pub done: bool,
    /// Why it ended before the file did.
    pub stopped_by: Option<&'static str>,
}

impl Scan {
    pub fn new(at: u64, next: i64, epoch: i32, gaps: bool) -> Scan {
        Scan {
            end: at,
            next,
            epoch,
            gaps,
            limit: i64::MAX,
            buffer: Vec::new(),
            wants: 0,
            done: false,
            stopped_by: None,
        }
    }

    /// Where and how much to read next.
    pub fn wanted(&self) -> (u64, u32) {
        let missing = self.wants.saturating_sub(self.buffer.len());
        let len = (CHUNK_BYTES as usize)
            .max(missing.next_multiple_of(4096))
            .min(BATCH_BYTES_MAX);
        (self.end + self.buffer.len() as u64, len as u32)
    }

    /// `bytes` follow what was fed before; fewer than wanted mean the end of the file.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(u64, &Batch<'_>)) {
        let (_, wanted) = self.wanted();
        let is_last = bytes.len() < wanted as usize;
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            match Batch::view(&self.buffer[at..]) {
                Ok((batch, len)) => {
                    let follows = batch.base_offset() == self.next
                        || (self.gaps && batch.base_offset() > self.next);
                    let whole = batch.last_offset_delta() >= 0 && batch.last_offset() < i64::MAX;
                    let reason = if !follows {
                        Some("the next batch has another offset")
                    } else if batch.leader_epoch() < self.epoch {
                        Some("the next batch has an older epoch")
                    } else if !whole || !batch.crc_is_right() {
                        Some("the next batch is damaged")
                    } else {
                        None
                    };
                    if reason.is_some() || batch.last_offset() >= self.limit {
                        self.stop(reason);
                        break;
                    }
                    each(self.end + at as u64, &batch);
                    self.next = batch.last_offset() + 1;
                    self.epoch = batch.leader_epoch();
                    at += len;
                }
                Err(ParseError::Short { needs }) => {
                    // A length that is nonsense would have us read the whole file for nothing.
                    let first = &self.buffer[at..];
                    let plausible = first.len() < 8 || {
                        let base = i64::from_be_bytes(first[..8].try_into().expect("eight bytes"));
                        base == self.next || (self.gaps && base > self.next)
                    };
                    if is_last || needs > BATCH_BYTES_MAX || !plausible {
                        let empty = first.iter().all(|b| *b == 0);
                        self.stop((!empty).then_some("the last batch is not whole"));
                    } else {
                        self.wants = needs;
                    }
                    break;
                }
                Err(ParseError::Corrupt(_)) => {
                    let empty = self.buffer[at..].iter().take(64).all(|b| *b == 0);
                    self.stop((!empty).then_some("what follows is no batch"));
                    break;
                }
            }
        }
        self.end += at as u64;
        self.buffer.drain(..at);
    }

    fn stop(&mut self, reason: Option<&'static str>) {
        self.done = true;
        self.stopped_by = reason;
    }
}
