"""Fetch: limits, sessions, waiting, ends."""

import threading
import time

from harness.checks import Failed, expect, expect_equal
from harness.records import batch, parse
from harness.wire import Closed

OUT_OF_RANGE, SESSION_NOT_FOUND, SESSION_EPOCH = 1, 70, 71


def _two_on_one_node(env, count=2, **configs):
    """A topic, and `count` partitions of it that one node leads."""
    topic = env.cluster.create(count * env.broker.shards, **configs)
    by_port = {}
    for (name, partition), port in env.cluster.leaders.items():
        if name == topic:
            by_port.setdefault(port, []).append(partition)
    chosen = next(sorted(partitions) for partitions in by_port.values() if len(partitions) >= count)
    return topic, chosen[:count]


def a028_the_first_batch_is_whole_even_over_both_limits(env):
    topic, (p, q) = _two_on_one_node(env, max_message_bytes=4 << 20)
    for partition in (p, q):
        for _ in range(2):
            env.cluster.produced(topic, batch([b"x" * (3 << 20)]), partition=partition)
    for first, second in ((p, q), (q, p)):
        fields = env.cluster.fetch_fields(topic, {first: (0, 1), second: (0, 1)}, 12, max_bytes=1)
        answer = env.cluster.leader(topic, p).ask("Fetch", 12, **fields)
        got = {part.partition_index: len(parse(part.records)) for part in answer.responses[0].partitions}
        expect_equal(f"whole batches with {first} first", got, {first: 1, second: 0})
    # Round by round the end is reached.
    at = 0
    for _ in range(2):
        at = parse(env.cluster.fetch(topic, at, p, limit=1, max_bytes=1).records)[-1].last_offset + 1
    expect_equal("end", at, 2)


def a028_limits_give_whole_batches(env):
    topic = env.cluster.create(1)
    for _ in range(20):
        env.cluster.produced(topic, batch([b"x" * 1000]))
    size = len(parse(env.cluster.fetch(topic, 0, limit=1).records)[0].bytes)
    for limit, least in ((size, 1), (size * 3 + 10, 3), (size * 5, 5)):
        answer = env.cluster.fetch(topic, 0, limit=limit)
        whole = len(parse(answer.records))
        expect(whole >= least, f"{whole} whole batches within {limit} bytes")
        expect(len(answer.records) <= max(limit, size), f"{len(answer.records)} bytes for a limit of {limit}")


def a029_an_empty_incremental_fetch_waits(env):
    topic, partitions = _two_on_one_node(env, 5)
    conn = env.cluster.leader(topic, partitions[0])
    fields = env.cluster.fetch_fields(topic, dict.fromkeys(partitions, 0), 12, max_wait_ms=0, session_epoch=0)
    session = conn.ask("Fetch", 12, **fields).session_id
    expect(session != 0, "no session was made")
    for epoch in range(1, 6):
        started = time.monotonic()
        idle = conn.ask("Fetch", 12, session_id=session, session_epoch=epoch, max_wait_ms=300, min_bytes=1, max_bytes=1 << 20, topics=[])
        waited = time.monotonic() - started
        expect(0.27 < waited < 1, f"an idle session's fetch took {waited:.3f} s")
        expect_equal("error", idle.error_code, 0)
        expect_equal("partitions in an answer without news", len(idle.responses), 0)
    correlation = conn.send("Fetch", 12, session_id=session, session_epoch=6, max_wait_ms=5000, min_bytes=1, max_bytes=1 << 20, topics=[])
    with env.conn(env.cluster.leaders[topic, partitions[0]]) as other:
        time.sleep(0.1)
        started = time.monotonic()
        other.ask("Produce", 9, **env.cluster.produce_fields(topic, partitions[2], batch(), 9, acks=-1))
    news = conn.receive("Fetch", 12, correlation)
    waited = time.monotonic() - started
    expect(waited < 0.5, f"the waiting fetch woke {waited:.3f} s after the produce")
    expect_equal("who has news", [part.partition_index for each in news.responses for part in each.partitions], [partitions[2]])


