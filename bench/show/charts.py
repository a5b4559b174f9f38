"""Charts of a run: bars by workload and series, curves of an epoch, reasons for missing ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.derive import (
    baseline,
    epoch_times,
    problems,
    reasons_of,
    sort_series,
    unpredicted,
)
from gatherbench.bench.read.noise import modelled_from_noisy, no_ratio_over, noisy_series
from gatherbench.bench.read.tables import Run, of_measured
from gatherbench.bench.read.units import bytes_in_words, quantity
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.drawing import EMPTY, Chart, draw
from gatherbench.bench.show.looks import NOISY, UNDECIDED, explained
from gatherbench.bench.show.provenance import modelled_for, provenance, warnings_of
from gatherbench.stats.judge import is_open

#: Strategy and variant; the same after the workload.
Names = tuple[str, str]
Series = tuple[str, str, str]
Fields = Mapping[Hashable, Any]
#: Seconds from the start of the time axis, and the value up to then, in order.
Points = Sequence[tuple[float, float]]
NO_BREAK = "\N{NARROW NO-BREAK SPACE}"
#: The most readings of an epoch that are drawn; skipping some keeps a counter's bytes.
MOST = 300
_NOT_POLLED = "nothing was polled: a GPU’s sensors are read during runs on a GPU"


def drawn(run: Run, **charts: Callable[[Run], Chart | None]) -> dict[str, Figure]:
    """Draw these charts, by the names of their files; one without a line is left out."""
    made = {name: make(run) for name, make in charts.items()}
    return {name: draw(chart) for name, chart in made.items() if chart and len(chart.frame)}


def chart_of(run: Run, frame: pd.DataFrame, **of: Any) -> Chart:
    """Make a chart with the run's warnings and provenance, and an explanation of its marks."""
    of["reading"] += explained(frame["suffix"]) if "suffix" in frame else ""
    return Chart(frame=frame, warnings=warnings_of(run), foot=provenance(run), **of)


# ---- bars ----------------------------------------------------------------------------------------


def bars(
    run: Run,
    values: pd.DataFrame,
    *,
    total: str = "median",
    legend: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    mark: float | None = None,
    limit: Mapping[str, float] = MappingProxyType({}),
    absent: str = "no measurement",
    why: Mapping[str, str] = MappingProxyType({}),
    predicted: bool = True,
    suffix: str = "",
    **of: str,
) -> Chart:
    """Make a panel for each workload, a line for each series, reasons in place of missing ones.

    Modelled values have separate panels: another machine's times may be a hundredth of the host's.

    Args:
        values: the columns of ``SERIES``, ``total``, ``low``, ``high`` and those of ``legend``.
        total: the column that the number, with ``suffix`` after it, and the whisker belong to.
        legend: columns that are drawn end to end; without it, the total in the strategy's colour.
        mark, limit: the values of lines through all bars, and by workload through measured ones.
        absent, why: the text for a measured series without a value here, and that by workload.
        predicted: whether to show the link model's values.
        of: ``title``, ``reading``, ``quantity`` and ``unit`` of the chart.
    """
    profile = ", ".join(modelled_for(run)) if predicted else ""
    missing = {"measured": _unmeasured(run, values, absent, why), "predicted": _unpredicted(run)}
    lines, at = list[dict[str, Any]](), []
    for workload, title in run.names.items():
        for basis in ("measured", "predicted")[: 1 + bool(profile)]:
            of_workload = values[(values["workload"] == workload) & (values["basis"] == basis)]
            known = {
                (str(r["strategy"]), str(r["variant"])): r for r in of_workload.to_dict("records")
            }
            reasons = missing[basis][workload]
            modelled = basis == "predicted"
            # Without a GPU, modelled GPU times have their own axis, so that nobody compares them.
            apart = modelled and not run.has_gpu
            place = {**EMPTY, "panel": title, "profile": profile * modelled}
            place |= {"look": "modelled" if modelled else "measured"}
            place["scale"] = f"{workload}{' modelled' * apart}"
            named = pd.DataFrame([*known, *reasons], columns=SERIES[1:3]).drop_duplicates()
            for names in sort_series(named).itertuples(index=False, name=None):
                line = {**place, "strategy": names[0], "variant": names[1]}
                if row := known.get(names):
                    line |= {name: float(row[name]) for name in ("low", "high", *legend)}
                    line |= {"value": row[total], "note": reasons.get(names, "")}
                    line["suffix"] = _marks(run, row, total == "speedup") + suffix
                else:
                    line["reason"] = reasons[names]
                lines.append(line)
            if mark is not None and len(of_workload):
                at.append((title, mark, "one"))
        if workload in limit:
            at.append((title, limit[workload], "limit"))
    marks = {"limit": "no fetch (limit)"} if limit else {}
    return chart_of(
        run, pd.DataFrame(lines), legend=legend, marks=marks, at=[*dict.fromkeys(at)], **of
    )


