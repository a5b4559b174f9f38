"""What a GPU's sensors saw in the course of an epoch: traffic over the link, and power.

Of each series the first epoch that was polled is drawn. A counter's readings become rates between
them; where there are more than a page shows, readings are left out, which keeps the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gatherbench.bench.read.epochs import sort_series
from gatherbench.bench.read.gpu import link_rates
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.samples import load_timeline
from gatherbench.bench.show.report.bars import Axis

#: Steps of a line at most, and the height of the box that lines are drawn in.
MOST, HIGH = 200, 100.0

#: Time (s) and value, in order.
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """A line: an SVG path in a box of 1000 by :data:`HIGH`, and the name of its colour."""

    colour: str
    path: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One series' epoch, or ``missing``: why there is none. ``said`` is the drawing in words."""

    strategy: str
    variant: str
    lines: list[Line]
    text: str
    said: str
    missing: str = ""
    modelled: bool = False


@dataclass(frozen=True, slots=True)
class StripPanel:
    """Strips of one workload on common axes; ``top`` is the value at the strips' upper edge."""

    title: str
    strips: list[Strip]
    ticks: list[tuple[float, str]]
    top: str


@dataclass(frozen=True, slots=True)
class StripChart:
    """A chart, or ``absent``: why there is none, and the remedy."""

    ident: str
    title: str
    reading: str
    legend: list[tuple[str, str]]
    panels: list[StripPanel]
    absent: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    modelled: bool = False


def traffic(run: Run) -> StripChart:
    """Bytes per second over the link in an epoch, each way."""
    return _chart(
        run,
        "traffic",
        "Traffic over the link during an epoch",
        "Bytes of the link, headers included, by the counter that the run’s calibration trusts; "
        "the first polled epoch of each series.",
        {"pcie_host_to_device": "host to device", "pcie_device_to_host": "device to host"},
        "B/s",
        _rates,
    )


def power(run: Run) -> StripChart:
    """Watts that the GPU drew in an epoch."""
    return _chart(
        run,
        "power",
        "Power of the GPU during an epoch",
        "Power that the driver reports at an instant; the first polled epoch of each series.",
        {"gpu_power": "power"},
        "W",
        _levels,
    )


def _chart(
    run: Run,
    ident: str,
    title: str,
    reading: str,
    metrics: dict[str, str],
    unit: str,
    points_of: Callable[[pd.DataFrame], Points],
) -> StripChart:
    timeline = load_timeline(run.folder)
    timeline = timeline[timeline["metric"].isin(list(metrics))]
    legend = [(label, metric) for metric, label in metrics.items()] if len(metrics) > 1 else []
    if timeline.empty:
        why = _reason(run, next(iter(metrics)))
        return StripChart(ident, title, reading, legend, [], absent=why)
    drawn: Drawn = {}
    for key, found in timeline.groupby([*_KEYS, "metric"]):
        drawn.setdefault(key[:-1], {})[str(key[-1])] = points_of(found)
    panels = []
    for workload in run.workloads:
        lines = _first(drawn, workload)
        reach = [point for found in lines.values() for ps in found.values() for point in ps]
        if not reach:
            continue
        time = Axis("s", max(t for t, _ in reach) or 1.0)
        values = Axis(unit, max(v for _, v in reach) or 1.0)
        strips = [
            _strip(run, workload, names, lines.get(names, {}), metrics, time, values)
            for names in _series(run, workload)
        ]
        top = values.said(values.top)
        panels.append(StripPanel(run.names[workload], strips, time.ticks(), top))
    return StripChart(ident, title, reading, legend, panels)


_KEYS = ["workload", "strategy", "variant", "repeat", "epoch"]
Names = tuple[str, str]
#: By :data:`_KEYS`, then by metric.
Drawn = dict[tuple[Any, ...], dict[str, Points]]


def _first(drawn: Drawn, workload: str) -> dict[Names, dict[str, Points]]:
    """The lines of the first repeat's first epoch of each series of the workload."""
    found: dict[Names, dict[str, Points]] = {}
    for key in sorted((k for k in drawn if k[0] == workload), key=lambda k: k[3:]):
        if any(drawn[key].values()):
            found.setdefault((str(key[1]), str(key[2])), drawn[key])
    return found


def _strip(
    run: Run,
    workload: str,
    names: Names,
    lines: dict[str, Points],
    metrics: dict[str, str],
    time: Axis,
    values: Axis,
) -> Strip:
    if not lines:
        why = _reason(run, next(iter(metrics)), workload, names)
        return Strip(*names, [], "", "", missing=why)
    paths, said, means = [], [], []
    for metric, label in metrics.items():
        points = lines.get(metric, [])
        if not points:
            continue
        paths.append(Line(metric, _path(points, time.top, values.top)))
        mean, most = _mean(points), max(v for _, v in points)
        means.append(f"{quantity(mean, values.unit)} mean")
        said.append(
            f"{label}: {quantity(mean, values.unit)} in the mean, {quantity(most, values.unit)} at"
            f" most, over {quantity(points[-1][0], 's')}"
        )
    return Strip(*names, paths, means[0], "; ".join(said))


def _rates(counter: pd.DataFrame) -> Points:
    """Rates between readings: each value holds up to its time."""
    counter = counter.sort_values("time_s", ignore_index=True)
    kept = _thinned(counter)
    rates = link_rates(kept)
    return list(zip(rates["end_s"], rates["rate"], strict=True))


def _levels(readings: pd.DataFrame) -> Points:
    readings = _thinned(readings.sort_values("time_s", ignore_index=True))
    return list(zip(readings["time_s"], readings["value"], strict=True))


def _thinned(readings: pd.DataFrame) -> pd.DataFrame:
    """Every so many readings, and the last."""
    step = -(-len(readings) // MOST)
    chosen = sorted({*range(0, len(readings), step), len(readings) - 1})
    return readings.iloc[chosen]


def _path(points: Points, longest_s: float, top: float) -> str:
    """Steps: each value holds from the point before up to its own time."""
    steps = [f"V{HIGH - HIGH * v / top:.1f}H{1000 * t / longest_s:.1f}" for t, v in points]
    return "M0 " + f"{HIGH - HIGH * points[0][1] / top:.1f}" + "".join(steps)


def _mean(points: Points) -> float:
    """Mean over time."""
    total = before = 0.0
    for t, v in points:
        total += v * (t - before)
        before = t
    return total / before if before else points[0][1]


def _series(run: Run, workload: str) -> list[Names]:
    planned = pd.DataFrame(run.plan["cases"])
    planned = planned[planned["workload"] == workload][["strategy", "variant"]].drop_duplicates()
    return [(str(s), str(v)) for s, v in sort_series(planned).itertuples(index=False)]


def _reason(run: Run, metric: str, workload: str = "", names: Names | None = None) -> str:
    """What the run says of a metric that it does not have, of one series or of any."""
    rows = run.rows[run.rows["status"] != "ok"]
    wanted = rows["metric"] == metric
    if names is not None:
        mine = (rows["strategy"] == names[0]) & (rows["variant"] == names[1])
        wanted = (wanted | (rows["stage"] == "case")) & mine & (rows["workload"] == workload)
    if wanted.any():
        found = rows[wanted].iloc[0]
        return f"{found['status']}: {found['reason']}"
    return "nothing was polled: a GPU’s sensors are read during runs on a GPU"
