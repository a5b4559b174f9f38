"""Show how it was run: checks, failures, the readable sensors, the machine."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd

from gatherbench.bench.read.derive import problems, reasons_of
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import PROCESS, SERIES
from gatherbench.bench.show.table import WHAT, Column, Table, in_plan_order, table_of
from gatherbench.bench.show.terminal import struck
from gatherbench.bench.show.view import View
from gatherbench.reason import kind_of
from gatherbench.strategies.registry import in_words

_SAMPLING = re.compile(r" \[samples=[^\]]*\]$")
_WHY = Column("reason", "why there is none, and the remedy")


def compared(run: Run) -> str:
    """Describe the result of the comparison before timing, in a sentence."""
    checks = run.ended["check_batches"].dropna()
    if checks.empty:
        return "No case got as far as comparing its rows with a plain gather: nothing was timed."
    return (
        f"Before timing, {len(checks)} cases compared the rows of {int(checks.sum())} minibatches"
        " bit for bit with a plain gather and found no difference. Rows are compared until a case"
        " is over; one whose rows differ fails, and what it measured is not shown."
    )


def residency(run: Run) -> str:
    """Describe where the feature table was, as far as the run has it, in a sentence."""
    places = sorted({source.partition("; ")[2] for source in _sources(run, "setup_table_load_s")})
    places = [place for place in places if place]
    where = f"The feature table was {' or '.join(places)}." if places else ""
    if run.ended.filter(regex="^check_residen").notna().any(axis=None):
        return where
    return f"{where} Where the GPU finds it (residency) was not checked in this run.".strip()


def _sources(run: Run, column: str) -> list[str]:
    """List the sources of a column's values, including those of missing values."""
    lines = run.reasons[(run.reasons["column"] == column) & (run.reasons["basis"] == "measured")]
    sources = [run.columns["source"].get(column), *lines["source"].dropna()]
    return [str(source) for source in dict.fromkeys(sources) if source]


def setup(run: Run) -> Table:
    """Tabulate checks, set-up and scores of each series."""
    caption = "Checks, set-up and scores (medians over repeats); set-up is no part of an epoch"
    return _medians(run, run.ended, ("check", "setup", "eval"), "setup", caption)


def readings(run: Run) -> Table:
    """Tabulate what every meter of any package read of an epoch."""
    caption = "Everything that meters read of an epoch (medians over repeats and epochs)"
    return replace(_medians(run, run.measured, ("epoch",), "readings", caption), folded=True)


def _medians(
    run: Run, lines: pd.DataFrame, stages: tuple[str, ...], ident: str, caption: str
) -> Table:
    """Make a column for each metric of the stages that has a value, a line for each series."""
    about = _observed(run, lines)
    about = about[about["stage"].isin(stages) & (about["metric"] != PROCESS[1])]  # a time of day
    about = about.sort_values("stage", key=lambda of: of.map(stages.index), kind="stable")
    frame = lines[[*about.index]].dropna(how="all").groupby(SERIES).median()
    about = about[frame.notna().any().reindex(about.index)]
    fields = (about["stage"] + "." + about["metric"]).to_dict()
    labels = about["stage"] + ": " + about["metric"].str.replace("_", " ")
    columns = [*map(Column, fields.values(), labels, about["unit"])]
    frame = frame[[*fields]].rename(columns=fields).reset_index()
    return Table(ident, caption, [*WHAT, *columns], in_plan_order(run, frame))


def _observed(run: Run, lines: pd.DataFrame) -> pd.DataFrame:
    """Return the run's description of the columns of measured lines, in its order."""
    return run.columns[run.columns.index.isin(lines.columns) & ~run.columns["declared"]]


def unmeasured(run: Run) -> Table:
    """Tabulate cases without a measurement, and why."""
    counts = Column("repeats", "repeats", "1"), Column("of", "of", "1")
    columns = [Column("status", "status"), *WHAT[:3], *counts, Column("reason", "reason")]
    return Table("problems", "Skipped, failed and unfinished cases", columns, problems(run))


