use super::*;
use crate::meta::config::Value;

const CPUS: &[usize] = &[0, 1];

fn file(text: &str) -> Result<ServerConfig, String> {
    parse("server.properties", text.as_bytes(), &[], CPUS)
}

fn args(settings: &[&str]) -> Result<ServerConfig, String> {
    let settings: Vec<String> = settings.iter().map(|s| s.to_string()).collect();
    parse("", b"", &settings, CPUS)
}

/// `config/server.properties` of Apache Kafka 4.x, its comments left out but for one of each kind.
const STOCK: &str = r"
# Licensed to the Apache Software Foundation (ASF) under one or more
############################# Server Basics #############################
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
#log.flush.interval.ms=1000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
";

#[test]
fn nothing_has_to_be_configured() {
    let config = args(&[]).unwrap();
    assert_eq!((config.process, config.shards), (0, 2));
    assert_eq!(config.cpus, CPUS);
    assert_eq!(config.log_dir, PathBuf::from("./corelane-data"));
    assert_eq!(config.warnings, Vec::<String>::new());
    let [listener] = config.listeners.as_slice() else {
        panic!("{:?}", config.listeners);
    };
    assert_eq!(
        (&*listener.name, &*listener.host, listener.port),
        ("PLAINTEXT", "localhost", 9092)
    );
    assert_eq!(listener.port_of(1), 9093);
    assert_eq!(listener.advertised, None);
}

#[test]
fn the_file_that_kafka_ships_loads_with_warnings_only() {
    let config = file(STOCK).unwrap();
    assert_eq!((config.process, config.shards), (1, 2));
    assert_eq!(config.log_dir, PathBuf::from("/tmp/kraft-combined-logs"));
    let [listener] = config.listeners.as_slice() else {
        panic!("{:?}", config.listeners);
    };
    assert_eq!((&*listener.host, listener.port), ("", 9092));
    assert_eq!(
        listener.advertised(1, 9093),
        Some(("localhost".to_string(), 9093))
    );
    let warned: Vec<&str> = config
        .warnings
        .iter()
        .map(|w| w.split([' ', ':']).next().unwrap())
        .collect();
    assert_eq!(
        warned,
        [
            "inter.broker.listener.name",
            "num.network.threads",
            "num.io.threads",
            "socket.send.buffer.bytes",
            "socket.receive.buffer.bytes",
            "num.recovery.threads.per.data.dir",
            "controller.quorum.bootstrap.servers",
            "controller.listener.names"
        ]
    );
    assert_eq!(config.statics.number("log.retention.hours"), 168);
}

#[test]
fn the_command_line_wins_over_the_file_and_later_lines_over_earlier_ones() {
    let config = parse(
        "f",
        b"num.partitions=2\nnum.partitions : 3\nnode.id 4",
        &["node.id=5".to_string(), "node.id=6".to_string()],
        CPUS,
    )
    .unwrap();
    assert_eq!(config.statics.number("num.partitions"), 3);
    assert_eq!(config.process, 6);
}

#[test]
fn a_wrong_value_that_is_replaced_later_is_no_error() {
    assert!(file("num.partitions=x\nnum.partitions=3").is_ok());
}

#[test]
fn an_unknown_key_is_an_error_with_the_nearest_known_name() {
    assert_eq!(
        file("\nnum.partition=3").unwrap_err(),
        "unknown setting 'num.partition' (server.properties line 2): did you mean 'num.partitions'?"
    );
    assert_eq!(
        args(&["shard=3"]).unwrap_err(),
        "unknown setting 'shard': did you mean 'shards'?"
    );
    assert_eq!(
        args(&["nothing.like.this.at.all=3"]).unwrap_err(),
        "unknown setting 'nothing.like.this.at.all': it is not a setting of a broker"
    );
    assert!(args(&["shards"]).unwrap_err().contains("KEY=VALUE"));
}

#[test]
fn a_wrong_value_is_named_with_what_is_allowed() {
    for (setting, message) in [
        (
            "num.partitions=0",
            "num.partitions=0: Value must be at least 1; allowed is a number from 1 up",
        ),
        (
            "shards=1000",
            "shards=1000: Value must be no more than 999; allowed is a number from 1 to 999",
        ),
        (
            "shards=two",
            "shards=two: Not a number of type INT; allowed is a number from 1 to 999",
        ),
        (
            "auto.create.topics.enable=maybe",
            "auto.create.topics.enable=maybe: Expected value to be either true or false; allowed is true or false",
        ),
        (
            "log.segment.bytes=12",
            "log.segment.bytes=12: Value must be at least 1048576; allowed is a number from 1048576 up",
        ),
        (
            "compression.type=rar",
            "compression.type=rar: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "ssl.enabled.protocols=a,,b",
            "ssl.enabled.protocols=a,,b: Configuration 'ssl.enabled.protocols' values must not be empty; \
             allowed is a list with commas between",
        ),
        (
            "shard.cpus=0-x",
            "shard.cpus=0-x: '0-x' is neither a CPU number nor a range; allowed is a list such as 0-3,8",
        ),
        (
            "listeners=localhost:9092",
            "listeners=localhost:9092: 'localhost:9092' is not NAME://host:port",
        ),
    ] {
        assert_eq!(args(&[setting]).unwrap_err(), message);
    }
}

