//! What the tests of this room stand on.

mod disk;
mod rig;

pub(crate) use disk::{Disk, Loss};
pub(crate) use rig::{Batch, Rig, batch, tp};
