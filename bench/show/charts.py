"""The charts of a run: what each shows, made once from its rows for all that draw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.roofline import roofs
from gatherbench.bench.plan.workload import ranks_in_words
from gatherbench.bench.read.accuracy import accuracy_over_time as scores_over_time
from gatherbench.bench.read.accuracy import alike
from gatherbench.bench.read.cpu import cores_of, thread_seconds
from gatherbench.bench.read.disk import (
    Memories,
    disk_ratios,
    disk_reads,
    disk_strategies,
    in_memory_s,
    memories,
    over_memory,
)
from gatherbench.bench.read.epochs import (
    EPOCHS,
    WITHIN_TRAIN,
    cpu_seconds,
    epoch_times,
    problems,
    reference_variant,
    sort_series,
    spread,
    stage_breakdown,
)
from gatherbench.bench.read.gpu import (
    DIRECTIONS,
    gpu_energy,
    gpu_power,
    idle_power_w,
    link_rate,
    link_rates,
)
from gatherbench.bench.read.modelled import speedups as speedups_of
from gatherbench.bench.read.modelled import with_ranges
from gatherbench.bench.read.ranks import Family, families, scaling
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.tables import Run, only
from gatherbench.bench.read.units import bytes_in_words, quantity, short
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.run.samples import load_timeline
from gatherbench.bench.run.store import StoreError
from gatherbench.bench.show.answers.reddit import published_range
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel, Points
from gatherbench.bench.show.looks import EXCHANGE_COLOURS, STAGE_COLOURS
from gatherbench.bench.show.sentences.provenance import (
    borrowed,
    has_gpu,
    modelled_for,
    provenance,
    ranks_of_run,
    warnings_of,
)

#: Strategy and variant.
Names = tuple[str, str]
NO_BREAK = "\N{NARROW NO-BREAK SPACE}"


# ---- bars ------------------------------------------------------------------------------------


def epoch_breakdown(run: Run) -> Chart:
    """Epoch time by stage; ``other`` is what the stages' medians leave of the epoch's.

    Of ranks that train together the exchange of gradients and the wait stand beside ``train``.
    """
    stages = with_ranges(run, stage_breakdown(run))
    exchange = list(WITHIN_TRAIN) if stages[list(WITHIN_TRAIN)].any(axis=None) else []
    stages["train"] = (stages["train"] - stages[exchange].sum(axis=1)).clip(lower=0)
    legend = {stage: (stage, colour) for stage, colour in STAGE_COLOURS.items() if stage != "other"}
    legend |= {stage: EXCHANGE_COLOURS[stage] for stage in exchange}
    ahead = together = ""
    if run.sampler_workers:
        ahead = " “sample”: so it is of minibatches, which threads of their own had ready ahead."
    if exchange:
        together = (
            " The training of several ranks is split: “all-reduce” is the exchange of gradients"
            " once all ranks are there, “wait” that for the slowest."
        )
    return _bars(
        run,
        stages,
        ident="stages",
        title="Where an epoch’s time goes",
        reading="Medians of each stage; whiskers: quartiles of the whole epoch. "
        "“fetch” is the time that the loop waited for rows: a strategy that fetches ahead shows "
        f"what it could not hide.{ahead}{together} Shorter is faster.{borrowed(run)}",
        quantity="time per epoch",
        unit="s",
        legend=legend | {"other": ("other", STAGE_COLOURS["other"])},
    )


def speedup(run: Run) -> Chart:
    """Epoch time of the baseline over that of each series."""
    reference = reference_variant(run) or ("cpu_gather", "naive")
    name = " ".join(reference)
    return _bars(
        run,
        speedups_of(run, *reference),
        ident="speedup",
        title=f"Speed-up over {name}",
        reading=f"Typical epoch time of {name} over that of each strategy, on one workload: means "
        f"over repeats. Whiskers: their 95{NO_BREAK}% interval. Longer is faster.{borrowed(run)}",
        quantity="speed-up",
        total="speedup",
        unit="×",
        mark=1.0,
        absent=f"no {name} measured to compare with",
    )


def cpu_core_seconds(run: Run) -> Chart:
    """Core-seconds of the process tree in an epoch: the resource that zero-copy gives back."""
    return _bars(
        run,
        cpu_seconds(run),
        ident="cpu",
        title="Processor time per epoch",
        reading="Core-seconds of the process and its children: sampling, gather and training "
        "alike. Medians of user and system; whiskers: quartiles of their sum.",
        quantity="processor time per epoch",
        unit="s",
        legend={"user": ("user", "blue"), "system": ("system", "orange")},
        absent="processor time was not metered",
        predicted=False,
    )


def cpu_by_thread(run: Run) -> Chart:
    """Core-seconds of an epoch by group of threads, and what its cores had left."""
    cores = cores_of(run)
    return _bars(
        run,
        thread_seconds(run),
        ident="threads",
        title="Processor time per epoch, by thread",
        reading=f"Core-seconds of the case’s threads on {cores} core{'s' * (cores != 1)}; "
        "what they did not use was idle, or with other programs. Medians of each group; number and "
        "whiskers: median and quartiles of what was used. Threads of torch that spin while they "
        "wait for work count as busy.",
        quantity="processor time per epoch",
        unit="s",
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
    return _of_the_gpu(run, gpu_energy(run), "energy", "Energy of the GPU per epoch", "J")


def gpu_mean_power(run: Run) -> Chart:
    """Mean watts of the GPU over an epoch."""
    return _of_the_gpu(run, gpu_power(run), "mean-power", "Mean power of the GPU", "W")


def _of_the_gpu(run: Run, values: pd.DataFrame, ident: str, title: str, unit: str) -> Chart:
    idle = idle_power_w(run)
    legend = {
        "idle": ("drawn by the idle GPU in that time", "grey"),
        "above idle": ("above idle", "vermilion"),
        "not split": ("idle part not measured", "sky"),
    }
    return _bars(
        run,
        values,
        ident=ident,
        title=title,
        reading="The GPU alone, by its energy counter over windows of whole epochs, 10 s and more. "
        f"Idle power, with a process on the GPU: {'unknown' if idle is None else f'{idle:.0f} W'}. "
        "Medians of repeats; whiskers: quartiles.",
        quantity="energy per epoch" if unit == "J" else "mean power over an epoch",
        unit=unit,
        legend={name: look for name, look in legend.items() if (values[name] > 0).any()},
        absent=_why_no_energy(run),
        predicted=False,
    )


def _why_no_energy(run: Run) -> str:
    """What the run says of energy that it does not have."""
    missing = run.select(metric="gpu_energy", status=["failed", "skipped"])
    of_blocks = missing[missing["stage"] == "energy"]
    found = of_blocks if len(of_blocks) else missing
    return str(found["reason"].iloc[0]) if len(found) else "no energy of the GPU was read"


def _bars(
    run: Run,
    values: pd.DataFrame,
    *,
    ident: str,
    title: str,
    reading: str,
    quantity: str,
    unit: str,
    legend: Mapping[str, tuple[str, str]] | None = None,
    total: str = "median",
    mark: float | None = None,
    absent: str = "no measurement",
    predicted: bool = True,
    suffix: str = "",
) -> Chart:
    """A panel for each workload, a line for each series, reasons in place of what is missing.

    What is modelled has a panel of its own: another machine's times may be a hundredth of the
    host's.

    Args:
        values: the columns of ``SERIES``, ``total``, ``low``, ``high`` and those of ``legend``.
        legend: columns that are drawn end to end; without, the total in its strategy's colour.
        total: the column that the number and the whisker belong to.
        mark: value at which a line is drawn through all bars.
        absent: what to write for a series that was measured but has no value here.
        predicted: whether the link model has a word on it.
        suffix: behind the number.
    """
    panels, times, bad = [], epoch_times(run), problems(run)
    profile = ", ".join(modelled_for(run)) if predicted else ""
    for workload in run.workloads:
        here = values[values["workload"] == workload]
        measured, modelled = (here[here["basis"] == basis] for basis in EPOCHS)
        timed, failed = (t[t["workload"] == workload] for t in (times, bad))
        groups = [(measured, _unmeasured(timed, failed, measured, absent), "")]
        if profile:
            groups.append((modelled, _unpredicted(run, workload), profile))
        for frame, why, whose in groups:
            # Beside figures of host memory, a GPU's on the same axis would be compared with them.
            seen = here if has_gpu(run) else frame
            sums = seen[list(legend or ())].sum(axis=1)
            top = max([*seen[total], *seen["high"], *sums, mark or 0.0]) or 1.0
            axis = Axis(unit, float(top))
            look = "modelled" if whose else "measured"
            lines = _lines(frame, why, look, axis, total, list(legend or ()), suffix)
            marks = [(mark, "one")] if mark is not None and len(frame) else []
            if lines or not whose:
                panels.append(Panel(run.names[workload], lines, axis, marks, whose))
    return Chart(
        ident,
        title,
        reading,
        quantity,
        panels,
        legend or {},
        absent=absent if values.empty else "",
        warnings=warnings_of(run),
        foot=provenance(run),
    )


def _lines(
    frame: pd.DataFrame,
    why: Mapping[Names, str],
    look: str,
    axis: Axis,
    total: str,
    parts: Sequence[str],
    suffix: str,
) -> list[Line]:
    """A bar for each row of the frame, and the reason for each series without one."""
    rows = {(str(r["strategy"]), str(r["variant"])): r for r in frame.to_dict("records")}
    names = pd.DataFrame(sorted({*rows, *why}), columns=["strategy", "variant"])
    lines = []
    for strategy, variant in sort_series(names).itertuples(index=False):
        key = (str(strategy), str(variant))
        if key not in rows:
            lines.append(Line(*key, look, missing=why[key]))
            continue
        row = rows[key]
        values = {name: float(row[name]) for name in parts} or {key[0]: float(row[total])}
        low, high, text = float(row["low"]), float(row["high"]), axis.said(row[total])
        note = why.get(key, "")
        if look == "modelled" and high > low:  # the number is its ends: none between them is known
            text = f"{axis.plain(low)} to {axis.said(high)}"
            lines.append(Line(*key, look, values, (low, high), text, note=note))
        else:
            lines.append(_bar(key, look, values, text + suffix, axis, (low, high), note))
    return lines


def _bar(
    names: Names,
    look: str,
    parts: Mapping[str, float],
    text: str,
    axis: Axis,
    ends: tuple[float, float],
    note: str = "",
) -> Line:
    """A bar, and its whisker where the ends differ: a single epoch has no spread to show."""
    if not ends[1] > ends[0]:
        return Line(*names, look, parts, text=text, note=note)
    spread = f"{axis.plain(ends[0])} to {axis.plain(ends[1])}"
    if ends[1] > axis.top:  # drawn as far as the axis goes
        text += f" (to {axis.said(ends[1])})"
        ends = ends[0], axis.top
    return Line(*names, look, parts, ends, text, spread, note=note)


def _unmeasured(
    times: pd.DataFrame, bad: pd.DataFrame, frame: pd.DataFrame, absent: str
) -> dict[Names, str]:
    """Why series of a workload are not in the frame, or not with all of their repeats."""
    times = times[times["basis"] == "measured"]
    timed, there = (set(zip(t["strategy"], t["variant"], strict=True)) for t in (times, frame))
    found = dict.fromkeys(timed - there, absent)
    for b in bad.to_dict("records"):
        some = "" if b["repeats"] == b["of"] else f"{b['repeats']} of {b['of']} repeats "
        found[b["strategy"], b["variant"]] = f"{some}{b['status']}: {b['reason']}"
    return found


def _unpredicted(run: Run, workload: str) -> dict[Names, str]:
    """Why the link model says nothing of a series."""
    rows = run.select(stage="epoch", metric="wall_time", basis="predicted", workload=workload)
    rows = rows[rows["status"] != "ok"]
    keys = zip(rows["strategy"], rows["variant"], strict=True)
    return dict(zip(keys, rows["reason"], strict=True))


# ---- over the number of ranks ----------------------------------------------------------------

#: Of what was published for several GPUs, as the legend has it.
#: Of an axis, times its longest bar: a whisker of two repeats would leave nothing else to see.
LONGEST_WHISKER = 4.0
PUBLISHED = "published for several GPUs: {} faster (Min et al., PVLDB 14(11), 2021)"


def epoch_over_ranks(run: Run) -> Chart:
    """Median epoch of each series, for each number of ranks."""
    seeds = " Numbers beside a bar: the seed nodes of its epoch." * _seeds_differ(run)
    return _over_ranks(
        run,
        "epoch",
        title="Epoch time over {}",
        reading="Medians over repeats and epochs; whiskers: quartiles. An epoch ends with its"
        f" slowest rank. Shorter is faster.{seeds}",
        quantity="time per epoch",
        unit="s",
    )


def speedup_at_ranks(run: Run) -> Chart:
    """Epoch of the baseline over that of each other series, on as many ranks."""
    name = " ".join(reference_variant(run) or ("cpu_gather", "naive"))
    return _over_ranks(
        run,
        "speedup",
        title=f"Speed-up over {name} on as many {{}}",
        reading=f"Typical epoch of {name} over that of each other strategy on the same number of"
        " ranks. Whiskers: 95 % intervals. Longer is faster.",
        quantity="speed-up",
        unit="×",
        without=name,
        published=_published(run) if has_gpu(run) else (),
    )


def scaling_efficiency(run: Run) -> Chart:
    """How much of what further ranks could do at best they do."""
    return _over_ranks(
        run,
        "efficiency",
        title="Scaling efficiency over {}",
        reading="Time for a seed node with one rank over that with W ranks, and over W: 100 % is"
        " ideal. Whiskers: 95 % intervals.",
        quantity="efficiency",
        unit="share",
        fewest=2,
    )


def _over_ranks(
    run: Run,
    value: str,
    *,
    title: str,
    reading: str,
    quantity: str,
    unit: str,
    fewest: int = 1,
    without: str = "",
    published: Sequence[float] = (),
) -> Chart:
    """A panel for each family, in it for each series a bar for each number of ranks.

    Args:
        value: a column of :func:`gatherbench.bench.read.ranks.scaling`.
        title: with a place for what ranks are.
        fewest: ranks that are shown.
        without: the series that is left out, as it would be 1 throughout.
        published: values of others.
    """
    table, (_, ranks) = scaling(run), ranks_of_run(run)
    differ = value == "epoch" and _seeds_differ(run)
    ideal = 1.0 if unit != "s" else None
    panels = []
    for family in families(run):
        mine = table[table["family"] == family.name]
        marks = [(at, "published") for at in published]
        marks += [(ideal, "one")] if ideal is not None else []
        highest, reach = (float(mine[name].max()) for name in (value, f"{value}_high"))
        shown = [highest, min(reach, LONGEST_WHISKER * highest), *(at for at, _ in marks)]
        axis = Axis(unit, max((one for one in shown if one > 0), default=1.0))
        lines = _lines_of_family(run, family, mine, value, axis, fewest, without, seeds=differ)
        panels.append(Panel(family.name, lines, axis, marks))
    said = " to ".join(f"{100 * (at - 1):.0f} %" for at in sorted(published))
    return Chart(
        f"ranks-{value}",
        title.format(ranks),
        reading,
        quantity,
        panels,
        marks={"published": PUBLISHED.format(said)} if published else {},
        warnings=warnings_of(run),
        foot=provenance(run),
    )


def _lines_of_family(
    run: Run,
    family: Family,
    table: pd.DataFrame,
    value: str,
    axis: Axis,
    fewest: int,
    without: str,
    *,
    seeds: bool,
) -> list[Line]:
    """Series by series, in each the numbers of ranks; a reason where there is no value."""
    times, bad, rank = epoch_times(run), problems(run), ranks_of_run(run)[0]
    lines: dict[Names, list[Line]] = {}
    for workload, world in family.worlds.items():
        if world < fewest:
            continue
        here, timed, failed = (t[t["workload"] == workload] for t in (table, times, bad))
        why = _unmeasured(timed, failed, here, "")
        rows = {(str(r["strategy"]), str(r["variant"])): r for r in here.to_dict("records")}
        for key in {**rows, **why}:
            if " ".join(key) == without:
                continue
            number = ranks_in_words(world, rank=rank)
            detail = number if key[1] == "default" else f"{number}, {key[1]}"
            names, row = (key[0], detail), rows.get(key)
            if row is None:
                line = Line(*names, missing=why[key])
            elif pd.isna(row[value]):
                line = Line(*names, missing=str(row["why"]) or f"no {without} on as many")
            else:
                height = float(row[value])
                ends = (float(row[f"{value}_low"]), float(row[f"{value}_high"]))
                note = f"{quantity(row['seeds'], '1')} seeds" if seeds else why.get(key, "")
                line = _bar(
                    names, "measured", {key[0]: height}, axis.said(height), axis, ends, note
                )
            lines.setdefault(key, []).append(line)
    order = sort_series(pd.DataFrame(list(lines), columns=["strategy", "variant"]))
    return [line for key in order.itertuples(index=False, name=None) for line in lines[key]]


def _seeds_differ(run: Run) -> bool:
    """Whether the epochs of a family have numbers of seeds that are not about alike."""
    seeds = scaling(run).groupby("family")["seeds"]
    return bool((seeds.max() > 1.5 * seeds.min()).any())


def _published(run: Run) -> list[float]:
    """Ends of what was published for several GPUs, in times as fast as CPU gather."""
    return [float(y) for y in published_range(_reference(run))["y"]]


def _reference(run: Run) -> pd.DataFrame:
    """The published figures beside the run's results; nothing where there are none."""
    folder = run.folder.parent.parent / "reference"
    try:
        return load_reference(folder)
    except StoreError:
        return load_reference(folder / "none")


