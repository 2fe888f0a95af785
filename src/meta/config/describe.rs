//! Configs as DescribeConfigs and CreateTopics show them: value in force, where it comes from, and the chain behind it.

use std::collections::BTreeMap;

use super::StaticConfig;
use super::table::{Def, Dynamic, broker_def, broker_defs, topic_defs};
use super::topic::effective;
use super::value::Kind;

/// Where a value comes from, with its number in DescribeConfigs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub enum Source {
    Unknown = 0,
    Topic = 1,
    DynamicBroker = 2,
    DynamicDefaultBroker = 3,
    StaticBroker = 4,
    Default = 5,
}

impl Source {
    pub fn code(self) -> i8 {
        self as i8
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigSynonym {
    pub name: &'static str,
    pub value: Option<String>,
    pub source: Source,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigEntry {
    pub name: &'static str,
    /// `None` is null: not set, or sensitive.
    pub value: Option<String>,
    pub kind: Kind,
    pub source: Source,
    pub read_only: bool,
    pub sensitive: bool,
    pub doc: &'static str,
    /// The chain that the value was chosen from, the one in force first.
    pub synonyms: Vec<ConfigSynonym>,
}

fn synonym(def: &Def, text: Option<&str>, source: Source) -> ConfigSynonym {
    ConfigSynonym {
        name: def.name,
        value: if def.sensitive() {
            None
        } else {
            text.map(str::to_string)
        },
        source,
    }
}

/// Static values of these broker configs in order of precedence, then their defaults.
fn broker_chain(names: &[&'static str], statics: &StaticConfig) -> Vec<ConfigSynonym> {
    let defs = || names.iter().filter_map(|name| broker_def(name));
    let set = defs().filter_map(|def| {
        let text = statics.explicit(def.name)?;
        Some(synonym(def, Some(text), Source::StaticBroker))
    });
    let default = defs().filter_map(|def| {
        let text = def.default?;
        Some(synonym(def, Some(text), Source::Default))
    });
    set.chain(default).collect()
}

/// Every topic config of a topic with these configs of its own, by name.
pub fn describe_topic(
    overrides: &BTreeMap<String, String>,
    statics: &StaticConfig,
) -> Vec<ConfigEntry> {
    let mut entries: Vec<ConfigEntry> = topic_defs()
        .iter()
        .filter(|def| !def.internal)
        .map(|def| {
            let mut synonyms = broker_chain(&def.synonyms, statics);
            if let Some(text) = overrides.get(def.name) {
                synonyms.insert(0, synonym(def, Some(text), Source::Topic));
            }
            let value = match effective(def.name, overrides, statics) {
                _ if def.sensitive() => None,
                value => value.to_text(),
            };
            ConfigEntry {
                name: def.name,
                value,
                kind: def.kind,
                source: synonyms.first().map_or(Source::Default, |s| s.source),
                read_only: false,
                sensitive: def.sensitive(),
                doc: def.doc,
                synonyms,
            }
        })
        .collect();
    entries.sort_by_key(|entry| entry.name);
    entries
}

/// Every broker config of a node, by name. `actual` holds what this node really uses where that is more than the
/// static value says (its own port, its node id).
pub fn describe_broker(
    statics: &StaticConfig,
    actual: &BTreeMap<&'static str, String>,
) -> Vec<ConfigEntry> {
    let mut entries: Vec<ConfigEntry> = broker_defs()
        .iter()
        .filter(|def| !def.internal)
        .map(|def| {
            let mut synonyms = broker_chain(&[def.name], statics);
            let value = match actual.get(def.name) {
                Some(text) => Some(text.clone()),
                None => statics.value(def.name).to_text(),
            };
            if actual.contains_key(def.name) {
                synonyms.retain(|s| s.source != Source::StaticBroker);
                synonyms.insert(0, synonym(def, value.as_deref(), Source::StaticBroker));
            }
            ConfigEntry {
                name: def.name,
                value: if def.sensitive() { None } else { value },
                kind: def.kind,
                source: synonyms.first().map_or(Source::Default, |s| s.source),
                // Nothing of a broker changes while it runs yet.
                read_only: def.dynamic == Dynamic::No,
                sensitive: def.sensitive(),
                doc: def.doc,
                synonyms,
            }
        })
        .collect();
    entries.sort_by_key(|entry| entry.name);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(entries: &'a [ConfigEntry], name: &str) -> &'a ConfigEntry {
        entries.iter().find(|e| e.name == name).expect("listed")
    }

    #[test]
    fn the_chain_of_a_topic_value_names_every_source_in_order() {
        let mut statics = StaticConfig::default();
        statics.set("log.retention.hours", "2").unwrap();
        let own = BTreeMap::from([("retention.ms".to_string(), " 9 ".to_string())]);
        let entries = describe_topic(&own, &statics);
        let retention = entry(&entries, "retention.ms");
        assert_eq!(retention.value.as_deref(), Some("9"));
        assert_eq!(
            (retention.source, retention.kind),
            (Source::Topic, Kind::Long)
        );
        let chain: Vec<_> = retention
            .synonyms
            .iter()
            .map(|s| (s.name, s.value.as_deref().unwrap(), s.source.code()))
            .collect();
        assert_eq!(
            chain,
            [
                ("retention.ms", " 9 ", 1),
                ("log.retention.hours", "2", 4),
                ("log.retention.hours", "168", 5)
            ]
        );
        let entries = describe_topic(&BTreeMap::new(), &statics);
        let retention = entry(&entries, "retention.ms");
        assert_eq!(
            (retention.value.as_deref(), retention.source),
            (Some("7200000"), Source::StaticBroker)
        );
    }

    #[test]
    fn types_are_those_that_catalog_tools_expect() {
        let entries = describe_topic(&BTreeMap::new(), &StaticConfig::default());
        let kind = |name: &str| entry(&entries, name).kind.code();
        assert_eq!(
            [
                kind("retention.ms"),
                kind("cleanup.policy"),
                kind("min.insync.replicas"),
                kind("preallocate"),
                kind("compression.type")
            ],
            [5, 7, 3, 1, 2]
        );
        assert!(entries.iter().all(|e| e.name != "internal.segment.bytes"));
        assert!(entries.iter().all(|e| !e.doc.is_empty()));
    }

    #[test]
    fn a_password_is_never_shown() {
        let mut statics = StaticConfig::default();
        statics.set("ssl.keystore.password", "hunter2").unwrap();
        let entries = describe_broker(&statics, &BTreeMap::new());
        let password = entry(&entries, "ssl.keystore.password");
        assert!(password.sensitive && password.value.is_none());
        assert!(!format!("{entries:?}").contains("hunter2"));
    }
}
