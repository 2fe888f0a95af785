//! The metadata quorum of this process: commands in, committed records and outcomes out.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::boot::Boot;
use super::controller::decide;
use super::keeper::{Buffer, Keeper, NewSnapshot, Told};
use super::message::Message;
use super::raft::{Raft, Work};
use super::wal::{Entry, EntryKind, Hard, Snapshot, decode_records, encode_records};
use crate::log::{DiskOp, DiskResult, Ids, OpId};
use crate::meta::{
    ApiError, Command, Image, Outcome, OutcomeResult, QuorumState, Record, StaticConfig,
};
use crate::model::limit::{METADATA_LOG_BYTES_MAX, PROPOSALS_MAX};
use crate::model::{ErrorCode, Instant, NodeId, Now, Rng, ShardIndex};

/// Time of one tick of Raft, with more than one voter.
const TICK_MS: u64 = 100;

#[derive(Clone, Debug)]
pub struct Options {
    pub process: i32,
    /// Metadata records after which a snapshot replaces the log.
    pub snapshot_records: u64,
    /// Of the operations and files of the metadata log; the stores of the shard have others.
    pub ids: Ids,
}

impl Options {
    /// Raft's id of this voter; 0 is none there.
    pub(super) fn id(&self) -> u64 {
        voter_id(self.process)
    }
}

fn voter_id(process: i32) -> u64 {
    u64::try_from(process).expect("a process has a number") + 1
}

pub(super) fn process_of(voter: u64) -> Option<i32> {
    i32::try_from(voter.checked_sub(1)?).ok()
}

/// What comes out when it is on the device and agreed on.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Metadata offset of the first record.
    pub offset: u64,
    /// Empty when only an outcome is due.
    pub records: Arc<[Record]>,
    /// The token of a proposal made here, and what became of it.
    pub outcome: Option<(u64, Outcome)>,
}

/// A proposal that has no outcome yet.
struct Pending {
    /// Due when the entry with this index is applied.
    index: u64,
    /// Of that entry, if it is the proposal's own; `None` when it only waits for what was decided before it.
    own: bool,
    token: u64,
    outcome: Outcome,
}

pub struct Quorum {
    options: Options,
    raft: Raft,
    keeper: Keeper,
    rng: Rng,
    /// Everything committed.
    committed: Image,
    /// And everything decided on top of it; commands are decided against this one.
    ahead: Image,
    /// Entries applied to `committed`: `[..=applied]`.
    applied: u64,
    led: bool,
    /// A leader decides only once everything before its term is applied: up to this index.
    ready_at: u64,
    pending: VecDeque<Pending>,
    buffer: Buffer,
    ready: Vec<Committed>,
    /// Metadata records since the last snapshot.
    since_snapshot: u64,
    tick_at: Option<Instant>,
    failed: Option<String>,
    now: Now,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum")
            .field("term", &self.raft.term())
            .field("leader", &self.is_leader())
            .field("applied", &self.applied)
            .field("pending", &self.pending.len())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Quorum {
    /// The cursor that reads what is there; it ends in a quorum and the image of everything committed.
    pub fn boot(options: Options, statics: Arc<StaticConfig>, rng: Rng) -> Boot {
        Boot::new(options, statics, rng)
    }

    pub(super) fn new(
        options: Options,
        mut raft: Raft,
        keeper: Keeper,
        image: Image,
        applied: u64,
        mut rng: Rng,
    ) -> Quorum {
        // The generators of Raft and of decisions must not be the same.
        let rng = Rng::seeded(rng.next_u64());
        let hard = raft.hard();
        let single = raft.voters() == [options.id()];
        raft.compact(applied);
        let mut quorum = Quorum {
            options,
            raft,
            keeper,
            rng,
            ahead: image.clone(),
            committed: image,
            applied,
            led: false,
            ready_at: 0,
            pending: VecDeque::new(),
            buffer: Buffer {
                hard,
                ..Buffer::default()
            },
            ready: Vec::new(),
            since_snapshot: 0,
            tick_at: (!single).then_some(Instant(0)),
            failed: None,
            now: Now::default(),
        };
        if single {
            quorum.raft.campaign();
        }
        quorum
    }

    pub fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    /// The process that leads, if it is known.
    pub fn leader(&self) -> Option<i32> {
        process_of(self.raft.leader())
    }

    /// Raft's term, the epoch of the leader.
    pub fn term(&self) -> u64 {
        self.raft.term()
    }

    /// Why nothing can be decided any more: the device of the metadata log failed. The process should stop.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Everything committed.
    pub fn image(&self) -> &Image {
        &self.committed
    }

    /// Nothing is in flight, no outcome is due, and nothing waits to be written unless it cannot be.
    pub fn is_idle(&self) -> bool {
        let written =
            self.pending.is_empty() && self.buffer.number == 0 && !self.keeper.is_rotating();
        self.keeper.is_idle() && self.ready.is_empty() && (written || self.keeper.is_stuck())
    }

    /// Takes what another voter said, if it can be true.
    pub fn step(&mut self, message: &[u8], now: Now) -> Result<(), &'static str> {
        self.now = now;
        let message = Message::decode(message).ok_or("not a message between voters")?;
        self.raft.step(message)?;
        self.work();
        Ok(())
    }

