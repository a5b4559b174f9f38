"""The charts of a run: what each shows, made once from its rows for all that draw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import pandas as pd

from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.roofline import roofs
from gatherbench.bench.read.cpu import cores_of, thread_seconds
from gatherbench.bench.read.disturbance import disturbed_series, no_ratio_over
from gatherbench.bench.read.epochs import (
    EPOCHS,
    WITHIN_TRAIN,
    baseline,
    cpu_seconds,
    epoch_times,
    problems,
    sort_series,
    stage_breakdown,
)
from gatherbench.bench.read.floor import floors
from gatherbench.bench.read.gpu import gpu_energy, gpu_power, idle_power_w
from gatherbench.bench.read.modelled import speedups as speedups_of
from gatherbench.bench.read.modelled import with_ranges
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.stats.judge import is_open
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.run.store import StoreError
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel
from gatherbench.bench.show.charts_over_time import (
    accuracy_over_time,
    chart_of,
    is_scored,
    pcie_over_time,
)
from gatherbench.bench.show.looks import DISTURBED, EXCHANGE_COLOURS, STAGE_COLOURS, UNDECIDED
from gatherbench.bench.show.sentences.provenance import (
    borrowed,
    has_gpu,
    modelled_for,
)

#: Strategy and variant.
Names = tuple[str, str]
Row = Mapping[Hashable, Any]
#: Makes the line of a series of its row (if there is one) and of the reason why there is none, or
#: not of all repeats; no line where it returns none.
MakeLine = Callable[[Names, Row | None, str], Line | None]
NO_BREAK = "\N{NARROW NO-BREAK SPACE}"
#: Of the runs that were read last: every bar is asked for its mark.
_disturbed = lru_cache(maxsize=4)(disturbed_series)


# ---- a panel for each workload ---------------------------------------------------------------


def epoch_breakdown(run: Run) -> Chart:
    """Epoch time by stage; ``other`` is what the stages of an epoch leave of it.

    Of ranks that train together the exchange of gradients and the wait stand beside ``train``.
    """
    stages = with_ranges(run, stage_breakdown(run))
    exchange = list(WITHIN_TRAIN) if stages[list(WITHIN_TRAIN)].any(axis=None) else []
    stages["train"] = (stages["train"] - stages[exchange].sum(axis=1)).clip(lower=0)
    colours = {stage: (stage, colour) for stage, colour in STAGE_COLOURS.items()}
    other = {"other": colours.pop("other")}
    ahead = together = overlapping = at_floor = ""
    floor = floors(run, stages)
    if floor:
        at_floor = (
            " The line through the bars is the floor of the harness: the epoch of a path that"
            " fetches nothing."
        )
    if has_gpu(run):
        overlapping = ", nor do a GPU’s stages, which can overlap"
    if run.sampler_workers:
        ahead = " “sample”: so it is of minibatches, which threads of their own had ready ahead."
    if exchange:
        together = (
            " The training of several ranks is split: “all-reduce” is the exchange of gradients"
            " once all ranks are there, “wait” that for the slowest."
        )
    return bars(
        run,
        stages,
        "s",
        ident="stages",
        title="Where an epoch’s time goes",
        reading="Medians of each stage, and of what an epoch’s stages leave of it (“other”); the "
        "number and the whisker are the whole epoch’s median and quartiles. Medians need not add up"
        f" to it{overlapping}. "
        "“fetch” is the time that the loop waited for rows: a strategy that fetches ahead shows "
        f"what it could not hide.{ahead}{together}{at_floor} Shorter is faster.{borrowed(run)}",
        quantity="time per epoch",
        floor=floor,
        legend=colours | {stage: EXCHANGE_COLOURS[stage] for stage in exchange} | other,
    )


def speedup(run: Run) -> Chart:
    """Epoch time of the baseline over that of each series."""
    reference = baseline(run)
    name, backend = " ".join(reference), "cuda" if has_gpu(run) else "host"
    over = {w: Key(w, *reference, backend, "measured") for w in run.workloads}
    return bars(
        run,
        speedups_of(run, *reference),
        "×",
        ident="speedup",
        title=f"Speed-up over {name}",
        reading=f"Typical epoch time of {name} over that of each strategy, on one workload: means "
        f"over repeats. Whiskers: their 95{NO_BREAK}% interval. Longer is faster.{borrowed(run)}",
        quantity="speed-up",
        total="speedup",
        mark=1.0,
        absent=f"no {name} measured to compare with",
        why={workload: no_ratio_over(run, key) for workload, key in over.items()},
    )


def cpu_core_seconds(run: Run) -> Chart:
    """Core-seconds of the process tree in an epoch: the resource that zero-copy gives back."""
    return bars(
        run,
        cpu_seconds(run),
        "s",
        ident="cpu",
        title="Processor time per epoch",
        reading="Core-seconds of the process and its children: sampling, gather and training "
        "alike. Medians of user and system; whiskers: quartiles of their sum.",
        quantity="processor time per epoch",
        legend={"user": ("user", "blue"), "system": ("system", "orange")},
        absent="processor time was not metered",
        predicted=False,
    )


def cpu_by_thread(run: Run) -> Chart:
    """Core-seconds of an epoch by group of threads, and what its cores had left."""
    cores = cores_of(run)
    return bars(
        run,
        thread_seconds(run),
        "s",
        ident="threads",
        title="Processor time per epoch, by thread",
        reading=f"Core-seconds of the case’s threads on {cores} core{'s' * (cores != 1)}; "
        "what they did not use was idle, or with other programs. Medians of each group; number and "
        "whiskers: median and quartiles of what was used. Threads of torch that spin while they "
        "wait for work count as busy.",
        quantity="processor time per epoch",
        legend={
            "main": ("main thread (the loop)", "blue"),
            "gather": ("gather", "vermilion"),
            "sampler": ("sampler", "sky"),
            "torch": ("torch’s own", "green"),
            "rest": ("other", "grey"),
            "unused": ("not used", "pale"),
        },
        absent="threads were not metered",
        predicted=False,
        suffix=" used",
    )


def gpu_energy_per_epoch(run: Run) -> Chart:
    """Joules of the GPU in an epoch, with the part that it draws doing nothing.

    A strategy that is faster saves the idle part too, because the GPU waits for less time; the part
    above idle is what the work itself takes. Host and processors are not in it.
    """
    return _of_the_gpu(
        run,
        gpu_energy(run),
        "J",
        ident="energy",
        title="Energy of the GPU per epoch",
        quantity="energy per epoch",
    )


def gpu_mean_power(run: Run) -> Chart:
    """Mean watts of the GPU over an epoch."""
    return _of_the_gpu(
        run,
        gpu_power(run),
        "W",
        ident="mean-power",
        title="Mean power of the GPU",
        quantity="mean power over an epoch",
    )


def _of_the_gpu(run: Run, values: pd.DataFrame, unit: str, **said: Any) -> Chart:
    idle = idle_power_w(run)
    legend = {
        "idle": ("drawn by the idle GPU in that time", "grey"),
        "above idle": ("above idle", "vermilion"),
        "not split": ("idle part not measured", "sky"),
    }
    missing = run.select(metric="gpu_energy", status=["failed", "skipped"])
    of_blocks = missing[missing["stage"] == "energy"]
    why = (of_blocks if len(of_blocks) else missing)["reason"]
    return bars(
        run,
        values,
        unit,
        reading="The GPU alone, by its energy counter over windows of whole epochs, 10 s and more. "
        f"Idle power, with a process on the GPU: {'unknown' if idle is None else f'{idle:.0f} W'}. "
        "Medians of repeats; whiskers: quartiles.",
        legend={name: look for name, look in legend.items() if (values[name] > 0).any()},
        absent=str(why.iloc[0]) if len(why) else "no energy of the GPU was read",
        predicted=False,
        **said,
    )


def bars(
    run: Run,
    values: pd.DataFrame,
    unit: str,
    *,
    legend: Mapping[str, tuple[str, str]] | None = None,
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
    parts = list(legend or ())
    profile = ", ".join(modelled_for(run)) if predicted else ""
    measured, modelled = (values[values["basis"] == basis] for basis in EPOCHS)
    groups = [(measured, _unmeasured(run, measured, absent, why), "")]
    if profile:
        groups.append((modelled, _unpredicted(run), profile))
    panels = []
    for workload in run.workloads:
        for table, reasons, whose in groups:
            frame = table[table["workload"] == workload]
            # Beside figures of host memory, a GPU's on the same axis would be compared with them.
            seen = values[values["workload"] == workload] if has_gpu(run) else frame
            sums = seen[parts].sum(axis=1)
            axis = Axis.of(unit, [*seen[total], *sums, mark or 0.0], seen["high"])
            make = partial(_series_bar, run, axis, total, parts, suffix, bool(whose))
            lines = _lines([(frame, reasons[workload], make)])
            marks = [(mark, "one")] if mark is not None and len(frame) else []
            if workload in floor and not whose:
                marks.append((floor[workload], "floor"))
            if lines or not whose:
                panels.append(Panel(run.names[workload], lines, axis, marks, whose))
    none = next(filter(None, [*why.values(), absent])) if values.empty else ""
    known = {"floor": "floor of the harness"} if floor else {}
    panels, same = _said_once(panels)
    said["reading"] += same
    return chart_of(run, [*panels, *beside], legend=legend or {}, marks=known, absent=none, **said)


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


def _lines(steps: Iterable[tuple[pd.DataFrame, Mapping[Names, str], MakeLine]]) -> list[Line]:
    """Series by series, in each the steps: rows, reasons, and what makes a line of them."""
    lines = defaultdict[Names, list[Line]](list)
    for table, why, make in steps:
        rows = {(str(r["strategy"]), str(r["variant"])): r for r in table.to_dict("records")}
        for names in {**rows, **why}:
            line = make(names, rows.get(names), why.get(names, ""))
            if line is not None:
                lines[names].append(line)
    order = sort_series(pd.DataFrame(list(lines), columns=["strategy", "variant"]))
    return [line for names in order.itertuples(index=False, name=None) for line in lines[names]]


def _marks(run: Run, row: Row, ratio: tuple[float, float] | None = None) -> str:
    """What stands behind a value, as in the tables: of a ratio with these ends, or of another."""
    alone = Key(*(str(row[name]) for name in SERIES)) in _disturbed(run)
    return DISTURBED * alone + UNDECIDED * (ratio is not None and is_open(*ratio))


def _series_bar(
    run: Run,
    axis: Axis,
    total: str,
    parts: Sequence[str],
    suffix: str,
    modelled: bool,
    names: Names,
    row: Row | None,
    why: str,
) -> Line:
    look = "modelled" if modelled else "measured"
    if row is None:
        return Line(*names, look, missing=why)
    lengths = {name: float(row[name]) for name in parts} or {names[0]: float(row[total])}
    low, high, text = float(row["low"]), float(row["high"]), axis.said(row[total])
    suffix = _marks(run, row, (low, high) if total == "speedup" else None) + suffix
    note = "; ".join(filter(None, [why, row.get("note", "")]))
    if modelled and high > low:  # the number is its ends: none between them is known
        text = f"{axis.plain(low)} to {axis.said(high)}{suffix}"
        return Line(*names, look, lengths, (low, high), text, note=note)
    return bar(names, lengths, text + suffix, axis, (low, high), look=look, note=note)


def bar(
    names: Names,
    parts: Mapping[str, float],
    text: str,
    axis: Axis,
    ends: tuple[float, float],
    *,
    look: str = "measured",
    note: str = "",
) -> Line:
    """A bar, and its whisker where the ends differ: a single epoch has no spread to show.

    A whisker is drawn as far as the axis goes.
    """
    if not ends[1] > ends[0]:
        return Line(*names, look, parts, text=text, note=note)
    spread = f"{axis.end(ends[0])} to {axis.end(ends[1])}"
    cut, ends = ends[1] > axis.top, (ends[0], min(ends[1], axis.top))
    return Line(*names, look, parts, ends, text, spread, note=note, cut=cut)


def _unmeasured(
    run: Run,
    table: pd.DataFrame,
    absent: str = "",
    absent_on: Mapping[str, str] = MappingProxyType({}),
) -> Mapping[str, Mapping[Names, str]]:
    """By workload: why series are not in the table, or not with all of their repeats."""
    found = defaultdict[str, dict[Names, str]](dict)
    measured, bad = _ended(run)
    there = set(table[SERIES[:3]].itertuples(index=False, name=None))
    for workload, strategy, variant in measured:
        if (workload, strategy, variant) not in there:
            found[workload][strategy, variant] = absent_on.get(workload) or absent
    for b in bad:
        some = "" if b["repeats"] == b["of"] else f"{b['repeats']} of {b['of']} repeats "
        names = b["strategy"], b["variant"]
        # What is not there of a repeat that was measured has a reason of its own.
        found[b["workload"]].setdefault(names, f"{some}{b['status']}: {b['reason']}")
    return found


@lru_cache(maxsize=4)
def _ended(run: Run) -> tuple[list[tuple[str, str, str]], list[dict[Hashable, Any]]]:
    """Workload, strategy and variant of what was measured, and :func:`problems`; once a run."""
    measured = epoch_times(run).query("basis == 'measured'")[SERIES[:3]]
    return list(measured.itertuples(index=False, name=None)), problems(run).to_dict("records")


def _unpredicted(run: Run) -> Mapping[str, Mapping[Names, str]]:
    """By workload: why the link model says nothing of a series."""
    found = defaultdict[str, dict[Names, str]](dict)
    rows = run.select(stage="epoch", metric="wall_time", basis="predicted")
    for row in rows[rows["status"] != "ok"].to_dict("records"):
        found[row["workload"]][row["strategy"], row["variant"]] = row["reason"]
    return found


# ---- a panel for workloads that differ in one thing ------------------------------------------


def family_panel(
    run: Run,
    name: str,
    steps: Mapping[str, Callable[[Axis, Names, Row | None, str], Line | None]],
    table: pd.DataFrame,
    value: str,
    unit: str,
    marks: Sequence[tuple[float, str]],
) -> Panel:
    """A panel for a family of workloads, in it for each series a bar for each of them.

    Args:
        steps: the workloads in order, and what makes a line of a row of ``table``.
        table: has ``family``, ``SERIES``, ``value``, and its ends as ``_low`` and ``_high``.
        marks: lines through all bars.
    """
    mine = table[table["family"] == name]
    axis = Axis.of(unit, [*mine[value], *(at for at, _ in marks)], mine[f"{value}_high"])
    why = _unmeasured(run, mine)
    lines = _lines(
        (mine[mine["workload"] == workload], why[workload], partial(make, axis))
        for workload, make in steps.items()
    )
    return Panel(name, lines, axis, marks)


def typical(
    run: Run, axis: Axis, names: Names, row: Row, value: str, note: str, detail: str = ""
) -> Line:
    """A bar of a column of a row, with its ends for whisker."""
    height, low, high = (float(row[f"{value}{end}"]) for end in ("", "_low", "_high"))
    text = axis.said(height) + _marks(run, row, (low, high) if value == "speedup" else None)
    shown = (names[0], detail or names[1])
    return bar(shown, {names[0]: height}, text, axis, (low, high), note=note)


def reference_of(run: Run) -> pd.DataFrame:
    """The published figures beside the run's results; nothing where there are none."""
    folder = run.folder.parent.parent / "reference"
    try:
        return load_reference(folder)
    except StoreError:
        return load_reference(folder / "none")


