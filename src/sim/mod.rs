//! A deterministic world in place of node, net and disk: one process of the real pure code in virtual time.
//!
//! Owns: the clock, the queue of what is to happen, the faulty disk of the process, connections, clients that speak wire
//! bytes, the mesh between shards, and the oracles. Everything is drawn from one seed: the same seed gives the same run,
//! in any process. Must not know: real clocks, files, sockets; it sees of a shard what a shell sees, and for the oracles
//! what is public of its logs.
//!
//! A run has a *storm*, in which clients produce and consume while faults come, and then a *calm*: faults end, everything
//! that is undecided gets decided within a bound, and readers read every log from its start.

mod clients;
mod net;
mod oracle;
mod plan;
mod process;
mod queue;
mod topics;
mod trace;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::planted::Bug;
use crate::model::Rng;

/// Kinds of faults, by name.
pub const FAULTS: [&str; 11] = [
    "power", "kill", "stop", "slow", "eio", "enospc", "cut", "reshard", "garbage", "diverge",
    "clock",
];

/// Which kinds of faults may come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    names: Vec<&'static str>,
}

impl Faults {
    pub fn all() -> Faults {
        Faults {
            names: FAULTS.to_vec(),
        }
    }

    pub fn none() -> Faults {
        Faults { names: Vec::new() }
    }

    /// `all`, `none`, or names with commas between.
    pub fn parse(text: &str) -> Result<Faults, String> {
        match text {
            "all" => return Ok(Faults::all()),
            "none" => return Ok(Faults::none()),
            _ => {}
        }
        let mut names = Vec::new();
        for part in text.split(',') {
            match FAULTS.iter().find(|name| **name == part) {
                Some(name) => names.push(*name),
                None => {
                    return Err(format!(
                        "there is no fault '{part}': use all, none or some of {}",
                        FAULTS.join(",")
                    ));
                }
            }
        }
        Ok(Faults { names })
    }

    /// Those of one run: all of them, some, or one kind of crash alone, because some bugs hide behind a second fault.
    fn draw_some(&self, rng: &mut Rng) -> Faults {
        let some = match rng.below(4) {
            0 | 1 => self.names.clone(),
            2 => {
                let mut some = self.names.clone();
                some.retain(|_| rng.one_in(2));
                some
            }
            _ => {
                let crash = plan::pick(rng, &["power", "power", "kill"]);
                let mut some = self.names.clone();
                some.retain(|name| *name == crash || *name == "diverge");
                some
            }
        };
        Faults { names: some }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// A fault of the process or its disk; crashes come more often than others.
    fn draw(&self, rng: &mut Rng) -> Option<&'static str> {
        let kinds: Vec<&'static str> = [
            "power", "power", "kill", "kill", "stop", "slow", "eio", "enospc", "diverge",
            "diverge", "clock",
        ]
        .into_iter()
        .filter(|kind| self.has(kind))
        .collect();
        (!kinds.is_empty()).then(|| plan::pick(rng, &kinds))
    }
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.names.len() {
            0 => f.write_str("none"),
            n if n == FAULTS.len() => f.write_str("all"),
            _ => f.write_str(&self.names.join(",")),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub faults: Faults,
    /// A bug to plant; needs the feature `planted-bugs`.
    pub bug: Option<Bug>,
    /// Print every event.
    pub trace: bool,
}

/// What became of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    pub seed: u64,
    /// Of everything that happened, in order.
    pub hash: u64,
    pub events: u64,
    pub acknowledged: u64,
    /// Starts of the process.
    pub lives: u64,
    pub virtual_ms: u64,
    /// What an oracle, or an assertion of the pure code, has to say.
    pub failure: Option<String>,
}

/// The command that runs a seed again.
pub fn replay_command(options: &Options) -> String {
    let bug = match options.bug {
        Some(bug) => format!(" --bug {bug:?}"),
        None => String::new(),
    };
    format!(
        "corelane sim --seed {} --faults {}{bug}",
        options.seed, options.faults
    )
}

/// Runs one seed to its end.
pub fn run(options: &Options) -> Report {
    #[cfg(feature = "planted-bugs")]
    crate::log::planted::plant(options.bug.as_slice());
    let mut world = world::World::new(options);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    #[cfg(feature = "planted-bugs")]
    crate::log::planted::plant(&[]);
    let panicked = panicked.map(|cause| {
        let text = cause
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(cause.downcast_ref::<&str>().copied());
        format!("panic: {}", text.unwrap_or("without a text"))
    });
    world.report(panicked)
}
