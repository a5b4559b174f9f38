"""What is to be said of a table on disk, by the one rule for verdicts.

Paths that read a disk are compared on the same memory, and with the whole table in memory: how much
longer an epoch is then. Nobody's epoch is called shorter than another's unless the whole interval
says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from gatherbench.bench.read.disk import disk_reads, memories, over_memory
from gatherbench.bench.read.disturbance import disturbed_alone
from gatherbench.bench.read.epochs import reference_variant, repeat_logs, set_aside
from gatherbench.bench.read.stats.interval import interval_of
from gatherbench.bench.read.stats.judge import judge
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, quantity, short, span
from gatherbench.bench.run.rows import SERIES, Key

READ = "Read off the disk for each byte of the rows that a path had not kept in memory:"


def disk_sentences(run: Run) -> list[str]:
    """A sentence for each family of workloads with a table on disk, and one on what is read.

    Series that nobody would train with and those without a quiet repeat are left out of the first.
    """
    alone, aside = disturbed_alone(run), set_aside(run)
    table, found = over_memory(run), []
    keys = [Key(*map(str, key)) for key in table[SERIES].itertuples(index=False)]
    left = [key not in alone and key[1:3] not in aside for key in keys]
    table = table[pd.Series(left, table.index, dtype=bool)]
    for family in memories(run):
        mine = table[table["family"] == family.name]
        clauses = [
            _clause(run, mine[mine["workload"] == workload], share)
            for workload, share in family.shares.items()
            if (mine["workload"] == workload).any()
        ]
        if clauses:
            found.append(f"Table on disk, {short(family.name, 120)}: {'; '.join(clauses)}.")
    said = list(_read(run))
    return [*found, f"{READ} {listed(said)}."] if said else found


def _clause(run: Run, table: pd.DataFrame, share: float) -> str:
    """Whose epochs are the shortest with one memory, or between whom that is not decided."""
    logs = repeat_logs(run.values("epoch", "wall_time"))
    lines = table.sort_values("epoch", kind="stable").to_dict("records")
    rival = {Key(*(str(line[name]) for name in SERIES)): line for line in lines}
    leader, *others = rival
    words = {key: judge(interval_of((1, logs[key]), (-1, logs[leader]))).word for key in others}
    near = [leader, *(key for key in others if words[key] != "SLOW")]
    memory = f"with memory for {share:.0%} of it" if share else "without a limit of memory"
    over = ""
    if table["times"].notna().any():
        over = f" as long as {' '.join(reference_variant(run) or ())} with the table in memory"
    each = listed([f"{key.strategy} {key.variant}{_times(rival[key])}" for key in near])
    if len(near) > 1:
        level = all(words[key] == "SAME" for key in near[1:])
        said = (
            "level at the shortest epochs are" if level else "not decided whose are the shortest:"
        )
        return f"{memory}, {said} {each}{over}"
    took = " had the shortest epochs," if others else " took" * bool(over)
    said = f"{leader.strategy} {leader.variant}{took}{_times(rival[leader])}{over}"
    return f"{memory}, {said.removesuffix(',')}"


def _times(line: dict[object, object]) -> str:
    """`` 2.31× (2.20–2.43)``: over the table in memory; nothing where that is not known."""
    value, low, high = (float(str(line[f"times{end}"])) for end in ("", "_low", "_high"))
    if pd.isna(value):
        return ""
    if pd.isna(low):
        return f" {quantity(value, '×')} (one repeat)"
    return f" {quantity(value, '×')} ({'–'.join(quantity(e, '×')[:-1] for e in (low, high))})"


def _read(run: Run) -> Iterator[str]:
    """What each strategy read for a byte of rows, by its own count; in the order of names."""
    table = disk_reads(run).dropna(subset="amplification")
    for strategy, mine in table.groupby("strategy"):
        ends = mine["amplification"].min(), mine["amplification"].max()
        yield f"{strategy} {span(*ends, '×').replace('×', ' B')}"
