//! One process.

pub mod ring;
