//! `corelane recover`: logs that a loss took out of use, told and given back to service without what is gone.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Outcome;
use super::out::say;
use crate::node::recover::{Lost, Stopped};

#[derive(clap::Args)]
pub struct Args {
    /// The data directory of a broker that is stopped
    #[arg(long, value_name = "DIR", default_value = "./corelane-data")]
    log_dir: PathBuf,
    /// Only this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only this partition of it
    #[arg(long, requires = "topic")]
    partition: Option<i32>,
    /// Let the partitions named serve what is left of them; what is lost stays lost
    #[arg(long, requires = "topic")]
    accept_loss: bool,
}

pub fn run(args: Args) -> Outcome {
    let mut stopped = Stopped::open(&args.log_dir).map_err(|e| e.to_string())?;
    let lost = stopped.lost().map_err(|e| e.to_string())?;
    let (named, others): (Vec<Lost>, Vec<Lost>) =
        lost.into_iter().partition(|l| is_named(&args, l));
    for one in &named {
        let what = match one.to {
            Some(to) => format!(
                "offsets [{}..{to}) were flushed and are gone, and whatever came behind them",
                one.from
            ),
            None => format!(
                "offsets from {} on may have been flushed and be gone: a journal lost a frame",
                one.from
            ),
        };
        if args.accept_loss {
            stopped.accept(one).map_err(|e| e.to_string())?;
            say!(
                "{}: {what}; it ends at {} from the next start on",
                one.dir,
                one.from
            );
        } else {
            say!("{}: {what}; it is out of use", one.dir);
        }
    }
    if named.is_empty() && others.is_empty() {
        say!("No log in {} has lost anything.", args.log_dir.display());
    } else if named.is_empty() {
        return Err(format!(
            "what is named has lost nothing; {} others have (corelane recover --log-dir {})",
            others.len(),
            args.log_dir.display()
        ));
    } else if !args.accept_loss {
        say!(
            "Bring the disk or a backup back while the broker is stopped, or give up what is gone: --topic T --partition P --accept-loss"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn is_named(args: &Args, lost: &Lost) -> bool {
    let (topic, _) = lost.dir.rsplit_once('-').unwrap_or((&lost.dir, ""));
    args.topic.as_ref().is_none_or(|named| named == topic)
        && args
            .partition
            .is_none_or(|named| named == lost.tp.partition)
}
