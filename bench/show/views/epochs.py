"""How fast: epochs of each series, their stages, ratios over the baseline, and the answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.read.accuracy import accuracy_over_time as scores_over_time
from gatherbench.bench.read.accuracy import alike
from gatherbench.bench.read.derive import (
    WITHIN_TRAIN,
    baseline,
    epoch_intervals,
    epoch_times,
    problems,
    reference_variant,
    repeat_logs,
    set_aside,
    stage_breakdown,
)
from gatherbench.bench.read.disturbance import (
    disturbance,
    disturbed_alone,
    mostly_disturbed,
    no_ratio_over,
)
from gatherbench.bench.read.floor import floor_of, floors, path_shares
from gatherbench.bench.read.gpu import changes_of_run
from gatherbench.bench.read.issuing import host_bound
from gatherbench.bench.read.modelled import speedups, with_ranges
from gatherbench.bench.read.neighbours import neighbours
from gatherbench.bench.read.stopping import imprecise
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import quantity, short
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE, CUT_OFF
from gatherbench.bench.show.answer import Point
from gatherbench.bench.show.chart import Axis, Chart, Line
from gatherbench.bench.show.charts import NO_BREAK, bars, in_plan_order, marked
from gatherbench.bench.show.contest import Contest, contest_points
from gatherbench.bench.show.looks import EXCHANGE_COLOURS, STAGE_COLOURS, explained
from gatherbench.bench.show.over_time import Series, over_time
from gatherbench.bench.show.provenance import (
    borrowed,
    by_ranks,
    cases_ended,
    has_gpu,
    modelled_for,
    on_ranks,
    where,
)
from gatherbench.bench.show.table import WHAT, Column, Table, tabulate
from gatherbench.bench.show.view import View

#: What a data path may save: stage and metric, and what the table calls it.
_SAVED = {
    "epoch": ("epoch", "wall_time", "epoch time"),
    "cpu": ("epoch", "cpu", "core-seconds"),
    "metered": ("energy", "time", "epoch time while power and energy were read"),
    "power": ("energy", "power", "power of the GPU"),
    "energy": ("energy", "energy", "energy of the GPU"),
}
_NOT_SCORED = "not scored after each epoch: eval_every_epoch in [measure] does it"
_HOST_ONLY = (
    "Figures measured here are of host memory: “the device” is a second buffer in host memory. They"
    " show what the processor’s part of a path costs and are no GPU result."
)
#: What to change where fetching is too small a part of an epoch.
REMEDY = (
    "to tell them apart, fetch more in each minibatch (fanouts, batch_size, wider rows) or train"
    " less on it (hidden)"
)


# ---- tables --------------------------------------------------------------------------------------


def numbers(run: Run) -> Table:
    """One line a series: what the charts show, as numbers; a status where nothing was measured."""
    frame = summarise(run)
    bad, reference = problems(run), reference_variant(run)
    known = pd.MultiIndex.from_frame(frame.loc[frame["basis"] == "measured", SERIES[:3]])
    bad = bad[~pd.MultiIndex.from_frame(bad[SERIES[:3]]).isin(known)]
    backend = "cuda" if has_gpu(run) else "host"
    if known.empty:
        bad, frame = bad.iloc[:0], frame[frame["median"].notna()]  # one sentence says it
    bad = bad[SERIES[:3]].assign(instead=bad["status"], backend=backend, basis="measured")
    noisy, beside = frame["noisy"].any(), frame["disturbed"].notna().any()
    frame = pd.concat([frame.assign(instead=""), bad], ignore_index=True)
    frame = marked(run, in_plan_order(run, frame))
    exact = (frame["basis"] == "predicted") & (frame["speedup_low"] == frame["speedup_high"])
    ends = ["speedup_low", "speedup_high"]
    frame[ends] = frame[ends].mask(exact)  # not even the model has an interval there
    frame["repeats"] = frame["repeats"].where(frame["basis"] == "measured")
    every = frame["repeats"] + frame["left_out"]
    frame["of"] = [
        f"/{n:.0f}" * (n > counted) for n, counted in zip(every, frame["repeats"], strict=True)
    ]
    exchange = [stage for stage in WITHIN_TRAIN if frame[stage].notna().any()]
    # Of several ranks these stand in the place of two others, or 80 columns were too few.
    spare = "" if exchange else "core-s"
    epoch = Column("median", "epoch", "s", mark="beside", short="epoch", interval=True, ends="half")
    reduce, wait = (Column(s, f"train: {w}", "s", like="median", short=h) for s, w, h in _EXCHANGE)
    legend = (
        "n: repeats that count, of those measured (the others were disturbed). fetch: the loop’s"
        " wait for rows. core-s: processor time. ±: half the interquartile range. Speed-up:"
        f" {'over ' + ' '.join(reference) if reference else 'no cpu_gather to compare with'}."
    )
    if exchange:
        legend += (
            " reduce: all-reduce of the gradients, once all ranks are there; wait: for the slowest"
            " rank; both are within train."
        )
    return tabulate(
        "numbers",
        "Medians over repeats and epochs of each series, with quartiles of the epoch and 95 %"
        " intervals of the ratio, or the ends of what is modelled"
        + "; repeats beside other work do not count while there are quiet ones" * bool(noisy)
        + ".",
        [
            *WHAT,
            Column("repeats", "repeats", "1", mark="of", short="n"),
            *([Column("noisy", "repeats beside other work", "1")] if noisy else []),
            epoch,
            *([Column("other", "other work", "cores")] if noisy or beside else []),
            Column("fetch", "fetch", "s", like="median", short="fetch", ends="between"),
            Column("train", "train", "s", like="median", short="train", ends="between"),
            *([reduce, wait] if exchange else []),
            Column("cpu", "core-seconds", "s", short=spare),
            Column("rate", "payload over fetch", "B/s"),
            Column(
                "speedup", "speed-up", "×", mark="open", short="speed-up", interval=True,
                greyed=True,
            ),
        ],
        frame.rename(columns={"low": "median_low", "high": "median_high"}),
        note=legend + explained([*frame["open"], *frame["beside"]]),
        machine=", ".join(modelled_for(run)),
    )  # fmt: skip


_EXCHANGE = (("all_reduce", "all-reduce", "reduce"), ("wait", "wait", "wait"))


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
    return tabulate(
        "savings",
        caption,
        [*WHAT, *columns],
        in_plan_order(run, frame),
        note="Negative is less. Power and energy, where there are any, are the GPU’s own. Published"
        " for zero-copy by PyTorch-Direct (arXiv 2101.07956): power of the whole system −12.4 to"
        " −17.5 %.",
    )


# ---- charts --------------------------------------------------------------------------------------


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
        overlapping = (
            ", nor do a GPU’s stages, which can overlap: of “sample”, the host’s, there is"
            " what the others leave room for"
        )
        room = stages["median"] - stages["fetch"] - stages["train"] - stages[exchange].sum(axis=1)
        within = stages["sample"].clip(upper=room.clip(lower=0))
        stages["sample"] = stages["sample"].where(stages["backend"] != "cuda", within)
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
        speedups(run, *reference),
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


def accuracy_over_time(run: Run) -> Chart:
    """What the model of each series had come to, over the time of its measured epochs."""
    if not run.plan["measure"].get("eval_every_epoch"):
        return Chart("accuracy", "", "", "", [])
    table, families = scores_over_time(run), alike(run)
    axes: dict[str, tuple[Axis, Axis]] = {}
    lines: dict[Series, Line] = {}
    for workload in run.workloads:
        # Axes are those of all that it may be compared with.
        shared = table[table["workload"].isin(families[workload])]
        longest, highest = shared[["time_s", "accuracy"]].max().fillna(0.0)
        axes[workload] = Axis("s", 1.05 * longest or 1.0), Axis("share", highest or 1.0)
    for key, mine in table.groupby(SERIES[:3]):
        workload, *names = map(str, key)
        ends, scores = mine["time_s"].tolist(), mine["accuracy"].tolist()
        # A score holds from the end of its epoch on, and nobody knows it before.
        points = list(zip([*ends, axes[workload][0].top], [0.0, *scores], strict=True))
        said = [
            f"{quantity(score, 'share')} after {quantity(end, 's')}"
            for end, score in zip(ends, scores, strict=True)
        ]
        curves = {"accuracy": points}
        line = Line(names[0], names[1], text=said[-1], curves=curves, aloud=", ".join(said))
        lines[workload, names[0], names[1]] = line
    began = int(run.plan["measure"].get("warmup_epochs", 0))
    untimed = f"{began} untimed epoch{'s' * (began > 1)} before"
    return over_time(
        run,
        lines,
        axes,
        "test_accuracy",
        _NOT_SCORED,
        ident="accuracy",
        title="Test accuracy over time",
        reading="Scored after each measured epoch, which takes no time here; medians over repeats."
        " A step is where an epoch ended. Workloads that differ in their partitions have other"
        " minibatches and the same axes: the one that is higher at a time is better by then."
        + f" It had been trained in {untimed}."
        * bool(began),
        quantity="test accuracy",
        legend={"accuracy": ("test accuracy", "blue")},
        time="time of the measured epochs",
    )


# ---- points of the answer ------------------------------------------------------------------------


def points(run: Run) -> list[Point]:
    """Who is fastest where, what of an epoch is the path's own, and what limits these answers."""
    series = repeat_logs(run.values("epoch", "wall_time"), run.processes)
    reference, found = reference_variant(run), list[Point]()
    if not series or not reference:
        found.append(_warning(_nothing(run), 9))
    busy = mostly_disturbed(run)
    if busy:
        said = f"{disturbance(run)}: nothing is decided; measure again on an idle machine"
        found.append(_warning(said, 9))
    if reference:
        found += _fastest(run, series, reference)
        found += [] if busy else _of_the_floor(run)
    return [*found, *_limits(run)]


