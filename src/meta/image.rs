//! The state of the cluster, made by records.
//!
//! Every shard holds its own image and feeds it with deltas. Topics are behind `Arc`s, so that a copy (the controller's
//! look-ahead) costs pointers only. Hash maps are for look-ups and never iterated; the ordered maps are.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::config::{
    ConfigEntry, Layers, StaticConfig, TopicConfig, describe_broker, describe_cluster,
    describe_group, describe_topic,
};
use super::feature::Feature;
use super::record::{Endpoint, Partition, PartitionChange, Record, Resource, ShardEndpoints};
use crate::model::{NodeId, TopicId, TopicPartition, Uuid};

#[derive(Clone, Debug)]
pub struct Topic {
    pub id: TopicId,
    pub name: Arc<str>,
    /// Index is the partition's number.
    pub partitions: Vec<Partition>,
    /// Configs of the topic's own, as they were set.
    pub overrides: BTreeMap<String, String>,
    /// Configs in force.
    pub config: Arc<TopicConfig>,
}

impl Topic {
    /// The partition with this number, whatever a request said.
    pub fn partition(&self, number: i32) -> Option<&Partition> {
        self.partitions.get(usize::try_from(number).ok()?)
    }

    /// The effective `min.insync.replicas` of a partition: never more than it has replicas.
    pub fn min_insync_replicas(&self, partition: &Partition) -> usize {
        (self.config.min_insync_replicas.max(1) as usize).min(partition.replicas.len())
    }

    /// Topics that Kafka's brokers keep for themselves.
    pub fn is_internal(&self) -> bool {
        is_internal(&self.name)
    }
}

pub fn is_internal(name: &str) -> bool {
    matches!(
        name,
        "__consumer_offsets" | "__transaction_state" | "__share_group_state"
    )
}

/// A process that registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub process: i32,
    pub incarnation: Uuid,
    /// The metadata offset of its registration: Kafka's broker epoch.
    pub epoch: i64,
    /// As the operator named it; see [`Node::rack`].
    pub rack: Option<String>,
    /// Dense from shard 0.
    pub shards: Vec<ShardEndpoints>,
}

/// One shard of a registered process, as clients see it.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub id: NodeId,
    process: &'a Process,
    shard: &'a ShardEndpoints,
}

impl<'a> Node<'a> {
    /// Where clients of this listener reach the node.
    pub fn endpoint(&self, listener: &str) -> Option<&'a Endpoint> {
        self.shard.endpoint(listener)
    }

    pub fn endpoints(&self) -> &'a [Endpoint] {
        &self.shard.endpoints
    }

    /// The rack that clients are told: the process number when none is set, so that planners spread over machines.
    pub fn rack(&self) -> String {
        match &self.process.rack {
            Some(rack) => rack.clone(),
            None => self.process.process.to_string(),
        }
    }

    pub fn process(&self) -> &'a Process {
        self.process
    }
}

#[derive(Clone, Debug)]
pub struct Image {
    /// Records applied: `[0..applied)`.
    applied: u64,
    cluster_id: Uuid,
    topics: FxHashMap<TopicId, Arc<Topic>>,
    by_name: FxHashMap<Arc<str>, TopicId>,
    /// For walks in order of names.
    names: BTreeMap<Arc<str>, TopicId>,
    /// Topics under their name with `.` written `_`: two names that fall together collide in Kafka's metrics.
    unified: BTreeMap<String, Arc<str>>,
    processes: BTreeMap<i32, Process>,
    /// Configs of everything but topics.
    configs: BTreeMap<(Resource, String), BTreeMap<String, String>>,
    features: BTreeMap<String, i16>,
    /// Producer ids below are given out.
    next_producer_id: i64,
    /// Partitions that each node leads.
    leading: BTreeMap<NodeId, usize>,
    statics: Arc<StaticConfig>,
    /// Whose configs count; [`NodeId::NONE`] sees what is set for all nodes.
    node: NodeId,
    /// `statics` with what was set while the cluster runs.
    in_force: Arc<StaticConfig>,
}

impl Image {
    /// The image before the first record, on a process with these configs.
    pub fn new(statics: Arc<StaticConfig>) -> Image {
        Image {
            applied: 0,
            cluster_id: Uuid::ZERO,
            topics: FxHashMap::default(),
            by_name: FxHashMap::default(),
            names: BTreeMap::new(),
            unified: BTreeMap::new(),
            processes: BTreeMap::new(),
            configs: BTreeMap::new(),
            features: BTreeMap::new(),
            next_producer_id: 0,
            leading: BTreeMap::new(),
            in_force: Arc::clone(&statics),
            node: NodeId::NONE,
            statics,
        }
    }

