//! Connections and their reply slots: answers leave a connection in the order of its requests.
//!
//! A request takes a slot when it starts; the slot is filled whenever its answer is known, and leaves when all before
//! it have left. A Produce may start while earlier Produces are unanswered; anything else starts when all before it are
//! answered, as Kafka serves one request of a connection at a time. An acks=0 Produce takes no slot.
//!
//! Bounds: unanswered requests ([`CONN_SLOTS_MAX`]), frames read but not started, and answer bytes not yet sent
//! ([`CONN_REPLY_BYTES_MAX`]). At any of them the connection is paused: the shell reads no further.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;

use super::event::{Actions, Chunk};
use super::park::ParkId;
use super::stats::Requests;
use crate::model::limit::{CONN_FRAME_BYTES_MAX, CONN_REPLY_BYTES_MAX, CONN_SLOTS_MAX};
use crate::model::{ConnId, Instant, SlotId};
use crate::wire::ApiKey;

/// Where an answer goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ReplyTo {
    pub conn: ConnId,
    pub slot: SlotId,
}

/// An answer, size field included.
pub type Answer = Vec<Chunk>;

#[derive(Debug)]
enum Slot {
    Waiting { api: ApiKey, since: Instant },
    Ready(Answer),
}

#[derive(Debug)]
pub struct Conn {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// What the client called itself in ApiVersions, for logs.
    pub software: Option<String>,
    /// What the client called itself when it last spoke of its metrics.
    pub client_id: Option<String>,
    /// The parked request of this connection, if it is not a Produce.
    pub parked: Option<ParkId>,
    slots: VecDeque<Slot>,
    /// The slot id of the front of `slots`.
    first: u64,
    /// How many of `slots` are of requests other than Produce: 0 or 1, and then it is the only one.
    others: usize,
    queued: VecDeque<Bytes>,
    queued_bytes: usize,
    unsent_bytes: usize,
    paused: bool,
    closing: bool,
    half_closed: bool,
}

/// All connections of a shard.
#[derive(Default, Debug)]
pub struct Conns {
    conns: BTreeMap<ConnId, Conn>,
    /// Connections that may start a queued frame.
    startable: VecDeque<ConnId>,
    /// Of this turn.
    pub now: Instant,
    pub requests: Requests,
}

/// What kind of request a frame holds, as far as the order of starts goes.
fn is_produce(frame: &Bytes) -> bool {
    frame.len() >= 2 && frame[0] == 0 && frame[1] == 0
}

impl Conns {
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    pub fn open(&mut self, conn: ConnId, peer: SocketAddr, local: SocketAddr) {
        let fresh = Conn {
            peer,
            local,
            software: None,
            client_id: None,
            parked: None,
            slots: VecDeque::new(),
            first: 0,
            others: 0,
            queued: VecDeque::new(),
            queued_bytes: 0,
            unsent_bytes: 0,
            paused: false,
            closing: false,
            half_closed: false,
        };
        let before = self.conns.insert(conn, fresh);
        assert!(before.is_none(), "a connection id is given out once");
    }

    /// The connection is gone: everything it waited for is forgotten; answers that come later find nobody.
    pub fn closed(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
    }

