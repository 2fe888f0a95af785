//! The `raft` crate, wrapped once: the only file that names it.
//!
//! The crate panics on nonsense, so nothing from a peer reaches it unchecked ([`Raft::step`]). Its election timeout comes
//! from a generator of its own; it is set from the seeded one after every call that may have drawn it anew. Persisting is
//! asynchronous: what must be on the device is handed out by [`Raft::poll`], and [`Raft::persisted`] says that it is.

use std::collections::VecDeque;

use protobuf::Message as _;
use raft::eraftpb::{self, ConfState, EntryType, HardState, MessageType};
use raft::{Config, GetEntriesContext, RaftState, RawNode, StateRole, Storage, StorageError};

use super::message::{Kind, Message};
use super::wal::{Entry, EntryKind, Hard};
use crate::model::Rng;
use crate::model::limit::RAFT_TERM_STEP_MAX;

/// Ticks without a leader until an election, at least; at most twice that.
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;
/// Bytes of entries in one message to a follower.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// What a voter had on its device.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    pub hard: Hard,
    /// The last entry of the snapshot, 0 for none.
    pub snapshot_index: u64,
    pub snapshot_term: u64,
    pub voters: Vec<u64>,
    /// Behind the snapshot, without a gap.
    pub entries: Vec<Entry>,
}

/// What the crate wants done.
#[derive(Debug, Default)]
pub struct Work {
    /// To be told by [`Raft::persisted`], also when there is nothing to write.
    pub number: u64,
    pub hard: Option<Hard>,
    pub entries: Vec<Entry>,
    pub committed: Vec<Entry>,
}

pub struct Raft {
    node: RawNode<Log>,
    rng: Rng,
    election_timeout: usize,
    /// Messages that may leave now.
    outbox: Vec<eraftpb::Message>,
    /// Messages that may leave once the work with this number is on the device.
    held: VecDeque<(u64, Vec<eraftpb::Message>)>,
}

impl Raft {
    /// A voter that has applied the entries `[..=applied]`.
    pub fn new(id: u64, recovered: Recovered, applied: u64, rng: Rng) -> Result<Raft, String> {
        let config = Config {
            id,
            applied,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            pre_vote: true,
            check_quorum: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let log = Log::new(recovered);
        let node = RawNode::new(&config, log, &logger)
            .map_err(|error| format!("the metadata quorum cannot start: {error}"))?;
        let mut raft = Raft {
            node,
            rng,
            election_timeout: 0,
            outbox: Vec::new(),
            held: VecDeque::new(),
        };
        raft.seed_timeout();
        Ok(raft)
    }

    /// Stands for election now. A single voter leads at once.
    pub fn campaign(&mut self) {
        // The crate refuses only when a change of voters is not applied yet; then a timeout tries again.
        let _ = self.node.campaign();
        self.seed_timeout();
    }

    pub fn tick(&mut self) {
        self.node.tick();
        self.seed_timeout();
    }

    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// The leader's id, 0 for unknown.
    pub fn leader(&self) -> u64 {
        self.node.raft.leader_id
    }

    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    pub fn voters(&self) -> Vec<u64> {
        self.node.store().conf.voters.clone()
    }

    pub fn last_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// Proposes an entry; its index, or `None` when this voter does not lead.
    pub fn propose(&mut self, data: Vec<u8>) -> Option<u64> {
        if !self.is_leader() {
            return None;
        }
        self.node.propose(Vec::new(), data).ok()?;
        Some(self.last_index())
    }

    /// Takes a message of another voter, if it can be true.
    pub fn step(&mut self, message: Message) -> Result<(), &'static str> {
        self.check(&message)?;
        self.node
            .step(message_to(message))
            .map_err(|_| "refused by the voter")?;
        self.seed_timeout();
        Ok(())
    }

