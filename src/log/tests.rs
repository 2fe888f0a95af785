//! The laws of the store while it runs.

use super::faulty::Loss;
use super::testing::{Batch, Rig, batch, replay, tp};
use super::*;
use crate::model::ErrorCode;

fn small() -> StoreConfig {
    StoreConfig {
        journal_file_bytes: 64 * 1024,
        journal_files_max: 2,
        direct_threshold_bytes: 8 * 1024,
        destage_bytes: 16 * 1024,
        ..StoreConfig::default()
    }
}

#[test]
fn a_batch_counts_as_written_and_flushed_only_when_its_frame_is() {
    let mut rig = Rig::ready(1, small(), 1, &Config::default());
    let b = batch(3, 300, 1);
    let appended = rig.append(0, &b, true).unwrap();
    assert_eq!((appended.base_offset, appended.last_offset), (0, 2));
    rig.commit();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!(
        (log.appended(), log.written(), log.safe(), log.flushed()),
        (3, 0, 0, 0)
    );
    assert_eq!(rig.disk.pending_writes(), 1);
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.written(), log.safe(), log.flushed()), (3, 3, 3));
    assert!(rig.store.take_progress().contains(&tp(0)));
    assert_eq!(rig.read_from(0, 0, 3, 1 << 20), b.stamped(0, 1));
}

#[test]
fn one_frame_commits_a_turn_of_many_logs_and_the_next_gathers_meanwhile() {
    let store = StoreConfig {
        frame_beside_bytes_min: 1024 * 1024,
        ..StoreConfig::default()
    };
    let mut rig = Rig::ready(2, store, 100, &Config::default());
    rig.append(0, &batch(1, 100, 2), true).unwrap();
    rig.settle();
    let (writes, flushes) = (rig.disk.writes, rig.disk.flushes);
    for partition in 1..100 {
        rig.append(partition, &batch(1, 100, 2), true).unwrap();
    }
    rig.commit();
    for _ in 0..5 {
        for partition in 0..100 {
            rig.append(partition, &batch(1, 100, 3), true).unwrap();
        }
        rig.commit();
    }
    rig.settle();
    assert_eq!(
        (rig.disk.writes - writes, rig.disk.flushes - flushes),
        (2, 2)
    );
    assert!((0..100).all(|p| rig.store.log(tp(p)).unwrap().flushed() == 6));
}

/// One frame's bytes, for telling the writes of two apart by their place.
fn frame_at(op: &DiskOp) -> Option<u64> {
    match op {
        DiskOp::Write { at, sync: true, .. } => Some(*at),
        _ => None,
    }
}

#[test]
fn frames_side_by_side_count_in_their_order() {
    let store = StoreConfig {
        frame_beside_bytes_min: 1,
        frames_in_flight_max: 2,
        ..small()
    };
    let mut rig = Rig::ready(21, store, 3, &Config::default());
    rig.settle();
    for partition in 0..3 {
        rig.append(partition, &batch(1, 100, 2), true).unwrap();
        rig.commit();
    }
    assert_eq!(rig.disk.pending_writes(), 2, "the third waits");
    let places = std::cell::RefCell::new(Vec::new());
    rig.disk.complete_where(|op| {
        places.borrow_mut().extend(frame_at(op));
        false
    });
    let (first, second) = match places.into_inner()[..] {
        [a, b] => (a.min(b), a.max(b)),
        ref other => panic!("two frames are in flight, not {other:?}"),
    };
    let done = rig.disk.complete_where(|op| frame_at(op) == Some(second));
    rig.deliver(done.expect("it is in flight"));
    let ends = |rig: &Rig| {
        [0, 1, 2].map(|p| {
            let log = rig.store.log(tp(p)).unwrap();
            (log.written(), log.flushed())
        })
    };
    assert_eq!(ends(&rig), [(0, 0); 3], "the frame before is not there");
    let done = rig.disk.complete_where(|op| frame_at(op) == Some(first));
    rig.deliver(done.expect("it is in flight"));
    assert_eq!(ends(&rig), [(1, 1), (1, 1), (0, 0)]);
    rig.settle();
    assert_eq!(ends(&rig), [(1, 1); 3]);
}

