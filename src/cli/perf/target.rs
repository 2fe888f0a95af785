//! The topic under load: where its partitions are, and what the brokers speak.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Load;
use crate::client::admin::NewTopic;
use crate::client::{Client, Metadata, StartAt};
use crate::model::{ErrorCode, TopicId};
use crate::wire::ApiKey;
use crate::wire::msg::api_versions_request::ApiVersionsRequest;
use crate::wire::msg::api_versions_response::ApiVersionsResponse;
use crate::wire::msg::init_producer_id_request::InitProducerIdRequest;
use crate::wire::msg::init_producer_id_response::InitProducerIdResponse;

const LEADERS_WAIT: Duration = Duration::from_secs(60);

pub struct Target {
    pub topic: String,
    pub topic_id: TopicId,
    /// The leading node of each partition that is used.
    pub leaders: Vec<i32>,
    client: Client,
    addresses: BTreeMap<i32, SocketAddr>,
}

impl Target {
    pub fn find(load: &Load) -> Result<Target, String> {
        let config = load.connect.cluster(&mut load.connect.properties()?)?;
        let mut client = Client::new(config);
        if load.create {
            create(&mut client, load)?;
        }
        let deadline = Instant::now() + LEADERS_WAIT;
        let metadata = loop {
            let metadata = client
                .metadata(Some(&[&load.topic]))
                .map_err(|e| e.to_string())?;
            match settled(&metadata, load) {
                Ok(()) => break metadata,
                Err(Wait::No(why)) => return Err(why),
                Err(Wait::Yes(why)) if Instant::now() > deadline => return Err(why),
                Err(Wait::Yes(_)) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        // A leader that was just elected may not know it yet: what it answers until then is no part of a measure.
        loop {
            match client.list_offsets(&load.topic, StartAt::End) {
                Ok(_) => break,
                Err(error) => {
                    let passes = error.code().is_some_and(ErrorCode::is_retriable);
                    if !passes || Instant::now() > deadline {
                        return Err(format!("topic {}: {error}", load.topic));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        let topic = &metadata.topics[&load.topic];
        let used = load
            .partitions
            .map_or(topic.partitions.len(), |n| n as usize);
        let leaders: Vec<i32> = topic.partitions[..used].iter().map(|p| p.leader).collect();
        let mut addresses = BTreeMap::new();
        for node in &leaders {
            let at = metadata
                .nodes
                .get(node)
                .ok_or_else(|| format!("node {node} leads a partition and has no address"))?;
            let address = (at.host.as_str(), at.port)
                .to_socket_addrs()
                .ok()
                .and_then(|mut all| all.next())
                .ok_or_else(|| format!("{}:{} of node {node} has no address", at.host, at.port))?;
            addresses.insert(*node, address);
        }
        Ok(Target {
            topic: load.topic.clone(),
            topic_id: topic.id,
            leaders,
            client,
            addresses,
        })
    }

    /// The newest version that both sides speak, at least `min`.
    pub fn version(&mut self, api: ApiKey, min: i16) -> Result<i16, String> {
        let request = ApiVersionsRequest {
            client_software_name: "corelane".into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        let answer = self
            .client
            .call_any(ApiKey::ApiVersions, |w, v| request.encode(w, v))
            .map_err(|e| e.to_string())?;
        let response = answer
            .decode(ApiVersionsResponse::decode)
            .map_err(|e| e.to_string())?;
        let theirs = response.api_keys.iter().find(|k| k.api_key == api.code());
        let version = theirs.map_or(-1, |k| k.max_version.min(api.versions().1));
        match version >= min && theirs.is_some_and(|k| k.min_version <= version) {
            true => Ok(version),
            false => Err(format!(
                "the broker has no version of {} that this tool speaks",
                api.name()
            )),
        }
    }

    /// A new producer: id and epoch.
    pub fn producer(&mut self) -> Result<(i64, i16), String> {
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let deadline = Instant::now() + LEADERS_WAIT;
        loop {
            let answer = self
                .client
                .call_any(ApiKey::InitProducerId, |w, v| request.encode(w, v))
                .map_err(|e| e.to_string())?;
            let response = answer
                .decode(InitProducerIdResponse::decode)
                .map_err(|e| e.to_string())?;
            let code = ErrorCode::from_code(response.error_code);
            match code.is_error() {
                false => return Ok((response.producer_id, response.producer_epoch)),
                true if code.is_retriable() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                true => return Err(format!("no producer id: {}", code.name())),
            }
        }
    }

    pub fn offsets(&mut self, at: StartAt) -> Result<Vec<i64>, String> {
        let all = self
            .client
            .list_offsets(&self.topic, at)
            .map_err(|e| e.to_string())?;
        Ok(all.into_iter().map(|(_, offset)| offset).collect())
    }

    /// Connections with their partitions: at least one for every node that leads, more in turn. A partition of a node belongs to
    /// one of its connections, or, where there are more connections, several share it.
    pub fn spread(&self, connections: usize) -> Vec<(SocketAddr, Vec<i32>)> {
        spread(&self.leaders, connections)
            .into_iter()
            .map(|(node, partitions)| (self.addresses[&node], partitions))
            .collect()
    }
}

fn spread(leaders: &[i32], connections: usize) -> Vec<(i32, Vec<i32>)> {
    let mut of_node: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (partition, node) in leaders.iter().enumerate() {
        of_node.entry(*node).or_default().push(partition as i32);
    }
    let nodes: Vec<i32> = of_node.keys().copied().collect();
    let connections = connections.max(nodes.len());
    (0..connections)
        .map(|i| {
            let node = nodes[i % nodes.len()];
            let partitions = &of_node[&node];
            // This is the nth of so many connections to the node.
            let nth = i / nodes.len();
            let count = (connections - i % nodes.len()).div_ceil(nodes.len());
            let mine: Vec<i32> = match count >= partitions.len() {
                true => vec![partitions[nth % partitions.len()]],
                false => partitions
                    .iter()
                    .copied()
                    .skip(nth)
                    .step_by(count)
                    .collect(),
            };
            (node, mine)
        })
        .collect()
}

fn create(client: &mut Client, load: &Load) -> Result<(), String> {
    let mut configs = Vec::new();
    for config in &load.topic_config {
        let (key, value) = config
            .split_once('=')
            .ok_or_else(|| format!("'{config}' is not KEY=VALUE"))?;
        configs.push((key.to_string(), value.to_string()));
    }
    let topic = NewTopic {
        name: load.topic.clone(),
        partitions: load.partitions.unwrap_or(-1),
        replication_factor: -1,
        configs,
        assignment: Vec::new(),
    };
    let created = client
        .create_topics(&[topic], false)
        .map_err(|e| e.to_string())?;
    match created.into_iter().next() {
        Some(Err(error)) if error.code() != Some(ErrorCode::TopicAlreadyExists) => {
            Err(format!("cannot create {}: {error}", load.topic))
        }
        _ => Ok(()),
    }
}

enum Wait {
    Yes(String),
    No(String),
}

/// Whether every partition that is to be used has a leader.
fn settled(metadata: &Metadata, load: &Load) -> Result<(), Wait> {
    let name = &load.topic;
    let topic = metadata.topics.get(name);
    let missing = || format!("topic {name} does not exist; --create makes it");
    let topic = match topic {
        None => return Err(Wait::No(missing())),
        Some(topic) if topic.error == ErrorCode::UnknownTopicOrPartition && !load.create => {
            return Err(Wait::No(missing()));
        }
        Some(topic) if topic.error.is_error() && !topic.error.is_retriable() => {
            return Err(Wait::No(format!("topic {name}: {}", topic.error.name())));
        }
        Some(topic) => topic,
    };
    let wanted = load.partitions.unwrap_or(1) as usize;
    if topic.partitions.is_empty() || topic.partitions.iter().any(|p| p.leader < 0) {
        return Err(Wait::Yes(format!(
            "not every partition of {name} has a leader"
        )));
    }
    match topic.partitions.len() < wanted {
        true => Err(Wait::No(format!(
            "topic {name} has {} partitions, not {wanted}",
            topic.partitions.len()
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_out_the_partitions_of_each_node() {
        // One node, as many connections as partitions, fewer, more.
        assert_eq!(spread(&[1, 1], 2), [(1, vec![0]), (1, vec![1])]);
        assert_eq!(spread(&[1, 1, 1], 2), [(1, vec![0, 2]), (1, vec![1])]);
        assert_eq!(
            spread(&[1, 1], 3),
            [(1, vec![0]), (1, vec![1]), (1, vec![0])]
        );
        // Two nodes: at least one connection for each.
        assert_eq!(spread(&[1, 2, 1], 1), [(1, vec![0, 2]), (2, vec![1])]);
        assert_eq!(
            spread(&[1, 2, 1], 3),
            [(1, vec![0]), (2, vec![1]), (1, vec![2])]
        );
    }

    #[test]
    fn every_partition_is_used_once_per_round() {
        for nodes in 1..4 {
            for partitions in 1..20 {
                for connections in 1..20 {
                    let leaders: Vec<i32> = (0..partitions).map(|p| p % nodes).collect();
                    let all = spread(&leaders, connections);
                    assert!(all.iter().all(|(node, mine)| {
                        !mine.is_empty() && mine.iter().all(|p| leaders[*p as usize] == *node)
                    }));
                    let mut used: Vec<i32> = all.into_iter().flat_map(|(_, mine)| mine).collect();
                    used.sort_unstable();
                    used.dedup();
                    assert_eq!(used.len(), partitions as usize);
                }
            }
        }
    }
}
