//! The words of messages about settings.

use crate::meta::config::{Def, Kind, Valid, broker_def};

/// What a value of this setting may be.
pub fn allowed(def: &Def) -> String {
    match (&def.valid, def.kind) {
        (Valid::AtLeast(min), _) => format!("a number from {min} up"),
        (Valid::Between(min, max), _) => format!("a number from {min} to {max}"),
        (Valid::OneOf(of), _) => format!("one of {}", of.join(", ")),
        (Valid::Level { min, max, or }, _) => {
            format!("a number from {min} to {max}, or {or}")
        }
        (Valid::Throttled, _) => "'*', or a list of partition:broker".to_string(),
        (Valid::List { of, .. }, _) if !of.is_empty() => format!("a list of {}", of.join(", ")),
        (Valid::List { empty: false, .. }, _) => {
            "a list of at least one item, with commas between".to_string()
        }
        (_, Kind::Boolean) => "true or false".to_string(),
        (_, Kind::Int) => format!("a whole number from {} to {}", i32::MIN, i32::MAX),
        (_, Kind::Short) => format!("a whole number from {} to {}", i16::MIN, i16::MAX),
        (_, Kind::Long) => format!("a whole number from {} to {}", i64::MIN, i64::MAX),
        (_, Kind::Double) => "a number".to_string(),
        (_, Kind::List) => "a list with commas between".to_string(),
        (_, Kind::String | Kind::Class | Kind::Password) => "a text".to_string(),
    }
}

/// The part of Kafka's message behind key and value, which the caller says in his own way.
pub fn tail(message: &str) -> &str {
    message
        .split_once(" for configuration ")
        .and_then(|(_, rest)| rest.split_once(": "))
        .map_or(message, |(_, tail)| tail)
        .trim_end_matches('.')
}

/// Why a key that is not in the table, but that Apache Kafka knows or knew, does nothing here.
pub fn foreign(key: &str) -> Option<String> {
    if let Some(rest) = key.strip_prefix("listener.name.") {
        // listener.name.<listener>.<setting>, listener.name.<listener>.<mechanism>.<setting>
        let mut setting = rest;
        while let Some((_, shorter)) = setting.split_once('.') {
            if broker_def(shorter).is_some() {
                return Some("settings of a single listener are not supported yet".to_string());
            }
            setting = shorter;
        }
        return None;
    }
    if REMOVED.contains(&key) || key.starts_with("zookeeper.") {
        return Some("Apache Kafka has removed it".to_string());
    }
    let (_, why) = PREFIXES
        .iter()
        .find(|(prefix, _)| key.starts_with(prefix))?;
    Some((*why).to_string())
}

/// Settings of what Kafka would load.
const PREFIXES: &[(&str, &str)] = &[
    ("config.providers.", "Corelane loads no Java classes"),
    ("client.quota.callback.", "Corelane loads no Java classes"),
    ("rsm.config.", "tiered storage is not supported"),
    ("rlmm.config.", "tiered storage is not supported"),
    ("remote.log.", "tiered storage is not supported"),
    (
        "allow.everyone.if.no.acl.found",
        "ACLs are not supported yet",
    ),
    ("super.users", "ACLs are not supported yet"),
];

/// What files of older versions still say (Kafka 2 and 3; gone in 4.0).
const REMOVED: &[&str] = &[
    "advertised.host.name",
    "advertised.port",
    "auto.include.jmx.reporter",
    "broker.id.generation.enable",
    "control.plane.listener.name",
    "controlled.shutdown.max.retries",
    "controlled.shutdown.retry.backoff.ms",
    "delegation.token.master.key",
    "eligible.leader.replicas.enable",
    "host.name",
    "inter.broker.protocol.version",
    "log.cleaner.enable",
    "log.message.downconversion.enable",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "metadata.max.idle.interval.ms.enable",
    "offsets.commit.required.acks",
    "password.encoder.cipher.algorithm",
    "password.encoder.iterations",
    "password.encoder.key.length",
    "password.encoder.keyfactory.algorithm",
    "password.encoder.old.secret",
    "password.encoder.secret",
    "port",
    "quota.consumer.default",
    "quota.producer.default",
    "reserved.broker.max.id",
];
