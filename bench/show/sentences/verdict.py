"""The answer in sentences that claim no more than their intervals carry.

*Faster* means that the whole interval lies beyond the smallest difference that matters, *level*
that it lies within, *not decided* neither (:mod:`gatherbench.bench.read.stats.judge`). Modelled
series are compared corner by corner of what their profile knows but as a range
(:mod:`gatherbench.bench.read.modelled`): faster or level only where that holds at all of them. What
was measured in host memory, and what was modelled, is called so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from gatherbench.bench.model.errors import told_apart
from gatherbench.bench.model.predict import profile_of
from gatherbench.bench.model.profile import ProfileError
from gatherbench.bench.plan.workload import ranks_in_words, ranks_of
from gatherbench.bench.read.disturbance import (
    disturbance,
    disturbed_alone,
    modelled_from_disturbed,
    mostly_disturbed,
)
from gatherbench.bench.read.epochs import (
    epoch_intervals,
    problems,
    reference_variant,
    repeat_logs,
    set_aside,
)
from gatherbench.bench.read.modelled import borrows, corners, foreign_gathers
from gatherbench.bench.read.neighbours import neighbours
from gatherbench.bench.read.stats.interval import Interval, interval_of
from gatherbench.bench.read.stats.judge import THRESHOLD, Word, judge, ratio_of, shortest
from gatherbench.bench.read.stopping import imprecise
from gatherbench.bench.read.tables import Run, only
from gatherbench.bench.read.units import (
    LONGEST_WORKLOAD,
    listed,
    quantity,
    short,
    span,
    with_ends,
)
from gatherbench.bench.run.rows import Key
from gatherbench.bench.show.sentences.floor import floor_sentence, none_differs
from gatherbench.bench.show.sentences.provenance import modelled_for
from gatherbench.bench.show.views.registry import views_of
from gatherbench.strategies.registry import role_of

#: Behind ratios of single repeats.
ONE_REPEAT = "One repeat: how much processes differ is not known."
#: Workloads of which a sentence tells one by one.
_MOST_WORKLOADS = 4


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of the verdict; ``kind`` is ``measured``, ``modelled`` or ``warning``.

    One that tells several things begins with what all of its ``points`` are about; ``rest`` are
    sentences behind it.
    """

    kind: str
    lead: str
    points: tuple[str, ...] = ()
    rest: str = ""

    @property
    def text(self) -> str:
        """All of it in one line."""
        said = f"{self.lead}: {'; '.join(self.points)}." if self.points else self.lead
        return f"{said} {self.rest}".rstrip()


def verdict(run: Run) -> list[Statement]:
    """One sentence for each kind of number that the run holds, then what limits them.

    Workloads with other ranks have sentences of their own: nothing is compared across them but in
    those on scaling.

    Where there was other work beside most of it, that is the answer, and no ratio is given.
    """
    found: list[Statement] = []
    reference = reference_variant(run)
    series = repeat_logs(run.values("epoch", "wall_time"), run.processes)
    busy, alone = disturbance(run), disturbed_alone(run)
    much = mostly_disturbed(run)
    if much:
        text = f"{busy[0].upper()}{busy[1:]}: no ratio is given; measure again on an idle machine."
        found.append(Statement("warning", text))
    groups = by_ranks(run)
    for backend, (ranks, workloads) in itertools.product(("cuda", "host"), groups.items()):
        here = {k: v for k, v in series.items() if k.backend == backend and k.workload in workloads}
        if here and reference and not much:
            where = _where(run, backend) + _on_ranks(ranks, groups, backend)
            clauses = _clauses(list(_measured(run, here, reference)))
            points = (*clauses, *_lacking(run, here, reference))
            points = points or (f"no {' '.join(reference)} to compare with",)
            found.append(Statement("measured", where, points))
    if not much:
        if alike := none_differs(run):
            found.insert(0, Statement("warning", alike))
        of_views = (point for view in views_of(run) for point in view.points(run))
        sentences = [floor_sentence(run), *of_views]
        found += [Statement("measured", said) for said in sentences if said]
    if not series or not reference:
        found.insert(0, Statement("warning", _nothing(run)))
    for ranks, workloads in groups.items():
        if modelled := modelled_statement(
            only(run, workloads=workloads), _on_ranks(ranks, groups, "cuda")
        ):
            found.append(modelled)
    found += [Statement("warning", text) for text in _limits(run)]
    if busy and not much:
        text = f"{busy[0].upper()}{busy[1:]}: left out, as every series has quiet repeats."
        if alone:
            names = listed([" ".join(key[1:3]) for key in alone])
            text = (
                f"{busy[0].upper()}{busy[1:]}. Quiet repeats alone count; without one are {names}:"
                " measure again on an idle machine."
            )
        found.append(Statement("warning", text))
    return found


