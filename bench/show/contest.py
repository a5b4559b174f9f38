"""Who has the shortest epochs on a workload, and by how much: as points of the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from gatherbench.bench.read.units import listed
from gatherbench.bench.show.answer import Ends, Kind, Point
from gatherbench.stats.interval import Interval, interval_of
from gatherbench.stats.judge import THRESHOLD, PathWord, between, ratio_of
from gatherbench.strategies.registry import role_of

ALONE = "{names} took {values}{on}: no other path to compare it with"
WON = "{names} is the fastest{on}: {values}{as_fast}"
#: These go on with each of the series under the table of the workload.
NONE = "nothing is faster than {over}{on}"
MAYBE = "not decided whether any path is faster than {over}{on}"
LEVEL = "level at the shortest epochs{on}"
OPEN = "not decided which path is the fastest{on}"
AGAINST = "not decided against those"
HOST_BOUND = "host-bound{on}, no verdict between them"
BOUND = "{names}, the upper bound, reached {values}{as_fast}{on}"
HELD = "{names}, the upper bound, is host-bound as well{on}: {values}{as_fast}"
DOUBTFUL = "not decided whether {names}, the upper bound, is faster than what it bounds"
OVERTAKEN = "{names}, the upper bound, came out slower than what it bounds"
#: Beside ratios over the paper's baseline, which is not the best that a CPU does; of one workload,
#: and of several.
AT_BEST = "{names} is {values}{as_fast}, the CPU’s best gather{on}"
OF_ALL = "a path with the shortest epochs is {values} as fast as the CPU’s best gather{on}"
_NONE_ON_ALL = {LEVEL: ", none on all of them", OPEN: "", HOST_BOUND: ""}


@dataclass(frozen=True, slots=True)
class Contest:
    """Epochs on one workload.

    Attributes:
        workload: in words.
        times: by name of a series the logarithm of its epoch in seconds, of each repeat; of what
            is modelled, at each corner of its profile.
        reference: the series that ratios are over; empty: there is none, and seconds are told.
        condition: of :class:`~gatherbench.bench.show.answer.Point`.
        kind: whether ``times`` are modelled: then nothing is decided that does not hold at every
            corner.
        unknown: series that are modelled at some corners alone: nothing is decided against them.
        error: the ratio below which modelled epochs have no order.
        host_bound: series whose epochs the host bounds by issuing them.
        busy: other work ran beside them: nothing is decided.
    """

    workload: str
    times: Mapping[str, ArrayLike]
    reference: str
    condition: str = ""
    kind: Kind = "measured"
    unknown: tuple[str, ...] = ()
    error: float = 1 + THRESHOLD
    host_bound: Collection[str] = ()
    busy: bool = False

    @property
    def bounds(self) -> list[str]:
        """Series that are compared with, never ranked: what the others can at best reach."""
        return [name for name in self.times if is_bound(name)]

    def rivals(self) -> tuple[str, dict[str, PathWord]]:
        """The series with the shortest epochs, and how each of the others compares with it."""
        leader, *others = self._ordered([name for name in self.times if not is_bound(name)])
        return leader, {one: self._word(one, leader) for one in others}

    def _word(self, one: str, other: str) -> PathWord:
        """The verdict on the epochs of one series over those of another."""
        if self.busy:
            return "AMBIGUOUS"
        ratio = self.apart(self.times[one], self.times[other])
        return between(ratio, host_bound={one, other} <= {*self.host_bound})

    def _ordered(self, names: Iterable[str]) -> list[str]:
        """The shortest epochs first, by the values that are told: of pairs, where there are any."""
        sign = -1 if self.reference else 1
        return sorted(names, key=lambda name: sign * self.value(name)[0])

    def ratio(self, one: ArrayLike, other: ArrayLike) -> Interval:
        """Epochs of one series over those of another; of modelled ones both ends are possible."""
        if self.kind != "modelled":
            return ratio_of(one, other)
        ends = np.exp(np.subtract(one, other))
        return Interval(float(ends.mean()), float(ends.min()), float(ends.max()), 2, 0.0)

    def apart(self, one: ArrayLike, other: ArrayLike) -> Interval:
        """:meth:`ratio`, of what is modelled wider by what the model cannot tell apart."""
        found = self.ratio(one, other)
        if self.kind != "modelled":
            return found
        more = max(1.0, self.error / (1 + THRESHOLD))
        return replace(found, low=found.low / more, high=found.high * more)

    def value(self, name: str) -> Ends:
        """How many times as fast as the reference a series is; without one its seconds."""
        mine = self.times[name]
        if self.reference:
            return self.ratio(self.times[self.reference], mine).ends
        return (self.ratio(mine, 0.0) if self.kind == "modelled" else interval_of((1, mine))).ends

    def points(self) -> list[Point]:
        """What is to be said of this workload, the most important first."""
        leader, words = self.rivals()
        level = [leader, *(name for name, word in words.items() if word == "SAME")]
        open_ = [name for name, word in words.items() if word == "AMBIGUOUS"]
        held = [leader, *(name for name, word in words.items() if word == "HOST-BOUND")]
        near, base = [*dict.fromkeys([*level, *open_, *held])], self.reference
        others = [name for name in near if name != base]
        if not words:
            alone = replace(self, reference="")  # over itself it says nothing
            found = [alone._point(ALONE, "", near)]
        elif near == [leader] and leader != base:
            found = [self._point(WON, "FAST", near)]
        elif base in level and not open_:
            found = [self._point(NONE, "SAME", others, "; level with it: {each}")]
        elif base in near:
            found = [self._point(MAYBE, "AMBIGUOUS", others, ": {each}")]
        elif len(held) > 1:
            found = [self._point(HOST_BOUND, "HOST-BOUND", held, ": {each}{as_fast}")]
            open_ = [name for name in near if name not in held]
            found += [self._point(AGAINST, "AMBIGUOUS", open_, ": {each}")] if open_ else []
        elif len(level) == 1:
            found = [self._point(OPEN, "AMBIGUOUS", near, ": {each}{as_fast}")]
        else:
            found = [self._point(LEVEL, "SAME", level, ": {each}{as_fast}")]
            found += [self._point(AGAINST, "AMBIGUOUS", open_, ": {each}")] if open_ else []
        if self.unknown:
            against = f" (not decided against {listed(sorted(self.unknown))})"
            found[0] = replace(found[0], rest=found[0].rest + against)
        found += self._at_best(leader)
        return found + [self._bound(name, leader) for name in self.bounds]

    def _at_best(self, leader: str) -> list[Point]:
        """The fastest path over the CPU's best gather, as measured; none if ratios are over it."""
        gathers = self._ordered(filter(is_gather, self.times))
        if self.kind == "modelled" or not self.reference or not gathers or leader in gathers:
            return []
        best = gathers[0]
        if best == self.reference:
            return []
        word = self._word(leader, best)
        rest = {"SAME": ", level", "AMBIGUOUS": ", not decided"}.get(word, "")
        return [replace(self, reference=best)._point(AT_BEST, word, [leader], rest)]

    def _point(self, says: str, verdict: str, names: Sequence[str], rest: str = "") -> Point:
        ordered = self._ordered(names)
        return Point(
            says,
            rest if ordered else "",
            verdict,
            tuple(ordered),
            tuple(map(self.value, ordered)),
            "×" if self.reference else "s",
            self.reference,
            (self.workload,),
            condition=self.condition,
            kind=self.kind,
            weight=7 if self.kind == "modelled" else 8,
        )

    def _bound(self, name: str, best: str) -> Point:
        word = self._word(name, best)
        says = {"SLOW": OVERTAKEN, "AMBIGUOUS": DOUBTFUL, "HOST-BOUND": HELD}.get(word, BOUND)
        point = self._point(says, word, [name], ", level with what it bounds" * (word == "SAME"))
        weight = 2 if says in (BOUND, HELD) else 1
        return replace(point, subjects=(name.split(maxsplit=1)[0],), weight=weight)


