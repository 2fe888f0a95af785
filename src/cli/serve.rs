//! `corelane serve`: the broker.

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use super::Outcome;
use crate::node::http::LogFilter;
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
    let config = config::load(args.config.as_deref(), &args.settings).map_err(|e| e.to_string())?;
    let log_filter =
        log_to_stderr(config.statics.text("logging.format").as_deref() == Some("json"));
    node::run(config, log_filter).map_err(|e| e.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// What is logged is chosen by RUST_LOG, as everywhere in Rust; without it, everything from INFO up. What is given changes it.
fn log_to_stderr(json: bool) -> LogFilter {
    let wanted = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(wanted)
        .with_writer(std::io::stderr)
        .with_ansi(colours && !json)
        .with_target(false)
        // A line that cannot be written (a full disk) is lost; telling of it on the same stderr would panic.
        .log_internal_errors(false);
    if json {
        let lines = lines.json().flatten_event(true).with_filter_reloading();
        let handle = lines.reload_handle();
        lines.init();
        changes(handle)
    } else {
        let lines = lines.with_filter_reloading();
        let handle = lines.reload_handle();
        lines.init();
        changes(handle)
    }
}

fn changes<S: 'static>(handle: Handle<EnvFilter, S>) -> LogFilter {
    Box::new(move |wanted| {
        if let Some(wanted) = wanted {
            let filter = EnvFilter::builder().parse(wanted);
            let filter = filter.map_err(|error| format!("'{wanted}' is no filter: {error}"))?;
            handle.reload(filter).map_err(|error| error.to_string())?;
        }
        handle
            .with_current(EnvFilter::to_string)
            .map_err(|error| error.to_string())
    })
}
