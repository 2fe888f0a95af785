//! Codes, texts and values are those that Apache Kafka 4.4.0 gave to the same requests.

use corelane::batch::Codec;
use corelane::log::faulty::Loss;
use corelane::model::{ConnId, ErrorCode, Uuid};
use corelane::wire::msg::alter_configs_request::{self as legacy, AlterConfigsRequest};
use corelane::wire::msg::describe_configs_request::{
    DescribeConfigsRequest, DescribeConfigsResource,
};
use corelane::wire::msg::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use crate::produce::{batch, builder, first, to};
use crate::rig::{Rig, Setup, error};

pub const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
pub const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

pub const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub type Op = (&'static str, i8, Option<&'static str>);

fn resource(kind: i8, name: &'static str, ops: &[Op]) -> AlterConfigsResource<'static> {
    let configs = ops.iter().map(|(key, op, value)| AlterableConfig {
        name: (*key).into(),
        config_operation: *op,
        value: value.map(Into::into),
    });
    AlterConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configs: configs.collect(),
    }
}

fn changes(
    resources: Vec<AlterConfigsResource<'static>>,
    validate_only: bool,
) -> IncrementalAlterConfigsRequest<'static> {
    IncrementalAlterConfigsRequest {
        resources,
        validate_only,
    }
}

pub type Told = (ErrorCode, Option<String>);

fn alter_all(rig: &mut Rig, resources: Vec<AlterConfigsResource<'static>>) -> Vec<Told> {
    let answer = rig.once(1, &changes(resources, false));
    let responses = answer.responses.iter();
    responses
        .map(|r| {
            (
                error(r.error_code),
                r.error_message.as_deref().map(String::from),
            )
        })
        .collect()
}

pub fn alter(rig: &mut Rig, kind: i8, name: &'static str, ops: &[Op]) -> Told {
    alter_all(rig, vec![resource(kind, name, ops)]).remove(0)
}

pub fn fine() -> Told {
    (ErrorCode::None, None)
}

fn refused(code: ErrorCode, text: &str) -> Told {
    (code, Some(text.to_string()))
}

/// Value, source and chain of one config.
fn told(rig: &mut Rig, kind: i8, name: &str, key: &'static str) -> (Option<String>, i8, String) {
    let conn = rig.open();
    told_by(rig, conn, kind, name, key)
}

fn told_by(
    rig: &mut Rig,
    conn: ConnId,
    kind: i8,
    name: &str,
    key: &'static str,
) -> (Option<String>, i8, String) {
    let request = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.to_string().into(),
            configuration_keys: Some(vec![key.into()]),
        }],
        include_synonyms: true,
        include_documentation: false,
    };
    let answer = rig.ask(conn, 4, &request);
    let config = &answer.results[0].configs[0];
    let chain: Vec<String> = config
        .synonyms
        .iter()
        .map(|s| {
            let value = s.value.as_deref().unwrap_or("null");
            format!("{}={value}@{}", s.name, s.source)
        })
        .collect();
    (
        config.value.as_deref().map(String::from),
        config.config_source,
        chain.join(" "),
    )
}

fn value(rig: &mut Rig, key: &'static str) -> String {
    told(rig, TOPIC, "t", key).0.expect("a value")
}

#[test]
fn single_configs_of_topics_are_set_and_taken_away_in_every_version() {
    let mut rig = Rig::new();
    rig.create_with("t", 1, &[("retention.ms", "5000")]);
    for version in 0..=1 {
        let set = resource(TOPIC, "t", &[("max.message.bytes", SET, Some("2000"))]);
        let answer = rig.once(version, &changes(vec![set], false));
        let told_back = &answer.responses[0];
        assert_eq!(
            (error(told_back.error_code), &told_back.error_message),
            (ErrorCode::None, &None)
        );
        assert_eq!(
            (told_back.resource_type, &*told_back.resource_name),
            (TOPIC, "t")
        );
        assert_eq!(
            told(&mut rig, TOPIC, "t", "max.message.bytes"),
            (
                Some("2000".into()),
                1,
                "max.message.bytes=2000@1 message.max.bytes=1048588@5".into()
            )
        );
        assert_eq!(value(&mut rig, "retention.ms"), "5000", "not touched");
        let delete = [("max.message.bytes", DELETE, None)];
        assert_eq!(alter(&mut rig, TOPIC, "t", &delete), fine());
        assert_eq!(
            told(&mut rig, TOPIC, "t", "max.message.bytes"),
            (
                Some("1048588".into()),
                5,
                "message.max.bytes=1048588@5".into()
            )
        );
    }
    let absent = [("segment.ms", DELETE, None), ("no.such", DELETE, Some("x"))];
    assert_eq!(alter(&mut rig, TOPIC, "t", &absent), fine());
}

