//! The partitions of this shard: taking over and giving up leadership, and what happens when a log moves.

use std::sync::Arc;

use super::handover::Held;
use super::hosted::{EndWait, Hosted, log_config, produce_rules};
use super::park::{ParkId, Parked};
use super::{Actions, Shard};
use crate::log::{Log, LogState};
use crate::meta::Topic;
use crate::model::{ConnId, ErrorCode, Now, TopicPartition};
use crate::replica::Partition;

impl Shard {
    /// Makes what this shard hosts agree with the image for one partition.
    pub(super) fn reconcile(
        &mut self,
        tp: TopicPartition,
        offset: u64,
        held: Held,
        actions: &mut Actions,
    ) {
        let Some(topic) = self.image.topic(tp.topic).cloned() else {
            return self.drop_partition(tp, true, actions);
        };
        let Some(state) = self.image.partition(tp).cloned() else {
            return;
        };
        if state.leader != self.node {
            return self.drop_partition(tp, false, actions);
        }
        let log_state = self.store.log(tp).map(|log| log.state().clone());
        match self.hosted.get_mut(&tp) {
            Some(hosted) => {
                hosted.topic = topic;
                if let Some(replica) = &mut hosted.replica {
                    replica.update(
                        state.leader_epoch,
                        state.partition_epoch,
                        state.isr,
                        state.replicas.len(),
                    );
                }
            }
            // The store is ending its logs: no more of them.
            None if self.stopping => {}
            None => {
                debug_assert!(log_state.is_none(), "a log is open only while it is hosted");
                self.opening.insert((offset, tp));
                self.hosted.insert(tp, Hosted::new(topic, offset));
                match held {
                    Held::ByNobody => self.open_log(tp),
                    Held::BySibling => self.await_release(tp, offset, actions),
                }
            }
        }
    }

    /// Opens the log of a partition that this shard hosts.
    pub(super) fn open_log(&mut self, tp: TopicPartition) {
        let (Some(hosted), Some(state)) = (self.hosted.get(&tp), self.image.partition(tp)) else {
            return;
        };
        let config = log_config(&hosted.topic, self.image.in_force());
        let (topic, leader_epoch) = (&hosted.topic.name, state.leader_epoch);
        self.store.open(tp, topic, config, leader_epoch, self.now);
    }

    /// The topic's configs changed.
    pub(super) fn reconfigure(&mut self, topic: &Arc<Topic>) {
        let first = TopicPartition {
            topic: topic.id,
            partition: 0,
        };
        let last = TopicPartition {
            topic: topic.id,
            partition: i32::MAX,
        };
        for (tp, hosted) in self.hosted.range_mut(first..=last) {
            hosted.topic = Arc::clone(topic);
            hosted.rules = produce_rules(topic);
            self.store
                .set_config(*tp, log_config(topic, self.image.in_force()));
        }
    }

    /// Gives a partition up: whoever waits on it hears that it is led elsewhere, or nowhere.
    pub(super) fn drop_partition(
        &mut self,
        tp: TopicPartition,
        deleted: bool,
        actions: &mut Actions,
    ) {
        let Some(mut hosted) = self.hosted.remove(&tp) else {
            return;
        };
        if let Some(since) = hosted.opening_since {
            self.opening.remove(&(since, tp));
        }
        if self.awaits_release(tp) {
            // Nothing is open here; what is deleted goes once the sibling is rid of it.
            self.release_dropped(tp, deleted.then_some(&hosted.topic));
        } else if deleted {
            self.store.delete(tp, self.now);
        } else {
            self.store.close(tp, self.now);
        }
        let error = if deleted {
            ErrorCode::UnknownTopicOrPartition
        } else {
            ErrorCode::NotLeaderOrFollower
        };
        for wait in hosted.take_waits() {
            self.produce_done(wait.park, wait.item, error, actions);
        }
        self.woken.extend(hosted.watchers);
    }

    /// Why a partition that this shard leads cannot be used now: its log is still being opened, or its disk failed.
    pub(super) fn not_open(&self, tp: TopicPartition) -> ErrorCode {
        match self.store.log(tp).map(|log| log.state()) {
            Some(LogState::Fenced(_)) => ErrorCode::KafkaStorageError,
            Some(LogState::Loading | LogState::Ready | LogState::Cutting | LogState::Closed)
            | None => ErrorCode::NotLeaderOrFollower,
        }
    }

    /// A partition that can be read here: this shard leads it and its log is open.
    pub(super) fn open_partition(
        &self,
        tp: TopicPartition,
    ) -> Result<(&Partition, &Log), ErrorCode> {
        let replica = self
            .hosted
            .get(&tp)
            .and_then(|hosted| hosted.replica.as_ref());
        match (replica, self.store.log(tp)) {
            (Some(replica), Some(log)) if log.is_ready() => Ok((replica, log)),
            (Some(_) | None, Some(_) | None) => Err(self.not_open(tp)),
        }
    }