def a030_min_bytes_holds_until_there_are_enough(env):
    topic, (p, q) = _two_on_one_node(env)
    conn = env.cluster.leader(topic, p)
    fields = env.cluster.fetch_fields(topic, {p: 0, q: 0}, 12, max_wait_ms=500, min_bytes=1000)
    started = time.monotonic()
    conn.ask("Fetch", 12, **fields)
    expect(0.45 < time.monotonic() - started < 1.5, "an empty fetch did not wait for its max wait")
    # The bytes of two partitions count together.
    fields["max_wait_ms"] = 10_000
    correlation = conn.send("Fetch", 12, **fields)
    with env.conn(env.cluster.leaders[topic, p]) as other:
        other.ask("Produce", 9, **env.cluster.produce_fields(topic, p, batch([b"x" * 500]), 9, acks=-1))
        expect(conn.is_silent(0.3), "answered below min bytes")
        conn.socket.settimeout(15)
        started = time.monotonic()
        other.ask("Produce", 9, **env.cluster.produce_fields(topic, q, batch([b"x" * 500]), 9, acks=-1))
    conn.receive("Fetch", 12, correlation)
    expect(time.monotonic() - started < 1, "not woken when min bytes were there")


def a030_a_fetch_at_the_end_is_empty_not_null(env):
    topic = env.cluster.create(1)
    for version in (4, 11, 12, 13, 17):
        answer = env.cluster.fetch(topic, 0, version=version, max_wait_ms=0)
        expect_equal(f"v{version} error", answer.error_code, 0)
        expect(answer.records is not None and len(answer.records) == 0, f"v{version}: records {answer.records!r}")
        expect_equal(f"v{version} high watermark", answer.high_watermark, 0)


def a030_deleting_the_topic_wakes_its_fetch(env):
    topic = env.cluster.create(1)
    conn = env.cluster.leader(topic)
    with env.conn() as admin:
        correlation = conn.send("Fetch", 12, **env.cluster.fetch_fields(topic, {0: 0}, 12, max_wait_ms=8000))
        time.sleep(0.1)
        started = time.monotonic()
        admin.ask("DeleteTopics", 6, topics=[{"name": topic}], timeout_ms=5000)
    part = conn.receive("Fetch", 12, correlation).responses[0].partitions[0]
    expect(part.error_code in (3, 6), f"error {part.error_code}")
    expect(time.monotonic() - started < 2, "woken late")


def a031_no_other_replica_is_preferred_and_news_are_never_left_out(env):
    """There is one replica, so a rack changes nothing: data comes from the leader, in sessions too."""
    topic, (p, q) = _two_on_one_node(env)
    conn = env.cluster.leader(topic, p)
    conn.ask("Produce", 9, **env.cluster.produce_fields(topic, p, batch([b"x"] * 3), 9, acks=-1))
    for version in (11, 12, 17):
        fields = env.cluster.fetch_fields(topic, {p: 0}, version, rack_id="a rack elsewhere", max_wait_ms=0)
        part = conn.ask("Fetch", version, **fields).responses[0].partitions[0]
        expect_equal(f"v{version} preferred replica", part.preferred_read_replica, -1)
        expect_equal(f"v{version} batches", len(parse(part.records)), 1)
    fields = env.cluster.fetch_fields(topic, {p: 3, q: 0}, 12, rack_id="a rack elsewhere", max_wait_ms=0, session_epoch=0)
    session = conn.ask("Fetch", 12, **fields).session_id
    conn.ask("Produce", 9, **env.cluster.produce_fields(topic, q, batch([b"y"]), 9, acks=-1))
    answer = conn.ask("Fetch", 12, session_id=session, session_epoch=1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, rack_id="a rack elsewhere", topics=[])
    parts = {part.partition_index: part for each in answer.responses for part in each.partitions}
    expect_equal("who has news", list(parts), [q])
    expect_equal("preferred replica", parts[q].preferred_read_replica, -1)