#[test]
fn lists_grow_and_shrink_by_items() {
    let mut rig = Rig::new();
    rig.create("t", 1);
    let key = "cleanup.policy";
    let steps = [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "compact", ""),
        (SUBTRACT, "compact,delete", ""),
        (APPEND, "delete,compact", "delete,compact"),
        (SET, "", ""),
    ];
    for (op, items, expected) in steps {
        assert_eq!(
            alter(&mut rig, TOPIC, "t", &[(key, op, Some(items))]),
            fine()
        );
        assert_eq!(value(&mut rig, key), expected);
    }
    let throttled = "leader.replication.throttled.replicas";
    let first = [(throttled, APPEND, Some("0:1"))];
    assert_eq!(alter(&mut rig, TOPIC, "t", &first), fine());
    let more = [(throttled, APPEND, Some("1:1,0:1"))];
    assert_eq!(alter(&mut rig, TOPIC, "t", &more), fine());
    assert_eq!(value(&mut rig, throttled), "0:1,1:1");
    assert_eq!(
        alter(&mut rig, TOPIC, "t", &[(throttled, APPEND, Some("x"))]),
        refused(
            ErrorCode::InvalidConfig,
            "Invalid value [0:1, 1:1, x] for configuration leader.replication.throttled.replicas: \
             leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: \
             [partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )
    );
}