    /// The partition's history does not go on past `end`, which is not below the high watermark: the log is cut there.
    /// Followers will ask for it; today the simulator does. Who waits is told to look for a leader; the partition is led
    /// again once its log is open.
    pub fn cut(&mut self, tp: TopicPartition, end: i64, now: Now, actions: &mut Actions) {
        let Some(hosted) = self.hosted.get_mut(&tp) else {
            return;
        };
        let Some(replica) = hosted.replica.take() else {
            return;
        };
        assert!(
            end >= replica.high_watermark(),
            "what is committed stays: {end} is below {}",
            replica.high_watermark()
        );
        let waits = hosted.take_waits();
        self.woken.append(&mut hosted.watchers);
        self.store.truncate(tp, end, now);
        for wait in waits {
            self.produce_done(
                wait.park,
                wait.item,
                ErrorCode::NotLeaderOrFollower,
                actions,
            );
        }
    }

    /// A log's ends or state moved: the high watermark follows, and whoever waited for it is answered.
    pub(super) fn log_moved(&mut self, tp: TopicPartition, actions: &mut Actions) {
        let (Some(hosted), Some(log)) = (self.hosted.get_mut(&tp), self.store.log(tp)) else {
            return;
        };
        match log.state() {
            LogState::Loading | LogState::Cutting | LogState::Closed => return,
            LogState::Fenced(_) => {
                if let Some(since) = hosted.opening_since.take() {
                    self.opening.remove(&(since, tp));
                }
                let waits = hosted.take_waits();
                self.woken.append(&mut hosted.watchers);
                for wait in waits {
                    self.produce_done(wait.park, wait.item, ErrorCode::KafkaStorageError, actions);
                }
                return;
            }
            LogState::Ready => {}
        }
        let Some(replica) = &mut hosted.replica else {
            if let Some(state) = self.image.partition(tp) {
                let isr = state.isr.clone();
                let replicas = state.replicas.len();
                hosted.replica = Some(Partition::lead(
                    state.leader_epoch,
                    state.partition_epoch,
                    isr,
                    replicas,
                    log,
                ));
                if let Some(since) = hosted.opening_since.take() {
                    self.opening.remove(&(since, tp));
                }
                self.woken.append(&mut hosted.watchers);
            }
            return;
        };
        replica.advance(log);
        let (written, committed) = (log.written(), replica.high_watermark());
        let stalled_from = log.stalled_from();
        if let Some(log) = self.store.log_mut(tp) {
            log.set_high_watermark(committed);
        }
        self.woken.append(&mut hosted.watchers);
        let mut done: Vec<(ParkId, u32)> = Vec::new();
        while let Some(wait) = hosted
            .written_waits
            .pop_front_if(|wait| wait.end <= written)
        {
            done.push((wait.park, wait.item));
        }
        while let Some(wait) = hosted
            .committed_waits
            .pop_front_if(|wait| wait.end <= committed)
        {
            done.push((wait.park, wait.item));
        }
        // The disk is full: what waits for space is refused for now, and stored all the same should space return.
        if let Some(from) = stalled_from {
            let stalled = |waits: &mut std::collections::VecDeque<EndWait>| -> Vec<EndWait> {
                let first = waits.partition_point(|wait| wait.end <= from);
                waits.drain(first..).collect()
            };
            let waits = [
                stalled(&mut hosted.written_waits),
                stalled(&mut hosted.committed_waits),
            ]
            .concat();
            for wait in waits {
                self.produce_done(wait.park, wait.item, ErrorCode::KafkaStorageError, actions);
            }
        }
        for (park, item) in done {
            self.produce_done(park, item, ErrorCode::None, actions);
        }
    }

    /// A parked request's partition moved: it looks whether it can be answered now.
    pub(super) fn look_again(&mut self, id: ParkId, actions: &mut Actions) {
        match self.parked.get_mut(id) {
            Some(Parked::Fetch(_)) => self.fetch_again(id, false, actions),
            Some(Parked::ListOffsets(_)) => self.list_offsets_again(id, false, actions),
            Some(Parked::DeleteRecords(_)) => self.delete_records_again(id, actions),
            Some(
                Parked::LogDirs(_)
                | Parked::Produce(_)
                | Parked::Proposal(_)
                | Parked::ProducerId(_),
            )
            | None => {}
        }
    }

    /// Requests whose time is up get the answer that says so.
    pub(super) fn expire(&mut self, actions: &mut Actions) {
        while let Some((id, parked)) = self.parked.due(self.now.mono) {
            match parked {
                Parked::Produce(wait) => self.produce_expired(wait, actions),
                Parked::Fetch(wait) => self.fetch_expired(id, wait, actions),
                Parked::ListOffsets(wait) => self.list_offsets_expired(id, wait, actions),
                Parked::LogDirs(wait) => self.log_dirs_expired(wait, actions),
                Parked::DeleteRecords(wait) => self.delete_records_expired(wait, actions),
                Parked::Proposal(wait) => self.proposal_expired(wait, actions),
                Parked::ProducerId(wait) => self.producer_id_expired(wait, actions),
            }
        }
    }

    /// The connection is gone; what it waited for finds nobody, and is dropped when its time comes at the latest.
    pub(super) fn closed(&mut self, conn: ConnId) {
        if let Some(park) = self.conns.get(conn).and_then(|conn| conn.parked)
            && let Some(Parked::Fetch(wait)) = self.parked.take(park)
        {
            self.fetch_forget(park, &wait);
        }
        self.conns.closed(conn);
    }
}
