//! Boot: every journal of a log dir is replayed into the segments before any shard opens a log.
//!
//! [`Replay`] asks for one operation at a time. It may be stopped between any two and started again with the same
//! result: until the new generation is durable, the journals are what they were.
//!
//! A part counts iff a directory with its topic id exists, it comes after its log's last mark, and it continues or
//! repeats the segment exactly. Where journal and segment differ, the journal is right: what it holds was written later
//! than whatever lies there.
//!
//! # A break
//!
//! A frame that is missing although a later one says that it was flushed is a *break*: whoever had records in it may have
//! lost some that were flushed, and which logs these are, only the missing frame said. So every log of the dir is fenced
//! ([`super::Fenced::Loss`]) but those that are shown to be whole:
//! - A log with a part in a frame *behind* the last missing one: that part says at which offset it continues the log. All
//!   that the missing frame can have held of it is below, so the log is whole iff it reaches that offset.
//! - The same with a mark there: what it leaves of the log was flushed in the segments before.
//! - A log that another shard's journal speaks of last, and not with a mark: at most one journal holds live parts of a
//!   log, and the broken one's were flushed in the segments before the other shard got it.
//!
//! A segment that cannot be read or written here takes its log out of use, and no other: what the journals have of it is copied to a file of
//! its own (`keep`) before the new generation begins, for the next start.
//!
//! An idle log is fenced although it may be whole: silence about it proves nothing. The doubt is in the generation file
//! from then on, for the journal is read only once. What cannot be noticed is a break at the very end, where no later frame
//! tells of a flush: it looks like a torn tail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::block::{Block, MemSpan};
use super::ending::set_aside;
use super::finish;
use super::frame::{self, Frame, Part, PartKind};
use super::generation::{self, Generation, Known};
use super::journal;
use super::keep;
use super::op::{DiskDone, DiskError, DiskOp, DiskResult, FileId};
use super::ops::{parse_partition_metadata, segment_path};
use super::planted::{Bug, planted};
use super::progress::{self, Progress};
use super::scan::Scan;
use super::segment::{ceil, floor};
use crate::batch::Batch;
use crate::model::limit::BLOCK_BYTES;
use crate::model::{ShardIndex, TopicId, TopicPartition};

pub(crate) const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";

/// What boot's replay found, for each store of the dir.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Names this run's journal frames; frames of other generations are never read again.
    pub generation: u64,
    /// The last run stopped cleanly: file lengths and side files can be trusted.
    pub clean: bool,
    /// The directories that are logs.
    pub dirs: BTreeMap<String, TopicPartition>,
    pub logs: BTreeMap<TopicPartition, Known>,
    /// Frames that were flushed and are gone, and with them what they held beyond the segments: logs that are not shown to be
    /// whole are fenced. (shard, first, last sequence)
    pub breaks: Vec<(ShardIndex, u64, u64)>,
    /// Bytes of batches that the journals had and the segments did not.
    pub replayed_bytes: u64,
    /// Logs that an error keeps from being replayed, and the error: out of use until the next boot.
    pub hurt: BTreeMap<TopicPartition, String>,
}

impl Opened {
    /// What makes the log end where it does from the next boot on, whatever was flushed of it once.
    pub fn accept_loss(&mut self, tp: TopicPartition) -> DiskOp {
        if let Some(known) = self.logs.get_mut(&tp) {
            (known.flushed, known.doubtful) = (0, false);
        }
        let generation = Generation {
            number: self.generation,
            logs: self.logs.clone(),
        };
        DiskOp::Replace {
            path: generation::FILE.into(),
            data: generation.encode(),
        }
    }

    /// Directories of logs that nobody has any more: their topic was deleted, or another one has its name. Kafka sets them aside under a
    /// name that ends with `-stray`, so that nothing is lost by it and nothing is in the way of a new topic. Gives both names.
    pub fn strays(&self, exists: impl Fn(TopicPartition) -> bool) -> Vec<(String, String)> {
        let strays = self.dirs.iter().filter(|(_, tp)| !exists(**tp));
        strays
            .map(|(dir, tp)| (dir.clone(), set_aside(dir, tp.topic, "stray")))
            .collect()
    }
}

