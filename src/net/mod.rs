//! Connections: bytes to frames, chunks to bytes.
//!
//! Owns the listeners and sockets of one shard, how a stream is cut into frames, and the queues of what is still to be sent.
//! Knows nothing of what a frame means, who answers it, or where time and the ring come from: the node drives it, with
//! [`Net::completed`] for completions of the ring, [`Net::receive`] at the start of a turn and [`Net::flush`] at its end.
//! Entries for the ring are only queued here (`sqes`); no call waits.
//!
//! Why not glommio's sockets: they cost one task a connection and four `io_uring_enter` a frame, an accept that is raced loses
//! connections, and nothing sends vectored memory or waits for writability. So glommio stays the executor, and the sockets of a shard
//! are plain state, woken by polls in a ring of our own that the turn drains.
//!
//! Invariants:
//! - A readiness poll is multishot and tells of *changes*; `readable` therefore stays set until a receive came back short, and a
//!   connection that is readable and wanted is in `ready` exactly once.
//! - An idle connection holds no buffer. All receive into one buffer of the shard, which is empty between two connections.
//! - Every [`Event::Open`] is followed by exactly one [`Event::Closed`], and nothing is said of a connection after it.
//! - A [`ConnId`] is never given out twice: completions that come after a close find nobody.

mod frame;
mod listen;
mod page_in;
mod recv;
mod residency;
mod send;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use bytes::BytesMut;
use io_uring::squeue::{Entry, Flags};
use io_uring::{cqueue, opcode, types};
use rustix::io::Errno;
use slab::Slab;
use tracing::{debug, warn};

pub use self::listen::bind;

pub(crate) use self::frame::{Assembly, BadSize};
use self::listen::Accepted;
use self::page_in::PageIns;
use self::send::{Flushed, Outbox};
use crate::log::{FileId, Span};
use crate::model::limit::{
    ACCEPT_BACKOFF_MS, ACCEPTS_PER_TURN_MAX, BAD_INPUT_LOG_MS, FILES_KEPT_MAX, PAGE_IN_BYTES,
    RECV_BUFFER_BYTES, RECV_CONN_BYTES_MAX, RECV_TURN_BYTES_MAX, TURN_EVENTS_MAX,
};
use crate::model::{ConnId, Instant, Rarely};
use crate::shard::{Chunk, Event};

/// Set in the `user_data` of no entry of this room; the node gives entries with it to `disk`.
pub const FOREIGN_BIT: u64 = 1 << 63;

/// `user_data`: bits 60 to 62 say what completed, the rest whose it is.
const KIND_SHIFT: u32 = 60;
const ID_MASK: u64 = (1 << KIND_SHIFT) - 1;
const KIND_READ: u64 = 0;
const KIND_WRITE: u64 = 1;
const KIND_LISTENER: u64 = 2;
const KIND_PAGE_IN: u64 = 3;
const KIND_CANCEL: u64 = 4;

/// A [`ConnId`] is a place in the slab below a number that only counts up.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// What a read poll says besides "readable".
const END_EVENTS: i32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as i32;
const GONE_EVENTS: i32 = (libc::POLLHUP | libc::POLLERR) as i32;

/// A receive into less than this is not worth its system call.
const RECV_ROOM_BYTES_MIN: usize = 32 * 1024;

struct Conn {
    id: ConnId,
    socket: OwnedFd,
    assembly: Assembly,
    outbox: Outbox,
    /// There may be bytes, or an end, that were not received yet.
    readable: bool,
    /// In `ready`.
    queued_ready: bool,
    /// In `dirty`.
    queued_dirty: bool,
    /// The shard does not want frames for now.
    paused: bool,
    /// The kernel told of an end or an error: receive until it shows, a short receive proves nothing.
    end_told: bool,
    /// Both directions are gone: nothing can be answered.
    gone: bool,
    /// The peer sends nothing more, and the shard knows.
    ended: bool,
    /// Closed by the shard: goes when all is sent.
    closing: bool,
}

struct Listener {
    socket: OwnedFd,
    /// Connections may be waiting.
    ready: bool,
    /// Set while it pauses because descriptors ran out.
    retry_at: Option<Instant>,
}

