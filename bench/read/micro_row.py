"""A row of the micro-benchmark's table, ``micro.csv``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroRow:
    """One timed launch, or one thing that setting up cost; SI units, nothing derived."""

    kind: str
    policy: str
    order: str
    row_bytes: int
    span_bytes: int
    cap: int
    round: int
    payload_bytes: int
    time_s: float
    source: str
