//! The records of the metadata log.

use std::sync::Arc;

use crate::model::{NodeId, ShardIndex, TopicId, TopicPartition, Uuid};

/// What a config belongs to, with its number in Kafka's protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i8)]
pub enum Resource {
    Topic = 2,
    Broker = 4,
    ClientMetrics = 16,
    Group = 32,
}

impl Resource {
    pub fn from_code(code: i8) -> Option<Resource> {
        Some(match code {
            2 => Resource::Topic,
            4 => Resource::Broker,
            16 => Resource::ClientMetrics,
            32 => Resource::Group,
            _ => return None,
        })
    }

    pub fn code(self) -> i8 {
        self as i8
    }
}

/// The replicated state of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Preferred leader first.
    pub replicas: Vec<NodeId>,
    pub isr: Vec<NodeId>,
    /// [`NodeId::NONE`] when nobody leads.
    pub leader: NodeId,
    pub leader_epoch: i32,
    /// Raised by every change.
    pub partition_epoch: i32,
}

/// What changes of a partition; `None` is "as it was". Naming a leader, even the same one, raises the leader epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PartitionChange {
    pub replicas: Option<Vec<NodeId>>,
    pub isr: Option<Vec<NodeId>>,
    pub leader: Option<NodeId>,
}

/// Where one listener of a shard is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Of the listener, such as PLAINTEXT.
    pub listener: String,
    pub host: String,
    pub port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardEndpoints {
    pub shard: ShardIndex,
    pub endpoints: Vec<Endpoint>,
}

impl ShardEndpoints {
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|e| e.listener == listener)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The cluster's id, first record of a new cluster.
    Cluster {
        id: Uuid,
    },
    Topic {
        name: Arc<str>,
        id: TopicId,
    },
    Partition {
        tp: TopicPartition,
        state: Partition,
    },
    PartitionChange {
        tp: TopicPartition,
        change: PartitionChange,
    },
    RemoveTopic {
        id: TopicId,
    },
    /// `value` of `None` takes the config away.
    Config {
        resource: Resource,
        name: String,
        key: String,
        value: Option<String>,
    },
    /// Producer ids below `next` are given out.
    ProducerIds {
        node: NodeId,
        next: i64,
    },
    /// A process has started, with these shards. Raises the leader epoch of every partition that it leads.
    Process {
        process: i32,
        incarnation: Uuid,
        /// In a snapshot the offset of the registration; in the log -1, where the offset says it.
        epoch: i64,
        rack: Option<String>,
        shards: Vec<ShardEndpoints>,
    },
    Feature {
        name: String,
        level: i16,
    },
    /// Nothing; Kafka writes one to move the offset.
    NoOp,
}