# ---- tables on disk --------------------------------------------------------------------------

#: The table of published epochs with features on a disk.
DISK_EPOCHS = "disk_epochs"
#: The strategy that keeps rows by a cache policy.
CACHE = "disk_cached"
_NO_COUNT = "nobody counts it: the page cache decides what is read"


def disk_epochs(run: Run) -> Chart:
    """Typical epoch of each path that reads a disk, for each memory that its cases might take."""
    table, panels = over_memory(run), []
    for family in memories(run):
        mine = table[table["family"] == family.name]
        bound = in_memory_s(run, family)
        longest = float(mine["epoch"].max()) if len(mine) else 1.0
        reach = min(float(mine["epoch_high"].max()), LONGEST_WHISKER * longest)
        axis = Axis("s", max(one for one in (longest, reach, bound or 0.0) if one > 0))
        marks = [] if bound is None else [(bound, "in_memory")]
        panels.append(Panel(family.name, _by_memory(run, family, mine, axis), axis, marks))
    bound_is = " ".join(reference_variant(run) or ())
    known = any(panel.marks for panel in panels)
    published = _published_epochs(run, caches=False)
    return Chart(
        "disk-epochs",
        "Epoch time with the table on disk, by memory",
        "Means over repeats; whiskers: their 95 % interval. The memory is what a case may"
        " take, as a share of the table’s bytes, pages of the table among it; with no limit a warm"
        " memory map may be read out of the page cache. Shorter is faster."
        + " Published: other people’s machines."
        * bool(published),
        "time per epoch",
        [*panels, *published],
        marks={"in_memory": f"{bound_is} with the whole table in memory"} if known else {},
        warnings=warnings_of(run),
        foot=provenance(run),
    )


