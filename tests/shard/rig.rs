//! One process of shards over a disk in memory, in virtual time, driven with wire bytes through `Shard::turn`.
//!
//! What the node does with sockets, files and channels, the rig does at once: bytes given to send are sent, operations
//! complete unless they are held, what shards say to each other arrives in the next turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use corelane::log::faulty::{Completion, Disk, Loss};
use corelane::log::{self, Ids, Opened, Replay, Store, StoreConfig};
use corelane::meta::{Command, Endpoint, ShardEndpoints, StaticConfig};
use corelane::model::{ConnId, ErrorCode, Instant, NodeId, Now, Rng, ShardIndex, Uuid};
use corelane::quorum::{Booted, Options, Quorum, Step};
use corelane::shard::{Actions, Chunk, Event, Listener, Shard, ShardConfig};
use corelane::wire::msg::*;
use corelane::wire::{ApiKey, Malformed, Reader, RequestHeader, Writer, read_response_header};

pub const INCARNATION: Uuid = Uuid([9; 16]);

/// Virtual time starts here: the wall clock says 2023.
const WALL_MS: i64 = 1_700_000_000_000;

/// A request and its answer.
pub trait Ask {
    type Answer;
    const API: ApiKey;
    fn write(&self, w: &mut Writer, version: i16);
    fn read(r: &mut Reader<'static>, version: i16) -> Result<Self::Answer, Malformed>;
}

macro_rules! asks {
    ($($api:ident: $request:ty => $response:ty;)*) => {$(
        impl Ask for $request {
            type Answer = $response;
            const API: ApiKey = ApiKey::$api;
            fn write(&self, w: &mut Writer, version: i16) {
                self.encode(w, version);
            }
            fn read(r: &mut Reader<'static>, version: i16) -> Result<Self::Answer, Malformed> {
                <$response>::decode(r, version)
            }
        }
    )*};
}

asks! {
    Produce: produce_request::ProduceRequest<'_> => produce_response::ProduceResponse<'static>;
    Fetch: fetch_request::FetchRequest<'_> => fetch_response::FetchResponse<'static>;
    ListOffsets: list_offsets_request::ListOffsetsRequest<'_> => list_offsets_response::ListOffsetsResponse<'static>;
    Metadata: metadata_request::MetadataRequest<'_> => metadata_response::MetadataResponse<'static>;
    ApiVersions: api_versions_request::ApiVersionsRequest<'_> => api_versions_response::ApiVersionsResponse<'static>;
    CreateTopics: create_topics_request::CreateTopicsRequest<'_> => create_topics_response::CreateTopicsResponse<'static>;
    DeleteTopics: delete_topics_request::DeleteTopicsRequest<'_> => delete_topics_response::DeleteTopicsResponse<'static>;
    DeleteRecords: delete_records_request::DeleteRecordsRequest<'_> => delete_records_response::DeleteRecordsResponse<'static>;
    OffsetForLeaderEpoch: offset_for_leader_epoch_request::OffsetForLeaderEpochRequest<'_> => offset_for_leader_epoch_response::OffsetForLeaderEpochResponse<'static>;
    DescribeConfigs: describe_configs_request::DescribeConfigsRequest<'_> => describe_configs_response::DescribeConfigsResponse<'static>;
    AlterConfigs: alter_configs_request::AlterConfigsRequest<'_> => alter_configs_response::AlterConfigsResponse<'static>;
    IncrementalAlterConfigs: incremental_alter_configs_request::IncrementalAlterConfigsRequest<'_> => incremental_alter_configs_response::IncrementalAlterConfigsResponse<'static>;
    ElectLeaders: elect_leaders_request::ElectLeadersRequest<'_> => elect_leaders_response::ElectLeadersResponse<'static>;
    AlterPartitionReassignments: alter_partition_reassignments_request::AlterPartitionReassignmentsRequest<'_> => alter_partition_reassignments_response::AlterPartitionReassignmentsResponse<'static>;
    ListPartitionReassignments: list_partition_reassignments_request::ListPartitionReassignmentsRequest<'_> => list_partition_reassignments_response::ListPartitionReassignmentsResponse<'static>;
    DescribeQuorum: describe_quorum_request::DescribeQuorumRequest<'_> => describe_quorum_response::DescribeQuorumResponse<'static>;
    UpdateFeatures: update_features_request::UpdateFeaturesRequest<'_> => update_features_response::UpdateFeaturesResponse<'static>;
    UnregisterBroker: unregister_broker_request::UnregisterBrokerRequest => unregister_broker_response::UnregisterBrokerResponse<'static>;
    DescribeProducers: describe_producers_request::DescribeProducersRequest<'_> => describe_producers_response::DescribeProducersResponse<'static>;
    ListConfigResources: list_config_resources_request::ListConfigResourcesRequest => list_config_resources_response::ListConfigResourcesResponse<'static>;
    GetTelemetrySubscriptions: get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest => get_telemetry_subscriptions_response::GetTelemetrySubscriptionsResponse<'static>;
    PushTelemetry: push_telemetry_request::PushTelemetryRequest<'_> => push_telemetry_response::PushTelemetryResponse;
    DescribeLogDirs: describe_log_dirs_request::DescribeLogDirsRequest<'_> => describe_log_dirs_response::DescribeLogDirsResponse<'static>;
    AlterReplicaLogDirs: alter_replica_log_dirs_request::AlterReplicaLogDirsRequest<'_> => alter_replica_log_dirs_response::AlterReplicaLogDirsResponse<'static>;
    CreatePartitions: create_partitions_request::CreatePartitionsRequest<'_> => create_partitions_response::CreatePartitionsResponse<'static>;
    DescribeCluster: describe_cluster_request::DescribeClusterRequest => describe_cluster_response::DescribeClusterResponse<'static>;
    InitProducerId: init_producer_id_request::InitProducerIdRequest<'_> => init_producer_id_response::InitProducerIdResponse;
    DescribeTopicPartitions: describe_topic_partitions_request::DescribeTopicPartitionsRequest<'_> => describe_topic_partitions_response::DescribeTopicPartitionsResponse<'static>;
}

pub struct Setup {
    pub shards: u16,
    /// Of this start.
    pub incarnation: Uuid,
    /// The cluster that the process believes to belong to.
    pub cluster_id: Option<Uuid>,
    pub statics: Vec<(&'static str, &'static str)>,
    pub auto_create_topics: bool,
    pub store: StoreConfig,
    pub disk: Disk,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            shards: 1,
            incarnation: INCARNATION,
            cluster_id: None,
            statics: Vec::new(),
            auto_create_topics: true,
            store: StoreConfig::default(),
            disk: Disk::new(1),
        }
    }
}

