//! PushTelemetry (72), version 0; KIP-714.
//!
//! A push is checked as Kafka checks it, decompressed in bounded memory and counted; what is in it is not read.

use super::{Call, Flow, answer};
use crate::batch::Codec;
use crate::model::ErrorCode;
use crate::model::limit::TELEMETRY_BYTES_MAX;
use crate::shard::{Actions, Shard};
use crate::wire::msg::push_telemetry_request::PushTelemetryRequest;
use crate::wire::msg::push_telemetry_response::PushTelemetryResponse;
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn push_telemetry(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = PushTelemetryRequest::decode(r, call.version)?;
        let error = match self.push(call, &request) {
            Ok(()) => ErrorCode::None,
            Err(error) => error,
        };
        let response = PushTelemetryResponse {
            error_code: error.code(),
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn push(&mut self, call: Call, request: &PushTelemetryRequest<'_>) -> Result<(), ErrorCode> {
        let id = request.client_instance_id;
        if id.is_zero() {
            return Err(ErrorCode::InvalidRequest);
        }
        let now = self.now.mono;
        let bytes_max = self.image.statics().number("telemetry.max.bytes");
        let client = self.telemetry_client(id, call.to.conn);
        let bytes = &request.metrics;
        let codec = Codec::of(request.compression_type.into());
        let checked = if client.terminating {
            Err(ErrorCode::InvalidRequest)
        } else if !client.may_push(now) && !request.terminating {
            Err(ErrorCode::ThrottlingQuotaExceeded)
        } else if request.subscription_id != client.wanted.id {
            Err(ErrorCode::UnknownSubscriptionId)
        } else if bytes.len() as i64 > bytes_max {
            Err(ErrorCode::TelemetryTooLarge)
        } else {
            codec.ok_or(ErrorCode::UnsupportedCompressionType)
        };
        client.last_error = checked.err().unwrap_or(ErrorCode::None);
        let codec = checked?;
        client.terminating = request.terminating;
        let mut size = bytes.len();
        if codec != Codec::None && !bytes.is_empty() {
            let mut out = Vec::new();
            let read = self
                .codecs
                .decompress(codec, bytes, TELEMETRY_BYTES_MAX, &mut out);
            read.map_err(|_| ErrorCode::InvalidRecord)?;
            size = out.len();
        }
        self.counters.telemetry_pushes += 1;
        self.counters.telemetry_bytes += size as u64;
        Ok(())
    }
}
