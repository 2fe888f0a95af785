//! ElectLeaders (43), versions 0 to 2; KIP-183, KIP-460.
//!
//! Decided by the controller; with one replica a partition, every partition that has a leader has its preferred one.

use std::borrow::Cow;

use super::forward::Asked;
use super::{Call, Flow, answer, error_of};
use crate::meta::{ApiError, Command, OutcomeResult, PartitionResults};
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::elect_leaders_request::ElectLeadersRequest;
use crate::wire::msg::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};
use crate::wire::{Malformed, Reader};

/// Kinds of elections.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

impl Shard {
    pub(super) fn elect_leaders(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = ElectLeadersRequest::decode(r, call.version)?;
        let partitions = request.topic_partitions.as_ref().map(|topics| {
            let topics = topics.iter();
            topics
                .map(|topic| (topic.topic.to_string(), topic.partitions.clone()))
                .collect::<Vec<_>>()
        });
        let kind = request.election_type;
        if !matches!(kind, PREFERRED | UNCLEAN) {
            let error = ApiError::new(
                ErrorCode::InvalidRequest,
                format!("Unknown election type {kind}"),
            );
            let failed = OutcomeResult::Failed(error);
            return Ok(Flow::Answer(elected(call, &partitions, &failed)));
        }
        let command = Command::ElectLeaders {
            unclean: kind == UNCLEAN,
            partitions: partitions.clone(),
        };
        let asked = Asked::ElectLeaders(partitions);
        let timeout_ms = u64::try_from(request.timeout_ms).unwrap_or(0);
        Ok(self.forward_asked(call, asked, command, timeout_ms, actions))
    }
}

pub(super) fn elected(
    call: Call,
    asked: &Option<Vec<(String, Vec<i32>)>>,
    outcome: &OutcomeResult,
) -> Vec<u8> {
    let (code, results): (ErrorCode, PartitionResults) = match outcome {
        OutcomeResult::ElectLeaders(results) => (ErrorCode::None, results.clone()),
        OutcomeResult::Failed(error) => {
            let all = asked.iter().flatten().map(|(topic, partitions)| {
                let failed = partitions.iter().map(|p| (*p, Some(error.clone())));
                (topic.clone(), failed.collect())
            });
            (error.code, all.collect())
        }
        _ => (ErrorCode::UnknownServerError, Vec::new()),
    };
    let results = results.into_iter().map(|(topic, partitions)| {
        let partitions = partitions.into_iter().map(|(partition_id, error)| {
            let (code, text) = error_of(&error);
            PartitionResult {
                partition_id,
                error_code: code.code(),
                error_message: text.map(Cow::from),
            }
        });
        ReplicaElectionResult {
            topic: topic.into(),
            partition_result: partitions.collect(),
        }
    });
    let response = ElectLeadersResponse {
        error_code: code.code(),
        replica_election_results: results.collect(),
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
