"""The report's view of the link: the bytes that paths declare, and how near its roofs they come."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gatherbench.bench.model.link_bytes import link_bytes
from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import LinkProfile, ProfileError
from gatherbench.bench.model.roofline import against_measured, roofline, roofs
from gatherbench.bench.read.gpu import gpu_energy
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.figures.gpu_energy import why_no_energy
from gatherbench.bench.show.report.bars import Axis, Bar, BarChart, Mark, Panel, bar, bar_chart
from gatherbench.bench.show.report.grid import Column, Grid, grid
from gatherbench.bench.show.report.results import WHAT, in_plan_order, with_kind
from gatherbench.bench.show.sentences.provenance import has_gpu

#: Metrics of the stage ``fetch`` that a case declares of its path, and what a reader calls them.
_DECLARED = {
    "cpu_read": ("CPU reads", "B"),
    "cpu_write": ("CPU writes", "B"),
    "copy_engine": ("copy engine", "B"),
    "gpu_link_read": ("GPU reads over the link", "B"),
    "gpu_table": ("of the table, kept on the GPU", "B"),
}
_REQUESTS = "gpu_requests_"
#: Roofs in the order of the legend, and the names of their dashes.
_ROOFS = {"copy engine": "copy_engine", "reads by SMs": "sm_read", "raw link": "raw_link"}

#: Parts of a GPU's energy, and the names of their colours.
ENERGY_COLOURS = {"idle": "idle", "above idle": "above-idle", "not split": "not-split"}


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of a run, or ``absent``: why there is none, and the remedy."""

    chart: BarChart | None = None
    grid: Grid | None = None
    absent: str = ""


def data_path(run: Run) -> Grid:
    """What each strategy moves in an epoch, by its own declaration."""
    rows = run.select(stage="fetch", basis="declared")
    keys = SERIES
    frame = rows[keys].drop_duplicates()
    columns = []
    requests = [m for m in dict.fromkeys(rows["metric"]) if m.startswith(_REQUESTS)]
    sizes = [m.removeprefix(_REQUESTS).removesuffix("_bytes") for m in requests]
    labels = {m: (f"requests of {n} B", "1") for m, n in zip(requests, sizes, strict=True)}
    names = _DECLARED | labels
    for metric, (label, unit) in names.items():
        values = rows[rows["metric"] == metric].groupby(keys)["value"].median()
        if len(values):
            frame = frame.merge(values.rename(metric).reset_index(), on=keys, how="left")
            columns.append(Column(metric, label, unit))
    caption = "Bytes and link requests of an epoch, computed from ids and data path, not measured"
    return grid("path", caption, [*WHAT, *columns], in_plan_order(run, frame))


def link_traffic(run: Run) -> Grid:
    """Bytes to the device in an epoch, measured and counted, of whatever was measured."""
    columns = [
        *(column for column in WHAT if column.field != "kind"),
        Column("payload", "wanted", "B"),
        Column("read", "sectors and copies", "B"),
        Column("link_128", "with headers, reads of 128 B", "B"),
        Column("link_64", "with headers, reads of 64 B", "B"),
        Column("median", "measured", "B"),
        Column("low", "lower quartile", "B"),
        Column("high", "upper quartile", "B"),
    ]
    caption = "Bytes from host to device in an epoch: counted from the ids, and measured"
    return grid("link-traffic", caption, columns, link_bytes(run))


def roofline_of(run: Run) -> Roofline:
    """Rows over the link per second beside the roofs of the profile that came with the run.

    Raises:
        RunError: a run's table is damaged.
    """
    try:
        profile = profile_of(run)
    except ProfileError as error:
        return Roofline(absent=f"No roofline: {error}.")
    if profile is None:
        own = "`gatherbench calibrate` measures this machine’s; " if has_gpu(run) else ""
        return Roofline(
            absent="No roofline: this run has no link profile, which holds the roofs. "
            f"{own}`gatherbench predict RUN --profile NAME` takes any of"
            " `gatherbench list profiles`."
        )
    table = roofline(run, profile)
    if table["rate"].isna().all():
        return Roofline(absent=_unknown(table, profile))
    return Roofline(_chart(run, profile, table), _grid(profile, table))


