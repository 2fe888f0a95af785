//! Laws of the durable quorum, on a disk that forgets what was not flushed and tears what was not finished.

use super::keeper::{log_number, log_path, snapshot_path};
use super::testing::{boot, fresh, options};
use super::wal::Snapshot;
use super::{Booted, Committed, Options, Quorum};
use crate::log::faulty::{Completion, Disk, Loss};
use crate::meta::{
    Command, Endpoint, Image, NewTopic, OutcomeResult, Record, ShardEndpoints, StaticConfig,
    TopicRef,
};
use crate::model::limit::BLOCK_BYTES;
use crate::model::{ErrorCode, Instant, Now, Rng, ShardIndex, Uuid};

/// A quorum on a disk, in virtual time.
struct Rig {
    disk: Disk,
    quorum: Quorum,
    /// Everything that came out, applied.
    seen: Image,
    next_token: u64,
    outcomes: Vec<(u64, OutcomeResult)>,
    now: Now,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let mut disk = Disk::new(seed);
        let booted = fresh(&mut disk);
        Rig::on(disk, booted)
    }

    fn on(disk: Disk, booted: Booted) -> Rig {
        Rig {
            disk,
            quorum: booted.quorum,
            seen: booted.image,
            next_token: 0,
            outcomes: Vec::new(),
            now: Now {
                mono: Instant(1_000_000),
                wall: 2_000_000,
            },
        }
    }

    fn registered(seed: u64) -> Rig {
        let mut rig = Rig::new(seed);
        rig.propose(Command::RegisterProcess {
            process: 0,
            incarnation: Uuid([1; 16]),
            rack: None,
            shards: vec![ShardEndpoints {
                shard: ShardIndex(0),
                endpoints: vec![Endpoint {
                    listener: "PLAINTEXT".into(),
                    host: "h".into(),
                    port: 9092,
                }],
            }],
            cluster_id: None,
        });
        rig.settle();
        assert_eq!(rig.outcomes.pop().unwrap().1, OutcomeResult::Registered);
        rig
    }

    fn propose(&mut self, command: Command) -> u64 {
        self.next_token += 1;
        self.quorum.propose(self.next_token, command, self.now);
        self.turn();
        self.next_token
    }

    fn create(&mut self, name: &str) -> u64 {
        self.propose(Command::CreateTopics {
            topics: vec![NewTopic::named(name)],
            validate_only: false,
            auto: false,
        })
    }

    fn turn(&mut self) {
        let mut out = Vec::new();
        for Committed {
            offset,
            records,
            outcome,
        } in self.quorum.take(&mut out)
        {
            for (at, record) in (offset..).zip(records.iter()) {
                self.seen.apply(at, record);
            }
            self.seen.check();
            if let Some((token, outcome)) = outcome {
                assert!(outcome.offset <= self.seen.applied(), "visible when told");
                self.outcomes.push((token, outcome.result));
            }
        }
        for (id, op) in out {
            self.disk.submit(0, id, op, self.now.mono);
        }
    }

    fn step(&mut self) -> bool {
        let Some(Completion { id, result, .. }) = self.disk.complete_one() else {
            return false;
        };
        assert!(self.quorum.on_disk(id, result, self.now), "its own");
        self.turn();
        true
    }

    fn settle(&mut self) {
        self.turn();
        while self.step() {}
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now.mono = self.now.mono.after_ms(ms);
        self.quorum.tick(self.now);
        self.turn();
    }

    fn names(&self) -> Vec<String> {
        names(&self.seen)
    }

    /// The process dies; what it finds when it starts again.
    fn reboot(self, loss: Loss) -> Result<Rig, String> {
        self.reboot_as(loss, options())
    }

    fn reboot_as(mut self, loss: Loss, options: Options) -> Result<Rig, String> {
        self.disk.crash(loss);
        let booted = boot(&mut self.disk, options, StaticConfig::default())?;
        Ok(Rig::on(self.disk, booted))
    }

    fn logs(&self) -> Vec<u64> {
        let names = self.disk.paths();
        names
            .iter()
            .filter_map(|path| log_number(path.rsplit_once('/')?.1))
            .collect()
    }
}

