"""Limits of one machine: memory, descriptors, connections."""

import os
import struct
import time
from pathlib import Path

from harness.checks import expect, expect_equal
from harness.records import batch
from harness.wire import Closed, Conn, request_bytes

MIB = 1 << 20


def _descriptors(running):
    return len(os.listdir(f"/proc/{running.pid}/fd"))


def a116_reconnecting_clients_leave_no_descriptors(env):
    """Clients that connect, ask and go, over restarts too: descriptors follow the open connections and come back."""
    with env.own_broker() as own:
        own.cluster.metadata()
        own.cluster.close()
        time.sleep(0.2)
        base = _descriptors(own.broker)
        for restart in (False, True):
            if restart and not own.judge:
                own.restart()
                base = max(base, _descriptors(own.broker))
            for _ in range(20):
                conns = [own.conn() for _ in range(50)]
                for at, conn in enumerate(conns):
                    conn.send("ApiVersions" if at % 2 else "Metadata", 0 if at % 2 else 1, **({} if at % 2 else {"topics": []}))
                most = _descriptors(own.broker)
                # Those of the round before may still be on their way out.
                expect(most <= base + 110 or own.judge, f"{most} descriptors for 50 connections, {base} before")
                for at, conn in enumerate(conns):
                    # Half of them leave without reading.
                    if at % 3:
                        conn.receive_frame()
                    conn.close()
            deadline = time.monotonic() + 20
            while (now := _descriptors(own.broker)) > base + 5:
                expect(time.monotonic() < deadline, f"{now} descriptors stay, {base} before")
                time.sleep(0.02)


def a121_a_producer_per_request_does_not_fill_memory(env):
    """Each short-lived idempotent producer leaves a little state on each partition, and it goes with its time."""
    if env.judge:
        return
    count = 40_000
    with env.own_broker(producer_id_expiration_ms=3_000, producer_id_expiration_check_interval_ms=500) as own:
        topic = own.cluster.create(4)
        first = own.cluster.conn().ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1)
        sample = batch([b"x"], producer_id=first.producer_id, producer_epoch=0, base_sequence=0)
        before = own.broker.rss_bytes()
        highest = before
        for start in range(0, count, 500):
            partition = (start // 500) % 4
            conn = own.cluster.leader(topic, partition)
            sent = []
            for number in range(start, start + 500):
                made = batch([b"x"], producer_id=first.producer_id + 1 + number, producer_epoch=0, base_sequence=0)
                expect_equal("length", len(made), len(sample))
                sent.append(conn.send("Produce", 9, **own.cluster.produce_fields(topic, partition, made, 9, acks=1)))
            for correlation in sent:
                frame = conn.receive_frame()
                expect_equal("correlation id", struct.unpack_from(">i", frame)[0], correlation)
            highest = max(highest, own.broker.rss_bytes())
        grown = highest - before
        expect(grown < 60 * MIB, f"{grown >> 20} MiB more for {count} producers")
        ends = sum(own.cluster.end(topic, partition) for partition in range(4))
        expect_equal("records", ends, count)
        own.restart()
        started = time.monotonic()
        own.cluster.learn(topic, 4)
        expect(time.monotonic() - started < 10, "a start with many producers takes long")


def a122_giant_fetches_and_readers_that_stand_still(env):
    """Answers are bounded by the server whatever the client allows, and whoever does not read blocks only itself."""
    topic = env.cluster.create(1)
    for _ in range(60):
        env.cluster.produced(topic, batch([os.urandom(900_000)]))
    port = env.cluster.leaders[topic, 0]
    rss = env.broker.rss_bytes()
    stuck = [env.conn(port, receive_buffer=4096) for _ in range(150)]
    try:
        for conn in stuck:
            conn.send("Fetch", 12, **env.cluster.fetch_fields(topic, {0: (0, 2**31 - 1)}, 12, max_bytes=2**31 - 1))
        time.sleep(0.3)
        started = time.monotonic()
        offset = 0
        while offset < 60:
            answer = env.cluster.fetch(topic, offset, limit=8 * MIB)
            expect_equal("error", answer.error_code, 0)
            offset += len(answer.records) // 900_000
        expect(time.monotonic() - started < 10, f"a reader beside them took {time.monotonic() - started:.1f} s for 54 MB")
        grown = env.broker.rss_bytes() - rss
        expect(env.judge or grown < 300 * MIB, f"{grown >> 20} MiB more behind 150 readers that stand still")
    finally:
        for conn in stuck:
            conn.close()
    deadline = time.monotonic() + 10
    while not env.judge and env.broker.rss_bytes() - rss > 150 * MIB:
        expect(time.monotonic() < deadline, "the memory of readers that left stays")
        time.sleep(0.02)


def abuse_of_the_port_leaves_others_alone(env):
    """A slow loris, half-closed sockets and random bytes in hundreds: others are served meanwhile, memory is bounded, all of them end."""
    rss = env.broker.rss_bytes()
    frame = request_bytes("ApiVersions", 0)
    held = []
    try:
        for number in range(600):
            conn = env.conn()
            held.append(conn)
            if number % 3 == 0:
                # A frame that never ends.
                conn.send_bytes(struct.pack(">i", 1 << 20) + b"x" * (number % 50))
            elif number % 3 == 1:
                conn.send_bytes(struct.pack(">i", len(frame)) + frame[:-1])
            else:
                try:
                    conn.send_bytes(os.urandom(200))
                except OSError:
                    pass
        waits = []
        for _ in range(50):
            started = time.monotonic()
            with Conn(env.port) as witness:
                expect_equal("error", witness.ask("ApiVersions", 0).error_code, 0)
            waits.append(time.monotonic() - started)
        waits.sort()
        expect(waits[45] < 0.2, f"p90 of another client: {waits[45]:.3f} s")
        expect(env.judge or env.broker.rss_bytes() - rss < 100 * MIB, "memory grows with bytes that are no requests")
        # One that dribbled its request is answered when it is whole.
        conn = held[1]
        conn.send_bytes(frame[-1:])
        conn.receive("ApiVersions", 0, 1)
    except Closed:
        raise AssertionError("a slow client was closed") from None
    finally:
        for conn in held:
            conn.close()
    expect(Path(f"/proc/{env.broker.pid}").exists(), "the broker ended")
