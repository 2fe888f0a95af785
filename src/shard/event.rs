//! What a shard takes in and gives out: the whole border between the pure rooms and the shells.

use std::net::SocketAddr;

use bytes::Bytes;

use super::peer::PeerMsg;
use crate::log::{DiskOp, DiskResult, OpId, Span};
use crate::model::{ConnId, Instant, ShardIndex};

#[derive(Debug)]
pub enum Event {
    /// A connection was accepted. `local` is the address that the client reached.
    Open {
        conn: ConnId,
        peer: SocketAddr,
        local: SocketAddr,
    },
    /// One whole request frame, without its size field. It shares a receive buffer with its neighbours
    /// (`limit::RECV_BUFFER_BYTES`): whoever keeps a small one for longer than a turn or two copies it.
    Frame { conn: ConnId, frame: Bytes },
    /// The peer sends nothing more (it shut down its half, or closed the socket: the two look the same), but may still
    /// read. The shard answers what it has of it, then puts the connection into [`Actions::closes`]; one with nothing
    /// left to answer is closed in the same turn.
    HalfClosed { conn: ConnId },
    /// The peer is gone, or the shell closed the connection; nothing more comes for it and nothing can be sent.
    /// Comes once for every [`Event::Open`], also after [`Actions::closes`].
    Closed { conn: ConnId },
    /// `bytes` more of what was given to send on this connection are with the kernel (size fields included).
    Sent { conn: ConnId, bytes: usize },
    /// An operation is complete.
    Disk { op: OpId, result: DiskResult },
    /// A shard of this or another process says something.
    Peer { from: ShardIndex, msg: PeerMsg },
    /// Stop in an orderly way: finish, write clean state, then [`Actions::stopped`].
    Stop,
}

/// A piece of an answer.
#[derive(Debug)]
pub enum Chunk {
    Bytes(Bytes),
    Span(Span),
}

impl Chunk {
    pub fn len(&self) -> usize {
        match self {
            Chunk::Bytes(bytes) => bytes.len(),
            Chunk::Span(span) => span.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a turn wants done, in the order of the fields: sends before disk operations (an operation may close a file that a send names).
#[derive(Default, Debug)]
pub struct Actions {
    /// Bytes to send, in order for each connection. Answers come with their size field; the shell adds nothing.
    pub sends: Vec<(ConnId, Chunk)>,
    /// Connections to close once what was given to send before is sent.
    pub closes: Vec<ConnId>,
    /// Connections whose further frames the shard does not want for now (true) or wants again (false).
    pub pauses: Vec<(ConnId, bool)>,
    pub disk: Vec<(OpId, DiskOp)>,
    pub peers: Vec<(ShardIndex, PeerMsg)>,
    /// The next instant at which a turn is needed even without an event.
    pub wake_at: Option<Instant>,
    /// Work is left over: call `turn` again without waiting.
    pub again: bool,
    /// The shard has stopped cleanly; no turn is needed any more.
    pub stopped: bool,
}
