"""Batches whose insides are wrong behind a right CRC. Nothing of them may be stored; the answer is never -1 (Apache Kafka's, for some)."""

import gzip

from harness import records as R
from harness.checks import Checks, Failed, expect, expect_equal
from harness.records import batch

CORRUPT, BAD_RECORD, UNSUPPORTED_CODEC = 2, 87, 76


def _cases():
    """name -> (bytes, codes that Corelane may answer, codes that Apache Kafka answers)."""
    bad = (CORRUPT, BAD_RECORD)
    two = [R.record(0, value=b"a"), R.record(1, value=b"b")]
    good = batch(records=two)
    cases = {
        "a wrong CRC": (batch(crc=1), [CORRUPT], [CORRUPT]),
        "magic 0": (batch(magic=0), [BAD_RECORD], [BAD_RECORD]),
        "magic 1": (batch(magic=1), [BAD_RECORD], [BAD_RECORD]),
        "magic 3": (batch(magic=3), bad, [CORRUPT]),
        "header count 3, one record": (batch(count=3, last_offset_delta=2), [BAD_RECORD], [BAD_RECORD]),
        "header count 1, two records": (batch(records=two, count=1, last_offset_delta=0), bad, [-1, BAD_RECORD]),
        "count 0": (batch(records=[], count=0, last_offset_delta=0), [BAD_RECORD], [BAD_RECORD]),
        "count -1": (batch(count=-1), bad, [BAD_RECORD, -1]),
        "count 2^31-1": (batch(count=2**31 - 1, last_offset_delta=2**31 - 2), bad, [BAD_RECORD, -1]),
        "last offset delta unlike the count": (batch(records=two, last_offset_delta=5), [BAD_RECORD], [BAD_RECORD]),
        "a base offset that is not 0": (batch(base_offset=5), [BAD_RECORD], [BAD_RECORD, 0]),
        "two batches": (good + good, [BAD_RECORD], [BAD_RECORD]),
        "no bytes": (b"", bad, [BAD_RECORD]),
        "ten bytes": (good[:10], bad, [BAD_RECORD, CORRUPT, -1]),
        "a cut batch": (good[:-3], bad, [BAD_RECORD, CORRUPT, -1]),
        "batch length 0": (batch(length=0), bad, [BAD_RECORD, CORRUPT, -1]),
        "batch length -1": (batch(length=-1), bad, [BAD_RECORD, CORRUPT, -1]),
        "batch length 2^31-1": (batch(length=2**31 - 1), bad, [-1, CORRUPT, BAD_RECORD]),
        "random records": (batch(records=[b"\x55" * 40]), bad, [-1, BAD_RECORD]),
        "a record longer than the batch": (batch(records=[R.varint(1000) + b"\0\0\0\0\0\0"]), bad, [-1, BAD_RECORD]),
        "a record of length -1": (batch(records=[R.varint(-1)]), bad, [-1, BAD_RECORD]),
        "a key longer than its record": (batch(records=[R.varint(8) + b"\0\0\0" + R.varint(500) + b"xxx"]), bad, [-1, BAD_RECORD]),
        "key length -2": (batch(records=[R.varint(5) + b"\0\0\0" + R.varint(-2) + b"\x01"]), bad, [-1, BAD_RECORD, 0]),
        "header count -1": (batch(records=[R.record(0, value=b"x", headers_count=-1)]), bad, [-1, BAD_RECORD]),
        "header count 2^30": (batch(records=[R.record(0, value=b"x", headers_count=2**30)]), bad, [-1, BAD_RECORD]),
        "a header without a name": (
            batch(records=[R.varint(8) + b"\0\0\0\x01\x01\x02" + R.varint(-1) + R.varint(-1)]),
            bad,
            [-1, BAD_RECORD],
        ),
        "a varint that never ends": (batch(records=[b"\xff" * 30]), bad, [-1, BAD_RECORD]),
        "codec 5": (batch(attributes=5), [*bad, UNSUPPORTED_CODEC], [-1, CORRUPT, UNSUPPORTED_CODEC]),
        "codec 7": (batch(attributes=7), [*bad, UNSUPPORTED_CODEC], [-1, CORRUPT, UNSUPPORTED_CODEC]),
        "a control batch": (batch(control=True), [BAD_RECORD], [BAD_RECORD]),
        "a producer id without a sequence": (batch(producer_id=5, producer_epoch=0), bad, [BAD_RECORD]),
        "garbage in gzip's name": (batch(body=b"\x1f\x8b" + b"g" * 50, codec="gzip", records=two), bad, [-1]),
        "half of a gzip": (batch(body=gzip.compress(b"".join(two))[:-12], codec="gzip", records=two), bad, [-1]),
        "gzip of random bytes": (batch(body=gzip.compress(b"\x77" * 99), codec="gzip", records=two), bad, [-1, BAD_RECORD]),
        "gzip with one record less": (batch(body=gzip.compress(two[0]), codec="gzip", records=two), bad, [-1, BAD_RECORD]),
        "gzip with one record more": (
            batch(body=gzip.compress(b"".join(two) + R.record(2)), codec="gzip", records=two),
            bad,
            [-1, BAD_RECORD],
        ),
        "compressed records with equal deltas": (batch(records=[R.record(0), R.record(0)], codec="gzip"), [BAD_RECORD], [-1]),
        "garbage zstd": (batch(body=b"\x28\xb5\x2f\xfd" + b"z" * 30, codec="zstd", records=two), bad, [-1]),
        "garbage lz4": (batch(body=b"\x04\x22\x4d\x18" + b"l" * 30, codec="lz4", records=two), bad, [-1]),
        "an empty zstd body": (batch(body=b"", codec="zstd", records=two), bad, [-1, BAD_RECORD]),
    }
    return cases


