"""Starts and stops one broker on free ports in a temporary folder: Corelane, or Apache Kafka as the judge."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from . import cache


def free_ports(count: int) -> int:
    """The first of `count` neighbouring free ports, below those that the kernel gives to outgoing connections: one of these could take the
    port of a broker that is just being restarted."""
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low, high = (10_000, lowest_ephemeral - count) if lowest_ephemeral > 12_000 else (10_000, 60_000)
    for _ in range(200):
        first = random.randrange(low, high)
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for each in held:
                each.close()
    raise SystemExit("no free ports")


def answers_metadata(port: int) -> bool:
    """Whether the port answers a Metadata request (v1, all topics) with at least one broker."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as conn:
            conn.settimeout(2)
            body = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)
            conn.sendall(struct.pack(">i", len(body)) + body)
            head = conn.recv(12, socket.MSG_WAITALL)
            if len(head) < 12:
                return False
            _, correlation, brokers = struct.unpack(">iii", head)
            return correlation == 7 and brokers > 0
    except OSError:
        return False


class NotReady(Exception):
    """A broker that ended, or did not answer, instead of starting."""


class Broker:
    """A broker process and its folder. `start` waits until Metadata is answered."""

    name = "?"
    start_timeout_s = 60

    def __init__(self, shards=1, properties=None, folder=None):
        self.shards = shards
        self.properties = dict(properties or {})
        self.owns_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"{self.name}-", dir=cache.test_dir()))
        self.port = free_ports(shards + 1)
        self.process = None
        self.log = self.folder / "broker.log"
        # Called in the new process before the broker's program starts.
        self.before_exec = None

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def command(self):
        raise NotImplementedError

    def spawn(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, env=self.environment(), preexec_fn=self.before_exec)

    def environment(self):
        return dict(os.environ)

    def start(self):
        self.spawn()
        self.wait_ready()
        return self

    def wait_ready(self):
        deadline = time.monotonic() + self.start_timeout_s
        while not all(answers_metadata(self.port + shard) for shard in range(self.ports_ready())):
            if self.process.poll() is not None:
                raise NotReady(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise NotReady(f"{self.name} does not answer after {self.start_timeout_s} s:\n{self.tail()}")
            time.sleep(0.01)

    def ports_ready(self):
        return 1

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def healthy(self):
        """Whether every shard answers."""
        return self.alive() and all(answers_metadata(self.port + shard) for shard in range(self.ports_ready()))

    def rss_bytes(self):
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def kill(self):
        """SIGKILL, and waits until the process is gone."""
        if self.alive():
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def stop(self, timeout_s=30):
        """SIGTERM; gives the exit code. A broker that does not go in time is killed, and that is an error."""
        if self.process is None:
            return 0
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop within {timeout_s} s of SIGTERM") from None

    def __enter__(self):
        return self if self.process else self.start()

    def __exit__(self, kind=None, *_):
        if kind is not None:
            state = "runs" if self.alive() else f"ended with {self.process and self.process.returncode}"
            print(f"   {self.name} {state}; the end of its log:\n{self.tail(15)}", flush=True)
        self.kill()
        if self.owns_folder and not os.environ.get("CORELANE_TEST_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)


def corelane_binary(planted=False, release=False) -> Path:
    """The binary under test: CORELANE_BIN, or the debug build of this checkout (with debug assertions), built once per run of the suite.

    `planted`: a build whose planted bugs CORELANE_PLANT turns on. It is kept under another name, because cargo puts every build in one place.
    `release`: what users get (CORELANE_BIN_RELEASE).
    """
    variable = "CORELANE_BIN_PLANTED" if planted else "CORELANE_BIN_RELEASE" if release else "CORELANE_BIN"
    named = os.environ.get(variable)
    if named:
        return Path(named)
    features = ["--features", "planted-bugs"] if planted else []
    profile = ["--release"] if release else []
    cache.run(["cargo", "build", "--quiet", "--bin", "corelane", *features, *profile], cwd=cache.ROOT)
    built = cache.target_dir() / ("release" if release else "debug") / "corelane"
    kept = built.with_name("corelane-planted" if planted else "corelane-tested")
    # Another stage's build must not change the file below a broker that runs.
    shutil.copy(built, kept.with_suffix(".new"))
    kept.with_suffix(".new").rename(kept)
    os.environ[variable] = str(kept)
    return kept


def bench_binary(name) -> Path:
    """One of benches/, built for release, to be run on its own (CORELANE_BENCHES names a folder that has it)."""
    named = os.environ.get("CORELANE_BENCHES")
    if named:
        return Path(named) / name
    command = ["cargo", "build", "--quiet", "--release", "--bench", name, "--message-format=json"]
    done = subprocess.run(command, cwd=cache.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return Path(next(each["executable"] for each in messages if each.get("executable") and each["target"]["name"] == name))


class Corelane(Broker):
    name = "corelane"
    start_timeout_s = 30

    def __init__(self, shards=1, properties=None, folder=None, binary=None, env=None):
        super().__init__(shards, properties, folder)
        self.binary = binary or corelane_binary()
        self.env = dict(env or {})
        self.data = self.folder / "data"

    def command(self):
        settings = {
            "log.dirs": str(self.data),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "shards": str(self.shards),
            **self.properties,
        }
        return [str(self.binary), "serve", *(f"{key}={value}" for key, value in settings.items())]

    def environment(self):
        return dict(os.environ, **self.env)

    def ports_ready(self):
        return self.shards


class Kafka(Broker):
    """One Apache Kafka, broker and controller in one process, with its defaults (but replication factors of 1)."""

    name = "kafka"
    heap = "512m"

    def __init__(self, shards=1, properties=None, folder=None):
        super().__init__(1, properties, folder)
        self.data = self.folder / "data"
        self.config = self.folder / "server.properties"

    def java(self, *arguments):
        log_level = os.environ.get("CORELANE_JUDGE_LOG", "warn")
        options = [f"-Xmx{self.heap}", f"-Xms{self.heap}", f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"]
        return [cache.java(), *options, "-cp", f"{cache.jars()}/*", *arguments]

    def write_config(self):
        controller = self.port + 1
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.properties,
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def spawn(self):
        self.write_config()
        if not self.data.exists():
            self.format()
        super().spawn()

    def format(self):
        self.write_config()
        ident = "MkU3OEVBNTcwNTJENDM2Qg"
        cache.run(self.java("kafka.tools.StorageTool", "format", "-t", ident, "-c", self.config))

    def command(self):
        return self.java("kafka.Kafka", str(self.config))


def start(kind, **kwargs):
    return {"corelane": Corelane, "kafka": Kafka}[kind](**kwargs).start()