/// One end of a connection, as a client sees it.
#[derive(Default)]
struct Wire {
    shard: usize,
    received: VecDeque<u8>,
    /// Bytes that the shard was not told of yet.
    unsent: usize,
    closed: bool,
    paused: bool,
}

pub struct Rig {
    incarnation: Uuid,
    pub shards: Vec<Shard>,
    pub disk: Disk,
    pub now: Now,
    /// While set, the disk completes nothing.
    pub hold_disk: bool,
    /// While set, what shards say to each other is lost.
    pub lose_peers: bool,
    /// While set, clients read nothing: what is given to send stays with the kernel.
    pub hold_sends: bool,
    events: Vec<VecDeque<Event>>,
    again: BTreeSet<usize>,
    wake_at: Vec<Option<Instant>>,
    pub stopped: Vec<bool>,
    wires: BTreeMap<ConnId, Wire>,
    next_conn: u64,
    next_correlation: i32,
}

pub fn listener(shard: u16) -> Listener {
    Listener {
        name: "PLAINTEXT".into(),
        host: "127.0.0.1".into(),
        port: 9092 + shard,
    }
}

pub fn node(shard: u16) -> i32 {
    NodeId::of(0, ShardIndex(shard)).0
}

fn register(setup: &Setup) -> Command {
    let endpoints = |shard: u16| ShardEndpoints {
        shard: ShardIndex(shard),
        endpoints: vec![Endpoint {
            listener: "PLAINTEXT".into(),
            host: "broker.example".into(),
            port: 9092 + shard,
        }],
    };
    Command::RegisterProcess {
        process: 0,
        incarnation: setup.incarnation,
        rack: None,
        shards: (0..setup.shards).map(endpoints).collect(),
        cluster_id: setup.cluster_id,
    }
}

