//! ApiVersions (18), versions 0 to 5; KIP-511, KIP-584, KIP-1242.
//!
//! A version above the highest is answered in version 0 with UNSUPPORTED_VERSION and the one entry that lets the client
//! choose again. Feature levels: `transaction.version`, `group.version` and the like are not finalized until they work.

use super::{Call, Flow, advertised, answer};
use crate::meta::FEATURES;
use crate::model::ErrorCode;
use crate::shard::{Actions, Shard};
use crate::wire::msg::api_versions_request::ApiVersionsRequest;
use crate::wire::msg::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use crate::wire::{ApiKey, Malformed, Reader};

impl Shard {
    pub(super) fn api_versions(
        &mut self,
        call: Call,
        r: &mut Reader<'_>,
        _: &mut Actions,
    ) -> Result<Flow, Malformed> {
        let request = ApiVersionsRequest::decode(r, call.version)?;
        let error = self.versions_error(call.version, &request);
        if call.version >= 3
            && let Some(conn) = self.conns.get_mut(call.to.conn)
        {
            conn.software = Some(format!(
                "{} {}",
                request.client_software_name, request.client_software_version
            ));
        }
        if error.is_error() {
            let response = ApiVersionsResponse {
                error_code: error.code(),
                ..Default::default()
            };
            return Ok(Flow::Answer(answer(call, |w, version| {
                response.encode(w, version)
            })));
        }
        let response = ApiVersionsResponse {
            error_code: ErrorCode::None.code(),
            api_keys: advertised()
                .into_iter()
                .map(|(api, min_version, max_version)| ApiVersion {
                    api_key: api.code(),
                    min_version,
                    max_version,
                })
                .collect(),
            supported_features: FEATURES
                .iter()
                .map(|feature| SupportedFeatureKey {
                    name: feature.name.into(),
                    min_version: feature.min,
                    max_version: feature.max,
                })
                .collect(),
            finalized_features_epoch: self.image.applied() as i64,
            finalized_features: FEATURES
                .iter()
                .map(|feature| FinalizedFeatureKey {
                    name: feature.name.into(),
                    max_version_level: self.image.level(feature),
                    min_version_level: self.image.level(feature),
                })
                .collect(),
            ..Default::default()
        };
        Ok(Flow::Answer(answer(call, |w, version| {
            response.encode(w, version)
        })))
    }

    fn versions_error(&self, version: i16, request: &ApiVersionsRequest<'_>) -> ErrorCode {
        let named = is_software_name(&request.client_software_name)
            && is_software_name(&request.client_software_version);
        if version >= 3 && !named {
            return ErrorCode::InvalidRequest;
        }
        match (&request.cluster_id, request.node_id) {
            (None, -1) => ErrorCode::None,
            (None, _) | (Some(_), -1) => ErrorCode::InvalidRequest,
            (Some(cluster), node)
                if *cluster == self.image.cluster_id().to_string() && node == self.node.0 =>
            {
                ErrorCode::None
            }
            (Some(_), _) => ErrorCode::RebootstrapRequired,
        }
    }
}

/// `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`, as Kafka asks.
fn is_software_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'.')
}

/// The answer to a version that is not known.
pub(super) fn unsupported(call: Call) -> Vec<u8> {
    let (_, min_version, max_version) = advertised()
        .into_iter()
        .find(|(api, _, _)| *api == ApiKey::ApiVersions)
        .expect("ApiVersions is served");
    let response = ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: vec![ApiVersion {
            api_key: ApiKey::ApiVersions.code(),
            min_version,
            max_version,
        }],
        ..Default::default()
    };
    answer(Call { version: 0, ..call }, |w, version| {
        response.encode(w, version)
    })
}
