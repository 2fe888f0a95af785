//! The yardstick of producing: what the kernel and the disk alone ask for, with nothing of Kafka's semantics behind it. One thread, one ring:
//! read frames, find the batch, check its CRC, walk its records, copy it into the journal's buffer; whenever no journal write is in flight, one
//! direct write of all that has gathered, with its flush, to a file whose blocks are written already; then the answers, one send a connection.
//! No logs, no index, no groups of partitions, no sequences, nothing kept: the broker's own work is what it costs more than this.
//!
//! It speaks just enough for the load generator: ApiVersions, Metadata (every topic exists), ListOffsets, Produce.
//!
//! ```text
//! cargo bench --bench bare_produce -- [--port 9092] [--partitions 64] [--dir DIR] [--cpu 0] [--seconds 3600] [--no-flush]
//! taskset -c 1 corelane perf produce --bootstrap-server 127.0.0.1:9092 --topic any --partitions 64 --connections 64 --records-per-batch 1
//! ```
//!
//! DIR must be on the disk that is to be measured; the file there is removed at once. Ends after `--seconds` and prints one JSON object:
//! requests, bytes, journal writes, and the CPU seconds of its thread.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use bytes::Bytes;
use corelane::batch::{Codecs, first_batch};
use corelane::disk::{self, Disk, blocking};
use corelane::log::{Block, DiskOp, FileId, MemSpan, OpId};
use corelane::model::{ConnId, Instant, NodeId};
use corelane::net::{self, Net};
use corelane::node::ring::{Ring, Waker};
use corelane::shard::{Chunk, Event};
use corelane::wire::msg::api_versions_response::{ApiVersion, ApiVersionsResponse};
use corelane::wire::msg::list_offsets_request::ListOffsetsRequest;
use corelane::wire::msg::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use corelane::wire::msg::metadata_request::MetadataRequest;
use corelane::wire::msg::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use corelane::wire::msg::produce_request::ProduceRequest;
use corelane::wire::msg::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use corelane::wire::{ApiKey, Reader, RequestHeader, Writer, write_response_header};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The journal: written round and round.
const FILE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 1 << 20;
const FILE: FileId = FileId(0);

/// What it speaks, by name where a newer version has ids.
const VERSIONS: [(ApiKey, i16, i16); 4] = [
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::Metadata, 0, 9),
    (ApiKey::ListOffsets, 1, 6),
    (ApiKey::Produce, 3, 9),
];

struct Options {
    port: u16,
    partitions: i32,
    dir: PathBuf,
    cpu: usize,
    seconds: f64,
    flush: bool,
}

fn main() {
    let options = options();
    let mut cpus = CpuSet::new();
    cpus.set(options.cpu);
    sched_setaffinity(None, &cpus).expect("a CPU that this process may use");
    let address = ([127, 0, 0, 1], options.port).into();
    let listener = net::bind(address).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    println!("listening on 127.0.0.1:{port}");
    let mut bare = Bare::new(&options, port);
    bare.net.listen(listener);
    let cpu = thread_cpu();
    let start = Clock::now();
    while start.elapsed().as_secs_f64() < options.seconds {
        bare.turn(start.elapsed());
    }
    println!(
        "{{\"requests\":{},\"bytes\":{},\"writes\":{},\"cpu_s\":{:.3}}}",
        bare.requests,
        bare.bytes,
        bare.writes,
        thread_cpu() - cpu
    );
}

