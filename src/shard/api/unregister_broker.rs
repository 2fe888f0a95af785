//! UnregisterBroker (64), version 0; KIP-631.
//!
//! Nodes come and go with the start of their process, so that none is left over; one that runs is not taken away (Kafka
//! unregisters a running broker too, which registers again when it restarts).

use std::borrow::Cow;

use super::forward::Asked;
use super::{Call, Flow, answer, error_of};
use crate::meta::{ApiError, Command, OutcomeResult};
use crate::model::limit::ADMIN_WAIT_MS;
use crate::model::{ErrorCode, NodeId};
use crate::shard::{Actions, Shard};
use crate::wire::msg::unregister_broker_request::UnregisterBrokerRequest;
use crate::wire::msg::unregister_broker_response::UnregisterBrokerResponse;
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn unregister_broker(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = UnregisterBrokerRequest::decode(r, call.version)?;
        let node = NodeId(request.broker_id);
        let command = Command::UnregisterNode { node };
        Ok(self.forward_asked(call, Asked::UnregisterNode, command, ADMIN_WAIT_MS, actions))
    }
}

pub(super) fn unregistered(call: Call, outcome: &OutcomeResult) -> Vec<u8> {
    let error = match outcome {
        OutcomeResult::Failed(error) => Some(error.clone()),
        _ => Some(ApiError::bare(ErrorCode::UnknownServerError)),
    };
    let (code, text) = error_of(&error);
    let response = UnregisterBrokerResponse {
        error_code: code.code(),
        error_message: text.map(Cow::from),
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
