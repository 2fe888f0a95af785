//! Subscriptions of client metrics (KIP-714) as configs: what a subscription may say, and what it comes to.

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};

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

/// Memory that one compiled pattern may take; a larger one is refused.
const PATTERN_BYTES_MAX: usize = 64 * 1024;

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
                    if pattern(item).is_none() {
                        return config(format!("Illegal client matching pattern: {item}"));
                    }
                }
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// A subscription, ready to be matched.
#[derive(Debug)]
pub struct Subscription {
    pub interval_ms: i32,
    /// Prefixes of names; [`ALL_METRICS`] is every metric.
    pub metrics: Vec<String>,
    patterns: Vec<(&'static str, Regex)>,
}

/// In `metrics`: all of them.
pub const ALL_METRICS: &str = "*";

/// Without a subscription that matches.
pub const INTERVAL_MS: i32 = 300_000;

impl Subscription {
    /// What was set, which was checked then; what does not fit was written by another version and has its default.
    pub fn new(set: &BTreeMap<String, String>) -> Subscription {
        let value = |key: &str| parse(key, kind(key)?, &Valid::Any, set.get(key)?).ok();
        let list = |key: &str| match value(key) {
            Some(Value::List(items)) => items,
            _ => Vec::new(),
        };
        Subscription {
            interval_ms: match value("interval.ms") {
                Some(Value::Number(ms)) => i32::try_from(ms).unwrap_or(INTERVAL_MS),
                _ => INTERVAL_MS,
            },
            metrics: list("metrics"),
            patterns: list("match")
                .iter()
                .filter_map(|item| pattern(item))
                .collect(),
        }
    }

    /// Whether the client with these properties is meant; one without patterns means all clients.
    pub fn matches<'a>(&self, property: impl Fn(&str) -> Option<&'a str>) -> bool {
        let mut patterns = self.patterns.iter();
        patterns.all(|(name, regex)| property(name).is_some_and(|value| regex.is_match(value)))
    }
}

/// `property=regular expression`, matched against the whole of the property.
fn pattern(item: &str) -> Option<(&'static str, Regex)> {
    let (name, expression) = item.split_once('=')?;
    let name = PROPERTIES.into_iter().find(|known| *known == name.trim())?;
    let expression = expression.trim();
    if expression.is_empty() || expression.contains('=') {
        return None;
    }
    let regex = RegexBuilder::new(&format!("^(?:{expression})$"))
        .size_limit(PATTERN_BYTES_MAX)
        .build();
    Some((name, regex.ok()?))
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
                doc: (*doc).into(),
                synonyms: synonyms.into_iter().collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn a_pattern_is_for_the_whole_property_and_all_must_match() {
        let of = |text: &str| Subscription::new(&set(&[("match", text)]));
        let client = |name: &str| match name {
            "client_id" => Some("abc"),
            "client_software_name" => Some("apache-kafka-java"),
            _ => None,
        };
        assert!(of("").matches(client));
        assert!(of("client_id=a.*").matches(client));
        assert!(!of("client_id=b").matches(client));
        assert!(!of("client_id=a").matches(client));
        assert!(of("client_id=abc,client_software_name=apache.*").matches(client));
        assert!(!of("client_id=abc,client_software_name=librd.*").matches(client));
    }

    #[test]
    fn patterns_that_cannot_be_are_refused() {
        for bad in [
            "x",
            "nokey=[",
            "client_id=[",
            "client_id=",
            "client_id=a=b",
            "client_id=(a{999}){999}",
        ] {
            let refused = check_client_metrics("s", &set(&[("match", bad)])).unwrap_err();
            assert_eq!(
                (refused.code, refused.message),
                (
                    ErrorCode::InvalidConfig,
                    Some(format!("Illegal client matching pattern: {bad}"))
                )
            );
        }
    }
}
