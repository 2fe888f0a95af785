//! A log dir in memory, for the laws of this room and for the simulator: it forgets what was not flushed, tears what was
//! not finished at sectors of 512 bytes, runs operations in any order or after drawn delays in virtual time, fails them,
//! fills up, and lets writes of a killed process land late.
//!
//! What it promises is what [`DiskOp`] says and no more. It panics where a caller breaks that contract (a write that
//! grows its file, two writes of one block at a time), so every test on it checks the caller too.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::op::{DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, OpId, Space, Span};
use crate::model::limit::BLOCK_BYTES;
use crate::model::{Instant, Rng};

const SECTOR_BYTES: usize = 512;
const EIO: i32 = 5;

/// A completed write that no flush has covered yet.
#[derive(Debug)]
struct Unflushed {
    sequence: u64,
    at: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Inode {
    /// What a reader sees.
    now: Vec<u8>,
    /// What survives a power loss for certain.
    stable: Vec<u8>,
    unflushed: Vec<Unflushed>,
}

impl Inode {
    fn write(&mut self, sequence: u64, at: u64, bytes: Vec<u8>) {
        let from = at as usize;
        self.now[from..from + bytes.len()].copy_from_slice(&bytes);
        self.unflushed.push(Unflushed {
            sequence,
            at,
            bytes,
        });
    }

    fn flush(&mut self, up_to: impl Fn(u64) -> bool) {
        for u in std::mem::take(&mut self.unflushed) {
            if up_to(u.sequence) {
                overlay(&mut self.stable, u.at, &u.bytes);
            } else {
                self.unflushed.push(u);
            }
        }
    }

    fn resize(&mut self, len: usize) {
        self.flush(|_| true);
        self.now.resize(len, 0);
        self.stable = self.now.clone();
    }
}

fn overlay(file: &mut [u8], at: u64, bytes: &[u8]) {
    let from = (at as usize).min(file.len());
    let to = (from + bytes.len()).min(file.len());
    file[from..to].copy_from_slice(&bytes[..to - from]);
}

/// Whose file and operation ids: the shards of a process share the dir, each with ids of its own.
pub type Owner = u16;

/// The owner of what [`Disk::run`] does.
const BOOT: Owner = Owner::MAX;

#[derive(Debug)]
struct Pending {
    owner: Owner,
    id: OpId,
    op: DiskOp,
    /// Writes completed when it was issued.
    sequence: u64,
    /// When it is complete, by [`Disk::complete_due`].
    due: Instant,
}

/// What an owner is told.
#[derive(Debug)]
pub struct Completion {
    pub owner: Owner,
    pub id: OpId,
    pub result: DiskResult,
}

/// What the simulator does to the disk.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// An operation takes `[from..to)` microseconds.
    pub latency_us: (u64, u64),
    /// One operation in so many takes `slow_us` more; 0: none.
    pub slow_one_in: u64,
    pub slow_us: u64,
    /// One write, flush or read in so many fails with EIO, and whether a write of it was done is drawn; 0: none.
    pub error_one_in: u64,
    /// Operations on paths with this in them fail with EIO.
    pub broken: Option<String>,
    /// Bytes of all files together that may exist.
    pub space: u64,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            latency_us: (20, 200),
            slow_one_in: 0,
            slow_us: 0,
            error_one_in: 0,
            broken: None,
            space: u64::MAX,
        }
    }
}

/// How a power loss treats sectors that were not flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// A power loss that takes every sector that was not flushed.
    All,
    /// A power loss; each such sector is old or new.
    Some,
    /// Only a killed process: what was written stays, what was under way may land later.
    Killed,
}

#[derive(Debug)]
pub struct Disk {
    inodes: BTreeMap<u64, Inode>,
    paths: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
    open: BTreeMap<(Owner, FileId), u64>,
    pending: Vec<Pending>,
    /// Writes of a dead process that the kernel may still carry out.
    ghosts: Vec<(u64, u64, Vec<u8>)>,
    sequence: u64,
    next_inode: u64,
    pub rng: Rng,
    pub faults: Faults,
    pub writes: u64,
    pub flushes: u64,
    pub bytes_read: u64,
}

