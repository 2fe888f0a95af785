//! What is read before any shard starts: journals are replayed into the segments, then the metadata quorum opens its log.
//!
//! Both are cursors that ask for one disk operation at a time; here each is carried out on the calling thread.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::StatFs;
use tracing::{error, info, warn};

use super::config::BootError;
use crate::disk::blocking::Disk;
use crate::log::{DiskOp, DiskResult, Finish, Ids, Opened, Replay, Step, Stopped, StoreConfig};
use crate::meta::{Image, StaticConfig};
use crate::model::Rng;
use crate::model::limit::{
    BLOCK_BYTES, CLOSED_FILES_MAX, JOURNAL_BYTES_MAX, JOURNAL_FILE_BYTES_MIN,
};
use crate::quorum::{self, Booted, Quorum};

/// Replays every journal of the log dir, whichever shard wrote it.
pub(super) fn replay(dir: &Path, shards: u16) -> Result<Opened, BootError> {
    let mut replay = Replay::new(shards);
    let opened = run_all(dir, |last| replay.next(last))
        .map_err(|why| BootError(format!("the data directory {}: {why}", dir.display())))?;
    for (shard, first, last) in &opened.breaks {
        error!(
            shard = shard.0,
            first, last, "frames of a journal were flushed and are gone: a disk lost them"
        );
    }
    if opened.replayed_bytes > 0 {
        info!(
            bytes = opened.replayed_bytes,
            "replayed what the journals had and the segments did not"
        );
    }
    Ok(*opened)
}

/// Notes a clean stop, once all shards have stopped. Gives whether it was one.
pub(super) fn finish(
    dir: &Path,
    opened: Opened,
    stopped: Vec<Stopped>,
    broker_epoch: Option<i64>,
) -> Result<bool, String> {
    // -1 is Kafka's "none".
    let mut finish = Finish::new(opened, stopped, broker_epoch.unwrap_or(-1));
    run_all(dir, |last| finish.next(last))
}

/// Drives a cursor over a log dir.
fn run_all<T>(
    dir: &Path,
    mut next: impl FnMut(Option<DiskResult>) -> Step<T>,
) -> Result<T, String> {
    let mut disk = Disk::new(dir);
    let mut last = None;
    loop {
        match next(last.take()) {
            Step::Op(op) => last = Some(disk.run(op)),
            Step::Done(done) => return Ok(done),
            Step::Failed(why) => return Err(why),
        }
    }
}

/// How the controller's shard opens the metadata log: on its own thread, because nothing of a quorum moves between threads.
pub(super) struct QuorumSeed {
    pub process: i32,
    pub statics: Arc<StaticConfig>,
    pub rng: Rng,
    /// Where the image of everything committed goes, for the other shards.
    pub image: flume::Sender<Result<Image, String>>,
}

/// The metadata log's operations and files have odd ids, the store's even ones.
pub(super) const QUORUM_IDS: Ids = Ids {
    first: 1,
    stride: 2,
};
pub(super) const STORE_IDS: Ids = Ids {
    first: 0,
    stride: 2,
};

impl QuorumSeed {
    pub fn open(self, dir: &Path, opened: &Opened) -> Result<Booted, String> {
        let options = quorum::Options {
            process: self.process,
            snapshot_records: self.statics.number("metadata.snapshot.records") as u64,
            ids: QUORUM_IDS,
        };
        let mut boot = Quorum::boot(options, self.statics, self.rng);
        let mut disk = Disk::new(dir);
        let mut last = None;
        let booted = loop {
            match boot.next(last.take()) {
                quorum::Step::Op(op) => last = Some(disk.run(op)),
                quorum::Step::Done(booted) => break Ok(*booted),
                quorum::Step::Failed(why) => break Err(why),
            }
        };
        if let Ok(booted) = &booted {
            set_strays_aside(&mut disk, opened, &booted.image);
        }
        let image = match &booted {
            Ok(booted) => Ok(booted.image.clone()),
            Err(why) => Err(why.clone()),
        };
        // The process waits for it, unless it is ending.
        let _ = self.image.send(image);
        booted
    }
}

/// Before any topic that exists is looked for in its place.
fn set_strays_aside(disk: &mut Disk, opened: &Opened, image: &Image) {
    for (from, to) in opened.strays(|tp| image.partition(tp).is_some()) {
        let (dir, now) = (from.clone(), to.clone());
        match disk.run(DiskOp::Rename { from, to }) {
            Ok(_) => warn!(
                dir,
                now, "a log of no topic is set aside; remove it when it is not missed"
            ),
            Err(error) => warn!(dir, %error, "a log of no topic cannot be set aside"),
        }
    }
}

