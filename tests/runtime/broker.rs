//! Starts the broker's binary, and speaks to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use corelane::client::consumer::ConsumerConfig;
use corelane::client::{
    Client, ClusterConfig, Consumer, Message, Producer, ProducerConfig, StartAt,
};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn command(settings: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    command
        .arg("serve")
        .args(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

pub struct Broker {
    child: Child,
    lines: Mutex<mpsc::Receiver<String>>,
    /// Of each shard.
    pub ports: Vec<u16>,
}

impl Broker {
    /// On free ports, with its data in `data`.
    pub fn start(data: &Path, settings: &[&str]) -> Broker {
        let dir = format!("log.dirs={}", data.display());
        let mut all = vec![&*dir, "listeners=PLAINTEXT://127.0.0.1:0"];
        all.extend(settings);
        Broker::spawn(command(&all))
    }

    pub fn spawn(command: Command) -> Broker {
        let mut broker = Broker::launch(command);
        broker.ports = broker.wait_for_ports();
        broker
    }

    /// Does not wait until it serves.
    pub fn launch(mut command: Command) -> Broker {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Broker {
            child,
            lines: Mutex::new(lines),
            ports: Vec::new(),
        }
    }

    /// For a broker that was launched.
    pub fn wait_to_serve(&mut self) {
        self.ports = self.wait_for_ports();
    }

    fn wait_for_ports(&mut self) -> Vec<u16> {
        let line = self.wait_for_line(" serves: ");
        let (_, ports) = line.split_once("PLAINTEXT://127.0.0.1:").unwrap();
        let (ports, _) = ports.split_once(';').unwrap();
        ports.split(',').map(|p| p.parse().unwrap()).collect()
    }

    pub fn wait_for_line(&mut self, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.get_mut().unwrap().recv_timeout(left) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with '{part}' in:\n{}", seen.join("\n")),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = match name {
            "TERM" => rustix::process::Signal::TERM,
            "INT" => rustix::process::Signal::INT,
            other => panic!("{other}"),
        };
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the broker does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGTERM, and the clean end that must follow.
    pub fn stop(mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert!(status.success(), "{status}: {:?}", self.said());
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What it has said since it was last asked.
    pub fn said(&mut self) -> Vec<String> {
        self.lines.get_mut().unwrap().try_iter().collect()
    }

    pub fn connect(&self, shard: usize) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[shard])).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    pub fn cluster(&self) -> ClusterConfig {
        ClusterConfig {
            bootstrap: vec![("127.0.0.1".into(), self.ports[0])],
            ..ClusterConfig::default()
        }
    }

    pub fn create_topic(&self, name: &str, partitions: i32) {
        let mut client = Client::new(self.cluster());
        let topic = corelane::client::admin::NewTopic {
            name: name.into(),
            partitions,
            replication_factor: 1,
            ..Default::default()
        };
        let created = client.create_topics(&[topic], false).unwrap();
        assert!(created.iter().all(Result::is_ok), "{created:?}");
    }

    /// Sends records `[from..to)`, record n to partition n modulo `partitions`, `bytes` each; all must be acknowledged.
    pub fn produce(
        &self,
        topic: &str,
        partitions: i32,
        numbers: std::ops::Range<u64>,
        bytes: usize,
    ) {
        let mut producer = Producer::new(self.cluster(), ProducerConfig::default());
        let handle = producer.topic(topic);
        let mut delivered = Vec::new();
        let count = numbers.end - numbers.start;
        for number in numbers {
            let value = value(number, bytes);
            let message = Message {
                partition: Some((number % partitions as u64) as i32),
                timestamp: 1,
                key: None,
                value: Some(&value),
                headers: &[],
            };
            producer.send(handle, &message).unwrap();
            delivered.extend(producer.poll(producer.now()));
        }
        delivered.extend(producer.finish());
        for part in &delivered {
            part.result.as_ref().unwrap();
        }
        assert_eq!(delivered.iter().map(|d| d.count).sum::<u64>(), count);
    }

    /// The numbers of all records of a partition, each checked to be as it was sent.
    pub fn consume(&self, topic: &str, partition: i32, count: usize) -> Vec<u64> {
        let mut consumer = Consumer::new(self.cluster(), ConsumerConfig::default());
        consumer.assign(topic, partition, StartAt::Beginning);
        let deadline = consumer.now().after_ms(PATIENCE.as_millis() as u64);
        let mut numbers = Vec::new();
        while numbers.len() < count {
            let fetched = consumer.poll(deadline).unwrap().unwrap_or_else(|| {
                panic!("{} of {count}: {:?}", numbers.len(), consumer.last_error())
            });
            for batch in fetched.batches() {
                for record in &batch.records().unwrap() {
                    let bytes = record.unwrap().value.unwrap();
                    let number = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                    assert_eq!(bytes, value(number, bytes.len()));
                    numbers.push(number);
                }
            }
        }
        numbers
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that no compression or zeroed block could look like.
pub fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while value.len() < bytes {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        value.extend_from_slice(&x.to_be_bytes());
    }
    value.truncate(bytes.max(8));
    value
}

fn request(api: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut frame = (10 + body.len() as i32).to_be_bytes().to_vec();
    frame.extend_from_slice(&api.to_be_bytes());
    frame.extend_from_slice(&version.to_be_bytes());
    frame.extend_from_slice(&correlation.to_be_bytes());
    frame.extend_from_slice(&(-1i16).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// ApiVersions, version 0.
pub fn api_versions(correlation: i32) -> Vec<u8> {
    request(18, 0, correlation, &[])
}

/// Metadata of all topics, version 1.
pub fn metadata(correlation: i32) -> Vec<u8> {
    request(3, 1, correlation, &(-1i32).to_be_bytes())
}

/// Produce of a batch to one partition with acks=all, version 3.
pub fn produce(correlation: i32, topic: &str, partition: i32, batch: &[u8]) -> Vec<u8> {
    let mut body = (-1i16).to_be_bytes().to_vec();
    body.extend_from_slice(&(-1i16).to_be_bytes());
    body.extend_from_slice(&30_000i32.to_be_bytes());
    body.extend_from_slice(&1i32.to_be_bytes());
    body.extend_from_slice(&(topic.len() as i16).to_be_bytes());
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(&1i32.to_be_bytes());
    body.extend_from_slice(&partition.to_be_bytes());
    body.extend_from_slice(&(batch.len() as i32).to_be_bytes());
    body.extend_from_slice(batch);
    request(0, 3, correlation, &body)
}

/// The error code and the base offset in the answer to [`produce`].
pub fn produced(body: &[u8], topic: &str) -> (i16, i64) {
    let told = &body[4 + 2 + topic.len() + 4 + 4..];
    let error = i16::from_be_bytes(told[..2].try_into().unwrap());
    (error, i64::from_be_bytes(told[2..10].try_into().unwrap()))
}

/// ListOffsets of the ends of all partitions of a topic, version 1.
pub fn list_ends(correlation: i32, topic: &str, partitions: i32) -> Vec<u8> {
    let mut body = (-1i32).to_be_bytes().to_vec();
    body.extend_from_slice(&1i32.to_be_bytes());
    body.extend_from_slice(&(topic.len() as i16).to_be_bytes());
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(&partitions.to_be_bytes());
    for partition in 0..partitions {
        body.extend_from_slice(&partition.to_be_bytes());
        body.extend_from_slice(&(-1i64).to_be_bytes());
    }
    request(2, 1, correlation, &body)
}

/// The error code and the end of each partition in the answer to [`list_ends`].
pub fn listed(body: &[u8], topic: &str) -> Vec<(i16, i64)> {
    let partitions = &body[4 + 2 + topic.len() + 4..];
    let (rows, rest) = partitions.as_chunks::<22>();
    assert!(rest.is_empty());
    let row = |row: &[u8; 22]| {
        let error = i16::from_be_bytes(row[4..6].try_into().unwrap());
        (error, i64::from_be_bytes(row[14..].try_into().unwrap()))
    };
    rows.iter().map(row).collect()
}

/// One answer: its correlation id and what follows it.
pub fn answer(stream: &mut TcpStream) -> (i32, Vec<u8>) {
    try_answer(stream).unwrap()
}

fn try_answer(stream: &mut TcpStream) -> std::io::Result<(i32, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let size = i32::from_be_bytes(head[..4].try_into().unwrap());
    let mut body = vec![0; size as usize - 4];
    stream.read_exact(&mut body)?;
    Ok((i32::from_be_bytes(head[4..].try_into().unwrap()), body))
}

pub fn try_ask(stream: &mut TcpStream, request: &[u8]) -> std::io::Result<(i32, Vec<u8>)> {
    stream.write_all(request)?;
    try_answer(stream)
}

pub fn ask(stream: &mut TcpStream, request: &[u8]) -> (i32, Vec<u8>) {
    stream.write_all(request).unwrap();
    answer(stream)
}

/// A fresh folder on a real disk: below the build directory unless `CORELANE_TEST_DIR` says otherwise; removed at its end.
pub struct TestDir(pub PathBuf);

impl TestDir {
    pub fn new(name: &str) -> TestDir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var_os("CORELANE_TEST_DIR")
            .map(PathBuf::from)
            .unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("runtime-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        TestDir(dir)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// CPU time of a process, user and system.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in parentheses may hold anything; utime and stime are the 14th and 15th field.
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // USER_HZ is 100 on every Linux that is not Alpha.
    Duration::from_millis(ticks * 10)
}

/// Times that a thread of the process gave up its core by itself, by thread.
pub fn voluntary_switches(pid: u32) -> u64 {
    let mut switches = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        switches += line.unwrap().trim().parse::<u64>().unwrap();
    }
    switches
}

pub fn resident_bytes(pid: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
