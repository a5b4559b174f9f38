"""A run as tables in the terminal: the numbers behind the figures, and what went wrong.

Nothing depends on colour, so that a table reads the same in a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gatherbench.bench.read.epochs import (
    WITHIN_TRAIN,
    problems,
    reference_variant,
    sort_series,
)
from gatherbench.bench.read.kept import found_on_device
from gatherbench.bench.read.stats.judge import is_open
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import MISSING, decimals, three_digits, time_unit
from gatherbench.bench.show.looks import DISTURBED, MARKS, UNDECIDED, explained
from gatherbench.bench.show.report.tables import model_errors, roofline_of
from gatherbench.bench.show.sentences.provenance import (
    borrowed,
    modelled_for,
    provenance,
    warnings_of,
)
from gatherbench.bench.show.sentences.verdict import verdict
from gatherbench.bench.show.table import WHAT, Column, tabulate
from gatherbench.bench.show.terminal import (
    Line,
    frame,
    in_terminal,
    struck,
)
from gatherbench.bench.show.views.registry import views_of

LEGEND = (
    "n: repeats that count, of those measured (the others were disturbed); fetch: the loop's wait"
    " for rows; core-s: processor time; GB/s: payload over that wait."
    f"{explained(MARKS)} {MISSING}: not known, or no rate as the wait is hidden behind training."
)
#: Of runs on several ranks.
RANKS_LEGEND = (
    " reduce: all-reduce of the gradients, once all ranks are there; wait: for the slowest rank;"
    " both are within train."
)
_COLOURS = {"failed": "red", "skipped": "yellow", "not run": "yellow"}


def render(run: Run) -> RenderableType:
    """A table for each workload, the reasons of what is missing, and where it all comes from.

    Wants 80 columns; in fewer, long variants are folded.
    """
    summary, bad = summarise(run), problems(run)
    parts: list[RenderableType] = [Text(line, style="bold") for line in warnings_of(run)]
    exchange = RANKS_LEGEND * bool(summary[list(WITHIN_TRAIN)].notna().any(axis=None))
    parts += [Text(LEGEND + exchange, style="dim"), Text()]
    for workload in run.workloads:
        here, missing = (t[t["workload"] == workload] for t in (summary, bad))
        title = f"{run.names[workload]}: {workload}"
        parts += [_table(title, here, missing, modelled_for(run)), Text()]
    for view in views_of(run):
        for table in view.tables(run):
            parts += in_terminal(table, run.names)
    parts += _of_the_model(run)
    parts += _sensors(run)
    parts += _found(run)
    parts += _reasons(run, bad)
    parts += _unknown(run, bad["reason"])
    reference = reference_variant(run)
    compared = (
        f"speed-up over {' '.join(reference)}, of typical epochs"
        if reference
        else "no cpu_gather to compare with"
    )
    parts.append(
        Text(
            f"Medians over repeats and epochs, ± half the interquartile range; {compared}."
            f"{borrowed(run)} {provenance(run)}",
            style="dim",
        )
    )
    for statement in verdict(run):
        if len(statement.points) < 2:
            parts += [Text(), Text(statement.text, style="bold")]
            continue
        parts += [Text(), Text(f"{statement.lead}:", style="bold")]
        parts += [Padding(Text(f"• {one}", style="bold"), (0, 0, 0, 2)) for one in statement.points]
        parts += [Text(statement.rest, style="bold")] * bool(statement.rest)
    return Group(*parts)


def _of_the_model(run: Run) -> list[RenderableType]:
    """How near the link each strategy comes, and how far the model is off; or why there is none."""
    found, errors = roofline_of(run), model_errors(run)
    parts: list[RenderableType] = [Text(found.absent), Text()] if found.absent else []
    for table in (found.grid, errors):
        parts += in_terminal(table, run.names, spare=True) if table else []
    return parts


def _sensors(run: Run) -> list[RenderableType]:
    """What each sensor of the link counted of known copies, in a run that was to find that out."""
    ratios = run.whole[run.whole["metric"].str.contains("_ratio")]
    if ratios.empty or len(run.plan["measure"].get("known_copies", [])) < 2:
        return []
    title = "Sensors of the link: bytes counted for each byte of a known copy"
    table = frame(title, "direction", "counted", "by, and of what")
    for row in ratios.itertuples():
        direction = str(row.metric).removeprefix("pcie_").partition("_ratio")[0].replace("_", " ")
        counted, said = f"{row.value:.3f}", str(row.source)
        if row.status != "ok":
            counted, said = MISSING, f"{said}: {row.reason}"
        table.add_row(direction, counted, escape(said))
    return [table, Text()]


def _found(run: Run) -> list[RenderableType]:
    """Where a path that keeps any counted it: how many of its rows lay in the device's memory."""
    found = found_on_device(run).dropna(subset="counted")
    found = sort_series(found[(found > 0).any(axis=1)].reset_index())
    columns = [
        *WHAT[:3],
        Column("counted", "rows found on the device", "share", short="counted"),
        Column("declared", "declared", "share", short="declared"),
    ]
    table = tabulate("found", "Rows found on the device", columns, found)
    return in_terminal(table, run.names)


