"""ListOffsets: by time and the special times."""

import random
import threading
import time

from harness import records as R
from harness.checks import expect, expect_equal
from harness.records import batch


def _ask(env, topic, timestamp, version=7, partition=0):
    place = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [place]}]}
    if version >= 2:
        fields["isolation_level"] = 0
    answer = env.cluster.leader(topic, partition).ask("ListOffsets", version, **fields).topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


def a037_times_are_found_to_the_record(env):
    rng = random.Random(37)
    topic = env.cluster.create(1, segment_bytes=1 << 20)
    base = R.now_ms() - 1_000_000
    stored = []
    for number in range(120):
        codec = rng.choice(list(R.CODECS))
        times = [base + number * 1_000 + rng.randrange(-5_000, 5_000) for _ in range(20)]
        records = [R.record(delta, None, rng.randbytes(500), timestamp_delta=time - times[0]) for delta, time in enumerate(times)]
        env.cluster.produced(topic, batch(records=records, codec=codec, timestamp=times[0], max_timestamp=max(times)))
        stored += times

    def wanted(target):
        return next(((0, offset, time) for offset, time in enumerate(stored) if time >= target), (0, -1, -1))

    targets = [rng.randrange(base - 6_000, base + 130_000) for _ in range(300)] + [base - 10**9, 0, max(stored), max(stored) + 1]
    for target in targets:
        expect_equal(f"time {target - base}", _ask(env, topic, target), wanted(target))
    return None


def a038_nothing_late_enough_is_minus_one(env):
    topic = env.cluster.create(1)
    for version in range(1, 9):
        expect_equal(f"empty topic, v{version}", _ask(env, topic, 1000, version), (0, -1, -1))
    env.cluster.produced(topic, batch())
    for version in range(1, 9):
        expect_equal(f"the future, v{version}", _ask(env, topic, R.now_ms() + 10**8, version), (0, -1, -1))


def special_times(env):
    topic = env.cluster.create(1)
    expect_equal("earliest of nothing", _ask(env, topic, -2)[:2], (0, 0))
    expect_equal("latest of nothing", _ask(env, topic, -1)[:2], (0, 0))
    expect_equal("max timestamp of nothing", _ask(env, topic, -3), (0, -1, -1))
    now = R.now_ms()
    for ahead in (0, 5_000, 2_000):
        env.cluster.produced(topic, batch([b"x"], timestamp=now + ahead))
    expect_equal("earliest", _ask(env, topic, -2)[:2], (0, 0))
    expect_equal("latest", _ask(env, topic, -1)[:2], (0, 3))
    expect_equal("max timestamp", _ask(env, topic, -3), (0, 1, now + 5_000))
    expect_equal("earliest local", _ask(env, topic, -4, 8)[:2], (0, 0))
    expect_equal("latest tiered", _ask(env, topic, -5, 9)[:2], (0, -1))
    expect_equal("max timestamp in v2", _ask(env, topic, -3, 2)[0], 35)


def a044_earliest_leads_to_a_record(env):
    topic = env.cluster.create(1)
    env.cluster.produced(topic, batch([b"x"] * 5))
    code, offset, _ = _ask(env, topic, -2)
    expect_equal("error", code, 0)
    answer = env.cluster.fetch(topic, offset)
    expect_equal("fetch at earliest", answer.error_code, 0)
    expect(R.parse(answer.records), "no record at the earliest offset")


def _delete(env, topic, offset, version=2):
    """(error, low watermark) of a DeleteRecords on partition 0."""
    part = {"partition_index": 0, "offset": offset}
    answer = env.cluster.leader(topic).ask("DeleteRecords", version, topics=[{"name": topic, "partitions": [part]}], timeout_ms=10_000)
    told = answer.topics[0].partitions[0]
    return told.error_code, told.low_watermark


