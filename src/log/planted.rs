//! Bugs on purpose, for tests and the simulator to find. Without the feature `planted-bugs` all of it is `false`.

/// What can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Bug {
    /// A batch counts as written when it is in memory.
    AcknowledgeBeforeWritten,
    /// A batch counts as flushed when it is written, and no flush is asked for.
    SkipFlush,
    /// A flush counts for writes that completed while it was under way.
    CountFlushForLaterWrite,
    /// Replay writes a part, padded, over what a direct write put behind it.
    ReplayOverDirectWrite,
    /// Replay takes frames of any generation.
    AcceptOldGeneration,
    /// Replay ignores marks.
    ForgetMark,
    /// What lies behind the end after a crash is not erased.
    ForgetTail,
    /// An append takes the last used offset again.
    ReuseOffset,
    /// A log opens without what it knew of its producers.
    LoseProducers,
    /// A log serves before what recovery kept is flushed.
    ServeBeforeFlush,
}

pub const BUGS: [Bug; 10] = [
    Bug::AcknowledgeBeforeWritten,
    Bug::SkipFlush,
    Bug::CountFlushForLaterWrite,
    Bug::ReplayOverDirectWrite,
    Bug::AcceptOldGeneration,
    Bug::ForgetMark,
    Bug::ForgetTail,
    Bug::ReuseOffset,
    Bug::LoseProducers,
    Bug::ServeBeforeFlush,
];

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<u32> = const { Cell::new(0) };
    }

    /// Plants exactly these bugs on this thread.
    pub fn plant(bugs: &[super::Bug]) {
        ON.set(bugs.iter().fold(0, |on, bug| on | 1 << *bug as u32));
    }

    #[inline]
    pub(crate) fn planted(bug: super::Bug) -> bool {
        ON.get() & 1 << bug as u32 != 0
    }
}

#[cfg(feature = "planted-bugs")]
pub use switch::plant;
#[cfg(feature = "planted-bugs")]
pub(crate) use switch::planted;

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) fn planted(_: Bug) -> bool {
    false
}
