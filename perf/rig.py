"""Brokers under measure: how they are started, paused and watched. Python's standard library only."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness import broker as brokers  # noqa: E402
from harness import cache  # noqa: E402

BROKER_CPU, LOAD_CPU = "0", "1"

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# What a single-record cell, or any other, must find free, so that a full disk is not what is measured.
FREE_BYTES_MIN = 25 << 30


class PinnedKafka(brokers.Kafka):
    heap = "1g"

    def command(self):
        return ["taskset", "-c", BROKER_CPU, *super().command()]


class PinnedCorelane(brokers.Corelane):
    def command(self):
        return ["taskset", "-c", BROKER_CPU, *super().command()]


def pinned_perf(*arguments):
    return ["taskset", "-c", LOAD_CPU, str(brokers.corelane_binary()), "perf", *[str(a) for a in arguments]]


def perf(*arguments, timeout=900):
    """Runs `corelane perf`, gives its JSON. Errors in the answers are errors here."""
    done = subprocess.run([*pinned_perf(*arguments), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{' '.join(done.args)}\nended with {done.returncode}: {done.stderr or done.stdout}") from None
    if report["errors"]:
        raise SystemExit(f"{' '.join(done.args)}\n{report['errors']} errors, the first: {report['first_error']}")
    return report


class OneKafka:
    """One Kafka for all cells: warmed once, stopped by SIGSTOP while the other is measured."""

    name = "kafka"

    def __init__(self, warm_s):
        self.warm_s = warm_s
        self.broker = None

    def begin(self):
        if self.broker is None:
            self.broker = PinnedKafka().start()
            self._warm()
        else:
            self.broker.process.send_signal(signal.SIGCONT)
            self._settle()
        return self.broker

    def end(self, topic):
        if topic:
            delete_topic(self.broker, topic)
        self.broker.process.send_signal(signal.SIGSTOP)

    def close(self):
        if self.broker is not None:
            self.broker.process.send_signal(signal.SIGCONT)
            self.broker.__exit__()
            self.broker = None

    def _warm(self):
        """Both paths, big and small, in turn: the JIT is to have seen them all."""
        each = self.warm_s / 4
        print(f"   warming Kafka for {self.warm_s:.0f} s", flush=True)
        common = ["--bootstrap-server", self.broker.bootstrap, "--topic", "warm", "--create", "--partitions", 16, "--warmup", 0, "--seconds", each]
        config = ["--topic-config", "file.delete.delay.ms=1000"]
        perf("produce", *common, *config, "--connections", 16, "--records-per-batch", 1, "--record-bytes", 100)
        perf("produce", *common, *config, "--connections", 16, "--batch-bytes", 16384, "--acks", 1)
        perf("produce", *common, *config, "--connections", 4, "--records-per-batch", 900, "--in-flight", 2)
        perf("consume", *common, "--connections", 4, "--again", "--max-bytes", 1048576)
        delete_topic(self.broker, "warm")

    def _settle(self):
        """After SIGCONT its own heartbeat is late, so it fences and unfences itself."""
        deadline = time.monotonic() + 30
        while not brokers.answers_metadata(self.broker.port):
            if time.monotonic() > deadline:
                raise SystemExit("Kafka does not answer after SIGCONT")
            time.sleep(0.05)
        time.sleep(2)


class FreshCorelane:
    """Started anew for every measure: that costs milliseconds, and leaves no files behind."""

    name = "corelane"

    def __init__(self):
        self.broker = None

    def begin(self):
        self.broker = PinnedCorelane(shards=1).start()
        return self.broker

    def end(self, topic):
        self.broker.__exit__()
        self.broker = None

    def close(self):
        if self.broker is not None:
            self.end(None)


def delete_topic(broker, topic):
    command = [str(brokers.corelane_binary()), "topics", "--bootstrap-server", broker.bootstrap, "--delete", "--topic", topic]
    cache.run(command)
    # file.delete.delay.ms is 1 s: the space is to be free, and the work of freeing it done.
    time.sleep(2)


def cpu_s(pid):
    """User and system seconds of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def steal_s():
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[8]) / TICKS_PER_S


def others(ours):
    """CPU seconds of every process but the kernel's threads and `ours`: pid -> (name, seconds)."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ours:
            continue
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if fields[1] == "2" or folder.name == "2":
            continue
        name = head.partition("(")[2]
        found[int(folder.name)] = (name, (int(fields[11]) + int(fields[12])) / TICKS_PER_S)
    return found


class Watch:
    """Whether anything else used the machine meanwhile."""

    def __init__(self, ours):
        # The generator runs under this process, and ends before it is asked for.
        self.ours = {os.getpid(), *ours}
        self.begin = time.monotonic()
        self.steal = steal_s()
        self.before = others(self.ours)

    def end(self, generators=()):
        seconds = time.monotonic() - self.begin
        ours = {*self.ours, *generators}
        used = []
        for pid, (name, after) in others(ours).items():
            before = self.before.get(pid, (name, 0.0))[1]
            if after > before:
                used.append((round(after - before, 2), name))
        used.sort(reverse=True)
        return {
            "other_cores": round(sum(each for each, _ in used) / seconds, 4),
            "other_top": [f"{name} {each} s" for each, name in used[:3]],
            "steal_cores": round((steal_s() - self.steal) / seconds, 4),
        }


def drop_caches():
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        raise SystemExit(f"this cell needs an empty page cache, which only root can make: {error}") from None


def start_ms(name):
    """From the start of the process to its first Metadata answer, in a folder of its own."""
    made = PinnedKafka() if name == "kafka" else PinnedCorelane(shards=1)
    if name == "kafka":
        # The format is not a part of the start.
        made.spawn()
        made.wait_ready()
        made.stop()
    begin = time.monotonic()
    with made.start():
        return (time.monotonic() - begin) * 1000


def check_space(folder):
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_MIN:
        raise SystemExit(f"only {free >> 30} GiB are free in {folder}: {FREE_BYTES_MIN >> 30} are needed")


def machine():
    """What figures depend on."""
    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "file_system": cache.file_system(cache.test_dir()),
        "commit": commit,
        "kafka": cache.KAFKA_VERSION,
    }


def scratch():
    return tempfile.TemporaryDirectory(prefix="perf-", dir=cache.test_dir())
