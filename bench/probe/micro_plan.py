"""What the micro-benchmark measures, and in which turn: decided before a GPU is touched.

Every point is visited once a round, in an order drawn anew for each round, so that a drift of the
machine (clocks, another guest's traffic) falls on all alike and a run that is cut short has
measured everything equally often. Sizes are chosen so that one gather reads much more than any
cache holds and takes milliseconds, beside which the microseconds of a launch vanish.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from gatherbench.kernels.policies import POLICIES, Policy

Kind = Literal["copy_engine", "sm_read", "gather", "sort", "unique", "id_check"]

GIB = 1 << 30
#: Row widths: 1, 4, 16, 64, 100, 128, 353, 602 and 1024 floats.
ROW_BYTES = (4, 16, 64, 64 * 4, 100 * 4, 128 * 4, 353 * 4, 602 * 4, 4096)
SPANS = (GIB, 8 * GIB, 32 * GIB)
#: Per cent of the threads that the GPU can hold; 0 leaves the grid to the policy.
CAPS = (0, 5, 10, 25)
#: What one gather reads at least, if the number of ids allows it.
READ_BYTES = 256 << 20
#: More ids than this make a gather of tiny rows no better measured, only slower.
MAX_IDS = 4 << 20
#: A roof reads one piece of this size somewhere in the span.
ROOF_BYTES = 1 << 30
#: Blocks for each hundred multiprocessors that the read roof tries: from as little in flight as the
#: smallest gathers have, for too much may slow reads down, to more than fits at once.
ROOF_BLOCKS = (10, 25, 50, 100, 200, 400, 800)
#: The policy of our own that is tried in every order.
OUR_BEST = "aligned"
SHARE_OF_MEMORY = 0.6
#: Row widths whose number of ids the passes over ids are timed for: from 4 M ids down to 64 k.
PASS_ROW_BYTES = (4, 16, 400, 4096)
#: Passes over int64 ids that lie on the GPU.
PASSES: tuple[Kind, ...] = ("sort", "unique", "id_check")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to time.

    Attributes:
        kind: copy engine or multiprocessors reading one contiguous piece (the roofs), a gather, or
            a pass over its ids on the GPU: the two order passes, and the check of the ids, for
            which the host waits.
        span_bytes: the part of the table in which the rows lie.
        cap: of the grid: per cent of the GPU's threads for a gather (0: the policy's own), blocks
            for each hundred multiprocessors for ``sm_read``, 0 for the copy engine.
        policy, order, row_bytes: of a gather.
    """

    kind: Kind
    span_bytes: int
    cap: int = 0
    policy: str = ""
    order: str = ""
    row_bytes: int = 0

    @property
    def num_ids(self) -> int:
        """Rows of one gather."""
        return min(MAX_IDS, max(1, READ_BYTES // self.row_bytes))

    @property
    def payload_bytes(self) -> int:
        """Bytes that arrive and were asked for."""
        if self.kind == "gather":
            return self.num_ids * self.row_bytes
        if self.kind in PASSES:
            return self.num_ids * 8
        return min(ROOF_BYTES, self.span_bytes)

    @property
    def num_rows(self) -> int:
        """Rows of the table, as this policy lays it out."""
        return self.span_bytes // POLICIES[self.policy].row_stride(self.row_bytes)


def orders_of(policy: Policy, row_bytes: int) -> tuple[str, ...]:
    """Our own policies are tried in every order; another system's in the one that it uses."""
    if policy.name == OUR_BEST:
        return ("given", "sorted", "unique")
    if policy.system == "gatherbench":
        return ("given", "sorted")
    return (policy.order_of(row_bytes),)


def caps_of(policy: Policy, caps: Sequence[int]) -> tuple[int, ...]:
    """The cap is our own axis: another system's policy keeps its own."""
    return tuple(caps) if policy.system == "gatherbench" else (0,)


def points(
    spans: Sequence[int] = SPANS,
    row_bytes: Sequence[int] = ROW_BYTES,
    policies: Sequence[str] = tuple(POLICIES),
    caps: Sequence[int] = CAPS,
) -> list[Point]:
    """Everything to time, roofs first.

    Raises:
        ValueError: an unknown policy, or a span too small for the largest row.
    """
    for name in policies:
        if name not in POLICIES:
            raise ValueError(f"unknown policy {name!r}: choose from {', '.join(POLICIES)}")
    if spans and row_bytes and min(spans) < max(row_bytes):
        raise ValueError("a span must hold at least one row")
    roofs = [Point("copy_engine", span) for span in spans]
    roofs += [Point("sm_read", span, blocks) for span in spans for blocks in ROOF_BLOCKS]
    passes = [
        Point(kind, span, row_bytes=width)
        for span in spans[:1]
        for kind in PASSES
        for width in PASS_ROW_BYTES
    ]
    gathers = [
        Point("gather", span, cap, name, order, width)
        for span in spans
        for width in row_bytes
        for name in policies
        for order in orders_of(POLICIES[name], width)
        for cap in caps_of(POLICIES[name], caps)
    ]
    return [*roofs, *passes, *gathers]


def rounds(plan: Sequence[T], seed: int = 0) -> Iterator[tuple[int, T]]:
    """``(round, point)`` without end: every point once a round, shuffled anew each time."""
    generator = random.Random(seed)
    number = 0
    while plan:
        turn = list(plan)
        generator.shuffle(turn)
        yield from ((number, point) for point in turn)
        number += 1


def fitting(spans: Sequence[int], available_bytes: int) -> tuple[int, ...]:
    """The spans for which there is host memory, the smallest at least if it fits at all."""
    return tuple(span for span in sorted(spans) if span <= SHARE_OF_MEMORY * available_bytes)


def as_large_as_opens(
    spans: tuple[int, ...], make: Callable[[tuple[int, ...]], T]
) -> tuple[T, tuple[int, ...]]:
    """What ``make`` makes of ascending ``spans``, or of all but the largest where it fails; both.

    What a machine promises is not always to be had: its memory may not be lockable in one piece, or
    not come when it is asked for.

    Raises:
        MemoryError, RuntimeError: it fails for the smallest, too.
    """
    while True:
        try:
            return make(spans), spans
        except (MemoryError, RuntimeError) as error:
            if len(spans) <= 1:
                raise
            print(f"span {spans[-1] / GIB:g} GiB left out: {error}", flush=True)
        spans = spans[:-1]
