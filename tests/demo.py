#!/usr/bin/env python3
"""`corelane demo`: exit code 0 for a broker that is right, 1 for one that is not, and for one that has no room."""

import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import broker, cache, mounts  # noqa: E402
from harness.checks import Checks, expect, expect_equal  # noqa: E402


def demo(binary, folder, *arguments, plant=None, hold_ms=None):
    """Runs it; gives its exit code and all that it printed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("CORELANE_")}
    if plant:
        env["CORELANE_PLANT"] = plant
    if hold_ms:
        env["CORELANE_HOLD_WRITES_MS"] = str(hold_ms)
    command = [str(binary), "demo", "--dir", str(folder), *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=400)
    return done.returncode, done.stdout


def scratch():
    return tempfile.TemporaryDirectory(prefix="demo-", dir=cache.test_dir())


def a_right_broker_passes(shards):
    with scratch() as folder:
        code, said = demo(broker.corelane_binary(release=True), folder, "--records", "400000", "--shards", str(shards))
        expect_equal(f"exit code; it said {said[-1500:]}", code, 0)
        for wanted in ("each is there once, in order, unchanged", "everything of step 1 is there as well", "stopped cleanly", "All is well"):
            expect(wanted in said, f"it does not say: {wanted}")
        expect_equal("kills after which all is there", said.count("acknowledged are there"), 2)
        expect_equal("what it leaves", os.listdir(folder), [])


def its_records_are_of_today():
    """Else retention deletes them, on a machine where the demo takes longer than the 30 s to its first round."""
    with scratch() as folder:
        code, said = demo(broker.corelane_binary(release=True), folder, "--records", "20000", "--shards", "1", "--keep")
        expect_equal(f"exit code; it said {said[-1500:]}", code, 0)
        heads = {segment: segment.read_bytes()[:61] for segment in sorted(Path(folder).rglob("demo-*/*.log"))}
        full = {segment: head for segment, head in heads.items() if head}
        expect(full, "it kept no batch")
        for segment, head in full.items():
            (newest,) = struct.unpack_from(">q", head, 35)
            expect(abs(time.time() * 1000 - newest) < 3_600_000, f"{segment} has a batch of {newest}")


def an_offset_given_twice_fails():
    with scratch() as folder:
        code, said = demo(broker.corelane_binary(planted=True), folder, "--records", "30000", plant="ReuseOffset")
        expect_equal("exit code", code, 1)
        expect("corelane: demo-acks-" in said, f"it does not say where: {said[-1500:]}")
        # The folder with the broker's log stays for whoever wants to know why.
        (left,) = os.listdir(folder)
        expect(left in said, f"it does not name {left}")


def acknowledged_before_written_fails():
    """A kill in the right moment is luck, so it has three."""
    for _ in range(3):
        with scratch() as folder:
            code, said = demo(broker.corelane_binary(planted=True), folder, "--records", "60000", plant="AcknowledgeBeforeWritten", hold_ms=150)
        if code == 1 and "ACKNOWLEDGED RECORDS ARE GONE" in said:
            return
        expect_equal(f"exit code; it said {said[-1500:]}", code, 0)
    expect(False, "three kills of a broker that acknowledges before it writes, and the demo found nothing")


def no_room_fails():
    with mounts.disk(40) as small:
        code, said = demo(broker.corelane_binary(release=True), small.path, "--records", "1000000")
        expect_equal(f"exit code; it said {said[-1500:]}", code, 1)
        expect("panicked" not in said, said[-1500:])


def main():
    checks = Checks("demo")
    for shards in (1, 3):
        checks.run(f"demo shards={shards} a_right_broker_passes", a_right_broker_passes, shards)
    checks.run("demo its_records_are_of_today", its_records_are_of_today)
    checks.run("demo an_offset_given_twice_fails", an_offset_given_twice_fails)
    checks.run("demo acknowledged_before_written_fails", acknowledged_before_written_fails)
    try:
        with mounts.disk(20):
            pass
    except mounts.Skipped as why:
        print(f"skip demo no_room_fails: {why}", flush=True)
    else:
        checks.run("demo no_room_fails", no_room_fails)
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())
