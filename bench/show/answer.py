"""The answer of a run: a line a workload, what to do next, and what to be cautious of.

There are four sentences: *fastest*, *tie*, *no difference*, and the *limit* behind each of them; on
a GPU *host-bound* stands in place of a verdict between paths that the host holds up. Whether paths
are separated decides the one rule (:mod:`gatherbench.bench.read.standings`); a sentence has no more
than its fields. Predictions are in none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.derive import epoch_intervals, problems
from gatherbench.bench.read.disturbance import disturbance, disturbed_alone, mostly_disturbed
from gatherbench.bench.read.issuing import issue_shares
from gatherbench.bench.read.once import once
from gatherbench.bench.read.standings import Standing, standings
from gatherbench.bench.read.stopping import imprecise
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, number, quantity, short, span, with_ends
from gatherbench.bench.run.rows import SERIES, Key
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE, CUT_OFF
from gatherbench.bench.show.provenance import cases_ended, has_gpu, small_pages
from gatherbench.stats.interval import Interval
from gatherbench.stats.judge import THRESHOLD
from gatherbench.strategies.base import parameters
from gatherbench.strategies.registry import in_words, named

Verdict = Literal["fastest", "tie", "no difference", "host-bound", "none"]

#: So many paths of a tie are named with their intervals, and of more with their range.
FEW, MOST = 3, 5
#: Below this share of an epoch that moving features takes, no path can change much.
SMALL_SHARE = 1 / 3
#: What :func:`gatherbench.unified` is to be told, by what a path needs to know.
_GIVEN = {"graph": "graph=edge_index", "training_ids": "train_ids=…", "earlier": "minibatches=…"}
_AGAIN = "measure again, several repeats on an idle machine"
#: What a path is that others are compared with, by whether it is one of the CPU's.
_WHAT = {True: "the CPU’s best gather", False: "the next"}
_MORE = "more repeats (max_repeats and budget_s of the plan) on an idle machine"
_LARGER = "fetch more (fanouts, batch_size, wider rows) or train less (hidden)"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one workload shows.

    Attributes:
        workload: in words.
        verdict: ``none`` where nothing may be said, for which ``text`` has the reason.
        paths: that it is about: the fastest, those that tie for it, or those that the host holds
            up; the shortest epochs first.
        ratios: how many times as fast they are as ``over``, each with its 95 % interval.
        over: the CPU's gather with the shortest epochs, or else the next path; empty: none.
        limit: the same of no fetch at all.
        text: the sentences.
        to_do: the call to type, or what to change.
    """

    workload: str
    verdict: Verdict
    paths: tuple[str, ...] = ()
    ratios: tuple[tuple[float, float, float], ...] = ()
    over: str = ""
    limit: tuple[float, float, float] | None = None
    text: str = ""
    to_do: str = ""

    def fields(self) -> dict[str, Any]:
        """For a program; what is not known is ``None``."""
        *ratios, limit = (
            [None if math.isnan(end) else end for end in ends] if ends else None
            for ends in (*self.ratios, self.limit)
        )
        return {**asdict(self), "ratios": ratios, "over": self.over or None, "limit": limit}


@once
def answers(run: Run) -> list[Answer]:
    """One for each workload of which epochs were measured, in the plan's order."""
    return [_answer(run, standing) for standing in standings(run)]


def _answer(run: Run, of: Standing) -> Answer:
    name, none = run.names[of.workload], ""
    if mostly_disturbed(run):
        none = f"{disturbance(run)}, and decides nothing"
    elif len(of.ranked) < 2:
        none = "there are no two paths with a quiet repeat"
    elif all(found.repeats < 2 for found in map(of.speedup, of.ranked)):
        none = "one repeat does not tell how much processes differ"
    if none:
        return Answer(name, "none", text=f"No verdict: {none}.", to_do=_AGAIN)
    leader, best = of.ranked[0], of.best
    near = [key for key in of.ranked[1:] if of.words[key, leader] != "SLOW"]
    held = [key for key in near if of.words[key, leader] == "HOST-BOUND"]
    base = best or next((key for key in of.ranked[1:] if key not in near), None)
    paths = [key for key in (leader, *near) if key != base or key == leader]
    verdict: Verdict = "tie" if len(paths) > 1 else "fastest"
    if base == leader and not near:
        base = of.ranked[1]
    elif best and all(of.words[key, best] != "FAST" for key in paths if key != best):
        verdict, paths = "no difference", [key for key in of.ranked if key != best][:1]
    elif held:
        verdict, paths = "host-bound", [leader, *held]
    ratios = [of.speedup(key, base) for key in paths] if base else []
    limit = of.speedup(of.limit, base) if of.limit and base else None
    over = f"{_name(base)}, {_WHAT[base == best]}" if base else ""
    said = _sentence(run, verdict, paths, ratios, over)
    if limit and base:
        share = quantity(1 - 1 / limit.value, "share") if limit.low > 1 else "no measurable part"
        whose = "gather" if base == best else "path"
        said += (
            f" Limit, no fetch at all: {_times(limit)}, so moving features is {share} of that"
            f" {whose}’s epoch."
        )
    return Answer(
        name,
        verdict,
        tuple(map(_name, paths)),
        tuple(ratio.ends for ratio in ratios),
        _name(base) if base else "",
        limit.ends if limit else None,
        said,
        _to_do(run, verdict, paths[0], limit),
    )


