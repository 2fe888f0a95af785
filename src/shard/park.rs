//! Requests that wait: for an end of a log, for the controller, or for time to pass.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::api::{
    delete_records::DeleteRecordsWait, describe_log_dirs::LogDirsWait, fetch::FetchWait,
    list_offsets::ListOffsetsWait, produce::ProduceWait, producer_id::ProducerIdWait,
};
use super::cluster::ProposalWait;
use crate::model::Instant;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ParkId(pub u64);

#[derive(Debug)]
pub enum Parked {
    Produce(ProduceWait),
    Fetch(FetchWait),
    ListOffsets(ListOffsetsWait),
    DeleteRecords(DeleteRecordsWait),
    LogDirs(LogDirsWait),
    Proposal(ProposalWait),
    ProducerId(ProducerIdWait),
}

#[derive(Default, Debug)]
pub struct ParkingLot {
    next: u64,
    parked: FxHashMap<ParkId, (Parked, Instant)>,
    deadlines: BTreeSet<(Instant, ParkId)>,
}

impl ParkingLot {
    pub fn reserve(&mut self) -> ParkId {
        self.next += 1;
        ParkId(self.next)
    }

    pub fn put(&mut self, id: ParkId, parked: Parked, deadline: Instant) {
        self.deadlines.insert((deadline, id));
        let before = self.parked.insert(id, (parked, deadline));
        assert!(before.is_none(), "a parking place is taken once");
    }

    pub fn get_mut(&mut self, id: ParkId) -> Option<&mut Parked> {
        self.parked.get_mut(&id).map(|(parked, _)| parked)
    }

    pub fn take(&mut self, id: ParkId) -> Option<Parked> {
        let (parked, deadline) = self.parked.remove(&id)?;
        self.deadlines.remove(&(deadline, id));
        Some(parked)
    }

    /// The next one whose time is up.
    pub fn due(&mut self, now: Instant) -> Option<(ParkId, Parked)> {
        let (deadline, id) = self.deadlines.first().copied()?;
        if deadline > now {
            return None;
        }
        Some((id, self.take(id).expect("deadlines and parked agree")))
    }

    pub fn len(&self) -> usize {
        self.parked.len()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Every parked request, oldest first, for an orderly stop.
    pub fn take_all(&mut self) -> Vec<Parked> {
        let mut ids: Vec<ParkId> = self.deadlines.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.take(id)).collect()
    }

    pub fn check(&self) {
        assert_eq!(self.parked.len(), self.deadlines.len());
    }
}
