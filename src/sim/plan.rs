//! What a seed chooses before anything happens: shapes, loads and faults.

use super::Faults;
use crate::batch::Codec;
use crate::log::StoreConfig;
use crate::log::faulty::Loss;
use crate::model::{Instant, Rng};

#[derive(Clone, Debug)]
pub(super) struct TopicPlan {
    pub name: String,
    pub partitions: i32,
    pub configs: Vec<(&'static str, String)>,
    pub write_caching: bool,
}

#[derive(Clone, Debug)]
pub(super) struct ProducerPlan {
    pub idempotent: bool,
    pub acks: i16,
    pub version: i16,
    /// Indexes of topics.
    pub topics: Vec<usize>,
    /// Requests in flight on a connection.
    pub depth: usize,
    /// Microseconds between looks, `[from..to)`.
    pub pause_us: (u64, u64),
    pub codec: Codec,
    /// One batch in so many is large enough to go straight to its segment; 0: none.
    pub bulk_one_in: u64,
    pub bulk_bytes: u64,
    /// Cuts a connection once in so many looks; 0: never.
    pub cut_one_in: u64,
    pub timeout_ms: i32,
}

/// What becomes of topics after their creation.
#[derive(Clone, Debug)]
pub(super) struct AdminPlan {
    /// Between one change and the next, `[from..to)`; (0, 0): nothing changes.
    pub pause_ms: (u64, u64),
    pub cut_one_in: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ProberPlan {
    pub pause_us: (u64, u64),
    pub cut_one_in: u64,
}

#[derive(Clone, Debug)]
pub(super) struct VandalPlan {
    pub pause_us: (u64, u64),
}

#[derive(Clone, Debug)]
pub(super) struct ConsumerPlan {
    pub version: i16,
    pub sessions: bool,
    pub isolation_level: i8,
    pub topics: Vec<usize>,
    pub max_wait_ms: i32,
    pub min_bytes: i32,
    pub bytes_max: i32,
    pub partition_bytes_max: i32,
    pub pause_us: (u64, u64),
    pub cut_one_in: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Crash {
        loss: Loss,
        down_ms: u64,
        shards: usize,
    },
    /// The next crash comes when so many more acknowledgements have reached clients.
    CrashOnAck {
        loss: Loss,
        acks: u64,
        shards: usize,
        /// Every disk operation takes so much longer until then.
        slow: u64,
    },
    /// The process is asked to stop, and starts again.
    Stop { down_ms: u64, shards: usize },
    /// Every operation takes so much longer for a while.
    Slow { factor: u64, for_ms: u64 },
    /// Operations on paths with this in them fail, until the process starts again.
    Broken { what: &'static str },
    /// So many bytes more fit on the disk, for a while.
    Full { bytes: u64, for_ms: u64 },
    /// The wall clock is off by so much from now on.
    Clock { offset_ms: i64 },
    /// The next log with records above its high watermark loses some of them, as a follower's does that has diverged.
    Diverge,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub shards: usize,
    pub store: StoreConfig,
    pub topics: Vec<TopicPlan>,
    pub producers: Vec<ProducerPlan>,
    pub consumers: Vec<ConsumerPlan>,
    pub admin: AdminPlan,
    pub probers: Vec<ProberPlan>,
    pub vandals: Vec<VandalPlan>,
    /// How long producers make new batches and faults come.
    pub storm: Instant,
    pub faults: Vec<(Instant, Fault)>,
    pub disk_latency_us: (u64, u64),
    pub net_latency_us: (u64, u64),
    pub peer_latency_us: (u64, u64),
    /// Messages on their way from one shard to another.
    pub mesh_max: usize,
    pub turn_us: (u64, u64),
    /// Metadata records between snapshots.
    pub snapshot_records: u64,
}

impl Plan {
    pub fn draw(rng: &mut Rng, faults: &Faults) -> Plan {
        let shards = 1 + rng.below(3) as usize;
        let topics = topics(rng);
        let storm_ms = pick(rng, &[300, 1_000, 3_000]);
        let busy = storm_ms < 3_000;
        let producers = (0..rng.range(2, 5))
            .map(|_| producer(rng, &topics, faults, busy))
            .collect();
        let consumers = (0..rng.range(1, 3))
            .map(|_| consumer(rng, &topics, faults))
            .collect();
        let cut_one_in = |rng: &mut Rng| match faults.has("cut") {
            true => pick(rng, &[0, 30, 200]),
            false => 0,
        };
        let admin = AdminPlan {
            pause_ms: pick(rng, &[(0, 0), (20, 100), (100, 600)]),
            cut_one_in: cut_one_in(rng),
        };
        let probers = (0..rng.range(1, 3)).map(|_| ProberPlan {
            pause_us: pick(rng, &[(300, 3_000), (2_000, 30_000)]),
            cut_one_in: cut_one_in(rng),
        });
        let probers = probers.collect();
        let vandals = (0..rng.below(3)).map(|_| VandalPlan {
            pause_us: pick(rng, &[(500, 5_000), (5_000, 100_000)]),
        });
        let vandals = match faults.has("garbage") {
            true => vandals.collect(),
            false => Vec::new(),
        };
        let mut plan = Plan {
            shards,
            store: store(rng),
            topics,
            producers,
            consumers,
            admin,
            probers,
            vandals,
            storm: Instant(storm_ms * 1000),
            faults: Vec::new(),
            disk_latency_us: pick(rng, &[(20, 200), (50, 2_000), (200, 10_000)]),
            net_latency_us: pick(rng, &[(5, 50), (20, 1_000)]),
            peer_latency_us: pick(rng, &[(1, 20), (5, 3_000)]),
            mesh_max: pick(rng, &[2, 8, 64]),
            turn_us: pick(rng, &[(2, 10), (20, 400)]),
            snapshot_records: pick(rng, &[3, 20, 1_000]),
        };
        plan.draw_faults(rng, faults, storm_ms);
        plan
    }