def a032_the_high_watermark_is_the_partition_s(env):
    topic = env.cluster.create(1)
    for _ in range(100):
        env.cluster.produced(topic, batch([b"x" * 100]))
    answer = env.cluster.fetch(topic, 0, limit=1)
    expect_equal("batches", len(parse(answer.records)), 1)
    expect_equal("high watermark", answer.high_watermark, 100)
    expect_equal("last stable offset", answer.last_stable_offset, 100)
    expect_equal("log start", answer.log_start_offset, 0)
    # Whoever stops at the high watermark of the first answer has read everything that was there.
    expect_equal("batches up to it", len(env.cluster.read_all(topic, end=answer.high_watermark, limit=1)), 100)


def a033_forgotten_partitions_stay_away(env):
    topic, (p, q) = _two_on_one_node(env)
    conn = env.cluster.leader(topic, p)
    conn.ask("Produce", 9, **env.cluster.produce_fields(topic, q, batch([b"x"] * 10), 9, acks=-1))
    fields = env.cluster.fetch_fields(topic, {p: 0, q: 0}, 12, max_wait_ms=0, session_epoch=0)
    session = conn.ask("Fetch", 12, **fields).session_id
    expect(session != 0, "no session was made")
    epoch = 0

    def again(topics=(), forgotten=()):
        nonlocal epoch
        epoch += 1
        forgotten = [{"topic": topic, "partitions": list(forgotten)}] if forgotten else []
        answer = conn.ask(
            "Fetch", 12, session_id=session, session_epoch=epoch, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20,
            topics=list(topics), forgotten_topics_data=forgotten,
        )
        expect_equal("error", answer.error_code, 0)
        return {part.partition_index: part for each in answer.responses for part in each.partitions}

    again(forgotten=[q])
    conn.ask("Produce", 9, **env.cluster.produce_fields(topic, q, batch([b"y"] * 3), 9, acks=-1))
    for _ in range(10):
        expect(q not in again(), "a forgotten partition came back")
    place = [{"topic": topic, "partitions": [{"partition": q, "fetch_offset": 10, "partition_max_bytes": 1 << 20}]}]
    got = parse(again(topics=place)[q].records)
    expect_equal("first offset after coming back", got[0].base_offset, 10)


def a033_wrong_session_ids_and_epochs(env):
    topic = env.cluster.create(1)
    conn = env.cluster.leader(topic)
    fields = env.cluster.fetch_fields(topic, {0: 0}, 12, max_wait_ms=0, session_epoch=0)
    session = conn.ask("Fetch", 12, **fields).session_id

    def ask(ident, epoch):
        answer = conn.ask("Fetch", 12, session_id=ident, session_epoch=epoch, max_wait_ms=0, min_bytes=1, max_bytes=1000, topics=[])
        return answer.error_code

    expect_equal("wrong epoch", ask(session, 7), SESSION_EPOCH)
    expect_equal("unknown session", ask(session ^ 0x5555, 1), SESSION_NOT_FOUND)
    expect_equal("no session with an epoch", ask(0, 5), SESSION_NOT_FOUND)
    expect_equal("the session survived", ask(session, 1), 0)
    with env.conn(env.cluster.leaders[topic, 0]) as other:
        answer = other.ask("Fetch", 12, session_id=session, session_epoch=2, max_wait_ms=0, min_bytes=1, max_bytes=1000, topics=[])
        expect_equal("from another connection", answer.error_code, 0)
    expect_equal("closing it", ask(session, -1), 0)
    expect_equal("after closing", ask(session, 3), SESSION_NOT_FOUND)


