//! The laws of recovery: whatever is lost, and however often, nothing that was promised is.

use super::testing::{Batch, Rig, World, batch, replay, tp};
use super::*;

fn small() -> StoreConfig {
    StoreConfig {
        journal_file_bytes: 32 * 1024,
        journal_files_max: 2,
        frame_beside_bytes_min: 1,
        direct_threshold_bytes: 8 * 1024,
        destage_bytes: 16 * 1024,
        allocate_bytes_min: 8 * 1024,
        allocate_bytes_max: 32 * 1024,
        progress_bytes: 10 * 1024,
        ..StoreConfig::default()
    }
}

fn config() -> Config {
    Config {
        segment_bytes: 40_000,
        index_interval_bytes: 1024,
        ..Config::default()
    }
}

#[test]
fn a_crash_at_any_point_loses_nothing_that_was_promised() {
    for seed in 0..100 {
        let mut world = World::new(seed, 4, small(), config());
        for _ in 0..5 {
            for _ in 0..world.disk.rng.range(20, 400) {
                world.step();
            }
            world.crash();
        }
        world.settle();
        for log in &world.logs {
            assert!(log.checked, "seed {seed}: every log is open in the end");
        }
    }
}

#[test]
fn clean_stops_and_crashes_may_follow_each_other_in_any_order() {
    for seed in 0..100 {
        let mut world = World::new(seed, 3, small(), config());
        for _ in 0..6 {
            for _ in 0..world.disk.rng.range(20, 300) {
                world.step();
            }
            if world.disk.rng.one_in(3) {
                world.crash();
            } else if world.stop(true) {
                world.boot();
            }
        }
        world.settle();
        assert!(world.logs.iter().all(|log| log.checked), "seed {seed}");
    }
}

#[test]
fn logs_are_cut_and_crash_in_any_order() {
    for seed in 0..100 {
        let mut world = World::new(seed, 3, small(), config());
        world.cuts = true;
        world.same_epochs = true;
        for _ in 0..6 {
            for _ in 0..world.disk.rng.range(20, 300) {
                world.step();
            }
            match world.disk.rng.below(4) {
                0 => world.settle(),
                1 if world.stop(true) => world.boot(),
                _ => world.crash(),
            }
        }
        world.settle();
        assert!(world.logs.iter().all(|log| log.checked), "seed {seed}");
    }
}

#[test]
fn a_log_without_its_beginning_never_has_a_gap() {
    for seed in 0..100 {
        let store = StoreConfig {
            retention_check_interval_ms: 300,
            ..small()
        };
        let log = Config {
            segment_bytes: 12_000,
            retention_bytes: 40_000,
            file_delete_delay_ms: 500,
            ..config()
        };
        let mut world = World::new(seed, 2, store, log);
        world.deletes = true;
        for _ in 0..6 {
            for _ in 0..world.disk.rng.range(50, 400) {
                world.step();
            }
            match world.disk.rng.below(4) {
                0 => world.settle(),
                1 if world.stop(true) => world.boot(),
                _ => world.crash(),
            }
        }
        world.settle();
        assert!(world.logs.iter().all(|log| log.checked), "seed {seed}");
    }
}

