"""The answer of a run: a line per workload, the next step, and the cautions.

There are four sentences: *fastest*, *tie*, *no difference*, and the *limit* behind each of them. On
a GPU *host-bound* replaces a verdict between paths that the host limits. One rule decides whether
paths are separated (:mod:`gatherbench.bench.read.standings`), and paths keep its order, which is
that of the table. The answer excludes predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import ranks_of
from gatherbench.bench.read.derive import (
    mostly_noisy,
    noise,
    noisy_series,
    problems,
    repeat_logs,
)
from gatherbench.bench.read.standings import Standing, standings
from gatherbench.bench.read.stopping import imprecise
from gatherbench.bench.read.tables import Run
from gatherbench.bench.read.units import listed, number, quantity, short, span, with_ends
from gatherbench.bench.run.part import CUT_OFF
from gatherbench.bench.run.rows import Key
from gatherbench.bench.show.provenance import cases_ended
from gatherbench.stats.interval import Interval
from gatherbench.stats.judge import THRESHOLD
from gatherbench.strategies.base import UNRANKED, parameters
from gatherbench.strategies.registry import in_words, named, role_of

Verdict = Literal["fastest", "tie", "no difference", "host-bound", "none"]

_HEADS = {
    "fastest": "Fastest",
    "tie": "Too close to separate",
    "host-bound": "Host-bound, so in no order",
}
#: Up to ``FEW`` paths have an interval each; of more, up to ``MOST`` are named with their range.
FEW, MOST = 3, 5
#: The share of an epoch for fetching below which no path can change much.
SMALL_SHARE = 1 / 3
#: The argument of :func:`gatherbench.unified` for each thing that a path needs to know.
_GIVEN = {
    "graph": "graph=edge_index",
    "training_ids": "train_ids=train_ids",
    "earlier": "minibatches=minibatches",
}
_ONE_PATH = "the plan has one path, and paths are what is ranked; the table compares workloads"
_AGAIN = "measure again, several repeats on an idle machine"
_MORE = "more repeats (repeats and budget_s in the plan’s TOML) on an idle machine"
_LARGER = "in the plan’s TOML, raise fanouts, batch_size or the row’s width, or lower hidden"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for one workload.

    Attributes:
        workload: its name in words.
        verdict: ``none`` if no verdict is possible; ``text`` then gives the reason.
        paths: its subjects: the fastest, or those that are not separated from the first of them,
            in the table's order.
        ratios: their speed over ``over``, each with its 95 % interval.
        over: the CPU's gather with the shortest epochs, or else the next path; empty: none.
        limit: the same ratio for no fetch at all.
        text: the sentences.
        call: Python to paste for the first of these paths, whose words :attr:`use` gives; empty:
            none.
        change: what would separate paths; empty: unknown.
    """

    workload: str
    verdict: Verdict
    paths: tuple[str, ...] = ()
    ratios: tuple[tuple[float, float, float], ...] = ()
    over: str = ""
    limit: tuple[float, float, float] | None = None
    text: str = ""
    call: str = ""
    change: str = ""

    @property
    def use(self) -> str:
        """The words before :attr:`call`; the first of paths that are not separated is no choice."""
        return "To use it" if self.verdict == "fastest" else "To use the first of them"

    def fields(self) -> dict[str, Any]:
        """Return the fields for programs; unknown values are ``None``."""
        ends = [_known(ratio) for ratio in self.ratios]
        limit = _known(self.limit) if self.limit else None
        return {**asdict(self), "ratios": ends, "over": self.over or None, "limit": limit}


def _known(ends: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(end) else end for end in ends]


def answers(run: Run) -> list[Answer]:
    """Return an answer for each workload with measured epochs, in the plan's order."""
    return [_answer(run, standing) for standing in standings(run)]


def joined(run: Run) -> list[Answer]:
    """Return :func:`answers`, with those that say the same joined to one of several workloads."""
    alike = dict[Answer, list[str]]()
    for answer in answers(run):
        alike.setdefault(replace(answer, workload=""), []).append(answer.workload)
    return [
        replace(answer, workload=names[0] if len(names) == 1 else f"{len(names)} workloads")
        for answer, names in alike.items()
    ]


