//! What a log and a store may be told. The shard fills [`Config`] from the topic's configs.

/// One log. Defaults are Kafka's.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// A segment never grows past this; a batch that alone does is refused.
    pub segment_bytes: u64,
    /// A segment rolls when an append's largest timestamp is this much later than the segment's first (less the jitter).
    pub segment_ms: i64,
    pub segment_jitter_ms: i64,
    /// One index entry per so many bytes.
    pub index_interval_bytes: u32,
    /// An index of so many bytes is full and rolls the segment.
    pub index_bytes_max: u32,
    /// So many messages not yet flushed force a flush.
    pub flush_messages: i64,
    /// A message not yet flushed after this long forces a flush.
    pub flush_ms: i64,
    /// acks=all is answered when written, not when flushed.
    pub write_caching: bool,
    pub message_bytes_max: u32,
    /// -1: without end. Segments whose newest record is older go.
    pub retention_ms: i64,
    /// -1: without end.
    pub retention_bytes: i64,
    /// `cleanup.policy` names `delete`: time and size retention apply.
    pub retention_deletes: bool,
    pub file_delete_delay_ms: i64,
    pub producer_id_expiration_ms: i64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segment_bytes: 1024 * 1024 * 1024,
            segment_ms: 7 * 24 * 3600 * 1000,
            segment_jitter_ms: 0,
            index_interval_bytes: 4096,
            index_bytes_max: 10 * 1024 * 1024,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            write_caching: false,
            message_bytes_max: 1_048_588,
            retention_ms: 7 * 24 * 3600 * 1000,
            retention_bytes: -1,
            retention_deletes: true,
            file_delete_delay_ms: 60_000,
            producer_id_expiration_ms: 24 * 3600 * 1000,
        }
    }
}

/// The store of one shard in one log dir.
#[derive(Clone, PartialEq, Debug)]
pub struct StoreConfig {
    /// Bytes of one journal file, whole blocks. Also the largest frame.
    pub journal_file_bytes: u32,
    /// Journal files at most. At the bound producers wait for destaging.
    pub journal_files_max: u32,
    /// Frames of the journal under way side by side, at most.
    pub frames_in_flight_max: u32,
    /// So many bytes are worth a frame beside one in flight.
    pub frame_beside_bytes_min: u32,
    /// Files of closed segments that are kept open for reading. At the bound the one opened first is closed.
    pub closed_files_max: usize,
    /// A log with this much for itself in a turn is written straight to its segment. Above the point where both cost the same on blocks that
    /// were written before (16-64 KiB), because a segment's blocks are only allocated: a flush of such a write commits the file system's own
    /// journal. One core, acks=all, 16 KiB batches: 16 logs 43,900 requests/s at 32 KiB, 66,800 at 128 KiB; one log 8,500 and 15,800.
    pub direct_threshold_bytes: u32,
    /// Memory for tails of all logs of this store. What is not yet in a segment stays whatever the budget says.
    pub tail_cache_bytes: u64,
    /// Journaled bytes of one log that are written to its segment without waiting for the journal to need its file back.
    pub destage_bytes: u32,
    /// Segment writes off the acknowledge path that may be in flight at a time.
    pub destage_writes_max: u32,
    /// First and largest step in which segment space is allocated.
    pub allocate_bytes_min: u64,
    pub allocate_bytes_max: u64,
    /// Pause before refused space is asked for again.
    pub allocate_retry_ms: u64,
    /// Completed writes are flushed at the latest after this long, asked for or not.
    pub flush_interval_ms: u64,
    /// So many bytes of a segment are between two notes of how far it is good: what a start after a kill has to read of it.
    pub progress_bytes: u64,
    /// An operation under way for this long takes the dir out of use (Kafka's `log.dir.failure.timeout.ms`).
    pub failure_timeout_ms: u64,
    pub retention_check_interval_ms: u64,
    pub producer_check_interval_ms: u64,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            journal_file_bytes: 4 * 1024 * 1024,
            journal_files_max: 8,
            frames_in_flight_max: 4,
            frame_beside_bytes_min: 16 * 1024,
            closed_files_max: crate::model::limit::CLOSED_FILES_MAX,
            direct_threshold_bytes: 128 * 1024,
            tail_cache_bytes: 64 * 1024 * 1024,
            destage_bytes: 256 * 1024,
            destage_writes_max: 64,
            allocate_bytes_min: 64 * 1024,
            allocate_bytes_max: 64 * 1024 * 1024,
            allocate_retry_ms: 1000,
            flush_interval_ms: 1000,
            progress_bytes: 32 * 1024 * 1024,
            failure_timeout_ms: 30_000,
            retention_check_interval_ms: 300_000,
            producer_check_interval_ms: 600_000,
        }
    }
}
