"""What charts over time are made of: curves of an epoch, or of the whole training, by series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.read.derive import reasons_of, sort_series
from gatherbench.bench.read.tables import Run, of_measured
from gatherbench.bench.read.units import bytes_in_words, quantity
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel, Points
from gatherbench.bench.show.charts import chart_of

#: Workload, strategy and variant.
Series = tuple[str, str, str]
#: Readings in an epoch that are drawn at most; leaving some out keeps a counter's bytes.
MOST = 300
#: Share of the link's raw rate below which traffic has a scale of its own.
LITTLE = 0.1
_NOT_POLLED = "nothing was polled: a GPU’s sensors are read during runs on a GPU"


def over_time(
    run: Run,
    lines: Mapping[Series, Line],
    axes: Mapping[str, tuple[Axis, Axis]],
    metric: str,
    otherwise: str,
    roof: float | None = None,
    **of: Any,
) -> Chart:
    """A panel for each workload, in it a line for each planned series, or the reason.

    Args:
        lines: those that there are.
        axes: of time and values, by workload.
        metric: whose rows say why a line is missing; if none does, ``otherwise``.
        roof: what a value cannot exceed.
        of: the rest of the chart.
    """
    panels, whys, planned = [], Counter[str](), pd.DataFrame(run.plan["cases"])
    reasons = _reasons(run, metric)
    for workload in run.workloads:
        mine = planned[planned["workload"] == workload][SERIES[1:3]].drop_duplicates()
        shown = []
        for strategy, variant in sort_series(mine).itertuples(index=False, name=None):
            key = (workload, str(strategy), str(variant))
            line = lines.get(key)
            if line is None:
                line = Line(*key[1:], missing=reasons.get(key, otherwise))
                whys[line.missing] += 1
            shown.append(line)
        time, values = axes[workload]
        panels.append(Panel(run.names[workload], shown, time, values=values, roof=roof))
    absent = [] if lines else [f"{count} series: {why}" for why, count in whys.items()]
    return chart_of(run, panels, absent="\n".join(absent), **of)


def _reasons(run: Run, metric: str) -> dict[Series, str]:
    """What the run says of a metric that it does not have of a series, or of the series' cases."""
    of_metric = run.columns.index[run.columns["metric"] == metric]
    ended = run.ended.reset_index()
    found: dict[Series, str] = {}
    for rows in (reasons_of(run, *of_metric), ended[ended["status"] != "ok"]):
        for *key, status, reason in rows[[*SERIES[:3], "status", "reason"]].to_numpy():
            found.setdefault((key[0], key[1], key[2]), f"{status}: {reason}")
    return found


def polled(
    run: Run,
    unit: str,
    points_of: Callable[[pd.DataFrame], Points],
    roof: float | None = None,
    *,
    legend: Mapping[str, tuple[str, str]],
    **said: str,
) -> Chart:
    """The first polled epoch of each series.

    Args:
        points_of: what is drawn of the readings of one metric in one epoch, in the order of time.
        legend: metrics → what they are called, and their colours.
    """
    timeline = of_measured(run, RunStore(run.folder).timeline())
    timeline = timeline.sort_values("time_s", kind="stable")
    lines: dict[Series, Line] = {}
    for case, epoch in timeline.groupby([*SERIES[:3], "repeat", "epoch"]):
        workload, strategy, variant = map(str, case[:3])
        key = (workload, strategy, variant)
        readings = {str(name): mine for name, mine in epoch.groupby("metric")}
        curves = {name: points_of(_thinned(readings[name])) for name in legend if name in readings}
        curves = {name: points for name, points in curves.items() if points}
        if curves and key not in lines:
            names = {name: legend[name][0] for name in curves}
            lines[key] = _epoch(run, epoch, readings, curves, names, unit)
    axes = {}
    for workload in run.workloads:
        mine = [line for key, line in lines.items() if key[0] == workload]
        reach = [p for line in mine for points in line.curves.values() for p in points]
        longest, peak = (max((p[i] for p in reach), default=0.0) for i in (0, 1))
        top = roof if roof is not None and not 0 < peak < LITTLE * roof else peak
        axes[workload] = Axis("s", longest or 1.0), Axis(unit, float(top) or 1.0)
    first = next(iter(legend))
    return over_time(run, lines, axes, first, _NOT_POLLED, roof, legend=legend, **said)


def _epoch(
    run: Run,
    epoch: pd.DataFrame,
    readings: Mapping[str, pd.DataFrame],
    curves: Mapping[str, Points],
    names: Mapping[str, str],
    unit: str,
) -> Line:
    """One epoch of a series: its curves, their means, and of counters how much there was."""
    means, totals = [], []
    for metric, points in curves.items():
        times, values = np.array(points).T
        lengths = np.diff(times, prepend=0.0)
        mean = quantity(np.average(values, weights=lengths) if times[-1] else values[0], unit)
        means.append(f"{mean} mean")
        last = readings[metric].iloc[-1]
        if last["unit"] == "B":
            totals.append(f"{bytes_in_words(last['value'])} {names[metric]}")
    case = {name: epoch.iloc[0][name] for name in (*SERIES[:3], "repeat", "epoch")}
    here = run.epochs[(run.epochs["rank"] < 0) & (run.epochs["basis"] == "measured")]
    here = here[(here[[*case]] == list(case.values())).all(axis=1)]
    payload = here.get("fetch_payload_bytes", pd.Series(dtype=float)).dropna()
    if totals and len(payload):
        totals.append(f"payload {bytes_in_words(payload.iloc[0])}")
    series, note = (case["strategy"], case["variant"]), ", ".join(totals)
    return Line(*series, text=means[0], note=note, curves=curves)


def _thinned(readings: pd.DataFrame) -> pd.DataFrame:
    """Every so many readings, and the last."""
    step = -(-len(readings) // MOST)
    return readings.iloc[sorted({*range(0, len(readings), step), len(readings) - 1})]
