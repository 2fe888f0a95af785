//! A log dir of its own: the lock on it, and `meta.properties`, which says whose it is.
//!
//! The file is Kafka's (`version`, `cluster.id`, `node.id`, `directory.id`) with one key of ours for the format of journal and metadata
//! log. A directory that Apache Kafka wrote is refused: its metadata is in another form.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::config::BootError;
use super::config::properties;
use crate::disk::blocking::Disk;
use crate::log::DiskOp;
use crate::model::Uuid;

const FILE: &str = "meta.properties";

/// Kafka's name; Kafka locks it too.
const LOCK: &str = ".lock";

/// Kafka's version of the file.
const VERSION: i32 = 1;

/// Of journal, metadata log and what else is ours; a build reads its own and earlier ones.
const FORMAT: i32 = 1;

const FORMAT_KEY: &str = "corelane.format";

/// Held as long as the process lives.
pub(super) struct LogDir {
    pub path: PathBuf,
    pub cluster: Uuid,
    _lock: File,
}

/// Makes the directory if it is missing, locks it and reads or writes its name. `random` gives fresh ids.
pub(super) fn open(
    path: &Path,
    process: i32,
    mut random: impl FnMut() -> Uuid,
) -> Result<LogDir, BootError> {
    let shown = path.display();
    let wrong = |what: &str, error: io::Error| {
        BootError(format!(
            "{what} {shown}: {error}; set log.dirs to a directory that this user may write to"
        ))
    };
    fs::create_dir_all(path).map_err(|error| wrong("cannot make the data directory", error))?;
    let path = path
        .canonicalize()
        .map_err(|error| wrong("cannot use the data directory", error))?;
    let lock = lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => BootError(format!(
            "the data directory {shown} is in use by another process: stop it, or set log.dirs to another directory"
        )),
        _ => wrong("cannot lock the data directory", error),
    })?;
    let cluster = match fs::read(path.join(FILE)) {
        Ok(bytes) => check(&bytes, process)
            .map_err(|why| BootError(format!("{}: {why}", path.join(FILE).display())))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let cluster = random();
            let text = format!(
                "# What this directory belongs to; do not change.\nversion={VERSION}\n{FORMAT_KEY}={FORMAT}\ncluster.id={cluster}\nnode.id={process}\ndirectory.id={}\n",
                random()
            );
            let replace = DiskOp::Replace {
                path: FILE.to_string(),
                data: text.into_bytes().into(),
            };
            Disk::new(&path).run(replace).map_err(|error| {
                BootError(format!(
                    "cannot write {}: {error}",
                    path.join(FILE).display()
                ))
            })?;
            cluster
        }
        Err(error) => return Err(wrong("cannot read meta.properties in", error)),
    };
    Ok(LogDir {
        path,
        cluster,
        _lock: lock,
    })
}

/// Locks a directory that a broker has used, whichever it was.
pub(super) fn open_existing(path: &Path) -> Result<LogDir, BootError> {
    let file = path.join(FILE);
    let bytes = fs::read(&file).map_err(|error| {
        BootError(format!(
            "{}: {error}: is it a data directory?",
            file.display()
        ))
    })?;
    let all = properties::parse(&bytes).unwrap_or_default();
    let found = all.iter().rev().find(|property| property.key == "node.id");
    let process = found.and_then(|property| property.value.parse().ok());
    open(path, process.unwrap_or(0), || Uuid::ZERO)
}

/// Both kinds of lock: Java takes a POSIX one, which says nothing to a second opener in the same process.
fn lock(path: &Path) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .open(path.join(LOCK))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Gives the cluster's id.
fn check(bytes: &[u8], process: i32) -> Result<Uuid, String> {
    let all = properties::parse(bytes)?;
    let find = |key: &str| {
        let found = all.iter().rev().find(|property| property.key == key);
        found.map(|property| property.value.as_str())
    };
    let number = |key: &str| -> Result<Option<i32>, String> {
        let wrong = |text: &str| format!("{key}={text} is not a number");
        find(key)
            .map(|text| text.parse().map_err(|_| wrong(text)))
            .transpose()
    };
    let version = number("version")?.unwrap_or(0);
    let Some(format) = number(FORMAT_KEY)? else {
        let of_kafka = find("cluster.id").is_some()
            && (find("node.id").is_some() || find("broker.id").is_some());
        if !of_kafka {
            return Err(format!(
                "the file is damaged: neither {FORMAT_KEY} nor a cluster.id with a node.id is in it; put it back from a backup, or set log.dirs to another directory"
            ));
        }
        return Err(
            "the directory was written by Apache Kafka, and Corelane cannot take it over: set log.dirs to another directory"
                .to_string(),
        );
    };
    if version > VERSION || format > FORMAT {
        return Err(format!(
            "the directory has the newer format {version}.{format}, this build knows {VERSION}.{FORMAT}: start the newer Corelane that wrote it"
        ));
    }
    match number("node.id")? {
        Some(id) if id == process => {}
        Some(id) => {
            return Err(format!(
                "the directory belongs to node.id={id}, not {process}: set node.id={id}, or log.dirs to another directory"
            ));
        }
        None => return Err("node.id is missing: the file is damaged".to_string()),
    }
    let cluster = find("cluster.id").and_then(Uuid::parse);
    cluster.ok_or_else(|| "cluster.id is missing or damaged".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(lines: &[&str]) -> Result<Uuid, String> {
        let all = [
            &[
                "version=1",
                "cluster.id=AAAAAAAAAAAAAAAAAAAAAQ",
                "node.id=3",
            ],
            lines,
        ];
        check(all.concat().join("\n").as_bytes(), 3)
    }

    #[test]
    fn a_directory_of_a_newer_format_is_refused() {
        assert!(properties(&["corelane.format=1"]).is_ok());
        let newer = properties(&["corelane.format=2"]).unwrap_err();
        assert!(newer.contains("newer format 1.2"), "{newer}");
        let newer = properties(&["corelane.format=1", "version=2"]).unwrap_err();
        assert!(newer.contains("newer format 2.1"), "{newer}");
    }

    #[test]
    fn a_directory_of_apache_kafka_or_of_another_process_is_refused() {
        assert!(properties(&[]).unwrap_err().contains("Apache Kafka"));
        let other = properties(&["corelane.format=1", "node.id=4"]).unwrap_err();
        assert!(other.contains("set node.id=4"), "{other}");
    }

    #[test]
    fn what_is_nobodys_is_damaged_not_of_apache_kafka() {
        let garbage: [&[u8]; 4] = [
            b"",
            b"garbage",
            b"\xff\x00\x01=\xfe",
            b"version=1\nnode.id=3",
        ];
        for bytes in garbage {
            let why = check(bytes, 3).unwrap_err();
            assert!(why.contains("damaged") && why.contains("log.dirs"), "{why}");
        }
        let old = check(b"version=0\ncluster.id=x\nbroker.id=1", 3).unwrap_err();
        assert!(old.contains("Apache Kafka"), "{old}");
    }
}