fn names(image: &Image) -> Vec<String> {
    image.topics().map(|t| t.name.to_string()).collect()
}

fn failure(result: &OutcomeResult) -> ErrorCode {
    match result {
        OutcomeResult::Failed(error) => error.code,
        other => panic!("failed: {other:?}"),
    }
}

#[test]
fn nothing_comes_out_before_it_is_on_the_device() {
    let mut rig = Rig::registered(1);
    rig.create("a");
    assert_eq!((rig.names(), rig.outcomes.len()), (vec![], 0));
    assert_eq!(rig.disk.pending_writes(), 1);
    assert!(!rig.quorum.is_idle());
    rig.settle();
    assert_eq!((rig.names(), rig.outcomes.len()), (vec!["a".into()], 1));
    assert!(
        rig.quorum.is_idle(),
        "the commit index alone is not written"
    );
}

#[test]
fn commands_are_decided_one_after_the_other_before_the_first_is_durable() {
    let mut rig = Rig::registered(1);
    for _ in 0..2 {
        rig.create("a");
    }
    rig.settle();
    let codes = rig.outcomes.iter().map(|(token, result)| {
        let OutcomeResult::CreateTopics(topics) = result else {
            panic!("CreateTopics answers CreateTopics");
        };
        (*token, topics[0].error.as_ref().map(|e| e.code))
    });
    let codes: Vec<_> = codes.collect();
    assert_eq!(codes, [(2, None), (3, Some(ErrorCode::TopicAlreadyExists))]);
}

/// Commands at random over completions in any order, then a crash at any point: what was told is there after it, and what
/// is there was decided. Several lives in a row, so that late writes of a dead process meet the next one.
#[test]
fn a_crash_at_any_point_keeps_what_was_told() {
    let mut cuts = 0;
    for seed in 0..150 {
        let mut rng = Rng::seeded(seed);
        let snapshot_records = 1 + rng.below(20);
        let mut rig = Rig::registered(seed);
        let mut told = rig.seen.clone();
        for life in 0..6 {
            let mut asked = 0;
            for _ in 0..rng.below(60) {
                match rng.below(3) {
                    0 => {
                        asked += 1;
                        if rng.one_in(3) && !rig.names().is_empty() {
                            let names = rig.names();
                            let name = names[rng.below(names.len() as u64) as usize].clone();
                            rig.propose(Command::DeleteTopics {
                                topics: vec![TopicRef {
                                    name: Some(name),
                                    id: Uuid::ZERO,
                                }],
                            });
                        } else {
                            rig.create(&format!("t{life}-{asked}"));
                        }
                    }
                    _ => {
                        rig.step();
                    }
                }
            }
            told = rig.seen.clone();
            cuts += usize::from(!rig.disk.is_idle());
            let loss = [Loss::All, Loss::Some, Loss::Killed][rng.below(3) as usize];
            let again = Options {
                snapshot_records,
                ..options()
            };
            rig = match rig.reboot_as(loss, again) {
                Ok(rig) => rig,
                Err(why) => panic!("seed {seed} life {life} after {loss:?}: {why}"),
            };
            // What was decided and not told may be there as well, behind it.
            let applied = told.applied();
            assert!(rig.seen.applied() >= applied, "seed {seed} life {life}");
            rig.seen.check();
            if rig.seen.applied() == applied {
                assert_eq!(
                    rig.seen.snapshot(),
                    told.snapshot(),
                    "seed {seed} life {life}"
                );
            }
        }
        rig.settle();
        let before = rig.seen.clone();
        let rig = rig.reboot(Loss::All).unwrap();
        assert!(rig.seen.same(&before), "seed {seed}");
        assert!(told.applied() <= before.applied(), "seed {seed}");
    }
    assert!(cuts > 100, "operations were under way at {cuts} crashes");
}

