//! Whether this machine can run the broker: asked by the boot (what must be there) and by `corelane doctor` (what should be, too).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::FallocateFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use super::config::{BootError, ServerConfig};
use super::ring::{Ring, Waker};
use crate::model::limit::JOURNAL_BYTES_MAX;

/// Locked memory that each executor insists on, bytes (glommio).
const MEMLOCK_BYTES_MIN: u64 = 512 * 1024;

/// Descriptors without which nothing works: rings, timers, listeners, journals, and some for each shard.
const FILES_MIN: u64 = 256;
const FILES_PER_SHARD_MIN: u64 = 64;

/// Descriptors below which a machine with many connections or partitions runs out: each has at least one.
const FILES_GOOD: u64 = 65_536;

const FREE_BYTES_GOOD: u64 = 10 << 30;

/// Flushes timed for the figure of the disk.
const FLUSHES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Fit,
    /// It runs, but not as it could.
    Poor,
    /// It does not run.
    Unfit,
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    pub what: &'static str,
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What to change; empty when fit.
    pub advice: String,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, seen: String, advice: &str) -> Finding {
        let advice = match verdict {
            Verdict::Fit => String::new(),
            Verdict::Poor | Verdict::Unfit => advice.to_string(),
        };
        Finding {
            what,
            verdict,
            seen,
            advice,
        }
    }
}

/// What must be there, quickly: the first thing that is missing is the error. Raises the soft limits as far as they go.
pub fn require(config: &ServerConfig) -> Result<(), BootError> {
    raise_limits();
    let file_size = file_size(config.statics.number("log.segment.bytes") as u64);
    for finding in [io_uring(), memlock(), files(config.shards), file_size] {
        if finding.verdict == Verdict::Unfit {
            return Err(BootError(format!(
                "{}: {}; {}",
                finding.what, finding.seen, finding.advice
            )));
        }
        if finding.verdict == Verdict::Poor {
            warn!("{}: {}; {}", finding.what, finding.seen, finding.advice);
        }
    }
    Ok(())
}

/// Everything, including a few writes to the disk of the data directory.
pub fn examine(config: &ServerConfig) -> Vec<Finding> {
    raise_limits();
    let mut findings = vec![
        io_uring(),
        memlock(),
        files(config.shards),
        file_size(config.statics.number("log.segment.bytes") as u64),
        cpus(config),
        backlog(),
    ];
    findings.extend(cpu_quota(config.shards));
    findings.extend(disk(&config.log_dir));
    findings
}

/// Soft limits of open files, locked memory and file sizes up to the hard ones. Whoever set a soft limit alone did not mean a server.
fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Memlock, Resource::Fsize] {
        let limit = getrlimit(resource);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        // A refusal leaves the limit as it is, which is then what the checks see.
        let _ = setrlimit(resource, raised);
    }
}

fn io_uring() -> Finding {
    let what = "io_uring";
    // On a thread of its own: a ring belongs to the thread that made it.
    let ring = std::thread::spawn(|| Waker::new().and_then(Ring::new).map(drop))
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the test of the ring panicked")));
    let kernel = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    match ring {
        Ok(()) => Finding::new(what, Verdict::Fit, format!("works, Linux {kernel}"), ""),
        Err(error) => {
            let switched_off = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
                .is_ok_and(|text| text.trim() != "0");
            let advice = match (error.raw_os_error(), switched_off) {
                (_, true) => "allow it: sysctl kernel.io_uring_disabled=0",
                (Some(libc::EINVAL | libc::ENOSYS), _) => "Linux 6.1 or later is needed",
                (Some(libc::ENOMEM), _) => "raise the limit of locked memory (ulimit -l)",
                (Some(libc::EPERM | libc::EACCES), _) => {
                    "allow the io_uring system calls in the seccomp profile of the container"
                }
                _ => "Linux 6.1 or later with io_uring is needed",
            };
            Finding::new(
                what,
                Verdict::Unfit,
                format!("{error}, Linux {kernel}"),
                advice,
            )
        }
    }
}

fn memlock() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let verdict = match limit {
        Some(bytes) if bytes < MEMLOCK_BYTES_MIN => Verdict::Unfit,
        _ => Verdict::Fit,
    };
    Finding::new(
        "locked memory",
        verdict,
        limit.map_or("unlimited".to_string(), |bytes| {
            format!("at most {} KiB", bytes / 1024)
        }),
        "512 KiB are needed: ulimit -l 512, or LimitMEMLOCK=infinity in the systemd unit",
    )
}

