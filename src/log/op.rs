//! The disk as the pure rooms see it: operations that a shell (or the simulator) carries out, and their outcomes.
//!
//! Paths are relative to the log dir, `/` between parts. Operations of one shard run in any order unless one was issued
//! after the other's completion was seen; only a `Write` with `sync` promises an order inside itself.

use std::fmt;
use std::rc::Rc;

use bytes::Bytes;

use super::block::MemSpan;

/// A file of this shard, chosen by the pure side, unique for the life of the shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// A shared claim on an open file: whoever plans a send from it holds one, and the log closes or reuses the file only when its own is the last.
#[derive(PartialEq, Eq, Debug)]
pub struct FileRef {
    pub id: FileId,
}

/// Names an operation in flight, unique for the life of the shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Opens a file for direct writes and page-cache reads. With `create` it is made if missing and then allocated
    /// (fallocate, the size included) to at least `allocate` bytes; file and parent directory are fsynced when either
    /// changed. Gives [`DiskDone::Opened`].
    Open {
        file: FileId,
        path: String,
        create: bool,
        allocate: u64,
    },
    /// Allocates to at least `to` bytes, size included, and fsyncs.
    Allocate {
        file: FileId,
        to: u64,
    },
    /// A direct write of the spans one after the other at `at`. `at` and every span's start are multiples of
    /// `limit::BLOCK_BYTES`; every span but the last is whole blocks; the last is padded to a whole block. With `sync`
    /// an fdatasync of the file follows the write before the completion (a linked pair). Must not grow the file.
    Write {
        file: FileId,
        at: u64,
        data: Vec<MemSpan>,
        sync: bool,
    },
    /// fdatasync.
    Flush {
        file: FileId,
    },
    /// A read through the page cache, off the executor. May give fewer bytes at the end of the file.
    Read {
        file: FileId,
        at: u64,
        len: u32,
    },
    /// Sets the size and fsyncs.
    Truncate {
        file: FileId,
        len: u64,
    },
    Close {
        file: FileId,
    },
    /// mkdir -p, and fsync of the parents that changed.
    MakeDir {
        path: String,
    },
    /// Renames and fsyncs both parents.
    Rename {
        from: String,
        to: String,
    },
    /// Removes a file or a whole directory, and fsyncs its parent. Missing is fine.
    Remove {
        path: String,
    },
    /// The names in a directory, sorted; missing is [`DiskError::NotFound`].
    List {
        path: String,
    },
    /// A whole small file; missing is [`DiskError::NotFound`].
    ReadFile {
        path: String,
    },
    /// How large the file system is and what of it is free. Gives [`DiskDone::Space`].
    Space,
    /// Replaces a small file in one step: temporary file, fsync, rename, fsync of the parent.
    Replace {
        path: String,
        data: Bytes,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskDone {
    Done,
    /// The size of the file as it is after opening.
    Opened {
        len: u64,
    },
    Read(Bytes),
    List(Vec<DirEntry>),
    Space(Space),
}

/// Bytes of the file system that holds the log dir.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    pub total: u64,
    /// For a process without privileges.
    pub usable: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
    /// Bytes; 0 for a directory.
    pub len: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// ENOSPC, EDQUOT, EFBIG, EMFILE or ENFILE: a limit that may be gone later. A write that met it may have written a part.
    NoSpace,
    NotFound,
    /// Any other errno. What was written is unknown.
    Io(i32),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::NoSpace => {
                f.write_str("no space left on the device, or another limit is reached")
            }
            DiskError::NotFound => f.write_str("no such file or directory"),
            DiskError::Io(errno) => write!(f, "I/O error (errno {errno})"),
        }
    }
}

pub type DiskResult = Result<DiskDone, DiskError>;

/// A piece of a log planned for sending, without I/O.
#[derive(Clone, Debug)]
pub enum Span {
    Memory(MemSpan),
    /// `[at..at + len)` of a segment file; the bytes are on disk and, unless cold, in the page cache. So are `more` behind them.
    File {
        file: Rc<FileRef>,
        at: u64,
        len: u32,
        more: u64,
    },
}

impl Span {
    pub fn len(&self) -> usize {
        match self {
            Span::Memory(span) => span.len(),
            Span::File { len, .. } => *len as usize,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
