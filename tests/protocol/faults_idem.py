"""Idempotent producers: the window of five, sequences, epochs, restarts."""

import time

from harness.checks import expect, expect_equal
from harness.records import batch

OUT_OF_ORDER, DUPLICATE, BAD_EPOCH = 45, 46, 47


def _producer_id(env):
    deadline = time.monotonic() + 10
    while True:
        answer = env.cluster.conn().ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
        if answer.error_code == 0:
            return answer.producer_id, answer.producer_epoch
        expect(answer.error_code in (14, 15) and time.monotonic() < deadline, f"InitProducerId: error {answer.error_code}")
        time.sleep(0.05)


class _Sender:
    """Sends batches of one producer and remembers what was answered."""

    def __init__(self, env, topic, codec="none"):
        self.env, self.topic, self.codec = env, topic, codec
        self.id, self.epoch = _producer_id(env)
        self.sent = []

    def make(self, sequence, count, epoch=None, timestamp=None):
        values = [f"{self.id} {sequence + at}".encode() for at in range(count)]
        return batch(
            values, self.codec, producer_id=self.id, producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence, timestamp=timestamp,
        )

    def send(self, sequence, count, **kwargs):
        return self.env.cluster.produce(self.topic, self.make(sequence, count, **kwargs))

    def stored(self, sequence, count, **kwargs):
        answer = self.send(sequence, count, **kwargs)
        expect_equal(f"sequence {sequence}", answer.error_code, 0)
        self.sent.append((sequence, count, answer.base_offset))
        return answer.base_offset

    def resend(self, index):
        sequence, count, offset = self.sent[index]
        answer = self.send(sequence, count)
        return answer.error_code, answer.base_offset, offset


def producer_ids_are_unique(env):
    ids = set()
    for shard in range(env.broker.shards):
        with env.conn(env.port + shard) as conn:
            for _ in range(50):
                answer = conn.ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1)
                expect(answer.error_code in (0, 14, 15), f"error {answer.error_code}")
                if answer.error_code == 0:
                    expect_equal("epoch", answer.producer_epoch, 0)
                    expect(answer.producer_id not in ids, "an id was given twice")
                    ids.add(answer.producer_id)
    expect(len(ids) > 20, f"only {len(ids)} ids")


def a045_the_last_five_batches_are_known(env):
    topic = env.cluster.create(1)
    sender = _Sender(env, topic)
    sequence = 0
    for count in (1, 2, 3, 1, 2, 3, 1):
        sender.stored(sequence, count)
        sequence += count
    end = env.cluster.end(topic)
    for index in (6, 2, 4, 3, 5, 6):
        code, offset, original = sender.resend(index)
        expect_equal(f"resend of batch {index}", (code, offset), (0, original))
    for index in (0, 1):
        code, _, _ = sender.resend(index)
        expect(code in (OUT_OF_ORDER, DUPLICATE), f"resend of an older batch: error {code}")
    expect_equal("log end", env.cluster.end(topic), end)
    sender.stored(sequence, 1)


def a045_part_or_more_of_a_batch_is_no_duplicate(env):
    topic = env.cluster.create(1)
    sender = _Sender(env, topic)
    sender.stored(0, 4)
    for sequence, count in ((0, 3), (0, 5), (1, 3), (2, 1), (5, 1), (100, 1)):
        code = sender.send(sequence, count).error_code
        expect_equal(f"sequences {sequence}..{sequence + count}", code, OUT_OF_ORDER)
    expect_equal("log end", env.cluster.end(topic), 4)
    sender.stored(4, 1)


def a045_in_flight_batches_are_taken_in_order(env):
    topic = env.cluster.create(1)
    sender = _Sender(env, topic)
    conn = env.cluster.leader(topic)
    for start in range(0, 50, 5):
        sent = [conn.send("Produce", 9, **env.cluster.produce_fields(topic, 0, sender.make(start + at, 1), 9, acks=-1)) for at in range(5)]
        # Each once more in the same breath: a duplicate of what is not yet answered.
        sent += [conn.send("Produce", 9, **env.cluster.produce_fields(topic, 0, sender.make(start + at, 1), 9, acks=-1)) for at in range(5)]
        answers = [conn.receive("Produce", 9, correlation).responses[0].partition_responses[0] for correlation in sent]
        expect_equal("errors", {answer.error_code for answer in answers}, {0})
        expect_equal("offsets", [answer.base_offset for answer in answers], list(range(start, start + 5)) * 2)
    expect_equal("log end", env.cluster.end(topic), 50)


def a045_sequences_wrap_at_2_31(env):
    topic = env.cluster.create(1)
    sender = _Sender(env, topic)
    last = 2**31 - 1
    # A producer without state may start anywhere.
    sender.stored(last - 2, 2)
    # Of these three the first is 2^31-1, the others 0 and 1.
    sender.stored(last, 3)
    expect_equal("resend across the wrap", sender.resend(1)[:2], (0, 2))
    sender.stored(2, 1)
    expect_equal("log end", env.cluster.end(topic), 6)