fn files(shards: u16) -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    let needed = FILES_MIN + FILES_PER_SHARD_MIN * u64::from(shards);
    let verdict = match limit {
        Some(files) if files < needed => Verdict::Unfit,
        Some(files) if files < FILES_GOOD => Verdict::Poor,
        _ => Verdict::Fit,
    };
    Finding::new(
        "open files",
        verdict,
        limit.map_or("unlimited".to_string(), |files| format!("at most {files}")),
        &format!(
            "{needed} are needed to start, and one for every connection and every partition: ulimit -n 1000000, or LimitNOFILE=1000000 in the systemd unit"
        ),
    )
}

/// Segments and journals are made in their whole size. A topic may still ask for larger segments than the default.
fn file_size(segment_bytes: u64) -> Finding {
    let limit = getrlimit(Resource::Fsize).current;
    let needed = segment_bytes.max(JOURNAL_BYTES_MAX);
    let verdict = match limit {
        Some(bytes) if bytes < needed => Verdict::Unfit,
        _ => Verdict::Fit,
    };
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Finding::new(
        "file size",
        verdict,
        limit.map_or("unlimited".to_string(), |bytes| {
            format!("at most {} MiB", bytes >> 20)
        }),
        &format!(
            "a segment has up to {} MiB: ulimit -f unlimited, or LimitFSIZE=infinity in the systemd unit; or lower log.segment.bytes",
            mib(needed)
        ),
    )
}

fn cpus(config: &ServerConfig) -> Finding {
    let (shards, cpus) = (usize::from(config.shards), config.cpus.len());
    let verdict = match shards > cpus {
        true => Verdict::Poor,
        false => Verdict::Fit,
    };
    Finding::new(
        "cores",
        verdict,
        format!("{shards} shards on {cpus} CPUs"),
        &format!("shards={cpus} gives each a core of its own"),
    )
}

/// A shard that is descheduled for the rest of a period answers nobody meanwhile.
fn cpu_quota(shards: u16) -> Option<Finding> {
    let text = std::fs::read_to_string("/sys/fs/cgroup/cpu.max").ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    let verdict = match quota < u64::from(shards) * period {
        true => Verdict::Poor,
        false => Verdict::Fit,
    };
    Some(Finding::new(
        "CPU quota",
        verdict,
        format!("{:.2} cores", quota as f64 / period.max(1) as f64),
        "the cgroup stops the shards in the middle of every period: give one core a shard (cpu.max), or pin with cpusets",
    ))
}

fn backlog() -> Finding {
    let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn")
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    Finding::new(
        "listen backlog",
        match limit {
            Some(limit) if limit < 1024 => Verdict::Poor,
            _ => Verdict::Fit,
        },
        limit.map_or("unknown".to_string(), |limit| limit.to_string()),
        "clients that connect at the same time are turned away: sysctl net.core.somaxconn=4096",
    )
}

fn disk(dir: &Path) -> Vec<Finding> {
    let place = existing(dir);
    let mut findings = vec![file_system(&place), space(&place)];
    match direct_writes(&place) {
        Ok((allocates, flush_us)) => {
            findings.push(Finding::new(
                "allocation",
                match allocates {
                    true => Verdict::Fit,
                    false => Verdict::Unfit,
                },
                match allocates {
                    true => "works".to_string(),
                    false => "the file system cannot allocate ahead (fallocate)".to_string(),
                },
                "use ext4 or XFS",
            ));
            findings.push(Finding::new(
                "durable write",
                match flush_us {
                    0..10_000 => Verdict::Fit,
                    _ => Verdict::Poor,
                },
                format!("{flush_us} us for 4 KiB, O_DIRECT and fdatasync, median"),
                "every acks=all batch waits for this: use an SSD, best one with power-loss protection",
            ));
        }
        Err(error) => findings.push(Finding::new(
            "durable write",
            Verdict::Unfit,
            format!("{}: {error}", place.display()),
            match error.raw_os_error() {
                Some(libc::EINVAL | libc::EOPNOTSUPP) => {
                    "the file system has no O_DIRECT: use ext4 or XFS"
                }
                Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                    "let this user write there, or choose another log.dirs"
                }
                _ => "choose another log.dirs",
            },
        )),
    }
    findings
}

