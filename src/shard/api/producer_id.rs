//! InitProducerId (22), versions 0 to 5; KIP-98, KIP-360. Version 6 is unstable in Kafka 4.4 and not served.
//!
//! A fresh id with epoch 0 for every idempotent producer, from this node's block. A request that finds the block empty
//! waits for the next one; Kafka answers COORDINATOR_LOAD_IN_PROGRESS there. Transactional ids are refused with
//! COORDINATOR_NOT_AVAILABLE until there is a transaction coordinator.

use super::{Call, Flow, answer};
use crate::meta::{Command, Outcome, OutcomeResult, ProducerIdBlock};
use crate::model::ErrorCode;
use crate::model::limit::PRODUCER_ID_WAIT_MS;
use crate::shard::cluster::Then;
use crate::shard::park::{ParkId, Parked};
use crate::shard::{Actions, Shard};
use crate::wire::msg::init_producer_id_request::InitProducerIdRequest;
use crate::wire::msg::init_producer_id_response::InitProducerIdResponse;
use crate::wire::{Malformed, Reader};

/// This node's producer ids.
#[derive(Default, Debug)]
pub struct ProducerIds {
    next: i64,
    end: i64,
    asking: bool,
    waiting: Vec<ParkId>,
}

#[derive(Debug)]
pub struct ProducerIdWait {
    call: Call,
}

impl ProducerIds {
    fn take(&mut self) -> Option<i64> {
        (self.next < self.end).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Shard {
    pub(super) fn init_producer_id(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = InitProducerIdRequest::decode(r, call.version)?;
        let error = match request.transactional_id.as_deref() {
            None => None,
            Some("") => Some(ErrorCode::InvalidRequest),
            Some(_) => Some(ErrorCode::CoordinatorNotAvailable),
        };
        if let Some(error) = error {
            return Ok(Flow::Answer(init_answer(call, error, -1)));
        }
        if let Some(id) = self.producer_ids.take() {
            return Ok(Flow::Answer(init_answer(call, ErrorCode::None, id)));
        }
        let id = self.parked.reserve();
        self.parked.put(
            id,
            Parked::ProducerId(ProducerIdWait { call }),
            self.now.mono.after_ms(PRODUCER_ID_WAIT_MS),
        );
        if let Some(conn) = self.conns.get_mut(call.to.conn) {
            conn.parked = Some(id);
        }
        self.producer_ids.waiting.push(id);
        if !self.producer_ids.asking {
            self.producer_ids.asking = true;
            self.propose(
                Command::AllocateProducerIds { node: self.node },
                Then::ProducerIds,
                PRODUCER_ID_WAIT_MS,
                actions,
            );
        }
        Ok(Flow::Parked)
    }

    /// The controller answered the request for a block.
    pub(in crate::shard) fn producer_ids_arrived(
        &mut self,
        outcome: &Outcome,
        actions: &mut Actions,
    ) {
        self.producer_ids.asking = false;
        if let OutcomeResult::ProducerIds(ProducerIdBlock { first, len }) = outcome.result {
            self.producer_ids.next = first;
            self.producer_ids.end = first + i64::from(len);
        }
        for id in std::mem::take(&mut self.producer_ids.waiting) {
            let Some(Parked::ProducerId(wait)) = self.parked.take(id) else {
                continue;
            };
            let (error, producer_id) = match self.producer_ids.take() {
                Some(producer_id) => (ErrorCode::None, producer_id),
                None => (ErrorCode::CoordinatorLoadInProgress, -1),
            };
            self.reply(
                wait.call,
                init_answer(wait.call, error, producer_id),
                actions,
            );
        }
    }

    pub(in crate::shard) fn producer_id_expired(
        &mut self,
        wait: ProducerIdWait,
        actions: &mut Actions,
    ) {
        self.reply(
            wait.call,
            init_answer(wait.call, ErrorCode::CoordinatorLoadInProgress, -1),
            actions,
        );
    }
}

fn init_answer(call: Call, error: ErrorCode, producer_id: i64) -> Vec<u8> {
    let producer_epoch = if error.is_error() { -1 } else { 0 };
    let response = InitProducerIdResponse {
        error_code: error.code(),
        producer_id,
        producer_epoch,
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
