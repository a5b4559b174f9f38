"""Show how fast it is: epochs of each path, ranks, stages, and ratios over the baseline."""

from __future__ import annotations

import pandas as pd

from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import ProfileError
from gatherbench.bench.model.roofline import ERROR_OF_RATIOS
from gatherbench.bench.read import derive
from gatherbench.bench.read.derive import (
    WITHIN_TRAIN,
    baseline,
    mostly_noisy,
    no_ratio_over,
    problems,
    sort_by,
    sort_series,
    stage_breakdown,
)
from gatherbench.bench.read.standings import standings
from gatherbench.bench.read.standings import table as standing_table
from gatherbench.bench.read.tables import Run
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.show.charts import NO_BREAK, bars, drawn
from gatherbench.bench.show.drawing import Chart
from gatherbench.bench.show.looks import EXCHANGE_COLOURS, STAGE_COLOURS, UNDECIDED, explained
from gatherbench.bench.show.provenance import borrowed, cases_ended, modelled_for
from gatherbench.bench.show.table import WHAT, Column, Table
from gatherbench.bench.show.view import View
from gatherbench.strategies.registry import in_words

#: The paper's baseline, in words.
NAIVE = in_words("cpu_gather", "naive")

# ---- tables --------------------------------------------------------------------------------------


def numbers(run: Run) -> Table:
    """Make a line per path: the times of its epochs, and its rank; else its status."""
    frame, bad = standing_table(run), problems(run)
    known = pd.MultiIndex.from_frame(frame[SERIES[:3]])
    bad = bad[~pd.MultiIndex.from_frame(bad[SERIES[:3]]).isin(known)]
    backend = "cuda" if run.has_gpu else "host"
    bad = bad[SERIES[:3]].assign(instead=bad["status"], backend=backend, basis="measured")
    if frame.empty:
        bad = bad.iloc[:0]  # one sentence covers them
    frame = sort_by(pd.concat([frame.assign(instead=""), bad]), workload=run.workloads)
    counts = zip(frame["repeats"], frame["left_out"], strict=True)
    frame["of"] = [f"/{n + left:.0f}" * bool(left > 0) for n, left in counts]
    for name in ("best", "reference"):  # on a busy machine no ratio decides
        open_ratio = frame[f"open_{name}"].map({True: UNDECIDED * mostly_noisy(run)})
        frame[f"mark_{name}"] = open_ratio.fillna("")
    of_naive = [found for found in standings(run) if found.reference not in (None, found.best)]
    over = sorted({in_words(*found.reference[1:3]) for found in of_naive if found.reference})
    stages = ("train", *WITHIN_TRAIN)
    columns = [
        *WHAT,
        Column("epoch", "epoch", "s", short="epoch", interval=True, brief=True),
        Column("waiting", "waiting for features", "s", like="epoch", short="waiting"),
        Column("link", "over the link" if run.has_gpu else "rows", "B/s",
               short="link" if run.has_gpu else "rows"),
        Column("cores", "cores busy", "1", short="cores"),
        Column("watts", "power of the GPU", "W", short="GPU power"),
        Column("joules", "energy of the GPU above idle, an epoch", "J", short="net energy"),
        Column("best", "over the CPU’s best gather", "×", interval=True,
               mark="mark_best", short="over best gather"),
        Column("reference", f"over {', '.join(over)}", "×", interval=True,
               mark="mark_reference", short=f"over {'naive' if over == [NAIVE] else 'reference'}"),
        Column("rank", "rank", short="rank"),
        Column("repeats", "repeats", "1", mark="of"),
        Column("other", "other work", "cores"),
        *(Column(stage, stage.replace("_", "-"), "s", like="epoch") for stage in stages),
        Column("cpu", "core-seconds", "s"),
        Column("rate", "payload over fetch", "B/s"),
    ]  # fmt: skip
    absent = {"reference": not over, "other": not frame["left_out"].any()}
    absent |= {name: bool(frame[name].isna().all()) for name in ("watts", "joules", *stages)}
    marks = [*frame["mark_best"], *frame["mark_reference"]]
    return Table(
        "numbers",
        "Medians over repeats and epochs, with quartiles of the epoch; ratios of epochs with their"
        f" 95 % intervals. Paths that are not separated share ranks.{explained(marks)}",
        [column for column in columns if not absent.get(column.field)],
        frame,
    )


