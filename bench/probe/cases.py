"""The test cases of host memory, disk, link and GPU, and which points of each are measured.

Each case has a name, a unit and what it needs; ``gpu-micro --list`` shows them. What is measured is
decided before a GPU is touched. Sizes are such that one launch reads much more than any cache holds
and takes milliseconds, beside which the microseconds of the launch vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import TypeVar

from gatherbench.bench.read.points import Point
from gatherbench.kernels.policies import POLICIES

T = TypeVar("T")
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """A test case.

    Attributes:
        unit: of the amount that is timed or counted; an amount of ``what``.
        section: of ``gpu-micro``, whose sections have a process each; ``disk``: a calibration
            alone times it.
        needs: beside the processor.
    """

    name: str
    unit: str
    what: str
    section: str = "gather"
    needs: str = "a GPU"


#: Every case by name.
CASES = {
    case.name: case
    for case in (
        Case("host_copy", "B", "bytes copied by the processor: each is read and written", needs=""),
        Case("host_read", "B", "bytes read by the processor", needs=""),
        Case("host_gather", "B", "bytes of rows gathered by the processor", needs=""),
        Case("host_sample", "1", "edges sampled by the processor", needs=""),
        Case("disk_random", "1", "blocks of a file, read in random order", "disk", "a disk"),
        Case(
            "disk_sequential", "B", "bytes of a file, read one behind the other", "disk", "a disk"
        ),
        Case("table_fill", "B", "bytes of the table, mapped and filled by the processor"),
        Case("table_register", "B", "bytes of the table, page-locked and mapped for the GPU"),
        Case("copy_to_device", "B", "bytes copied from page-locked memory by the copy engine"),
        Case("copy_to_host", "B", "bytes copied to page-locked memory by the copy engine"),
        Case("copy_pageable", "B", "bytes of rows gathered into fresh memory and copied"),
        Case("sm_read", "B", "contiguous bytes of host memory, read by the multiprocessors"),
        Case("gpu_gather", "B", "bytes of rows gathered from host memory by the GPU"),
        Case("managed_gather", "B", "bytes of rows gathered by the GPU from managed memory"),
        Case("round_trip", "1", "dependent loads from host memory by one thread of the GPU"),
        Case("sort_ids", "1", "ids on the GPU, sorted"),
        Case("unique_ids", "1", "ids on the GPU, of which duplicates are removed"),
        Case("check_ids", "1", "ids on the GPU, compared with the table's length; the host waits"),
        Case("gpu_copy", "B", "bytes copied within GPU memory: each is read and written"),
        Case("gpu_matmul", "1", "float32 operations of a product of matrices"),
        Case("gpu_launch", "1", "operations issued to the GPU"),
        Case("gpu_issue", "1", "operations of a training step, issued to the GPU"),
        Case("gpu_replay", "1", "operations of a captured training step, replayed by the GPU"),
        Case("gpu_draw", "1", "layers of small minibatches, drawn by the GPU"),
        Case("gpu_submit", "1", "minibatches of ids handed to the GPU and launched"),
        Case("train_alone", "1", "steps of a load that is like training", "overlap"),
        Case("fetch_alone", "1", "fetches of a minibatch", "overlap"),
        Case("train_and_fetch", "1", "steps of a load with a fetch beside it", "overlap"),
        *(
            case
            for memory in ("registered", "managed")
            for case in (
                Case(f"visits_{memory}", "1", f"reads of 64 B of {memory} memory", "pages"),
                Case(f"span_{memory}", "B", f"bytes of rows out of {memory} memory", "pages"),
                Case(f"foreign_{memory}", "B", "the same, by kernels that are not ours", "pages"),
            )
        ),
        *(
            Case(f"split_{piece}", "B", f"the same, advice alternates every {words}", "pages")
            for piece, words in (("64k", "64 KiB"), ("4k", "4 KiB"))
        ),
        Case("expected_sectors", "1", "sectors that the accounting expects of a gather", "ncu"),
        Case("expected_requests_128", "1", "requests expected, if the largest reads 128 B", "ncu"),
        Case("expected_requests_64", "1", "requests expected, if the largest reads 64 B", "ncu"),
        Case("counted_sectors", "1", "sectors of a gather that the GPU counted", "ncu", "ncu"),
        Case("counted_requests", "1", "requests of a gather that the GPU counted", "ncu", "ncu"),
        Case("counted_bytes", "B", "bytes that the link carried to a gather", "ncu", "ncu"),
        Case(
            "peer_gather",
            "B",
            "bytes of rows gathered, by WholeGraph and by us",
            "peer",
            "WholeGraph",
        ),
    )
}

SPANS = (GIB, 8 * GIB, 32 * GIB)
#: What one gather reads at least, if the number of ids allows it.
READ_BYTES = 256 * MIB
#: More ids than this make a gather of tiny rows no better measured, only slower.
MAX_IDS = 4 << 20
#: A roof reads one piece of this size somewhere in the span.
ROOF_BYTES = GIB
#: Blocks for each hundred multiprocessors that the read roof tries: from as little in flight as the
#: smallest gathers have, for too much may slow reads down, to more than fits at once.
ROOF_BLOCKS = (10, 25, 50, 100, 200, 400, 800)
#: Our policy that is tried in every order, and that is calibrated: the one of aligned and of
#: overlapped zero-copy.
OUR_BEST = "aligned"
SHARE_OF_MEMORY = 0.6
#: Passes over int64 ids that lie on the GPU.
PASSES = ("sort_ids", "unique_ids", "check_ids")
#: Of whole rows by the GPU: out of registered memory, and out of managed.
GATHERS = ("gpu_gather", "managed_gather")

#: Bytes of the narrowest row that is calibrated: a sector, so that a gather visits as many pages as
#: it can.
NARROWEST = 32
#: And of managed memory: a request, so that rows narrower than what was read before count alike.
MANAGED_ROW_BYTES = 64
#: Bytes of a row that a calibration fits: a sector, a line, and 32 to 1024 floats; and of those it
#: holds out: 100 and 353 floats.
FITTED_ROW_BYTES = (NARROWEST, 64, 128, 256, 512, 1024, 602 * 4, 4096)
HELD_OUT_ROW_BYTES = (100 * 4, 353 * 4)
#: The width at which threads, spans and shares of the GPU are varied: 128 floats, whole lines.
USUAL_ROW_BYTES = 512
#: Per cent of the GPU's threads that a calibration's gather has, beside the policy's own grid.
SHARES = (1, 2, 3, 5, 10, 15, 25)
#: Bytes of a random read of a disk, and of a long one; how many reads are in flight.
DISK_READ_BYTES, LONG_READ_BYTES = 4096, MIB
DEPTHS, LONG_DEPTH = (1, 8, 32, 128), 8


def num_ids(point: Point) -> int:
    """Rows of one gather, or ids of one pass over them."""
    return min(MAX_IDS, max(1, READ_BYTES // point.row_bytes))


def amount_of(point: Point) -> int:
    """What one launch moves or looks at, in the case's unit; of the roofs, gathers and passes."""
    if point.case in GATHERS:
        return num_ids(point) * point.row_bytes
    return num_ids(point) if point.case in PASSES else min(ROOF_BYTES, point.span_bytes)


