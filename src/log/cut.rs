//! Cutting a log's end (replication), as a sequence of durable steps.

use super::ops::LogIndex;
use super::partition::Log;
use super::store::Store;

/// Where the log is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    pub end: i64,
}

impl Store {
    pub(super) fn cut_done(&mut self, _index: LogIndex) {}
    pub(super) fn closed(&mut self, _index: LogIndex) {}
    pub(super) fn stop_step_done(&mut self, _result: super::op::DiskResult) {}
}

impl Log {
    pub(super) fn wants_mark(&self) -> bool {
        false
    }
    pub(super) fn mark_issued(&mut self, _sequence: u64) {}
}
