//! Partitions that move between the shards of a process: closed there, then opened here, without a copy.
//!
//! ```text
//! new leader's shard                          every sibling
//! applies the record, does not open yet
//!   Release { tp, since }  ------------->     applies the record too: gives the partition up, if it has it;
//!                                             its log is flushed into its segments, the mark that ends it flushed
//!   opens the log  <-------------  Released { tp, since, left }
//! ```
//!
//! All siblings are asked, not the leader before alone: a shard that catches up by a snapshot does not know who that was. Messages may be
//! lost, so who waits asks again. The partition serves nobody meanwhile: both shards answer with retriable errors.
//!
//! Invariants: a partition that is awaited is hosted, or deleted, and its log is not open here; what a sibling knows of the log is
//! taken over before it is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::hosted::log_config;
use super::{Actions, PeerMsg, Shard};
use crate::log::Left;
use crate::meta::{Record, Topic};
use crate::model::limit::RELEASE_RESEND_MS;
use crate::model::{Instant, ShardIndex, TopicPartition};

/// Who may have a partition open that this shard is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    ByNobody,
    BySibling,
}

#[derive(Debug)]
struct Awaited {
    /// Metadata offset of the record that gave it to this shard.
    since: u64,
    missing: BTreeSet<ShardIndex>,
    ask_again_at: Instant,
    /// Its topic is deleted, so it goes as soon as the siblings are rid of it.
    deleted: Option<Arc<Topic>>,
}

#[derive(Default, Debug)]
pub(super) struct Handover {
    awaited: BTreeMap<TopicPartition, Awaited>,
    /// Siblings that wait until this shard is rid of a partition; a sibling asks once for each.
    asked: BTreeMap<(TopicPartition, ShardIndex), u64>,
}

impl Handover {
    pub fn next_deadline(&self) -> Option<Instant> {
        self.awaited.values().map(|a| a.ask_again_at).min()
    }
}

impl Shard {
    /// Whether a sibling may hold what `record` gives to a leader; to be asked before the record is applied.
    pub(super) fn held_before(&self, record: &Record) -> Held {
        let Record::PartitionChange { tp, change } = record else {
            return Held::ByNobody;
        };
        // Nobody has opened anything yet when a start moves partitions off shards that are no more.
        let sibling = |node: crate::model::NodeId| {
            node.process() == self.config.process && node.shard().0 < self.config.shards
        };
        let before = self.image.partition(*tp).map(|state| state.leader);
        match (before, change.leader) {
            (Some(before), Some(after)) if before != after && sibling(before) => Held::BySibling,
            (Some(_) | None, Some(_) | None) => Held::ByNobody,
        }
    }

    /// Opens the log once no sibling has it any more.
    pub(super) fn await_release(&mut self, tp: TopicPartition, since: u64, actions: &mut Actions) {
        let siblings = (0..self.config.shards).map(ShardIndex);
        let awaited = Awaited {
            since,
            missing: siblings.filter(|s| *s != self.config.shard).collect(),
            ask_again_at: self.now.mono.after_ms(RELEASE_RESEND_MS),
            deleted: None,
        };
        for sibling in &awaited.missing {
            let msg = PeerMsg::Release { tp, since };
            actions.peers.push((*sibling, msg));
        }
        let alone = awaited.missing.is_empty();
        self.handover.awaited.insert(tp, awaited);
        if alone {
            self.take_released(tp);
        }
    }

    pub(super) fn awaits_release(&self, tp: TopicPartition) -> bool {
        self.handover.awaited.contains_key(&tp)
    }

    /// The partition is awaited and was given to another node, or its topic is deleted.
    pub(super) fn release_dropped(&mut self, tp: TopicPartition, deleted: Option<&Arc<Topic>>) {
        match (deleted, self.handover.awaited.get_mut(&tp)) {
            (Some(topic), Some(awaited)) => awaited.deleted = Some(Arc::clone(topic)),
            (Some(_) | None, _) => drop(self.handover.awaited.remove(&tp)),
        }
    }

    pub(super) fn release_asked(&mut self, from: ShardIndex, tp: TopicPartition, since: u64) {
        let asked = self.handover.asked.entry((tp, from)).or_default();
        *asked = since.max(*asked);
    }

    pub(super) fn released(
        &mut self,
        from: ShardIndex,
        tp: TopicPartition,
        since: u64,
        left: Option<Left>,
    ) {
        let Some(awaited) = self.handover.awaited.get_mut(&tp) else {
            return;
        };
        // An answer to an earlier question says nothing of what came after it.
        if awaited.since != since || !awaited.missing.remove(&from) {
            return;
        }
        let all = awaited.missing.is_empty();
        if let Some(left) = left {
            self.store.take_over(tp, left);
        }
        if all {
            self.take_released(tp);
        }
    }

    fn take_released(&mut self, tp: TopicPartition) {
        let Some(awaited) = self.handover.awaited.remove(&tp) else {
            return;
        };
        if self.stopping {
            return;
        }
        match awaited.deleted {
            None => self.open_log(tp),
            Some(topic) => {
                let config = log_config(&topic, self.image.in_force());
                self.store
                    .delete_unopened(tp, &topic.name, config, self.now);
            }
        }
    }

    /// Answers the siblings that this shard is in the way of no more, and asks again those that have not answered.
    pub(super) fn hand_over(&mut self, actions: &mut Actions) {
        let applied = self.image.applied();
        let (store, hosted) = (&self.store, &self.hosted);
        self.handover.asked.retain(|(tp, sibling), since| {
            if applied <= *since {
                return true;
            }
            // A later record gave it back to this shard: the sibling will see that.
            if hosted.contains_key(tp) {
                return false;
            }
            if store.is_ending(*tp) {
                return true;
            }
            let msg = PeerMsg::Released {
                tp: *tp,
                since: *since,
                left: store.left(*tp).cloned(),
            };
            actions.peers.push((*sibling, msg));
            false
        });
        let now = self.now.mono;
        for (tp, awaited) in &mut self.handover.awaited {
            if awaited.ask_again_at > now {
                continue;
            }
            awaited.ask_again_at = now.after_ms(RELEASE_RESEND_MS);
            for sibling in &awaited.missing {
                let (tp, since) = (*tp, awaited.since);
                actions
                    .peers
                    .push((*sibling, PeerMsg::Release { tp, since }));
            }
        }
    }
}