def is_bound(series: str) -> bool:
    """Whether ``strategy variant`` is what the others can at best come near to."""
    return role_of(*series.split(" ", 1)) == "bound"


def is_gather(series: str) -> bool:
    """Whether ``strategy variant`` is the usual way: the CPU gathers, and copies."""
    return role_of(*series.split(" ", 1)) in ("baseline", "conventional")


def contest_points(contests: Iterable[Contest]) -> list[Point]:
    """Those of each workload. Of several they stand under its table, and one for each outcome says
    on which workloads it is so.
    """
    by_workload = [contest.points() for contest in contests]
    if len(by_workload) < 2:
        return [replace(point, workloads=()) for points in by_workload for point in points]
    every = [point for points in by_workload for point in points]
    alike: dict[tuple[str, str, str, tuple[str, ...]], list[Point]] = {}
    for one in every:
        point = replace(one, says=OF_ALL, over="") if one.says == AT_BEST else one
        named = point.subjects if "{names}" in point.says else ()
        if point.says not in (AGAINST, DOUBTFUL, OVERTAKEN):
            alike.setdefault((point.says, point.verdict, point.over, named), []).append(point)
    found = []
    for mine in alike.values():
        on = tuple(workload for point in mine for workload in point.workloads)
        told = tuple(dict.fromkeys(name for point in mine for name in point.subjects))
        valued = "{values}" in mine[0].says
        values = tuple(value for point in mine for value in point.values) if valued else ()
        rest = mine[0].rest if valued else ""
        if mine[0].says in _NONE_ON_ALL:  # who is on all of them
            common = tuple(n for n in told if all(n in point.subjects for point in mine))
            more = ", or others" * (mine[0].says != LEVEL and common != told)
            rest = ": {names}" + more if common else _NONE_ON_ALL[mine[0].says]
            told = common
        found.append(replace(mine[0], rest=rest, subjects=told, values=values, workloads=on))
    return [*found, *(replace(point, of_one=True) for point in every)]
