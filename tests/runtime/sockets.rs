//! Connections of a running broker.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::broker::{
    Broker, PATIENCE, TestDir, answer, api_versions, ask, list_ends, listed, metadata, produce,
    produced, resident_bytes, try_ask,
};

#[test]
fn frames_in_any_pieces_are_answered() {
    let dir = TestDir::new("pieces");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    let mut stream = broker.connect(0);
    let whole = ask(&mut stream, &metadata(7)).1;
    for size in [1, 2, 3, 5, 13] {
        for piece in metadata(7).chunks(size) {
            stream.write_all(piece).unwrap();
        }
        assert_eq!(answer(&mut stream), (7, whole.clone()));
    }
    // And several in one piece, with the beginning of the next.
    let mut many: Vec<u8> = (0..10).flat_map(metadata).collect();
    many.extend_from_slice(&metadata(10)[..6]);
    stream.write_all(&many).unwrap();
    for number in 0..10 {
        assert_eq!(answer(&mut stream), (number, whole.clone()));
    }
    stream.write_all(&metadata(10)[6..]).unwrap();
    assert_eq!(answer(&mut stream), (10, whole));
    broker.stop();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let dir = TestDir::new("pipeline");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 100);
    let mut stream = broker.connect(0);
    // More than the slots of a connection: the rest waits in the socket.
    let count = 500;
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for number in 0..count {
            let request = match number % 3 {
                0 => metadata(number),
                _ => api_versions(number),
            };
            sender.write_all(&request).unwrap();
        }
    });
    for number in 0..count {
        assert_eq!(answer(&mut stream).0, number);
    }
    sending.join().unwrap();
    broker.stop();
}

#[test]
fn a_reader_that_never_reads_is_bounded_and_stalls_nobody() {
    let dir = TestDir::new("stuck");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    broker.create_topic("t", 1000);
    let mut other = broker.connect(0);
    let answer_bytes = ask(&mut other, &metadata(0)).1.len();
    assert!(answer_bytes > 20_000, "{answer_bytes}");
    let before = resident_bytes(broker.pid());

    let mut stuck = broker.connect(0);
    stuck
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut asked = 0;
    let many: Vec<u8> = (0..1000).flat_map(metadata).collect();
    let refused = loop {
        match stuck.write(&many) {
            Ok(sent) => asked += sent,
            Err(error) => break error,
        }
        assert!(asked < 1 << 30, "the broker reads without end");
    };
    assert!(matches!(
        refused.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    // Kafka would hold one answer; the bound here is limit::CONN_REPLY_BYTES_MAX and one answer, with what an allocator wastes.
    let held = resident_bytes(broker.pid()).saturating_sub(before);
    let bound = corelane::model::limit::CONN_REPLY_BYTES_MAX + answer_bytes;
    assert!(held < 2 * bound, "{held} bytes for one reader");
    for number in 0..100 {
        let since = Instant::now();
        assert_eq!(ask(&mut other, &metadata(number)).0, number);
        assert!(since.elapsed() < Duration::from_secs(1));
    }
    // When it reads at last, everything comes, in order.
    for number in 0..500 {
        assert_eq!(answer(&mut stuck).0, number % 1000);
    }
    broker.stop();
}

#[test]
fn ten_thousand_idle_connections_cost_under_2_kib_each() {
    let count = 10_000;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(count + 500);
    limit.maximum = limit.maximum.map(|max| max.max(count + 500));
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = TestDir::new("idle");
    let broker = Broker::start(&dir.0, &["shards=1"]);
    // Once warm: what the shard has for itself is not the connections' cost.
    let mut first = broker.connect(0);
    for number in 0..100 {
        ask(&mut first, &metadata(number));
    }
    let before = resident_bytes(broker.pid());
    let mut idle = Vec::new();
    for number in 0..count as i32 {
        let mut stream = broker.connect(0);
        stream.write_all(&api_versions(number)).unwrap();
        idle.push(stream);
    }
    for (number, stream) in (0..).zip(&mut idle) {
        assert_eq!(answer(stream).0, number);
    }
    let each = resident_bytes(broker.pid()).saturating_sub(before) / idle.len();
    println!("{each} bytes of resident memory an idle connection");
    assert!(each < 2048, "{each}");
    for stream in idle.iter_mut().step_by(97) {
        assert_eq!(ask(stream, &api_versions(1)).0, 1);
    }
    broker.stop();
}

/// Segments are rolled and topics are made while more clients come than there are descriptors; they are refused, and taken again later.
#[test]
fn connections_leave_descriptors_to_files() {
    let limit = getrlimit(Resource::Nofile);
    // This process has more of them than the broker.
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let dir = TestDir::new("descriptors");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 1024; exec \"$0\" \"$@\""])
        .args([env!("CARGO_BIN_EXE_corelane"), "serve", "shards=1"])
        .args([
            &format!("log.dirs={}", dir.0.display()),
            "listeners=PLAINTEXT://127.0.0.1:0",
            "log.segment.bytes=1048576",
        ])
        .stderr(Stdio::piped());
    let mut broker = Broker::launch(limited);
    let warning = broker.wait_for_line("open files: at most 1024");
    assert!(warning.contains("ulimit -n"), "{warning}");
    broker.wait_to_serve();
    broker.create_topic("t", 200);
    let mut kept = broker.connect(0);
    ask(&mut kept, &metadata(1));
    // Who is refused is connected for a moment: the kernel has taken it.
    let crowd: Vec<TcpStream> = (0..2000).map(|_| broker.connect(0)).collect();
    let refused = broker.wait_for_line("a connection is refused");
    assert!(refused.contains("ulimit -n"), "{refused}");
    // 8 MiB to each of some partitions: each rolls its segment several times.
    let mut builder = corelane::batch::Builder::new();
    builder.push(1, None, Some(&[9; 800_000]), &[]);
    let batch = builder.build();
    for number in 0..10 {
        for partition in 0..20 {
            let told = ask(&mut kept, &produce(number, "t", partition, &batch)).1;
            assert_eq!(produced(&told, "t"), (0, i64::from(number)));
        }
    }
    let ends = listed(&ask(&mut kept, &list_ends(7, "t", 20)).1, "t");
    assert!(ends.iter().all(|end| *end == (0, 10)), "{ends:?}");
    drop(crowd);
    let deadline = Instant::now() + PATIENCE;
    while !taken(&broker) {
        assert!(Instant::now() < deadline, "nobody is taken any more");
        std::thread::yield_now();
    }
    broker.create_topic("later", 4);
    broker.produce("later", 4, 0..100, 100);
    broker.stop();
}

fn taken(broker: &Broker) -> bool {
    let mut stream = broker.connect(0);
    try_ask(&mut stream, &api_versions(1)).is_ok()
}