def predictions(run: Run) -> Table:
    """Make a line per series whose epochs were predicted."""
    machines, over = ", ".join(modelled_for(run)), in_words(*baseline(run))
    return Table(
        "predictions",
        f"Epochs predicted for {machines}, not measured, and ratios over {over}",
        [
            *WHAT,
            Column("median", "epoch", "s", short="epoch"),
            Column("fetch", "fetch", "s", like="median", short="fetch"),
            Column("train", "train", "s", like="median", short="train"),
            Column("speedup", f"speed-up over {over}", "×", short=f"speed-up over\n{over}"),
        ],
        sort_series(derive.predictions(run).dropna(subset="median"), run.workloads),
        f"Predicted for {machines}, not measured",
        "The model does not rank paths that differ by less than a factor of"
        f" {_model_error(run):.2f}: its own error may be as large.",
    )


def _model_error(run: Run) -> float:
    """Return the ratio of modelled epochs that the model's own error may explain."""
    try:
        profile = profile_of(run)
    except ProfileError:
        profile = None
    return ERROR_OF_RATIOS[profile is not None and profile["gpu.issue"].value is not None]


# ---- charts --------------------------------------------------------------------------------------


def epoch_breakdown(run: Run) -> Chart:
    """Draw epoch time by stage; ``other`` is the rest of an epoch.

    For ranks that train together, the gradient exchange and the wait are separate from ``train``.
    """
    stages = stage_breakdown(run)
    exchange = list(WITHIN_TRAIN) if stages[list(WITHIN_TRAIN)].any(axis=None) else []
    stages["train"] = (stages["train"] - stages[exchange].sum(axis=1)).clip(lower=0)
    unfetched = run.medians.query("role == 'no_fetch'")["epoch_s"].dropna()
    limit = {key[0]: float(epoch_s) for key, epoch_s in unfetched.items()}  # type: ignore[index]
    overlap = ready = split = ""
    if run.has_gpu:
        overlap = (
            " A GPU’s stages can overlap: “sample”, on the host, is cut to the time that the others"
            " leave."
        )
        room = stages["median"] - stages["fetch"] - stages["train"] - stages[exchange].sum(axis=1)
        within = stages["sample"].clip(upper=room.clip(lower=0))
        stages["sample"] = stages["sample"].where(stages["backend"] != "cuda", within)
    if run.sampler_workers:
        ready = (
            " “sample” is the time that it waited for minibatches, which other threads draw ahead."
        )
    if exchange:
        split = (
            " The training of several ranks is split: “all-reduce” is the exchange of gradients"
            " once all ranks are there, “wait” that for the slowest."
        )
    legend = {stage: (stage, colour) for stage, colour in STAGE_COLOURS.items()}
    other = {"other": legend.pop("other")}
    return bars(
        run,
        stages,
        title="Where an epoch’s time goes",
        reading="Medians of each stage, and of what an epoch’s stages leave of it (“other”); the"
        " number and the whisker are the whole epoch’s median and quartiles. Medians need not add"
        f" up to it.{overlap} “fetch” is the time that the loop waited for rows: a strategy that"
        f" fetches ahead shows what it could not hide.{ready}{split}"
        f"{' Dotted line: the epoch of a path that fetches nothing.' * bool(limit)}"
        f" Shorter is faster.{borrowed(run)}",
        quantity="time per epoch",
        unit="s",
        limit=limit,
        legend=legend | {stage: EXCHANGE_COLOURS[stage] for stage in exchange} | other,
    )


def speedup(run: Run) -> Chart:
    """Draw the epoch time of the baseline over that of each series."""
    reference = baseline(run)
    name, backend = in_words(*reference), "cuda" if run.has_gpu else "host"
    none = f"no {name} measured to compare with"
    over = {w: Key(w, *reference, backend, "measured") for w in run.workloads}
    return bars(
        run,
        derive.speedups(run),
        title=f"Speed-up over {name}",
        reading=f"Typical epoch time of {name} over that of each strategy, on one workload: means "
        f"over repeats. Whiskers: their 95{NO_BREAK}% interval. Longer is faster.{borrowed(run)}",
        quantity="speed-up",
        unit="×",
        total="speedup",
        mark=1.0,
        absent={workload: no_ratio_over(run, key) or none for workload, key in over.items()},
    )


EPOCHS = View(
    "results",
    "How fast",
    frame=lambda run: [numbers(run), *([predictions(run)] if modelled_for(run) else [])],
    figure=lambda run: drawn(run, speedup=speedup, epoch_breakdown=epoch_breakdown),
    note=lambda run: "" if cases_ended(run)["ok"] else "No epoch was measured.",
)
