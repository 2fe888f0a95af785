//! What is done to files and directories, as plain blocking calls: carried out by the helper thread of a shard, and by the
//! blocking driver at boot.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags};
use tracing::warn;

use crate::log::{DirEntry, DiskDone, DiskError, DiskResult};

/// Suffix of the file that replaces a small one; what a crash leaves of it is overwritten by the next replacement.
const REPLACEMENT_SUFFIX: &str = ".tmp";

/// One file, opened twice: direct I/O and the page cache each want a descriptor of their own.
#[derive(Debug)]
pub struct OpenFile {
    /// O_DIRECT where the file system has it.
    pub direct: OwnedFd,
    /// Page cache, no read-ahead: what is brought in is asked for (the kernel's read-ahead would lock pages that a sendfile then waits for).
    pub cached: Arc<OwnedFd>,
}

pub fn error_of(error: &io::Error) -> DiskError {
    match error.raw_os_error() {
        Some(errno) => error_of_errno(errno),
        None if error.kind() == io::ErrorKind::UnexpectedEof => DiskError::Io(libc::EIO),
        None => DiskError::Io(libc::EINVAL),
    }
}

pub fn error_of_errno(errno: i32) -> DiskError {
    match errno {
        libc::ENOSPC | libc::EDQUOT => DiskError::NoSpace,
        libc::ENOENT => DiskError::NotFound,
        errno => DiskError::Io(errno),
    }
}

/// See [`crate::log::DiskOp::Open`]. Gives the file and its size.
pub fn open(
    dir: &Path,
    path: &str,
    create: bool,
    allocate: u64,
) -> Result<(OpenFile, u64), DiskError> {
    let full = dir.join(path);
    open_file(&full, create, allocate).map_err(|error| error_of(&error))
}

fn open_file(full: &Path, create: bool, allocate: u64) -> io::Result<(OpenFile, u64)> {
    let mode = Mode::from_raw_mode(0o644);
    let base = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOATIME;
    let open_at = |flags: OFlags| -> rustix::io::Result<OwnedFd> {
        match rustix::fs::open(full, flags, mode) {
            // NOATIME is only for the owner.
            Err(rustix::io::Errno::PERM) => rustix::fs::open(full, flags - OFlags::NOATIME, mode),
            other => other,
        }
    };
    let mut created = false;
    let cached = match open_at(base) {
        Err(rustix::io::Errno::NOENT) if create => {
            created = true;
            open_at(base | OFlags::CREATE)?
        }
        other => other?,
    };
    let direct = match open_at(base | OFlags::DIRECT) {
        Err(rustix::io::Errno::INVAL) => {
            warn!(path = %full.display(), "the file system has no direct I/O, writing through the page cache");
            open_at(base)?
        }
        other => other?,
    };
    // Only a hint; some file systems refuse it.
    let _ = rustix::fs::fadvise(&cached, 0, None, Advice::Random);
    let mut len = rustix::fs::fstat(&cached)?.st_size as u64;
    if create && len < allocate {
        reserve(cached.as_fd(), allocate)?;
        len = allocate;
        rustix::fs::fsync(&cached)?;
    } else if created {
        rustix::fs::fsync(&cached)?;
    }
    if created {
        sync_parent(full)?;
    }
    let file = OpenFile {
        direct,
        cached: Arc::new(cached),
    };
    Ok((file, len))
}

fn reserve(file: impl AsFd, to: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, to) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

pub fn allocate(file: &OpenFile, to: u64) -> DiskResult {
    done(|| {
        if (rustix::fs::fstat(&file.cached)?.st_size as u64) < to {
            reserve(file.cached.as_fd(), to)?;
        }
        Ok(rustix::fs::fsync(&file.cached)?)
    })
}

pub fn truncate(file: &OpenFile, len: u64) -> DiskResult {
    done(|| {
        rustix::fs::ftruncate(&file.cached, len)?;
        Ok(rustix::fs::fsync(&file.cached)?)
    })
}

pub fn make_dir(dir: &Path, path: &str) -> DiskResult {
    done(|| {
        let mut full = dir.to_path_buf();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            full.push(part);
            match fs::create_dir(&full) {
                Ok(()) => sync_parent(&full)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && full.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

pub fn rename(dir: &Path, from: &str, to: &str) -> DiskResult {
    done(|| {
        let (from, to) = (dir.join(from), dir.join(to));
        fs::rename(&from, &to)?;
        sync_parent(&to)?;
        if from.parent() != to.parent() {
            sync_parent(&from)?;
        }
        Ok(())
    })
}

pub fn remove(dir: &Path, path: &str) -> DiskResult {
    done(|| {
        let full = dir.join(path);
        let removed = match fs::symlink_metadata(&full) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&full),
            Ok(_) => fs::remove_file(&full),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_parent(&full),
        }
    })
}

pub fn list(dir: &Path, path: &str) -> DiskResult {
    let read = || -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir.join(path))? {
            let entry = entry?;
            // Kafka's names are ASCII; what is not UTF-8 is not ours.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let meta = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            entries.push(DirEntry {
                name,
                is_dir: meta.is_dir(),
                len: if meta.is_dir() { 0 } else { meta.len() },
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    };
    read().map(DiskDone::List).map_err(|error| error_of(&error))
}

pub fn read_file(dir: &Path, path: &str) -> DiskResult {
    let read = || -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        File::open(dir.join(path))?.read_to_end(&mut bytes)?;
        Ok(bytes.into())
    };
    read().map(DiskDone::Read).map_err(|error| error_of(&error))
}

pub fn replace(dir: &Path, path: &str, data: &[u8]) -> DiskResult {
    done(|| {
        let full = dir.join(path);
        let mut temporary = full.clone().into_os_string();
        temporary.push(REPLACEMENT_SUFFIX);
        let temporary = PathBuf::from(temporary);
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(data)?;
            file.sync_all()
        });
        if let Err(error) = written {
            // On a full disk the half-written copy must not take space for good.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        fs::rename(&temporary, &full)?;
        sync_parent(&full)
    })
}

fn done(work: impl FnOnce() -> io::Result<()>) -> DiskResult {
    match work() {
        Ok(()) => Ok(DiskDone::Done),
        Err(error) => Err(error_of(&error)),
    }
}

fn sync_parent(full: &Path) -> io::Result<()> {
    let parent = full.parent().unwrap_or(Path::new("/"));
    File::open(parent)?.sync_all()
}
