"""What a run keeps beside its table: numbers too many to be rows.

``samples.parquet`` holds the seconds of every stage of every minibatch, ``timeline.parquet`` what
was polled during epochs. Cases write both into their parts; they are gathered when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatherbench.datasets.files import replacing

if TYPE_CHECKING:
    import pandas as pd

SAMPLES_FILE, TIMELINE_FILE = "samples.parquet", "timeline.parquet"

SAMPLE_COLUMNS = ("workload", "strategy", "variant", "repeat", "epoch", "stage", "batch", "value_s")
#: ``time_s`` counts from the opening of the epoch's window; ``value`` is in ``unit``: bytes since
#: then for a counter, the sensor's value for others.
TIMELINE_COLUMNS = (
    "workload",
    "strategy",
    "variant",
    "repeat",
    "epoch",
    "metric",
    "unit",
    "time_s",
    "value",
)
_CASE = ("workload", "strategy", "variant", "repeat")
_INTEGERS, _REALS = ("repeat", "epoch", "batch"), ("value_s", "time_s", "value")


def write_samples(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``samples`` among the records of parts."""
    columns: dict[str, list[Any]] = {name: [] for name in SAMPLE_COLUMNS}
    for record in records:
        if record["kind"] == "samples":
            _repeat(columns, record, SAMPLE_COLUMNS[:-2], len(record["values"]))
            columns["batch"] += range(len(record["values"]))
            columns["value_s"] += record["values"]
    _write(columns, folder / SAMPLES_FILE)


def write_timeline(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``series`` among the records of parts; no file where there are none."""
    columns: dict[str, list[Any]] = {name: [] for name in TIMELINE_COLUMNS}
    for record in records:
        if record["kind"] == "series":
            _repeat(columns, record, TIMELINE_COLUMNS[:-2], len(record["points"]))
            columns["time_s"] += [time_s for time_s, _ in record["points"]]
            columns["value"] += [value for _, value in record["points"]]
    if columns["value"]:
        _write(columns, folder / TIMELINE_FILE)


def load_timeline(folder: Path) -> pd.DataFrame:
    """The run's timeline (:data:`TIMELINE_COLUMNS`); empty when nothing was polled."""
    import pandas as pd

    path = folder / TIMELINE_FILE
    if not path.is_file():
        return pd.DataFrame({name: [] for name in TIMELINE_COLUMNS})
    return pd.read_parquet(path)


def _repeat(
    columns: dict[str, list[Any]], record: dict[str, Any], names: tuple[str, ...], count: int
) -> None:
    for name in names:
        columns[name] += [record[name]] * count


def _write(columns: dict[str, list[Any]], path: Path) -> None:
    """Add to the file what it has not: repeats are added to a run that had ended."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = dict.fromkeys(_INTEGERS, pa.int32()) | dict.fromkeys(_REALS, pa.float64())
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
    table = pa.table(columns, schema=schema)
    if path.is_file():
        mine = set(zip(*(columns[name] for name in _CASE), strict=True))
        before = pq.read_table(path, schema=schema)
        cases = zip(*(before[name].to_pylist() for name in _CASE), strict=True)
        kept = pa.array([case not in mine for case in cases], pa.bool_())
        table = pa.concat_tables([before.filter(kept), table])
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