#[test]
fn what_is_wrong_with_a_topics_configs_is_said_in_kafkas_words() {
    let mut rig = Rig::new();
    rig.create("t", 1);
    let (config, request) = (ErrorCode::InvalidConfig, ErrorCode::InvalidRequest);
    let cases: &[(&'static str, &[Op], ErrorCode, &str)] = &[
        (
            "t",
            &[("flush.ms", SET, Some("1")), ("flush.ms", SET, Some("2"))],
            request,
            "Error due to duplicate config keys",
        ),
        (
            "t",
            &[("flush.ms", SET, None)],
            request,
            "Null value not supported for : flush.ms",
        ),
        (
            "t",
            &[("cleanup.policy", APPEND, None)],
            request,
            "Null value not supported for : cleanup.policy",
        ),
        (
            "nope",
            &[("flush.ms", SET, Some("1"))],
            ErrorCode::UnknownTopicOrPartition,
            "The topic 'nope' does not exist.",
        ),
        (
            "a b",
            &[("flush.ms", SET, Some("1"))],
            ErrorCode::InvalidTopicException,
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
        ),
        (
            "",
            &[("flush.ms", SET, Some("1"))],
            request,
            "Default topic resources are not allowed.",
        ),
        (
            "t",
            &[("no.such", SET, Some("1"))],
            config,
            "Unknown topic config name: no.such",
        ),
        (
            "t",
            &[("retention.ms", SET, Some("x"))],
            config,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "t",
            &[("min.insync.replicas", SET, Some("0"))],
            config,
            "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1",
        ),
        (
            "t",
            &[("cleanup.policy", APPEND, Some("foo"))],
            config,
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "t",
            &[("retention.ms", APPEND, Some("1"))],
            config,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            "t",
            &[("retention.ms", SUBTRACT, Some("1"))],
            config,
            "Can't SUBTRACT to key retention.ms because its type is not LIST.",
        ),
        (
            "t",
            &[("no.such", APPEND, Some("1"))],
            config,
            "Can't APPEND to key no.such because its type is not LIST.",
        ),
        (
            "t",
            &[("compression.type", SET, Some(""))],
            config,
            "Invalid value  for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "t",
            &[
                ("min.compaction.lag.ms", SET, Some("10")),
                ("max.compaction.lag.ms", SET, Some("5")),
            ],
            config,
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            "t",
            &[("remote.storage.enable", SET, Some("true"))],
            config,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        ),
    ];
    for (name, ops, code, text) in cases {
        assert_eq!(alter(&mut rig, TOPIC, name, ops), refused(*code, text));
    }
    // Kafka answers UNKNOWN_SERVER_ERROR to an operation that does not exist.
    let (code, _) = alter(&mut rig, TOPIC, "t", &[("flush.ms", 9, Some("1"))]);
    assert_eq!(code, ErrorCode::InvalidRequest);
    for kind in [0, 1, 77] {
        assert_eq!(
            alter(&mut rig, kind, "t", &[("flush.ms", SET, Some("1"))]),
            refused(request, &format!("Unknown resource type {kind}"))
        );
    }
}

#[test]
fn a_resource_changes_whole_and_each_for_itself() {
    let mut rig = Rig::new();
    rig.create("t", 1);
    rig.create("c", 1);
    let both = alter_all(
        &mut rig,
        vec![
            resource(
                TOPIC,
                "c",
                &[
                    ("flush.ms", SET, Some("5")),
                    ("retention.ms", SET, Some("x")),
                ],
            ),
            resource(TOPIC, "t", &[("flush.ms", SET, Some("6"))]),
        ],
    );
    assert_eq!(
        (both[0].0, both[1].clone()),
        (ErrorCode::InvalidConfig, fine())
    );
    assert_eq!(
        told(&mut rig, TOPIC, "c", "flush.ms").1,
        5,
        "still the default"
    );
    assert_eq!(value(&mut rig, "flush.ms"), "6");

    let twice = alter_all(
        &mut rig,
        vec![
            resource(TOPIC, "t", &[("flush.ms", SET, Some("7"))]),
            resource(TOPIC, "c", &[("flush.ms", SET, Some("8"))]),
            resource(TOPIC, "t", &[("flush.ms", SET, Some("9"))]),
        ],
    );
    let once = refused(
        ErrorCode::InvalidRequest,
        "Each resource must appear at most once.",
    );
    assert_eq!(twice, [once.clone(), fine(), once]);
    assert_eq!(value(&mut rig, "flush.ms"), "6");
    assert!(alter_all(&mut rig, vec![]).is_empty());
    assert_eq!(alter(&mut rig, TOPIC, "t", &[]), fine());
}

#[test]
fn validate_only_finds_faults_and_changes_nothing() {
    let mut rig = Rig::new();
    rig.create("t", 1);
    let before = rig.shards[0].image().applied();
    for (text, code) in [("77", ErrorCode::None), ("z", ErrorCode::InvalidConfig)] {
        let set = resource(TOPIC, "t", &[("retention.ms", SET, Some(text))]);
        let answer = rig.once(1, &changes(vec![set], true));
        assert_eq!(error(answer.responses[0].error_code), code);
        let answer = rig.once(2, &whole("t", &[("retention.ms", Some(text))], true));
        assert_eq!(error(answer.responses[0].error_code), code);
    }
    assert_eq!(value(&mut rig, "retention.ms"), "604800000");
    assert_eq!(rig.shards[0].image().applied(), before);
}

fn whole(
    name: &'static str,
    configs: &[(&'static str, Option<&'static str>)],
    validate_only: bool,
) -> AlterConfigsRequest<'static> {
    let configs = configs.iter().map(|(key, value)| legacy::AlterableConfig {
        name: (*key).into(),
        value: value.map(Into::into),
    });
    AlterConfigsRequest {
        resources: vec![legacy::AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: name.into(),
            configs: configs.collect(),
        }],
        validate_only,
    }
}

