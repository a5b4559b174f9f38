"""The rows of a case as a whole, from those of the ranks that trained it together.

An epoch is over when its slowest rank is done. Stages are means over the ranks, and consumption
(bytes, core-seconds, joules) adds up: ``joined.toml`` has the rule of each metric.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from gatherbench.bench.run.part import PartWriter
from gatherbench.bench.run.rows import Row

_RULES: dict[str, str] = {
    what: rule
    for rule, of in tomllib.loads(Path(__file__).with_name("joined.toml").read_text()).items()
    for what in of
}
#: By rule, how the ranks' values become one, and the words for that.
_HOW: dict[str, tuple[Callable[[list[float]], float], str]] = {
    "first": (lambda values: values[0], "as the first rank saw it"),
    "longest": (max, "longest of {count} ranks"),
    "mean": (fmean, "mean of {count} ranks"),
    "shared": (sum, "sum of {count} ranks, what they share counted for each"),
    "slowest": (max, "rank {slowest}, the slowest"),
    "sum": (sum, "sum of {count} ranks"),
}


def joined(ranks: list[list[Row]], out: PartWriter) -> dict[int, int]:
    """Write the case's rows from those of each rank; return the slowest rank of each epoch."""
    places: dict[tuple[str, str, int, str], dict[int, Row]] = defaultdict(dict)
    for rank, rows in enumerate(ranks):
        for row in rows:
            places[row.stage, row.metric, row.epoch, row.basis][rank] = row
    slowest = {
        epoch: max(rows, key=lambda rank: rows[rank].value or 0.0)
        for (stage, metric, epoch, _), rows in places.items()
        if (stage, metric) == ("epoch", "wall_time")
    }
    for (_, _, epoch, _), of_ranks in places.items():
        if (whole := _joined(of_ranks, slowest.get(epoch, 0))) is not None:
            out.row(replace(whole, rank=-1))
    return slowest


def _joined(rows: dict[int, Row], slowest: int) -> Row | None:
    """Return one row from those of the ranks that have it; ``None``: no row of the whole case."""
    first = next(iter(rows.values()))
    keys = (f"{first.stage}.{first.metric}", first.metric, first.unit)
    rule = next((_RULES[key] for key in keys if key in _RULES), None)
    if len(rows) == 1 or rule == "alike":  # one rank did it for all, such as a test of the model
        return first
    values = [row.value for row in rows.values() if row.value is not None]
    if len(values) < len(rows):
        return next(row for row in rows.values() if row.value is None)
    if rule is None:
        return None
    join, words = _HOW[rule]
    how = words.format(count=len(rows), slowest=slowest)
    return replace(first, value=join(values), source=f"{first.source}; {how}")
