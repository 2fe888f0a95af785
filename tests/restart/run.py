#!/usr/bin/env python3
"""What is acknowledged stays: SIGKILL and SIGTERM under load, slow, full and failing disks.

    tests/restart/run.py                      what the suite runs
    tests/restart/run.py --kills 100          the long version
    tests/restart/run.py --only kills --shards 3 --seed 7

Producers run in processes of their own over all restarts: librdkafka with its idempotent settings, raw single records with acks=1, raw
batches of 128 KiB with acks=1. A seed gives the moments of the kills.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import broker, cache  # noqa: E402

cache.in_venv()

from harness import mounts  # noqa: E402
from harness.checks import Checks, expect, expect_equal  # noqa: E402
from harness.records import batch, parse  # noqa: E402
from harness.wire import Closed, Cluster, Conn  # noqa: E402
from rig import Lost, Rig  # noqa: E402

STORAGE_ERROR = 56


def kills(options, shards):
    """Every acknowledged (partition, offset, bytes) is there after each of N kills."""
    with broker.Corelane(shards=shards) as running, Rig(running, options.seed) as rig:
        for number in range(options.kills):
            rig.run_for_a_while()
            rig.kill_and_start()
            rig.compare()
            if number % 10 == 9:
                print(f"   {number + 1} kills, {sum(len(p.acknowledged) for p in rig.producers)} acknowledgements", flush=True)
        for producer in rig.producers:
            producer.finish()
        rig.compare(whole=True)
        gaps = sorted(rig.gaps)
        counts = ", ".join(f"{p.kind} {len(p.acknowledged)}" for p in rig.producers)
        median_ms = gaps[len(gaps) // 2] * 1000
        print(f"   {options.kills} kills; acknowledged: {counts}; last acknowledgement before a kill: median {median_ms:.1f} ms", flush=True)
        expect(median_ms < 20, "the kills did not come in the last milliseconds after an acknowledgement")


def dump(data, logs):
    """Apache Kafka's own reading of segments: nothing may be wrong, and every batch is counted."""
    command = [*cache.kafka_tool("DumpLogSegments"), "--deep-iteration", "--files", ",".join(map(str, logs))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    expect(done.returncode == 0, f"kafka-dump-log ended with {done.returncode}: {done.stderr[-1500:]}")
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "isvalid: false" in line or "Exception" in line or "mismatch" in line.lower()]
    # It says "-1 is followed by N" for each segment that does not start at 0, Kafka's own too.
    complaints += [line for line in done.stdout.splitlines() if " is followed by " in line and not line.strip().startswith("-1 ")]
    expect(not complaints, f"kafka-dump-log complains: {complaints[:5]}")
    return sum(line.startswith("baseOffset:") for line in done.stdout.splitlines())


def clean_stop(options, shards):
    """SIGTERM under load: exit code 0 within 5 s, all is there afterwards, and Kafka's tools read the stopped directory."""
    with broker.Corelane(shards=shards) as running, Rig(running, options.seed) as rig:
        for _ in range(2):
            rig.run_for_a_while()
            expect_equal("exit code", running.stop(5), 0)
            running.start()
            rig.compare()
        for producer in rig.producers:
            producer.finish()
        rig.compare(whole=True)
        expect_equal("exit code", running.stop(5), 0)
        folders = [path for path in sorted(running.data.iterdir()) if path.is_dir() and path.name.startswith(tuple(p.topic for p in rig.producers))]
        expect_equal("partition directories", len(folders), sum(p.partitions for p in rig.producers))
        batches = dump(running.data, [path for folder in folders for path in sorted(folder.glob("*.log"))])
        stored = sum(len(p.acknowledged) for p in rig.producers if p.kind != "idempotent")
        expect(batches >= stored, f"kafka-dump-log found {batches} batches, {stored} raw ones were acknowledged")
        indexes = [path for folder in folders for kind in ("*.index", "*.timeindex") for path in sorted(folder.glob(kind))]
        expect(indexes, "a clean stop left no index")
        dump(running.data, indexes)
        for folder in folders:
            for path in folder.glob("*.snapshot"):
                dump(running.data, [path])
                break
        # And it starts from what it left.
        running.start()
        rig.compare(whole=True)


def on_disk(made, shards, group=None):
    running = broker.Corelane(shards=shards, folder=made.path / "broker")
    running.folder.mkdir()
    if group is not None:
        running.before_exec = lambda: group.write_text(str(os.getpid()))
    # The broker's own output is not to fail with its disk.
    running.log = made.image.with_name("broker.log")
    return running