#[test]
fn a_clean_stop_leaves_exact_files_and_the_next_start_trusts_them() {
    let mut world = World::new(1, 3, small(), config());
    world.settle();
    for i in 0..300 {
        world.append(i % 3, i % 2 == 0);
        world.step();
    }
    assert!(world.stop(false));
    let exact = |world: &World| {
        for (partition, log) in world.logs.iter().enumerate() {
            let mut held = Vec::new();
            for path in world.disk.paths() {
                if path.starts_with(&format!("t-{partition}/")) && path.ends_with(".log") {
                    held.extend(world.disk.file(&path).unwrap());
                }
            }
            assert!(held == log.bytes(0), "log {partition}");
        }
    };
    exact(&world);
    for (partition, log) in world.logs.iter().enumerate() {
        let snapshot = format!("t-{partition}/{:020}.snapshot", log.end());
        assert!(world.disk.file(&snapshot).is_some(), "{snapshot}");
    }
    let ends: Vec<i64> = world.logs.iter().map(|log| log.end()).collect();
    let text = |name: &str| String::from_utf8(world.disk.file(name).unwrap()).unwrap();
    assert_eq!(
        text(".kafka_cleanshutdown"),
        "{\"version\":0,\"brokerEpoch\":7}"
    );
    assert_eq!(
        text("recovery-point-offset-checkpoint"),
        format!("0\n3\nt 0 {}\nt 1 {}\nt 2 {}\n", ends[0], ends[1], ends[2])
    );
    assert_eq!(text("log-start-offset-checkpoint"), "0\n0\n");
    world.boot();
    assert!(world.opened.clean);
    assert!(world.disk.file(".kafka_cleanshutdown").is_none());
    world.settle();
    assert!(world.logs.iter().all(|log| log.checked));
    // A start makes room for what may come. If nothing does, the files are exact all the same.
    assert!(world.stop(false));
    exact(&world);
}

#[test]
fn logs_find_a_home_whatever_the_shard_count() {
    for seed in 0..20 {
        let mut world = World::new(seed, 5, small(), config());
        let mut counts = Vec::new();
        for _ in 0..8 {
            counts.push(world.stores.len());
            world.settle();
            for i in 0..25 {
                world.append(i % 5, true);
            }
            world.settle();
            assert!(
                world.logs.iter().all(|log| log.flushed == log.end()),
                "{:?}",
                world.stores[0]
            );
            world.crash();
        }
        counts.dedup();
        assert!(counts.len() > 1, "seed {seed}: the count changed");
        let journals = world
            .disk
            .paths()
            .iter()
            .filter(|p| p.starts_with("journal-") && *p != "journal-generation")
            .filter(|p| {
                let shard: usize = p.split('-').nth(1).unwrap().parse().unwrap();
                shard >= world.stores.len()
            })
            .count();
        assert_eq!(journals, 0, "journals of shards that are no more are gone");
    }
}

fn boot(rig: Rig, config: &Config, logs: i32) -> (Rig, Opened) {
    let mut disk = rig.disk;
    let opened = replay(&mut disk, 1);
    let mut rig = Rig::on(disk, small(), opened.clone());
    rig.leader_epoch = 2;
    for partition in 0..logs {
        rig.open(partition, config);
    }
    rig.settle();
    (rig, opened)
}

#[test]
fn a_log_that_ends_below_what_was_flushed_is_fenced_and_not_cut() {
    let mut rig = Rig::ready(1, small(), 2, &Config::default());
    // Straight to the segment, flushed; then a frame that knows so.
    rig.append(0, &batch(2, 20_000, 1), true).unwrap();
    rig.settle();
    rig.append(0, &batch(1, 100, 2), true).unwrap();
    rig.append(1, &batch(1, 100, 2), true).unwrap();
    rig.settle();
    rig.disk.crash(faulty::Loss::All);
    let path = "t-0/00000000000000000000.log";
    let mut bytes = rig.disk.file(path).unwrap();
    bytes[5_000] ^= 1;
    rig.disk.set_file(path, bytes.clone());
    let (rig, opened) = boot(rig, &Config::default(), 2);
    assert!(opened.breaks.is_empty());
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!(
        log.state(),
        &LogState::Fenced(Fenced::Loss { from: 0, to: 2 })
    );
    assert_eq!(
        rig.disk.file(path).unwrap()[..20_000],
        bytes[..20_000],
        "nothing is cut"
    );
    let log = rig.store.log(tp(1)).unwrap();
    assert_eq!((log.is_ready(), log.appended()), (true, 1));
}

