//! DescribeProducers (61), version 0; KIP-664.
//!
//! The idempotent producers that the leader's log remembers. There are no transactions yet.

use super::{Call, Flow, answer};
use crate::log::ProducerStates;
use crate::meta::topic_name_fault;
use crate::model::{ErrorCode, TopicPartition};
use crate::shard::{Actions, Shard};
use crate::wire::msg::describe_producers_request::DescribeProducersRequest;
use crate::wire::msg::describe_producers_response::{
    DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn describe_producers(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DescribeProducersRequest::decode(r, call.version)?;
        let topics = request.topics.iter().map(|topic| TopicResponse {
            name: topic.name.clone(),
            partitions: topic
                .partition_indexes
                .iter()
                .map(|partition| self.producers_of(&topic.name, *partition))
                .collect(),
        });
        let response = DescribeProducersResponse {
            topics: topics.collect(),
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn producers_of(&self, topic: &str, partition: i32) -> PartitionResponse<'static> {
        let failed = |error: ErrorCode, text: Option<String>| PartitionResponse {
            partition_index: partition,
            error_code: error.code(),
            error_message: text.map(Into::into),
            ..Default::default()
        };
        if let Some(fault) = topic_name_fault(topic) {
            let text = format!("Topic name is invalid: {fault}");
            return failed(ErrorCode::InvalidTopicException, Some(text));
        }
        let Some(id) = self.image.topic_id(topic) else {
            let text = "This server does not host this topic-partition.".to_string();
            return failed(ErrorCode::UnknownTopicOrPartition, Some(text));
        };
        let tp = TopicPartition {
            topic: id,
            partition,
        };
        let Some(state) = self.image.partition(tp) else {
            return failed(ErrorCode::UnknownTopicOrPartition, None);
        };
        if state.leader != self.node {
            return failed(ErrorCode::NotLeaderOrFollower, None);
        }
        let open = self.hosted.get(&tp).is_some_and(|h| h.replica.is_some());
        match self.store.log(tp).filter(|_| open) {
            None => failed(self.not_open(tp), None),
            Some(log) => PartitionResponse {
                active_producers: active(log.producers()),
                ..failed(ErrorCode::None, None)
            },
        }
    }
}

fn active(producers: &ProducerStates) -> Vec<ProducerState> {
    let all = producers.iter().map(|(producer_id, producer)| {
        let last = producer.last();
        ProducerState {
            producer_id,
            producer_epoch: i32::from(producer.epoch),
            last_sequence: last.map_or(-1, |batch| batch.last_sequence),
            last_timestamp: last.map_or(-1, |batch| batch.timestamp),
            coordinator_epoch: producer.coordinator_epoch,
            current_txn_start_offset: producer.txn_first_offset,
        }
    });
    all.collect()
}