fn boot(disk: &mut Disk, statics: &Arc<StaticConfig>) -> Booted {
    let options = Options {
        process: 0,
        snapshot_records: 10_000,
        ids: Ids {
            first: 1,
            stride: 2,
        },
    };
    let mut boot = Quorum::boot(options, Arc::clone(statics), Rng::seeded(7));
    let mut result = None;
    loop {
        match boot.next(result.take()) {
            Step::Op(op) => result = Some(disk.run(&op)),
            Step::Done(booted) => return *booted,
            Step::Failed(why) => panic!("{why}"),
        }
    }
}

/// What boot does with the journals before any shard starts.
fn replay(disk: &mut Disk, shards: u16) -> Opened {
    let mut replay = Replay::new(shards);
    let mut result = None;
    loop {
        match replay.next(result.take()) {
            log::Step::Op(op) => result = Some(disk.run(&op)),
            log::Step::Done(opened) => return *opened,
            log::Step::Failed(why) => panic!("{why}"),
        }
    }
}

impl Rig {
    /// One shard that serves.
    pub fn new() -> Rig {
        Rig::with(Setup::default())
    }

    /// Shards that have not had a turn yet.
    pub fn cold(mut setup: Setup) -> Rig {
        let mut statics = StaticConfig::default();
        for (name, value) in &setup.statics {
            statics.set(name, value).expect("a right setting");
        }
        let statics = Arc::new(statics);
        let Booted { quorum, image } = boot(&mut setup.disk, &statics);
        let opened = replay(&mut setup.disk, setup.shards);
        let mut quorum = Some(quorum);
        let shards = (0..setup.shards).map(|shard| {
            let config = ShardConfig {
                process: 0,
                shard: ShardIndex(shard),
                shards: setup.shards,
                incarnation: setup.incarnation,
                listeners: vec![listener(shard)],
                log_dir: "/data".into(),
                register: (shard == 0).then(|| register(&setup)),
                auto_create_topics: setup.auto_create_topics,
                fetch_bytes_max: 57_671_680,
                request_bytes_max: 104_857_600,
                seed: u64::from(shard) + 1,
            };
            let ids = Ids {
                first: 0,
                stride: 2,
            };
            let store = Store::new(ShardIndex(shard), setup.store.clone(), opened.clone(), ids);
            Shard::new(config, image.clone(), store, quorum.take())
        });
        let shards: Vec<Shard> = shards.collect();
        Rig {
            incarnation: setup.incarnation,
            events: shards.iter().map(|_| VecDeque::new()).collect(),
            again: (0..shards.len()).collect(),
            wake_at: vec![None; shards.len()],
            stopped: vec![false; shards.len()],
            shards,
            disk: setup.disk,
            now: Now {
                mono: Instant(1_000_000),
                wall: WALL_MS,
            },
            hold_disk: false,
            lose_peers: false,
            hold_sends: false,
            wires: BTreeMap::new(),
            next_conn: 0,
            next_correlation: 100,
        }
    }

    pub fn with(setup: Setup) -> Rig {
        let mut rig = Rig::cold(setup);
        rig.run();
        rig
    }

    pub fn open(&mut self) -> ConnId {
        self.open_to(0)
    }

