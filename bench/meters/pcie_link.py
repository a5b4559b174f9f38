"""What can be made of a 32-bit counter of a link's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gatherbench.bench.machine.pcie import fastest_rate, raw_rate
from gatherbench.bench.meters.nvml_device import Link

#: The byte counters are 32 bits wide: they start anew after 4 GiB.
MODULUS = 2**32


class CounterError(ValueError):
    """A counter's readings make no sum; the message is a reason."""


@dataclass(frozen=True, slots=True)
class Count:
    """A counter's value at a time (s, any epoch)."""

    time_s: float
    value: int


def most(link: Link | None) -> float:
    """What no transfer over the link can exceed, also after it has trained up. Units: B/s.

    Args:
        link: ``None``: the driver does not describe it.

    Raises:
        UnknownLinkError: of its kind nothing is known, so that a wrap of its counter could be
            missed.
    """
    return raw_rate(link.gen_max, link.width_max) if link else fastest_rate()


def accumulate(counts: Sequence[Count], rate: float) -> list[tuple[float, int]]:
    """Bytes since the first reading of a counter modulo :data:`MODULUS`, at each reading's time.

    Readings that the driver has not refreshed since the one before are left out.

    Args:
        counts: in the order of time.
        rate: what the link carries at most. Units: B/s.

    Raises:
        CounterError: the counter may have wrapped more than once between two readings, or its
            time went backwards, or it rose faster than the link is.
    """
    if not counts:
        raise CounterError("unsupported: the counter was never read; use longer epochs")
    series = [(counts[0].time_s, 0)]
    last = counts[0]
    for count in counts[1:]:
        gap_s = count.time_s - last.time_s
        if gap_s < 0:
            raise CounterError("failed: the counter's time went backwards; do not set the clock")
        if gap_s == 0 and count.value == last.value:
            continue
        if gap_s * rate >= MODULUS:
            raise CounterError(
                f"unsupported: {1e3 * gap_s:.0f} ms between two readings, in which this link could"
                f" wrap the 32-bit counter ({1e3 * MODULUS / rate:.0f} ms); leave a core free"
            )
        more = (count.value - last.value) % MODULUS
        # Twice the link: a reading is stamped a little before or after it is taken.
        if more > 2 * rate * max(gap_s, _STAMP_S):
            raise CounterError(
                f"failed: the counter rose by {more} B in {1e3 * gap_s:.1f} ms, more than the link"
                " carries; it was reset or is no byte counter"
            )
        series.append((count.time_s, series[-1][1] + more))
        last = count
    return series


#: How far apart the stamp and the reading of a counter may lie.
_STAMP_S = 0.005
