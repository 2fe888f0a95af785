//! What a voter finds on its device. The node drives the cursor with blocking operations before any shard starts, the
//! simulator over its faulty disk; it can be cut off anywhere and repeated.
//!
//! After a kill, what is read may not be on the device yet, and a loss of power would take it back from those who were
//! shown it. So the boot ends with a snapshot of what is committed, and gives nothing out before that is durable.

use std::sync::Arc;

use super::keeper::{DIR, Keeper, log_number, log_path, snapshot_path};
use super::raft::{Raft, Recovered};
use super::voter::{Options, Quorum, process_of, snapshot};
use super::wal::{BadSnapshot, EntryKind, Frame, Snapshot, decode_records, read_log};
use crate::log::{DiskDone, DiskError, DiskOp, DiskResult};
use crate::meta::{Image, Record, StaticConfig};
use crate::model::Rng;

/// What the cursor wants next.
#[derive(Debug)]
pub enum Step {
    /// Carry this out and give its result to [`Boot::next`].
    Op(DiskOp),
    Done(Box<Booted>),
    /// The process cannot start; one line that says what to look at.
    Failed(String),
}

#[derive(Debug)]
pub struct Booted {
    pub quorum: Quorum,
    /// Everything committed by now; each shard gets a copy.
    pub image: Image,
}

enum At {
    Start,
    MakeDir,
    Snapshot,
    List,
    Log,
    Save,
    End,
}

pub struct Boot {
    options: Options,
    statics: Arc<StaticConfig>,
    rng: Rng,
    at: At,
    snapshot: Option<Snapshot>,
    /// Numbers of the log files found, lowest first.
    logs: Vec<u64>,
    /// Index in `logs` of the file being read: the highest first.
    reading: usize,
    /// Waits for its snapshot.
    booted: Option<Box<Booted>>,
}

impl Boot {
    pub fn new(options: Options, statics: Arc<StaticConfig>, rng: Rng) -> Boot {
        Boot {
            options,
            statics,
            rng,
            at: At::Start,
            snapshot: None,
            logs: Vec::new(),
            reading: 0,
            booted: None,
        }
    }

    /// The next step; `last` is the result of the one before, `None` at first.
    pub fn next(&mut self, last: Option<DiskResult>) -> Step {
        match self.step(last) {
            Ok(step) => step,
            Err(message) => {
                self.at = At::End;
                Step::Failed(message)
            }
        }
    }

    fn step(&mut self, last: Option<DiskResult>) -> Result<Step, String> {
        match self.at {
            At::Start => {
                self.at = At::MakeDir;
                Ok(Step::Op(DiskOp::MakeDir { path: DIR.into() }))
            }
            At::MakeDir => {
                done(last, DIR)?;
                self.at = At::Snapshot;
                Ok(Step::Op(DiskOp::ReadFile {
                    path: snapshot_path(),
                }))
            }
            At::Snapshot => {
                let path = snapshot_path();
                if let Some(DiskDone::Read(bytes)) = found(last, &path)? {
                    self.snapshot = Some(self.decode(&path, &bytes)?);
                }
                self.at = At::List;
                Ok(Step::Op(DiskOp::List { path: DIR.into() }))
            }
            At::List => {
                if let Some(DiskDone::List(entries)) = found(last, DIR)? {
                    self.logs = entries.iter().filter_map(|e| log_number(&e.name)).collect();
                    self.logs.sort_unstable();
                }
                self.reading = self.logs.len();
                self.at = At::Log;
                match self.logs.last() {
                    Some(_) => Ok(self.read_next()),
                    None if self.snapshot.is_some() => self.read_before(1),
                    None => self.finish(&snapshot_path(), Vec::new()),
                }
            }
            At::Log => {
                let number = self.logs[self.reading];
                let path = log_path(number);
                let bytes = match found(last, &path)? {
                    Some(DiskDone::Read(bytes)) => bytes,
                    _ => return self.read_before(number),
                };
                let log = read_log(number, &bytes).map_err(|why| damaged(&path, &why))?;
                if log.frames.is_empty() {
                    // Made, but its first frame is not durable: the file before it counts.
                    return self.read_before(number);
                }
                self.finish(&path, log.frames)
            }
            At::Save => {
                self.at = At::End;
                match (last, self.booted.take()) {
                    (Some(Ok(_)), Some(booted)) => Ok(Step::Done(booted)),
                    (Some(Err(error)), _) => Err(format!(
                        "the metadata log {} cannot be written: {error}",
                        snapshot_path()
                    )),
                    _ => Err("the boot of the metadata quorum was not given a result".to_string()),
                }
            }
            At::End => Err("the boot of the metadata quorum is over".to_string()),
        }
    }

    fn decode(&self, path: &str, bytes: &[u8]) -> Result<Snapshot, String> {
        let snapshot = Snapshot::decode(bytes).map_err(|bad| match bad {
            BadSnapshot::Newer(format) => format!(
                "the metadata in {path} has format {format}, which this release does not know: it was written by a newer release, start that one"
            ),
            BadSnapshot::Damaged(why) => damaged(path, why),
        })?;
        let voters = &snapshot.voters;
        if !voters.contains(&self.options.id()) {
            let owners: Vec<String> = voters
                .iter()
                .filter_map(|voter| Some(process_of(*voter)?.to_string()))
                .collect();
            return Err(format!(
                "the metadata in {path} belongs to process {}, and this is process {}: set node.id or log.dirs right",
                owners.join(", "),
                self.options.process
            ));
        }
        Ok(snapshot)
    }