    /// Everything that the crate would panic on, or that peers may not send.
    fn check(&self, m: &Message) -> Result<(), &'static str> {
        let log = &self.node.raft.raft_log;
        let id = self.node.raft.id;
        if m.to != id || m.from == id || !self.node.store().conf.voters.contains(&m.from) {
            return Err("not between voters");
        }
        if m.term == 0 || m.term > self.term().saturating_add(RAFT_TERM_STEP_MAX) {
            return Err("a term out of reach");
        }
        // The crate says term 0 of every entry that it does not have.
        if (m.log_term == 0) != (m.index == 0) && m.kind == Kind::Append {
            return Err("an entry without a term");
        }
        match m.kind {
            Kind::RequestVote
            | Kind::RequestPreVote
            | Kind::RequestVoteResponse
            | Kind::RequestPreVoteResponse
            | Kind::TimeoutNow => Ok(()),
            Kind::Heartbeat => {
                if m.commit > log.last_index() {
                    return Err("committed beyond our log");
                }
                Ok(())
            }
            Kind::AppendResponse | Kind::HeartbeatResponse => {
                if m.index > log.last_index() || m.reject_hint > log.last_index() {
                    return Err("acknowledges what was never sent");
                }
                Ok(())
            }
            Kind::Append => {
                let mut index = m.index;
                let mut term = m.log_term.max(1);
                for entry in &m.entries {
                    index = index.checked_add(1).ok_or("index out of range")?;
                    if entry.index != index || entry.term < term || entry.term > m.term {
                        return Err("entries out of order");
                    }
                    term = entry.term;
                }
                Ok(())
            }
        }
    }

    /// The next work, until `None`.
    pub fn poll(&mut self) -> Option<Work> {
        if !self.node.has_ready() {
            return None;
        }
        let mut ready = self.node.ready();
        let mut work = Work {
            number: ready.number(),
            ..Work::default()
        };
        self.outbox.extend(ready.take_messages());
        let persisted = ready.take_persisted_messages();
        if !persisted.is_empty() {
            self.held.push_back((work.number, persisted));
        }
        work.committed = ready.take_committed_entries().iter().map(ours).collect();
        let entries = ready.take_entries();
        work.entries = entries.iter().map(ours).collect();
        let store = self.node.mut_store();
        store.append(&entries);
        if let Some(hard) = ready.hs() {
            store.hard = hard.clone();
            work.hard = Some(Hard {
                term: hard.term,
                vote: hard.vote,
                commit: hard.commit,
            });
        }
        self.node.advance_append_async(ready);
        for entry in &work.committed {
            self.apply_conf_change(entry);
        }
        self.node.advance_apply();
        self.seed_timeout();
        Some(work)
    }

    /// All work up to `number` is on the device.
    pub fn persisted(&mut self, number: u64) {
        self.node.on_persist_ready(number);
        while self.held.front().is_some_and(|(held, _)| *held <= number) {
            if let Some((_, messages)) = self.held.pop_front() {
                self.outbox.extend(messages);
            }
        }
        self.seed_timeout();
    }

    /// Messages to send, each to the voter it names.
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outbox)
            .into_iter()
            .filter_map(message_from)
            .collect()
    }

    /// The hard state as of the last [`Raft::poll`].
    pub fn hard(&self) -> Hard {
        let hard = &self.node.store().hard;
        Hard {
            term: hard.term,
            vote: hard.vote,
            commit: hard.commit,
        }
    }

    /// Entries behind `index`, as of the last [`Raft::poll`].
    pub fn entries_behind(&self, index: u64) -> Vec<Entry> {
        let store = self.node.store();
        store
            .entries
            .iter()
            .filter(|e| e.index > index)
            .map(ours)
            .collect()
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        self.node.store().term(index).ok()
    }

    /// A snapshot holds the entries `[..=index]`: they are not kept here any more.
    pub fn compact(&mut self, index: u64) {
        self.node.mut_store().compact(index);
    }

    fn apply_conf_change(&mut self, entry: &Entry) {
        let state = match entry.kind {
            EntryKind::Normal => return,
            EntryKind::ConfChange => {
                // Parsed by protobuf from our own log only, never from a peer: `step` has no way to bring one yet.
                let change = eraftpb::ConfChange::parse_from_bytes(&entry.data).ok();
                change.and_then(|change| self.node.apply_conf_change(&change).ok())
            }
            EntryKind::ConfChangeV2 => {
                let change = eraftpb::ConfChangeV2::parse_from_bytes(&entry.data).ok();
                change.and_then(|change| self.node.apply_conf_change(&change).ok())
            }
        };
        if let Some(state) = state {
            self.node.mut_store().conf = state;
        }
    }

    /// The crate draws its timeout from a generator that no seed reaches; ours replaces every draw.
    fn seed_timeout(&mut self) {
        if self.node.raft.randomized_election_timeout() != self.election_timeout {
            let ticks = self
                .rng
                .range(ELECTION_TICKS as u64, 2 * ELECTION_TICKS as u64);
            self.election_timeout = ticks as usize;
            self.node
                .raft
                .set_randomized_election_timeout(self.election_timeout);
        }
    }
}