def model_errors(run: Run) -> Grid | None:
    """Epochs on a GPU beside the model's; ``None`` where either has none, or no profile reads."""
    try:
        profile = profile_of(run)
    except ProfileError:
        return None  # the roofline says why
    if profile is None:
        return None
    table = against_measured(run, profile)
    if table["modelled_s"].isna().all():
        return None
    names = {"measured_s": "measured", "modelled_s": "modelled", "modelled_path_s": "path"}
    columns = [
        *(column for column in WHAT if column.field != "kind"),
        Column("measured", "epoch, measured", "s"),
        *_end(table),
        Column("modelled", "modelled", "s"),
        Column("error", "off by", "share"),
        Column("path", "modelled with training as measured", "s"),
        Column("path_error", "off by", "share"),
        Column("bound", "epoch bound by"),
    ]
    caption = f"Measured epochs beside the link model’s for {short(profile.name)}"
    return grid("model-errors", caption, columns, table.rename(columns=names))


def _end(table: pd.DataFrame) -> list[Column]:
    """The column that tells least and most apart, where the profile's ranges make two lines."""
    return [Column("end", "within the profile’s ranges")] if table["end"].any() else []


def _unknown(table: pd.DataFrame, profile: LinkProfile) -> str:
    bounds = ", ".join(sorted(set(table["bound"])))
    why = f" The model says of the epochs: {bounds}." if bounds else ""
    return f"No roofline: nothing of this run is known to cross the link of {profile.name}.{why}"


def _chart(run: Run, profile: LinkProfile, table: pd.DataFrame) -> BarChart:
    spans = run.rows[(run.rows["stage"] == "setup") & (run.rows["metric"] == "table")]
    panels, unknown = [], set()
    for workload, here in table.groupby("workload", sort=False):
        span = spans[spans["workload"] == workload]["value"].max()
        limits: dict[tuple[str, float], None] = {}
        for corner in profile.corners() if pd.notna(span) else ():
            best = roofs(corner, float(span))
            limits |= {(kind, getattr(best, kind)): None for kind in _ROOFS.values()}
        known = [(kind, value) for kind, value in limits if pd.notna(value)]
        drawn = {kind for kind, _ in known}
        unknown |= {name for name, kind in _ROOFS.items() if kind not in drawn}
        axis = Axis("B/s", max([*here["rate"].dropna(), *(v for _, v in known)], default=1.0))
        marks = [Mark(axis.place(value), kind) for kind, value in known]
        bars = [_bar(line, axis) for line in here.to_dict("records")]
        panels.append(Panel(run.names[str(workload)], bars, axis.ticks(), marks))
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
        reading += f" Not known in this profile, so not drawn: {', '.join(sorted(unknown))}."
    if (table["kind"] == "measured").any():
        reading += " The roofs are those of the measured machine only if the profile is its own."
    shown = [(name, kind) for name, kind in _ROOFS.items() if name not in unknown]
    return BarChart("roofline", "How near the link’s roofs", reading, [], panels, shown)


def _bar(line: Mapping[Hashable, Any], axis: Axis) -> Bar:
    names, modelled = (str(line["strategy"]), str(line["variant"])), line["kind"] == "modelled"
    rate = float(line["rate"])
    if pd.isna(rate):
        why = f"no payload crosses the link, or not enough is known; epoch bound by {line['bound']}"
        return Bar(*names, modelled, missing=why)
    parts = {"rate": (names[0], rate)}
    note = f"over the {line['over']}; fetch bound by {line['fetch_bound']}"
    text = f"{line['end']} {axis.said(rate)}".strip()
    return bar(names, modelled, parts, text, axis, note=note)


def _grid(profile: LinkProfile, table: pd.DataFrame) -> Grid:
    basis = table["kind"].map({"measured": "measured", "modelled": "predicted"})
    columns = [
        *WHAT,
        *_end(table),
        Column("rate", "over the link", "B/s"),
        Column("over", "over the time of"),
        Column("of_copy_engine", "of the copy engine", "share"),
        Column("of_sm_read", "of reads by SMs", "share"),
        Column("of_raw_link", "of the raw link", "share"),
        Column("fetch_bound", "fetch bound by"),
        Column("bound", "epoch bound by"),
    ]
    caption = f"Bytes of rows per second as a share of the roofs of {short(profile.name)}"
    return grid("roofline", caption, columns, with_kind(table.assign(backend="cuda", basis=basis)))


def energy(run: Run) -> BarChart:
    """Energy of the GPU in an epoch, with the part that it draws doing nothing."""
    values = gpu_energy(run)
    return bar_chart(
        run,
        values,
        ident="energy",
        title="Energy of the GPU per epoch",
        reading="The GPU alone, by its energy counter over windows of whole epochs. Bars: medians "
        "of repeats, with what the GPU draws in that time doing nothing; whiskers: quartiles.",
        total="median",
        unit="J",
        parts=ENERGY_COLOURS,
        absent=why_no_energy(run),
    )