#[test]
fn no_frame_starts_beside_one_that_is_not_flushed() {
    let store = StoreConfig {
        frame_beside_bytes_min: 1,
        ..small()
    };
    let mut rig = Rig::ready(22, store, 2, &Config::default());
    rig.settle();
    rig.append(0, &batch(1, 100, 2), false).unwrap();
    rig.commit();
    rig.append(1, &batch(1, 100, 2), true).unwrap();
    rig.commit();
    assert_eq!(rig.disk.pending_writes(), 1);
    rig.settle();
    assert_eq!(rig.store.log(tp(1)).unwrap().flushed(), 1);
}

#[test]
fn acks_one_alone_is_not_flushed_until_the_second_is_over() {
    let mut rig = Rig::ready(3, small(), 1, &Config::default());
    rig.append(0, &batch(1, 100, 1), false).unwrap();
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.written(), log.safe(), log.flushed()), (1, 1, 0));
    let due = rig.store.next_deadline().expect("a flush is due");
    assert_eq!(due, rig.now.mono.after_ms(1000));
    rig.pass_ms(1000);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 1);
}

#[test]
fn safe_stops_before_a_written_acks_all_batch_that_is_not_flushed() {
    let mut rig = Rig::ready(4, small(), 1, &Config::default());
    // A direct write with acks=1, not flushed; then a small one with acks=all: the flush must cover both.
    rig.append(0, &batch(1, 20_000, 1), false).unwrap();
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().safe(), 1);
    rig.append(0, &batch(1, 100, 2), true).unwrap();
    rig.commit();
    let done = rig
        .disk
        .complete_where(|op| matches!(op, DiskOp::Write { .. }))
        .unwrap();
    rig.deliver(done);
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!(
        (log.written(), log.safe(), log.flushed()),
        (2, 1, 0),
        "only a prefix survives a power loss"
    );
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 2);
}

#[test]
fn write_caching_makes_acks_all_safe_when_written() {
    let config = Config {
        write_caching: true,
        ..Config::default()
    };
    let mut rig = Rig::ready(5, small(), 1, &config);
    rig.append(0, &batch(1, 100, 1), true).unwrap();
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.safe(), log.flushed()), (1, 0));
}

#[test]
fn flush_messages_forces_a_flush_for_any_acks() {
    let config = Config {
        flush_messages: 3,
        ..Config::default()
    };
    let mut rig = Rig::ready(6, small(), 1, &config);
    rig.append(0, &batch(2, 100, 1), false).unwrap();
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 0);
    rig.append(0, &batch(1, 100, 1), false).unwrap();
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 3);
}

#[test]
fn flush_ms_forces_a_flush_before_the_second_is_over() {
    let config = Config {
        flush_ms: 20,
        ..Config::default()
    };
    let mut rig = Rig::ready(7, small(), 1, &config);
    rig.append(0, &batch(1, 100, 1), false).unwrap();
    rig.settle();
    rig.pass_ms(19);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 0);
    rig.pass_ms(1);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 1);
}

#[test]
fn a_flush_counts_only_for_writes_completed_before_it_was_issued() {
    let mut rig = Rig::ready(8, small(), 1, &Config::default());
    rig.append(0, &batch(1, 100, 1), false).unwrap();
    rig.settle();
    rig.pass_ms(1000);
    // The flush is under way; another frame completes before it does.
    rig.append(0, &batch(1, 100, 2), false).unwrap();
    rig.commit();
    let done = rig
        .disk
        .complete_where(|op| matches!(op, DiskOp::Write { .. }))
        .unwrap();
    rig.deliver(done);
    let done = rig
        .disk
        .complete_where(|op| matches!(op, DiskOp::Flush { .. }))
        .unwrap();
    rig.deliver(done);
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.written(), log.flushed()), (2, 1));
}

