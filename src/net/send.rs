//! Sending: the one file where zero-copy lives.
//!
//! A connection has a queue of pieces. Memory pieces of all its answers leave in one `sendmsg`; pieces of files leave by `sendfile`,
//! so their bytes never pass through this process. A page that is not in the page cache would stop the whole core for a disk read,
//! so each step asks `cachestat` first and has cold ranges brought in ([`super::page_in`]). Read-ahead hints are no substitute: the
//! page is then in the cache but still locked, and `sendfile` waits for it all the same.
//!
//! A reader that does not read costs its queue (bounded by the shard, see `limit::CONN_REPLY_BYTES_MAX`) and one one-shot poll.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::page_in::{PageIns, Wanted};
use super::residency;
use crate::log::{FileRef, MemSpan};
use crate::model::limit::{SEND_CONN_BYTES_MAX, SEND_FILE_BYTES_MAX};

/// Pieces of one `sendmsg`. The kernel's limit is 1,024; past some dozens the call costs more than it saves.
const PIECES_MAX: usize = 64;

enum Piece {
    Bytes(Bytes),
    Memory(MemSpan),
    File(FilePiece),
}

struct FilePiece {
    file: Arc<OwnedFd>,
    /// Keeps the segment from being closed or recycled; dropped once sent.
    claim: Rc<FileRef>,
    at: u64,
    left: usize,
    /// Bytes behind the piece that are on disk, too.
    more: u64,
    /// Bytes from `at` on that were just brought in: sent without asking again, so that a page evicted at once costs one stall, not a loop.
    warm: usize,
}

impl FilePiece {
    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            file: &self.file,
            claim: &self.claim,
            at: self.at,
            end: self.at + self.left as u64,
            more: self.more,
        }
    }
}

/// What keeps a queue from moving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    None,
    Writable,
    PageIn,
}

pub(super) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece, if it is memory, that are sent.
    first_sent: usize,
    wait: Wait,
}

