//! The laws of reading what is damaged, deleted in part, or gone.

use super::faulty::Loss;
use super::testing::{Batch, Rig, replay, tp};
use super::tests::patient;
use super::*;

fn small() -> StoreConfig {
    StoreConfig {
        tail_cache_bytes: 0,
        ..StoreConfig::default()
    }
}

/// Twelve records of falling and rising timestamps in three segments, the last of them active.
fn in_three_segments(rig: &mut Rig, times: &[i64; 12]) {
    for pair in times.chunks(2) {
        let mut builder = crate::batch::Builder::new();
        for at in pair {
            builder.push(*at, None, Some(&[1; 1_000]), &[]);
        }
        rig.append(0, &Batch(builder.build()), true).unwrap();
        rig.settle();
        let end = rig.store.log(tp(0)).unwrap().appended();
        rig.store.log_mut(tp(0)).unwrap().set_high_watermark(end);
    }
    assert_eq!(rig.store.log(tp(0)).unwrap().segments_count(), 3);
}

fn segments_of_two_batches() -> Config {
    Config {
        segment_bytes: 4_400,
        ..Config::default()
    }
}

#[test]
fn the_largest_timestamp_is_one_that_can_be_read() {
    let times = [90, 80, 10, 20, 70, 60, 30, 30, 5, 50, 40, 45];
    let mut rig = Rig::ready(31, small(), 1, &segments_of_two_batches());
    in_three_segments(&mut rig, &times);
    for start in 0..12 {
        rig.store.advance_start(tp(0), start, rig.now).unwrap();
        rig.settle();
        let alive = times[start as usize..].iter();
        let timestamp = *alive.clone().max().unwrap();
        let offset = start + alive.clone().position(|at| *at == timestamp).unwrap() as i64;
        let plan = patient(&mut rig, |rig| rig.store.offset_of_max_timestamp(tp(0), 12));
        assert_eq!(plan, TimePlan::Found { offset, timestamp }, "from {start}");
    }
    rig.store.advance_start(tp(0), 12, rig.now).unwrap();
    let plan = patient(&mut rig, |rig| rig.store.offset_of_max_timestamp(tp(0), 12));
    assert_eq!(plan, TimePlan::NotFound);
}

#[test]
fn a_segment_with_a_damaged_index_is_walked_for_its_largest_timestamp() {
    let times = [10, 20, 90, 80, 70, 60, 30, 30, 5, 50, 40, 45];
    let config = segments_of_two_batches();
    let mut rig = Rig::ready(32, small(), 1, &config);
    in_three_segments(&mut rig, &times);
    let mut disk = rig.disk;
    disk.crash(Loss::Killed);
    let opened = replay(&mut disk, 1);
    let mut rig = Rig::on(disk, small(), opened);
    rig.open(0, &config);
    rig.settle();
    for base in [0, 4] {
        let path = format!("t-0/{base:020}.index");
        assert!(rig.disk.file(&path).is_some());
        let data = bytes::Bytes::from_static(b"damage");
        rig.disk.run(&DiskOp::Replace { path, data }).unwrap();
    }
    // Twice: what the walk told is kept.
    for _ in 0..2 {
        let plan = patient(&mut rig, |rig| rig.store.offset_of_max_timestamp(tp(0), 12));
        let expected = TimePlan::Found {
            offset: 2,
            timestamp: 90,
        };
        assert_eq!(plan, expected);
    }
}

/// The log of `in_three_segments` after a kill, so that its files are what is read.
fn after_a_kill(rig: Rig, config: &Config, damage: impl FnOnce(&mut faulty::Disk)) -> Rig {
    let mut disk = rig.disk;
    disk.crash(Loss::Killed);
    damage(&mut disk);
    let opened = replay(&mut disk, 1);
    let mut rig = Rig::on(disk, small(), opened);
    rig.open(0, config);
    rig.settle();
    rig
}

fn planned(rig: &mut Rig, offset: i64) -> ReadPlan {
    for _ in 0..100 {
        match rig.store.read(tp(0), offset, 12, 1 << 20, true) {
            ReadPlan::NeedsRead => rig.settle(),
            plan => return plan,
        }
    }
    panic!("reads help");
}

#[test]
fn garbage_in_a_segment_is_told_and_what_is_around_it_is_read() {
    let config = segments_of_two_batches();
    let mut rig = Rig::ready(33, small(), 1, &config);
    in_three_segments(&mut rig, &[1; 12]);
    let mut rig = after_a_kill(rig, &config, |disk| {
        let path = format!("t-0/{:020}.log", 4);
        let mut bytes = disk.file(&path).unwrap().to_vec();
        bytes[..16].fill(0xee);
        let data = bytes::Bytes::from(bytes);
        disk.run(&DiskOp::Replace { path, data }).unwrap();
    });
    let first = |plan| match plan {
        ReadPlan::Spans { first_offset, .. } => first_offset,
        plan => panic!("{plan:?}"),
    };
    assert_eq!(first(planned(&mut rig, 3)), 2);
    assert!(matches!(planned(&mut rig, 4), ReadPlan::Corrupt));
    assert!(matches!(planned(&mut rig, 4), ReadPlan::Corrupt));
    assert_eq!(first(planned(&mut rig, 8)), 8);
    assert!(rig.store.log(tp(0)).unwrap().is_ready());
}

#[test]
fn reading_goes_on_behind_a_segment_that_somebody_took_away() {
    let config = segments_of_two_batches();
    let mut rig = Rig::ready(34, small(), 1, &config);
    in_three_segments(&mut rig, &[1; 12]);
    let mut rig = after_a_kill(rig, &config, |disk| {
        for suffix in ["log", "index", "timeindex"] {
            let path = format!("t-0/{:020}.{suffix}", 4);
            disk.run(&DiskOp::Remove { path }).unwrap();
        }
    });
    for offset in [4, 5, 7] {
        let ReadPlan::Spans { first_offset, .. } = planned(&mut rig, offset) else {
            panic!("nothing is read from {offset} on");
        };
        assert_eq!(first_offset, 8);
    }
}
