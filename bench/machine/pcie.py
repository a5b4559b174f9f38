"""Give the rates of PCI Express links, in one table for measurements and for the model."""

from __future__ import annotations

from gatherbench.reason import ReasonError, unsupported

#: Transfers per second and lane by generation, and the share of them that the line code leaves
#: (PCI Express Base Specification: 8b/10b, then 128b/130b; generation 6 has no such code).
_GENERATIONS = {
    1: (2.5e9, 8 / 10),
    2: (5e9, 8 / 10),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 1.0),
}
_LANES = (1, 2, 4, 8, 16)


class UnknownLinkError(ReasonError, ValueError):
    """The table lacks a generation, or no link of that width is sold."""


def raw_rate(generation: int, lanes: int = 16) -> float:
    """Return the largest rate of a link in one direction, headers included. Units: B/s.

    It raises :class:`UnknownLinkError`.
    """
    if generation not in _GENERATIONS:
        known = f"{min(_GENERATIONS)} to {max(_GENERATIONS)}"
        raise UnknownLinkError(unsupported(f"PCIe generation {generation}; known are {known}"))
    if lanes not in _LANES:
        raise UnknownLinkError(unsupported(f"PCIe x{lanes}; known are 1, 2, 4, 8 and 16 lanes"))
    transfers, code = _GENERATIONS[generation]
    return transfers * code * lanes / 8


def fastest_rate() -> float:
    """Return the rate of the fastest link that is sold, for an unknown link. Units: B/s."""
    return raw_rate(max(_GENERATIONS), max(_LANES))
