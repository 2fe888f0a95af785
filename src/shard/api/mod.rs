//! Requests: the table of what is served, the way from a frame to its handler, and answers as frames.
//!
//! ApiVersions is derived from [`SERVED`]; what is not in it is not advertised, and a request for it closes its connection,
//! as Kafka does. One file per API family.

pub mod alter_configs;
pub mod alter_partition_reassignments;
pub mod alter_replica_log_dirs;
pub mod cluster;
pub mod configs;
pub mod delete_records;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod elect_leaders;
pub mod epochs;
pub mod fetch;
pub mod forward;
pub mod get_telemetry_subscriptions;
pub mod incremental_alter_configs;
pub mod list_config_resources;
pub mod list_offsets;
pub mod metadata;
pub mod produce;
pub mod producer_id;
pub mod push_telemetry;
pub mod telemetry;
pub mod topics;
pub mod unregister_broker;
pub mod update_features;
pub mod versions;

use bytes::Bytes;

pub use forward::Asked;

use super::conn::ReplyTo;
use super::{Actions, Chunk, Shard};
use crate::meta::{ApiError, Endpoint};
use crate::model::limit::BAD_INPUT_LOG_MS;
use crate::model::{ConnId, ErrorCode, NodeId};
use crate::wire::{ApiKey, Malformed, Reader, RequestHeader, Writer, write_response_header};

/// One request on its way through its handler.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub to: ReplyTo,
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
}

/// What a handler did with its request.
#[derive(Debug)]
pub enum Flow {
    /// The answer, size field included.
    Answer(Vec<u8>),
    /// The answer comes later, to the call's slot.
    Parked,
}

