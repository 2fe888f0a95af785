//! What the tests of this room stand on.

mod rig;
mod world;

pub(crate) use rig::{Batch, Rig, batch, replay, tp};
pub(crate) use world::World;
