"""Produce: limits, codecs, acks, times."""

import random
import struct
import threading
import time

import cramjam
import lz4.frame

from harness import records as R
from harness.checks import Failed, expect, expect_equal
from harness.records import batch
from harness.wire import Closed, decode_response

CORRUPT, TOO_LARGE, BAD_ACKS, BAD_TIME, BAD_CODEC, BAD_RECORD = 2, 10, 21, 32, 76, 87


def _refused(env, topic, records, codes, what, **kwargs):
    """The produce fails with one of the codes and nothing is stored."""
    end = env.cluster.end(topic)
    answer = env.cluster.produce(topic, records, **kwargs)
    expect(answer.error_code in codes, f"{what}: error {answer.error_code}, wanted one of {codes}")
    expect_equal(f"{what}: base offset", answer.base_offset, -1)
    expect_equal(f"{what}: log end", env.cluster.end(topic), end)


def a020_zstd_needs_produce_v7_and_is_sent_to_every_fetch(env):
    """The report wants 76 for a Fetch below v10. Apache Kafka 4 sends it as it is, and the newer judge is followed."""
    topic = env.cluster.create(2)
    sent = batch([b"z"] * 10, "zstd")
    env.cluster.produced(topic, sent)
    for version in (4, 9, 10, 17):
        answer = env.cluster.fetch(topic, 0, version=version)
        expect_equal(f"Fetch v{version}", answer.error_code, 0)
        expect_equal(f"payloads in Fetch v{version}", [each.bytes[R.HEADER_BYTES :] for each in R.parse(answer.records)], [sent[R.HEADER_BYTES :]])
    for version in (3, 6):
        _refused(env, topic, batch([b"z"], "zstd"), [BAD_CODEC], f"Produce v{version}", version=version)
    # Another partition of the same request is stored.
    topic, (p, q) = _on_one_node(env)
    expect_equal("codes", _both(env, topic, 5, {p: batch([b"z"], "zstd"), q: batch([b"plain"])}), {p: BAD_CODEC, q: 0})


