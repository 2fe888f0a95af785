//! Configs as DescribeConfigs and CreateTopics show them: value in force, where it comes from, and the chain behind it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::StaticConfig;
use super::table::{Def, Dynamic, broker_def, broker_defs, listener_def, topic_def, topic_defs};
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
    ClientMetrics = 7,
    Group = 8,
}

impl Source {
    pub fn code(self) -> i8 {
        self as i8
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigSynonym {
    pub name: Cow<'static, str>,
    pub value: Option<String>,
    pub source: Source,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigEntry {
    pub name: Cow<'static, str>,
    /// `None` is null: not set, or sensitive.
    pub value: Option<String>,
    /// `None` for a name that is in no table.
    pub kind: Option<Kind>,
    pub source: Source,
    pub read_only: bool,
    pub sensitive: bool,
    pub doc: Cow<'static, str>,
    /// The chain that the value was chosen from, the one in force first.
    pub synonyms: Vec<ConfigSynonym>,
}

/// Where the value of a broker config may be set, the source that counts first in front.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// For this node alone, while it runs.
    pub own: Option<&'a BTreeMap<String, String>>,
    /// For all nodes, while they run.
    pub cluster: Option<&'a BTreeMap<String, String>>,
    pub statics: &'a StaticConfig,
}

impl Layers<'_> {
    fn find(&self, source: Source, name: &str) -> Option<String> {
        match source {
            Source::DynamicBroker => self.own?.get(name).cloned(),
            Source::DynamicDefaultBroker => self.cluster?.get(name).cloned(),
            Source::StaticBroker => self.statics.explicit(name).map(str::to_string),
            Source::Default => broker_def(name)?.default.map(str::to_string),
            Source::Unknown | Source::Topic | Source::ClientMetrics | Source::Group => None,
        }
    }

    /// What is said of `name` by each source, in the order in which they count. Other names of the same thing are told only
    /// behind the first mention of `name` itself: Kafka's `dropWhile(_.name != name)`.
    pub(super) fn chain(&self, name: &str) -> Vec<ConfigSynonym> {
        let sources = [
            Source::DynamicBroker,
            Source::DynamicDefaultBroker,
            Source::StaticBroker,
            Source::Default,
        ];
        let family = family(name);
        let all = sources.into_iter().flat_map(|source| {
            let told = |name: &'static str| Some((name, self.find(source, name)?));
            let told: Vec<_> = family.iter().filter_map(|name| told(name)).collect();
            told.into_iter()
                .map(move |(name, value)| synonym(name, value, source))
        });
        all.skip_while(|synonym| synonym.name != name).collect()
    }
}

fn synonym(name: &'static str, value: String, source: Source) -> ConfigSynonym {
    let sensitive = broker_def(name).is_none_or(Def::sensitive);
    ConfigSynonym {
        name: name.into(),
        value: (!sensitive).then_some(value),
        source,
    }
}

/// The broker configs that stand for the same thing in other units, `name` among them, in order of precedence.
fn family(name: &str) -> Vec<&'static str> {
    let Some(def) = broker_def(name) else {
        return Vec::new();
    };
    match def.synonyms.first().and_then(|topic| topic_def(topic)) {
        Some(topic) => topic.synonyms.clone(),
        None => vec![def.name],
    }
}

