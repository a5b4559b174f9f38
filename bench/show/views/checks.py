"""Show how it was run: checks, failures, the readable sensors, the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from gatherbench.bench.read.derive import problems, reasons_of, sort_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import PROCESS, SERIES
from gatherbench.bench.show.table import WHAT, Column, Table, table_of
from gatherbench.bench.show.terminal import cases_in_words
from gatherbench.bench.show.view import View
from gatherbench.strategies.registry import in_words

_SAMPLING = re.compile(r" \[samples=[^\]]*\]$")


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


def setup(run: Run) -> Table:
    """Tabulate checks, set-up and scores of each series."""
    caption = "Checks, set-up and scores (medians over repeats); set-up is no part of an epoch"
    return _medians(run, run.ended, ("check", "setup", "eval"), "setup", caption)


def readings(run: Run) -> Table:
    """Tabulate what every meter of any package read of an epoch."""
    caption = "Everything that meters read of an epoch (medians over repeats and epochs)"
    return _medians(run, run.measured, ("epoch",), "readings", caption, folded=True)


def _medians(
    run: Run,
    rows: pd.DataFrame,
    stages: tuple[str, ...],
    ident: str,
    caption: str,
    folded: bool = False,
) -> Table:
    """Make a column for each metric of the stages that has a value, a line for each series."""
    about = _observed(run, rows)
    about = about[about["stage"].isin(stages) & (about["metric"] != PROCESS[1])]  # a time of day
    about = about.sort_values("stage", key=lambda stage: stage.map(stages.index), kind="stable")
    frame = rows[[*about.index]].dropna(how="all").groupby(SERIES).median()
    about = about[frame.notna().any().reindex(about.index)]
    fields = (about["stage"] + "." + about["metric"]).to_dict()
    labels = about["stage"] + ": " + about["metric"].str.replace("_", " ")
    columns = [*map(Column, fields.values(), labels, about["unit"])]
    frame = frame[[*fields]].rename(columns=fields).reset_index()
    frame = sort_series(frame, run.workloads)
    return Table(ident, caption, [*WHAT, *columns], frame, folded=folded)


def _observed(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the run's description of the columns of measured rows, in its order."""
    return run.columns[run.columns.index.isin(rows.columns) & ~run.columns["declared"]]


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
        lines.append(f"{status}: {cases_in_words(cases, run.names.values())}: {reason}")
    return lines or ["Every case of the plan was measured."] * (not never)


def meters(run: Run) -> Table:
    """Tabulate each expected metric: its readings, its sources, and the reasons for gaps."""
    epochs = run.epochs[(run.epochs["basis"] == "measured") & (run.epochs["rank"] < 0)]
    about = pd.concat([_observed(run, epochs), _observed(run, run.ended)])
    about = about[(about["stage"] != "case") & ~about.index.duplicated()]
    records = list[dict[str, Any]]()
    for name, column in about.iterrows():
        read = sum(int(rows[name].notna().sum()) for rows in (epochs, run.ended) if name in rows)
        why = reasons_of(run, str(name)).query("basis == 'measured'")
        if read + len(why) == 0:
            continue
        sources = [column["source"], *why["source"].dropna()]
        sources = [_SAMPLING.sub("", str(source)) for source in sources if source]
        line = {"metric": f"{column['stage']}.{column['metric']}", "unit": column["unit"]}
        line |= {"readings": read, "source": "; ".join(dict.fromkeys(sources))}
        records.append(line | {"reason": "; ".join(dict.fromkeys(why["reason"]))})
    title = "What clocks, meters and checks read"
    return table_of("meters", title, pd.DataFrame(records), terminal=False)


def _calibration(run: Run) -> Table:
    title = "Check of the GPU’s sensors before the run"
    frame = run.calibration[["metric", "status", "value", "unit", "source", "reason"]]
    return table_of("calibration", title, frame, terminal=False)


def _in_full(ident: str, title: str, fields: Mapping[str, Any]) -> Table:
    flat = pd.json_normalize(dict(fields), sep=" › ").astype(str)
    frame = pd.DataFrame({"what": flat.columns, "value": flat.iloc[0] if len(flat) else ""})
    return table_of(ident, title, frame, terminal=False, folded=True)


def _plan(run: Run) -> list[Table]:
    """Tabulate everything that determines an epoch's minibatches, and ``env.json``."""
    workloads = {run.names[name]: fields for name, fields in run.plan["workloads"].items()}
    env = {**run.env, "gpus": dict(enumerate(run.env.get("gpus") or []))}
    return [
        _in_full("workloads", "Workloads of the plan", workloads),
        _in_full("machine", "The machine in full", env),
    ]


CHECKS = View("checks", "Checks and set-up", frame=setup, note=compared)
UNMEASURED = View(
    "unmeasured",
    "Skipped and failed",
    frame=lambda run: table_of("problems", "Cases not measured", problems(run), terminal=False),
    note=lambda run: "\n".join(reasons(run)),
)
SENSORS = View(
    "sensors", "Meters", frame=lambda run: [_calibration(run), meters(run), readings(run)]
)
PLAN = View("plan", "What was run on what", frame=_plan)