/// Where a flush ended.
#[derive(Debug)]
pub(super) enum Flushed {
    /// All is with the kernel.
    Empty,
    /// There is more, but others have their turn first.
    More,
    /// Waiting for something that was asked for before.
    Waiting,
    /// The socket's buffer is full: arm a poll for writability.
    ArmWritable,
    /// What is next in a file is cold: it waits for this read, then call [`Outbox::paged_in`].
    PageIn(usize),
    /// The connection is lost, or a file does not have the bytes it should.
    Broken(Errno),
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            pieces: VecDeque::new(),
            first_sent: 0,
            wait: Wait::None,
        }
    }

    pub(super) fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    pub(super) fn push_memory(&mut self, span: MemSpan) {
        if !span.is_empty() {
            self.pieces.push_back(Piece::Memory(span));
        }
    }

    pub(super) fn push_file(
        &mut self,
        file: Arc<OwnedFd>,
        claim: Rc<FileRef>,
        at: u64,
        len: u32,
        more: u64,
    ) {
        if len > 0 {
            self.pieces.push_back(Piece::File(FilePiece {
                file,
                claim,
                at,
                left: len as usize,
                more,
                warm: 0,
            }));
        }
    }

    pub(super) fn writable(&mut self) {
        if self.wait == Wait::Writable {
            self.wait = Wait::None;
        }
    }

    /// What it waited for is in the page cache up to `end`, or could not be read (then `sendfile` meets the same error and says so).
    pub(super) fn paged_in(&mut self, end: u64) {
        if self.wait == Wait::PageIn {
            self.wait = Wait::None;
            if let Some(Piece::File(piece)) = self.pieces.front_mut() {
                piece.warm = end.saturating_sub(piece.at) as usize;
            }
        }
    }

    /// Sends as much as the socket takes now. Gives the bytes that left and where it ended.
    pub(super) fn flush(&mut self, socket: &OwnedFd, pages: &mut PageIns) -> (usize, Flushed) {
        let mut sent = 0;
        if self.wait != Wait::None {
            return (0, Flushed::Waiting);
        }
        let end = loop {
            if self.pieces.is_empty() {
                // An idle connection holds no queue.
                if self.pieces.capacity() > 16 {
                    self.pieces = VecDeque::new();
                }
                break Flushed::Empty;
            }
            if sent >= SEND_CONN_BYTES_MAX {
                break Flushed::More;
            }
            let step = match self.pieces.front_mut() {
                Some(Piece::File(piece)) => send_file(socket, piece, pages),
                _ => self.send_memory(socket),
            };
            match step {
                Step::Sent { bytes, full } => {
                    sent += bytes;
                    self.advance(bytes);
                    if full {
                        self.wait = Wait::Writable;
                        break Flushed::ArmWritable;
                    }
                }
                Step::Cold(read) => {
                    self.wait = Wait::PageIn;
                    break Flushed::PageIn(read);
                }
                Step::Broken(errno) => break Flushed::Broken(errno),
            }
        };
        (sent, end)
    }

    fn send_memory(&self, socket: &OwnedFd) -> Step {
        let mut slices = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        let mut offered = 0;
        let mut more = false;
        for piece in &self.pieces {
            let memory: &[u8] = match piece {
                Piece::Bytes(bytes) => bytes,
                Piece::Memory(span) => span.bytes(),
                // The file's bytes follow at once: the answer's header must not leave as a segment of its own.
                Piece::File(_) => {
                    more = true;
                    break;
                }
            };
            if count == PIECES_MAX {
                more = true;
                break;
            }
            let memory = if count == 0 {
                &memory[self.first_sent..]
            } else {
                memory
            };
            slices[count] = IoSlice::new(memory);
            offered += memory.len();
            count += 1;
        }
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let mut none = SendAncillaryBuffer::default();
        match rustix::net::sendmsg(socket, &slices[..count], &mut none, flags) {
            Ok(bytes) => Step::Sent {
                bytes,
                full: bytes < offered,
            },
            Err(errno) => Step::failed(errno),
        }
    }

    fn advance(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let first = self.pieces.front_mut().expect("sent bytes were queued");
            let rest = match first {
                Piece::Bytes(bytes) => bytes.len() - self.first_sent,
                Piece::Memory(span) => span.len() - self.first_sent,
                Piece::File(piece) => {
                    piece.at += left as u64;
                    piece.left -= left;
                    piece.warm = piece.warm.saturating_sub(left);
                    if piece.left == 0 {
                        self.pieces.pop_front();
                    }
                    return;
                }
            };
            if left < rest {
                self.first_sent += left;
                return;
            }
            left -= rest;
            self.first_sent = 0;
            self.pieces.pop_front();
        }
    }
}

enum Step {
    Sent {
        bytes: usize,
        full: bool,
    },
    /// Waits for this read.
    Cold(usize),
    Broken(Errno),
}

impl Step {
    fn failed(errno: Errno) -> Step {
        match errno {
            // ENOBUFS and ENOMEM pass: memory pressure is no reason to break a connection.
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Step::Sent {
                bytes: 0,
                full: true,
            },
            Errno::INTR => Step::Sent {
                bytes: 0,
                full: false,
            },
            errno => Step::Broken(errno),
        }
    }
}

fn send_file(socket: &OwnedFd, piece: &mut FilePiece, pages: &mut PageIns) -> Step {
    let mut bytes = piece.left.min(SEND_FILE_BYTES_MAX);
    pages.sending(&piece.wanted());
    if piece.warm < bytes {
        match pages.under_way(&piece.file, piece.at) {
            Ok(read) => return Step::Cold(read),
            Err(next) => bytes = bytes.min((next - piece.at) as usize),
        }
        if !residency::resident(&piece.file, piece.at, bytes) {
            return Step::Cold(pages.miss(&piece.wanted()));
        }
    }
    let mut at = piece.at;
    match rustix::fs::sendfile(socket, &piece.file, Some(&mut at), bytes) {
        // The file ends before the planned span does. The peer was promised more bytes: only closing tells it.
        Ok(0) => Step::Broken(Errno::IO),
        Ok(sent) => Step::Sent {
            bytes: sent,
            full: false,
        },
        Err(errno) => Step::failed(errno),
    }
}

/// For logs and tests: the raw descriptor.
impl std::fmt::Debug for FilePiece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "fd {} [{}..+{})",
            self.file.as_raw_fd(),
            self.at,
            self.left
        )
    }
}
