"""A run's rows as its tables, and back: a line per epoch, per case, and per missing value.

Processes observe one number at a time (:class:`gatherbench.bench.run.rows.Row`). In a line a metric
is a column (:class:`gatherbench.bench.run.columns.Column`).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gatherbench.bench.run.columns import (
    CASES,
    COUNT,
    ENDED,
    EPOCHS,
    OF_CASE,
    Column,
)
from gatherbench.bench.run.frames import RESTORE, Frames, framed
from gatherbench.bench.run.part import CaseId, StoreError, key_of
from gatherbench.bench.run.rows import PROCESS, SCHEMA_VERSION, Row

_READ = re.compile(r"\[samples=(\d+), (?=period=)")
_ALL_EPOCHS, _END = -1, ENDED.name
_Line = dict[str, Any]
#: Keys of a line that a row has under the same name.
_KEPT = (
    *("commit", "machine", "backend", "workload", "dataset", "strategy", "variant", "repeat"),
    "rank",
)


def frames_of(rows: Iterable[Row]) -> Frames:
    """Return the tables of whole cases; the row with a case's end is its last.

    Rows of the run as a whole are left out.

    Raises:
        StoreError: an observation occurs twice among the rows, or two have one column.
    """
    # The row with which a process continues a case makes no line before the epoch's own. If only
    # the case's end was left to measure, there is no such epoch.
    rows = sorted((row for row in rows if row.workload), key=_went_on)
    begun = _begun(rows)
    there = {(key_of(row), row.rank, row.epoch) for row in rows if not _went_on(row)}
    lines: dict[tuple[Any, ...], _Line] = {}
    columns: dict[str, Column] = {}
    missing: dict[tuple[Any, ...], list[_Line]] = defaultdict(list)
    for row in rows:
        if _went_on(row) and (key_of(row), row.rank, row.epoch) not in there:
            continue
        source = _READ.sub("[samples=N, ", row.source)
        column = Column(row.stage, row.metric, row.unit, row.basis == "declared", source)
        name = column.name
        known = columns.setdefault(name, column)
        if replace(known, source=source) != column:
            what, other = (f"{one.stage}.{one.metric}" for one in (column, known))
            raise StoreError(f"{what} and {other} have one column, {name}: rename one")
        keys = _keys(row)
        line = lines.setdefault((*keys.values(), row.epoch), keys | _place(row, begun))
        if name in line:
            if row.epoch < 0:
                continue  # a path may be set up twice, by the launcher of ranks and by them
            what = f"{row.stage}.{row.metric} of {row.workload} {row.strategy} {row.variant}"
            raise StoreError(f"{what}, repeat {row.repeat}, epoch {row.epoch} stands twice")
        line[name] = row.value
        if polled := _READ.search(row.source):
            line[column.samples] = int(polled[1])
        ends = name == _END
        if ends:
            line |= {"status": row.status, "reason": row.reason}
        if (row.value is None and not ends) or source != known.source:
            reason = {
                **dict(zip(OF_CASE, _case(line), strict=True)),
                **{"table": CASES if row.epoch < 0 else EPOCHS, "column": name},
                **{"status": row.status, "reason": row.reason},
                "source": source if source != known.source else None,
            }
            missing[tuple(reason.values())].append(reason | {"epoch": row.epoch})
    epochs = [line for line in lines.values() if "epoch" in line]
    cases = [line for line in lines.values() if "epoch" not in line]
    counts = Counter(map(_case, epochs))
    reasons: list[_Line] = []
    for alike in missing.values():
        in_all = alike[0]["table"] == EPOCHS and len(alike) == counts[_case(alike[0])]
        reasons += [alike[0] | {"epoch": _ALL_EPOCHS}] if in_all else alike
    for line in cases:
        if line["status"] is not None:
            line[COUNT] = counts[_case(line)]
    cases.sort(key=lambda line: line["status"] is not None)
    return framed({EPOCHS: epochs, CASES: cases, "reasons": reasons}, columns)


def _keys(row: Row) -> _Line:
    basis = "measured" if row.basis == "declared" else row.basis
    return {
        **{"run": row.run_id, "commit": row.commit, "machine": row.machine},
        **{"backend": row.backend, "basis": basis, "borrowed": row.borrowed or None},
        **{"workload": row.workload, "dataset": row.dataset, "strategy": row.strategy},
        **{"variant": row.variant, "rank": row.rank, "repeat": row.repeat},
    }


def _place(row: Row, begun: dict[CaseId, dict[int, int]]) -> _Line:
    """Return the further keys of a row's line: of an epoch the number of its process, or -1."""
    if row.epoch < 0:
        return {"status": None, "reason": None}
    of_case = begun.get(key_of(row), {})
    behind = bisect_right(starts := sorted(of_case), row.epoch)
    return {"block": of_case[starts[behind - 1]] if behind else -1, "epoch": row.epoch}


