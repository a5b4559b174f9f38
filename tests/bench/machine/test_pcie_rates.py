"""Rates of PCI Express links: those of the standard, and a reason for any other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gatherbench.bench.machine.pcie import (
    UnknownLinkError,
    fastest_rate,
    packet_link_rate,
    raw_rate,
)

#: GB/s of sixteen lanes, one direction.
PUBLISHED = {1: 4.0, 2: 8.0, 3: 15.75, 4: 31.51, 5: 63.02, 6: 128.0}


@pytest.mark.parametrize(("generation", "gigabytes"), PUBLISHED.items())
def test_raw_rates_are_those_of_the_standard(generation: int, gigabytes: float) -> None:
    assert raw_rate(generation) == pytest.approx(gigabytes * 1e9, rel=1e-3)
    assert raw_rate(generation, 4) == pytest.approx(raw_rate(generation) / 4)
    assert raw_rate(generation) <= fastest_rate()


@pytest.mark.parametrize("rate", [raw_rate, packet_link_rate])
@pytest.mark.parametrize(
    ("generation", "lanes", "reason"),
    [(0, 16, "generation 0"), (7, 16, "generation 7"), (4, 5, "x5"), (4, 0, "x0")],
)
def test_a_link_of_which_nothing_is_known_has_no_rate_and_a_reason(
    rate: Callable[[int, int], float], generation: int, lanes: int, reason: str
) -> None:
    with pytest.raises(UnknownLinkError, match=f"^unsupported: PCIe {reason}"):
        rate(generation, lanes)


def test_a_link_of_flits_has_a_rate_and_no_packets() -> None:
    assert packet_link_rate(5, 8) == raw_rate(5, 8)
    with pytest.raises(UnknownLinkError, match="flits"):
        packet_link_rate(6)
