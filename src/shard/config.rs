//! What a shard is told at birth; what may change later is in the image.

use crate::meta::Command;
use crate::model::{NodeId, ShardIndex, Uuid};

#[derive(Clone, Debug)]
pub struct Listener {
    /// Such as PLAINTEXT.
    pub name: String,
    /// As it was bound.
    pub host: String,
    /// The port that this shard bound.
    pub port: u16,
}

#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub process: i32,
    pub shard: ShardIndex,
    /// Shards of this process.
    pub shards: u16,
    /// Of this start of the process; the shard serves once the image has this registration.
    pub incarnation: Uuid,
    pub listeners: Vec<Listener>,
    /// Where the logs are, absolute, as it is told.
    pub log_dir: String,
    /// The registration that the controller's shard proposes at boot.
    pub register: Option<Command>,
    pub auto_create_topics: bool,
    /// `fetch.max.bytes`.
    pub fetch_bytes_max: i32,
    /// `socket.request.max.bytes`, for the frames that this shard accepts.
    pub request_bytes_max: u32,
    /// `message.max.bytes` and the like come with the topics' configs.
    pub seed: u64,
}

impl ShardConfig {
    pub fn node(&self) -> NodeId {
        NodeId::of(self.process, self.shard)
    }
}

/// The shard that runs the controller of a process.
pub const CONTROLLER_SHARD: ShardIndex = ShardIndex(0);