    /// From here on configs are those of one node.
    pub fn see_as(&mut self, node: NodeId) {
        self.node = node;
        self.brokers_changed();
    }

    /// The image that a snapshot of the records `[0..applied)` makes.
    pub fn restore(statics: Arc<StaticConfig>, applied: u64, snapshot: &[Record]) -> Image {
        Image::new(statics).restored(applied, snapshot)
    }

    /// The same for the node whose configs this image sees, which needs nothing else of it.
    pub fn restored(&self, applied: u64, snapshot: &[Record]) -> Image {
        let mut image = Image::new(Arc::clone(&self.statics));
        image.node = self.node;
        for record in snapshot {
            image.change(0, record, Restore::Yes);
        }
        image.applied = applied;
        image
    }

    /// Metadata offset of the next record: everything below is applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Zero before the first registration.
    pub fn cluster_id(&self) -> Uuid {
        self.cluster_id
    }

    pub fn statics(&self) -> &Arc<StaticConfig> {
        &self.statics
    }

    /// The broker configs in force: the file's, and what was set while the cluster runs over them.
    pub fn in_force(&self) -> &Arc<StaticConfig> {
        &self.in_force
    }

    // -- topics

    pub fn topic(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(&id)
    }

    pub fn topic_id(&self, name: &str) -> Option<TopicId> {
        self.by_name.get(name).copied()
    }

