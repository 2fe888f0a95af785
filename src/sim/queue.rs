//! What is to happen, in order of virtual time; at one instant in order of being asked for.

use std::collections::BTreeMap;

use crate::model::{ConnId, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// A shard's turn; stale when another time was set since.
    Turn { shard: usize },
    /// Some disk operation may be complete.
    Disk,
    /// The next message from one shard to another arrives.
    Peer { from: usize, to: usize },
    /// A connection reaches its shard.
    Accept(ConnId),
    /// The next frame of a connection reaches its shard.
    Arrive(ConnId),
    /// The shard hears that the peer is gone.
    ShardGone(ConnId),
    /// The kernel takes the next piece of an answer.
    Send(ConnId),
    /// The next piece of an answer reaches the client.
    Reach(ConnId),
    /// The client hears that the connection is closed.
    ClientGone(ConnId),
    /// A client asked to be woken.
    Client(usize),
    /// The process starts.
    Boot,
    /// The next fault of the plan.
    Fault,
    /// The process crashes again, in the same life.
    CrashAgain { life: u64 },
    /// The disk is as it was before the fault.
    FaultEnds,
    /// No more faults from here on.
    Calm,
}

#[derive(Default)]
pub(super) struct Queue {
    items: BTreeMap<(Instant, u64), What>,
    next: u64,
}

impl Queue {
    pub fn push(&mut self, at: Instant, what: What) {
        self.items.insert((at, self.next), what);
        self.next += 1;
    }

    pub fn pop(&mut self) -> Option<(Instant, What)> {
        let ((at, _), what) = self.items.pop_first()?;
        Some((at, what))
    }
}
