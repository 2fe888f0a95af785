//! Seeds of the simulator: clean ones find nothing, and a run is the same in any process.

use std::process::Command;

use corelane::sim::{Faults, Options, replay_command, run};

/// Faults that come in these tests.
const FAULTS: &str = "all";

fn options(seed: u64) -> Options {
    Options {
        seed,
        faults: Faults::parse(FAULTS).unwrap(),
        bug: None,
        trace: false,
    }
}

#[test]
fn clean_seeds_find_nothing() {
    let mut acknowledged = 0;
    // Others found what was wrong once: writes of a deleted log, look-ups by time in a segment that recovery closed, a journal that
    // waited for what was cut off, a segment that went while it was opened, the largest timestamp without an index.
    for seed in (1..=30).chain([34, 55, 195, 229, 403, 510]) {
        let options = options(seed);
        let report = run(&options);
        if let Some(failure) = report.failure {
            panic!("{failure}\nrun it again: {}", replay_command(&options));
        }
        acknowledged += report.acknowledged;
    }
    assert!(
        acknowledged > 10_000,
        "the seeds do something: {acknowledged} acknowledgements"
    );
}

#[test]
fn a_seed_gives_the_same_run_in_two_processes() {
    let line = |seed: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_corelane"))
            .args(["sim", "--seed", seed, "--faults", FAULTS])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut hashes = Vec::new();
    for seed in [4, 7, 26] {
        let text = seed.to_string();
        let (first, second) = (line(&text), line(&text));
        assert_eq!(first, second);
        let here = run(&options(seed));
        assert!(
            first.contains(&format!("seed {seed} hash {:016x} ", here.hash)),
            "{first} is not {:016x}",
            here.hash
        );
        assert_eq!(here, run(&options(seed)));
        hashes.push(here.hash);
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 3, "seeds differ");
}

/// Seeds that are known to find planted bugs; `scripts/soak bugs` looks for others.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_found() {
    use corelane::log::planted::{BUGS, Bug};

    let known = [
        (Bug::AcknowledgeBeforeWritten, 15),
        (Bug::SkipFlush, 2),
        (Bug::CountFlushForLaterWrite, 57),
        (Bug::ReplayOverDirectWrite, 1),
        (Bug::AcceptOldGeneration, 5),
        (Bug::ForgetMark, 6),
        (Bug::ForgetTail, 2),
        (Bug::ReuseOffset, 1),
        (Bug::LoseProducers, 1),
        (Bug::ServeBeforeFlush, 5),
    ];
    assert!(BUGS.iter().all(|bug| known.iter().any(|(k, _)| k == bug)));
    for (bug, seed) in known {
        let sound = options(seed);
        let planted = Options {
            bug: Some(bug),
            ..sound.clone()
        };
        let report = run(&planted);
        assert!(
            report.failure.is_some(),
            "not found any more: {}",
            replay_command(&planted)
        );
        // It is the bug that was found: without it the seed is clean.
        assert_eq!(run(&sound).failure, None, "{bug:?} {seed}");
    }
}

#[test]
fn a_failing_seed_is_replayed_by_its_command() {
    let options = Options {
        seed: 12,
        faults: Faults::parse("kill,eio").unwrap(),
        bug: None,
        trace: false,
    };
    assert_eq!(
        replay_command(&options),
        "corelane sim --seed 12 --faults kill,eio"
    );
    assert!(Faults::parse("power,rust").is_err());
}
