"""The tables of a results file: medians of each side, Corelane as a multiple of Kafka, and of a bare loop where the cell has one."""

from rows import median

LOAD = [
    ("requests/s", "requests_per_s", "{:,.0f}", 1),
    ("records/s", "records_per_s", "{:,.0f}", 1),
    ("MB/s", "mb_per_s", "{:,.0f}", 1),
    ("p50 ms", "p50_us", "{:,.2f}", 1000),
    ("p99 ms", "p99_us", "{:,.2f}", 1000),
    ("p99.9 ms", "p999_us", "{:,.2f}", 1000),
    ("CPU us/request", "cpu_us_per_request", "{:,.1f}", 1),
    ("CPU s/GB", "cpu_s_per_gb", "{:,.3f}", 1),
]
IDLE = [("RSS MiB", "rss_mib", "{:,.0f}", 1), ("CPU %", "cpu_percent", "{:,.2f}", 1)]
START = [("ms", "start_ms", "{:,.0f}", 1)]
COLUMNS = {"idle": IDLE, "start": START}

# Corelane's CPU for a GB is to be at most this multiple of the bare loop's.
BARE_MOST = 1.2


class Refused(Exception):
    """There is nothing that may be reported."""


def report(rows, cells):
    """The whole text. Rows beside which something else used the machine are left out; with a lost record, or a cell that was never quiet,
    there is no report."""
    lost = [row for row in rows if row.get("lost")]
    if lost:
        raise Refused("; ".join(f"{row['cell']} pair {row['pair']} {row['broker']}: {row['lost']} acknowledged records LOST" for row in lost))
    quiet = [row for row in rows if not row["disturbed"]]
    if not quiet:
        raise Refused("every measure was disturbed by other load: there is nothing to report")
    have = {(row["cell"], row["broker"]) for row in quiet}
    never = sorted({(row["cell"], row["broker"]) for row in rows} - have)
    if never:
        raise Refused("always disturbed by other load: " + ", ".join(f"{cell} ({broker})" for cell, broker in never))
    out = head(rows, quiet)
    for columns in (LOAD, IDLE, START):
        mine = [cell for cell in cells if COLUMNS.get(cells[cell]["kind"], LOAD) is columns and any(row["cell"] == cell for row in quiet)]
        if mine:
            out += table(columns, mine, cells, quiet)
    out += yardsticks(cells, quiet)
    return "\n".join(out) + "\n"


def head(rows, quiet):
    machine = quiet[-1]["machine"]
    commits = sorted({row["machine"]["commit"] for row in quiet})
    times = sorted(row["at"] for row in quiet)
    out = [
        f"Corelane {', '.join(commits)} next to Apache Kafka {machine['kafka']}, each on one core, the load on another.",
        f"{machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, {machine['file_system']}.",
        f"{times[0]} to {times[-1]}; {len(rows) - len(quiet)} disturbed measures left out. Medians of n measures; x is Corelane / Kafka.",
    ]
    settings = {row["machine"]["kafka_settings"] for row in quiet if row["machine"].get("kafka_settings")}
    return out + [f"Kafka's settings: {each}." for each in sorted(settings)]


def table(columns, names, cells, rows):
    out = ["", "| cell | broker | n | " + " | ".join(title for title, *_ in columns) + " |", "|---|---|---" + "|---:" * len(columns) + "|"]
    for name in names:
        medians = {}
        for broker in ("kafka", "corelane", "bare"):
            found = [row for row in rows if row["cell"] == name and row["broker"] == broker]
            if not found:
                continue
            values = [median(found, key) for _, key, _, _ in columns]
            text = "" if medians else cells[name]["text"]
            medians[broker] = values
            shown = [form.format(value / unit) if value is not None else "" for value, (_, _, form, unit) in zip(values, columns)]
            out.append(f"| {text} | {'bare loop' if broker == 'bare' else broker} | {len(found)} | " + " | ".join(shown) + " |")
        if "kafka" in medians and "corelane" in medians:
            ratios = [f"**{ours / theirs:.2f}x**" if ours is not None and theirs else "" for theirs, ours in zip(medians["kafka"], medians["corelane"])]
            out.append("| | x | | " + " | ".join(ratios) + " |")
    return out


def yardsticks(cells, rows):
    """Corelane's CPU seconds for a GB as a multiple of a bare loop's, pair by pair: both of a pair were measured one after the other."""
    out = []
    for name in cells:
        by_pair = {}
        for row in rows:
            if row["cell"] == name and row.get("cpu_s_per_gb"):
                by_pair.setdefault(row["pair"], {})[row["broker"]] = row["cpu_s_per_gb"]
        ratios = sorted(each["corelane"] / each["bare"] for each in by_pair.values() if "corelane" in each and "bare" in each)
        if not ratios:
            continue
        middle = median([{"ratio": ratio} for ratio in ratios], "ratio")
        verdict = "held" if middle <= BARE_MOST else "**missed**"
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        # What producing costs beyond the bare pipeline is what the broker does for it; only reading has a target.
        target = f"at most {BARE_MOST}x: {verdict}" if cells[name]["kind"] == "consume" else ""
        out.append(f"| {cells[name]['text']} | {cells[name]['bare']['text']} | {middle:.2f}x ({shown}) | {target} |")
    if out:
        out = ["", "| CPU for a GB | next to | Corelane / bare loop | target |", "|---|---|---|---|", *out]
    return out
