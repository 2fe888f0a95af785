"""Topics that are deleted, made again, or grow while clients use them."""

import threading
import time
import uuid

from harness.checks import Failed, expect, expect_equal
from harness.records import batch, parse
from harness.wire import Closed

UNKNOWN_TOPIC, UNKNOWN_ID, INCONSISTENT_ID = 3, 100, 103


def _delete(env, name):
    answer = env.cluster.conn().ask("DeleteTopics", 6, topics=[{"name": name}], timeout_ms=10_000)
    expect_equal("delete", answer.responses[0].error_code, 0)


def _recreate(env, name, partitions=1):
    _delete(env, name)
    deadline = time.monotonic() + 10
    while env.cluster.metadata(name).topics[0].error_code == 0:
        expect(time.monotonic() < deadline, "still listed 10 s after its deletion")
        time.sleep(0.01)
    env.cluster.create(partitions, name=name)


def a124_a_session_with_an_old_topic_id_says_so_and_serves_the_others(env):
    """Partition errors at once, but not as fast as the wire allows; the new id begins at 0."""
    names = [env.cluster.create(1) for _ in range(6)]
    # Two whose partition one node leads, before and after.
    by_port = {}
    for name in names:
        by_port.setdefault(env.cluster.leaders[name, 0], []).append(name)
    gone, kept = next(found for found in by_port.values() if len(found) > 1)[:2]
    port, old_id = env.cluster.leaders[gone, 0], env.cluster.ids[gone]
    env.cluster.produced(gone, batch([b"old"] * 3))
    with env.conn(port) as conn:
        topics = [{"topic_id": env.cluster.ids[name], "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]} for name in (gone, kept)]
        session = conn.ask("Fetch", 13, session_epoch=0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics).session_id
        expect(session != 0, "no session was made")
        _recreate(env, gone)
        epoch = 0

        def again(**more):
            nonlocal epoch
            epoch += 1
            fields = {"session_id": session, "session_epoch": epoch, "max_wait_ms": 300, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [], **more}
            started = time.monotonic()
            answer = conn.ask("Fetch", 13, **fields)
            expect_equal("error", answer.error_code, 0)
            return time.monotonic() - started, {each.topic_id: each.partitions[0] for each in answer.responses}

        waits = []
        for _ in range(6):
            waited, parts = again()
            waits.append(waited)
            if parts:
                expect_equal("who has an error", set(parts), {old_id})
                expect(parts[old_id].error_code in (UNKNOWN_ID, INCONSISTENT_ID, UNKNOWN_TOPIC), f"error {parts[old_id].error_code}")
        # The error is told once or every time; then without the wait it would be a loop at full speed.
        expect(max(waits) < 2, f"waits of {waits}")
        env.cluster.produced(kept, batch([b"kept"]))
        _, parts = again()
        expect(env.cluster.ids[kept] in parts, f"no news of the other topic: {parts}")
        expect_equal("records of the other topic", [r[3] for b in parse(parts[env.cluster.ids[kept]].records) for r in b.records()], [b"kept"])
        new_id = env.cluster.ids[gone]
        expect(new_id != old_id, "the id is the old one")
        if env.cluster.leaders[gone, 0] == port:
            env.cluster.produced(gone, batch([b"new"]))
            place = {"topic_id": new_id, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}
            forgotten = [{"topic_id": old_id, "partitions": [0]}]
            _, parts = again(topics=[place], forgotten_topics_data=forgotten)
            expect_equal("records from 0", [r[3] for b in parse(parts[new_id].records) for r in b.records()], [b"new"])


def a125_old_ids_are_refused_after_recreation(env):
    topic = env.cluster.create(1)
    old = env.cluster.ids[topic]
    env.cluster.produced(topic, batch())
    _recreate(env, topic)
    data = [{"topic_id": old, "partition_data": [{"index": 0, "records": batch()}]}]
    answer = env.cluster.leader(topic).ask("Produce", 13, acks=-1, timeout_ms=5000, topic_data=data)
    expect_equal("produce by the old id", answer.responses[0].partition_responses[0].error_code, UNKNOWN_ID)
    place = {"topic_id": old, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}
    answer = env.cluster.leader(topic).ask("Fetch", 13, session_epoch=-1, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[place])
    expect_equal("fetch by the old id", answer.responses[0].partitions[0].error_code, UNKNOWN_ID)
    answer = env.cluster.conn().ask("DeleteTopics", 6, topics=[{"topic_id": old, "name": None}], timeout_ms=1000)
    expect_equal("delete by the old id", answer.responses[0].error_code, UNKNOWN_ID)
    expect_equal("log end of the new one", env.cluster.end(topic), 0)


def a126_acknowledged_into_the_topic_that_exists(env):
    """A producer that never stops while its topic is deleted and made again: what is acknowledged after a creation is in the new topic."""
    name = f"r-{uuid.uuid4().hex[:8]}"
    env.cluster.create(1, name=name)
    stop, frames, state = threading.Event(), [], {"made": 0}

    def produce():
        number = 0
        while not stop.is_set():
            try:
                port = env.cluster.leaders.get((name, 0), env.port)
                with env.conn(port, timeout=5) as conn:
                    while not stop.is_set():
                        number += 1
                        made = state["made"]
                        value = f"{made} {number}".encode()
                        conn.send("Produce", 9, **env.cluster.produce_fields(name, 0, batch([value]), 9, acks=-1))
                        frames.append((made, value, conn.receive_frame()))
                        if port != env.cluster.leaders.get((name, 0), port):
                            break
            except (Closed, Failed, OSError):
                time.sleep(0.005)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        for _ in range(8):
            had = len(frames)
            deadline = time.monotonic() + 20
            while len(frames) < had + 30:
                expect(time.monotonic() < deadline, "no answers in 20 s")
                time.sleep(0.005)
            _recreate(env, name)
            # Numbers of produces that begin from now on are of this topic or a later one.
            state["made"] += 1
        had = len(frames)
        while len(frames) < had + 50:
            time.sleep(0.005)
    finally:
        stop.set()
        thread.join(20)
    from harness.wire import decode_response

    acked, codes = [], set()
    for made, value, frame in frames:
        part = decode_response("Produce", 9, frame)[1].responses[0].partition_responses[0]
        codes.add(part.error_code)
        if part.error_code == 0 and made == state["made"]:
            acked.append((part.base_offset, value))
    expect(codes <= {0, 3, 5, 6, 7, 56}, f"codes {codes}")
    expect(len(acked) > 10, f"only {len(acked)} acknowledgements after the last creation")
    stored = env.cluster.values(name)
    wrong = [(offset, value) for offset, value in acked if stored[offset : offset + 1] != [value]]
    expect(not wrong, f"acknowledged and not in the topic that exists: {wrong[:5]}")


def a127_a_deleted_topic_stays_away_unless_it_is_asked_for(env):
    topic = env.cluster.create(1)
    _delete(env, topic)
    for _ in range(5):
        for version in (4, 9, 12):
            code = env.cluster.metadata(topic, version=version, create=False).topics[0].error_code
            expect_equal(f"Metadata v{version} without creation", code, UNKNOWN_TOPIC)
        fields = env.cluster.fetch_fields(topic, {0: 0}, 12, max_wait_ms=0)
        expect_equal("fetch", env.cluster.conn().ask("Fetch", 12, **fields).responses[0].partitions[0].error_code, UNKNOWN_TOPIC)
        time.sleep(0.05)
    everything = [each.name for each in env.cluster.metadata().topics]
    expect(topic not in everything, "it is back although nobody asked for its creation")
    deadline = time.monotonic() + 10
    while env.cluster.metadata(topic, create=True).topics[0].error_code != 0:
        expect(time.monotonic() < deadline, "not created in 10 s")
    with env.own_broker(auto_create_topics_enable="false") as own:
        expect_equal("forbidden", own.cluster.metadata("never", create=True).topics[0].error_code, UNKNOWN_TOPIC)
        time.sleep(0.1)
        expect_equal("forbidden", own.cluster.metadata("never", create=True).topics[0].error_code, UNKNOWN_TOPIC)


def a128_new_partitions_serve_when_their_creation_is_answered(env):
    topic = env.cluster.create(2)
    for count in (3, 6, 12):
        wanted = [{"name": topic, "count": count, "assignments": None}]
        answer = env.cluster.conn().ask("CreatePartitions", 3, topics=wanted, timeout_ms=10_000, validate_only=False)
        expect_equal("error", answer.results[0].error_code, 0)
        if env.judge:
            # Apache Kafka answers a moment before the leaders serve.
            env.cluster.learn(topic, count)
        for shard in range(env.broker.shards):
            found = env.cluster.metadata(topic, port=env.port + shard).topics[0]
            leaders = [part.leader_id for part in found.partitions]
            expect(len(leaders) == count and -1 not in leaders, f"port {shard} names leaders {leaders} of {count} partitions")
        env.cluster.settle, before = False, env.cluster.settle
        env.cluster.learn(topic, count)
        env.cluster.settle = before
        for partition in range(count):
            place = {"partition_index": partition, "timestamp": -2, "current_leader_epoch": -1}
            answer = env.cluster.leader(topic, partition).ask("ListOffsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": [place]}])
            part = answer.topics[0].partitions[0]
            # by_duration and earliest find the first record of a partition that was just made.
            expect_equal(f"earliest of partition {partition}", (part.error_code, part.offset), (0, 0))
            env.cluster.produced(topic, batch([b"first"]), partition=partition)
