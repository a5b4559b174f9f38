"""What is to be said of a run on several numbers of ranks, by the one rule for verdicts.

More ranks are *faster* where they take less time for a seed node, by more than the smallest
difference that matters and with the whole interval (:mod:`gatherbench.bench.read.ranks`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from gatherbench.bench.read.cpu import cores_of
from gatherbench.bench.read.epochs import set_aside
from gatherbench.bench.read.ranks import FASTER, NO_FASTER, OPEN, families, saturation, scaling
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import LONGEST_WORKLOAD, listed, quantity, short, with_ends
from gatherbench.bench.show.sentences.provenance import ranks_of_run

#: The strategy whose table lies in the device's memory: what the others can at best come near to.
BOUND = "all_in_gpu"


def scaling_sentences(run: Run) -> list[str]:
    """A sentence for each family of workloads; none where all have as many ranks.

    Series that nobody would train with, the upper bound among them, and those without a quiet
    repeat are left out.
    """
    if not families(run):
        return []
    table, aside = scaling(run), set_aside(run)
    names = zip(table["strategy"], table["variant"], strict=True)
    apart = [pair in aside or pair[0] == BOUND for pair in names]
    table = table[~table["disturbed"].astype(bool) & ~pd.Series(apart, table.index, dtype=bool)]
    word, ends, found = ranks_of_run(run)[0], saturation(table), []
    where = "ranks are processes on a host, not GPUs" if word == "rank" else "ranks are GPUs"
    for family in families(run):
        mine = table[table["family"] == family.name]
        clauses = [
            *_efficiencies(mine, word),
            *_reaches(ends[ends["family"] == family.name], word, cores_of(run)),
        ]
        if clauses:
            found.append(f"{short(family.name, LONGEST_WORKLOAD)} ({where}): {'; '.join(clauses)}.")
    return found


def _efficiencies(table: pd.DataFrame, word: str) -> Iterator[str]:
    """The least and the greatest efficiency with the most ranks that have any."""
    known = table[(table["ranks"] > 1) & table["efficiency"].notna()]
    if known.empty:
        return
    most = known[known["ranks"] == known["ranks"].max()].sort_values("efficiency", kind="stable")
    lines = most.to_dict("records")
    ends = [lines[0], lines[-1]] if len(lines) > 1 else lines
    said = [f"{ends_in_words(line, 'efficiency', 'share')}, {_name(line)}," for line in ends]
    yield f"scaling efficiency with {_ranks(lines[0]['ranks'], word)} is {' to '.join(said)[:-1]}"


def _reaches(ends: pd.DataFrame, word: str, cores: int) -> Iterator[str]:
    """Up to how many ranks each path gets faster, as far as that is decided."""
    for (what, ranks, before, full), mine in ends.groupby(
        ["word", "ranks", "before", "cores_full"], sort=False
    ):
        names, many = listed([_name(line) for line in mine.to_dict("records")]), _ranks(ranks, word)
        if what == FASTER:
            yield f"more {word}s were faster up to {many} for {names}"
        elif what == NO_FASTER:
            perhaps = ", perhaps with fewer" if before else ""
            busy = f" (all {cores} cores are busy)" if full else ""
            yield f"more than {many}{busy} were no faster{perhaps} for {names}"
    if len(open_ := ends[ends["word"] == OPEN]):
        names = listed([_name(line) for line in open_.to_dict("records")])
        yield f"not decided whether more {word}s are faster for {names}"


def _ranks(many: Any, word: str) -> str:
    return f"{many:.0f} {word}{'s' if many > 1 else ''}"


def _name(line: Mapping[Hashable, Any]) -> str:
    return f"{line['strategy']} {line['variant']}"


def ends_in_words(line: Mapping[Hashable, Any], name: str, unit: str) -> str:
    """``93.0 % (90.1–96.2)`` of a column of :func:`~gatherbench.bench.read.ranks.scaling`.

    What is 1 by definition has no interval.
    """
    value, low, high = (line[f"{name}{end}"] for end in ("", "_low", "_high"))
    return quantity(value, unit) if low == high else with_ends(value, low, high, unit)