#[test]
fn a_break_in_the_journal_is_reported() {
    let mut rig = Rig::ready(2, small(), 2, &Config::default());
    for _ in 0..3 {
        rig.append(0, &batch(1, 100, 1), true).unwrap();
        rig.append(1, &batch(1, 100, 1), true).unwrap();
        rig.settle();
    }
    rig.disk.crash(faulty::Loss::All);
    let mut bytes = rig.disk.file("journal-0-0").unwrap();
    bytes[4096 + 200] ^= 1;
    rig.disk.set_file("journal-0-0", bytes);
    let (rig, opened) = boot(rig, &Config::default(), 2);
    assert_eq!(opened.breaks, [(crate::model::ShardIndex(0), 2, 2)]);
    for partition in 0..2 {
        let log = rig.store.log(tp(partition)).unwrap();
        assert_eq!(
            log.state(),
            &LogState::Fenced(Fenced::Loss { from: 1, to: 2 }),
            "the third frame knew that two were flushed"
        );
    }
}

#[test]
fn a_deleted_log_is_gone_and_its_name_can_be_used_again() {
    let mut rig = Rig::ready(3, small(), 1, &Config::default());
    rig.append(0, &batch(1, 100, 1), true).unwrap();
    rig.settle();
    rig.store.delete(tp(0), rig.now);
    let again = crate::model::TopicPartition {
        topic: crate::model::Uuid([9; 16]),
        partition: 0,
    };
    rig.store.open(again, "t", Config::default(), 1, rig.now);
    rig.settle();
    assert!(rig.store.log(tp(0)).is_none());
    let log = rig.store.log(again).unwrap();
    assert_eq!((log.is_ready(), log.appended()), (true, 0));
    let moved = "t-0.07070707070707070707070707070707-delete/partition.metadata";
    assert!(rig.disk.file(moved).is_some());
    rig.pass_ms(60_000);
    rig.settle();
    assert!(rig.disk.file(moved).is_none());
    assert!(rig.disk.file("t-0/partition.metadata").is_some());
}

#[test]
fn a_log_that_was_given_up_comes_back_as_it_was() {
    let mut rig = Rig::ready(4, small(), 1, &Config::default());
    let b = batch(2, 300, 1);
    rig.append(0, &b, true).unwrap();
    rig.settle();
    rig.store.close(tp(0), rig.now);
    rig.leader_epoch = 2;
    rig.open(0, &Config::default());
    assert!(!rig.store.log(tp(0)).unwrap().is_ready());
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.is_ready(), log.appended()), (true, 2));
    rig.append(0, &b, true).unwrap();
    rig.settle();
    rig.disk.crash(faulty::Loss::All);
    let (mut rig, _) = boot(rig, &Config::default(), 1);
    assert_eq!(
        rig.read_from(0, 0, 4, 1 << 20),
        [b.stamped(0, 1), b.stamped(2, 2)].concat()
    );
}

/// A segment that cannot be written when the journal is replayed: its log is out of use, the others serve, and the next start has all of it.
#[test]
fn a_log_that_cannot_be_replayed_waits_for_the_next_start() {
    for again in [1, 3] {
        let mut rig = Rig::ready(6, small(), 3, &Config::default());
        let b = batch(2, 300, 1);
        for log in 0..3 {
            rig.append(log, &b, true).unwrap();
        }
        rig.settle();
        let mut disk = rig.disk;
        for _ in 0..again {
            disk.crash(faulty::Loss::Killed);
            disk.faults.broken = Some("t-1/0".into());
            let opened = replay(&mut disk, 1);
            disk.faults.broken = None;
            assert_eq!(opened.hurt.keys().collect::<Vec<_>>(), [&tp(1)]);
            let mut rig = Rig::on(disk, small(), opened);
            for log in 0..3 {
                rig.open(log, &Config::default());
            }
            rig.settle();
            let state = |log| rig.store.log(tp(log)).unwrap().state().clone();
            assert_eq!((state(0), state(2)), (LogState::Ready, LogState::Ready));
            assert!(matches!(state(1), LogState::Fenced(Fenced::Io(_))));
            rig.append(0, &b, true).unwrap();
            rig.settle();
            disk = rig.disk;
        }
        disk.crash(faulty::Loss::Killed);
        let opened = replay(&mut disk, 1);
        assert!(opened.hurt.is_empty());
        let mut rig = Rig::on(disk, small(), opened);
        for log in 0..3 {
            rig.open(log, &Config::default());
        }
        rig.settle();
        assert_eq!(rig.store.log(tp(0)).unwrap().appended(), 2 + 2 * again);
        let whole = rig.store.log(tp(1)).unwrap();
        assert_eq!((whole.is_ready(), whole.appended()), (true, 2));
        assert_eq!(rig.read_from(1, 0, 2, 1 << 20), b.stamped(0, 1));
        let left = rig.disk.paths().into_iter();
        assert_eq!(
            left.filter(|path| path.starts_with("journal-kept")).count(),
            0
        );
    }
}

