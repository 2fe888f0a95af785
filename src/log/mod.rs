//! One partition's log, and the journal that makes small appends cheap.
//!
//! Owns everything between a checked batch and a disk operation: segments and their indexes, the journal, leader epochs,
//! what is known of producers, recovery, retention. Must not know requests, roles, clocks or files: it takes batches and
//! completions, and gives [`DiskOp`]s.
//!
//! ```text
//! append -> tail in memory -> one journal frame a turn for all logs (or one direct write per bulk log) -> written, flushed
//!                          -> segment, off the acknowledge path ("destaging") -> journal file given back
//! ```
//!
//! Invariants
//! - `start <= flushed <= safe <= written <= appended`, and none goes back while a log is open (a cut opens it anew).
//! - A byte enters the journal only against space that its segment already has; bytes get their way in order.
//! - A flush counts for exactly the writes whose completion was seen before it was issued.
//! - A journal file is overwritten only once a flushed frame says that nothing in it is needed. What a fenced log has in it, and
//!   nowhere else, is copied first (`keep`): what was acknowledged survives a kill after an error too.
//! - After an error nothing of that log is written or flushed again before the next boot, whoever gives it up and opens it.
//! - Where the offset index of a segment exists beside a later segment, the segment is whole, flushed and of exact length.
//! - Files of segments appear in order of their offsets and go in that order, or from the end on.
//!
//! # What a crash leaves
//!
//! | at | left | boot |
//! |---|---|---|
//! | a frame in flight | whole, torn or nothing, at the end of the journal | its checksum says which; nothing of it was acknowledged |
//! | several frames in flight | some whole, behind ones that are not | a part counts if it continues its log; none of them was acknowledged |
//! | the first frame of a reused file in flight | older frames of that file, without the first | an older, flushed frame has said that they are not needed |
//! | a direct write in flight | any of its sectors; journal parts behind it | the log ends where its batches stop to follow one another; parts behind a hole do not count |
//! | a destaging write in flight | a prefix that is the same bytes old or new, torn behind it | the journal still holds all of it and writes it again |
//! | between a roll and its end | two segments without index at the end | both are walked; the later one goes if the earlier does not reach it |
//! | while a segment is closed | exact length, some side files, no index | it is walked and closed again; the index is written last |
//! | between renames of retention | the oldest segments are gone, in order | a log that begins later |
//! | between the removals of a cut | the newest segments are gone, in order | a log that is cut less than was asked |
//! | a note of progress in flight | the older one, or the new one, or none |
//! | a fenced log's copy in flight | the journal file that it is made of, whole |
//! | a mark in flight | as without it | the log is as it was before it was given up, deleted or cut |
//! | a killed process's writes still under way | bytes that land later | a change of size waits for them, before anything is read |
//! | replay itself | segments with some parts, journals as they were | the same again: the generation is raised last |
//! | opening a log | its end erased or not | the same again |
//! | a clean stop, before its mark | some exact files | everything is looked at |
//!
//! A log that ends below an end that some frame says was flushed, and a missing frame that was flushed, are loss: reported,
//! the log fenced ([`Fenced::Loss`]), nothing cut.
//!
//! After a kill, replay and loading read an active segment from its last note of progress on (`progress`), not from its start.
//!
//! # One flush for several segments: not built
//!
//! On ext4 one fdatasync covers every completed direct write to blocks that were written and flushed before, whichever file
//! it is of. Measured with direct writes side by side (16 x 128 KiB, 64 x 128 KiB, 4 x 512 KiB; p50 of the best of three
//! runs, on a busy machine): on written blocks 1.0, 3.2 and 0.7 ms with a flush of each file, 2.2, 3.4 and 0.9 ms with one for
//! all, so from the size on at which a log goes past the journal the waits overlap anyway and sharing gains nothing; below it
//! the journal has one flush for all. What does cost is the first write of an allocated block (2.1, 7.6 and 5.5 ms): only
//! segments that take over the blocks of old ones would save that, where retention has some to give. So each file has its
//! own flush, and nothing depends on what a file system promises beyond that.
//!
//! What commits cost is measured by `benches/log_commit.rs`, journal against a write and a flush per log.

pub mod block;
pub mod config;
pub mod faulty;
pub mod op;
pub mod planted;

mod chain;
mod commit;
mod ending;
mod epochs;
mod finish;
mod frame;
mod generation;
mod index;
mod journal;
mod keep;
mod load;
mod ops;
mod partition;
mod pool;
mod producers;
mod progress;
mod read;
mod reading;
pub mod recover;
mod retain;
mod scan;
mod segment;
mod store;
mod tick;
mod time;

#[cfg(test)]
mod crash_tests;
#[cfg(all(test, feature = "planted-bugs"))]
mod planted_tests;
#[cfg(test)]
mod read_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use block::{Block, MemSpan};
pub use config::{Config, StoreConfig};
pub use ending::{Left, Stopped, StoppedLog};
pub use epochs::{EpochStart, LeaderEpochs};
pub use finish::Finish;
pub use generation::Known;
pub use journal::JournalCounts;
pub use op::{
    DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, FileRef, OpId, Space, Span,
};
pub use ops::Ids;
pub use partition::{AppendAs, AppendError, Appended, Fenced, Log, LogState};
pub use producers::{BatchMeta, Producer, ProducerStates};
pub use read::ReadPlan;
pub use recover::{Opened, Replay, Step};
pub use store::Store;
pub use time::TimePlan;