fn message_to(m: Message) -> eraftpb::Message {
    let mut to = eraftpb::Message::default();
    to.set_msg_type(match m.kind {
        Kind::Append => MessageType::MsgAppend,
        Kind::AppendResponse => MessageType::MsgAppendResponse,
        Kind::RequestVote => MessageType::MsgRequestVote,
        Kind::RequestVoteResponse => MessageType::MsgRequestVoteResponse,
        Kind::Heartbeat => MessageType::MsgHeartbeat,
        Kind::HeartbeatResponse => MessageType::MsgHeartbeatResponse,
        Kind::TimeoutNow => MessageType::MsgTimeoutNow,
        Kind::RequestPreVote => MessageType::MsgRequestPreVote,
        Kind::RequestPreVoteResponse => MessageType::MsgRequestPreVoteResponse,
    });
    to.to = m.to;
    to.from = m.from;
    to.term = m.term;
    to.log_term = m.log_term;
    to.index = m.index;
    to.commit = m.commit;
    to.commit_term = m.commit_term;
    to.reject = m.reject;
    to.reject_hint = m.reject_hint;
    to.entries = m.entries.into_iter().map(theirs).collect();
    to
}

/// `None` for what this voter has no use for between processes (snapshots travel another way, nothing is read by index).
fn message_from(m: eraftpb::Message) -> Option<Message> {
    let kind = match m.get_msg_type() {
        MessageType::MsgAppend => Kind::Append,
        MessageType::MsgAppendResponse => Kind::AppendResponse,
        MessageType::MsgRequestVote => Kind::RequestVote,
        MessageType::MsgRequestVoteResponse => Kind::RequestVoteResponse,
        MessageType::MsgHeartbeat => Kind::Heartbeat,
        MessageType::MsgHeartbeatResponse => Kind::HeartbeatResponse,
        MessageType::MsgTimeoutNow => Kind::TimeoutNow,
        MessageType::MsgRequestPreVote => Kind::RequestPreVote,
        MessageType::MsgRequestPreVoteResponse => Kind::RequestPreVoteResponse,
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgSnapshot
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp => return None,
    };
    Some(Message {
        kind,
        to: m.to,
        from: m.from,
        term: m.term,
        log_term: m.log_term,
        index: m.index,
        commit: m.commit,
        commit_term: m.commit_term,
        reject: m.reject,
        reject_hint: m.reject_hint,
        entries: m.entries.iter().map(ours).collect(),
    })
}

fn ours(entry: &eraftpb::Entry) -> Entry {
    Entry {
        index: entry.index,
        term: entry.term,
        kind: match entry.entry_type {
            EntryType::EntryNormal => EntryKind::Normal,
            EntryType::EntryConfChange => EntryKind::ConfChange,
            EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
        },
        data: entry.data.to_vec(),
    }
}

