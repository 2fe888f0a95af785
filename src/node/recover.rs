//! What an operator does about a log that a loss fenced, while the broker is stopped: look, and give up what is gone.
//!
//! A log that ends below an offset that was flushed once is out of use until somebody says that it may go on without: nothing is cut or
//! overwritten before, so that a disk that comes back, or a backup, can still bring the records.

use std::path::Path;

use super::boot;
use super::config::BootError;
use super::properties;
use crate::disk::blocking::Disk;
use crate::log::{Config, DiskOp, Fenced, Ids, LogState, OpId, Opened, Store, StoreConfig};
use crate::model::limit::SHARDS_MAX;
use crate::model::{Instant, Now, ShardIndex, TopicPartition};

/// A log that is not whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Its directory: `<topic>-<partition>`.
    pub dir: String,
    pub tp: TopicPartition,
    /// It ends here; what was above is gone.
    pub from: i64,
    /// Up to here it was flushed; `None`: nobody knows, a journal lost a frame that may have held something of it.
    pub to: Option<i64>,
}

/// A data directory that no broker uses, with everything that its journals had in the segments.
pub struct Stopped {
    disk: Disk,
    opened: Opened,
    _dir: properties::LogDir,
}

impl Stopped {
    /// Takes the directory's lock and replays its journals, as a start does. The error is for the operator.
    pub fn open(dir: &Path) -> Result<Stopped, BootError> {
        let held = properties::open_existing(dir)?;
        // Journals of more shards than there are would be removed.
        let opened = boot::replay(&held.path, SHARDS_MAX as u16)?;
        Ok(Stopped {
            disk: Disk::new(&held.path),
            opened,
            _dir: held,
        })
    }

    /// The logs that a start would fence because of a loss.
    pub fn lost(&mut self) -> Result<Vec<Lost>, BootError> {
        let mut lost = Vec::new();
        let dirs: Vec<(String, TopicPartition)> = self
            .opened
            .dirs
            .iter()
            .map(|(dir, tp)| (dir.clone(), *tp))
            .collect();
        for (dir, tp) in dirs {
            match self.state(&dir, tp) {
                LogState::Fenced(Fenced::Loss { from, to }) => lost.push(Lost {
                    dir,
                    tp,
                    from,
                    to: (to != i64::MAX).then_some(to),
                }),
                LogState::Fenced(Fenced::Io(why) | Fenced::Damaged(why)) => {
                    return Err(BootError(format!("{dir} cannot be opened: {why}")));
                }
                LogState::Loading | LogState::Ready | LogState::Cutting | LogState::Closed => {}
            }
        }
        Ok(lost)
    }

    /// From the next start on the log is what is left of it.
    pub fn accept(&mut self, lost: &Lost) -> Result<(), BootError> {
        let op = self.opened.accept_loss(lost.tp);
        self.disk
            .run(op)
            .map(drop)
            .map_err(|error| BootError(format!("what was accepted cannot be written: {error}")))
    }

    /// How a start finds the log. One that is whole is opened on the way, which changes nothing that the next start would not.
    fn state(&mut self, dir: &str, tp: TopicPartition) -> LogState {
        let ids = Ids {
            first: 0,
            stride: 1,
        };
        let config = StoreConfig {
            journal_files_max: 0,
            ..StoreConfig::default()
        };
        let mut store = Store::new(ShardIndex(0), config, self.opened.clone(), ids);
        let now = Now {
            mono: Instant(0),
            wall: 0,
        };
        let topic = dir.rsplit_once('-').map_or(dir, |(topic, _)| topic);
        store.open(tp, topic, Config::default(), -1, now);
        let mut ops: Vec<(OpId, DiskOp)> = Vec::new();
        store.commit(now, &mut ops);
        while let Some((id, op)) = ops.pop() {
            let result = self.disk.run(op);
            store.on_disk(id, result, now, &mut ops);
            let state = store.log(tp).map(|log| log.state().clone());
            match state {
                Some(LogState::Loading) => {}
                Some(state) => return state,
                None => break,
            }
        }
        LogState::Loading
    }
}
