"""The report's tables: epochs, savings, declared bytes, traffic, roofline, errors of the model."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from gatherbench.bench.model.link_bytes import link_bytes
from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import LinkProfile, ProfileError
from gatherbench.bench.model.roofline import against_measured, roofline
from gatherbench.bench.read.disturbance import disturbed_series, no_ratio_over
from gatherbench.bench.read.epochs import baseline, plan_order
from gatherbench.bench.read.gpu import changes_of_run
from gatherbench.bench.read.kept import found_on_device
from gatherbench.bench.read.stats.judge import is_open
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import short
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.charts import roofline_chart
from gatherbench.bench.show.looks import DISTURBED, UNDECIDED, explained
from gatherbench.bench.show.sentences.provenance import has_gpu
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind

#: What a data path may save: stage and metric, and what the table calls it.
_SAVED = {
    "epoch": ("epoch", "wall_time", "epoch time"),
    "cpu": ("epoch", "cpu", "core-seconds"),
    "metered": ("energy", "time", "epoch time while power and energy were read"),
    "power": ("energy", "power", "power of the GPU"),
    "energy": ("energy", "energy", "energy of the GPU"),
}
#: Metrics of the stage ``fetch`` that a case declares of its path, and what a reader calls them.
_DECLARED = {
    "cpu_read": ("CPU reads", "B"),
    "cpu_write": ("CPU writes", "B"),
    "copy_engine": ("copy engine", "B"),
    "gpu_link_read": ("GPU reads over the link", "B"),
    "gpu_table": ("of the table, kept on the GPU", "B"),
}
_EXCHANGE = {
    "all_reduce": "train: all-reduce",
    "wait": "train: wait",
}
_REQUESTS = "gpu_requests_"
_FOUND = {"declared": "rows found on the device", "counted": "the same, as counted in epochs"}


def in_plan_order(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its backend in words, in the order of workloads and strategies."""
    return with_kind(plan_order(run, frame))