def reasons(run: Run, never: bool = False) -> list[str]:
    """Give each reason once, with its cases; ``never``: only series without a measured repeat."""
    lines, bad = [], problems(run)
    bad = bad[bad["repeats"] == bad["of"]] if never else bad
    for (status, reason), group in bad.groupby(["status", "reason"], sort=False):
        cases = []
        for case in group.to_dict("records"):
            some = case["repeats"] != case["of"]
            count = f" ({case['repeats']} of {case['of']} repeats)" * some
            path = in_words(case["strategy"], case["variant"])
            cases.append((f"{path}{count}", run.names[case["workload"]]))
        lines.append(f"{status}: {struck(cases, run.names.values())}: {reason}")
    return lines or ["Every case of the plan was measured."] * (not never)


def meters(run: Run) -> Table:
    """Tabulate each expected metric: its sources, its readings, and the reasons for gaps."""
    epochs = run.epochs[(run.epochs["basis"] == "measured") & (run.epochs["rank"] < 0)]
    about = pd.concat([_observed(run, epochs), _observed(run, run.ended)])
    about = about[(about["stage"] != "case") & ~about.index.duplicated()]
    many = epochs.groupby(CASE).size().rename("many").reset_index().drop(columns="basis")
    records = list[dict[str, Any]]()
    for name, of in about.iterrows():
        read = sum(int(lines[name].notna().sum()) for lines in (epochs, run.ended) if name in lines)
        why = reasons_of(run, str(name)).query("basis == 'measured'")
        lost = why.merge(many, how="left")
        whole = (lost["table"] == "epochs") & (lost["epoch"] < 0)
        absent = int(lost["many"].where(whole, 1).fillna(0).sum())
        if read + absent == 0:
            continue
        state = "read"
        if absent:
            kind = (kind_of(why["reason"].iloc[0]) or "absent").replace("_", " ")
            state = f"read in part, {kind}" if read else kind
        sources = dict.fromkeys(_SAMPLING.sub("", one) for one in _sources(run, str(name)))
        line = {"metric": f"{of['stage']}.{of['metric']}", "state": state, "unit": of["unit"]}
        line |= {"read": read, "absent": absent, "source": "; ".join(sources)}
        records.append(line | {"reason": "; ".join(dict.fromkeys(why["reason"]))})
    columns = [
        *(Column(name, name) for name in ("metric", "state", "unit")),
        Column("read", "readings", "1"),
        Column("absent", "without", "1"),
        Column("source", "source"),
        _WHY,
    ]
    frame = pd.DataFrame(records, columns=[column.field for column in columns])
    return Table("meters", "What clocks, meters and checks read", columns, frame)


def calibration(run: Run) -> Table:
    """Tabulate the calibration of the GPU's sensors, including those that it does not trust."""
    columns = [
        Column("metric", "metric"),
        Column("status", "status"),
        Column("value", "value", units="unit"),
        Column("unit", "unit in the CSV"),
        Column("source", "source"),
        _WHY,
    ]
    return Table(
        "calibration", "Check of the GPU’s sensors before the run", columns, run.calibration
    )


def workloads(run: Run) -> Table:
    """Tabulate everything that determines an epoch's minibatches."""
    lines = {ident: {"in_titles": run.names[ident], **fields}
             for ident, fields in run.plan["workloads"].items()}  # fmt: skip
    frame = pd.DataFrame.from_dict(lines, orient="index").rename_axis("workload").reset_index()
    frame["fanouts"] = [", ".join(map(str, fanouts)) for fanouts in frame["fanouts"]]
    return table_of("workloads", "Workloads of the plan", frame)


def machine(run: Run) -> Table:
    """Tabulate ``env.json`` field by field."""
    gpus = dict(enumerate(run.env.get("gpus") or []))
    flat = pd.json_normalize({**run.env, "gpus": gpus}, sep=" › ").astype(str)
    frame = pd.DataFrame({"what": flat.columns, "value": flat.iloc[0] if len(flat) else ""})
    columns = [Column("what", "what"), Column("value", "value")]
    return Table("machine", "The machine in full", columns, frame, folded=True)


CHECKS = View(
    "checks",
    "Checks and set-up",
    frame=lambda run: [setup(run)],
    note=lambda run: f"{compared(run)} {residency(run)}".rstrip(),
)
UNMEASURED = View(
    "unmeasured",
    "Skipped and failed",
    frame=lambda run: [unmeasured(run)],
    note=lambda run: "\n".join(reasons(run)),
)
SENSORS = View(
    "sensors",
    "Meters",
    frame=lambda run: [calibration(run), meters(run), readings(run)],
)
PLAN = View("plan", "What was run on what", frame=lambda run: [workloads(run), machine(run)])