    pub fn get(&self, conn: ConnId) -> Option<&Conn> {
        self.conns.get(&conn)
    }

    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(&conn)
    }

    /// Takes a frame in; it starts when [`Conns::next`] gives it out.
    pub fn frame(&mut self, id: ConnId, frame: Bytes, actions: &mut Actions) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if conn.closing {
            return;
        }
        conn.queued_bytes += frame.len();
        conn.queued.push_back(frame);
        if conn.queued.len() == 1 {
            self.startable.push_back(id);
        }
        conn.regulate(id, actions);
    }

    /// The next frame that may start.
    pub fn next(&mut self, actions: &mut Actions) -> Option<(ConnId, Bytes)> {
        while let Some(id) = self.startable.pop_front() {
            let Some(conn) = self.conns.get_mut(&id) else {
                continue;
            };
            if !conn.may_start() {
                continue;
            }
            let frame = conn.queued.pop_front().expect("may_start saw it");
            conn.queued_bytes -= frame.len();
            if !conn.queued.is_empty() {
                self.startable.push_back(id);
            }
            conn.regulate(id, actions);
            return Some((id, frame));
        }
        None
    }

    /// A slot for a request that starts now and will be answered.
    pub fn take_slot(&mut self, id: ConnId, api: ApiKey) -> Option<ReplyTo> {
        let produce = api == ApiKey::Produce;
        let conn = self.conns.get_mut(&id)?;
        debug_assert!(
            conn.others == 0 && (produce || conn.slots.is_empty()),
            "the order of starts was kept"
        );
        conn.slots.push_back(Slot::Waiting {
            api,
            since: self.now,
        });
        conn.others += usize::from(!produce);
        Some(ReplyTo {
            conn: id,
            slot: SlotId(conn.first + conn.slots.len() as u64 - 1),
        })
    }

    /// Fills a slot; everything that is now at the front and ready goes out.
    pub fn answer(&mut self, to: ReplyTo, answer: Answer, actions: &mut Actions) {
        let Some(conn) = self.conns.get_mut(&to.conn) else {
            return;
        };
        let index = to
            .slot
            .0
            .checked_sub(conn.first)
            .expect("a slot is answered once") as usize;
        let slot = &mut conn.slots[index];
        let Slot::Waiting { api, since } = *slot else {
            panic!("a slot is answered once")
        };
        self.requests.answered(api, since, self.now);
        *slot = Slot::Ready(answer);
        while let Some(Slot::Ready(_)) = conn.slots.front() {
            let Some(Slot::Ready(answer)) = conn.slots.pop_front() else {
                unreachable!("front was ready")
            };
            conn.first += 1;
            for chunk in answer {
                conn.unsent_bytes += chunk.len();
                actions.sends.push((to.conn, chunk));
            }
        }
        if conn.slots.is_empty() {
            conn.others = 0;
        }
        if !conn.queued.is_empty() {
            self.startable.push_back(to.conn);
        }
        conn.regulate(to.conn, actions);
        conn.close_if_done(to.conn, actions);
    }

    pub fn sent(&mut self, id: ConnId, bytes: usize, actions: &mut Actions) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.unsent_bytes = conn
            .unsent_bytes
            .checked_sub(bytes)
            .expect("no more is sent than was given");
        if !conn.queued.is_empty() {
            self.startable.push_back(id);
        }
        conn.regulate(id, actions);
    }

    /// Closes the connection after what was answered so far; nothing further of it starts.
    pub fn close(&mut self, id: ConnId, actions: &mut Actions) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.closing
        {
            conn.closing = true;
            conn.queued.clear();
            conn.queued_bytes = 0;
            actions.closes.push(id);
        }
    }

    /// The peer sends nothing more: the connection closes once all that came is answered.
    pub fn half_closed(&mut self, id: ConnId, actions: &mut Actions) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.half_closed = true;
            conn.close_if_done(id, actions);
        }
    }

    /// A request that has no answer is done with: a half-closed connection may have waited for it.
    pub fn unanswered(&mut self, id: ConnId, actions: &mut Actions) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.close_if_done(id, actions);
        }
    }

    pub fn ids(&self) -> Vec<ConnId> {
        self.conns.keys().copied().collect()
    }

    /// Whether every request that came was answered and every answer is with the kernel.
    pub fn is_quiet(&self) -> bool {
        self.conns
            .values()
            .all(|conn| conn.slots.is_empty() && conn.unsent_bytes == 0)
    }

    /// Whether some connection may start a frame now.
    pub fn has_startable(&self) -> bool {
        !self.startable.is_empty()
    }

    pub fn check(&self) {
        for conn in self.conns.values() {
            assert!(
                conn.others <= 1 && conn.others <= conn.slots.len(),
                "one request other than Produce at a time"
            );
            assert!(
                !matches!(conn.slots.front(), Some(Slot::Ready(_))),
                "a ready answer at the front leaves at once"
            );
            assert_eq!(
                conn.queued_bytes,
                conn.queued.iter().map(Bytes::len).sum::<usize>()
            );
        }
    }
}

impl Conn {
    fn may_start(&self) -> bool {
        let Some(frame) = self.queued.front() else {
            return false;
        };
        if self.closing
            || self.slots.len() >= CONN_SLOTS_MAX
            || self.unsent_bytes >= CONN_REPLY_BYTES_MAX
        {
            return false;
        }
        self.slots.is_empty() || (self.others == 0 && is_produce(frame))
    }

    fn close_if_done(&mut self, id: ConnId, actions: &mut Actions) {
        if self.half_closed && !self.closing && self.slots.is_empty() && self.queued.is_empty() {
            self.closing = true;
            actions.closes.push(id);
        }
    }