def a034_ends_never_go_back_over_kills(env):
    """While a partition has no leader there is an error, never an end that makes a client reset its offset."""
    with env.own_broker() as own:
        topic = own.cluster.create(1)
        port = own.cluster.leaders[topic, 0]
        own.cluster.produced(topic, batch([b"x"] * 5))
        stop, faults, seen = threading.Event(), [], {"answers": 0, "errors": set()}

        def ask():
            highest = {-1: 0, -2: 0}
            while not stop.is_set():
                try:
                    with own.conn(port, timeout=3) as conn:
                        while not stop.is_set():
                            for timestamp in (-1, -2):
                                place = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
                                answer = conn.ask("ListOffsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": [place]}])
                                part = answer.topics[0].partitions[0]
                                seen["answers"] += 1
                                if part.error_code:
                                    seen["errors"].add(part.error_code)
                                elif part.offset < highest[timestamp]:
                                    faults.append(f"{timestamp}: {part.offset} after {highest[timestamp]}")
                                else:
                                    highest[timestamp] = part.offset
                except (Closed, Failed, OSError):
                    time.sleep(0.002)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1 if own.judge else 6):
                own.restart(clean=number % 3 == 2)
                own.cluster.learn(topic)
                own.cluster.produced(topic, batch([b"x"] * 5))
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        expect(not faults, str(faults[:5]))
        expect(seen["answers"] > 50, f"only {seen['answers']} answers")
        # Unknown topic, leader not available, not leader, offset not available, storage error: each makes clients ask again.
        expect(seen["errors"] <= {3, 5, 6, 56, 78}, f"error codes {seen['errors']}")


def a035_offsets_outside_the_log(env):
    topic = env.cluster.create(1)
    env.cluster.produced(topic, batch([b"x"] * 10))
    expect_equal("at the end", env.cluster.fetch(topic, 10, max_wait_ms=0).error_code, 0)
    for offset in (11, 12345, -1, -7):
        answer = env.cluster.fetch(topic, offset, max_wait_ms=0)
        expect_equal(f"at {offset}", answer.error_code, OUT_OF_RANGE)
        expect_equal("its high watermark", answer.high_watermark, -1)
        expect(not answer.records, "records with an error")


def a035_leader_epochs_are_checked(env):
    topic = env.cluster.create(1)
    env.cluster.produced(topic, batch())
    epoch = env.cluster.metadata(topic).topics[0].partitions[0].leader_epoch
    for given, code in ((epoch, 0), (-1, 0), (epoch + 1, 75)):
        fields = env.cluster.fetch_fields(topic, {0: 0}, 12)
        fields["topics"][0]["partitions"][0]["current_leader_epoch"] = given
        part = env.cluster.leader(topic).ask("Fetch", 12, **fields).responses[0].partitions[0]
        expect_equal(f"Fetch with epoch {given} of {epoch}", part.error_code, code)
        place = {"partition": 0, "current_leader_epoch": given, "leader_epoch": epoch}
        answer = env.cluster.leader(topic).ask("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": topic, "partitions": [place]}])
        part = answer.topics[0].partitions[0]
        expect_equal(f"OffsetForLeaderEpoch with epoch {given}", part.error_code, code)
        if code == 0:
            expect_equal("its end", (part.leader_epoch, part.end_offset), (epoch, 1))


def a036_a_tail_fetch_wakes_at_once(env):
    topic = env.cluster.create(1)
    reader, writer = env.conn(env.cluster.leaders[topic, 0]), env.conn(env.cluster.leaders[topic, 0])
    waits = []
    for offset in range(200):
        correlation = reader.send("Fetch", 12, **env.cluster.fetch_fields(topic, {0: offset}, 12, max_wait_ms=10_000))
        time.sleep(0.002)
        writer.ask("Produce", 9, **env.cluster.produce_fields(topic, 0, batch(), 9, acks=-1))
        acknowledged = time.monotonic()
        part = reader.receive("Fetch", 12, correlation).responses[0].partitions[0]
        waits.append(time.monotonic() - acknowledged)
        expect_equal("offset read", parse(part.records)[0].base_offset, offset)
    waits.sort()
    expect(waits[180] < 0.02, f"p90 from acknowledgement to the answer: {waits[180] * 1000:.1f} ms")
    reader.close()
    writer.close()


