"""A broker under three producers, killed and started again; what was acknowledged, and what is there."""

import bisect
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness.checks import Failed, expect
from harness.wire import Cluster

PRODUCER = Path(__file__).with_name("producer.py")
# kind -> partitions. More than shards, so that each shard has some of each.
KINDS = {"idempotent": 6, "small": 4, "bulk": 3}


class Lost(Failed):
    """Something acknowledged is not there, or something is there that should not be."""


class Producer:
    """A producer in a process of its own, and everything that it said."""

    def __init__(self, kind, bootstrap, topic, partitions, seed):
        self.kind, self.topic, self.partitions = kind, topic, partitions
        command = [sys.executable, str(PRODUCER), kind, bootstrap, topic, str(partitions), str(seed)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # (partition, offset) -> (count, mark)
        self.acknowledged = {}
        self.times = []
        self.ups = 0
        self.faults = []
        self.news = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            words = line.split()
            with self.news:
                if words[0] == "a":
                    place = int(words[1]), int(words[2])
                    if place in self.acknowledged:
                        self.faults.append(f"offset {place} was given twice")
                    self.acknowledged[place] = int(words[3]), int(words[4])
                    self.times.append(float(words[5]))
                elif words[0] == "up":
                    self.ups += 1
                else:
                    self.faults.append(line.strip())
                self.news.notify_all()

    def wait(self, what, condition, timeout_s=60):
        with self.news:
            expect(self.news.wait_for(condition, timeout_s), f"{self.kind}: {what} did not happen in {timeout_s} s; {self.faults[:3]}")

    def last_before(self, moment):
        """When the last acknowledgement before `moment` came."""
        with self.news:
            at = bisect.bisect_right(self.times, moment)
            return self.times[at - 1] if at else 0.0

    def snapshot(self):
        with self.news:
            return dict(self.acknowledged)

    def finish(self):
        """Lets it end on its own, so that everything it sent is answered."""
        self.process.stdin.close()
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed(f"the {self.kind} producer does not end") from None
        self.reader.join(10)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Rig:
    """Producers on a running broker."""

    def __init__(self, broker, seed):
        self.broker = broker
        self.seed = seed
        self.rng = random.Random(seed)
        # From the last acknowledgement before a kill to the kill, in seconds.
        self.gaps = []
        # (kind, partition) -> offset up to which everything was compared.
        self.compared = {}
        self.read = 0
        cluster = Cluster(broker.port)
        self.producers = []
        for kind, partitions in KINDS.items():
            topic = cluster.create(partitions, name=f"{kind}-{seed}", segment_bytes=16 << 20)
            self.producers.append(Producer(kind, broker.bootstrap, topic, partitions, seed))
        cluster.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for producer in self.producers:
            producer.kill()

    def run_for_a_while(self, longest_s=0.5):
        """Until each producer had acknowledgements on this start of the broker, then a random while more."""
        for producer in self.producers:
            had = len(producer.acknowledged)
            producer.wait("an acknowledgement", lambda producer=producer, had=had: len(producer.acknowledged) > had + 3 or producer.faults)
        time.sleep(self.rng.uniform(0.0, longest_s))

    def kill_and_start(self):
        """SIGKILL under load and an immediate start. Afterwards all that the producers read from the dead process is known."""
        ups = {producer: producer.ups for producer in self.producers}
        self.broker.process.kill()
        killed = time.monotonic()
        self.broker.process.wait()
        self.broker.start()
        for producer in self.producers:
            # A raw producer says `up` when it is back: it said every answer before. librdkafka's reports are late at most; what is
            # not compared now is compared at the next kill and in the end.
            if producer.kind != "idempotent":
                producer.wait("a new connection", lambda p=producer: p.ups > ups[p] or p.faults)
        before = [producer.last_before(killed) for producer in self.producers]
        self.gaps.append(killed - max(before))

    def compare(self, whole=False):
        """Every acknowledged (partition, offset, bytes) is there; batches are dense; idempotent messages are there once and in order."""
        cluster = Cluster(self.broker.port, settle=True)
        try:
            for producer in self.producers:
                wanted = producer.snapshot()
                if producer.faults:
                    raise Lost(f"{producer.kind}: {producer.faults[:5]}")
                cluster.learn(producer.topic, producer.partitions)
                for partition in range(producer.partitions):
                    self._compare(cluster, producer, partition, wanted, whole)
        finally:
            cluster.close()

    def _compare(self, cluster, producer, partition, wanted, whole):
        place = (producer.kind, partition)
        start = 0 if whole else self.compared.get(place, 0)
        end = max((offset + count for (p, offset), (count, _) in wanted.items() if p == partition), default=0)
        stored_end = cluster.end(producer.topic, partition)
        if stored_end < end:
            raise Lost(f"{producer.topic}-{partition} ends at {stored_end}, offsets below {end} were acknowledged")
        there = {}
        for batch in cluster.read_all(producer.topic, partition, start=start, end=end, limit=8 << 20):
            self.read += len(batch.bytes)
            if producer.kind == "idempotent":
                for offset, _, _, value, _ in batch.records():
                    there[offset] = 1, int(value.split()[0])
            else:
                there[batch.base_offset] = batch.count, batch.crc
        for (p, offset), what in wanted.items():
            if p == partition and offset >= start and there.get(offset) != what:
                raise Lost(f"{producer.topic}-{partition} at {offset}: {what} was acknowledged, {there.get(offset)} is there")
        if producer.kind == "idempotent":
            numbers = [number for _, (_, number) in sorted(there.items())]
            if any(later != earlier + producer.partitions for earlier, later in zip(numbers, numbers[1:])):
                at = next(i for i, pair in enumerate(zip(numbers, numbers[1:])) if pair[1] != pair[0] + producer.partitions)
                raise Lost(f"{producer.topic}-{partition}: messages {numbers[at : at + 4]} stand at {start + at}")
        self.compared[place] = end
