//! A disk in memory for the laws of this room: it forgets what was not flushed, tears what was not finished at sectors of
//! 512 bytes, runs operations in any order, and lets writes of a killed process land late.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::log::op::{DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, OpId, Span};
use crate::model::Rng;
use crate::model::limit::BLOCK_BYTES;

const SECTOR_BYTES: usize = 512;

/// A completed write that no flush has covered yet.
struct Unflushed {
    sequence: u64,
    at: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
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

struct Pending {
    id: OpId,
    op: DiskOp,
    /// Writes completed when it was issued.
    sequence: u64,
}

/// How a power loss treats sectors that were not flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    All,
    Some,
    /// Only a killed process: what was written stays, what was under way may land later.
    Killed,
}

pub(crate) struct Disk {
    inodes: BTreeMap<u64, Inode>,
    paths: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
    open: BTreeMap<FileId, u64>,
    pending: Vec<Pending>,
    /// Writes of a dead process that the kernel may still carry out.
    ghosts: Vec<(u64, u64, Vec<u8>)>,
    sequence: u64,
    next_inode: u64,
    pub rng: Rng,
    /// Bytes of all files together that may exist.
    pub space: u64,
    /// Operations on paths or files with this in their path fail with EIO.
    pub broken: Option<String>,
    pub writes: u64,
    pub flushes: u64,
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
            space: u64::MAX,
            broken: None,
            writes: 0,
            flushes: 0,
        }
    }

    pub fn submit(&mut self, id: OpId, op: DiskOp) {
        if let DiskOp::Write {
            file,
            at,
            data,
            sync,
        } = &op
        {
            let inode = self.open[file];
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
                    && self.open[other] == inode
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
        self.pending.push(Pending {
            id,
            op,
            sequence: self.sequence,
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

    /// Completes one operation, whichever.
    pub fn complete_one(&mut self) -> Option<(OpId, DiskResult)> {
        if self.pending.is_empty() {
            return None;
        }
        let i = self.rng.below(self.pending.len() as u64) as usize;
        Some(self.complete(i))
    }

    /// Completes the oldest operation that `which` picks.
    pub fn complete_where(
        &mut self,
        which: impl Fn(&DiskOp) -> bool,
    ) -> Option<(OpId, DiskResult)> {
        let i = self.pending.iter().position(|p| which(&p.op))?;
        Some(self.complete(i))
    }

    fn complete(&mut self, i: usize) -> (OpId, DiskResult) {
        if self.rng.one_in(3) && !self.ghosts.is_empty() {
            self.land_ghost();
        }
        let p = self.pending.remove(i);
        let result = self.perform(&p.op, p.sequence);
        (p.id, result)
    }

    /// For boot, which does one thing after the other.
    pub fn run(&mut self, op: &DiskOp) -> DiskResult {
        if self.rng.one_in(3) && !self.ghosts.is_empty() {
            self.land_ghost();
        }
        self.perform(op, self.sequence)
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
            let inode = self.inodes.get_mut(&inode).unwrap();
            if at as usize + bytes.len() <= inode.now.len() {
                inode.write(self.sequence, at, bytes);
            }
        }
    }

    fn used(&self) -> u64 {
        self.inodes.values().map(|i| i.now.len() as u64).sum()
    }

    fn path_of(&self, file: FileId) -> &str {
        let inode = self.open[&file];
        self.paths
            .iter()
            .find(|(_, i)| **i == inode)
            .map_or("", |(p, _)| p)
    }

    fn is_broken(&self, op: &DiskOp) -> bool {
        let Some(broken) = &self.broken else {
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
            | DiskOp::Close { file } => self.path_of(*file),
        };
        path.contains(broken.as_str())
    }

    fn perform(&mut self, op: &DiskOp, issued: u64) -> DiskResult {
        if self.is_broken(op) {
            return Err(DiskError::Io(5));
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
                self.open.insert(*file, inode);
                if *create {
                    self.grow(inode, *allocate)?;
                }
                Ok(DiskDone::Opened {
                    len: self.inodes[&inode].now.len() as u64,
                })
            }
            DiskOp::Allocate { file, to } => {
                self.grow(self.open[file], *to).map(|()| DiskDone::Done)
            }
            DiskOp::Write {
                file,
                at,
                data,
                sync,
            } => {
                let bytes: Vec<u8> = data.iter().flat_map(|d| d.padded_bytes()).collect();
                self.sequence += 1;
                let own = self.sequence;
                let inode = self.inodes.get_mut(&self.open[file]).unwrap();
                inode.write(own, *at, bytes);
                if *sync {
                    inode.flush(|s| s <= issued || s == own);
                }
                Ok(DiskDone::Done)
            }
            DiskOp::Flush { file } => {
                let inode = self.inodes.get_mut(&self.open[file]).unwrap();
                inode.flush(|s| s <= issued);
                Ok(DiskDone::Done)
            }
            DiskOp::Read { file, at, len } => {
                let now = &self.inodes[&self.open[file]].now;
                let from = (*at as usize).min(now.len());
                let to = (from + *len as usize).min(now.len());
                Ok(DiskDone::Read(Bytes::copy_from_slice(&now[from..to])))
            }
            DiskOp::Truncate { file, len } => {
                let inode = self.open[file];
                self.drain(inode);
                self.inodes.get_mut(&inode).unwrap().resize(*len as usize);
                Ok(DiskDone::Done)
            }
            DiskOp::Close { file } => {
                self.open.remove(file).expect("an open file");
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
                    let inode = self.paths.remove(&path).unwrap();
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
            DiskOp::ReadFile { path } => {
                let inode = self.paths.get(path).ok_or(DiskError::NotFound)?;
                Ok(DiskDone::Read(Bytes::copy_from_slice(
                    &self.inodes[inode].now,
                )))
            }
            DiskOp::Replace { path, data } => {
                self.assert_parent(path);
                if self.used() + data.len() as u64 > self.space {
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
        if self.used() + to - len > self.space {
            return Err(DiskError::NoSpace);
        }
        self.drain(inode);
        self.inodes.get_mut(&inode).unwrap().resize(to as usize);
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
                    torn.push((self.open[file], *at, bytes));
                }
                DiskOp::Read { .. } | DiskOp::Flush { .. } | DiskOp::Close { .. } => {}
                // Done or not, as a whole.
                other => {
                    if self.rng.one_in(2) {
                        let _ = self.perform(other, p.sequence);
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

    pub fn bytes_of(&self, span: &Span) -> Vec<u8> {
        match span {
            Span::Memory(m) => m.bytes().to_vec(),
            Span::File { file, at, len } => {
                let now = &self.inodes[&self.open[&file.id]].now;
                now[*at as usize..*at as usize + *len as usize].to_vec()
            }
        }
    }

    pub fn file(&self, path: &str) -> Option<Vec<u8>> {
        Some(self.inodes[self.paths.get(path)?].now.clone())
    }

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