def num_rows(point: Point) -> int:
    """Rows of the table, as the point's policy lays it out."""
    return point.span_bytes // POLICIES[point.policy].row_stride(point.row_bytes)


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4, … and ``cores`` itself."""
    return tuple(sorted({*(1 << k for k in range(cores.bit_length()) if 1 << k <= cores), cores}))


def host_points(cores: int, span_bytes: int) -> list[Point]:
    """The processor's part of a calibration, on ``cores`` cores and a table of ``span_bytes``.

    The gather on every core is fitted over the widths of rows, how it grows with its threads at one
    of them. Others are held out, on all cores and on half of them.
    """
    threads = thread_counts(cores)
    cases = product(("host_copy", "host_read", "host_sample"), threads)
    points = [Point(case, 0, span_bytes, count) for case, count in cases]
    points += [Point("host_gather", width, span_bytes, cores) for width in FITTED_ROW_BYTES]
    fewer = [count for count in threads if count != cores]
    points += [Point("host_gather", USUAL_ROW_BYTES, span_bytes, count) for count in fewer]
    held_out = [(width, count) for width in HELD_OUT_ROW_BYTES for count in (*fewer[-1:], cores)]
    return points + [
        Point("host_gather", width, span_bytes, count, held_out=True) for width, count in held_out
    ]


def disk_points() -> list[Point]:
    """A disk's part of a calibration; ``threads`` are reads in flight."""
    points = [Point("disk_random", DISK_READ_BYTES, threads=depth) for depth in DEPTHS]
    return [*points, Point("disk_sequential", LONG_READ_BYTES, threads=LONG_DEPTH)]


