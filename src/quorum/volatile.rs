//! A quorum that forgets, until the durable one takes its place with the same calls.

use std::sync::Arc;

use super::controller::decide;
use crate::log::{DiskOp, DiskResult, OpId};
use crate::meta::{Command, Image, Outcome, Record};
use crate::model::{Instant, Now, Rng};

/// Records that the quorum committed, with what became of the command that made them.
#[derive(Clone, Debug)]
pub struct Committed {
    pub offset: u64,
    pub records: Arc<[Record]>,
    pub outcome: Option<(u64, Outcome)>,
}

#[derive(Debug)]
pub struct Quorum {
    image: Image,
    rng: Rng,
    committed: Vec<Committed>,
}

impl Quorum {
    pub fn volatile(image: Image, rng: Rng) -> Quorum {
        Quorum {
            image,
            rng,
            committed: Vec::new(),
        }
    }

    pub fn propose(&mut self, token: u64, command: Command, _: Now) {
        let (records, outcome) = decide(&self.image, &command, &mut self.rng);
        let offset = self.image.applied();
        for (at, record) in (offset..).zip(&records) {
            self.image.apply(at, record);
        }
        self.committed.push(Committed {
            offset,
            records: records.into(),
            outcome: Some((token, outcome)),
        });
    }

    pub fn on_disk(&mut self, _: OpId, _: DiskResult, _: Now) -> bool {
        false
    }

    pub fn tick(&mut self, _: Now) {}

    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }

    pub fn take(&mut self, _: &mut Vec<(OpId, DiskOp)>) -> Vec<Committed> {
        std::mem::take(&mut self.committed)
    }
}
