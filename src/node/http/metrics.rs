//! `/metrics` in the text format of Prometheus 0.0.4. Where Kafka has the number, the name is the one that dashboards of Kafka's JMX
//! exporter use; what only this broker has is called `corelane_`.

use std::fmt::Write;
use std::time::Duration;

use crate::node::drive::Told;
use crate::shard::stats::{Histogram, LogStats, Traffic};

/// One metric: its series have labels as the text says.
pub struct Family {
    pub name: &'static str,
    pub kind: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

macro_rules! families {
    ($($id:ident $kind:literal $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(const $id: Family = Family { name: $name, kind: $kind, labels: &[$($label),*], help: $help };)*
        /// All metrics, in the order of their output.
        pub const FAMILIES: &[Family] = &[$($id),*];
    };
}

families! {
    BUILD "gauge" "corelane_build_info" ["version"] "1, with the version of the program.";
    UPTIME "gauge" "corelane_uptime_seconds" [] "Time since the process serves this port.";
    UP "gauge" "corelane_shard_up" ["shard"] "1 when the shard answered this scrape in time, else 0.";
    READY "gauge" "corelane_shard_ready" ["shard"] "1 while the shard serves clients.";
    FAILED "gauge" "corelane_shard_failed" ["shard"] "1 when the shard can write nothing any more.";
    MESSAGES_IN "counter" "kafka_server_brokertopicmetrics_messagesin_total" ["shard", "topic"] "Records of producers that were appended. Topics beyond the bound are in topic=\"_other\".";
    BYTES_IN "counter" "kafka_server_brokertopicmetrics_bytesin_total" ["shard", "topic"] "Bytes of batches that were appended.";
    BYTES_OUT "counter" "kafka_server_brokertopicmetrics_bytesout_total" ["shard", "topic"] "Bytes of batches that were sent to consumers.";
    FAILED_PRODUCE "counter" "kafka_server_brokertopicmetrics_failedproducerequests_total" ["shard"] "Partitions of Produce requests that were answered with an error.";
    FAILED_FETCH "counter" "kafka_server_brokertopicmetrics_failedfetchrequests_total" ["shard"] "Partitions of Fetch requests that were answered with an error.";
    REQUESTS "counter" "kafka_network_requestmetrics_requests_total" ["shard", "request", "version"] "Requests that were started.";
    TOTAL_TIME "histogram" "kafka_network_requestmetrics_totaltime_seconds" ["shard", "request"] "From the turn in which a request started to the turn in which its answer was ready; a request that is answered within its turn counts as 0.";
    BAD_REQUESTS "counter" "corelane_requests_bad_total" ["shard"] "Requests that closed their connection: they could not be read, or are not served.";
    CONNECTIONS "gauge" "kafka_server_socket_server_metrics_connection_count" ["shard"] "Open connections.";
    CONNECTIONS_OPENED "counter" "corelane_connections_opened_total" ["shard"] "Connections that were accepted.";
    PARKED "gauge" "kafka_server_delayedoperationpurgatory_purgatorysize" ["shard"] "Requests that wait: for the disk, for records, or for the controller.";
    PARTITIONS "gauge" "kafka_server_replicamanager_partitioncount" ["shard"] "Partitions of the shard.";
    LEADERS "gauge" "kafka_server_replicamanager_leadercount" ["shard"] "Partitions of the shard that it leads and serves.";
    OFFLINE_REPLICAS "gauge" "kafka_server_replicamanager_offlinereplicacount" ["shard"] "Replicas out of use; /status says why.";
    FENCED_LOSS "gauge" "corelane_replicas_fenced_by_loss" ["shard"] "Of these, replicas that lost records which were flushed.";
    TOPICS "gauge" "kafka_controller_kafkacontroller_globaltopiccount" [] "Topics of the cluster.";
    GLOBAL_PARTITIONS "gauge" "kafka_controller_kafkacontroller_globalpartitioncount" [] "Partitions of the cluster.";
    OFFLINE_PARTITIONS "gauge" "kafka_controller_kafkacontroller_offlinepartitionscount" [] "Partitions without a leader.";
    BROKERS "gauge" "kafka_controller_kafkacontroller_activebrokercount" [] "Nodes of the cluster; a shard is one.";
    METADATA_OFFSET "gauge" "kafka_server_raft_metrics_high_watermark" [] "Metadata records that the controller's shard has applied.";
    LOG_SIZE "gauge" "kafka_log_log_size" ["shard", "topic", "partition"] "Bytes of a partition's log. Partitions beyond the bound are left out.";
    LOG_START "gauge" "kafka_log_log_logstartoffset" ["shard", "topic", "partition"] "First offset of a partition.";
    LOG_END "gauge" "kafka_log_log_logendoffset" ["shard", "topic", "partition"] "High watermark of a partition: what consumers may read ends here.";
    LOG_SEGMENTS "gauge" "kafka_log_log_numlogsegments" ["shard", "topic", "partition"] "Segments of a partition.";
    LOG_BYTES "gauge" "corelane_log_bytes" ["shard"] "Bytes of all logs of the shard.";
    UNWRITTEN "gauge" "corelane_log_unwritten_bytes" ["shard"] "Bytes appended and not written yet; at a bound no Produce request starts.";
    UNFLUSHED "gauge" "corelane_log_unflushed_records" ["shard"] "Records appended and not flushed to the device yet.";
    JOURNAL_WRITES "counter" "corelane_journal_writes_total" ["shard"] "Frames that were written to the journal.";
    JOURNAL_BYTES "counter" "corelane_journal_bytes_total" ["shard"] "Bytes of these frames on the disk.";
    JOURNAL_FLUSHES "counter" "corelane_journal_flushes_total" ["shard"] "Flushes of the journal, and frames that were written with a flush.";
    JOURNAL_FILES "gauge" "corelane_journal_files" ["shard"] "Files of the journal.";
    JOURNAL_FILES_USED "gauge" "corelane_journal_files_in_use" ["shard"] "Of these, files whose records are not all in segments yet.";
    JOURNAL_IN_FLIGHT "gauge" "corelane_journal_frames_in_flight" ["shard"] "Frames that are being written.";
    TURN_TIME "histogram" "corelane_turn_seconds" ["shard"] "Time of a shard's turns: all that it does between two waits.";
    TURNS_SLOW "counter" "corelane_turns_slow_total" ["shard"] "Turns of more than 1 ms.";
    MEMORY "gauge" "corelane_memory_bytes" ["shard", "owner"] "Memory by what it is for: tail (newest records), indexes (of closed segments).";
    TELEMETRY_PUSHES "counter" "corelane_client_telemetry_pushes_total" ["shard"] "Pushes of clients' metrics that were taken (KIP-714).";
    TELEMETRY_BYTES "counter" "corelane_client_telemetry_bytes_total" ["shard"] "Bytes of these, decompressed.";
    CPU "counter" "process_cpu_seconds_total" [] "CPU time of the process.";
    RSS "gauge" "process_resident_memory_bytes" [] "Resident memory of the process.";
    FDS "gauge" "process_open_fds" [] "Open descriptors of the process.";
    THREADS "gauge" "process_threads" [] "Threads of the process.";
}

/// Two labels at most come with a value, beside the shard.
type Labels<'a> = &'a [&'a str];

struct Page {
    text: String,
    next: usize,
}

impl Page {
    /// The head of a family. They come in the order of the table: a family that is left out is seen by a test.
    fn family(&mut self, family: &Family) {
        debug_assert_eq!(FAMILIES[self.next].name, family.name);
        self.next += 1;
        let Family {
            name, help, kind, ..
        } = family;
        let help = help.replace('\\', "\\\\");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn labels(&mut self, names: &[&str], values: Labels<'_>) {
        for (at, (name, value)) in names.iter().zip(values).enumerate() {
            self.text.push_str(if at == 0 { "{" } else { "," });
            let value = value.replace('\\', "\\\\");
            let value = value.replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{name}=\"{value}\"");
        }
        if !names.is_empty() {
            self.text.push('}');
        }
    }

    fn sample(&mut self, family: &Family, values: Labels<'_>, number: impl std::fmt::Display) {
        self.text.push_str(family.name);
        self.labels(family.labels, values);
        let _ = writeln!(self.text, " {number}");
    }

    fn plain(&mut self, family: &Family, number: impl std::fmt::Display) {
        self.family(family);
        self.sample(family, &[], number);
    }

    fn histogram(&mut self, family: &Family, values: Labels<'_>, histogram: &Histogram) {
        let mut names = family.labels.to_vec();
        names.push("le");
        let mut sum = 0;
        for (power, count) in histogram.buckets.iter().enumerate() {
            sum += count;
            let bound = match power {
                // Nothing here is told apart below 16 us.
                0..4 => continue,
                power if power + 1 == Histogram::BUCKETS => "+Inf".to_string(),
                power => ((1u64 << power) as f64 / 1e6).to_string(),
            };
            let values: Vec<&str> = values.iter().copied().chain([&*bound]).collect();
            let _ = write!(self.text, "{}_bucket", family.name);
            self.labels(&names, &values);
            let _ = writeln!(self.text, " {sum}");
        }
        for (ending, number) in [
            ("_sum", histogram.sum_us as f64 / 1e6),
            ("_count", sum as f64),
        ] {
            let _ = write!(self.text, "{}{ending}", family.name);
            self.labels(family.labels, values);
            let _ = writeln!(self.text, " {number}");
        }
    }
}

/// The shards that answered, with their numbers as text.
type Shards<'a> = Vec<(String, &'a Told)>;

pub(super) fn render(told: &[Option<Box<Told>>], uptime: Duration) -> String {
    let mut page = Page {
        text: String::with_capacity(64 * 1024),
        next: 0,
    };
    page.family(&BUILD);
    page.sample(&BUILD, &[env!("CARGO_PKG_VERSION")], 1);
    page.plain(&UPTIME, uptime.as_secs_f64());
    page.family(&UP);
    for (index, told) in told.iter().enumerate() {
        page.sample(&UP, &[&index.to_string()], u8::from(told.is_some()));
    }
    let shards: Shards<'_> = told
        .iter()
        .flatten()
        .map(|told| (told.shard.shard.0.to_string(), &**told))
        .collect();
    requests(&mut page, &shards);
    cluster(&mut page, &shards);
    logs(&mut page, &shards);
    shard_itself(&mut page, &shards);
    process(&mut page);
    debug_assert_eq!(page.next, FAMILIES.len());
    page.text
}

/// One series a shard.
fn each(page: &mut Page, shards: &Shards<'_>, family: &Family, number: impl Fn(&Told) -> u64) {
    page.family(family);
    for (shard, told) in shards {
        page.sample(family, &[shard], number(told));
    }
}

fn requests(page: &mut Page, shards: &Shards<'_>) {
    each(page, shards, &READY, |told| u64::from(told.shard.ready));
    each(page, shards, &FAILED, |told| {
        u64::from(told.shard.failed.is_some())
    });
    by_topic(page, shards, &MESSAGES_IN, |traffic| traffic.records_in);
    by_topic(page, shards, &BYTES_IN, |traffic| traffic.bytes_in);
    by_topic(page, shards, &BYTES_OUT, |traffic| traffic.bytes_out);
    let counters = |told: &Told| told.shard.counters;
    each(page, shards, &FAILED_PRODUCE, |t| {
        counters(t).produce_failed
    });
    each(page, shards, &FAILED_FETCH, |t| counters(t).fetch_failed);
    page.family(&REQUESTS);
    for (shard, told) in shards {
        for (api, stats) in &told.shard.requests {
            let name = format!("{api:?}");
            let used = stats.by_version.iter().enumerate();
            for (version, count) in used.filter(|(_, count)| **count > 0) {
                page.sample(&REQUESTS, &[shard, &name, &version.to_string()], count);
            }
        }
    }
    page.family(&TOTAL_TIME);
    for (shard, told) in shards {
        for (api, stats) in &told.shard.requests {
            page.histogram(&TOTAL_TIME, &[shard, &format!("{api:?}")], &stats.time);
        }
    }
    each(page, shards, &BAD_REQUESTS, |t| counters(t).requests_bad);
    each(page, shards, &CONNECTIONS, |t| t.shard.connections as u64);
    each(page, shards, &CONNECTIONS_OPENED, |t| {
        counters(t).connections_opened
    });
    each(page, shards, &PARKED, |t| t.shard.parked as u64);
}

fn by_topic(
    page: &mut Page,
    shards: &Shards<'_>,
    family: &Family,
    number: impl Fn(&Traffic) -> u64,
) {
    page.family(family);
    for (shard, told) in shards {
        for (topic, traffic) in &told.shard.topics {
            page.sample(family, &[shard, topic], number(traffic));
        }
        if told.shard.topics_other != Default::default() {
            let others = number(&told.shard.topics_other);
            page.sample(family, &[shard, "_other"], others);
        }
    }
}

fn cluster(page: &mut Page, shards: &Shards<'_>) {
    each(page, shards, &PARTITIONS, |t| t.shard.partitions as u64);
    each(page, shards, &LEADERS, |t| t.shard.leaders as u64);
    each(page, shards, &OFFLINE_REPLICAS, |t| {
        t.shard.fenced_count as u64
    });
    each(page, shards, &FENCED_LOSS, |t| {
        t.shard.fenced_loss_count as u64
    });
    let cluster = shards.iter().find_map(|(_, told)| told.shard.cluster);
    let numbers = cluster.map(|cluster| {
        [
            cluster.topics as u64,
            cluster.partitions as u64,
            cluster.partitions_offline as u64,
            cluster.nodes as u64,
            cluster.metadata_offset,
        ]
    });
    let families = [
        &TOPICS,
        &GLOBAL_PARTITIONS,
        &OFFLINE_PARTITIONS,
        &BROKERS,
        &METADATA_OFFSET,
    ];
    for (at, family) in families.into_iter().enumerate() {
        page.family(family);
        if let Some(numbers) = numbers {
            page.sample(family, &[], numbers[at]);
        }
    }
}

fn logs(page: &mut Page, shards: &Shards<'_>) {
    type Number = fn(&LogStats) -> i64;
    let numbers: [(&Family, Number); 4] = [
        (&LOG_SIZE, |log| log.size_bytes as i64),
        (&LOG_START, |log| log.start),
        (&LOG_END, |log| log.end),
        (&LOG_SEGMENTS, |log| log.segments as i64),
    ];
    for (family, number) in numbers {
        page.family(family);
        for (shard, told) in shards {
            for log in &told.shard.logs {
                let partition = log.partition.to_string();
                page.sample(family, &[shard, &log.topic, &partition], number(log));
            }
        }
    }
    each(page, shards, &LOG_BYTES, |t| t.shard.log_bytes);
    each(page, shards, &UNWRITTEN, |t| t.shard.unwritten_bytes);
    each(page, shards, &UNFLUSHED, |t| t.shard.unflushed_records);
    each(page, shards, &JOURNAL_WRITES, |t| t.shard.journal.writes);
    each(page, shards, &JOURNAL_BYTES, |t| t.shard.journal.bytes);
    each(page, shards, &JOURNAL_FLUSHES, |t| t.shard.journal.flushes);
    each(page, shards, &JOURNAL_FILES, |t| {
        u64::from(t.shard.journal.files)
    });
    each(page, shards, &JOURNAL_FILES_USED, |t| {
        t.shard.journal.files_in_use as u64
    });
    each(page, shards, &JOURNAL_IN_FLIGHT, |t| {
        t.shard.journal.frames_in_flight as u64
    });
}

fn shard_itself(page: &mut Page, shards: &Shards<'_>) {
    page.family(&TURN_TIME);
    for (shard, told) in shards {
        page.histogram(&TURN_TIME, &[shard], &told.turns);
    }
    each(page, shards, &TURNS_SLOW, |t| t.turns_slow);
    page.family(&MEMORY);
    for (shard, told) in shards {
        page.sample(&MEMORY, &[shard, "tail"], told.shard.tail_bytes);
        page.sample(&MEMORY, &[shard, "indexes"], told.shard.index_bytes);
    }
    let counters = |told: &Told| told.shard.counters;
    each(page, shards, &TELEMETRY_PUSHES, |t| {
        counters(t).telemetry_pushes
    });
    each(page, shards, &TELEMETRY_BYTES, |t| {
        counters(t).telemetry_bytes
    });
}

/// What the kernel knows of the process. A number that cannot be read has no series.
fn process(page: &mut Page) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in brackets: state is field 3 of proc(5).
    let fields: Vec<&str> = match stat.rsplit_once(')') {
        Some((_, fields)) => fields.split_whitespace().collect(),
        None => Vec::new(),
    };
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let cpu = field(14)
        .zip(field(15))
        .map(|(user, system)| (user + system) as f64 / ticks);
    let rss = field(24).map(|pages| pages as f64 * rustix::param::page_size() as f64);
    let fds = std::fs::read_dir("/proc/self/fd")
        .ok()
        .map(|dir| dir.count() as f64);
    let threads = field(20).map(|count| count as f64);
    for (family, number) in [(&CPU, cpu), (&RSS, rss), (&FDS, fds), (&THREADS, threads)] {
        page.family(family);
        if let Some(number) = number {
            page.sample(family, &[], number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_name_of_its_own_and_a_shard_that_does_not_answer_is_down() {
        let names: std::collections::BTreeSet<_> = FAMILIES.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        let text = render(&[None], Duration::from_secs(2));
        assert!(
            text.contains("corelane_shard_up{shard=\"0\"} 0\n"),
            "{text}"
        );
        for family in FAMILIES {
            assert!(text.contains(&format!("# TYPE {} {}\n", family.name, family.kind)));
            assert_eq!(family.kind == "counter", family.name.ends_with("_total"));
        }
    }

    #[test]
    fn buckets_add_up_and_labels_are_escaped() {
        let mut page = Page {
            text: String::new(),
            next: 0,
        };
        let mut histogram = Histogram::default();
        for us in [3, 16, 17, 1 << 30] {
            histogram.record(us);
        }
        page.histogram(&TURN_TIME, &["a\"\\\n"], &histogram);
        let text = page.text;
        let label = "shard=\"a\\\"\\\\\\n\"";
        for (le, count) in [
            ("0.000016", 2),
            ("0.000032", 3),
            ("16.777216", 3),
            ("+Inf", 4),
        ] {
            let line = format!("corelane_turn_seconds_bucket{{{label},le=\"{le}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(text.contains(&format!("corelane_turn_seconds_count{{{label}}} 4\n")));
    }
}
