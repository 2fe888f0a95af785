//! The metadata quorum: what the cluster agrees on, and how.
//!
//! Owns: [`controller::decide`] (a command and the image give records and an outcome), [`placement`], and [`Quorum`] (the
//! records go through Raft, with a log and a snapshot of its own).
//!
//! Invariants:
//! * Commands are decided one after the other, each against the image with everything decided before it.
//! * A record leaves this room, and an outcome is given, only once it is committed and on the device.
//! * Nothing decided is rolled back: lost leadership drops the look-ahead and all open proposals.
//!
//! Must not know: connections, partitions' logs, what a shard does with a record.

mod alter_configs;
mod boot;
pub mod controller;
mod create_topics;
#[cfg(test)]
mod durable;
mod elect;
mod features;
mod keeper;
#[cfg(test)]
mod laws;
mod message;
mod move_replicas;
pub mod placement;
mod raft;
#[cfg(test)]
pub mod testing;
mod voter;
mod wal;

pub use boot::{Boot, Booted, Step};
pub use controller::decide;
pub use voter::{Committed, Options, Quorum};