/// What a cursor over a whole log dir ([`Replay`], [`super::Finish`]) wants.
#[derive(Debug)]
pub enum Step<T = Box<Opened>> {
    /// Carry this out and pass the result to `next`.
    Op(DiskOp),
    Done(T),
    /// The dir cannot be used; what to say to the operator.
    Failed(String),
}

/// What the operation in flight is for.
#[derive(Debug)]
enum Then {
    Generation,
    CleanMark,
    List,
    JournalOpened {
        name: String,
    },
    JournalRead,
    Kept {
        name: String,
        shard: ShardIndex,
    },
    Metadata {
        dir: String,
    },
    Checkpoint(Checkpoint),
    /// The files of the log in front of `replaying`.
    Listed,
    Progress,
    SegmentOpened,
    Scanned,
    Prefix,
    Nothing,
}

/// Kafka's checkpoints of a clean stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Checkpoint {
    Starts,
    HighWatermarks,
    Ends,
}

/// The segment being replayed.
#[derive(Debug)]
struct Target {
    base: i64,
    file: FileId,
    parts: Vec<Part>,
    scan: Scan,
    len: u64,
    /// A note says that the segment is good up to here, ...
    noted_to: u64,
    /// ... and the walk, which begins here, is to find that.
    scan_from: u64,
    /// Batches of the segment from the first part's place on: place to (base offset, CRC).
    met: BTreeMap<u64, (i64, u32)>,
    parts_from: u64,
}

/// What goes behind (or over) a segment's bytes.
#[derive(Debug)]
struct Rewrite {
    file: FileId,
    len: u64,
    from: u64,
    fresh: Vec<u8>,
    /// The segment had something else there: nothing behind the new end may stay.
    cut: bool,
}

/// What one journal tells of one log, after its last mark.
#[derive(Debug)]
struct Told {
    tp: TopicPartition,
    known: Known,
    parts: Vec<Part>,
    last_is_mark: bool,
    deleted: bool,
    /// It is in a frame behind the last break, and whole if it reaches this offset.
    vouched: Option<i64>,
}

impl Told {
    fn new(tp: TopicPartition) -> Told {
        Told {
            tp,
            known: Known::default(),
            parts: Vec::new(),
            last_is_mark: false,
            deleted: false,
            vouched: None,
        }
    }
}

#[derive(Debug)]
pub struct Replay {
    shards: u16,
    todo: VecDeque<(DiskOp, Then)>,
    running: Option<Then>,
    phase: Phase,
    next_file: u64,
    generation: Generation,
    clean: bool,
    journals: BTreeMap<String, ShardIndex>,
    dirs: Vec<String>,
    dir_of: BTreeMap<(TopicId, i32), String>,
    frames: BTreeMap<ShardIndex, Vec<Frame>>,
    /// What fenced logs kept of frames that are gone.
    kept_files: Vec<(String, ShardIndex)>,
    kept: BTreeMap<ShardIndex, Vec<Frame>>,
    kept_is_damaged: BTreeSet<ShardIndex>,
    /// By directory name: log starts, high watermarks and ends, if the last stop was clean.
    checkpoints: [BTreeMap<String, i64>; 3],
    /// What deletions left.
    leftovers: Vec<String>,
    journal_file: Option<(FileId, ShardIndex)>,
    /// Journals of shards that are no more; removed at the very end.
    surplus: Vec<String>,
    /// Logs with parts, by segment.
    replaying: VecDeque<(String, BTreeMap<i64, Vec<Part>>)>,
    targets: VecDeque<(String, i64, Vec<Part>)>,
    target: Option<Target>,
    rewrite: Option<Rewrite>,
    /// The directory of the log that is being replayed, and all its parts.
    current: Option<(String, Vec<Part>)>,
    /// Parts of the logs that are hurt.
    unreplayed: Vec<Part>,
    report: Opened,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Look,
    Journals,
    Directories,
    Segments,
    Finish,
    Done,
}

