//! What is asked of the controller, and what became of it.

use super::config::ConfigEntry;
use super::record::{Resource, ShardEndpoints};
use crate::model::{ErrorCode, NodeId, TopicId, Uuid};

/// One topic of a CreateTopics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTopic {
    pub name: String,
    /// -1 for the default, or with `assignments`.
    pub partitions: i32,
    /// -1 for the default, or with `assignments`.
    pub replication_factor: i16,
    /// Partition and its replicas, by hand; empty to let the controller place.
    pub assignments: Vec<(i32, Vec<NodeId>)>,
    pub configs: Vec<(String, Option<String>)>,
}

impl NewTopic {
    /// A topic with every default.
    pub fn named(name: &str) -> NewTopic {
        NewTopic {
            name: name.to_string(),
            partitions: -1,
            replication_factor: -1,
            assignments: Vec::new(),
            configs: Vec::new(),
        }
    }
}

/// One topic of a DeleteTopics, as the request has it: versions up to 5 give names, version 6 either.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicRef {
    pub name: Option<String>,
    /// Zero for none.
    pub id: TopicId,
}

/// One topic of a CreatePartitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewPartitions {
    pub name: String,
    /// Partitions that the topic shall have in all.
    pub count: i32,
    /// Replicas of each partition that is added.
    pub assignments: Option<Vec<Vec<NodeId>>>,
}

/// What becomes of one config of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigOp {
    Set(String),
    /// Back to what applies without it.
    Delete,
    /// Items, separated by commas, that a list shall have too.
    Append(String),
    /// Items that a list shall not have.
    Subtract(String),
}

/// The configs of one resource change: all as asked, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigChange {
    pub resource: Resource,
    pub name: String,
    /// Each key once.
    pub ops: Vec<(String, ConfigOp)>,
    /// What is not named goes (the old AlterConfigs).
    pub replace: bool,
}

/// New replicas of partitions, by topic; `None` takes a move back that is under way.
pub type Moves = Vec<(String, Vec<(i32, Option<Vec<NodeId>>)>)>;

/// Why something was refused for a partition, by topic.
pub type PartitionResults = Vec<(String, Vec<(i32, Option<ApiError>)>)>;

/// How a feature's level may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeatureChange {
    Upgrade,
    SafeDowngrade,
    UnsafeDowngrade,
}

/// One feature of an UpdateFeatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureUpdate {
    pub name: String,
    pub level: i16,
    /// `None`: a kind of change that is not known.
    pub change: Option<FeatureChange>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    CreateTopics {
        topics: Vec<NewTopic>,
        validate_only: bool,
        /// Auto creation: a topic that exists by now is a success, and internal topics get the partitions, replicas and
        /// configs that the broker configs say.
        auto: bool,
    },
    DeleteTopics {
        topics: Vec<TopicRef>,
    },
    CreatePartitions {
        topics: Vec<NewPartitions>,
        validate_only: bool,
    },
    /// Each resource once.
    AlterConfigs {
        changes: Vec<ConfigChange>,
        validate_only: bool,
    },
    /// Leaders by preference, or by need at the price of records (`unclean`).
    ElectLeaders {
        unclean: bool,
        /// `None`: of all partitions; those that need none are not told.
        partitions: Option<Vec<(String, Vec<i32>)>>,
    },
    MoveReplicas {
        moves: Moves,
        /// Whether a partition may have another number of replicas afterwards.
        factor_may_change: bool,
    },
    UpdateFeatures {
        updates: Vec<FeatureUpdate>,
        validate_only: bool,
    },
    /// A node that will not come back.
    UnregisterNode {
        node: NodeId,
    },
    /// Decides nothing: asks where the quorum stands.
    DescribeQuorum,
    /// A block of producer ids for a node.
    AllocateProducerIds {
        node: NodeId,
    },
    /// A process has bound its ports and wants to serve.
    RegisterProcess {
        process: i32,
        incarnation: Uuid,
        rack: Option<String>,
        /// Dense from shard 0.
        shards: Vec<ShardEndpoints>,
        /// For the first registration of a new cluster; `None` lets the controller choose.
        cluster_id: Option<Uuid>,
    },
}

/// Why an item was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError {
    pub code: ErrorCode,
    /// `None` where Kafka sends null.
    pub message: Option<String>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            message: Some(message.into()),
        }
    }

    pub fn bare(code: ErrorCode) -> ApiError {
        ApiError {
            code,
            message: None,
        }
    }
}

/// One topic of a CreateTopics answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatedTopic {
    pub name: String,
    /// Zero when refused.
    pub id: TopicId,
    pub error: Option<ApiError>,
    /// -1 when refused.
    pub partitions: i32,
    /// -1 when refused.
    pub replication_factor: i16,
    /// Configs in force, by name; empty when refused.
    pub configs: Vec<ConfigEntry>,
}

/// One topic of a DeleteTopics answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedTopic {
    pub name: Option<String>,
    pub id: TopicId,
    pub error: Option<ApiError>,
}

/// Producer ids `[first..first + len)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerIdBlock {
    pub first: i64,
    pub len: i32,
}

/// Where the metadata quorum stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuorumState {
    /// [`NodeId::NONE`] while there is none.
    pub leader: NodeId,
    pub epoch: i32,
    /// Metadata offset up to which everything is agreed on.
    pub high_watermark: u64,
    pub voters: Vec<NodeId>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutcomeResult {
    CreateTopics(Vec<CreatedTopic>),
    DeleteTopics(Vec<DeletedTopic>),
    /// Topic, and why it was refused.
    CreatePartitions(Vec<(String, Option<ApiError>)>),
    /// Why each change was refused, in the order of the command.
    AlterConfigs(Vec<Option<ApiError>>),
    ElectLeaders(PartitionResults),
    MoveReplicas(PartitionResults),
    FeaturesUpdated,
    Unregistered,
    Quorum(QuorumState),
    ProducerIds(ProducerIdBlock),
    /// The process may serve once it has applied up to the outcome's offset.
    Registered,
    /// The whole command: not the controller, no storage, a wrong request.
    Failed(ApiError),
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub result: OutcomeResult,
    /// What the command changed is visible in every image that has applied `[0..offset)`.
    pub offset: u64,
}

impl Outcome {
    /// An outcome that needed nobody else.
    pub fn local(result: OutcomeResult) -> Outcome {
        Outcome { result, offset: 0 }
    }
}