#[test]
fn bulk_goes_straight_to_the_segment_and_small_appends_behind_it_wait_for_it() {
    let mut rig = Rig::ready(9, small(), 1, &Config::default());
    rig.append(0, &batch(1, 20_000, 1), true).unwrap();
    rig.commit();
    rig.append(0, &batch(1, 100, 2), true).unwrap();
    rig.commit();
    assert_eq!(
        rig.disk.pending_writes(),
        2,
        "one to the segment, one to the journal"
    );
    // The journal's first: it counts only when what is before it does.
    let journal = |op: &DiskOp| matches!(op, DiskOp::Write { data, .. } if data.iter().map(|d| d.len()).sum::<usize>() < 4096);
    let done = rig.disk.complete_where(journal).unwrap();
    rig.deliver(done);
    assert_eq!(rig.store.log(tp(0)).unwrap().written(), 0);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 2);
    let file = rig.disk.file("t-0/00000000000000000000.log").unwrap();
    let first = batch(1, 20_000, 1).stamped(0, 1);
    assert_eq!(file[..first.len()], first);
}

#[test]
fn duplicates_answer_the_first_offsets_and_append_nothing() {
    let mut rig = Rig::ready(10, small(), 1, &Config::default());
    for i in 0..6 {
        rig.append(0, &Batch::of_producer(2, 100, 9, 0, i * 2), true)
            .unwrap();
    }
    for i in 1..6 {
        let twin = rig
            .append(0, &Batch::of_producer(2, 100, 9, 0, i * 2), true)
            .unwrap();
        assert!(twin.duplicate);
        assert_eq!(
            (twin.base_offset, twin.last_offset),
            (i64::from(i * 2), i64::from(i * 2 + 1))
        );
    }
    let sixth = rig
        .append(0, &Batch::of_producer(2, 100, 9, 0, 0), true)
        .unwrap_err();
    assert_eq!(sixth.code, ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(rig.store.log(tp(0)).unwrap().appended(), 12);
}

#[test]
fn a_batch_larger_than_a_segment_is_refused() {
    let config = Config {
        segment_bytes: 10_000,
        ..Config::default()
    };
    let mut rig = Rig::ready(11, small(), 1, &config);
    let error = rig.append(0, &batch(1, 10_000, 1), true).unwrap_err();
    assert_eq!(error.code, ErrorCode::RecordListTooLarge);
}

#[test]
fn segments_roll_by_size_and_are_kafkas_when_closed() {
    let config = Config {
        segment_bytes: 30_000,
        ..Config::default()
    };
    let mut rig = Rig::ready(12, small(), 1, &config);
    let mut expected = Vec::new();
    for i in 0..20 {
        let b = Batch::of_producer(2, 4_000, 5, 0, i * 2);
        expected.push(b.stamped(i64::from(i * 2), 1));
        rig.append(0, &b, true).unwrap();
        if i % 3 == 0 {
            rig.settle();
        } else {
            rig.commit();
        }
    }
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.flushed(), log.segments_count()), (40, 3));
    // 7 batches of 4,0xx bytes fit 30,000.
    let names: Vec<String> = rig
        .disk
        .paths()
        .into_iter()
        .filter(|p| p.starts_with("t-0/"))
        .collect();
    let expected_names = [
        "t-0/00000000000000000000.index",
        "t-0/00000000000000000000.log",
        "t-0/00000000000000000000.timeindex",
        "t-0/00000000000000000014.index",
        "t-0/00000000000000000014.log",
        "t-0/00000000000000000014.snapshot",
        "t-0/00000000000000000014.timeindex",
        "t-0/00000000000000000028.log",
        "t-0/00000000000000000028.snapshot",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
    ];
    assert_eq!(names, expected_names);
    assert_eq!(
        rig.disk.file(expected_names[1]).unwrap(),
        expected[..7].concat()
    );
    assert_eq!(
        rig.disk.file(expected_names[4]).unwrap(),
        expected[7..14].concat()
    );
    assert_eq!(
        rig.disk.file("t-0/leader-epoch-checkpoint").unwrap(),
        b"0\n1\n1 0\n"
    );
    assert_eq!(rig.read_from(0, 0, 40, 10_000), expected.concat());
}