/// What ends the life of a log that an error fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    Kill,
    /// It is given up, and asked for again, long before the kill.
    Close,
    Stop,
}

#[test]
fn a_kill_takes_nothing_of_a_log_that_an_error_fenced_and_the_others_go_on() {
    for then in [Then::Kill, Then::Close, Then::Stop] {
        let mut rig = Rig::ready(5, small(), 3, &Config::default());
        // acks=1, in the journal only.
        let b = batch(2, 300, 1);
        for _ in 0..3 {
            rig.append(0, &b, false).unwrap();
            rig.settle();
        }
        assert_eq!(rig.store.log(tp(0)).unwrap().written(), 6);
        rig.disk.faults.broken = Some("t-0/".into());
        rig.append(0, &batch(1, 20_000, 2), false).unwrap();
        rig.settle();
        assert!(matches!(
            rig.store.log(tp(0)).unwrap().state(),
            LogState::Fenced(Fenced::Io(_))
        ));
        // What fails once may succeed when tried again, and proves nothing then.
        rig.disk.faults.broken = None;
        if then == Then::Close {
            rig.store.close(tp(0), rig.now);
            rig.open(0, &Config::default());
        }
        // Both journal files are used many times.
        for round in 0..100 {
            for partition in 1..3 {
                rig.append(partition, &batch(1, 3_000, round), true)
                    .unwrap();
            }
            rig.settle();
            assert_eq!(
                rig.store.log(tp(1)).unwrap().flushed(),
                i64::from(round) + 1
            );
        }
        assert!(
            matches!(
                rig.store.log(tp(0)).unwrap().state(),
                LogState::Fenced(Fenced::Io(_))
            ),
            "nobody gets it before the next boot"
        );
        if then == Then::Stop {
            while !rig.store.is_stopped() {
                let mut out = Vec::new();
                rig.store.stop(rig.now, &mut out);
                for (id, op) in out {
                    rig.disk.submit(0, id, op, rig.now.mono);
                }
                rig.settle();
            }
            assert!(!rig.store.stopped().unwrap().clean);
        }
        rig.disk.crash(faulty::Loss::Killed);
        let (mut rig, opened) = boot(rig, &Config::default(), 3);
        assert!(opened.breaks.is_empty());
        let log = rig.store.log(tp(0)).unwrap();
        assert_eq!(
            (log.state(), log.appended()),
            (&LogState::Ready, 6),
            "{then:?}"
        );
        assert_eq!(
            rig.read_from(0, 0, 6, 1 << 20),
            [b.stamped(0, 1), b.stamped(2, 1), b.stamped(4, 1)].concat()
        );
        let kept = |rig: &Rig| rig.disk.paths().iter().any(|p| p.contains("kept"));
        assert!(!kept(&rig), "replayed and gone");
        for partition in 1..3 {
            assert_eq!(rig.store.log(tp(partition)).unwrap().appended(), 100);
        }
    }
}

