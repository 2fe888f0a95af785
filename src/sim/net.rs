//! Connections between clients and shards: in order, delayed, sometimes cut.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::queue::{Queue, What};
use crate::model::{ConnId, Instant, Rng};
use crate::net::{Assembly, BadSize};
use crate::shard::Chunk;

/// How a client ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It closed its socket: what it sent still arrives, then the end of the stream.
    Closed,
    /// The connection broke: what was under way is lost.
    Broken,
    /// It sends nothing more and reads on.
    Half,
}

pub(super) struct Conn {
    pub client: usize,
    pub shard: usize,
    /// On the way to the shard, in order: pieces of the stream, `None` is its end.
    inbound: VecDeque<Option<Bytes>>,
    /// Cuts the pieces into frames.
    assembly: Assembly,
    arrive_at: Instant,
    /// Arrived while the shard wanted no more.
    pub held: VecDeque<Option<Bytes>>,
    pub paused: bool,
    /// The shard knows the connection and was not told of its end.
    pub open_at_shard: bool,
    /// Given to send by the shard, not yet with the kernel.
    pub outbound: VecDeque<Chunk>,
    pub sending: bool,
    /// The shard asked to close once all is sent.
    pub closing: bool,
    to_client: VecDeque<Vec<u8>>,
    reach_at: Instant,
    /// The client does not care any more.
    pub left: bool,
    /// It ended with the process.
    crashed: bool,
}

impl Conn {
    /// Whole frames in what came so far.
    pub fn frames(&mut self, piece: Bytes) -> Result<Vec<Bytes>, BadSize> {
        let mut frames = Vec::new();
        let mut stream = BytesMut::from(piece);
        self.assembly
            .feed(&mut stream, |frame| frames.push(frame))?;
        Ok(frames)
    }

    pub fn is_crashed(&self) -> bool {
        self.crashed
    }
}

/// Connections of one process, and what is on its way over them.
pub(super) struct Net {
    pub conns: BTreeMap<ConnId, Conn>,
    next: u64,
    /// Microseconds one way, `[from..to)`.
    latency_us: (u64, u64),
    rng: Rng,
}

impl Net {
    pub fn new(latency_us: (u64, u64), rng: Rng) -> Net {
        Net {
            conns: BTreeMap::new(),
            next: 0,
            latency_us,
            rng,
        }
    }

    fn delay(&mut self, now: Instant) -> Instant {
        now.after_us(self.rng.range(self.latency_us.0, self.latency_us.1))
    }

    pub fn connect(
        &mut self,
        client: usize,
        shard: usize,
        now: Instant,
        queue: &mut Queue,
    ) -> ConnId {
        self.next += 1;
        let id = ConnId(self.next);
        let arrive_at = self.delay(now);
        queue.push(arrive_at, What::Accept(id));
        let conn = Conn {
            client,
            shard,
            inbound: VecDeque::new(),
            assembly: Assembly::new(),
            arrive_at,
            held: VecDeque::new(),
            paused: false,
            open_at_shard: false,
            outbound: VecDeque::new(),
            sending: false,
            closing: false,
            to_client: VecDeque::new(),
            reach_at: now,
            left: false,
            crashed: false,
        };
        self.conns.insert(id, conn);
        id
    }

    /// Bytes of the stream; they may arrive in pieces.
    pub fn send(&mut self, id: ConnId, bytes: Vec<u8>, now: Instant, queue: &mut Queue) {
        let mut rest = Bytes::from(bytes);
        while rest.len() > 1 && self.rng.one_in(8) {
            let at = self.rng.range(1, rest.len() as u64) as usize;
            let piece = rest.split_to(at);
            self.send_item(id, Some(piece), now, queue);
        }
        self.send_item(id, Some(rest), now, queue);
    }

    fn send_item(&mut self, id: ConnId, item: Option<Bytes>, now: Instant, queue: &mut Queue) {
        let at = self.delay(now);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.arrive_at = conn.arrive_at.max(at);
            conn.inbound.push_back(item);
            queue.push(conn.arrive_at, What::Arrive(id));
        }
    }

    /// What arrives now at the shard, or nothing if it is held back or lost.
    pub fn arrived(&mut self, id: ConnId) -> Option<Option<Bytes>> {
        let conn = self.conns.get_mut(&id)?;
        let item = conn.inbound.pop_front()?;
        if conn.paused {
            conn.held.push_back(item);
            return None;
        }
        Some(item)
    }

    pub fn end(&mut self, id: ConnId, how: End, now: Instant, queue: &mut Queue) {
        let at = self.delay(now);
        let later = self.rng.range(0, 5_000);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match how {
            End::Half => self.send_item(id, None, now, queue),
            End::Closed => {
                conn.left = true;
                let gone = conn.arrive_at.max(at).after_us(later);
                self.send_item(id, None, now, queue);
                queue.push(gone, What::ShardGone(id));
            }
            End::Broken => {
                conn.left = true;
                queue.push(at, What::ShardGone(id));
            }
        }
    }

    /// Bytes that the kernel took leave for the client.
    pub fn leave(&mut self, id: ConnId, bytes: Vec<u8>, now: Instant, queue: &mut Queue) {
        let at = self.delay(now);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.reach_at = conn.reach_at.max(at);
            conn.to_client.push_back(bytes);
            queue.push(conn.reach_at, What::Reach(id));
        }
    }

    /// What reaches the client now, and which client.
    pub fn reached(&mut self, id: ConnId) -> Option<(usize, Vec<u8>)> {
        let conn = self.conns.get_mut(&id)?;
        let bytes = conn.to_client.pop_front()?;
        (!conn.left).then_some((conn.client, bytes))
    }

    /// The client will hear that the connection is closed, after what was sent before.
    pub fn close_to_client(&mut self, id: ConnId, now: Instant, queue: &mut Queue) {
        let at = self.delay(now);
        if let Some(conn) = self.conns.get_mut(&id) {
            queue.push(conn.reach_at.max(at), What::ClientGone(id));
        }
    }

    /// The process ends: it owes no connection anything any more.
    pub fn excuse(&mut self) {
        for conn in self.conns.values_mut() {
            conn.crashed = true;
        }
    }

    pub fn was_crashed(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_none_or(|conn| conn.crashed)
    }

    /// The process is gone: nothing more goes either way.
    pub fn crash(&mut self, now: Instant, queue: &mut Queue) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            let at = self.delay(now);
            let conn = self.conns.get_mut(&id).expect("listed above");
            conn.inbound.clear();
            conn.held.clear();
            conn.outbound.clear();
            conn.to_client.clear();
            conn.open_at_shard = false;
            conn.closing = true;
            conn.crashed = true;
            queue.push(at, What::ClientGone(id));
        }
    }
}
