"""The records that every client sends, and the comparison of what came back, byte for byte."""

import base64
import hashlib
import json
import random

from .checks import Failed, expect, expect_equal

LARGE_BYTES = 900 * 1024


def _pack(data):
    return None if data is None else base64.b64encode(data).decode()


def records(seed, partitions, without=()):
    """Records of every shape: nulls, empties, headers, unicode, binary, batches of small ones, 900 KiB both ways compressible.

    `without` names shapes that a library cannot send: "null records" (neither key nor value), "null headers", "repeated headers".
    """
    rng = random.Random(seed)
    made = []

    def add(key, value, headers=(), partition=None):
        at = len(made) % partitions if partition is None else partition
        made.append({"partition": at, "key": _pack(key), "value": _pack(value), "headers": [[n, _pack(v)] for n, v in headers]})

    add(b"key", b"value")
    add(None, b"null key")
    add(b"null value", None)
    if "null records" not in without:
        add(None, None)
    add(b"", b"")
    add(b"one header", b"x", [("name", b"text")])
    add(b"empty header", b"x", [("name", b""), ("", b"empty name")])
    add("schlüssel ключ 鍵".encode(), "wert значение 値 \U0001f980".encode(), [("kopf-ключ-鍵", "ß".encode())])
    add(bytes(range(256)), bytes(reversed(range(256))), [("binary", bytes(range(256)))])
    if "null headers" not in without:
        add(b"null header", b"x", [("name", None)])
    if "repeated headers" not in without:
        add(b"repeated header", b"x", [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"1")])
        add(b"many headers", b"x", [(f"h{n}", bytes([n % 256]) * (n % 7)) for n in range(200)])
    for size in (1, 127, 128, 8_191, 8_192, 65_536, 300_000):
        add(b"size", rng.randbytes(size))
    # Runs in one partition, so that clients make batches of many records.
    for partition in range(partitions):
        for number in range(150):
            add(f"k{number}".encode(), f"record {number} of a batch, ".encode() * rng.randrange(1, 8), partition=partition)
    add(b"large, incompressible", rng.randbytes(LARGE_BYTES), partition=0)
    add(b"large, compressible", (b"0123456789abcdef" * (LARGE_BYTES // 16))[:LARGE_BYTES], partition=partitions - 1)
    add(b"after the large ones", b"x", partition=0)
    return made


def write(path, plan):
    path.write_text("".join(json.dumps(record) + "\n" for record in plan))


def digest(record):
    """What identifies a record's contents, in one short string."""
    parts = json.dumps([record["key"], record["value"], record["headers"]])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


class Manifest:
    """What is in a topic, by place."""

    def __init__(self, topic, partitions):
        self.topic = topic
        self.partitions = partitions
        self.by_place = {}

    def acknowledged(self, plan, output):
        """Takes the `index partition offset` lines that a producer printed for `plan`."""
        answers = [tuple(map(int, line.split())) for line in output.splitlines() if line.strip()]
        expect_equal("records acknowledged", sorted(index for index, _, _ in answers), list(range(len(plan))))
        ends_before = {partition: self.end(partition) for partition in range(self.partitions)}
        for index, partition, offset in answers:
            record = plan[index]
            expect(record["partition"] in (-1, partition), f"record {index} went to partition {partition}, not {record['partition']}")
            expect((partition, offset) not in self.by_place, f"offset {offset} of partition {partition} given twice")
            self.by_place[partition, offset] = record
        for partition, before in ends_before.items():
            offsets = sorted(offset for index, p, offset in answers if p == partition)
            expect_equal(f"offsets of partition {partition}", offsets, list(range(before, before + len(offsets))))
            in_order = [offset for index, p, offset in sorted(answers) if p == partition]
            expect(in_order == sorted(in_order), f"partition {partition} is not in the order of sending")

    def end(self, partition):
        return sum(1 for p, _ in self.by_place if p == partition)

    def ends(self):
        return [f"{self.topic}:{partition}:{self.end(partition)}" for partition in range(self.partitions)]


def compare(manifests, output):
    """Checks the JSON lines that a consumer printed against what was acknowledged: every record, each once, in order."""
    wanted = {(m.topic, *place): record for m in manifests for place, record in m.by_place.items()}
    last, seen = {}, 0
    for line in output.splitlines():
        record = json.loads(line)
        place = (record["topic"], record["partition"], record["offset"])
        expect_equal(f"offset after {last.get(place[:2])} of {place[:2]}", place[2], last.get(place[:2], -1) + 1)
        last[place[:2]] = place[2]
        # More may stand behind what was acknowledged when another check writes to the topic.
        if place in wanted:
            seen += 1
            sent = wanted[place]
            for field in ("key", "value", "headers"):
                if record[field] != sent[field]:
                    raise Failed(f"{field} of {place}: {str(record[field])[:80]} is not {str(sent[field])[:80]}")
    expect_equal("records read back", seen, len(wanted))
