//! What the cluster agreed on: the image and the records that make it.

/// Placeholder until the records exist.
#[derive(Clone, Debug)]
pub struct Record;
#[derive(Clone, Debug)]
pub struct Command;
#[derive(Clone, Debug)]
pub struct Outcome;
