//! What boot found.

/// What boot's replay found, for each store of the dir.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// Names this run's journal frames; frames of other generations are never read again.
    pub generation: u64,
    /// The last run stopped cleanly: file lengths and side files can be trusted.
    pub clean: bool,
}