def marked(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with marks: ``beside`` of its series, and ``open`` of their speed-ups if any."""
    alone = set(disturbed_series(run))
    keys = frame[SERIES].itertuples(index=False, name=None)
    frame = frame.assign(beside=[DISTURBED * (key in alone) for key in keys])
    if "speedup_low" in frame:
        ends = zip(frame["speedup_low"], frame["speedup_high"], strict=True)
        given = frame["speedup"].notna() | frame["speedup_high"].notna()
        frame["open"] = [UNDECIDED * is_open(low, high) for low, high in ends]
        frame["open"] = frame["open"].where(given, "")
    return frame


def numbers(run: Run) -> Table:
    """One line a series: what the charts show, as numbers."""
    frame = marked(run, in_plan_order(run, summarise(run)))
    noisy = frame["noisy"].any()
    other = [Column("other", "other work", "cores")] if noisy or frame["beside"].any() else []
    of_noisy = [Column("noisy", "repeats beside other work", "1")] if noisy else []
    exact = (frame["basis"] == "predicted") & (frame["speedup_low"] == frame["speedup_high"])
    ends = ["speedup_low", "speedup_high"]
    frame[ends] = frame[ends].mask(exact)  # not even the model has an interval there
    caption = (
        "Medians over repeats and epochs of each series, with quartiles of the epoch and 95 %"
        " intervals of the ratio, or the ends of what is modelled"
        + "; repeats beside other work do not count while there are quiet ones" * bool(noisy)
        + "."
        + explained([*frame["open"], *frame["beside"]])
    )
    return tabulate(
        "numbers",
        caption,
        [
            *WHAT,
            Column("speedup", "speed-up", "×", mark="open"),
            Column("speedup_low", "ratio from", "×"),
            Column("speedup_high", "ratio to", "×"),
            Column("median", "epoch", "s", mark="beside"),
            *other,
            Column("fetch", "fetch", "s"),
            Column("train", "train", "s"),
            *(Column(f, label, "s") for f, label in _EXCHANGE.items() if frame[f].notna().any()),
            Column("rate", "payload over fetch", "B/s"),
            Column("cpu", "core-seconds", "s"),
            Column("low", "epoch, low", "s", like="median"),
            Column("high", "epoch, high", "s", like="median"),
            Column("repeats", "repeats", "1"),
            *of_noisy,
        ],
        frame,
    )


def savings(run: Run) -> Table:
    """Changes an epoch against the baseline, of whatever of them was measured: negative is less.

    Of series whose ratio is not given there are none.
    """
    reference = baseline(run)
    quantities = {name: (stage, metric) for name, (stage, metric, _) in _SAVED.items()}
    frame = changes_of_run(run, quantities, reference)
    keys = map(Key._make, frame[SERIES].itertuples(index=False))
    over = [key._replace(strategy=reference[0], variant=reference[1]) for key in keys]
    why = {key: no_ratio_over(run, key) for key in over}
    frame = marked(run, frame[pd.Series([not why[key] for key in over], frame.index, dtype=bool)])
    # To a hundredth of a per cent, far below any spread: no more digits than mean something.
    frame[list(_SAVED)] = frame[list(_SAVED)].astype(float).round(4) + 0.0
    columns = [
        Column(name, label, "share", mark="beside")
        for name, (_, _, label) in _SAVED.items()
        if frame[name].notna().any()
    ]
    caption = f"Change of an epoch’s medians against {' '.join(reference)}."
    caption += explained(list(frame["beside"]))
    return tabulate("savings", caption, [*WHAT, *columns], in_plan_order(run, frame))


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of a run, or ``absent``: why there is none, and the remedy."""

    chart: Chart | None = None
    grid: Table | None = None
    absent: str = ""


def data_path(run: Run) -> Table:
    """What each strategy moves in an epoch, by its own declaration."""
    rows = run.select(stage="fetch", basis="declared")
    frame = rows.groupby([*SERIES, "metric"])["value"].median().unstack().reset_index()
    requests = {
        metric: (f"requests of {metric.removeprefix(_REQUESTS).removesuffix('_bytes')} B", "1")
        for metric in dict.fromkeys(rows["metric"])
        if metric.startswith(_REQUESTS)
    }
    names = _DECLARED | requests
    columns = [Column(metric, *names[metric]) for metric in names if metric in frame]
    found = found_on_device(run)
    frame = frame.join(found, on=SERIES[:4])
    columns += [Column(f, label, "share") for f, label in _FOUND.items() if found[f].any()]
    caption = (
        "Bytes and link requests of an epoch, computed from ids and data path, not measured"
        + " (but for what is counted)" * bool(found["counted"].notna().any())
    )
    return tabulate("path", caption, [*WHAT, *columns], in_plan_order(run, frame))


def link_traffic(run: Run) -> Table:
    """Bytes to the device in an epoch, measured and counted, of whatever was measured."""
    columns = [
        *WHAT[:3],
        Column("payload", "wanted", "B"),
        Column("read", "sectors and copies", "B"),
        Column("link_128", "with headers, reads of 128 B", "B"),
        Column("link_64", "with headers, reads of 64 B", "B"),
        Column("median", "measured", "B"),
        Column("low", "lower quartile", "B"),
        Column("high", "upper quartile", "B"),
    ]
    caption = "Bytes from host to device in an epoch: counted from the ids, and measured"
    if run.drawn == "uva":
        caption += ". Measured bytes include reads of the graph, which are not counted"
    return tabulate("link-traffic", caption, columns, link_bytes(run))


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
    return Roofline(roofline_chart(run, profile, table), roofline_table(profile, table))


def model_errors(run: Run) -> Table | None:
    """Epochs on a GPU beside the model's; ``None`` where either has none, or no profile reads."""
    try:
        profile = profile_of(run)
    except ProfileError:
        return None  # the roofline says why
    if profile is None or not has_gpu(run):
        return None
    table = against_measured(run, profile)
    if table["modelled_s"].isna().all():
        return None
    names = {"measured_s": "measured", "modelled_s": "modelled", "modelled_path_s": "path"}
    columns = [
        *WHAT[:3],
        *_end(table),
        Column("measured", "epoch, measured", "s", short="measured"),
        Column("modelled", "modelled", "s", short="modelled", like="measured"),
        Column("error", "off by", "share", short="off by"),
        Column(
            "path",
            "modelled with training as measured",
            "s",
            short="with training as measured",
            like="measured",
        ),
        Column("path_error", "off by", "share", short="off by"),
        Column("bound", "epoch bound by"),
    ]
    caption = f"Measured epochs beside the link model’s for {short(profile.name)}"
    return tabulate(
        "model-errors",
        caption,
        columns,
        table.rename(columns=names),
        title=f"Epochs, and how far the model for {short(profile.name)} is off",
        note="Positive: the model expects a longer epoch than was measured. With training as"
        " measured, what is left is the data path’s. It says how far the model is off only if the"
        " profile is this machine’s own.",
    )


def _end(table: pd.DataFrame) -> list[Column]:
    """The column that tells least and most apart, where the profile's ranges make two lines."""
    end = Column("end", "within the profile’s ranges", short="ends")
    return [end] if table["end"].any() else []


def _unknown(table: pd.DataFrame, profile: LinkProfile) -> str:
    bounds = ", ".join(sorted(set(table["bound"])))
    why = f" The model says of the epochs: {bounds}." if bounds else ""
    return f"No roofline: nothing of this run is known to cross the link of {profile.name}.{why}"


def roofline_table(profile: LinkProfile, table: pd.DataFrame) -> Table:
    """One line a series and basis: its rate over the link, and that of each roof."""
    basis = table["kind"].replace("modelled", "predicted")
    hidden = ["*" * (over == "epoch") for over in table["over"]]
    disk = Column("of_disk", "of the disk", "share", short="disk")
    columns = [
        *WHAT,
        *_end(table),
        Column("rate", "over the link", "B/s", short="rate", mark="hidden"),
        Column("over", "over the time of"),
        Column("of_copy_engine", "of the copy engine", "share", short="copies"),
        Column("of_sm_read", "of reads by SMs", "share", short="SM reads"),
        Column("of_raw_link", "of the raw link", "share", short="raw link"),
        *([disk] if table["of_disk"].notna().any() else []),
        Column("fetch_bound", "fetch bound by", short="fetch bound by"),
        Column("bound", "epoch bound by", short="epoch bound by"),
    ]
    caption = f"Bytes of rows per second as a share of the roofs of {short(profile.name)}"
    return tabulate(
        "roofline",
        caption,
        columns,
        with_kind(table.assign(backend="cuda", basis=basis, hidden=hidden)),
        title=f"Roofline for {short(profile.name)}",
        note="Bytes of rows that cross the link over the time waited for them, or over the epoch"
        " (*) where fetches are hidden; then as a share of each roof; a path may exceed a roof that"
        " is not its own. Disk: of that time what its reads take at least.",
    )
