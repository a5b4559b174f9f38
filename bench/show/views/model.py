"""Show the link model of a run: modelled epochs, roofs of the link, and the model's error."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from gatherbench.bench.model.graph import BATCHES, Shape
from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import LinkProfile, ProfileError
from gatherbench.bench.model.roofline import ROOFS, against_measured, roofline, roofs
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.derive import predictions, problems
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity, short, span
from gatherbench.bench.run.rows import SERIES
from gatherbench.bench.show.charts import drawn
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.table import Table, table_of
from gatherbench.bench.show.terminal import cases_in_words
from gatherbench.bench.show.view import View
from gatherbench.strategies.registry import in_words


def _known(run: Run) -> tuple[LinkProfile | None, pd.DataFrame, str]:
    empty = pd.DataFrame()
    try:
        profile = profile_of(run)
    except ProfileError as error:
        return None, empty, f"No roofline: {error}."
    if profile is None:
        own = "`gatherbench probe --profile calibration` measures this machine’s; " * run.has_gpu
        why = "No roofline: this run has no link profile, which holds the roofs."
        way = "`gatherbench predict RUN --profile NAME` takes any of `gatherbench list profiles`."
        return None, empty, f"{why} {own}{way}"
    table = roofline(run, profile)
    if table["rate"].notna().any():
        return profile, table, ""
    bounds = ", ".join(sorted(set(table["bound"])))
    why = f" The model says of the epochs: {bounds}." if bounds else ""
    none = f"No roofline: nothing of this run is known to cross the link of {profile.name}.{why}"
    return profile, empty, none


def roofline_chart(run: Run) -> Chart | None:
    """Draw rows over the link per second, with the roofs of the profile that came with the run."""
    profile, table, _ = _known(run)
    if profile is None or table.empty:
        return None
    spans = run.ended["setup_table_bytes"].groupby("workload").max().dropna()
    at, unknown = list[tuple[str, float, str]](), set[str]()
    for workload in table["workload"].unique():
        best = roofs(profile, float(spans[workload])) if workload in spans else {}
        known = {kind: rate for kind, rate in best.items() if pd.notna(rate)}
        at += [(run.names[workload], rate, kind) for kind, rate in known.items()]
        unknown |= ROOFS.keys() - known.keys()
    none = "no payload crosses the link; the epoch is bound by " + table["bound"]
    none = none.where(table["bound"] != "unknown", "unknown: the profile lacks a constant for it")
    frame = table[["strategy", "variant"]].assign(
        panel=table["workload"].map(run.names),
        look=table["kind"],
        value=table["rate"],
        suffix=table["over"].map({"fetch": "", "epoch": "*"}),
        reason=none.where(table["rate"].isna(), ""),
    )
    reading = (
        "Bytes of rows that crossed the link, over the time that the loop waited for them; *: over"
        " the whole epoch, as training hides the fetches: the link was at least so busy. Vertical"
        f" lines: its limits by profile {short(profile.name)}."
    )
    if unknown:
        missing = ", ".join(sorted(ROOFS[kind] for kind in unknown))
        reading += f" The profile does not know, so no line shows: {missing}."
    if (table["kind"] == "measured").any():
        reading += " These are the measured machine’s limits only if the profile is its own."
    marks = {kind: name for kind, name in ROOFS.items() if kind not in unknown}
    return Chart("Use of the link", frame, "rows over the link", "B/s", reading, marks=marks, at=at)


#: The columns of both tables, from those of the frames.
_COLUMNS = {
    "rate": "rate_B_per_s",
    "of_copy_engine": "copies_share",
    "of_sm_read": "SM_reads_share",
    "of_raw_link": "raw_link_share",
    "of_disk": "disk_share",
    "over": "over",
    "fetch_bound": "fetch_bound_by",
    "measured_s": "measured_s",
    "modelled_s": "modelled_s",
    "error": "off_by_share",
    "limit_error": "ratio_off_by_share",
    "bound": "epoch_bound_by",
}


def _named(table: pd.DataFrame) -> pd.DataFrame:
    return table.filter([*SERIES[:3], *_COLUMNS]).rename(columns=_COLUMNS)


def roofline_table(profile: LinkProfile, table: pd.DataFrame) -> Table:
    """Make a line per series and basis: its rate over the link, and its share of each roof."""
    basis = table["kind"].replace("modelled", "predicted")
    return table_of(
        "roofline",
        f"Roofline for {short(profile.name)}",
        _named(table).assign(backend="cuda", basis=basis),
        "Rate: bytes of rows over the link, divided by the time that the loop waits for them, or"
        " over the epoch, as training hides the fetches. The next columns compare it with three"
        " limits of the link; a path may exceed one that does not apply to it. Disk: the least"
        " share of that time that the disk needs.",
    )


def model_errors(run: Run) -> Table | None:
    """Compare epochs on a GPU with the model's; ``None`` if either is missing, or the profile."""
    profile = _known(run)[0]
    if profile is None or not run.has_gpu:
        return None
    table = against_measured(run, profile)
    if table["modelled_s"].isna().all():
        return None
    return table_of(
        "model-errors",
        f"Epochs, and how far the model for {short(profile.name)} is off",
        _named(table),
        "Positive: the model expects a longer epoch, or a larger ratio over no_fetch (ratio),"
        " than was measured. This is the model’s error only if the profile is this machine’s own.",
    )


