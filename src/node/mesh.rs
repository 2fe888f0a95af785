//! The shards of a process and the channels between them: one bounded inbox each. Sending never waits.
//!
//! What happens when an inbox is full, by what the message is:
//!
//! - deltas and snapshots are dropped and become one `CatchUp` in the name of the shard that missed them, as soon as its inbox has room;
//! - of `Served` only the newest counts, and of `CatchUp` the oldest: each is kept, once, until there is room;
//! - a proposal is answered at once with a retriable error: it was never sent;
//! - an outcome is kept: there is at most one for each proposal that the quorum took, and it bounds those.

use std::collections::VecDeque;

use super::ring::Waker;
use crate::meta::{ApiError, Outcome, OutcomeResult};
use crate::model::limit::PEER_MESSAGES_MAX;
use crate::model::{ErrorCode, ShardIndex};
use crate::shard::{Event, PeerMsg};

pub(super) type Letter = (ShardIndex, PeerMsg);

/// All inboxes of a process, to be handed out once.
pub(super) struct Inboxes {
    senders: Vec<flume::Sender<Letter>>,
    receivers: Vec<flume::Receiver<Letter>>,
}

impl Inboxes {
    pub fn new(shards: usize) -> Inboxes {
        let (senders, receivers) = (0..shards)
            .map(|_| flume::bounded(PEER_MESSAGES_MAX))
            .unzip();
        Inboxes { senders, receivers }
    }

    pub fn mesh(&self, own: ShardIndex, wakers: &[Waker]) -> Mesh {
        let peers = self
            .senders
            .iter()
            .zip(wakers)
            .map(|(sender, waker)| Peer {
                sender: sender.clone(),
                waker: waker.clone(),
                wake: false,
                kept: Kept::default(),
            })
            .collect();
        Mesh {
            own,
            inbox: self.receivers[usize::from(own.0)].clone(),
            peers,
            kept: false,
        }
    }
}

/// One shard's end of all channels.
pub(super) struct Mesh {
    own: ShardIndex,
    inbox: flume::Receiver<Letter>,
    peers: Vec<Peer>,
    /// Some peer has something kept.
    kept: bool,
}

struct Peer {
    sender: flume::Sender<Letter>,
    waker: Waker,
    /// Something was sent in this turn.
    wake: bool,
    kept: Kept,
}

/// What did not fit into an inbox.
#[derive(Default)]
struct Kept {
    served: Option<u64>,
    catch_up: Option<u64>,
    /// The first metadata offset that the peer missed.
    missed: Option<u64>,
    outcomes: VecDeque<PeerMsg>,
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.served.is_none()
            && self.catch_up.is_none()
            && self.missed.is_none()
            && self.outcomes.is_empty()
    }
}

impl Mesh {
    /// What others said, at most `limit` messages. Gives whether there may be more.
    pub fn receive(&mut self, limit: usize, events: &mut VecDeque<Event>) -> bool {
        for _ in 0..limit {
            let Ok((from, msg)) = self.inbox.try_recv() else {
                return false;
            };
            events.push_back(Event::Peer { from, msg });
        }
        true
    }

    pub fn send(&mut self, to: ShardIndex, msg: PeerMsg, events: &mut VecDeque<Event>) {
        let peer = &mut self.peers[usize::from(to.0)];
        match peer.sender.try_send((self.own, msg)) {
            Ok(()) => peer.wake = true,
            // A disconnected peer has ended; so will this shard, soon.
            Err(flume::TrySendError::Disconnected(_)) => {}
            Err(flume::TrySendError::Full((_, msg))) => {
                keep(&mut peer.kept, to, msg, events);
                self.kept |= !peer.kept.is_empty();
            }
        }
    }

    /// Something waits for room in another's inbox: try again soon.
    pub fn has_kept(&self) -> bool {
        self.kept
    }

    /// At the end of a turn: sends what was kept where there is room by now, and wakes those that were sent something.
    pub fn flush(&mut self, events: &mut VecDeque<Event>) {
        if self.kept {
            self.kept = false;
            for (index, peer) in self.peers.iter_mut().enumerate() {
                peer.send_kept(self.own, ShardIndex(index as u16), events);
                self.kept |= !peer.kept.is_empty();
            }
        }
        for peer in &mut self.peers {
            if std::mem::take(&mut peer.wake) {
                peer.waker.wake();
            }
        }
    }
}

fn keep(kept: &mut Kept, to: ShardIndex, msg: PeerMsg, events: &mut VecDeque<Event>) {
    let oldest = |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
    match msg {
        PeerMsg::Propose { token, .. } => {
            let error = ApiError::new(
                ErrorCode::RequestTimedOut,
                "The controller has too much to do; nothing was changed.",
            );
            let outcome = Outcome::local(OutcomeResult::Failed(error));
            let msg = PeerMsg::Outcome { token, outcome };
            events.push_back(Event::Peer { from: to, msg });
        }
        PeerMsg::Outcome { .. } => kept.outcomes.push_back(msg),
        PeerMsg::Deltas { from, .. } => kept.missed = oldest(kept.missed, from),
        // Who needs one has applied less than what it holds.
        PeerMsg::Snapshot { .. } => kept.missed = Some(0),
        PeerMsg::Served { served } => kept.served = Some(served),
        PeerMsg::CatchUp { from } => kept.catch_up = oldest(kept.catch_up, from),
        // Who waits for the answer asks again.
        PeerMsg::Release { .. } | PeerMsg::Released { .. } => {}
    }
}

