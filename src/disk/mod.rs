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
//! - A synced write is complete only when its flush was issued after the last byte was written: the kernel starts a linked flush only
//!   after a full write; when the pair came apart, the flush is issued again.
//! - A file that was closed with operations in flight is closed after the last of them.

pub mod blocking;
mod files;

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
use crate::log::{DiskDone, DiskError, DiskOp, DiskResult, FileId, MemSpan, OpId};
use crate::shard::Event;

/// Set in the `user_data` of every entry of this room.
pub const USER_DATA_BIT: u64 = 1 << 63;

/// The lowest bit tells the flush of a pair from its write.
const FLUSH_BIT: u64 = 1;

/// Pieces of one vectored write (the kernel's IOV_MAX).
const PIECES_MAX: usize = 1024;

/// Helper threads. Most of what they do ends in an fsync, and fsyncs that wait side by side share one commit of the file system's
/// journal: making a topic of 1,000 partitions is several times faster than with one.
const HELPERS: usize = 4;

/// How often an operation that the kernel interrupted is tried again before that counts as an error.
const RETRIES_MAX: u8 = 16;

struct InFlight {
    op: OpId,
    file: Arc<OpenFile>,
    /// Completions still to come.
    pending: u8,
    retries: u8,
    work: Work,
}

enum Work {
    Write(Write),
    Flush,
    Read {
        bytes: BytesMut,
        at: u64,
        done: usize,
    },
}

struct Write {
    /// Keeps the memory alive; never read.
    _data: Vec<MemSpan>,
    /// What is left to write, as the kernel reads it.
    pieces: Vec<libc::iovec>,
    at: u64,
    sync: bool,
    written: Option<i32>,
    flushed: Option<i32>,
    /// The flush completed before the write did, so it proves nothing.
    apart: bool,
}

/// What a helper thread is asked to do: the operations of [`DiskOp`] that have no memory of the shard in them.
enum Job {
    Open {
        file: FileId,
        path: String,
        create: bool,
        allocate: u64,
    },
    Allocate(Arc<OpenFile>, u64),
    Truncate(Arc<OpenFile>, u64),
    MakeDir(String),
    Rename(String, String),
    Remove(String),
    List(String),
    ReadFile(String),
    Replace(String, Bytes),
}

type JobDone = (OpId, DiskResult, Option<(FileId, OpenFile)>);

pub struct Disk {
    files: FxHashMap<FileId, Arc<OpenFile>>,
    in_flight: Slab<InFlight>,
    jobs: flume::Sender<(OpId, Job)>,
    jobs_done: flume::Receiver<JobDone>,
    jobs_in_flight: usize,
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
            sqes: Vec::new(),
        })
    }

    /// Operations whose [`Event::Disk`] has not come.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.jobs_in_flight
    }

    /// The page-cache descriptor of an open file, for sending from it.
    pub fn cached(&self, file: FileId) -> Option<Arc<OwnedFd>> {
        self.files.get(&file).map(|open| Arc::clone(&open.cached))
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
                let Some(open) = self.files.get(&file).cloned() else {
                    return complete(events, Err(DiskError::Io(libc::EBADF)));
                };
                let pieces: Vec<libc::iovec> = data
                    .iter()
                    .map(MemSpan::padded)
                    .filter(|(_, len)| *len > 0)
                    .map(|(start, len)| libc::iovec {
                        iov_base: start.cast_mut().cast(),
                        iov_len: len,
                    })
                    .collect();
                if pieces.is_empty() {
                    return complete(events, Ok(DiskDone::Done));
                }
                let write = Write {
                    _data: data,
                    pieces,
                    at,
                    sync,
                    written: None,
                    flushed: None,
                    apart: false,
                };
                self.start(op, open, Work::Write(write));
            }
            DiskOp::Flush { file } => match self.files.get(&file).cloned() {
                Some(open) => self.start(op, open, Work::Flush),
                None => complete(events, Err(DiskError::Io(libc::EBADF))),
            },
            DiskOp::Read { file, at, len } => match self.files.get(&file).cloned() {
                Some(open) => {
                    let bytes = BytesMut::zeroed(len as usize);
                    self.start(op, open, Work::Read { bytes, at, done: 0 });
                }
                None => complete(events, Err(DiskError::Io(libc::EBADF))),
            },
            DiskOp::Close { file } => {
                self.files.remove(&file);
                complete(events, Ok(DiskDone::Done));
            }
            DiskOp::Allocate { file, to } => match self.files.get(&file).cloned() {
                Some(open) => self.hand_over(op, Job::Allocate(open, to)),
                None => complete(events, Err(DiskError::Io(libc::EBADF))),
            },
            DiskOp::Truncate { file, len } => match self.files.get(&file).cloned() {
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
            DiskOp::ReadFile { path } => self.hand_over(op, Job::ReadFile(path)),
            DiskOp::Replace { path, data } => self.hand_over(op, Job::Replace(path, data)),
        }
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
                let before = self.files.insert(file, Arc::new(open));
                assert!(before.is_none(), "a file id names one file");
            }
            events.push_back(Event::Disk { op, result });
        }
    }

    fn start(&mut self, op: OpId, file: Arc<OpenFile>, work: Work) {
        let slot = self.in_flight.insert(InFlight {
            op,
            file,
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
                .build()
                .user_data(user_data);
                if write.sync && count == write.pieces.len() {
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
            Work::Read { bytes, at, done } => {
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
        let InFlight { op, .. } = self.in_flight.remove(slot);
        events.push_back(Event::Disk { op, result });
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
            None if self.sync => Next::Flush,
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

fn flush(file: &OpenFile, user_data: u64) -> Entry {
    opcode::Fsync::new(types::Fd(file.direct.as_raw_fd()))
        .flags(types::FsyncFlags::DATASYNC)
        .build()
        .user_data(user_data)
}

/// A helper thread: one operation after the other until the shard drops its end.
fn help(
    dir: &Path,
    jobs: &flume::Receiver<(OpId, Job)>,
    done: &flume::Sender<JobDone>,
    wake: impl Fn(),
) {
    for (op, job) in jobs {
        let mut opened = None;
        let result = match job {
            Job::Open {
                file,
                path,
                create,
                allocate,
            } => files::open(dir, &path, create, allocate).map(|(open, len)| {
                opened = Some((file, open));
                DiskDone::Opened { len }
            }),
            Job::Allocate(file, to) => files::allocate(&file, to),
            Job::Truncate(file, len) => files::truncate(&file, len),
            Job::MakeDir(path) => files::make_dir(dir, &path),
            Job::Rename(from, to) => files::rename(dir, &from, &to),
            Job::Remove(path) => files::remove(dir, &path),
            Job::List(path) => files::list(dir, &path),
            Job::ReadFile(path) => files::read_file(dir, &path),
            Job::Replace(path, data) => files::replace(dir, &path, &data),
        };
        if done.send((op, result, opened)).is_err() {
            return;
        }
        wake();
    }
}
