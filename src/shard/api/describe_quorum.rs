//! DescribeQuorum (55), versions 0 to 2; KIP-595, KIP-836, KIP-853.
//!
//! Offsets are those of the metadata log. A voter is a process and is told under its first node, with the listeners of its
//! clients: there is no listener for controllers. Shards that are told what was decided are no observers.

use std::borrow::Cow;

use super::forward::Asked;
use super::{Call, Flow, answer, error_of};
use crate::meta::{ApiError, Command, Endpoint, OutcomeResult, QuorumState};
use crate::model::limit::ADMIN_WAIT_MS;
use crate::model::{ErrorCode, WallMs};
use crate::shard::{Actions, Shard};
use crate::wire::msg::describe_quorum_request::DescribeQuorumRequest;
use crate::wire::msg::describe_quorum_response::{
    DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState, TopicData,
};
use crate::wire::{Malformed, Reader};

const METADATA: &str = "__cluster_metadata";

/// What was asked, and what this node knows of voters.
#[derive(Debug)]
pub struct DescribeQuorumAsked {
    partitions: Vec<(String, Vec<i32>)>,
    now: WallMs,
    nodes: Vec<(i32, Vec<Endpoint>)>,
}

impl Shard {
    pub(super) fn describe_quorum(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DescribeQuorumRequest::decode(r, call.version)?;
        let partitions = request.topics.iter().map(|topic| {
            let indexes = topic.partitions.iter().map(|p| p.partition_index);
            (topic.topic_name.to_string(), indexes.collect())
        });
        let firsts = self.image.nodes().filter(|node| node.id.shard().0 == 0);
        let asked = DescribeQuorumAsked {
            partitions: partitions.collect(),
            now: self.now.wall,
            nodes: firsts
                .map(|node| (node.id.0, node.endpoints().to_vec()))
                .collect(),
        };
        let asked = Asked::DescribeQuorum(Box::new(asked));
        Ok(self.forward_asked(call, asked, Command::DescribeQuorum, ADMIN_WAIT_MS, actions))
    }
}

pub(super) fn described(
    call: Call,
    asked: &DescribeQuorumAsked,
    outcome: &OutcomeResult,
) -> Vec<u8> {
    let response = match outcome {
        OutcomeResult::Quorum(state) => told(asked, state),
        OutcomeResult::Failed(error) => refused(error),
        _ => refused(&ApiError::bare(ErrorCode::UnknownServerError)),
    };
    answer(call, |w, version| response.encode(w, version))
}

fn refused(error: &ApiError) -> DescribeQuorumResponse<'static> {
    let (code, text) = error_of(&Some(error.clone()));
    DescribeQuorumResponse {
        error_code: code.code(),
        error_message: text.map(Cow::from),
        ..Default::default()
    }
}

fn told<'a>(asked: &'a DescribeQuorumAsked, state: &QuorumState) -> DescribeQuorumResponse<'a> {
    let no_text = || Some(Cow::Borrowed(""));
    // As Kafka: the metadata log alone, or nothing of what was asked.
    let is_known =
        matches!(&asked.partitions[..], [(topic, of)] if topic == METADATA && of[..] == [0]);
    let unknown = |partition_index: &i32| PartitionData {
        partition_index: *partition_index,
        error_code: ErrorCode::UnknownTopicOrPartition.code(),
        error_message: Some("This server does not host this topic-partition.".into()),
        ..Default::default()
    };
    let topics = asked.partitions.iter().map(|(topic, of)| TopicData {
        topic_name: topic.as_str().into(),
        partitions: if is_known {
            vec![metadata(state, asked.now)]
        } else {
            of.iter().map(unknown).collect()
        },
    });
    let nodes = asked.nodes.iter().map(|(node_id, endpoints)| {
        let listeners = endpoints.iter().map(|endpoint| Listener {
            name: endpoint.listener.as_str().into(),
            host: endpoint.host.as_str().into(),
            port: endpoint.port,
        });
        Node {
            node_id: *node_id,
            listeners: listeners.collect(),
        }
    });
    DescribeQuorumResponse {
        error_code: ErrorCode::None.code(),
        error_message: no_text(),
        topics: topics.collect(),
        nodes: if is_known {
            nodes.collect()
        } else {
            Vec::new()
        },
    }
}

fn metadata(state: &QuorumState, now: WallMs) -> PartitionData<'static> {
    let high_watermark = i64::try_from(state.high_watermark).unwrap_or(i64::MAX);
    let voters = state.voters.iter().map(|voter| ReplicaState {
        replica_id: voter.0,
        log_end_offset: high_watermark,
        last_fetch_timestamp: now,
        last_caught_up_timestamp: now,
        ..Default::default()
    });
    PartitionData {
        partition_index: 0,
        error_code: ErrorCode::None.code(),
        error_message: Some("".into()),
        leader_id: state.leader.0,
        leader_epoch: state.epoch,
        high_watermark,
        current_voters: voters.collect(),
        observers: Vec::new(),
    }
}