def wrong_batches_are_refused_with_a_code_and_not_stored(env):
    topic = env.cluster.create(1)
    found = Checks("garbage")
    end = env.cluster.end(topic)
    for name, (data, ours, kafkas) in _cases().items():
        codes = env.wants(ours, kafkas)
        answer = env.cluster.produce(topic, data)
        stored = env.cluster.end(topic) - end
        if answer.error_code not in codes or (answer.error_code != 0 and stored):
            found.names_failed.append(f"{name}: error {answer.error_code}, wanted {codes}, stored {stored}")
        end += stored
    if found.names_failed:
        raise Failed("\n     ".join(["", *found.names_failed]))
    for each in env.cluster.read_all(topic):
        each.records()


def null_records_are_answered(env):
    if env.judge:
        # Kafka gives no answer at all for that partition.
        return
    topic = env.cluster.create(1)
    expect_equal("null records", env.cluster.produce(topic, None).error_code, BAD_RECORD)


def what_kafka_accepts_is_accepted(env):
    topic = env.cluster.create(1)
    for name, data in {
        "unknown attribute bits": batch(attributes=0x7F80),
        "record attributes 255": batch(records=[R.record(0, value=b"x", attributes=255)]),
        "timestamp -5": batch(timestamp=-5),
        "bytes after the batch": batch() + b"\x01\x02\x03",
        "producer id -2": batch(producer_id=-2),
        "an empty key and value": batch([(b"", b"")]),
        "a null key and value": batch([(None, None)]),
        "a client's leader epoch": batch(leader_epoch=77),
        "the LogAppendTime bit": batch(attributes=R.LOG_APPEND_TIME),
    }.items():
        answer = env.cluster.produce(topic, data)
        expect_equal(name, answer.error_code, 0)
    for each in env.cluster.read_all(topic):
        expect(not each.append_time, "the LogAppendTime bit of a client is kept on a CreateTime topic")
        expect(each.leader_epoch < 77, "a client's leader epoch is kept")


def a_compacted_topic_wants_keys(env):
    topic = env.cluster.create(1, cleanup_policy="compact")
    answer = env.cluster.produce(topic, batch([(b"k", b"v"), (None, b"v"), (b"k", b"v"), (None, b"w")]))
    expect_equal("error", answer.error_code, BAD_RECORD)
    expect_equal("records named", [error.batch_index for error in answer.record_errors], [1, 3])
    env.cluster.produced(topic, batch([(b"k", b"v")]))


def transactions_are_refused_until_they_work(env):
    if env.judge:
        return
    topic = env.cluster.create(1)
    answer = env.cluster.produce(topic, batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0))
    expect(answer.error_code in (48, 53, 87), f"a transactional batch: error {answer.error_code}")
    answer = env.cluster.conn().ask("InitProducerId", 4, transactional_id="t", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
    expect(answer.error_code != 0, "a transactional producer id was given")
    expect_equal("log end", env.cluster.end(topic), 0)


def one_partition_twice_in_a_request_has_one_answer(env):
    topic = env.cluster.create(1)
    parts = [{"index": 0, "records": batch([b"a"])}, {"index": 0, "records": batch([b"b"])}]
    answer = env.cluster.leader(topic).ask("Produce", 9, acks=-1, timeout_ms=5000, topic_data=[{"name": topic, "partition_data": parts}])
    expect_equal("answers", sum(len(topic.partition_responses) for topic in answer.responses), 1)
