//! What is done to files and directories, as plain blocking calls: carried out by the helper threads of a shard, and by the
//! blocking driver at boot.
//!
//! What changes something comes in two halves: the change, and [`Unsynced`], which makes it durable. So many changes can
//! share one sync.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags};
use tracing::warn;

use crate::log::{DirEntry, DiskDone, DiskError, DiskResult, Space};

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

/// What an operation changed and a loss of power may still take back.
#[derive(Default, Debug)]
pub struct Unsynced {
    file: Option<Arc<OwnedFd>>,
    dirs: Vec<PathBuf>,
    /// A replacement that takes its name once its bytes are durable.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Unsynced {
    fn file(file: Arc<OwnedFd>) -> Unsynced {
        Unsynced {
            file: Some(file),
            ..Unsynced::default()
        }
    }

    fn parent_of(full: &Path) -> Unsynced {
        Unsynced {
            dirs: vec![parent(full).to_path_buf()],
            ..Unsynced::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.file.is_none() && self.dirs.is_empty() && self.rename.is_none()
    }

    /// Makes it durable, by itself.
    pub fn sync(mut self) -> io::Result<()> {
        loop {
            if let Some(file) = &self.file {
                rustix::fs::fsync(file)?;
            }
            for dir in &self.dirs {
                File::open(dir)?.sync_all()?;
            }
            match self.renamed()? {
                Some(renamed) => self = renamed,
                None => return Ok(()),
            }
        }
    }

    /// The second half of a replacement, to be called when the first is durable. Gives what is to be made durable then.
    pub fn renamed(self) -> io::Result<Option<Unsynced>> {
        let Some((from, to)) = self.rename else {
            return Ok(None);
        };
        fs::rename(&from, &to)?;
        Ok(Some(Unsynced::parent_of(&to)))
    }

    /// Whether a sync of the file system on `device` makes it durable.
    pub fn is_on(&self, device: u64) -> bool {
        let is =
            |stat: rustix::io::Result<rustix::fs::Stat>| stat.is_ok_and(|s| s.st_dev == device);
        let renamed = self.rename.iter().map(|(_, to)| parent(to));
        self.file.iter().all(|file| is(rustix::fs::fstat(file)))
            && self
                .dirs
                .iter()
                .map(PathBuf::as_path)
                .chain(renamed)
                .all(|dir| is(rustix::fs::stat(dir)))
    }
}

pub type Changed = Result<Unsynced, DiskError>;

/// For those who change one thing at a time.
pub fn synced(changed: Changed) -> DiskResult {
    changed?.sync().map_err(|error| error_of(&error))?;
    Ok(DiskDone::Done)
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
        // EFBIG is a limit too (`ulimit -f`), and as little a word about what is on the disk.
        // So are EMFILE and ENFILE: descriptors come back.
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EMFILE | libc::ENFILE => {
            DiskError::NoSpace
        }
        libc::ENOENT => DiskError::NotFound,
        errno => DiskError::Io(errno),
    }
}

/// See [`crate::log::DiskOp::Open`]. Gives the file and its size too.
pub fn open(
    dir: &Path,
    path: &str,
    create: bool,
    allocate: u64,
) -> Result<(OpenFile, u64, Unsynced), DiskError> {
    let full = dir.join(path);
    open_file(&full, create, allocate).map_err(|error| error_of(&error))
}

fn open_file(full: &Path, create: bool, allocate: u64) -> io::Result<(OpenFile, u64, Unsynced)> {
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
    let cached = Arc::new(cached);
    let mut len = rustix::fs::fstat(&cached)?.st_size as u64;
    let mut unsynced = Unsynced::default();
    if create && len < allocate {
        reserve(cached.as_fd(), allocate)?;
        len = allocate;
        unsynced = Unsynced::file(Arc::clone(&cached));
    }
    if created {
        unsynced = Unsynced {
            file: Some(Arc::clone(&cached)),
            ..Unsynced::parent_of(full)
        };
    }
    Ok((OpenFile { direct, cached }, len, unsynced))
}

fn reserve(file: impl AsFd, to: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, to) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

pub fn allocate(file: &OpenFile, to: u64) -> Changed {
    changed(|| {
        if (rustix::fs::fstat(&file.cached)?.st_size as u64) < to {
            reserve(file.cached.as_fd(), to)?;
        }
        Ok(Unsynced::file(Arc::clone(&file.cached)))
    })
}

pub fn truncate(file: &OpenFile, len: u64) -> Changed {
    changed(|| {
        rustix::fs::ftruncate(&file.cached, len)?;
        Ok(Unsynced::file(Arc::clone(&file.cached)))
    })
}

pub fn make_dir(dir: &Path, path: &str) -> Changed {
    changed(|| {
        let mut unsynced = Unsynced::default();
        let mut full = dir.to_path_buf();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            full.push(part);
            match fs::create_dir(&full) {
                Ok(()) => unsynced.dirs.push(parent(&full).to_path_buf()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && full.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(unsynced)
    })
}

pub fn rename(dir: &Path, from: &str, to: &str) -> Changed {
    changed(|| {
        let (from, to) = (dir.join(from), dir.join(to));
        fs::rename(&from, &to)?;
        let mut unsynced = Unsynced::parent_of(&to);
        if from.parent() != to.parent() {
            unsynced.dirs.push(parent(&from).to_path_buf());
        }
        Ok(unsynced)
    })
}

pub fn remove(dir: &Path, path: &str) -> Changed {
    changed(|| {
        let full = dir.join(path);
        let removed = match fs::symlink_metadata(&full) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&full),
            Ok(_) => fs::remove_file(&full),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Unsynced::default()),
            Err(error) => Err(error),
            Ok(()) => Ok(Unsynced::parent_of(&full)),
        }
    })
}

/// Sizes of the file system that holds `dir`.
pub fn space(dir: &Path) -> DiskResult {
    let found = rustix::fs::statvfs(dir).map_err(|e| error_of_errno(e.raw_os_error()))?;
    Ok(DiskDone::Space(Space {
        total: found.f_blocks.saturating_mul(found.f_frsize),
        usable: found.f_bavail.saturating_mul(found.f_frsize),
    }))
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

pub fn replace(dir: &Path, path: &str, data: &[u8]) -> Changed {
    changed(|| {
        let full = dir.join(path);
        let mut temporary = full.clone().into_os_string();
        temporary.push(REPLACEMENT_SUFFIX);
        let temporary = PathBuf::from(temporary);
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(data)?;
            Ok(file)
        });
        match written {
            Ok(file) => Ok(Unsynced {
                rename: Some((temporary, full)),
                ..Unsynced::file(Arc::new(file.into()))
            }),
            Err(error) => {
                // On a full disk the half-written copy must not take space for good.
                let _ = fs::remove_file(&temporary);
                Err(error)
            }
        }
    })
}

fn changed(work: impl FnOnce() -> io::Result<Unsynced>) -> Changed {
    work().map_err(|error| error_of(&error))
}

fn parent(full: &Path) -> &Path {
    full.parent().unwrap_or(Path::new("/"))
}
