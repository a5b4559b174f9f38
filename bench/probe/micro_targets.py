"""What the kernels are held to, answered from the rows of one run: ratios, their spread, a verdict.

Each ratio is taken within a round, where both sides were measured minutes apart at the most, and
told as the median over the rounds with the extremes. Which grid cap and which order of the ids
stand for a side is decided by medians.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gatherbench.bench.probe.micro_plan import GIB, OUR_BEST
from gatherbench.bench.probe.micro_rows import RowFile
from gatherbench.bench.read.micro_row import MicroRow
from gatherbench.kernels.policies import POLICIES

#: Shares of the SM-read roof of the same span that a gather by ``aligned`` is to reach.
ROOF_SHARES = {256: 0.85}
#: The share for rows of :data:`WIDE_BYTES` and more.
WIDE_BYTES, WIDE_SHARE = 512, 0.95
REACHED, WITHIN, MISSED = "reached", "reached within the spread", "missed"

#: Payload rate by round, B/s.
Rates = dict[int, float]


@dataclass(frozen=True, slots=True)
class Target:
    """One target: ``ratio`` of ``ours`` over ``other``, with the extremes over ``rounds``.

    ``wanted`` is the least that reaches it; empty with an empty ``verdict``: nobody asked for one.
    """

    target: str
    span_bytes: int
    row_bytes: int
    ours: str
    other: str
    ratio: float
    low: float
    high: float
    rounds: int
    wanted: float | None
    verdict: str


def verdict_of(wanted: float | None, ratio: float, high: float) -> str:
    """Whether a ratio that is to be at least ``wanted`` is, itself or within its spread."""
    if wanted is None:
        return ""
    return REACHED if ratio >= wanted else WITHIN if high >= wanted else MISSED


def targets(rows: Sequence[MicroRow]) -> list[Target]:
    """For each span and row width: ``aligned`` over the SM-read roof, and over the fastest peer."""
    sides: dict[tuple[int, int, str], dict[str, Rates]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        side, name = _side(row)
        if side:
            width = 0 if side == "roof" else row.row_bytes
            rate = row.payload_bytes / row.time_s
            sides[row.span_bytes, width, side][name][row.round] = rate
    found = []
    for span, width, side in sorted(sides):
        if side != "ours":
            continue
        for target, key, wanted in (
            ("of the SM-read roof", (span, 0, "roof"), share_wanted(width)),
            ("over the fastest policy of a peer", (span, width, "peer"), 1.0),
        ):
            one = _compare(target, span, width, sides[span, width, side], sides.get(key), wanted)
            if one is not None:
                found.append(one)
    return found


def share_wanted(row_bytes: int) -> float | None:
    """The share of the roof that rows of this width are to reach; ``None``: none is asked for."""
    return WIDE_SHARE if row_bytes >= WIDE_BYTES else ROOF_SHARES.get(row_bytes)


def write_targets(rows: Sequence[MicroRow], path: Path) -> str:
    """:func:`targets` as a CSV file; those with a verdict in words."""
    lines = []
    with RowFile(path, Target) as file:
        for one in targets(rows):
            file.add(one)
            if one.verdict:
                lines.append(
                    f"  {one.span_bytes / GIB:g} GiB, {one.row_bytes:5d} B: {one.ratio:.3f}"
                    f" ({one.low:.3f} to {one.high:.3f}) {one.target},"
                    f" at least {one.wanted:g}: {one.verdict}"
                )
    return "\n".join(["targets (median and extremes over the rounds):", *lines])


def _side(row: MicroRow) -> tuple[str, str]:
    """Which side of a comparison a row is on, and what it is called there; empty: neither."""
    if row.kind == "sm_read":
        return "roof", f"{row.cap / 100:g} blocks a multiprocessor"
    if row.kind != "gather":
        return "", ""
    if row.policy == OUR_BEST:
        return "ours", f"{row.policy}, {row.order}, cap {row.cap}"
    ours = POLICIES[row.policy].system == "gatherbench"
    return ("", "") if ours else ("peer", f"{POLICIES[row.policy].label}, {row.order}")


def _compare(
    target: str,
    span: int,
    width: int,
    ours: Mapping[str, Rates],
    other: Mapping[str, Rates] | None,
    wanted: float | None,
) -> Target | None:
    if not other:
        return None
    mine, theirs = (
        max(side.items(), key=lambda item: statistics.median(item[1].values()))
        for side in (ours, other)
    )
    both = sorted(mine[1].keys() & theirs[1].keys())
    if not both:
        return None
    ratios = [mine[1][number] / theirs[1][number] for number in both]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    names = (target, span, width, mine[0], theirs[0])
    verdict = verdict_of(wanted, middle, high)
    return Target(*names, middle, low, high, len(both), wanted, verdict)
