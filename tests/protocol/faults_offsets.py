"""ListOffsets: by time and the special times."""

import random

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