#[test]
fn the_old_alter_replaces_the_whole_set_in_every_version() {
    for version in 0..=2 {
        let mut rig = Rig::new();
        rig.create_with("t", 1, &[("retention.ms", "5000"), ("flush.ms", "3")]);
        let ask = |rig: &mut Rig, request: AlterConfigsRequest<'static>| -> Told {
            let answer = rig.once(version, &request);
            let response = &answer.responses[0];
            (
                error(response.error_code),
                response.error_message.as_deref().map(String::from),
            )
        };
        assert_eq!(
            ask(
                &mut rig,
                whole("t", &[("retention.ms", Some("123"))], false)
            ),
            fine()
        );
        assert_eq!(value(&mut rig, "retention.ms"), "123");
        assert_eq!(told(&mut rig, TOPIC, "t", "flush.ms").1, 5, "went");
        let request = ErrorCode::InvalidRequest;
        assert_eq!(
            ask(&mut rig, whole("t", &[("retention.ms", None)], false)),
            refused(request, "Null value not supported for : retention.ms")
        );
        let twice = [("retention.ms", Some("1")), ("retention.ms", Some("2"))];
        assert_eq!(
            ask(&mut rig, whole("t", &twice, false)),
            refused(request, "Error due to duplicate config keys")
        );
        assert_eq!(
            ask(
                &mut rig,
                whole("nope", &[("retention.ms", Some("1"))], false)
            ),
            refused(
                ErrorCode::UnknownTopicOrPartition,
                "The topic 'nope' does not exist."
            )
        );
        assert_eq!(
            ask(&mut rig, whole("t", &[("nope", Some("1"))], false)),
            refused(ErrorCode::InvalidConfig, "Unknown topic config name: nope")
        );
        assert_eq!(value(&mut rig, "retention.ms"), "123");
        assert_eq!(ask(&mut rig, whole("t", &[], false)), fine());
        assert_eq!(value(&mut rig, "retention.ms"), "604800000");
    }
}

/// The shard that leads the topic's first partition.
fn leader(rig: &Rig, id: Uuid) -> usize {
    let topic = rig.shards[0].image().topic(id).expect("exists");
    usize::from(topic.partitions[0].leader.shard().0)
}

/// The change is in force on every node of the process when it is answered, and after a restart.
#[test]
fn an_answered_change_is_in_force_everywhere_and_stays() {
    let mut rig = Rig::with(Setup {
        shards: 3,
        ..Setup::default()
    });
    let id = rig.create("t", 3);
    let conn = rig.open_to(2);
    let set = resource(
        TOPIC,
        "t",
        &[
            ("max.message.bytes", SET, Some("100")),
            ("segment.bytes", SET, Some("1048576")),
            ("flush.messages", SET, Some("7")),
            ("write.caching", SET, Some("true")),
        ],
    );
    let answer = rig.ask(conn, 1, &changes(vec![set], false));
    assert_eq!(answer.responses[0].error_code, 0);
    let check = |rig: &Rig| {
        for shard in &rig.shards {
            for log in shard.store().logs() {
                let config = log.config();
                assert_eq!(
                    (config.segment_bytes, config.flush_messages),
                    (1_048_576, 7)
                );
                assert!(config.write_caching);
            }
            let topic = shard.image().topic(id).expect("exists");
            assert_eq!(topic.config.max_message_bytes, 100);
        }
    };
    check(&rig);
    let too_large = to(1, ("t", id), 0, batch(&[&"x".repeat(200)]));
    let conn = rig.open_to(leader(&rig, id));
    let answer = rig.ask(conn, 13, &too_large);
    assert_eq!(error(first(&answer).error_code), ErrorCode::MessageTooLarge);
    let mut rig = rig.restart(Loss::All);
    check(&rig);
    assert_eq!(value(&mut rig, "flush.messages"), "7");
}