def a045_epochs_fence(env):
    topic = env.cluster.create(1)
    sender = _Sender(env, topic)
    sender.stored(0, 2)
    expect_equal("a new epoch must start at 0", sender.send(2, 1, epoch=1).error_code, OUT_OF_ORDER)
    sender.stored(0, 1, epoch=1)
    expect_equal("the old epoch", sender.send(2, 1, epoch=0).error_code, BAD_EPOCH)
    expect_equal("log end", env.cluster.end(topic), 3)


def a045_partitions_are_apart(env):
    topic = env.cluster.create(2)
    sender = _Sender(env, topic)
    for partition in (0, 1):
        answer = env.cluster.produce(topic, sender.make(0, 1), partition=partition)
        expect_equal("error", (answer.error_code, answer.base_offset), (0, 0))


def a045_the_window_survives_kill_and_clean_restart(env):
    with env.own_broker() as own:
        topic = own.cluster.create(1)
        sender = _Sender(own, topic)
        for sequence in range(7):
            sender.stored(sequence, 1)
        for clean in (False, True, False):
            own.restart(clean=clean)
            own.cluster.learn(topic)
            known = (2, 3, 4, 5, 6) if not own.judge else (6,)
            for index in known:
                code, offset, original = sender.resend(index)
                expect_equal(f"resend of batch {index} after a restart (clean: {clean})", (code, offset), (0, original))
            expect_equal("log end", own.cluster.end(topic), 7)
        sender.stored(7, 1)


def a046_an_idle_producer_goes_on_after_its_state_expired(env):
    with env.own_broker(producer_id_expiration_ms=1000, producer_id_expiration_check_interval_ms=200) as own:
        topic = own.cluster.create(1)
        sender, gone = _Sender(own, topic), _Sender(own, topic)
        sender.stored(0, 3)
        gone.stored(0, 3)
        time.sleep(3)
        # Whether the state is gone or not, the next batch is taken.
        sender.stored(3, 1)
        # And it is gone: a producer that nobody knows may begin anywhere.
        gone.stored(70, 1)
    topic = env.cluster.create(1)
    sender = _Sender(env, topic)
    sender.stored(0, 1)
    time.sleep(1)
    expect_equal("deduplicated as long as it is known", sender.resend(0)[:2], (0, 0))


def a048_no_gap_and_no_duplicate_over_kills(env):
    with env.own_broker() as own:
        topic = own.cluster.create(1)
        sender = _Sender(own, topic)
        sequence = 0
        for _ in range(5):
            conn = own.cluster.leader(topic)
            sent = [conn.send("Produce", 9, **own.cluster.produce_fields(topic, 0, sender.make(sequence + at, 1), 9, acks=-1)) for at in range(5)]
            # The first answers are waited for, the others are lost with the process.
            for correlation in sent[:2]:
                conn.receive("Produce", 9, correlation)
            own.restart()
            own.cluster.learn(topic)
            for at in range(5):
                answer = sender.send(sequence + at, 1)
                if own.judge and answer.error_code == OUT_OF_ORDER:
                    # Only the last batch is known to Kafka after a restart.
                    continue
                expect_equal(f"resend of sequence {sequence + at}", answer.error_code, 0)
                expect_equal("its offset", answer.base_offset, sequence + at)
            sequence += 5
        values = own.cluster.values(topic)
        expect_equal("values", values, [f"{sender.id} {at}".encode() for at in range(sequence)])


def a049_state_does_not_expire_by_record_time(env):
    with env.own_broker() as own:
        topic = own.cluster.create(1, message_timestamp_after_max_ms=2**63 - 1)
        for stamp in (1, 4_070_908_800_000):
            sender = _Sender(own, topic)
            for sequence in range(3):
                sender.stored(sequence, 1, timestamp=stamp)
            if not own.judge:
                own.restart()
                own.cluster.learn(topic)
            code, offset, original = sender.resend(2)
            expect_equal("resend", (code, offset), (0, original))
    if env.judge:
        # It does expire them by record time: the report's fault is Kafka's too.
        return
    # And it does expire by the broker's clock, whatever the records say.
    with env.own_broker(producer_id_expiration_ms=1000, producer_id_expiration_check_interval_ms=200) as own:
        topic = own.cluster.create(1, message_timestamp_after_max_ms=2**63 - 1)
        senders = {stamp: _Sender(own, topic) for stamp in (1, 4_070_908_800_000)}
        for stamp, sender in senders.items():
            sender.stored(0, 1, timestamp=stamp)
            expect_equal("a jump while it is known", sender.send(9, 1, timestamp=stamp).error_code, OUT_OF_ORDER)
        time.sleep(3)
        for stamp, sender in senders.items():
            sender.stored(9, 1, timestamp=stamp)
