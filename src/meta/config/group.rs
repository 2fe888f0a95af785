//! Configs of groups: what one may say, and what it comes to. They are kept and shown; there are no groups yet that would go
//! by them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::StaticConfig;
use super::describe::{ConfigEntry, ConfigSynonym, Layers, Source};
use super::table::{Effect, words};
use super::value::{Kind, Valid, Value, parse};
use crate::meta::command::ApiError;
use crate::model::ErrorCode;

/// One config of a group.
#[derive(Debug)]
pub struct GroupDef {
    pub name: &'static str,
    pub kind: Kind,
    /// Where no broker config gives it.
    pub default: &'static str,
    valid: Valid,
    /// The broker config that gives the default.
    pub broker: Option<&'static str>,
    /// Broker configs of the lowest and the highest value.
    bounds: Option<(&'static str, &'static str)>,
    pub doc: &'static str,
}

static DEFS: LazyLock<Vec<GroupDef>> = LazyLock::new(|| {
    let lines = include_str!("group.txt").lines();
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|line| row(line).unwrap_or_else(|| panic!("a row of the table: {line}")))
        .collect()
});

fn row(line: &'static str) -> Option<GroupDef> {
    let columns: Vec<&'static str> = line.split('|').map(str::trim).collect();
    let [name, kind, default, valid, broker, bounds, doc] = columns[..] else {
        return None;
    };
    let bounds = words(bounds);
    Some(GroupDef {
        name,
        kind: Kind::parse(kind)?,
        default,
        valid: Valid::parse(valid)?,
        broker: (!broker.is_empty()).then_some(broker),
        bounds: match bounds[..] {
            [] => None,
            [min, max] => Some((min, max)),
            _ => return None,
        },
        doc,
    })
}

pub fn group_defs() -> &'static [GroupDef] {
    &DEFS
}

pub fn group_def(name: &str) -> Option<&'static GroupDef> {
    DEFS.iter().find(|def| def.name == name)
}

impl GroupDef {
    pub(super) fn inherited(&self, in_force: &StaticConfig) -> Option<String> {
        match self.broker {
            Some(broker) => in_force.value(broker).to_text(),
            None => Some(self.default.to_string()),
        }
    }
}

/// Checks all configs of a group; codes and texts are Kafka's.
pub fn check_group(
    name: &str,
    set: &BTreeMap<String, String>,
    in_force: &StaticConfig,
) -> Result<(), ApiError> {
    if name.is_empty() {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "Default group resources are not allowed.",
        ));
    }
    let wrong = |text: String| ApiError::new(ErrorCode::InvalidConfig, text);
    for (key, text) in set {
        let def =
            group_def(key).ok_or_else(|| wrong(format!("Unknown group config name: {key}")))?;
        let value = parse(key, def.kind, &def.valid, text).map_err(wrong)?;
        if let (Value::Number(number), Some((min, max))) = (value, def.bounds) {
            let (min, max) = (in_force.number(min), in_force.number(max));
            if !(min..=max).contains(&number) {
                return Err(wrong(format!(
                    "{key} must be in the range {min} to {max} inclusive."
                )));
            }
        }
    }
    Ok(())
}

/// The configs of a group as DescribeConfigs shows them; one that nobody set has every default.
pub fn describe_group(
    set: Option<&BTreeMap<String, String>>,
    layers: Layers<'_>,
    in_force: &StaticConfig,
) -> Vec<ConfigEntry> {
    let mut entries: Vec<ConfigEntry> = DEFS
        .iter()
        .map(|def| {
            let own = set.and_then(|set| set.get(def.name));
            let mut synonyms = match def.broker {
                Some(broker) => layers.chain(broker),
                None => vec![ConfigSynonym {
                    name: def.name.into(),
                    value: Some(def.default.to_string()),
                    source: Source::Default,
                }],
            };
            let inherited = def.inherited(in_force);
            let value = match own {
                Some(text) => match parse(def.name, def.kind, &def.valid, text) {
                    Ok(value) => value.to_text(),
                    Err(_) => inherited,
                },
                None => inherited,
            };
            if own.is_some() {
                let own = ConfigSynonym {
                    name: def.name.into(),
                    value: value.clone(),
                    source: Source::Group,
                };
                synonyms.insert(0, own);
            }
            ConfigEntry {
                name: def.name.into(),
                value,
                kind: Some(def.kind),
                source: synonyms.first().map_or(Source::Default, |s| s.source),
                read_only: false,
                sensitive: false,
                doc: format!("{} No effect here: {}.", def.doc, Effect::Later.reason()).into(),
                synonyms,
            }
        })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

#[cfg(test)]
mod tests {
    use super::super::table::broker_def;
    use super::*;

    #[test]
    fn every_row_reads_and_its_default_fits_its_bounds() {
        let statics = StaticConfig::default();
        assert_eq!(group_defs().len(), 21);
        for def in group_defs() {
            let text = def.inherited(&statics).unwrap_or_default();
            let set = BTreeMap::from([(def.name.to_string(), text)]);
            assert_eq!(check_group("g", &set, &statics), Ok(()), "{}", def.name);
            assert!(def.broker.is_none_or(|broker| broker_def(broker).is_some()));
        }
    }
}