pub struct Net {
    conns: Slab<Conn>,
    /// Never reset: makes every [`ConnId`] new.
    opened: u64,
    conns_max: usize,
    /// A connection whose descriptor would be this one or a higher one is refused: the rest is for files.
    descriptors_max: i64,
    listeners: Vec<Listener>,
    /// Connections to receive from, in order.
    ready: VecDeque<ConnId>,
    /// Connections with something to send that nothing keeps from being sent.
    dirty: Vec<ConnId>,
    buffer: BytesMut,
    /// Where cold pages are read to; nobody reads it, so all reads may share it.
    scratch: Box<[u8]>,
    pages: PageIns,
    /// Entries for the ring; the node takes them.
    pub sqes: Vec<Entry>,
    pub stats: Stats,
    bad_input: Rarely,
    refusals: Rarely,
}

/// Counted since the start of the shard.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stats {
    pub accepted: u64,
    pub refused: u64,
    pub accept_failures: u64,
    pub frames: u64,
    pub bad_sizes: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub page_ins: u64,
}

impl Net {
    pub fn new(conns_max: usize) -> Net {
        Net {
            conns: Slab::new(),
            opened: 0,
            conns_max: conns_max.min(SLOT_MASK as usize),
            descriptors_max: descriptors_for_connections(),
            listeners: Vec::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            buffer: BytesMut::new(),
            scratch: Box::default(),
            pages: PageIns::default(),
            sqes: Vec::new(),
            stats: Stats::default(),
            bad_input: Rarely::default(),
            refusals: Rarely::default(),
        }
    }

    /// Takes a listening, non-blocking socket (see [`bind`]).
    pub fn listen(&mut self, listener: TcpListener) {
        let socket = OwnedFd::from(listener);
        self.sqes.push(poll_listener(&socket, self.listeners.len()));
        self.listeners.push(Listener {
            socket,
            ready: true,
            retry_at: None,
        });
    }

