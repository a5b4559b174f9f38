"""What a run keeps beside its table: numbers too many to be rows.

``samples.parquet`` holds the seconds of every stage of every minibatch, ``timeline.parquet`` what
was polled during epochs. Cases write both into their parts; they are gathered when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gatherbench.datasets.files import replacing

SAMPLES_FILE, TIMELINE_FILE = "samples.parquet", "timeline.parquet"

_CASE = ["workload", "strategy", "variant", "repeat"]
SAMPLE_COLUMNS = (*_CASE, "epoch", "stage", "batch", "value_s")
#: ``time_s`` counts from the opening of the epoch's window; ``value`` is in ``unit``: bytes since
#: then for a counter, the sensor's value for others.
TIMELINE_COLUMNS = (*_CASE, "epoch", "metric", "unit", "time_s", "value")
_KINDS = {
    **dict.fromkeys(("repeat", "epoch", "batch"), "int32"),
    **dict.fromkeys(("value_s", "time_s", "value"), "float64"),
}


def write_samples(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``samples`` among the records of parts."""
    lines = [
        {**record, "batch": range(len(record["values"])), "value_s": record["values"]}
        for record in records
        if record["kind"] == "samples"
    ]
    _write(lines, SAMPLE_COLUMNS, folder / SAMPLES_FILE)


def write_timeline(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``series`` among the records of parts; no file where there are none."""
    lines = []
    for record in records:
        if record["kind"] == "series" and record["points"]:
            time_s, value = zip(*record["points"], strict=True)
            lines.append({**record, "time_s": time_s, "value": value})
    if lines:
        _write(lines, TIMELINE_COLUMNS, folder / TIMELINE_FILE)


def _write(records: list[dict[str, Any]], columns: tuple[str, ...], path: Path) -> None:
    """Add to the file what it has not: repeats are added to a run that had ended.

    The last columns of a record are many numbers, the others are the same for each of them.
    """
    import pandas as pd

    tables = [pd.DataFrame({name: record[name] for name in columns}) for record in records]
    table = pd.concat([pd.DataFrame(columns=list(columns)), *tables], ignore_index=True)
    if path.is_file():
        before = pd.read_parquet(path)
        again = pd.MultiIndex.from_frame(before[_CASE]).isin(table.set_index(_CASE).index)
        table = pd.concat([before[~again], table], ignore_index=True)
    table = table.astype({name: _KINDS.get(name, "str") for name in columns})
    with replacing(path) as temporary:
        table.to_parquet(temporary, compression="zstd", index=False)