def _warning(says: str, weight: int) -> Point:
    return Point(says.replace("{", "{{").replace("}", "}}"), kind="warning", weight=weight)


def _fastest(
    run: Run, series: Mapping[Key, Sequence[float]], reference: tuple[str, str]
) -> Iterator[Point]:
    """Nothing is compared across numbers of ranks. Series without a quiet repeat are left out, but
    where most have none: then all are told, and nothing is decided.
    """
    apart, busy, base = set_aside(run), mostly_disturbed(run), " ".join(reference)
    alone = () if busy else disturbed_alone(run)
    groups = by_ranks(run)
    for backend, (ranks, workloads) in itertools.product(("cuda", "host"), groups.items()):
        contests, lost = list[Contest](), list[str]()
        condition = where(run, backend) + on_ranks(ranks, groups, backend)
        for workload in workloads:
            here = [k for k in series if (k.workload, k.backend) == (workload, backend)]
            times = {
                " ".join(k[1:3]): series[k] for k in here if k not in alone and k[1:3] not in apart
            }
            if base in times:
                held = [" ".join(k[1:3]) for k in here if k in host_bound(run)]
                names = run.names[workload]
                contests.append(Contest(names, times, base, condition, host_bound=held, busy=busy))
            elif any(key[1:3] == reference for key in here):
                lost.append(run.names[workload])
        yield from contest_points(contests)
        if lost or (
            not contests and any(k.backend == backend and k.workload in workloads for k in series)
        ):
            on = tuple(lost) if len(workloads) > 1 else ()
            says = f"no {'quiet repeat of ' * bool(lost)}{base} to compare with{{on}}"
            yield Point(says, workloads=on, condition=condition, kind="warning", weight=8)


