//! What a shard counts, and the copy of it that leaves the shard when somebody asks.
//!
//! Counters are plain numbers of the shard's own thread: one add each where something happens, nothing shared. A copy is made when the
//! operator's port is read, and costs time only then. Series are bounded: the first topics by name have their own, the rest is one sum.

use std::collections::BTreeMap;

use super::Shard;
use crate::log::{Fenced, JournalCounts, LogState};
use crate::model::limit::{SCRAPE_FENCED_MAX, SCRAPE_LOGS_MAX, SCRAPE_TOPICS_MAX};
use crate::model::{Instant, NodeId, ShardIndex};
use crate::wire::ApiKey;

/// Numbers that the shell may export.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counters {
    pub requests: u64,
    pub requests_bad: u64,
    /// Bytes behind a request's body, ignored as Kafka does.
    pub trailing_bytes: u64,
    pub records_in: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Partitions of Produce requests that were answered with an error, and of Fetch requests.
    pub produce_failed: u64,
    pub fetch_failed: u64,
    /// Pushes of clients' metrics, and their bytes, decompressed.
    pub telemetry_pushes: u64,
    pub telemetry_bytes: u64,
    pub connections_opened: u64,
}

/// Times in buckets that double: bucket i holds times of at most 2^i microseconds, the last one all longer ones.
#[derive(Clone, Copy, Default, Debug)]
pub struct Histogram {
    pub buckets: [u64; Histogram::BUCKETS],
    pub sum_us: u64,
}

impl Histogram {
    /// Up to 2^24 us (16.8 s), and longer.
    pub const BUCKETS: usize = 26;

