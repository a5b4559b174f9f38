"""What is to be said of a table on disk, by the one rule for verdicts.

Paths that read a disk are compared on the same memory, and with the whole table in memory: how much
longer an epoch is then. Nobody's epoch is called shorter than another's unless the whole interval
says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from gatherbench.bench.read.disk import disk_reads, memories, over_memory
from gatherbench.bench.read.disturbance import disturbed_alone
from gatherbench.bench.read.epochs import reference_variant, repeat_logs, set_aside
from gatherbench.bench.read.stats.judge import shortest
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, short, span, with_ends
from gatherbench.bench.run.rows import SERIES, Key

READ = "Read off the disk for each byte of the rows that a path had not kept in memory:"


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
            found.append(f"Table on disk, {short(family.name, 120)}: {'; '.join(clauses)}.")
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
