//! `corelane perf`: a load generator that costs almost nothing, for this broker and for Apache Kafka alike.
//!
//! One thread, non-blocking sockets, epoll. Batches are encoded once; a request is a copied head (about 150 bytes: its correlation id
//! and, with idempotence, the sequence and the checksum are patched) and a shared body that is never copied. Every answer's error
//! codes are looked at. Closed loop: so many requests in flight on each connection. Open loop (`--rate`): requests have a time at
//! which they are due, and their latency counts from there, however long they waited to be sent.

mod conn;
mod consume;
mod frames;
mod produce;
pub(super) mod report;
mod target;

use std::process::ExitCode;

use clap::Subcommand;

use super::Outcome;
use super::connect::Connect;
use super::out::say;
use report::{Recorder, Report};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send batches as fast as the broker takes them, or at a fixed rate
    Produce(produce::Args),
    /// Fetch as fast as the broker gives, counting records without decoding them
    Consume(consume::Args),
}

/// What both have in common.
#[derive(clap::Args, Clone, Debug)]
struct Load {
    #[command(flatten)]
    connect: Connect,
    #[arg(long, short = 't')]
    topic: String,
    /// Use this many partitions of the topic; with --create, make it with so many. All of them if not given
    #[arg(long)]
    partitions: Option<i32>,
    /// Create the topic if it is not there
    #[arg(long)]
    create: bool,
    /// A config of the topic to create; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    topic_config: Vec<String>,
    /// Connections in all, spread over the nodes that lead partitions
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Measure for this long
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Measure this many records instead
    #[arg(long)]
    records: Option<u64>,
    /// Seconds before the measure begins
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Tell what CPU time this process, the broker, used between the same two instants
    #[arg(long, value_name = "PID")]
    watch_pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Load {
    fn check(&self) -> Result<(), String> {
        let fits = |seconds: f64| (0.0..=86_400.0).contains(&seconds);
        if !fits(self.seconds) || !fits(self.warmup) {
            return Err("--seconds and --warmup are 0 to 86400".to_string());
        }
        if self.connections == 0 || self.partitions.is_some_and(|n| n < 1) {
            return Err("--connections and --partitions are at least 1".to_string());
        }
        Ok(())
    }

    fn recorder(&self) -> Recorder {
        let seconds = match self.records {
            Some(_) => f64::INFINITY,
            None => self.seconds,
        };
        Recorder::new(self.warmup, seconds, self.records).watch(self.watch_pid)
    }
}

pub fn run(args: Args) -> Outcome {
    // The kernel rounds sleeps up by 50 us otherwise.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let (report, json) = match args.command {
        Command::Produce(args) => (produce::run(&args)?, args.load.json),
        Command::Consume(args) => (consume::run(&args)?, args.load.json),
    };
    print(&report, json);
    Ok(match report.errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Runs `perf produce` with these arguments, for the demo.
pub(super) fn produce(argv: &[&str]) -> Result<Report, String> {
    #[derive(clap::Parser)]
    struct Parsed {
        #[command(flatten)]
        args: produce::Args,
    }
    let argv = std::iter::once("produce").chain(argv.iter().copied());
    let parsed = <Parsed as clap::Parser>::try_parse_from(argv).map_err(|e| e.to_string())?;
    produce::run(&parsed.args)
}

fn print(report: &Report, json: bool) {
    match json {
        true => say!("{}", report.to_json()),
        false => say!("{}", report.to_string().trim_end()),
    }
}