def _table(title: str, here: pd.DataFrame, missing: pd.DataFrame, machines: list[str]) -> Table:
    unit, factor = time_unit(float(here["high"].max()))
    exchange = [stage for stage in WITHIN_TRAIN if here[stage].notna().any()]
    # Of several ranks these stand in the place of two others, or 80 columns were too few.
    rest = [stage.removeprefix("all_") for stage in exchange] or ["core-s", "GB/s"]
    numbers = ("n", f"epoch, {unit}", "fetch", "train", *rest, "speed-up")
    table = frame(title, "strategy", "variant", numbers=numbers)
    modelled = here["basis"] == "predicted"
    measured = sort_series(pd.concat([here[~modelled], _unmeasured(here[~modelled], missing)]))
    for line in measured.to_dict("records"):
        table.add_row(*_cells(line, factor, exchange))
    if modelled.any():
        table.add_section()
        table.add_row("modelled for", ", ".join(machines))
        for line in here[modelled].to_dict("records"):
            table.add_row(*_cells(line, factor, exchange), style="italic")
    return table


def _unmeasured(measured: pd.DataFrame, missing: pd.DataFrame) -> pd.DataFrame:
    """The problems of series that have no line of their own."""
    known = set(zip(measured["strategy"], measured["variant"], strict=True))
    pairs = zip(missing["strategy"], missing["variant"], strict=True)
    return missing[[pair not in known for pair in pairs]].assign(backend="", basis="")


def _modelled(line: Line, factor: float, exchange: Sequence[str]) -> list[str]:
    """Numbers of a modelled line: from one end to the other where a profile's ranges make two."""
    ends = ("low", "high"), ("fetch_low", "fetch_high"), ("train_low", "train_high")
    times = [_span(line[low], line[high], factor) for low, high in ends]
    low, high = line["speedup_low"], line["speedup_high"]
    times[0] += DISTURBED if line["disturbed"] > 0 else ""
    ratio = _span(low, high) + UNDECIDED * (low < high and is_open(low, high))
    return [MISSING, *times, *(MISSING,) * (len(exchange) or 2), ratio]


def _span(low: Any, high: Any, factor: float = 1.0) -> str:
    """A number, or two where the ends differ in what is shown of them."""
    return " to ".join(dict.fromkeys(three_digits(end * factor) for end in (low, high)))


def _cells(line: Line, factor: float, exchange: Sequence[str]) -> list[Text]:
    names = [Text(line["strategy"]), Text(line["variant"])]
    if line["basis"] == "":
        status = line["status"]
        return [*names, Text(status, style=_COLOURS.get(status, ""))]
    if line["basis"] == "predicted":
        return [*names, *map(Text, _modelled(line, factor, exchange))]
    median, spread = line["median"] * factor, (line["high"] - line["low"]) / 2 * factor
    several = f" ±{spread:.{decimals(median)}f}" if line["count"] > 1 else ""
    beside = DISTURBED if line["disturbed"] > 0 else ""
    open_ = is_open(line["speedup_low"], line["speedup_high"]) and not pd.isna(line["speedup"])
    every = line["repeats"] + line["left_out"]
    numbers = [
        f"{line['repeats']:.0f}" + (f"/{every:.0f}" if line["left_out"] else ""),
        three_digits(median) + several + beside,
        *(three_digits(line[name] * factor) for name in ("fetch", "train", *exchange)),
        *([] if exchange else [three_digits(line["cpu"]), three_digits(line["rate"] * 1e-9)]),
        three_digits(line["speedup"]) + UNDECIDED * open_,
    ]
    return [*names, *map(Text, numbers)]


def _reasons(run: Run, bad: pd.DataFrame) -> list[Text]:
    """Each reason once, with what it struck."""
    lines = []
    for (status, reason), group in bad.groupby(["status", "reason"], sort=False):
        cases = []
        for case in group.to_dict("records"):
            some = case["repeats"] != case["of"]
            count = f" ({case['repeats']} of {case['of']} repeats)" * some
            cases.append((f"{case['strategy']} {case['variant']}{count}", case["workload"]))
        what = (f"{status}: ", _COLOURS.get(str(status), ""))
        lines.append(Text.assemble(what, f"{struck(cases, run.workloads)}: {reason}"))
    return [*lines, Text()] if lines else []


def _unknown(run: Run, said: pd.Series[str]) -> list[Text]:
    """Each reason why an epoch could not be modelled, once, with what it struck.

    ``said``: reasons that were told already; a case that failed cannot be modelled either.
    """
    rows = run.select(stage="epoch", metric="wall_time", basis="predicted")
    rows = rows[rows["reason"].notna()]
    told = rows["reason"].map(lambda reason: any(why in reason for why in said)).astype(bool)
    rows = rows[~told]
    lines = []
    for (machine, reason), group in rows.groupby(["machine", "reason"], sort=False):
        cases = zip(group["strategy"] + " " + group["variant"], group["workload"], strict=True)
        lines.append(Text(f"not modelled for {machine}: {struck(cases, run.workloads)}: {reason}"))
    return [*lines, Text()] if lines else []
