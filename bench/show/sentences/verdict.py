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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatherbench.bench.plan.workload import ranks_in_words, ranks_of
from gatherbench.bench.read.disturbance import disturbance, disturbed_alone
from gatherbench.bench.read.epochs import (
    epoch_intervals,
    problems,
    reference_variant,
    repeat_logs,
    set_aside,
)
from gatherbench.bench.read.modelled import borrows, corners, foreign_gathers
from gatherbench.bench.read.stats.interval import Interval, interval_of
from gatherbench.bench.read.stats.judge import THRESHOLD, Word, judge, word_of
from gatherbench.bench.read.stopping import imprecise
from gatherbench.bench.read.tables import Run, only
from gatherbench.bench.read.units import LONGEST_WORKLOAD, listed, quantity, short, span
from gatherbench.bench.run.rows import Key
from gatherbench.bench.show.sentences.disk import disk_sentences
from gatherbench.bench.show.sentences.provenance import modelled_for
from gatherbench.bench.show.sentences.scaling import BOUND, scaling_sentences

#: Workloads of which a sentence tells one by one.
_MOST_WORKLOADS = 4

Logs = Sequence[float]
#: Strategy and variant; and the seconds of a modelled epoch, or a ratio of such, at each corner.
_Names = tuple[str, str]
_Corners = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of the verdict; ``kind`` is ``measured``, ``modelled`` or ``warning``."""

    kind: str
    text: str


def verdict(run: Run) -> list[Statement]:
    """One sentence for each kind of number that the run holds, then what limits them.

    Workloads with other ranks have sentences of their own: nothing is compared across them but in
    those on scaling.

    Where there was other work beside most of it, that is the answer, and no ratio is given.
    """
    found: list[Statement] = []
    reference = reference_variant(run)
    series = repeat_logs(run.values("epoch", "wall_time"))
    busy, alone = disturbance(run), disturbed_alone(run)
    much = 2 * len(alone) > len(series)
    if much:
        text = f"{busy[0].upper()}{busy[1:]}: no ratio is given; measure again on an idle machine."
        found.append(Statement("warning", text))
    groups = by_ranks(run)
    for backend, (ranks, workloads) in itertools.product(("cuda", "host"), groups.items()):
        here = {k: v for k, v in series.items() if k.backend == backend and k.workload in workloads}
        if here and reference and not much:
            where = _where(run, backend) + _on_ranks(ranks, groups, backend)
            found.append(
                Statement("measured", _Measured(run, here, reference, alone).sentence(where))
            )
    if not much:
        sentences = [*scaling_sentences(run), *disk_sentences(run)]
        found += [Statement("measured", said) for said in sentences]
    if not series or not reference:
        found.insert(0, Statement("warning", _nothing(run)))
    for ranks, workloads in groups.items():
        if modelled := modelled_statement(
            only(run, workloads=workloads), _on_ranks(ranks, groups, "cuda")
        ):
            found.append(Statement("modelled", modelled))
    found += [Statement("warning", text) for text in _limits(run)]
    if busy and not much:
        text = f"{busy[0].upper()}{busy[1:]}: left out, as every series has quiet repeats."
        if alone:
            text = (
                f"{busy[0].upper()}{busy[1:]}. Quiet repeats alone count; without one are"
                f" {listed([_name(key) for key in alone])}: measure again on an idle machine."
            )
        found.append(Statement("warning", text))
    return found


class _Measured:
    """What was measured on one backend: who was fastest on each workload, and by how much.

    Args:
        series: the logarithm of each repeat's median epoch, by series.
        reference: strategy and variant that ratios are over.
        alone: series without a quiet repeat: they are not compared.
    """

    def __init__(
        self,
        run: Run,
        series: Mapping[Key, Logs],
        reference: tuple[str, str],
        alone: Mapping[Key, float],
    ) -> None:
        self._run, self._reference = run, " ".join(reference)
        self._series: dict[str, dict[str, Logs]] = {}
        self._base: dict[str, Logs] = {}
        left_out = set_aside(run)
        for key, logs in series.items():
            if key in alone or (key[1], key[2]) in left_out:
                continue
            self._series.setdefault(key[0], {})[_name(key)] = logs
            if key[1:3] == reference:
                self._base[key[0]] = logs

    def sentence(self, where: str) -> str:
        """Everything in one sentence: winners by name, then what is level or not decided."""
        workloads = [name for name in self._run.workloads if name in self._base]
        winners: dict[str, list[str]] = {}
        others: list[str] = []
        for workload in workloads:
            leader, rivals = self._rivals(workload)
            if all(word == "SLOW" for word in rivals.values()) and leader != self._reference:
                winners.setdefault(leader, []).append(workload)
            else:
                others.append(workload)
        several = len(workloads) > 1
        clauses = [
            f"{short(name)} had the shortest epochs{self._on(won, several)},"
            f" {self._ratios(won, name)} as fast as {self._reference}"
            for name, won in winners.items()
        ]
        clauses += [
            self._undecided(workload, self._on([workload], several))
            for workload in others[:_MOST_WORKLOADS]
        ]
        if len(others) > _MOST_WORKLOADS:
            clauses.append(f"on {len(others) - _MOST_WORKLOADS} more workloads no path is alone")
        clauses += self._bound(workloads, several)
        if not clauses:
            clauses = [f"no quiet repeat of {self._reference} to compare with"]
        return f"{where}: {'; '.join(clauses)}."

    def _rivals(self, workload: str) -> tuple[str, dict[str, Word]]:
        """The series with the shortest epochs, and how each of the others compares with it."""
        rivals = {n: v for n, v in self._series[workload].items() if not n.startswith(BOUND)}
        typical = {name: interval_of((1, logs)).value for name, logs in rivals.items()}
        leader = min(typical, key=lambda name: typical[name])
        words = {
            name: judge(interval_of((1, logs), (-1, rivals[leader]))).word
            for name, logs in rivals.items()
            if name != leader
        }
        return leader, words

    def _undecided(self, workload: str, on: str) -> str:
        """What is to be said of a workload on which no path is shown to be faster than all."""
        leader, words = self._rivals(workload)
        groups = {
            word: [name for name, found in words.items() if found == word]
            for word in ("SAME", "AMBIGUOUS")
        }
        level, open_ = [leader, *groups["SAME"]], groups["AMBIGUOUS"]
        over = f" as fast as {self._reference}"
        others = [name for name in (*level, *open_) if name != self._reference]
        if self._reference in level and not open_:
            found = f"nothing was faster than {self._reference}{on}"
            return f"{found}; level with it: {self._each(workload, others)}" if others else found
        if self._reference in (*level, *open_):
            found = f"not decided whether any path is faster than {self._reference}{on}"
            return f"{found}: {self._each(workload, others)}"
        if len(level) == 1:
            found = f"whose epochs are the shortest{on} is not decided between"
            return f"{found} {self._each(workload, others)}{over}"
        found = f"level at the shortest epochs{on} are {self._each(workload, level)}{over}"
        return f"{found}; not decided: {self._each(workload, open_)}" if open_ else found

    def _bound(self, workloads: Sequence[str], several: bool) -> Iterator[str]:
        """How far the upper bound is: not decided where it is not above what it bounds."""
        reached: list[str] = []
        doubtful: list[str] = []
        for workload in workloads:
            for name in (n for n in self._series[workload] if n.startswith(BOUND)):
                leader, _ = self._rivals(workload)
                mine, best = self._series[workload][name], self._series[workload][leader]
                above = judge(interval_of((1, mine), (-1, best))).word in ("FAST", "SAME")
                (reached if above else doubtful).append(workload)
        if reached:
            ratios = self._ratios(reached, f"{BOUND} default")
            yield f"{BOUND}, the upper bound, reached {ratios}{self._on(reached, several)}"
        if doubtful:
            yield f"{BOUND}, the upper bound, is not decided{self._on(doubtful, several)}:" + (
                " it came out no faster than what it bounds"
            )

    def _ratio(self, workload: str, name: str) -> Interval:
        return interval_of((1, self._base[workload]), (-1, self._series[workload][name]))

    def _ratios(self, workloads: Sequence[str], name: str) -> str:
        found = sorted((self._ratio(w, name) for w in workloads), key=lambda one: one.value)
        ends = [found[0], found[-1]] if len(found) > 1 else found
        return " to ".join(map(with_interval, ends))

    def _each(self, workload: str, names: Sequence[str]) -> str:
        """Each name with its ratio over the reference, the fastest first."""
        ratios = {name: self._ratio(workload, name) for name in names}
        ordered = sorted(names, key=lambda name: -ratios[name].value)
        return listed([f"{short(name)} {with_interval(ratios[name])}" for name in ordered])

    def _on(self, workloads: Sequence[str], several: bool) -> str:
        if not several:
            return ""
        if len(workloads) > 1:
            return f" on {len(workloads)} workloads"
        return f" on {short(self._run.names[workloads[0]], LONGEST_WORKLOAD)}"


def with_interval(ratio: Interval) -> str:
    """``2.31× (2.20–2.43)``; without an interval where one repeat gives none."""
    shown = quantity(ratio.value, "×")
    if ratio.repeats < 2:
        return f"{shown} (one repeat)"
    low, high = (quantity(bound, "×").removesuffix("×") for bound in (ratio.low, ratio.high))
    return f"{shown} ({low}–{high})"


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
    if wide := imprecise(run):
        worst = max(wide, key=lambda series: wide[series])
        width = f"±{wide[worst]:.0%}" if wide[worst] < 1 else "by more than its value"
        yield (
            f"Not as precise as the plan asks (±{run.plan['measure']['precision']:.0%}): the epochs"
            f" of {len(wide)} series, least of all {' '.join(worst[1:])} ({width}). More repeats"
            " (max_repeats and budget_s of the plan), or a quieter machine, narrow them."
        )


def _name(key: Key) -> str:
    return f"{key[1]} {key[2]}"


# ---- what a machine that is not here would do -------------------------------------------------


class _Shortest(NamedTuple):
    """The shortest epochs of a workload: whose they are, for whom that is not decided, over whom.

    ``reference`` is the machine's own CPU gather; ``None``: there is none.
    """

    names: tuple[_Names, ...]
    undecided: tuple[_Names, ...]
    reference: _Names | None


def modelled_statement(run: Run, on: str = "") -> str | None:
    """The sentences on modelled epochs; ``None`` where there is nothing to compare.

    ``on``: what is to be said of where they run.
    """
    foreign = foreign_gathers(run)
    own, partly = _compared(run, foreign)
    won: dict[_Shortest, dict[str, _Corners]] = {}
    bounds: dict[_Names | None, dict[str, _Corners]] = {}
    beaten = False
    for workload, times in own.items():
        bound = next((name for name in times if name[0] == BOUND), None)
        rivals = {name: mine for name, mine in times.items() if name[0] != BOUND}
        reference = _reference(rivals)
        shown = times
        if reference is not None:
            shown = {name: times[reference] / mine for name, mine in times.items()}
        if rivals:
            found = _shortest(rivals, reference, partly[workload])
            won.setdefault(found, {})[workload] = shown[found.names[0]]
            if bound is not None:
                beaten |= bool((times[bound] > (1 + THRESHOLD) * times[found.names[0]]).any())
        if bound is not None:
            bounds.setdefault(reference, {})[workload] = shown[bound]
    several = len(own) > 1
    clauses = [_clause(run, found, values, several) for found, values in won.items()]
    for reference, values in bounds.items():
        clauses.append(
            f"{BOUND}, the upper bound, reached {_reached(run, values, reference, several)}"
        )
    if beaten:
        clauses.append(f"whether {BOUND} bounds the others is not decided")
    if unknown := {" ".join(name) for names in partly.values() for name in names}:
        clauses.append(f"not known at every end of the profile’s ranges: {listed(sorted(unknown))}")
    if not clauses:
        return None
    where = f"Modelled, not measured, for {listed(modelled_for(run))}{on}"
    return " ".join([f"{where}: {'; '.join(clauses)}.", *_rests_on(run, foreign)])


def _compared(
    run: Run, foreign: set[tuple[str, ...]]
) -> tuple[dict[str, dict[_Names, _Corners]], dict[str, list[_Names]]]:
    """By workload the modelled series that are known at every corner, and those at some alone."""
    own: dict[str, dict[_Names, _Corners]] = {}
    partly: dict[str, list[_Names]] = {workload: [] for workload in run.workloads}
    seconds, left_out = corners(run), set_aside(run)
    for key, ends in zip(seconds.index, seconds.to_numpy(float), strict=True):
        if (key[1], key[2]) in left_out:
            continue
        if np.isnan(ends).any():
            partly[key[0]] += [(key[1], key[2])] * (key not in foreign)
        elif key not in foreign:
            own.setdefault(key[0], {})[key[1], key[2]] = ends
    return {workload: own[workload] for workload in run.workloads if workload in own}, partly


def _shortest(
    rivals: Mapping[_Names, _Corners], reference: _Names | None, unknown: Iterable[_Names]
) -> _Shortest:
    """Who is the fastest at every corner; against what is ``unknown`` at some it is not decided."""
    best = min(rivals, key=lambda name: float(rivals[name].mean()))
    names, undecided = [best], [name for name in unknown if name[0] != BOUND]
    for name, times in rivals.items():
        over = times / rivals[best]
        word = word_of(float(over.min()), float(over.max()))
        if name != best and word != "SLOW":
            (names if word == "SAME" else undecided).append(name)
    return _Shortest(tuple(names), tuple(undecided), reference)


def _reference(names: Iterable[_Names]) -> _Names | None:
    """The machine's own ``cpu_gather``: ``naive``, the paper's baseline, where there is that."""
    gathers = [name for name in names if name[0] == "cpu_gather"]
    return min(gathers, key=lambda name: (name[1] != "naive", name[1]), default=None)


def _clause(run: Run, found: _Shortest, values: Mapping[str, _Corners], several: bool) -> str:
    names, reference = listed([" ".join(name) for name in found.names]), found.reference
    on = f" on {_on(run, list(values))}" if several and reference else ""
    level = " (level)" if len(found.names) > 1 else ""
    said = (
        f"{names} had the shortest epochs{on}{level}, {_reached(run, values, reference, several)}"
    )
    if reference is not None:
        over = " ".join(reference)
        said += f" as fast as {over}"
        if reference in found.names:
            said = f"nothing is faster than {over}{on}"
    if found.undecided:
        others = listed([" ".join(name) for name in found.undecided])
        said += f" (against {others}: not decided)"
    return said


def _reached(
    run: Run, values: Mapping[str, _Corners], reference: _Names | None, several: bool
) -> str:
    """The ends of ratios over a reference, over all workloads; of seconds, each workload's."""
    if reference is not None:
        ratios = np.concatenate(list(values.values()))
        return span(float(ratios.min()), float(ratios.max()), "×")
    return listed(
        [
            span(float(times.min()), float(times.max()), "s")
            + (f" on {short(run.names[workload], LONGEST_WORKLOAD)}" if several else "")
            for workload, times in values.items()
        ]
    )


def _on(run: Run, workloads: Sequence[str]) -> str:
    return (
        short(run.names[workloads[0]], LONGEST_WORKLOAD)
        if len(workloads) == 1
        else f"{len(workloads)} workloads"
    )


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
        said.append(f"Minibatches come as fast as {run.machine} was measured to have them.")
    return said
