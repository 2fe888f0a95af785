"""What a kill, a full disk or odd files in the data directory may not do. Power loss and reordered writes are the simulator's."""

import os
import shutil
import time

from harness import records as R
from harness.checks import expect, expect_equal
from harness.records import batch
from harness.wire import decode_response


def a096_acknowledged_a_moment_before_a_kill(env):
    with env.own_broker() as own:
        topic = own.cluster.create(3)
        counts = dict.fromkeys(range(3), 0)
        for number in range(4 if own.judge else 12):
            for partition, (many, acks) in enumerate(((1, 1), (5, -1), (1_000, 1 if number % 2 else -1))):
                values = [f"{counts[partition] + at}".encode() for at in range(many)]
                own.cluster.produced(topic, batch(values), partition=partition, acks=acks)
                counts[partition] += many
            own.restart()
            own.cluster.learn(topic)
            for partition, count in counts.items():
                expect_equal(f"values of partition {partition}", own.cluster.values(topic, partition), [str(at).encode() for at in range(count)])


def a098_a_kill_in_recovery_is_harmless(env):
    if env.judge:
        return
    with env.own_broker() as own:
        topic = own.cluster.create(2)
        wanted = []
        for number in range(2_000):
            own.cluster.produced(topic, batch([f"{number}".encode() * 50]), partition=0, acks=1)
            wanted.append(f"{number}".encode() * 50)
        own.cluster.close()
        own.broker.kill()
        # Boot may be cut anywhere and repeated with the same result.
        for delay_ms in (1, 2, 4, 8, 12, 16, 20, 30, 40, 60):
            own.broker.spawn()
            time.sleep(delay_ms / 1000)
            own.broker.kill()
        own.start()
        own.cluster.learn(topic)
        expect_equal("values", own.cluster.values(topic), wanted)


def a099_recovery_is_short_with_many_partitions(env):
    if env.judge:
        return
    with env.own_broker() as own:
        topic = own.cluster.create(300)
        for partition in range(300):
            own.cluster.produced(topic, batch([b"x" * 2_000]), partition=partition, acks=1)
        own.cluster.close()
        own.broker.kill()
        started = time.monotonic()
        own.start()
        own.cluster.learn(topic)
        expect(time.monotonic() - started < 30, "not ready within 30 s")
        for partition in (0, 150, 299):
            expect_equal("values", own.cluster.values(topic, partition), [b"x" * 2_000])


def a105_odd_files_do_not_stop_a_start(env):
    with env.own_broker() as own:
        topic = own.cluster.create(1, segment_bytes=1 << 20)
        for _ in range(3):
            own.cluster.produced(topic, batch([os.urandom(700_000)]))
        own.cluster.close()
        own.broker.stop(60)
        folder = own.broker.data / f"{topic}-0"
        (folder / "00000000000000000000.log.deleted").write_bytes(b"x")
        (folder / "00000000000000000009.log.swap").write_bytes(b"")
        (folder / "00000000000000000009.index.cleaned").write_bytes(b"x" * 7)
        (folder / "00000000000000000001.snapshot.tmp").write_bytes(b"")
        for index in folder.glob("*index"):
            index.unlink()
        (own.broker.data / "stray-file").write_bytes(b"x")
        own.start()
        own.cluster.learn(topic)
        expect_equal("offsets", [each.base_offset for each in own.cluster.read_all(topic)], [0, 1, 2])
        own.cluster.produced(topic, batch())


def a105_any_segments_that_a_crash_can_leave(env):
    """No lookup assumes a segment, whichever are gone: the node starts, other partitions serve, this one is whole from its start or fenced."""
    if env.judge:
        return

    def nothing(folder):
        for path in folder.glob("0*"):
            path.unlink()

    def only_empty(folder):
        for path in sorted(folder.glob("0*")):
            path.unlink()
        (folder / "00000000000000000003.log").write_bytes(b"")

    def first_is_gone(folder):
        sorted(folder.glob("*.log"))[0].unlink()

    for change in (nothing, only_empty, first_is_gone):
        with env.own_broker() as own:
            topic, other = own.cluster.create(1, segment_bytes=1 << 20), own.cluster.create(1)
            for number in range(3):
                own.cluster.produced(topic, batch([b"%d" % number + os.urandom(700_000)]))
            own.cluster.produced(other, batch([b"kept"]))
            own.cluster.close()
            own.broker.stop(5)
            change(own.broker.data / f"{topic}-0")
            for _ in range(2):
                own.start()
                own.cluster.learn(other)
                expect_equal(f"{change.__name__}: the other partition", set(own.cluster.values(other)), {b"kept"})
                if not _is_fenced(own, topic):
                    start, end = own.cluster.end(topic, timestamp=-2), own.cluster.end(topic)
                    got = [value[:1] for value in own.cluster.values(topic, start=start)]
                    expect_equal(f"{change.__name__}: from {start} to {end}", got, [b"%d" % offset for offset in range(start, end)])
                # And it starts again from what it made of that.
                own.cluster.close()
                own.broker.kill()