#[test]
fn a_snapshot_takes_the_place_of_the_log_and_the_old_log_goes() {
    let mut rig = Rig::registered(3);
    rig.settle();
    assert_eq!(rig.logs(), [1]);
    rig = rig
        .reboot_as(
            Loss::All,
            Options {
                snapshot_records: 10,
                ..options()
            },
        )
        .unwrap();
    rig.settle();
    assert_eq!(rig.logs(), [2], "every start rotates");
    for i in 0..12 {
        rig.create(&format!("t{i}"));
        rig.settle();
    }
    let logs = rig.logs();
    assert!(logs.len() == 1 && logs[0] > 2, "{logs:?}");
    let snapshot = Snapshot::decode(&rig.disk.file(&snapshot_path()).unwrap()).unwrap();
    assert!(snapshot.applied > 10 && snapshot.records.len() > 10);
    let before = rig.seen.clone();
    let again = rig.reboot(Loss::All).unwrap();
    assert!(again.seen.same(&before));
}

#[test]
fn a_torn_tail_loses_only_what_was_not_told() {
    let mut rig = Rig::registered(4);
    rig.create("kept");
    rig.settle();
    rig.create("torn");
    rig.disk.crash(Loss::All);
    let path = log_path(1);
    let mut bytes = rig.disk.file(&path).unwrap();
    let end = bytes
        .chunks(BLOCK_BYTES)
        .position(|b| b.iter().all(|b| *b == 0))
        .unwrap()
        * BLOCK_BYTES;
    bytes[end..end + 30].fill(0xc3);
    rig.disk.set_file(&path, bytes);
    let booted = boot(&mut rig.disk, options(), StaticConfig::default()).unwrap();
    assert_eq!(names(&booted.image), ["kept"]);
}

#[test]
fn damage_in_the_middle_is_refused_and_says_where() {
    let mut rig = Rig::registered(5);
    rig.create("a");
    rig.settle();
    rig.create("b");
    rig.settle();
    let path = log_path(1);
    let mut bytes = rig.disk.file(&path).unwrap();
    bytes[BLOCK_BYTES + 60] ^= 1;
    rig.disk.set_file(&path, bytes);
    let why = rig.reboot(Loss::All).err().expect("refused");
    assert!(
        why.contains(&path) && why.contains("the write at byte 4096 is damaged"),
        "{why}"
    );
    assert_eq!(why.lines().count(), 1);
}

#[test]
fn a_log_that_is_gone_is_refused() {
    let mut rig = Rig::registered(6);
    rig.create("a");
    rig.settle();
    rig = rig.reboot(Loss::All).unwrap();
    rig.settle();
    assert_eq!(rig.logs(), [2]);
    let path = log_path(2);
    let len = rig.disk.file(&path).unwrap().len();
    rig.disk.set_file(&path, vec![0; len]);
    let why = rig.reboot(Loss::All).err().expect("refused");
    assert!(
        why.contains(&format!("it holds nothing, and {} is missing", log_path(1))),
        "{why}"
    );
}

#[test]
fn a_snapshot_of_a_newer_format_is_refused_with_one_line() {
    let mut rig = Rig::registered(7);
    let path = snapshot_path();
    let mut bytes = rig.disk.file(&path).unwrap();
    bytes[8..12].copy_from_slice(&2u32.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_be_bytes());
    rig.disk.set_file(&path, bytes);
    assert_eq!(
        rig.reboot(Loss::All).err().expect("refused"),
        "the metadata in __cluster_metadata-0/quorum.snapshot has format 2, which this release does not know: it was \
         written by a newer release, start that one"
    );
}

#[test]
fn the_metadata_of_another_process_is_refused() {
    let rig = Rig::registered(8);
    let other = Options {
        process: 7,
        ..options()
    };
    assert_eq!(
        rig.reboot_as(Loss::All, other).err().expect("refused"),
        "the metadata in __cluster_metadata-0/quorum.snapshot belongs to process 0, and this is process 7: set node.id or \
         log.dirs right"
    );
}

