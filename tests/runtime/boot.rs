//! What ends a start, and what ends a process.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use corelane::client::admin::NewTopic;
use corelane::client::{Client, Delivered, Message, Producer, ProducerConfig, StartAt};
use socket2::{Domain, Socket, Type};

use crate::broker::{
    Broker, PATIENCE, TestDir, api_versions, ask, command, list_ends, listed, metadata, try_ask,
};

/// Starts a broker that must refuse: exit code 1 and one line, which is given.
fn refused(mut command: Command) -> String {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| !l.contains(" WARN ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].starts_with("corelane: "), "{said}");
    lines[0].to_string()
}

fn refuses(settings: &[&str], parts: &[&str]) {
    let line = refused(command(settings));
    for part in parts {
        assert!(line.contains(part), "'{part}' is not in: {line}");
    }
}

fn in_dir(dir: &TestDir) -> String {
    format!("log.dirs={}", dir.0.display())
}

#[test]
fn a_wrong_setting_is_one_line_that_says_what_to_write() {
    let dir = TestDir::new("setting");
    let dir = in_dir(&dir);
    refuses(&[&dir, "shards=0"], &["shards=0", "allowed is"]);
    refuses(
        &[&dir, "num.partition=3"],
        &["did you mean 'num.partitions'?"],
    );
    refuses(
        &[&dir, "listeners=PLAINTEXT:9092"],
        &["listeners", "NAME://host:port"],
    );
    refuses(&[&dir, "=3"], &["'=3' has no key", "KEY=VALUE"]);
    refuses(
        &["log.dirs=/proc/nowhere"],
        &["/proc/nowhere", "set log.dirs"],
    );
}

#[test]
fn a_port_in_use_is_named_with_a_range_to_take_instead() {
    let dir = TestDir::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    refuses(
        &[
            &in_dir(&dir),
            &format!("listeners=PLAINTEXT://127.0.0.1:{port}"),
            "shards=1",
        ],
        &[
            &format!("port {port} of 127.0.0.1 is in use"),
            "listeners=PLAINTEXT://127.0.0.1:",
        ],
    );
}

#[test]
fn a_directory_in_use_of_a_newer_format_or_of_another_process_is_refused() {
    let dir = TestDir::new("dir");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    let settings = [
        &in_dir(&dir),
        "listeners=PLAINTEXT://127.0.0.1:0",
        "shards=1",
    ];
    refuses(&settings, &["is in use by another process", "log.dirs"]);
    broker.stop();

    let other = [&settings[..], &["node.id=7"]].concat();
    refuses(&other, &["belongs to node.id=0, not 7", "set node.id=0"]);

    let file = dir.0.join("meta.properties");
    let text = std::fs::read_to_string(&file).unwrap();
    let newer = text.replace("corelane.format=1", "corelane.format=2");
    assert_ne!(text, newer);
    std::fs::write(&file, newer).unwrap();
    refuses(&settings, &["newer format", "start the newer Corelane"]);

    let of_kafka = text.replace("corelane.format=1\n", "");
    std::fs::write(&file, of_kafka).unwrap();
    refuses(&settings, &["written by Apache Kafka"]);

    std::fs::write(&file, [0xff, 0, 1, 2]).unwrap();
    refuses(&settings, &["meta.properties", "is damaged", "backup"]);

    std::fs::write(&file, text).unwrap();
    Broker::start(&dir.0, &["shards=1"]).stop();
}

#[test]
fn too_small_limits_are_said_before_anything_starts() {
    for (limit, parts) in [
        ("-n 100", ["open files", "ulimit -n"]),
        ("-l 64", ["locked memory", "ulimit -l"]),
        ("-f 100000", ["file size", "ulimit -f"]),
    ] {
        let line = refused(limited(limit));
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
}

/// Where the data is in memory, the line that says what started does not promise anything.
#[test]
fn a_data_directory_in_memory_is_told() {
    let shm = std::path::Path::new("/dev/shm");
    let kind = rustix::fs::statfs(shm).map(|stat| stat.f_type as u64);
    assert_eq!(kind, Ok(0x0102_1994), "/dev/shm is a tmpfs");
    let dir = TestDir(shm.join(format!("corelane-boot-{}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    let settings = [
        &in_dir(&dir),
        "listeners=PLAINTEXT://127.0.0.1:0",
        "shards=1",
    ];
    let mut broker = Broker::launch(command(&settings));
    let line = broker.wait_for_line(" serves: ");
    assert!(line.contains("(tmpfs); NOTHING IS DURABLE"), "{line}");
    broker.kill();
}

/// Shards of a segment that outgrows a limit refuse, and serve what is there.
#[test]
fn a_file_size_limit_that_a_topic_outgrows_ends_nothing() {
    let dir = TestDir::new("fsize");
    let settings = [
        in_dir(&dir),
        "listeners=PLAINTEXT://127.0.0.1:0".to_string(),
        "shards=1".to_string(),
        "log.segment.bytes=1048576".to_string(),
    ];
    let mut limited = Command::new("sh");
    // 100 MiB: enough for what the settings say.
    limited
        .args(["-c", "ulimit -f 204800; exec \"$0\" \"$@\""])
        .args([env!("CARGO_BIN_EXE_corelane"), "serve"])
        .args(settings)
        .stderr(Stdio::piped());
    let broker = Broker::spawn(limited);
    let mut client = Client::new(broker.cluster());
    let topic = NewTopic {
        name: "large".into(),
        partitions: 1,
        replication_factor: 1,
        configs: vec![("segment.bytes".into(), "1073741824".into())],
        ..NewTopic::default()
    };
    let made = client.create_topics(&[topic], false).unwrap();
    assert!(made[0].is_ok(), "{made:?}");
    let config = ProducerConfig {
        delivery_timeout_ms: 2_000,
        ..ProducerConfig::default()
    };
    let mut producer = Producer::new(broker.cluster(), config);
    let handle = producer.topic("large");
    let value = vec![7u8; 512 * 1024];
    let message = Message {
        partition: Some(0),
        timestamp: 1,
        key: None,
        value: Some(&value),
        headers: &[],
    };
    let mut told = Vec::new();
    for _ in 0..240 {
        producer.send(handle, &message).unwrap();
        told.extend(producer.poll(producer.now()));
    }
    told.extend(producer.finish());
    let (taken, refused): (Vec<_>, Vec<_>) = told.iter().partition(|part| part.result.is_ok());
    let count = |parts: &[&Delivered]| parts.iter().map(|part| part.count).sum::<u64>();
    let (taken, refused) = (count(&taken), count(&refused));
    assert!(
        taken > 100 && refused > 0,
        "{taken} taken, {refused} refused"
    );
    let ends = client.list_offsets("large", StartAt::End).unwrap();
    assert!(ends[0].1 >= taken as i64, "{ends:?}");
    broker.stop();
}

fn limited(limit: &str) -> Command {
    let dir = TestDir::new("limits");
    let mut limited = Command::new("sh");
    limited
        .args([
            "-c",
            &format!("ulimit {limit}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_corelane"),
            "serve",
        ])
        .args([&in_dir(&dir), "listeners=PLAINTEXT://127.0.0.1:0"]);
    limited
}

#[test]
fn sigterm_and_sigint_end_it_within_five_seconds_whatever_clients_do() {
    for signal in ["TERM", "INT"] {
        let dir = TestDir::new("signal");
        let mut broker = Broker::start(&dir.0, &["shards=2"]);
        broker.create_topic("t", 4);
        broker.produce("t", 4, 0..1000, 100);
        // One idle, one in the middle of a frame, one that never reads.
        let mut idle = broker.connect(0);
        ask(&mut idle, &api_versions(1));
        let mut half = broker.connect(1);
        std::io::Write::write_all(&mut half, &metadata(2)[..7]).unwrap();
        let mut stuck = broker.connect(1);
        for number in 0..50 {
            std::io::Write::write_all(&mut stuck, &metadata(number)).unwrap();
        }
        broker.signal(signal);
        let since = Instant::now();
        let status = broker.wait();
        assert!(status.success(), "{signal}: {status}, {:?}", broker.said());
        assert!(since.elapsed() < Duration::from_secs(5));
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "the connection is closed");
    }
}

/// `timeout 5 corelane serve` sends it to the process and to its group.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    // A machine so busy that the second comes late sees two.
    let is_clean = |number: u32| {
        let dir = TestDir::new(&format!("twice-{number}"));
        let mut broker = Broker::start(&dir.0, &["shards=2"]);
        broker.signal("TERM");
        broker.wait_for_line("stopping");
        broker.signal("TERM");
        broker.wait().success()
    };
    assert!((0..5).any(is_clean));
}

#[test]
fn a_cluster_keeps_its_name_and_its_topics_over_restarts() {
    let dir = TestDir::new("restart");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("kept", 3);
    let properties = std::fs::read_to_string(dir.0.join("meta.properties")).unwrap();
    broker.kill();
    let broker = Broker::start(&dir.0, &["shards=1"]);
    let mut client = corelane::client::Client::new(broker.cluster());
    let seen = client.metadata(None).unwrap();
    assert_eq!(seen.topics["kept"].partitions.len(), 3);
    assert_eq!(
        std::fs::read_to_string(dir.0.join("meta.properties")).unwrap(),
        properties
    );
    broker.stop();
}

/// Kafka's broker epoch is the metadata offset of the registration: the records are
/// `cluster, process | topic, 3 partitions | process`.
#[test]
fn a_clean_stop_notes_the_epoch_of_the_registration() {
    let dir = TestDir::new("epoch");
    let noted = || std::fs::read_to_string(dir.0.join(".kafka_cleanshutdown")).unwrap();
    let broker = Broker::start(&dir.0, &["shards=2"]);
    broker.create_topic("t", 3);
    broker.stop();
    assert_eq!(noted(), r#"{"version":0,"brokerEpoch":1}"#);
    Broker::start(&dir.0, &["shards=2"]).stop();
    assert_eq!(noted(), r#"{"version":0,"brokerEpoch":6}"#);
}

/// Whoever reaches a restarted broker is served: it never says that a partition it leads has no leader, neither to those who come as
/// soon as the port is open nor to those who wait for its line.
#[test]
fn a_restarted_broker_serves_its_partitions_from_the_first_answer_on() {
    const PARTITIONS: i32 = 200;
    let dir = TestDir::new("serves");
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let settings = [
        &in_dir(&dir),
        &format!("listeners=PLAINTEXT://{address}"),
        "shards=1",
    ];
    let broker = Broker::spawn(command(&settings));
    broker.create_topic("t", PARTITIONS);
    broker.produce("t", PARTITIONS, 0..PARTITIONS as u64, 100);
    broker.kill();
    let mut broker = Broker::launch(command(&settings));
    let deadline = Instant::now() + PATIENCE;
    let (mut told, mut lost) = (None, None);
    while told.is_none() {
        // The kernel keeps the listener of a killed process for a moment, and then resets who came to it.
        assert!(Instant::now() < deadline, "{lost:?}");
        match ask_early(address, &list_ends(1, "t", PARTITIONS)) {
            Ok((_, body)) => told = Some(listed(&body, "t")),
            Err(error) => lost = Some(error),
        }
    }
    let serves = vec![(0, 1); PARTITIONS as usize];
    assert_eq!(told.unwrap(), serves);
    broker.wait_for_line(" serves: ");
    broker.kill();
    let broker = Broker::spawn(command(&settings));
    let (_, body) = ask(&mut broker.connect(0), &list_ends(2, "t", PARTITIONS));
    assert_eq!(listed(&body, "t"), serves);
    broker.stop();
}

/// From another address: a socket that connects to its own port, where nobody listens yet, would find itself.
fn ask_early(to: SocketAddr, request: &[u8]) -> std::io::Result<(i32, Vec<u8>)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let from: SocketAddr = "127.0.0.2:0".parse().unwrap();
    socket.bind(&from.into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(&to.into())?;
    try_ask(&mut TcpStream::from(socket), request)
}