#[test]
fn records_deleted_from_a_log_that_an_error_fenced_stay_deleted() {
    let mut rig = Rig::ready(6, small(), 2, &Config::default());
    rig.append(0, &batch(4, 300, 1), true).unwrap();
    rig.settle();
    rig.store.log_mut(tp(0)).unwrap().set_high_watermark(4);
    rig.store.advance_start(tp(0), 3, rig.now).unwrap();
    rig.settle();
    rig.disk.faults.broken = Some("t-0/".into());
    rig.append(0, &batch(1, 20_000, 2), false).unwrap();
    rig.settle();
    for round in 0..100 {
        rig.append(1, &batch(1, 3_000, round), true).unwrap();
        rig.settle();
    }
    rig.disk.faults.broken = None;
    rig.disk.crash(faulty::Loss::All);
    let (rig, _) = boot(rig, &Config::default(), 2);
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.start(), log.appended()), (3, 4));
}

#[test]
fn what_a_fenced_log_keeps_waits_for_space() {
    let mut rig = Rig::ready(7, small(), 2, &Config::default());
    rig.append(0, &batch(2, 300, 1), false).unwrap();
    rig.settle();
    rig.disk.faults.broken = Some("t-0/".into());
    rig.append(0, &batch(1, 20_000, 2), false).unwrap();
    rig.settle();
    rig.disk.faults.broken = None;
    rig.disk.faults.space = rig.disk.used() + 60_000;
    for round in 0..40 {
        let _ = rig.append(1, &batch(1, 3_000, round), true);
        rig.settle();
    }
    let stuck = rig.store.log(tp(1)).unwrap().flushed();
    assert!(stuck < 40);
    rig.disk.faults.space = u64::MAX;
    rig.pass_ms(1000);
    rig.settle();
    let log = rig.store.log(tp(1)).unwrap();
    assert_eq!(log.flushed(), log.appended());
    rig.disk.crash(faulty::Loss::Killed);
    let (rig, _) = boot(rig, &Config::default(), 2);
    assert_eq!(rig.store.log(tp(0)).unwrap().appended(), 2);
}

/// Frames of a journal: file, place, sequence, and up to which one it says that all were flushed.
fn frames(disk: &faulty::Disk) -> Vec<(String, usize, u64, u64)> {
    let mut found = Vec::new();
    for path in disk.paths() {
        if journal::parse_file_name(&path).is_none() {
            continue;
        }
        let bytes = bytes::Bytes::from(disk.file(&path).unwrap());
        for at in (0..bytes.len()).step_by(4096) {
            if let Some(f) = frame::decode(&bytes.slice(at..)) {
                found.push((path.clone(), at, f.header.sequence, f.header.flushed));
            }
        }
    }
    found
}

fn damage(disk: &mut faulty::Disk, path: &str, at: usize) {
    let mut bytes = disk.file(path).unwrap();
    bytes[at + 100] ^= 1;
    disk.set_file(path, bytes);
}

