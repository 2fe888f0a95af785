//! The disk of one shard: [`DiskOp`]s to system calls, completions to [`Event::Disk`].
//!
//! Owns the table of open files, the operations in flight and some helper threads. Knows nothing of logs, journals or what the bytes
//! mean. Writes, flushes and reads go to the shard's ring (queued in `sqes`, the node submits them); what the ring cannot do without
//! blocking the core (open, allocate, rename, remove, directory syncs) goes to the helper threads, a flume channel there and back.
//!
//! Why not glommio's `DmaFile`: on a device without poll queues it spins at 100 % CPU while an operation is in flight, or every read
//! fails; it has no vectored write from memory of our own and no write linked with its flush.
//!
//! Invariants:
//! - The memory of an operation in flight belongs to its slot and is freed only after the last completion came.
//! - A synced write is complete only when everything written to its file before is flushed too. Where all of that is flushed already, the
//!   kernel is asked for a write that is durable by itself (`RWF_DSYNC`): one completion, no worker thread of the ring on this core (80 KiB
//!   here: 141 us and 31 us of CPU, against 175 and 52 of a write and a linked flush). It may be a forced unit access, which says nothing of
//!   other writes; so in a file with unflushed ones it is a write and a flush.
//! - Such a flush was issued after the last byte was written: the kernel starts a linked flush only after a full write; when the pair came
//!   apart, the flush is issued again.
//! - A file that was closed with operations in flight is closed after the last of them.

pub mod blocking;
mod files;
mod helper;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use rustc_hash::FxHashMap;
use slab::Slab;

use self::files::OpenFile;
use self::helper::{Job, JobDone, help};
use crate::log::{DiskDone, DiskError, DiskOp, DiskResult, FileId, MemSpan, OpId};
use crate::model::limit::{READ_AT_ONCE_BYTES, READ_BYTES_MAX};
use crate::shard::Event;

/// Set in the `user_data` of every entry of this room.
pub const USER_DATA_BIT: u64 = 1 << 63;

/// The lowest bit tells the flush of a pair from its write.
const FLUSH_BIT: u64 = 1;

/// Pieces of one vectored write (the kernel's IOV_MAX).
const PIECES_MAX: usize = 1024;

/// Helper threads. Most of what they do ends in an fsync, and fsyncs that wait side by side share one commit of the file system's
/// journal.
const HELPERS: usize = 4;

/// How often an operation that the kernel interrupted is tried again before that counts as an error.
const RETRIES_MAX: u8 = 16;

/// An open file, and whether a flush of it would have something to do.
struct Known {
    open: Arc<OpenFile>,
    /// Counts the submissions and the completions of writes that are not synced.
    unsynced: u64,
    /// `unsynced` when the last successful flush was issued.
    flushed: u64,
}

impl Known {
    fn is_flushed(&self) -> bool {
        self.unsynced == self.flushed
    }
}

struct InFlight {
    op: OpId,
    id: FileId,
    file: Arc<OpenFile>,
    /// [`Known::unsynced`] when the flush of this operation was queued.
    unsynced: u64,
    /// Completions still to come.
    pending: u8,
    retries: u8,
    work: Work,
}

/// A read that is not started.
struct WaitingRead {
    op: OpId,
    id: FileId,
    file: Arc<OpenFile>,
    at: u64,
    len: u32,
}

enum Work {
    Write(Write),
    Flush,
    Read {
        bytes: BytesMut,
        at: u64,
        done: usize,
        /// Bytes that it counts for in [`Disk::read_bytes`].
        room: usize,
    },
}

struct Write {
    /// Keeps the memory alive; never read.
    _data: Vec<MemSpan>,
    /// What is left to write, as the kernel reads it.
    pieces: Vec<libc::iovec>,
    at: u64,
    sync: bool,
    /// The write is durable by itself.
    durable: bool,
    written: Option<i32>,
    flushed: Option<i32>,
    /// The flush completed before the write did, so it proves nothing.
    apart: bool,
}

pub struct Disk {
    files: FxHashMap<FileId, Known>,
    in_flight: Slab<InFlight>,
    jobs: flume::Sender<(OpId, Job)>,
    jobs_done: flume::Receiver<JobDone>,
    jobs_in_flight: usize,
    /// Reads that wait for memory.
    reads_waiting: VecDeque<WaitingRead>,
    /// Bytes that the reads in flight bring at most.
    read_bytes: usize,
    /// Entries for the ring; the node takes them.
    pub sqes: Vec<Entry>,
}