@dataclass(frozen=True, slots=True)
class _Contest:
    """Epochs on one workload: who has the shortest, and by how much.

    Attributes:
        workload: in words.
        times: by name of a series the logarithm of its epoch in seconds, of each repeat; of what
            is modelled, at each corner of its profile.
        reference: the series that ratios are over; empty: there is none, and seconds are told.
        modelled: whether ``times`` are.
        unknown: series that are modelled at some corners alone: nothing is decided against them.
        error: the ratio below which modelled epochs have no order.
    """

    workload: str
    times: Mapping[str, ArrayLike]
    reference: str
    modelled: bool = False
    unknown: tuple[str, ...] = ()
    error: float = 1.0

    @property
    def bounds(self) -> list[str]:
        """The upper bounds, which no path competes with."""
        return [name for name in self.times if is_bound(name)]

    def rivals(self) -> tuple[str, dict[str, Word]]:
        """The series with the shortest epochs, and how each of the others compares with it."""
        rivals = {name: logs for name, logs in self.times.items() if name not in self.bounds}
        return shortest(rivals, self.apart)

    def over(self, one: ArrayLike, other: ArrayLike) -> Interval:
        """Epochs of one series over those of another; of modelled ones both ends are possible."""
        if not self.modelled:
            return ratio_of(one, other)
        ends = np.exp(np.subtract(one, other))
        return Interval(float(ends.mean()), float(ends.min()), float(ends.max()), 2, 0.0)

    def apart(self, one: ArrayLike, other: ArrayLike) -> Interval:
        """:meth:`over`, of what is modelled wider by what the model cannot tell apart."""
        found = self.over(one, other)
        if not self.modelled:
            return found
        more = max(1.0, self.error / (1 + THRESHOLD))
        return replace(found, low=found.low / more, high=found.high * more)

    def speed(self, name: str) -> Interval:
        """How many times as fast as the reference a series is; without one its seconds."""
        if self.reference:
            return self.over(self.times[self.reference], self.times[name])
        mine = self.times[name]
        return self.over(mine, 0.0) if self.modelled else interval_of((1, mine))


def is_bound(series: str) -> bool:
    """Whether ``strategy variant`` is what the others can at best come near to."""
    return role_of(*series.split(" ", 1)) == "bound"


def _clauses(contests: Sequence[_Contest]) -> Iterator[str]:
    """Winners by name, then what is level or not decided, what is alone, and the upper bound."""
    alone: dict[tuple[str, tuple[str, ...]], list[_Contest]] = {}
    won: dict[tuple[str, str, tuple[str, ...]], list[_Contest]] = {}
    others: list[_Contest] = []
    for contest in contests:
        leader, words = contest.rivals()
        if not words:
            lone = alone.setdefault((leader, contest.unknown), [])
            lone.append(replace(contest, reference=""))  # over itself it says nothing
        elif set(words.values()) <= {"SLOW"} and leader != contest.reference:
            won.setdefault((leader, contest.reference, contest.unknown), []).append(contest)
        else:
            others.append(contest)
    several = len(contests) > 1
    for (name, _, unknown), mine in won.items():
        said = f"{_speeds(mine, name)}{_as_fast(mine[0])}{_against(unknown)}"
        yield f"{short(name)} had the shortest epochs{_on(mine, several)}, {said}"
    for contest in others[:_MOST_WORKLOADS]:
        yield _undecided(contest, _on([contest], several)) + _against(contest.unknown)
    if len(others) > _MOST_WORKLOADS:
        yield f"on {len(others) - _MOST_WORKLOADS} more workloads no path is alone"
    for (name, unknown), mine in alone.items():
        said = f"no other path to compare {short(name)} with{_on(mine, several)}"
        yield f"{said}: {_speeds(mine, name)}{_against(unknown)}"
    yield from _bound(contests, several)