def slow_disk(options, shards):
    """Direct writes of a killed process may still land while the next one starts. Nothing acknowledged is lost or overwritten."""
    with mounts.disk(1500) as made, mounts.slow_writes(made, 6 << 20) as group:
        with on_disk(made, shards, group) as running, Rig(running, options.seed) as rig:
            for _ in range(max(3, options.kills // 2)):
                rig.run_for_a_while(1)
                rig.kill_and_start()
                rig.compare()
            for producer in rig.producers:
                producer.finish()
            rig.compare(whole=True)


def planted(options, shards):
    """The same test finds a broker that acknowledges what it has not written: else it proves nothing. Writes are held back for a moment,
    because one that was handed to the kernel lands although its process is killed; holding them alone loses nothing."""
    binary = broker.corelane_binary(planted=True)
    for bug, most in (("", 3), ("AcknowledgeBeforeWritten", 15)):
        env = {"CORELANE_HOLD_WRITES_MS": "30", **({"CORELANE_PLANT": bug} if bug else {})}
        with broker.Corelane(shards=shards, binary=binary, env=env) as running, Rig(running, options.seed) as rig:
            expect(bug in running.tail(), "the bug is not planted")
            found = None
            for number in range(most):
                rig.run_for_a_while()
                try:
                    rig.kill_and_start()
                    rig.compare()
                except Lost as lost:
                    found = f"at kill {number + 1}: {lost}"
                    break
            print(f"   {bug or 'no bug'}: {found}", flush=True)
            expect((found is not None) == bool(bug), f"{bug or 'no bug'}, found {found}")


class Filler:
    """Produces until it is refused, and knows what was acknowledged."""

    def __init__(self, running, partitions=2):
        self.running = running
        self.rng = random.Random(1)
        self.cluster = Cluster(running.port, settle=True)
        self.partitions = partitions
        self.topic = self.cluster.create(partitions, segment_bytes=4 << 20)
        self.stored = {}

    def produce(self, partition, size):
        made = batch([self.rng.randbytes(size)])
        answer = self.cluster.produce(self.topic, made, partition=partition, acks=self.rng.choice([1, -1]))
        if answer.error_code == 0:
            self.stored[partition, answer.base_offset] = parse(made)[0].crc
        return answer.error_code

    def until_refused(self, most_bytes, sizes=(200, 5_000, 200_000, 900_000)):
        """Fills until every partition refuses; gives the codes that were met."""
        codes, sent, refused = set(), 0, set()
        while len(refused) < self.partitions:
            partition, size = self.rng.choice([p for p in range(self.partitions) if p not in refused]), self.rng.choice(sizes)
            code = self.produce(partition, size)
            if code:
                codes.add(code)
                # Large ones are refused before small ones: full is what refuses the smallest too.
                sizes = sizes[:-1] if len(sizes) > 1 else sizes
                if len(sizes) == 1:
                    refused.add(partition)
            sent += size
            expect(sent < most_bytes, f"{sent >> 20} MiB were taken by a smaller disk")
        return codes

    def reconnect(self):
        self.cluster.close()
        self.cluster.learn(self.topic, self.partitions)

    def check(self):
        for partition in range(self.partitions):
            there = {each.base_offset: each.crc for each in self.cluster.read_all(self.topic, partition)}
            for (p, offset), crc in self.stored.items():
                if p == partition and there.get(offset) != crc:
                    raise Lost(f"partition {p}, offset {offset}: acknowledged, and not there")

    def until_taken(self, within_s=30):
        """Writing resumes: every partition takes a record again."""
        deadline = time.monotonic() + within_s
        for partition in range(self.partitions):
            while (code := self.produce(partition, 500_000)) != 0:
                expect(time.monotonic() < deadline, f"partition {partition} still refuses with {code}, {within_s} s after space returned")
                time.sleep(0.05)


def full_disk(options, shards):
    """A full file system: produce is refused with KAFKA_STORAGE_ERROR, reads go on, writing resumes when space returns; also over a kill."""
    with mounts.disk(240) as made:
        ballasts = [made.path / "ballast", made.path / "more-ballast"]
        for ballast in ballasts:
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 60 << 20)
        # Its log is on the full disk too, as where everything is on one volume.
        running = on_disk(made, shards)
        running.log = running.folder / "broker.log"
        with running:
            filler = Filler(running)
            expect_equal("codes of a full disk", filler.until_refused(240 << 20), {STORAGE_ERROR})
            expect(len(filler.stored) > 50, f"only {len(filler.stored)} records fit")
            filler.check()
            ballasts.pop().unlink()
            filler.until_taken()
            filler.check()
            # Full again, and killed. Whether it starts on a full disk or says in one line that it cannot: nothing is lost.
            expect_equal("codes of a full disk", filler.until_refused(240 << 20), {STORAGE_ERROR})
            filler.cluster.close()
            running.kill()
            running.spawn()
            try:
                running.wait_ready()
                filler.reconnect()
                filler.check()
                filler.cluster.close()
                running.kill()
            except broker.NotReady:
                expect_equal("exit code", running.process.returncode, 1)
            ballasts.pop().unlink()
            running.start()
            filler.reconnect()
            filler.check()
            filler.until_taken()
            filler.check()


def failing_disk(options, shards):
    """EIO on every write: produce is refused with KAFKA_STORAGE_ERROR, the process goes on; a start on the mended disk has everything."""
    with mounts.disk(1000) as made:
        running = on_disk(made, shards)
        with running:
            filler = Filler(running)
            for number in range(200):
                expect_equal("code", filler.produce(number % filler.partitions, (200, 5_000, 200_000)[number % 3]), 0)
            made.fail_writes(True)
            for partition in range(filler.partitions):
                for size in (200, 300_000, 200):
                    expect_equal("code on a failing disk", filler.produce(partition, size), STORAGE_ERROR)
            expect(running.healthy(), "the broker ended or stalls")
            filler.cluster.close()
            running.kill()
            made.fail_writes(False)
            made.unmount()
            made.mount()
            running.start()
            filler.reconnect()
            filler.check()
            filler.until_taken()
            filler.check()


def reshard(options, shards):
    """The number of shards may change at every start, after a kill too: partitions move without a loss."""
    with broker.Corelane(shards=5) as running:
        filler = Filler(running, partitions=7)
        for after, clean in [(shards, False), (4, True), (1, False), (5, False), (2, True)]:
            for at in range(100):
                expect_equal("code", filler.produce(at % filler.partitions, (100, 3_000, 200_000)[at % 3]), 0)
            filler.cluster.close()
            if clean:
                expect_equal("exit code", running.stop(5), 0)
            else:
                running.kill()
            running.shards = after
            running.start()
            filler.reconnect()
            leaders = {filler.cluster.leaders[filler.topic, partition] for partition in range(filler.partitions)}
            expect(leaders <= set(range(running.port, running.port + after)), f"{leaders} lead, with {after} shards from port {running.port}")
            filler.check()


def moves(options, shards):
    """Partitions move from shard to shard under load, also in the moment of a kill: no producer meets an error that is not retriable, and
    everything acknowledged is there."""
    shards = max(2, shards)
    with broker.Corelane(shards=shards) as running, Rig(running, options.seed) as rig:
        rng, took = random.Random(options.seed), []

        def places(count):
            for _ in range(count):
                producer = rng.choice(rig.producers)
                yield producer.topic, rng.randrange(producer.partitions), rng.randrange(shards)

        def request(topic, partition, node):
            partition = {"partition_index": partition, "replicas": [node]}
            return {"timeout_ms": 10_000, "allow_replication_factor_change": True, "topics": [{"name": topic, "partitions": [partition]}]}

        for _ in range(3):
            rig.run_for_a_while()
            with Conn(running.port) as conn:
                for place in places(10 * options.kills):
                    started = time.monotonic()
                    answer = conn.ask("AlterPartitionReassignments", 1, **request(*place))
                    took.append(time.monotonic() - started)
                    told = answer.responses[0].partitions[0]
                    expect_equal(f"code of the move of {place}", (answer.error_code, told.error_code), (0, 0))
                # And some that nobody waits for.
                for place in places(5):
                    conn.send("AlterPartitionReassignments", 1, **request(*place))
            rig.kill_and_start()
            rig.compare()
        # By the tool too, back to an even spread; it says nothing moves when there is nothing to do.
        tool = [str(running.binary), "shards", "rebalance", "--seconds", "0.2", "--bootstrap-server", running.bootstrap]
        done = subprocess.run(tool, capture_output=True, text=True, timeout=60)
        expect_equal("exit code of shards rebalance", (done.returncode, done.stderr), (0, ""))
        for producer in rig.producers:
            producer.finish()
        rig.compare(whole=True)
        took.sort()
        print(f"   {len(took)} moves under load: median {took[len(took) // 2] * 1000:.1f} ms, worst {took[-1] * 1000:.0f} ms", flush=True)


def boots(options, shards):
    """Every start serves on every port, with more shards than cores too."""
    for _ in range(40):
        with broker.Corelane(shards=shards + 2) as running:
            expect(running.healthy(), "a port does not answer")


CHECKS = {"boots": boots, "kills": kills, "reshard": reshard, "moves": moves, "planted": planted, "clean_stop": clean_stop, "slow_disk": slow_disk, "full_disk": full_disk, "failing_disk": failing_disk}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--shards", default="1,3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=CHECKS, action="append")
    options = parser.parse_args()
    checks = Checks("restart")

    def run(check, shards):
        try:
            check(options, shards)
        except mounts.Skipped as why:
            print(f"skip {check.__name__}: {why}", flush=True)

    for shards in map(int, options.shards.split(",")):
        for name in options.only or CHECKS:
            checks.run(f"shards={shards} seed={options.seed} {name}: {CHECKS[name].__doc__.split(':')[0].split('.')[0]}", run, CHECKS[name], shards)
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())
