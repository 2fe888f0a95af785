//! Each bug that is planted on purpose is found by the laws of recovery, within a few hundred seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::planted::{BUGS, Bug, plant};
use super::testing::World;
use super::*;

const SEEDS_MAX: u64 = 600;

fn config() -> (StoreConfig, Config) {
    let store = StoreConfig {
        journal_file_bytes: 64 * 1024,
        journal_files_max: 2,
        direct_threshold_bytes: 8 * 1024,
        destage_bytes: 16 * 1024,
        allocate_bytes_min: 8 * 1024,
        allocate_bytes_max: 32 * 1024,
        progress_bytes: 10 * 1024,
        ..StoreConfig::default()
    };
    let log = Config {
        segment_bytes: 200_000,
        index_interval_bytes: 1024,
        ..Config::default()
    };
    (store, log)
}

fn live(seed: u64) {
    let (store, log) = config();
    let mut world = World::new(seed, 2, store, log);
    world.cuts = true;
    world.same_epochs = true;
    for _ in 0..6 {
        for _ in 0..world.disk.rng.range(20, 200) {
            world.step();
        }
        world.crash();
    }
    world.settle();
}

fn found_at(bug: Bug) -> Option<u64> {
    plant(&[bug]);
    let seed = (0..SEEDS_MAX).find(|seed| catch_unwind(AssertUnwindSafe(|| live(*seed))).is_err());
    plant(&[]);
    seed
}

#[test]
fn every_planted_bug_is_found() {
    let found: Vec<(Bug, Option<u64>)> = BUGS.into_iter().map(|bug| (bug, found_at(bug))).collect();
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
    // Without one, nothing is found in as many seeds as the slowest of them needs.
    let slowest = found.iter().filter_map(|(_, seed)| *seed).max();
    for seed in 0..=slowest.unwrap_or(0) {
        live(seed);
    }
    println!("{found:?}");
}
