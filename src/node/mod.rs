//! One process.

pub mod config;
pub mod fit;
pub mod ring;
