//! The quorum's files: one log being written, a snapshot, and the way from one log file to the next.
//!
//! One operation is in flight at a time. A *rotation* writes a snapshot, makes the next log file, writes a first frame
//! there that repeats everything behind the snapshot, and then removes the old file. Every start rotates, so that a late
//! write of a dead process hits a file that nobody reads again.
//!
//! ```text
//! crash before the first frame: the old log, with or without the new snapshot (entries in it are skipped)
//! crash after it:               the new log and its snapshot; older files are removed at the next start
//! ```

use bytes::Bytes;

use super::wal::{Entry, Frame, Hard};
use crate::log::{Block, DiskDone, DiskError, DiskOp, DiskResult, FileId, Ids, MemSpan, OpId};
use crate::model::limit::BLOCK_BYTES;
use crate::model::{Instant, Now};

/// Everything of the quorum lives here, in Kafka's directory for it.
pub const DIR: &str = "__cluster_metadata-0";

/// A log file starts with, and grows by, so many bytes.
const LOG_STEP_BYTES: u64 = 1 << 20;

/// After "no space" the quorum tries again this much later.
const NO_SPACE_RETRY_MS: u64 = 1000;

pub fn snapshot_path() -> String {
    format!("{DIR}/quorum.snapshot")
}

pub fn log_path(number: u64) -> String {
    format!("{DIR}/quorum-{number:020}.log")
}

/// The number in the name of a log file.
pub fn log_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("quorum-")?.strip_suffix(".log")?;
    let right = digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
    right.then(|| digits.parse().ok())?
}

/// Work of Raft that is not on the device yet; several make one frame.
#[derive(Debug, Default)]
pub struct Buffer {
    /// As of the last work, kept when the rest is cleared.
    pub hard: Hard,
    pub entries: Vec<Entry>,
    /// The last work in it; 0 for none.
    pub number: u64,
}

impl Buffer {
    fn clear(&mut self) {
        self.entries.clear();
        self.number = 0;
    }
}

/// The bytes of a snapshot.
#[derive(Debug)]
pub struct NewSnapshot {
    /// Of the last entry in it.
    pub index: u64,
    pub data: Bytes,
}

/// The one operation in flight.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    /// A frame of so many bytes, with work up to `number`.
    Frame {
        op: OpId,
        number: u64,
        bytes: u64,
    },
    /// More room for a frame, up to `to`.
    Grow {
        op: OpId,
        to: u64,
    },
    /// Writing the snapshot of the rotation.
    Snapshot {
        op: OpId,
    },
    /// Making the next log file.
    Open {
        op: OpId,
    },
}

/// What the owner has to know.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// Work up to this number is durable.
    Persisted(u64),
    /// The snapshot is durable: entries up to its index may go.
    Snapshot(u64),
    /// Nothing more can be written; why.
    Failed(String),
}

#[derive(Debug)]
struct LogFile {
    number: u64,
    file: FileId,
    /// Where the next frame goes.
    end: u64,
    allocated: u64,
}

/// On the way to the next log file.
#[derive(Debug)]
struct Rotation {
    snapshot: NewSnapshot,
    saved: bool,
    /// Open, and without its first frame.
    log: Option<LogFile>,
}

#[derive(Debug)]
pub struct Keeper {
    log: Option<LogFile>,
    rotation: Option<Rotation>,
    doing: Doing,
    /// The number of the next log file.
    next_number: u64,
    next_sequence: u64,
    ids: Ids,
    next_op: u64,
    next_file: u64,
    /// Log files that go once the next one stands.
    old: Vec<u64>,
    /// Operations whose outcome does not matter.
    idle_ops: Vec<OpId>,
    /// After "no space".
    retry_at: Option<Instant>,
    failed: bool,
    out: Vec<(OpId, DiskOp)>,
}

