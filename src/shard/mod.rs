//! One core's world.

pub mod conn;
pub mod event;
pub mod peer;
pub mod session;

pub use event::{Actions, Chunk, Event};
pub use peer::PeerMsg;