impl Disk {
    pub fn new(seed: u64) -> Disk {
        Disk {
            inodes: BTreeMap::new(),
            paths: BTreeMap::new(),
            dirs: BTreeSet::new(),
            open: BTreeMap::new(),
            pending: Vec::new(),
            ghosts: Vec::new(),
            sequence: 0,
            next_inode: 1,
            rng: Rng::seeded(seed),
            faults: Faults::default(),
            writes: 0,
            flushes: 0,
            bytes_read: 0,
        }
    }

    /// An operation is issued at `now`.
    pub fn submit(&mut self, owner: Owner, id: OpId, op: DiskOp, now: Instant) {
        if let DiskOp::Write {
            file,
            at,
            data,
            sync,
        } = &op
        {
            let inode = self.open[&(owner, *file)];
            let bytes: usize = data.iter().map(|d| d.padded().1).sum();
            let len = self.inodes[&inode].now.len() as u64;
            assert!(
                at.is_multiple_of(BLOCK_BYTES as u64) && at + bytes as u64 <= len,
                "a write of {bytes} at {at} grows the file of {len}"
            );
            for d in &data[..data.len() - 1] {
                assert!(
                    d.len().is_multiple_of(BLOCK_BYTES),
                    "whole blocks but the last"
                );
            }
            for p in &self.pending {
                if let DiskOp::Write {
                    file: other,
                    at: from,
                    data,
                    ..
                } = &p.op
                    && self.open[&(p.owner, *other)] == inode
                {
                    let end = from + data.iter().map(|d| d.padded().1 as u64).sum::<u64>();
                    assert!(
                        end <= *at || *from >= at + bytes as u64,
                        "one write in flight per block"
                    );
                }
            }
            self.writes += 1;
            self.flushes += u64::from(*sync);
        }
        if matches!(op, DiskOp::Flush { .. }) {
            self.flushes += 1;
        }
        let (from, to) = self.faults.latency_us;
        let mut latency_us = self.rng.range(from, to.max(from + 1));
        if self.faults.slow_one_in > 0 && self.rng.one_in(self.faults.slow_one_in) {
            latency_us += self.faults.slow_us;
        }
        self.pending.push(Pending {
            owner,
            id,
            op,
            sequence: self.sequence,
            due: now.after_us(latency_us),
        });
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn pending_writes(&self) -> usize {
        self.pending
            .iter()
            .filter(|p| matches!(p.op, DiskOp::Write { .. }))
            .count()
    }

    /// When the next operation is complete.
    pub fn next_due(&self) -> Option<Instant> {
        self.pending.iter().map(|p| p.due).min()
    }

    /// Completes the operation that was due first, if it was due by `now`.
    pub fn complete_due(&mut self, now: Instant) -> Option<Completion> {
        let first = (0..self.pending.len()).min_by_key(|i| self.pending[*i].due)?;
        (self.pending[first].due <= now).then(|| self.complete(first))
    }

    /// Completes one operation, whichever.
    pub fn complete_one(&mut self) -> Option<Completion> {
        if self.pending.is_empty() {
            return None;
        }
        let i = self.rng.below(self.pending.len() as u64) as usize;
        Some(self.complete(i))
    }

    /// Completes the oldest operation that `which` picks.
    pub fn complete_where(&mut self, which: impl Fn(&DiskOp) -> bool) -> Option<Completion> {
        let i = self.pending.iter().position(|p| which(&p.op))?;
        Some(self.complete(i))
    }

    /// What is complete in place of a close: the shell keeps a file until everything that came before its close is done.
    fn before_close(&self, i: usize) -> usize {
        let DiskOp::Close { file } = self.pending[i].op else {
            return i;
        };
        let owner = self.pending[i].owner;
        let on_it = |p: &Pending| match &p.op {
            DiskOp::Read { file: of, .. }
            | DiskOp::Write { file: of, .. }
            | DiskOp::Flush { file: of }
            | DiskOp::Allocate { file: of, .. }
            | DiskOp::Truncate { file: of, .. } => p.owner == owner && *of == file,
            _ => false,
        };
        self.pending.iter().position(on_it).unwrap_or(i)
    }

    fn complete(&mut self, i: usize) -> Completion {
        if self.rng.one_in(3) && !self.ghosts.is_empty() {
            self.land_ghost();
        }
        let i = self.before_close(i);
        let p = self.pending.remove(i);
        let data = matches!(
            p.op,
            DiskOp::Write { .. } | DiskOp::Flush { .. } | DiskOp::Read { .. }
        );
        let fails =
            data && self.faults.error_one_in > 0 && self.rng.one_in(self.faults.error_one_in);
        let result = if fails {
            if matches!(p.op, DiskOp::Write { .. }) && self.rng.one_in(2) {
                let _ = self.perform(p.owner, &p.op, p.sequence);
            }
            Err(DiskError::Io(EIO))
        } else {
            self.perform(p.owner, &p.op, p.sequence)
        };
        Completion {
            owner: p.owner,
            id: p.id,
            result,
        }
    }

    /// For boot, which does one thing after the other.
    pub fn run(&mut self, op: &DiskOp) -> DiskResult {
        if self.rng.one_in(3) && !self.ghosts.is_empty() {
            self.land_ghost();
        }
        self.perform(BOOT, op, self.sequence)
    }

    fn land_ghost(&mut self) {
        let i = self.rng.below(self.ghosts.len() as u64) as usize;
        let (inode, at, bytes) = self.ghosts.remove(i);
        self.sequence += 1;
        if let Some(inode) = self.inodes.get_mut(&inode)
            && at as usize + bytes.len() <= inode.now.len()
        {
            inode.write(self.sequence, at, bytes);
        }
    }

    /// A change of size waits for writes that are still under way.
    fn drain(&mut self, inode: u64) {
        while let Some(i) = self.ghosts.iter().position(|g| g.0 == inode) {
            let (_, at, bytes) = self.ghosts.remove(i);
            self.sequence += 1;
            let inode = self.inodes.get_mut(&inode).expect("it has ghosts");
            if at as usize + bytes.len() <= inode.now.len() {
                inode.write(self.sequence, at, bytes);
            }
        }
    }

    fn inode_mut(&mut self, owner: Owner, file: FileId) -> &mut Inode {
        self.inodes
            .get_mut(&self.open[&(owner, file)])
            .expect("an open file has an inode")
    }

    /// Bytes of all files together.
    pub fn used(&self) -> u64 {
        self.inodes.values().map(|i| i.now.len() as u64).sum()
    }

    fn path_of(&self, owner: Owner, file: FileId) -> &str {
        let inode = self.open[&(owner, file)];
        self.paths
            .iter()
            .find(|(_, i)| **i == inode)
            .map_or("", |(p, _)| p)
    }

    fn is_broken(&self, owner: Owner, op: &DiskOp) -> bool {
        let Some(broken) = &self.faults.broken else {
            return false;
        };
        let path = match op {
            DiskOp::Open { path, .. }
            | DiskOp::MakeDir { path }
            | DiskOp::Remove { path }
            | DiskOp::List { path }
            | DiskOp::ReadFile { path }
            | DiskOp::Replace { path, .. } => path,
            DiskOp::Rename { from, .. } => from,
            DiskOp::Allocate { file, .. }
            | DiskOp::Write { file, .. }
            | DiskOp::Flush { file }
            | DiskOp::Read { file, .. }
            | DiskOp::Truncate { file, .. }
            | DiskOp::Close { file } => self.path_of(owner, *file),
            DiskOp::Space => "",
        };
        path.contains(broken.as_str())
    }

    fn perform(&mut self, owner: Owner, op: &DiskOp, issued: u64) -> DiskResult {
        if self.is_broken(owner, op) {
            return Err(DiskError::Io(EIO));
        }
        match op {
            DiskOp::Open {
                file,
                path,
                create,
                allocate,
            } => {
                let inode = match self.paths.get(path) {
                    Some(inode) => *inode,
                    None if !create => return Err(DiskError::NotFound),
                    None => {
                        self.assert_parent(path);
                        let inode = self.next_inode;
                        self.next_inode += 1;
                        self.inodes.insert(inode, Inode::default());
                        self.paths.insert(path.clone(), inode);
                        inode
                    }
                };
                self.open.insert((owner, *file), inode);
                if *create {
                    self.grow(inode, *allocate)?;
                }
                Ok(DiskDone::Opened {
                    len: self.inodes[&inode].now.len() as u64,
                })
            }
            DiskOp::Allocate { file, to } => self
                .grow(self.open[&(owner, *file)], *to)
                .map(|()| DiskDone::Done),
            DiskOp::Write {
                file,
                at,
                data,
                sync,
            } => {
                let bytes: Vec<u8> = data.iter().flat_map(|d| d.padded_bytes()).collect();
                self.sequence += 1;
                let own = self.sequence;
                let inode = self.inode_mut(owner, *file);
                inode.write(own, *at, bytes);
                if *sync {
                    inode.flush(|s| s <= issued || s == own);
                }
                Ok(DiskDone::Done)
            }
            DiskOp::Flush { file } => {
                let inode = self.inode_mut(owner, *file);
                inode.flush(|s| s <= issued);
                Ok(DiskDone::Done)
            }
            DiskOp::Read { file, at, len } => {
                let now = &self.inodes[&self.open[&(owner, *file)]].now;
                let from = (*at as usize).min(now.len());
                let to = (from + *len as usize).min(now.len());
                let bytes = Bytes::copy_from_slice(&now[from..to]);
                self.bytes_read += bytes.len() as u64;
                Ok(DiskDone::Read(bytes))
            }
            DiskOp::Truncate { file, len } => {
                let inode = self.open[&(owner, *file)];
                self.drain(inode);
                self.inode_mut(owner, *file).resize(*len as usize);
                Ok(DiskDone::Done)
            }
            DiskOp::Close { file } => {
                self.open.remove(&(owner, *file)).expect("an open file");
                Ok(DiskDone::Done)
            }
            DiskOp::MakeDir { path } => {
                self.dirs.insert(path.clone());
                Ok(DiskDone::Done)
            }
            DiskOp::Rename { from, to } => {
                let moved: Vec<_> = self
                    .paths
                    .keys()
                    .filter(|p| *p == from || p.starts_with(&format!("{from}/")))
                    .cloned()
                    .collect();
                let dir = self.dirs.remove(from);
                if moved.is_empty() && !dir {
                    return Err(DiskError::NotFound);
                }
                for path in moved {
                    let inode = self.paths.remove(&path).expect("it was listed");
                    self.paths
                        .insert(path.replacen(from.as_str(), to, 1), inode);
                }
                if dir {
                    self.dirs.insert(to.clone());
                }
                Ok(DiskDone::Done)
            }
            DiskOp::Remove { path } => {
                self.dirs.remove(path);
                self.paths
                    .retain(|p, _| p != path && !p.starts_with(&format!("{path}/")));
                let live: BTreeSet<u64> = self
                    .paths
                    .values()
                    .chain(self.open.values())
                    .copied()
                    .collect();
                self.inodes.retain(|i, _| live.contains(i));
                Ok(DiskDone::Done)
            }
            DiskOp::List { path } => self.list(path),
            DiskOp::Space => Ok(DiskDone::Space(Space {
                total: self.faults.space,
                usable: self.faults.space.saturating_sub(self.used()),
            })),
            DiskOp::ReadFile { path } => {
                let inode = self.paths.get(path).ok_or(DiskError::NotFound)?;
                let bytes = Bytes::copy_from_slice(&self.inodes[inode].now);
                self.bytes_read += bytes.len() as u64;
                Ok(DiskDone::Read(bytes))
            }
            DiskOp::Replace { path, data } => {
                self.assert_parent(path);
                if self.used() + data.len() as u64 > self.faults.space {
                    return Err(DiskError::NoSpace);
                }
                let inode = self.next_inode;
                self.next_inode += 1;
                let content = Inode {
                    now: data.to_vec(),
                    stable: data.to_vec(),
                    unflushed: Vec::new(),
                };
                self.inodes.insert(inode, content);
                self.paths.insert(path.clone(), inode);
                Ok(DiskDone::Done)
            }
        }
    }

    fn grow(&mut self, inode: u64, to: u64) -> Result<(), DiskError> {
        let len = self.inodes[&inode].now.len() as u64;
        if to <= len {
            return Ok(());
        }
        if self.used() + to - len > self.faults.space {
            return Err(DiskError::NoSpace);
        }
        self.drain(inode);
        self.inodes
            .get_mut(&inode)
            .expect("looked up above")
            .resize(to as usize);
        Ok(())
    }

    fn assert_parent(&self, path: &str) {
        if let Some((dir, _)) = path.rsplit_once('/') {
            assert!(self.dirs.contains(dir), "{path}: its directory is missing");
        }
    }

    fn list(&self, path: &str) -> DiskResult {
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        if !path.is_empty() && !self.dirs.contains(path) {
            return Err(DiskError::NotFound);
        }
        let mut entries = Vec::new();
        for dir in &self.dirs {
            if let Some(name) = dir.strip_prefix(&prefix)
                && !name.is_empty()
                && !name.contains('/')
            {
                entries.push(DirEntry {
                    name: name.to_owned(),
                    is_dir: true,
                    len: 0,
                });
            }
        }
        for (file, inode) in &self.paths {
            if let Some(name) = file.strip_prefix(&prefix)
                && !name.contains('/')
            {
                let len = self.inodes[inode].now.len() as u64;
                entries.push(DirEntry {
                    name: name.to_owned(),
                    is_dir: false,
                    len,
                });
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(DiskDone::List(entries))
    }

    /// The process is gone; what of the disk remains, `loss` says.
    pub fn crash(&mut self, loss: Loss) {
        let pending = std::mem::take(&mut self.pending);
        let mut torn = std::mem::take(&mut self.ghosts);
        for p in pending {
            match &p.op {
                DiskOp::Write { file, at, data, .. } => {
                    let bytes = data.iter().flat_map(|d| d.padded_bytes()).collect();
                    torn.push((self.open[&(p.owner, *file)], *at, bytes));
                }
                DiskOp::Read { .. } | DiskOp::Flush { .. } | DiskOp::Close { .. } => {}
                // Done or not, as a whole.
                other => {
                    if self.rng.one_in(2) {
                        let _ = self.perform(p.owner, other, p.sequence);
                    }
                }
            }
        }
        self.open.clear();
        if loss == Loss::Killed {
            self.ghosts = torn;
            return;
        }
        for (i, at, bytes) in torn {
            self.sequence += 1;
            if let Some(inode) = self.inodes.get_mut(&i) {
                inode.unflushed.push(Unflushed {
                    sequence: self.sequence,
                    at,
                    bytes,
                });
            }
        }
        let live: BTreeSet<u64> = self.paths.values().copied().collect();
        self.inodes.retain(|i, _| live.contains(i));
        let rng = &mut self.rng;
        for inode in self.inodes.values_mut() {
            for u in std::mem::take(&mut inode.unflushed) {
                for (i, sector) in u.bytes.chunks(SECTOR_BYTES).enumerate() {
                    if loss == Loss::Some && rng.one_in(2) {
                        overlay(&mut inode.stable, u.at + (i * SECTOR_BYTES) as u64, sector);
                    }
                }
            }
            inode.now = inode.stable.clone();
        }
    }

    /// The bytes of a planned read.
    pub fn bytes_of(&self, owner: Owner, span: &Span) -> Vec<u8> {
        match span {
            Span::Memory(m) => m.bytes().to_vec(),
            Span::File { file, at, len, .. } => {
                let now = &self.inodes[&self.open[&(owner, file.id)]].now;
                now[*at as usize..*at as usize + *len as usize].to_vec()
            }
        }
    }

    /// A file's content as a reader sees it.
    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        Some(self.inodes[self.paths.get(path)?].now.clone())
    }

    /// Replaces a file's content durably: what an operator or bit rot does.
    pub fn set_file(&mut self, path: &str, bytes: Vec<u8>) {
        let inode = self.paths[path];
        let content = Inode {
            now: bytes.clone(),
            stable: bytes,
            unflushed: Vec::new(),
        };
        self.inodes.insert(inode, content);
    }

    pub fn paths(&self) -> Vec<String> {
        self.paths.keys().cloned().collect()
    }
}
