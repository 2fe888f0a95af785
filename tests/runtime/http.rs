//! The operator's port: what it counts, and how it says that a broker is well.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use corelane::node::http::FAMILIES;

use crate::broker::{Broker, PATIENCE, TestDir, command};

const SAID: &str = "metrics, health and status on http://";

/// A broker on free ports, and the address of its operator's port.
fn start(dir: &TestDir, settings: &[&str]) -> (Broker, String) {
    let dir = format!("log.dirs={}", dir.0.display());
    let mut all = vec![&*dir, "listeners=PLAINTEXT://127.0.0.1:0"];
    all.extend(settings);
    let mut broker = Broker::launch(command(&all));
    let line = broker.wait_for_line(SAID);
    let (_, address) = line.split_once(SAID).unwrap();
    broker.wait_to_serve();
    (broker, address.trim().to_string())
}

/// Status and body of an answer.
fn ask(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_string())
}

/// Samples by name and labels as they are written.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let (status, text) = ask(address, "GET", "/metrics");
    assert_eq!(status, 200);
    for family in FAMILIES {
        let head = format!("# TYPE {} {}\n", family.name, family.kind);
        assert_eq!(text.matches(&head).count(), 1, "{head}");
    }
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, number) = line.rsplit_once(' ').unwrap();
        let number = number.parse().unwrap();
        let before = samples.insert(series.to_string(), number);
        assert_eq!(before, None, "{series} comes twice");
    }
    samples
}

/// The sum of all series of a name whose labels have all of `parts`.
fn sum(samples: &BTreeMap<String, f64>, name: &str, parts: &[&str]) -> f64 {
    let of_name = samples.iter().filter(|(series, _)| {
        let rest = series.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && parts.iter().all(|part| series.contains(part))
    });
    of_name.map(|(_, number)| number).sum()
}

#[test]
fn what_clients_did_is_counted() {
    let dir = TestDir::new("metrics");
    let (broker, address) = start(&dir, &["shards=2", "metrics.listener=127.0.0.1:0"]);
    broker.create_topic("t", 4);
    broker.create_topic("empty", 1);
    broker.produce("t", 4, 0..1_000, 100);
    broker.consume("t", 1, 250);
    let seen = scrape(&address);
    let sum = |name: &str, parts: &[&str]| sum(&seen, name, parts);
    let brokertopic = |what| format!("kafka_server_brokertopicmetrics_{what}_total");
    let of_topic = ["topic=\"t\""];
    assert_eq!(sum(&brokertopic("messagesin"), &of_topic), 1_000.0);
    assert_eq!(sum(&brokertopic("messagesin"), &[]), 1_000.0);
    let bytes_in = sum(&brokertopic("bytesin"), &of_topic);
    assert!(bytes_in > 100_000.0 && bytes_in < 130_000.0, "{bytes_in}");
    // Of one partition of four.
    let bytes_out = sum(&brokertopic("bytesout"), &of_topic);
    assert!(bytes_out > 25_000.0 && bytes_out < 40_000.0, "{bytes_out}");
    assert_eq!(sum(&brokertopic("failedproducerequests"), &[]), 0.0);
    assert_eq!(sum("kafka_log_log_logendoffset", &of_topic), 1_000.0);
    assert_eq!(sum("kafka_log_log_logstartoffset", &of_topic), 0.0);
    assert_eq!(sum("kafka_log_log_size", &of_topic), bytes_in);
    assert_eq!(sum("kafka_server_replicamanager_leadercount", &[]), 5.0);
    assert_eq!(
        sum("kafka_server_replicamanager_offlinereplicacount", &[]),
        0.0
    );
    assert_eq!(
        sum("kafka_controller_kafkacontroller_globaltopiccount", &[]),
        2.0
    );
    assert_eq!(
        sum("kafka_controller_kafkacontroller_globalpartitioncount", &[]),
        5.0
    );
    assert_eq!(
        sum(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            &[]
        ),
        0.0
    );
    assert_eq!(
        sum("kafka_controller_kafkacontroller_activebrokercount", &[]),
        2.0
    );
    assert_eq!(sum("corelane_shard_up", &[]), 2.0);
    assert_eq!(sum("corelane_shard_ready", &[]), 2.0);
    // Two topics were made by two requests; each answered request has its time.
    let requests = "kafka_network_requestmetrics_requests_total";
    assert_eq!(sum(requests, &["request=\"CreateTopics\""]), 2.0);
    for request in ["Produce", "CreateTopics", "Metadata"] {
        let label = format!("request=\"{request}\"");
        let count = sum(
            "kafka_network_requestmetrics_totaltime_seconds_count",
            &[&label],
        );
        assert_eq!(count, sum(requests, &[&label]), "{request}");
        assert!(count > 0.0, "{request}");
    }
    for name in [
        "corelane_journal_writes_total",
        "corelane_journal_flushes_total",
        "corelane_turn_seconds_count",
        "corelane_connections_opened_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds_total",
    ] {
        assert!(sum(name, &[]) > 0.0, "{name}");
    }
    broker.stop();
}

