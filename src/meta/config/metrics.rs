//! Subscriptions of client metrics (KIP-714) as configs: what a subscription may say, and what it comes to.

use std::collections::BTreeMap;

use super::describe::{ConfigEntry, ConfigSynonym, Source};
use super::value::{Kind, Valid, Value, parse};
use crate::meta::command::ApiError;
use crate::model::ErrorCode;

/// Name, type, default, and what it is for; in order of names.
const DEFS: &[(&str, Kind, &str, &str)] = &[
    (
        "interval.ms",
        Kind::Int,
        "300000",
        "Time between two pushes of a client's metrics.",
    ),
    (
        "match",
        Kind::List,
        "",
        "Which clients push: pairs of a property of the client and a regular expression that it must match.",
    ),
    (
        "metrics",
        Kind::List,
        "",
        "Prefixes of the names of metrics that clients push; * is all of them.",
    ),
];

/// Properties of a client that `match` may name (Kafka's ClientMetricsConfigs).
const PROPERTIES: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

fn kind(name: &str) -> Option<Kind> {
    let (_, kind, _, _) = DEFS.iter().find(|(known, _, _, _)| *known == name)?;
    Some(*kind)
}

/// Checks a whole subscription; codes and texts are Kafka's.
pub fn check_client_metrics(name: &str, set: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let request = |text: String| Err(ApiError::new(ErrorCode::InvalidRequest, text));
    let config = |text: String| Err(ApiError::new(ErrorCode::InvalidConfig, text));
    if name.is_empty() {
        return request("Subscription name can't be empty".to_string());
    }
    for (key, value) in set {
        let Some(kind) = kind(key) else {
            return request(format!("Unknown client metrics configuration: {key}"));
        };
        match parse(key, kind, &Valid::Any, value) {
            Err(text) => return config(text),
            Ok(Value::Number(ms)) if !(100..=3_600_000).contains(&ms) => {
                return request(format!(
                    "Invalid value {ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
                ));
            }
            Ok(Value::List(items)) if key == "match" => {
                for item in &items {
                    let (property, pattern) = item.split_once('=').unwrap_or(("", ""));
                    if !PROPERTIES.contains(&property.trim()) || !is_balanced(pattern) {
                        return config(format!("Illegal client matching pattern: {item}"));
                    }
                }
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Whether the brackets of a regular expression close. Nothing is matched yet: clients are told the default interval and no
/// metrics, so that a pattern is only kept and shown.
fn is_balanced(pattern: &str) -> bool {
    let mut open = Vec::new();
    let mut class = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next().is_none() => return false,
            '\\' => {}
            '[' => class = true,
            ']' => class = false,
            '(' if !class => open.push(c),
            ')' if !class && open.pop().is_none() => return false,
            _ => {}
        }
    }
    !class && open.is_empty() && !pattern.is_empty()
}

/// A subscription as DescribeConfigs shows it; one that does not exist has every default.
pub fn describe_client_metrics(set: Option<&BTreeMap<String, String>>) -> Vec<ConfigEntry> {
    DEFS.iter()
        .map(|(name, kind, default, doc)| {
            let own = set.and_then(|set| set.get(*name));
            let value = own.map_or(*default, String::as_str).to_string();
            let synonyms = own.map(|value| ConfigSynonym {
                name: (*name).into(),
                value: Some(value.clone()),
                source: Source::ClientMetrics,
            });
            ConfigEntry {
                name: (*name).into(),
                value: Some(value),
                kind: Some(*kind),
                source: own.map_or(Source::Default, |_| Source::ClientMetrics),
                read_only: false,
                sensitive: false,
                doc,
                synonyms: synonyms.into_iter().collect(),
            }
        })
        .collect()
}
