"""Charts of a run over time: traffic on the link, power, and how right its models came to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from gatherbench.bench.read.accuracy import accuracy_over_time as scores_over_time
from gatherbench.bench.read.accuracy import alike
from gatherbench.bench.read.epochs import sort_series
from gatherbench.bench.read.gpu import DIRECTIONS, link_rate, link_rates
from gatherbench.bench.read.tables import Run, of_measured
from gatherbench.bench.read.units import bytes_in_words, quantity
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel, Points
from gatherbench.bench.show.looks import explained
from gatherbench.bench.show.sentences.provenance import provenance, warnings_of

#: Workload, strategy and variant.
Series = tuple[str, str, str]
#: Readings in an epoch that are drawn at most; leaving some out keeps a counter's bytes.
MOST = 300
#: Share of the link's raw rate below which traffic has a scale of its own.
LITTLE = 0.1
_NOT_POLLED = "nothing was polled: a GPU’s sensors are read during runs on a GPU"
_NOT_SCORED = "not scored after each epoch: eval_every_epoch in [measure] does it"


def is_scored(run: Run) -> bool:
    """Whether the plan has the model scored after each epoch."""
    return bool(run.plan["measure"].get("eval_every_epoch"))


def pcie_over_time(run: Run) -> Chart:
    """Bytes per second over the link in an epoch, each way: kept busy, or in bursts?"""
    raw, unknown = link_rate(run)
    reading = (
        "Bytes of the link, headers included, between readings of the counter that the run’s"
        " calibration trusts; payload: the rows that the loop asked for. The first polled epoch of"
        " each series."
    )
    if raw is None:
        reading += f" No raw rate of the link: {unknown}."
    else:
        reading += (
            f" The scale ends at the link’s raw rate, {quantity(raw, 'B/s')} or at the"
            " peak where that is less than a tenth of it."
        )
    return _polled(
        run,
        "B/s",
        _rates,
        raw,
        ident="traffic",
        title="Traffic over the link during an epoch",
        reading=reading,
        quantity="rate",
        legend={
            f"pcie_{way}": (way.replace("_", " "), colour)
            for way, colour in zip(DIRECTIONS, ("blue", "orange"), strict=True)
        },
    )


def power_over_time(run: Run) -> Chart:
    """Watts that the GPU drew in an epoch."""
    return _polled(
        run,
        "W",
        lambda readings: list(zip(readings["time_s"], readings["value"], strict=True)),
        ident="power",
        title="Power of the GPU during an epoch",
        reading="Power that the driver reports at an instant. The first polled epoch of each"
        " series.",
        quantity="power",
        legend={"gpu_power": ("power", "vermilion")},
    )


def accuracy_over_time(run: Run) -> Chart:
    """What the model of each series had come to, over the time of its measured epochs."""
    table, families = scores_over_time(run), alike(run)
    axes: dict[str, tuple[Axis, Axis]] = {}
    lines: dict[Series, Line] = {}
    for workload in run.workloads:
        # Axes are those of all that it may be compared with.
        shared = table[table["workload"].isin(families[workload])]
        longest, highest = shared[["time_s", "accuracy"]].max().fillna(0.0)
        axes[workload] = Axis("s", 1.05 * longest or 1.0), Axis("share", highest or 1.0)
    for key, mine in table.groupby(SERIES[:3]):
        workload, *names = map(str, key)
        ends, scores = mine["time_s"].tolist(), mine["accuracy"].tolist()
        # A score holds from the end of its epoch on, and nobody knows it before.
        points = list(zip([*ends, axes[workload][0].top], [0.0, *scores], strict=True))
        said = [
            f"{quantity(score, 'share')} after {quantity(end, 's')}"
            for end, score in zip(ends, scores, strict=True)
        ]
        curves = {"accuracy": points}
        line = Line(names[0], names[1], text=said[-1], curves=curves, aloud=", ".join(said))
        lines[workload, names[0], names[1]] = line
    began = int(run.plan["measure"].get("warmup_epochs", 0))
    untimed = f"{began} untimed epoch{'s' * (began > 1)} before"
    return _over_time(
        run,
        lines,
        axes,
        "test_accuracy",
        _NOT_SCORED,
        ident="accuracy",
        title="Test accuracy over time",
        reading="Scored after each measured epoch, which takes no time here; medians over repeats."
        " A step is where an epoch ended. Workloads that differ in their partitions have other"
        " minibatches and the same axes: the one that is higher at a time is better by then."
        + f" It had been trained in {untimed}."
        * bool(began),
        quantity="test accuracy",
        legend={"accuracy": ("test accuracy", "blue")},
        time="time of the measured epochs",
    )


def _over_time(
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


def chart_of(run: Run, panels: Sequence[Panel], **of: Any) -> Chart:
    """A chart with what stands above and below all of the run's, and what its marks mean."""
    of["reading"] += explained([line.text for panel in panels for line in panel.lines])
    return Chart(panels=panels, warnings=warnings_of(run), foot=provenance(run), **of)


def _reasons(run: Run, metric: str) -> dict[Series, str]:
    """What the run says of a metric that it does not have of a series, or of the series' cases."""
    missing = run.select(status=["failed", "skipped"])
    found: dict[Series, str] = {}
    for rows in (missing[missing["metric"] == metric], missing[missing["stage"] == "case"]):
        for *key, status, reason in rows[[*SERIES[:3], "status", "reason"]].to_numpy():
            found.setdefault((key[0], key[1], key[2]), f"{status}: {reason}")
    return found


def _polled(
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
    timeline = of_measured(run.rows, RunStore(run.folder).timeline())
    timeline = timeline.sort_values("time_s", kind="stable")
    timeline = timeline[timeline["metric"].isin(list(legend))]
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
    return _over_time(run, lines, axes, first, _NOT_POLLED, roof, legend=legend, **said)


def _epoch(
    run: Run,
    epoch: pd.DataFrame,
    readings: Mapping[str, pd.DataFrame],
    curves: Mapping[str, Points],
    names: Mapping[str, str],
    unit: str,
) -> Line:
    """One epoch of a series: its curves, their means, and of counters how much there was."""
    aloud, means, totals = [], [], []
    for metric, points in curves.items():
        times, values = np.array(points).T
        lengths = np.diff(times, prepend=0.0)
        mean = quantity(np.average(values, weights=lengths) if times[-1] else values[0], unit)
        means.append(f"{mean} mean")
        aloud.append(
            f"{names[metric]}: {mean} in the mean, {quantity(values.max(), unit)} at most, over"
            f" {quantity(times[-1], 's')}"
        )
        last = readings[metric].iloc[-1]
        if last["unit"] == "B":
            totals.append(f"{bytes_in_words(last['value'])} {names[metric]}")
    case = {name: epoch.iloc[0][name] for name in (*SERIES[:3], "repeat", "epoch")}
    payload = run.select(stage="fetch", metric="payload", **case)["value"].dropna()
    if totals and len(payload):
        totals.append(f"payload {bytes_in_words(payload.iloc[0])}")
    series, note = (case["strategy"], case["variant"]), ", ".join(totals)
    return Line(*series, text=means[0], note=note, curves=curves, aloud="; ".join(aloud))


def _rates(counter: pd.DataFrame) -> Points:
    """Rates between readings: each value holds up to its time."""
    rates = link_rates(counter)
    return list(zip(rates["end_s"], rates["rate"], strict=True))


def _thinned(readings: pd.DataFrame) -> pd.DataFrame:
    """Every so many readings, and the last."""
    step = -(-len(readings) // MOST)
    return readings.iloc[sorted({*range(0, len(readings), step), len(readings) - 1})]
