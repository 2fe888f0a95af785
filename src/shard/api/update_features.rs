//! UpdateFeatures (57), versions 0 to 2; KIP-584, KIP-778.
//!
//! All updates or none. This release knows one level above every level that it can leave, so that only what changes nothing
//! succeeds today.

use std::borrow::Cow;

use super::forward::Asked;
use super::{Call, Flow, answer, error_of};
use crate::meta::{ApiError, Command, FeatureChange, FeatureUpdate, OutcomeResult};
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::update_features_request::UpdateFeaturesRequest;
use crate::wire::msg::update_features_response::{UpdatableFeatureResult, UpdateFeaturesResponse};
use crate::wire::{Malformed, Reader};

/// Kinds of changes, from version 1 on.
const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;

impl Shard {
    pub(super) fn update_features(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        actions: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = UpdateFeaturesRequest::decode(r, call.version)?;
        let updates = request.feature_updates.iter().map(|update| FeatureUpdate {
            name: update.feature.to_string(),
            level: update.max_version_level,
            change: match (call.version, update.upgrade_type) {
                (0, _) if update.allow_downgrade => Some(FeatureChange::SafeDowngrade),
                (0, _) | (_, UPGRADE) => Some(FeatureChange::Upgrade),
                (_, SAFE_DOWNGRADE) => Some(FeatureChange::SafeDowngrade),
                (_, UNSAFE_DOWNGRADE) => Some(FeatureChange::UnsafeDowngrade),
                _ => None,
            },
        });
        let updates: Vec<FeatureUpdate> = updates.collect();
        let asked = Asked::UpdateFeatures(updates.iter().map(|u| u.name.clone()).collect());
        let command = Command::UpdateFeatures {
            updates,
            validate_only: request.validate_only,
        };
        let timeout_ms = u64::try_from(request.timeout_ms).unwrap_or(0);
        Ok(self.forward_asked(call, asked, command, timeout_ms, actions))
    }
}

pub(super) fn updated(call: Call, asked: &[String], outcome: &OutcomeResult) -> Vec<u8> {
    let error = match outcome {
        OutcomeResult::FeaturesUpdated => None,
        OutcomeResult::Failed(error) => Some(error.clone()),
        _ => Some(ApiError::bare(ErrorCode::UnknownServerError)),
    };
    let mut names: Vec<&String> = asked.iter().collect();
    names.sort_unstable();
    names.dedup();
    let done = names.into_iter().map(|name| UpdatableFeatureResult {
        feature: name.as_str().into(),
        error_code: ErrorCode::None.code(),
        error_message: Some("NONE".into()),
    });
    let (code, text) = error_of(&error);
    let response = UpdateFeaturesResponse {
        error_code: code.code(),
        error_message: text.map(Cow::from),
        results: if code.is_error() {
            Vec::new()
        } else {
            done.collect()
        },
        ..Default::default()
    };
    answer(call, |w, version| response.encode(w, version))
}