#[test]
fn a_failed_write_ends_all_proposals_and_nothing_is_retried_into_doubt() {
    let mut rig = Rig::registered(9);
    rig.create("a");
    rig.disk.faults.broken = Some("quorum".into());
    rig.settle();
    assert_eq!(failure(&rig.outcomes[0].1), ErrorCode::KafkaStorageError);
    assert_eq!(
        rig.quorum.failed(),
        Some("the metadata log failed writing its log: I/O error (errno 5)")
    );
    rig.disk.faults.broken = None;
    rig.create("b");
    rig.settle();
    assert_eq!(failure(&rig.outcomes[1].1), ErrorCode::KafkaStorageError);
    assert!(rig.disk.is_idle() && rig.quorum.is_idle());
    assert_eq!(rig.names(), Vec::<String>::new());
}

#[test]
fn a_full_device_is_waited_for_and_does_not_keep_the_process_from_stopping() {
    let mut rig = Rig::registered(10);
    rig.disk.faults.space = 0;
    // More than the log's first MiB holds.
    let big: Vec<NewTopic> = (0..6000)
        .map(|i| NewTopic::named(&format!("{i:0249}")))
        .collect();
    rig.propose(Command::CreateTopics {
        topics: big,
        validate_only: false,
        auto: false,
    });
    rig.settle();
    assert_eq!(rig.outcomes, []);
    assert!(rig.quorum.failed().is_none() && rig.quorum.is_idle());
    assert_eq!(
        rig.quorum.next_deadline(),
        Some(rig.now.mono.after_ms(1000))
    );
    rig.disk.faults.space = u64::MAX;
    rig.pass_ms(999);
    assert!(rig.disk.is_idle(), "not yet");
    rig.pass_ms(1);
    rig.settle();
    assert_eq!((rig.outcomes.len(), rig.names().len()), (1, 6000));
}

#[test]
fn its_operations_and_files_have_the_ids_it_was_given() {
    let mut disk = Disk::new(11);
    let mut quorum = fresh(&mut disk).quorum;
    let mut out = Vec::new();
    let mut ids = Vec::new();
    loop {
        quorum.take(&mut out);
        if out.is_empty() {
            break;
        }
        for (id, op) in out.drain(..) {
            ids.push(id.0);
            disk.submit(0, id, op, Instant(0));
        }
        while let Some(Completion { id, result, .. }) = disk.complete_one() {
            assert!(quorum.on_disk(id, result.clone(), Now::default()));
            assert!(!quorum.on_disk(id, result, Now::default()), "once");
        }
    }
    assert_eq!(ids, [1, 3]);
    assert!(quorum.is_idle());
    assert!(!quorum.on_disk(
        crate::log::OpId(2),
        Ok(crate::log::DiskDone::Done),
        Now::default()
    ));
}

#[test]
fn what_voters_say_is_refused_by_a_quorum_of_one() {
    let mut rig = Rig::registered(12);
    let mut rng = Rng::seeded(1);
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..rng.below(120))
            .map(|_| rng.next_u64() as u8 % 10)
            .collect();
        assert!(rig.quorum.step(&bytes, rig.now).is_err());
    }
    rig.create("a");
    rig.settle();
    assert_eq!(rig.names(), ["a"]);
    assert!(rig.quorum.take_messages().is_empty());
    assert_eq!(
        (rig.quorum.is_leader(), rig.quorum.leader()),
        (true, Some(0))
    );
    assert!(rig.quorum.term() > 0 && rig.quorum.image().same(&rig.seen));
}

#[test]
fn records_and_outcomes_leave_in_order_of_offsets() {
    let mut rig = Rig::registered(13);
    for i in 0..20 {
        rig.quorum.propose(
            100 + i,
            Command::CreateTopics {
                topics: vec![NewTopic::named(&format!("t{i}"))],
                validate_only: i % 3 == 0,
                auto: false,
            },
            rig.now,
        );
    }
    rig.turn();
    rig.settle();
    let tokens: Vec<u64> = rig.outcomes.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, (100..120).collect::<Vec<_>>());
    assert!(matches!(
        rig.seen.snapshot().first(),
        Some(Record::Cluster { .. })
    ));
}
