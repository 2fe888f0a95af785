//! One partition's log, and the journal that makes small appends cheap.

pub mod block;
pub mod op;

pub use block::{Block, MemSpan};
pub use op::{DirEntry, DiskDone, DiskError, DiskOp, DiskResult, FileId, FileRef, OpId, Span};
