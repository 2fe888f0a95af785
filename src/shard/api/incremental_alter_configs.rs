//! IncrementalAlterConfigs (44), versions 0 and 1; KIP-339.
//!
//! Single keys of a resource are set or taken away, lists grow and shrink by items. What is checked, and how it differs from
//! Kafka, is told in `alter_configs.rs`; an unknown operation is INVALID_REQUEST (Kafka: UNKNOWN_SERVER_ERROR).

use std::borrow::Cow;

use super::alter_configs::{Looked, Requested, results};
use super::{Call, Flow, answer, error_of};
use crate::meta::OutcomeResult;
use crate::shard::{Actions, Shard};
use crate::wire::msg::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use crate::wire::msg::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use crate::wire::{Malformed, Reader};

impl Shard {
    pub(super) fn incremental_alter_configs(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = IncrementalAlterConfigsRequest::decode(r, call.version)?;
        let resources = request.resources.iter().map(|resource| Requested {
            kind: resource.resource_type,
            name: resource.resource_name.to_string(),
            configs: resource
                .configs
                .iter()
                .map(|config| {
                    let value = config.value.as_ref().map(|value| value.to_string());
                    (config.name.to_string(), config.config_operation, value)
                })
                .collect(),
        });
        let resources = resources.collect();
        Ok(self.alter(call, resources, false, request.validate_only, actions))
    }
}

pub(super) fn altered(call: Call, looked: &[Looked], outcome: &OutcomeResult) -> Vec<u8> {
    let responses = results(looked, outcome).map(|(looked, error)| {
        let (code, text) = error_of(&error);
        AlterConfigsResourceResponse {
            error_code: code.code(),
            error_message: text.map(Cow::from),
            resource_type: looked.kind,
            resource_name: looked.name.as_str().into(),
        }
    });
    let response = IncrementalAlterConfigsResponse {
        responses: responses.collect(),
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
