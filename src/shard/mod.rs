//! One core's world.

pub mod event;
pub mod peer;

pub use event::{Actions, Chunk, Event};
pub use peer::PeerMsg;
