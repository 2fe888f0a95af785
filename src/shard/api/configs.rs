//! DescribeConfigs (32), versions 1 to 4; KIP-133, KIP-226, KIP-569.
//!
//! Topics are answered from the image by any shard; a node answers for itself only, as Kafka's brokers do, with what it
//! really uses.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::alter_configs::BROKER_LOGGER;
use super::{Call, Flow, answer};
use crate::meta::config::{ConfigEntry, Kind, describe_client_metrics};
use crate::meta::{ApiError, Resource, topic_name_fault};
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use crate::wire::msg::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use crate::wire::{Malformed, Reader};

/// Kafka's text of INVALID_REQUEST where it says no more.
const MALFORMED: &str = "This most likely occurs because of a request being malformed by the client library or the message \
                         was sent to an incompatible broker. See the broker logs for more details.";

impl Shard {
    pub(super) fn describe_configs(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = DescribeConfigsRequest::decode(r, call.version)?;
        let results = request.resources.iter().map(|resource| {
            let described = self.describe_resource(resource);
            let (error, error_message, entries) = match described {
                // Kafka's text of no error.
                Ok(entries) => (ErrorCode::None, Some(String::new()), entries),
                Err(error) => (error.code, error.message, Vec::new()),
            };
            let wanted = |entry: &&ConfigEntry| match &resource.configuration_keys {
                None => true,
                Some(keys) => keys.is_empty() || keys.contains(&entry.name),
            };
            DescribeConfigsResult {
                error_code: error.code(),
                error_message: error_message.map(Cow::from),
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                configs: entries
                    .iter()
                    .filter(wanted)
                    .map(|entry| config(entry, &request))
                    .collect(),
            }
        });
        let response = DescribeConfigsResponse {
            results: results.collect(),
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn describe_resource(
        &self,
        resource: &DescribeConfigsResource<'_>,
    ) -> Result<Vec<ConfigEntry>, ApiError> {
        let wrong = |text: &str| Err(ApiError::new(ErrorCode::InvalidRequest, text));
        let name: &str = &resource.resource_name;
        match Resource::from_code(resource.resource_type) {
            Some(Resource::Topic) => {
                if let Some(fault) = topic_name_fault(name) {
                    return Err(ApiError::new(
                        ErrorCode::InvalidTopicException,
                        format!("Topic name is invalid: {fault}"),
                    ));
                }
                let described = self
                    .image
                    .topic_id(name)
                    .and_then(|id| self.image.describe_topic(id));
                described.ok_or(ApiError::bare(ErrorCode::UnknownTopicOrPartition))
            }
            Some(Resource::Broker) => self.describe_node(name),
            Some(Resource::ClientMetrics) if name.is_empty() => {
                wrong("Client metrics subscription name must not be empty")
            }
            Some(Resource::ClientMetrics) => {
                let set = self.image.configs(Resource::ClientMetrics, name);
                Ok(describe_client_metrics(set))
            }
            // No logger has a level of its own.
            None if resource.resource_type == BROKER_LOGGER => match self.check_node(name, false) {
                Ok(()) => Ok(Vec::new()),
                Err(error) => Err(error),
            },
            Some(Resource::Group) if name.is_empty() => wrong("Group name must not be empty"),
            Some(Resource::Group) => Ok(self.image.describe_group(name)),
            None => wrong(MALFORMED),
        }
    }

    /// A node answers for itself.
    fn check_node(&self, name: &str, or_all: bool) -> Result<(), ApiError> {
        let wrong = |text: String| Err(ApiError::new(ErrorCode::InvalidRequest, text));
        if name.is_empty() {
            return wrong("Broker id must not be empty".to_string());
        }
        let Ok(asked) = name.parse::<i32>() else {
            return wrong(format!("Broker id must be an integer, but it is: {name}"));
        };
        if asked == self.node.0 {
            return Ok(());
        }
        let or_all = if or_all { " or empty string," } else { "" };
        wrong(format!(
            "Unexpected broker id, expected {}{or_all} but received {name}",
            self.node.0
        ))
    }

    fn describe_node(&self, name: &str) -> Result<Vec<ConfigEntry>, ApiError> {
        if name.is_empty() {
            return Ok(self.image.describe_nodes());
        }
        self.check_node(name, true)?;
        let mut actual = BTreeMap::new();
        actual.insert("node.id", self.node.0.to_string());
        actual.insert("broker.id", self.node.0.to_string());
        let listeners: Vec<String> = self
            .config
            .listeners
            .iter()
            .map(|l| format!("{}://{}:{}", l.name, l.host, l.port))
            .collect();
        actual.insert("listeners", listeners.join(","));
        if let Some(node) = self.image.node(self.node) {
            let advertised: Vec<String> = node
                .endpoints()
                .iter()
                .map(|e| format!("{}://{}:{}", e.listener, e.host, e.port))
                .collect();
            actual.insert("advertised.listeners", advertised.join(","));
            actual.insert("broker.rack", node.rack());
        }
        Ok(self.image.describe_node(&actual))
    }
}

fn config<'a>(
    entry: &ConfigEntry,
    request: &DescribeConfigsRequest<'_>,
) -> DescribeConfigsResourceResult<'a> {
    let synonyms = entry.synonyms.iter().map(|synonym| DescribeConfigsSynonym {
        name: synonym.name.clone(),
        value: synonym.value.clone().map(Cow::from),
        source: synonym.source.code(),
    });
    DescribeConfigsResourceResult {
        name: entry.name.clone(),
        value: entry.value.clone().map(Cow::from),
        read_only: entry.read_only,
        config_source: entry.source.code(),
        is_sensitive: entry.sensitive,
        synonyms: if request.include_synonyms {
            synonyms.collect()
        } else {
            Vec::new()
        },
        config_type: entry.kind.map_or(0, Kind::code),
        documentation: request.include_documentation.then(|| entry.doc.clone()),
    }
}
