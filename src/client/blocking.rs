//! The blocking faces of the client: the pure cores on the shell's sockets.

use super::Error;
use super::cluster::{Answer, Cluster, ClusterConfig, Metadata, Target};
use super::consumer::{Asked, ConsumerConfig, ConsumerCore, Fetched, StartAt};
use super::net::Net;
use super::producer::{
    Delivered, Message, ProducerConfig, ProducerCore, Refused, Sent, TopicHandle,
};
use crate::model::{ErrorCode, Instant};
use crate::wire::{ApiKey, Writer};

/// One request at a time, to any node or to a given one; see `admin` for the calls.
pub struct Client {
    cluster: Cluster<()>,
    net: Net,
    timeout_ms: u64,
}

impl Client {
    pub fn new(config: ClusterConfig) -> Client {
        Client {
            timeout_ms: config.request_timeout_ms + 5_000,
            cluster: Cluster::new(config),
            net: Net::new(),
        }
    }

    /// Bounds every call.
    pub fn timeout_ms(mut self, timeout_ms: u64) -> Client {
        self.timeout_ms = timeout_ms;
        self
    }

    /// Calls whichever node can be reached.
    pub fn call_any(
        &mut self,
        api: ApiKey,
        encode: impl Fn(&mut Writer, i16),
    ) -> Result<Answer<()>, Error> {
        self.call_at(None, api, encode)
    }

    /// Calls this node, known from metadata.
    pub fn call(
        &mut self,
        node: i32,
        api: ApiKey,
        encode: impl Fn(&mut Writer, i16),
    ) -> Result<Answer<()>, Error> {
        self.call_at(Some(node), api, encode)
    }

    /// Waits until the cluster's own metadata has the nodes that this has.
    pub fn adopt(&mut self, metadata: &Metadata) {
        let until = self.net.now().after_ms(self.timeout_ms);
        let known = |cluster: &Cluster<()>| {
            let nodes = &cluster.metadata().nodes;
            metadata.nodes.keys().all(|node| nodes.contains_key(node))
        };
        while !known(&self.cluster) && self.net.now() < until {
            self.cluster.refresh();
            let step = self.net.now().after_ms(100);
            self.net.drive(&mut self.cluster, step.min(until));
        }
    }

    fn call_at(
        &mut self,
        node: Option<i32>,
        api: ApiKey,
        encode: impl Fn(&mut Writer, i16),
    ) -> Result<Answer<()>, Error> {
        let until = self.net.now().after_ms(self.timeout_ms);
        let mut asked = false;
        let mut next: Option<Target> = None;
        loop {
            if !asked {
                next = match node {
                    Some(node) => self.cluster.connect(node).then_some(node),
                    None => self.cluster.any(),
                };
                if let Some(target) = next {
                    if self.cluster.version(target, api).is_none() {
                        return Err(Error::Unsupported(api.name()));
                    }
                    asked = self.cluster.request(target, api, (), true, &encode);
                }
            }
            self.net.drive(&mut self.cluster, until);
            if let Some(answer) = self.cluster.take_answers().pop() {
                return match answer.body {
                    Ok(_) => Ok(answer),
                    Err(lost) => Err(Error::Connection(lost.0)),
                };
            }
            if self.net.now() >= until {
                return Err(match (next, self.cluster.last_error()) {
                    (None, Some(reason)) => Error::Connection(reason),
                    _ => Error::Timeout(api.name().to_string()),
                });
            }
        }
    }
}

/// How long a producer waits for a topic that the broker does not know and was allowed to create.
const UNKNOWN_TOPIC_MS: u64 = 3_000;

/// A producer on this thread. Records are sent while [`Producer::send`], [`Producer::poll`] or [`Producer::flush`] run.
pub struct Producer {
    core: ProducerCore,
    cluster: Cluster<Sent>,
    net: Net,
    max_block_ms: u64,
    /// Calls of `send` since the sockets were looked after.
    since_turn: u32,
}

impl Producer {
    pub fn new(cluster: ClusterConfig, config: ProducerConfig) -> Producer {
        Producer {
            core: ProducerCore::new(config),
            cluster: Cluster::new(cluster),
            net: Net::new(),
            max_block_ms: 60_000,
            since_turn: 0,
        }
    }

    pub fn max_block_ms(mut self, max_block_ms: u64) -> Producer {
        self.max_block_ms = max_block_ms;
        self
    }

    pub fn topic(&mut self, name: &str) -> TopicHandle {
        self.core.topic(name, &mut self.cluster)
    }

    pub fn now(&self) -> Instant {
        self.net.now()
    }

    /// Hands a record in; gives its partition and index there. Waits for metadata and for room in the buffer.
    pub fn send(&mut self, topic: TopicHandle, message: &Message<'_>) -> Result<(i32, u64), Error> {
        let mut begun = None;
        loop {
            let now = self.net.now();
            match self.core.push(topic, message, &self.cluster, now) {
                Ok(place) => {
                    self.since_turn += 1;
                    if self.since_turn >= 64 {
                        self.step(now);
                    }
                    return Ok(place);
                }
                Err(Refused::NoPartition) => {
                    let name = self.core.topic_name(topic);
                    let partition = message.partition.unwrap_or_default();
                    return Err(Error::Broker {
                        code: ErrorCode::UnknownTopicOrPartition,
                        message: format!("topic {name} has no partition {partition}"),
                    });
                }
                Err(refused) => {
                    let begun = *begun.get_or_insert(now);
                    let until = begun.after_ms(self.max_block_ms);
                    if now >= until || self.is_refused(topic, begun, now) {
                        let what = self.why_not(topic, refused);
                        return Err(what);
                    }
                    self.step(now.after_ms(100).min(until));
                }
            }
        }
    }

