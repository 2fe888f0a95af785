//! Laws of a shard, from outside: bytes of requests in, bytes of answers out, over a disk in memory in virtual time.
//!
//! Expected values are Apache Kafka's, except where a file of `src/shard/api` says that it differs on purpose.

mod rig;
#[path = "../support/schema_codec.rs"]
mod schema_codec;

mod alter_configs;
mod config_effects;
mod configs;
mod connections;
mod delete_records;
mod every_api;
mod fetch;
mod metadata;
mod moves;
mod offsets;
mod produce;
mod producer_ids;
mod quorum;
mod replicas;
mod restarts;
mod telemetry;
mod topics;
mod versions;