    fn read_next(&mut self) -> Step {
        self.reading -= 1;
        let path = log_path(self.logs[self.reading]);
        Step::Op(DiskOp::ReadFile { path })
    }

    /// Nothing is durable in the log with this number. So the one before it counts, which goes only when this one's first
    /// frame is durable; before the first there is none, and nothing was decided yet.
    fn read_before(&mut self, number: u64) -> Result<Step, String> {
        let before = number.saturating_sub(1);
        let entries = self.snapshot.as_ref().map_or(0, |s| s.index);
        if before == 0 && entries == 0 {
            return self.finish(&snapshot_path(), Vec::new());
        }
        if self.reading == 0 || self.logs[self.reading - 1] != before {
            return Err(damaged(
                &log_path(number),
                &format!("it holds nothing, and {} is missing", log_path(before)),
            ));
        }
        Ok(self.read_next())
    }

    fn finish(&mut self, path: &str, frames: Vec<Frame>) -> Result<Step, String> {
        let next_sequence = frames.last().map_or(1, |frame| frame.sequence + 1);
        let mut recovered = self.recover(path, &frames)?;
        let mut image = self.image()?;

        // A single voter's own device is a majority: what is in its log is committed.
        let single = recovered.voters == [self.options.id()];
        let last = recovered.snapshot_index + recovered.entries.len() as u64;
        if single {
            recovered.hard.commit = last;
        }
        let commit = recovered.hard.commit;
        if commit < recovered.snapshot_index || commit > last {
            return Err(damaged(path, "what was committed is not in it"));
        }
        for entry in &recovered.entries {
            if entry.index > commit || entry.kind != EntryKind::Normal {
                continue;
            }
            let records = decode_records(&entry.data).map_err(|why| damaged(path, &why))?;
            for record in &records {
                image.apply(image.applied(), record);
            }
        }
        let raft = Raft::new(self.options.id(), recovered, commit, self.rng.clone())?;
        let snapshot = snapshot(&image, &raft, commit);
        let op = DiskOp::Replace {
            path: snapshot_path(),
            data: snapshot.data.clone(),
        };
        let old = std::mem::take(&mut self.logs);
        let keeper = Keeper::new(self.options.ids, old, next_sequence, snapshot);
        let quorum = Quorum::new(
            self.options.clone(),
            raft,
            keeper,
            image.clone(),
            commit,
            self.rng.clone(),
        );
        self.booted = Some(Box::new(Booted { quorum, image }));
        self.at = At::Save;
        Ok(Step::Op(op))
    }

    /// Hard state and entries behind the snapshot.
    fn recover(&self, path: &str, frames: &[Frame]) -> Result<Recovered, String> {
        let mut recovered = Recovered {
            voters: vec![self.options.id()],
            ..Recovered::default()
        };
        if let Some(snapshot) = &self.snapshot {
            recovered.snapshot_index = snapshot.index;
            recovered.snapshot_term = snapshot.term;
            recovered.voters = snapshot.voters.clone();
            recovered.hard.term = snapshot.term;
            recovered.hard.commit = snapshot.index;
        }
        let base = recovered.snapshot_index;
        for frame in frames {
            recovered.hard = frame.hard;
            for entry in &frame.entries {
                if entry.index <= base {
                    continue;
                }
                let at = (entry.index - base - 1) as usize;
                if at > recovered.entries.len() {
                    let last = base + recovered.entries.len() as u64;
                    return Err(damaged(
                        path,
                        &format!("entries {} to {} are missing", last + 1, entry.index - 1),
                    ));
                }
                recovered.entries.truncate(at);
                recovered.entries.push(entry.clone());
            }
        }
        // The hard state is written before what it commits; a frame's own entries raise it.
        recovered.hard.commit = recovered.hard.commit.max(base);
        recovered.hard.term = recovered.hard.term.max(recovered.snapshot_term);
        Ok(recovered)
    }

    fn image(&self) -> Result<Image, String> {
        let Some(snapshot) = &self.snapshot else {
            return Ok(Image::new(Arc::clone(&self.statics)));
        };
        let mut records = Vec::with_capacity(snapshot.records.len());
        for bytes in &snapshot.records {
            let record = Record::decode(bytes)
                .map_err(|e| damaged(&snapshot_path(), &format!("a record is malformed: {e}")))?;
            records.push(record);
        }
        Ok(Image::restore(
            Arc::clone(&self.statics),
            snapshot.applied,
            &records,
        ))
    }
}

fn damaged(path: &str, why: &str) -> String {
    format!(
        "the metadata log {path} is damaged: {why}. Restore the file from a backup; without it the topics of this cluster are not known."
    )
}

/// A result that must be good.
fn done(last: Option<DiskResult>, path: &str) -> Result<DiskDone, String> {
    match last {
        Some(Ok(done)) => Ok(done),
        Some(Err(error)) => Err(format!("the metadata log {path} cannot be read: {error}")),
        None => Err("the boot of the metadata quorum was not given a result".to_string()),
    }
}

/// A result that may be "not there".
fn found(last: Option<DiskResult>, path: &str) -> Result<Option<DiskDone>, String> {
    match last {
        Some(Err(DiskError::NotFound)) => Ok(None),
        last => done(last, path).map(Some),
    }
}