def _sentence(
    run: Run, verdict: Verdict, paths: Sequence[Key], ratios: Sequence[Interval], over: str
) -> str:
    each = [_name(key) for key in paths]
    as_fast = f" as fast as {over}" if over else ""
    if verdict == "no difference":
        return (
            f"No path is measurably (by {100 * THRESHOLD:g} %) faster than {over}; the best other"
            f" path, {each[0]}, is {_times(ratios[0])} as fast."
        )
    if verdict == "host-bound":
        shares = issue_shares(run).set_index(SERIES)["issued"].reindex([*paths])
        issued = span(shares.min(), shares.max(), "share")
        return (
            f"Host-bound: issuing takes {issued} of the epochs of {listed(each, MOST)}, so there is"
            f" no verdict between them. They are {_range(ratios)}{as_fast}."
        )
    head = "Fastest" if verdict == "fastest" else "Too close to separate"
    if len(paths) > FEW and ratios:
        return f"{head}: {listed(each, MOST)}, {_range(ratios)}{as_fast}."
    each = [f"{n}, {_times(r)}" for n, r in zip(each, ratios, strict=True)] if ratios else each
    return f"{head}: {'; '.join(each)}{as_fast}."


def _name(key: Key) -> str:
    return short(in_words(key.strategy, key.variant))


def _times(ratio: Interval) -> str:
    return with_ends(*ratio.ends)


def _range(ratios: Sequence[Interval]) -> str:
    """The least and the greatest, with all of their intervals."""
    values, low, high = np.transpose([ratio.ends for ratio in ratios])
    return f"{span(values.min(), values.max(), '×')} ({number(low.min())}–{number(high.max())})"


def _to_do(run: Run, verdict: Verdict, first: Key, limit: Interval | None) -> str:
    if verdict == "no difference":
        small = limit is not None and 1 - 1 / limit.value < SMALL_SHARE
        return f"to separate paths, {_LARGER if small else _MORE}"
    if verdict == "host-bound":
        captured = 'step = "captured" in [measure], ' if _can_capture(run) else ""
        return (
            f"{call(first)} or any of these; to separate them: {captured}minibatches with more rows"
            " (batch_size, fanouts), or a wider model (hidden)"
        )
    return call(first) + " or any of these" * (verdict == "tie")


def call(key: Key) -> str:
    """How to use a path in a training of one's own."""
    path, given = named(key.strategy, key.variant), list[str]()
    if path is not None:
        defaults = {name: words[0] for name, words in parameters(type(path)).items()}
        told = {name: str(getattr(path, name)) for name in defaults}
        given = [f', {name}="{word}"' for name, word in told.items() if word != defaults[name]]
        given += [f", {_GIVEN[need]}" for need in sorted(path.needs) if need in _GIVEN]
    return f'gatherbench.unified(x, strategy="{key.strategy}"{"".join(given)})'


def _can_capture(run: Run) -> bool:
    """Whether the plan would take captured steps for all its workloads, and has none."""
    measure, workloads = run.plan["measure"], run.plan["workloads"].values()
    return measure.get("activations", "keep") == "keep" and all(
        one["model"] == "sage" and ranks_of(one) == 1 and one.get("step") != "captured"
        for one in workloads
    )


# ---- cautions ------------------------------------------------------------------------------------


@once
def cautions(run: Run) -> list[str]:
    """How far the answer holds, what matters most first; a terminal has room for that."""
    return list(_cautions(run))


def _cautions(run: Run) -> Iterator[str]:
    counts, busy, alone = cases_ended(run), disturbance(run), disturbed_alone(run)
    if not counts["ok"]:
        ended = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        bad = problems(run)["reason"]
        first = f". The first: {short(bad.iloc[0], 200)}" if len(bad) else ""
        yield f"Nothing was measured. Cases: {ended}{first}"
    if mostly_disturbed(run):
        yield f"Busy machine: {busy}. Nothing is decided; measure again on an idle machine"
    single = sum(found.repeats == 1 for found in epoch_intervals(run).values())
    if single:
        yield f"Too few repeats: of {single} series one, which does not tell how processes differ"
    if (waiting := Waiting.of(run.env)).passive:
        why = f", because {waiting.reason}" if waiting.reason else ""
        yield (
            f"Threads waited passively{why}: with threads that spin, the default of an idle"
            " machine, epochs are others"
        )
    yield from small_pages(run)
    if counts["ok"] and not has_gpu(run):
        yield "Host memory only. These are not GPU results: run `make bench` on the GPU machine"
    if counts["not run"]:
        remedy = "`gatherbench run --resume FOLDER` completes it"
        remedy = "it was still going when this was written" if run.going else remedy
        planned = len(run.plan["cases"])
        yield f"Incomplete: {counts['not run']} of {planned} cases have not been run; {remedy}"
    ends = run.select(stage=CASE_STAGE, metric=CASE_METRIC)
    if cut := int((ends["source"] == CUT_OFF).sum()):
        yield (
            f"Cut off: of {cut} case{'s' * (cut > 1)} the whole blocks count, whose rows were"
            " compared in each epoch, but not after the last one"
        )
    if busy and not mostly_disturbed(run):
        names = listed([_name(key) for key in alone])
        told = f"without one are {names}: measure again on an idle machine"
        told = told if alone else "every path has some"
        yield f"Noisy: {busy}. Quiet repeats alone count; {told}"
    if wide := imprecise(run):
        worst = max(wide, key=lambda series: wide[series])
        width = f"±{wide[worst]:.0%}" if wide[worst] < 1 else "by more than its value"
        asked = run.plan["measure"]["precision"]
        yield (
            f"Too few repeats for the plan’s precision (±{asked:.0%}): of"
            f" {len(wide)} {'ratios' if run.processes else 'epochs'}, least of all that of"
            f" {in_words(*worst[1:3])} ({width}); {_MORE} narrow them"
        )