impl Disk {
    /// `wake` is called on a helper thread after each of its completions: it must get the shard to call [`Disk::drain`].
    pub fn new(dir: &Path, wake: impl Fn() + Clone + Send + 'static) -> std::io::Result<Disk> {
        // Bounded by the operations in flight, which the shard bounds.
        let (jobs, jobs_taken) = flume::unbounded::<(OpId, Job)>();
        let (done, jobs_done) = flume::unbounded::<JobDone>();
        for _ in 0..HELPERS {
            let (dir, wake) = (dir.to_path_buf(), wake.clone());
            let (jobs, done) = (jobs_taken.clone(), done.clone());
            std::thread::Builder::new()
                .name("disk-helper".into())
                .stack_size(128 * 1024)
                .spawn(move || help(&dir, &jobs, &done, wake))?;
        }
        Ok(Disk {
            files: FxHashMap::default(),
            in_flight: Slab::new(),
            jobs,
            jobs_done,
            jobs_in_flight: 0,
            reads_waiting: VecDeque::new(),
            read_bytes: 0,
            sqes: Vec::new(),
        })
    }

    /// Operations whose [`Event::Disk`] has not come.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.jobs_in_flight + self.reads_waiting.len()
    }

    /// The page-cache descriptor of an open file, for sending from it.
    pub fn cached(&self, file: FileId) -> Option<Arc<OwnedFd>> {
        self.files
            .get(&file)
            .map(|known| Arc::clone(&known.open.cached))
    }

    pub fn submit(&mut self, op: OpId, work: DiskOp, events: &mut VecDeque<Event>) {
        let complete = |events: &mut VecDeque<Event>, result| {
            events.push_back(Event::Disk { op, result });
        };
        match work {
            DiskOp::Write {
                file,
                at,
                data,
                sync,
            } => {
                let pieces: Vec<libc::iovec> = data
                    .iter()
                    .map(MemSpan::padded)
                    .filter(|(_, len)| *len > 0)
                    .map(|(start, len)| libc::iovec {
                        iov_base: start.cast_mut().cast(),
                        iov_len: len,
                    })
                    .collect();
                if pieces.is_empty() && self.files.contains_key(&file) {
                    return complete(events, Ok(DiskDone::Done));
                }
                let write = Write {
                    _data: data,
                    pieces,
                    at,
                    sync,
                    durable: false,
                    written: None,
                    flushed: None,
                    apart: false,
                };
                self.start(op, file, Work::Write(write), events);
            }
            DiskOp::Flush { file } => self.start(op, file, Work::Flush, events),
            DiskOp::Read { file, at, len } => match self.open(file) {
                Some(open)
                    if len <= READ_AT_ONCE_BYTES
                        && let Some(bytes) = read_cached(&open, at, len) =>
                {
                    complete(events, Ok(DiskDone::Read(bytes)));
                }
                Some(open) => {
                    let read = WaitingRead {
                        op,
                        id: file,
                        file: open,
                        at,
                        len,
                    };
                    self.reads_waiting.push_back(read);
                    self.start_reads();
                }
                None => complete(events, Err(DiskError::Io(libc::EBADF))),
            },
            DiskOp::Close { file } => {
                self.files.remove(&file);
                complete(events, Ok(DiskDone::Done));
            }
            DiskOp::Allocate { file, to } => match self.open(file) {
                Some(open) => self.hand_over(op, Job::Allocate(open, to)),
                None => complete(events, Err(DiskError::Io(libc::EBADF))),
            },
            DiskOp::Truncate { file, len } => match self.open(file) {
                Some(open) => self.hand_over(op, Job::Truncate(open, len)),
                None => complete(events, Err(DiskError::Io(libc::EBADF))),
            },
            DiskOp::Open {
                file,
                path,
                create,
                allocate,
            } => self.hand_over(
                op,
                Job::Open {
                    file,
                    path,
                    create,
                    allocate,
                },
            ),
            DiskOp::MakeDir { path } => self.hand_over(op, Job::MakeDir(path)),
            DiskOp::Rename { from, to } => self.hand_over(op, Job::Rename(from, to)),
            DiskOp::Remove { path } => self.hand_over(op, Job::Remove(path)),
            DiskOp::List { path } => self.hand_over(op, Job::List(path)),
            DiskOp::Space => self.hand_over(op, Job::Space),
            DiskOp::ReadFile { path } => self.hand_over(op, Job::ReadFile(path)),
            DiskOp::Replace { path, data } => self.hand_over(op, Job::Replace(path, data)),
        }
    }

    fn open(&self, file: FileId) -> Option<Arc<OpenFile>> {
        self.files.get(&file).map(|known| Arc::clone(&known.open))
    }

    fn hand_over(&mut self, op: OpId, job: Job) {
        self.jobs_in_flight += 1;
        self.jobs
            .send((op, job))
            .expect("helper threads live as long as their channel");
    }

    /// Takes what helper threads have finished; cheap when there is nothing.
    pub fn drain(&mut self, events: &mut VecDeque<Event>) {
        if self.jobs_in_flight == 0 {
            return;
        }
        while let Ok((op, result, opened)) = self.jobs_done.try_recv() {
            self.jobs_in_flight -= 1;
            if let Some((file, open)) = opened {
                let known = Known {
                    open: Arc::new(open),
                    // What an earlier process wrote may not be flushed.
                    unsynced: 1,
                    flushed: 0,
                };
                let before = self.files.insert(file, known);
                assert!(before.is_none(), "a file id names one file");
            }
            events.push_back(Event::Disk { op, result });
        }
    }

    /// Starts reads in order, as far as there is memory for what they bring.
    fn start_reads(&mut self) {
        while let Some(read) = self.reads_waiting.front() {
            // Recovery asks for more than there is in most files: 1,000 partitions would take a gigabyte of zeroed memory.
            let size = rustix::fs::fstat(&read.file.cached);
            let size = size.map_or(u64::MAX, |stat| stat.st_size as u64);
            let bytes = u64::from(read.len).min(size.saturating_sub(read.at)) as usize;
            if self.read_bytes > 0 && self.read_bytes + bytes > READ_BYTES_MAX {
                return;
            }
            let read = self.reads_waiting.pop_front().expect("there is a first");
            self.read_bytes += bytes;
            let work = Work::Read {
                room: bytes,
                bytes: BytesMut::zeroed(bytes),
                at: read.at,
                done: 0,
            };
            self.begin(read.op, read.id, read.file, work);
        }
    }

    fn start(&mut self, op: OpId, id: FileId, mut work: Work, events: &mut VecDeque<Event>) {
        let Some(known) = self.files.get_mut(&id) else {
            let result = Err(DiskError::Io(libc::EBADF));
            return events.push_back(Event::Disk { op, result });
        };
        if let Work::Write(write) = &mut work {
            write.durable = write.sync && known.is_flushed();
            known.unsynced += u64::from(!write.durable);
        }
        let file = Arc::clone(&known.open);
        self.begin(op, id, file, work);
    }

    fn begin(&mut self, op: OpId, id: FileId, file: Arc<OpenFile>, work: Work) {
        let slot = self.in_flight.insert(InFlight {
            op,
            id,
            file,
            unsynced: 0,
            pending: 0,
            retries: 0,
            work,
        });
        self.issue(slot);
    }

    /// Queues the entries of what is left of an operation.
    fn issue(&mut self, slot: usize) {
        let in_flight = &mut self.in_flight[slot];
        let user_data = USER_DATA_BIT | (slot as u64) << 1;
        let file = &in_flight.file;
        in_flight.unsynced = self.files.get(&in_flight.id).map_or(0, |f| f.unsynced);
        match &mut in_flight.work {
            Work::Write(write) => {
                write.written = None;
                write.flushed = None;
                write.apart = false;
                let count = write.pieces.len().min(PIECES_MAX);
                let entry = opcode::Writev::new(
                    types::Fd(file.direct.as_raw_fd()),
                    write.pieces.as_ptr(),
                    count as u32,
                )
                .offset(write.at)
                .rw_flags(if write.durable { libc::RWF_DSYNC } else { 0 })
                .build()
                .user_data(user_data);
                if write.sync && !write.durable && count == write.pieces.len() {
                    // The pair stays together: the node never submits between a write and the flush behind it.
                    self.sqes.push(entry.flags(Flags::IO_LINK));
                    self.sqes.push(flush(file, user_data | FLUSH_BIT));
                    in_flight.pending = 2;
                } else {
                    self.sqes.push(entry);
                    in_flight.pending = 1;
                }
            }
            Work::Flush => {
                self.sqes.push(flush(file, user_data));
                in_flight.pending = 1;
            }
            Work::Read {
                bytes, at, done, ..
            } => {
                let rest = &mut bytes[*done..];
                let entry = opcode::Read::new(
                    types::Fd(file.cached.as_raw_fd()),
                    rest.as_mut_ptr(),
                    rest.len() as u32,
                )
                .offset(*at + *done as u64)
                .build()
                // Straight to a worker thread of the kernel: a cold read would otherwise start on this core.
                .flags(Flags::ASYNC)
                .user_data(user_data);
                self.sqes.push(entry);
                in_flight.pending = 1;
            }
        }
    }

    /// A completion of the ring whose `user_data` has the [`USER_DATA_BIT`].
    pub fn completed(&mut self, user_data: u64, result: i32, events: &mut VecDeque<Event>) {
        let slot = ((user_data & !USER_DATA_BIT) >> 1) as usize;
        let in_flight = &mut self.in_flight[slot];
        in_flight.pending -= 1;
        let next = match &mut in_flight.work {
            Work::Write(write) => {
                if user_data & FLUSH_BIT != 0 {
                    write.flushed = Some(result);
                    write.apart = write.written.is_none();
                } else {
                    write.written = Some(result);
                }
                if in_flight.pending > 0 {
                    return;
                }
                write.next()
            }
            Work::Flush => match result {
                0.. => Next::Done(Ok(DiskDone::Done)),
                error => Next::failed(error),
            },
            Work::Read { bytes, done, .. } => match result {
                0 => {
                    bytes.truncate(*done);
                    Next::Done(Ok(DiskDone::Read(std::mem::take(bytes).freeze())))
                }
                1.. => {
                    *done += result as usize;
                    if *done < bytes.len() {
                        Next::Again
                    } else {
                        Next::Done(Ok(DiskDone::Read(std::mem::take(bytes).freeze())))
                    }
                }
                error => Next::failed(error),
            },
        };
        let result = match next {
            Next::Again => return self.issue(slot),
            Next::Retry(errno) => {
                in_flight.retries += 1;
                if in_flight.retries < RETRIES_MAX {
                    return self.issue(slot);
                }
                Err(files::error_of_errno(errno))
            }
            Next::Flush => {
                in_flight.work = Work::Flush;
                return self.issue(slot);
            }
            Next::Done(result) => result,
        };
        let done = self.in_flight.remove(slot);
        self.note_flush(&done, result.is_ok());
        events.push_back(Event::Disk {
            op: done.op,
            result,
        });
        if let Work::Read { room, .. } = done.work {
            self.read_bytes -= room;
            self.start_reads();
        }
    }

    /// Keeps [`Known`] true after an operation.
    fn note_flush(&mut self, done: &InFlight, success: bool) {
        let Some(known) = self.files.get_mut(&done.id) else {
            return;
        };
        let flushes = match &done.work {
            Work::Write(write) if !write.sync => {
                known.unsynced += 1;
                false
            }
            Work::Write(write) => !write.durable,
            Work::Flush => true,
            Work::Read { .. } => false,
        };
        if flushes && success {
            known.flushed = known.flushed.max(done.unsynced);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.in_flight.is_empty() {
            // The kernel may still read or write this memory.
            std::mem::forget(std::mem::take(&mut self.in_flight));
        }
    }
}

