"""What a calibration measures, in which turn, and what of it is held out: decided before it begins.

Some points are never fitted. The profile predicts them afterwards, and by how much it misses is
reported with it: widths of rows between those that are fitted, other numbers of threads, other
spans. A fit that only repeats its own points shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from gatherbench.bench.probe.micro_plan import ROOF_BLOCKS, rounds

Kind = Literal[
    "host_copy",
    "host_read",
    "host_gather",
    "host_sample",
    "copy_to_device",
    "copy_to_host",
    "copy_pageable",
    "sm_read",
    "gpu_gather",
    "round_trip",
    "gpu_copy",
    "gpu_matmul",
    "gpu_launch",
    "gpu_submit",
]
#: The unit of a sample's amount, and what one of it is.
UNITS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "host_copy": ("B", "bytes copied (each is read and written)"),
        "host_read": ("B", "bytes read"),
        "host_gather": ("B", "bytes of gathered rows"),
        "host_sample": ("1", "edges sampled"),
        "copy_to_device": ("B", "bytes copied from page-locked memory"),
        "copy_to_host": ("B", "bytes copied to page-locked memory"),
        "copy_pageable": ("B", "bytes of rows gathered into fresh memory and copied"),
        "sm_read": ("B", "bytes read, contiguous"),
        "gpu_gather": ("B", "bytes of gathered rows"),
        "round_trip": ("1", "dependent loads"),
        "gpu_copy": ("B", "bytes copied (each is read and written)"),
        "gpu_matmul": ("1", "float32 operations"),
        "gpu_launch": ("1", "operations issued"),
        "gpu_submit": ("1", "minibatches of ids handed over"),
    }
)

#: The launch policy that is calibrated: the one of aligned and of overlapped zero-copy.
POLICY = "aligned"
#: Bytes of the narrowest row: a sector, so that a gather visits as many pages as it can.
NARROWEST = 32
#: Bytes of a row: a sector, a line, and rows of 32 to 1024 floats. Held out: 100 and 353 floats.
ROW_BYTES = (NARROWEST, 64, 128, 256, 512, 1024, 602 * 4, 4096)
HELD_OUT_ROW_BYTES = (100 * 4, 353 * 4)
#: The width at which threads, spans and shares of the GPU are varied: 128 floats, whole lines.
USUAL_ROW_BYTES = 512
#: Per cent of the GPU's threads that gather, beside the policy's own grid.
SHARES = (1, 2, 3, 5, 10, 15, 25)


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to time.

    Attributes:
        kind: what, see :data:`UNITS`.
        row_bytes: of a gather.
        threads: of the processor; 0 where it has no part.
        share: ``gpu_gather``: per cent of the GPU's threads (0: as many as there is work for);
            ``sm_read``: blocks for each hundred multiprocessors.
        span_bytes: the part of the table that is read; 0 where there is none.
        order: of a GPU gather's ids.
        held_out: not fitted, but predicted.
    """

    kind: Kind
    row_bytes: int = 0
    threads: int = 0
    share: int = 0
    span_bytes: int = 0
    order: Literal["given", "sorted"] = "given"
    held_out: bool = False


class Observation(NamedTuple):
    """``amount`` (see :data:`UNITS`) took ``seconds`` by ``clock``."""

    amount: float
    seconds: float
    clock: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation of a point."""

    point: Point
    round: int
    observed: Observation


class Stand(Protocol):
    """What measures points: the host, a GPU, or a stand-in with known constants in a test."""

    def measure(self, point: Point) -> Observation:
        """One observation of ``point``."""
        ...


def host_points(cores: int, span_bytes: int) -> list[Point]:
    """The processor's part, on ``cores`` cores and a table of ``span_bytes``.

    Epochs gather on every core, so that is what is fitted over the widths of rows. How the gather
    grows with its threads (doubled from 1) is held out, for the model takes it to grow in step.
    """
    threads = thread_counts(cores)
    points = [
        Point(kind, threads=count, span_bytes=span_bytes)
        for kind in ("host_copy", "host_read", "host_sample")
        for count in threads
    ]
    points += [
        Point("host_gather", width, cores, span_bytes=span_bytes, held_out=held_out)
        for widths, held_out in ((ROW_BYTES, False), (HELD_OUT_ROW_BYTES, True))
        for width in widths
    ]
    return points + [
        Point("host_gather", USUAL_ROW_BYTES, count, span_bytes=span_bytes, held_out=True)
        for count in threads
        if count != cores
    ]


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4, … and ``cores`` itself."""
    return tuple(sorted({*(1 << k for k in range(cores.bit_length()) if 1 << k <= cores), cores}))


def gpu_points(spans: Sequence[int], cores: int) -> list[Point]:
    """The link's and the GPU's part, over tables of ``spans`` bytes in host memory.

    What the link does with requests is fitted over the smallest span, where addresses are
    translated at little cost, and how fast the GPU goes from page to page over every one. Of three
    spans or more the contiguous reads of the middle one are held out.
    """
    ordered = sorted(spans)
    least, most = ordered[0], ordered[-1]
    middle = ordered[len(ordered) // 2] if len(ordered) >= 3 else None
    points = [
        Point("copy_to_device", span_bytes=most),
        Point("copy_to_host", span_bytes=most),
        Point("copy_pageable", USUAL_ROW_BYTES, cores, span_bytes=most),
        Point("gpu_copy"),
        Point("gpu_matmul"),
        Point("gpu_launch"),
        Point("gpu_submit", USUAL_ROW_BYTES, span_bytes=most),
    ]
    for span in ordered:
        points.append(Point("round_trip", span_bytes=span))
        points += [
            Point("sm_read", share=blocks, span_bytes=span, held_out=span == middle)
            for blocks in ROOF_BLOCKS
        ]
        if span != least:
            points.append(Point("gpu_gather", NARROWEST, span_bytes=span))
            points.append(Point("gpu_gather", USUAL_ROW_BYTES, span_bytes=span, held_out=True))
    points += [Point("gpu_gather", width, span_bytes=least) for width in ROW_BYTES]
    points += [
        Point("gpu_gather", width, span_bytes=least, held_out=True) for width in HELD_OUT_ROW_BYTES
    ]
    if most != least:
        points += [
            Point("gpu_gather", width, span_bytes=most, held_out=True)
            for width in (*HELD_OUT_ROW_BYTES, 128, 4096)
        ]
        points += [
            Point("gpu_gather", width, span_bytes=most, order="sorted", held_out=True)
            for width in (NARROWEST, USUAL_ROW_BYTES)
        ]
    points += [Point("gpu_gather", USUAL_ROW_BYTES, 0, share, most) for share in SHARES]
    return points


def measure_all(
    points: Sequence[Point],
    stand: Stand,
    *,
    most_rounds: int,
    out_of_time: Callable[[], bool],
    report: Callable[[Sample], None],
) -> int:
    """Visit every point once a round, in an order drawn anew for each; the number of whole rounds.

    The first round warms caches, pages and clocks and is not reported. Ends after
    ``most_rounds`` reported rounds, or when ``out_of_time`` says so.
    """
    whole = 0
    for visited, (number, point) in enumerate(rounds(points)):
        if number > most_rounds or out_of_time():
            break
        observed = stand.measure(point)
        if number:
            report(Sample(point, number, observed))
        whole = (visited + 1) // len(points) - 1
    return max(0, whole)
