//! What the tests of this room stand on.

mod rig;

pub(crate) use rig::{Batch, Rig, batch, tp};