    /// What other voters are to be told, with the process of each.
    pub fn take_messages(&mut self) -> Vec<(i32, Bytes)> {
        let messages = self.raft.take_messages();
        messages
            .iter()
            .filter_map(|m| Some((process_of(m.to)?, Bytes::from(m.encode()))))
            .collect()
    }

    /// Decides a command. Its outcome comes out of [`Quorum::take`] under `token`, once, whatever happens.
    pub fn propose(&mut self, token: u64, command: Command, now: Now) {
        self.now = now;
        self.work();
        if let Some(error) = self.cannot_decide() {
            self.answer(token, OutcomeResult::Failed(error));
            return;
        }
        if command == Command::DescribeQuorum {
            let state = self.state();
            self.answer(token, OutcomeResult::Quorum(state));
            return;
        }
        let (records, outcome) = decide(&self.ahead, &command, &mut self.rng);
        let index = if records.is_empty() {
            self.raft.last_index()
        } else {
            match self.raft.propose(encode_records(records.iter())) {
                Some(index) => index,
                None => {
                    self.answer(token, OutcomeResult::Failed(not_controller()));
                    return;
                }
            }
        };
        for record in &records {
            self.ahead.apply(self.ahead.applied(), record);
        }
        self.pending.push_back(Pending {
            index,
            own: !records.is_empty(),
            token,
            outcome,
        });
        self.due();
        self.work();
    }

    fn state(&self) -> QuorumState {
        let node = |process: i32| NodeId::of(process, ShardIndex(0));
        let voters = self.raft.voters();
        QuorumState {
            leader: self.leader().map_or(NodeId::NONE, node),
            epoch: i32::try_from(self.term()).unwrap_or(i32::MAX),
            high_watermark: self.committed.applied(),
            voters: voters
                .into_iter()
                .filter_map(process_of)
                .map(node)
                .collect(),
        }
    }

    fn cannot_decide(&self) -> Option<ApiError> {
        if let Some(failed) = &self.failed {
            return Some(ApiError::new(
                ErrorCode::KafkaStorageError,
                format!("Nothing can be decided any more: {failed}."),
            ));
        }
        if !self.is_leader() || self.applied < self.ready_at && !self.is_single() {
            return Some(not_controller());
        }
        (self.pending.len() >= PROPOSALS_MAX).then(|| {
            ApiError::new(
                ErrorCode::RequestTimedOut,
                "Too many changes of the metadata are under way.",
            )
        })
    }

    fn is_single(&self) -> bool {
        self.tick_at.is_none()
    }

    fn answer(&mut self, token: u64, result: OutcomeResult) {
        let offset = self.committed.applied();
        self.ready.push(Committed {
            offset,
            records: Arc::from([]),
            outcome: Some((token, Outcome { result, offset })),
        });
    }

    /// Whether the operation was the quorum's.
    pub fn on_disk(&mut self, op: OpId, result: DiskResult, now: Now) -> bool {
        self.now = now;
        let Some(told) = self.keeper.on_disk(op, &result, now) else {
            return false;
        };
        for told in told {
            match told {
                Told::Persisted(number) => self.raft.persisted(number),
                Told::Snapshot(index) => self.raft.compact(index),
                Told::Failed(why) => self.fail(why),
            }
        }
        self.work();
        true
    }

    pub fn tick(&mut self, now: Now) {
        self.now = now;
        if let Some(at) = self.tick_at
            && at <= now.mono
        {
            self.raft.tick();
            self.tick_at = Some(now.mono.after_ms(TICK_MS));
        }
        self.work();
    }

    /// When [`Quorum::tick`] is due even if nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.tick_at, self.keeper.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What is to be done and what came out, in order. Only records that are on the device come out.
    pub fn take(&mut self, out: &mut Vec<(OpId, DiskOp)>) -> Vec<Committed> {
        self.work();
        self.keeper.take(out);
        std::mem::take(&mut self.ready)
    }

