#!/usr/bin/env python3
"""One producer that never gives up, for the restart tests: producer.py KIND BOOTSTRAP TOPIC PARTITIONS SEED

It prints a line per event, at once: `a PARTITION OFFSET COUNT MARK TIME` for what was acknowledged (MARK: the CRC of a raw batch, the
number of a message), `up` when it has a connection (again), `e TEXT` for what must not happen. It stops at the end of its standard input.
The rates are bounded, so that comparing keeps up with them however many kills there are.

    idempotent   confluent-kafka with its idempotent settings: acks=all, numbered messages that must be stored once and in order, 5,000/s
    small        raw bytes, acks=1, single records, 16 in flight, 3,000/s
    bulk         raw bytes, acks=1, batches of 128 KiB, 4 in flight, at most 25 MB/s
"""

import os
import random
import select
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness.records import Batch, batch  # noqa: E402
from harness.wire import Closed, Cluster, request_bytes  # noqa: E402

RETRIABLE = {3, 5, 6, 7, 14, 15, 56}

# The partition is led elsewhere: whoever answers this is asked no more.
MOVED = {3, 5, 6}


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def stopped():
    return bool(select.select([0], [], [], 0)[0])


class Template:
    """A Produce request to one partition whose batch, always of the same length, is patched in."""

    def __init__(self, cluster, topic, partition, sample):
        mark = os.urandom(len(sample))
        self.frame = request_bytes("Produce", 9, **cluster.produce_fields(topic, partition, mark, 9, acks=1))
        self.at = self.frame.index(mark)

    def with_batch(self, correlation, data):
        frame = bytearray(self.frame)
        struct.pack_into(">i", frame, 4, correlation)
        frame[self.at : self.at + len(data)] = data
        return struct.pack(">i", len(frame)) + bytes(frame)


def raw(bootstrap, topic, partitions, seed, values, in_flight, bytes_per_s):
    """Sends `values(number)` batches round robin, each partition on its leader's connection, and says what was acknowledged."""
    port = int(bootstrap.rsplit(":", 1)[1])
    rng = random.Random(seed)
    number = 0
    while not stopped():
        cluster = Cluster(port)
        try:
            cluster.learn(topic, partitions)
            sample = batch(values(rng, 0))
            templates = [Template(cluster, topic, partition, sample) for partition in range(partitions)]
            say("up")
            started, sent_bytes, waiting = time.monotonic(), 0, []
            while not stopped():
                while len(waiting) < in_flight and sent_bytes <= bytes_per_s * (time.monotonic() - started + 0.01):
                    partition = number % partitions
                    made = batch(values(rng, number))
                    number += 1
                    cluster.leader(topic, partition).send_bytes(templates[partition].with_batch(number, made))
                    waiting.append((partition, number, Batch(made)))
                    sent_bytes += len(made)
                if not waiting:
                    time.sleep(0.001)
                    continue
                partition, correlation, made = waiting.pop(0)
                answer = cluster.leader(topic, partition).receive("Produce", 9, correlation).responses[0].partition_responses[0]
                if answer.error_code == 0:
                    say("a", partition, answer.base_offset, made.count, made.crc, time.monotonic())
                elif answer.error_code in MOVED:
                    raise Closed(f"partition {partition} is led elsewhere")
                elif answer.error_code not in RETRIABLE:
                    say("e", f"a produce was answered with {answer.error_code} {answer.error_message}")
        except (Closed, OSError):
            time.sleep(0.01)
        finally:
            cluster.close()


def small(rng, number):
    return [b"small %012d" % number + rng.randbytes(100)]


def bulk(rng, number):
    filling = rng.randbytes(8_000)
    return [b"bulk %012d %02d" % (number, at) + filling for at in range(16)]


def idempotent(bootstrap, topic, partitions):
    from confluent_kafka import Producer

    settings = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
        "retry.backoff.ms": 20,
        "message.timeout.ms": 120_000,
        "log_level": 2,
        "error_cb": lambda error: say("e", error) if error.fatal() else None,
    }
    producer = Producer(settings)

    def delivered(error, message):
        if error is not None:
            say("e", f"a message was given up: {error}")
        else:
            number = message.value().split()[0].decode()
            say("a", message.partition(), message.offset(), 1, number, time.monotonic())

    number, started = 0, time.monotonic()
    say("up")
    while not stopped():
        if len(producer) < 200 and number < 5_000 * (time.monotonic() - started) + 100:
            value = b"%d idempotent %s" % (number, b"x" * (number % 300))
            producer.produce(topic, value, partition=number % partitions, on_delivery=delivered)
            number += 1
            producer.poll(0)
        else:
            producer.poll(0.005)
    if producer.flush(60):
        say("e", "messages were left undelivered for 60 s")


def main():
    kind, bootstrap, topic, partitions, seed = sys.argv[1:]
    if kind == "idempotent":
        idempotent(bootstrap, topic, int(partitions))
    elif kind == "small":
        raw(bootstrap, topic, int(partitions), seed, small, 16, 600e3)
    else:
        raw(bootstrap, topic, int(partitions), seed, bulk, 4, 25e6)


if __name__ == "__main__":
    main()