/// The directory, or the nearest one above it that exists.
fn existing(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let found = absolute.ancestors().find(|dir| dir.is_dir());
    found.unwrap_or(Path::new("/")).to_path_buf()
}

fn file_system(place: &Path) -> Finding {
    let what = "file system";
    let kind = match rustix::fs::statfs(place) {
        Ok(info) => info.f_type as u32,
        Err(error) => {
            return Finding::new(
                what,
                Verdict::Unfit,
                error.to_string(),
                "choose another log.dirs",
            );
        }
    };
    let (name, verdict, advice) = match kind {
        0xef53 => ("ext4", Verdict::Fit, ""),
        0x5846_5342 => ("XFS", Verdict::Fit, ""),
        0x0102_1994 | 0x8584_58f6 => (
            "memory",
            Verdict::Poor,
            "nothing there survives a restart of the machine",
        ),
        0x6969 => (
            "NFS",
            Verdict::Poor,
            "a network file system is slow and has its own idea of durability: use a local disk",
        ),
        0x9123_683e => (
            "btrfs",
            Verdict::Poor,
            "copy on write makes every flush expensive: use ext4 or XFS",
        ),
        0x794c_7630 => (
            "overlay",
            Verdict::Poor,
            "the writable layer of a container: mount a volume there",
        ),
        _ => ("not one that was tested", Verdict::Poor, "use ext4 or XFS"),
    };
    Finding::new(
        what,
        verdict,
        format!("{name} at {}", place.display()),
        advice,
    )
}

fn space(place: &Path) -> Finding {
    let what = "free space";
    match rustix::fs::statvfs(place) {
        Ok(info) => {
            let free = info.f_bavail * info.f_frsize;
            Finding::new(
                what,
                match free < FREE_BYTES_GOOD {
                    true => Verdict::Poor,
                    false => Verdict::Fit,
                },
                format!("{:.1} GiB", free as f64 / (1u64 << 30) as f64),
                "a full disk refuses all writes: make room, or lower log.retention.bytes",
            )
        }
        Err(error) => Finding::new(
            what,
            Verdict::Unfit,
            error.to_string(),
            "choose another log.dirs",
        ),
    }
}

/// Whether space can be allocated ahead, and what a durable write of 4 KiB takes, microseconds.
fn direct_writes(place: &Path) -> io::Result<(bool, u64)> {
    let path = place.join(format!(".corelane-doctor-{}", std::process::id()));
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)?;
    let measured = time_writes(&file);
    std::fs::remove_file(&path)?;
    measured
}

fn time_writes(file: &File) -> io::Result<(bool, u64)> {
    const BLOCK: usize = crate::model::limit::BLOCK_BYTES;
    let allocates =
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, (FLUSHES * BLOCK) as u64).is_ok();
    let memory = vec![0x5a; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let block = &memory[start..start + BLOCK];
    // Once over all of it first: what is timed are blocks that were written before.
    for at in 0..FLUSHES {
        file.write_all_at(block, (at * BLOCK) as u64)?;
    }
    file.sync_all()?;
    let mut times = Vec::with_capacity(FLUSHES);
    for at in 0..FLUSHES {
        let begin = Instant::now();
        file.write_all_at(block, (at * BLOCK) as u64)?;
        file.sync_data()?;
        times.push(begin.elapsed().as_micros() as u64);
    }
    times.sort_unstable();
    Ok((allocates, times[FLUSHES / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_yet_is_looked_at_where_it_will_be() {
        assert_eq!(
            existing(Path::new("/proc/nothing/here")),
            Path::new("/proc")
        );
        assert!(existing(Path::new("corelane-data-x")).is_absolute());
    }

    #[test]
    fn a_file_system_of_the_kernel_is_not_for_data() {
        let findings = disk(Path::new("/proc"));
        let unfit: Vec<_> = findings
            .iter()
            .filter(|f| f.verdict == Verdict::Unfit)
            .collect();
        assert_eq!(unfit.len(), 1, "{findings:?}");
        assert_eq!(unfit[0].what, "durable write");
    }

    #[test]
    fn shards_that_share_cores_are_poor_and_too_few_files_unfit() {
        let settings = ["shards=999".to_string()];
        let config = super::super::config::load(None, &settings).unwrap();
        assert_eq!(cpus(&config).verdict, Verdict::Poor);
        let advice = files(999).advice;
        assert!(
            advice.is_empty() || advice.starts_with("64192 are needed"),
            "{advice}"
        );
    }
}
