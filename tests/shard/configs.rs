use corelane::model::ErrorCode;
use corelane::wire::msg::describe_configs_request::{
    DescribeConfigsRequest, DescribeConfigsResource,
};
use corelane::wire::msg::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};

use crate::rig::{Rig, Setup, error, node};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;

const DYNAMIC_TOPIC: i8 = 1;
const STATIC_BROKER: i8 = 4;
const DEFAULT: i8 = 5;

fn of(
    resource_type: i8,
    name: &str,
    keys: Option<&[&'static str]>,
) -> DescribeConfigsRequest<'static> {
    DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type,
            resource_name: name.to_string().into(),
            configuration_keys: keys.map(|keys| keys.iter().map(|key| (*key).into()).collect()),
        }],
        include_synonyms: true,
        include_documentation: true,
    }
}

fn rig() -> Rig {
    Rig::with(Setup {
        shards: 2,
        statics: vec![
            ("log.retention.hours", "2"),
            ("num.partitions", "3"),
            ("ssl.keystore.password", "hunter2"),
        ],
        ..Setup::default()
    })
}

fn find<'a>(
    result: &'a DescribeConfigsResult<'_>,
    name: &str,
) -> &'a DescribeConfigsResourceResult<'a> {
    let found = result.configs.iter().find(|config| config.name == name);
    found.unwrap_or_else(|| panic!("{name} is not listed"))
}

/// Value, source and type.
fn told(result: &DescribeConfigsResult<'_>, name: &str) -> (Option<String>, i8, i8) {
    let config = find(result, name);
    (
        config.value.as_deref().map(str::to_string),
        config.config_source,
        config.config_type,
    )
}

#[test]
fn a_topics_configs_are_true_at_every_version() {
    let mut rig = rig();
    rig.create_with(
        "t",
        1,
        &[
            ("cleanup.policy", "compact"),
            ("segment.bytes", " 2097152 "),
        ],
    );
    for version in 1..=4 {
        let answer = rig.once(version, &of(TOPIC, "t", None));
        let result = &answer.results[0];
        assert_eq!(
            (error(result.error_code), result.resource_type),
            (ErrorCode::None, TOPIC)
        );
        let kind = |code: i8| if version >= 3 { code } else { 0 };
        let text = |text: &str| Some(text.to_string());
        assert_eq!(
            told(result, "cleanup.policy"),
            (text("compact"), DYNAMIC_TOPIC, kind(7))
        );
        assert_eq!(
            told(result, "segment.bytes"),
            (text("2097152"), DYNAMIC_TOPIC, kind(3))
        );
        assert_eq!(
            told(result, "retention.ms"),
            // As Kafka: the file names log.retention.hours, and the chain is that of log.retention.ms.
            (text("7200000"), DEFAULT, kind(5))
        );
        assert_eq!(
            told(result, "min.insync.replicas"),
            (text("1"), DEFAULT, kind(3))
        );
        assert_eq!(
            told(result, "preallocate"),
            (text("false"), DEFAULT, kind(1))
        );
        assert_eq!(
            told(result, "compression.type"),
            (text("producer"), DEFAULT, kind(2))
        );
        assert!(find(result, "retention.ms").synonyms.is_empty());
        let chain: Vec<_> = find(result, "cleanup.policy")
            .synonyms
            .iter()
            .map(|s| (&*s.name, s.value.as_deref(), s.source))
            .collect();
        assert_eq!(
            chain,
            [
                ("cleanup.policy", Some("compact"), DYNAMIC_TOPIC),
                ("log.cleanup.policy", Some("delete"), DEFAULT),
            ]
        );
        let documented = find(result, "retention.ms")
            .documentation
            .as_deref()
            .is_some_and(|d| !d.is_empty());
        assert_eq!(documented, version >= 3);
        assert!(
            result
                .configs
                .iter()
                .all(|c| !c.read_only && !c.is_sensitive)
        );
        assert!(
            result
                .configs
                .iter()
                .all(|c| c.name != "internal.segment.bytes")
        );
    }
}