def a021_lz4_frames_are_checked(env):
    topic = env.cluster.create(1)
    plain = b"".join(R.record(delta, None, b"lz4 " * 50) for delta in range(20))
    good = lz4.frame.compress(plain, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    records = [b""] * 20

    def send(body):
        return batch(records=records, body=body, codec="lz4")

    env.cluster.produced(topic, send(good))
    wrong_header = bytearray(good)
    # Magic (4), FLG, BD, then the content size if it is there, then the header's checksum.
    at = 6 + (8 if good[4] & 8 else 0)
    wrong_header[at] ^= 0xFF
    garbage = env.wants([CORRUPT, BAD_RECORD], [CORRUPT, BAD_RECORD, -1])
    _refused(env, topic, send(bytes(wrong_header)), garbage, "wrong header checksum")
    _refused(env, topic, send(good[: len(good) // 2]), garbage, "half a frame")
    for name, body in {
        "linked blocks": lz4.frame.compress(plain * 1, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
        "a content checksum": lz4.frame.compress(plain, content_checksum=True, block_linked=False),
        "block checksums": lz4.frame.compress(plain, block_checksum=True, block_linked=False),
    }.items():
        answer = env.cluster.produce(topic, send(body))
        expect(answer.error_code in [0, *garbage], f"{name}: error {answer.error_code}")
    expect(all(len(value) == 200 for value in env.cluster.values(topic)), "a stored batch is unreadable")


def a022_snappy_raw_and_xerial_are_read_and_nothing_else(env):
    topic = env.cluster.create(1)
    plain = b"".join(R.record(delta, None, b"snappy " * 20) for delta in range(50))
    records = [b""] * 50

    def send(body):
        return batch(records=records, body=body, codec="snappy")

    framed = R.xerial(plain, 2_000)
    env.cluster.produced(topic, send(framed))
    raw = send(bytes(cramjam.snappy.compress_raw(plain)))
    answer = env.cluster.produce(topic, raw)
    expect(answer.error_code == 0 or env.judge, f"a raw block: error {answer.error_code}")
    head = framed[:16]
    garbage = env.wants([CORRUPT, BAD_RECORD], [CORRUPT, BAD_RECORD, -1])
    rss = env.broker.rss_bytes()
    for name, body in {
        "chunk length -1": head + struct.pack(">i", -1) + framed[20:],
        "chunk length 2^31-1": head + b"\x7f\xff\xff\xff" + framed[20:],
        "a cut chunk": framed[:-10],
        "a header alone": head,
        "nothing": b"",
        "a raw block that claims 4 GiB": b"\xff\xff\xff\xff\x0f" + b"x" * 20,
    }.items():
        _refused(env, topic, send(body), garbage, name)
    if not env.judge:
        expect(env.broker.rss_bytes() - rss < 50 << 20, "memory grew with a claimed length")


def a022_bombs_are_refused_or_stored_without_memory(env):
    topic = env.cluster.create(1)
    rss = env.broker.rss_bytes()
    for codec in ("gzip", "zstd", "lz4"):
        # One record of 256 MiB of zeros, and the same bytes as what is no record at all.
        answer = env.cluster.produce(topic, batch(records=[b""], body=R.compress(codec, b"\0" * (256 << 20))[: 1 << 20], codec=codec))
        expect(answer.error_code != 0, f"{codec}: zeros are no records")
    if not env.judge:
        expect(env.broker.rss_bytes() - rss < 150 << 20, f"{(env.broker.rss_bytes() - rss) >> 20} MiB more")


def _sized(total, codec="none"):
    """A batch of exactly `total` bytes."""
    size = total - R.HEADER_BYTES
    made = batch([b"x" * (size - 20)])
    made = batch([b"x" * (size - 20 + total - len(made))])
    expect_equal("the made batch", len(made), total)
    return made


def _on_one_node(env, **configs):
    """A topic, and two partitions of it that one node leads."""
    shards = env.broker.shards
    topic = env.cluster.create(2 * shards, **configs)
    by_port = {}
    for partition in range(2 * shards):
        by_port.setdefault(env.cluster.leaders[topic, partition], []).append(partition)
    return topic, next(found for found in by_port.values() if len(found) >= 2)[:2]


def _both(env, topic, version, records):
    """Sends one request with `records`: {partition: batch}; gives the codes."""
    parts = [{"index": partition, "records": each} for partition, each in records.items()]
    conn = env.cluster.leader(topic, next(iter(records)))
    answer = conn.ask("Produce", version, acks=-1, timeout_ms=5000, topic_data=[{"name": topic, "partition_data": parts}])
    return {part.index: part.error_code for part in answer.responses[0].partition_responses}


def a023_the_limit_is_on_the_stored_batch_of_that_topic(env):
    topic, (p, q) = _on_one_node(env, max_message_bytes=100_000)
    env.cluster.produced(topic, _sized(100_000), partition=p)
    end = env.cluster.end(topic, p)
    expect_equal("one byte more", env.cluster.produce(topic, _sized(100_001), partition=p).error_code, TOO_LARGE)
    expect_equal("log end", env.cluster.end(topic, p), end)
    env.cluster.produced(topic, batch([b"0" * 5_000_000], "zstd"), partition=p)
    expect_equal("codes", _both(env, topic, 9, {p: _sized(100_001), q: batch([b"small"])}), {p: TOO_LARGE, q: 0})


INCREMENTAL_ALTER_CONFIGS = 44


def a023_a_raised_limit_counts_at_once(env):
    with env.conn() as conn:
        if INCREMENTAL_ALTER_CONFIGS not in {row.api_key for row in conn.ask("ApiVersions", 0).api_keys}:
            return
    topic = env.cluster.create(1, max_message_bytes=100_000)
    _refused(env, topic, _sized(150_000), [TOO_LARGE], "over the limit")
    config = {"name": "max.message.bytes", "config_operation": 0, "value": "200000"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    answer = env.cluster.conn().ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    expect_equal(f"the change ({answer.responses[0].error_message})", answer.responses[0].error_code, 0)
    deadline = time.monotonic() + (30 if env.judge else 0)
    while (code := env.cluster.produce(topic, _sized(150_000)).error_code) != 0:
        expect(code == TOO_LARGE and time.monotonic() < deadline, f"error {code} after the limit was raised")


def a024_the_limit_holds_after_recompression(env):
    topic = env.cluster.create(1, compression_type="uncompressed", max_message_bytes=1 << 20)
    _refused(env, topic, batch([b"0" * 8_000_000], "zstd"), [TOO_LARGE], "8 MB behind 20 KB of zstd")
    env.cluster.produced(topic, batch([b"0" * 500_000], "zstd"))
    stored = env.cluster.read_all(topic)[0]
    expect_equal("codec of what is stored", stored.attributes & 7, 0)
    expect_equal("value", stored.records()[0][3], b"0" * 500_000)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        topic = env.cluster.create(1, compression_type=codec)
        env.cluster.produced(topic, batch([(b"k", b"value")] * 30, "none" if codec == "gzip" else "gzip"))
        stored = env.cluster.read_all(topic)[0]
        expect_equal("codec of what is stored", stored.attributes & 7, R.CODECS[codec])
        expect_equal("records", [(r[0], r[2], r[3]) for r in stored.records()], [(at, b"k", b"value") for at in range(30)])


def a024_recompressed_over_the_limit_is_never_stored(env):
    """What does not compress grows a little: the limit holds for what is stored."""
    limit = 200_000
    topic = env.cluster.create(1, compression_type="gzip", max_message_bytes=limit)
    rng = random.Random(24)
    codes = set()
    for short in (10, 40, 100, 1_000):
        value = rng.randbytes(limit - short - R.HEADER_BYTES - 20)
        codes.add(env.cluster.produce(topic, batch([value])).error_code)
    expect(codes <= {0, TOO_LARGE} and 0 in codes, f"codes {codes}")
    sizes = [len(each.bytes) for each in env.cluster.read_all(topic)]
    expect(max(sizes) <= limit, f"batches of {sizes} bytes are stored, the limit is {limit}")


def a025_leaders_move_without_an_unknown_error(env):
    """Produces under way while every partition gets another leader (here: over clean stops to another number of shards)."""
    if env.judge:
        return
    with env.own_broker() as own:
        most = own.broker.shards + 1
        topic = own.cluster.create(4)
        ports = range(own.port, own.port + most)
        # Frames as they came: the decoder is for one thread.
        stop, frames = threading.Event(), []

        def produce(number):
            sent = 0
            while not stop.is_set():
                # Whoever is asked may lead, or not any more.
                try:
                    with own.conn(ports[number % most], timeout=5) as conn:
                        while not stop.is_set():
                            pipeline = []
                            for partition in range(4):
                                value = f"{number} {sent}".encode()
                                sent += 1
                                fields = own.cluster.produce_fields(topic, partition, batch([value]), 9, acks=-1)
                                pipeline.append((partition, value, conn.send("Produce", 9, **fields)))
                            for partition, value, correlation in pipeline:
                                frames.append((partition, value, correlation, conn.receive_frame()))
                except (Closed, Failed, OSError):
                    time.sleep(0.005)

        threads = [threading.Thread(target=produce, args=(number,), daemon=True) for number in range(2 * most)]
        for thread in threads:
            thread.start()
        try:
            for shards in (most, 1, most, own.broker.shards):
                had = len(frames)
                deadline = time.monotonic() + 20
                while len(frames) < had + 400:
                    expect(time.monotonic() < deadline, f"{len(frames) - had} answers in 20 s")
                    time.sleep(0.01)
                own.cluster.close()
                expect_equal("exit code", own.broker.stop(5), 0)
                own.broker.shards = shards
                own.start()
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        codes, acked = set(), []
        for partition, value, correlation, frame in frames:
            got, answer = decode_response("Produce", 9, frame)
            expect_equal("correlation id", got, correlation)
            part = answer.responses[0].partition_responses[0]
            codes.add(part.error_code)
            if part.error_code == 0:
                acked.append((partition, part.base_offset, value))
        expect(len(acked) > 200, f"only {len(acked)} of {len(frames)} produces were acknowledged")
        # Unknown topic, no leader, not the leader, timed out, not enough replicas, storage: all make a client try again.
        expect(codes <= {0, 3, 5, 6, 7, 19, 20, 56} and 6 in codes, f"codes {codes}")
        own.cluster.learn(topic, 4)
        for partition in range(4):
            stored = own.cluster.values(topic, partition)
            expect_equal("values twice", len(stored) - len(set(stored)), 0)
            for p, offset, value in acked:
                expect(p != partition or stored[offset] == value, f"{topic}-{p} at {offset}: {value} was acknowledged")


def a026_acks_other_than_0_1_and_all_are_refused(env):
    topic = env.cluster.create(1)
    for acks in (2, -2, 100):
        _refused(env, topic, batch(), [BAD_ACKS], f"acks={acks}", acks=acks)


def a026_acks_0_is_never_answered(env):
    topic = env.cluster.create(1)
    with env.conn(env.cluster.leaders[topic, 0]) as conn:
        conn.send("Produce", 9, **env.cluster.produce_fields(topic, 0, batch([b"a", b"b"]), 9, acks=0))
        correlation = conn.send("ApiVersions", 0)
        conn.receive("ApiVersions", 0, correlation)
        # Nobody says when it is written.
        deadline = time.monotonic() + 5
        while (end := env.cluster.end(topic)) != 2:
            expect(time.monotonic() < deadline, f"the log ends at {end}, wanted 2")
        # An error cannot be answered: the connection closes, so that the client notices.
        conn.send("Produce", 9, **env.cluster.produce_fields(topic, 7, batch(), 9, acks=0))
        expect(conn.is_closed(), "acks=0 to an unknown partition: still open")


def a026_acks_0_to_another_node_closes(env):
    if env.broker.shards == 1:
        return
    topic = env.cluster.create(env.broker.shards)
    foreign = next(p for p in range(env.broker.shards) if env.cluster.leaders[topic, p] != env.port)
    with env.conn() as conn:
        conn.send("Produce", 9, **env.cluster.produce_fields(topic, foreign, batch(), 9, acks=0))
        expect(conn.is_closed(), "acks=0 to a partition of another node: still open")
    with env.conn() as conn:
        fields = env.cluster.produce_fields(topic, foreign, batch(), 10, acks=1)
        answer = conn.ask("Produce", 10, **fields)
        part = answer.responses[0].partition_responses[0]
        expect_equal("code", part.error_code, 6)
        expect_equal("endpoint named", [e.port for e in answer.node_endpoints or []], [env.cluster.leaders[topic, foreign]])


def a027_append_time_is_answered_and_stored(env):
    topic = env.cluster.create(1, message_timestamp_type="LogAppendTime")
    for codec in R.CODECS:
        before = R.now_ms()
        answer = env.cluster.produce(topic, batch([b"v"] * 50, codec, timestamp=before - 10_000_000))
        after = R.now_ms()
        expect_equal("error", answer.error_code, 0)
        expect(before - 1 <= answer.log_append_time_ms <= after + 1, f"append time {answer.log_append_time_ms} is not in {before}..{after}")
        expect_equal("log start", answer.log_start_offset, 0)
        stored = env.cluster.read_all(topic, start=answer.base_offset)[0]
        expect(stored.append_time, "the batch does not say LogAppendTime")
        expect_equal("max timestamp", stored.max_timestamp, answer.log_append_time_ms)
    # A resend is told the time of the first append, so that the client's record has the stored one.
    given = env.cluster.conn().ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1)
    sent = batch([b"v"], producer_id=given.producer_id, producer_epoch=given.producer_epoch, base_sequence=0)
    first = env.cluster.produce(topic, sent)
    time.sleep(0.02)
    again = env.cluster.produce(topic, sent)
    expect_equal("resend", (again.error_code, again.base_offset), (0, first.base_offset))
    expect_equal("append time of a resend", again.log_append_time_ms, first.log_append_time_ms)
    topic = env.cluster.create(1)
    stamp = R.now_ms() - 5_000
    answer = env.cluster.produce(topic, batch([b"v"], timestamp=stamp))
    expect_equal("append time of a CreateTime topic", answer.log_append_time_ms, -1)
    stored = env.cluster.read_all(topic)[0]
    expect(not stored.append_time and stored.max_timestamp == stamp, "the client's time is not kept")


def a042_timestamps_too_far_ahead_are_refused_by_record(env):
    topic = env.cluster.create(1)
    ahead = R.now_ms() + 2 * 3_600_000
    now = R.now_ms()
    records = [R.record(0, value=b"now"), R.record(1, value=b"ahead", timestamp_delta=ahead - now), R.record(2, value=b"now")]
    made = batch(records=records, timestamp=now, max_timestamp=ahead)
    answer = env.cluster.produce(topic, made)
    expect_equal("error", answer.error_code, BAD_TIME)
    expect_equal("records named", [error.batch_index for error in answer.record_errors], [1])
    # A header that lies about the highest time changes nothing.
    _refused(env, topic, batch(records=records, timestamp=now, max_timestamp=now), [BAD_TIME], "a lying header")
    lifted = env.cluster.create(1, message_timestamp_after_max_ms=2**63 - 1)
    env.cluster.produced(lifted, batch(records=records, timestamp=now, max_timestamp=now))
    expect_equal("recomputed max timestamp", env.cluster.read_all(lifted)[0].max_timestamp, ahead)


def offsets_are_dense_whatever_the_client_wrote(env):
    topic = env.cluster.create(1)
    expected = 0
    for count in (1, 7, 100, 1):
        expect_equal("base offset", env.cluster.produced(topic, batch([b"v"] * count)), expected)
        expected += count
    # Uncompressed batches with unsorted or equal deltas are renumbered; Apache Kafka stores them as they came.
    for deltas in ([0, 2, 1], [0, 0, 0]):
        records = [R.record(delta, value=str(at).encode()) for at, delta in enumerate(deltas)]
        answer = env.cluster.produce(topic, batch(records=records))
        expect_equal(f"deltas {deltas}", answer.error_code, 0)
        stored = env.cluster.read_all(topic, start=answer.base_offset)[-1]
        expect_equal("offsets", [r[0] - answer.base_offset for r in stored.records()], env.wants([0, 1, 2], deltas))
        expect_equal("order", [r[3] for r in stored.records()], [b"0", b"1", b"2"])
    expect(all(each.leader_epoch >= 0 for each in env.cluster.read_all(topic)), "a batch without a leader epoch")


def produce_and_fetch_work_in_every_version(env):
    topic = env.cluster.create(1)
    for version in range(3, 14):
        for acks in (1, -1):
            env.cluster.produced(topic, batch([f"{version} {acks}".encode()]), version=version, acks=acks)
    wanted = [f"{version} {acks}".encode() for version in range(3, 14) for acks in (1, -1)]
    for version in range(4, 19):
        answer = env.cluster.fetch(topic, 0, version=version)
        expect_equal(f"Fetch v{version}", answer.error_code, 0)
        expect_equal(f"Fetch v{version}", [r[3] for each in R.parse(answer.records) for r in each.records()], wanted)
    expect_equal("unknown topic", _unknown(env, 9), 3)
    expect_equal("unknown id", _unknown(env, 13), 100)


def _unknown(env, version):
    import uuid

    place = {"topic_id": uuid.uuid4()} if version >= 13 else {"name": "no-such-topic-here"}
    data = [{**place, "partition_data": [{"index": 0, "records": batch()}]}]
    answer = env.cluster.conn().ask("Produce", version, acks=1, timeout_ms=1000, topic_data=data)
    return answer.responses[0].partition_responses[0].error_code


def a_pipelined_burst_is_stored_in_order(env):
    topic = env.cluster.create(1)
    with env.conn(env.cluster.leaders[topic, 0]) as conn:
        sent = [conn.send("Produce", 9, **env.cluster.produce_fields(topic, 0, batch([str(at).encode()]), 9, acks=-1)) for at in range(500)]
        for at, correlation in enumerate(sent):
            answer = conn.receive("Produce", 9, correlation).responses[0].partition_responses[0]
            expect_equal("error", answer.error_code, 0)
            expect_equal("base offset", answer.base_offset, at)
    expect_equal("values", env.cluster.values(topic), [str(at).encode() for at in range(500)])


def a_stuck_reader_does_not_hold_others(env):
    topic = env.cluster.create(1)
    for _ in range(8):
        env.cluster.produced(topic, batch([b"x" * 900_000]))
    stuck = [env.conn(env.cluster.leaders[topic, 0], receive_buffer=4096) for _ in range(20)]
    try:
        for conn in stuck:
            conn.socket.setblocking(True)
            for _ in range(4):
                conn.send("Fetch", 12, **env.cluster.fetch_fields(topic, {0: (0, 8 << 20)}, 12))
        time.sleep(0.3)
        rss = env.broker.rss_bytes()
        for _ in range(20):
            started = time.monotonic()
            env.cluster.produced(topic, batch())
            expect(time.monotonic() - started < 2, "a produce waited for readers that do not read")
        if not env.judge:
            expect(env.broker.rss_bytes() - rss < 200 << 20, "memory grows behind readers that do not read")
        # And one of them, once it reads, gets all of its four answers.
        stuck[0].socket.settimeout(20)
        for _ in range(4):
            stuck[0].receive("Fetch", 12)
    except Closed:
        raise AssertionError("a slow reader was closed") from None
    finally:
        for conn in stuck:
            conn.close()