    pub fn open_to(&mut self, shard: usize) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        let wire = Wire {
            shard,
            ..Wire::default()
        };
        self.wires.insert(conn, wire);
        let port = listener(shard as u16).port;
        self.event(
            shard,
            Event::Open {
                conn,
                peer: "10.0.0.1:40000".parse().expect("an address"),
                local: format!("127.0.0.1:{port}").parse().expect("an address"),
            },
        );
        conn
    }

    pub fn event(&mut self, shard: usize, event: Event) {
        self.events[shard].push_back(event);
    }

    /// The client sends a frame (without its size).
    pub fn send_frame(&mut self, conn: ConnId, frame: Vec<u8>) {
        let shard = self.wires[&conn].shard;
        let frame = Bytes::from(frame);
        self.event(shard, Event::Frame { conn, frame });
    }

    pub fn half_close(&mut self, conn: ConnId) {
        let shard = self.wires[&conn].shard;
        self.event(shard, Event::HalfClosed { conn });
    }

    /// The client is gone.
    pub fn drop_conn(&mut self, conn: ConnId) {
        let wire = self.wires.get_mut(&conn).expect("a connection");
        wire.closed = true;
        let shard = wire.shard;
        self.event(shard, Event::Closed { conn });
    }

    /// Sends a request; its correlation id.
    pub fn send<A: Ask>(&mut self, conn: ConnId, version: i16, request: &A) -> i32 {
        self.send_as(conn, version, Some("rig"), request)
    }

    pub fn send_as<A: Ask>(
        &mut self,
        conn: ConnId,
        version: i16,
        client: Option<&str>,
        request: &A,
    ) -> i32 {
        self.next_correlation += 1;
        let mut w = Writer::new();
        RequestHeader {
            api_key: A::API.code(),
            api_version: version,
            correlation_id: self.next_correlation,
            client_id: client.map(Into::into),
        }
        .encode(&mut w);
        request.write(&mut w, version);
        self.send_frame(conn, w.into_bytes());
        self.next_correlation
    }

    /// One turn of one shard, and what it wants done.
    fn turn(&mut self, shard: usize) {
        let mut actions = Actions::default();
        self.shards[shard].turn(self.now, &mut self.events[shard], &mut actions);
        self.shards[shard].check();
        for (conn, chunk) in actions.sends {
            let len = chunk.len();
            let bytes = match chunk {
                Chunk::Bytes(bytes) => bytes.to_vec(),
                Chunk::Span(span) => self.disk.bytes_of(shard as u16, &span),
            };
            assert_eq!(bytes.len(), len);
            let wire = self.wires.get_mut(&conn).expect("a connection");
            if !wire.closed {
                wire.received.extend(bytes);
                wire.unsent += len;
            }
        }
        if !self.hold_sends {
            self.tell_sent();
        }
        for conn in actions.closes {
            let wire = self.wires.get_mut(&conn).expect("a connection");
            if !wire.closed {
                wire.closed = true;
                self.events[shard].push_back(Event::Closed { conn });
            }
        }
        for (conn, paused) in actions.pauses {
            self.wires.get_mut(&conn).expect("a connection").paused = paused;
        }
        for (id, op) in actions.disk {
            self.disk.submit(shard as u16, id, op, self.now.mono);
        }
        for (to, msg) in actions.peers {
            if self.lose_peers {
                continue;
            }
            let from = ShardIndex(shard as u16);
            self.events[usize::from(to.0)].push_back(Event::Peer { from, msg });
        }
        self.wake_at[shard] = actions.wake_at;
        self.stopped[shard] |= actions.stopped;
        if actions.again {
            self.again.insert(shard);
        } else {
            self.again.remove(&shard);
        }
    }

    /// Clients have read what they were sent.
    pub fn tell_sent(&mut self) {
        for (conn, wire) in &mut self.wires {
            let bytes = std::mem::take(&mut wire.unsent);
            if bytes > 0 && !wire.closed {
                let conn = *conn;
                self.events[wire.shard].push_back(Event::Sent { conn, bytes });
            }
        }
    }

    /// Turns until nothing moves at this instant.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            let now = self.now.mono;
            let due = (0..self.shards.len()).find(|s| {
                !self.stopped[*s]
                    && (!self.events[*s].is_empty()
                        || self.again.contains(s)
                        || self.wake_at[*s].is_some_and(|at| at <= now))
            });
            if let Some(shard) = due {
                self.turn(shard);
                continue;
            }
            if self.hold_disk || !self.complete_one() {
                return;
            }
        }
        panic!("the shards go round in circles");
    }

    /// Completes one operation of the disk, whichever.
    pub fn complete_one(&mut self) -> bool {
        let Some(Completion { owner, id, result }) = self.disk.complete_one() else {
            return false;
        };
        self.event(usize::from(owner), Event::Disk { op: id, result });
        true
    }

    /// Time passes, with a turn whenever a shard asked for one.
    pub fn pass_ms(&mut self, ms: u64) {
        self.run();
        let end = self.now.mono.after_ms(ms);
        loop {
            let next = self.wake_at.iter().flatten().min().copied();
            let at = next.unwrap_or(end).clamp(self.now.mono, end);
            let us = at.since_us(self.now.mono).max(1);
            if at >= end {
                self.set_time(end);
                return self.run();
            }
            let then = self.now.mono.after_us(us).min(end);
            self.set_time(then);
            self.run();
        }
    }

    fn set_time(&mut self, to: Instant) {
        let us = to.since_us(self.now.mono);
        self.now.mono = to;
        self.now.wall += (us / 1000) as i64;
    }

    pub fn is_closed(&self, conn: ConnId) -> bool {
        self.wires[&conn].closed
    }

    pub fn is_paused(&self, conn: ConnId) -> bool {
        self.wires[&conn].paused
    }

    /// The next whole answer (without its size) that came.
    pub fn frame(&mut self, conn: ConnId) -> Option<Vec<u8>> {
        let received = &mut self.wires.get_mut(&conn).expect("a connection").received;
        if received.len() < 4 {
            assert!(received.is_empty(), "whole answers come");
            return None;
        }
        let size: Vec<u8> = received.drain(..4).collect();
        let size = u32::from_be_bytes(size.try_into().expect("four bytes")) as usize;
        assert!(received.len() >= size, "whole answers come");
        Some(received.drain(..size).collect())
    }

    /// The answer to a request of this kind and correlation id, if it came.
    pub fn answer<A: Ask>(&mut self, conn: ConnId, version: i16, id: i32) -> Option<A::Answer> {
        let frame: &'static [u8] = self.frame(conn)?.leak();
        let mut r = Reader::new(frame);
        let correlation = read_response_header(&mut r, A::API, version).expect("a header");
        assert_eq!(correlation, id, "answers come in order");
        let answer = A::read(&mut r, version).expect("an answer");
        assert_eq!(r.remaining(), 0, "nothing behind the answer");
        Some(answer)
    }

    /// Asks and waits, without time passing.
    pub fn ask<A: Ask>(&mut self, conn: ConnId, version: i16, request: &A) -> A::Answer {
        let id = self.send(conn, version, request);
        self.run();
        self.answer::<A>(conn, version, id)
            .unwrap_or_else(|| panic!("{:?} v{version} was not answered", A::API))
    }

    /// Asks on a new connection to the first shard.
    pub fn once<A: Ask>(&mut self, version: i16, request: &A) -> A::Answer {
        let conn = self.open();
        let answer = self.ask(conn, version, request);
        self.drop_conn(conn);
        self.run();
        answer
    }
}

