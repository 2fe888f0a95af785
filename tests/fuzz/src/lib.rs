//! The rooms of the broker that are fuzzed, under the broker's name.

#[path = "../../../src/model/mod.rs"]
pub mod model;
#[path = "../../../src/wire/mod.rs"]
pub mod wire;
