//! DeleteRecords (21), versions 0 to 2; KIP-107.
//!
//! The leader moves the log's start; the answer leaves when the new start is on the device, so that what was deleted does not
//! come back after a crash (with Apache Kafka it does).

use std::collections::BTreeMap;

use super::{Call, Flow, answer};
use crate::log::LogState;
use crate::meta::is_internal;
use crate::model::limit::DELETE_RECORDS_WAIT_MS_MIN;
use crate::model::{ErrorCode, TopicPartition};
use crate::shard::park::{ParkId, Parked};
use crate::shard::{Actions, Shard};
use crate::wire::msg::delete_records_request::DeleteRecordsRequest;
use crate::wire::msg::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use crate::wire::{Malformed, Reader};

/// Everything below the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// A DeleteRecords that waits for the device.
#[derive(Debug)]
pub struct DeleteRecordsWait {
    call: Call,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    topic: String,
    partition: i32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The log starts at `start` when that is durable.
    Moved {
        tp: TopicPartition,
        start: i64,
    },
    Done(Result<i64, ErrorCode>),
}

impl Shard {
    pub(super) fn delete_records(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DeleteRecordsRequest::decode(r, call.version)?;
        // A partition that is named twice is asked for once, with the offset that came last.
        let mut asked = BTreeMap::new();
        for topic in &request.topics {
            for partition in &topic.partitions {
                let key = (topic.name.to_string(), partition.partition_index);
                asked.insert(key, partition.offset);
            }
        }
        let parts = asked.into_iter().map(|((topic, partition), offset)| {
            let moved = self.delete_below(&topic, partition, offset);
            let state = match moved {
                Ok((tp, start)) => State::Moved { tp, start },
                Err(error) => State::Done(Err(error)),
            };
            Part {
                topic,
                partition,
                state,
            }
        });
        let wait = DeleteRecordsWait {
            call,
            parts: parts.collect(),
        };
        let id = self.parked.reserve();
        let timeout_ms = u64::try_from(request.timeout_ms).unwrap_or(0);
        let deadline = self
            .now
            .mono
            .after_ms(timeout_ms.max(DELETE_RECORDS_WAIT_MS_MIN));
        if let Some(conn) = self.conns.get_mut(call.to.conn) {
            conn.parked = Some(id);
        }
        self.parked.put(id, Parked::DeleteRecords(wait), deadline);
        self.delete_records_again(id, actions);
        Ok(Flow::Parked)
    }

    /// Moves the start of one log; gives where it is to be.
    fn delete_below(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<(TopicPartition, i64), ErrorCode> {
        let known = self
            .image
            .topic_by_name(topic)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let policy = known.config.cleanup_policy;
        let tp = TopicPartition {
            topic: known.id,
            partition,
        };
        let state = self
            .image
            .partition(tp)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if is_internal(topic) {
            return Err(ErrorCode::InvalidTopicException);
        }
        if state.leader != self.node {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let replica = self
            .hosted
            .get(&tp)
            .and_then(|hosted| hosted.replica.as_ref());
        let Some(replica) = replica else {
            return Err(self.not_open(tp));
        };
        if policy.compact && !policy.delete {
            return Err(ErrorCode::PolicyViolation);
        }
        let committed = replica.high_watermark();
        let start = if offset == HIGH_WATERMARK {
            committed
        } else {
            offset
        };
        if let Some(log) = self.store.log_mut(tp) {
            log.set_high_watermark(committed);
        }
        let moved = self.store.advance_start(tp, start, self.now);
        moved.map_err(|error| error.code)?;
        Ok((tp, start))
    }

    /// Something moved: whoever has all its starts on the device is answered.
    pub(in crate::shard) fn delete_records_again(&mut self, id: ParkId, actions: &mut Actions) {
        let Some(Parked::DeleteRecords(wait)) = self.parked.get_mut(id) else {
            return;
        };
        let mut waits_for = Vec::new();
        for part in &mut wait.parts {
            let State::Moved { tp, start } = part.state else {
                continue;
            };
            let log = self.store.log(tp).filter(|_| self.hosted.contains_key(&tp));
            part.state = match log {
                None if self.image.partition(tp).is_none() => {
                    State::Done(Err(ErrorCode::UnknownTopicOrPartition))
                }
                None => State::Done(Err(ErrorCode::NotLeaderOrFollower)),
                Some(log) if matches!(log.state(), LogState::Fenced(_)) => {
                    State::Done(Err(ErrorCode::KafkaStorageError))
                }
                Some(log) if log.start_durable() >= start => State::Done(Ok(log.start())),
                Some(_) => {
                    waits_for.push(tp);
                    part.state
                }
            };
        }
        if waits_for.is_empty() {
            if let Some(Parked::DeleteRecords(wait)) = self.parked.take(id) {
                self.delete_records_answer(wait, actions);
            }
            return;
        }
        for tp in waits_for {
            if let Some(hosted) = self.hosted.get_mut(&tp) {
                hosted.watchers.push(id);
            }
        }
    }

    pub(in crate::shard) fn delete_records_expired(
        &mut self,
        mut wait: DeleteRecordsWait,
        actions: &mut Actions,
    ) {
        for part in &mut wait.parts {
            if let State::Moved { .. } = part.state {
                part.state = State::Done(Err(ErrorCode::RequestTimedOut));
            }
        }
        self.delete_records_answer(wait, actions);
    }

    fn delete_records_answer(&mut self, wait: DeleteRecordsWait, actions: &mut Actions) {
        let mut topics: Vec<DeleteRecordsTopicResult<'_>> = Vec::new();
        for part in &wait.parts {
            if topics.last().is_none_or(|topic| topic.name != part.topic) {
                topics.push(DeleteRecordsTopicResult {
                    name: part.topic.as_str().into(),
                    partitions: Vec::new(),
                });
            }
            let (low_watermark, error) = match part.state {
                State::Done(Ok(start)) => (start, ErrorCode::None),
                State::Done(Err(error)) => (-1, error),
                State::Moved { .. } => (-1, ErrorCode::RequestTimedOut),
            };
            let partitions = &mut topics.last_mut().expect("pushed above").partitions;
            partitions.push(DeleteRecordsPartitionResult {
                partition_index: part.partition,
                low_watermark,
                error_code: error.code(),
            });
        }
        let response = DeleteRecordsResponse {
            topics,
            ..Default::default()
        };
        let bytes = answer(wait.call, |w, version| response.encode(w, version));
        self.reply(wait.call, bytes, actions);
    }
}
