"""The answer, as fields first: what was compared, what came of it, how sure, and where it holds.

*Faster* means that the whole interval lies beyond the smallest difference that matters, *level*
that it lies within, *not decided* neither (:mod:`gatherbench.stats.judge`). A point has
one sentence, by a short template; no template claims more than its fields carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gatherbench.bench.read.units import LONGEST_WORKLOAD, listed, quantity, short, span, with_ends
from gatherbench.stats.interval import Interval
from gatherbench.stats.judge import judge

#: Points of a run that stand in its answer; the others stand with the tables of their view.
MOST = 6
#: Behind ratios of single repeats.
ONE_REPEAT = "One repeat: how much processes differ is not known."
#: Value, and the ends of its 95 % interval: NaN of one repeat, the value itself where it is exact.
#: Of a modelled value its two ends.
Ends = tuple[float, float, float]
Kind = Literal["measured", "modelled", "warning"]


def exact(*values: float) -> tuple[Ends, ...]:
    """Values whose intervals are the values themselves."""
    return tuple((float(value),) * 3 for value in values)


def extremes(values: Iterable[float]) -> tuple[Ends, ...]:
    """The least and the greatest of some values, once where they are the same."""
    known = list(values)
    return exact(*dict.fromkeys((min(known), max(known))))


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that a run shows.

    Attributes:
        says: the sentence without its full stop, with places for ``{names}`` (the subjects),
            ``{each}`` (each with its value), ``{values}`` (from the least to the greatest),
            ``{over}``, ``{as_fast}`` (as that) and ``{on}`` (the workloads).
        rest: goes on with the sentence where there is room.
        verdict: ``FAST``, ``SLOW``, ``SAME``, ``AMBIGUOUS`` or ``HOST-BOUND`` of a comparison, else
            empty.
        subjects: what it is about, mostly strategies with their variants; the fastest first.
        values: one of each subject, or of one subject one of each workload.
        unit: of the values; ``×`` for ratios.
        over: what they are ratios to.
        workloads: on which it holds, in words; none: on all of the run's.
        of_one: it concerns one workload alone and stands under its table.
        condition: what stands before the sentence, as ``Measured on NVIDIA H200``.
        kind: what the values are, or ``warning``: how far all others hold.
        weight: those that weigh most come first, and into the answer of the run.
    """

    says: str
    rest: str = ""
    verdict: str = ""
    subjects: tuple[str, ...] = ()
    values: tuple[Ends, ...] = ()
    unit: str = "×"
    over: str = ""
    workloads: tuple[str, ...] = ()
    of_one: bool = False
    condition: str = ""
    kind: Kind = "measured"
    weight: int = 3

    @property
    def text(self) -> str:
        """The sentence."""
        pairs = zip(self.subjects, self.values, strict=False)
        several, on = len(self.workloads), ""
        if several and not self.of_one:
            on = (
                f"{several} workloads"
                if several > 1
                else short(self.workloads[0], LONGEST_WORKLOAD)
            )
        said = f"{self.says}{self.rest}.".format(
            names=listed(self.subjects),
            each=listed([f"{short(name)} {self._said(value)}" for name, value in pairs]),
            values=self._range(),
            over=self.over,
            as_fast=f" as fast as {self.over}" if self.over else "",
            on=f" on {on}" if on else "",
        )
        if self.condition:
            return f"{self.condition}: {said}"
        return said if self.says.startswith("{") else said[:1].upper() + said[1:]

    def _said(self, *values: Ends) -> str:
        if self.kind == "modelled":  # nothing is known between the ends
            return span(min(v[1] for v in values), max(v[2] for v in values), self.unit)
        return " to ".join(dict.fromkeys(_with_ends(value, self.unit) for value in values))

    def _range(self) -> str:
        ordered = sorted(self.values)
        ends = [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
        said = self._said(*ends) if ends else ""
        return f"from {said}" if len(ordered) > 1 and " to " in said else said

    def fields(self) -> dict[str, object]:
        """For a program: what is not known is ``None``."""
        values = [[None if math.isnan(x) else x for x in ends] for ends in self.values]
        return {
            "verdict": self.verdict or None,
            "kind": self.kind,
            "condition": self.condition,
            "subjects": list(self.subjects),
            "values": values,
            "unit": self.unit if values else None,
            "over": self.over or None,
            "workloads": list(self.workloads),
            "text": self.text,
        }


def _with_ends(value: Ends, unit: str) -> str:
    """A value with its interval; alone where the ends read like it."""
    alike = len({quantity(end, unit) for end in value}) == 1
    return quantity(value[0], unit) if alike else with_ends(*value, unit)


def answer(points: Sequence[Point]) -> list[Point]:
    """The points that weigh most, :data:`MOST` of them, without those of one workload's table."""
    ordered = sorted((p for p in points if not p.of_one), key=lambda p: -p.weight)
    return ordered[:MOST]


def compared(ratio: Interval, to: str = "", *, host_bound: bool = False) -> str:
    """``1.14× (0.978–1.32) as fast as naive, not decided``. ``to``: what it is a ratio to.

    ``host_bound``: the host bounds both epochs by issuing them.
    """
    value, low, high = ratio.ends
    said = quantity(value, "×") if low == high else with_ends(value, low, high)
    return f"{said} {to}".rstrip() + (", host-bound" if host_bound else undecided(ratio))


def undecided(ratio: Interval) -> str:
    """What is to be said behind a ratio whose interval tells no difference that matters."""
    known = {"SAME": ", level", "AMBIGUOUS": ", not decided"} if ratio.repeats > 1 else {}
    return known.get(judge(ratio).word, "")