def a039_look_ups_never_answer_below_the_start(env):
    base = R.now_ms() - 100_000
    for codec in ("none", "zstd"):
        topic = env.cluster.create(1)
        records = [R.record(delta, None, b"%d" % delta, timestamp_delta=delta * 100) for delta in range(100)]
        env.cluster.produced(topic, batch(records=records, codec=codec, timestamp=base, max_timestamp=base + 9_900))
        expect_equal("DeleteRecords", _delete(env, topic, 50), (0, 50))
        for number in range(100):
            code, offset, _ = _ask(env, topic, base + number * 100)
            expect(code == 0 and offset >= 50, f"{codec}: the time of record {number} is answered with {offset}")
        found = env.cluster.values(topic, start=50)
        expect_equal("the values that are left", [bytes(value) for value in found][-50:], [b"%d" % number for number in range(50, 100)])


def a041_deletions_at_every_edge(env):
    topic = env.cluster.create(1)
    env.cluster.produced(topic, batch([b"x"] * 20))
    expect_equal("to 5", _delete(env, topic, 5), (0, 5))
    for version in (0, 1, 2):
        expect_equal(f"below the start, v{version}", _delete(env, topic, 0, version), (0, 5))
    expect_equal("at the start", _delete(env, topic, 5), (0, 5))
    expect_equal("another negative", _delete(env, topic, -2)[0], 1)
    expect_equal("above the high watermark", _delete(env, topic, 21)[0], 1)
    expect_equal("inside", _delete(env, topic, 12), (0, 12))
    expect_equal("earliest", _ask(env, topic, -2)[:2], (0, 12))
    expect_equal("to the high watermark", _delete(env, topic, -1), (0, 20))
    compacted = env.cluster.create(1, cleanup_policy="compact")
    expect_equal("of a compacted topic", _delete(env, compacted, 0)[0], 44)


def a041_what_was_deleted_stays_deleted(env):
    """Apache Kafka's records come back after a kill; with us an answer means the device."""
    if env.judge:
        return
    with env.own_broker() as own:
        topic = own.cluster.create(1)
        own.cluster.produced(topic, batch([b"x"] * 20))
        expect_equal("to 12", _delete(own, topic, 12), (0, 12))
        own.restart()
        own.cluster.learn(topic, 1)
        expect_equal("earliest after a kill", _ask(own, topic, -2)[:2], (0, 12))
        expect_equal("latest after a kill", _ask(own, topic, -1)[:2], (0, 20))


def a129_a_trim_by_time_takes_no_record_of_that_time_or_later(env):
    """Whoever trims by time asks ListOffsets and deletes up to the answer (`corelane topics trim` does). A record of next year, wherever it lies, must not draw that answer past itself."""
    now = R.now_ms()
    next_year = now + 365 * 86_400_000
    for codec in ("none", "zstd"):
        for future in (0, 7, 10, 29):
            topic = env.cluster.create(1, message_timestamp_after_max_ms=2**63 - 1)
            times = [next_year if offset == future else now - 100_000 + offset * 1_000 for offset in range(30)]
            for first in range(0, 30, 10):
                part = times[first : first + 10]
                records = [R.record(delta, None, b"%d" % (first + delta), timestamp_delta=at - part[0]) for delta, at in enumerate(part)]
                env.cluster.produced(topic, batch(records=records, codec=codec, timestamp=part[0], max_timestamp=max(part)))
            start = 0
            for until in (times[5], now - 85_500, now, next_year):
                wanted = next(offset for offset in range(start, 30) if times[offset] >= until)
                what = f"{codec}, next year at {future}, until {until - now}"
                expect_equal(what, _ask(env, topic, until)[:2], (0, wanted))
                expect_equal(f"{what}: trimmed", _delete(env, topic, wanted), (0, wanted))
                start = wanted
                left = [bytes(value) for value in env.cluster.values(topic, start=start)]
                expect_equal(f"{what}: left", left[-(30 - start) :], [b"%d" % offset for offset in range(start, 30)])
            expect_equal(f"{codec}: the end of the trims", start, future)
            expect_equal(f"{codec}: nothing later than next year", _ask(env, topic, next_year + 1)[:2], (0, -1))


OUT_OF_RANGE, POLICY = 1, 44


