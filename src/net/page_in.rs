//! Which ranges of files are being brought into the page cache, who waits for them, and what will be wanted next.
//!
//! A page that is not there would stop the core in `sendfile`, so cold ranges are read by the kernel's worker threads into a buffer
//! that nobody looks at. One answer at a time that makes a disk wait for the network and the network for the disk: from the second
//! piece on that continues another, a reader is taken to go on, and what lies before it is brought in while its answers leave.
//!
//! ```text
//! file   0 ............. at ................ ahead ............... limit
//!              sent       brought in, or on     wanted, as far as    what is on disk, or
//!                         its way               the window reaches   not known to be asked for
//! ```
//!
//! Pages of a read that is under way are in the page cache but locked: `cachestat` counts them and `sendfile` waits for them. So whoever
//! wants such a range waits for the read instead.
//!
//! Invariants: a read in flight keeps its file open and its segment from being reused; a reader that nobody hears of any more keeps
//! neither.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak as LocalWeak};
use std::sync::{Arc, Weak};

use slab::Slab;

use crate::log::FileRef;
use crate::model::ConnId;
use crate::model::limit::{
    PAGE_IN_BYTES, READ_AHEAD_BYTES, READ_AHEAD_READERS_MAX, READ_AHEAD_READS_MAX,
};

/// A piece of a file that is about to be sent.
pub(super) struct Wanted<'a> {
    pub file: &'a Arc<OwnedFd>,
    pub claim: &'a Rc<FileRef>,
    pub at: u64,
    /// Where what is to be sent now ends.
    pub end: u64,
    /// Bytes behind `end` that are on disk, too.
    pub more: u64,
}

/// A read for the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Issue {
    pub slot: usize,
    pub fd: RawFd,
    pub at: u64,
    pub bytes: usize,
}

struct Read {
    file: Arc<OwnedFd>,
    _claim: Rc<FileRef>,
    at: u64,
    end: u64,
    waiting: Vec<ConnId>,
}

/// Somebody who reads a cold file.
struct Reader {
    file: Weak<OwnedFd>,
    claim: LocalWeak<FileRef>,
    at: u64,
    /// End of the last piece; one that begins in it and ends behind it continues it.
    end: u64,
    ahead: u64,
    limit: u64,
    /// Bytes in a row that were found resident.
    resident: u64,
    used: u64,
}

#[derive(Default)]
pub(super) struct PageIns {
    reads: Slab<Read>,
    readers: Vec<Reader>,
    /// Counts uses, to tell which reader was idle for longest.
    clock: u64,
    issues: Vec<Issue>,
}

impl PageIns {
    pub fn in_flight(&self) -> usize {
        self.reads.len()
    }

    /// The read under way that holds the byte at `at`, or where the next one begins.
    pub fn under_way(&self, file: &Arc<OwnedFd>, at: u64) -> Result<usize, u64> {
        let mut next = u64::MAX;
        for (slot, read) in &self.reads {
            if !Arc::ptr_eq(&read.file, file) || read.end <= at {
                continue;
            }
            if read.at <= at {
                return Ok(slot);
            }
            next = next.min(read.at);
        }
        Err(next)
    }

    pub fn wait(&mut self, slot: usize, conn: ConnId) {
        self.reads[slot].waiting.push(conn);
    }

    /// Brings in what is cold at `wanted.at`. Gives the read to wait for.
    pub fn miss(&mut self, wanted: &Wanted<'_>) -> usize {
        let end = wanted.end.min(wanted.at + PAGE_IN_BYTES as u64);
        let slot = self.read(wanted.file, wanted.claim, wanted.at, end);
        self.clock += 1;
        match self.reader_of(wanted) {
            Some(reader) => reader.ahead = reader.ahead.max(end),
            None => {
                let reader = Reader {
                    file: Arc::downgrade(wanted.file),
                    claim: Rc::downgrade(wanted.claim),
                    at: wanted.at,
                    end: wanted.end,
                    ahead: end,
                    limit: wanted.end,
                    resident: 0,
                    used: self.clock,
                };
                self.add(reader);
            }
        }
        slot
    }

    fn add(&mut self, reader: Reader) {
        if self.readers.len() < READ_AHEAD_READERS_MAX {
            return self.readers.push(reader);
        }
        let idle = self.readers.iter_mut().min_by_key(|reader| reader.used);
        *idle.expect("the bound is not 0") = reader;
    }