def managed_points(spans: Sequence[int]) -> list[Point]:
    """What a calibration reads of managed memory: the narrowest rows, and usual ones held out."""
    fitted = [Point("managed_gather", MANAGED_ROW_BYTES, s, 0, 0, OUR_BEST, "given") for s in spans]
    return fitted + [
        Point("managed_gather", USUAL_ROW_BYTES, span, 0, 0, OUR_BEST, "given", held_out=True)
        for span in spans
    ]


def gpu_points(spans: Sequence[int], cores: int) -> list[Point]:
    """The link's and the GPU's part of a calibration, over ``spans`` bytes of host memory.

    What the link does with requests is fitted over the smallest span, where addresses are
    translated at little cost; how fast the GPU goes from page to page, over every one. Of three
    spans or more the contiguous reads of the middle one are held out.
    """
    ordered = sorted(spans)
    least, most = ordered[0], ordered[-1]
    middle = ordered[len(ordered) // 2] if len(ordered) >= 3 else None

    def gather(
        width: int, span: int, share: int = 0, *, order: str = "given", held_out: bool = False
    ) -> Point:
        return Point("gpu_gather", width, span, 0, share, OUR_BEST, order, held_out=held_out)

    points = [
        Point("copy_to_device", span_bytes=most),
        Point("copy_to_host", span_bytes=most),
        Point("copy_pageable", USUAL_ROW_BYTES, most, cores),
        Point("gpu_copy"),
        Point("gpu_matmul"),
        Point("gpu_launch"),
        *(
            map(
                Point,
                ("gpu_issue", "gpu_replay", "gpu_draw") if find_spec("torch_geometric") else (),
            )
        ),
        Point("gpu_submit", USUAL_ROW_BYTES, most),
    ]
    for span in ordered:
        points.append(Point("round_trip", span_bytes=span))
        points += [
            Point("sm_read", span_bytes=span, grid_percent=blocks, held_out=span == middle)
            for blocks in ROOF_BLOCKS
        ]
        if span != least:
            points.append(gather(NARROWEST, span))
            points.append(gather(USUAL_ROW_BYTES, span, held_out=True))
    points += [gather(width, least) for width in FITTED_ROW_BYTES]
    points += [gather(width, least, held_out=True) for width in HELD_OUT_ROW_BYTES]
    if most != least:
        points += [gather(w, most, held_out=True) for w in (*HELD_OUT_ROW_BYTES, 128, 4096)]
        points += [
            gather(width, most, order="sorted", held_out=True)
            for width in (NARROWEST, USUAL_ROW_BYTES)
        ]
    return points + [gather(USUAL_ROW_BYTES, most, share) for share in SHARES]


def fitting(spans: Sequence[int], available_bytes: int) -> tuple[int, ...]:
    """The spans for which there is host memory, the smallest at least if it fits at all."""
    return tuple(span for span in sorted(spans) if span <= SHARE_OF_MEMORY * available_bytes)


def as_large_as_opens(spans: tuple[int, ...], make: Callable[[tuple[int, ...]], T]) -> T:
    """What ``make`` makes of ascending ``spans``, or of all but the largest where it fails.

    What a machine promises is not always to be had: its memory may not be lockable in one piece, or
    not come when it is asked for.

    Raises:
        MemoryError, RuntimeError: it fails for the smallest, too.
    """
    try:
        return make(spans)
    except (MemoryError, RuntimeError) as error:
        if len(spans) <= 1:
            raise
        print(f"span {spans[-1] / GIB:g} GiB left out: {error}", flush=True)
    return as_large_as_opens(spans[:-1], make)
