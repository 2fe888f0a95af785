//! AlterConfigs (33), versions 0 to 2; KIP-133. And what it shares with IncrementalAlterConfigs.
//!
//! The set that is named replaces the whole set of the resource. As Kafka's brokers do (ConfigAdminManager), the asked node
//! looks for what is wrong with the request and says whether a broker config may change while it runs; the controller checks
//! values and decides. Differences from Kafka: a resource named twice is refused (Kafka never answers); a broker's thread
//! counts have no bounds, since they have no effect; no logger has a level of its own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::forward::Asked;
use super::{Call, Flow, answer, error_of};
use crate::meta::config::{changed, check_broker};
use crate::meta::{ApiError, Command, ConfigChange, ConfigOp, Outcome, OutcomeResult, Resource};
use crate::model::ErrorCode;
use crate::model::limit::ADMIN_WAIT_MS;
use crate::shard::{Actions, Shard};
use crate::wire::msg::alter_configs_request::AlterConfigsRequest;
use crate::wire::msg::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use crate::wire::{Malformed, Reader};

/// Kafka's type of a broker's loggers.
pub(super) const BROKER_LOGGER: i8 = 8;

/// Numbers of operations.
pub(super) const SET: i8 = 0;
pub(super) const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// One resource of a request, as it came.
pub(super) struct Requested {
    pub kind: i8,
    pub name: String,
    /// Key, operation and value.
    pub configs: Vec<(String, i8, Option<String>)>,
}

/// What this node has to say of a resource before the controller is asked.
#[derive(Debug)]
pub struct Looked {
    pub kind: i8,
    pub name: String,
    /// `None`: the controller answers.
    pub answer: Option<Result<(), ApiError>>,
}

impl Shard {
    pub(super) fn alter_configs(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = AlterConfigsRequest::decode(r, call.version)?;
        let resources = request.resources.iter().map(|resource| Requested {
            kind: resource.resource_type,
            name: resource.resource_name.to_string(),
            configs: resource
                .configs
                .iter()
                .map(|config| {
                    let value = config.value.as_ref().map(|value| value.to_string());
                    (config.name.to_string(), SET, value)
                })
                .collect(),
        });
        let resources = resources.collect();
        Ok(self.alter(call, resources, true, request.validate_only, actions))
    }

    /// Looks through the resources and forwards what the controller decides.
    pub(super) fn alter(
        &mut self,
        call: Call,
        resources: Vec<Requested>,
        replace: bool,
        validate_only: bool,
        actions: &mut Actions,
    ) -> Flow {
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<(i8, String)> = resources
            .iter()
            .map(|resource| (resource.kind, resource.name.clone()))
            .filter(|key| !seen.insert(key.clone()))
            .collect();
        let mut changes = Vec::new();
        let mut looked = Vec::new();
        for resource in resources {
            let key = (resource.kind, resource.name);
            let answer = if twice.contains(&key) {
                Some(Err(request("Each resource must appear at most once.")))
            } else {
                match self.look(key.0, &key.1, resource.configs, replace) {
                    Ok(change) => {
                        changes.push(change);
                        None
                    }
                    Err(error) => Some(Err(error)),
                }
            };
            looked.push(Looked {
                kind: key.0,
                name: key.1,
                answer,
            });
        }
        let asked = Asked::AlterConfigs(looked);
        if changes.is_empty() {
            let none = OutcomeResult::AlterConfigs(Vec::new());
            return Flow::Answer(asked.answer(call, &Outcome::local(none)));
        }
        let command = Command::AlterConfigs {
            changes,
            validate_only,
        };
        self.forward_asked(call, asked, command, ADMIN_WAIT_MS, actions)
    }

