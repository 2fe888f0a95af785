//! The tables of configs, read once from their texts.

use std::borrow::Cow;
use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::value::{self, Kind, Valid, Value};

/// Who may change a broker config while the broker runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dynamic {
    No,
    /// At the default entity and for one broker.
    Cluster,
    /// For one broker only.
    Broker,
    /// For one broker, under the prefix of a listener only.
    Listener,
}

/// Whether a config of Kafka does something here; if not, why, for the warning at boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Used,
    Class,
    Threads,
    Inside,
    Quorum,
    Tiered,
    Later,
}

impl Effect {
    fn parse(text: &str) -> Option<Effect> {
        Some(match text {
            "used" => Effect::Used,
            "class" => Effect::Class,
            "threads" => Effect::Threads,
            "inside" => Effect::Inside,
            "quorum" => Effect::Quorum,
            "tiered" => Effect::Tiered,
            "later" => Effect::Later,
            _ => return None,
        })
    }

    /// Why the config has no effect.
    pub fn reason(self) -> &'static str {
        match self {
            Effect::Used => "it is used",
            Effect::Class => "Corelane loads no Java classes",
            Effect::Threads => "a shard is one thread on one core: set `shards` instead",
            Effect::Inside => "it tunes the inside of Apache Kafka",
            Effect::Quorum => "every process holds the metadata quorum and tunes it by itself",
            Effect::Tiered => "tiered storage is not supported",
            Effect::Later => "it is not supported yet",
        }
    }
}

/// One config.
#[derive(Clone, Debug)]
pub struct Def {
    pub name: &'static str,
    pub kind: Kind,
    /// As written in a file; `None` is null, "not set".
    pub default: Option<&'static str>,
    pub valid: Valid,
    /// Accepted, never listed.
    pub internal: bool,
    pub dynamic: Dynamic,
    /// Of a topic config: the broker configs that give its default, in order of precedence. Of a broker config: the
    /// topic config whose default it gives, if any.
    pub synonyms: Vec<&'static str>,
    pub effect: Effect,
    pub doc: &'static str,
}

impl Def {
    /// Parses and checks a value; the error is Kafka's message.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        value::parse(self.name, self.kind, &self.valid, text)
    }

    pub fn default_value(&self) -> Value {
        match self.default {
            None => Value::Null,
            Some(text) => value::parse(self.name, self.kind, &Valid::Any, text)
                .expect("a test parses every default"),
        }
    }

    /// What it is for, and why it has no effect if it has none.
    pub fn documentation(&self) -> Cow<'static, str> {
        match self.effect {
            Effect::Used => self.doc.into(),
            effect => format!("{} No effect here: {}.", self.doc, effect.reason()).into(),
        }
    }

    pub fn sensitive(&self) -> bool {
        self.kind == Kind::Password
    }
}

struct Table {
    defs: Vec<Def>,
    by_name: FxHashMap<&'static str, usize>,
}

impl Table {
    fn new(text: &'static str, row: fn(&[&'static str]) -> Option<Def>) -> Table {
        let mut defs = Vec::new();
        for line in text.lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let columns: Vec<&'static str> = line.split('|').map(str::trim).collect();
            defs.push(row(&columns).unwrap_or_else(|| panic!("a row of the table: {line}")));
        }
        let by_name = defs.iter().enumerate().map(|(i, d)| (d.name, i)).collect();
        Table { defs, by_name }
    }

    fn find(&self, name: &str) -> Option<&Def> {
        self.by_name.get(name).map(|i| &self.defs[*i])
    }
}

static TOPIC: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("topic.txt"), topic_row));
static BROKER: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("broker.txt"), broker_row));

