//! Opening a log's directory, or making it.

use std::collections::VecDeque;

use super::op::{DiskDone, DiskError, DiskOp, DiskResult};
use super::ops::{Chain, LogIndex, Task, Then, partition_metadata, segment_path};
use super::partition::Fenced;
use super::segment::{Segment, ceil};
use super::store::Store;

impl Store {
    pub(super) fn start_loading(&mut self, index: LogIndex, leader_epoch: i32) {
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("just added");
        log.epochs.assign(leader_epoch, 0);
        let path = format!("{}/partition.metadata", log.dir);
        self.ops
            .issue(Task::Load { log: index }, DiskOp::ReadFile { path });
    }

    pub(super) fn load_step_done(&mut self, index: LogIndex, result: DiskResult) {
        match result {
            Err(DiskError::NotFound) => self.make_log(index),
            Ok(DiskDone::Read(_)) => self.fence(index, Fenced::Damaged("not yet".into())),
            Ok(_) => {}
            Err(e) => self.fence(
                index,
                Fenced::Io(format!("the directory cannot be read: {e}")),
            ),
        }
    }

    fn make_log(&mut self, index: LogIndex) {
        let allocate = self.config.allocate_bytes_min;
        let now = self.now.wall;
        let file = self.ops.file();
        let log = self.logs[index as usize]
            .as_deref_mut()
            .expect("it is being loaded");
        log.segments.push_back(Segment::new(0, now));
        let steps = VecDeque::from([
            DiskOp::MakeDir {
                path: log.dir.clone(),
            },
            DiskOp::Replace {
                path: format!("{}/partition.metadata", log.dir),
                data: partition_metadata(log.tp.topic),
            },
            DiskOp::Open {
                file,
                path: segment_path(&log.dir, 0, "log"),
                create: true,
                allocate: allocate.min(ceil(log.config.segment_bytes)),
            },
        ]);
        log.epochs_dirty = true;
        log.chains.push_back(Chain {
            steps,
            then: Then::SegmentOpened { base: 0, file },
        });
        self.run_chain(index);
    }
}
