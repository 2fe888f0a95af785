//! `corelane serve`: the broker.

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use super::Outcome;
use crate::node::{self, config};

#[derive(clap::Args)]
pub struct Args {
    /// A Kafka properties file
    #[arg(long, value_name = "FILE")]
    pub config: Option<std::path::PathBuf>,
    /// Settings by Kafka's property names, over those of the file
    #[arg(value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

pub fn run(args: Args) -> Outcome {
    log_to_stderr();
    let config = config::load(args.config.as_deref(), &args.settings).map_err(|e| e.to_string())?;
    node::run(config).map_err(|e| e.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// What is logged is chosen by RUST_LOG, as everywhere in Rust; without it, everything from INFO up.
fn log_to_stderr() {
    let wanted = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(wanted)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // A line that cannot be written (a full disk) is lost; telling of it on the same stderr would panic.
        .log_internal_errors(false)
        .init();
}