#[test]
fn segments_roll_by_age_of_their_records() {
    let config = Config {
        segment_ms: 5000,
        ..Config::default()
    };
    let mut rig = Rig::ready(13, small(), 1, &config);
    for at in [10_000, 15_000, 15_001, 12_000, 20_002] {
        let mut builder = crate::batch::Builder::new();
        builder.push(at, None, Some(b"x"), &[]);
        rig.append(0, &Batch(builder.build()), true).unwrap();
    }
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    let bases: Vec<i64> = log.segments.iter().map(|s| s.base).collect();
    assert_eq!(bases, [0, 2, 4]);
    assert_eq!(
        rig.store.offset_of_max_timestamp(tp(0), 5),
        TimePlan::Found {
            offset: 4,
            timestamp: 20_002
        }
    );
}

#[test]
fn everything_is_read_back_whether_in_memory_or_in_files() {
    let store = StoreConfig {
        tail_cache_bytes: 0,
        ..small()
    };
    let config = Config {
        segment_bytes: 100_000,
        ..Config::default()
    };
    for seed in 0..40 {
        let mut rig = Rig::ready(seed, store.clone(), 2, &config);
        let mut expected = [Vec::new(), Vec::new()];
        let mut offsets = Vec::new();
        for i in 0..120u32 {
            let partition = (i % 2) as i32;
            let bytes = [80, 300, 3_000, 9_000, 30_000][rig.disk.rng.below(5) as usize];
            let records = 1 + rig.disk.rng.below(4) as usize;
            let b = batch(records, bytes, i as u8);
            let appended = rig.append(partition, &b, i % 3 == 0).unwrap();
            let stamped = b.stamped(appended.base_offset, 1);
            if partition == 0 {
                offsets.push((
                    appended.base_offset,
                    appended.last_offset,
                    expected[0].len(),
                ));
            }
            expected[partition as usize].extend_from_slice(&stamped);
            rig.commit();
            for _ in 0..rig.disk.rng.below(6) {
                rig.step();
            }
        }
        rig.settle();
        rig.pass_ms(1000);
        rig.settle();
        for partition in 0..2 {
            let end = rig.store.log(tp(partition)).unwrap().flushed();
            assert_eq!(
                end,
                rig.store.log(tp(partition)).unwrap().appended(),
                "seed {seed}"
            );
            for bytes_max in [1, 5_000, 1 << 20] {
                let got = rig.read_from(partition, 0, end, bytes_max);
                let e = &expected[partition as usize];
                assert!(
                    got == *e,
                    "seed {seed} partition {partition} bytes_max {bytes_max}"
                );
            }
        }
        let end = rig.store.log(tp(0)).unwrap().appended();
        for (base, last, at) in offsets {
            for offset in [base, last] {
                let got = rig.read_from(0, offset, end, 1 << 20);
                assert!(got == expected[0][at..], "seed {seed} offset {offset}");
            }
        }
        assert!(
            rig.store.pool.live_bytes() < 200_000,
            "the tail cache keeps its budget"
        );
    }
}

#[test]
fn a_reader_gets_nothing_at_or_above_its_end() {
    let mut rig = Rig::ready(14, small(), 1, &Config::default());
    let (a, b) = (batch(3, 300, 1), batch(2, 300, 2));
    rig.append(0, &a, true).unwrap();
    rig.append(0, &b, true).unwrap();
    assert_eq!(rig.read_from(0, 0, 3, 1 << 20), a.stamped(0, 1));
    assert_eq!(rig.read_from(0, 4, 5, 1 << 20), b.stamped(3, 1));
    assert!(matches!(
        rig.store.read(tp(0), 3, 3, 100, true),
        ReadPlan::Empty
    ));
    assert!(matches!(
        rig.store.read(tp(0), 6, 6, 100, true),
        ReadPlan::OutOfRange
    ));
    assert!(
        matches!(rig.store.read(tp(0), 0, 5, 100, false), ReadPlan::Empty),
        "the first batch is larger"
    );
}

