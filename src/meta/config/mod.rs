//! Topic and broker configs: what exists, what a value may be, and what Kafka says when it is not.
//!
//! The tables are text (`topic.txt`, `broker.txt`), read once; a test reads every line. Messages are those of Kafka's
//! `ConfigDef`, because tools and tests of the ecosystem look at them.

mod describe;
mod dynamic;
mod group;
mod metrics;
mod table;
mod topic;
mod value;

pub use describe::{
    ConfigEntry, ConfigSynonym, Layers, Source, describe_broker, describe_cluster, describe_topic,
};
pub use dynamic::{changed, changes_while_running, check_broker};
pub use group::{GroupDef, check_group, describe_group, group_def, group_defs};
pub use metrics::{
    ALL_METRICS, INTERVAL_MS, Subscription, check_client_metrics, describe_client_metrics,
};
pub use table::{
    Def, Dynamic, Effect, broker_def, broker_defs, listener_def, topic_def, topic_defs,
};
pub use topic::{CleanupPolicy, CompressionType, TimestampType, TopicConfig, validate_topic};
pub use value::{Kind, Valid, Value};

use std::collections::BTreeMap;

/// Longest value of a config, bytes (Kafka: INVALID_CONFIG above).
pub const VALUE_BYTES_MAX: usize = 32_767;

/// What is set for a node, by the operator's file and command line or while it runs: only known keys with checked values;
/// every other key has its default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StaticConfig {
    set: BTreeMap<&'static str, String>,
}

impl StaticConfig {
    /// Sets `name`, which must be the name of a broker config, to a value that fits it. The error is Kafka's text.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let def = broker_def(name).ok_or_else(|| format!("Unknown configuration '{name}'."))?;
        def.parse(value)?;
        self.set.insert(def.name, value.to_string());
        Ok(())
    }

    /// The value that was set, as it was written.
    pub fn explicit(&self, name: &str) -> Option<&str> {
        self.set.get(name).map(String::as_str)
    }

    /// Everything that was set, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.set.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The value in force. Panics on a name that is not in the table: that is our bug.
    pub fn value(&self, name: &str) -> Value {
        let def = broker_def(name).unwrap_or_else(|| panic!("'{name}' is in the table"));
        match self.set.get(name) {
            Some(text) => def.parse(text).expect("checked by set"),
            None => def.default_value(),
        }
    }

    /// A BOOLEAN.
    pub fn bool(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(value) => value,
            other => panic!("'{name}' is a boolean, not {other:?}"),
        }
    }

    /// An INT, SHORT or LONG that has a default.
    pub fn number(&self, name: &str) -> i64 {
        self.number_or_null(name)
            .unwrap_or_else(|| panic!("'{name}' has a number"))
    }

    pub fn number_or_null(&self, name: &str) -> Option<i64> {
        match self.value(name) {
            Value::Number(value) => Some(value),
            Value::Null => None,
            other => panic!("'{name}' is a number, not {other:?}"),
        }
    }

    pub fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Value::Text(value) => Some(value),
            Value::Null => None,
            other => panic!("'{name}' is a text, not {other:?}"),
        }
    }

    pub fn list(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Value::List(value) => value,
            Value::Null => Vec::new(),
            other => panic!("'{name}' is a list, not {other:?}"),
        }
    }

    /// These with what was set while the cluster runs over them: for all nodes, then for one. What does not fit was written
    /// by another version and does not count.
    pub fn under(
        &self,
        cluster: Option<&BTreeMap<String, String>>,
        own: Option<&BTreeMap<String, String>>,
    ) -> StaticConfig {
        let mut all = self.clone();
        for (name, value) in [cluster, own].into_iter().flatten().flatten() {
            let _ = all.set(name, value);
        }
        all
    }

    /// What the first of these synonyms that is set says, in the unit of the topic config that it stands for.
    pub(super) fn synonym(&self, names: &[&'static str]) -> Option<(&'static str, Value)> {
        names.iter().find_map(|name| {
            self.set
                .contains_key(name)
                .then(|| (*name, in_milliseconds(name, self.value(name))))
                .filter(|(_, value)| *value != Value::Null)
        })
    }
}

/// Kafka's synonyms in hours and minutes stand for topic configs in milliseconds.
fn in_milliseconds(name: &str, value: Value) -> Value {
    let unit = if name.ends_with(".hours") {
        3_600_000
    } else if name.ends_with(".minutes") {
        60_000
    } else {
        return value;
    };
    match value {
        // -1 is "no limit" in every unit.
        Value::Number(number) if number >= 0 => Value::Number(number.saturating_mul(unit)),
        other => other,
    }
}

/// The name among `names` that `name` was most likely meant to be: at most a third of its letters away.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bound = (name.chars().count() / 3).max(1);
    names
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, remove, replace, swap neighbours) between two names, case and `_`/`-` for `.` not counted.
fn distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| -> Vec<char> {
        text.chars()
            .map(|c| match c {
                '_' | '-' => '.',
                c => c.to_ascii_lowercase(),
            })
            .collect()
    };
    let (a, b) = (fold(a), fold(b));
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_name_that_was_meant() {
        let names = || broker_defs().iter().map(|def| def.name);
        assert_eq!(
            nearest("log.retention.hour", names()),
            Some("log.retention.hours")
        );
        assert_eq!(nearest("num_partitions", names()), Some("num.partitions"));
        assert_eq!(nearest("lisetners", names()), Some("listeners"));
        assert_eq!(nearest("zzzzzzzz", names()), None);
    }

    #[test]
    fn hours_and_minutes_become_milliseconds_and_the_smaller_unit_wins() {
        let mut config = StaticConfig::default();
        config.set("log.retention.hours", "2").unwrap();
        let names = &[
            "log.retention.ms",
            "log.retention.minutes",
            "log.retention.hours",
        ];
        assert_eq!(
            config.synonym(names),
            Some(("log.retention.hours", Value::Number(7_200_000)))
        );
        config.set("log.retention.minutes", "3").unwrap();
        assert_eq!(
            config.synonym(names),
            Some(("log.retention.minutes", Value::Number(180_000)))
        );
    }

    #[test]
    fn a_static_value_must_fit_its_type() {
        let mut config = StaticConfig::default();
        assert_eq!(
            config.set("num.partitions", "0"),
            Err(
                "Invalid value 0 for configuration num.partitions: Value must be at least 1"
                    .to_string()
            )
        );
        assert_eq!(config.number("num.partitions"), 1);
        config.set("num.partitions", " 7 ").unwrap();
        assert_eq!(config.number("num.partitions"), 7);
    }
}
