//! Codes and numbers are those that Apache Kafka 4.4.0 gave to the same requests.

use corelane::model::{ErrorCode, Uuid};
use corelane::wire::msg::get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest;
use corelane::wire::msg::get_telemetry_subscriptions_response::GetTelemetrySubscriptionsResponse;
use corelane::wire::msg::push_telemetry_request::PushTelemetryRequest;

use crate::alter_configs::{CLIENT_METRICS, SET, alter, fine};
use crate::rig::{Rig, error};

fn id(byte: u8) -> Uuid {
    Uuid([byte; 16])
}

fn get(rig: &mut Rig, client: Uuid) -> GetTelemetrySubscriptionsResponse<'static> {
    rig.once(
        0,
        &GetTelemetrySubscriptionsRequest {
            client_instance_id: client,
        },
    )
}

fn push(client: Uuid, subscription_id: i32, metrics: &[u8]) -> PushTelemetryRequest<'static> {
    PushTelemetryRequest {
        client_instance_id: client,
        subscription_id,
        metrics: metrics.to_vec().into(),
        ..Default::default()
    }
}

fn code(rig: &mut Rig, request: &PushTelemetryRequest<'static>) -> ErrorCode {
    error(rig.once(0, request).error_code)
}

fn subscribe(rig: &mut Rig, name: &'static str, pairs: &[(&'static str, &'static str)]) {
    let ops: Vec<_> = pairs
        .iter()
        .map(|(key, value)| (*key, SET, Some(*value)))
        .collect();
    assert_eq!(alter(rig, CLIENT_METRICS, name, &ops), fine());
}

#[test]
fn a_client_gets_an_id_and_no_metrics_without_a_subscription() {
    let mut rig = Rig::new();
    let told = get(&mut rig, Uuid::ZERO);
    assert_eq!(told.error_code, 0);
    assert!(!told.client_instance_id.is_zero());
    assert_eq!(told.accepted_compression_types, [4, 3, 1, 2]);
    assert_eq!(
        (told.push_interval_ms, told.telemetry_max_bytes),
        (300_000, 1_048_576)
    );
    assert!(told.delta_temporality && told.requested_metrics.is_empty());
    let other = get(&mut rig, Uuid::ZERO);
    assert_ne!(other.client_instance_id, told.client_instance_id);
    assert_ne!(other.subscription_id, told.subscription_id);

    let again = get(&mut rig, told.client_instance_id);
    assert_eq!(error(again.error_code), ErrorCode::ThrottlingQuotaExceeded);
    assert!(again.client_instance_id.is_zero() && again.accepted_compression_types.is_empty());
    rig.pass_ms(300_000);
    let again = get(&mut rig, told.client_instance_id);
    assert_eq!(
        (again.error_code, again.subscription_id),
        (0, told.subscription_id)
    );
}

#[test]
fn pushes_are_checked_in_kafkas_order_and_counted() {
    let mut rig = Rig::new();
    let client = id(1);
    let subscription = get(&mut rig, client).subscription_id;
    let throttled = ErrorCode::ThrottlingQuotaExceeded;
    assert_eq!(
        code(&mut rig, &push(Uuid::ZERO, 1, b"")),
        ErrorCode::InvalidRequest
    );
    assert_eq!(
        code(&mut rig, &push(id(9), 1, b"")),
        ErrorCode::UnknownSubscriptionId,
        "one that never asked"
    );
    assert_eq!(
        code(&mut rig, &push(client, subscription, b"abc")),
        ErrorCode::None
    );
    assert_eq!(
        code(&mut rig, &push(client, subscription, b"abc")),
        throttled
    );
    assert_eq!(code(&mut rig, &push(client, 1, b"abc")), throttled);
    let last = PushTelemetryRequest {
        terminating: true,
        ..push(client, subscription, b"de")
    };
    assert_eq!(
        code(&mut rig, &last),
        ErrorCode::None,
        "the last one may come early"
    );
    assert_eq!(code(&mut rig, &last), ErrorCode::InvalidRequest);
    assert_eq!(
        code(&mut rig, &push(client, subscription, b"")),
        ErrorCode::InvalidRequest
    );
    let counters = rig.shards[0].counters;
    assert_eq!(
        (counters.telemetry_pushes, counters.telemetry_bytes),
        (2, 5)
    );
}

#[test]
fn what_cannot_be_read_or_is_too_large_is_refused() {
    let mut rig = Rig::new();
    let cases = [
        (2, 1, b"x".to_vec(), ErrorCode::InvalidRecord),
        (3, 9, b"x".to_vec(), ErrorCode::UnsupportedCompressionType),
        (4, 0, vec![0; 1_048_577], ErrorCode::TelemetryTooLarge),
        (5, 4, vec![], ErrorCode::None),
    ];
    for (byte, compression_type, metrics, expected) in cases {
        let subscription = get(&mut rig, id(byte)).subscription_id;
        let request = PushTelemetryRequest {
            compression_type,
            ..push(id(byte), subscription, &metrics)
        };
        assert_eq!(code(&mut rig, &request), expected, "{compression_type}");
    }
    // A client that used a compression that is not known may ask again at once.
    assert_eq!(get(&mut rig, id(3)).error_code, 0);
}

#[test]
fn a_client_is_asked_for_what_its_subscriptions_say() {
    let mut rig = Rig::new();
    let pairs = [
        ("interval.ms", "10000"),
        ("metrics", "org.apache.kafka.b,org.apache.kafka.a"),
        (
            "match",
            "client_id=ri.,client_source_address=10[.]0[.]0[.]1",
        ),
    ];
    subscribe(&mut rig, "own", &pairs);
    subscribe(
        &mut rig,
        "others",
        &[("metrics", "*"), ("match", "client_id=other")],
    );
    let told = get(&mut rig, id(1));
    assert_eq!(
        told.requested_metrics,
        ["org.apache.kafka.a", "org.apache.kafka.b"]
    );
    assert_eq!(told.push_interval_ms, 10_000);
    // A change makes another subscription, which the client hears of when it pushes.
    subscribe(
        &mut rig,
        "all",
        &[("metrics", "*"), ("interval.ms", "20000")],
    );
    assert_eq!(
        code(&mut rig, &push(id(1), told.subscription_id, b"x")),
        ErrorCode::UnknownSubscriptionId
    );
    let told = get(&mut rig, id(1));
    assert_eq!((told.error_code, told.push_interval_ms), (0, 10_000));
    assert_eq!(told.requested_metrics, ["*"]);
    assert_eq!(
        code(&mut rig, &push(id(1), told.subscription_id, b"x")),
        ErrorCode::None
    );
}