def _delete_records(env, topic, offset, partition=0, port=None):
    """(error, low watermark)"""
    conn = env.conn(port) if port else env.cluster.leader(topic, partition)
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    answer = conn.ask("DeleteRecords", 2, topics=topics, timeout_ms=10_000).topics[0].partitions[0]
    if port:
        conn.close()
    return answer.error_code, answer.low_watermark


def a037_times_are_found_after_restarts_and_without_indexes(env):
    rng = random.Random(38)
    with env.own_broker() as own:
        topic = own.cluster.create(1, segment_bytes=1 << 20)
        base = R.now_ms() - 1_000_000
        stored = []
        for number in range(60):
            times = [base + number * 1_000 + rng.randrange(-5_000, 5_000) for _ in range(20)]
            records = [R.record(delta, None, rng.randbytes(2_000), timestamp_delta=at - times[0]) for delta, at in enumerate(times)]
            own.cluster.produced(topic, batch(records=records, codec=rng.choice(["none", "zstd"]), timestamp=times[0], max_timestamp=max(times)))
            stored += times

        def check(when):
            for target in [rng.randrange(base - 6_000, base + 70_000) for _ in range(60)] + [0, max(stored), max(stored) + 1]:
                wanted = next(((0, offset, at) for offset, at in enumerate(stored) if at >= target), (0, -1, -1))
                expect_equal(f"{when}: time {target - base}", _ask(own, topic, target), wanted)

        check("at first")
        own.restart()
        own.cluster.learn(topic)
        check("after a kill")
        own.restart(clean=True)
        own.cluster.learn(topic)
        check("after a clean stop")
        own.cluster.close()
        own.broker.stop(60)
        for path in (own.broker.data / f"{topic}-0").glob("*index"):
            path.unlink()
        own.start()
        own.cluster.learn(topic)
        check("without indexes")


def a041_edges_of_delete_records(env):
    with env.own_broker() as own:
        topic = own.cluster.create(1)
        for _ in range(20):
            own.cluster.produced(topic, batch([b"x"]))
        expect_equal("to 5", _delete_records(own, topic, 5), (0, 5))
        for offset, wanted in ((0, (0, 5)), (5, (0, 5)), (12, (0, 12)), (-2, (OUT_OF_RANGE, -1)), (21, (OUT_OF_RANGE, -1)), (-1, (0, 20))):
            expect_equal(f"to {offset}", _delete_records(own, topic, offset), wanted)
        compacted = own.cluster.create(1, cleanup_policy="compact")
        own.cluster.produced(compacted, batch([(b"k", b"v")]))
        expect_equal("compacted only", _delete_records(own, compacted, 1)[0], POLICY)
        if own.broker.shards > 1 and not own.judge:
            foreign = next(p for p in range(own.port, own.port + own.broker.shards) if p != own.cluster.leaders[topic, 0])
            expect_equal("of another node", _delete_records(own, topic, 1, port=foreign)[0], 6)
        expect_equal("below the start", own.cluster.fetch(topic, 19, max_wait_ms=0).error_code, OUT_OF_RANGE)
        # Apache Kafka writes starts down once a minute and when it stops; a kill takes them.
        for clean in (True,) if own.judge else (False, True):
            own.restart(clean=clean)
            own.cluster.learn(topic)
            expect_equal("start and end after a restart", (_ask(own, topic, -2)[1], _ask(own, topic, -1)[1]), (20, 20))
        expect_equal("the next offset", own.cluster.produced(topic, batch()), 20)


def _until(what, condition, within_s=30):
    deadline = time.monotonic() + within_s
    while not condition():
        expect(time.monotonic() < deadline, f"{what}: not within {within_s} s")
        time.sleep(0.05)


