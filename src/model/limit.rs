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

/// The receive buffer that all connections of a shard share, bytes; frames up to this size are cut out of it without a copy.
pub const RECV_BUFFER_BYTES: usize = 128 * 1024;

/// Bytes that one connection may bring in before the next one has its turn.
pub const RECV_CONN_BYTES_MAX: usize = 512 * 1024;

/// Bytes that one turn may take from all sockets.
pub const RECV_TURN_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Memory that a frame larger than the receive buffer reserves on the strength of its first bytes, at most; from there on it grows fourfold
/// as bytes really arrive, since the size is only the client's claim. Holds a produce request of Kafka's default `max.request.size` in one piece.
pub const FRAME_RESERVE_BYTES: usize = 2 * 1024 * 1024;

/// And at least, bytes.
pub const FRAME_RESERVE_BYTES_MIN: usize = 4 * 1024;

/// Longest piece of a file handed to one sendfile, bytes: the longest time on the core for one system call.
pub const SEND_FILE_BYTES_MAX: usize = 256 * 1024;

/// Bytes that one connection may be sent before the next one has its turn.
pub const SEND_CONN_BYTES_MAX: usize = 1024 * 1024;

/// Connections accepted in one go before anything else is done.
pub const ACCEPTS_PER_TURN_MAX: usize = 64;

/// Pause of a listener that ran out of file descriptors or memory, milliseconds.
pub const ACCEPT_BACKOFF_MS: u64 = 50;

/// Bytes of frames that one connection may have read but not started before it is paused.
pub const CONN_FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Frame bytes that one turn starts at most, so that validation keeps a turn short.
pub const TURN_FRAME_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A fetch session idle for this long may be evicted, microseconds (Kafka: 2 minutes).
pub const SESSION_IDLE_EVICT_US: u64 = 120_000_000;
/// Bytes that one batch may decompress to; INVALID_RECORD above. librdkafka's consumers take no more than 100 MB
/// (`receive.message.max.bytes`), so nothing that is read again is larger. With a larger `max.message.bytes` more is allowed.
pub const DECOMPRESSED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Record errors that one partition's produce answer carries; the others are not listed.
pub const RECORD_ERRORS_MAX: usize = 1000;

/// Metadata records that the controller keeps for shards that lag. A shard further behind gets a snapshot.
pub const DELTAS_KEPT_MAX: usize = 16_384;

/// Pause after which a shard that has not served a change is sent its deltas again, milliseconds.
pub const DELTAS_RESEND_MS: u64 = 100;

/// Pause after which a shard asks its siblings again to release a partition that it leads now, milliseconds.
pub const RELEASE_RESEND_MS: u64 = 100;

/// Bytes of the text that says what is wrong with a batch.
pub const BATCH_ERROR_TEXT: usize = 512;

/// How long a fetch whose time is up still waits for its read from disk, milliseconds; then it is answered without.
pub const READ_WAIT_MS: u64 = 30_000;

/// Topics that one shard has under automatic creation at a time; further ones are asked for again by their clients.
pub const AUTO_CREATIONS_MAX: usize = 1000;

/// After this long an automatic creation may be tried again, milliseconds.
pub const AUTO_CREATION_TIMEOUT_MS: u64 = 10_000;

/// How long a producer waits for its node's next block of ids, milliseconds.
pub const PRODUCER_ID_WAIT_MS: u64 = 5_000;

/// Bytes of one shard that may be appended and not yet written. At the bound no request starts until the disk catches up.
pub const UNWRITTEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Terms by which one message of a voter may raise ours: nonsense must not bring the counter to its end.
pub const RAFT_TERM_STEP_MAX: u64 = 1 << 32;

/// Proposals to the controller without an outcome at most; further ones are refused with a retriable error.
pub const PROPOSALS_MAX: usize = 4096;

/// Bytes of the metadata log after which a snapshot replaces it, whatever it holds.
pub const METADATA_LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Messages in the inbox of a shard. At the bound deltas collapse into catching up, and proposals are refused.
pub const PEER_MESSAGES_MAX: usize = 1024;

/// Descriptors that connections leave to files, at most.
pub const FILES_KEPT_MAX: u64 = 16 * 1024;

/// Bytes of all journals of a process at first, unless 2 % of the file system are less.
pub const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A journal file has at least so many bytes, however many shards share the bound.
pub const JOURNAL_FILE_BYTES_MIN: u64 = 1024 * 1024;