#[test]
fn a_break_fences_every_log_that_nothing_shows_to_be_whole_for_good() {
    let mut rig = Rig::ready(8, small(), 4, &Config::default());
    // Frames 1, 2, 3. Which logs were in the second is not known afterwards.
    for partitions in [&[0, 2][..], &[1], &[0, 3]] {
        for &partition in partitions {
            rig.append(partition, &batch(1, 100, 1), true).unwrap();
        }
        rig.settle();
    }
    // And one that is another shard's.
    let other = crate::model::TopicPartition {
        topic: crate::model::Uuid([7; 16]),
        partition: 9,
    };
    let opened = Opened {
        generation: 1,
        ..Opened::default()
    };
    let ids = Ids {
        first: 1_000_003,
        stride: 7,
    };
    let mut shard = Store::new(crate::model::ShardIndex(1), small(), opened, ids);
    shard.open(other, "t", Config::default(), 1, rig.now);
    let mut appended = false;
    loop {
        let mut out = Vec::new();
        if shard.log(other).unwrap().is_ready() && !appended {
            appended = true;
            let b = batch(1, 100, 1);
            let checked = crate::batch::CheckedBatch::own(&b.0).unwrap();
            let how = AppendAs {
                leader_epoch: 1,
                acks_all: true,
                now: rig.now,
            };
            shard.append(other, &checked, how).unwrap();
        }
        shard.commit(rig.now, &mut out);
        for (id, op) in out {
            rig.disk.submit(1, id, op, rig.now.mono);
        }
        let Some(done) = rig.disk.complete_one() else {
            break;
        };
        let mut out = Vec::new();
        shard.on_disk(done.id, done.result, rig.now, &mut out);
        for (id, op) in out {
            rig.disk.submit(1, id, op, rig.now.mono);
        }
    }
    assert_eq!(shard.log(other).unwrap().flushed(), 1);
    rig.disk.crash(faulty::Loss::All);
    damage(&mut rig.disk, "journal-0-0", 4096);
    for _ in 0..3 {
        let (mut next, _) = boot(rig, &Config::default(), 4);
        next.store.open(other, "t", Config::default(), 2, next.now);
        next.settle();
        let fenced = |partition: i32| match next.store.log(tp(partition)).unwrap().state() {
            LogState::Fenced(Fenced::Loss { from, to }) => Some((*from, *to)),
            _ => None,
        };
        // In the third frame: it said where it went on.
        assert_eq!(fenced(0), None);
        assert_eq!(fenced(3), None);
        assert_eq!(fenced(1), Some((0, i64::MAX)), "its only record is lost");
        assert_eq!(
            fenced(2),
            Some((1, i64::MAX)),
            "nothing says that it was not in it"
        );
        assert_eq!(fenced(9), None, "another journal has it");
        assert_eq!(next.store.log(tp(0)).unwrap().appended(), 2);
        next.disk.crash(faulty::Loss::All);
        rig = next;
    }
}

#[test]
fn whatever_frame_is_lost_a_log_is_whole_or_fenced() {
    let (mut whole, mut fenced) = (0, 0);
    for seed in 0..150 {
        let mut rig = Rig::ready(seed, small(), 5, &config());
        for i in 0..rig.disk.rng.range(20, 200) {
            // Some logs are idle most of the time.
            let partition = rig.disk.rng.below(1 + i % 5) as i32;
            let bytes = [100, 600, 3_000, 9_000][rig.disk.rng.below(4) as usize];
            let acks_all = rig.disk.rng.one_in(2);
            let _ = rig.append(partition, &batch(1, bytes, i as u8), acks_all);
            if rig.disk.rng.one_in(3) {
                rig.settle();
            } else {
                rig.commit();
                rig.step();
            }
        }
        rig.settle();
        let flushed: Vec<i64> = (0..5)
            .map(|p| rig.store.log(tp(p)).unwrap().flushed())
            .collect();
        let loss = [faulty::Loss::All, faulty::Loss::Killed][seed as usize % 2];
        rig.disk.crash(loss);
        let all = frames(&rig.disk);
        let said = all.iter().map(|f| f.3).max().unwrap_or(0);
        let known: Vec<_> = all.iter().filter(|f| f.2 <= said).collect();
        let Some(lost) = known.get(rig.disk.rng.below(known.len().max(1) as u64) as usize) else {
            continue;
        };
        damage(&mut rig.disk, &lost.0, lost.1);
        let (mut rig, _) = boot(rig, &config(), 5);
        for partition in 0..5 {
            let log = rig.store.log(tp(partition)).unwrap();
            match log.state() {
                LogState::Ready => {
                    assert!(
                        log.appended() >= flushed[partition as usize],
                        "seed {seed} log {partition}: {} of {}",
                        log.appended(),
                        flushed[partition as usize]
                    );
                    whole += 1;
                    let end = log.appended();
                    rig.read_from(partition, 0, end, 1 << 20);
                }
                LogState::Fenced(Fenced::Loss { .. }) => fenced += 1,
                other => panic!("seed {seed} log {partition}: {other:?}"),
            }
        }
    }
    assert!(whole > 200 && fenced > 50, "{whole} whole, {fenced} fenced");
}