def _by_memory(run: Run, family: Memories, table: pd.DataFrame, axis: Axis) -> list[Line]:
    """Series by series, in each the memories; a reason where there is no value."""
    times, bad, disk = epoch_times(run), problems(run), disk_strategies(run)
    lines: dict[Names, list[Line]] = {}
    for workload, share in family.shares.items():
        here, timed, failed = (t[t["workload"] == workload] for t in (table, times, bad))
        why = _unmeasured(timed, failed, here, "")
        rows = {(str(r["strategy"]), str(r["variant"])): r for r in here.to_dict("records")}
        for key in {**rows, **why}:
            if key[0] not in disk:
                continue
            memory = f"memory for {share:.0%}" if share else "no limit of memory"
            said, row = "; ".join([memory, *filter(None, [why.get(key)])]), rows.get(key)
            if row is None:
                line = Line(*key, missing=said)
            else:
                height, text = float(row["epoch"]), axis.said(row["epoch"])
                ends = (float(row["epoch_low"]), float(row["epoch_high"]))
                line = _bar(key, "measured", {key[0]: height}, text, axis, ends, said)
            lines.setdefault(key, []).append(line)
    order = sort_series(pd.DataFrame(list(lines), columns=["strategy", "variant"]))
    return [line for key in order.itertuples(index=False, name=None) for line in lines[key]]