#[test]
fn journal_files_are_given_back_when_their_logs_are_in_segments() {
    let mut rig = Rig::ready(15, small(), 40, &Config::default());
    // 400 turns of 40 logs: fifty times what both files hold.
    for round in 0..400 {
        for partition in 0..40 {
            rig.append(partition, &batch(1, 150, round as u8), true)
                .unwrap();
        }
        rig.commit();
        rig.step();
        rig.step();
    }
    rig.settle();
    assert!((0..40).all(|p| rig.store.log(tp(p)).unwrap().flushed() == 400));
    let journal: Vec<String> = rig
        .disk
        .paths()
        .into_iter()
        .filter(|p| p.starts_with("journal-0"))
        .collect();
    assert_eq!(journal, ["journal-0-0", "journal-0-1"]);
}

#[test]
fn a_full_disk_refuses_appends_and_serves_again_when_there_is_space() {
    let store = StoreConfig {
        journal_files_max: 1,
        ..small()
    };
    let mut rig = Rig::ready(16, store, 1, &Config::default());
    rig.disk.faults.space = 300_000;
    let mut acknowledged = 0;
    let mut refused = 0;
    for i in 0..200 {
        match rig.append(0, &batch(1, 3_000, i as u8), true) {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.code, ErrorCode::KafkaStorageError);
                refused += 1;
            }
        }
        rig.settle();
        let log = rig.store.log(tp(0)).unwrap();
        acknowledged = log.safe();
        if let Some(from) = log.stalled_from() {
            assert!(from >= acknowledged);
        }
        assert!(log.is_ready());
    }
    assert!(
        acknowledged > 30 && refused > 50,
        "{acknowledged} acknowledged, {refused} refused"
    );
    let got = rig.read_from(0, 0, acknowledged, 1 << 20);
    assert_eq!(
        got.len(),
        batch(1, 3_000, 0).0.len() * acknowledged as usize
    );
    rig.disk.faults.space = u64::MAX;
    rig.pass_ms(1000);
    rig.settle();
    rig.append(0, &batch(1, 3_000, 1), true).unwrap();
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.stalled_from(), log.safe()), (None, log.appended()));
}

#[test]
fn an_error_on_a_segment_fences_that_log_only() {
    let mut rig = Rig::ready(17, small(), 2, &Config::default());
    rig.disk.faults.broken = Some("t-1/".into());
    for partition in 0..2 {
        rig.append(partition, &batch(1, 20_000, 1), true).unwrap();
    }
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 1);
    let log = rig.store.log(tp(1)).unwrap();
    assert!(matches!(log.state(), LogState::Fenced(Fenced::Io(_))));
    assert_eq!((log.written(), log.safe()), (0, 0));
    assert_eq!(
        rig.append(1, &batch(1, 10, 1), true).unwrap_err().code,
        ErrorCode::KafkaStorageError
    );
    rig.append(0, &batch(1, 10, 1), true).unwrap();
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 2);
}

#[test]
fn an_error_on_the_journal_fences_every_log_of_the_store() {
    let mut rig = Rig::ready(18, small(), 2, &Config::default());
    rig.disk.faults.broken = Some("journal".into());
    rig.append(0, &batch(1, 10, 1), true).unwrap();
    rig.settle();
    for partition in 0..2 {
        assert!(matches!(
            rig.store.log(tp(partition)).unwrap().state(),
            LogState::Fenced(Fenced::Io(_))
        ));
    }
    assert!(rig.store.failed().is_some());
}

#[test]
fn segments_go_when_there_are_too_many_bytes() {
    let config = Config {
        segment_bytes: 10_000,
        retention_bytes: 25_000,
        file_delete_delay_ms: 1000,
        ..Config::default()
    };
    let mut rig = Rig::ready(20, small(), 1, &config);
    rig.pass_ms(0);
    for _ in 0..12 {
        rig.append(0, &batch(1, 4_900, 1), true).unwrap();
        rig.settle();
    }
    // Six segments of two batches, 9,942 bytes each: 59,652 in all. Three may go: 59,652 - 25,000 - 3 * 9,942 >= 0.
    rig.store.log_mut(tp(0)).unwrap().set_high_watermark(3);
    rig.pass_ms(300_000);
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!(
        (log.start(), log.segments_count()),
        (2, 5),
        "nothing above the high watermark goes"
    );
    rig.store.log_mut(tp(0)).unwrap().set_high_watermark(12);
    rig.pass_ms(300_000);
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.start(), log.segments_count()), (6, 3));
    assert!(matches!(
        rig.store.read(tp(0), 5, 12, 100, true),
        ReadPlan::OutOfRange
    ));
    let left: Vec<String> = rig
        .disk
        .paths()
        .into_iter()
        .filter(|p| p.contains("0000004."))
        .collect();
    assert_eq!(left, ["t-0/00000000000000000004.log.deleted"]);
    rig.pass_ms(1000);
    rig.settle();
    assert!(!rig.disk.paths().iter().any(|p| p.contains("deleted")));
    assert_eq!(
        rig.read_from(0, 6, 12, 1 << 20).len(),
        6 * batch(1, 4_900, 1).0.len()
    );
}