    /// Moves everything as far as it goes without the device.
    fn work(&mut self) {
        if self.failed.is_some() {
            return;
        }
        while let Some(work) = self.raft.poll() {
            self.take_work(work);
        }
        self.follow_role();
        if !self.keeper.is_rotating()
            && (self.since_snapshot >= self.options.snapshot_records
                || self.keeper.log_bytes() >= METADATA_LOG_BYTES_MAX)
        {
            self.since_snapshot = 0;
            let new = snapshot(&self.committed, &self.raft, self.applied);
            self.keeper.rotate(new);
        }
        let raft = &self.raft;
        self.keeper.go(self.now, &mut self.buffer, |index| {
            (raft.hard(), raft.entries_behind(index))
        });
    }

    fn take_work(&mut self, work: Work) {
        // A new commit index alone need not be on the device: it is known again once entries follow it.
        let before = self.buffer.hard;
        let same = |hard: Hard| (hard.term, hard.vote) == (before.term, before.vote);
        let lazy = work.entries.is_empty() && work.hard.is_none_or(same);
        if let Some(hard) = work.hard {
            self.buffer.hard = hard;
        }
        if let Some(first) = work.entries.first() {
            // A new leader may replace what is not written yet.
            self.buffer.entries.retain(|e| e.index < first.index);
            self.buffer.entries.extend(work.entries);
        }
        if lazy && self.buffer.number == 0 && self.keeper.is_idle() {
            self.raft.persisted(work.number);
        } else {
            self.buffer.number = work.number;
        }
        for entry in &work.committed {
            self.apply(entry);
        }
    }

    fn apply(&mut self, entry: &Entry) {
        assert_eq!(
            entry.index,
            self.applied + 1,
            "entries are applied in order"
        );
        let records = match entry.kind {
            EntryKind::Normal => match decode_records(&entry.data) {
                Ok(records) => records,
                Err(why) => {
                    return self.fail(format!("reading entry {}: {why}", entry.index));
                }
            },
            EntryKind::ConfChange | EntryKind::ConfChangeV2 => Vec::new(),
        };
        let offset = self.committed.applied();
        for record in &records {
            self.committed.apply(self.committed.applied(), record);
        }
        self.applied = entry.index;
        self.since_snapshot += records.len() as u64;
        if !self.led {
            // A follower decides nothing; its look-ahead is what is committed.
            for record in &records {
                self.ahead.apply(self.ahead.applied(), record);
            }
        }
        let own = self
            .pending
            .front()
            .is_some_and(|p| p.own && p.index == entry.index);
        let outcome = if own {
            self.pending.pop_front().map(|p| (p.token, p.outcome))
        } else {
            None
        };
        if !records.is_empty() || outcome.is_some() {
            self.ready.push(Committed {
                offset,
                records: records.into(),
                outcome,
            });
        }
        self.due();
    }

    /// Outcomes without records that waited for what is applied by now.
    fn due(&mut self) {
        while self
            .pending
            .front()
            .is_some_and(|p| !p.own && p.index <= self.applied)
        {
            let Some(pending) = self.pending.pop_front() else {
                return;
            };
            self.ready.push(Committed {
                offset: self.committed.applied(),
                records: Arc::from([]),
                outcome: Some((pending.token, pending.outcome)),
            });
        }
    }

    /// Takes up and lays down the lead.
    fn follow_role(&mut self) {
        let leads = self.raft.is_leader();
        if leads == self.led {
            return;
        }
        self.led = leads;
        // Nothing decided is rolled back: the look-ahead starts again from what is committed.
        self.ahead = self.committed.clone();
        if leads {
            self.ready_at = self.raft.last_index();
        } else {
            self.fail_pending(&not_controller());
        }
    }

    fn fail_pending(&mut self, error: &ApiError) {
        for pending in std::mem::take(&mut self.pending) {
            self.answer(pending.token, OutcomeResult::Failed(error.clone()));
        }
    }

    fn fail(&mut self, why: String) {
        let error = ApiError::new(
            ErrorCode::KafkaStorageError,
            format!("The metadata log failed {why}."),
        );
        self.failed = Some(format!("the metadata log failed {why}"));
        self.fail_pending(&error);
    }
}

fn not_controller() -> ApiError {
    ApiError::new(
        ErrorCode::NotController,
        "This is not the correct controller for this cluster.",
    )
}

pub(super) fn snapshot(image: &Image, raft: &Raft, applied: u64) -> NewSnapshot {
    let records = image.snapshot();
    let encoded = records.iter().map(|record| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    });
    let snapshot = Snapshot {
        index: applied,
        term: raft.term_of(applied).unwrap_or(0),
        applied: image.applied(),
        voters: raft.voters(),
        records: encoded.collect(),
    };
    NewSnapshot {
        index: applied,
        data: Bytes::from(snapshot.encode()),
    }
}
