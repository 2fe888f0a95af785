//! Ids, error codes, limits with units, time and the seeded random generator.
//!
//! Owns the vocabulary that every other room shares. Must not know any other room.

pub mod error;
pub mod id;
pub mod limit;
pub mod rng;
pub mod time;

pub use error::ErrorCode;
pub use id::{ConnId, NodeId, ShardIndex, SlotId, TopicId, TopicPartition, Uuid};
pub use rng::Rng;
pub use time::{Instant, Now, Rarely, WallMs};
