"""What is measured in which order, which measures count, and what the rows of a results file say. No broker, no clock: tests/perf.py tests it."""

import json
import statistics


def read(path):
    """The rows of a results file. A line that a kill cut short is no row."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def sides_of(cell, names):
    """Who is measured in a cell: a yardstick only where the cell has one."""
    return [name for name in names if name != "bare" or "bare" in cell]


def plan(cells, wanted, names, pairs, rows):
    """(cell, pair, side) still to be measured. A pair goes one way, the next one the other way: ABBA."""
    have = {(row["cell"], row["pair"], row["broker"]) for row in rows if not row["disturbed"]}
    for cell in wanted:
        sides = sides_of(cells[cell], names)
        for pair in range(pairs):
            for name in sides if pair % 2 == 0 else reversed(sides):
                if (cell, pair, name) not in have:
                    yield cell, pair, name


def other_cores(busy_s, ours_s, seconds):
    """Cores that neither the brokers nor the generators nor the kernel's own threads used."""
    return round(max(0.0, busy_s - ours_s) / seconds, 4)


def is_disturbed(row, other_max, steal_max):
    return row["other_cores"] > other_max or row["steal_cores"] > steal_max


def lost(answered, stored):
    """Records that were acknowledged and are not in the logs. More than was acknowledged is as wrong: everything was answered."""
    return answered - stored


def costs(report, used_s):
    """What a measure cost the broker, given the CPU seconds that it used meanwhile."""
    return {
        "cpu_cores": used_s / report["seconds"] if report["seconds"] else None,
        "cpu_us_per_request": used_s * 1e6 / report["requests"] if report["requests"] else None,
        "cpu_s_per_gb": used_s * 1e9 / report["bytes"] if report["bytes"] else None,
    }


def median(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None