    /// Closes the listeners: new connections are refused from now on.
    pub fn unlisten(&mut self) {
        for index in 0..self.listeners.len() {
            self.sqes
                .push(cancel_poll(KIND_LISTENER << KIND_SHIFT | index as u64));
        }
        self.listeners.clear();
    }

    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Whether the next [`Net::receive`] or [`Net::flush`] has something to do without any new completion.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.dirty.is_empty() || self.listeners.iter().any(|l| l.ready)
    }

    /// When a turn is needed although nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.listeners.iter().filter_map(|l| l.retry_at).min()
    }

    /// A completion of the ring whose `user_data` has not the [`FOREIGN_BIT`].
    pub fn completed(&mut self, user_data: u64, result: i32, flags: u32) {
        let id = user_data & ID_MASK;
        match user_data >> KIND_SHIFT {
            KIND_READ => self.read_polled(ConnId(id), result, flags),
            KIND_WRITE => {
                if let Some(conn) = find(&mut self.conns, ConnId(id)) {
                    conn.outbox.writable();
                    mark_dirty(&mut self.dirty, conn);
                }
            }
            KIND_LISTENER => {
                if let Some(listener) = self.listeners.get_mut(id as usize) {
                    listener.ready = listener.retry_at.is_none();
                    if !cqueue::more(flags) {
                        let again = poll_listener(&listener.socket, id as usize);
                        self.sqes.push(again);
                    }
                }
            }
            KIND_PAGE_IN => {
                let (end, waiting) = self.pages.done(id as usize);
                for id in waiting {
                    if let Some(conn) = find(&mut self.conns, id) {
                        conn.outbox.paged_in(end);
                        mark_dirty(&mut self.dirty, conn);
                    }
                }
                self.page_in();
            }
            _ => {}
        }
    }

    fn read_polled(&mut self, id: ConnId, result: i32, flags: u32) {
        let Some(conn) = find(&mut self.conns, id) else {
            return;
        };
        if !cqueue::more(flags) {
            // The kernel ends a multishot poll when its completions overflow, and after an error.
            self.sqes.push(poll_readable(conn));
        }
        if result < 0 || result & END_EVENTS != 0 {
            conn.end_told = true;
        }
        if result < 0 || result & GONE_EVENTS != 0 {
            conn.gone = true;
        }
        conn.readable = true;
        mark_ready(&mut self.ready, conn);
    }

    /// Accepts, and receives from every connection that has something, within the bounds of a turn.
    pub fn receive(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        self.accept(now, events);
        let mut budget = RECV_TURN_BYTES_MAX;
        for _ in 0..self.ready.len() {
            if events.len() >= TURN_EVENTS_MAX || budget == 0 {
                break;
            }
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            let Some(conn) = find(&mut self.conns, id) else {
                continue;
            };
            conn.queued_ready = false;
            if conn.paused || conn.closing {
                if conn.gone {
                    self.drop_conn(id, events);
                }
                continue;
            }
            let before = events.len();
            let (bytes, outcome) = receive_from(conn, &mut self.buffer, events);
            self.stats.bytes_in += bytes as u64;
            self.stats.frames += (events.len() - before) as u64;
            budget = budget.saturating_sub(bytes);
            match outcome {
                Outcome::Drained => conn.readable = false,
                Outcome::More => mark_ready(&mut self.ready, conn),
                Outcome::Ended if conn.gone => self.drop_conn(id, events),
                Outcome::Ended => {
                    // The poll stays armed: a reset after this still says so.
                    conn.readable = false;
                    if !conn.ended {
                        conn.ended = true;
                        events.push_back(Event::HalfClosed { conn: id });
                    }
                }
                Outcome::BadSize(claimed) => {
                    self.stats.bad_sizes += 1;
                    if let Some(unsaid) = self.bad_input.passes(now, BAD_INPUT_LOG_MS) {
                        let peer = rustix::net::getpeername(&conn.socket).ok().flatten();
                        let peer = peer.and_then(|address| SocketAddr::try_from(address).ok());
                        warn!(
                            ?peer,
                            claimed,
                            unsaid,
                            "a frame's size is out of bounds: is it a Kafka client? Its connection is closed"
                        );
                    }
                    self.drop_conn(id, events);
                }
                Outcome::Lost(errno) => {
                    debug!(conn = id.0, error = %std::io::Error::from(errno), "connection lost");
                    self.drop_conn(id, events);
                }
            }
        }
    }

    fn accept(&mut self, now: Instant, events: &mut VecDeque<Event>) {
        let mut left = ACCEPTS_PER_TURN_MAX;
        for listener in &mut self.listeners {
            if listener.retry_at.is_some_and(|at| at <= now) {
                listener.retry_at = None;
                listener.ready = true;
            }
            while listener.ready && left > 0 && events.len() < TURN_EVENTS_MAX {
                left -= 1;
                match listen::accept(&listener.socket) {
                    Accepted::Connection(socket, peer, local) => {
                        // The kernel gives the lowest descriptor that is free, so that its number tells how many are taken.
                        let short = i64::from(socket.as_raw_fd()) >= self.descriptors_max;
                        if short || self.conns.len() >= self.conns_max {
                            self.stats.refused += 1;
                            if let Some(unsaid) = self.refusals.passes(now, BAD_INPUT_LOG_MS) {
                                let why = match short {
                                    true => {
                                        "most of the open files that are allowed are taken, and the rest is kept for segments (ulimit -n)"
                                    }
                                    false => "there are as many as max.connections allows",
                                };
                                warn!(?peer, unsaid, "a connection is refused: {why}");
                            }
                            continue;
                        }
                        self.stats.accepted += 1;
                        let slot = self.conns.vacant_entry();
                        self.opened += 1;
                        let id = ConnId(self.opened << SLOT_BITS | slot.key() as u64);
                        let conn = slot.insert(Conn {
                            id,
                            socket,
                            assembly: Assembly::new(),
                            outbox: Outbox::new(),
                            readable: true,
                            queued_ready: false,
                            queued_dirty: false,
                            paused: false,
                            end_told: false,
                            gone: false,
                            ended: false,
                            closing: false,
                        });
                        self.sqes.push(poll_readable(conn));
                        events.push_back(Event::Open {
                            conn: id,
                            peer,
                            local,
                        });
                        // Its first request is often here already.
                        mark_ready(&mut self.ready, conn);
                    }
                    Accepted::Lost => self.stats.accept_failures += 1,
                    Accepted::None => listener.ready = false,
                    Accepted::Exhausted(error) => {
                        self.stats.accept_failures += 1;
                        if self.stats.accept_failures.is_power_of_two() {
                            warn!(%error, failures = self.stats.accept_failures,
                                "cannot accept connections, trying again in {ACCEPT_BACKOFF_MS} ms");
                        }
                        listener.ready = false;
                        listener.retry_at = Some(now.after_ms(ACCEPT_BACKOFF_MS));
                    }
                }
            }
        }
    }

    /// Queues a chunk. `file` finds the open file of a span. Unknown connections are gone: their chunk is dropped.
    pub fn send(
        &mut self,
        id: ConnId,
        chunk: Chunk,
        file: impl FnOnce(FileId) -> Option<Arc<OwnedFd>>,
    ) {
        let Some(conn) = find(&mut self.conns, id) else {
            return;
        };
        if conn.closing {
            return;
        }
        match chunk {
            Chunk::Bytes(bytes) => conn.outbox.push_bytes(bytes),
            Chunk::Span(Span::Memory(span)) => conn.outbox.push_memory(span),
            Chunk::Span(Span::File {
                file: claim,
                at,
                len,
                more,
            }) => match file(claim.id) {
                Some(open) => conn.outbox.push_file(open, claim, at, len, more),
                None => {
                    // A span pins its file, so this is a bug; the peer cannot be told otherwise.
                    warn!(
                        conn = id.0,
                        file = claim.id.0,
                        "span of a file that is not open"
                    );
                    conn.closing = true;
                }
            },
        }
        mark_dirty(&mut self.dirty, conn);
    }

    /// Closes once everything queued is sent.
    pub fn close(&mut self, id: ConnId) {
        if let Some(conn) = find(&mut self.conns, id) {
            conn.closing = true;
            mark_dirty(&mut self.dirty, conn);
        }
    }

    /// Stops or resumes receiving. Frames that were received with earlier ones may still come.
    pub fn pause(&mut self, id: ConnId, paused: bool) {
        if let Some(conn) = find(&mut self.conns, id) {
            conn.paused = paused;
            if !paused && conn.readable {
                mark_ready(&mut self.ready, conn);
            }
        }
    }

    /// Whether the shard has stopped the receiving of a connection.
    pub fn is_paused(&self, id: ConnId) -> bool {
        let conn = self.conns.get((id.0 & SLOT_MASK) as usize);
        conn.is_some_and(|conn| conn.id == id && conn.paused)
    }

    /// Sends what was queued, one system call a connection where it is memory only.
    pub fn flush(&mut self, events: &mut VecDeque<Event>) {
        for id in std::mem::take(&mut self.dirty) {
            let Some(conn) = find(&mut self.conns, id) else {
                continue;
            };
            conn.queued_dirty = false;
            let (bytes, end) = conn.outbox.flush(&conn.socket, &mut self.pages);
            self.stats.bytes_out += bytes as u64;
            if bytes > 0 {
                events.push_back(Event::Sent { conn: id, bytes });
            }
            match end {
                Flushed::Empty if conn.closing => self.drop_conn(id, events),
                Flushed::Empty | Flushed::Waiting => {}
                Flushed::More => mark_dirty(&mut self.dirty, conn),
                Flushed::ArmWritable => {
                    let poll = opcode::PollAdd::new(
                        types::Fd(conn.socket.as_raw_fd()),
                        libc::POLLOUT as u32,
                    );
                    self.sqes
                        .push(poll.build().user_data(KIND_WRITE << KIND_SHIFT | id.0));
                }
                Flushed::PageIn(read) => self.pages.wait(read, id),
                Flushed::Broken(errno) => {
                    debug!(conn = id.0, error = %std::io::Error::from(errno), "connection broken");
                    self.drop_conn(id, events);
                }
            }
        }
        self.page_in();
    }

    /// Has cold pages read, those that are waited for and those ahead.
    fn page_in(&mut self) {
        self.pages.pump(residency::resident);
        for issue in self.pages.issues() {
            if self.scratch.is_empty() {
                self.scratch = vec![0; PAGE_IN_BYTES].into();
            }
            self.stats.page_ins += 1;
            let read = opcode::Read::new(
                types::Fd(issue.fd),
                self.scratch.as_mut_ptr(),
                issue.bytes.min(PAGE_IN_BYTES) as u32,
            );
            // ASYNC: straight to a worker thread of the kernel, not first on this core.
            let read = read.offset(issue.at).build().flags(Flags::ASYNC);
            self.sqes
                .push(read.user_data(KIND_PAGE_IN << KIND_SHIFT | issue.slot as u64));
        }
    }

    fn drop_conn(&mut self, id: ConnId, events: &mut VecDeque<Event>) {
        let conn = self.conns.remove((id.0 & SLOT_MASK) as usize);
        // An armed poll holds the socket open, so closing the descriptor alone would tell the peer nothing.
        self.sqes.push(cancel_poll(KIND_READ << KIND_SHIFT | id.0));
        let _ = rustix::net::shutdown(conn.socket.as_fd(), rustix::net::Shutdown::Both);
        events.push_back(Event::Closed { conn: id });
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.pages.in_flight() > 0 {
            // The kernel may still write to it.
            std::mem::forget(std::mem::take(&mut self.scratch));
        }
    }
}

