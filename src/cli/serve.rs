//! `corelane serve`: the broker.

use super::Outcome;

#[derive(clap::Args)]
pub struct Args {
    /// A Kafka properties file
    #[arg(long, value_name = "FILE")]
    pub config: Option<std::path::PathBuf>,
    /// Settings by Kafka's property names, over those of the file
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

pub fn run(_: Args) -> Outcome {
    Err("serve is not part of this build".to_string())
}
