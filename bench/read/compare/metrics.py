"""What two runs are compared in: each metric of a case, how it is read, and which way is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gatherbench.bench.read.epochs import SERIES, epoch_values
from gatherbench.bench.read.tables import Run

#: Of the rows that a data path declares (``epoch`` -1, ``backend`` ``model``): bytes of an epoch.
DECLARED_BYTES = ("cpu_read", "cpu_write", "copy_engine", "gpu_link_read")


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a comparison.

    Attributes:
        name: what ``--metric`` calls it.
        unit: of its values.
        read: a run's values, indexed by :data:`~gatherbench.bench.read.epochs.SERIES`, repeat and
            epoch.
        more_is_better: true of rates.
        declared: computed from ids and data path alone: the same on every machine.
    """

    name: str
    unit: str
    read: Callable[[Run], pd.Series[float]]
    more_is_better: bool = False
    declared: bool = False


def _measured(stage: str, metric: str) -> Callable[[Run], pd.Series[float]]:
    return lambda run: epoch_values(run, stage, metric)


def _cpu(run: Run) -> pd.Series[float]:
    return epoch_values(run, "epoch", "cpu_user") + epoch_values(run, "epoch", "cpu_system")


def _payload_rate(run: Run) -> pd.Series[float]:
    return epoch_values(run, "fetch", "payload") / epoch_values(run, "fetch", "wall_time")


def _declared(run: Run, names: pd.Series[bool]) -> pd.Series[float]:
    rows = run.rows[names & (run.rows["epoch"] < 0) & (run.rows["status"] == "ok")]
    rows = rows[(rows["backend"] == "model") & (rows["stage"] == "fetch")]
    return rows.groupby([*SERIES, "repeat", "epoch"])["value"].sum()


def _declared_bytes(name: str) -> Callable[[Run], pd.Series[float]]:
    return lambda run: _declared(run, run.rows["metric"] == name)


def _declared_requests(run: Run) -> pd.Series[float]:
    return _declared(run, run.rows["metric"].str.fullmatch(r"gpu_requests_\d+_bytes"))


#: Every metric, in the order in which it is shown. Units are of one epoch.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("epoch", "s", _measured("epoch", "wall_time")),
        Metric("sample", "s", _measured("sample", "wall_time")),
        Metric("fetch", "s", _measured("fetch", "wall_time")),
        Metric("train", "s", _measured("train", "wall_time")),
        Metric("cpu", "s", _cpu),
        Metric("payload_rate", "B/s", _payload_rate, more_is_better=True),
        Metric("cpu_energy", "J", _measured("epoch", "cpu_energy")),
        Metric("gpu_energy", "J", _measured("epoch", "gpu_energy")),
        *(Metric(name, "B", _declared_bytes(name), declared=True) for name in DECLARED_BYTES),
        Metric("link_requests", "1", _declared_requests, declared=True),
    )
}