def _begun(rows: Iterable[Row]) -> dict[CaseId, dict[int, int]]:
    """Return by case the numbers of the processes that it shared, by their first epochs."""
    numbers: dict[float, int] = {}
    begun: dict[CaseId, dict[int, int]] = defaultdict(dict)
    for row in rows:
        if (row.stage, row.metric) == PROCESS[:2] and row.value is not None:
            begun[key_of(row)][row.epoch] = numbers.setdefault(row.value, len(numbers))
    return begun


def _went_on(row: Row) -> bool:
    """Return whether the row marks that a process continued a case that another had begun."""
    return (row.stage, row.metric) == PROCESS[:2] and row.epoch >= 0


def _case(line: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in OF_CASE)


def rows_in(frames: Frames) -> list[Row]:
    """Return the observations of the tables, by case.

    Raises:
        StoreError: a value that exists also has a reason why it is missing.
    """
    about = {
        (reason["table"], reason["epoch"], reason["column"], *_case(reason)): reason
        for reason in frames.reasons.to_dict("records")
    }
    lines = {name: frames.table(name).to_dict("records") for name in (EPOCHS, CASES)}
    found: dict[tuple[Any, ...], list[Row]] = {_of(line): [] for line in lines[CASES]}
    for table, of_table in lines.items():
        for line in of_table:
            rows = _rows_of(line, table, frames.columns, about)
            found.setdefault(_of(line), []).extend(rows)
    return [row for rows in found.values() for row in rows]


def _of(line: dict[Any, Any]) -> tuple[Any, ...]:
    return line["workload"], line["strategy"], line["variant"], line["repeat"]


def _rows_of(
    line: dict[Any, Any],
    table: str,
    columns: dict[str, Column],
    about: dict[tuple[Any, ...], dict[Any, Any]],
) -> Iterator[Row]:
    epoch, case = line.get("epoch", -1), _case(line)
    for name, column in columns.items():
        if name not in line or (name == _END and line["status"] is None):
            continue
        noted = about.get((table, epoch, name, *case)) or about.get((table, -1, name, *case))
        value = None if math.isnan(line[name]) else line[name]
        if value is None and noted is None and name != _END:
            continue
        source, (status, reason) = column.source, ("ok", None)
        if noted is not None:
            source, status, reason = noted["source"] or source, noted["status"], noted["reason"]
        if name == _END:
            status, reason = line["status"], line["reason"]
        if not math.isnan(polled := line.get(column.samples, math.nan)):
            source = source.replace("samples=N", f"samples={polled:.0f}")
        if value is None and reason is None:
            reason = "no reason was given"
        basis = "declared" if column.declared else line["basis"]
        keys = {key: line[key] for key in _KEPT}
        try:
            yield Row(
                line["run"],
                SCHEMA_VERSION,
                **keys,
                basis=basis,
                epoch=epoch,
                stage=column.stage,
                metric=column.metric,
                unit=column.unit,
                value=value,
                source=source,
                status=status,
                reason=reason,
                borrowed=line["borrowed"] or "",
            )
        except ValueError as error:
            of = " ".join(map(str, _of(line)[:3]))
            raise StoreError(
                f"{table}.csv: {name} of {of} has a value and a reason why there is none, or"
                f" neither ({error}); {RESTORE}"
            ) from error
