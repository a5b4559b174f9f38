"""What charts of runs are made of: bars by workload and series, and reasons in place of some."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from gatherbench.bench.read.derive import (
    baseline,
    epoch_times,
    plan_order,
    problems,
    sort_series,
    unpredicted,
)
from gatherbench.bench.read.noise import no_ratio_over, noisy_and_modelled, noisy_series
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.looks import DISTURBED, UNDECIDED, explained
from gatherbench.bench.show.provenance import has_gpu, modelled_for, provenance, warnings_of
from gatherbench.bench.show.table import with_kind
from gatherbench.stats.judge import is_open

#: Strategy and variant.
Names = tuple[str, str]
Fields = Mapping[Hashable, Any]
#: By workload: why a series is not there, or not with all of its repeats.
Reasons = Mapping[str, Mapping[Names, str]]
NO_BREAK = "\N{NARROW NO-BREAK SPACE}"


def chart_of(run: Run, panels: Sequence[Panel], **of: Any) -> Chart:
    """A chart with what stands above and below all of the run's, and what its marks mean."""
    of["reading"] += explained([line.text for panel in panels for line in panel.lines])
    return Chart(panels=panels, warnings=warnings_of(run), foot=provenance(run), **of)


def in_plan_order(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its backend in words, in the order of workloads and strategies."""
    return with_kind(plan_order(run, frame))


def _open(run: Run, key: Key, over: tuple[str, str], low: float, high: float) -> bool:
    """Whether a speed-up over that path with these ends decides nothing."""
    reference = key._replace(strategy=over[0], variant=over[1])
    busy = key in noisy_series(run) or bool(no_ratio_over(run, reference))
    return is_open(low, high) or (busy and key.basis == "measured" and key != reference)


def bars(
    run: Run,
    values: pd.DataFrame,
    unit: str,
    *,
    legend: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    total: str = "median",
    mark: float | None = None,
    floor: Mapping[str, float] = MappingProxyType({}),
    absent: str = "no measurement",
    why: Mapping[str, str] = MappingProxyType({}),
    predicted: bool = True,
    suffix: str = "",
    beside: Sequence[Panel] = (),
    **said: str,
) -> Chart:
    """A panel for each workload, a line for each series, reasons in place of what is missing.

    What is modelled has a panel of its own: another machine's times may be a hundredth of the
    host's.

    Args:
        values: the columns of ``SERIES``, ``total``, ``low``, ``high`` and those of ``legend``;
            in ``note``, where it is there, what else is to be said.
        legend: columns that are drawn end to end; without, the total in its strategy's colour.
        total: the column that the number and the whisker belong to.
        mark: value at which a line is drawn through all bars.
        floor: the same by workload, through those that are measured.
        absent: what to write for a series that was measured but has no value here.
        why: the same by workload, where there is more to say.
        predicted: whether the link model has a word on it.
        suffix: behind the number.
        beside: further panels.
        said: ``ident``, ``title``, ``reading`` and ``quantity`` of the chart.
    """
    parts = list(legend)
    whose = {"measured": "", "predicted": ", ".join(modelled_for(run)) if predicted else ""}
    panels = []
    for workload in run.workloads:
        here = values[values["workload"] == workload]
        for basis in ("measured", "predicted")[: 1 + bool(whose["predicted"])]:
            frame = here[here["basis"] == basis]
            modelled = basis == "predicted"
            reasons = _unpredicted(run) if modelled else _unmeasured(run, frame, absent, why)
            # Beside figures of host memory, a GPU's on the same axis would be compared with them.
            seen = here if has_gpu(run) else frame
            of = [*seen[total], *seen[parts].sum(axis=1), mark or 0.0]
            axis = Axis.of(unit, of, seen["high"])
            lines = defaultdict[Names, list[Line]](list)
            for names, row, reason in _each(frame, reasons[workload]):
                if row is None:
                    line = Line(*names, "modelled" if modelled else "measured", missing=reason)
                else:
                    lengths = {name: float(row[name]) for name in parts}
                    lengths = lengths or {names[0]: float(row[total])}
                    note = "; ".join(filter(None, [reason, row.get("note", "")]))
                    line = bar(run, axis, row, total, ("low", "high"), lengths, note, suffix)
                lines[names].append(line)
            marks = [(mark, "one")] if mark is not None and len(frame) else []
            if workload in floor and not modelled:
                marks.append((floor[workload], "limit"))
            if lines or not modelled:
                panels.append(Panel(run.names[workload], _sorted(lines), axis, marks, whose[basis]))
    none = next(filter(None, [*why.values(), absent])) if values.empty else ""
    known = {"limit": "no fetch (limit)"} if floor else {}
    panels, same = _said_once(panels)
    said["reading"] += same
    return chart_of(run, [*panels, *beside], legend=legend, marks=known, absent=none, **said)


def typical(run: Run, axis: Axis, row: Fields, value: str, note: str, detail: str = "") -> Line:
    """A bar of a column of a row, with its ends for whisker."""
    ends = (f"{value}_low", f"{value}_high")
    lengths = {str(row["strategy"]): float(row[value])}
    line = bar(run, axis, row, value, ends, lengths, note)
    return replace(line, detail=detail) if detail else line


def bar(
    run: Run,
    axis: Axis,
    row: Fields,
    value: str,
    ends: tuple[str, str],
    parts: Mapping[str, float],
    note: str = "",
    suffix: str = "",
) -> Line:
    """The bar of a row with the columns of ``SERIES``, ``value`` and those of its ends."""
    low, high = (float(row[end]) for end in ends)
    names = (str(row["strategy"]), str(row["variant"]))
    alone = Key(*(str(row[name]) for name in SERIES)) in noisy_and_modelled(run)
    key = Key(*(str(row[name]) for name in SERIES))
    unsure = value == "speedup" and _open(run, key, baseline(run), low, high)
    suffix = DISTURBED * alone + UNDECIDED * unsure + suffix
    text = axis.said(row[value]) + suffix
    if row["basis"] != "predicted":
        return whiskered(Line(*names, parts=parts, text=text, note=note), axis, (low, high))
    line = Line(*names, "modelled", parts, text=text, note=note)
    if not high > low:
        return line
    # The number is its ends: none between them is known.
    return replace(line, ends=(low, high), text=f"{axis.plain(low)} to {axis.said(high)}{suffix}")


def panel_of(title: str, unit: str, lines: Sequence[Line], top: float = 0.0, **of: Any) -> Panel:
    """A panel of bars with their numbers, on an axis as long as they need, or up to ``top``.

    Of ``ends`` that are no numbers there is no whisker.
    """
    ends = [line.ends[1] for line in lines if line.ends and math.isfinite(line.ends[1])]
    axis = Axis(unit, top) if top else Axis.of(unit, [sum(x.parts.values()) for x in lines], ends)
    drawn = []
    for line in lines:
        bare = replace(line, ends=None, text=axis.said(sum(line.parts.values())))
        known = line.ends is not None and math.isfinite(line.ends[1])
        drawn.append(whiskered(bare, axis, line.ends) if line.ends and known else bare)
    return Panel(title, drawn, axis, **of)


def whiskered(line: Line, axis: Axis, ends: tuple[float, float]) -> Line:
    """The bar with its whisker where the ends differ, drawn as far as the axis goes."""
    if not ends[1] > ends[0]:  # a single epoch has no spread to show
        return line
    spread, cut = f"{axis.end(ends[0])} to {axis.end(ends[1])}", ends[1] > axis.top
    return replace(line, ends=(ends[0], min(ends[1], axis.top)), spread=spread, cut=cut)


def _each(
    frame: pd.DataFrame, why: Mapping[Names, str]
) -> Iterable[tuple[Names, Fields | None, str]]:
    """Each series of a frame, or that is missing in it: its row, and the reason."""
    rows = {(str(r["strategy"]), str(r["variant"])): r for r in frame.to_dict("records")}
    return [(names, rows.get(names), why.get(names, "")) for names in {**rows, **why}]


def _sorted(lines: Mapping[Names, Sequence[Line]]) -> list[Line]:
    order = sort_series(pd.DataFrame(list(lines), columns=["strategy", "variant"]))
    return [line for names in order.itertuples(index=False, name=None) for line in lines[names]]


def _said_once(panels: Sequence[Panel]) -> tuple[list[Panel], str]:
    """The panels without the note that all measured bars share, and a sentence that says it."""
    bars_ = [line for one in panels if not one.profile for line in one.lines if not line.missing]
    notes = {line.note for line in bars_}
    if len(bars_) < 2 or len(notes) > 1 or notes == {""}:
        return list(panels), ""
    bare = [
        one if one.profile else replace(one, lines=[replace(x, note="") for x in one.lines])
        for one in panels
    ]
    return bare, f" Of each measured bar: {notes.pop()}."


def _unmeasured(
    run: Run, table: pd.DataFrame, absent: str = "", of: Mapping[str, str] = MappingProxyType({})
) -> Reasons:
    """Of series that are not in the table; ``absent`` where they were measured, or as ``of`` says
    by workload.
    """
    found = defaultdict[str, dict[Names, str]](dict)
    measured, bad = _ended(run)
    there = set(table[SERIES[:3]].itertuples(index=False, name=None))
    for workload, strategy, variant in measured:
        if (workload, strategy, variant) not in there:
            found[workload][strategy, variant] = of.get(workload) or absent
    for b in bad:
        some = "" if b["repeats"] == b["of"] else f"{b['repeats']} of {b['of']} repeats "
        names = b["strategy"], b["variant"]
        # What is not there of a repeat that was measured has a reason of its own.
        found[b["workload"]].setdefault(names, f"{some}{b['status']}: {b['reason']}")
    return found


def _ended(run: Run) -> tuple[list[tuple[str, str, str]], list[dict[Hashable, Any]]]:
    """Workload, strategy and variant of what was measured, and :func:`problems`; once a run."""
    measured = epoch_times(run).query("basis == 'measured'")[SERIES[:3]]
    return list(measured.itertuples(index=False, name=None)), problems(run).to_dict("records")


def _unpredicted(run: Run) -> Reasons:
    """Of series of which the link model says nothing."""
    found = defaultdict[str, dict[Names, str]](dict)
    for row in unpredicted(run).to_dict("records"):
        found[row["workload"]][row["strategy"], row["variant"]] = row["reason"]
    return found
