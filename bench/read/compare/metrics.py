"""What two runs are compared in: each metric of a case, how it is read, and which way is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from gatherbench.bench.read.epochs import EPOCHS
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES

#: Of the rows that a data path declares before it is measured: bytes of an epoch.
DECLARED_BYTES = ("cpu_read", "cpu_write", "copy_engine", "gpu_link_read")


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a comparison.

    Attributes:
        name: what ``--metric`` calls it.
        unit: of its values.
        read: a run's values, indexed by :data:`~gatherbench.bench.run.rows.SERIES`, repeat and
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
    return lambda run: run.values(stage, metric, EPOCHS)


def _cpu(run: Run) -> pd.Series[float]:
    return run.values("epoch", "cpu_user") + run.values("epoch", "cpu_system")


def _payload_rate(run: Run) -> pd.Series[float]:
    return run.values("fetch", "payload") / run.values("fetch", "wall_time")


def _declared(metric: str) -> Callable[[Run], pd.Series[float]]:
    return lambda run: run.values("fetch", metric, "declared")


def _declared_requests(run: Run) -> pd.Series[float]:
    rows = run.select(stage="fetch", basis="declared", status="ok")
    rows = rows[rows["metric"].str.fullmatch(r"gpu_requests_\d+_bytes")]
    return rows.groupby([*SERIES, "repeat", "epoch"])["value"].sum()


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
        *(Metric(name, "B", _declared(name), declared=True) for name in DECLARED_BYTES),
        Metric("link_requests", "1", _declared_requests, declared=True),
    )
}