impl Replay {
    /// `shards`: of this run. Journals of shards beyond them are removed once replayed.
    pub fn new(shards: u16) -> Replay {
        let look = [
            (
                DiskOp::ReadFile {
                    path: generation::FILE.into(),
                },
                Then::Generation,
            ),
            (
                DiskOp::List {
                    path: String::new(),
                },
                Then::List,
            ),
            (
                DiskOp::ReadFile {
                    path: CLEAN_SHUTDOWN.into(),
                },
                Then::CleanMark,
            ),
        ];
        Replay {
            shards,
            todo: VecDeque::from(look),
            running: None,
            phase: Phase::Look,
            next_file: 0,
            generation: Generation::default(),
            clean: false,
            journals: BTreeMap::new(),
            dirs: Vec::new(),
            dir_of: BTreeMap::new(),
            frames: BTreeMap::new(),
            kept_files: Vec::new(),
            kept: BTreeMap::new(),
            kept_is_damaged: BTreeSet::new(),
            checkpoints: Default::default(),
            leftovers: Vec::new(),
            journal_file: None,
            surplus: Vec::new(),
            replaying: VecDeque::new(),
            targets: VecDeque::new(),
            target: None,
            rewrite: None,
            current: None,
            unreplayed: Vec::new(),
            report: Opened::default(),
        }
    }

    /// The first call passes `None`, every later one the result of the operation it was given.
    pub fn next(&mut self, last: Option<DiskResult>) -> Step {
        if let (Some(then), Some(result)) = (self.running.take(), last)
            && let Err(why) = self.done(then, result)
        {
            return Step::Failed(why);
        }
        loop {
            if let Some((op, then)) = self.todo.pop_front() {
                self.running = Some(then);
                return Step::Op(op);
            }
            match self.phase {
                Phase::Look => self.ask_journals(),
                Phase::Journals => self.ask_directories(),
                Phase::Directories => self.plan_targets(),
                Phase::Segments => self.next_target(),
                Phase::Finish => self.phase = Phase::Done,
                Phase::Done => return Step::Done(Box::new(std::mem::take(&mut self.report))),
            }
        }
    }

    fn file(&mut self) -> FileId {
        self.next_file += 1;
        FileId(self.next_file)
    }