#[test]
fn what_is_set_for_a_node_counts_over_all_nodes_over_the_file() {
    let mut rig = Rig::with(Setup {
        shards: 2,
        statics: vec![("log.retention.hours", "2")],
        ..Setup::default()
    });
    rig.create("t", 2);
    let own = [("message.max.bytes", SET, Some("3000"))];
    assert_eq!(alter(&mut rig, BROKER, "0", &own), fine());
    let all = [
        ("message.max.bytes", SET, Some("4000")),
        ("log.retention.ms", SET, Some("99000")),
    ];
    assert_eq!(alter(&mut rig, BROKER, "", &all), fine());
    assert_eq!(
        told(&mut rig, BROKER, "0", "message.max.bytes"),
        (
            Some("3000".into()),
            2,
            "message.max.bytes=3000@2 message.max.bytes=4000@3 message.max.bytes=1048588@5".into()
        )
    );
    assert_eq!(
        told(&mut rig, TOPIC, "t", "max.message.bytes").2,
        "message.max.bytes=3000@2 message.max.bytes=4000@3 message.max.bytes=1048588@5"
    );
    assert_eq!(
        told(&mut rig, TOPIC, "t", "retention.ms"),
        (
            Some("99000".into()),
            3,
            "log.retention.ms=99000@3 log.retention.hours=2@4 log.retention.hours=168@5".into()
        )
    );
    // The other node has no value of its own.
    let other = rig.open_to(1);
    assert_eq!(
        told_by(&mut rig, other, BROKER, "1", "message.max.bytes").2,
        "message.max.bytes=4000@3 message.max.bytes=1048588@5"
    );
    assert_eq!(
        told(&mut rig, BROKER, "", "log.retention.ms"),
        (Some("99000".into()), 3, "log.retention.ms=99000@3".into())
    );
    let limits: Vec<u32> = rig
        .shards
        .iter()
        .flat_map(|shard| {
            shard
                .store()
                .logs()
                .map(|log| log.config().message_bytes_max)
        })
        .collect();
    assert_eq!(limits, [3000, 4000], "and both logs go by it");
    let delete = [("message.max.bytes", DELETE, None)];
    assert_eq!(alter(&mut rig, BROKER, "0", &delete), fine());
    assert_eq!(
        told(&mut rig, TOPIC, "t", "max.message.bytes").0.as_deref(),
        Some("4000")
    );
    let append = [("log.cleanup.policy", APPEND, Some("compact"))];
    assert_eq!(alter(&mut rig, BROKER, "", &append), fine());
    assert_eq!(
        told(&mut rig, TOPIC, "t", "cleanup.policy").2,
        "log.cleanup.policy=delete,compact@3 log.cleanup.policy=delete@5"
    );
    let subtract = [("log.cleanup.policy", SUBTRACT, Some("delete"))];
    assert_eq!(alter(&mut rig, BROKER, "0", &subtract), fine());
    assert_eq!(
        told(&mut rig, BROKER, "0", "log.cleanup.policy")
            .0
            .as_deref(),
        Some("compact"),
        "from what it inherits"
    );
}