    pub fn topic_by_name(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name).and_then(|id| self.topics.get(id))
    }

    pub fn partition(&self, tp: TopicPartition) -> Option<&Partition> {
        self.topics.get(&tp.topic)?.partition(tp.partition)
    }

    pub fn topic_config(&self, id: TopicId) -> Option<&Arc<TopicConfig>> {
        self.topics.get(&id).map(|topic| &topic.config)
    }

    /// Every topic, by name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.names.values().map(|id| &self.topics[id])
    }

    /// Topics with a name not below `name`, by name.
    pub fn topics_from<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Arc<Topic>> {
        self.names
            .range::<str, _>((std::ops::Bound::Included(name), std::ops::Bound::Unbounded))
            .map(|(_, id)| &self.topics[id])
    }

    pub fn topic_count(&self) -> usize {
        self.names.len()
    }

    /// The existing topic whose name differs from `name` at most in `.` and `_`.
    pub fn colliding(&self, name: &str) -> Option<&Arc<str>> {
        self.unified.get(&name.replace('.', "_"))
    }

    /// Partitions that have a replica on `node`, by topic name and number.
    pub fn partitions_of(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (&Arc<Topic>, TopicPartition, &Partition)> {
        self.topics().flat_map(move |topic| {
            topic
                .partitions
                .iter()
                .enumerate()
                .filter(move |(_, partition)| partition.replicas.contains(&node))
                .map(move |(index, partition)| (topic, tp(topic.id, index), partition))
        })
    }

    /// Configs of a topic as DescribeConfigs shows them.
    pub fn describe_topic(&self, id: TopicId) -> Option<Vec<ConfigEntry>> {
        let topic = self.topics.get(&id)?;
        Some(self.describe_overrides(&topic.overrides))
    }

    /// The same for a topic with these configs of its own.
    pub fn describe_overrides(&self, overrides: &BTreeMap<String, String>) -> Vec<ConfigEntry> {
        describe_topic(overrides, self.layers(), &self.in_force)
    }

    /// Configs of the node whose configs this image sees; `actual` is what it uses where that is more than was set.
    pub fn describe_node(&self, actual: &BTreeMap<&'static str, String>) -> Vec<ConfigEntry> {
        describe_broker(self.layers(), &self.in_force, actual)
    }

    /// What was set for all nodes.
    pub fn describe_nodes(&self) -> Vec<ConfigEntry> {
        describe_cluster(self.layers())
    }

    /// Configs of a group.
    pub fn describe_group(&self, name: &str) -> Vec<ConfigEntry> {
        let set = self.configs(Resource::Group, name);
        describe_group(set, self.layers(), &self.in_force)
    }

    fn layers(&self) -> Layers<'_> {
        Layers {
            own: self.configs(Resource::Broker, &self.node.0.to_string()),
            cluster: self.configs(Resource::Broker, ""),
            statics: &self.statics,
        }
    }

    // -- nodes

    /// Every shard of every registered process, by node id.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        self.processes.values().flat_map(|process| {
            process.shards.iter().map(move |shard| Node {
                id: NodeId::of(process.process, shard.shard),
                process,
                shard,
            })
        })
    }

    pub fn node(&self, id: NodeId) -> Option<Node<'_>> {
        if id.0 < 0 {
            return None;
        }
        let process = self.processes.get(&id.process())?;
        let shard = process.shards.iter().find(|s| s.shard == id.shard())?;
        Some(Node { id, process, shard })
    }

    pub fn process(&self, process: i32) -> Option<&Process> {
        self.processes.get(&process)
    }

    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// Partitions that a node leads.
    pub fn leading(&self, node: NodeId) -> usize {
        self.leading.get(&node).copied().unwrap_or(0)
    }

    // -- the rest

    pub fn next_producer_id(&self) -> i64 {
        self.next_producer_id
    }

    pub fn feature(&self, name: &str) -> Option<i16> {
        self.features.get(name).copied()
    }

    /// The level of a feature that the cluster uses.
    pub fn level(&self, feature: &Feature) -> i16 {
        self.feature(feature.name).unwrap_or(feature.max)
    }

    pub fn features(&self) -> impl Iterator<Item = (&str, i16)> {
        self.features
            .iter()
            .map(|(name, level)| (name.as_str(), *level))
    }

    /// Names of the resources of a kind, other than topics, for which a config was set.
    pub fn configured(&self, resource: Resource) -> impl Iterator<Item = &str> {
        let names = self.configs.keys();
        names
            .filter(move |(kind, _)| *kind == resource)
            .map(|(_, name)| name.as_str())
    }

    /// Configs that were set for a resource other than a topic.
    pub fn configs(&self, resource: Resource, name: &str) -> Option<&BTreeMap<String, String>> {
        self.configs.get(&(resource, name.to_string()))
    }

    // -- change

    /// Applies the record at metadata offset `offset`, which must be the next one. A record that names what is not there
    /// changes nothing: the controller never writes one, and a broker must not stop because of one.
    pub fn apply(&mut self, offset: u64, record: &Record) {
        assert_eq!(offset, self.applied, "metadata offsets are dense");
        self.change(offset, record, Restore::No);
        self.applied += 1;
    }

    fn change(&mut self, offset: u64, record: &Record, restore: Restore) {
        match record {
            Record::Cluster { id } => self.cluster_id = *id,
            Record::Topic { name, id } => self.add_topic(name, *id),
            Record::Partition { tp, state } => self.set_partition(*tp, state),
            Record::PartitionChange { tp, change } => self.change_partition(*tp, change),
            Record::RemoveTopic { id } => self.remove_topic(*id),
            Record::Config {
                resource: Resource::Topic,
                name,
                key,
                value,
            } => self.set_topic_config(name, key, value.as_deref()),
            Record::Config {
                resource,
                name,
                key,
                value,
            } => self.set_config(*resource, name, key, value.as_deref()),
            Record::ProducerIds { node: _, next } => self.next_producer_id = *next,
            Record::Process {
                process,
                incarnation,
                rack,
                shards,
                epoch,
            } => {
                let epoch = match restore {
                    Restore::Yes => *epoch,
                    Restore::No => offset as i64,
                };
                self.processes.insert(
                    *process,
                    Process {
                        process: *process,
                        incarnation: *incarnation,
                        epoch,
                        rack: rack.clone(),
                        shards: shards.clone(),
                    },
                );
                if restore == Restore::No {
                    self.raise_epochs(*process);
                }
            }
            Record::Feature { name, level } => {
                if *level == 0 {
                    self.features.remove(name);
                } else {
                    self.features.insert(name.clone(), *level);
                }
            }
            Record::NoOp => {}
        }
    }

    fn add_topic(&mut self, name: &Arc<str>, id: TopicId) {
        // A topic config record may come before or after its topic (Kafka writes it after).
        let overrides = BTreeMap::new();
        let config = Arc::new(TopicConfig::new(&overrides, &self.in_force));
        let topic = Topic {
            id,
            name: Arc::clone(name),
            partitions: Vec::new(),
            overrides,
            config,
        };
        self.topics.insert(id, Arc::new(topic));
        self.by_name.insert(Arc::clone(name), id);
        self.names.insert(Arc::clone(name), id);
        self.unified
            .insert(name.replace('.', "_"), Arc::clone(name));
    }

    fn set_partition(&mut self, tp: TopicPartition, state: &Partition) {
        let Some(topic) = self.topics.get_mut(&tp.topic) else {
            return;
        };
        let topic = Arc::make_mut(topic);
        let index = usize::try_from(tp.partition).unwrap_or(usize::MAX);
        let before = match index.cmp(&topic.partitions.len()) {
            std::cmp::Ordering::Less => {
                std::mem::replace(&mut topic.partitions[index], state.clone()).leader
            }
            std::cmp::Ordering::Equal => {
                topic.partitions.push(state.clone());
                NodeId::NONE
            }
            // Partitions come in order of their numbers.
            std::cmp::Ordering::Greater => return,
        };
        self.count_leader(before, state.leader);
    }

    fn change_partition(&mut self, tp: TopicPartition, change: &PartitionChange) {
        let Some(partition) = self.partition_mut(tp) else {
            return;
        };
        let before = partition.leader;
        if let Some(replicas) = &change.replicas {
            partition.replicas = replicas.clone();
        }
        if let Some(isr) = &change.isr {
            partition.isr = isr.clone();
        }
        if let Some(leader) = change.leader {
            partition.leader = leader;
            partition.leader_epoch = partition.leader_epoch.saturating_add(1);
        }
        partition.partition_epoch = partition.partition_epoch.saturating_add(1);
        let after = partition.leader;
        self.count_leader(before, after);
    }

    fn partition_mut(&mut self, tp: TopicPartition) -> Option<&mut Partition> {
        let index = usize::try_from(tp.partition).ok()?;
        let topic = self.topics.get_mut(&tp.topic)?;
        if index >= topic.partitions.len() {
            return None;
        }
        Arc::make_mut(topic).partitions.get_mut(index)
    }

    fn count_leader(&mut self, before: NodeId, after: NodeId) {
        if before == after {
            return;
        }
        if let Some(count) = self.leading.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.leading.remove(&before);
            }
        }
        if after != NodeId::NONE {
            *self.leading.entry(after).or_default() += 1;
        }
    }

    fn remove_topic(&mut self, id: TopicId) {
        let Some(topic) = self.topics.remove(&id) else {
            return;
        };
        for partition in &topic.partitions {
            self.count_leader(partition.leader, NodeId::NONE);
        }
        self.by_name.remove(&topic.name);
        self.names.remove(&topic.name);
        self.unified.remove(&topic.name.replace('.', "_"));
    }

    fn set_topic_config(&mut self, name: &str, key: &str, value: Option<&str>) {
        let Some(topic) = self
            .by_name
            .get(name)
            .and_then(|id| self.topics.get_mut(id))
        else {
            return;
        };
        let topic = Arc::make_mut(topic);
        match value {
            Some(value) => topic.overrides.insert(key.to_string(), value.to_string()),
            None => topic.overrides.remove(key),
        };
        topic.config = Arc::new(TopicConfig::new(&topic.overrides, &self.in_force));
    }

    fn set_config(&mut self, resource: Resource, name: &str, key: &str, value: Option<&str>) {
        let at = (resource, name.to_string());
        match value {
            Some(value) => {
                let configs = self.configs.entry(at).or_default();
                configs.insert(key.to_string(), value.to_string());
            }
            None => {
                if let Some(configs) = self.configs.get_mut(&at) {
                    configs.remove(key);
                    if configs.is_empty() {
                        self.configs.remove(&at);
                    }
                }
            }
        }
        if resource == Resource::Broker {
            self.brokers_changed();
        }
    }

    /// Broker configs changed, or whose they are: they are the defaults of the topics.
    fn brokers_changed(&mut self) {
        let layers = self.layers();
        let in_force = layers.statics.under(layers.cluster, layers.own);
        if in_force == *self.in_force {
            return;
        }
        self.in_force = Arc::new(in_force);
        for id in self.names.values() {
            let topic = self.topics.get_mut(id).expect("every name has its topic");
            let config = TopicConfig::new(&topic.overrides, &self.in_force);
            if config != *topic.config {
                Arc::make_mut(topic).config = Arc::new(config);
            }
        }
    }

    /// A process that starts may have lost what nobody asked it to flush: its partitions get a new leader epoch, so that
    /// clients and followers check where they stand (KIP-320).
    fn raise_epochs(&mut self, process: i32) {
        for id in self.names.values() {
            let topic = self.topics.get_mut(id).expect("every name has its topic");
            if topic
                .partitions
                .iter()
                .all(|p| p.leader.process() != process)
            {
                continue;
            }
            for partition in &mut Arc::make_mut(topic).partitions {
                if partition.leader.process() == process {
                    partition.leader_epoch = partition.leader_epoch.saturating_add(1);
                    partition.partition_epoch = partition.partition_epoch.saturating_add(1);
                }
            }
        }
    }

    /// Records that make this image when they are restored ([`Image::restore`]); not the history.
    pub fn snapshot(&self) -> Vec<Record> {
        let mut records = Vec::new();
        if !self.cluster_id.is_zero() {
            records.push(Record::Cluster {
                id: self.cluster_id,
            });
        }
        for (name, level) in &self.features {
            records.push(Record::Feature {
                name: name.clone(),
                level: *level,
            });
        }
        for process in self.processes.values() {
            records.push(Record::Process {
                process: process.process,
                incarnation: process.incarnation,
                epoch: process.epoch,
                rack: process.rack.clone(),
                shards: process.shards.clone(),
            });
        }
        for ((resource, name), configs) in &self.configs {
            for (key, value) in configs {
                records.push(config(*resource, name, key, value));
            }
        }
        for topic in self.topics() {
            records.push(Record::Topic {
                name: Arc::clone(&topic.name),
                id: topic.id,
            });
            for (key, value) in &topic.overrides {
                records.push(config(Resource::Topic, &topic.name, key, value));
            }
            for (index, partition) in topic.partitions.iter().enumerate() {
                records.push(Record::Partition {
                    tp: tp(topic.id, index),
                    state: partition.clone(),
                });
            }
        }
        if self.next_producer_id != 0 {
            records.push(Record::ProducerIds {
                node: NodeId::NONE,
                next: self.next_producer_id,
            });
        }
        records
    }

    /// Whether two images hold the same state (static configs and hash order aside); for tests and the simulator.
    pub fn same(&self, other: &Image) -> bool {
        self.applied == other.applied && self.snapshot() == other.snapshot()
    }

    /// All invariants, for the simulator.
    pub fn check(&self) {
        assert_eq!(
            self.topics.len(),
            self.names.len(),
            "a name for every topic"
        );
        assert_eq!(self.by_name.len(), self.names.len(), "both name maps agree");
        let mut leading: BTreeMap<NodeId, usize> = BTreeMap::new();
        for topic in self.topics() {
            assert_eq!(self.by_name.get(&topic.name), Some(&topic.id));
            for partition in &topic.partitions {
                assert!(
                    partition.isr.iter().all(|n| partition.replicas.contains(n)),
                    "in-sync replicas are replicas"
                );
                if partition.leader != NodeId::NONE {
                    assert!(
                        partition.isr.contains(&partition.leader),
                        "leader is in sync"
                    );
                    *leading.entry(partition.leader).or_default() += 1;
                }
            }
        }
        assert_eq!(leading, self.leading, "leader counts");
    }
}