enum Next {
    Done(DiskResult),
    /// Something is left.
    Again,
    /// The same again: the kernel was interrupted.
    Retry(i32),
    /// All is written, but no flush counts for it.
    Flush,
}

impl Next {
    fn failed(result: i32) -> Next {
        match -result {
            errno @ (libc::EAGAIN | libc::EINTR) => Next::Retry(errno),
            errno => Next::Done(Err(files::error_of_errno(errno))),
        }
    }
}

impl Write {
    /// After all completions of one issue.
    fn next(&mut self) -> Next {
        let written = self.written.expect("the write's completion has come");
        if written < 0 {
            return Next::failed(written);
        }
        if written == 0 {
            return Next::Done(Err(DiskError::Io(libc::EIO)));
        }
        self.advance(written as usize);
        if !self.pieces.is_empty() {
            return Next::Again;
        }
        match self.flushed {
            None if self.sync && !self.durable => Next::Flush,
            None => Next::Done(Ok(DiskDone::Done)),
            Some(_) if self.apart => Next::Flush,
            Some(result) if result == -libc::ECANCELED || result == -libc::EINTR => Next::Flush,
            Some(result) if result < 0 => Next::failed_flush(result),
            Some(_) => Next::Done(Ok(DiskDone::Done)),
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes as u64;
        let mut left = bytes;
        let mut whole = 0;
        for piece in &mut self.pieces {
            if left < piece.iov_len {
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(left).cast();
                piece.iov_len -= left;
                break;
            }
            left -= piece.iov_len;
            whole += 1;
        }
        self.pieces.drain(..whole);
    }
}

impl Next {
    /// A failed flush is final: the kernel may have dropped the dirty state, so a second one that succeeds would prove nothing.
    fn failed_flush(result: i32) -> Next {
        Next::Done(Err(files::error_of_errno(-result)))
    }
}

/// What is in the page cache is copied here and now: handing it to a worker thread of the kernel would cost several times as much.
/// `None` where that is less than was asked for.
fn read_cached(file: &OpenFile, at: u64, len: u32) -> Option<Bytes> {
    let mut bytes = BytesMut::zeroed(len as usize);
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    let read = rustix::io::preadv2(&file.cached, &mut slices, at, flags);
    (read == Ok(len as usize)).then(|| bytes.freeze())
}

fn flush(file: &OpenFile, user_data: u64) -> Entry {
    opcode::Fsync::new(types::Fd(file.direct.as_raw_fd()))
        .flags(types::FsyncFlags::DATASYNC)
        .build()
        .user_data(user_data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Block;

    const FILE: FileId = FileId(1);
    const LEN: usize = 4096;

    /// A disk with one open file; the test plays the ring.
    struct Bench {
        disk: Disk,
        next: u64,
        dir: std::path::PathBuf,
    }

    impl Bench {
        fn new(name: &str) -> Bench {
            let dir = std::env::temp_dir().join(format!("disk-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let (wake, woken) = flume::unbounded();
            let mut disk = Disk::new(&dir, move || wake.send(()).unwrap()).unwrap();
            let mut events = VecDeque::new();
            let open = DiskOp::Open {
                file: FILE,
                path: "x".into(),
                create: true,
                allocate: 1 << 20,
            };
            disk.submit(OpId(0), open, &mut events);
            woken.recv().unwrap();
            disk.drain(&mut events);
            assert_eq!(events.len(), 1);
            Bench { disk, next: 1, dir }
        }

        /// The entries that the operation queues.
        fn submit(&mut self, work: DiskOp) -> Vec<Entry> {
            self.next += 1;
            self.disk
                .submit(OpId(self.next), work, &mut VecDeque::new());
            std::mem::take(&mut self.disk.sqes)
        }

        fn write(&mut self, sync: bool) -> Vec<Entry> {
            let block = Block::new(LEN);
            block.append_with(LEN, |_| ());
            self.submit(DiskOp::Write {
                file: FILE,
                at: 0,
                data: vec![MemSpan::new(&block, 0, LEN)],
                sync,
            })
        }

        /// All entries complete well, and the operation with them.
        fn complete(&mut self, entries: Vec<Entry>) {
            let mut events = VecDeque::new();
            for entry in entries {
                let is_flush = entry.get_opcode() == u32::from(opcode::Fsync::CODE);
                let result = if is_flush { 0 } else { LEN as i32 };
                self.disk
                    .completed(entry.get_user_data(), result, &mut events);
            }
            assert_eq!(events.len(), 1);
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.dir).unwrap();
        }
    }

    #[test]
    fn a_synced_write_brings_a_flush_of_its_own_only_where_others_are_unflushed() {
        let mut bench = Bench::new("pair");
        let first = bench.write(true);
        assert_eq!(first.len(), 2, "what an earlier process wrote is unflushed");
        bench.complete(first);
        let second = bench.write(true);
        assert_eq!(second.len(), 1);
        bench.complete(second);
        let plain = bench.write(false);
        assert_eq!(plain.len(), 1);
        let beside = bench.write(true);
        assert_eq!(beside.len(), 2, "one is in flight");
        bench.complete(plain);
        bench.complete(beside);
        let after = bench.write(true);
        assert_eq!(after.len(), 2, "it completed after that flush was queued");
        bench.complete(after);
        let clean = bench.write(true);
        assert_eq!(clean.len(), 1);
        bench.complete(clean);
    }

    #[test]
    fn a_flush_counts_for_writes_that_were_complete_when_it_was_queued() {
        let mut bench = Bench::new("flush");
        let early = bench.submit(DiskOp::Flush { file: FILE });
        let plain = bench.write(false);
        bench.complete(plain);
        bench.complete(early);
        let dirty = bench.write(true);
        assert_eq!(dirty.len(), 2);
        bench.complete(dirty);
        let plain = bench.write(false);
        bench.complete(plain);
        let flush = bench.submit(DiskOp::Flush { file: FILE });
        bench.complete(flush);
        let clean = bench.write(true);
        assert_eq!(clean.len(), 1);
        bench.complete(clean);
    }
}