    /// Whether asking for this topic again is pointless.
    fn is_refused(&self, topic: TopicHandle, begun: Instant, now: Instant) -> bool {
        let name = self.core.topic_name(topic);
        match self.cluster.metadata().topics.get(name).map(|t| t.error) {
            None | Some(ErrorCode::None) => false,
            // A broker that creates it says so until it is there.
            Some(ErrorCode::UnknownTopicOrPartition) => now >= begun.after_ms(UNKNOWN_TOPIC_MS),
            Some(error) => !error.is_retriable(),
        }
    }

    fn why_not(&self, topic: TopicHandle, refused: Refused) -> Error {
        let name = self.core.topic_name(topic);
        if let Some(known) = self.cluster.metadata().topics.get(name)
            && known.error.is_error()
        {
            return Error::Broker {
                code: known.error,
                message: format!("topic {name}"),
            };
        }
        match (refused, self.cluster.last_error()) {
            (_, Some(error)) => Error::Connection(error),
            (Refused::Full, None) => Error::Timeout("the buffer stayed full".to_string()),
            (_, None) => Error::Timeout(format!("no metadata of topic {name}")),
        }
    }

    /// Looks after the sockets, at most until `until`.
    fn step(&mut self, until: Instant) {
        self.since_turn = 0;
        let now = self.net.now();
        self.core.turn(&mut self.cluster, now);
        let until = match self.core.deadline() {
            // Nothing comes back with acks=0: what was sent is decided already.
            _ if self.core.has_delivered() => now,
            Some(deadline) => deadline.min(until),
            None => until,
        };
        self.net.drive(&mut self.cluster, until);
        let now = self.net.now();
        for answer in self.cluster.take_answers() {
            self.core.on_answer(answer, &mut self.cluster, now);
        }
        self.core.turn(&mut self.cluster, now);
    }

    /// Waits for deliveries at most until `until`; gives those that there are.
    pub fn poll(&mut self, until: Instant) -> Vec<Delivered> {
        loop {
            let delivered = self.core.take_delivered();
            let now = self.net.now();
            if !delivered.is_empty() {
                return delivered;
            }
            self.step(until);
            if now >= until {
                return self.core.take_delivered();
            }
        }
    }

    /// Records that are handed in and not decided.
    pub fn undecided(&self) -> u64 {
        self.core.undecided()
    }

    /// Sends everything without waiting for more records.
    pub fn flush(&mut self) {
        self.core.flush();
    }

    /// Flushes and waits until everything is decided; bounded by the delivery timeout.
    pub fn finish(&mut self) -> Vec<Delivered> {
        let mut all = self.core.take_delivered();
        while self.core.undecided() > 0 {
            self.core.flush();
            self.step(self.net.now().after_ms(1000));
            all.extend(self.core.take_delivered());
        }
        // With acks=0 everything is decided before it has left.
        let until = self.net.now().after_ms(5000);
        self.net.settle(&mut self.cluster, until);
        all
    }
}

/// A consumer by assignment on this thread.
pub struct Consumer {
    core: ConsumerCore,
    cluster: Cluster<Asked>,
    net: Net,
}

impl Consumer {
    pub fn new(cluster: ClusterConfig, config: ConsumerConfig) -> Consumer {
        Consumer {
            core: ConsumerCore::new(config),
            cluster: Cluster::new(cluster),
            net: Net::new(),
        }
    }

    pub fn assign(&mut self, topic: &str, partition: i32, start: StartAt) {
        self.core.assign(topic, partition, start, &mut self.cluster);
    }

    pub fn now(&self) -> Instant {
        self.net.now()
    }

    /// (topic, partition, position, high watermark); -1 while unknown.
    pub fn positions(&self) -> impl Iterator<Item = (&str, i32, i64, i64)> {
        self.core.positions()
    }

    /// Records are there that [`Consumer::poll`] has not given yet: the positions are ahead of the caller.
    pub fn has_fetched(&self) -> bool {
        self.core.has_fetched()
    }

    /// Waits for records until `until`; `None` if none came.
    pub fn poll(&mut self, until: Instant) -> Result<Option<Fetched>, Error> {
        loop {
            if let Some(fetched) = self.core.take() {
                return Ok(Some(fetched));
            }
            if let Some((topic, partition, error)) = self.core.take_error() {
                return Err(match error {
                    Error::Broker { code, message } => Error::Broker {
                        code,
                        message: format!("{topic}-{partition} {message}"),
                    },
                    other => other,
                });
            }
            let now = self.net.now();
            if now >= until {
                return Ok(None);
            }
            self.core.turn(&mut self.cluster, now);
            let step = self.core.deadline().map_or(until, |d| d.min(until));
            self.net.drive(&mut self.cluster, step);
            let now = self.net.now();
            for answer in self.cluster.take_answers() {
                self.core.on_answer(answer, &mut self.cluster, now);
            }
            // The next requests leave before the caller works on what came.
            self.core.turn(&mut self.cluster, now);
            self.net.drive(&mut self.cluster, now);
        }
    }

    /// Why nothing comes, if connections fail.
    pub fn last_error(&self) -> Option<String> {
        self.cluster.last_error()
    }
}