    pub fn record(&mut self, us: u64) {
        let bucket = us
            .saturating_sub(1)
            .checked_ilog2()
            .map_or(0, |log| log as usize + 1);
        self.buckets[bucket.min(Histogram::BUCKETS - 1)] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Requests of one API. Versions from [`ApiStats::VERSIONS`] on share the last place.
#[derive(Clone, Copy, Default, Debug)]
pub struct ApiStats {
    pub by_version: [u64; ApiStats::VERSIONS],
    /// From the turn in which a request started to the turn in which its answer was ready.
    pub time: Histogram,
}

impl ApiStats {
    pub const VERSIONS: usize = 24;
}

/// By API key.
#[derive(Debug)]
pub struct Requests(Vec<ApiStats>);

impl Default for Requests {
    fn default() -> Requests {
        let highest = super::api::advertised()
            .last()
            .map_or(0, |(api, _, _)| api.code());
        Requests(vec![ApiStats::default(); highest as usize + 1])
    }
}

impl Requests {
    fn of(&mut self, api: ApiKey) -> Option<&mut ApiStats> {
        self.0.get_mut(api.code() as usize)
    }

    pub fn started(&mut self, api: ApiKey, version: i16) {
        if let Some(stats) = self.of(api) {
            let version = usize::try_from(version).unwrap_or(0);
            stats.by_version[version.min(ApiStats::VERSIONS - 1)] += 1;
        }
    }

    pub fn answered(&mut self, api: ApiKey, since: Instant, now: Instant) {
        if let Some(stats) = self.of(api) {
            stats.time.record(now.since_us(since));
        }
    }

    /// Those that were asked for.
    fn asked(&self) -> Vec<(ApiKey, ApiStats)> {
        super::api::advertised()
            .into_iter()
            .filter_map(|(api, _, _)| Some((api, *self.0.get(api.code() as usize)?)))
            .filter(|(_, stats)| stats.by_version.iter().any(|count| *count > 0))
            .collect()
    }
}

/// What went in and out of one partition, or of several.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Traffic {
    pub records_in: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl Traffic {
    fn add(&mut self, other: Traffic) {
        self.records_in += other.records_in;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

#[derive(Clone, Debug)]
pub struct LogStats {
    pub topic: String,
    pub partition: i32,
    pub start: i64,
    /// The high watermark.
    pub end: i64,
    pub size_bytes: u64,
    pub segments: usize,
}

/// What the cluster agreed on, in numbers.
#[derive(Clone, Copy, Debug)]
pub struct ClusterStats {
    pub nodes: usize,
    pub topics: usize,
    pub partitions: usize,
    pub partitions_offline: usize,
    pub metadata_offset: u64,
}

/// A shard at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub shard: ShardIndex,
    pub node: NodeId,
    /// (listener, port)
    pub ports: Vec<(String, u16)>,
    pub ready: bool,
    /// Why the shard can write nothing any more.
    pub failed: Option<String>,
    pub counters: Counters,
    pub requests: Vec<(ApiKey, ApiStats)>,
    pub connections: usize,
    pub parked: usize,
    pub partitions: usize,
    pub leaders: usize,
    pub segments: usize,
    pub log_bytes: u64,
    pub unwritten_bytes: u64,
    /// Appended, and not flushed in segments or in the journal.
    pub unflushed_records: u64,
    pub tail_bytes: u64,
    pub index_bytes: u64,
    pub journal: JournalCounts,
    pub topics: Vec<(String, Traffic)>,
    /// Of topics beyond the bound.
    pub topics_other: Traffic,
    pub logs: Vec<LogStats>,
    /// Replicas out of use, and why: the first of them.
    pub fenced: Vec<(String, i32, String)>,
    pub fenced_count: usize,
    pub fenced_loss_count: usize,
    /// From the controller's shard alone.
    pub cluster: Option<ClusterStats>,
}

impl Shard {
    pub fn report(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            shard: self.config.shard,
            node: self.node,
            ports: self
                .config
                .listeners
                .iter()
                .map(|listener| (listener.name.clone(), listener.port))
                .collect(),
            ready: self.is_ready() && !self.stopping,
            failed: self.store.failed().or(self.failed()).map(str::to_string),
            counters: self.counters,
            requests: self.conns.requests.asked(),
            connections: self.conns.len(),
            parked: self.parked.len(),
            partitions: self.hosted.len(),
            leaders: 0,
            segments: 0,
            log_bytes: 0,
            unwritten_bytes: self.store.unwritten_bytes(),
            unflushed_records: 0,
            tail_bytes: self.store.tail_bytes(),
            index_bytes: self.store.index_bytes(),
            journal: self.store.journal_counts(),
            topics: Vec::new(),
            topics_other: Traffic::default(),
            logs: Vec::new(),
            fenced: Vec::new(),
            fenced_count: 0,
            fenced_loss_count: 0,
            cluster: self.controller.is_some().then(|| self.cluster_stats()),
        };
        self.note_partitions(&mut snapshot);
        snapshot
    }

    fn note_partitions(&self, snapshot: &mut Snapshot) {
        // By the image, so that all shards of a process name the same ones.
        let mut named: BTreeMap<_, _> = self
            .image
            .topics()
            .take(SCRAPE_TOPICS_MAX)
            .map(|topic| (topic.id, None))
            .collect();
        for (tp, hosted) in &self.hosted {
            let of_topic = named.get_mut(&tp.topic);
            let has_name = of_topic.is_some();
            match of_topic {
                Some(sum) => sum.get_or_insert_with(Traffic::default).add(hosted.traffic),
                None => snapshot.topics_other.add(hosted.traffic),
            }
            snapshot.leaders += usize::from(hosted.replica.is_some());
            let Some(log) = self.store.log(*tp) else {
                continue;
            };
            snapshot.segments += log.segments_count();
            snapshot.log_bytes += log.size_bytes();
            snapshot.unflushed_records += (log.appended() - log.flushed()).max(0) as u64;
            if let LogState::Fenced(why) = log.state() {
                snapshot.fenced_count += 1;
                snapshot.fenced_loss_count += usize::from(matches!(why, Fenced::Loss { .. }));
                if snapshot.fenced.len() < SCRAPE_FENCED_MAX {
                    let topic = hosted.topic.name.to_string();
                    snapshot.fenced.push((topic, tp.partition, reason(why)));
                }
            } else if has_name && snapshot.logs.len() < SCRAPE_LOGS_MAX {
                snapshot.logs.push(LogStats {
                    topic: hosted.topic.name.to_string(),
                    partition: tp.partition,
                    start: log.start(),
                    end: log.high_watermark(),
                    size_bytes: log.size_bytes(),
                    segments: log.segments_count(),
                });
            }
        }
        for (id, sum) in named {
            if let (Some(topic), Some(sum)) = (self.image.topic(id), sum) {
                snapshot.topics.push((topic.name.to_string(), sum));
            }
        }
    }

    fn cluster_stats(&self) -> ClusterStats {
        let partitions = || self.image.topics().flat_map(|topic| &topic.partitions);
        ClusterStats {
            nodes: self.image.nodes().count(),
            topics: self.image.topic_count(),
            partitions: partitions().count(),
            partitions_offline: partitions()
                .filter(|partition| self.image.node(partition.leader).is_none())
                .count(),
            metadata_offset: self.image.applied(),
        }
    }
}

fn reason(why: &Fenced) -> String {
    match why {
        Fenced::Io(text) => format!("the disk failed: {text}"),
        Fenced::Loss { from, to } => match *to {
            i64::MAX => format!("records from offset {from} on are lost"),
            to => format!("records [{from}..{to}) are lost"),
        },
        Fenced::Damaged(text) => format!("its directory is damaged: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_times_up_to_its_bound_and_none_above() {
        let bucket = |us| {
            let mut histogram = Histogram::default();
            histogram.record(us);
            assert_eq!((histogram.count(), histogram.sum_us), (1, us));
            histogram.buckets.iter().position(|count| *count == 1)
        };
        for power in 0..25 {
            assert_eq!(bucket(1 << power), Some(power));
            assert_eq!(bucket((1 << power) + 1), Some(power + 1));
        }
        assert_eq!(bucket(0), Some(0));
        assert_eq!(bucket(u64::MAX), Some(Histogram::BUCKETS - 1));
    }

    #[test]
    fn requests_are_counted_by_version_and_none_is_too_high() {
        let mut requests = Requests::default();
        requests.started(ApiKey::Fetch, 17);
        requests.started(ApiKey::Fetch, i16::MAX);
        requests.started(ApiKey::Produce, -1);
        requests.answered(ApiKey::Fetch, Instant(10), Instant(13));
        let asked = requests.asked();
        let names: Vec<ApiKey> = asked.iter().map(|(api, _)| *api).collect();
        assert_eq!(names, [ApiKey::Produce, ApiKey::Fetch]);
        assert_eq!(asked[0].1.by_version[0], 1);
        assert_eq!(asked[1].1.by_version[17], 1);
        assert_eq!(asked[1].1.by_version[ApiStats::VERSIONS - 1], 1);
        assert_eq!(
            (asked[1].1.time.count(), asked[1].1.time.buckets[2]),
            (1, 1)
        );
    }
}
