//! What the cluster agreed on: the records of the metadata log, the image that they make, and the configs.
//!
//! Owns: [`Record`] (with its bytes), [`Image`] (the only state of the cluster; [`Image::apply`] is the only way to change
//! it), [`Command`] and [`Outcome`] (what is asked of the controller and what became of it), [`config`].
//!
//! Invariants:
//! * The same records in the same order make the same image on every shard of every process; `apply` never fails.
//! * Metadata offsets count records: the image that has applied `[0..n)` says `n`.
//! * Every topic in the image is reachable by id and by name, and its partitions are dense from 0.
//!
//! Must not know: how records are agreed on (quorum), what a shard does with them.

mod codec;
pub mod command;
pub mod config;
mod feature;
pub mod image;
mod name;
pub mod record;

pub use command::{
    ApiError, Command, ConfigChange, ConfigOp, CreatedTopic, DeletedTopic, FeatureChange,
    FeatureUpdate, Moves, NewPartitions, NewTopic, Outcome, OutcomeResult, PartitionResults,
    ProducerIdBlock, QuorumState, TopicRef,
};
pub use config::{StaticConfig, TopicConfig};
pub use feature::{FEATURES, Feature};
pub use image::{Image, Node, Process, Topic, is_internal};
pub use name::{is_valid_topic_name, topic_name_fault};
pub use record::{Endpoint, Partition, PartitionChange, Record, Resource, ShardEndpoints};
