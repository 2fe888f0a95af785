#!/usr/bin/env python3
"""Public bug reports as tests, over raw sockets: each is named by its id and says what a right broker does.

    tests/protocol/run.py                       Corelane with 1 and with 3 shards
    tests/protocol/run.py --broker kafka        Apache Kafka: what it does differently on purpose is written beside the test (`env.wants`)
    tests/protocol/run.py --only a023 --only idem
"""

import argparse
import importlib
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import broker, cache  # noqa: E402

cache.in_venv()

import coverage  # noqa: E402
from harness.checks import Checks, Failed, expect_equal  # noqa: E402
from harness.wire import Cluster, Conn  # noqa: E402

AREAS = ["wire", "apis", "meta", "produce", "garbage", "fetch", "offsets", "idem", "recreate", "cli", "res", "storage"]


class Env:
    """One broker under test and what a test needs around it."""

    def __init__(self, kind, running):
        self.kind = kind
        self.broker = running
        self.port = running.port
        self.cluster = Cluster(running.port, settle=self.judge)

    @property
    def judge(self):
        return self.kind == "kafka"

    def wants(self, ours, kafka):
        """The expectation where Corelane differs from Apache Kafka on purpose."""
        return kafka if self.judge else ours

    def conn(self, port=None, **kwargs):
        return Conn(port or self.port, **kwargs)

    @contextmanager
    def own_broker(self, **properties):
        """A broker of the test's own, with other settings or to be killed."""
        named = {key.replace("_", "."): str(value) for key, value in properties.items()}
        with broker.start(self.kind, shards=self.broker.shards, properties=named) as running:
            env = Env(self.kind, running)
            try:
                yield env
            finally:
                env.cluster.close()

    def restart(self, clean=False):
        """Kills (or stops) the broker and starts it again on its data."""
        self.cluster.close()
        if clean:
            self.broker.stop(60 if self.judge else 5)
        else:
            self.broker.kill()
        self.start()

    def start(self):
        self.broker.start()
        # Partitions may serve a moment after the port answers; until then the errors are retriable ones.
        self.cluster.settle = True


def tests(only):
    for area in AREAS:
        module = importlib.import_module(f"faults_{area}")
        for name, function in list(vars(module).items()):
            if callable(function) and getattr(function, "__module__", "") == module.__name__ and not name.startswith("_"):
                if not only or any(name.startswith(each) or area == each for each in only):
                    yield area, name, function


def every_fault_has_a_test():
    names = [name for _, name, _ in tests(None)]
    expect_equal("gaps", coverage.gaps(names), [])


def no_answer(running):
    raise Failed(f"it {'stalls' if running.alive() else f'ended with {running.process.returncode}'}:\n{running.tail(15)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["corelane", "kafka"], default="corelane")
    parser.add_argument("--shards", default="1,3")
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    checks = Checks("protocol")
    if not options.only:
        checks.run("protocol every_fault_has_a_test", every_fault_has_a_test)
    for shards in [1] if options.broker == "kafka" else map(int, options.shards.split(",")):
        with broker.start(options.broker, shards=shards) as running:
            for area, name, function in tests(options.only):
                env = Env(options.broker, running)
                label = f"{options.broker} shards={shards} {area} {name}"
                checks.run(label, function, env)
                env.cluster.close()
                if not running.healthy():
                    checks.run(f"{label} left a broker that answers", no_answer, running)
                    running.kill()
                    running.start()
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())
