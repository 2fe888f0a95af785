//! The tools: one file each, on the client; `serve` is the broker itself.

mod connect;
mod consume;
mod demo;
mod doctor;
mod out;
mod perf;
mod produce;
mod properties;
mod recover;
mod serve;
mod shards;
mod sim;
mod topics;
mod trim;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "corelane",
    version,
    about = "A Kafka-protocol broker in which every core is a broker of its own, and its tools"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the broker
    Serve(serve::Args),
    /// Create, list, describe, alter, trim and delete topics
    Topics(topics::Args),
    /// Show what each shard has to do, and move partitions between the shards of a process
    Shards(shards::Args),
    /// Send lines of the standard input as records
    Produce(produce::Args),
    /// Print records
    Consume(consume::Args),
    /// Measure a broker, this one or Apache Kafka
    Perf(perf::Args),
    /// Start a broker in a temporary folder, put it through its paces and check every record
    Demo(demo::Args),
    /// Run the broker in a deterministic world of faults and check what it promises
    Sim(sim::Args),
    /// Show logs that lost something, and let them serve what is left; for a broker that is stopped
    Recover(recover::Args),
    /// Say whether this machine can run the broker, and what to change if not
    Doctor(doctor::Args),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse_from(topics::kafka_style(std::env::args_os().collect()));
    let result = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Topics(args) => topics::run(args),
        Command::Shards(args) => shards::run(args),
        Command::Produce(args) => produce::run(args),
        Command::Consume(args) => consume::run(args),
        Command::Perf(args) => perf::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Recover(args) => recover::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            // On a full disk that holds the log too there is nobody to tell; the exit code still says it.
            let _ = writeln!(std::io::stderr(), "corelane: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What a tool ends with: an exit code, or one line for the user and exit code 1.
type Outcome = Result<ExitCode, String>;