enum Outcome {
    Drained,
    More,
    Ended,
    BadSize(i32),
    Lost(Errno),
}

/// Receives up to the bound of one connection; frames become events.
fn receive_from(
    conn: &mut Conn,
    buffer: &mut BytesMut,
    events: &mut VecDeque<Event>,
) -> (usize, Outcome) {
    let mut bytes = 0;
    while bytes < RECV_CONN_BYTES_MAX && events.len() < TURN_EVENTS_MAX {
        if buffer.capacity() < RECV_ROOM_BYTES_MIN {
            // Takes the same memory again when no frame cut from it is left.
            buffer.reserve(RECV_BUFFER_BYTES);
        }
        let received = match conn.assembly.own() {
            Some((own, missing, true)) => {
                recv::receive(conn.socket.as_fd(), Some((own, missing)), Some(buffer))
            }
            Some((own, missing, false)) => {
                recv::receive(conn.socket.as_fd(), Some((own, missing)), None)
            }
            None => recv::receive(conn.socket.as_fd(), None, Some(buffer)),
        };
        let short = match received {
            Ok((0, _)) => return (bytes, Outcome::Ended),
            Ok((received, short)) => {
                bytes += received;
                short
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return (bytes, Outcome::Drained),
                Some(libc::EINTR) => continue,
                errno => {
                    let errno = errno.unwrap_or(libc::EIO);
                    return (bytes, Outcome::Lost(Errno::from_raw_os_error(errno)));
                }
            },
        };
        let id = conn.id;
        if let Some(frame) = conn.assembly.take_if_whole() {
            events.push_back(Event::Frame { conn: id, frame });
        }
        let fed = conn.assembly.feed(buffer, |frame| {
            events.push_back(Event::Frame { conn: id, frame })
        });
        if let Err(bad) = fed {
            return (bytes, Outcome::BadSize(bad.0));
        }
        // Short means drained: whatever comes later is a change that the poll tells of. An end that came with these bytes was told
        // by the same completion and will not be told again.
        if short && !conn.end_told {
            return (bytes, Outcome::Drained);
        }
    }
    (bytes, Outcome::More)
}