def has_one_path(run: Run) -> bool:
    """Return whether the plan has a single path to rank, as one that compares values of a field."""
    planned = {(case["strategy"], case["variant"]) for case in run.plan["cases"]}
    return len([path for path in planned if role_of(*path) not in UNRANKED]) == 1


def _answer(run: Run, standing: Standing) -> Answer:
    name, none = run.names[standing.workload], ""
    if mostly_noisy(run):
        none = f"{noise(run)}, so no ratio decides"
    elif len(standing.ranked) < 2:
        none = _ONE_PATH if has_one_path(run) else "there are no two paths with a quiet repeat"
    elif all(standing.speedup(key).repeats < 2 for key in standing.ranked):
        none = "one repeat does not tell how much processes differ"
    if none:
        again = "" if none == _ONE_PATH else _AGAIN
        return Answer(name, "none", text=f"No verdict: {none}.", change=again)
    best, leader, words = standing.best, standing.leader, standing.words
    tied = [key for key in standing.ranked if key == leader or words[key, leader] != "SLOW"]
    base = best or next((key for key in standing.ranked if key not in tied), None)
    if tied == [base]:
        base = next(key for key in standing.ranked if key != leader)
    paths = [key for key in tied if key != base]
    verdict: Verdict = "fastest" if len(tied) == 1 else "tie"
    if verdict == "tie" and best and standing.rank(best)[0] == 1:
        verdict, paths = "no difference", [key for key in standing.ranked if key != best][:1]
    elif any(words[key, leader] == "HOST-BOUND" for key in paths if key != leader):
        verdict = "host-bound"
    ratios, over, limit, change = list[Interval](), "", None, _unbind(run)
    if base:
        ratios = [standing.speedup(key, base) for key in paths]
        over = f"{_name(base)}, {'the CPU’s best gather' if base == best else 'the next'}"
    text = _sentence(verdict, paths, ratios, over)
    if standing.limit and base:
        limit = standing.speedup(standing.limit, base)
        text += f" Limit, no fetch at all: {with_ends(*limit.ends)}, so fetching is"
        text += f" {_fetching(limit)} of an epoch with {_name(base)}."
    if verdict == "no difference":
        change = _LARGER if limit and 1 - 1 / limit.high < SMALL_SHARE else _MORE
    return Answer(
        name,
        verdict,
        tuple(map(_name, paths)),
        tuple(ratio.ends for ratio in ratios),
        _name(base) if base else "",
        limit.ends if limit else None,
        text,
        "" if verdict == "no difference" else call(paths[0]),
        change if verdict in ("no difference", "host-bound") else "",
    )


def _fetching(limit: Interval) -> str:
    if limit.low > 1:
        return quantity(1 - 1 / limit.value, "share")
    small = 1 - 1 / limit.high < SMALL_SHARE
    return "no measurable part" if small else "an unknown part"


def _sentence(verdict: Verdict, paths: Sequence[Key], ratios: Sequence[Interval], over: str) -> str:
    names, each = [_name(key) for key in paths], [with_ends(*ratio.ends) for ratio in ratios]
    if verdict == "no difference":
        return (
            f"No path is measurably faster than {over}: no ranked path’s whole interval lies above"
            f" {1 + THRESHOLD:g}×. The shortest other epoch is that of {names[0]}: {each[0]}."
        )
    subject = listed(names, MOST)
    if len(paths) > FEW and ratios:
        values, low, high = np.transpose([ratio.ends for ratio in ratios])
        subject += f", {span(values.min(), values.max(), '×')}"
        subject += f" ({number(low.min())}–{number(high.max())})"
    elif ratios:
        subject = "; ".join(map(", ".join, zip(names, each, strict=True)))
    message = f"{_HEADS[verdict]}: {subject}{f' as fast as {over}' * bool(over)}."
    if verdict == "host-bound":
        message += (
            " The CPU issues GPU work for more than two thirds of their epochs, which hides how the"
            " paths differ."
        )
    return message


def _name(key: Key) -> str:
    return short(in_words(key.strategy, key.variant))


