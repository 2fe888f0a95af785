//! The pure producer and consumer against a small broker in memory that loses connections before and after it did what was asked, answers
//! with retriable errors, and keeps an idempotent producer's sequence as Kafka does.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::cluster::{Cluster, Out, Target};
use super::consumer::{ConsumerConfig, ConsumerCore};
use super::producer::{Message, ProducerConfig, ProducerCore, Refused};
use super::*;
use crate::batch::{Batch, CheckedBatch};
use crate::model::{Instant, Rng, TopicId};
use crate::wire::msg::api_versions_response::{ApiVersion, ApiVersionsResponse};
use crate::wire::msg::fetch_request::FetchRequest;
use crate::wire::msg::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use crate::wire::msg::init_producer_id_response::InitProducerIdResponse;
use crate::wire::msg::list_offsets_request::ListOffsetsRequest;
use crate::wire::msg::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use crate::wire::msg::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use crate::wire::msg::produce_request::ProduceRequest;
use crate::wire::msg::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use crate::wire::{ApiKey, Reader, Records, RequestHeader, Writer, write_response_header};

const TOPIC: TopicId = crate::model::Uuid([7; 16]);
const PARTITIONS: i32 = 3;

#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    end: i64,
    /// Last sequence by producer.
    last: BTreeMap<i64, Vec<(i32, i32, i64)>>,
}

struct Broker {
    rng: Rng,
    trouble: bool,
    logs: BTreeMap<i32, Log>,
    ids: i64,
}

impl Broker {
    /// The answer to a frame; `None`: the connection is lost.
    fn answer(&mut self, frame: &[u8]) -> Option<Bytes> {
        if self.trouble && self.rng.one_in(12) {
            return None;
        }
        let mut r = Reader::new(frame);
        let header = RequestHeader::decode(&mut r).expect("a header");
        let api = ApiKey::from_i16(header.api_key).expect("a known api");
        let version = header.api_version;
        let mut w = Writer::new();
        write_response_header(&mut w, api, version, header.correlation_id);
        match api {
            ApiKey::ApiVersions => self.versions().encode(&mut w, version),
            ApiKey::Metadata => self.metadata().encode(&mut w, version),
            ApiKey::InitProducerId => {
                self.ids += 1;
                let answer = InitProducerIdResponse {
                    producer_id: self.ids,
                    ..Default::default()
                };
                answer.encode(&mut w, version);
            }
            ApiKey::Produce => {
                let request = ProduceRequest::decode(&mut r, version).expect("a request");
                self.produce(&request).encode(&mut w, version);
            }
            ApiKey::Fetch => {
                let request = FetchRequest::decode(&mut r, version).expect("a request");
                self.fetch(&request).encode(&mut w, version);
            }
            ApiKey::ListOffsets => {
                let request = ListOffsetsRequest::decode(&mut r, version).expect("a request");
                self.offsets(&request).encode(&mut w, version);
            }
            other => panic!("{other:?} was not expected"),
        }
        if self.trouble && self.rng.one_in(12) {
            return None;
        }
        Some(w.into_bytes().into())
    }

