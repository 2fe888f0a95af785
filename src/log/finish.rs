//! The end of a clean stop: what stands in a log dir beside its logs, written once all shards have stopped.
//!
//! The generation is raised first, so that no frame is read again whoever writes to the dir next; Kafka's checkpoints
//! follow; its clean mark comes last. A crash before the mark makes the next boot look at everything.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use bytes::Bytes;

use super::ending::{Left, Stopped, StoppedLog};
use super::generation::{self, Generation};
use super::op::{DiskDone, DiskOp, DiskResult};
use super::recover::{CLEAN_SHUTDOWN, Opened, Step};

pub(crate) const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
pub(crate) const LOG_STARTS: &str = "log-start-offset-checkpoint";
pub(crate) const HIGH_WATERMARKS: &str = "replication-offset-checkpoint";

/// Writes the dir's own files; driven like [`super::Replay`]. [`Step::Done`] tells whether the dir is now cleanly stopped.
#[derive(Debug)]
pub struct Finish {
    opened: Opened,
    logs: BTreeMap<String, StoppedLog>,
    clean: bool,
    broker_epoch: i64,
    todo: VecDeque<DiskOp>,
    listing: bool,
}

impl Finish {
    /// `opened` is what boot's replay found; `stopped` is left by every store of the dir. `broker_epoch` is what the
    /// controller gave at registration, -1 if it did not.
    pub fn new(opened: Opened, stopped: Vec<Stopped>, broker_epoch: i64) -> Finish {
        let mut clean = stopped.iter().all(|s| s.clean);
        let mut logs = BTreeMap::new();
        // Given up and opened by nobody since: the last that is known of it, behind which comes what was open at the stop.
        let mut left: Vec<Left> = stopped.iter().flat_map(|s| s.left.clone()).collect();
        left.sort_by_key(|left| left.leader_epoch);
        for log in left.into_iter().map(|left| left.log) {
            match log {
                Ok(log) => drop(logs.insert(log.dir.clone(), log)),
                Err(_) => clean = false,
            }
        }
        for log in stopped.into_iter().flat_map(|s| s.logs) {
            logs.insert(log.dir.clone(), log);
        }
        Finish {
            opened,
            logs,
            clean,
            broker_epoch,
            todo: VecDeque::new(),
            listing: false,
        }
    }

    /// The first call passes `None`, every later one the result of the operation it was given.
    pub fn next(&mut self, last: Option<DiskResult>) -> Step<bool> {
        if !self.clean {
            return Step::Done(false);
        }
        match last {
            None => {
                self.listing = true;
                return Step::Op(DiskOp::List {
                    path: String::new(),
                });
            }
            Some(Ok(DiskDone::List(entries))) if self.listing => {
                self.listing = false;
                let dirs: Vec<String> = entries
                    .into_iter()
                    .filter(|e| e.is_dir)
                    .map(|e| e.name)
                    .collect();
                // One that was given up may have been deleted by another store.
                self.logs.retain(|dir, _| dirs.contains(dir));
                if !self.add_unopened(&dirs) {
                    self.clean = false;
                    return Step::Done(false);
                }
                self.plan();
            }
            Some(Ok(_)) => {}
            Some(Err(e)) => return Step::Failed(format!("the clean stop cannot be noted: {e}")),
        }
        match self.todo.pop_front() {
            Some(op) => Step::Op(op),
            None => Step::Done(true),
        }
    }

    /// Logs that no shard opened are as clean as they were.
    fn add_unopened(&mut self, dirs: &[String]) -> bool {
        for dir in dirs {
            let Some(tp) = self.opened.dirs.get(dir) else {
                continue;
            };
            if self.logs.contains_key(dir) {
                continue;
            }
            if !self.opened.clean {
                tracing::warn!(
                    dir,
                    "a log that nobody opened was not checked: the next start looks at all logs"
                );
                return false;
            }
            let known = self.opened.logs.get(tp).copied().unwrap_or_default();
            let log = StoppedLog {
                tp: *tp,
                dir: dir.clone(),
                first: known.start,
                known,
            };
            self.logs.insert(dir.clone(), log);
        }
        true
    }

    fn plan(&mut self) {
        let generation = Generation {
            number: self.opened.generation + 1,
            logs: self.logs.values().map(|l| (l.tp, l.known)).collect(),
        };
        let starts = self
            .logs
            .values()
            .filter(|l| l.known.start > l.first)
            .map(|l| (&l.dir[..], l.known.start));
        let points = self.logs.values().map(|l| (&l.dir[..], l.known.flushed));
        let marks = self
            .logs
            .values()
            .map(|l| (&l.dir[..], l.known.high_watermark));
        let mark = format!("{{\"version\":0,\"brokerEpoch\":{}}}", self.broker_epoch);
        let files = [
            (generation::FILE, generation.encode()),
            (LOG_STARTS, encode(starts)),
            (RECOVERY_POINTS, encode(points)),
            (HIGH_WATERMARKS, encode(marks)),
            (CLEAN_SHUTDOWN, Bytes::from(mark)),
        ];
        self.todo = files
            .into_iter()
            .map(|(path, data)| DiskOp::Replace {
                path: path.into(),
                data,
            })
            .collect();
    }
}

/// Kafka's OffsetCheckpointFile: version 0, the count, one `topic partition offset` a line.
fn encode<'a>(offsets: impl Iterator<Item = (&'a str, i64)>) -> Bytes {
    let mut lines = String::new();
    let mut count = 0;
    for (dir, offset) in offsets {
        if let Some((topic, partition)) = dir.rsplit_once('-') {
            count += 1;
            let _ = writeln!(lines, "{topic} {partition} {offset}");
        }
    }
    Bytes::from(format!("0\n{count}\n{lines}"))
}

/// Offsets by directory name; `None` for anything but what Kafka writes.
pub(crate) fn decode(bytes: &[u8]) -> Option<BTreeMap<String, i64>> {
    let mut lines = std::str::from_utf8(bytes).ok()?.lines();
    if lines.next()?.trim() != "0" {
        return None;
    }
    let count: usize = lines.next()?.trim().parse().ok()?;
    let mut offsets = BTreeMap::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let (topic, partition) = (words.next()?, words.next()?.parse::<i32>().ok()?);
        offsets.insert(
            super::ops::dir_name(topic, partition),
            words.next()?.parse().ok()?,
        );
    }
    (offsets.len() == count).then_some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_kafkas_text() {
        let text = encode([("t-0", 5), ("a-b-12", 7)].into_iter());
        assert_eq!(text, "0\n2\nt 0 5\na-b 12 7\n");
        let back = decode(&text).unwrap();
        assert_eq!(
            back.into_iter().collect::<Vec<_>>(),
            [("a-b-12".to_owned(), 7), ("t-0".to_owned(), 5)]
        );
        for bad in [
            "",
            "1\n0\n",
            "0\n2\nt 0 5\n",
            "0\n1\nt x 5\n",
            "0\n1\nt 0\n",
        ] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