def _marks(run: Run, row: Fields, ratio: bool) -> str:
    """Return the marks after a number: a noisy series, or a ratio that decides nothing."""
    key, over = Key(*(str(row[name]) for name in SERIES)), baseline(run)
    noisy = noisy_series(run)
    marks = NOISY * (key in noisy or key in modelled_from_noisy(run))
    if not ratio:
        return marks
    reference = key._replace(strategy=over[0], variant=over[1])
    busy = key in noisy or bool(no_ratio_over(run, reference))
    unsure = busy and key.basis == "measured" and key != reference
    return marks + UNDECIDED * (unsure or is_open(row["low"], row["high"]))


def _unmeasured(
    run: Run, values: pd.DataFrame, absent: str, why: Mapping[str, str]
) -> Mapping[str, dict[Names, str]]:
    """Give by workload the reasons of series that the values lack, or that lack repeats."""
    missing = defaultdict[str, dict[Names, str]](dict)
    measured = epoch_times(run).query("basis == 'measured'")[SERIES[:3]]
    there = set(values[SERIES[:3]].itertuples(index=False, name=None))
    for workload, *names in measured.itertuples(index=False, name=None):
        if (workload, *names) not in there:
            missing[workload][names[0], names[1]] = why.get(workload) or absent
    for bad in problems(run).to_dict("records"):
        some = "" if bad["repeats"] == bad["of"] else f"{bad['repeats']} of {bad['of']} repeats "
        # A repeat that was measured may lack a value for another reason.
        reason = f"{some}{bad['status']}: {bad['reason']}"
        missing[bad["workload"]].setdefault((bad["strategy"], bad["variant"]), reason)
    return missing


def _unpredicted(run: Run) -> Mapping[str, dict[Names, str]]:
    """Give by workload the reasons of series that the link model does not predict."""
    missing = defaultdict[str, dict[Names, str]](dict)
    for row in unpredicted(run).to_dict("records"):
        missing[row["workload"]][row["strategy"], row["variant"]] = row["reason"]
    return missing


# ---- curves --------------------------------------------------------------------------------------


def over_time(
    run: Run,
    lines: Mapping[Series, Mapping[str, Any]],
    metric: str,
    otherwise: str,
    scales: Mapping[str, str] = MappingProxyType({}),
    **of: Any,
) -> Chart:
    """Make a panel for each workload with a line for each planned series, or the reason.

    If no line has a curve, only the reasons are shown, with the number of series for each.

    Args:
        lines: the existing ones: ``curves`` and ``note``.
        metric: its rows give the reason for a missing line; if there is none, ``otherwise``.
        scales: by workload, a key; workloads of one key share an axis.
    """
    planned, reasons, found = pd.DataFrame(run.plan["cases"]), _reasons(run, metric), []
    for workload, title in run.names.items():
        paths = planned[planned["workload"] == workload][SERIES[1:3]].drop_duplicates()
        for strategy, variant in sort_series(paths).itertuples(index=False, name=None):
            key = (workload, str(strategy), str(variant))
            line = {"strategy": key[1], "variant": key[2], "panel": title, "curves": {}}
            line |= {"reason": "" if key in lines else reasons.get(key, otherwise)}
            found.append({**line, "scale": scales.get(workload, workload), **lines.get(key, {})})
    if not lines:
        whys = Counter(line["reason"] for line in found).items()
        found = [{"name": f"{n} series", "reason": why} for why, n in whys]
        of["legend"] = {}
    return chart_of(run, pd.DataFrame(found), **of)


