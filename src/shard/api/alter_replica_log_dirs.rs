//! AlterReplicaLogDirs (34), versions 1 and 2; KIP-113.
//!
//! A process has one log dir: a move to where the replica is is a success, and there is no other place.

use super::{Call, Flow, answer};
use crate::model::{ErrorCode, TopicPartition};
use crate::shard::{Actions, Shard};
use crate::wire::msg::alter_replica_log_dirs_request::AlterReplicaLogDirsRequest;
use crate::wire::msg::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsResponse,
};
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn alter_replica_log_dirs(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = AlterReplicaLogDirsRequest::decode(r, call.version)?;
        let mut results: Vec<AlterReplicaLogDirTopicResult<'_>> = Vec::new();
        for dir in &request.dirs {
            for topic in &dir.topics {
                let partitions = topic.partitions.iter().map(|partition_index| {
                    let error = self.move_to(&dir.path, &topic.name, *partition_index);
                    AlterReplicaLogDirPartitionResult {
                        partition_index: *partition_index,
                        error_code: error.code(),
                    }
                });
                let partitions = partitions.collect();
                match results.iter_mut().find(|r| r.topic_name == topic.name) {
                    Some(result) => result.partitions.extend::<Vec<_>>(partitions),
                    None => results.push(AlterReplicaLogDirTopicResult {
                        topic_name: topic.name.clone(),
                        partitions,
                    }),
                }
            }
        }
        let response = AlterReplicaLogDirsResponse {
            results,
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn move_to(&self, path: &str, topic: &str, partition: i32) -> ErrorCode {
        if path != self.config.log_dir {
            return ErrorCode::LogDirNotFound;
        }
        if self.store.failed().is_some() {
            return ErrorCode::KafkaStorageError;
        }
        let tp = self
            .image
            .topic_id(topic)
            .map(|topic| TopicPartition { topic, partition });
        match tp {
            Some(tp) if self.hosted.contains_key(&tp) => ErrorCode::None,
            // On another node.
            Some(tp) if self.image.partition(tp).is_some() => ErrorCode::ReplicaNotAvailable,
            _ => ErrorCode::UnknownTopicOrPartition,
        }
    }
}