    fn reader_of(&mut self, wanted: &Wanted<'_>) -> Option<&mut Reader> {
        let file = Arc::as_ptr(wanted.file);
        self.readers.iter_mut().find(|reader| {
            let back = reader.at.saturating_sub(PAGE_IN_BYTES as u64);
            std::ptr::eq(reader.file.as_ptr(), file)
                && back <= wanted.at
                && wanted.at <= reader.ahead.max(reader.end)
        })
    }

    /// A piece is being sent: who reads it moves on. Cheap while nobody reads anything cold.
    pub fn sending(&mut self, wanted: &Wanted<'_>) {
        if self.readers.is_empty() {
            return;
        }
        self.clock += 1;
        let clock = self.clock;
        let Some(reader) = self.reader_of(wanted) else {
            return;
        };
        reader.used = clock;
        reader.at = wanted.at;
        reader.ahead = reader.ahead.max(wanted.at);
        if wanted.end > reader.end {
            reader.end = wanted.end;
            reader.limit = wanted.end + wanted.more;
        }
    }

    fn read(&mut self, file: &Arc<OwnedFd>, claim: &Rc<FileRef>, at: u64, end: u64) -> usize {
        let slot = self.reads.insert(Read {
            file: Arc::clone(file),
            _claim: Rc::clone(claim),
            at,
            end,
            waiting: Vec::new(),
        });
        self.issues.push(Issue {
            slot,
            fd: file.as_raw_fd(),
            at,
            bytes: (end - at) as usize,
        });
        slot
    }

    /// Goes on reading ahead, nearest need first. `resident` tells whether a range needs no read.
    pub fn pump(&mut self, resident: impl Fn(&OwnedFd, u64, usize) -> bool) {
        while self.reads.len() < READ_AHEAD_READS_MAX {
            let next = (0..self.readers.len())
                .filter(|index| self.readers[*index].wish().is_some())
                .min_by_key(|index| self.readers[*index].lead());
            let Some(index) = next else {
                return;
            };
            let reader = &mut self.readers[index];
            let end = reader.wish().expect("it was chosen for it");
            let (Some(file), Some(claim)) = (reader.file.upgrade(), reader.claim.upgrade()) else {
                self.readers.swap_remove(index);
                continue;
            };
            let at = std::mem::replace(&mut reader.ahead, end);
            if resident(&file, at, (end - at) as usize) {
                reader.resident += end - at;
                if reader.resident >= READ_AHEAD_BYTES {
                    // It reads what others have read: the next miss brings it back.
                    self.readers.swap_remove(index);
                }
                continue;
            }
            reader.resident = 0;
            self.read(&file, &claim, at, end);
        }
    }

    /// What the ring is to do.
    pub fn issues(&mut self) -> std::vec::Drain<'_, Issue> {
        self.issues.drain(..)
    }

    /// The read has ended, well or not: then `sendfile` meets the same error and says so. Gives its end and who waited for it.
    pub fn done(&mut self, slot: usize) -> (u64, Vec<ConnId>) {
        let read = self.reads.remove(slot);
        (read.end, read.waiting)
    }
}

impl Reader {
    /// Bytes that it has before it.
    fn lead(&self) -> u64 {
        self.ahead - self.at
    }

