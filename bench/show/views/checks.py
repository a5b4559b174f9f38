"""Show how it was run: checks, failures, the readable sensors, the machine."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd

from gatherbench.bench.plan.workload import ranks_in_words, ranks_of
from gatherbench.bench.read.derive import problems, reasons_of
from gatherbench.bench.read.tables import CASE, Run
from gatherbench.bench.run.rows import PROCESS, SERIES
from gatherbench.bench.show.charts import in_plan_order
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate
from gatherbench.bench.show.terminal import struck
from gatherbench.bench.show.view import View
from gatherbench.reason import kind_of
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


def residency(run: Run) -> str:
    """Describe where the feature table was, as far as the run has it, in a sentence."""
    places = sorted({source.partition("; ")[2] for source in _sources(run, "setup_table_load_s")})
    places = [place for place in places if place]
    where = f"The feature table was {' or '.join(places)}." if places else ""
    checked = [name for name in map(str, run.ended) if name.startswith("check_residen")]
    if run.ended[checked].notna().any(axis=None):
        return where
    return f"{where} Where the GPU finds it (residency) was not checked in this run.".strip()


def _sources(run: Run, column: str) -> list[str]:
    """List the sources of a column's values, including those of missing values."""
    usual = [run.columns["source"].get(column)]
    reasons_of_column = run.reasons[
        (run.reasons["column"] == column) & (run.reasons["basis"] == "measured")
    ]
    return [
        str(one) for one in dict.fromkeys([*usual, *reasons_of_column["source"].dropna()]) if one
    ]


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
    labels = (about["stage"] + ": " + about["metric"].str.replace("_", " ")).to_dict()
    units = about["unit"].to_dict()
    columns = [Column(fields[name], labels[name], units[name]) for name in fields]
    frame = frame[[*fields]].rename(columns=fields).reset_index()
    return tabulate(ident, caption, [*WHAT, *columns], in_plan_order(run, frame))


def _observed(run: Run, lines: pd.DataFrame) -> pd.DataFrame:
    """Return the run's description of the columns of measured lines, in its order."""
    return run.columns[run.columns.index.isin(lines.columns) & ~run.columns["declared"]]


def unmeasured(run: Run) -> Table:
    """Tabulate cases without a measurement, and why."""
    columns = [
        Column("status", "status"),
        *WHAT[:3],
        Column("repeats", "repeats", "1"),
        Column("of", "of", "1"),
        Column("reason", "reason"),
    ]
    return tabulate("problems", "Skipped, failed and unfinished cases", columns, problems(run))


def reasons(run: Run, never: bool = False) -> list[str]:
    """Give each reason once, with its cases; ``never``: only series without a measured repeat."""
    lines, bad = [], problems(run)
    bad = bad[bad["repeats"] == bad["of"]] if never else bad
    for (status, reason), group in bad.groupby(["status", "reason"], sort=False):
        cases = []
        for case in group.to_dict("records"):
            some = case["repeats"] != case["of"]
            count = f" ({case['repeats']} of {case['of']} repeats)" * some
            named = in_words(case["strategy"], case["variant"])
            cases.append((f"{named}{count}", case["workload"]))
        on = [(series, run.names[workload]) for series, workload in cases]
        lines.append(f"{status}: {struck(on, run.names.values())}: {reason}")
    return lines or ["Every case of the plan was measured."] * (not never)


def meters(run: Run) -> Table:
    """Tabulate each expected metric: its sources, its readings, and the reasons for gaps."""
    epochs = run.epochs[(run.epochs["basis"] == "measured") & (run.epochs["rank"] < 0)]
    about = pd.concat([_observed(run, epochs), _observed(run, run.ended)])
    about = about[(about["stage"] != "case") & ~about.index.duplicated()]
    many = epochs.groupby(CASE).size()
    records = []
    for name, of in about.iterrows():
        read = sum(int(lines[name].notna().sum()) for lines in (epochs, run.ended) if name in lines)
        why = reasons_of(run, str(name))
        why = why[why["basis"] == "measured"]
        lost = why.merge(many.rename("many").reset_index().drop(columns="basis"), how="left")
        whole = (lost["table"] == "epochs") & (lost["epoch"] < 0)
        absent = int(lost["many"].where(whole, 1).fillna(0).sum())
        if read + absent == 0:
            continue
        sources = dict.fromkeys(_SAMPLING.sub("", one) for one in _sources(run, str(name)))
        records.append(
            {
                "metric": f"{of['stage']}.{of['metric']}",
                "state": _state(absent, read + absent, list(why["reason"])),
                "unit": of["unit"],
                "read": read,
                "absent": absent,
                "source": "; ".join(sources),
                "reason": "; ".join(dict.fromkeys(why["reason"])),
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
    """Tabulate the calibration of the GPU's sensors, including those that it does not trust."""
    frame = run.calibration[["metric", "status", "value", "unit", "source", "reason"]]
    columns = [
        Column("metric", "metric"),
        Column("status", "status"),
        Column("value", "value", units="unit"),
        Column("unit", "unit in the CSV"),
        Column("source", "source"),
        Column("reason", "why there is none, and the remedy"),
    ]
    return tabulate("calibration", "Check of the GPU’s sensors before the run", columns, frame)


def _state(absent: int, total: int, reasons: list[str]) -> str:
    if not absent:
        return "read"
    kind = (kind_of(reasons[0]) or "absent").replace("_", " ")
    return kind if absent == total else f"read in part, {kind}"


def workloads(run: Run) -> Table:
    """Tabulate everything that determines an epoch's minibatches."""
    frame = pd.DataFrame(
        [
            {
                "workload": ident,
                "name": run.names[ident],
                **fields,
                "fanouts": ", ".join(map(str, fields["fanouts"])),
                "max_batches": fields.get("max_batches") or None,
                "ranks": ranks_in_words(ranks_of(fields)),
                "scaling": fields["scaling"] if ranks_of(fields) > 1 else None,
            }
            for ident, fields in run.plan["workloads"].items()
        ]
    )
    columns = [
        Column("workload", "workload"),
        Column("name", "in titles"),
        Column("dataset", "dataset"),
        Column("scale", "scale", "1"),
        Column("model", "model"),
        Column("hidden", "hidden width", "1"),
        Column("fanouts", "fan-outs, from the seeds outwards"),
        Column("batch_size", "batch size", "1"),
        Column("max_batches", "epoch cut to minibatches", "1"),
        Column("seed", "seed", "1"),
    ]
    if len(frame) and frame["scaling"].notna().any():
        columns += [Column("ranks", "ranks"), Column("scaling", "scaling")]
    return tabulate("workloads", "Workloads of the plan", columns, frame)


def machine(run: Run) -> Table:
    """Tabulate ``env.json`` field by field."""
    gpus = dict(enumerate(run.env.get("gpus") or []))
    flat = pd.json_normalize({**run.env, "gpus": gpus}, sep=" › ").T.astype(str).reset_index()
    frame = flat.set_axis(["what", "value"], axis=1) if len(flat) else flat
    columns = [Column("what", "what"), Column("value", "value")] if len(flat) else []
    return tabulate("machine", "The machine in full", columns, frame, folded=True)


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
