//! DescribeCluster (60), versions 0 to 2 (KIP-700, KIP-919, KIP-1073), and ListPartitionReassignments (46), version 0.

use super::metadata::{CLUSTER_OPERATIONS, NO_OPERATIONS};
use super::{Call, Flow, answer};
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::describe_cluster_request::DescribeClusterRequest;
use crate::wire::msg::describe_cluster_response::{DescribeClusterBroker, DescribeClusterResponse};
use crate::wire::msg::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use crate::wire::msg::list_partition_reassignments_response::ListPartitionReassignmentsResponse;
use crate::wire::{Malformed, Reader};

/// The endpoint type that brokers answer for; 2 is for controllers.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

impl Shard {
    pub(super) fn describe_cluster(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DescribeClusterRequest::decode(r, call.version)?;
        if request.endpoint_type != BROKERS {
            let (error, text) = match request.endpoint_type {
                CONTROLLERS => (
                    ErrorCode::MismatchedEndpointType,
                    "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
                ),
                _ => (
                    ErrorCode::UnsupportedEndpointType,
                    "Unsupported endpoint type",
                ),
            };
            let response = DescribeClusterResponse {
                error_code: error.code(),
                error_message: Some(text.into()),
                endpoint_type: BROKERS,
                ..Default::default()
            };
            return Ok(Flow::Answer(answer(call, |w, version| {
                response.encode(w, version)
            })));
        }
        let listener = self.listener_of(call.to.conn);
        let brokers = self.image.nodes().filter_map(|node| {
            let endpoint = node.endpoint(listener)?;
            Some(DescribeClusterBroker {
                broker_id: node.id.0,
                host: endpoint.host.as_str().into(),
                port: i32::from(endpoint.port),
                rack: Some(node.rack().into()),
                is_fenced: false,
            })
        });
        let response = DescribeClusterResponse {
            error_code: ErrorCode::None.code(),
            endpoint_type: BROKERS,
            cluster_id: self.image.cluster_id().to_string().into(),
            controller_id: self.controller_node().0,
            brokers: brokers.collect(),
            cluster_authorized_operations: match request.include_cluster_authorized_operations {
                true => CLUSTER_OPERATIONS,
                false => NO_OPERATIONS,
            },
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    /// Nothing is being reassigned.
    pub(super) fn list_partition_reassignments(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        ListPartitionReassignmentsRequest::decode(r, call.version)?;
        let response = ListPartitionReassignmentsResponse {
            error_message: None,
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }
}