    /// Where the next read for it would end, if one is due: reads are whole pieces, but at the limit.
    fn wish(&self) -> Option<u64> {
        let end = self.ahead + PAGE_IN_BYTES as u64;
        let end = if self.limit <= end {
            self.limit
        } else if end <= self.at + READ_AHEAD_BYTES {
            end
        } else {
            return None;
        };
        (end > self.ahead).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::FileId;

    const PIECE: u64 = PAGE_IN_BYTES as u64;
    const CONN: ConnId = ConnId(1);

    struct Bench {
        file: Arc<OwnedFd>,
        claim: Rc<FileRef>,
        pages: PageIns,
    }

    impl Bench {
        fn new() -> Bench {
            let null = std::fs::File::open("/dev/null").unwrap();
            Bench {
                file: Arc::new(null.into()),
                claim: Rc::new(FileRef { id: FileId(1) }),
                pages: PageIns::default(),
            }
        }

        fn on(&mut self, at: u64, end: u64, more: u64, call: fn(&mut PageIns, &Wanted<'_>)) {
            let wanted = Wanted {
                file: &self.file,
                claim: &self.claim,
                at,
                end,
                more,
            };
            call(&mut self.pages, &wanted);
        }

        fn misses(&mut self, at: u64, end: u64, more: u64) {
            self.on(at, end, more, |pages, wanted| {
                pages.sending(wanted);
                let slot = pages.miss(wanted);
                pages.wait(slot, CONN);
            });
        }

        fn sends(&mut self, at: u64, end: u64, more: u64) {
            self.on(at, end, more, PageIns::sending);
        }

        /// Ranges of the reads that start.
        fn pumped(&mut self, resident: bool) -> Vec<(u64, u64)> {
            self.pages.pump(|_, _, _| resident);
            let range = |issue: Issue| (issue.at, issue.at + issue.bytes as u64);
            self.pages.issues().map(range).collect()
        }

        fn complete_all(&mut self) {
            while let Some((slot, _)) = self.pages.reads.iter().next() {
                self.pages.done(slot);
            }
        }

        /// All that is read ahead while nobody sends anything.
        fn all_ahead(&mut self) -> u64 {
            let mut end = 0;
            loop {
                let read = self.pumped(false);
                let Some((_, last)) = read.last() else {
                    return end;
                };
                end = *last;
                self.complete_all();
            }
        }
    }

    #[test]
    fn the_rest_of_an_answer_is_read_side_by_side_and_nothing_behind_it() {
        let mut bench = Bench::new();
        bench.misses(100, 100 + 2 * PIECE + 5, 1 << 30);
        let expected = [
            (100, 100 + PIECE),
            (100 + PIECE, 100 + 2 * PIECE),
            (100 + 2 * PIECE, 100 + 2 * PIECE + 5),
        ];
        assert_eq!(bench.pumped(false), expected);
        bench.complete_all();
        assert_eq!(bench.pumped(false), []);
    }

    #[test]
    fn who_goes_on_has_a_window_before_it_and_no_more_than_is_on_disk() {
        let mut bench = Bench::new();
        bench.misses(0, 1000, 1 << 30);
        assert_eq!(bench.pumped(false), [(0, 1000)]);
        bench.complete_all();
        bench.sends(1000, 2000, 1 << 30);
        let reads = bench.pumped(false);
        assert_eq!(reads.len(), READ_AHEAD_READS_MAX);
        assert_eq!(reads[0], (1000, 1000 + PIECE));
        bench.complete_all();
        let end = bench.all_ahead();
        assert!(end <= 1000 + READ_AHEAD_BYTES && end + PIECE > 1000 + READ_AHEAD_BYTES);
        // The end of what is on disk comes near.
        bench.sends(end, end + 1000, 500);
        assert_eq!(bench.pumped(false), [(end, end + 1500)]);
        bench.complete_all();
        assert_eq!(bench.pumped(false), []);
    }

    #[test]
    fn what_is_under_way_is_waited_for_not_read_again() {
        let mut bench = Bench::new();
        bench.misses(0, 3 * PIECE, 0);
        bench.pumped(false);
        let file = Arc::clone(&bench.file);
        let slot = bench.pages.under_way(&file, PIECE + 7).unwrap();
        bench.pages.wait(slot, CONN);
        assert_eq!(bench.pages.done(slot), (2 * PIECE, vec![CONN]));
        assert_eq!(bench.pages.under_way(&file, PIECE + 7), Err(2 * PIECE));
        let other: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        assert_eq!(bench.pages.under_way(&other, PIECE + 7), Err(u64::MAX));
    }

    #[test]
    fn a_reader_of_resident_data_is_let_go() {
        let mut bench = Bench::new();
        bench.misses(0, 1000, 1 << 30);
        bench.pumped(false);
        bench.complete_all();
        let mut at = 1000;
        while !bench.pages.readers.is_empty() {
            bench.sends(at, at + PIECE, 1 << 30);
            assert_eq!(bench.pumped(true), []);
            at += PIECE;
            assert!(at < 4 * READ_AHEAD_BYTES);
        }
    }

    #[test]
    fn readers_have_a_bound_and_keep_no_file() {
        let mut bench = Bench::new();
        for number in 0..2 * READ_AHEAD_READERS_MAX as u64 {
            let at = number * (1 << 30);
            bench.misses(at, at + 100, 0);
        }
        assert_eq!(bench.pages.readers.len(), READ_AHEAD_READERS_MAX);
        bench.pumped(false);
        bench.complete_all();
        assert_eq!(Rc::strong_count(&bench.claim), 1);
        assert_eq!(Arc::strong_count(&bench.file), 1);
        // The one that was used last is still known: the first of its bytes to come is read ahead.
        let last = (2 * READ_AHEAD_READERS_MAX as u64 - 1) * (1 << 30);
        bench.sends(last + 100, last + 200, PIECE);
        assert_eq!(bench.pumped(false)[0].0, last + 100);
        // A file that is closed is read no further.
        bench.complete_all();
        let null = std::fs::File::open("/dev/null").unwrap();
        bench.file = Arc::new(null.into());
        assert_eq!(bench.pumped(false), []);
    }
}