# ---- the link's roofs, and another run -------------------------------------------------------

#: Columns of the roofline's roofs, and what a reader calls them.
ROOFS = {"copy_engine": "copy engine", "sm_read": "reads by SMs", "raw_link": "raw link"}
#: The times that a rate is taken over, and what a reader calls the rates.
OVER = {
    "fetch": "rows over the link per second of fetch",
    "epoch": "rows over the link per second of epoch, fetches hidden",
}


def roofline_chart(run: Run, profile: LinkProfile, table: pd.DataFrame) -> Chart:
    """Rows over the link per second beside the roofs of a profile.

    Args:
        table: of :func:`gatherbench.bench.model.roofline.roofline`.
    """
    spans = run.select(stage="setup", metric="table")
    panels, unknown = [], set[str]()
    for workload, here in table.groupby("workload", sort=False):
        span = spans[spans["workload"] == workload]["value"].max()
        limits: dict[tuple[float, str], None] = {}
        for corner in profile.corners() if pd.notna(span) else ():
            best = roofs(corner, float(span))
            limits |= {(getattr(best, kind), kind): None for kind in ROOFS}
        known = [(value, kind) for value, kind in limits if pd.notna(value)]
        unknown |= set(ROOFS) - {kind for _, kind in known}
        axis = Axis("B/s", max([*here["rate"].dropna(), *(v for v, _ in known)], default=1.0))
        # A rate over an epoch is a lower bound: on one axis it would be read as a slower link.
        lines = [(line["over"], _rate(line, axis)) for line in here.to_dict("records")]
        for over, quantity in OVER.items():
            mine = [line for its, line in lines if its == over]
            if mine:
                panels.append(Panel(run.names[str(workload)], mine, axis, known, quantity=quantity))
    reading = (
        "Rows that crossed the link, in bytes per second that the loop waited for them. Where"
        " fetches are hidden behind training, over the whole epoch, in a panel of their own: at"
        f" least so busy was the link. Vertical lines: its roofs by profile {short(profile.name)}."
    )
    if table["end"].any():
        reading += (
            " Of some constants the profile knows but a range: a series then has two bars, the"
            " least and the most that it allows, and a roof several lines."
        )
    if unknown:
        missing = ", ".join(sorted(ROOFS[kind] for kind in unknown))
        reading += f" Not known in this profile, so not drawn: {missing}."
    if (table["kind"] == "measured").any():
        reading += " The roofs are those of the measured machine only if the profile is its own."
    marks = {kind: name for kind, name in ROOFS.items() if kind not in unknown}
    title = "How near the link’s roofs"
    return Chart("roofline", title, reading, "rows over the link", panels, marks=marks)