def disk_amplification(run: Run) -> Chart:
    """Bytes that come off the disk for each byte of the rows that had to be read."""
    told = disk_reads(run).set_index(SERIES[:3])["declared"].dropna()
    chart = _of_disk(
        run,
        "amplification",
        ident="disk-amplification",
        title="Bytes read off the disk for each byte of the rows",
        reading="By the path’s own count, over the rows that it had not kept in memory: 1 is no"
        " byte too many. A disk is read by whole blocks. Medians over repeats and epochs; whiskers:"
        " quartiles.",
        quantity="bytes read for a byte of rows",
        unit="×",
        mark=1.0,
        absent=_NO_COUNT,
    )
    panels = []
    for workload, panel in zip(run.workloads, chart.panels, strict=True):
        keys = [(workload, line.name, line.detail) for line in panel.lines]
        lines = [
            replace(line, note=f"declared: {quantity(told[key], '×')}") if key in told else line
            for key, line in zip(keys, panel.lines, strict=True)
        ]
        panels.append(replace(panel, lines=lines))
    return replace(chart, panels=panels)


def disk_hits(run: Run) -> Chart:
    """Rows that a path had kept in host memory; beside it what cache policies were published at."""
    chart = _of_disk(
        run,
        "in_memory",
        ident="disk-hits",
        title="Rows found in the path’s own memory",
        reading="Of the rows that an epoch asks for, by the path’s own count; what the page cache"
        " holds is not in it. Medians over repeats and epochs; whiskers: quartiles.",
        quantity="rows found in memory",
        unit="share",
        absent="it keeps no rows, or counts none",
    )
    published = _published_epochs(run, caches=True) if CACHE in disk_strategies(run) else []
    reading = chart.reading + " Published: epochs on another’s machine." * bool(published)
    return replace(chart, reading=reading, panels=[*chart.panels, *published])


