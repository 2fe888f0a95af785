"""Brokers under measure: how they are started, paused and watched. Python's standard library only."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness import broker as brokers  # noqa: E402
from harness import cache  # noqa: E402
from rows import lost, other_cores  # noqa: E402

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


class Lost(Exception):
    """Acknowledged records are not in the logs."""


class Side:
    """A broker under measure. Between `begin` and `end` it is the only one that runs."""

    broker = None
    # What was written for cells that read: (partitions, records), and how many records are in which topic.
    data = None
    data_topic = None

    def begin(self, data=None):
        raise NotImplementedError

    def end(self, topic):
        raise NotImplementedError

    def filled(self, partitions, records):
        """The topic with so many records, written once for all measures that read it."""
        if self.data != (partitions, records):
            topic = f"data-{partitions}p-{records}-{os.getpid()}"
            where = ["--bootstrap-server", self.broker.bootstrap, "--topic", topic, "--partitions", partitions, "--warmup", 0]
            written = perf("produce", *where, "--create", "--record-bytes", 1024, "--batch-bytes", 16384, "--connections", partitions, "--records", records)
            self.data, self.data_topic = (partitions, records), topic
            expect_stored(written["records_answered"], self.broker, topic, partitions)
            # What was written past the page cache is read into it.
            read = perf("consume", *where, "--connections", partitions, "--to-end", "--seconds", 300)
            if read["records_answered"] != written["records_answered"]:
                raise Lost(f"{written['records_answered']} records were acknowledged, {read['records_answered']} are read")
        return self.data_topic


class OneKafka(Side):
    """One Kafka for all cells: warmed once, stopped by SIGSTOP while the other is measured."""

    name = "kafka"
    # Both only make a stop by SIGSTOP harmless and the space of deleted topics free at once; all else are Kafka's defaults.
    settings = {"broker.session.timeout.ms": "3600000", "log.segment.delete.delay.ms": "250"}

    def __init__(self, warm_s):
        self.warm_s = warm_s

    def shown_settings(self):
        return ", ".join([f"heap {PinnedKafka.heap}", *(f"{key}={value}" for key, value in self.settings.items()), "defaults otherwise"])

    def begin(self, data=None):
        if self.broker is None:
            self.broker = PinnedKafka(properties=self.settings).start()
            self._warm()
        else:
            self.broker.process.send_signal(signal.SIGCONT)
            self._settle()
        if self.data and self.data != data:
            self._delete(self.data_topic)
            self.data = None
        return self.broker

    def end(self, topic):
        if topic and topic != self.data_topic:
            self._delete(topic)
        self.broker.process.send_signal(signal.SIGSTOP)

    def close(self):
        if self.broker is not None:
            self.broker.process.send_signal(signal.SIGCONT)
            self.broker.__exit__()
            self.broker = None

    def _warm(self):
        """Both paths, big and small, in turn: the JIT is to have seen them all."""
        each = self.warm_s / 4
        print(f"   warming Kafka for {self.warm_s:.0f} s ({self.shown_settings()})", flush=True)
        common = ["--bootstrap-server", self.broker.bootstrap, "--topic", "warm", "--create", "--partitions", 16, "--warmup", 0, "--seconds", each]
        perf("produce", *common, "--connections", 16, "--records-per-batch", 1, "--record-bytes", 100)
        perf("produce", *common, "--connections", 16, "--batch-bytes", 16384, "--acks", 1)
        perf("produce", *common, "--connections", 4, "--records-per-batch", 900, "--in-flight", 2)
        perf("consume", *common, "--connections", 4, "--again", "--max-bytes", 1048576)
        self._delete("warm")

    def _settle(self):
        """What was due while it was stopped happens first."""
        deadline = time.monotonic() + 30
        while not brokers.answers_metadata(self.broker.port):
            if time.monotonic() > deadline:
                raise SystemExit("Kafka does not answer after SIGCONT")
            time.sleep(0.02)
        time.sleep(0.3)

    def _delete(self, topic):
        """Until its files are gone: the space is to be free, and the work of freeing it done."""
        cache.run([str(brokers.corelane_binary()), "topics", "--bootstrap-server", self.broker.bootstrap, "--delete", "--topic", topic])
        deadline = time.monotonic() + 60
        while any(path.name.startswith(f"{topic}-") or path.name.endswith("-delete") for path in self.broker.data.iterdir()):
            if time.monotonic() > deadline:
                raise SystemExit(f"Kafka does not remove the files of {topic}")
            time.sleep(0.02)


class FreshCorelane(Side):
    """Started anew for every measure, which costs milliseconds and leaves no files behind; it stays only where written data is shared."""

    name = "corelane"

    def begin(self, data=None):
        if self.broker is not None and self.data == data:
            self.broker.process.send_signal(signal.SIGCONT)
            return self.broker
        self.close()
        self.broker = PinnedCorelane(shards=1).start()
        return self.broker

    def end(self, topic):
        if topic is not None and topic == self.data_topic:
            self.broker.process.send_signal(signal.SIGSTOP)
        else:
            self.close()

    def close(self):
        if self.broker is not None:
            self.broker.__exit__()
            self.broker = self.data = self.data_topic = None


def log_ends(port, topic, partitions):
    """The sum of the log ends of a topic whose leaders are all on this port (ListOffsets v1, written out)."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as conn:
        body = struct.pack(">hhih", 2, 1, 7, -1) + struct.pack(">ii", -1, 1)
        body += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", partitions)
        body += b"".join(struct.pack(">iq", partition, -1) for partition in range(partitions))
        conn.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", conn.recv(4, socket.MSG_WAITALL))
        answer = conn.recv(size, socket.MSG_WAITALL)
    rows = list(struct.iter_unpack(">ihqq", answer[8 + 2 + len(topic) + 4 :]))
    codes = {code for _, code, _, _ in rows}
    if len(rows) != partitions or codes != {0}:
        raise SystemExit(f"the log ends of {topic} cannot be asked: {len(rows)} of {partitions} answers, error codes {codes}")
    return sum(end for _, _, _, end in rows)


