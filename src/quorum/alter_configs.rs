//! AlterConfigs and IncrementalAlterConfigs: each resource changes as asked, or not at all.
//!
//! What only the asked node can say (whether a broker config may change, null values, repeated keys) was checked there.

use std::collections::BTreeMap;

use crate::meta::config::{
    VALUE_BYTES_MAX, changed, check_client_metrics, check_group, validate_topic,
};
use crate::meta::{ApiError, ConfigChange, Image, Record, Resource, topic_name_fault};
use crate::model::{ErrorCode, limit};

pub(super) fn alter_configs(
    image: &Image,
    changes: &[ConfigChange],
) -> (Vec<Record>, Vec<Option<ApiError>>) {
    let mut records = Vec::new();
    let results = changes.iter().map(|change| match alter(image, change) {
        Ok(more) => {
            records.extend(more);
            None
        }
        Err(error) => Some(error),
    });
    let results = results.collect();
    (records, results)
}

fn alter(image: &Image, asked: &ConfigChange) -> Result<Vec<Record>, ApiError> {
    let empty = BTreeMap::new();
    let topic = image.topic_by_name(&asked.name);
    let now = match asked.resource {
        Resource::Topic => topic.map_or(&empty, |topic| &topic.overrides),
        other => image.configs(other, &asked.name).unwrap_or(&empty),
    };
    let after = changed(asked, now, image.in_force())?;
    check(image, asked, &after)?;
    Ok(records(asked, now, &after))
}

fn check(
    image: &Image,
    asked: &ConfigChange,
    after: &BTreeMap<String, String>,
) -> Result<(), ApiError> {
    let request = |text: &str| Err(ApiError::new(ErrorCode::InvalidRequest, text));
    let config = |text: String| ApiError::new(ErrorCode::InvalidConfig, text);
    if after.values().any(|value| value.len() > VALUE_BYTES_MAX) {
        return Err(config(format!(
            "The configuration value cannot be added because it exceeds the maximum value size of {VALUE_BYTES_MAX} bytes."
        )));
    }
    let name = &asked.name;
    match asked.resource {
        Resource::Topic if name.is_empty() => request("Default topic resources are not allowed."),
        Resource::Topic => {
            if let Some(fault) = topic_name_fault(name) {
                return Err(ApiError::new(
                    ErrorCode::InvalidTopicException,
                    format!("Topic name is invalid: {fault}"),
                ));
            }
            validate_topic(after, image.in_force()).map_err(config)?;
            match image.topic_id(name) {
                Some(_) => Ok(()),
                None => Err(ApiError::new(
                    ErrorCode::UnknownTopicOrPartition,
                    format!("The topic '{name}' does not exist."),
                )),
            }
        }
        Resource::ClientMetrics => {
            check_client_metrics(name, after)?;
            check_new(image, asked)
        }
        Resource::Group => {
            check_group(name, after, image.in_force())?;
            check_new(image, asked)
        }
        Resource::Broker => check_bound(after.len()),
    }
}

/// Altering a subscription or a group makes it.
fn check_new(image: &Image, asked: &ConfigChange) -> Result<(), ApiError> {
    let known = image.configs(asked.resource, &asked.name).is_some();
    let others = image.configured(asked.resource).count();
    check_bound(if known { 0 } else { others + 1 })
}

/// Names that only a plugin knows are kept as they come, so somebody has to count them.
fn check_bound(count: usize) -> Result<(), ApiError> {
    if count <= limit::CONFIGS_SET_MAX {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::PolicyViolation,
        format!("More than {} would be set.", limit::CONFIGS_SET_MAX),
    ))
}