def _undecided(contest: _Contest, on: str) -> str:
    """What is to be said of a workload on which no path is shown to be faster than all."""
    leader, words = contest.rivals()
    level = [leader, *(name for name, word in words.items() if word == "SAME")]
    open_ = [name for name, word in words.items() if word == "AMBIGUOUS"]
    reference, over = contest.reference, _as_fast(contest)
    others = [name for name in (*level, *open_) if name != reference]
    if reference in level and not open_:
        found = f"nothing was faster than {reference}{on}"
        return f"{found}; level with it: {_each(contest, others)}" if others else found
    if reference in (*level, *open_):
        found = f"not decided whether any path is faster than {reference}{on}"
        return f"{found}: {_each(contest, others)}"
    if len(level) == 1:
        found = f"whose epochs are the shortest{on} is not decided between"
        return f"{found} {_each(contest, others)}{over}"
    found = f"level at the shortest epochs{on} are {_each(contest, level)}{over}"
    return f"{found}; not decided: {_each(contest, open_)}" if open_ else found


def _bound(contests: Sequence[_Contest], several: bool) -> Iterator[str]:
    """How far the upper bound is: not decided where it is not above what it bounds."""
    reached: dict[tuple[str, str, str], list[_Contest]] = {}
    doubtful: list[_Contest] = []
    ends = {"FAST": "", "SAME": ", level with what it bounds"}
    for contest in contests:
        best = contest.times[contest.rivals()[0]]
        for name in contest.bounds:
            end = ends.get(judge(contest.apart(contest.times[name], best)).word)
            key = (name, contest.reference, end or "")
            mine = doubtful if end is None else reached.setdefault(key, [])
            mine.append(contest)
    for (name, _, end), mine in reached.items():
        ratios = _speeds(mine, name)
        strategy = name.split()[0]
        yield f"{strategy}, the upper bound, reached {ratios}{_on(mine, several)}{end}"
    if doubtful:
        names = listed(sorted({name.split()[0] for one in doubtful for name in one.bounds}))
        yield f"{names}, the upper bound, is not decided{_on(doubtful, several)}:" + (
            " it came out no faster than what it bounds"
        )


def _speeds(contests: Sequence[_Contest], name: str) -> str:
    """How fast a series is: *from* the least of these workloads *to* the greatest.

    Without *from*, ``a to b`` are the ends of one modelled value.
    """
    found = sorted((one.speed(name) for one in contests), key=lambda one: one.value)
    unit = "×" if contests[0].reference else "s"
    if contests[0].modelled:
        said = span(min(one.low for one in found), max(one.high for one in found), unit)
    else:
        ends = dict.fromkeys(with_ends(*one.ends, unit) for one in (found[0], found[-1]))
        said = " to ".join(ends)
    return f"from {said}" if len(contests) > 1 and " to " in said else said


def _each(contest: _Contest, names: Sequence[str]) -> str:
    """Each name with how fast it is, the fastest first."""
    ordered = sorted(names, key=lambda name: float(np.asarray(contest.times[name]).mean()))
    return listed([f"{short(name)} {_speeds([contest], name)}" for name in ordered])


def _as_fast(contest: _Contest) -> str:
    return f" as fast as {contest.reference}" if contest.reference else ""


def _against(unknown: Collection[str]) -> str:
    return f" (against {listed(sorted(unknown))}: not decided)" if unknown else ""


def _on(contests: Sequence[_Contest], several: bool) -> str:
    if not several:
        return ""
    if len(contests) > 1:
        return f" on {len(contests)} workloads"
    return f" on {short(contests[0].workload, LONGEST_WORKLOAD)}"


def _measured(
    run: Run, series: Mapping[Key, Sequence[float]], reference: tuple[str, str]
) -> Iterator[_Contest]:
    """The workloads whose reference has a quiet repeat; series without one are left out."""
    apart, alone, base = set_aside(run), disturbed_alone(run), " ".join(reference)
    for workload in run.workloads:
        mine = [key for key in series if key.workload == workload and key not in alone]
        times = {" ".join(key[1:3]): series[key] for key in mine if key[1:3] not in apart}
        if base in times:
            yield _Contest(run.names[workload], times, base)