impl Keeper {
    /// After a boot that found these log files, frames below `next_sequence`, and left a snapshot behind: the rotation
    /// that every start makes is under way.
    pub fn new(ids: Ids, old: Vec<u64>, next_sequence: u64, snapshot: NewSnapshot) -> Keeper {
        Keeper {
            log: None,
            rotation: Some(Rotation {
                snapshot,
                saved: true,
                log: None,
            }),
            doing: Doing::Nothing,
            next_number: old.iter().max().map_or(1, |n| n + 1),
            next_sequence,
            ids,
            next_op: ids.first,
            next_file: ids.first,
            old,
            idle_ops: Vec::new(),
            retry_at: None,
            failed: false,
            out: Vec::new(),
        }
    }

    /// Bytes of frames in the log file.
    pub fn log_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.end)
    }

    /// Starts a rotation; only when none is under way.
    pub fn rotate(&mut self, snapshot: NewSnapshot) {
        assert!(!self.is_rotating(), "one rotation at a time");
        self.rotation = Some(Rotation {
            snapshot,
            saved: false,
            log: None,
        });
    }

    pub fn is_rotating(&self) -> bool {
        self.rotation.is_some()
    }

    /// Nothing is in flight.
    pub fn is_idle(&self) -> bool {
        matches!(self.doing, Doing::Nothing) && self.idle_ops.is_empty() && self.out.is_empty()
    }

    /// Nothing more will be written, or not for now: the device failed or is full.
    pub fn is_stuck(&self) -> bool {
        self.failed || self.retry_at.is_some()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    pub fn take(&mut self, out: &mut Vec<(OpId, DiskOp)>) {
        out.append(&mut self.out);
    }

    fn issue(&mut self, op: DiskOp) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += self.ids.stride;
        self.out.push((id, op));
        id
    }

    /// Starts what can start. `everything_behind` gives the hard state and all entries behind an index, those of the
    /// buffer included, for the first frame of a new log.
    pub fn go(
        &mut self,
        now: Now,
        buffer: &mut Buffer,
        everything_behind: impl FnOnce(u64) -> (Hard, Vec<Entry>),
    ) {
        let busy = !matches!(self.doing, Doing::Nothing);
        if self.failed || busy || self.retry_at.is_some_and(|at| at > now.mono) {
            return;
        }
        self.retry_at = None;
        match &self.rotation {
            Some(rotation) if !rotation.saved => {
                let data = rotation.snapshot.data.clone();
                let path = snapshot_path();
                let op = self.issue(DiskOp::Replace { path, data });
                self.doing = Doing::Snapshot { op };
            }
            Some(rotation) if rotation.log.is_none() => self.open_next(),
            Some(rotation) => {
                let (hard, entries) = everything_behind(rotation.snapshot.index);
                if self.write(hard, &entries, buffer.number) {
                    buffer.clear();
                }
            }
            None => {
                let due = buffer.number > 0 && self.log.is_some();
                if due && self.write(buffer.hard, &buffer.entries, buffer.number) {
                    buffer.clear();
                }
            }
        }
    }

    fn open_next(&mut self) {
        let op = self.issue(DiskOp::Open {
            file: FileId(self.next_file),
            path: log_path(self.next_number),
            create: true,
            allocate: LOG_STEP_BYTES,
        });
        self.doing = Doing::Open { op };
    }

    /// The log that the next frame goes to.
    fn target(&mut self) -> &mut LogFile {
        let next = self.rotation.as_mut().and_then(|r| r.log.as_mut());
        next.or(self.log.as_mut()).expect("a frame goes to a log")
    }

    /// Writes a frame; false when room had to be made first.
    fn write(&mut self, hard: Hard, entries: &[Entry], number: u64) -> bool {
        let sequence = self.next_sequence;
        let log = self.target();
        let bytes = Frame {
            file: log.number,
            sequence,
            hard,
            entries: entries.to_vec(),
        }
        .encode();
        let (file, at, allocated) = (log.file, log.end, log.allocated);
        let end = at + bytes.len() as u64;
        if end > allocated {
            let to = end.next_multiple_of(LOG_STEP_BYTES);
            let op = self.issue(DiskOp::Allocate { file, to });
            self.doing = Doing::Grow { op, to };
            return false;
        }
        let block = Block::new(bytes.len());
        block.append(&bytes);
        let span = MemSpan::new(&block, 0, block.len());
        let op = self.issue(DiskOp::Write {
            file,
            at,
            data: vec![span],
            sync: true,
        });
        self.next_sequence += 1;
        self.doing = Doing::Frame {
            op,
            number,
            bytes: bytes.len() as u64,
        };
        true
    }

    /// `None` when the operation is not ours, else what follows.
    pub fn on_disk(&mut self, op: OpId, result: &DiskResult, now: Now) -> Option<Vec<Told>> {
        if let Some(at) = self.idle_ops.iter().position(|idle| *idle == op) {
            self.idle_ops.swap_remove(at);
            return Some(Vec::new());
        }
        let doing = std::mem::replace(&mut self.doing, Doing::Nothing);
        let told = match doing {
            Doing::Frame {
                op: mine,
                number,
                bytes,
            } if mine == op => match result {
                Ok(_) => self.framed(number, bytes),
                // What is on the device is unknown, and a second try would be doubt.
                Err(error) => self.fail("writing its log", *error),
            },
            Doing::Grow { op: mine, to } if mine == op => match result {
                Ok(_) => {
                    self.target().allocated = to;
                    Vec::new()
                }
                Err(error) => self.later("growing its log", *error, now),
            },
            Doing::Snapshot { op: mine } if mine == op => match result {
                Ok(_) => {
                    let rotation = self.rotation.as_mut().expect("a snapshot is part of one");
                    rotation.saved = true;
                    vec![Told::Snapshot(rotation.snapshot.index)]
                }
                Err(error) => self.later("writing its snapshot", *error, now),
            },
            Doing::Open { op: mine } if mine == op => match result {
                Ok(DiskDone::Opened { len }) => {
                    self.opened(*len);
                    Vec::new()
                }
                Ok(_) => Vec::new(),
                Err(error) => self.later("making its next log", *error, now),
            },
            other => {
                self.doing = other;
                return None;
            }
        };
        Some(told)
    }

    fn opened(&mut self, len: u64) {
        let block = BLOCK_BYTES as u64;
        let log = LogFile {
            number: self.next_number,
            file: FileId(self.next_file),
            end: 0,
            allocated: len / block * block,
        };
        self.next_number += 1;
        self.next_file += self.ids.stride;
        let rotation = self.rotation.as_mut().expect("a log is opened in one");
        rotation.log = Some(log);
    }

    fn framed(&mut self, number: u64, bytes: u64) -> Vec<Told> {
        self.target().end += bytes;
        if let Some(log) = self.rotation.take().and_then(|rotation| rotation.log) {
            // The first frame of the new log: the old ones are history.
            if let Some(before) = self.log.replace(log) {
                let op = self.issue(DiskOp::Close { file: before.file });
                self.idle_ops.push(op);
                self.old.push(before.number);
            }
            for number in std::mem::take(&mut self.old) {
                let path = log_path(number);
                let op = self.issue(DiskOp::Remove { path });
                self.idle_ops.push(op);
            }
        }
        match number {
            0 => Vec::new(),
            number => vec![Told::Persisted(number)],
        }
    }

    /// No space is not the end: everything stays as it is, and waits.
    fn later(&mut self, what: &str, error: DiskError, now: Now) -> Vec<Told> {
        match error {
            DiskError::NoSpace => {
                self.retry_at = Some(now.mono.after_ms(NO_SPACE_RETRY_MS));
                Vec::new()
            }
            DiskError::NotFound | DiskError::Io(_) => self.fail(what, error),
        }
    }

    fn fail(&mut self, what: &str, error: DiskError) -> Vec<Told> {
        self.failed = true;
        vec![Told::Failed(format!("{what}: {error}"))]
    }
}