def a040_when_everything_expired_earliest_is_latest(env):
    with env.own_broker(log_retention_check_interval_ms=100, log_initial_task_delay_ms=100) as own:
        topic = own.cluster.create(1, retention_ms=1000, segment_ms=500)
        for _ in range(10):
            own.cluster.produced(topic, batch([b"old"]))
        _until("all expired", lambda: _ask(own, topic, -2)[1] == 10)
        expect_equal("latest", _ask(own, topic, -1)[:2], (0, 10))
        own.restart()
        own.cluster.learn(topic)
        expect_equal("after a kill", (_ask(own, topic, -2)[1], _ask(own, topic, -1)[1]), (10, 10))
        expect_equal("the next offset", own.cluster.produced(topic, batch([b"new"])), 10)
        answer = own.cluster.fetch(topic, 10)
        expect_equal("read from earliest", [r[3] for b in R.parse(answer.records) for r in b.records()], [b"new"])


def a042_size_retention_frees_what_a_future_time_pins(env):
    with env.own_broker(log_retention_check_interval_ms=100, log_initial_task_delay_ms=100) as own:
        topic = own.cluster.create(1, segment_bytes=1 << 20, retention_bytes=3 << 20, message_timestamp_after_max_ms=2**63 - 1)
        own.cluster.produced(topic, batch([b"far ahead"], timestamp=R.now_ms() + 10 * 365 * 86_400_000))
        for _ in range(12):
            own.cluster.produced(topic, batch([b"x" * 900_000]))
        _until("the log is cut to its size", lambda: _ask(own, topic, -2)[1] >= 7)
        expect(_ask(own, topic, -2)[1] <= 11, "more than retention.bytes asks for is gone")


def a043_append_time_topics_keep_by_the_broker_s_clock(env):
    with env.own_broker(log_retention_check_interval_ms=100, log_initial_task_delay_ms=100) as own:
        topic = own.cluster.create(1, message_timestamp_type="LogAppendTime", retention_ms=2_000, segment_bytes=1 << 20)
        before = R.now_ms()
        for stamp in (4_070_908_800_000, 1, -1):
            own.cluster.produced(topic, batch([b"x" * 800_000], timestamp=stamp))
        after = R.now_ms()
        for target, wanted in ((before - 10_000, 0), (after + 10_000, -1)):
            expect_equal(f"time {target - before}", _ask(own, topic, target)[1], wanted)
        code, _, at = _ask(own, topic, before - 10_000)
        expect(before - 1 <= at <= after + 1, f"the time that is answered is {at}, not of {before}..{after}")
        # Neither at once (times of 1970) nor never (times of 2099).
        expect_equal("earliest at first", _ask(own, topic, -2)[1], 0)
        _until("old segments go", lambda: _ask(own, topic, -2)[1] >= 2)
        expect(R.now_ms() - after > 1_000, "gone before their time")


def a044_earliest_leads_to_a_record_under_constant_deletion(env):
    with env.own_broker(log_retention_check_interval_ms=50, log_initial_task_delay_ms=50) as own:
        topic = own.cluster.create(1, segment_bytes=1 << 20, retention_bytes=2 << 20)
        stop = threading.Event()

        def write():
            with own.conn(own.cluster.leaders[topic, 0]) as conn:
                records = batch([b"x" * 100_000])
                while not stop.is_set():
                    conn.send("Produce", 9, **own.cluster.produce_fields(topic, 0, records, 9, acks=1))
                    conn.receive_frame()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            until, moved = time.monotonic() + 5, set()
            while time.monotonic() < until:
                code, start, _ = _ask(own, topic, -2)
                expect_equal("error", code, 0)
                moved.add(start)
                answer = own.cluster.fetch(topic, start, max_wait_ms=1000)
                if answer.error_code == OUT_OF_RANGE:
                    again = _ask(own, topic, -2)[1]
                    expect(again > start, f"out of range at {start}, and earliest is {again}")
                    continue
                expect_equal("fetch", answer.error_code, 0)
                first = R.parse(answer.records)
                expect(first and first[0].base_offset <= start <= first[0].last_offset, f"earliest {start} leads to {first and first[0].base_offset}")
            expect(len(moved) > 3, f"the start was only at {sorted(moved)}")
        finally:
            stop.set()
            thread.join(20)