fn theirs(entry: Entry) -> eraftpb::Entry {
    eraftpb::Entry {
        index: entry.index,
        term: entry.term,
        entry_type: match entry.kind {
            EntryKind::Normal => EntryType::EntryNormal,
            EntryKind::ConfChange => EntryType::EntryConfChange,
            EntryKind::ConfChangeV2 => EntryType::EntryConfChangeV2,
        },
        data: entry.data.into(),
        ..eraftpb::Entry::default()
    }
}

/// The log as the crate reads it: everything behind the snapshot, in memory.
struct Log {
    hard: HardState,
    conf: ConfState,
    snapshot_index: u64,
    snapshot_term: u64,
    entries: VecDeque<eraftpb::Entry>,
}

impl Log {
    fn new(recovered: Recovered) -> Log {
        let hard = HardState {
            term: recovered.hard.term,
            vote: recovered.hard.vote,
            commit: recovered.hard.commit,
            ..HardState::default()
        };
        let conf = ConfState {
            voters: recovered.voters,
            ..ConfState::default()
        };
        Log {
            hard,
            conf,
            snapshot_index: recovered.snapshot_index,
            snapshot_term: recovered.snapshot_term,
            entries: recovered.entries.into_iter().map(theirs).collect(),
        }
    }

    fn last(&self) -> u64 {
        self.snapshot_index + self.entries.len() as u64
    }

