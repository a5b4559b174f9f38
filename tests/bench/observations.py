"""The observations that the tables of a run stand for, one by one, and runs written of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gatherbench.bench.run.frames import CASES, ENDED, EPOCHS, OF_CASE, Column, Frames, frames_of
from gatherbench.bench.run.rows import HEADER, SCHEMA_VERSION, Row, table_of
from gatherbench.bench.run.store import RunStore

_END = ENDED.name
#: Keys of a line that a row has under the same name.
_KEPT = (
    *("commit", "machine", "backend", "workload", "dataset", "strategy", "variant", "repeat"),
    "rank",
)


def rows_of_run(run: RunStore | Path) -> list[Row]:
    """The observations of a run, those of the run as a whole first."""
    store = run if isinstance(run, RunStore) else RunStore(run)
    table = store.calibration().astype(object)
    lines = table.where(table.notna(), None)[list(HEADER)].itertuples(index=False, name=None)
    return [
        *(Row(**dict(zip(HEADER, line, strict=True))) for line in lines),
        *rows_in(store.frames()),
    ]


def write_rows(store: RunStore, rows: Iterable[Row]) -> None:
    """Write the tables of a run anew."""
    rows = list(rows)
    if of_run := [row for row in rows if not row.workload]:
        store.keep_calibration(table_of(of_run))
    frames_of(rows).write(store.folder)


def is_prediction(row: Row) -> bool:
    return row.basis == "predicted"


def rows_in(frames: Frames) -> list[Row]:
    """The observations in these tables, case by case."""
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


def _case(line: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in OF_CASE)


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
        what = (column.stage, column.metric, column.unit, value, source, status, reason)
        yield Row(
            run_id=line["run"],
            schema_version=SCHEMA_VERSION,
            **{key: line[key] for key in _KEPT},
            basis="declared" if column.declared else line["basis"],
            epoch=epoch,
            borrowed=line["borrowed"] or "",
            **dict(zip(_WHAT, what, strict=True)),
        )


_WHAT = ("stage", "metric", "unit", "value", "source", "status", "reason")