def _rate(line: Row, axis: Axis) -> Line:
    names, look = (str(line["strategy"]), str(line["variant"])), str(line["kind"])
    rate = float(line["rate"])
    if pd.isna(rate):
        why = f"no payload crosses the link, or not enough is known; epoch bound by {line['bound']}"
        return Line(*names, look, missing=why)
    note = f"fetch bound by {line['fetch_bound']}"
    text = f"{line['end']} {axis.said(rate)}".strip()
    return Line(*names, look, {names[0]: rate}, text=text, note=note)


#: Verdicts, and the colours of their bars.
VERDICTS = {
    "SLOW": "vermilion",
    "FAILED": "vermilion",
    "FAST": "green",
    "SAME": "grey",
    "AMBIGUOUS": "yellow",
    "MISSING": "grey",
    "NEW": "grey",
}


def comparison_chart(
    judged: pd.DataFrame, names: Mapping[str, str], profiles: Iterable[str], *, relative: bool
) -> Chart:
    """Ratios of epoch times with their intervals, around the line of no change.

    What is modelled has panels of its own.

    Args:
        judged: lines of :func:`gatherbench.bench.read.compare.runs.compare_runs` that decide.
        names: the workloads in words, by id.
        profiles: for which epochs are modelled.
        relative: whether each time is over its own run's baseline.
    """
    panels = []
    for workload, both in judged.groupby("workload", sort=False):
        for basis, here in both.groupby("basis"):
            axis = Axis.of("×", [1.0, *here["ratio"]], here["high"])
            lines = [_judged(line, axis) for line in here.to_dict("records")]
            whose = ", ".join(profiles) if basis == "predicted" else ""
            panels.append(Panel(names[str(workload)], lines, axis, [(1.0, "one")], whose))
    legend = {word: (word, VERDICTS[word]) for word in ("FAST", "SLOW", "SAME", "AMBIGUOUS")}
    return Chart(
        "against",
        "Epoch time of B over that of A" + (", each over its own baseline" if relative else ""),
        f"Whiskers: the ratio’s 95{NO_BREAK}% interval. "
        "Shorter is faster; the dotted line is no change.",
        "B over A",
        panels,
        legend,
    )