    fn done(&mut self, then: Then, result: DiskResult) -> Result<(), String> {
        match (then, result) {
            (Then::Generation, Ok(DiskDone::Read(bytes))) => {
                self.generation = Generation::decode(&bytes)
                    .ok_or_else(|| format!("{} is damaged", generation::FILE))?;
            }
            (Then::Generation | Then::CleanMark, Err(DiskError::NotFound)) => {}
            (Then::CleanMark, Ok(_)) => {
                self.clean = true;
                let files = [
                    (finish::LOG_STARTS, Checkpoint::Starts),
                    (finish::HIGH_WATERMARKS, Checkpoint::HighWatermarks),
                    (finish::RECOVERY_POINTS, Checkpoint::Ends),
                ];
                for (path, checkpoint) in files {
                    self.todo.push_back((
                        DiskOp::ReadFile { path: path.into() },
                        Then::Checkpoint(checkpoint),
                    ));
                }
            }
            (Then::List, Ok(DiskDone::List(entries))) => {
                for e in entries {
                    if e.is_dir {
                        self.dirs.push(e.name);
                    } else if let Some((shard, _)) = journal::parse_file_name(&e.name) {
                        self.journals.insert(e.name, shard);
                    } else if let Some(shard) = keep::parse_file_name(&e.name) {
                        self.kept_files.push((e.name, shard));
                    }
                }
            }
            (Then::JournalOpened { name }, Ok(DiskDone::Opened { len })) => {
                let (file, _) = self.journal_file.expect("it was opened");
                if len > u64::from(u32::MAX / 2) {
                    return Err(format!("{name} is larger than any journal"));
                }
                // A change of size waits for writes of a killed process that are still under way.
                let block = BLOCK_BYTES as u64;
                self.todo
                    .push_front((DiskOp::Close { file }, Then::Nothing));
                self.todo.push_front((
                    DiskOp::Read {
                        file,
                        at: 0,
                        len: len as u32,
                    },
                    Then::JournalRead,
                ));
                self.todo
                    .push_front((DiskOp::Truncate { file, len }, Then::Nothing));
                self.todo.push_front((
                    DiskOp::Truncate {
                        file,
                        len: len + block,
                    },
                    Then::Nothing,
                ));
            }
            (Then::JournalRead, Ok(DiskDone::Read(bytes))) => self.read_frames(&bytes),
            (Then::Kept { name, shard }, Ok(DiskDone::Read(bytes))) => {
                let current = self.generation.number;
                let mut frames = frames_of(&bytes, shard);
                if frames.iter().map(|f| f.file_bytes).sum::<usize>() != bytes.len() {
                    tracing::error!(name, "what fenced logs kept of the journal is damaged");
                    self.kept_is_damaged.insert(shard);
                }
                frames.retain(|f| f.header.generation == current);
                self.kept.entry(shard).or_default().extend(frames);
            }
            (Then::Metadata { dir }, Ok(DiskDone::Read(bytes))) => {
                let partition = dir.rsplit_once('-').and_then(|(_, p)| p.parse().ok());
                if let (Some(topic), Some(partition)) =
                    (parse_partition_metadata(&bytes), partition)
                {
                    self.report
                        .dirs
                        .insert(dir.clone(), TopicPartition { topic, partition });
                    self.dir_of.insert((topic, partition), dir);
                }
            }
            (Then::Metadata { .. } | Then::Checkpoint(_), Err(DiskError::NotFound)) => {}
            (Then::Checkpoint(which), Ok(DiskDone::Read(bytes))) => {
                let read = finish::decode(&bytes)
                    .ok_or_else(|| format!("the checkpoint of {which:?} is damaged"))?;
                self.checkpoints[which as usize] = read;
            }
            (Then::Listed, Ok(DiskDone::List(entries))) => self.listed(&entries),
            (Then::Progress, Ok(DiskDone::Read(bytes))) => {
                if let (Some(p), Some(target)) = (Progress::decode(&bytes, 0), &mut self.target) {
                    target.noted_to = p.at;
                    (target.scan_from, _) = p.from;
                    target.scan = Scan::new(p.from.0, p.from.1, -1, false);
                }
            }
            (Then::Progress, Err(DiskError::NotFound)) => {}
            (Then::SegmentOpened, Ok(DiskDone::Opened { len })) => self.segment_opened(len),
            (Then::SegmentOpened, Err(DiskError::NotFound)) => {
                // Below the log's start, or gone: opening the log compares its end with what was flushed.
                self.target = None;
            }
            (Then::Scanned, Ok(DiskDone::Read(bytes))) => self.scanned(&bytes),
            (Then::Prefix, Ok(DiskDone::Read(bytes))) => self.rewrite(&bytes),
            (Then::Nothing, Ok(_)) => {}
            (then, Ok(done)) => return Err(format!("{then:?} was answered by {done:?}")),
            (then, Err(e @ DiskError::Io(_)))
                if self.phase == Phase::Segments && self.current.is_some() =>
            {
                self.hurt(&format!("{then:?}: {e}"));
            }
            (then, Err(e)) => return Err(format!("recovery cannot go on ({then:?}): {e}")),
        }
        Ok(())
    }

    // -- journals

    fn ask_journals(&mut self) {
        if let Some((name, shard)) = self.journals.iter().next().map(|(n, s)| (n.clone(), *s))
            && !self.clean
        {
            self.journals.remove(&name);
            if usize::from(shard.0) >= usize::from(self.shards) {
                self.surplus.push(name.clone());
            }
            let file = self.file();
            self.journal_file = Some((file, shard));
            let op = DiskOp::Open {
                file,
                path: name.clone(),
                create: false,
                allocate: 0,
            };
            self.todo.push_back((op, Then::JournalOpened { name }));
            return;
        }
        for (name, shard) in std::mem::take(&mut self.journals) {
            if shard.0 >= self.shards {
                self.surplus.push(name.clone());
            }
        }
        for (name, shard) in std::mem::take(&mut self.kept_files) {
            self.surplus.push(name.clone());
            if !self.clean {
                let path = name.clone();
                self.todo
                    .push_back((DiskOp::ReadFile { path }, Then::Kept { name, shard }));
            }
        }
        self.phase = Phase::Journals;
    }

