//! ListOffsets (2), versions 1 to 11; KIP-79, KIP-207, KIP-320, KIP-734, KIP-405, KIP-1005, KIP-1023.

use std::collections::BTreeSet;

use super::{Call, Flow, answer};
use crate::log::TimePlan;
use crate::model::limit::READ_WAIT_MS;
use crate::model::{ErrorCode, TopicPartition};
use crate::shard::park::{ParkId, Parked};
use crate::shard::{Actions, Shard};
use crate::wire::msg::list_offsets_request::ListOffsetsRequest;
use crate::wire::msg::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use crate::wire::{Malformed, Reader};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// The first version that knows a special timestamp.
fn known_since(timestamp: i64) -> Option<i16> {
    match timestamp {
        0.. | LATEST | EARLIEST => Some(1),
        MAX_TIMESTAMP => Some(7),
        EARLIEST_LOCAL => Some(8),
        LATEST_TIERED => Some(9),
        EARLIEST_PENDING_UPLOAD => Some(11),
        _ => None,
    }
}

#[derive(Debug)]
struct Question {
    topic: String,
    partition: i32,
    current_leader_epoch: i32,
    timestamp: i64,
    answer: Option<ListOffsetsPartitionResponse>,
}

/// A ListOffsets that waits for reads.
#[derive(Debug)]
pub struct ListOffsetsWait {
    call: Call,
    read_committed: bool,
    questions: Vec<Question>,
}

impl Shard {
    pub(super) fn list_offsets(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = ListOffsetsRequest::decode(r, call.version)?;
        let mut named = BTreeSet::new();
        let mut twice = BTreeSet::new();
        let mut questions = Vec::new();
        for topic in &request.topics {
            for partition in &topic.partitions {
                let key = (topic.name.to_string(), partition.partition_index);
                if !named.insert(key.clone()) {
                    twice.insert(key);
                }
                questions.push(Question {
                    topic: topic.name.to_string(),
                    partition: partition.partition_index,
                    current_leader_epoch: partition.current_leader_epoch,
                    timestamp: partition.timestamp,
                    answer: None,
                });
            }
        }
        for question in &mut questions {
            if twice.contains(&(question.topic.clone(), question.partition)) {
                question.answer = Some(failed(question.partition, ErrorCode::InvalidRequest));
            }
        }
        let wait = ListOffsetsWait {
            call,
            read_committed: request.isolation_level == 1,
            questions,
        };
        let id = self.parked.reserve();
        self.list_or_park(id, wait, false, actions);
        Ok(Flow::Parked)
    }

    pub(in crate::shard) fn list_offsets_again(
        &mut self,
        id: ParkId,
        last: bool,
        actions: &mut Actions,
    ) {
        let Some(Parked::ListOffsets(wait)) = self.parked.take(id) else {
            return;
        };
        self.list_or_park(id, wait, last, actions);
    }

    pub(in crate::shard) fn list_offsets_expired(
        &mut self,
        id: ParkId,
        wait: ListOffsetsWait,
        actions: &mut Actions,
    ) {
        self.list_or_park(id, wait, true, actions);
    }

    fn list_or_park(
        &mut self,
        id: ParkId,
        mut wait: ListOffsetsWait,
        last: bool,
        actions: &mut Actions,
    ) {
        let mut waits_for = Vec::new();
        for question in &mut wait.questions {
            if question.answer.is_some() {
                continue;
            }
            match self.list_one(wait.call.version, wait.read_committed, question) {
                Ok(Some(response)) => question.answer = Some(response),
                Err(error) => question.answer = Some(failed(question.partition, error)),
                Ok(None) if last => {
                    question.answer = Some(failed(question.partition, ErrorCode::RequestTimedOut))
                }
                Ok(None) => waits_for.extend(self.image.topic_id(&question.topic).map(|topic| {
                    TopicPartition {
                        topic,
                        partition: question.partition,
                    }
                })),
            }
        }
        if waits_for.is_empty() {
            return self.list_answer(wait, actions);
        }
        for tp in waits_for {
            if let Some(hosted) = self.hosted.get_mut(&tp) {
                hosted.watchers.push(id);
            }
        }
        if let Some(conn) = self.conns.get_mut(wait.call.to.conn) {
            conn.parked = Some(id);
        }
        self.parked.put(
            id,
            Parked::ListOffsets(wait),
            self.now.mono.after_ms(READ_WAIT_MS),
        );
    }

    /// `None`: a read is under way.
    fn list_one(
        &mut self,
        version: i16,
        read_committed: bool,
        question: &Question,
    ) -> Result<Option<ListOffsetsPartitionResponse>, ErrorCode> {
        if known_since(question.timestamp).is_none_or(|since| version < since) {
            return Err(ErrorCode::UnsupportedVersion);
        }
        let topic = self
            .image
            .topic_by_name(&question.topic)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let tp = TopicPartition {
            topic: topic.id,
            partition: question.partition,
        };
        let state = self
            .image
            .partition(tp)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if state.leader != self.node {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let (replica, log) = self.open_partition(tp)?;
        replica.check_epoch(question.current_leader_epoch)?;
        let end = if read_committed {
            replica.last_stable()
        } else {
            replica.high_watermark()
        };
        let epoch_now = replica.leader_epoch();
        let found = match question.timestamp {
            LATEST => Some((end, -1, epoch_now)),
            EARLIEST | EARLIEST_LOCAL => {
                let start = log.start();
                Some((start, -1, log.epochs().epoch_at(start).unwrap_or(epoch_now)))
            }
            // There is no tiered storage.
            LATEST_TIERED | EARLIEST_PENDING_UPLOAD => None,
            timestamp => {
                let plan = match timestamp {
                    MAX_TIMESTAMP => self.store.offset_of_max_timestamp(tp, end),
                    _ => self.store.offset_for_timestamp(tp, timestamp, end),
                };
                match plan {
                    TimePlan::NeedsRead => return Ok(None),
                    TimePlan::NotFound => None,
                    TimePlan::Found { offset, timestamp } => {
                        let log = self.store.log(tp).ok_or(ErrorCode::NotLeaderOrFollower)?;
                        Some((
                            offset,
                            timestamp,
                            log.epochs().epoch_at(offset).unwrap_or(epoch_now),
                        ))
                    }
                }
            }
        };
        let (offset, timestamp, leader_epoch) = found.unwrap_or((-1, -1, -1));
        Ok(Some(ListOffsetsPartitionResponse {
            partition_index: question.partition,
            error_code: ErrorCode::None.code(),
            timestamp,
            offset,
            leader_epoch,
        }))
    }

    fn list_answer(&mut self, wait: ListOffsetsWait, actions: &mut Actions) {
        let mut topics: Vec<ListOffsetsTopicResponse<'_>> = Vec::new();
        for question in &wait.questions {
            if topics
                .last()
                .is_none_or(|topic| topic.name != question.topic)
            {
                topics.push(ListOffsetsTopicResponse {
                    name: question.topic.as_str().into(),
                    partitions: Vec::new(),
                });
            }
            let partitions = &mut topics.last_mut().expect("pushed above").partitions;
            partitions.extend(question.answer.clone());
        }
        let response = ListOffsetsResponse {
            topics,
            ..Default::default()
        };
        let answer = answer(wait.call, |w, version| response.encode(w, version));
        self.reply(wait.call, answer, actions);
    }
}

fn failed(partition_index: i32, error: ErrorCode) -> ListOffsetsPartitionResponse {
    ListOffsetsPartitionResponse {
        partition_index,
        error_code: error.code(),
        timestamp: -1,
        offset: -1,
        leader_epoch: -1,
    }
}