    /// Entries replace those with the same index, and all behind.
    fn append(&mut self, entries: &[eraftpb::Entry]) {
        let Some(first) = entries.first() else {
            return;
        };
        assert!(
            first.index > self.snapshot_index && first.index <= self.last() + 1,
            "entries continue the log"
        );
        self.entries
            .truncate((first.index - self.snapshot_index - 1) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    fn compact(&mut self, index: u64) {
        if index <= self.snapshot_index || index > self.last() {
            return;
        }
        self.snapshot_term = self.entries[(index - self.snapshot_index - 1) as usize].term;
        self.entries.drain(..(index - self.snapshot_index) as usize);
        self.snapshot_index = index;
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState {
            hard_state: self.hard.clone(),
            conf_state: self.conf.clone(),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low <= self.snapshot_index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let from = (low - self.snapshot_index - 1) as usize;
        let mut entries: Vec<eraftpb::Entry> = self
            .entries
            .range(from..from + (high - low) as usize)
            .cloned()
            .collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.snapshot_index {
            return Ok(self.snapshot_term);
        }
        if index < self.snapshot_index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.snapshot_index - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(raft::Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.snapshot_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        Err(raft::Error::Store(
            StorageError::SnapshotTemporarilyUnavailable,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(id: u64, voters: &[u64]) -> Raft {
        let recovered = Recovered {
            voters: voters.to_vec(),
            ..Recovered::default()
        };
        Raft::new(id, recovered, 0, Rng::seeded(id)).unwrap()
    }

    /// Runs all work of a voter as if its device answered at once; the data that was committed.
    fn settle(raft: &mut Raft) -> Vec<Vec<u8>> {
        let mut committed = Vec::new();
        while let Some(work) = raft.poll() {
            committed.extend(
                work.committed
                    .into_iter()
                    .map(|e| e.data)
                    .filter(|d| !d.is_empty()),
            );
            raft.persisted(work.number);
        }
        committed
    }

    #[test]
    fn a_single_voter_leads_without_a_tick_and_commits_what_is_persisted() {
        let mut raft = voter(1, &[1]);
        raft.campaign();
        assert!(raft.is_leader());
        settle(&mut raft);
        assert_eq!(raft.propose(b"a".to_vec()), Some(2));
        let work = raft.poll().unwrap();
        assert_eq!((work.entries.len(), work.committed.len()), (1, 0));
        assert!(
            raft.poll().is_none_or(|w| w.committed.is_empty()),
            "not on the device yet"
        );
        raft.persisted(work.number);
        assert_eq!(settle(&mut raft), [b"a".to_vec()]);
    }

    #[test]
    fn three_voters_agree_and_survive_the_loss_of_their_leader() {
        let mut voters: Vec<Raft> = (1..=3).map(|id| voter(id, &[1, 2, 3])).collect();
        let mut committed = vec![Vec::new(); 3];
        let mut round = |voters: &mut Vec<Raft>, cut: Option<u64>| {
            for _ in 0..60 {
                let mut messages = Vec::new();
                for (i, raft) in voters.iter_mut().enumerate() {
                    raft.tick();
                    committed[i].extend(settle(raft));
                    messages.extend(raft.take_messages());
                }
                for m in messages {
                    if cut != Some(m.from) && cut != Some(m.to) {
                        let to = m.to as usize - 1;
                        voters[to].step(m).unwrap();
                    }
                }
            }
            committed.clone()
        };
        round(&mut voters, None);
        let first = voters.iter().position(Raft::is_leader).expect("a leader");
        voters[first].propose(b"one".to_vec()).unwrap();
        assert_eq!(round(&mut voters, None), vec![vec![b"one".to_vec()]; 3]);
        round(&mut voters, Some(first as u64 + 1));
        let second = (0..3)
            .find(|i| *i != first && voters[*i].is_leader())
            .expect("another leader");
        voters[second].propose(b"two".to_vec()).unwrap();
        assert_eq!(
            round(&mut voters, None),
            vec![vec![b"one".to_vec(), b"two".to_vec()]; 3]
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_election() {
        let history = || {
            let mut raft = voter(2, &[1, 2, 3]);
            let mut terms = Vec::new();
            for _ in 0..200 {
                raft.tick();
                settle(&mut raft);
                terms.push((raft.take_messages().len(), raft.term()));
            }
            terms
        };
        assert_eq!(history(), history());
    }

    /// A message that may be anything, near what the voter has and far from it.
    fn any_message(rng: &mut Rng, raft: &Raft) -> Message {
        let near = |rng: &mut Rng, n: u64| match rng.below(20) {
            0 => u64::MAX - rng.below(3),
            1 => rng.next_u64(),
            _ => (n + rng.below(6)).saturating_sub(3),
        };
        let (term, last) = (raft.term(), raft.last_index());
        let mut m = Message {
            kind: Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize],
            to: if rng.one_in(20) { rng.below(4) } else { 1 },
            from: if rng.one_in(20) {
                rng.below(5)
            } else {
                2 + rng.below(2)
            },
            term: near(rng, term),
            log_term: near(rng, term),
            index: near(rng, last),
            commit: near(rng, last),
            commit_term: near(rng, term),
            reject: rng.one_in(2),
            reject_hint: near(rng, last),
            entries: Vec::new(),
        };
        for i in 0..rng.below(4) {
            let gap = u64::from(rng.one_in(10));
            m.entries.push(Entry {
                index: m.index.wrapping_add(1 + i + gap),
                term: m.log_term.wrapping_add(rng.below(2)),
                kind: EntryKind::Normal,
                data: vec![0; rng.below(3) as usize],
            });
        }
        m
    }

    #[test]
    fn nonsense_from_a_peer_is_refused_and_never_panics() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut rng = Rng::seeded(seed);
            let mut raft = voter(1, &[1, 2, 3]);
            let (mut taken, mut applied) = (0, 0);
            for _ in 0..3_000 {
                let m = any_message(&mut rng, &raft);
                let kind = m.kind;
                if raft.step(m).is_ok() {
                    taken += 1;
                    seen.insert((raft.node.raft.state as u8, kind as u8));
                }
                if rng.one_in(4) {
                    raft.tick();
                }
                if rng.one_in(8) {
                    raft.propose(vec![1]);
                }
                while let Some(work) = raft.poll() {
                    applied = work.committed.last().map_or(applied, |e| e.index);
                    raft.persisted(work.number);
                }
                if rng.one_in(100) {
                    raft.compact(applied);
                }
                raft.take_messages();
            }
            assert!(taken > 300, "seed {seed}: some are taken, {taken}");
        }
        // Every kind was taken as a follower, and the answers as a candidate and a leader too.
        assert!(seen.len() > 2 * Kind::ALL.len(), "{seen:?}");
    }
}
