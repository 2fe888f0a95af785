//! placeholder
use super::Outcome;
#[derive(clap::Args)]
pub struct Args {}
pub fn run(_: Args) -> Outcome {
    Err("later".into())
}