#[test]
fn a_start_after_a_kill_reads_what_came_since_the_last_note() {
    let store = StoreConfig {
        progress_bytes: 1024 * 1024,
        allocate_bytes_max: 1024 * 1024,
        ..small()
    };
    let mut read = Vec::new();
    for noted in [true, false] {
        let mut rig = Rig::ready(9, store.clone(), 1, &Config::default());
        let mut expected = Vec::new();
        let mut sequence = 0;
        while expected.len() < 24 << 20 {
            for bytes in [60_000, 100, 3_000] {
                let b = Batch::of_producer(2, bytes, 77, 0, sequence);
                expected.extend(b.stamped(i64::from(sequence), 1));
                sequence += 2;
                rig.append(0, &b, true).unwrap();
                rig.commit();
            }
            rig.settle();
        }
        let producers = rig.store.log(tp(0)).unwrap().producers().clone();
        let (bytes_before, end) = (rig.disk.bytes_read, i64::from(sequence));
        rig.disk.crash(faulty::Loss::Killed);
        let note = "t-0/00000000000000000000.progress".to_owned();
        if !noted {
            rig.disk.run(&DiskOp::Remove { path: note }).unwrap();
        }
        let (mut rig, _) = boot(rig, &Config::default(), 1);
        read.push(rig.disk.bytes_read - bytes_before);
        let log = rig.store.log(tp(0)).unwrap();
        assert_eq!((log.state(), log.appended()), (&LogState::Ready, end));
        let of = |states: &ProducerStates| states.get(77).unwrap().batches().to_vec();
        assert_eq!(of(log.producers()), of(&producers));
        assert_eq!(log.epochs().epoch_at(0), Some(1));
        assert!(rig.read_from(0, 0, end, 1 << 20) == expected);
        // The index of what was not read is there.
        let bytes_before = rig.disk.bytes_read;
        rig.read_from(0, end / 2, end / 2 + 1, 1);
        assert!(rig.disk.bytes_read - bytes_before < 100_000);
    }
    // 24 MiB, twice, against a MiB since the note and the MiB that a walk reads at a time, twice, and small files.
    let [with, without] = read[..] else {
        unreachable!()
    };
    assert!(without > 48 << 20 && with < 5 << 20, "{with} and {without}");
}

#[test]
fn a_note_that_is_not_of_this_segment_is_not_believed() {
    let store = StoreConfig {
        progress_bytes: 64 * 1024,
        ..small()
    };
    let mut rig = Rig::ready(10, store, 2, &Config::default());
    for round in 0..20 {
        for partition in 0..2 {
            // Batches of the second log are longer.
            let bytes = 9_000 + 1_000 * partition as usize;
            rig.append(partition, &batch(1, bytes, round), true)
                .unwrap();
            rig.settle();
        }
    }
    rig.disk.crash(faulty::Loss::Killed);
    let note = |partition: i32| format!("t-{partition}/00000000000000000000.progress");
    let other = rig.disk.file(&note(1)).unwrap();
    rig.disk.set_file(&note(0), other);
    let mut damaged = rig.disk.file(&note(1)).unwrap();
    damaged[70] ^= 1;
    rig.disk.set_file(&note(1), damaged);
    // No new note is made while it is looked at.
    let store = StoreConfig {
        progress_bytes: u64::MAX,
        ..small()
    };
    let mut disk = rig.disk;
    let opened = replay(&mut disk, 1);
    let mut rig = Rig::on(disk, store, opened);
    for partition in 0..2 {
        rig.open(partition, &Config::default());
    }
    rig.settle();
    for partition in 0..2 {
        let log = rig.store.log(tp(partition)).unwrap();
        assert_eq!((log.state(), log.appended()), (&LogState::Ready, 20));
        assert!(rig.disk.file(&note(partition)).is_none(), "it is gone");
        assert!(!rig.read_from(partition, 0, 20, 1 << 20).is_empty());
    }
}
