//! Disk operations one at a time on the calling thread: for boot, when no shard runs yet, and for tools.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::files::{self, OpenFile};
use crate::log::{DiskDone, DiskError, DiskOp, DiskResult, FileId, MemSpan};

/// A log dir and the files that are open in it.
pub struct Disk {
    dir: PathBuf,
    files: BTreeMap<FileId, OpenFile>,
}

impl Disk {
    pub fn new(dir: &Path) -> Disk {
        Disk {
            dir: dir.to_path_buf(),
            files: BTreeMap::new(),
        }
    }

    pub fn run(&mut self, op: DiskOp) -> DiskResult {
        match op {
            DiskOp::Open {
                file,
                path,
                create,
                allocate,
            } => {
                let (open, len, unsynced) = files::open(&self.dir, &path, create, allocate)?;
                files::synced(Ok(unsynced))?;
                let before = self.files.insert(file, open);
                assert!(before.is_none(), "a file id names one file");
                Ok(DiskDone::Opened { len })
            }
            DiskOp::Allocate { file, to } => files::synced(files::allocate(self.file(file)?, to)),
            DiskOp::Write {
                file,
                at,
                data,
                sync,
            } => {
                let file = self.file(file)?;
                write(file, at, &data)?;
                if sync {
                    flush(file)
                } else {
                    Ok(DiskDone::Done)
                }
            }
            DiskOp::Flush { file } => flush(self.file(file)?),
            DiskOp::Read { file, at, len } => read(self.file(file)?, at, len),
            DiskOp::Truncate { file, len } => files::synced(files::truncate(self.file(file)?, len)),
            DiskOp::Close { file } => {
                self.files.remove(&file);
                Ok(DiskDone::Done)
            }
            DiskOp::MakeDir { path } => files::synced(files::make_dir(&self.dir, &path)),
            DiskOp::Rename { from, to } => files::synced(files::rename(&self.dir, &from, &to)),
            DiskOp::Remove { path } => files::synced(files::remove(&self.dir, &path)),
            DiskOp::List { path } => files::list(&self.dir, &path),
            DiskOp::Space => files::space(&self.dir),
            DiskOp::ReadFile { path } => files::read_file(&self.dir, &path),
            DiskOp::Replace { path, data } => {
                files::synced(files::replace(&self.dir, &path, &data))
            }
        }
    }

    fn file(&self, file: FileId) -> Result<&OpenFile, DiskError> {
        self.files.get(&file).ok_or(DiskError::Io(libc::EBADF))
    }
}

fn error_of(errno: rustix::io::Errno) -> DiskError {
    files::error_of_errno(errno.raw_os_error())
}

fn flush(file: &OpenFile) -> DiskResult {
    rustix::fs::fdatasync(&file.direct).map_err(error_of)?;
    Ok(DiskDone::Done)
}

fn write(file: &OpenFile, at: u64, data: &[MemSpan]) -> Result<(), DiskError> {
    // Padding included; copied, because boot does not have to be fast about it and the copy keeps this file free of pointers.
    let mut block = crate::log::Block::new(data.iter().map(|s| s.padded().1).sum());
    let target = std::rc::Rc::get_mut(&mut block).expect("a new block has one owner");
    for span in data {
        target.append(&span.padded_bytes());
    }
    let bytes = target.bytes();
    let mut done = 0;
    while done < bytes.len() {
        let slices = [IoSlice::new(&bytes[done..])];
        match rustix::io::pwritev(&file.direct, &slices, at + done as u64) {
            Ok(0) => return Err(DiskError::Io(libc::EIO)),
            Ok(written) => done += written,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(error_of(errno)),
        }
    }
    Ok(())
}

fn read(file: &OpenFile, at: u64, len: u32) -> DiskResult {
    let mut bytes = vec![0; len as usize];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(&file.cached, &mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(error_of(errno)),
        }
    }
    bytes.truncate(done);
    Ok(DiskDone::Read(Bytes::from(bytes)))
}
