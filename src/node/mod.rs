//! One process.

pub mod config;
pub mod ring;