def _judged(line: Row, axis: Axis) -> Line:
    ratio, word = float(line["ratio"]), str(line["verdict"])
    names = (str(line["strategy"]), str(line["variant"]))
    look = "modelled" if line["basis"] == "predicted" else "measured"
    if pd.isna(ratio):
        return Line(*names, look, missing=f"{word}: {line['reason']}")
    ends = (float(line["low"]), float(line["high"]))
    return bar(names, {word: ratio}, f"{axis.said(ratio)} {word}", axis, ends, look=look)


# ---- as files --------------------------------------------------------------------------------

#: By the names of their files.
CHARTS: dict[str, Callable[[Run], Chart]] = {
    "epoch_breakdown": epoch_breakdown,
    "speedup": speedup,
    "cpu_seconds": cpu_core_seconds,
    "cpu_threads": cpu_by_thread,
}
#: Of runs in which a GPU took part: elsewhere they could only say that none did.
GPU_CHARTS: dict[str, Callable[[Run], Chart]] = {
    "gpu_energy": gpu_energy_per_epoch,
    "gpu_power": gpu_mean_power,
    "pcie_over_time": pcie_over_time,
}


def charts_of_run(run: Run) -> dict[str, Chart]:
    """Those of any run, without those of its views."""
    wanted = CHARTS | (GPU_CHARTS if has_gpu(run) else {})
    wanted |= {"accuracy_over_time": accuracy_over_time} if is_scored(run) else {}
    return {name: make(run) for name, make in wanted.items()}
