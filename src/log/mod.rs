//! One partition's log, and the journal that makes small appends cheap.

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
mod load;
mod ops;
mod partition;
mod pool;
mod producers;
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
mod testing;
#[cfg(test)]
mod tests;

pub use block::{Block, MemSpan};
pub use config::{Config, StoreConfig};
pub use ending::{Stopped, StoppedLog};
pub use epochs::{EpochStart, LeaderEpochs};
pub use finish::Finish;
pub use generation::Known;
pub use op::{DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, FileRef, OpId, Span};
pub use ops::Ids;
pub use partition::{AppendAs, AppendError, Appended, Fenced, Log, LogState};
pub use producers::{BatchMeta, Producer, ProducerStates};
pub use read::ReadPlan;
pub use recover::{Opened, Replay, Step};
pub use store::Store;
pub use time::TimePlan;
