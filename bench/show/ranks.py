"""Runs on several ranks in the terminal: how epochs scale, and how far ranks are apart."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator

import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.read.cpu import cores_of
from gatherbench.bench.read.epochs import problems, sort_series
from gatherbench.bench.read.ranks import FASTER, NO_FASTER, families, over_ranks, scaling
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import MISSING, number, three_digits, time_unit
from gatherbench.bench.show.sentences.families import ends_in_words
from gatherbench.bench.show.sentences.provenance import ranks_of_run
from gatherbench.bench.show.terminal import Cell, Line, each_workload, frame, of_series

LEGEND = (
    "ranks: {what}. efficiency: time for a seed node with one rank over that with W ranks, and over"
    " W; 100 % is ideal. speed-up: over the baseline on as many ranks. Whether more ranks take less"
    " time for a seed: {faster}, {no} (none of them by 5 %), or not decided. cores: busy, of"
    " {cores}; torch's threads that spin while they wait count. In brackets: 95 % intervals."
)
#: Characters of a variant in a line.
LONGEST = 22
SPREAD = (
    "Ranks of one epoch: the slowest and the fastest, and what they waited for each other; wait and"
    " all-reduce are means over the ranks."
)


def rank_tables(run: Run) -> list[RenderableType]:
    """Tables of the run's families, and of how far ranks are apart; nothing with one rank."""
    table, parts = scaling(run), list[RenderableType]()
    for family in families(run):
        bad = problems(run)
        bad = bad[bad["workload"].isin(list(family.worlds))]
        ranks = bad["workload"].map(dict(family.worlds))
        here = table[table["family"] == family.name]
        lines = pd.concat([here, bad.assign(ranks=ranks, basis="measured")])
        known = lines.drop_duplicates(["workload", "strategy", "variant"])
        parts += [_scaling(family.name, known.sort_values("ranks", kind="stable")), Text()]
        parts += [Text(line) for line in _unknown(here)]
    if parts:
        what = "GPUs" if ranks_of_run(run)[0] == "GPU" else "processes on a host, no GPUs"
        words = {"faster": FASTER, "no": NO_FASTER, "cores": cores_of(run)}
        parts += [Text(LEGEND.format(what=what, **words), style="dim"), Text()]
    return [*parts, *each_workload(run, over_ranks(run), _spread, SPREAD)]


def _scaling(name: str, lines: pd.DataFrame) -> Table:
    unit, factor = time_unit(float(lines["epoch"].max()))
    differ = bool(lines["seeds"].max() > 1.5 * lines["seeds"].min())
    numbers = ("ranks", *["seeds"] * differ, f"epoch, {unit}")
    table = frame(f"Over the number of ranks: {name}", "strategy and variant", numbers=numbers)
    for heading in ("efficiency", "cores", "speed-up"):  # in few columns the interval stands below
        table.add_column(heading, justify="right")
    table.add_column("more ranks", no_wrap=True)
    known: dict[tuple[str, str], list[Line]] = {}
    for line in sort_series(lines).to_dict("records"):
        known.setdefault((line["strategy"], line["variant"]), []).append(line)
    for place, (names, mine) in enumerate(known.items()):
        if place:
            table.add_row()
        said = [names[0], *textwrap.wrap(names[1], LONGEST, initial_indent="  ")]
        rows = [_cells(line, factor, seeds=differ) for line in mine]
        for cells, label in itertools.zip_longest(rows, said):
            table.add_row(Text(label or ""), *(cells or []))
    return table


def _unknown(lines: pd.DataFrame) -> Iterator[str]:
    """Each reason why an efficiency is not known, once, with what it struck."""
    for why, mine in lines[lines["why"] != ""].groupby("why", sort=False):
        struck = dict.fromkeys(zip(mine["strategy"], mine["variant"], strict=True))
        yield f"no efficiency of {', '.join(map(' '.join, struck))}: {why}"


def _cells(line: Line, factor: float, *, seeds: bool) -> list[Text]:
    ranks = f"{line['ranks']:.0f}"
    if isinstance(line["status"], str):
        return [Text(cell) for cell in (ranks, *[""] * seeds, str(line["status"]))]
    disturbed = "!" if line["disturbed"] else ""
    cells = [
        ranks,
        *[number(line["seeds"])] * seeds,
        three_digits(line["epoch"] * factor) + disturbed,
        ends_in_words(line, "efficiency", "share") if line["ranks"] > 1 else "",
        MISSING
        if pd.isna(line["cores"])
        else f"{line['cores']:.1f}" + " (all)" * line["cores_full"],
        ends_in_words(line, "speedup", "×"),
        str(line["more"]),
    ]
    return [Text(cell) for cell in cells]


def _spread(workload: str, lines: pd.DataFrame) -> Table:
    unit, factor = time_unit(float(lines["slowest"].max()))

    def seconds(name: str) -> Cell:
        return lambda line: three_digits(line[name] * factor)

    def share(name: str) -> Cell:
        return lambda line: (
            MISSING
            if pd.isna(line[name])
            else f"{three_digits(line[name] * factor)} ({line[f'{name}_share']:.0%})"
        )

    def cores(line: Line) -> str:
        ends = map(three_digits, (line["cpu_least"], line["cpu_most"]))
        return " to ".join(dict.fromkeys(ends))

    cells: dict[str, Cell] = {
        f"slowest, {unit}": seconds("slowest"),
        "fastest": seconds("fastest"),
        "wait": share("wait"),
        "all-reduce": share("all_reduce"),
        "core-s by rank": cores,
    }
    return of_series(f"From rank to rank: {workload}", lines, cells)