#[test]
fn a_broker_says_whether_it_is_well_and_what_it_is() {
    let dir = TestDir::new("status");
    let (broker, address) = start(&dir, &["shards=2", "metrics.listener=127.0.0.1:0"]);
    broker.create_topic("t", 4);
    for path in ["/health/live", "/health/ready"] {
        // The thread may hear of the start a moment later than the line says it.
        let mut answer = ask(&address, "GET", path);
        while answer.1.contains("the process is starting") {
            answer = ask(&address, "GET", path);
        }
        assert_eq!(answer, (200, "ok\n".to_string()), "{path}");
    }
    let (status, body) = ask(&address, "GET", "/status");
    assert_eq!(status, 200);
    let told: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(told["pid"], broker.pid());
    assert_eq!(told["phase"], "serving");
    assert_eq!(told["cluster"]["partitions"], 4);
    for (index, port) in broker.ports.iter().enumerate() {
        let shard = &told["shards"][index];
        assert_eq!(shard["node"], index);
        assert_eq!(shard["ports"][0]["port"], *port);
        assert_eq!(shard["up"], true);
        assert_eq!(shard["fenced"], serde_json::json!([]));
    }
    assert_eq!(ask(&address, "GET", "/elsewhere").0, 404);
    assert_eq!(ask(&address, "POST", "/metrics").0, 405);
    broker.stop();
    assert!(TcpStream::connect(&address).is_err(), "the port is closed");
}

#[test]
fn the_level_of_logs_changes_while_the_broker_runs() {
    let dir = TestDir::new("level");
    let settings = [
        "shards=1",
        "metrics.listener=127.0.0.1:0",
        "logging.format=json",
    ];
    let dir = format!("log.dirs={}", dir.0.display());
    let mut all = vec![&*dir, "listeners=PLAINTEXT://127.0.0.1:0"];
    all.extend(settings);
    let mut broker = Broker::launch(command(&all));
    let line = broker.wait_for_line(SAID);
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(said["level"], "INFO");
    let message = said["message"].as_str().unwrap();
    let address = message.strip_prefix(SAID).unwrap();
    broker.wait_to_serve();
    let shown = |method, path| ask(address, method, path);
    assert_eq!(shown("GET", "/log-level"), (200, "info\n".to_string()));
    let set = shown("PUT", "/log-level?filter=corelane%3A%3Alog%3Ddebug%2Cwarn");
    assert_eq!(set, (200, "corelane::log=debug,warn\n".to_string()));
    assert_eq!(shown("GET", "/log-level").1, "corelane::log=debug,warn\n");
    for wrong in [
        "/log-level",
        "/log-level?filter=a%3Dloud",
        "/log-level?filter=%zz",
    ] {
        assert_eq!(shown("PUT", wrong).0, 400, "{wrong}");
    }
    assert_eq!(shown("DELETE", "/log-level").0, 405);
    // At WARN nothing is said of the end; at INFO it is.
    shown("PUT", "/log-level?filter=info");
    broker.signal("TERM");
    broker.wait_for_line("stopping");
    assert!(broker.wait().success());
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_is_named_and_the_default_gives_way() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = format!("metrics.listener={}", taken.local_addr().unwrap());
    let dir = TestDir::new("taken");
    let data = format!("log.dirs={}", dir.0.display());
    let listeners = "listeners=PLAINTEXT://127.0.0.1:0";
    for wrong in [&*asked, "metrics.listener=9644"] {
        let mut refused = command(&[&data, listeners, "shards=1", wrong]);
        let output = refused.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wrong) && said.contains("HOST:PORT"), "{said}");
    }
    // Two that nobody told anything of a port run side by side.
    let other = TestDir::new("beside");
    let (first, one) = start(&dir, &["shards=1"]);
    let (second, two) = start(&other, &["shards=1"]);
    assert_ne!(one, two);
    for address in [one, two] {
        assert_eq!(ask(&address, "GET", "/health/live").0, 200);
    }
    first.stop();
    second.stop();
}
