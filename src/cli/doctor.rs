//! `corelane doctor`: whether this machine can run the broker with this configuration, and what to change if not.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Outcome;
use super::out::say;
use crate::node::config;
use crate::node::fit::{self, Verdict};

#[derive(clap::Args)]
pub struct Args {
    /// The Kafka properties file that the broker will have
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The settings that the broker will have, over those of the file
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

pub fn run(args: Args) -> Outcome {
    let config = config::load(args.config.as_deref(), &args.settings).map_err(|e| e.to_string())?;
    for warning in &config.warnings {
        say!("warn   configuration: {warning}");
    }
    let findings = fit::examine(&config);
    for finding in &findings {
        let verdict = match finding.verdict {
            Verdict::Fit => "ok   ",
            Verdict::Poor => "warn ",
            Verdict::Unfit => "FAIL ",
        };
        say!("{verdict}  {}: {}", finding.what, finding.seen);
        if !finding.advice.is_empty() {
            say!("       -> {}", finding.advice);
        }
    }
    let count = |verdict| findings.iter().filter(|f| f.verdict == verdict).count();
    match (count(Verdict::Unfit), count(Verdict::Poor)) {
        (0, 0) => say!("This machine is fit."),
        (0, poor) => {
            say!("This machine can run the broker; {poor} of the above could be better.")
        }
        (unfit, _) => {
            say!("The broker will not run here before {unfit} of the above are changed.");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
