#!/usr/bin/env python3
"""The rig of perf/: the order of measures, what counts, what is reported. No figures: this may run beside anything."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "perf"))

import rig  # noqa: E402
import rows  # noqa: E402
import table  # noqa: E402
from cells import CELLS  # noqa: E402
from harness import broker, cache  # noqa: E402
from harness.checks import Checks, expect, expect_equal  # noqa: E402

CELL = {"kind": "produce", "text": "a cell"}
WITH_BARE = {"kind": "consume", "text": "a read", "bare": {"text": "a loop"}}


def row(broker="kafka", cell="a", pair=0, disturbed=False, **more):
    machine = {"commit": "c0ffee", "kafka": "4.4.0", "cpu": "CPU", "cpus": 2, "kernel": "6", "file_system": "ext4"}
    machine["kafka_settings"] = "heap 1g" if broker == "kafka" else None
    return {"cell": cell, "pair": pair, "broker": broker, "disturbed": disturbed, "at": "2026", "machine": machine, **more}


def pairs_go_there_and_back():
    cells = {"a": CELL, "b": WITH_BARE}
    order = list(rows.plan(cells, ["a", "b"], ["kafka", "corelane", "bare"], 2, []))
    k, c, b = "kafka", "corelane", "bare"
    wanted = [("a", 0, k), ("a", 0, c), ("a", 1, c), ("a", 1, k)]
    wanted += [("b", 0, k), ("b", 0, c), ("b", 0, b), ("b", 1, b), ("b", 1, c), ("b", 1, k)]
    expect_equal("order", order, wanted)


def what_is_measured_is_not_measured_again():
    cells = {"a": CELL}
    have = [row("kafka"), row("corelane", disturbed=True), row("corelane", pair=1)]
    left = list(rows.plan(cells, ["a"], ["kafka", "corelane"], 2, have))
    expect_equal("left", left, [("a", 0, "corelane"), ("a", 1, "kafka")])
    expect_equal("nothing left", list(rows.plan(cells, ["a"], ["kafka"], 1, have)), [])


def a_line_that_a_kill_cut_short_is_no_row():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        expect_equal("no file", rows.read(path), [])
        path.write_text(json.dumps({"cell": "a"}) + "\n" + '{"cell": "b", "pa')
        expect_equal("rows", rows.read(path), [{"cell": "a"}])


def costs_are_per_request_and_per_gigabyte():
    costs = rows.costs({"seconds": 4.0, "requests": 200_000, "bytes": 500_000_000}, 2.0)
    expect_equal("costs", costs, {"cpu_cores": 0.5, "cpu_us_per_request": 10.0, "cpu_s_per_gb": 4.0})
    nothing = rows.costs({"seconds": 0, "requests": 0, "bytes": 0}, 0.0)
    expect_equal("of nothing", set(nothing.values()), {None})


def a_measure_counts_only_in_quiet():
    for other, steal, disturbed in ((0.03, 0.02, False), (0.031, 0.0, True), (0.0, 0.021, True), (0.0, 0.0, False)):
        got = rows.is_disturbed({"other_cores": other, "steal_cores": steal}, 0.03, 0.02)
        expect_equal(f"{other} of others, {steal} stolen", got, disturbed)
    expect_equal("cores of others", rows.other_cores(5.0, 4.0, 4.0), 0.25)
    expect_equal("rounding below nothing", rows.other_cores(3.99, 4.0, 4.0), 0.0)


BUSY = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


def foreign_load_is_seen_also_when_it_is_gone_again():
    # A child of this process is the generator; its own child that outlived it belongs to nobody here.
    with tempfile.NamedTemporaryFile() as done:
        watch = rig.Watch(())
        subprocess.run(["sh", "-c", f"setsid sh -c '{sys.executable} -c \"$1\"; echo x > {done.name}' - \"$0\" > /dev/null 2>&1 &", BUSY], check=True)
        deadline = time.monotonic() + 60
        while not Path(done.name).read_text():
            expect(time.monotonic() < deadline, "the load did not end")
            time.sleep(0.01)
        seconds = time.monotonic() - watch.begin
        seen = watch.end()["other_cores"] * seconds
    expect(seen > 0.3, f"0.4 s of a foreign process were seen as {seen:.2f} s")


def the_generator_is_no_foreign_load():
    # A machine on which nothing runs but the generator, which takes 0.4 s.
    real, rig.machine_s = rig.machine_s, iter([(100.0, 7.0), (100.4, 7.5)]).__next__
    try:
        watch = rig.Watch(())
        subprocess.run([sys.executable, "-c", BUSY], check=True)
        seen = watch.end()
        seconds = time.monotonic() - watch.begin
    finally:
        rig.machine_s = real
    expect(seen["other_cores"] * seconds < 0.05, f"{seen['other_cores'] * seconds:.2f} s of the generator count as foreign")
    expect(abs(seen["steal_cores"] * seconds - 0.5) < 0.1, f"0.5 s stolen are shown as {seen['steal_cores']} cores over {seconds:.2f} s")


def medians_and_ratios():
    have = [row("kafka", pair=n, requests_per_s=value, p50_us=2000) for n, value in enumerate((100, 300, 1000))]
    have += [row("corelane", pair=n, requests_per_s=value, p50_us=500) for n, value in enumerate((900, 600))]
    have += [row("corelane", pair=2, requests_per_s=5, disturbed=True)]
    lines = table.report(have, {"a": CELL}).splitlines()
    kafka, corelane, ratio = (next(line for line in lines if f"| {name} |" in line) for name in ("kafka", "corelane", "x"))
    expect("| a cell | kafka | 3 | 300 |" in kafka and "| 2.00 |" in kafka, kafka)
    expect("|  | corelane | 2 | 750 |" in corelane and "| 0.50 |" in corelane, corelane)
    expect("**2.50x**" in ratio and "**0.25x**" in ratio, ratio)
    expect("1 disturbed measures left out" in "\n".join(lines), lines[:3])
    expect("Kafka's settings: heap 1g." in lines, lines[:4])


def the_yardstick_is_compared_pair_by_pair():
    cells = {"b": WITH_BARE}
    # Machines drift: pair 1 is slow for both. The medians of each side alone would say 1.0 / 0.9.
    have = []
    for pair, (ours, bare) in enumerate(((1.0, 0.9), (4.0, 2.0), (1.0, 0.8))):
        have += [row("corelane", "b", pair, cpu_s_per_gb=ours), row("bare", "b", pair, cpu_s_per_gb=bare)]
    have += [row("corelane", "b", 3, cpu_s_per_gb=9.0)]
    (line,) = [line for line in table.report(have, cells).splitlines() if "a loop" in line]
    expect("| 1.25x (1.11, 1.25, 2.00) | at most 1.2x: **missed** |" in line, line)
    produced = table.report(have, {"b": WITH_BARE | {"kind": "produce"}})
    expect("| 1.25x (1.11, 1.25, 2.00) |  |" in produced, produced)
    held = [row("corelane", "b", cpu_s_per_gb=1.2), row("bare", "b", cpu_s_per_gb=1.0)]
    expect("1.20x (1.20) | at most 1.2x: held |" in table.report(held, cells), table.report(held, cells))


def refused(have, cells, why):
    try:
        table.report(have, cells)
    except table.Refused as error:
        expect(why in str(error), f"refused for another reason: {error}")
    else:
        expect(False, f"reported, although: {why}")


def no_report_without_quiet_or_with_a_loss():
    refused([], {"a": CELL}, "nothing to report")
    refused([row(disturbed=True)], {"a": CELL}, "nothing to report")
    refused([row(), row("corelane", disturbed=True)], {"a": CELL}, "always disturbed by other load: a (corelane)")
    refused([row(), row("corelane", lost=3)], {"a": CELL}, "3 acknowledged records LOST")
    # A disturbed row with a loss is a loss all the same.
    refused([row(), row("corelane", disturbed=True, lost=1)], {"a": CELL}, "LOST")


def every_cell_can_be_planned():
    for name, cell in CELLS.items():
        expect(cell["kind"] in ("produce", "consume", "tail", "idle", "start"), f"{name} is a {cell['kind']}")
        if cell["kind"] == "consume":
            expect({"partitions", "fill_records"} <= set(cell), name)
    expect(all("bare" in CELLS[name] for name in ("consume-memory-1m", "consume-cached-1m", "consume-cached-64k")), "a yardstick is missing")


def run_rig(results, *arguments):
    """perf/run within this process, so that a test can change what it asks."""
    loader = importlib.machinery.SourceFileLoader("perf_run", str(ROOT / "perf" / "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("perf_run", loader))
    sys.argv = ["perf/run", str(results), "--brokers", "corelane", "--seconds", "0.2", "--warmup", "0.1", "--keep-disturbed", *arguments]
    rig.FREE_BYTES_MIN = 0
    loader.exec_module(module)
    return module.main()


def measures_are_written_at_once_and_resumed():
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "rows.jsonl"
        cells = ["--cells", "batch16k-100b-16p-acks-all,start", "--pairs", "1"]
        expect_equal("no minutes", run_rig(results, *cells, "--minutes", "0"), 3)
        expect_equal("rows", rows.read(results), [])
        expect_equal("exit code", run_rig(results, *cells), 0)
        got = rows.read(results)
        expect_equal("cells", [each["cell"] for each in got], ["batch16k-100b-16p-acks-all", "start"])
        expect(got[0]["records"] > 0 and got[0]["lost"] == 0 and got[1]["start_ms"] > 0, str(got))
        # As if both had been in quiet: nothing is left to do.
        results.write_text("".join(json.dumps(each | {"disturbed": False}) + "\n" for each in got))
        before = results.read_text()
        expect_equal("exit code", run_rig(results, *cells), 0)
        expect_equal("rows", results.read_text(), before)


def a_lost_record_ends_the_run():
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "rows.jsonl"
        real, rig.log_ends = rig.log_ends, lambda *where: real(*where) - 1
        try:
            run_rig(results, "--cells", "single-100b-64p-acks-1", "--pairs", "1")
        except SystemExit as end:
            expect("1 acknowledged records are LOST" in str(end.code), f"ended with {end.code}")
        else:
            expect(False, "it went on")
        finally:
            rig.log_ends = real
        refused(rows.read(results), CELLS, "LOST")


def log_ends_are_those_of_the_broker():
    with broker.Corelane(shards=1) as running:
        where = ["--bootstrap-server", running.bootstrap, "--topic", "t", "--partitions", 3, "--warmup", 0]
        report = rig.perf("produce", *where, "--create", "--connections", 3, "--records", 1000, "--records-per-batch", 7)
        expect(report["records_answered"] >= 1000, f"{report['records_answered']} answered")
        rig.expect_stored(report["records_answered"], running, "t", 3)
        try:
            rig.expect_stored(report["records_answered"] + 1, running, "t", 3)
        except rig.Lost:
            pass
        else:
            expect(False, "a record too few is not noticed")
        read = rig.perf("consume", *where, "--connections", 3, "--to-end", "--seconds", 60)
        expect_equal("records read", read["records_answered"], report["records_answered"])


CHECKS = [
    pairs_go_there_and_back,
    what_is_measured_is_not_measured_again,
    a_line_that_a_kill_cut_short_is_no_row,
    costs_are_per_request_and_per_gigabyte,
    a_measure_counts_only_in_quiet,
    foreign_load_is_seen_also_when_it_is_gone_again,
    the_generator_is_no_foreign_load,
    medians_and_ratios,
    the_yardstick_is_compared_pair_by_pair,
    no_report_without_quiet_or_with_a_loss,
    every_cell_can_be_planned,
    log_ends_are_those_of_the_broker,
    measures_are_written_at_once_and_resumed,
    a_lost_record_ends_the_run,
]


def main():
    print(f"   {cache.file_system(cache.test_dir())}", flush=True)
    broker.corelane_binary()
    checks = Checks("perf")
    for check in CHECKS:
        checks.run(f"perf {check.__name__}", check)
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())