pub fn error(code: i16) -> ErrorCode {
    ErrorCode::from_code(code)
}

impl Rig {
    /// A topic with so many partitions of one replica; its id.
    pub fn create(&mut self, name: &str, partitions: i32) -> Uuid {
        self.create_with(name, partitions, &[])
    }

    pub fn create_with(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Uuid {
        use corelane::wire::msg::create_topics_request::{
            CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
        };
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: name.to_string().into(),
            value: Some(value.to_string().into()),
        });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: name.into(),
                num_partitions: partitions,
                replication_factor: 1,
                configs: configs.collect(),
                ..Default::default()
            }],
            timeout_ms: 10_000,
            ..Default::default()
        };
        let answer = self.once(7, &request);
        let topic = &answer.topics[0];
        assert_eq!(topic.error_code, 0, "{:?}", topic.error_message);
        topic.topic_id
    }

    /// Names of all topics, by the image of the first shard.
    pub fn topics(&self) -> Vec<String> {
        let topics = self.shards[0].image().topics();
        topics.map(|topic| topic.name.to_string()).collect()
    }
}

impl Rig {
    /// The topic's deletion is decided while the disk does nothing for its partitions.
    pub fn delete_before_writes(&mut self, name: &'static str) {
        use corelane::wire::msg::delete_topics_request::DeleteTopicsRequest;
        self.hold_disk = true;
        self.run();
        let conn = self.open();
        self.send(
            conn,
            5,
            &DeleteTopicsRequest {
                topic_names: vec![name.into()],
                timeout_ms: 10_000,
                ..Default::default()
            },
        );
        self.run_quorum();
        self.hold_disk = false;
    }

