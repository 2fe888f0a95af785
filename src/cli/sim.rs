//! `corelane sim`: runs seeds of the simulator.

use std::process::ExitCode;

use super::Outcome;
use super::out::say;
use crate::log::planted::{BUGS, Bug};
use crate::sim::{Faults, Options, Report, replay_command, run as run_seed};

#[derive(clap::Args)]
pub struct Args {
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, one after the other
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Faults that may come: all, none, or names with commas between
    #[arg(long, default_value = "all")]
    faults: String,
    /// A bug to plant, which the simulator should find (needs a build with the feature planted-bugs)
    #[arg(long)]
    bug: Option<String>,
    /// Print the names of the bugs that can be planted
    #[arg(long)]
    list_bugs: bool,
    /// Print every event
    #[arg(long)]
    trace: bool,
}

pub fn run(args: Args) -> Outcome {
    if args.list_bugs {
        for bug in BUGS {
            say!("{bug:?}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let faults = Faults::parse(&args.faults)?;
    let bug = args.bug.as_deref().map(parse_bug).transpose()?;
    let mut failed = 0;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let options = Options {
            seed,
            faults: faults.clone(),
            bug,
            trace: args.trace,
        };
        let report = run_seed(&options);
        print(&report);
        if report.failure.is_some() {
            failed += 1;
            say!("  run it again: {}", replay_command(&options));
            if bug.is_some() {
                // Found, which is what was asked for.
                break;
            }
        }
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn print(report: &Report) {
    say!(
        "seed {} hash {:016x} events {} acknowledged {} starts {} time {} ms: {}",
        report.seed,
        report.hash,
        report.events,
        report.acknowledged,
        report.lives,
        report.virtual_ms,
        report.failure.as_deref().unwrap_or("ok")
    );
}

fn parse_bug(name: &str) -> Result<Bug, String> {
    if !cfg!(feature = "planted-bugs") {
        return Err("this build has no planted bugs: build it with --features planted-bugs".into());
    }
    BUGS.into_iter()
        .find(|bug| format!("{bug:?}") == name)
        .ok_or_else(|| {
            let names: Vec<String> = BUGS.iter().map(|bug| format!("{bug:?}")).collect();
            format!("there is no bug '{name}': {}", names.join(", "))
        })
}