fn find(conns: &mut Slab<Conn>, id: ConnId) -> Option<&mut Conn> {
    conns
        .get_mut((id.0 & SLOT_MASK) as usize)
        .filter(|conn| conn.id == id)
}

fn mark_ready(ready: &mut VecDeque<ConnId>, conn: &mut Conn) {
    if !conn.queued_ready && (!conn.paused || conn.gone) {
        conn.queued_ready = true;
        ready.push_back(conn.id);
    }
}

/// An eighth of the descriptors is kept for files: segments must be rolled and read however many clients come.
fn descriptors_for_connections() -> i64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(i64::MAX, |limit| {
        let kept = (limit / 8).min(FILES_KEPT_MAX);
        i64::try_from(limit - kept).unwrap_or(i64::MAX)
    })
}

fn mark_dirty(dirty: &mut Vec<ConnId>, conn: &mut Conn) {
    if !conn.queued_dirty {
        conn.queued_dirty = true;
        dirty.push(conn.id);
    }
}

fn poll_readable(conn: &Conn) -> Entry {
    let events = libc::POLLIN | libc::POLLRDHUP;
    opcode::PollAdd::new(types::Fd(conn.socket.as_raw_fd()), events as u32)
        .multi(true)
        .build()
        .user_data(KIND_READ << KIND_SHIFT | conn.id.0)
}

fn poll_listener(socket: &OwnedFd, index: usize) -> Entry {
    opcode::PollAdd::new(types::Fd(socket.as_raw_fd()), libc::POLLIN as u32)
        .multi(true)
        .build()
        .user_data(KIND_LISTENER << KIND_SHIFT | index as u64)
}

/// AsyncCancel, not PollRemove: that one fails with EALREADY on a poll that is just being told of something, which a shutdown always
/// is, and leaves it armed for good.
fn cancel_poll(user_data: u64) -> Entry {
    opcode::AsyncCancel::new(user_data)
        .build()
        .flags(Flags::SKIP_SUCCESS)
        .user_data(KIND_CANCEL << KIND_SHIFT)
}