/// Whether a record comes from a snapshot: epochs in it are final.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Restore {
    Yes,
    No,
}

fn tp(topic: TopicId, index: usize) -> TopicPartition {
    TopicPartition {
        topic,
        partition: i32::try_from(index).expect("partition counts are checked"),
    }
}

fn config(resource: Resource, name: &str, key: &str, value: &str) -> Record {
    Record::Config {
        resource,
        name: name.to_string(),
        key: key.to_string(),
        value: Some(value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ShardIndex;

    pub(crate) fn process(number: i32, shards: u16) -> Record {
        Record::Process {
            process: number,
            incarnation: Uuid([7; 16]),
            epoch: -1,
            rack: None,
            shards: (0..shards)
                .map(|shard| ShardEndpoints {
                    shard: ShardIndex(shard),
                    endpoints: vec![Endpoint {
                        listener: "PLAINTEXT".into(),
                        host: "localhost".into(),
                        port: 9092 + shard,
                    }],
                })
                .collect(),
        }
    }

    fn apply(image: &mut Image, records: &[Record]) {
        for record in records {
            image.apply(image.applied(), record);
            image.check();
        }
    }

    fn partition(topic: TopicId, index: usize, leader: i32) -> Record {
        Record::Partition {
            tp: tp(topic, index),
            state: Partition {
                replicas: vec![NodeId(leader)],
                isr: vec![NodeId(leader)],
                leader: NodeId(leader),
                leader_epoch: 0,
                partition_epoch: 0,
            },
        }
    }

    fn sample() -> Image {
        let mut image = Image::new(Arc::default());
        let id = Uuid([1; 16]);
        apply(
            &mut image,
            &[
                Record::Cluster { id: Uuid([9; 16]) },
                process(0, 2),
                Record::Topic {
                    name: "a.b".into(),
                    id,
                },
                config(Resource::Topic, "a.b", "retention.ms", "5"),
                partition(id, 0, 0),
                partition(id, 1, 1),
                config(Resource::Broker, "", "log.retention.ms", "9"),
                Record::ProducerIds {
                    node: NodeId(0),
                    next: 1000,
                },
                Record::Feature {
                    name: "metadata.version".into(),
                    level: 29,
                },
            ],
        );
        image
    }

    #[test]
    fn a_snapshot_makes_the_same_image() {
        let mut image = sample();
        apply(&mut image, &[process(0, 2)]);
        let restored = Image::restore(Arc::default(), image.applied(), &image.snapshot());
        restored.check();
        assert!(restored.same(&image));
        assert_eq!(restored.process(0).unwrap().epoch, 9);
        assert_eq!(
            restored.topic_by_name("a.b").unwrap().config.retention_ms,
            5
        );
        assert_eq!(restored.next_producer_id(), 1000);
    }

    #[test]
    fn a_registration_raises_the_epochs_of_what_the_process_leads() {
        let mut image = sample();
        let id = image.topic_id("a.b").unwrap();
        apply(&mut image, &[process(1, 1)]);
        assert_eq!(image.partition(tp(id, 0)).unwrap().leader_epoch, 0);
        apply(&mut image, &[process(0, 2)]);
        let epochs = |image: &Image, index| {
            let p = image.partition(tp(id, index)).unwrap();
            (p.leader_epoch, p.partition_epoch)
        };
        assert_eq!((epochs(&image, 0), epochs(&image, 1)), ((1, 1), (1, 1)));
        let change = PartitionChange {
            leader: Some(NodeId(0)),
            replicas: Some(vec![NodeId(0)]),
            isr: Some(vec![NodeId(0)]),
        };
        apply(
            &mut image,
            &[Record::PartitionChange {
                tp: tp(id, 1),
                change,
            }],
        );
        assert_eq!(epochs(&image, 1), (2, 2));
        assert_eq!((image.leading(NodeId(0)), image.leading(NodeId(1))), (2, 0));
    }

    #[test]
    fn a_removed_topic_is_gone_under_every_key() {
        let mut image = sample();
        let id = image.topic_id("a.b").unwrap();
        assert!(image.colliding("a_b").is_some());
        apply(&mut image, &[Record::RemoveTopic { id }]);
        assert!(image.topic(id).is_none() && image.topic_by_name("a.b").is_none());
        assert!(image.colliding("a_b").is_none());
        assert_eq!((image.topics().count(), image.leading(NodeId(0))), (0, 0));
    }

    #[test]
    fn records_about_nothing_change_nothing() {
        let mut image = sample();
        let before = image.snapshot();
        let nowhere = tp(Uuid([5; 16]), 0);
        apply(
            &mut image,
            &[
                Record::RemoveTopic { id: nowhere.topic },
                partition(nowhere.topic, 0, 0),
                Record::PartitionChange {
                    tp: nowhere,
                    change: PartitionChange::default(),
                },
                config(Resource::Topic, "nope", "retention.ms", "1"),
                Record::NoOp,
            ],
        );
        assert_eq!(image.snapshot(), before);
    }

    #[test]
    fn the_rack_of_a_process_without_one_is_its_number() {
        let mut image = sample();
        apply(&mut image, &[process(3, 1)]);
        let node = image.node(NodeId(3000)).unwrap();
        assert_eq!(
            (
                node.rack().as_str(),
                node.endpoint("PLAINTEXT").unwrap().port
            ),
            ("3", 9092)
        );
        assert_eq!(
            image.nodes().map(|n| n.id.0).collect::<Vec<_>>(),
            [0, 1, 3000]
        );
        assert!(image.node(NodeId(-1)).is_none() && image.node(NodeId(2)).is_none());
    }
}
