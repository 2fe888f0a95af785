//! Changing configs while the cluster runs: which may change, and what a change makes of a value.

use std::collections::BTreeMap;

use super::StaticConfig;
use super::group::group_def;
use super::table::{Def, Dynamic, broker_def, listener_def, topic_def};
use super::topic::effective;
use super::value::Kind;
use crate::meta::command::{ApiError, ConfigChange, ConfigOp};
use crate::meta::record::Resource;
use crate::model::ErrorCode;

/// What the configs of a resource are after `asked`, of which `now` are those before.
pub fn changed(
    asked: &ConfigChange,
    now: &BTreeMap<String, String>,
    in_force: &StaticConfig,
) -> Result<BTreeMap<String, String>, ApiError> {
    let mut after = if asked.replace {
        BTreeMap::new()
    } else {
        now.clone()
    };
    for (key, op) in &asked.ops {
        let value = now.get(key).map(String::as_str);
        match change(asked.resource, key, op, value, in_force)? {
            Some(value) => after.insert(key.clone(), value),
            None => after.remove(key),
        };
    }
    Ok(after)
}

/// The value that `op` makes of `now`; `None` takes the config away. `in_force` says what a list is without a value of its own.
fn change(
    resource: Resource,
    key: &str,
    op: &ConfigOp,
    now: Option<&str>,
    in_force: &StaticConfig,
) -> Result<Option<String>, ApiError> {
    let (items, verb, named) = match op {
        ConfigOp::Set(value) => return Ok(Some(value.clone())),
        ConfigOp::Delete => return Ok(None),
        ConfigOp::Append(items) => (items, "APPEND", "append"),
        ConfigOp::Subtract(items) => (items, "SUBTRACT", "subtract"),
    };
    let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidConfig, message));
    let def = match resource {
        Resource::Topic => topic_def(key),
        Resource::Broker => broker_def(key).or_else(|| listener_def(key)),
        // Kafka calls none of them a list here, although they are.
        Resource::ClientMetrics | Resource::Group => None,
    };
    let group = match resource {
        Resource::Group => group_def(key),
        _ => None,
    };
    match (def, resource) {
        _ if group.is_some_and(|def| def.kind == Kind::List) => {}
        (Some(def), _) if def.kind == Kind::List => {}
        (None, Resource::Broker) => return invalid(format!("Unknown config name: {key}")),
        (Some(_), Resource::Broker) => {
            return invalid(format!(
                "Config value {named} is not allowed for config key: {key}"
            ));
        }
        _ => {
            return invalid(format!(
                "Can't {verb} to key {key} because its type is not LIST."
            ));
        }
    }
    let inherited = || match (resource, def) {
        (Resource::Topic, Some(def)) => effective(def.name, &BTreeMap::new(), in_force).to_text(),
        (_, Some(def)) => in_force.value(def.name).to_text(),
        (_, None) => group.and_then(|def| def.inherited(in_force)),
    };
    let before = match now {
        Some(now) => now.to_string(),
        None => inherited().unwrap_or_default(),
    };
    let split = |text: &str| -> Vec<String> {
        let items = text.split(',').map(str::trim);
        items
            .filter(|item| !item.is_empty())
            .map(str::to_string)
            .collect()
    };
    let mut list = split(&before);
    for item in split(items) {
        match op {
            ConfigOp::Append(_) if list.contains(&item) => {}
            ConfigOp::Append(_) => list.push(item),
            _ => list.retain(|there| *there != item),
        }
    }
    Ok(Some(list.join(",")))
}

/// Configs with an effect that a node takes up when it starts, and Kafka's brokers also while they run.
const AT_START_ONLY: [&str; 3] = [
    "listeners",
    "listener.security.protocol.map",
    "max.connections",
];

/// Whether a broker config may be changed, with effect, while the node runs.
pub fn changes_while_running(def: &Def) -> bool {
    def.dynamic != Dynamic::No && !AT_START_ONLY.contains(&def.name)
}