def _lacking(run: Run, series: Iterable[Key], reference: tuple[str, str]) -> Iterator[str]:
    """The workloads whose reference has no quiet repeat."""
    alone = disturbed_alone(run)
    lost = [key.workload for key in series if key[1:3] == reference and key in alone]
    if lost:
        names = listed([short(run.names[one], LONGEST_WORKLOAD) for one in lost])
        on = f" on {names}" * (len(run.workloads) > 1)
        yield f"no quiet repeat of {' '.join(reference)} to compare with{on}"


def modelled_statement(run: Run, on: str = "") -> Statement | None:
    """What is said of modelled epochs; ``None`` where there is nothing to compare.

    Ratios are over the modelled machine's own ``cpu_gather``: ``naive``, the paper's baseline,
    where there is that; there is none where they borrow from disturbed cases alone. ``on``: what
    is to be said of where they run.
    """
    foreign, apart, seconds = foreign_gathers(run), set_aside(run), corners(run)
    lent = modelled_from_disturbed(run)
    logs = dict(zip(seconds.index, np.log(seconds.to_numpy(float)), strict=True))
    own = [key for key in logs if key not in foreign and key[1:3] not in apart]
    known = [key for key in own if not np.isnan(logs[key]).any()]
    contests = []
    error = told_apart(loop=_knows_loop(run))
    for workload in run.workloads:
        times = {" ".join(k[1:3]): logs[k] for k in known if k[0] == workload}
        partly = {" ".join(k[1:3]) for k in own if k[0] == workload and k not in known}
        gathers = [name for name in times if name.startswith("cpu_gather ")]
        base = min(gathers, key=lambda name: (name != "cpu_gather naive", name), default="")
        base = "" if any(key.workload == workload for key in lent) else base
        rivals = tuple(sorted(name for name in partly if not is_bound(name)))
        contest = _Contest(run.names[workload], times, base, True, rivals, error)
        if len(times) > len(contest.bounds):
            contests.append(contest)
    clauses = list(_clauses(contests))
    if unknown := sorted({" ".join(key[1:3]) for key in own if key not in known}):
        clauses.append(f"not known at every end of the profile’s ranges: {listed(unknown)}")
    if not clauses:
        return None
    where = f"Modelled, not measured, for {listed(modelled_for(run))}{on}"
    if error > 1 + THRESHOLD:
        where += f", told apart from a factor of {error:.2f} on: the model errs as much"
    return Statement("modelled", where, tuple(clauses), " ".join(_rests_on(run, foreign)))


def _knows_loop(run: Run) -> bool:
    """Whether the run was predicted with a profile that knows the training loop."""
    try:
        profile = profile_of(run)
    except ProfileError:
        return False
    return profile is not None and profile["loop.issue"].value is not None


def _rests_on(run: Run, foreign: Iterable[tuple[str, ...]]) -> list[str]:
    """What was borrowed from the run's own machine, a sentence each."""
    said = []
    names = sorted({f"{strategy} {variant}" for _, strategy, variant, *_ in foreign})
    if names:
        said.append(
            f"No ratio over {listed(names)}: the CPU's gather there is that of {run.machine}, not"
            " of the machine that is modelled."
        )
    if borrows(run.rows, "sample").any():
        lent = modelled_from_disturbed(run)
        beside = ", beside other work throughout, so no ratio is given" * bool(lent)
        drawn, whole = (run.values(s, "wall_time", "predicted") for s in ("sample", "epoch"))
        low, high = (f"{share:.0%}" for share in (drawn / whole).dropna().agg(["min", "max"]))
        said.append(
            f"Minibatches come as fast as {run.machine} was measured to have them{beside}; that is"
            f" {low if low == high else f'{low} to {high}'} of these epochs, where `gatherbench"
            " advise` takes the profile’s own rate."
        )
    return said


def compared(ratio: Interval, to: str = "") -> str:
    """``1.14× (0.978–1.32) as fast as naive, not decided``. ``to``: what it is a ratio to."""
    value, low, high = ratio.ends
    said = quantity(value, "×") if low == high else with_ends(value, low, high)
    return f"{said} {to}".rstrip() + undecided(ratio)