fn topic_row(columns: &[&'static str]) -> Option<Def> {
    let [name, kind, default, valid, synonyms, effect, doc] = columns else {
        return None;
    };
    Some(Def {
        name: name.trim_end_matches('!'),
        kind: Kind::parse(kind)?,
        default: (*default != "-").then_some(*default),
        valid: Valid::parse(valid)?,
        internal: name.ends_with('!'),
        dynamic: Dynamic::Cluster,
        synonyms: words(synonyms),
        effect: Effect::parse(effect)?,
        doc,
    })
}

fn broker_row(columns: &[&'static str]) -> Option<Def> {
    let [name, kind, default, valid, dynamic, topic, effect, doc] = columns else {
        return None;
    };
    Some(Def {
        name: name.trim_end_matches('!'),
        kind: Kind::parse(kind)?,
        default: (*default != "-").then_some(*default),
        valid: Valid::parse(valid)?,
        internal: name.ends_with('!'),
        dynamic: match *dynamic {
            "no" => Dynamic::No,
            "cluster" => Dynamic::Cluster,
            "broker" => Dynamic::Broker,
            "listener" => Dynamic::Listener,
            _ => return None,
        },
        synonyms: words(topic),
        effect: Effect::parse(effect)?,
        doc,
    })
}

pub(super) fn words(text: &'static str) -> Vec<&'static str> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect()
}

/// Every topic config, in the order in which Kafka checks them.
pub fn topic_defs() -> &'static [Def] {
    &TOPIC.defs
}

pub fn topic_def(name: &str) -> Option<&'static Def> {
    TOPIC.find(name)
}

pub fn broker_defs() -> &'static [Def] {
    &BROKER.defs
}

pub fn broker_def(name: &str) -> Option<&'static Def> {
    BROKER.find(name)
}

/// The config that `listener.name.<listener>.<config>` is for one listener.
pub fn listener_def(name: &str) -> Option<&'static Def> {
    let (_, rest) = name.strip_prefix("listener.name.")?.split_once('.')?;
    let mechanism = || broker_def(rest.split_once('.')?.1);
    broker_def(rest).or_else(mechanism)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_reads_and_every_default_fits() {
        assert!(topic_defs().len() >= 38 && broker_defs().len() >= 330);
        for def in topic_defs().iter().chain(broker_defs()) {
            if let Some(default) = def.default {
                // Kafka does not check defaults either, and an unset list or text may be empty where a set one may not.
                if !default.is_empty() {
                    assert!(def.parse(default).is_ok(), "{}", def.name);
                }
                let _ = def.default_value();
            }
        }
    }

    #[test]
    fn synonyms_agree_in_both_directions() {
        for topic in topic_defs() {
            for name in &topic.synonyms {
                let broker = broker_def(name).unwrap_or_else(|| panic!("{name} exists"));
                assert_eq!(broker.synonyms, vec![topic.name], "{name}");
                assert_eq!(broker.effect, topic.effect, "{name}");
            }
        }
        for broker in broker_defs() {
            for name in &broker.synonyms {
                let topic = topic_def(name).unwrap_or_else(|| panic!("{name} exists"));
                assert!(topic.synonyms.contains(&broker.name), "{}", broker.name);
            }
        }
    }

    #[test]
    fn messages_are_those_of_kafka() {
        let topic = |name: &str, value: &str| topic_def(name).unwrap().parse(value).unwrap_err();
        assert_eq!(
            topic("retention.ms", "abc"),
            "Invalid value abc for configuration retention.ms: Not a number of type LONG"
        );
        assert_eq!(
            topic("min.insync.replicas", "0"),
            "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1"
        );
        assert_eq!(
            topic("min.cleanable.dirty.ratio", "1.5"),
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"
        );
        assert_eq!(
            topic("preallocate", "maybe"),
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false"
        );
        assert_eq!(
            topic("cleanup.policy", "compact,foo"),
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete"
        );
        assert_eq!(
            topic("message.timestamp.type", "createtime"),
            "Invalid value createtime for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime"
        );
        assert_eq!(
            topic("compression.gzip.level", "0"),
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1"
        );
    }

    #[test]
    fn values_are_trimmed_booleans_ignore_case_and_repeated_items_collapse() {
        let topic = |name: &str, value: &str| topic_def(name).unwrap().parse(value).unwrap();
        assert_eq!(topic("preallocate", " TRUE "), Value::Bool(true));
        assert_eq!(topic("retention.ms", " -1\t"), Value::Number(-1));
        assert_eq!(
            topic("cleanup.policy", "compact, compact ,delete"),
            Value::List(vec!["compact".into(), "delete".into()])
        );
        assert_eq!(topic("cleanup.policy", ""), Value::List(vec![]));
    }
}
