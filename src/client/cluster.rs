//! The cluster as a client sees it: nodes, connections, versions, metadata. Pure: [`Out`] says what the shell shall do, the `on_` calls
//! say what happened. `T` is what the user of a request wants back with its answer.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::model::{ErrorCode, Instant, TopicId};
use crate::wire::msg::api_versions_request::ApiVersionsRequest;
use crate::wire::msg::api_versions_response::ApiVersionsResponse;
use crate::wire::msg::metadata_request::{MetadataRequest, MetadataRequestTopic};
use crate::wire::msg::metadata_response::MetadataResponse;
use crate::wire::{ApiKey, Malformed, Reader, RequestHeader, Writer, read_response_header};

#[derive(Clone, Debug)]
pub struct ClusterConfig {
    pub bootstrap: Vec<(String, u16)>,
    pub client_id: String,
    /// A request without an answer for this long takes its connection with it.
    pub request_timeout_ms: u64,
    pub metadata_max_age_ms: u64,
    /// Pause after a failed connection or a metadata answer that did not help; doubles up to a second.
    pub retry_backoff_ms: u64,
    /// Ask for missing topics in a way that lets the broker create them.
    pub create_topics: bool,
    /// Told, once for every outage, of a server that cannot be reached and will be tried again.
    pub on_outage: Option<fn(&str)>,
}

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        ClusterConfig {
            bootstrap: Vec::new(),
            client_id: "corelane".to_string(),
            request_timeout_ms: 30_000,
            metadata_max_age_ms: 300_000,
            retry_backoff_ms: 100,
            create_topics: false,
            on_outage: None,
        }
    }
}

/// A node id, or a bootstrap server as `-1 - index`.
pub type Target = i32;

#[derive(Debug)]
pub enum Out {
    Connect {
        target: Target,
        host: String,
        port: u16,
    },
    /// A whole frame with its size prefix.
    Send {
        target: Target,
        frame: Vec<u8>,
    },
    Close {
        target: Target,
    },
}

/// The answer to a request, or that it is lost.
#[derive(Debug)]
pub struct Answer<T> {
    pub target: Target,
    pub tag: T,
    pub version: i16,
    /// The frame from its correlation id on, and where the body starts; `Err` if the connection was lost or the time was up.
    pub body: Result<(Bytes, usize), Lost>,
}

/// No answer will come. Whether the request was carried out is unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost(pub String);