#[test]
fn segments_go_when_their_newest_record_is_too_old_even_the_last() {
    let config = Config {
        segment_bytes: 10_000,
        retention_ms: 100_000,
        ..Config::default()
    };
    let store = StoreConfig {
        retention_check_interval_ms: 60_000,
        ..small()
    };
    let mut rig = Rig::ready(21, store, 1, &config);
    rig.now.wall = 1_000_000;
    for at in [1_000_000, 900_000, 1_050_000, 1_000_000] {
        let mut builder = crate::batch::Builder::new();
        builder.push(at, None, Some(&[1; 6_000]), &[]);
        rig.append(0, &Batch(builder.build()), true).unwrap();
        rig.settle();
    }
    rig.store.log_mut(tp(0)).unwrap().set_high_watermark(4);
    // Now is 1,060,000: only the second record is older than 100 s, and the first is before it.
    rig.pass_ms(60_000);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().start(), 0);
    // 1,120,000: the first two go, the third is 70 s old and keeps the fourth.
    rig.pass_ms(60_000);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().start(), 2);
    // 1,180,000: all go in this round, the active one too; a new segment is there for what comes.
    rig.pass_ms(60_000);
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!(
        (log.start(), log.appended(), log.segments_count()),
        (4, 4, 1)
    );
    rig.append(0, &batch(1, 100, 1), true).unwrap();
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 5);
}

#[test]
fn records_are_deleted_up_to_the_high_watermark_and_no_further() {
    let mut rig = Rig::ready(22, small(), 1, &Config::default());
    rig.append(0, &batch(4, 400, 1), true).unwrap();
    rig.settle();
    rig.store.log_mut(tp(0)).unwrap().set_high_watermark(3);
    let now = rig.now;
    let refused = rig.store.advance_start(tp(0), 4, now).unwrap_err();
    assert_eq!(refused.code, ErrorCode::OffsetOutOfRange);
    assert_eq!(rig.store.advance_start(tp(0), 2, now), Ok(2));
    assert_eq!(rig.store.advance_start(tp(0), 1, now), Ok(2));
    let durable = |rig: &Rig| rig.store.log(tp(0)).unwrap().start_durable();
    rig.commit();
    assert_eq!(durable(&rig), 0, "its frame is under way");
    rig.settle();
    assert_eq!(durable(&rig), 2);
    let log = rig.store.log(tp(0)).unwrap();
    assert_eq!((log.start(), log.appended()), (2, 4));
    assert_eq!(log.epochs().entries(), [EpochStart { epoch: 1, start: 2 }]);
}

#[test]
fn an_operation_that_does_not_come_back_takes_the_dir_out_of_use() {
    let mut rig = Rig::ready(23, small(), 2, &Config::default());
    rig.append(0, &batch(1, 100, 1), true).unwrap();
    rig.commit();
    rig.pass_ms(29_999);
    assert!(rig.store.failed().is_none());
    rig.pass_ms(1);
    assert!(rig.store.failed().is_some());
    for partition in 0..2 {
        assert!(matches!(
            rig.store.log(tp(partition)).unwrap().state(),
            LogState::Fenced(Fenced::Io(_))
        ));
    }
    while rig.step() {}
    assert_eq!(rig.store.log(tp(0)).unwrap().flushed(), 0, "too late");
}