def _reasons(run: Run, metric: str) -> dict[Series, str]:
    """Return the run's reasons for series without a metric, else those of the series' cases."""
    ended, found = run.ended.reset_index(), dict[Series, str]()
    of_metric = reasons_of(run, *run.columns.index[run.columns["metric"] == metric])
    for rows in (of_metric, ended[ended["status"] != "ok"]):
        for *key, status, reason in rows[[*SERIES[:3], "status", "reason"]].to_numpy():
            found.setdefault((key[0], key[1], key[2]), f"{status}: {reason}")
    return found


def polled(
    run: Run,
    points_of: Callable[[pd.DataFrame], Points],
    legend: Mapping[str, tuple[str, str]],
    unit: str,
    **of: Any,
) -> Chart:
    """Draw the first polled epoch of each series.

    Args:
        points_of: gives the points for the readings of one metric in one epoch, in order of time.
        legend: metrics → their names and colours.
    """
    timeline = of_measured(run, RunStore(run.folder).timeline())
    timeline = timeline.sort_values("time_s", kind="stable")
    lines: dict[Series, Mapping[str, Any]] = {}
    for case, epoch in timeline.groupby([*SERIES[:3], "repeat", "epoch"]):
        key = (str(case[0]), str(case[1]), str(case[2]))
        readings = {str(name): values for name, values in epoch.groupby("metric") if name in legend}
        curves = {name: points_of(_thinned(readings[name])) for name in legend if name in readings}
        curves = {name: points for name, points in curves.items() if points}
        if curves and key not in lines:
            totals = [
                f"{bytes_in_words(last['value'])} {legend[name][0]}"
                for name in curves
                if (last := readings[name].iloc[-1])["unit"] == "B"
            ]
            note = ", ".join([*totals, *_payload(run, epoch)]) if totals else _mean(curves, unit)
            lines[key] = {"curves": curves, "note": note}
    return over_time(run, lines, next(iter(legend)), _NOT_POLLED, legend=legend, unit=unit, **of)


def _mean(curves: Mapping[str, Points], unit: str) -> str:
    times, values = np.array(next(iter(curves.values()))).T
    lengths = np.diff(times, prepend=0.0)
    mean = np.average(values, weights=lengths) if times[-1] else values[0]
    return f"{quantity(mean, unit)} mean"


def _payload(run: Run, epoch: pd.DataFrame) -> list[str]:
    """Return the bytes of rows of the epoch in words, if they are known."""
    case = {name: epoch.iloc[0][name] for name in (*SERIES[:3], "repeat", "epoch")}
    here = run.epochs[(run.epochs["rank"] < 0) & (run.epochs["basis"] == "measured")]
    here = here[(here[[*case]] == list(case.values())).all(axis=1)]
    payload = here.get("fetch_payload_bytes", pd.Series(dtype=float)).dropna()
    return [f"payload {bytes_in_words(one)}" for one in payload[:1]]


def _thinned(readings: pd.DataFrame) -> pd.DataFrame:
    """Keep every n-th reading, and the last, so that at most about ``MOST`` remain."""
    step = -(-len(readings) // MOST)
    return readings.iloc[sorted({*range(0, len(readings), step), len(readings) - 1})]
