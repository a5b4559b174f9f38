"""Runs on several ranks: how epochs scale, where that ends, and how far ranks are apart.

More ranks are *faster* where they take less time for a seed node, by more than the smallest
difference that matters and with the whole interval (:mod:`gatherbench.bench.read.scaling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from gatherbench.bench.plan.workload import ranks_in_words
from gatherbench.bench.read.cpu import cores_of
from gatherbench.bench.read.derive import (
    baseline,
    problems,
    sort_by,
    sort_series,
)
from gatherbench.bench.read.disturbance import no_ratio_over
from gatherbench.bench.read.reference import published_range
from gatherbench.bench.read.scaling import (
    FASTER,
    NO_FASTER,
    OPEN,
    by_rank,
    families,
    over_ranks,
    scaling,
)
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity
from gatherbench.bench.run.rows import Key
from gatherbench.bench.show.chart import Axis, Chart, Line
from gatherbench.bench.show.charts import (
    Fields,
    Names,
    chart_of,
    family_panel,
    marked,
    reference_of,
    typical,
)
from gatherbench.bench.show.figures.draw import drawn
from gatherbench.bench.show.looks import explained
from gatherbench.bench.show.provenance import has_gpu, ranks_of_run
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate, with_kind
from gatherbench.bench.show.view import View

#: Of what was published for several GPUs, as the legend has it.
PUBLISHED = "published for several GPUs: {} faster (Min et al., PVLDB 14(11), 2021)"


# ---- tables --------------------------------------------------------------------------------------


def ranks_scaled(run: Run) -> Table:
    """One line a series and number of ranks: how epochs scale."""
    found, bad = scaling(run), problems(run)
    of = {ident: (f.name, ranks) for f in families(run) for ident, ranks in f.worlds.items()}
    bad = bad[bad["workload"].isin(list(of))]
    known = pd.MultiIndex.from_frame(found[KEY])
    bad = bad[~pd.MultiIndex.from_frame(bad[KEY]).isin(known)]
    bad = bad.assign(
        family=[of[w][0] for w in bad["workload"]],
        ranks=[of[w][1] for w in bad["workload"]],
        more=bad["status"],
        disturbed=False,
        cores_full=False,
        basis="measured",
        backend="cuda" if has_gpu(run) else "host",
        why="",
    )
    both = pd.concat([found, bad[[c for c in found if c in bad]]], ignore_index=True)
    by_series = sort_series(both.sort_values("ranks", kind="stable"))
    frame = sort_by(by_series, "family", [family.name for family in families(run)])
    frame = marked(run, frame)
    frame["all"] = [" (all)" * bool(full) for full in frame["cores_full"]]
    differ = bool(found["seeds"].max() > 1.5 * found["seeds"].min())
    return tabulate(
        "ranks",
        "Over the number of ranks: medians of epochs with their quartiles; efficiency and speed-up"
        " with intervals of 95 %. More ranks: whether they take less time for a"
        f" seed node.{explained([*frame['open'], *frame['beside']])}",
        [
            Column("family", "workload"),
            *WHAT[1:],
            Column("ranks", "ranks", "1", short="ranks"),
            Column("seeds", "seeds an epoch", "1", short="seeds" * differ),
            Column("epoch", "epoch", "s", mark="beside", short="epoch"),
            Column("epoch_low", "from", "s", like="epoch"),
            Column("epoch_high", "to", "s", like="epoch"),
            Column("efficiency", "efficiency", "share", short="efficiency", interval=True),
            Column(
                "speedup",
                "speed-up on as many ranks",
                "×",
                mark="open",
                short="speed-up",
                interval=True,
            ),
            Column("cores", "cores busy", "1", mark="all", short="cores"),
            Column("more", "more ranks", short="more ranks"),
            Column("why", "why no efficiency", below="no efficiency of {series}: {value}"),
        ],
        with_kind(frame),
        title="Over the number of ranks",
        note="Efficiency: time for a seed node with one rank over that with W ranks, and over W."
        " Speed-up: over the baseline on as many ranks. Seeds of a step that cannot be shared"
        " equally are left out. Cores busy: by the case’s own processes, of"
        f" {cores_of(run)}; threads of torch that spin while they wait count. More ranks: {FASTER},"
        f" {NO_FASTER} (none of them by 5 %), or {OPEN}. Ranks: {_kind(run)}.",
    )


#: What tells one line of a plan from another.
KEY = ["workload", "strategy", "variant"]


def _kind(run: Run) -> str:
    return "GPUs" if ranks_of_run(run)[0] == "GPU" else "processes on a host, no GPUs"


def ranks_apart(run: Run) -> Table:
    """One line a series: how far its ranks are apart."""
    frame = over_ranks(run)
    return tabulate(
        "ranks-apart",
        "How far ranks are apart: medians over repeats and epochs",
        [
            *WHAT,
            Column("slowest", "slowest rank’s epoch", "s", short="slowest"),
            Column("fastest", "fastest", "s", like="slowest", short="fastest"),
            Column("wait", "wait for the slowest", "s", like="slowest", short="wait"),
            Column("wait_share", "share of an epoch", "share"),
            Column("all_reduce", "all-reduce", "s", like="slowest", short="all-reduce"),
            Column("all_reduce_share", "share of an epoch", "share"),
            Column("cpu_least", "core-seconds, least", "s", like="cpu_most", short="least core-s"),
            Column("cpu_most", "most", "s", short="to most"),
        ],
        with_kind(frame),
        title="From rank to rank",
        note="Wait and all-reduce are means over the ranks, and shares of their mean epoch.",
    )


def each_rank(run: Run) -> Table:
    """One line a rank: medians over repeats and epochs."""
    return tabulate(
        "each-rank",
        "Rank by rank: medians over repeats and epochs",
        [
            *WHAT,
            Column("rank", "rank", "1"),
            Column("epoch", "epoch", "s"),
            Column("wait", "wait for the slowest", "s", like="epoch"),
            Column("wait_share", "share of its epoch", "share"),
            Column("all_reduce", "all-reduce", "s", like="epoch"),
            Column("all_reduce_share", "share of its epoch", "share"),
            Column("cpu", "core-seconds", "s"),
        ],
        with_kind(by_rank(run)),
    )


# ---- charts --------------------------------------------------------------------------------------


def epoch_over_ranks(run: Run) -> Chart:
    """Median epoch of each series, for each number of ranks."""
    seeds = " Numbers beside a bar: the seed nodes of its epoch." * _seeds_differ(run)
    return _over_ranks(
        run,
        "epoch",
        "s",
        title="Epoch time over {}",
        reading="Medians over repeats and epochs; whiskers: quartiles. An epoch ends with its"
        f" slowest rank. Shorter is faster.{seeds}",
        quantity="time per epoch",
    )


def speedup_at_ranks(run: Run) -> Chart:
    """Epoch of the baseline over that of each other series, on as many ranks."""
    name = " ".join(baseline(run))
    return _over_ranks(
        run,
        "speedup",
        "×",
        title=f"Speed-up over {name} on as many {{}}",
        reading=f"Typical epoch of {name} over that of each other strategy on the same number of"
        " ranks. Whiskers: 95 % intervals. Longer is faster.",
        quantity="speed-up",
        without=name,
        published=list(published_range(reference_of(run))["y"]) if has_gpu(run) else (),
    )


def scaling_efficiency(run: Run) -> Chart:
    """How much of what further ranks could do at best they do."""
    return _over_ranks(
        run,
        "efficiency",
        "share",
        title="Scaling efficiency over {}",
        reading="Time for a seed node with one rank over that with W ranks, and over W: 100 % is"
        " ideal. Whiskers: 95 % intervals.",
        quantity="efficiency",
        fewest=2,
    )


def _over_ranks(
    run: Run,
    value: str,
    unit: str,
    *,
    title: str,
    fewest: int = 1,
    without: str = "",
    published: Sequence[float] = (),
    **said: str,
) -> Chart:
    """A panel for each family, in it for each series a bar for each number of ranks.

    Args:
        value: a column of :func:`gatherbench.bench.read.scaling.scaling`.
        title: with a place for what ranks are.
        fewest: ranks that are shown.
        without: the series that is left out, as it would be 1 throughout.
        published: values of others.
    """
    table, (rank, ranks) = scaling(run), ranks_of_run(run)
    differ = value == "epoch" and _seeds_differ(run)

    def line(world: int, axis: Axis, names: Names, row: Fields | None, why: str) -> Line | None:
        if " ".join(names) == without:
            return None
        detail = ranks_in_words(world, rank)
        detail += f", {names[1]}" * (names[1] != "default")
        if row is None:
            return Line(names[0], detail, missing=why)
        if pd.isna(row[value]):
            return Line(names[0], detail, missing=_no_value(run, value, row))
        note = f"{quantity(row['seeds'], '1')} seeds" if differ else why
        return typical(run, axis, row, value, note, detail)

    marks = [(at, "published") for at in published] + [(1.0, "one")] * (unit != "s")
    panels = []
    for family in families(run):
        steps = {w: partial(line, world) for w, world in family.worlds.items() if world >= fewest}
        panels.append(family_panel(run, family.name, steps, table, value, unit, marks))
    ends = " to ".join(f"{100 * (at - 1):.0f} %" for at in sorted(published))
    legend = {"published": PUBLISHED.format(ends)} if published else {}
    return chart_of(
        run, panels, ident=f"ranks-{value}", title=title.format(ranks), marks=legend, **said
    )


def _no_value(run: Run, value: str, row: Fields) -> str:
    """Why a series has no efficiency, or no speed-up, with some number of ranks."""
    if value == "efficiency":
        return str(row["why"])
    reference = baseline(run)
    over = Key(str(row["workload"]), *reference, str(row["backend"]), str(row["basis"]))
    return no_ratio_over(run, over) or f"no {' '.join(reference)} on as many"


def _seeds_differ(run: Run) -> bool:
    """Whether the epochs of a family have numbers of seeds that are not about alike."""
    seeds = scaling(run).groupby("family")["seeds"]
    return bool((seeds.max() > 1.5 * seeds.min()).any())


RANKS = View(
    "ranks",
    "Several ranks",
    lambda run: bool(families(run)) or len(run.ranks) > 0,
    lambda run: [
        *([ranks_scaled(run)] if families(run) else []),
        ranks_apart(run),
        each_rank(run),
    ],
    lambda run: drawn(
        run,
        epoch_over_ranks=epoch_over_ranks,
        speedup_at_ranks=speedup_at_ranks,
        scaling_efficiency=scaling_efficiency,
    ),
    note=lambda run: (
        "Ranks are processes that train together, here"
        f" {ranks_of_run(run)[1]}. An epoch ends with its slowest rank."
    ),
)
