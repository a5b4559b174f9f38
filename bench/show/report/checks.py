"""What was made sure of, what went wrong, and which sensors could be read."""

from __future__ import annotations

import re

import pandas as pd

from gatherbench.bench.read.epochs import problems
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.report.tables import in_plan_order
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate

_SAMPLING = re.compile(r" \[samples=[^\]]*\]$")


def compared(run: Run) -> str:
    """What the comparison before timing found, in a sentence."""
    checks = _ok(run, "check")
    checks = checks[checks["metric"] == "batches"]
    if checks.empty:
        return "No case got as far as comparing its rows with a plain gather: nothing was timed."
    batches = int(checks["value"].sum())
    return (
        f"Before timing, {len(checks)} cases compared the rows of {batches} minibatches bit for bit"
        " with a plain gather and found no difference. Rows are compared until a case is over; one"
        " whose rows differ fails, and what it measured is not shown."
    )


def residency(run: Run) -> str:
    """Where the feature table lay, as far as the run says, in a sentence."""
    loads = _ok(run, "setup")
    sources = loads["source"][loads["metric"] == "table_load_time"]
    places = sorted({str(source).partition("; ")[2] for source in sources} - {""})
    where = f"The feature table was {' or '.join(places)}." if places else ""
    if _ok(run, "check")["metric"].str.contains("residen").any():
        return where
    return f"{where} Where the GPU finds it (residency) was not checked in this run.".strip()


def setup(run: Run) -> Table:
    """Checks, set-up and scores of each series: medians over repeats, a column for each metric."""
    rows = run.rows[run.rows["stage"].isin(("check", "setup", "eval")) & (run.rows["epoch"] < 0)]
    rows = rows.assign(field=rows["stage"] + "." + rows["metric"])
    frame = rows.groupby([*SERIES, "field"])["value"].median().unstack().reset_index()
    units = dict(zip(rows["field"], rows["unit"], strict=True))
    names = sorted(units, key=lambda name: ("check", "setup", "eval").index(name.partition(".")[0]))
    labels = {name: name.replace(".", ": ").replace("_", " ") for name in names}
    columns = [Column(name, labels[name], units[name]) for name in names]
    caption = "Checks, set-up and scores (medians over repeats); set-up is no part of an epoch"
    return tabulate("setup", caption, [*WHAT, *columns], in_plan_order(run, frame))


def unmeasured(run: Run) -> Table:
    """Cases without a measurement and why."""
    columns = [
        Column("status", "status"),
        *WHAT[:3],
        Column("repeats", "repeats", "1"),
        Column("of", "of", "1"),
        Column("reason", "reason"),
    ]
    return tabulate("problems", "Skipped, failed and unfinished cases", columns, problems(run))


def meters(run: Run) -> Table:
    """Each metric that was to be observed: where from, how often, and why not."""
    rows = run.select(basis="measured")
    rows = rows[rows["stage"] != "case"]
    records = []
    for (stage, metric), here in rows.groupby(["stage", "metric"], sort=False):
        absent = here[here["status"] != "ok"]
        sources = dict.fromkeys(_SAMPLING.sub("", source) for source in here["source"])
        records.append(
            {
                "metric": f"{stage}.{metric}",
                "state": _state(len(absent), len(here), list(absent["reason"])),
                "unit": here["unit"].iloc[0],
                "read": len(here) - len(absent),
                "absent": len(absent),
                "source": "; ".join(sources),
                "reason": "; ".join(dict.fromkeys(absent["reason"])),
            }
        )
    columns = [
        Column("metric", "metric"),
        Column("state", "state"),
        Column("unit", "unit"),
        Column("read", "readings", "1"),
        Column("absent", "without", "1"),
        Column("source", "source"),
        Column("reason", "why there is none, and the remedy"),
    ]
    frame = pd.DataFrame(records, columns=[column.field for column in columns])
    return tabulate("meters", "What clocks, meters and checks read", columns, frame)


def calibration(run: Run) -> Table:
    """What the calibration of the GPU's sensors found, and which of them it does not trust."""
    frame = run.whole[["metric", "status", "value", "unit", "source", "reason"]]
    columns = [
        Column("metric", "metric"),
        Column("status", "status"),
        Column("value", "value", units="unit"),
        Column("unit", "unit in the CSV"),
        Column("source", "source"),
        Column("reason", "why there is none, and the remedy"),
    ]
    return tabulate(
        "calibration", "Calibration of the GPU’s sensors before the run", columns, frame
    )


def _state(absent: int, total: int, reasons: list[str]) -> str:
    if not absent:
        return "read"
    kind = reasons[0].split(":")[0] if ":" in reasons[0] else "absent"
    return kind.replace("_", " ") if absent == total else f"read in part, {kind.replace('_', ' ')}"


def _ok(run: Run, stage: str) -> pd.DataFrame:
    return run.rows[(run.rows["stage"] == stage) & (run.rows["status"] == "ok")]
