//! ListConfigResources (74), versions 0 and 1; KIP-714, KIP-1142.
//!
//! Version 0 lists subscriptions of client metrics. Every node is listed as a broker and with its loggers, groups are those
//! with configs: as Kafka lists them.

use super::alter_configs::BROKER_LOGGER;
use super::{Call, Flow, answer};
use crate::meta::Resource;
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::list_config_resources_request::ListConfigResourcesRequest;
use crate::wire::msg::list_config_resources_response::{
    ConfigResource, ListConfigResourcesResponse,
};
use crate::wire::{Malformed, Reader};

const TOPIC: i8 = Resource::Topic as i8;
const BROKER: i8 = Resource::Broker as i8;
const CLIENT_METRICS: i8 = Resource::ClientMetrics as i8;
const GROUP: i8 = Resource::Group as i8;

/// In the order in which they are told.
const KINDS: [i8; 5] = [GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC];

impl Shard {
    pub(super) fn list_config_resources(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = ListConfigResourcesRequest::decode(r, call.version)?;
        let asked: &[i8] = match &request.resource_types[..] {
            _ if call.version == 0 => &[CLIENT_METRICS],
            [] => &KINDS,
            some => some,
        };
        let known = asked.iter().all(|kind| KINDS.contains(kind));
        let mut kinds: Vec<i8> = KINDS
            .into_iter()
            .filter(|kind| known && asked.contains(kind))
            .collect();
        kinds.dedup();
        let resources = kinds.into_iter().flat_map(|kind| {
            let names = self.resources_of(kind).into_iter();
            names.map(move |name| ConfigResource {
                resource_name: name.into(),
                resource_type: kind,
            })
        });
        let error = match known {
            true => ErrorCode::None,
            false => ErrorCode::UnsupportedVersion,
        };
        let response = ListConfigResourcesResponse {
            error_code: error.code(),
            config_resources: resources.collect(),
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn resources_of(&self, kind: i8) -> Vec<String> {
        match kind {
            TOPIC => self.image.topics().map(|t| t.name.to_string()).collect(),
            BROKER | BROKER_LOGGER => self.image.nodes().map(|n| n.id.0.to_string()).collect(),
            CLIENT_METRICS | GROUP => {
                let resource = match kind {
                    GROUP => Resource::Group,
                    _ => Resource::ClientMetrics,
                };
                let names = self.image.configured(resource);
                names.map(str::to_string).collect()
            }
            _ => Vec::new(),
        }
    }
}