/// Whether a node (`of_one`) or all of them may be set to this while they run; the error is Kafka's text.
pub fn check_broker(set: &BTreeMap<String, String>, of_one: bool) -> Result<(), String> {
    let refuse = |text: &str, of: &dyn Fn(&str, &Def) -> bool| {
        let known = set.keys().filter_map(|name| Some((name, find(name)?)));
        let names: Vec<&str> = known
            .filter(|(name, def)| of(name, def))
            .map(|(name, _)| name.as_str())
            .collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(format!("{text}: [{}]", names.join(", "))),
        }
    };
    refuse("Cannot update these configs dynamically", &|_, def| {
        def.dynamic == Dynamic::No
    })?;
    refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        &|name, def| def.dynamic == Dynamic::Listener && broker_def(name).is_some(),
    )?;
    for (name, value) in set {
        if let Some(def) = find(name) {
            def.parse(value)?;
        }
    }
    if !of_one {
        refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            &|name, def| def.dynamic != Dynamic::Cluster || broker_def(name).is_none(),
        )?;
    }
    // Kafka can, we cannot: what would be said to be in force would not be.
    refuse("Cannot update these configs dynamically", &|name, _| {
        AT_START_ONLY.contains(&name)
    })?;
    classes(set)
}

fn find(name: &str) -> Option<&'static Def> {
    broker_def(name).or_else(|| listener_def(name))
}

/// Corelane loads no Java classes: naming one fails as it does in Kafka when the class is not there.
fn classes(set: &BTreeMap<String, String>) -> Result<(), String> {
    let name = "metric.reporters";
    match set.get(name) {
        Some(value) if !value.trim().is_empty() => Err(format!(
            "Invalid value org.apache.kafka.common.config.ConfigException: Validation of dynamic config update of Set({name}) \
             failed with class class kafka.server.DynamicMetricsReporters for configuration Invalid dynamic configuration"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(key: &str, op: ConfigOp, now: Option<&str>) -> Result<Option<String>, ApiError> {
        change(Resource::Topic, key, &op, now, &StaticConfig::default())
    }

    #[test]
    fn lists_grow_and_shrink_by_items_from_what_was_inherited() {
        let text = |text: &str| Ok(Some(text.to_string()));
        let append = |items: &str| ConfigOp::Append(items.to_string());
        let subtract = |items: &str| ConfigOp::Subtract(items.to_string());
        assert_eq!(
            topic("cleanup.policy", append("compact"), None),
            text("delete,compact")
        );
        assert_eq!(
            topic("cleanup.policy", append("compact"), Some("compact")),
            text("compact")
        );
        assert_eq!(
            topic("cleanup.policy", append("delete,compact"), Some("")),
            text("delete,compact")
        );
        assert_eq!(
            topic("cleanup.policy", subtract("delete"), Some("delete,compact")),
            text("compact")
        );
        assert_eq!(topic("cleanup.policy", subtract("delete"), None), text(""));
        let refused = topic("retention.ms", append("1"), None).unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_deref()),
            (
                ErrorCode::InvalidConfig,
                Some("Can't APPEND to key retention.ms because its type is not LIST.")
            )
        );
    }

    #[test]
    fn what_may_not_change_is_refused_in_kafkas_words() {
        let check = |name: &str, value: &str, of_one| {
            let set = BTreeMap::from([(name.to_string(), value.to_string())]);
            check_broker(&set, of_one)
        };
        let refused = |text: &str| Err(text.to_string());
        assert_eq!(check("message.max.bytes", "3000", true), Ok(()));
        assert_eq!(check("message.max.bytes", "3000", false), Ok(()));
        assert_eq!(check("my.plugin.x", "x", false), Ok(()));
        assert_eq!(
            check("num.partitions", "3", true),
            refused("Cannot update these configs dynamically: [num.partitions]")
        );
        assert_eq!(
            check("listeners", "PLAINTEXT://:1", false),
            refused(
                "Cannot update these configs at default cluster level, broker id must be specified: [listeners]"
            )
        );
        let listener_only = "These security configs can be dynamically updated only per-listener using the listener prefix: [ssl.keystore.password]";
        assert_eq!(
            check("ssl.keystore.password", "x", true),
            refused(listener_only)
        );
        let prefixed = "listener.name.plaintext.ssl.keystore.password";
        assert_eq!(check(prefixed, "x", true), Ok(()));
        assert_eq!(
            check("listener.name.plaintext.max.connections", "zz", true),
            refused("Invalid value zz for configuration max.connections: Not a number of type INT")
        );
        assert_eq!(
            check("message.max.bytes", "-1", false),
            refused(
                "Invalid value -1 for configuration message.max.bytes: Value must be at least 0"
            )
        );
    }
}