#[test]
fn look_ups_by_time_find_what_a_walk_over_all_records_finds() {
    let config = Config {
        segment_bytes: 40_000,
        index_interval_bytes: 1000,
        ..Config::default()
    };
    for seed in 0..12 {
        let store = StoreConfig {
            tail_cache_bytes: [0, 1 << 26][seed as usize % 2],
            ..small()
        };
        let mut rig = Rig::ready(seed, store, 1, &config);
        let mut records: Vec<(i64, i64)> = Vec::new();
        for _ in 0..60 {
            let codec = [crate::batch::Codec::None, crate::batch::Codec::Lz4]
                [rig.disk.rng.below(2) as usize];
            let mut builder = crate::batch::Builder::new().codec(codec);
            let bytes = [20, 400, 2_000][rig.disk.rng.below(3) as usize];
            let value: Vec<u8> = (0..bytes).map(|_| rig.disk.rng.next_u64() as u8).collect();
            for _ in 0..1 + rig.disk.rng.below(4) {
                // Out of order, with repetitions.
                let at = 1_000 + records.len() as i64 + rig.disk.rng.below(40) as i64;
                records.push((records.len() as i64, at));
                builder.push(at, None, Some(&value), &[]);
            }
            rig.append(0, &Batch(builder.build()), true).unwrap();
            rig.commit();
            for _ in 0..rig.disk.rng.below(8) {
                rig.step();
            }
        }
        rig.settle();
        let log = rig.store.log_mut(tp(0)).unwrap();
        log.set_high_watermark(log.appended());
        let end = records.len() as i64;
        look_up_all(&mut rig, &records, 0, end);
        look_up_all(&mut rig, &records, 0, end / 2);
        let start = end / 3;
        rig.store.advance_start(tp(0), start, rig.now).unwrap();
        rig.settle();
        rig.store.close(tp(0), rig.now);
        rig.open(0, &config);
        rig.settle();
        assert!(rig.store.log(tp(0)).unwrap().segments_count() > 1);
        look_up_all(&mut rig, &records, start, end);
    }
}

/// A killed process may leave a segment that is full and was not closed: recovery closes it, and what it writes of its
/// times is all that a later start knows of them.
#[test]
fn a_segment_that_recovery_closed_is_found_by_its_newest_time() {
    let config = Config {
        segment_bytes: 10_000,
        index_interval_bytes: 4_096,
        ..Config::default()
    };
    let mut rig = Rig::ready(21, small(), 1, &config);
    // Segments [0..9) and [9..12), at 1 KiB a batch: the newest record of the first is behind its last index entry.
    for at in 0..12 {
        let mut builder = crate::batch::Builder::new();
        builder.push(1_000 + at, None, Some(&[1; 1_000]), &[]);
        rig.append(0, &Batch(builder.build()), true).unwrap();
        rig.settle();
    }
    assert_eq!(rig.store.log(tp(0)).unwrap().segments_count(), 2);
    let path = "t-0/00000000000000000000.index".to_string();
    rig.disk.run(&DiskOp::Remove { path }).unwrap();
    for _ in 0..2 {
        let mut disk = rig.disk;
        disk.crash(Loss::Killed);
        let opened = replay(&mut disk, 1);
        rig = Rig::on(disk, small(), opened);
        rig.open(0, &config);
        rig.settle();
    }
    for at in 0..12 {
        let found = patient(&mut rig, |rig| {
            rig.store.offset_for_timestamp(tp(0), 1_000 + at, 12)
        });
        let expected = TimePlan::Found {
            offset: at,
            timestamp: 1_000 + at,
        };
        assert_eq!(found, expected);
    }
}

fn look_up_all(rig: &mut Rig, records: &[(i64, i64)], start: i64, end: i64) {
    for target in (990..1_000 + records.len() as i64 + 60).step_by(3) {
        let plan = patient(rig, |rig| {
            rig.store.offset_for_timestamp(tp(0), target, end)
        });
        let expected = records
            .iter()
            .find(|(offset, at)| *offset >= start && *at >= target)
            .filter(|(offset, _)| *offset < end);
        let expected = expected.map_or(TimePlan::NotFound, |(offset, timestamp)| TimePlan::Found {
            offset: *offset,
            timestamp: *timestamp,
        });
        assert_eq!(plan, expected, "at or after {target}, below {end}");
    }
    if end == records.len() as i64 {
        let largest = records.iter().map(|(_, at)| *at).max().unwrap();
        let first = records.iter().find(|(_, at)| *at == largest).unwrap();
        let plan = patient(rig, |rig| rig.store.offset_of_max_timestamp(tp(0), end));
        assert_eq!(
            plan,
            TimePlan::Found {
                offset: first.0,
                timestamp: largest
            }
        );
    }
}

