//! UpdateFeatures: the levels of features that the cluster uses.

use crate::meta::{ApiError, FEATURES, FeatureChange, FeatureUpdate, Image, Record};
use crate::model::{ErrorCode, NodeId};

/// All updates, or the first reason against one; texts are Kafka's.
pub(super) fn update_features(
    image: &Image,
    controller: NodeId,
    updates: &[FeatureUpdate],
) -> Result<Vec<Record>, ApiError> {
    let mut records = Vec::new();
    for update in updates {
        let record = check(image, controller, update).map_err(|why| {
            ApiError::new(
                ErrorCode::InvalidUpdateVersion,
                format!(
                    "The update failed for all features since the following feature had an error: {why}"
                ),
            )
        })?;
        records.extend(record.filter(|record| !records.contains(record)));
    }
    Ok(records)
}

fn check(
    image: &Image,
    controller: NodeId,
    update: &FeatureUpdate,
) -> Result<Option<Record>, String> {
    let FeatureUpdate {
        name,
        level,
        change,
    } = update;
    let wrong = |why: String| {
        Err(format!(
            "Invalid update version {level} for feature {name}. {why}"
        ))
    };
    let Some(change) = change else {
        return wrong("The controller does not support the given upgrade type.".to_string());
    };
    if *level < 0 {
        return wrong("A feature version cannot be less than 0.".to_string());
    }
    let number = controller.0;
    let Some(feature) = FEATURES.iter().find(|feature| feature.name == name) else {
        return wrong(format!(
            "Local controller {number} does not support this feature."
        ));
    };
    if !(feature.min..=feature.max).contains(level) {
        return wrong(format!(
            "Local controller {number} only supports versions {}-{}",
            feature.min, feature.max
        ));
    }
    let now = image.level(feature);
    if *level < now {
        let downgrade = format!("Unsupported metadata.version downgrade from {now} to {level}. ");
        return match change {
            FeatureChange::Upgrade => wrong(
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe \
                 downgrade."
                    .to_string(),
            ),
            FeatureChange::SafeDowngrade => Err(downgrade
                + "Refusing to perform the requested downgrade because it might delete metadata information."),
            FeatureChange::UnsafeDowngrade => {
                Err(downgrade + "Unsafe metadata downgrade is not supported in this version.")
            }
        };
    }
    Ok((*level > now).then(|| Record::Feature {
        name: name.clone(),
        level: *level,
    }))
}
