"""What is to be said of workloads that differ in one thing, by the one rule for verdicts.

More ranks are *faster* where they take less time for a seed node, by more than the smallest
difference that matters and with the whole interval (:mod:`gatherbench.bench.read.ranks`). Paths
that read a disk are compared on the same memory, and with the whole table in memory: how much
longer an epoch is then. Nobody's epoch is called shorter than another's unless the whole interval
says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from gatherbench.bench.read.cpu import cores_of
from gatherbench.bench.read.disk import disk_reads, memories, over_memory
from gatherbench.bench.read.disturbance import disturbed_alone
from gatherbench.bench.read.epochs import reference_variant, repeat_logs, set_aside
from gatherbench.bench.read.ranks import FASTER, NO_FASTER, OPEN, families, saturation, scaling
from gatherbench.bench.read.stats.judge import shortest
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import (
    LONGEST_WORKLOAD,
    listed,
    quantity,
    short,
    span,
    with_ends,
)
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.sentences.provenance import ranks_of_run

#: The strategy whose table lies in the device's memory: what the others can at best come near to.
BOUND = "all_in_gpu"
READ = "Read off the disk for each byte of the rows that a path had not kept in memory:"


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


def disk_sentences(run: Run) -> list[str]:
    """A sentence for each family of workloads with a table on disk, and one on what is read.

    Series that nobody would train with and those without a quiet repeat are left out of the first.
    """
    families = memories(run)
    if not families:
        return []
    alone, aside, found = disturbed_alone(run), set_aside(run), []
    table = over_memory(run).sort_values("epoch", kind="stable").to_dict("records")
    lines = {Key(*(str(line[name]) for name in SERIES)): line for line in table}
    left = [key for key in lines if key not in alone and key[1:3] not in aside]
    for family in families:
        by_memory = {w: [key for key in left if key.workload == w] for w in family.shares}
        clauses = [
            _clause(run, {key: lines[key] for key in keys}, family.shares[workload])
            for workload, keys in by_memory.items()
            if keys
        ]
        if clauses:
            found.append(
                f"Table on disk, {short(family.name, LONGEST_WORKLOAD)}: {'; '.join(clauses)}."
            )
    said = list(_read(run))
    return [*found, f"{READ} {listed(said)}."] if said else found


def _clause(run: Run, lines: Mapping[Key, Mapping[Hashable, Any]], share: float) -> str:
    """Whose epochs are the shortest with one memory, or between whom that is not decided."""
    logs = repeat_logs(run.values("epoch", "wall_time"))
    leader, words = shortest({key: logs[key] for key in lines})
    near = [leader, *(key for key, word in words.items() if word != "SLOW")]
    said, over = {}, ""
    for key in near:
        times = [lines[key][f"times{end}"] for end in ("", "_low", "_high")]
        said[key] = "" if pd.isna(times[0]) else f" {with_ends(*times)}"
        if said[key]:
            whole = " ".join(reference_variant(run) or ())
            over = f" as long as {whole} with the table in memory"
    memory = f"with memory for {share:.0%} of it" if share else "without a limit of memory"
    if len(near) > 1:
        level = all(words[key] == "SAME" for key in near[1:])
        what = (
            "level at the shortest epochs are" if level else "not decided whose are the shortest:"
        )
        each = listed([f"{key.strategy} {key.variant}{said[key]}" for key in near])
        return f"{memory}, {what} {each}{over}"
    took = " had the shortest epochs" + "," * bool(over) if words else " took" * bool(over)
    return f"{memory}, {leader.strategy} {leader.variant}{took}{said[leader]}{over}"


def _read(run: Run) -> Iterator[str]:
    """What each strategy read for a byte of rows, by its own count; in the order of names."""
    table = disk_reads(run).dropna(subset="amplification")
    for strategy, mine in table.groupby("strategy"):
        ends = mine["amplification"].min(), mine["amplification"].max()
        yield f"{strategy} {span(*ends, '×').replace('×', ' B')}"
