//! What the ring cannot do without blocking the core: a thread that carries out one operation after the other.
//!
//! Most of them end in an fsync or two of their own, some 200 us each. Where many wait (a topic of 1,000 partitions is made, a
//! process stops), a thread makes the changes of a batch first and then syncs the file system once for all of them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::files::{self, OpenFile, Unsynced};
use crate::log::{DiskDone, DiskResult, FileId, OpId};
use crate::model::limit::{SYNC_TOGETHER_MAX, SYNC_TOGETHER_MIN};

/// What a helper thread is asked to do: the operations of [`crate::log::DiskOp`] that have no memory of the shard in them.
pub(super) enum Job {
    Open {
        file: FileId,
        path: String,
        create: bool,
        allocate: u64,
    },
    Allocate(Arc<OpenFile>, u64),
    Truncate(Arc<OpenFile>, u64),
    MakeDir(String),
    Rename(String, String),
    Remove(String),
    List(String),
    Space,
    ReadFile(String),
    Replace(String, Bytes),
}

pub(super) type JobDone = (OpId, DiskResult, Option<(FileId, OpenFile)>);

/// A job whose changes are made, and its outcome once they are durable.
struct Begun {
    op: OpId,
    result: DiskResult,
    opened: Option<(FileId, OpenFile)>,
    unsynced: Unsynced,
}

/// Works until the shard drops its end.
pub(super) fn help(
    dir: &Path,
    jobs: &flume::Receiver<(OpId, Job)>,
    done: &flume::Sender<JobDone>,
    wake: impl Fn(),
) {
    for (op, job) in jobs {
        let mut batch = vec![begin(dir, op, job)];
        // Few are better off side by side, one a thread.
        if jobs.len() >= SYNC_TOGETHER_MIN {
            let more = jobs.try_iter().take(SYNC_TOGETHER_MAX - 1);
            batch.extend(more.map(|(op, job)| begin(dir, op, job)));
        }
        if batch.len() == 1 || sync_together(dir, &mut batch).is_err() {
            batch.iter_mut().for_each(Begun::sync);
        }
        for begun in batch {
            let done = done.send((begun.op, begun.result, begun.opened));
            if done.is_err() {
                return;
            }
        }
        wake();
    }
}

fn begin(dir: &Path, op: OpId, job: Job) -> Begun {
    let mut opened = None;
    let changed = match job {
        Job::List(path) => Err(files::list(dir, &path)),
        Job::Space => Err(files::space(dir)),
        Job::ReadFile(path) => Err(files::read_file(dir, &path)),
        Job::Open {
            file,
            path,
            create,
            allocate,
        } => match files::open(dir, &path, create, allocate) {
            Ok((open, len, unsynced)) => {
                opened = Some((file, open));
                Ok((DiskDone::Opened { len }, unsynced))
            }
            Err(error) => Err(Err(error)),
        },
        Job::Allocate(file, to) => of_change(files::allocate(&file, to)),
        Job::Truncate(file, len) => of_change(files::truncate(&file, len)),
        Job::MakeDir(path) => of_change(files::make_dir(dir, &path)),
        Job::Rename(from, to) => of_change(files::rename(dir, &from, &to)),
        Job::Remove(path) => of_change(files::remove(dir, &path)),
        Job::Replace(path, data) => of_change(files::replace(dir, &path, &data)),
    };
    let (result, unsynced) = match changed {
        Ok((done, unsynced)) => (Ok(done), unsynced),
        Err(result) => (result, Unsynced::default()),
    };
    Begun {
        op,
        result,
        opened,
        unsynced,
    }
}

/// `Err` is what is over already.
fn of_change(changed: files::Changed) -> Result<(DiskDone, Unsynced), DiskResult> {
    match changed {
        Ok(unsynced) => Ok((DiskDone::Done, unsynced)),
        Err(error) => Err(Err(error)),
    }
}

impl Begun {
    fn sync(&mut self) {
        if let Err(error) = std::mem::take(&mut self.unsynced).sync() {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.result = Err(files::error_of(error));
        self.opened = None;
    }
}

/// Makes all of a batch durable: the changes, then the new names of what was replaced.
fn sync_together(dir: &Path, batch: &mut [Begun]) -> std::io::Result<()> {
    let dir = File::open(dir)?;
    let device = rustix::fs::fstat(&dir)?.st_dev;
    for begun in batch.iter_mut() {
        if !begun.unsynced.is_empty() && !begun.unsynced.is_on(device) {
            begun.sync();
        }
    }
    while batch.iter().any(|begun| !begun.unsynced.is_empty()) {
        // An error may be about a file of somebody else: then each is asked for its own.
        rustix::fs::syncfs(&dir)?;
        for begun in batch.iter_mut() {
            match std::mem::take(&mut begun.unsynced).renamed() {
                Ok(renamed) => begun.unsynced = renamed.unwrap_or_default(),
                Err(error) => begun.fail(&error),
            }
        }
    }
    Ok(())
}
