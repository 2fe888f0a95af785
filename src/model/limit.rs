//! Every bound of the program, with its unit, its source and what happens at it.

/// Largest request frame, bytes, without the size field. Kafka's `socket.request.max.bytes`; a larger one closes the connection unread.
pub const REQUEST_BYTES_MAX: u32 = 100 * 1024 * 1024;

/// Requests of one connection that may be unanswered at a time. At the bound the connection is not read on.
pub const CONN_SLOTS_MAX: usize = 64;

/// Bytes of answers that one connection may have waiting to be sent before its further requests wait.
pub const CONN_REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Largest topic name, bytes (Kafka).
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// Partitions that one CreateTopics or CreatePartitions may make (Kafka: POLICY_VIOLATION above).
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;

/// Shards of a process, so that `process * 1000 + shard` stays unique.
pub const SHARDS_MAX: usize = 999;

/// Alignment and smallest unit of direct I/O, bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Time budget of a turn, microseconds; work past it waits for the next turn.
pub const TURN_BUDGET_US: u64 = 250;

/// Events that one turn takes at most.
pub const TURN_EVENTS_MAX: usize = 1024;
