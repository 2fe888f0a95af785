"""Which public fault is proven where. Tests of this folder are named after the fault; here stand those that are proven elsewhere.

The list is that of the faults which concern a single machine without groups and transactions: each has a test or a reason why not yet, and
each test that is named here exists.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FAULTS = {
    "a001": "an ApiVersions version that is not known",
    "a002": "an advertised version that is not answered",
    "a003": "answers out of order",
    "a004": "a tiny payload asks for a huge array",
    "a005": "malformed requests allocate gigabytes",
    "a006": "version-pinned clients see an end of file only",
    "a007": "one-key and many-key shapes of FindCoordinator and OffsetFetch",
    "a008": "ApiVersions waits behind data",
    "a009": "races of auto-creation",
    "a010": "leader -1 on some nodes",
    "a011": "topics created during a start",
    "a012": "a wildcard address is advertised",
    "a013": "the address of the wrong listener",
    "a014": "IPv6 addresses",
    "a015": "validate_only on an existing topic",
    "a016": "a null config value",
    "a017": "types of configs",
    "a018": "validate_only that changes something",
    "a019": "Kafka Connect and Debezium",
    "a020": "zstd and old versions",
    "a021": "the checksum of LZ4 headers",
    "a022": "snappy framings",
    "a023": "what the size limit applies to",
    "a024": "the limit after recompression",
    "a025": "an unknown error when leadership moves",
    "a026": "acks other than -1, 0, 1",
    "a027": "the append time in the answer",
    "a028": "a first batch larger than the limits",
    "a029": "an empty incremental fetch returns at once",
    "a030": "min bytes ignored",
    "a031": "a preferred replica dropped from incremental answers",
    "a032": "the high watermark of the first chunk",
    "a033": "forgotten partitions keep coming",
    "a034": "a step-down makes clients reset offsets",
    "a035": "a fetch between high watermark and log end",
    "a036": "delay at the tail",
    "a037": "times that lead to a wrong record",
    "a038": "a time for which there is nothing",
    "a039": "a time that leads below the log start",
    "a040": "earliest after everything expired",
    "a041": "edges of DeleteRecords",
    "a042": "future timestamps stop retention",
    "a043": "client times on append-time topics",
    "a044": "an earliest offset that cannot be read",
    "a045": "no duplicate window",
    "a046": "an idle idempotent producer is rejected",
    "a047": "duplicates in leader changes",
    "a048": "out of order after an outage",
    "a049": "producer expiry by record time",
    "a096": "kill -9 after a few messages",
    "a097": "recovered but unflushed data is served",
    "a098": "a clean-shutdown mark after a failed recovery on a full disk",
    "a099": "long recovery",
    "a100": "a flush before all writes it covers",
    "a101": "late completions taken for the next operation",
    "a102": "partial sends",
    "a103": "writes that block the core",
    "a104": "out-of-order completions leave a hole",
    "a105": "a start after any set of files",
    "a106": "a reader jumps",
    "a107": "offsets in the log go back",
    "a116": "descriptors of reconnecting clients",
    "a117": "out of descriptors at a segment roll",
    "a118": "half-open connections",
    "a119": "throttling in the wrong place",
    "a120": "the shape of a throttled fetch",
    "a121": "a producer per request",
    "a122": "giant fetches and slow readers",
    "a124": "a fetch session with an old topic id",
    "a125": "offsets of the old topic",
    "a126": "records lost around a recreation",
    "a127": "a consumer brings a deleted topic back",
    "a128": "first records of new partitions",
    "a129": "a trim by time that deletes too much",
    "a130": "acks=1 is refused by a tool",
    "a131": "tools that trip over a rebalance",
    "a132": "a tool's first record to a new topic",
}

# Without a test yet, and why.
LATER = {
    "a019": "Connect needs groups",
    "a118": "a machine without packet filters cannot drop packets",
    "a119": "there are no quotas",
    "a120": "there are no quotas",
    "a131": "there are no groups",
}

# Rust: "file.rs::test". The restart stage: "restart::check". A planted bug that must be found: "planted::Bug".
ELSEWHERE = {
    "a003": ["tests/runtime/sockets.rs::pipelined_requests_are_answered_in_order", "tests/shard/connections.rs::requests_of_one_connection_are_served_one_after_the_other"],
    "a004": ["tests/wire.rs::huge_counts_and_lengths_at_any_place_reserve_next_to_nothing", "tests/wire.rs::mutated_messages_never_panic_and_never_reserve_much"],
    # Groups are not served yet, and what is not served is not advertised: no old shape can be answered wrongly.
    "a007": ["tests/shard/versions.rs::every_version_lists_what_is_served"],
    "a033": ["tests/shard/fetch.rs::a_full_cache_gives_no_sessions_until_an_idle_one_can_go"],
    "a035": ["tests/shard/fetch.rs::nothing_is_seen_before_it_is_as_durable_as_its_producer_asked"],
    "a047": ["restart::kills", "restart::reshard", "tests/shard/restarts.rs::all_five_batches_of_a_producer_are_remembered"],
    "a048": ["restart::kills", "planted::LoseProducers"],
    "a096": ["restart::kills", "restart::planted", "planted::AcknowledgeBeforeWritten"],
    "a097": ["planted::ServeBeforeFlush"],
    "a098": ["restart::full_disk", "src/log/crash_tests.rs::clean_stops_and_crashes_may_follow_each_other_in_any_order"],
    "a100": ["planted::CountFlushForLaterWrite", "planted::SkipFlush", "tests/shells/disk.rs::synced_writes_beyond_the_queue_all_complete"],
    "a101": ["tests/shells/disk.rs::operations_side_by_side_do_what_one_after_the_other_does", "restart::slow_disk", "restart::failing_disk"],
    "a102": ["tests/shells/net.rs::a_stuck_reader_is_bounded_and_stalls_nobody", "tests/runtime/sockets.rs::a_reader_that_never_reads_is_bounded_and_stalls_nobody"],
    "a103": ["tests/runtime/disk.rs::a_slow_disk_costs_no_cpu_and_stalls_nobody"],
    "a129": ["tests/runtime/tools.rs::a_trim_by_time_says_what_goes_and_asks"],
    "a117": ["tests/runtime/sockets.rs::connections_leave_descriptors_to_files"],
    "a104": ["src/log/crash_tests.rs::a_crash_at_any_point_loses_nothing_that_was_promised", "planted::ForgetTail"],
}


def named_after(fault, names):
    return [name for name in names if name.startswith(f"{fault}_")]


def exists(where):
    file, _, name = where.rpartition("::")
    if file == "restart":
        return re.search(rf"^CHECKS = .*\b{name}\b", (ROOT / "tests/restart/run.py").read_text(), re.M) is not None
    if file == "planted":
        return f"Bug::{name}," in (ROOT / "tests/sim.rs").read_text()
    return re.search(rf"#\[test\]\n(#\[.*\]\n)*fn {name}\(", (ROOT / file).read_text()) is not None


def gaps(names):
    """What is wrong with the table, given the names of all tests of this folder."""
    tested = {fault for fault in FAULTS if named_after(fault, names) or fault in ELSEWHERE}
    found = [f"{fault} ({title}): no test" for fault, title in FAULTS.items() if fault not in tested and fault not in LATER]
    found += [f"{fault}: has a test, and is said to have none because {why}" for fault, why in LATER.items() if fault in tested]
    found += [f"{fault}: {where} does not exist" for fault, places in ELSEWHERE.items() for where in places if not exists(where)]
    return found + [f"{fault}: not in the list of faults" for fault in (*ELSEWHERE, *LATER) if fault not in FAULTS]