    fn look(
        &self,
        kind: i8,
        name: &str,
        configs: Vec<(String, i8, Option<String>)>,
        replace: bool,
    ) -> Result<ConfigChange, ApiError> {
        let mut keys = BTreeSet::new();
        if configs.iter().any(|(key, _, _)| !keys.insert(key)) {
            return Err(request("Error due to duplicate config keys"));
        }
        let nulls: Vec<&str> = configs
            .iter()
            .filter(|(_, op, value)| *op != DELETE && value.is_none())
            .map(|(key, _, _)| key.as_str())
            .collect();
        if !nulls.is_empty() {
            let nulls = nulls.join(",");
            return Err(request(&format!("Null value not supported for : {nulls}")));
        }
        if kind == BROKER_LOGGER && !replace {
            return Err(self.look_at_loggers(name, &configs));
        }
        let resource = match Resource::from_code(kind) {
            None => {
                return Err(request(&format!("Unknown resource type {kind}")));
            }
            Some(resource) => resource,
        };
        let mut change = ConfigChange {
            resource,
            name: name.to_string(),
            ops: operations(configs)?,
            replace,
        };
        if resource == Resource::Broker && !name.is_empty() {
            self.check_own_id(name, "Unexpected broker id, expected")?;
            change.name = self.node.0.to_string();
        }
        if resource == Resource::Broker {
            self.look_at_broker(&change)?;
        }
        Ok(change)
    }

    /// Whether these broker configs may change while the node runs.
    fn look_at_broker(&self, asked: &ConfigChange) -> Result<(), ApiError> {
        let empty = BTreeMap::new();
        let now = self.image.configs(Resource::Broker, &asked.name);
        let after = changed(asked, now.unwrap_or(&empty), self.image.in_force())?;
        check_broker(&after, !asked.name.is_empty()).map_err(|text| request(&text))
    }

    fn check_own_id(&self, name: &str, unexpected: &str) -> Result<(), ApiError> {
        match name.parse::<i32>() {
            Err(_) => Err(request(&format!(
                "Node id must be an integer, but it is: {name}"
            ))),
            Ok(id) if id != self.node.0 => Err(request(&format!(
                "{unexpected} {}, but received {name}",
                self.node.0
            ))),
            Ok(_) => Ok(()),
        }
    }

    /// No logger has a level of its own, so there is none to change.
    fn look_at_loggers(&self, name: &str, configs: &[(String, i8, Option<String>)]) -> ApiError {
        if let Err(error) = self.check_own_id(name, "Unexpected node id. Expected") {
            return error;
        }
        match configs.first() {
            Some((_, op @ (APPEND | SUBTRACT), _)) => request(&format!(
                "{} operation is not allowed for the BROKER_LOGGER resource",
                if *op == APPEND { "APPEND" } else { "SUBTRACT" }
            )),
            Some((key, _, _)) => ApiError::new(
                ErrorCode::InvalidConfig,
                format!("Logger {key} does not exist!"),
            ),
            None => request("No logger is named."),
        }
    }
}

fn request(text: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, text)
}

fn operations(
    configs: Vec<(String, i8, Option<String>)>,
) -> Result<Vec<(String, ConfigOp)>, ApiError> {
    let operation = |(key, op, value): (String, i8, Option<String>)| {
        // Only DELETE comes without a value.
        let value = value.unwrap_or_default();
        let op = match op {
            SET => ConfigOp::Set(value),
            DELETE => ConfigOp::Delete,
            APPEND => ConfigOp::Append(value),
            SUBTRACT => ConfigOp::Subtract(value),
            _ => return Err(request(&format!("Unknown config operation {op}"))),
        };
        Ok((key, op))
    };
    configs.into_iter().map(operation).collect()
}

/// Every resource with its error, in the order of the request.
pub(super) fn results<'a>(
    looked: &'a [Looked],
    outcome: &'a OutcomeResult,
) -> impl Iterator<Item = (&'a Looked, Option<ApiError>)> {
    let mut decided = match outcome {
        OutcomeResult::AlterConfigs(results) => results.iter(),
        _ => [].iter(),
    };
    looked.iter().map(move |looked| {
        let error = match (&looked.answer, outcome) {
            (Some(answer), _) => answer.clone().err(),
            (None, OutcomeResult::Failed(error)) => Some(error.clone()),
            (None, _) => match decided.next() {
                Some(result) => result.clone(),
                None => Some(ApiError::bare(ErrorCode::UnknownServerError)),
            },
        };
        (looked, error)
    })
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
    let response = AlterConfigsResponse {
        responses: responses.collect(),
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
