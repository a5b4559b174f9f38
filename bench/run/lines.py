"""A run's tables: a line per epoch, a line per case, and a line for each missing value.

Processes observe one number at a time (:class:`gatherbench.bench.run.rows.Row`). Here their
observations become lines, in which a metric is a column
(:class:`gatherbench.bench.run.columns.Column`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gatherbench.bench.run.columns import CASES, COUNT, EPOCHS, REASON_KEYS, Column
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.rows import PROCESS, Row

#: The column with the duration of a case; how it ended is its status.
ENDED = Column("case", "wall_time", "s", declared=False)
_READ = re.compile(r"\[samples=(\d+), (?=period=)")
_ALL_EPOCHS = -1


@dataclass(slots=True)
class Lines:
    """The lines that rows become.

    Attributes:
        epochs, cases: lines by :data:`~gatherbench.bench.run.columns.EPOCH_KEYS` and ``CASE_KEYS``,
            and then by column.
        reasons: lines by ``REASON_KEYS``.
        columns: the description of the columns, by name.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[dict[str, Any]] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)


def lines_of(rows: Iterable[Row]) -> Lines:
    """Return the lines of whole cases; the row with a case's end is its last.

    Rows of the run as a whole are left out.

    Raises:
        StoreError: an observation occurs twice among the rows, or two have one column.
    """
    found, processes = Lines(), _Processes()
    # The row with which a process continues a case makes no line before the epoch's own.
    rows = sorted((row for row in rows if row.workload), key=_went_on)
    for row in rows:
        processes.add(row)
    # If only the case's end was left to measure, there is no such epoch.
    there = {(*_key(row), row.rank, row.epoch) for row in rows if not _went_on(row)}
    rows = [r for r in rows if not _went_on(r) or (*_key(r), r.rank, r.epoch) in there]
    lines: dict[tuple[object, ...], dict[str, Any]] = {}
    missing: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        column = Column(row.stage, row.metric, row.unit, row.basis == "declared")
        usual, read = _source(row.source)
        known_column = found.columns.setdefault(column.name, replace(column, source=usual))
        if replace(known_column, source="") != column:
            what = f"{column.stage}.{column.metric}"
            other = f"{known_column.stage}.{known_column.metric}"
            raise StoreError(f"{what} and {other} have one column, {column.name}: rename one")
        line = _line(row, lines, found, processes)
        if column.name in line and row.epoch < 0:
            continue  # a path may be set up twice, by the launcher of ranks and by them: first wins
        if column.name in line:
            what = f"{row.stage}.{row.metric} of {row.workload} {row.strategy} {row.variant}"
            raise StoreError(f"{what}, repeat {row.repeat}, epoch {row.epoch} stands twice")
        line[column.name] = row.value
        if read is not None:
            line[column.samples] = read
        ends = column.name == ENDED.name
        if ends:
            line |= {"status": row.status, "reason": row.reason}
        if (row.value is None and not ends) or usual != known_column.source:
            table = CASES if row.epoch < 0 else EPOCHS
            reason = {
                **{name: line[name] for name in REASON_KEYS[:6]},
                **{"epoch": row.epoch, "table": table, "column": column.name},
                **{"status": row.status, "reason": row.reason},
                "source": usual if usual != known_column.source else None,
            }
            missing[tuple(v for n, v in reason.items() if n != "epoch")].append(reason)
    epochs = _count(found.epochs)
    for alike in missing.values():
        in_all = alike[0]["table"] == EPOCHS and len(alike) == epochs[_case(alike[0])]
        found.reasons += [{**alike[0], "epoch": _ALL_EPOCHS}] if in_all else alike
    for line in found.cases:
        if line["status"] is not None:
            line[COUNT] = epochs[_case(line)]
    found.cases.sort(key=lambda line: line["status"] is not None)
    return found


def _line(
    row: Row, lines: dict[tuple[object, ...], dict[str, Any]], found: Lines, processes: _Processes
) -> dict[str, Any]:
    """Return the line to which a row belongs, made if it is new."""
    basis = "measured" if row.basis == "declared" else row.basis
    keys: dict[str, Any] = {
        **{"run": row.run_id, "commit": row.commit, "machine": row.machine},
        **{"backend": row.backend, "basis": basis, "borrowed": row.borrowed or None},
        **{"workload": row.workload, "dataset": row.dataset, "strategy": row.strategy},
        **{"variant": row.variant, "rank": row.rank, "repeat": row.repeat},
    }
    place = (*keys.values(), row.epoch)
    if place not in lines:
        if row.epoch < 0:
            found.cases.append(keys | {"status": None, "reason": None})
            lines[place] = found.cases[-1]
        else:
            found.epochs.append(keys | {"block": processes.block(row), "epoch": row.epoch})
            lines[place] = found.epochs[-1]
    return lines[place]


class _Processes:
    """The process that measured each epoch of a case, by numbers; -1: the case had one alone."""

    def __init__(self) -> None:
        self._numbers: dict[float, int] = defaultdict(lambda: len(self._numbers))
        self._begun: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)

    def add(self, row: Row) -> None:
        """Take in a row, which may show when a process began."""
        if (row.stage, row.metric) == PROCESS[:2] and row.value is not None:
            self._begun[_key(row)][row.epoch] = self._numbers[row.value]

    def block(self, row: Row) -> int:
        """Return the number of the process that made the row."""
        begun = self._begun.get(_key(row), {})
        starts = sorted(begun)
        behind = bisect_right(starts, row.epoch)
        return begun[starts[behind - 1]] if behind else -1


def _went_on(row: Row) -> bool:
    """Return whether the row marks that a process continued a case that another had begun."""
    return (row.stage, row.metric) == PROCESS[:2] and row.epoch >= 0


def _key(row: Row) -> tuple[object, ...]:
    return (row.workload, row.strategy, row.variant, row.repeat)


def _case(line: dict[str, Any]) -> tuple[object, ...]:
    return tuple(line[name] for name in REASON_KEYS[:6])


def _count(lines: Iterable[dict[str, Any]]) -> dict[tuple[object, ...], int]:
    found: dict[tuple[object, ...], int] = defaultdict(int)
    for line in lines:
        found[_case(line)] += 1
    return found


def _source(source: str) -> tuple[str, int | None]:
    """Split a source into it and the number of readings of a sensor that is polled."""
    found = _READ.search(source)
    if found is None:
        return source, None
    return _READ.sub("[samples=N, ", source), int(found[1])