type Handler = fn(&mut Shard, Call, &mut Reader<'_>, &mut Actions) -> Result<Flow, Malformed>;

/// An API that is served, and the versions served of it.
struct Served {
    api: ApiKey,
    min: i16,
    max: i16,
    handler: Handler,
}

const fn served(api: ApiKey, min: i16, max: i16, handler: Handler) -> Served {
    Served {
        api,
        min,
        max,
        handler,
    }
}

/// Versions are those that Kafka 4.4 advertises itself.
const SERVED: &[Served] = &[
    served(ApiKey::Fetch, 4, 18, Shard::fetch),
    served(ApiKey::ListOffsets, 1, 11, Shard::list_offsets),
    served(ApiKey::Metadata, 0, 13, Shard::metadata),
    served(ApiKey::ApiVersions, 0, 5, Shard::api_versions),
    served(ApiKey::CreateTopics, 2, 7, Shard::create_topics),
    served(ApiKey::DeleteTopics, 1, 6, Shard::delete_topics),
    served(ApiKey::DeleteRecords, 0, 2, Shard::delete_records),
    served(ApiKey::InitProducerId, 0, 5, Shard::init_producer_id),
    served(
        ApiKey::OffsetForLeaderEpoch,
        2,
        4,
        Shard::offset_for_leader_epoch,
    ),
    served(ApiKey::DescribeConfigs, 1, 4, Shard::describe_configs),
    served(ApiKey::AlterConfigs, 0, 2, Shard::alter_configs),
    served(
        ApiKey::AlterReplicaLogDirs,
        1,
        2,
        Shard::alter_replica_log_dirs,
    ),
    served(ApiKey::DescribeLogDirs, 1, 5, Shard::describe_log_dirs),
    served(ApiKey::CreatePartitions, 0, 3, Shard::create_partitions),
    served(ApiKey::ElectLeaders, 0, 2, Shard::elect_leaders),
    served(
        ApiKey::IncrementalAlterConfigs,
        0,
        1,
        Shard::incremental_alter_configs,
    ),
    served(
        ApiKey::AlterPartitionReassignments,
        0,
        1,
        Shard::alter_partition_reassignments,
    ),
    served(
        ApiKey::ListPartitionReassignments,
        0,
        0,
        Shard::list_partition_reassignments,
    ),
    served(ApiKey::DescribeQuorum, 0, 2, Shard::describe_quorum),
    served(ApiKey::UpdateFeatures, 0, 2, Shard::update_features),
    served(ApiKey::DescribeCluster, 0, 2, Shard::describe_cluster),
    served(ApiKey::DescribeProducers, 0, 0, Shard::describe_producers),
    served(ApiKey::UnregisterBroker, 0, 0, Shard::unregister_broker),
    served(
        ApiKey::GetTelemetrySubscriptions,
        0,
        0,
        Shard::get_telemetry_subscriptions,
    ),
    served(ApiKey::PushTelemetry, 0, 0, Shard::push_telemetry),
    served(
        ApiKey::ListConfigResources,
        0,
        1,
        Shard::list_config_resources,
    ),
    served(
        ApiKey::DescribeTopicPartitions,
        0,
        0,
        Shard::describe_topic_partitions,
    ),
];

/// Produce has a path of its own (acks=0 has no answer). It is advertised from 0, which librdkafka wants to see, and
/// served from 3, as Kafka does (KAFKA-18659).
const PRODUCE_ADVERTISED_MIN: i16 = 0;
const PRODUCE_MIN: i16 = 3;
const PRODUCE_MAX: i16 = 13;

/// Key, lowest and highest version of everything served, in order of keys.
pub fn advertised() -> Vec<(ApiKey, i16, i16)> {
    let mut all = vec![(ApiKey::Produce, PRODUCE_ADVERTISED_MIN, PRODUCE_MAX)];
    all.extend(
        SERVED
            .iter()
            .map(|served| (served.api, served.min, served.max)),
    );
    all.sort_unstable_by_key(|(api, _, _)| api.code());
    all
}

/// A request cannot be read, or is not served, and why: its connection closes.
struct Unreadable(String);

impl From<Malformed> for Unreadable {
    fn from(malformed: Malformed) -> Unreadable {
        Unreadable(format!("it cannot be read: {malformed}"))
    }
}

impl Shard {
    /// A request starts. Whatever is wrong with its bytes closes its connection and nothing else.
    pub(super) fn request(&mut self, conn: ConnId, frame: &Bytes, actions: &mut Actions) {
        self.counters.requests += 1;
        if let Err(Unreadable(why)) = self.dispatch(conn, frame, actions) {
            self.counters.requests_bad += 1;
            self.tell_bad_request(conn, frame, &why);
            self.conns.close(conn, actions);
        }
    }

    /// A client that is closed sees an end and nothing else, so whoever runs the broker is told what it asked.
    fn tell_bad_request(&mut self, conn: ConnId, frame: &Bytes, why: &str) {
        let Some(unsaid) = self.bad_input.passes(self.now.mono, BAD_INPUT_LOG_MS) else {
            return;
        };
        let header = RequestHeader::decode(&mut Reader::new(frame)).ok();
        let asked = header.as_ref().map(|header| {
            let api = match ApiKey::from_i16(header.api_key) {
                Some(api) => format!("{api:?}"),
                None => format!("API {}", header.api_key),
            };
            format!("{api} v{}", header.api_version)
        });
        let from = self.conns.get(conn);
        tracing::warn!(
            peer = ?from.map(|conn| conn.peer),
            client = header.as_ref().and_then(|header| header.client_id.as_deref()).unwrap_or(""),
            software = from.and_then(|conn| conn.software.as_deref()).unwrap_or(""),
            request = asked.as_deref().unwrap_or(""),
            why,
            unsaid,
            "a request closes its connection"
        );
    }

    fn dispatch(
        &mut self,
        conn: ConnId,
        frame: &Bytes,
        actions: &mut Actions,
    ) -> Result<(), Unreadable> {
        let mut r = Reader::new(frame);
        let header = RequestHeader::decode(&mut r)?;
        let version = header.api_version;
        let unserved = |range: Option<(i16, i16)>| {
            Unreadable(match range {
                Some((min, max)) => format!("versions {min} to {max} are served"),
                None => "this API is not served".to_string(),
            })
        };
        let api = ApiKey::from_i16(header.api_key).ok_or_else(|| unserved(None))?;
        if api == ApiKey::Produce {
            if !(PRODUCE_MIN..=PRODUCE_MAX).contains(&version) {
                return Err(unserved(Some((PRODUCE_MIN, PRODUCE_MAX))));
            }
            self.conns.requests.started(api, version);
            self.produce(conn, &header, &mut r, actions)?;
            self.counters.trailing_bytes += r.remaining() as u64;
            return Ok(());
        }
        let served = SERVED
            .iter()
            .find(|served| served.api == api)
            .ok_or_else(|| unserved(None))?;
        self.conns.requests.started(api, version);
        if matches!(
            api,
            ApiKey::GetTelemetrySubscriptions | ApiKey::PushTelemetry
        ) && let Some(conn) = self.conns.get_mut(conn)
        {
            conn.client_id = header.client_id.as_ref().map(|id| id.to_string());
        }
        let to = self.conns.take_slot(conn, api);
        let to = to.ok_or_else(|| Unreadable("its connection is gone".to_string()))?;
        let call = Call {
            to,
            api,
            version,
            correlation_id: header.correlation_id,
        };
        if !(served.min..=served.max).contains(&version) {
            if api != ApiKey::ApiVersions {
                return Err(unserved(Some((served.min, served.max))));
            }
            let answer = versions::unsupported(call);
            self.conns
                .answer(to, vec![Chunk::Bytes(answer.into())], actions);
            return Ok(());
        }
        match (served.handler)(self, call, &mut r, actions)? {
            Flow::Answer(answer) => {
                self.conns
                    .answer(to, vec![Chunk::Bytes(answer.into())], actions)
            }
            Flow::Parked => {}
        }
        self.counters.trailing_bytes += r.remaining() as u64;
        Ok(())
    }

    /// Sends the answer of a call that was parked.
    pub(super) fn reply(&mut self, call: Call, answer: Vec<u8>, actions: &mut Actions) {
        if let Some(conn) = self.conns.get_mut(call.to.conn) {
            conn.parked = None;
        }
        self.conns
            .answer(call.to, vec![Chunk::Bytes(answer.into())], actions);
    }

    /// The listener that a connection came through; the first one where its port is unknown.
    pub(super) fn listener_of(&self, conn: ConnId) -> &str {
        let port = self.conns.get(conn).map(|conn| conn.local.port());
        let found = self
            .config
            .listeners
            .iter()
            .find(|listener| Some(listener.port) == port);
        found
            .or(self.config.listeners.first())
            .map_or("PLAINTEXT", |listener| listener.name.as_str())
    }

    /// Where clients of this connection's listener reach a node, and the node's rack.
    pub(super) fn endpoint_of(&self, node: NodeId, conn: ConnId) -> Option<(Endpoint, String)> {
        let node = self.image.node(node)?;
        Some((node.endpoint(self.listener_of(conn))?.clone(), node.rack()))
    }
}

/// An answer as a frame: size, header, body.
pub(super) fn answer(call: Call, body: impl FnOnce(&mut Writer, i16)) -> Vec<u8> {
    let mut w = Writer::with_capacity(256);
    let start = w.begin_frame();
    write_response_header(&mut w, call.api, call.version, call.correlation_id);
    body(&mut w, call.version);
    w.end_frame(start);
    w.into_bytes()
}

/// Code and text of an item of an answer.
pub(super) fn error_of(error: &Option<ApiError>) -> (ErrorCode, Option<String>) {
    match error {
        None => (ErrorCode::None, None),
        Some(error) => (error.code, error.message.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advertised_is_what_kafka_advertises_of_it() {
        for (api, min, max) in advertised() {
            let (lowest, _) = api.versions();
            assert!(min == lowest || api == ApiKey::Produce, "{api:?}");
            assert_eq!(max, api.latest_stable(), "{api:?}");
        }
    }
}