impl Peer {
    fn send_kept(&mut self, own: ShardIndex, to: ShardIndex, events: &mut VecDeque<Event>) {
        let sender = &self.sender;
        let wake = &mut self.wake;
        let mut send = |msg: PeerMsg| {
            let sent = sender.try_send((own, msg)).is_ok();
            *wake |= sent;
            sent
        };
        while let Some(outcome) = self.kept.outcomes.pop_front() {
            if !send(outcome.clone()) {
                self.kept.outcomes.push_front(outcome);
                return;
            }
        }
        if let Some(served) = self.kept.served.take()
            && !send(PeerMsg::Served { served })
        {
            self.kept.served = Some(served);
        }
        if let Some(from) = self.kept.catch_up.take()
            && !send(PeerMsg::CatchUp { from })
        {
            self.kept.catch_up = Some(from);
        }
        // The answer goes through the same full inbox: ask only when there is room.
        if let Some(from) = self.kept.missed
            && !sender.is_full()
        {
            self.kept.missed = None;
            let msg = PeerMsg::CatchUp { from };
            events.push_back(Event::Peer { from: to, msg });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Command;
    use crate::model::NodeId;
    use std::sync::Arc;

    const A: ShardIndex = ShardIndex(0);
    const B: ShardIndex = ShardIndex(1);

    fn pair() -> (Mesh, Mesh) {
        let inboxes = Inboxes::new(2);
        let wakers = [Waker::new().unwrap(), Waker::new().unwrap()];
        (inboxes.mesh(A, &wakers), inboxes.mesh(B, &wakers))
    }

    /// Fills B's inbox with reports of A.
    fn fill(a: &mut Mesh, events: &mut VecDeque<Event>) {
        for _ in 0..PEER_MESSAGES_MAX {
            a.send(B, PeerMsg::CatchUp { from: 0 }, events);
        }
        assert!(!a.has_kept() && events.is_empty());
    }

    fn texts(events: &mut VecDeque<Event>) -> Vec<String> {
        events
            .drain(..)
            .map(|event| match event {
                Event::Peer { from, msg } => match msg {
                    PeerMsg::Served { served } => format!("{} served {served}", from.0),
                    PeerMsg::CatchUp { from: at } => format!("{} catch up {at}", from.0),
                    PeerMsg::Outcome { token, .. } => format!("{} outcome {token}", from.0),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn drained(b: &mut Mesh) -> Vec<String> {
        let mut events = VecDeque::new();
        b.receive(PEER_MESSAGES_MAX, &mut events);
        texts(&mut events)
    }

    #[test]
    fn messages_of_one_shard_arrive_in_order() {
        let ((mut a, mut b), mut events) = (pair(), VecDeque::new());
        for served in 0..3 {
            a.send(B, PeerMsg::Served { served }, &mut events);
        }
        a.flush(&mut events);
        assert_eq!(drained(&mut b), ["0 served 0", "0 served 1", "0 served 2"]);
    }

    #[test]
    fn deltas_that_find_a_full_inbox_become_one_catch_up() {
        let ((mut a, mut b), mut events) = (pair(), VecDeque::new());
        fill(&mut a, &mut events);
        for from in [7, 9] {
            let records = Arc::from([]);
            a.send(B, PeerMsg::Deltas { from, records }, &mut events);
        }
        a.flush(&mut events);
        assert!(a.has_kept() && events.is_empty());
        drained(&mut b);
        a.flush(&mut events);
        assert_eq!(texts(&mut events), ["1 catch up 7"]);
        assert!(!a.has_kept());
    }

    #[test]
    fn the_newest_served_offset_and_every_outcome_survive_a_full_inbox() {
        let ((mut a, mut b), mut events) = (pair(), VecDeque::new());
        fill(&mut a, &mut events);
        for served in [3, 4] {
            a.send(B, PeerMsg::Served { served }, &mut events);
            let outcome = Outcome {
                result: OutcomeResult::Registered,
                offset: 1,
            };
            let token = served;
            a.send(B, PeerMsg::Outcome { token, outcome }, &mut events);
        }
        drained(&mut b);
        a.flush(&mut events);
        assert_eq!(
            drained(&mut b),
            ["0 outcome 3", "0 outcome 4", "0 served 4"]
        );
    }

    #[test]
    fn a_proposal_that_finds_a_full_inbox_is_answered_at_once() {
        let ((mut a, _b), mut events) = (pair(), VecDeque::new());
        fill(&mut a, &mut events);
        let command = Command::AllocateProducerIds { node: NodeId(0) };
        a.send(B, PeerMsg::Propose { token: 5, command }, &mut events);
        assert_eq!(texts(&mut events), ["1 outcome 5"]);
        assert!(!a.has_kept());
    }
}