/// The file system that a log dir is on.
#[derive(Debug)]
pub(super) struct FileSystem {
    /// As the start-up line has it.
    pub name: &'static str,
    bytes: u64,
}

impl FileSystem {
    /// It keeps nothing when the power goes.
    pub fn is_memory(&self) -> bool {
        matches!(self.name, "tmpfs" | "ramfs")
    }

    pub fn of(dir: &Path) -> Result<FileSystem, BootError> {
        let stat: StatFs = rustix::fs::statfs(dir).map_err(|error| {
            BootError(format!(
                "cannot look at the file system of {}: {error}",
                dir.display()
            ))
        })?;
        // From linux/magic.h; the magic number of ext4 is that of ext2 and ext3 too, which the same driver serves.
        let name = match stat.f_type as u64 & 0xffff_ffff {
            0xef53 => "ext4",
            0x5846_5342 => "xfs",
            0x9123_683e => "btrfs",
            0x0102_1994 => "tmpfs",
            0x8584_58f6 => "ramfs",
            0x794c_7630 => "overlayfs",
            _ => "another file system",
        };
        Ok(FileSystem {
            name,
            bytes: stat.f_blocks as u64 * stat.f_bsize as u64,
        })
    }
}

/// The store of one shard, as the operator wants it and the disk allows.
pub(super) fn store_config(statics: &StaticConfig, disk: &FileSystem, shards: u16) -> StoreConfig {
    let number = |name| statics.number(name) as u64;
    let journal_files_max = number("journal.files.max") as u32;
    let direct_threshold_bytes = number("log.direct.threshold.bytes") as u32;
    let journal_file_bytes = match statics.number_or_null("journal.file.bytes") {
        Some(bytes) => bytes as u64,
        None => {
            let all = JOURNAL_BYTES_MAX.min(disk.bytes / 50);
            let file = all / u64::from(shards) / u64::from(journal_files_max);
            file.max(JOURNAL_FILE_BYTES_MIN)
        }
    };
    // A frame holds several small appends.
    let journal_file_bytes = journal_file_bytes.max(4 * u64::from(direct_threshold_bytes));
    let block = BLOCK_BYTES as u64;
    StoreConfig {
        journal_file_bytes: (journal_file_bytes.next_multiple_of(block)) as u32,
        journal_files_max,
        direct_threshold_bytes,
        closed_files_max: closed_files_max(shards),
        tail_cache_bytes: number("tail.cache.bytes"),
        retention_check_interval_ms: number("log.retention.check.interval.ms"),
        producer_check_interval_ms: number("producer.id.expiration.check.interval.ms"),
        failure_timeout_ms: number("log.dir.failure.timeout.ms"),
        ..StoreConfig::default()
    }
}

/// What is open only to be read quickly takes a sixteenth of the descriptors at most, over all shards; a closed segment may hold two.
fn closed_files_max(shards: u16) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.map_or(u64::MAX, |limit| limit / 32 / u64::from(shards));
    usize::try_from(share).map_or(CLOSED_FILES_MAX, |share| share.clamp(4, CLOSED_FILES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(shards: u16, disk_bytes: u64, settings: &[(&str, &str)]) -> (u32, u32) {
        let mut statics = StaticConfig::default();
        for (name, value) in settings {
            statics.set(name, value).unwrap();
        }
        let disk = FileSystem {
            name: "ext4",
            bytes: disk_bytes,
        };
        let config = store_config(&statics, &disk, shards);
        (config.journal_file_bytes, config.journal_files_max)
    }

    #[test]
    fn journals_of_all_shards_take_64_mib_and_two_percent_at_most() {
        const MIB: u64 = 1 << 20;
        assert_eq!(journal(1, 1 << 40, &[]), (16 << 20, 4));
        assert_eq!(journal(4, 1 << 40, &[]), (4 << 20, 4));
        // 2 % of 300 MiB is 6 MiB.
        assert_eq!(journal(1, 300 * MIB, &[]), (1_572_864, 4));
        assert_eq!(
            journal(1, 1 << 40, &[("journal.file.bytes", "2097152")]),
            (2 << 20, 4)
        );
    }

    #[test]
    fn the_file_system_of_the_build_is_known() {
        let disk = FileSystem::of(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(disk.bytes > 0);
    }
}
