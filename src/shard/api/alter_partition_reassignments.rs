//! AlterPartitionReassignments (45), versions 0 and 1; KIP-455, KIP-860.
//!
//! Decided by the controller (`quorum/move_replicas.rs`), which says what may move and what may not yet.

use std::borrow::Cow;

use super::forward::Asked;
use super::{Call, Flow, answer, error_of};
use crate::meta::{Command, Moves, OutcomeResult, PartitionResults};
use crate::model::{ErrorCode, NodeId};
use crate::shard::{Actions, Shard};
use crate::wire::msg::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest;
use crate::wire::msg::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn alter_partition_reassignments(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = AlterPartitionReassignmentsRequest::decode(r, call.version)?;
        let moves: Moves = request
            .topics
            .iter()
            .map(|topic| {
                let partitions = topic.partitions.iter().map(|partition| {
                    let replicas = partition.replicas.as_ref();
                    let replicas = replicas.map(|ids| ids.iter().copied().map(NodeId).collect());
                    (partition.partition_index, replicas)
                });
                (topic.name.to_string(), partitions.collect())
            })
            .collect();
        let factor_may_change = request.allow_replication_factor_change;
        let command = Command::MoveReplicas {
            moves,
            factor_may_change,
        };
        let asked = Asked::MoveReplicas { factor_may_change };
        let timeout_ms = u64::try_from(request.timeout_ms).unwrap_or(0);
        Ok(self.forward_asked(call, asked, command, timeout_ms, actions))
    }
}

pub(super) fn moved(call: Call, factor_may_change: bool, outcome: &OutcomeResult) -> Vec<u8> {
    let none = PartitionResults::new();
    let (code, text, results) = match outcome {
        // Kafka's text of no error, when nothing was asked for.
        OutcomeResult::MoveReplicas(results) if results.is_empty() => {
            (ErrorCode::None, Some(String::new()), results)
        }
        OutcomeResult::MoveReplicas(results) => (ErrorCode::None, None, results),
        OutcomeResult::Failed(error) => (error.code, error.message.clone(), &none),
        _ => (ErrorCode::UnknownServerError, None, &none),
    };
    let responses = results.iter().map(|(topic, partitions)| {
        let partitions = partitions.iter().map(|(partition_index, error)| {
            let (code, text) = error_of(error);
            ReassignablePartitionResponse {
                partition_index: *partition_index,
                error_code: code.code(),
                error_message: text.map(Cow::from),
            }
        });
        ReassignableTopicResponse {
            name: topic.as_str().into(),
            partitions: partitions.collect(),
        }
    });
    let response = AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: factor_may_change,
        error_code: code.code(),
        error_message: text.map(Cow::from),
        responses: responses.collect(),
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
