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
    plan_order,
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
from gatherbench.bench.show.table import with_kind
from gatherbench.stats.judge import is_open

#: Strategy and variant.
Names = tuple[str, str]
Fields = Mapping[Hashable, Any]
#: Seconds from the start of the time axis, and the value up to then, in order.
Points = Sequence[tuple[float, float]]
#: By workload: why a series is missing, or lacks repeats.
Reasons = Mapping[str, Mapping[Names, str]]
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


def in_plan_order(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with its backend in words, in the order of workloads and strategies."""
    return with_kind(plan_order(run, frame))


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
        total: the column that the number and the whisker belong to.
        legend: columns that are drawn end to end; without it, the total in the strategy's colour.
        mark: the value of a line through all bars.
        limit: the same by workload, through the measured bars.
        absent: the text for a series that was measured but has no value here.
        why: the same by workload, where a workload needs its own text.
        predicted: whether to show the link model's values.
        suffix: text after the number.
        of: ``title``, ``reading``, ``quantity`` and ``unit`` of the chart.
    """
    profile = ", ".join(modelled_for(run)) if predicted else ""
    reasons = {"measured": _unmeasured(run, values, absent, why), "predicted": _unpredicted(run)}
    lines, at = list[dict[str, Any]](), []
    for workload in run.workloads:
        for basis in ("measured", "predicted")[: 1 + bool(profile)]:
            mine = values[(values["workload"] == workload) & (values["basis"] == basis)]
            known = {(str(r["strategy"]), str(r["variant"])): r for r in mine.to_dict("records")}
            why_missing = reasons[basis].get(workload, {})
            # Without a GPU, modelled GPU times have their own axis, so that nobody compares them.
            shared = run.has_gpu or basis == "measured"
            place: dict[str, Any] = {
                "panel": run.names[workload],
                "profile": profile if basis == "predicted" else "",
                "look": "modelled" if basis == "predicted" else "measured",
                "scale": f"{workload}{'' if shared else basis}",
            }
            for names in _sorted({**known, **why_missing}):
                line = {**EMPTY, **place, "strategy": names[0], "variant": names[1]}
                if row := known.get(names):
                    marks = _marks(run, row, total == "speedup") + suffix
                    parts = {name: float(row[name]) for name in legend}
                    line |= {"value": row[total], "low": row["low"], "high": row["high"], **parts}
                    line |= {"note": why_missing.get(names, ""), "suffix": marks}
                else:
                    line["reason"] = why_missing[names]
                lines.append(line)
            if mark is not None and len(mine):
                at.append((run.names[workload], mark, "one"))
        if workload in limit:
            at.append((run.names[workload], limit[workload], "limit"))
    crossing = {"limit": "no fetch (limit)"} if limit else {}
    frame, same = _said_once(pd.DataFrame(lines))
    of["reading"] += same
    return chart_of(run, frame, legend=legend, marks=crossing, at=list(dict.fromkeys(at)), **of)


def _sorted(names: Mapping[Names, Any]) -> list[Names]:
    frame = sort_series(pd.DataFrame(list(names), columns=SERIES[1:3]))
    return list(frame.itertuples(index=False, name=None))


def _marks(run: Run, row: Fields, ratio: bool) -> str:
    """Return the marks after a number: a noisy series, or a ratio that decides nothing."""
    key = Key(*(str(row[name]) for name in SERIES))
    marks = NOISY * (key in noisy_series(run) or key in modelled_from_noisy(run))
    if not ratio:
        return marks
    over = baseline(run)
    reference = key._replace(strategy=over[0], variant=over[1])
    busy = key in noisy_series(run) or bool(no_ratio_over(run, reference))
    unsure = busy and key.basis == "measured" and key != reference
    return marks + UNDECIDED * (unsure or is_open(row["low"], row["high"]))


def _said_once(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the frame without a note that all measured bars share, and a sentence with it."""
    mine = (frame["profile"] == "") & frame["value"].notna()
    notes = set(frame.loc[mine, "note"])
    if mine.sum() < 2 or len(notes) > 1 or notes == {""}:
        return frame, ""
    frame.loc[mine, "note"] = ""
    return frame, f" This holds for each measured bar: {notes.pop()}."


def _unmeasured(run: Run, table: pd.DataFrame, absent: str, of: Mapping[str, str]) -> Reasons:
    """Give reasons for series that the table lacks: ``absent`` or ``of``, by workload, if they were
    measured.
    """
    found = defaultdict[str, dict[Names, str]](dict)
    measured = epoch_times(run).query("basis == 'measured'")[SERIES[:3]]
    there = set(table[SERIES[:3]].itertuples(index=False, name=None))
    for workload, strategy, variant in measured.itertuples(index=False, name=None):
        if (workload, strategy, variant) not in there:
            found[workload][strategy, variant] = of.get(workload) or absent
    for bad in problems(run).to_dict("records"):
        some = "" if bad["repeats"] == bad["of"] else f"{bad['repeats']} of {bad['of']} repeats "
        names = bad["strategy"], bad["variant"]
        # A repeat that was measured may lack a value for another reason.
        found[bad["workload"]].setdefault(names, f"{some}{bad['status']}: {bad['reason']}")
    return found


def _unpredicted(run: Run) -> Reasons:
    """Give the reasons of series that the link model does not predict."""
    found = defaultdict[str, dict[Names, str]](dict)
    for row in unpredicted(run).to_dict("records"):
        found[row["workload"]][row["strategy"], row["variant"]] = row["reason"]
    return found


# ---- curves --------------------------------------------------------------------------------------

#: Workload, strategy and variant.
Series = tuple[str, str, str]


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
        of: the rest of the chart.
    """
    planned, reasons, found = pd.DataFrame(run.plan["cases"]), _reasons(run, metric), []
    for workload in run.workloads:
        mine = planned[planned["workload"] == workload][SERIES[1:3]].drop_duplicates()
        for strategy, variant in sort_series(mine).itertuples(index=False, name=None):
            key = (workload, str(strategy), str(variant))
            line = {"strategy": key[1], "variant": key[2], "panel": run.names[workload]}
            why = "" if key in lines else reasons.get(key, otherwise)
            place = {"scale": scales.get(workload, workload), "reason": why, "curves": {}}
            found.append({**line, **place, **lines.get(key, {})})
    if not lines:
        whys = Counter(line["reason"] for line in found).items()
        bare = [{"name": f"{n} series", "reason": why} for why, n in whys]
        of["legend"] = {}
        return chart_of(run, pd.DataFrame(bare), **of)
    return chart_of(run, pd.DataFrame(found), **of)


def _reasons(run: Run, metric: str) -> dict[Series, str]:
    """Return the run's reasons for series without a metric, else those of the series' cases."""
    of_metric = run.columns.index[run.columns["metric"] == metric]
    ended = run.ended.reset_index()
    found: dict[Series, str] = {}
    for rows in (reasons_of(run, *of_metric), ended[ended["status"] != "ok"]):
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
        readings = {str(name): mine for name, mine in epoch.groupby("metric")}
        curves = {name: points_of(_thinned(readings[name])) for name in legend if name in readings}
        curves = {name: points for name, points in curves.items() if points}
        if curves and key not in lines:
            names = {name: legend[name][0] for name in curves}
            lines[key] = {
                "curves": curves,
                "note": _told(run, epoch, readings, curves, names, unit),
            }
    return over_time(run, lines, next(iter(legend)), _NOT_POLLED, legend=legend, unit=unit, **of)


def _told(
    run: Run,
    epoch: pd.DataFrame,
    readings: Mapping[str, pd.DataFrame],
    curves: Mapping[str, Points],
    names: Mapping[str, str],
    unit: str,
) -> str:
    """Describe an epoch's curves: the totals of counters, else the mean."""
    totals = [
        f"{bytes_in_words(last['value'])} {names[metric]}"
        for metric in curves
        if (last := readings[metric].iloc[-1])["unit"] == "B"
    ]
    if not totals:
        times, values = np.array(next(iter(curves.values()))).T
        lengths = np.diff(times, prepend=0.0)
        mean = np.average(values, weights=lengths) if times[-1] else values[0]
        return f"{quantity(mean, unit)} mean"
    case = {name: epoch.iloc[0][name] for name in (*SERIES[:3], "repeat", "epoch")}
    here = run.epochs[(run.epochs["rank"] < 0) & (run.epochs["basis"] == "measured")]
    here = here[(here[[*case]] == list(case.values())).all(axis=1)]
    payload = here.get("fetch_payload_bytes", pd.Series(dtype=float)).dropna()
    if len(payload):
        totals.append(f"payload {bytes_in_words(payload.iloc[0])}")
    return ", ".join(totals)


def _thinned(readings: pd.DataFrame) -> pd.DataFrame:
    """Keep every n-th reading, and the last, so that at most about ``MOST`` remain."""
    step = -(-len(readings) // MOST)
    return readings.iloc[sorted({*range(0, len(readings), step), len(readings) - 1})]
