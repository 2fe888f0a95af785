//! Where replicas go: the partitions of a topic are spread evenly over all shards of all processes, and a topic starts on
//! the least loaded one. Replicas of a partition never share a process.

use std::collections::BTreeMap;

use crate::meta::{ApiError, Image, Partition};
use crate::model::{ErrorCode, NodeId};

/// The nodes and what they carry; one for all topics of a command, so that these count each other.
pub struct Placement {
    /// Nodes of each process.
    processes: BTreeMap<i32, Vec<NodeId>>,
    /// Partitions that each node leads, those placed by this command included.
    leading: BTreeMap<NodeId, usize>,
}

impl Placement {
    pub fn new(image: &Image) -> Placement {
        let mut processes: BTreeMap<i32, Vec<NodeId>> = BTreeMap::new();
        let mut leading = BTreeMap::new();
        for node in image.nodes() {
            processes
                .entry(node.id.process())
                .or_default()
                .push(node.id);
            leading.insert(node.id, image.leading(node.id));
        }
        Placement { processes, leading }
    }

    pub fn process_count(&self) -> usize {
        self.processes.len()
    }

    /// Replicas for `count` more partitions of a topic that has `existing` ones; the first leads. The error is the end of
    /// the message of INVALID_REPLICATION_FACTOR.
    pub fn place(
        &mut self,
        count: usize,
        factor: usize,
        existing: &[Partition],
    ) -> Result<Vec<Vec<NodeId>>, String> {
        if self.processes.is_empty() {
            return Err("All brokers are currently fenced.".to_string());
        }
        if factor > self.processes.len() {
            return Err(format!(
                "The target replication factor of {factor} cannot be reached because only {} machine(s) with {} node(s) in \
                 all are registered, and the replicas of a partition never share a machine.",
                self.processes.len(),
                self.leading.len()
            ));
        }
        let mut own = Spread::default();
        for partition in existing {
            own.add(&partition.replicas);
        }
        let placed = (0..count)
            .map(|_| {
                let replicas = self.replicas(factor, &own);
                own.add(&replicas);
                *self.leading.entry(replicas[0]).or_default() += 1;
                replicas
            })
            .collect();
        Ok(placed)
    }

    fn replicas(&self, factor: usize, own: &Spread) -> Vec<NodeId> {
        let leader = self
            .leading
            .iter()
            .min_by_key(|(node, leading)| {
                let (shard, process) = (own.leads(**node), own.leads_in(node.process()));
                (shard, process, **leading, **node)
            })
            .map(|(node, _)| *node)
            .expect("at least one process");
        let mut replicas = vec![leader];
        while replicas.len() < factor {
            let follower = self
                .processes
                .iter()
                .filter(|(process, _)| replicas.iter().all(|node| node.process() != **process))
                // In a circle from the leader's process, so that the followers of one machine's leaders are many machines.
                .min_by_key(|(process, _)| {
                    let behind = **process < leader.process();
                    (own.holds_in(**process), behind, **process)
                })
                .and_then(|(_, nodes)| nodes.iter().min_by_key(|node| (own.holds(**node), **node)))
                .expect("as many processes as replicas");
            replicas.push(*follower);
        }
        replicas
    }
}

/// How one topic is spread by now.
#[derive(Default)]
struct Spread {
    leads: BTreeMap<NodeId, usize>,
    leads_in: BTreeMap<i32, usize>,
    holds: BTreeMap<NodeId, usize>,
    holds_in: BTreeMap<i32, usize>,
}

impl Spread {
    fn add(&mut self, replicas: &[NodeId]) {
        if let Some(leader) = replicas.first() {
            *self.leads.entry(*leader).or_default() += 1;
            *self.leads_in.entry(leader.process()).or_default() += 1;
        }
        for node in replicas {
            *self.holds.entry(*node).or_default() += 1;
            *self.holds_in.entry(node.process()).or_default() += 1;
        }
    }

    fn leads(&self, node: NodeId) -> usize {
        self.leads.get(&node).copied().unwrap_or(0)
    }

    fn leads_in(&self, process: i32) -> usize {
        self.leads_in.get(&process).copied().unwrap_or(0)
    }

    fn holds(&self, node: NodeId) -> usize {
        self.holds.get(&node).copied().unwrap_or(0)
    }

    fn holds_in(&self, process: i32) -> usize {
        self.holds_in.get(&process).copied().unwrap_or(0)
    }
}

/// Checks the replicas of one partition that were chosen by hand.
pub fn check_manual(
    image: &Image,
    replicas: &[NodeId],
    factor: Option<usize>,
) -> Result<(), ApiError> {
    let wrong = |message: String| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
    if replicas.is_empty() {
        return wrong("The manual partition assignment includes an empty replica list.".into());
    }
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    for (i, node) in sorted.iter().enumerate() {
        let number = node.0;
        if image.node(*node).is_none() {
            return wrong(format!(
                "The manual partition assignment includes broker {number}, but no such broker is registered."
            ));
        }
        if i > 0 && sorted[i - 1] == *node {
            return wrong(format!(
                "The manual partition assignment includes the broker {number} more than once."
            ));
        }
        if i > 0 && sorted[i - 1].process() == node.process() {
            return wrong(format!(
                "The manual partition assignment includes the brokers {} and {number}, which are on the same machine.",
                sorted[i - 1].0
            ));
        }
    }
    match factor {
        Some(factor) if factor != replicas.len() => wrong(format!(
            "The manual partition assignment includes a partition with {} replica(s), but this is not consistent with \
             previous partitions, which have {factor} replica(s).",
            replicas.len()
        )),
        _ => Ok(()),
    }
}