    /// Turns until nothing moves, while of all disk operations only the quorum's writes complete.
    pub fn run_quorum(&mut self) {
        self.hold_disk = true;
        self.run();
        // The quorum's ids are odd, the store's even.
        while let Some(Completion { owner, id, result }) = self.disk.complete_where(
            |op| matches!(op, corelane::log::DiskOp::Write { file, .. } if file.0 % 2 == 1),
        ) {
            self.event(usize::from(owner), Event::Disk { op: id, result });
            self.run();
        }
    }
}

impl Rig {
    pub fn delete(&mut self, name: &'static str) {
        use corelane::wire::msg::delete_topics_request::DeleteTopicsRequest;
        let answer = self.once(
            5,
            &DeleteTopicsRequest {
                topic_names: vec![name.into()],
                timeout_ms: 10_000,
                ..Default::default()
            },
        );
        assert_eq!(answer.responses[0].error_code, 0);
    }

    pub fn grow(&mut self, name: &'static str, count: i32) {
        use corelane::wire::msg::create_partitions_request::{
            CreatePartitionsRequest, CreatePartitionsTopic,
        };
        let answer = self.once(
            3,
            &CreatePartitionsRequest {
                topics: vec![CreatePartitionsTopic {
                    name: name.into(),
                    count,
                    assignments: None,
                }],
                timeout_ms: 10_000,
                ..Default::default()
            },
        );
        assert_eq!(answer.results[0].error_code, 0);
    }
}

impl Rig {
    pub fn has_answer(&self, conn: ConnId) -> bool {
        !self.wires[&conn].received.is_empty()
    }
}

impl Rig {
    /// The process ends like this and starts again.
    pub fn restart(self, loss: Loss) -> Rig {
        let shards = self.shards.len() as u16;
        self.restart_with(loss, shards)
    }

    pub fn restart_with(self, loss: Loss, shards: u16) -> Rig {
        let mut rig = self.restart_cold(loss, shards);
        rig.run();
        rig
    }

    /// The new start has not had a turn yet.
    pub fn restart_cold(mut self, loss: Loss, shards: u16) -> Rig {
        self.disk.crash(loss);
        let mut incarnation = self.incarnation;
        incarnation.0[0] += 1;
        let now = self.now;
        let mut rig = Rig::cold(Setup {
            shards,
            incarnation,
            disk: self.disk,
            ..Setup::default()
        });
        rig.now = now;
        rig
    }
}