/// What differs, in order of keys.
fn records(
    asked: &ConfigChange,
    now: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<Record> {
    let record = |key: &String, value: Option<&String>| Record::Config {
        resource: asked.resource,
        name: asked.name.clone(),
        key: key.clone(),
        value: value.cloned(),
    };
    let gone = now.keys().filter(|key| !after.contains_key(*key));
    let set = after
        .iter()
        .filter(|(key, value)| now.get(*key) != Some(value));
    gone.map(|key| record(key, None))
        .chain(set.map(|(key, value)| record(key, Some(value))))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::meta::ConfigOp;
    use crate::model::Uuid;

    fn image() -> Image {
        let mut image = Image::new(Arc::default());
        let topic = Record::Topic {
            name: "t".into(),
            id: Uuid([1; 16]),
        };
        image.apply(0, &topic);
        image
    }

    fn set(resource: Resource, name: &str, pairs: &[(&str, &str)]) -> ConfigChange {
        let ops = pairs.iter();
        ConfigChange {
            resource,
            name: name.to_string(),
            ops: ops
                .map(|(key, value)| (key.to_string(), ConfigOp::Set(value.to_string())))
                .collect(),
            replace: false,
        }
    }

    fn decide(image: &mut Image, change: ConfigChange) -> Result<usize, ErrorCode> {
        let (records, results) = alter_configs(image, &[change]);
        for record in &records {
            image.apply(image.applied(), record);
        }
        match &results[0] {
            None => Ok(records.len()),
            Some(error) => {
                assert!(records.is_empty(), "refused whole");
                Err(error.code)
            }
        }
    }

    #[test]
    fn a_resource_changes_as_a_whole_or_not_at_all() {
        let mut image = image();
        let good = set(
            Resource::Topic,
            "t",
            &[("flush.ms", "5"), ("retention.ms", "7")],
        );
        assert_eq!(decide(&mut image, good.clone()), Ok(2));
        assert_eq!(decide(&mut image, good), Ok(0), "nothing changed");
        let bad = set(
            Resource::Topic,
            "t",
            &[("flush.ms", "6"), ("retention.ms", "x")],
        );
        assert_eq!(decide(&mut image, bad), Err(ErrorCode::InvalidConfig));
        assert_eq!(image.topic_by_name("t").unwrap().config.flush_ms, 5);
        let replaced = ConfigChange {
            replace: true,
            ..set(Resource::Topic, "t", &[("flush.ms", "9")])
        };
        assert_eq!(decide(&mut image, replaced), Ok(2));
        let topic = image.topic_by_name("t").unwrap();
        assert_eq!(topic.overrides.len(), 1);
        assert_eq!(topic.config.retention_ms, 604_800_000);
    }

    #[test]
    fn what_is_set_for_all_nodes_is_the_default_of_topics() {
        let mut image = image();
        let all = set(Resource::Broker, "", &[("log.retention.ms", "99")]);
        assert_eq!(decide(&mut image, all), Ok(1));
        assert_eq!(image.topic_by_name("t").unwrap().config.retention_ms, 99);
        let own = set(Resource::Broker, "7", &[("log.retention.ms", "44")]);
        assert_eq!(decide(&mut image, own), Ok(1));
        assert_eq!(
            image.topic_by_name("t").unwrap().config.retention_ms,
            99,
            "another node's"
        );
        let mut seen = image.clone();
        seen.see_as(crate::model::NodeId(7));
        assert_eq!(seen.topic_by_name("t").unwrap().config.retention_ms, 44);
        assert!(seen.same(&image));
        let restored = seen.restored(seen.applied(), &seen.snapshot());
        assert_eq!(restored.topic_by_name("t").unwrap().config.retention_ms, 44);
        let delete = ConfigChange {
            ops: vec![("log.retention.ms".to_string(), ConfigOp::Delete)],
            ..set(Resource::Broker, "", &[])
        };
        assert_eq!(decide(&mut image, delete), Ok(1));
        assert_eq!(
            image.topic_by_name("t").unwrap().config.retention_ms,
            604_800_000
        );
    }

    #[test]
    fn what_only_plugins_know_is_bounded() {
        let mut image = image();
        for i in 0..limit::CONFIGS_SET_MAX {
            let change = set(Resource::Broker, "", &[(&format!("my.{i}"), "x")]);
            assert_eq!(decide(&mut image, change), Ok(1));
            let change = set(Resource::ClientMetrics, &i.to_string(), &[("metrics", "x")]);
            assert_eq!(decide(&mut image, change), Ok(1));
        }
        let change = set(Resource::Broker, "", &[("one.more", "x")]);
        assert_eq!(decide(&mut image, change), Err(ErrorCode::PolicyViolation));
        let change = set(Resource::ClientMetrics, "more", &[("metrics", "x")]);
        assert_eq!(decide(&mut image, change), Err(ErrorCode::PolicyViolation));
        let change = set(Resource::ClientMetrics, "7", &[("metrics", "y")]);
        assert_eq!(decide(&mut image, change), Ok(1), "one that is known");
    }

    #[test]
    fn a_value_of_32_767_bytes_is_the_longest() {
        let mut image = image();
        let long = |bytes: usize| {
            let value = "x".repeat(bytes);
            set(Resource::Broker, "", &[("my.plugin", &value)])
        };
        assert_eq!(decide(&mut image, long(32_767)), Ok(1));
        assert_eq!(
            decide(&mut image, long(32_768)),
            Err(ErrorCode::InvalidConfig)
        );
    }
}
