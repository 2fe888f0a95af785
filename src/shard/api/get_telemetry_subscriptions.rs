//! GetTelemetrySubscriptions (71), version 0; KIP-714.
//!
//! Served always; Kafka's brokers advertise it only with a plugin that takes what is pushed.

use super::{Call, Flow, answer};
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest;
use crate::wire::msg::get_telemetry_subscriptions_response::GetTelemetrySubscriptionsResponse;
use crate::wire::{Malformed, Reader};

/// zstd, lz4, gzip, snappy: in the order of preference.
const COMPRESSIONS: [i8; 4] = [4, 3, 1, 2];

impl Shard {
    pub(super) fn get_telemetry_subscriptions(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = GetTelemetrySubscriptionsRequest::decode(r, call.version)?;
        let mut id = request.client_instance_id;
        while id.is_zero() || (request.client_instance_id.is_zero() && self.telemetry.knows(id)) {
            id = self.rng.uuid();
        }
        let now = self.now.mono;
        let bytes_max = self.image.statics().number("telemetry.max.bytes");
        let client = self.telemetry_client(id, call.to.conn);
        let response = if client.may_get(now) {
            client.last_error = ErrorCode::None;
            let metrics = client.wanted.metrics.iter();
            GetTelemetrySubscriptionsResponse {
                client_instance_id: id,
                subscription_id: client.wanted.id,
                accepted_compression_types: COMPRESSIONS.to_vec(),
                push_interval_ms: client.wanted.interval_ms,
                telemetry_max_bytes: i32::try_from(bytes_max).unwrap_or(i32::MAX),
                delta_temporality: true,
                requested_metrics: metrics.map(|metric| metric.clone().into()).collect(),
                ..Default::default()
            }
        } else {
            client.last_error = ErrorCode::ThrottlingQuotaExceeded;
            GetTelemetrySubscriptionsResponse {
                error_code: ErrorCode::ThrottlingQuotaExceeded.code(),
                ..Default::default()
            }
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }
}