def graph_table(frame: pd.DataFrame, shape: Shape, profile: LinkProfile) -> Table:
    """Make a table of a graph's paths, the fastest first, with numbered notes.

    Args:
        frame: from :func:`gatherbench.bench.model.graph.predict_graph`.
    """
    workload = Workload(shape.name)
    title = (
        f"Predicted for {profile.name}, not measured: {BATCHES} minibatches of"
        f" {workload.batch_size} seeds, fan-out {', '.join(map(str, workload.fanouts))}, GraphSAGE;"
        f" {quantity(shape.nodes * shape.row_bytes, 'B')} of rows of {shape.row_bytes} B"
    )
    ordered = frame.sort_values("epoch_s", kind="stable", ignore_index=True)
    notes = [*dict.fromkeys(note for texts in ordered["notes"] for note in texts)]
    numbers = [
        ", ".join(str(notes.index(note) + 1) for note in texts) for texts in ordered["notes"]
    ]
    below = (
        "Extrapolated: minibatches follow the law of hashed graphs instead of this graph's edges."
        " Memory counts rows and buffers, without training. –: unknown. Fits ?: the profile lacks"
        " the size of that memory (gpu.memory, host.memory). Epochs within a factor of 1.16 (by a"
        " profile of the machine itself; else 2.36) are in no order."
    )
    numbered = [f"{number}  {note}" for number, note in enumerate(notes, 1)]
    names = {"gpu_bytes": "GPU_memory_B", "host_bytes": "host_memory_B"}
    lines = ordered.rename(columns=names).assign(workload=title, notes=numbers)
    return table_of("graph", "", lines, "\n".join([below, *numbered]))


def _tables(run: Run) -> list[Table]:
    (profile, table, _), errors = _known(run), model_errors(run)
    of_roofs = [roofline_table(profile, table)] if profile and len(table) else []
    return of_roofs + ([errors] if errors else [])


def _notes(run: Run) -> Iterator[str]:
    """Say what is missing, and what modelled epochs take from the run's own machine.

    Each reason why an epoch could not be modelled stands once, with its cases. Failed cases are
    omitted: they have their own reasons.
    """
    if absent := _known(run)[2]:
        yield absent
    if run.predicted["borrowed"].notna().any():
        lent = bool(predictions(run)["noisy"].any())
        noisy = ", while other work ran throughout, so no ratio is given" * lent
        shares = (run.predicted["sample_s"] / run.predicted["epoch_s"]).dropna()
        yield (
            f"Drawing minibatches takes the time that was measured on {run.machine}{noisy}:"
            f" {span(shares.min(), shares.max(), 'share')} of these epochs."
        )
    rows, known = predictions(run).query("median.isna()"), set(problems(run)["reason"])
    repeated = rows["reason"].map(lambda reason: any(why in reason for why in known)).astype(bool)
    for (machine, reason), group in rows[~repeated].groupby(["machine", "reason"], sort=False):
        paths = map(in_words, group["strategy"], group["variant"])
        cases = zip(paths, group["workload"].map(run.names), strict=True)
        yield f"not modelled for {machine}: {cases_in_words(cases, run.names.values())}: {reason}"


MODEL = View(
    "model",
    "The link model",
    frame=_tables,
    figure=lambda run: drawn(run, roofline=roofline_chart),
    note=lambda run: "\n".join(_notes(run)),
)