    fn regulate(&mut self, id: ConnId, actions: &mut Actions) {
        let full = self.slots.len() + self.queued.len() >= CONN_SLOTS_MAX
            || self.queued_bytes >= CONN_FRAME_BYTES_MAX
            || self.unsent_bytes >= CONN_REPLY_BYTES_MAX;
        if full != self.paused {
            self.paused = full;
            actions.pauses.push((id, full));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONN: ConnId = ConnId(1);

    fn conns() -> Conns {
        let mut conns = Conns::default();
        let addr = "127.0.0.1:1".parse().unwrap();
        conns.open(CONN, addr, addr);
        conns
    }

    fn frame(api: u8) -> Bytes {
        Bytes::from(vec![0, api, 0, 0])
    }

    fn text(text: &'static str) -> Answer {
        vec![Chunk::Bytes(Bytes::from_static(text.as_bytes()))]
    }

    fn sent(actions: &mut Actions) -> Vec<String> {
        let text = |chunk: Chunk| match chunk {
            Chunk::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            Chunk::Span(_) => unreachable!("the test sends bytes"),
        };
        std::mem::take(&mut actions.sends)
            .into_iter()
            .map(|(_, chunk)| text(chunk))
            .collect()
    }

    #[test]
    fn produces_overlap_and_answers_leave_in_request_order() {
        let (mut conns, mut actions) = (conns(), Actions::default());
        conns.frame(CONN, frame(0), &mut actions);
        conns.frame(CONN, frame(0), &mut actions);
        assert!(conns.next(&mut actions).is_some());
        let first = conns.take_slot(CONN, ApiKey::Produce).unwrap();
        assert!(conns.next(&mut actions).is_some());
        let second = conns.take_slot(CONN, ApiKey::Produce).unwrap();
        conns.answer(second, text("second"), &mut actions);
        assert!(sent(&mut actions).is_empty());
        conns.answer(first, text("first"), &mut actions);
        assert_eq!(sent(&mut actions), ["first", "second"]);
        conns.check();
    }

    #[test]
    fn only_a_produce_starts_behind_an_unanswered_produce() {
        let (mut conns, mut actions) = (conns(), Actions::default());
        for api in [0, 1, 0] {
            conns.frame(CONN, frame(api), &mut actions);
        }
        assert!(conns.next(&mut actions).is_some());
        let produce = conns.take_slot(CONN, ApiKey::Produce).unwrap();
        assert!(
            conns.next(&mut actions).is_none(),
            "the fetch waits for the produce"
        );
        conns.answer(produce, text("p"), &mut actions);
        assert_eq!(conns.next(&mut actions).unwrap().1[1], 1);
        let fetch = conns.take_slot(CONN, ApiKey::Fetch).unwrap();
        assert!(
            conns.next(&mut actions).is_none(),
            "the produce waits for the fetch"
        );
        conns.answer(fetch, text("f"), &mut actions);
        assert_eq!(conns.next(&mut actions).unwrap().1[1], 0);
    }

    #[test]
    fn unsent_answers_pause_the_connection_until_they_are_sent() {
        let (mut conns, mut actions) = (conns(), Actions::default());
        conns.frame(CONN, frame(1), &mut actions);
        conns.next(&mut actions).unwrap();
        let to = conns.take_slot(CONN, ApiKey::Fetch).unwrap();
        conns.answer(
            to,
            vec![Chunk::Bytes(Bytes::from(vec![0; CONN_REPLY_BYTES_MAX]))],
            &mut actions,
        );
        assert_eq!(std::mem::take(&mut actions.pauses), [(CONN, true)]);
        conns.frame(CONN, frame(1), &mut actions);
        assert!(conns.next(&mut actions).is_none());
        conns.sent(CONN, CONN_REPLY_BYTES_MAX, &mut actions);
        assert_eq!(actions.pauses, [(CONN, false)]);
        assert!(conns.next(&mut actions).is_some());
    }

    #[test]
    fn a_half_closed_connection_closes_when_all_is_answered() {
        let (mut conns, mut actions) = (conns(), Actions::default());
        conns.frame(CONN, frame(1), &mut actions);
        conns.next(&mut actions).unwrap();
        let to = conns.take_slot(CONN, ApiKey::Fetch).unwrap();
        conns.half_closed(CONN, &mut actions);
        assert!(actions.closes.is_empty());
        conns.answer(to, text("f"), &mut actions);
        assert_eq!(actions.closes, [CONN]);
    }

    #[test]
    fn a_half_closed_connection_closes_behind_a_request_without_an_answer() {
        let (mut conns, mut actions) = (conns(), Actions::default());
        conns.frame(CONN, frame(0), &mut actions);
        conns.half_closed(CONN, &mut actions);
        conns.next(&mut actions).unwrap();
        assert!(actions.closes.is_empty());
        conns.unanswered(CONN, &mut actions);
        assert_eq!(actions.closes, [CONN]);
    }

    #[test]
    fn a_closed_connection_swallows_late_answers() {
        let (mut conns, mut actions) = (conns(), Actions::default());
        conns.frame(CONN, frame(0), &mut actions);
        conns.next(&mut actions).unwrap();
        let to = conns.take_slot(CONN, ApiKey::Produce).unwrap();
        conns.closed(CONN);
        conns.answer(to, text("late"), &mut actions);
        assert!(actions.sends.is_empty());
    }
}