    fn read_frames(&mut self, bytes: &Bytes) {
        let (_, shard) = self.journal_file.take().expect("it was opened");
        let current = self.generation.number;
        let mut found = frames_of(bytes, shard);
        found.retain(|f| f.header.generation == current || planted(Bug::AcceptOldGeneration));
        self.frames.entry(shard).or_default().extend(found);
    }

    // -- which parts count

    fn ask_directories(&mut self) {
        self.phase = Phase::Directories;
        for dir in std::mem::take(&mut self.dirs) {
            if dir.ends_with("-delete") {
                self.leftovers.push(dir);
                continue;
            }
            if dir.ends_with("-stray") || dir.ends_with("-future") {
                continue;
            }
            let path = format!("{dir}/partition.metadata");
            self.todo
                .push_back((DiskOp::ReadFile { path }, Then::Metadata { dir }));
        }
    }

    fn plan_targets(&mut self) {
        self.phase = Phase::Segments;
        let mut logs = std::mem::take(&mut self.generation.logs);
        if self.clean {
            logs = self.checkpointed();
        }
        let mut told = Vec::new();
        let mut broken = Vec::new();
        for shard in self.kept.keys() {
            self.frames.entry(*shard).or_default();
        }
        for (shard, frames) in std::mem::take(&mut self.frames) {
            let from = told.len();
            let breaks = self.report.breaks.len();
            self.sift(shard, frames, &mut told);
            if self.report.breaks.len() > breaks {
                broken.push(from..told.len());
            }
        }
        let doubtful = self.doubtful(&told, &broken);
        // A shard that gave the log up speaks before the one that has it now.
        told.sort_by_key(|t| !t.last_is_mark);
        let mut parts: BTreeMap<TopicPartition, Vec<Part>> = BTreeMap::new();
        for t in told {
            if t.deleted {
                logs.remove(&t.tp);
                continue;
            }
            let known = logs.entry(t.tp).or_default();
            known.start = known.start.max(t.known.start);
            known.high_watermark = t.known.high_watermark;
            // Told later than what the generation file says, and lower if the log was cut.
            known.flushed = t.known.flushed.max(t.vouched.unwrap_or(0));
            parts.entry(t.tp).or_default().extend(t.parts);
        }
        for tp in doubtful {
            logs.entry(tp).or_default().doubtful = true;
        }
        for (tp, list) in parts {
            let Some(dir) = self.dir_of.get(&(tp.topic, tp.partition)) else {
                continue;
            };
            let mut by_segment: BTreeMap<i64, Vec<Part>> = BTreeMap::new();
            for part in list {
                by_segment
                    .entry(part.header.segment_base)
                    .or_default()
                    .push(part);
            }
            self.replaying.push_back((dir.clone(), by_segment));
        }
        self.report.logs = logs;
    }

    /// The logs that a broken journal may have held flushed records of: all but those that are shown to be whole, or not
    /// to be that journal's. `broken` are the ranges of `told` that broken journals tell.
    fn doubtful(&self, told: &[Told], broken: &[std::ops::Range<usize>]) -> Vec<TopicPartition> {
        let mut doubtful = Vec::new();
        for own in broken {
            for tp in self.report.dirs.values() {
                let proven = told.iter().enumerate().any(|(i, t)| {
                    t.tp == *tp
                        && if own.contains(&i) {
                            t.vouched.is_some()
                        } else {
                            !t.last_is_mark
                        }
                });
                if !proven {
                    doubtful.push(*tp);
                }
            }
        }
        doubtful
    }

    /// What Kafka's checkpoints tell.
    fn checkpointed(&mut self) -> BTreeMap<TopicPartition, Known> {
        let [starts, high_watermarks, ends] = std::mem::take(&mut self.checkpoints);
        let of = |map: &BTreeMap<String, i64>, dir: &String| map.get(dir).copied().unwrap_or(0);
        let known = |dir: &String| Known {
            start: of(&starts, dir),
            high_watermark: of(&high_watermarks, dir),
            flushed: of(&ends, dir),
            doubtful: false,
        };
        self.report
            .dirs
            .iter()
            .map(|(dir, tp)| (*tp, known(dir)))
            .collect()
    }