impl<T> Answer<T> {
    /// Decodes the body: `answer.decode(ProduceResponse::decode)`.
    pub fn decode<'a, M>(
        &'a self,
        decode: impl FnOnce(&mut Reader<'a>, i16) -> Result<M, Malformed>,
    ) -> Result<M, super::Error> {
        match &self.body {
            Ok((frame, at)) => {
                let mut r = Reader::new(&frame[*at..]);
                decode(&mut r, self.version).map_err(|e| super::Error::Malformed(format!("{e:?}")))
            }
            Err(lost) => Err(super::Error::Connection(lost.0.clone())),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Metadata {
    pub cluster_id: String,
    pub controller: i32,
    pub nodes: BTreeMap<i32, Node>,
    pub topics: BTreeMap<String, Topic>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub host: String,
    pub port: u16,
    pub rack: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Topic {
    pub id: TopicId,
    pub error: ErrorCode,
    pub is_internal: bool,
    /// By partition index, without holes.
    pub partitions: Vec<Partition>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    pub error: ErrorCode,
    /// -1: none.
    pub leader: i32,
    pub leader_epoch: i32,
    pub replicas: Vec<i32>,
    pub isr: Vec<i32>,
    pub offline: Vec<i32>,
}

impl Metadata {
    pub fn leader(&self, topic: &str, partition: i32) -> Option<i32> {
        let topic = self.topics.get(topic)?;
        let partition = topic.partitions.get(usize::try_from(partition).ok()?)?;
        (partition.leader >= 0).then_some(partition.leader)
    }

    pub fn of(answer: &MetadataResponse<'_>) -> Metadata {
        let node = |b: &crate::wire::msg::metadata_response::MetadataResponseBroker<'_>| {
            let node = Node {
                host: b.host.to_string(),
                port: u16::try_from(b.port).unwrap_or(0),
                rack: b.rack.as_ref().map(|r| r.to_string()),
            };
            (b.node_id, node)
        };
        let mut metadata = Metadata {
            cluster_id: answer.cluster_id.as_deref().unwrap_or_default().to_string(),
            controller: answer.controller_id,
            nodes: answer.brokers.iter().map(node).collect(),
            topics: BTreeMap::new(),
        };
        for topic in &answer.topics {
            let Some(name) = &topic.name else { continue };
            let mut partitions: Vec<_> = topic.partitions.iter().collect();
            partitions.sort_by_key(|p| p.partition_index);
            let partitions = partitions
                .into_iter()
                .enumerate()
                .take_while(|(i, p)| i32::try_from(*i) == Ok(p.partition_index))
                .map(|(_, p)| Partition {
                    error: ErrorCode::from_code(p.error_code),
                    leader: p.leader_id,
                    leader_epoch: p.leader_epoch,
                    replicas: p.replica_nodes.clone(),
                    isr: p.isr_nodes.clone(),
                    offline: p.offline_replicas.clone(),
                });
            let topic = Topic {
                id: topic.topic_id,
                error: ErrorCode::from_code(topic.error_code),
                is_internal: topic.is_internal,
                partitions: partitions.collect(),
            };
            metadata.topics.insert(name.to_string(), topic);
        }
        metadata
    }
}

enum Tag<T> {
    Versions,
    Metadata,
    User(T),
}

struct InFlight<T> {
    correlation_id: i32,
    api: ApiKey,
    version: i16,
    deadline: Instant,
    tag: Tag<T>,
}

enum State {
    /// Not connected; not before this instant.
    Down {
        until: Instant,
    },
    Connecting {
        deadline: Instant,
    },
    /// Connected, versions asked for.
    Greeting,
    Ready,
}

struct Link<T> {
    state: State,
    failures: u32,
    last_error: String,
    versions: BTreeMap<i16, (i16, i16)>,
    correlation_id: i32,
    in_flight: VecDeque<InFlight<T>>,
    /// Someone wants this connection.
    wanted: bool,
    /// `on_outage` heard of it.
    is_told: bool,
}

impl<T> Default for Link<T> {
    fn default() -> Link<T> {
        Link {
            state: State::Down {
                until: Instant::default(),
            },
            failures: 0,
            last_error: String::new(),
            versions: BTreeMap::new(),
            correlation_id: 0,
            in_flight: VecDeque::new(),
            wanted: false,
            is_told: false,
        }
    }
}

pub struct Cluster<T> {
    config: ClusterConfig,
    metadata: Metadata,
    /// The topics that metadata is kept for.
    topics: Vec<String>,
    metadata_at: Option<Instant>,
    /// Ask again as soon as this has come.
    refresh_at: Option<Instant>,
    metadata_asked: bool,
    /// Grows with every metadata answer.
    pub metadata_generation: u64,
    links: BTreeMap<Target, Link<T>>,
    /// Where the search for a node that answers goes on.
    search: usize,
    out: Vec<Out>,
    answers: Vec<Answer<T>>,
    now: Instant,
}

impl<T> Cluster<T> {
    pub fn new(config: ClusterConfig) -> Cluster<T> {
        Cluster {
            config,
            metadata: Metadata::default(),
            topics: Vec::new(),
            metadata_at: None,
            refresh_at: Some(Instant::default()),
            metadata_asked: false,
            metadata_generation: 0,
            links: BTreeMap::new(),
            search: 0,
            out: Vec::new(),
            answers: Vec::new(),
            now: Instant::default(),
        }
    }

    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether a metadata answer has come at all.
    pub fn has_metadata(&self) -> bool {
        self.metadata_at.is_some()
    }

    /// Keeps metadata of this topic from now on.
    pub fn want_topic(&mut self, topic: &str) {
        if !self.topics.iter().any(|t| t == topic) {
            self.topics.push(topic.to_string());
            self.refresh_at = Some(self.now);
        }
    }

    /// What is known may be wrong: ask again after the backoff.
    pub fn refresh(&mut self) {
        let at = self.now.after_ms(self.config.retry_backoff_ms);
        self.refresh_at = Some(self.refresh_at.map_or(at, |old| old.min(at)));
    }

    pub fn take_out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    pub fn take_answers(&mut self) -> Vec<Answer<T>> {
        std::mem::take(&mut self.answers)
    }

    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The last failure of a connection that is down now, for messages.
    pub fn last_error(&self) -> Option<String> {
        let down = |(target, link): (&Target, &Link<T>)| {
            let (host, port) = self.address(*target)?;
            let is_down = matches!(link.state, State::Down { .. }) && link.failures > 0;
            is_down.then(|| format!("{host}:{port}: {}", link.last_error))
        };
        self.links.iter().filter_map(down).next()
    }

    // -- requests

    /// Asks for a connection; gives whether it is ready for requests.
    pub fn connect(&mut self, target: Target) -> bool {
        let link = self.links.entry(target).or_default();
        link.wanted = true;
        matches!(link.state, State::Ready)
    }

    /// Any ready connection; asks for one if there is none.
    pub fn any(&mut self) -> Option<Target> {
        let ready = |l: &Link<T>| matches!(l.state, State::Ready);
        if let Some((target, _)) = self.links.iter().rev().find(|(_, l)| ready(l)) {
            return Some(*target);
        }
        self.seek();
        None
    }

    pub fn in_flight(&self, target: Target) -> usize {
        self.links.get(&target).map_or(0, |l| l.in_flight.len())
    }

    /// The highest version of `api` that both sides speak, on a ready connection.
    pub fn version(&self, target: Target, api: ApiKey) -> Option<i16> {
        let link = self.links.get(&target)?;
        if !matches!(link.state, State::Ready) {
            return None;
        }
        let (min, max) = *link.versions.get(&api.code())?;
        let version = max.min(api.latest_stable());
        (version >= min && version >= api.versions().0).then_some(version)
    }

    /// Sends a request in the version that both speak. `false`: not connected, or the API is not spoken.
    /// `answered` is false for acks=0: nothing will come back and `tag` is dropped.
    pub fn request(
        &mut self,
        target: Target,
        api: ApiKey,
        tag: T,
        answered: bool,
        encode: impl FnOnce(&mut Writer, i16),
    ) -> bool {
        let Some(version) = self.version(target, api) else {
            return false;
        };
        self.send(target, api, version, Tag::User(tag), answered, encode);
        true
    }

    fn send(
        &mut self,
        target: Target,
        api: ApiKey,
        version: i16,
        tag: Tag<T>,
        answered: bool,
        encode: impl FnOnce(&mut Writer, i16),
    ) {
        let deadline = self.now.after_ms(self.config.request_timeout_ms);
        let link = self.links.entry(target).or_default();
        let correlation_id = link.correlation_id;
        link.correlation_id = correlation_id.wrapping_add(1) & i32::MAX;
        let mut w = Writer::new();
        let start = w.begin_frame();
        let header = RequestHeader {
            api_key: api.code(),
            api_version: version,
            correlation_id,
            client_id: Some(self.config.client_id.as_str().into()),
        };
        header.encode(&mut w);
        encode(&mut w, version);
        w.end_frame(start);
        if answered {
            link.in_flight.push_back(InFlight {
                correlation_id,
                api,
                version,
                deadline,
                tag,
            });
        }
        self.out.push(Out::Send {
            target,
            frame: w.into_bytes(),
        });
    }

    // -- what happens

    /// Makes due what is due: connections, timeouts, metadata.
    pub fn turn(&mut self, now: Instant) {
        self.now = now;
        let late: Vec<Target> = self
            .links
            .iter()
            .filter(|(_, link)| match link.state {
                State::Connecting { deadline } => deadline <= now,
                _ => link.in_flight.front().is_some_and(|f| f.deadline <= now),
            })
            .map(|(target, _)| *target)
            .collect();
        for target in late {
            self.out.push(Out::Close { target });
            self.lose(target, "timed out");
        }
        if let Some(at) = self.metadata_at
            && at.after_ms(self.config.metadata_max_age_ms) <= now
        {
            self.refresh_at = Some(now);
        }
        if !self.metadata_asked && self.refresh_at.is_some_and(|at| at <= now) {
            self.ask_metadata();
        }
        let due: Vec<Target> = self
            .links
            .iter()
            .filter(|(_, l)| l.wanted && matches!(l.state, State::Down { until } if until <= now))
            .map(|(target, _)| *target)
            .collect();
        for target in due {
            let address = self.address(target);
            let link = self.links.entry(target).or_default();
            let Some((host, port)) = address else {
                link.wanted = false;
                continue;
            };
            link.state = State::Connecting {
                deadline: now.after_ms(self.config.request_timeout_ms.min(10_000)),
            };
            self.out.push(Out::Connect { target, host, port });
        }
    }

    /// When [`Cluster::turn`] has something to do again, if nothing else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let mut deadlines = Vec::new();
        for link in self.links.values() {
            match link.state {
                State::Down { until } if link.wanted => deadlines.push(until),
                State::Connecting { deadline } => deadlines.push(deadline),
                _ => {}
            }
            deadlines.extend(link.in_flight.front().map(|f| f.deadline));
        }
        if !self.metadata_asked && (self.links.values().any(|l| matches!(l.state, State::Ready))) {
            deadlines.extend(self.refresh_at);
        }
        if let Some(at) = self.metadata_at {
            deadlines.push(at.after_ms(self.config.metadata_max_age_ms));
        }
        let is_down = |link: &Link<T>| matches!(link.state, State::Down { .. });
        if self.links.values().all(is_down) {
            // The search goes on as soon as one may be tried again.
            deadlines.extend(self.links.values().filter_map(|link| match link.state {
                State::Down { until } => Some(until),
                _ => None,
            }));
        }
        deadlines.into_iter().min()
    }

    pub fn on_connected(&mut self, target: Target) {
        let link = self.links.entry(target).or_default();
        link.state = State::Greeting;
        link.correlation_id = 0;
        self.greet(target, 3);
    }

    pub fn on_closed(&mut self, target: Target, reason: &str) {
        self.lose(target, reason);
    }

    /// A whole frame without its size prefix came.
    pub fn on_frame(&mut self, target: Target, frame: Bytes) {
        if let Err(reason) = self.frame(target, frame) {
            self.out.push(Out::Close { target });
            self.lose(target, reason);
        }
    }

    fn frame(&mut self, target: Target, frame: Bytes) -> Result<(), &'static str> {
        let malformed = |_: Malformed| "the broker sent a malformed answer";
        let link = self.links.get_mut(&target).ok_or("not connected")?;
        let request = link.in_flight.pop_front().ok_or("an unasked answer")?;
        let mut r = Reader::new(&frame);
        let id = read_response_header(&mut r, request.api, request.version).map_err(malformed)?;
        if id != request.correlation_id {
            return Err("an answer out of order");
        }
        let at = r.position();
        match request.tag {
            Tag::Versions => {
                // A broker that does not know the version answers in version 0.
                let unknown = frame.get(at..at + 2) == Some(&35i16.to_be_bytes());
                if unknown && request.version > 0 {
                    self.greet(target, 0);
                    return Ok(());
                }
                let answer =
                    ApiVersionsResponse::decode(&mut r, request.version).map_err(malformed)?;
                if answer.error_code != 0 {
                    return Err("the broker refused ApiVersions");
                }
                let apis = answer.api_keys.iter();
                link.versions = apis
                    .map(|a| (a.api_key, (a.min_version, a.max_version)))
                    .collect();
                link.state = State::Ready;
                link.failures = 0;
                link.is_told = false;
            }
            Tag::Metadata => {
                let answer =
                    MetadataResponse::decode(&mut r, request.version).map_err(malformed)?;
                self.on_metadata(&answer);
            }
            Tag::User(tag) => self.answers.push(Answer {
                target,
                tag,
                version: request.version,
                body: Ok((frame, at)),
            }),
        }
        Ok(())
    }

    fn greet(&mut self, target: Target, version: i16) {
        let request = ApiVersionsRequest {
            client_software_name: "corelane".into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        self.send(
            target,
            ApiKey::ApiVersions,
            version,
            Tag::Versions,
            true,
            |w, v| request.encode(w, v),
        );
    }

    fn on_metadata(&mut self, answer: &MetadataResponse<'_>) {
        self.metadata_asked = false;
        self.metadata_at = Some(self.now);
        self.metadata_generation += 1;
        let metadata = Metadata::of(answer);
        let moved: Vec<i32> = self
            .metadata
            .nodes
            .iter()
            .filter(|(id, node)| metadata.nodes.get(id).is_some_and(|new| new != *node))
            .map(|(id, _)| *id)
            .collect();
        self.metadata = metadata;
        for target in moved {
            self.out.push(Out::Close { target });
            self.lose(target, "the node moved");
        }
        let incomplete = self.topics.iter().any(|name| {
            self.metadata.topics.get(name).is_none_or(|topic| {
                topic.error.is_retriable() || topic.partitions.iter().any(|p| p.leader < 0)
            })
        });
        self.refresh_at = None;
        if incomplete {
            self.refresh();
        }
    }

    fn ask_metadata(&mut self) {
        let Some(target) = self.any() else { return };
        let Some(version) = self.version(target, ApiKey::Metadata) else {
            return;
        };
        let topics = self.topics.iter().map(|name| MetadataRequestTopic {
            name: Some(name.clone().into()),
            ..Default::default()
        });
        let request = MetadataRequest {
            topics: Some(topics.collect()),
            allow_auto_topic_creation: self.config.create_topics,
            ..Default::default()
        };
        self.metadata_asked = true;
        self.refresh_at = None;
        self.send(
            target,
            ApiKey::Metadata,
            version,
            Tag::Metadata,
            true,
            |w, v| request.encode(w, v),
        );
    }

    /// Wants one more connection, the next in turn, unless one is on its way.
    fn seek(&mut self) {
        let on_its_way =
            |l: &Link<T>| matches!(l.state, State::Connecting { .. } | State::Greeting);
        if self.links.values().any(on_its_way) {
            return;
        }
        let mut candidates: Vec<Target> = self.metadata.nodes.keys().copied().collect();
        candidates.extend((0..self.config.bootstrap.len()).map(|i| -1 - i as i32));
        if candidates.is_empty() {
            return;
        }
        let now = self.now;
        for i in 0..candidates.len() {
            let target = candidates[(self.search + i) % candidates.len()];
            let link = self.links.entry(target).or_default();
            if matches!(link.state, State::Down { until } if until <= now) {
                link.wanted = true;
                self.search = self.search.wrapping_add(i + 1);
                return;
            }
        }
    }

    fn lose(&mut self, target: Target, reason: &str) {
        let Some(link) = self.links.get_mut(&target) else {
            return;
        };
        if matches!(link.state, State::Down { .. }) {
            return;
        }
        let backoff = self.config.retry_backoff_ms << link.failures.min(10);
        let unreachable = !matches!(link.state, State::Ready);
        let is_new = unreachable && !std::mem::replace(&mut link.is_told, unreachable);
        link.failures = link.failures.saturating_add(1);
        link.last_error = reason.to_string();
        link.state = State::Down {
            until: self.now.after_ms(backoff.min(1000)),
        };
        // A bootstrap server is asked again only if nothing else is left.
        link.wanted = target >= 0;
        let lost = std::mem::take(&mut link.in_flight);
        for request in lost {
            match request.tag {
                Tag::Versions => {}
                Tag::Metadata => self.metadata_asked = false,
                Tag::User(tag) => self.answers.push(Answer {
                    target,
                    tag,
                    version: request.version,
                    body: Err(Lost(reason.to_string())),
                }),
            }
        }
        self.refresh();
        if let Some(tell) = self.config.on_outage
            && is_new
            && let Some((host, port)) = self.address(target)
        {
            tell(&format!("no connection to {host}:{port}: {reason}"));
        }
    }

    fn address(&self, target: Target) -> Option<(String, u16)> {
        if target >= 0 {
            let node = self.metadata.nodes.get(&target)?;
            return Some((node.host.clone(), node.port));
        }
        self.config.bootstrap.get((-1 - target) as usize).cloned()
    }
}