fn options() -> Options {
    let mut options = Options {
        port: 9092,
        partitions: 64,
        dir: std::env::temp_dir(),
        cpu: 0,
        seconds: 3600.0,
        flush: true,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} has a value"));
        match arg.as_str() {
            "--port" => options.port = value().parse().expect("a port"),
            "--partitions" => options.partitions = value().parse().expect("a count"),
            "--dir" => options.dir = value().into(),
            "--cpu" => options.cpu = value().parse().expect("a CPU"),
            "--seconds" => options.seconds = value().parse().expect("seconds"),
            "--no-flush" => options.flush = false,
            // What `cargo bench` says to every bench.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}

fn thread_cpu() -> f64 {
    let at = clock_gettime(ClockId::ThreadCPUTime);
    at.tv_sec as f64 + at.tv_nsec as f64 / 1e9
}

/// What one write takes, and who is answered after it.
#[derive(Default)]
struct Frame {
    blocks: Vec<Rc<Block>>,
    answers: Vec<(ConnId, Bytes)>,
}

struct Bare {
    ring: Ring,
    net: Net,
    disk: Disk,
    events: VecDeque<Event>,
    codecs: Codecs,
    port: u16,
    partitions: i32,
    flush: bool,
    /// Next offset of each partition of each topic.
    ends: BTreeMap<(String, i32), i64>,
    /// What has gathered for the next write.
    gathered: Frame,
    writing: Option<Frame>,
    free: Vec<Rc<Block>>,
    at: u64,
    requests: u64,
    bytes: u64,
    writes: u64,
}

impl Bare {
    fn new(options: &Options, port: u16) -> Bare {
        let name = format!("bare-produce-{}", std::process::id());
        let open = |create| DiskOp::Open {
            file: FILE,
            path: name.clone(),
            create,
            allocate: FILE_BYTES,
        };
        // Zeroes first: later writes go to written blocks, as a journal's do.
        let mut zeroes = blocking::Disk::new(&options.dir);
        zeroes.run(open(true)).expect("a file in --dir");
        let block = Block::new(BLOCK_BYTES);
        block.append(&vec![0; BLOCK_BYTES]);
        for at in (0..FILE_BYTES).step_by(BLOCK_BYTES) {
            let write = DiskOp::Write {
                file: FILE,
                at,
                data: vec![MemSpan::new(&block, 0, BLOCK_BYTES)],
                sync: at + BLOCK_BYTES as u64 == FILE_BYTES,
            };
            zeroes.run(write).expect("64 MiB fit into --dir");
        }
        let waker = Waker::new().expect("an eventfd");
        let mut bare = Bare {
            ring: Ring::new(waker.clone()).expect("io_uring"),
            net: Net::new(10_000),
            disk: Disk::new(&options.dir, move || waker.wake()).expect("threads"),
            events: VecDeque::new(),
            codecs: Codecs::default(),
            port,
            partitions: options.partitions,
            flush: options.flush,
            ends: BTreeMap::new(),
            gathered: Frame::default(),
            writing: None,
            free: Vec::new(),
            at: 0,
            requests: 0,
            bytes: 0,
            writes: 0,
        };
        bare.disk.submit(OpId(0), open(false), &mut bare.events);
        while bare.disk.cached(FILE).is_none() {
            bare.ring
                .wait(Some(Duration::from_millis(10)))
                .expect("a ring");
            bare.ring.reap(|_| ()).expect("a ring");
            bare.disk.drain(&mut bare.events);
        }
        bare.events.clear();
        std::fs::remove_file(options.dir.join(name)).expect("it was just made");
        bare
    }

    /// As the broker's loop: what came, what follows from it, one system call for both.
    fn turn(&mut self, now: Duration) {
        let (net, disk, events) = (&mut self.net, &mut self.disk, &mut self.events);
        let reaped = self.ring.reap(|done| {
            if done.user_data & disk::USER_DATA_BIT != 0 {
                disk.completed(done.user_data, done.result, events);
            } else {
                net.completed(done.user_data, done.result, done.flags);
            }
        });
        reaped.expect("a ring");
        net.receive(Instant(now.as_micros() as u64), events);
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Frame { conn, frame } => self.request(conn, &frame),
                Event::HalfClosed { conn } => self.net.close(conn),
                Event::Disk { result, .. } => {
                    result.expect("a disk that writes");
                    self.written();
                }
                _ => {}
            }
        }
        self.write();
        self.net.flush(&mut self.events);
        self.ring.push(&mut self.net.sqes).expect("a ring");
        self.ring.push(&mut self.disk.sqes).expect("a ring");
        if self.net.has_work() || self.ring.has_completions() {
            self.ring.submit().expect("a ring");
        } else {
            let most = Some(Duration::from_millis(100));
            self.ring.wait(most).expect("a ring");
        }
    }

    fn request(&mut self, conn: ConnId, frame: &[u8]) {
        let mut r = Reader::new(frame);
        let header = RequestHeader::decode(&mut r).expect("a request");
        let version = header.api_version;
        let spoken = VERSIONS.iter().find(|(key, min, max)| {
            key.code() == header.api_key && (*min..=*max).contains(&version)
        });
        let mut w = Writer::new();
        let start = w.begin_frame();
        let Some((key, ..)) = spoken else {
            assert_eq!(
                header.api_key,
                ApiKey::ApiVersions.code(),
                "nothing else is spoken"
            );
            // UNSUPPORTED_VERSION, in version 0: the client asks again.
            write_response_header(&mut w, ApiKey::ApiVersions, 0, header.correlation_id);
            versions(35).encode(&mut w, 0);
            w.end_frame(start);
            return self.send(conn, w.into_bytes().into());
        };
        write_response_header(&mut w, *key, version, header.correlation_id);
        match key {
            ApiKey::ApiVersions => versions(0).encode(&mut w, version),
            ApiKey::Metadata => {
                let request = MetadataRequest::decode(&mut r, version).expect("a request");
                self.metadata(&request).encode(&mut w, version);
            }
            ApiKey::ListOffsets => {
                let request = ListOffsetsRequest::decode(&mut r, version).expect("a request");
                self.list_offsets(&request).encode(&mut w, version);
            }
            _ => {
                let request = ProduceRequest::decode(&mut r, version).expect("a request");
                self.requests += 1;
                self.produce(&request).encode(&mut w, version);
                w.end_frame(start);
                // After the write that takes its bytes.
                return self.gathered.answers.push((conn, w.into_bytes().into()));
            }
        }
        w.end_frame(start);
        self.send(conn, w.into_bytes().into());
    }

    fn send(&mut self, conn: ConnId, answer: Bytes) {
        self.net.send(conn, Chunk::Bytes(answer), |_| None);
    }

    fn metadata(&self, request: &MetadataRequest<'_>) -> MetadataResponse<'static> {
        let partitions = (0..self.partitions).map(|partition_index| MetadataResponsePartition {
            partition_index,
            leader_id: 0,
            replica_nodes: vec![0],
            isr_nodes: vec![0],
            ..Default::default()
        });
        let topics = request.topics.iter().flatten().map(|topic| {
            let name = topic.name.as_deref().unwrap_or_default();
            MetadataResponseTopic {
                name: Some(name.to_string().into()),
                partitions: partitions.clone().collect(),
                ..Default::default()
            }
        });
        MetadataResponse {
            brokers: vec![MetadataResponseBroker {
                node_id: NodeId(0).0,
                host: "127.0.0.1".into(),
                port: i32::from(self.port),
                rack: None,
            }],
            topics: topics.collect(),
            ..Default::default()
        }
    }

    fn list_offsets(&self, request: &ListOffsetsRequest<'_>) -> ListOffsetsResponse<'static> {
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| {
                let end = self
                    .ends
                    .get(&(topic.name.to_string(), asked.partition_index));
                ListOffsetsPartitionResponse {
                    partition_index: asked.partition_index,
                    // -2 asks for the first.
                    offset: if asked.timestamp == -2 {
                        0
                    } else {
                        end.copied().unwrap_or(0)
                    },
                    ..Default::default()
                }
            });
            ListOffsetsTopicResponse {
                name: topic.name.to_string().into(),
                partitions: partitions.collect(),
            }
        });
        ListOffsetsResponse {
            topics: topics.collect(),
            ..Default::default()
        }
    }

    fn produce(&mut self, request: &ProduceRequest<'_>) -> ProduceResponse<'static> {
        let mut responses = Vec::with_capacity(request.topic_data.len());
        for topic in &request.topic_data {
            let mut partition_responses = Vec::with_capacity(topic.partition_data.len());
            for part in &topic.partition_data {
                let bytes = part.records.as_bytes();
                let batch = first_batch(bytes).expect("a batch");
                assert!(batch.crc_is_right(), "a right checksum");
                let records = batch.records_with(&mut self.codecs).expect("records");
                let mut count = 0;
                for record in &records {
                    record.expect("a record");
                    count += 1;
                }
                assert_eq!(count, batch.records_count());
                let end = self
                    .ends
                    .entry((topic.name.to_string(), part.index))
                    .or_default();
                partition_responses.push(PartitionProduceResponse {
                    index: part.index,
                    base_offset: *end,
                    ..Default::default()
                });
                *end += i64::from(count);
                self.bytes += bytes.len() as u64;
                self.append(bytes);
            }
            responses.push(TopicProduceResponse {
                name: topic.name.to_string().into(),
                partition_responses,
                ..Default::default()
            });
        }
        ProduceResponse {
            responses,
            ..Default::default()
        }
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self
                .gathered
                .blocks
                .last()
                .is_none_or(|block| block.room() == 0)
            {
                let free = self.free.pop();
                self.gathered
                    .blocks
                    .push(free.unwrap_or_else(|| Block::new(BLOCK_BYTES)));
            }
            let block = self.gathered.blocks.last().expect("just made");
            let (now, rest) = bytes.split_at(bytes.len().min(block.room()));
            block.append(now);
            bytes = rest;
        }
    }

    fn write(&mut self) {
        if self.writing.is_some() || self.gathered.blocks.is_empty() {
            return;
        }
        let frame = std::mem::take(&mut self.gathered);
        let blocks = &frame.blocks;
        let data: Vec<MemSpan> = blocks
            .iter()
            .map(|block| MemSpan::new(block, 0, block.len()))
            .collect();
        blocks.last().expect("not empty").clear_padding();
        let bytes = (blocks.len() * BLOCK_BYTES) as u64;
        assert!(
            bytes <= FILE_BYTES,
            "the load generator bounds what is in flight"
        );
        if self.at + bytes > FILE_BYTES {
            self.at = 0;
        }
        let write = DiskOp::Write {
            file: FILE,
            at: self.at,
            data,
            sync: self.flush,
        };
        let used: usize = blocks.iter().map(|block| block.len()).sum();
        self.at += used.next_multiple_of(4096) as u64;
        self.writes += 1;
        self.disk.submit(OpId(self.writes), write, &mut self.events);
        self.writing = Some(frame);
    }

    fn written(&mut self) {
        let Frame { blocks, answers } = self.writing.take().expect("a write was in flight");
        self.free
            .extend(blocks.into_iter().filter_map(Block::recycle));
        for (conn, answer) in answers {
            self.send(conn, answer);
        }
    }
}

fn versions(error_code: i16) -> ApiVersionsResponse<'static> {
    let keys = VERSIONS.iter().map(|(key, min, max)| ApiVersion {
        api_key: key.code(),
        min_version: *min,
        max_version: *max,
    });
    ApiVersionsResponse {
        error_code,
        api_keys: keys.collect(),
        ..Default::default()
    }
}