def a102_slow_readers_get_every_byte_in_order(env):
    """Small windows and readers that pause make every send a partial one."""
    topic = env.cluster.create(1)
    wanted = [os.urandom(150_000) for _ in range(12)]
    for value in wanted:
        env.cluster.produced(topic, batch([value]))
    port = env.cluster.leaders[topic, 0]
    readers = [env.conn(port, receive_buffer=4096) for _ in range(30)]
    try:
        for conn in readers:
            for _ in range(2):
                conn.send("Fetch", 12, **env.cluster.fetch_fields(topic, {0: (0, 4 << 20)}, 12))
        # A piece of each in turn.
        buffers = [bytearray() for _ in readers]
        for _ in range(200):
            for conn, buffer in zip(readers, buffers):
                buffer += conn.socket.recv(2_000)
        for conn, buffer in zip(readers, buffers):
            for correlation in (1, 2):
                while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
                    part = conn.socket.recv(1 << 20)
                    expect(part, "a slow reader was closed")
                    buffer += part
                size = int.from_bytes(buffer[:4], "big")
                got, answer = decode_response("Fetch", 12, bytes(buffer[4 : 4 + size]))
                del buffer[: 4 + size]
                expect_equal("correlation id", got, correlation)
                found = R.parse(answer.responses[0].partitions[0].records)
                expect(all(each.crc_right for each in found), "wrong CRC")
                expect([record[3] for each in found for record in each.records()] == wanted, "other bytes than were stored")
    finally:
        for conn in readers:
            conn.close()


def a105_a_stray_topic_directory_stays_alone(env):
    if env.judge:
        return
    with env.own_broker() as own:
        topic = own.cluster.create(1)
        own.cluster.produced(topic, batch([b"kept"]))
        own.cluster.close()
        own.broker.stop(5)
        shutil.copytree(own.broker.data / f"{topic}-0", own.broker.data / "stranger-0")
        own.start()
        own.cluster.learn(topic)
        expect_equal("values", own.cluster.values(topic), [b"kept"])


def _segment(own, topic, batches):
    """Replaces the only segment of a cleanly stopped topic."""
    folder = own.broker.data / f"{topic}-0"
    for path in folder.glob("*.snapshot"):
        path.unlink()
    for path in folder.glob("*index"):
        path.unlink()
    (folder / "00000000000000000000.log").write_bytes(b"".join(batches))
    for path in own.broker.data.glob("*checkpoint*"):
        path.unlink()
    for path in own.broker.data.glob(".kafka_cleanshutdown"):
        path.unlink()


def _at(offset, count, epoch=0):
    return batch([f"{offset + at}".encode() for at in range(count)], base_offset=offset, leader_epoch=epoch)


def a107_one_bad_partition_does_not_hold_the_node(env):
    """A segment whose offsets go back: that partition is cut to its last good batch or taken offline; the others serve."""
    if env.judge:
        return
    for name, batches in {
        "overlap": [_at(0, 10), _at(10, 10), _at(15, 16), _at(31, 10)],
        "gone back": [_at(0, 10), _at(5, 3)],
        "garbage": [_at(0, 10), b"\x55" * 500],
        "a torn batch": [_at(0, 10), _at(10, 10)[:-7]],
        "a wrong CRC": [_at(0, 10), _at(10, 5)[:-1] + b"!"],
        "zeros": [_at(0, 10), b"\0" * 4096],
        "a hole of zeros": [_at(0, 10), b"\0" * 4096, _at(10, 10), _at(20, 10)],
        "an offset left out": [_at(0, 10), _at(12, 10)],
    }.items():
        with env.own_broker() as own:
            bad, other = own.cluster.create(1), own.cluster.create(1)
            for topic in (bad, other):
                for start in range(4):
                    own.cluster.produced(topic, batch([str(start * 10 + at).encode() for at in range(10)]))
            own.cluster.close()
            own.broker.stop(5)
            _segment(own, bad, batches)
            own.start()
            own.cluster.learn(other)
            expect_equal(f"{name}: the other partition", len(own.cluster.values(other)), 40)
            if not _is_fenced(own, bad):
                own.cluster.learn(bad)
                end = own.cluster.end(bad)
                values = own.cluster.values(bad)
                expect_equal(f"{name}: what is kept", values, [str(at).encode() for at in range(end)])
                expect(end >= 10, f"{name}: the good batches were cut to {end}")


def _is_fenced(own, topic):
    """Whether the only partition of a topic is offline for good: it is refused, and an error in the broker's log names it."""
    deadline = time.monotonic() + 15
    while True:
        place = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        answer = own.cluster.conn(own.cluster.leaders[topic, 0]).ask("ListOffsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": [place]}])
        code = answer.topics[0].partitions[0].error_code
        said = [line for line in own.broker.tail(200).splitlines() if " ERROR " in line and f"{topic}-0" in line]
        if code == 0 or (code == 56 and said):
            return code != 0
        expect(time.monotonic() < deadline, f"error {code}, and the log does not say why")
        time.sleep(0.05)


def files_are_kafka_s_after_a_clean_stop(env):
    """A cleanly stopped directory reads like Kafka's: exact lengths, offsets and CRC of every batch."""
    with env.own_broker() as own:
        topic = own.cluster.create(1, segment_bytes=1 << 20)
        wanted = [os.urandom(300_000) for _ in range(10)]
        for value in wanted:
            own.cluster.produced(topic, batch([value]))
        own.cluster.close()
        own.broker.stop(60)
        folder = own.broker.data / f"{topic}-0"
        segments = sorted(folder.glob("*.log"))
        expect(len(segments) >= 3, f"{len(segments)} segments of 1 MiB for 3 MB")
        values = []
        for path in segments:
            data = path.read_bytes()
            found = R.parse(data)
            expect_equal(f"bytes of whole batches in {path.name}", sum(len(each.bytes) for each in found), len(data))
            expect_equal("base offset of the file", int(path.stem), found[0].base_offset)
            for each in found:
                expect(each.crc_right, "wrong CRC")
                values += [record[3] for record in each.records()]
        expect(values == wanted, "the values differ")
        expect((folder / "partition.metadata").exists(), "no partition.metadata")
        expect((folder / "leader-epoch-checkpoint").exists(), "no leader-epoch-checkpoint")
        expect((own.broker.data / "meta.properties").exists(), "no meta.properties")