#[test]
fn keys_of_kafka_without_effect_are_warnings() {
    let settings = [
        "num.io.threads=4",
        "ssl.keystore.password=secret",
        "listener.name.internal.ssl.keystore.location=/x",
        "listener.name.internal.scram-sha-256.sasl.jaas.config=x",
        "zookeeper.connect=localhost:2181",
        "log.message.format.version=2.8",
        "config.providers.file.class=x",
        "super.users=User:a",
    ];
    let config = args(&settings).unwrap();
    assert_eq!(
        config.warnings.len(),
        settings.len(),
        "{:?}",
        config.warnings
    );
    assert_eq!(
        config.warnings[0],
        "num.io.threads has no effect: a shard is one thread on one core: set `shards` instead"
    );
    assert!(!config.warnings.iter().any(|w| w.contains("secret")));
    assert!(args(&["listener.name.internal.nothing=1"]).is_err());
}

#[test]
fn node_id_and_its_old_name() {
    assert_eq!(args(&["broker.id=7"]).unwrap().process, 7);
    let config = args(&["broker.id=7"]).unwrap();
    assert_eq!(config.statics.value("node.id"), Value::Number(7));
    assert_eq!(args(&["broker.id=-1"]).unwrap().process, 0);
    assert_eq!(args(&["broker.id=7", "node.id=7"]).unwrap().process, 7);
    assert!(args(&["broker.id=7", "node.id=8"]).is_err());
    // process * 1000 + 999 must fit an int.
    assert_eq!(args(&["node.id=2147482"]).unwrap().process, 2_147_482);
    assert!(args(&["node.id=2147483"]).is_err());
    assert!(args(&["broker.id=2147483"]).is_err());
}

#[test]
fn more_shards_than_cpus_are_a_warning() {
    let config = args(&["shards=3"]).unwrap();
    assert_eq!((config.shards, config.cpus.as_slice()), (3, CPUS));
    assert_eq!(config.warnings.len(), 1);
    let config = args(&["shard.cpus=1"]).unwrap();
    assert_eq!((config.shards, config.cpus), (1, vec![1]));
    assert!(args(&["shard.cpus=2"]).is_err());
}

#[test]
fn the_line_proposed_for_overlapping_listeners_loads() {
    let base = [
        "shards=8",
        "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
    ];
    let message = args(&[base[0], base[1], "listeners=A://:9092,B://[::1]:9095"]).unwrap_err();
    let (start, proposed) = message.split_once("this works: ").unwrap();
    assert_eq!(
        start,
        "listeners=A://:9092,B://[::1]:9095: A (ports 9092 to 9099) and B (ports 9095 to 9102) overlap: \
         every shard has a port of its own in each; "
    );
    let config = args(&[base[0], base[1], proposed]).unwrap();
    let ports: Vec<u16> = config.listeners.iter().map(|l| l.port).collect();
    assert_eq!(ports, [9092, 9100]);
    assert_eq!(config.listeners[1].host, "::1");
}

#[test]
fn the_controllers_listener_takes_no_ports() {
    let config = args(&[
        "shards=2",
        "listeners=PLAINTEXT://:9092,controller://:9093",
        "controller.listener.names=CONTROLLER",
    ])
    .unwrap();
    assert_eq!(config.listeners.len(), 1);
    let only = args(&[
        "listeners=CONTROLLER://:9093",
        "controller.listener.names=CONTROLLER",
    ]);
    assert!(only.unwrap_err().contains("no listener is left"));
}

#[test]
fn what_would_be_dangerous_to_leave_out_is_refused() {
    for settings in [
        &["listeners=SSL://:9092"][..],
        &["listeners=INTERNAL://:9092"],
        &[
            "listeners=X://:9092",
            "listener.security.protocol.map=X:SASL_SSL",
        ],
        &["authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"],
        &["process.roles=controller"],
        &["controller.quorum.voters=1@a:9093,2@b:9093,3@c:9093"],
        &["log.dirs=/a,/b"],
    ] {
        assert!(args(settings).is_err(), "{settings:?}");
    }
    let config = args(&[
        "listeners=X://:9092",
        "listener.security.protocol.map=X:plaintext",
    ])
    .unwrap();
    assert_eq!(config.listeners[0].name, "X");
}

#[test]
fn log_dirs_comes_before_log_dir() {
    let config = args(&["log.dir=/a", "log.dirs=/b"]).unwrap();
    assert_eq!(config.log_dir, PathBuf::from("/b"));
    assert_eq!(args(&["log.dir=/a"]).unwrap().log_dir, PathBuf::from("/a"));
}

#[test]
fn bytes_outside_ascii_are_read_as_java_does_and_said() {
    let config = file("\nlog.dirs=/data/\u{e4}").unwrap();
    assert_eq!(config.log_dir, PathBuf::from("/data/\u{c3}\u{a4}"));
    assert!(config.warnings[0].starts_with("server.properties line 2 has a character"));
    assert_eq!(
        file("log.dirs=/data/\\u00e4").unwrap().log_dir,
        PathBuf::from("/data/\u{e4}")
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = load(Some(Path::new("/nowhere/x.properties")), &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot read /nowhere/x.properties: ")
    );
}