    fn versions(&self) -> ApiVersionsResponse<'static> {
        let all = ApiKey::all().map(|api| ApiVersion {
            api_key: api.code(),
            min_version: api.versions().0,
            max_version: api.latest_stable(),
        });
        ApiVersionsResponse {
            api_keys: all.collect(),
            ..Default::default()
        }
    }

    fn metadata(&mut self) -> MetadataResponse<'static> {
        let partition = |index| MetadataResponsePartition {
            partition_index: index,
            leader_id: index % 2,
            replica_nodes: vec![index % 2],
            isr_nodes: vec![index % 2],
            ..Default::default()
        };
        let node = |id: i32| MetadataResponseBroker {
            node_id: id,
            host: "node".into(),
            port: 1000 + id,
            ..Default::default()
        };
        MetadataResponse {
            brokers: vec![node(0), node(1)],
            topics: vec![MetadataResponseTopic {
                name: Some("t".into()),
                topic_id: TOPIC,
                partitions: (0..PARTITIONS).map(partition).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn produce(&mut self, request: &ProduceRequest<'_>) -> ProduceResponse<'static> {
        let mut partition_responses = Vec::new();
        for data in request.topic_data.iter().flat_map(|t| &t.partition_data) {
            let (code, base_offset) = match self.trouble && self.rng.one_in(10) {
                true => (ErrorCode::NotLeaderOrFollower, -1),
                false => self.append(data.index, data.records.as_bytes()),
            };
            partition_responses.push(PartitionProduceResponse {
                index: data.index,
                error_code: code.code(),
                base_offset,
                ..Default::default()
            });
        }
        ProduceResponse {
            responses: vec![TopicProduceResponse {
                name: "t".into(),
                topic_id: TOPIC,
                partition_responses,
            }],
            ..Default::default()
        }
    }

    fn append(&mut self, partition: i32, bytes: &[u8]) -> (ErrorCode, i64) {
        let log = self.logs.entry(partition).or_default();
        let batch = CheckedBatch::own(bytes).expect("a right batch");
        let sequences = (batch.base_sequence(), batch.last_sequence());
        if batch.has_producer_id() {
            let seen = log.last.entry(batch.producer_id()).or_default();
            if let Some((_, _, offset)) = seen.iter().find(|(a, b, _)| (*a, *b) == sequences) {
                return (ErrorCode::None, *offset);
            }
            let expected = seen.last().map_or(0, |(_, last, _)| last + 1);
            if sequences.0 != expected {
                return (ErrorCode::OutOfOrderSequenceNumber, -1);
            }
            seen.push((sequences.0, sequences.1, log.end));
            if seen.len() > 5 {
                seen.remove(0);
            }
        }
        let base = log.end;
        batch.write_to(&mut log.bytes, base, 0);
        log.end += i64::from(batch.records_count());
        (ErrorCode::None, base)
    }

    fn fetch(&mut self, request: &FetchRequest<'_>) -> FetchResponse<'_> {
        let mut partitions = Vec::new();
        for asked in request.topics.iter().flat_map(|t| &t.partitions) {
            let Some(log) = self.logs.get(&asked.partition) else {
                continue;
            };
            let mut rest = &log.bytes[..];
            while let Ok((batch, len)) = Batch::view(rest)
                && batch.last_offset() < asked.fetch_offset
            {
                rest = &rest[len..];
            }
            // A limit that cuts batches, but not the first.
            let first = Batch::view(rest).map_or(0, |(_, len)| len);
            let cut = rest.len().min(first.max(700));
            partitions.push(PartitionData {
                partition_index: asked.partition,
                high_watermark: log.end,
                records: Records::Bytes(rest[..cut].into()),
                ..Default::default()
            });
        }
        FetchResponse {
            responses: vec![FetchableTopicResponse {
                topic_id: TOPIC,
                partitions,
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn offsets(&mut self, request: &ListOffsetsRequest<'_>) -> ListOffsetsResponse<'static> {
        let asked = request.topics.iter().flat_map(|t| &t.partitions);
        let partitions = asked.map(|p| ListOffsetsPartitionResponse {
            partition_index: p.partition_index,
            offset: match p.timestamp {
                -2 => 0,
                _ => self.logs.get(&p.partition_index).map_or(0, |l| l.end),
            },
            ..Default::default()
        });
        ListOffsetsResponse {
            topics: vec![ListOffsetsTopicResponse {
                name: "t".into(),
                partitions: partitions.collect(),
            }],
            ..Default::default()
        }
    }
}

/// Connections between a cluster and the broker: requests wait here and are answered in order, a few at a time.
#[derive(Default)]
struct Wires {
    waiting: BTreeMap<Target, Vec<Vec<u8>>>,
}

impl Wires {
    fn step<T>(&mut self, cluster: &mut Cluster<T>, broker: &mut Broker) {
        for out in cluster.take_out() {
            match out {
                Out::Connect { target, .. } => {
                    self.waiting.insert(target, Vec::new());
                    cluster.on_connected(target);
                }
                Out::Send { target, frame } => {
                    let size = u32::from_be_bytes(frame[..4].try_into().expect("a prefix"));
                    assert_eq!(size as usize + 4, frame.len());
                    if let Some(waiting) = self.waiting.get_mut(&target) {
                        waiting.push(frame[4..].to_vec());
                    }
                }
                Out::Close { target } => {
                    self.waiting.remove(&target);
                }
            }
        }
        let targets: Vec<Target> = self.waiting.keys().copied().collect();
        for target in targets {
            let take = broker.rng.below(4) as usize;
            let waiting = self.waiting.get_mut(&target).expect("just listed");
            let frames: Vec<_> = waiting.drain(..take.min(waiting.len())).collect();
            for frame in frames {
                match broker.answer(&frame) {
                    Some(answer) => cluster.on_frame(target, answer),
                    None => {
                        // What was on its way may still be carried out, without an answer.
                        for later in self.waiting.remove(&target).unwrap_or_default() {
                            broker.answer(&later);
                        }
                        cluster.on_closed(target, "lost");
                        break;
                    }
                }
            }
        }
    }
}

fn cluster<T>() -> Cluster<T> {
    Cluster::new(ClusterConfig {
        bootstrap: vec![("boot".to_string(), 9092)],
        ..Default::default()
    })
}

/// Sends 300 numbered records; gives the broker with what it has, and what the producer was told.
fn produce(seed: u64, trouble: bool, config: ProducerConfig) -> (Broker, Vec<Delivered>) {
    let mut broker = Broker {
        rng: Rng::seeded(seed),
        trouble,
        logs: BTreeMap::new(),
        ids: 0,
    };
    let (mut cluster, mut wires) = (cluster(), Wires::default());
    let mut core = ProducerCore::new(config);
    let topic = core.topic("t", &mut cluster);
    let (mut now, mut sent, mut delivered) = (Instant(0), 0u64, Vec::new());
    for _ in 0..1_000_000 {
        while sent < 300 {
            let value = sent.to_string();
            let message = Message {
                partition: Some((sent % PARTITIONS as u64) as i32),
                value: Some(value.as_bytes()),
                ..Default::default()
            };
            match core.push(topic, &message, &cluster, now) {
                Ok(place) => {
                    assert_eq!(place, ((sent % 3) as i32, sent / 3));
                    sent += 1;
                }
                Err(Refused::Full | Refused::NoMetadata) => break,
                Err(Refused::NoPartition) => panic!("the partition is there"),
            }
            if broker.rng.one_in(20) {
                break;
            }
        }
        if sent == 300 {
            core.flush();
        }
        core.turn(&mut cluster, now);
        cluster.turn(now);
        wires.step(&mut cluster, &mut broker);
        for answer in cluster.take_answers() {
            core.on_answer(answer, &mut cluster, now);
        }
        delivered.extend(core.take_delivered());
        now = now.after_ms(broker.rng.below(30));
        if sent == 300 && core.undecided() == 0 {
            return (broker, delivered);
        }
    }
    panic!("seed {seed}: the producer never finished");
}

fn values(broker: &Broker, partition: i32) -> Vec<u64> {
    let mut rest = &broker.logs[&partition].bytes[..];
    let mut values = Vec::new();
    while let Ok((batch, len)) = Batch::view(rest) {
        for record in &batch.records().expect("readable") {
            let value = record.expect("a record").value.expect("a value").to_vec();
            values.push(
                String::from_utf8(value)
                    .expect("text")
                    .parse()
                    .expect("number"),
            );
        }
        rest = &rest[len..];
    }
    values
}

#[test]
fn idempotent_producers_write_every_record_once_and_in_order_through_lost_connections() {
    for seed in 0..150 {
        let config = ProducerConfig {
            batch_bytes: 200,
            ..Default::default()
        };
        let (broker, delivered) = produce(seed, true, config);
        for partition in 0..PARTITIONS {
            let expected: Vec<u64> = (0..100).map(|i| 3 * i + partition as u64).collect();
            assert_eq!(values(&broker, partition), expected, "seed {seed}");
        }
        let mut told = BTreeMap::new();
        for d in delivered {
            let offset = d.result.expect("delivered");
            for i in 0..d.count {
                let before = told.insert((d.partition, d.first + i), offset + i as i64);
                assert_eq!(before, None, "seed {seed}: told twice");
            }
        }
        assert_eq!(told.len(), 300);
        assert!(
            told.iter()
                .all(|((_, index), offset)| *index as i64 == *offset)
        );
    }
}

#[test]
fn without_idempotence_nothing_is_lost() {
    for seed in 0..50 {
        for acks in [1, -1] {
            let config = ProducerConfig {
                acks,
                idempotence: false,
                batch_bytes: 200,
                ..Default::default()
            };
            let (broker, delivered) = produce(seed, true, config);
            assert_eq!(delivered.iter().map(|d| d.count).sum::<u64>(), 300);
            for partition in 0..PARTITIONS {
                let mut values = values(&broker, partition);
                values.sort_unstable();
                values.dedup();
                assert_eq!(values.len(), 100, "seed {seed}");
            }
        }
    }
}

#[test]
fn acks_zero_is_decided_when_it_is_sent() {
    let config = ProducerConfig {
        acks: 0,
        ..Default::default()
    };
    let (_, delivered) = produce(1, false, config);
    assert_eq!(delivered.iter().map(|d| d.count).sum::<u64>(), 300);
    assert!(delivered.iter().all(|d| d.result == Ok(-1)));
}

#[test]
fn with_acks_zero_the_turn_that_sends_a_record_delivers_it() {
    let mut broker = Broker {
        rng: Rng::seeded(1),
        trouble: false,
        logs: BTreeMap::new(),
        ids: 0,
    };
    let (mut cluster, mut wires) = (cluster(), Wires::default());
    let mut core = ProducerCore::new(ProducerConfig {
        acks: 0,
        ..Default::default()
    });
    let topic = core.topic("t", &mut cluster);
    let now = Instant(0);
    // One round after another until there is a connection to the leader; nothing waits for the clock.
    for _ in 0..1000 {
        let message = Message {
            partition: Some(0),
            value: Some(b"v"),
            ..Default::default()
        };
        if core.push(topic, &message, &cluster, now).is_ok() {
            core.flush();
            core.turn(&mut cluster, now);
            if core.has_delivered() {
                assert_eq!(core.undecided(), 0);
                return;
            }
        }
        cluster.turn(now);
        wires.step(&mut cluster, &mut broker);
    }
    panic!("nothing was delivered by the turn that sent it");
}

#[test]
fn consumers_read_every_record_once_and_in_order_through_lost_connections() {
    let config = ProducerConfig {
        batch_bytes: 200,
        ..Default::default()
    };
    for seed in 0..50 {
        let (mut broker, _) = produce(seed, false, config.clone());
        broker.trouble = true;
        let (mut cluster, mut wires) = (cluster(), Wires::default());
        let mut core = ConsumerCore::new(ConsumerConfig::default());
        for partition in 0..PARTITIONS {
            let start = match partition {
                0 => StartAt::Offset(10),
                _ => StartAt::Beginning,
            };
            core.assign("t", partition, start, &mut cluster);
        }
        let mut read: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
        let mut now = Instant(0);
        for _ in 0..100_000 {
            core.turn(&mut cluster, now);
            cluster.turn(now);
            wires.step(&mut cluster, &mut broker);
            for answer in cluster.take_answers() {
                core.on_answer(answer, &mut cluster, now);
            }
            assert!(core.take_error().is_none());
            while let Some(fetched) = core.take() {
                for batch in fetched.batches() {
                    for record in &batch.records().expect("readable") {
                        let record = record.expect("a record");
                        if record.offset >= fetched.from {
                            read.entry(fetched.partition)
                                .or_default()
                                .push(record.offset);
                        }
                    }
                }
            }
            now = now.after_ms(broker.rng.below(30));
            if read.values().map(Vec::len).sum::<usize>() >= 290 {
                break;
            }
        }
        for partition in 0..PARTITIONS {
            let from = if partition == 0 { 10 } else { 0 };
            let expected: Vec<i64> = (from..100).collect();
            assert_eq!(read[&partition], expected, "seed {seed}");
        }
    }
}

#[test]
fn bootstrap_lists_are_parsed() {
    let parsed = parse_bootstrap("a:1, PLAINTEXT://b:2,[::1]:3").expect("three");
    let expected = [("a", 1), ("b", 2), ("::1", 3)];
    assert!(parsed.iter().map(|(h, p)| (h.as_str(), *p)).eq(expected));
    assert!(parse_bootstrap("a").is_err());
    assert!(parse_bootstrap("").is_err());
    assert!(parse_bootstrap("a:70000").is_err());
    // One of its parts may be the port, or not.
    let bare = parse_bootstrap("2001:db8::1:9092").expect_err("no brackets");
    assert!(bare.contains("[2001:db8::1]:9092"), "{bare}");
}

#[test]
fn an_outage_is_told_once_until_it_is_over() {
    thread_local! {
        static TOLD: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let mut cluster: Cluster<()> = Cluster::new(ClusterConfig {
        bootstrap: vec![("a".to_string(), 1)],
        on_outage: Some(|what| TOLD.with_borrow_mut(|told| told.push(what.to_string()))),
        ..Default::default()
    });
    for attempt in 0..5 {
        cluster.turn(Instant(attempt * 2_000_000));
        let out = cluster.take_out();
        assert!(
            matches!(out[..], [Out::Connect { target: -1, .. }]),
            "attempt {attempt}: {out:?}"
        );
        cluster.on_closed(-1, "refused");
    }
    let told = TOLD.with_borrow(Clone::clone);
    assert_eq!(told, ["no connection to a:1: refused"]);
}
