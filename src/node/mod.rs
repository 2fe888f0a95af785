//! One process: its configuration, its boot and its end, and the threads that turn its shards.
//!
//! Owns what is there once a process (the directory's lock and name, ports, signals, the metronome) and once a shard (ring, sockets,
//! files, the channels to its siblings), and the loop that drives [`crate::shard::Shard`] with them. Knows nothing of the protocol:
//! it carries bytes, completions and messages in, and actions out.
//!
//! Invariants:
//! - A shard lives and dies on one pinned thread; threads share channels, wake-up descriptors and the turn counter, nothing else.
//! - Whatever may end a wait (a socket, a disk operation, a message) is a completion of the shard's one ring; a deadline is the
//!   wait's timeout. A turn that does not end is seen from outside by the metronome.
//! - No shard starts before every journal of the log dir is replayed, and no port answers before that.
//! - Whatever ends the process by itself is a [`BootError`]: one line, exit code 1.

mod boot;
pub mod config;
mod drive;
pub mod fit;
pub mod http;
mod mesh;
mod metronome;
#[cfg(feature = "planted-bugs")]
mod plant;
mod ports;
mod process;
mod properties;
pub mod recover;
pub mod ring;

pub use config::{BootError, ServerConfig};
pub use process::run;
