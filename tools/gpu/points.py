"""The gathers that gpu-micro measures, beside a calibration's points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from gatherbench.bench.probe.cases import OUR_BEST, PASSES, ROOF_BLOCKS, SPANS
from gatherbench.bench.read.points import Point
from gatherbench.kernels.policies import POLICIES

#: Row widths of a run of gpu-micro: 1, 4, 16, 64, 100, 128, 353, 602 and 1024 floats.
ROW_BYTES = (4, 16, 64, 64 * 4, 100 * 4, 128 * 4, 353 * 4, 602 * 4, 4096)
#: Grids of a gather, per cent of the threads that the GPU can hold.
CAPS = (0, 5, 10, 25)
#: Row widths whose number of ids the passes over ids are timed for: from 4 M ids down to 64 k.
PASS_ROW_BYTES = (4, 16, 400, 4096)


def gather_points(
    spans: Sequence[int] = SPANS,
    row_bytes: Sequence[int] = ROW_BYTES,
    policies: Sequence[str] = tuple(POLICIES),
    caps: Sequence[int] = CAPS,
) -> list[Point]:
    """Gathers by every policy beside the roofs, and passes over ids: what gpu-micro measures.

    Grid and order are our own axes: another system's policy keeps its own.

    Raises:
        ValueError: an unknown policy, or a span too small for the largest row.
    """
    for name in policies:
        if name not in POLICIES:
            raise ValueError(f"unknown policy {name!r}: choose from {', '.join(POLICIES)}")
    if spans and row_bytes and min(spans) < max(row_bytes):
        raise ValueError("a span must hold at least one row")
    points = [Point("copy_to_device", span_bytes=span) for span in spans]
    roofs = product(spans, ROOF_BLOCKS)
    points += [Point("sm_read", span_bytes=s, grid_percent=blocks) for s, blocks in roofs]
    passes = product(PASSES, PASS_ROW_BYTES, spans[:1])
    points += [Point(case, width, span) for case, width, span in passes]
    for span, width, name in product(spans, row_bytes, policies):
        orders, grids = ("given", "sorted", "unique")[: 2 + (name == OUR_BEST)], caps
        if POLICIES[name].system != "gatherbench":
            orders, grids = (POLICIES[name].order_of(width),), (0,)
        for order, cap in product(orders, grids):
            points.append(Point("gpu_gather", width, span, 0, cap, name, order))
    return points
