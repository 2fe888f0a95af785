//! What shards say to each other.

use std::sync::Arc;

use crate::log::Left;
use crate::meta::{Command, Outcome, Record};
use crate::model::TopicPartition;

/// Core to core is broker to broker: everything that one shard says to another. Inside a process it goes through a
/// bounded flume channel; sending never waits.
#[derive(Clone, Debug)]
pub enum PeerMsg {
    /// To the controller's shard: decide this. `token` comes back in the outcome.
    Propose { token: u64, command: Command },
    /// From the controller's shard: what became of proposal `token`, once every shard has served the change.
    Outcome { token: u64, outcome: Outcome },
    /// Committed metadata records; `from` is the metadata offset of the first, offsets are dense.
    Deltas { from: u64, records: Arc<[Record]> },
    /// The whole image after the records `[0..applied)`, for a shard whose deltas are no longer kept.
    Snapshot {
        applied: u64,
        records: Arc<[Record]>,
    },
    /// To the controller's shard: deltas up to `served` are applied and every leader they made on this shard serves.
    Served { served: u64 },
    /// To a sibling: this shard leads the partition by the metadata record at `since`; say when you are rid of it.
    Release { tp: TopicPartition, since: u64 },
    /// The sibling has applied that record and holds nothing of the partition any more; `left` is what it knows of it.
    Released {
        tp: TopicPartition,
        since: u64,
        left: Option<Left>,
    },
    /// To the controller's shard: send the deltas from this metadata offset on.
    CatchUp { from: u64 },
}