def _of_the_floor(run: Run) -> Iterator[Point]:
    """The data path's share of an epoch, of the reference and the fastest path by workload."""
    shares, floor = path_shares(run), floor_of(run)
    known = shares[shares["low"].notna()]
    if floor is None or shares.empty:
        return
    if len(known) and not (known["low"] > 0).any():
        yield _warning(
            f"No data path differs from {floor[0]}, the floor of the harness, by more than its"
            " interval: what these epochs take is sampling and training. No path is faster;"
            f" {REMEDY}",
            9,
        )
        return
    reference, medians = reference_variant(run), epoch_times(run).set_index(SERIES)["median"]
    several = len(run.workloads) > 1
    for workload, mine in shares.groupby("workload", sort=False):
        times = [medians[line] for line in mine[SERIES].itertuples(index=False, name=None)]
        lines = mine[["strategy", "variant", "share", "low", "high"]].to_numpy().tolist()
        ends = {(line[0], line[1]): (line[2], line[3], line[4]) for line in lines}
        best = list(ends)[times.index(min(times))]
        told = [names for names in dict.fromkeys((reference, best)) if names in ends]
        yield Point(
            "share of the epoch that is the data path’s{on}: {each}; the rest is common to all",
            subjects=tuple(" ".join(names) for names in told if names),
            values=tuple(ends[names] for names in told if names),
            unit="share",
            workloads=(run.names[str(workload)],) if several else (),
            of_one=several,
            weight=5,
        )


