#!/usr/bin/env python3
"""The whole test suite, stage by stage. `scripts/test` calls it; see there.

Each stage is a command. Its checks are counted from the closing lines that cargo's runner and `harness.checks` print; a stage that
exits with an error without a failed check counts as one failure. The last line sums up.
"""

import os
import re
import subprocess
import sys
import time

from harness import cache

PYTHON = sys.executable

# name, command, what it is. In the order of their cost.
STAGES = [
    ("check", ["scripts/check"], "format, lints, unit tests, the shape of the tree"),
    ("rust", ["cargo", "test", "--quiet", "--no-fail-fast", "--tests", "--features", "planted-bugs"], "all Rust tests, those that must find planted bugs too"),
    ("perf", ["tests/perf.py"], "the measuring rig: order, disturbance, lost records, reports"),
    ("messages", ["tests/messages.py"], "every message in every version, judged by Kafka's own classes"),
    ("protocol", ["tests/protocol/run.py"], "public bug reports over raw sockets, 1 and 3 shards"),
    ("interop", ["tests/interop.py"], "real clients and Apache Kafka's tools, 1 and 3 shards"),
    ("demo", ["tests/demo.py"], "corelane demo: passes a right broker, fails a wrong one"),
    ("restart", ["tests/restart/run.py"], "SIGKILL and SIGTERM under load, slow, full and failing disks"),
]

# Commands that Rust tests call, and their Debian packages.
RUST_TOOLS = [("strace", "strace"), ("mkfs.ext4", "e2fsprogs"), ("fsfreeze", "util-linux"), ("mount", "mount")]

CARGO = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed;")
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed$")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run_stage(command):
    """Runs a stage, showing its output as it comes. Gives (passed, failed, exit code)."""
    passed = failed = 0
    process = subprocess.Popen(command, cwd=cache.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    for line in process.stdout:
        bare = COLOUR.sub("", line)
        # A closing line of a stage is shown indented: only the suite's own last line is the suite's.
        sys.stdout.write(f"   {line}" if CARGO.search(bare) or PLAIN.match(bare) else line)
        sys.stdout.flush()
        match = CARGO.search(bare) or PLAIN.match(bare.strip())
        if match:
            passed += int(match[1])
            failed += int(match[2])
    return passed, failed, process.wait()


def main():
    wanted = sys.argv[1:]
    if wanted == ["--list"]:
        for name, command, what in STAGES:
            print(f"{name:10} {what}: {' '.join(command)}")
        return 0
    unknown = [name for name in wanted if name not in [stage[0] for stage in STAGES]]
    if unknown:
        print(f"no such stage: {', '.join(unknown)} (scripts/test --list)", file=sys.stderr)
        return 2
    os.environ.setdefault("CARGO_TERM_COLOR", "never")
    print(f"Disk tests use {cache.test_dir()}: {cache.file_system(cache.test_dir())}", flush=True)
    passed = failed = 0
    rows = []
    for name, command, what in STAGES:
        if wanted and name not in wanted:
            continue
        print(f"\n==== {name}: {what}", flush=True)
        if name == "rust":
            for tool, package in RUST_TOOLS:
                cache.debian(tool, package)
        start = time.monotonic()
        stage_passed, stage_failed, code = run_stage(command)
        if code != 0 and stage_failed == 0:
            stage_failed = 1
        passed, failed = passed + stage_passed, failed + stage_failed
        rows.append((name, stage_passed, stage_failed, time.monotonic() - start))
    print()
    for name, stage_passed, stage_failed, seconds in rows:
        print(f"{name:10} {stage_passed:5} passed {stage_failed:5} failed {seconds:7.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
