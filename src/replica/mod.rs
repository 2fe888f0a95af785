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
        let end = log.appended();
        if epoch == self.leader_epoch {
            return (epoch, end);
        }
        match log.epochs().latest() {
            // No record of this leader's epoch yet: it begins where the log ends, and so ends what was before it.
            Some(last) if epoch > last.epoch => (last.epoch, end),
            None => (epoch, end),
            Some(_) => log.epochs().end_offset_for(epoch, end),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Config;
    use crate::model::{TopicPartition, Uuid};

    /// Kafka notes a leader's epoch when it begins, so one without records still ends those before it.
    #[test]
    fn epochs_before_a_leader_without_records_end_where_its_log_does() {
        let tp = TopicPartition {
            topic: Uuid([1; 16]),
            partition: 0,
        };
        let mut log = Log::new(0, tp, "t-0".into(), Config::default());
        let leads = |log: &Log| Partition::lead(7, 0, vec![NodeId(1000)], 1, log);
        assert_eq!(leads(&log).epoch_end(&log, 5), (5, 0), "an empty log");
        log.epochs.assign(2, 0);
        log.epochs.assign(4, 10);
        log.appended = 30;
        let replica = leads(&log);
        // Epochs [2: 0..10) [4: 10..30) [7: 30..
        for (asked, expected) in [
            (1, (1, 0)),
            (2, (2, 10)),
            (3, (2, 10)),
            (4, (4, 30)),
            (5, (4, 30)),
            (6, (4, 30)),
            (7, (7, 30)),
            (8, (-1, -1)),
        ] {
            assert_eq!(replica.epoch_end(&log, asked), expected, "epoch {asked}");
        }
    }
}