def disk_rate(run: Run) -> Chart:
    """Reads that a path sent to the disk in a second."""
    return _of_disk(
        run,
        "iops",
        ident="disk-rate",
        title="Reads of the disk per second",
        reading="By the path’s own count, over the time that the loop waited for rows, or over the"
        " whole epoch where fetches run ahead of it. Medians over repeats and epochs; whiskers:"
        " quartiles.",
        quantity="reads per second",
        unit="1/s",
        absent=_NO_COUNT,
    )


def _of_disk(run: Run, value: str, **chart: Any) -> Chart:
    """A panel for each workload with the paths that read a disk: a column of ``disk_ratios``."""
    mine = only(run, strategies=disk_strategies(run))
    return _bars(mine, spread(disk_ratios(run)[value]), predicted=False, **chart)


def _published_epochs(run: Run, *, caches: bool) -> list[Panel]:
    """A panel for each graph and machine: epochs by policy of a cache, or of whole systems."""
    rows = _reference(run)
    rows = rows[(rows["table"] == DISK_EPOCHS) & ((rows["strategy"] == CACHE) == caches)]
    panels = []
    for (dataset, machine), mine in rows.sort_values("value").groupby(["dataset", "machine"]):
        axis = Axis("s", float(mine["value"].max()))
        bars = mine[["strategy", "variant", "value"]].itertuples(index=False)
        lines = [Line(s, v, "published", {s: t}, text=axis.said(t)) for s, v, t in bars]
        title = f"published: {dataset}, machine {machine}"
        panels.append(Panel(title, lines, axis, quantity="time per epoch"))
    return panels