def call(key: Key) -> str:
    """Return the Python call to paste that uses a path in your own training."""
    path, given = named(key.strategy, key.variant), list[str]()
    if path is not None:
        defaults = {name: words[0] for name, words in parameters(type(path)).items()}
        values = {name: str(getattr(path, name)) for name in defaults}
        given = [f', {name}="{word}"' for name, word in values.items() if word != defaults[name]]
        given += [f", {_GIVEN[need]}" for need in sorted(path.needs) if need in _GIVEN]
    return f'gatherbench.unified(x, strategy="{key.strategy}"{"".join(given)})'


def _unbind(run: Run) -> str:
    """Describe what makes the host issue less work per row; captured steps only if the plan can."""
    can = all(
        workload["model"] == "sage"
        and ranks_of(workload) == 1
        and workload.get("step") != "captured"
        and not workload.get("around_step")
        for workload in run.plan["workloads"].values()
    )
    captured = '`step = "captured"` under `[measure]`, ' if can else ""
    return (
        f"in the plan’s TOML, {captured}more rows a minibatch (batch_size, fanouts) or a wider"
        " model (hidden)"
    )


# ---- cautions ------------------------------------------------------------------------------------


def cautions(run: Run) -> list[str]:
    """Return the limits of the answer, the most important first; a terminal shows that one."""
    return list(_cautions(run))


def _cautions(run: Run) -> Iterator[str]:
    counts, bad, busy, alone = cases_ended(run), problems(run), noise(run), noisy_series(run)
    if not counts["ok"]:
        ended = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        first = f". The first: {short(bad['reason'].iloc[0], 200)}" if len(bad) else ""
        yield f"Nothing was measured. Cases: {ended}{first}"
    if counts["not run"]:
        remedy = "`gatherbench run --resume FOLDER` completes it"
        remedy = "it was still going when this was written" if run.going else remedy
        planned = len(run.plan["cases"])
        yield f"Incomplete: {counts['not run']} of {planned} cases have not been run; {remedy}"
    some = bad[(bad["status"] == "failed") & (bad["repeats"] < bad["of"])]
    if len(some):
        paths = listed([*dict.fromkeys(map(in_words, some["strategy"], some["variant"]))])
        why = short(some["reason"].iloc[0], 200)
        yield f"Failed: repeats of {paths}; their other repeats count. The first: {why}"
    if mostly_noisy(run):
        yield f"Busy machine: {busy}. Nothing is decided; measure again on an idle machine"
    single = sum(len(repeats) == 1 for repeats in repeat_logs(run).values())
    if single:
        yield f"Too few repeats: {single} series have one, which does not tell how processes differ"
    if (waiting := Waiting.of(run.env)).passive:
        why = f", because {waiting.reason}" if waiting.reason else ""
        yield (
            f"Threads waited passively{why}: epochs differ from those with threads that spin, the"
            " default of an idle machine"
        )
    if counts["ok"] and not run.has_gpu:
        yield "Host memory only. These are not GPU results: run `make bench` on a GPU machine"
    if cut := int(((run.reasons["source"] == CUT_OFF) & (run.reasons["rank"] < 0)).sum()):
        yield (
            f"Cut off: {cut} case{'s' * (cut > 1)}. Their whole blocks count: rows were compared in"
            " each epoch, but not after the last one"
        )
    if busy and not mostly_noisy(run):
        names = listed([_name(key) for key in alone])
        remark = f"these have none: {names}; measure again on an idle machine"
        remark = remark if alone else "every path has some"
        yield f"Noisy: {busy}. Only quiet repeats count; {remark}"
    if wide := imprecise(run):
        worst = max(wide, key=lambda series: wide[series])
        width = f"±{wide[worst]:.0%}" if wide[worst] < 1 else "±100% or more"
        precision = run.plan["measure"]["precision"]
        numbers = "ratios to their workload’s shortest epoch" if run.in_turns else "epochs"
        yield (
            f"Too few repeats: {len(wide)} {numbers} miss the plan’s precision"
            f" (±{precision:.0%}); the least certain is {in_words(*worst[1:3])}, at {width};"
            f" {_MORE} narrow the intervals"
        )