    /// What one shard's journal tells of each log.
    fn sift(&mut self, shard: ShardIndex, mut frames: Vec<Frame>, told: &mut Vec<Told>) {
        frames.sort_by_key(|f| f.header.sequence);
        let live_from = frames.iter().map(|f| f.header.live_from).max().unwrap_or(0);
        let flushed = frames.iter().map(|f| f.header.flushed).max().unwrap_or(0);
        frames.retain(|f| f.header.sequence >= live_from);
        let have: BTreeSet<u64> = frames.iter().map(|f| f.header.sequence).collect();
        let mut missing: Vec<u64> = (live_from..=flushed)
            .filter(|s| *s > 0 && !have.contains(s))
            .collect();
        if self.kept_is_damaged.contains(&shard) {
            missing.insert(0, live_from.saturating_sub(1));
        }
        if let (Some(&first), Some(&last)) = (missing.first(), missing.last()) {
            tracing::error!(
                shard = shard.0,
                first,
                last,
                "flushed frames of a journal are gone"
            );
            self.report.breaks.push((shard, first, last));
        }
        // Of frames that are gone: parts of fenced logs alone, or a part of another log would come without its mark.
        let kept = self.kept.remove(&shard).unwrap_or_default();
        frames.extend(
            kept.into_iter()
                .filter(|f| !have.contains(&f.header.sequence)),
        );
        frames.sort_by_key(|f| f.header.sequence);
        let last_missing = missing.last();
        let mut of_log: BTreeMap<TopicPartition, Told> = BTreeMap::new();
        let parts = frames
            .into_iter()
            .flat_map(|f| f.parts.into_iter().map(move |p| (f.header.sequence, p)));
        for (sequence, part) in parts {
            let h = part.header;
            if h.kind == PartKind::Mark && planted(Bug::ForgetMark) {
                continue;
            }
            let t = of_log.entry(h.tp).or_insert_with(|| Told::new(h.tp));
            t.known.start = t.known.start.max(h.log_start);
            t.known.high_watermark = h.high_watermark;
            t.last_is_mark = h.kind == PartKind::Mark;
            if h.kind == PartKind::Mark {
                // What the log is from here on is flushed in its segments.
                t.vouched = None;
            }
            if last_missing.is_some_and(|last| sequence > *last) && t.vouched.is_none() {
                t.vouched = Some(h.first_offset);
            }
            match h.kind {
                PartKind::Mark => {
                    t.parts.clear();
                    t.deleted = h.first_offset < 0;
                    t.known.flushed = h.first_offset;
                }
                PartKind::State | PartKind::Data => {
                    t.deleted = false;
                    t.known.flushed = h.flushed;
                    if h.kind == PartKind::Data {
                        t.parts.push(part);
                    }
                }
            }
        }
        told.extend(of_log.into_values());
    }

    // -- into the segments

    /// The log that is being replayed cannot be.
    fn hurt(&mut self, why: &str) {
        let (dir, parts) = self.current.take().expect("one is being replayed");
        tracing::error!(
            log = dir,
            why,
            "it cannot be replayed and is out of use until the next start"
        );
        self.todo.clear();
        self.targets.clear();
        (self.target, self.rewrite) = (None, None);
        if let Some(tp) = self.report.dirs.get(&dir) {
            let why = format!("it cannot be replayed: {why}");
            self.report.hurt.insert(*tp, why);
        }
        self.unreplayed.extend(parts);
    }

    /// A closed segment has all of its parts, and no write of it can be under way: its length must not be touched.
    fn listed(&mut self, entries: &[super::op::DirEntry]) {
        let (dir, by_segment) = self
            .replaying
            .pop_front()
            .expect("its files were asked for");
        let all = by_segment.values().flatten().cloned().collect();
        self.current = Some((dir.clone(), all));
        let has = |base: i64, suffix: &str| {
            let name = segment_path("", base, suffix);
            entries.iter().any(|e| e.name == name[1..])
        };
        let last = entries
            .iter()
            .filter_map(|e| e.name.strip_suffix(".log")?.parse::<i64>().ok())
            .max();
        for (base, parts) in by_segment {
            let closed = has(base, "index") && last.is_some_and(|last| base < last);
            if !closed {
                self.targets.push_back((dir.clone(), base, parts));
            }
        }
    }

