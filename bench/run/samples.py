"""What a run keeps beside its table: numbers too many to be rows.

``samples.parquet`` holds the seconds of every stage of every minibatch, ``timeline.parquet`` what
was polled during epochs. Cases write both into their parts; they are gathered when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatherbench.datasets.files import replacing

if TYPE_CHECKING:
    import pandas as pd

SAMPLES_FILE, TIMELINE_FILE = "samples.parquet", "timeline.parquet"

_INTEGERS, _REALS = ("repeat", "epoch", "batch"), ("value_s", "time_s", "value")
SAMPLE_COLUMNS = ("workload", "strategy", "variant", "repeat", "epoch", "stage", "batch", "value_s")
#: ``time_s`` counts from the opening of the epoch's window; ``value`` is in ``unit``: bytes since
#: then for a counter, the sensor's value for others.
TIMELINE_COLUMNS = (*SAMPLE_COLUMNS[:5], "metric", "unit", "time_s", "value")
_CASE = ["workload", "strategy", "variant", "repeat"]


def write_samples(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``samples`` among the records of parts."""
    tables = [
        _table(record, SAMPLE_COLUMNS, batch=range(len(record["values"])), value_s=record["values"])
        for record in records
        if record["kind"] == "samples"
    ]
    _write(tables, SAMPLE_COLUMNS, folder / SAMPLES_FILE)


def write_timeline(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Gather the ``series`` among the records of parts; no file where there are none."""
    tables = [
        _table(
            record,
            TIMELINE_COLUMNS,
            time_s=[time_s for time_s, _ in record["points"]],
            value=[value for _, value in record["points"]],
        )
        for record in records
        if record["kind"] == "series" and record["points"]
    ]
    if tables:
        _write(tables, TIMELINE_COLUMNS, folder / TIMELINE_FILE)


def load_timeline(folder: Path) -> pd.DataFrame:
    """The run's timeline (:data:`TIMELINE_COLUMNS`); empty when nothing was polled."""
    import pandas as pd

    path = folder / TIMELINE_FILE
    if not path.is_file():
        return pd.DataFrame({name: [] for name in TIMELINE_COLUMNS})
    return pd.read_parquet(path)


def _table(
    record: dict[str, Any], columns: Sequence[str], **values: Sequence[float]
) -> pd.DataFrame:
    """A line for each of the values; the other columns are the record's."""
    import pandas as pd

    fixed = {name: record[name] for name in columns if name not in values}
    return pd.DataFrame({**values}).assign(**fixed)[list(columns)]


def _write(tables: list[pd.DataFrame], columns: Sequence[str], path: Path) -> None:
    """Add to the file what it has not: repeats are added to a run that had ended."""
    import pandas as pd

    empty = pd.DataFrame(columns=list(columns))
    table = pd.concat(tables, ignore_index=True) if tables else empty
    if path.is_file():
        mine = pd.MultiIndex.from_frame(table[_CASE])
        before = pd.read_parquet(path)
        kept = before[~pd.MultiIndex.from_frame(before[_CASE]).isin(mine)]
        table = pd.concat([kept, table], ignore_index=True) if tables else kept
    kinds = dict.fromkeys(_INTEGERS, "int32") | dict.fromkeys(_REALS, "float64")
    table = table.astype({name: kinds.get(name, "str") for name in columns})
    with replacing(path) as temporary:
        table.to_parquet(temporary, compression="zstd", index=False)
