//! OffsetForLeaderEpoch (23), versions 2 to 4; KIP-320.

use super::{Call, Flow, answer};
use crate::model::{ErrorCode, TopicPartition};
use crate::shard::{Actions, Shard};
use crate::wire::msg::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition,
};
use crate::wire::msg::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn offset_for_leader_epoch(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = OffsetForLeaderEpochRequest::decode(r, call.version)?;
        let topics = request
            .topics
            .iter()
            .map(|topic| OffsetForLeaderTopicResult {
                topic: topic.topic.clone(),
                partitions: topic
                    .partitions
                    .iter()
                    .map(|partition| {
                        let found = self.epoch_end_of(&topic.topic, partition);
                        let (error, (leader_epoch, end_offset)) = match found {
                            Ok(end) => (ErrorCode::None, end),
                            Err(error) => (error, (-1, -1)),
                        };
                        EpochEndOffset {
                            error_code: error.code(),
                            partition: partition.partition,
                            leader_epoch,
                            end_offset,
                        }
                    })
                    .collect(),
            });
        let response = OffsetForLeaderEpochResponse {
            topics: topics.collect(),
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn epoch_end_of(
        &self,
        topic: &str,
        partition: &OffsetForLeaderPartition,
    ) -> Result<(i32, i64), ErrorCode> {
        let topic = self
            .image
            .topic_by_name(topic)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let tp = TopicPartition {
            topic: topic.id,
            partition: partition.partition,
        };
        let state = self
            .image
            .partition(tp)
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if state.leader != self.node {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let (replica, log) = self.open_partition(tp)?;
        replica.check_epoch(partition.current_leader_epoch)?;
        Ok(replica.epoch_end(log, partition.leader_epoch))
    }
}