/// What a stop may take, milliseconds; then the process ends as it is, as after a kill.
pub const STOP_MS: u64 = 5_000;

/// After its logs are closed, a shard waits so long for its last answers to be taken, milliseconds.
pub const STOP_SEND_MS: u64 = 500;

/// Files of closed segments that one store keeps open for reading, where descriptors are not short.
pub const CLOSED_FILES_MAX: usize = 1024;

/// Memory for the indexes of closed segments of one store, bytes. At the bound those read first leave.
pub const INDEX_CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Logs that one turn looks at for retention and expiry at most.
pub const RETENTION_LOGS_PER_TURN: usize = 64;

/// So long a start waits for a port to become free, milliseconds: a killed process leaves it a moment after it is gone.
pub const PORT_FREE_MS: u64 = 2_000;

/// Operations on files that wait for a helper thread from which on it makes their changes durable together, by one sync of the file system.
/// That costs a few fsyncs, and whatever others have unwritten on the same file system.
pub const SYNC_TOGETHER_MIN: usize = 32;

/// And at most: none of them is done before all are.
pub const SYNC_TOGETHER_MAX: usize = 128;

/// Bytes that the reads of one shard's disk bring into memory at a time; a larger one goes alone. At the bound further reads wait.
pub const READ_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long an administrative request without a timeout of its own waits for the controller, milliseconds (Kafka's `request.timeout.ms`).
pub const ADMIN_WAIT_MS: u64 = 30_000;

/// Configs that one node, or the default of all nodes, may have set while it runs, subscriptions of client metrics, and groups with configs: POLICY_VIOLATION above.
pub const CONFIGS_SET_MAX: usize = 1000;

/// A DeleteRecords waits at least this long for the device, milliseconds, whatever its timeout: with one of 0 Kafka answers a success, and so do we.
pub const DELETE_RECORDS_WAIT_MS_MIN: u64 = 1_000;

/// Clients of one node whose metrics subscription is remembered (Kafka). At the bound the one not heard of for longest is forgotten.
pub const TELEMETRY_CLIENTS_MAX: usize = 16_384;

/// Bytes that one push of metrics may decompress to; INVALID_RECORD above.
pub const TELEMETRY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A shard says at most so often that it closed a connection for what came over it: whoever sends garbage does so many times.
pub const BAD_INPUT_LOG_MS: u64 = 1000;

/// Proposals that a controller has taken and not answered, because they are not committed or some shard of the process does not serve them
/// yet. At the bound further ones are refused with a retriable error.
pub const UNANSWERED_MAX: usize = 4096;

/// Bytes of a file that one read brings into the page cache.
pub const PAGE_IN_BYTES: usize = 512 * 1024;

/// Bytes before a reader of cold data that are brought in while its answers leave.
pub const READ_AHEAD_BYTES: u64 = 4 * 1024 * 1024;

/// Reads into the page cache that one shard has under way when it starts one that nobody waits for yet. At the bound reading ahead waits:
/// the kernel's worker threads are for flushes, too.
pub const READ_AHEAD_READS_MAX: usize = 4;

/// Readers of cold data that one shard remembers. At the bound the one that was idle for longest is forgotten.
pub const READ_AHEAD_READERS_MAX: usize = 64;

/// A read of up to so many bytes is done on the shard's core if they are in the page cache; that takes some microseconds.
pub const READ_AT_ONCE_BYTES: u32 = 16 * 1024;

/// A second signal ends the process at once, unless it comes within this time of the first, milliseconds: then it is the same one, which
/// `timeout` and a terminal send to a process and to its group.
pub const SIGNAL_REPEAT_MS: u64 = 250;

/// Topics with series of their own on the operator's port, and partitions of one shard; what is beyond is in one sum, or left out.
pub const SCRAPE_TOPICS_MAX: usize = 100;
pub const SCRAPE_LOGS_MAX: usize = 1_000;

/// Replicas out of use of one shard that are named with their reason.
pub const SCRAPE_FENCED_MAX: usize = 100;

/// How long the operator's port waits for a shard, milliseconds; one that does not answer by then is told as down.
pub const SCRAPE_MS: u64 = 1_000;

/// Connections to the operator's port at a time; more are closed at once. And the time for a request to come, milliseconds.
pub const OPERATOR_CONNS_MAX: usize = 64;
pub const OPERATOR_REQUEST_MS: u64 = 10_000;
