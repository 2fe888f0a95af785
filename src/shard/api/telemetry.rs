//! Clients that push their metrics (KIP-714): which of them are known, what each was asked for, and when it may come again.
//!
//! Known per node, as Kafka's brokers know them. What is pushed is counted and read no further.

use std::collections::BTreeMap;

use crate::meta::Resource;
use crate::meta::config::{ALL_METRICS, INTERVAL_MS, Subscription};
use crate::model::limit::TELEMETRY_CLIENTS_MAX;
use crate::model::{ConnId, ErrorCode, Instant, Uuid};
use crate::shard::Shard;

/// The clients of one node.
#[derive(Default, Debug)]
pub struct Telemetry {
    clients: BTreeMap<Uuid, Client>,
    /// Clients by the last time they were heard of, oldest first.
    heard: BTreeMap<u64, Uuid>,
    next: u64,
    /// `None` after a change of what is subscribed.
    subscriptions: Option<Vec<Subscription>>,
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub wanted: Wanted,
    last_get: Option<Instant>,
    last_push: Option<Instant>,
    /// It asked after its last push.
    asked: bool,
    pub terminating: bool,
    pub last_error: ErrorCode,
    heard: u64,
}

/// What a client is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub metrics: Vec<String>,
    pub interval_ms: i32,
    /// Of metrics, interval and client: another one when any of them changes.
    pub id: i32,
}

impl Client {
    fn new(wanted: Wanted) -> Client {
        Client {
            wanted,
            last_get: None,
            last_push: None,
            asked: false,
            terminating: false,
            last_error: ErrorCode::None,
            heard: 0,
        }
    }

    fn is_early(&self, since: Option<Instant>, now: Instant) -> bool {
        let interval_us = u64::try_from(self.wanted.interval_ms).unwrap_or(0) * 1000;
        since.is_some_and(|since| now.since_us(since) < interval_us)
    }

    /// Whether it may ask for its subscription now; noted if so. A client that was told that its subscription or its
    /// compression is not known asks at once.
    pub fn may_get(&mut self, now: Instant) -> bool {
        let told = matches!(
            self.last_error,
            ErrorCode::UnknownSubscriptionId | ErrorCode::UnsupportedCompressionType
        );
        let allowed = told || !self.is_early(self.last_get.max(self.last_push), now);
        if allowed {
            (self.last_get, self.asked) = (Some(now), true);
        }
        allowed
    }

    /// Whether it may push now; noted if so. The first push after a question may come at any time.
    pub fn may_push(&mut self, now: Instant) -> bool {
        let allowed = self.asked || !self.is_early(self.last_push, now);
        if allowed {
            (self.last_push, self.asked) = (Some(now), false);
        }
        allowed
    }
}

impl Telemetry {
    /// What is subscribed has changed.
    pub fn changed(&mut self) {
        self.subscriptions = None;
    }

    pub(super) fn knows(&self, id: Uuid) -> bool {
        self.clients.contains_key(&id)
    }
}

impl Shard {
    /// The client with this id, which is new or asked for what is subscribed now. At the bound the one heard of last goes.
    pub(super) fn telemetry_client(&mut self, id: Uuid, conn: ConnId) -> &mut Client {
        let wanted = self.wanted_of(id, conn);
        let telemetry = &mut self.telemetry;
        if !telemetry.knows(id)
            && telemetry.clients.len() >= TELEMETRY_CLIENTS_MAX
            && let Some((_, oldest)) = telemetry.heard.pop_first()
        {
            telemetry.clients.remove(&oldest);
        }
        telemetry.next += 1;
        let client = telemetry
            .clients
            .entry(id)
            .or_insert_with(|| Client::new(wanted.clone()));
        if client.wanted != wanted {
            client.wanted = wanted;
        }
        telemetry.heard.remove(&client.heard);
        client.heard = telemetry.next;
        telemetry.heard.insert(client.heard, id);
        client
    }

    fn wanted_of(&mut self, id: Uuid, conn: ConnId) -> Wanted {
        if self.telemetry.subscriptions.is_none() {
            let image = &self.image;
            let all = image.configured(Resource::ClientMetrics);
            let sets = all.filter_map(|name| image.configs(Resource::ClientMetrics, name));
            self.telemetry.subscriptions = Some(sets.map(Subscription::new).collect());
        }
        let properties = self.properties_of(id, conn);
        let property = |name: &str| properties.get(name).map(String::as_str);
        let mut metrics: Vec<String> = Vec::new();
        let mut interval_ms = INTERVAL_MS;
        let all = self.telemetry.subscriptions.iter().flatten();
        for subscription in all.filter(|subscription| subscription.matches(property)) {
            metrics.extend(subscription.metrics.iter().cloned());
            interval_ms = interval_ms.min(subscription.interval_ms);
        }
        metrics.sort_unstable();
        metrics.dedup();
        if metrics.iter().any(|metric| metric == ALL_METRICS) {
            metrics = vec![ALL_METRICS.to_string()];
        }
        let text = format!("{metrics:?}{interval_ms}");
        let half = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        let folded = half(&id.0[..8]) ^ half(&id.0[8..]);
        let client = (folded >> 32) as u32 ^ folded as u32;
        Wanted {
            id: (crc32c::crc32c(text.as_bytes()) ^ client) as i32,
            metrics,
            interval_ms,
        }
    }

    fn properties_of(&self, id: Uuid, conn: ConnId) -> BTreeMap<&'static str, String> {
        let mut properties = BTreeMap::new();
        properties.insert("client_instance_id", id.to_string());
        let Some(conn) = self.conns.get(conn) else {
            return properties;
        };
        let (name, version) = match &conn.software {
            Some(software) => software.rsplit_once(' ').unwrap_or((software, "")),
            None => ("", ""),
        };
        properties.insert("client_id", conn.client_id.clone().unwrap_or_default());
        properties.insert("client_software_name", name.to_string());
        properties.insert("client_software_version", version.to_string());
        properties.insert("client_source_address", conn.peer.ip().to_string());
        properties.insert("client_source_port", conn.peer.port().to_string());
        properties
    }
}