#[test]
fn a_nodes_configs_are_what_it_uses() {
    let mut rig = rig();
    let conn = rig.open_to(1);
    for version in 1..=4 {
        let answer = rig.ask(conn, version, &of(BROKER, "1", None));
        let result = &answer.results[0];
        assert_eq!(error(result.error_code), ErrorCode::None);
        let value = |name: &str| find(result, name).value.as_deref().map(str::to_string);
        let text = |text: &str| Some(text.to_string());
        assert_eq!(value("node.id"), text("1"));
        assert_eq!(value("listeners"), text("PLAINTEXT://127.0.0.1:9093"));
        assert_eq!(
            value("advertised.listeners"),
            text("PLAINTEXT://broker.example:9093")
        );
        assert_eq!(value("broker.rack"), text("0"));
        assert_eq!(
            told(result, "num.partitions"),
            (text("3"), STATIC_BROKER, if version >= 3 { 3 } else { 0 })
        );
        assert_eq!(told(result, "log.retention.hours").0, text("2"));
        assert_eq!(told(result, "auto.create.topics.enable").0, text("true"));
        let password = find(result, "ssl.keystore.password");
        assert!(
            password.is_sensitive && password.value.is_none(),
            "never shown"
        );
        assert!(password.synonyms.iter().all(|s| s.value.is_none()));
    }
}

#[test]
fn keys_that_are_asked_for_are_all_that_is_told() {
    let mut rig = rig();
    rig.create("t", 1);
    for (keys, expected) in [
        (Some(&["retention.ms", "no.such"][..]), 1),
        (Some(&[][..]), 39),
        (None, 39),
    ] {
        let answer = rig.once(4, &of(TOPIC, "t", keys));
        assert_eq!(answer.results[0].configs.len(), expected, "{keys:?}");
    }
    let silent = DescribeConfigsRequest {
        include_synonyms: false,
        include_documentation: false,
        ..of(TOPIC, "t", Some(&["retention.ms"]))
    };
    let answer = rig.once(4, &silent);
    let config = &answer.results[0].configs[0];
    assert_eq!((config.synonyms.len(), &config.documentation), (0, &None));
}

#[test]
fn resources_that_are_not_there_are_refused_in_kafkas_words() {
    let mut rig = rig();
    let other = node(1).to_string();
    let cases = [
        (TOPIC, "missing", ErrorCode::UnknownTopicOrPartition, None),
        (
            TOPIC,
            "",
            ErrorCode::InvalidTopicException,
            Some("Topic name is invalid: the empty string is not allowed"),
        ),
        (
            TOPIC,
            "..",
            ErrorCode::InvalidTopicException,
            Some("Topic name is invalid: '..' is not allowed"),
        ),
        (
            BROKER,
            "x",
            ErrorCode::InvalidRequest,
            Some("Broker id must be an integer, but it is: x"),
        ),
        (
            BROKER,
            &other,
            ErrorCode::InvalidRequest,
            Some("Unexpected broker id, expected 0 or empty string, but received 1"),
        ),
        (BROKER, "", ErrorCode::None, Some("")),
        (LOGGER, "0", ErrorCode::None, Some("")),
        (
            LOGGER,
            "",
            ErrorCode::InvalidRequest,
            Some("Broker id must not be empty"),
        ),
        (
            LOGGER,
            &other,
            ErrorCode::InvalidRequest,
            Some("Unexpected broker id, expected 0 but received 1"),
        ),
        (
            CLIENT_METRICS,
            "",
            ErrorCode::InvalidRequest,
            Some("Client metrics subscription name must not be empty"),
        ),
        (
            77,
            "a",
            ErrorCode::InvalidRequest,
            Some(
                "This most likely occurs because of a request being malformed by the client library or the message was sent to an incompatible broker. See the broker logs for more details.",
            ),
        ),
    ];
    for (kind, name, expected, message) in cases {
        let answer = rig.once(4, &of(kind, name, None));
        let result = &answer.results[0];
        assert_eq!(
            (error(result.error_code), result.error_message.as_deref()),
            (expected, message),
            "{kind} {name}"
        );
        assert!(result.configs.is_empty());
        assert_eq!((result.resource_type, &*result.resource_name), (kind, name));
    }
}

#[test]
fn a_subscription_of_client_metrics_that_does_not_exist_has_every_default() {
    let mut rig = rig();
    let answer = rig.once(4, &of(CLIENT_METRICS, "s", None));
    let told: Vec<_> = answer.results[0]
        .configs
        .iter()
        .map(|c| (&*c.name, c.value.as_deref(), c.config_source, c.config_type))
        .collect();
    assert_eq!(
        told,
        [
            ("interval.ms", Some("300000"), DEFAULT, 3),
            ("match", Some(""), DEFAULT, 7),
            ("metrics", Some(""), DEFAULT, 7),
        ]
    );
}
