//! One partition as a leader sees it: leader epoch, in-sync set and high watermark.
//!
//! Owns what replication decides about a log; must not know requests, connections or where the log's bytes are. The high
//! watermark is the lowest safe end of the in-sync set and never goes back within a leader epoch.

use crate::log::Log;
use crate::model::{ErrorCode, NodeId};

/// The leader's view of a partition. Today the in-sync set is the leader alone.
#[derive(Clone, Debug)]
pub struct Partition {
    leader_epoch: i32,
    partition_epoch: i32,
    isr: Vec<NodeId>,
    replicas: usize,
    high_watermark: i64,
}

impl Partition {
    /// Leads from `leader_epoch` on. `log` is recovered and flushed: all of it is committed.
    pub fn lead(
        leader_epoch: i32,
        partition_epoch: i32,
        isr: Vec<NodeId>,
        replicas: usize,
        log: &Log,
    ) -> Partition {
        Partition {
            leader_epoch,
            partition_epoch,
            isr,
            replicas,
            high_watermark: log.safe(),
        }
    }

    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    pub fn partition_epoch(&self) -> i32 {
        self.partition_epoch
    }

    /// A later metadata record about the same leader.
    pub fn update(
        &mut self,
        leader_epoch: i32,
        partition_epoch: i32,
        isr: Vec<NodeId>,
        replicas: usize,
    ) {
        assert!(
            leader_epoch >= self.leader_epoch,
            "leader epochs do not go back"
        );
        (self.leader_epoch, self.partition_epoch) = (leader_epoch, partition_epoch);
        (self.isr, self.replicas) = (isr, replicas);
    }

    /// What consumers may see ends here.
    pub fn high_watermark(&self) -> i64 {
        self.high_watermark
    }

    /// The last stable offset: the high watermark while no transaction is open.
    pub fn last_stable(&self) -> i64 {
        self.high_watermark
    }

    /// Whether acks=all may be promised: the in-sync set has `min.insync.replicas`, of no more replicas than there are.
    pub fn has_min_isr(&self, min_insync_replicas: i32) -> bool {
        self.isr.len() >= (min_insync_replicas.max(1) as usize).min(self.replicas)
    }

    /// Compares the epoch that a client believes in; -1 skips.
    pub fn check_epoch(&self, current_leader_epoch: i32) -> Result<(), ErrorCode> {
        match current_leader_epoch {
            -1 => Ok(()),
            epoch if epoch < self.leader_epoch => Err(ErrorCode::FencedLeaderEpoch),
            epoch if epoch > self.leader_epoch => Err(ErrorCode::UnknownLeaderEpoch),
            _ => Ok(()),
        }
    }

    /// The leader's safe end moved; says whether the high watermark did.
    pub fn advance(&mut self, log: &Log) -> bool {
        let safe = log.safe();
        let moved = safe > self.high_watermark;
        self.high_watermark = self.high_watermark.max(safe);
        moved
    }

    /// The end of `epoch` for a client that asks where its epoch ended (KIP-320): the epoch that was found and its end,
    /// (-1, -1) for one later than this leader's or unknown.
    pub fn epoch_end(&self, log: &Log, epoch: i32) -> (i32, i64) {
        if epoch < 0 || epoch > self.leader_epoch {
            return (-1, -1);
        }
        if epoch == self.leader_epoch {
            return (epoch, log.appended());
        }
        log.epochs().end_offset_for(epoch, log.appended())
    }

    pub fn check(&self, log: &Log) {
        assert!(
            self.high_watermark <= log.safe(),
            "the high watermark {} is safe ({})",
            self.high_watermark,
            log.safe()
        );
    }
}