def _nothing(run: Run) -> str:
    counts = cases_ended(run)
    if counts["ok"]:
        return "No speed-up can be stated: no cpu_gather epoch was measured to compare with"
    said = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    reasons = problems(run)["reason"]
    first = f". The first: {short(reasons.iloc[0], 200)}" if len(reasons) else ""
    return f"Nothing was measured. Cases: {said}{first}"


def _limits(run: Run) -> Iterator[Point]:
    """What keeps the answer from being surer, and what would."""
    counts, busy, alone = cases_ended(run), disturbance(run), disturbed_alone(run)
    if counts["not run"]:
        remedy = "`gatherbench run --resume FOLDER` completes it"
        if run.going:
            remedy = "it was still going when this was written"
        yield _warning(
            f"Incomplete: {counts['not run']} of {len(run.plan['cases'])} cases have not been run;"
            f" {remedy}",
            6,
        )
    ends = run.select(stage=CASE_STAGE, metric=CASE_METRIC)
    if cut := int((ends["source"] == CUT_OFF).sum()):
        yield _warning(
            f"Cut off: of {cut} case{'s' * (cut > 1)} the whole blocks count, whose rows were"
            " compared in each epoch, but not after the last one",
            6,
        )
    waiting = Waiting.of(run.env)
    if waiting.passive:
        why = f", because {waiting.reason}" if waiting.reason else ""
        yield _warning(
            f"Threads waited passively{why}: with threads that spin, the default of an idle"
            " machine, epochs are others",
            7,
        )
    if busy and not mostly_disturbed(run):
        names = tuple(" ".join(key[1:3]) for key in alone)
        told = "without one are {names}: measure again on an idle machine"
        told = told if alone else "every series has some"
        yield Point(f"{busy}. Quiet repeats alone count; {told}", subjects=names, kind="warning",
                    weight=6)  # fmt: skip
    if single := sum(found.repeats == 1 for found in epoch_intervals(run).values()):
        yield _warning(
            f"One repeat only of {single} series: how much processes differ is not known of them", 2
        )
    for path, behind, ratio in neighbours(run):
        yield Point(
            "{names} takes {values} as long right behind {over} as behind others{on}: what that one"
            " leaves is in its epochs. Measure them with together = false",
            subjects=(" ".join(path[1:3]),),
            values=(ratio.ends,),
            over=" ".join(behind[1:3]),
            workloads=(run.names[path.workload],) if len(run.workloads) > 1 else (),
            kind="warning",
            weight=2,
        )
    if wide := imprecise(run):
        worst = max(wide, key=lambda series: wide[series])
        width = f"±{wide[worst]:.0%}" if wide[worst] < 1 else "by more than its value"
        yield _warning(
            f"Less precise than the plan asks (±{run.plan['measure']['precision']:.0%}): the"
            f" {'ratios' if run.processes else 'epochs'} of {len(wide)} series, least of all"
            f" {' '.join(worst[1:])} ({width}). More repeats (max_repeats and budget_s of the"
            " plan), or a quieter machine, narrow them",
            2,
        )


EPOCHS = View(
    "results",
    "How fast",
    tables=lambda run: [numbers(run), savings(run)],
    charts={
        "speedup": speedup,
        "epoch_breakdown": epoch_breakdown,
        "accuracy_over_time": accuracy_over_time,
    },
    points=points,
    lead=lambda run: "" if has_gpu(run) or not cases_ended(run)["ok"] else _HOST_ONLY,
    notes=lambda run: [] if cases_ended(run)["ok"] else ["No epoch was measured."],
)