#[test]
fn broker_configs_that_may_not_change_are_refused_in_kafkas_words() {
    let mut rig = Rig::new();
    let (config, request) = (ErrorCode::InvalidConfig, ErrorCode::InvalidRequest);
    let cases: &[(i8, &'static str, &[Op], ErrorCode, &str)] = &[
        (
            BROKER,
            "0",
            &[("num.partitions", SET, Some("3"))],
            request,
            "Cannot update these configs dynamically: [num.partitions]",
        ),
        (
            BROKER,
            "",
            &[("log.retention.hours", SET, Some("3"))],
            request,
            "Cannot update these configs dynamically: [log.retention.hours]",
        ),
        (
            BROKER,
            "",
            &[("listeners", SET, Some("PLAINTEXT://:1"))],
            request,
            "Cannot update these configs at default cluster level, broker id must be specified: [listeners]",
        ),
        (
            BROKER,
            "0",
            &[("ssl.keystore.password", SET, Some("x"))],
            request,
            "These security configs can be dynamically updated only per-listener using the listener prefix: [ssl.keystore.password]",
        ),
        (
            BROKER,
            "7",
            &[("message.max.bytes", SET, Some("3000"))],
            request,
            "Unexpected broker id, expected 0, but received 7",
        ),
        (
            BROKER,
            "x",
            &[("message.max.bytes", SET, Some("3000"))],
            request,
            "Node id must be an integer, but it is: x",
        ),
        (
            BROKER,
            "",
            &[("message.max.bytes", SET, Some("zz"))],
            request,
            "Invalid value zz for configuration message.max.bytes: Not a number of type INT",
        ),
        (
            BROKER,
            "0",
            &[("message.max.bytes", SET, Some("-1"))],
            request,
            "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
        ),
        (
            BROKER,
            "0",
            &[("message.max.bytes", APPEND, Some("1"))],
            config,
            "Config value append is not allowed for config key: message.max.bytes",
        ),
        (
            BROKER,
            "0",
            &[("nope", APPEND, Some("1"))],
            config,
            "Unknown config name: nope",
        ),
        (
            BROKER,
            "0",
            &[("message.max.bytes", SET, None)],
            request,
            "Null value not supported for : message.max.bytes",
        ),
        (
            BROKER,
            "",
            &[("log.segment.bytes", SET, Some("5"))],
            request,
            "Invalid value 5 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        (
            LOGGER,
            "0",
            &[("no.such.logger", SET, Some("DEBUG"))],
            config,
            "Logger no.such.logger does not exist!",
        ),
        (
            LOGGER,
            "0",
            &[("kafka", APPEND, Some("DEBUG"))],
            request,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        (
            LOGGER,
            "7",
            &[("kafka", SET, Some("DEBUG"))],
            request,
            "Unexpected node id. Expected 0, but received 7",
        ),
        (
            LOGGER,
            "",
            &[("kafka", SET, Some("DEBUG"))],
            request,
            "Node id must be an integer, but it is: ",
        ),
    ];
    for (kind, name, ops, code, text) in cases {
        assert_eq!(alter(&mut rig, *kind, name, ops), refused(*code, text));
    }
    let unset = [("num.partitions", DELETE, None)];
    assert_eq!(alter(&mut rig, BROKER, "0", &unset), fine());
}

#[test]
fn secrets_and_names_that_only_a_plugin_knows_are_kept_and_never_shown() {
    let mut rig = Rig::new();
    let prefixed = "listener.name.plaintext.ssl.keystore.password";
    let ops = [
        (prefixed, SET, Some("hunter2")),
        ("my.plugin.x", SET, Some("hunter2")),
        ("listener.name.plaintext.max.connections", SET, Some("50")),
    ];
    assert_eq!(alter(&mut rig, BROKER, "0", &ops), fine());
    assert_eq!(
        told(&mut rig, BROKER, "0", prefixed),
        (None, 2, format!("{prefixed}=null@2"))
    );
    assert_eq!(
        told(&mut rig, BROKER, "0", "my.plugin.x"),
        (None, 2, "my.plugin.x=null@2".into())
    );
    assert_eq!(
        told(
            &mut rig,
            BROKER,
            "0",
            "listener.name.plaintext.max.connections"
        ),
        (
            Some("50".into()),
            2,
            "listener.name.plaintext.max.connections=50@2 max.connections=2147483647@5".into()
        )
    );
    let all = [("my.plugin.y", SET, Some("hunter2"))];
    assert_eq!(alter(&mut rig, BROKER, "", &all), fine());
    assert_eq!(
        told(&mut rig, BROKER, "", "my.plugin.y"),
        (None, 3, "my.plugin.y=null@3".into())
    );
}

/// Rates of replication are told where they were set, values of topics as they were read.
#[test]
fn what_is_told_is_what_kafka_tells() {
    let mut rig = Rig::new();
    rig.create("t", 1);
    let rate = "leader.replication.throttled.rate";
    let whole = DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: BROKER,
            resource_name: "0".into(),
            configuration_keys: None,
        }],
        ..Default::default()
    };
    let lists_rate = |rig: &mut Rig| {
        let answer = rig.once(4, &whole);
        answer.results[0].configs.iter().any(|c| c.name == rate)
    };
    assert!(!lists_rate(&mut rig));
    assert_eq!(
        alter(&mut rig, BROKER, "0", &[(rate, SET, Some("50"))]),
        fine()
    );
    assert!(lists_rate(&mut rig));
    assert_eq!(
        told(&mut rig, BROKER, "0", rate),
        (Some("50".into()), 2, format!("{rate}=50@2"))
    );
    let ops = [
        ("preallocate", SET, Some("TRUE")),
        ("flush.ms", SET, Some(" 8 ")),
    ];
    assert_eq!(alter(&mut rig, TOPIC, "t", &ops), fine());
    assert_eq!(
        told(&mut rig, TOPIC, "t", "preallocate").2,
        "preallocate=true@1 log.preallocate=false@5"
    );
    assert_eq!(told(&mut rig, TOPIC, "t", "flush.ms").2, "flush.ms=8@1");
}

