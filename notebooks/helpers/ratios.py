"""Ratios in sentences, and what their intervals decide."""

from __future__ import annotations

from gatherbench.bench.read.units import quantity, with_ends
from gatherbench.stats.interval import Interval
from gatherbench.stats.judge import judge

#: Behind ratios of single repeats.
ONE_REPEAT = "One repeat: how much processes differ is not known."


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