# ---- the link's roofs, and another run -------------------------------------------------------

#: Columns of the roofline's roofs, and what a reader calls them.
ROOFS = {"copy_engine": "copy engine", "sm_read": "reads by SMs", "raw_link": "raw link"}


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
        lines = [_rate(line, axis) for line in here.to_dict("records")]
        panels.append(Panel(run.names[str(workload)], lines, axis, known))
    reading = (
        "Rows that crossed the link, in bytes per second that the loop waited for them; over the"
        " whole epoch where fetches are hidden behind training. Vertical lines: roofs of the link"
        f" by profile {short(profile.name)}."
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


def _rate(line: Mapping[Hashable, Any], axis: Axis) -> Line:
    names, look = (str(line["strategy"]), str(line["variant"])), str(line["kind"])
    rate = float(line["rate"])
    if pd.isna(rate):
        why = f"no payload crosses the link, or not enough is known; epoch bound by {line['bound']}"
        return Line(*names, look, missing=why)
    note = f"over the {line['over']}; fetch bound by {line['fetch_bound']}"
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


def comparison_chart(judged: pd.DataFrame, names: Mapping[str, str], *, relative: bool) -> Chart:
    """Ratios of epoch times with their intervals, around the line of no change.

    Args:
        judged: lines of :func:`gatherbench.bench.read.compare.runs.compare_runs` that decide.
        names: the workloads in words, by id.
        relative: whether each time is over its own run's baseline.
    """
    panels = []
    for workload, here in judged.groupby("workload", sort=False):
        reach = here[["ratio", "high"]].replace(float("inf"), float("nan")).max().max()
        axis = Axis("×", max(1.0, float(reach)) if pd.notna(reach) else 1.0)
        lines = [_judged(line, axis) for line in here.to_dict("records")]
        panels.append(Panel(names[str(workload)], lines, axis, [(1.0, "one")]))
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


def _judged(line: Mapping[Hashable, Any], axis: Axis) -> Line:
    ratio, word = float(line["ratio"]), str(line["verdict"])
    names = (str(line["strategy"]), str(line["variant"]))
    look = "modelled" if line["basis"] == "predicted" else "measured"
    if pd.isna(ratio):
        return Line(*names, look, missing=f"{word}: {line['reason']}")
    ends = (float(line["low"]), float(line["high"]))
    return _bar(names, look, {word: ratio}, f"{axis.said(ratio)} {word}", axis, ends)


# ---- over time -------------------------------------------------------------------------------

#: Readings in an epoch that are drawn at most; leaving some out keeps a counter's bytes.
MOST = 300
#: Share of the link's raw rate below which traffic has a scale of its own.
LITTLE = 0.1
_CASE = ["strategy", "variant", "repeat", "epoch"]


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
    colours = ("blue", "orange")
    return _over_time(
        run,
        ident="traffic",
        title="Traffic over the link during an epoch",
        reading=reading,
        quantity="rate",
        legend={
            f"pcie_{way}": (way.replace("_", " "), colour)
            for way, colour in zip(DIRECTIONS, colours, strict=True)
        },
        unit="B/s",
        points_of=_rates,
        roof=raw,
    )


def power_over_time(run: Run) -> Chart:
    """Watts that the GPU drew in an epoch."""
    return _over_time(
        run,
        ident="power",
        title="Power of the GPU during an epoch",
        reading="Power that the driver reports at an instant. The first polled epoch of each"
        " series.",
        quantity="power",
        legend={"gpu_power": ("power", "vermilion")},
        unit="W",
        points_of=lambda readings: list(zip(readings["time_s"], readings["value"], strict=True)),
    )


def accuracy_over_time(run: Run) -> Chart:
    """What the model of each series had come to, over the time of its measured epochs."""
    table, families = scores_over_time(run), alike(run)
    began = int(run.plan["measure"].get("warmup_epochs", 0))
    before = f" It had been trained in {began} untimed epochs before." if began else ""
    otherwise = "not scored after each epoch: eval_every_epoch in [measure] does it"
    panels = []
    for workload in run.workloads:
        # Axes are those of all that it may be compared with.
        shared = table[table["workload"].isin(families[workload])]
        highest, longest = (float(shared[name].max()) for name in ("accuracy", "time_s"))
        values, time = Axis("share", highest or 1.0), Axis("s", 1.05 * longest or 1.0)
        if shared.empty:
            values, time = Axis("share", 1.0), Axis("s", 1.0)
        lines = []
        for names in _series(run, workload):
            mine = table[table[SERIES[:3]].eq([workload, *names]).all(axis=1)]
            if mine.empty:
                why = _unpolled(run, "test_accuracy", workload, names, otherwise)
                lines.append(Line(*names, missing=why))
                continue
            ends, scores = mine["time_s"].tolist(), mine["accuracy"].tolist()
            # A score holds from the end of its epoch on, and nobody knows it before.
            points = list(zip([*ends, time.top], [0.0, *scores], strict=True))
            said = f"{values.said(scores[-1])} after {quantity(ends[-1], 's')}"
            told = ", ".join(
                f"{values.said(score)} after {quantity(end, 's')}"
                for end, score in zip(ends, scores, strict=True)
            )
            lines.append(Line(*names, text=said, curves={"accuracy": points}, aloud=told))
        panels.append(Panel(run.names[workload], lines, time, values=values))
    return Chart(
        "accuracy",
        "Test accuracy over time",
        "Scored after each measured epoch, which takes no time here; medians over repeats. A step"
        " is where an epoch ended. Workloads that differ in their partitions have other minibatches"
        f" and the same axes: the one that is higher at a time is better by then.{before}",
        "test accuracy",
        panels,
        {"accuracy": ("test accuracy", "blue")},
        time="time of the measured epochs",
        absent="" if len(table) else otherwise,
        warnings=warnings_of(run),
        foot=provenance(run),
    )


def _over_time(
    run: Run,
    *,
    ident: str,
    title: str,
    reading: str,
    quantity: str,
    legend: Mapping[str, tuple[str, str]],
    unit: str,
    points_of: Callable[[pd.DataFrame], Points],
    roof: float | None = None,
) -> Chart:
    """A panel for each workload, a line for each series: its first polled epoch, or the reason.

    Args:
        legend: metrics → what they are called, and their colours.
        points_of: what is drawn of the readings of one metric in one epoch, in the order of time.
        roof: what a value cannot exceed.
    """
    timeline = load_timeline(run.folder)
    timeline = timeline[timeline["metric"].isin(list(legend))]
    panels, whys = [], Counter[str]()
    for workload in run.workloads:
        mine = timeline[timeline["workload"] == workload]
        drawn: dict[Names, tuple[pd.DataFrame, dict[str, Points]]] = {}
        for (strategy, variant, _, _), epoch in sorted(
            mine.groupby(_CASE), key=lambda found: found[0][2:]
        ):
            curves = {}
            for metric in legend:
                readings = epoch[epoch["metric"] == metric].sort_values("time_s")
                if len(readings) and (points := points_of(_thinned(readings))):
                    curves[metric] = points
            if curves:
                drawn.setdefault((str(strategy), str(variant)), (epoch, curves))
        reach = [p for _, curves in drawn.values() for points in curves.values() for p in points]
        peak = max((value for _, value in reach), default=0.0)
        top = roof if roof is not None and not 0 < peak < LITTLE * roof else peak
        values = Axis(unit, float(top) or 1.0)
        lines = []
        for names in _series(run, workload):
            if names in drawn:
                lines.append(_epoch(run, workload, names, *drawn[names], legend, values))
            else:
                lines.append(
                    Line(*names, missing=_unpolled(run, next(iter(legend)), workload, names))
                )
                whys[lines[-1].missing] += 1
        time = Axis("s", max((t for t, _ in reach), default=0.0) or 1.0)
        panels.append(Panel(run.names[workload], lines, time, values=values, roof=roof))
    absent = ""
    if not any(line.curves for panel in panels for line in panel.lines):
        absent = "\n".join(f"{count} series: {why}" for why, count in whys.items())
    return Chart(
        ident,
        title,
        reading,
        quantity,
        panels,
        legend,
        absent=absent,
        warnings=warnings_of(run),
        foot=provenance(run),
    )


def _epoch(
    run: Run,
    workload: str,
    names: Names,
    epoch: pd.DataFrame,
    curves: Mapping[str, Points],
    legend: Mapping[str, tuple[str, str]],
    values: Axis,
) -> Line:
    """One epoch of a series: its curves, their means, and of counters how much there was."""
    aloud, means, totals = [], [], []
    for metric, (label, _) in legend.items():
        points = curves.get(metric)
        if not points:
            continue
        mean, most = _mean(points), max(v for _, v in points)
        means.append(f"{quantity(mean, values.unit)} mean")
        aloud.append(
            f"{label}: {quantity(mean, values.unit)} in the mean, {quantity(most, values.unit)} at"
            f" most, over {quantity(points[-1][0], 's')}"
        )
        readings = epoch[epoch["metric"] == metric].sort_values("time_s")
        if readings["unit"].iloc[0] == "B":
            totals.append(f"{bytes_in_words(float(readings['value'].iloc[-1]))} {label}")
    payload = _payload(run, workload, names, epoch) if totals else None
    if payload is not None:
        totals.append(f"payload {bytes_in_words(payload)}")
    note = ", ".join(totals)
    return Line(*names, text=means[0], note=note, curves=curves, aloud="; ".join(aloud))


def _payload(run: Run, workload: str, names: Names, epoch: pd.DataFrame) -> float | None:
    """Bytes of the rows that the loop asked for in the very epoch."""
    case = dict(zip(_CASE, (*names, *epoch.iloc[0][["repeat", "epoch"]]), strict=True))
    rows = run.select(stage="fetch", metric="payload", workload=workload, **case)
    found = rows["value"].dropna()
    return float(found.iloc[0]) if len(found) else None


def _rates(counter: pd.DataFrame) -> Points:
    """Rates between readings: each value holds up to its time."""
    rates = link_rates(counter)
    return list(zip(rates["end_s"], rates["rate"], strict=True))


def _thinned(readings: pd.DataFrame) -> pd.DataFrame:
    """Every so many readings, and the last."""
    step = -(-len(readings) // MOST)
    return readings.iloc[sorted({*range(0, len(readings), step), len(readings) - 1})]


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


def _unpolled(
    run: Run,
    metric: str,
    workload: str,
    names: Names,
    otherwise: str = "nothing was polled: a GPU’s sensors are read during runs on a GPU",
) -> str:
    """What the run says of a metric that it does not have of a series; or else ``otherwise``."""
    mine: dict[str, object] = {"workload": workload, "strategy": names[0], "variant": names[1]}
    mine["status"] = ["failed", "skipped"]
    for found in (run.select(metric=metric, **mine), run.select(stage="case", **mine)):
        if len(found):
            return f"{found['status'].iloc[0]}: {found['reason'].iloc[0]}"
    return otherwise


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


#: Of runs on several numbers of ranks.
RANK_CHARTS: dict[str, Callable[[Run], Chart]] = {
    "epoch_over_ranks": epoch_over_ranks,
    "speedup_at_ranks": speedup_at_ranks,
    "scaling_efficiency": scaling_efficiency,
}
#: Of runs in which a path read its rows off a disk.
DISK_CHARTS: dict[str, Callable[[Run], Chart]] = {
    "disk_epochs": disk_epochs,
    "disk_amplification": disk_amplification,
    "disk_hits": disk_hits,
    "disk_rate": disk_rate,
}


def is_scored(run: Run) -> bool:
    """Whether the plan has the model scored after each epoch."""
    return bool(run.plan["measure"].get("eval_every_epoch"))


def charts_of(run: Run) -> dict[str, Chart]:
    """Every chart that is kept as a picture, by the name of its file."""
    wanted = CHARTS | (GPU_CHARTS if has_gpu(run) else {})
    wanted |= RANK_CHARTS if families(run) else {}
    wanted |= {"accuracy_over_time": accuracy_over_time} if is_scored(run) else {}
    wanted |= DISK_CHARTS if disk_strategies(run) else {}
    return {name: make(run) for name, make in wanted.items()}
