//! A quorum of one over a disk in memory, for the laws of this room and of the shard.

use std::sync::Arc;

use super::{Booted, Options, Quorum, Step};
use crate::log::Ids;
use crate::log::faulty::Disk;
use crate::meta::StaticConfig;
use crate::model::Rng;

pub fn options() -> Options {
    Options {
        process: 0,
        snapshot_records: 1000,
        ids: Ids {
            first: 1,
            stride: 2,
        },
    }
}

/// Boots what is on the disk; the error is the line that the process ends with.
pub fn boot(disk: &mut Disk, options: Options, statics: StaticConfig) -> Result<Booted, String> {
    let mut boot = Quorum::boot(options, Arc::new(statics), Rng::seeded(1));
    let mut result = None;
    loop {
        match boot.next(result.take()) {
            Step::Op(op) => result = Some(disk.run(&op)),
            Step::Done(booted) => return Ok(*booted),
            Step::Failed(why) => return Err(why),
        }
    }
}

/// A quorum without a past.
pub fn fresh(disk: &mut Disk) -> Booted {
    boot(disk, options(), StaticConfig::default()).expect("nothing there is nothing wrong")
}
