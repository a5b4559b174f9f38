"""The rows of the micro-benchmark, kept as they come, and the table that is derived from them."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from gatherbench.bench.probe.micro_plan import Point
from gatherbench.bench.read.micro_row import MicroRow

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


R = TypeVar("R", bound="DataclassInstance")


class RowFile(Generic[R]):
    """A table of rows of one dataclass, each on disk as soon as it is known."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, [f.name for f in fields(kind)])
        self._writer.writeheader()
        self._file.flush()
        self.rows: list[R] = []

    def add(self, row: R) -> None:
        self.rows.append(row)
        self._writer.writerow(asdict(row))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def row_of(point: Point, number: int, seconds: float) -> MicroRow:
    """A timed launch as a row."""
    return MicroRow(
        point.kind,
        point.policy,
        point.order,
        point.row_bytes,
        point.span_bytes,
        point.cap,
        number,
        point.payload_bytes,
        seconds,
        "time.perf_counter" if point.kind == "id_check" else "torch.cuda.Event",
    )


def summary(rows: Sequence[MicroRow]) -> list[dict[str, Any]]:
    """Median GB/s of each point with its extremes, and its share of the span's SM-read roof."""
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    payload: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.kind in ("copy_engine", "sm_read", "gather"):
            key = (row.kind, row.span_bytes, row.row_bytes, row.policy, row.order, row.cap)
            times[key].append(row.time_s)
            payload[key] = row.payload_bytes
    rate = {key: payload[key] / statistics.median(values) / 1e9 for key, values in times.items()}
    roofs: dict[int, float] = {}
    for (kind, span, *_), value in rate.items():
        if kind == "sm_read":
            roofs[span] = max(roofs.get(span, 0.0), value)
    names = ("kind", "span_bytes", "row_bytes", "policy", "order", "cap")
    return [
        dict(zip(names, key, strict=True))
        | {
            "launches": len(times[key]),
            "payload_gb_per_s": value,
            "slowest_gb_per_s": payload[key] / max(times[key]) / 1e9,
            "fastest_gb_per_s": payload[key] / min(times[key]) / 1e9,
            "of_sm_read_roof": value / roofs[key[1]] if key[1] in roofs else None,
        }
        for key, value in sorted(rate.items())
    ]


def write_summary(rows: Sequence[MicroRow], path: Path) -> list[dict[str, Any]]:
    """:func:`summary` as a CSV file."""
    table = summary(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]) if table else ["kind"])
        writer.writeheader()
        writer.writerows(table)
    return table