#[test]
fn a_record_of_a_compressed_batch_has_a_bound_of_its_own() {
    let mut rig = Rig::new();
    let id = rig.create("t", 1);
    let ops = [("max.decompressed.message.bytes", SET, Some("1000"))];
    assert_eq!(alter(&mut rig, TOPIC, "t", &ops), fine());
    let large = "x".repeat(1000);
    let compressed = |value: &str| builder(&[value]).codec(Codec::Gzip).build();
    assert_eq!(
        rig.produce(("t", id), 0, compressed(&large)).0,
        ErrorCode::InvalidRecord
    );
    assert_eq!(
        rig.produce(("t", id), 0, compressed("x")).0,
        ErrorCode::None
    );
    assert_eq!(
        rig.produce(("t", id), 0, batch(&[&large])).0,
        ErrorCode::None
    );
}

#[test]
fn configs_of_groups_are_kept_within_the_bounds_of_the_brokers() {
    let mut rig = Rig::new();
    let key = "consumer.session.timeout.ms";
    assert_eq!(
        alter(&mut rig, GROUP, "grp", &[(key, SET, Some("50000"))]),
        fine()
    );
    assert_eq!(
        told(&mut rig, GROUP, "grp", key),
        (
            Some("50000".into()),
            8,
            format!("{key}=50000@8 group.{key}=45000@5")
        )
    );
    assert_eq!(
        told(&mut rig, GROUP, "other", "share.auto.offset.reset"),
        (
            Some("latest".into()),
            5,
            "share.auto.offset.reset=latest@5".into()
        )
    );
    let config = ErrorCode::InvalidConfig;
    assert_eq!(
        alter(&mut rig, GROUP, "grp", &[(key, SET, Some("5"))]),
        refused(
            config,
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive."
        )
    );
    assert_eq!(
        alter(&mut rig, GROUP, "grp", &[("nope", SET, Some("5"))]),
        refused(config, "Unknown group config name: nope")
    );
    assert_eq!(
        alter(&mut rig, GROUP, "", &[(key, SET, Some("50000"))]),
        refused(
            ErrorCode::InvalidRequest,
            "Default group resources are not allowed."
        )
    );
}

#[test]
fn subscriptions_of_client_metrics_are_kept() {
    let mut rig = Rig::new();
    let ops = [
        ("interval.ms", SET, Some("10000")),
        ("metrics", SET, Some("org.apache.kafka.,a")),
        ("match", SET, Some("client_id=a.*")),
    ];
    assert_eq!(alter(&mut rig, CLIENT_METRICS, "sub", &ops), fine());
    assert_eq!(
        told(&mut rig, CLIENT_METRICS, "sub", "metrics"),
        (
            Some("org.apache.kafka.,a".into()),
            7,
            "metrics=org.apache.kafka.,a@7".into()
        )
    );
    let (config, request) = (ErrorCode::InvalidConfig, ErrorCode::InvalidRequest);
    let cases: &[(&'static str, Op, ErrorCode, &str)] = &[
        (
            "sub",
            ("nope", SET, Some("1")),
            request,
            "Unknown client metrics configuration: nope",
        ),
        (
            "sub",
            ("interval.ms", SET, Some("1")),
            request,
            "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            "sub",
            ("interval.ms", SET, Some("x")),
            config,
            "Invalid value x for configuration interval.ms: Not a number of type INT",
        ),
        (
            "sub",
            ("match", SET, Some("x")),
            config,
            "Illegal client matching pattern: x",
        ),
        (
            "sub",
            ("match", SET, Some("client_id=[")),
            config,
            "Illegal client matching pattern: client_id=[",
        ),
        (
            "",
            ("interval.ms", SET, Some("10000")),
            request,
            "Subscription name can't be empty",
        ),
        (
            "sub",
            ("metrics", APPEND, Some("b")),
            config,
            "Can't APPEND to key metrics because its type is not LIST.",
        ),
    ];
    for (name, op, code, text) in cases {
        assert_eq!(
            alter(&mut rig, CLIENT_METRICS, name, &[*op]),
            refused(*code, text)
        );
    }
}
