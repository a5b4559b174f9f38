"""Charts of a run: bars by workload and series, and the reasons for missing ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from gatherbench.bench.read.derive import (
    baseline,
    no_ratio_over,
    noisy_series,
    predictions,
    problems,
    series_of,
    sort_series,
)
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.drawing import EMPTY, Chart, draw
from gatherbench.bench.show.looks import NOISY, UNDECIDED, explained
from gatherbench.bench.show.provenance import modelled_for, provenance, warnings_of
from gatherbench.stats.judge import is_open

NO_BREAK = "\N{NARROW NO-BREAK SPACE}"


def drawn(run: Run, **charts: Callable[[Run], Chart | None]) -> dict[str, Figure]:
    """Draw these charts, by the names of their files; one without a line is left out."""
    made = {name: make(run) for name, make in charts.items()}
    return {name: draw(chart) for name, chart in made.items() if chart and len(chart.frame)}


def chart_of(run: Run, frame: pd.DataFrame, **of: Any) -> Chart:
    """Make a chart with the run's warnings and provenance, and an explanation of its marks."""
    of["reading"] += explained(frame["suffix"]) if "suffix" in frame else ""
    return Chart(frame=frame, warnings=warnings_of(run), foot=provenance(run), **of)


def bars(
    run: Run,
    values: pd.DataFrame,
    *,
    total: str = "median",
    legend: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    mark: float | None = None,
    limit: Mapping[str, float] = MappingProxyType({}),
    absent: str | Mapping[str, str] = "no measurement",
    predicted: bool = True,
    **of: str,
) -> Chart:
    """Make a panel for each workload, a line for each series, reasons in place of missing ones.

    Modelled values have separate panels: another machine's times may be a hundredth of the host's.

    Args:
        values: the columns of ``SERIES``, ``total``, ``low``, ``high`` and those of ``legend``.
        total: the column that the number and the whisker belong to.
        legend: columns that are drawn end to end; without it, the total in the strategy's colour.
        mark, limit: the values of lines through all bars, and by workload through measured ones.
        absent: the text for a measured series without a value here, for all or by workload.
        predicted: whether to show the link model's values.
        of: ``title``, ``reading``, ``quantity`` and ``unit`` of the chart.
    """
    profile = ", ".join(modelled_for(run)) if predicted else ""
    missing = _missing(run, values, absent)
    lines, at = list[dict[str, Any]](), []
    for workload, title in run.names.items():
        for basis in ("measured", "predicted")[: 1 + bool(profile)]:
            modelled = basis == "predicted"
            here = values[(values["workload"] == workload) & (values["basis"] == basis)]
            rows = here.to_dict("records")
            known = {(str(row["strategy"]), str(row["variant"])): row for row in rows}
            reasons = missing[basis, workload]
            # Without a GPU, modelled GPU times have their own axis, so that nobody compares them.
            scale = f"{workload}{' modelled' * (modelled and not run.has_gpu)}"
            place = {**EMPTY, "panel": title, "profile": profile * modelled, "scale": scale}
            place["look"] = "modelled" if modelled else "measured"
            paths = pd.DataFrame([*known, *reasons], columns=SERIES[1:3]).drop_duplicates()
            for names in sort_series(paths).itertuples(index=False, name=None):
                line = {**place, "strategy": names[0], "variant": names[1]}
                if (row := known.get(names)) is None:
                    line["reason"] = reasons[names]
                else:
                    line |= {name: float(row[name]) for name in ("low", "high", *legend)}
                    line |= {"value": row[total], "note": reasons.get(names, "")}
                    line["suffix"] = _marks(run, row, total == "speedup")
                lines.append(line)
            if mark is not None and len(here):
                at.append((title, mark, "one"))
        if workload in limit:
            at.append((title, limit[workload], "limit"))
    marks = {"limit": "no fetch (limit)"} if limit else {}
    return chart_of(
        run, pd.DataFrame(lines), legend=legend, marks=marks, at=[*dict.fromkeys(at)], **of
    )


def _marks(run: Run, row: Mapping[Hashable, Any], ratio: bool) -> str:
    """Return the marks after a number: a noisy series, or a ratio that decides nothing."""
    key, over = Key(*(str(row[name]) for name in SERIES)), baseline(run)
    predicted = predictions(run).query("noisy")[SERIES].itertuples(index=False, name=None)
    noisy = {*noisy_series(run), *predicted}
    marks = NOISY * (key in noisy)
    if not ratio:
        return marks
    reference = key._replace(strategy=over[0], variant=over[1])
    busy = key in noisy or bool(no_ratio_over(run, reference))
    unsure = busy and key.basis == "measured" and key != reference
    return marks + UNDECIDED * (unsure or is_open(row["low"], row["high"]))


def _missing(
    run: Run, values: pd.DataFrame, absent: str | Mapping[str, str]
) -> Mapping[tuple[str, str], dict[tuple[str, str], str]]:
    """Give by basis and workload the reasons of paths that lack a value, or some repeats."""
    missing = defaultdict[tuple[str, str], dict[tuple[str, str], str]](dict)
    there = set(values[SERIES[:3]].itertuples(index=False, name=None))
    for workload, *names in [key[:3] for key in series_of(run) if key[:3] not in there]:
        reason = absent if isinstance(absent, str) else absent[workload]
        missing["measured", workload][names[0], names[1]] = reason
    for bad in problems(run).to_dict("records"):
        some = "" if bad["repeats"] == bad["of"] else f"{bad['repeats']} of {bad['of']} repeats "
        # A repeat that was measured may lack a value for another reason.
        reason = f"{some}{bad['status']}: {bad['reason']}"
        of_workload = missing["measured", bad["workload"]]
        of_workload.setdefault((bad["strategy"], bad["variant"]), reason)
    for row in predictions(run).query("median.isna()").to_dict("records"):
        missing["predicted", row["workload"]][row["strategy"], row["variant"]] = row["reason"]
    return missing