pub(super) fn patient(rig: &mut Rig, mut ask: impl FnMut(&mut Rig) -> TimePlan) -> TimePlan {
    for _ in 0..100 {
        match ask(rig) {
            TimePlan::NeedsRead => rig.settle(),
            plan => return plan,
        }
    }
    panic!("reads help");
}

#[test]
fn a_log_is_made_when_space_returns() {
    let mut rig = Rig::new(19, small());
    rig.disk.faults.space = 0;
    rig.open(0, &Config::default());
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().state(), &LogState::Loading);
    rig.disk.faults.space = u64::MAX;
    rig.pass_ms(1000);
    rig.settle();
    assert_eq!(rig.store.log(tp(0)).unwrap().state(), &LogState::Ready);
}

#[test]
fn an_append_that_does_not_fit_the_rest_of_the_journal_holds_nobody_up() {
    let store = StoreConfig {
        journal_file_bytes: 32 * 1024,
        direct_threshold_bytes: 8 * 1024,
        ..small()
    };
    let mut rig = Rig::ready(20, store, 4, &Config::default());
    // One frame leaves two blocks of the file's seven that frames may take; the next part needs a little more.
    for partition in [0, 1] {
        rig.append(partition, &batch(1, 7_900, 1), true).unwrap();
    }
    rig.commit();
    while rig.disk.pending_writes() > 0 {
        rig.step();
    }
    rig.append(2, &batch(1, 7_990, 2), true).unwrap();
    rig.append(3, &batch(1, 100, 3), true).unwrap();
    rig.settle();
    for partition in 0..4 {
        let log = rig.store.log(tp(partition)).unwrap();
        assert_eq!((partition, log.safe()), (partition, 1));
    }
}

#[test]
fn nothing_of_a_fenced_log_is_written_again() {
    let mut rig = Rig::ready(24, small(), 1, &Config::default());
    rig.append(0, &batch(1, 100, 1), true).unwrap();
    rig.settle();
    rig.disk.faults.broken = Some("t-0/".into());
    rig.append(0, &batch(1, 20_000, 1), true).unwrap();
    rig.settle();
    rig.disk.faults.broken = None;
    // The journal wanted its file back before the error came.
    let log = rig.store.logs[0].as_deref_mut().unwrap();
    assert!(matches!(log.state(), LogState::Fenced(Fenced::Io(_))));
    let s = log.segments.back_mut().unwrap();
    s.urge_to = s.issued;
    rig.store.urging.push_back(0);
    rig.store.pump_urging();
    rig.commit();
    assert!(rig.disk.is_idle());
}

#[test]
fn a_success_behind_an_error_proves_nothing() {
    let mut rig = Rig::ready(25, small(), 1, &Config::default());
    rig.append(0, &batch(1, 20_000, 1), false).unwrap();
    rig.settle();
    // A flush and a write with its own are under way; the first fails.
    rig.pass_ms(1000);
    rig.append(0, &batch(1, 20_000, 2), true).unwrap();
    rig.commit();
    rig.disk.faults.broken = Some("t-0/".into());
    let done = rig
        .disk
        .complete_where(|op| matches!(op, DiskOp::Flush { .. }))
        .unwrap();
    rig.deliver(done);
    rig.disk.faults.broken = None;
    rig.settle();
    let log = rig.store.log(tp(0)).unwrap();
    assert!(matches!(log.state(), LogState::Fenced(Fenced::Io(_))));
    assert_eq!(log.segments.back().unwrap().synced, 0);
    assert_eq!((log.safe(), log.flushed()), (1, 0));
}