/// Every topic config of a topic with these configs of its own, by name. `in_force` is what `layers` come to.
pub fn describe_topic(
    overrides: &BTreeMap<String, String>,
    layers: Layers<'_>,
    in_force: &StaticConfig,
) -> Vec<ConfigEntry> {
    let mut entries: Vec<ConfigEntry> = topic_defs()
        .iter()
        .filter(|def| !def.internal)
        .map(|def| {
            let mut synonyms = def
                .synonyms
                .first()
                .map_or(Vec::new(), |name| layers.chain(name));
            let value = effective(def.name, overrides, in_force).to_text();
            if overrides.contains_key(def.name) {
                let own = ConfigSynonym {
                    name: def.name.into(),
                    value: value.clone(),
                    source: Source::Topic,
                };
                synonyms.insert(0, own);
            }
            ConfigEntry {
                value,
                source: synonyms.first().map_or(Source::Default, |s| s.source),
                synonyms,
                ..ConfigEntry::of(def)
            }
        })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// What is told only where it was set dynamically: configs of one listener, rates of replication, and names that only a plugin
/// knows.
fn describe_others(layers: Layers<'_>) -> Vec<ConfigEntry> {
    let set = [layers.own, layers.cluster].into_iter().flatten();
    let names: BTreeSet<&String> = set
        .flat_map(BTreeMap::keys)
        .filter(|name| broker_def(name).is_none_or(|def| def.internal))
        .collect();
    names
        .into_iter()
        .map(|name| {
            let of_listener = listener_def(name);
            let def = of_listener.or_else(|| broker_def(name));
            let sensitive = def.is_none_or(Def::sensitive);
            let mut synonyms = Vec::new();
            for source in [Source::DynamicBroker, Source::DynamicDefaultBroker] {
                if let Some(value) = layers.find(source, name) {
                    synonyms.push(ConfigSynonym {
                        name: name.clone().into(),
                        value: (!sensitive).then_some(value),
                        source,
                    });
                }
            }
            let value = synonyms.first().and_then(|s| s.value.clone());
            let source = synonyms.first().map_or(Source::Unknown, |s| s.source);
            if let Some(def) = of_listener {
                synonyms.extend(layers.chain(def.name));
            }
            ConfigEntry {
                name: name.clone().into(),
                value,
                kind: def.map(|def| def.kind),
                source,
                // Kafka looks the whole name up in its list of dynamic ones.
                read_only: of_listener.is_some() || def.is_none(),
                sensitive,
                doc: def.map_or(Cow::Borrowed(""), Def::documentation),
                synonyms,
            }
        })
        .collect()
}

/// What was set for all nodes while they run.
pub fn describe_cluster(layers: Layers<'_>) -> Vec<ConfigEntry> {
    let cluster = layers.cluster.into_iter().flatten();
    cluster
        .map(|(name, value)| {
            let def = broker_def(name);
            let sensitive = def.is_none_or(Def::sensitive);
            let value = (!sensitive).then(|| value.clone());
            ConfigEntry {
                name: name.clone().into(),
                value: value.clone(),
                kind: def.map(|def| def.kind),
                source: Source::DynamicDefaultBroker,
                read_only: def.is_none_or(|def| def.dynamic == Dynamic::No),
                sensitive,
                doc: def.map_or(Cow::Borrowed(""), Def::documentation),
                synonyms: vec![ConfigSynonym {
                    name: name.clone().into(),
                    value,
                    source: Source::DynamicDefaultBroker,
                }],
            }
        })
        .collect()
}

/// Every broker config of a node, by name. `actual` holds what this node really uses where that is more than the
/// static value says (its own port, its node id).
pub fn describe_broker(
    layers: Layers<'_>,
    in_force: &StaticConfig,
    actual: &BTreeMap<&'static str, String>,
) -> Vec<ConfigEntry> {
    let mut entries: Vec<ConfigEntry> = broker_defs()
        .iter()
        .filter(|def| !def.internal)
        .map(|def| {
            let mut synonyms = layers.chain(def.name);
            let value = match actual.get(def.name) {
                Some(text) => Some(text.clone()),
                None => in_force.value(def.name).to_text(),
            };
            if let Some(text) = actual.get(def.name) {
                synonyms.retain(|s| s.source != Source::StaticBroker);
                synonyms.insert(0, synonym(def.name, text.clone(), Source::StaticBroker));
            }
            ConfigEntry {
                value: if def.sensitive() { None } else { value },
                source: synonyms.first().map_or(Source::Default, |s| s.source),
                read_only: def.dynamic == Dynamic::No,
                synonyms,
                ..ConfigEntry::of(def)
            }
        })
        .collect();
    entries.extend(describe_others(layers));
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

impl ConfigEntry {
    /// Everything about a config but its value.
    fn of(def: &Def) -> ConfigEntry {
        ConfigEntry {
            name: def.name.into(),
            value: None,
            kind: Some(def.kind),
            source: Source::Default,
            read_only: false,
            sensitive: def.sensitive(),
            doc: def.documentation(),
            synonyms: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(entries: &'a [ConfigEntry], name: &str) -> &'a ConfigEntry {
        entries.iter().find(|e| e.name == name).expect("listed")
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    fn chain(entry: &ConfigEntry) -> Vec<(&str, Option<&str>, i8)> {
        let synonyms = entry.synonyms.iter();
        synonyms
            .map(|s| (&*s.name, s.value.as_deref(), s.source.code()))
            .collect()
    }

    /// As Apache Kafka 4.4 with log.retention.hours=2 in its file answered.
    #[test]
    fn the_chain_of_a_topic_value_is_that_of_kafka() {
        let mut statics = StaticConfig::default();
        statics.set("log.retention.hours", "2").unwrap();
        let file_only = Layers {
            own: None,
            cluster: None,
            statics: &statics,
        };
        let entries = describe_topic(&map(&[("retention.ms", " 9 ")]), file_only, &statics);
        let retention = entry(&entries, "retention.ms");
        assert_eq!(retention.value.as_deref(), Some("9"));
        assert_eq!(
            (retention.source, retention.kind),
            (Source::Topic, Some(Kind::Long))
        );
        assert_eq!(chain(retention), [("retention.ms", Some("9"), 1)]);
        let entries = describe_topic(&BTreeMap::new(), file_only, &statics);
        let retention = entry(&entries, "retention.ms");
        assert_eq!(retention.value.as_deref(), Some("7200000"));
        assert_eq!(
            (retention.source, chain(retention)),
            (Source::Default, vec![])
        );

        let (own, cluster) = (
            map(&[("message.max.bytes", "3000")]),
            map(&[("log.retention.ms", "99000"), ("message.max.bytes", "4000")]),
        );
        let layers = Layers {
            own: Some(&own),
            cluster: Some(&cluster),
            statics: &statics,
        };
        let in_force = statics.under(layers.cluster, layers.own);
        let entries = describe_topic(&BTreeMap::new(), layers, &in_force);
        let retention = entry(&entries, "retention.ms");
        assert_eq!(
            (retention.value.as_deref(), retention.source.code()),
            (Some("99000"), 3)
        );
        assert_eq!(
            chain(retention),
            [
                ("log.retention.ms", Some("99000"), 3),
                ("log.retention.hours", Some("2"), 4),
                ("log.retention.hours", Some("168"), 5)
            ]
        );
        assert_eq!(
            chain(entry(&entries, "max.message.bytes")),
            [
                ("message.max.bytes", Some("3000"), 2),
                ("message.max.bytes", Some("4000"), 3),
                ("message.max.bytes", Some("1048588"), 5)
            ]
        );
    }

    #[test]
    fn types_are_those_that_catalog_tools_expect() {
        let statics = StaticConfig::default();
        let layers = Layers {
            own: None,
            cluster: None,
            statics: &statics,
        };
        let entries = describe_topic(&BTreeMap::new(), layers, &statics);
        let kind = |name: &str| entry(&entries, name).kind.unwrap().code();
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
    fn a_secret_is_never_shown_whoever_set_it() {
        let mut statics = StaticConfig::default();
        statics.set("ssl.keystore.password", "hunter2").unwrap();
        let own = map(&[
            ("listener.name.plaintext.ssl.key.password", "hunter2"),
            ("my.plugin.secret", "hunter2"),
        ]);
        let layers = Layers {
            own: Some(&own),
            cluster: Some(&own),
            statics: &statics,
        };
        let entries = describe_broker(layers, &statics, &BTreeMap::new());
        let password = entry(&entries, "ssl.keystore.password");
        assert!(password.sensitive && password.value.is_none());
        let all = format!("{entries:?}{:?}", describe_cluster(layers));
        assert!(!all.contains("hunter2"));
        let plugin = entry(&entries, "my.plugin.secret");
        assert_eq!(
            (
                plugin.sensitive,
                plugin.read_only,
                plugin.kind,
                plugin.source.code()
            ),
            (true, true, None, 2)
        );
    }
}
