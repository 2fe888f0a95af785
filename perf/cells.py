"""What is measured: one entry a cell. Every cell is one command of `corelane perf` against either broker, or a probe of the rig.

Cells with the same `partitions` and `fill_records` that stand one behind the other share what was written for them.
"""

SINGLE = ["--records-per-batch", "1"]
BATCH_16K = ["--batch-bytes", "16384"]


def _produce(text, record_bytes, partitions, connections, in_flight, acks, *more):
    return {
        "kind": "produce",
        "text": text,
        "partitions": partitions,
        "arguments": [
            *("--record-bytes", str(record_bytes)),
            *("--connections", str(connections)),
            *("--in-flight", str(in_flight)),
            *("--acks", acks),
            *more,
        ],
    }


def _bare(way, answer_bytes, connections):
    """The yardstick of a cell: a server that knows nothing but this system call (benches/bare_consume.rs)."""
    return {
        "text": f"{way.lower()} of {answer_bytes >> 10} KiB, {connections} connections",
        "bench": "bare_consume",
        "arguments": ["--only", f"{way}:{answer_bytes}", "--connections", str(connections)],
    }


# A pipeline of a disk write and a flush that keeps nothing (benches/bare_produce.rs), under the same load.
BARE_PRODUCE = {"text": "a bare pipeline with its flush", "server": "bare_produce"}


def _cells():
    cells = {}
    for record_bytes, size in ((100, "100b"), (1024, "1k")):
        for partitions in (1, 16, 256):
            connections = min(partitions, 16)
            for acks in ("1", "all"):
                text = f"produce {size} records in 16 KiB batches, {partitions} partitions, {connections} connections, acks={acks}"
                cells[f"batch16k-{size}-{partitions}p-acks-{acks}"] = _produce(text, record_bytes, partitions, connections, 5, acks, *BATCH_16K)
    for acks in ("1", "all"):
        text = f"produce single 100 B records, 64 partitions, 64 connections, acks={acks}"
        cells[f"single-100b-64p-acks-{acks}"] = _produce(text, 100, 64, 64, 5, acks, *SINGLE)
        text = f"produce single 1 KiB records, 256 partitions, 16 connections, acks={acks}"
        cells[f"single-1k-256p-acks-{acks}"] = _produce(text, 1024, 256, 16, 5, acks, *SINGLE)
        text = f"produce 900 x 1 KiB batches, 4 partitions, 4 connections, 2 in flight, acks={acks}"
        cells[f"batch1m-1k-4p-acks-{acks}"] = _produce(text, 1024, 4, 4, 2, acks, "--records-per-batch", "900")
        text = f"2,000 single 100 B records/s, 4 partitions, 4 connections, acks={acks}, latency from the due time"
        cells[f"rate2k-100b-4p-acks-{acks}"] = _produce(text, 100, 4, 4, 5, acks, *SINGLE, "--rate", "2000")
    for name in ("single-100b-64p-acks-all", "batch16k-1k-16p-acks-all", "batch1m-1k-4p-acks-all"):
        cells[name]["bare"] = BARE_PRODUCE
    cells["consume-memory-1m"] = {
        "kind": "consume",
        "text": "fetch data just written, 1 MiB a request, 4 partitions, 4 connections",
        "partitions": 4,
        # Within what a shard keeps in memory. Kafka has it in the page cache.
        "fill_records": 8_000,
        "arguments": ["--connections", "4", "--again", "--max-bytes", "1048576"],
        "bare": _bare("Writev", 1 << 20, 4),
    }
    cells["consume-cached-64k"] = {
        "kind": "consume",
        "text": "fetch page-cached data, 64 KiB a request, 1 partition, 1 connection",
        "partitions": 1,
        "fill_records": 1_000_000,
        "arguments": ["--connections", "1", "--again", "--max-bytes", "65536", "--partition-max-bytes", "65536"],
        "bare": _bare("Sendfile", 64 << 10, 1),
    }
    cells["consume-cached-1m"] = {
        "kind": "consume",
        "text": "fetch page-cached data, 1 MiB a request, 4 partitions, 4 connections",
        "partitions": 4,
        "fill_records": 3_000_000,
        "arguments": ["--connections", "4", "--again", "--max-bytes", "1048576"],
        "bare": _bare("Sendfile", 1 << 20, 4),
    }
    cells["consume-disk"] = {
        "kind": "consume",
        "cold": True,
        "text": "fetch data that is only on the disk, 1 MiB a request, 4 partitions, 4 connections",
        "partitions": 4,
        "fill_records": 3_000_000,
        "arguments": ["--connections", "4", "--to-end", "--max-bytes", "1048576", "--seconds", "120", "--warmup", "0"],
    }
    cells["consume-tail"] = {
        "kind": "tail",
        "text": "fetch from the tail while 50,000 x 1 KiB records/s are written in 16 KiB batches; CPU is that of both",
        "partitions": 4,
        "writer": ["--record-bytes", "1024", "--connections", "4", "--acks", "all", *BATCH_16K, "--rate", "50000"],
        "arguments": ["--connections", "4", "--from", "end"],
    }
    cells["idle"] = {"kind": "idle", "text": "idle: memory and CPU"}
    cells["start"] = {"kind": "start", "text": "start to the first Metadata answer"}
    return cells


CELLS = _cells()