def expect_stored(answered, broker, topic, partitions):
    """Every acknowledged record has its place in a log, and there is nothing else."""
    missing = lost(answered, log_ends(broker.port, topic, partitions))
    if missing:
        raise Lost(f"{answered} records were acknowledged, the logs hold {answered - missing}")


class BareServer(brokers.Broker):
    """A yardstick that the load generator takes for a broker."""

    name = "bare"

    def __init__(self, bench, partitions):
        super().__init__()
        self.bench, self.partitions = bench, partitions

    def command(self):
        where = ["--port", self.port, "--partitions", self.partitions, "--dir", self.folder, "--cpu", BROKER_CPU]
        return ["taskset", "-c", BROKER_CPU, str(brokers.bench_binary(self.bench)), *map(str, where)]


def bare(yardstick, seconds):
    """Runs a yardstick; gives what it printed as one row."""
    where = ["--server-cpu", BROKER_CPU, "--client-cpu", LOAD_CPU, "--seconds", str(seconds), "--dir", str(cache.test_dir())]
    out = cache.run([brokers.bench_binary(yardstick["bench"]), *where, *yardstick["arguments"]])
    (line,) = out.splitlines()
    return json.loads(line)


def cpu_s(pid):
    """User and system seconds of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_s():
    """(busy, stolen) seconds of all CPUs. Interrupts belong to nobody, so they are left out."""
    user, nice, system, _, _, _, _, steal = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system) / TICKS_PER_S, steal / TICKS_PER_S


def own_s():
    """CPU seconds of this process and of the generators that ended under it."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def by_process():
    """CPU seconds of every process: pid -> (name, seconds, whether it is a kernel thread)."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        kernel = fields[1] == "2" or folder.name == "2"
        found[int(folder.name)] = (head.partition("(")[2], (int(fields[11]) + int(fields[12])) / TICKS_PER_S, kernel)
    return found


class Watch:
    """Whether anything else used the machine meanwhile, processes that came and went included."""

    def __init__(self, ours):
        self.ours = set(ours)
        self.begin = time.monotonic()
        self.before = by_process()
        self.busy, self.steal = machine_s()
        self.own = own_s()

    def end(self):
        busy, steal = machine_s()
        own, after, seconds = own_s(), by_process(), time.monotonic() - self.begin
        ours_s, others = own - self.own, []
        for pid, (name, value, kernel) in after.items():
            used = value - self.before.get(pid, (name, 0.0, kernel))[1]
            if pid in self.ours or kernel:
                ours_s += used
            elif pid != os.getpid() and used > 0:
                others.append((round(used, 2), name))
        others.sort(reverse=True)
        return {
            "other_cores": other_cores(busy - self.busy, ours_s, seconds),
            "other_top": [f"{name} {each} s" for each, name in others[:3]],
            "steal_cores": round((steal - self.steal) / seconds, 4),
        }


def drop_caches():
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        raise SystemExit(f"this cell needs an empty page cache, which only root can make: {error}") from None


class Formatted:
    """A formatted data folder of Kafka: making it is not a part of the start."""

    def __init__(self):
        self.made = None

    def copy(self):
        if self.made is None:
            self.made = PinnedKafka()
            self.made.format()
        fresh = PinnedKafka()
        shutil.copytree(self.made.data, fresh.data)
        return fresh

    def close(self):
        if self.made is not None:
            shutil.rmtree(self.made.folder, ignore_errors=True)


def start_ms(made):
    """From the start of the process to its first Metadata answer, in a folder of its own."""
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