    fn next_target(&mut self) {
        let Some((dir, base, parts)) = self.targets.pop_front() else {
            self.current = None;
            match self.replaying.front() {
                Some((dir, _)) => {
                    let path = dir.clone();
                    self.todo.push_back((DiskOp::List { path }, Then::Listed));
                }
                None => self.finish(),
            }
            return;
        };
        let file = self.file();
        let parts_from = parts.iter().map(|p| p.header.at).min().unwrap_or(0);
        let path = segment_path(&dir, base, progress::SUFFIX);
        self.todo
            .push_back((DiskOp::ReadFile { path }, Then::Progress));
        self.target = Some(Target {
            base,
            file,
            parts,
            scan: Scan::new(0, base, -1, false),
            len: 0,
            noted_to: 0,
            scan_from: 0,
            met: BTreeMap::new(),
            parts_from,
        });
        let op = DiskOp::Open {
            file,
            path: segment_path(&dir, base, "log"),
            create: false,
            allocate: 0,
        };
        self.todo.push_back((op, Then::SegmentOpened));
    }

    fn segment_opened(&mut self, len: u64) {
        let target = self.target.as_mut().expect("it is being opened");
        target.len = len;
        let file = target.file;
        let block = BLOCK_BYTES as u64;
        // Waits for direct writes of a killed process, as above.
        self.todo.push_back((
            DiskOp::Truncate {
                file,
                len: len + block,
            },
            Then::Nothing,
        ));
        self.todo
            .push_back((DiskOp::Truncate { file, len }, Then::Nothing));
        self.ask_scan();
    }

    fn ask_scan(&mut self) {
        let target = self.target.as_ref().expect("a target is scanned");
        let (at, len) = target.scan.wanted();
        self.todo.push_back((
            DiskOp::Read {
                file: target.file,
                at,
                len,
            },
            Then::Scanned,
        ));
    }

    fn scanned(&mut self, bytes: &[u8]) {
        let Target {
            scan,
            met,
            parts_from,
            ..
        } = self.target.as_mut().expect("a target is scanned");
        scan.feed(bytes, |at, batch| {
            if at >= *parts_from {
                met.insert(at, (batch.base_offset(), batch.crc()));
            }
        });
        let done = scan.done;
        let target = self.target.as_mut().expect("a target is scanned");
        if done && target.scan.end < target.noted_to {
            // It is not what was noted of it: all of it tells.
            (target.noted_to, target.scan_from) = (0, 0);
            target.scan = Scan::new(0, target.base, -1, false);
            target.met.clear();
            self.ask_scan();
        } else if done {
            self.replay_parts();
        } else {
            self.ask_scan();
        }
    }

