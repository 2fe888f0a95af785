//! Corelane: a Kafka-protocol broker in which every core is a broker of its own.
//!
//! The map of the crate, lowest first. `tests/tidy.rs` holds the directions: a room imports only rooms of lower levels.
//!
//! ```text
//! 0 model < 1 wire, batch < 2 log, meta, client < 3 replica, quorum < 4 shard < 5 net, disk < 6 node, sim < 7 cli
//! ```
//!
//! * Pure rooms (`model wire batch log meta replica quorum shard`): no await, no clock, no file, no socket, no thread.
//!   [`shard::Shard::turn`] takes events and gives actions; it runs the same under the node and under the simulator.
//! * Shells (`net disk node`): turn bytes and completions into events, and actions into system calls.
//! * `sim`: a deterministic world in place of the shells, with a disk that forgets and clients that speak wire bytes.
//! * `client`, `cli`: the tools, on a plain blocking client.

pub mod batch;
pub mod model;
pub mod wire;

pub mod client;
pub mod log;
pub mod meta;

pub mod quorum;
pub mod replica;

pub mod shard;

pub mod disk;
pub mod net;

pub mod node;
pub mod sim;

pub mod cli;