    fn draw_faults(&mut self, rng: &mut Rng, faults: &Faults, storm_ms: u64) {
        let mut shards = self.shards;
        // Where nothing but crashes comes, there are many: some bugs show in a short moment only.
        let count = match faults.has("stop") || faults.has("eio") || faults.has("slow") {
            true => rng.range(3, 9),
            false => rng.range(8, 20),
        };
        for _ in 0..count {
            let at = Instant(rng.range(20_000, storm_ms * 1000));
            let Some(kind) = faults.draw(rng) else { return };
            if faults.has("reshard") && rng.one_in(3) {
                shards = 1 + rng.below(3) as usize;
            }
            let fault = match kind {
                "power" | "kill" => {
                    let loss = match kind {
                        "kill" => Loss::Killed,
                        _ if rng.one_in(2) => Loss::All,
                        _ => Loss::Some,
                    };
                    match rng.one_in(2) {
                        true => Fault::CrashOnAck {
                            loss,
                            acks: rng.range(1, 40),
                            shards,
                            slow: pick(rng, &[1, 1, 20]),
                        },
                        false => Fault::Crash {
                            loss,
                            down_ms: rng.below(30),
                            shards,
                        },
                    }
                }
                "stop" => Fault::Stop {
                    down_ms: rng.below(30),
                    shards,
                },
                "slow" => Fault::Slow {
                    factor: rng.range(5, 50),
                    for_ms: rng.range(10, 200),
                },
                "eio" => Fault::Broken {
                    what: pick(rng, &["journal", "a-0/", "b-1/", ".index", "0.log"]),
                },
                "enospc" => Fault::Full {
                    bytes: rng.below(100_000),
                    for_ms: rng.range(50, 500),
                },
                "diverge" => Fault::Diverge,
                "clock" => Fault::Clock {
                    offset_ms: pick(rng, &[-600_000, -1_000, 0, 1_000, 600_000]),
                },
                _ => continue,
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

pub(super) fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize].clone()
}

fn store(rng: &mut Rng) -> StoreConfig {
    let journal_file_bytes = pick(rng, &[32, 64, 256]) * 1024;
    StoreConfig {
        progress_bytes: u64::from(journal_file_bytes) / 2,
        journal_file_bytes,
        journal_files_max: pick(rng, &[1, 2, 4]),
        frame_beside_bytes_min: journal_file_bytes / 32,
        direct_threshold_bytes: pick(rng, &[2_048, 8_192]),
        tail_cache_bytes: pick(rng, &[0, 64 * 1024, 4 * 1024 * 1024]),
        destage_bytes: pick(rng, &[4_096, 16_384, 262_144]),
        destage_writes_max: pick(rng, &[1, 4, 64]),
        allocate_bytes_min: pick(rng, &[4_096, 16_384, 65_536]),
        allocate_bytes_max: 262_144,
        allocate_retry_ms: 50,
        flush_interval_ms: pick(rng, &[5, 20, 1_000]),
        retention_check_interval_ms: pick(rng, &[20, 200]),
        ..StoreConfig::default()
    }
}

fn topics(rng: &mut Rng) -> Vec<TopicPlan> {
    let mut topics = Vec::new();
    for name in ["a", "b", "c"].into_iter().take(rng.range(1, 4) as usize) {
        let mut configs = Vec::new();
        if rng.one_in(2) {
            let bytes = pick(rng, &[70_000, 120_000, 400_000]);
            configs.push(("internal.segment.bytes", bytes.to_string()));
        }
        if rng.one_in(3) {
            configs.push(("index.interval.bytes", "256".to_string()));
        }
        if rng.one_in(6) {
            configs.push(("flush.messages", rng.range(1, 20).to_string()));
        }
        if rng.one_in(6) {
            configs.push(("flush.ms", rng.range(1, 100).to_string()));
        }
        // Some logs lose their oldest segments.
        match rng.below(6) {
            0 => configs.push(("retention.bytes", rng.range(50_000, 300_000).to_string())),
            1 => configs.push(("retention.ms", pick(rng, &[200, 1_000]).to_string())),
            _ => {}
        }
        if rng.one_in(4) {
            configs.push(("segment.ms", pick(rng, &[50, 500]).to_string()));
        }
        configs.push((
            "file.delete.delay.ms",
            pick(rng, &[0, 50, 60_000]).to_string(),
        ));
        let write_caching = rng.one_in(4);
        if write_caching {
            configs.push(("write.caching", "true".to_string()));
        }
        topics.push(TopicPlan {
            name: name.to_string(),
            partitions: rng.range(1, 5) as i32,
            configs,
            write_caching,
        });
    }
    topics
}

fn some_of(rng: &mut Rng, topics: &[TopicPlan]) -> Vec<usize> {
    let mut some: Vec<usize> = (0..topics.len()).filter(|_| rng.one_in(2)).collect();
    if some.is_empty() {
        some.push(rng.below(topics.len() as u64) as usize);
    }
    some
}

fn producer(rng: &mut Rng, topics: &[TopicPlan], faults: &Faults, busy: bool) -> ProducerPlan {
    let idempotent = rng.one_in(2);
    let acks = match idempotent {
        true => -1,
        false => pick(rng, &[-1, 1, 1, 0]),
    };
    let codecs = [
        Codec::None,
        Codec::None,
        Codec::None,
        Codec::Lz4,
        Codec::Snappy,
        Codec::Gzip,
        Codec::Zstd,
    ];
    let codec = pick(rng, &codecs);
    // Produce takes zstd from version 7 on.
    let version_min = if codec == Codec::Zstd { 7 } else { 3 };
    ProducerPlan {
        idempotent,
        acks,
        version: rng.range(version_min, 14) as i16,
        topics: some_of(rng, topics),
        depth: 1 + rng.below(5) as usize,
        pause_us: match busy {
            true => pick(rng, &[(300, 3_000), (2_000, 30_000)]),
            false => (3_000, 60_000),
        },
        codec,
        bulk_one_in: pick(rng, &[0, 3, 20]),
        bulk_bytes: pick(rng, &[6_000, 20_000, 60_000]),
        cut_one_in: match faults.has("cut") {
            true => pick(rng, &[0, 30, 200]),
            false => 0,
        },
        timeout_ms: pick(rng, &[20, 500, 30_000]),
    }
}

fn consumer(rng: &mut Rng, topics: &[TopicPlan], faults: &Faults) -> ConsumerPlan {
    let version = rng.range(4, 19) as i16;
    ConsumerPlan {
        version,
        sessions: version >= 7 && !rng.one_in(3),
        isolation_level: rng.below(2) as i8,
        topics: some_of(rng, topics),
        max_wait_ms: pick(rng, &[0, 10, 500]),
        min_bytes: pick(rng, &[0, 1, 1, 5_000]),
        bytes_max: pick(rng, &[1, 20_000, 10_000_000]),
        partition_bytes_max: pick(rng, &[1, 10_000, 1_000_000]),
        pause_us: pick(rng, &[(10, 100), (500, 20_000)]),
        cut_one_in: match faults.has("cut") {
            true => pick(rng, &[0, 100]),
            false => 0,
        },
    }
}