    /// Finds what the parts have beyond the segment's good end.
    fn replay_parts(&mut self) {
        let Target {
            file,
            parts,
            scan,
            len,
            scan_from,
            mut met,
            ..
        } = self.target.take().expect("it was scanned");
        let (mut end, mut next, mut epoch) = (scan.end, scan.next, scan.epoch);
        if planted(Bug::ReplayOverDirectWrite)
            && let Some(first) = parts.first()
        {
            (end, next, epoch) = (first.header.at, first.header.first_offset, -1);
            met.clear();
        }
        let mut from = end;
        let mut cut = false;
        let mut fresh: Vec<u8> = Vec::new();
        'parts: for part in &parts {
            let mut at = part.header.at;
            let mut rest = &part.bytes[..];
            while let Ok((batch, batch_len)) = Batch::parse(rest) {
                let this = (batch.base_offset(), batch.crc());
                if at < scan_from {
                    // Noted as flushed in the segment.
                    at += batch_len as u64;
                    rest = &rest[batch_len..];
                    continue;
                }
                if at < end {
                    match met.get(&at) {
                        Some(met) if *met == this => {}
                        Some(met) if met.0 == this.0 && at < from => {
                            tracing::warn!(offset = this.0, "the segment differs from its journal");
                            (end, next, epoch, from, cut) = (at, this.0, -1, at, true);
                            fresh.clear();
                        }
                        Some(_) | None => break 'parts,
                    }
                }
                if at > end {
                    // A hole: what is missing was never flushed, or opening the log will say that it is lost.
                    break 'parts;
                }
                if at == end {
                    if batch.base_offset() != next || batch.leader_epoch() < epoch {
                        break 'parts;
                    }
                    fresh.extend_from_slice(batch.bytes());
                    met.insert(at, this);
                    end += batch_len as u64;
                    next = batch.last_offset() + 1;
                    epoch = batch.leader_epoch();
                }
                at += batch_len as u64;
                rest = &rest[batch_len..];
            }
        }
        self.report.replayed_bytes += fresh.len() as u64;
        self.rewrite = Some(Rewrite {
            file,
            len,
            from,
            fresh,
            cut,
        });
        let at = floor(from);
        self.todo.push_back((
            DiskOp::Read {
                file,
                at,
                len: (from - at) as u32,
            },
            Then::Prefix,
        ));
    }

    /// `prefix` is what the file has in the first block before the fresh bytes.
    fn rewrite(&mut self, prefix: &[u8]) {
        let Rewrite {
            file,
            len,
            from,
            fresh,
            cut,
        } = self.rewrite.take().expect("a prefix was asked for");
        let at = floor(from);
        let end = from + fresh.len() as u64;
        if cut {
            self.todo
                .push_back((DiskOp::Truncate { file, len: from }, Then::Nothing));
        }
        if fresh.is_empty() {
            self.todo.push_back((DiskOp::Flush { file }, Then::Nothing));
        } else {
            let block = Block::new(prefix.len() + fresh.len());
            block.append(prefix);
            block.append(&fresh);
            let data = vec![MemSpan::new(&block, 0, block.len())];
            if ceil(end) > len || cut {
                self.todo.push_back((
                    DiskOp::Allocate {
                        file,
                        to: ceil(end),
                    },
                    Then::Nothing,
                ));
            }
            self.todo.push_back((
                DiskOp::Write {
                    file,
                    at,
                    data,
                    sync: true,
                },
                Then::Nothing,
            ));
        }
        self.todo.push_back((DiskOp::Close { file }, Then::Nothing));
    }

    fn finish(&mut self) {
        self.phase = Phase::Finish;
        let next = Generation {
            number: self.generation.number + 1,
            logs: self.report.logs.clone(),
        };
        self.report.generation = next.number;
        self.report.clean = self.clean;
        let unreplayed = std::mem::take(&mut self.unreplayed);
        if !unreplayed.is_empty() {
            // Before the generation is raised: nothing of the old one is read after that.
            let (path, data) = keep::unreplayed(next.number, &unreplayed);
            self.todo
                .push_back((DiskOp::Replace { path, data }, Then::Nothing));
        }
        let data = next.encode();
        self.todo.push_back((
            DiskOp::Replace {
                path: generation::FILE.into(),
                data,
            },
            Then::Nothing,
        ));
        if self.clean {
            // Only now: had this boot been cut short before, the next would have had to know as much.
            self.todo.push_back((
                DiskOp::Remove {
                    path: CLEAN_SHUTDOWN.into(),
                },
                Then::Nothing,
            ));
        }
        let surplus = std::mem::take(&mut self.surplus);
        let leftovers = std::mem::take(&mut self.leftovers);
        for path in surplus.into_iter().chain(leftovers) {
            self.todo
                .push_back((DiskOp::Remove { path }, Then::Nothing));
        }
    }
}

/// The frames in a file of this shard, of whatever generation.
fn frames_of(bytes: &Bytes, shard: ShardIndex) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let found = frame::decode(&bytes.slice(at..)).filter(|f| {
            let h = &f.header;
            h.at == at as u64 && h.shard == u32::from(shard.0)
        });
        match found {
            Some(f) => {
                at += f.file_bytes;
                frames.push(f);
            }
            // A torn frame, or the rest of an older one: the next may begin at any block.
            None => at += BLOCK_BYTES,
        }
    }
    frames
}