def undecided(ratio: Interval) -> str:
    """What is to be said behind a ratio whose interval tells no difference that matters."""
    known = {"SAME": ", level", "AMBIGUOUS": ", not decided"} if ratio.repeats > 1 else {}
    return known.get(judge(ratio).word, "")


def cases_ended(run: Run) -> dict[str, int]:
    """How many cases were ``ok``, ``failed`` and ``skipped``, and ``not run`` of those planned."""
    rows = run.rows
    ended = rows[(rows["stage"] == "case") & (rows["metric"] == "wall_time")]["status"]
    counts = {status: int((ended == status).sum()) for status in ("ok", "failed", "skipped")}
    bad = problems(run)
    return {**counts, "not run": int(bad.loc[bad["status"] == "not run", "repeats"].sum())}


def gpu_of(run: Run) -> str:
    """Name of the GPU that the run used, or of those that it may have; empty: there was none."""
    gpus, used = run.env.get("gpus", []), run.env.get("gpu_in_use")
    mine = [gpu for gpu in gpus if used and gpu.get("uuid_hash") == used] or gpus
    return ", ".join(sorted({str(gpu.get("name", "unnamed")) for gpu in mine}))


def _where(run: Run, backend: str) -> str:
    if backend == "host":
        return "Measured in host memory only (no GPU, no PCIe link)"
    return f"Measured on {gpu_of(run) or 'a GPU'}"


def by_ranks(run: Run) -> dict[tuple[int, int], list[str]]:
    """The workloads by their ranks on a machine, and machines; fewer ranks first."""
    found: dict[tuple[int, int], list[str]] = {}
    for workload, fields in run.plan["workloads"].items():
        found.setdefault(ranks_of(fields), []).append(workload)
    return dict(sorted(found.items(), key=lambda one: (math.prod(one[0]), one[0])))


def _on_ranks(ranks: tuple[int, int], all_ranks: Collection[object], backend: str) -> str:
    """For the place of a sentence: nothing where all of the run is of one rank."""
    if ranks == (1, 1) and len(all_ranks) == 1:
        return ""
    if backend == "cuda":
        return f", on {ranks_in_words(*ranks, 'GPU')}"
    return f", by {ranks_in_words(*ranks)} (process{'es' if ranks != (1, 1) else ''})"


def _nothing(run: Run) -> str:
    counts = cases_ended(run)
    if counts["ok"]:
        return "No speed-up can be stated: no cpu_gather epoch was measured to compare with."
    said = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    reasons = problems(run)["reason"]
    first = f" The first: {short(reasons.iloc[0], 200)}." if len(reasons) else ""
    return f"Nothing was measured. Cases: {said}.{first}"


def _limits(run: Run) -> Iterator[str]:
    counts = cases_ended(run)
    if counts["not run"]:
        remedy = (
            "It was still going when this was written."
            if run.going
            else "`gatherbench run --resume FOLDER` completes it."
        )
        yield (
            f"The run is incomplete: {counts['not run']} of {len(run.plan['cases'])} cases have not"
            f" been run. {remedy}"
        )
    single = sum(found.repeats == 1 for found in epoch_intervals(run).values())
    if single:
        yield f"One repeat only of {single} series: how much processes differ is not known of them."
    for path, behind, ratio in neighbours(run):
        yield (
            f"On {run.names[path.workload]} {' '.join(path[1:3])} takes {with_ends(*ratio.ends)} as"
            f" long right behind {' '.join(behind[1:3])} as behind others: what that one leaves is"
            " in its epochs. Measure them with together = false."
        )
    if wide := imprecise(run):
        worst = max(wide, key=lambda series: wide[series])
        width = f"±{wide[worst]:.0%}" if wide[worst] < 1 else "by more than its value"
        yield (
            f"Not as precise as the plan asks (±{run.plan['measure']['precision']:.0%}): the"
            f" {'ratios' if run.processes else 'epochs'} of {len(wide)} series, least of all"
            f" {' '.join(worst[1:])} ({width}). More repeats (max_repeats and budget_s of the"
            " plan), or a quieter machine, narrow them."
        )