def a036_many_tails_wake_each_for_its_own(env):
    topic = env.cluster.create(20)
    got, faults = [], []

    def tail(partition):
        try:
            with env.conn(env.cluster.leaders[topic, partition]) as conn:
                fields = env.cluster.fetch_fields(topic, {partition: 0}, 12, max_wait_ms=15_000)
                part = conn.ask("Fetch", 12, **fields).responses[0].partitions[0]
                got.append((partition, parse(part.records)[0].records()[0][3]))
        except Exception as error:  # noqa: BLE001
            faults.append((partition, error))

    threads = [threading.Thread(target=tail, args=(partition,)) for partition in range(20)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    for partition in range(20):
        env.cluster.produced(topic, batch([str(partition).encode()]), partition=partition)
    for thread in threads:
        thread.join(20)
    expect(not faults, str(faults))
    expect_equal("what the tails got", sorted(got), [(p, str(p).encode()) for p in range(20)])


def a036_one_slow_partition_does_not_delay_another(env):
    """One fetch of two partitions, of which only one moves: it is answered as soon as that one does."""
    topic, (p, q) = _two_on_one_node(env)
    writer = env.conn(env.cluster.leaders[topic, p])
    reader = env.cluster.leader(topic, p)
    waits = []
    for offset in range(50):
        correlation = reader.send("Fetch", 12, **env.cluster.fetch_fields(topic, {p: 0, q: offset}, 12, max_wait_ms=10_000))
        time.sleep(0.002)
        writer.ask("Produce", 9, **env.cluster.produce_fields(topic, q, batch(), 9, acks=-1))
        acknowledged = time.monotonic()
        parts = {part.partition_index: part for part in reader.receive("Fetch", 12, correlation).responses[0].partitions}
        waits.append(time.monotonic() - acknowledged)
        expect_equal("offset read", parse(parts[q].records)[0].base_offset, offset)
    writer.close()
    waits.sort()
    expect(waits[45] < 0.05, f"p90 from acknowledgement to the answer: {waits[45] * 1000:.1f} ms")


def odd_fetch_fields_are_answered(env):
    topic = env.cluster.create(1)
    env.cluster.produced(topic, batch())
    answer = env.cluster.leader(topic).ask("Fetch", 12, **env.cluster.fetch_fields(topic, {0: 0}, 12, isolation_level=7))
    expect_equal("isolation level 7", answer.error_code, env.wants(42, -1))
    answer = env.cluster.leader(topic).ask("Fetch", 12, **env.cluster.fetch_fields(topic, {0: (0, -1)}, 12))
    expect(answer.error_code in (0, 42, -1), f"negative partition max bytes: {answer.error_code}")
    unknown = env.cluster.fetch_fields(topic, {9: 0}, 12, max_wait_ms=0)
    part = env.cluster.leader(topic).ask("Fetch", 12, **unknown).responses[0].partitions[0]
    expect_equal("unknown partition", part.error_code, 3)


def a106_a_long_read_is_contiguous(env):
    topic = env.cluster.create(1, segment_bytes=1 << 20)
    total = 0
    conn = env.cluster.leader(topic)
    records = batch([b"x" * 40] * 2_000)
    sent = [conn.send("Produce", 9, **env.cluster.produce_fields(topic, 0, records, 9, acks=1)) for _ in range(100)]
    for correlation in sent:
        expect_equal("error", conn.receive("Produce", 9, correlation).responses[0].partition_responses[0].error_code, 0)
        total += 2_000
    env.cluster.produced(topic, batch())
    for limit in (1, 100_000, 1 << 20, 8 << 20):
        at = 0
        while at < total:
            got = parse(env.cluster.fetch(topic, at, limit=limit, max_wait_ms=0).records)
            expect(got, f"nothing at {at} with a limit of {limit}")
            for each in got:
                expect(each.crc_right and each.base_offset <= at <= each.last_offset, f"at {at} came {each.base_offset}..{each.last_offset}")
                at = each.last_offset + 1
        # From the middle of a batch the batch that holds the offset comes.
        middle = parse(env.cluster.fetch(topic, 101_234, limit=limit).records)[0]
        expect(middle.base_offset <= 101_234 <= middle.last_offset, f"101,234 gave {middle.base_offset}")
