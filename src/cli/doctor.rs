//! `corelane doctor`: whether this machine can run the broker.

use super::Outcome;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: Args) -> Outcome {
    Err("doctor is not part of this build".to_string())
}
