"""What the gather's source does when it is run on the host: the rows it makes and its requests.

Machine code tells that a kernel changed, but not whether it is still right, or whether its warps
still begin where they should: losing the circular shift makes better machine code. So the source is
run behind the shim on one small batch. Its rows and its reports of bad ids are compared with plain
indexing, the requests of its loads with the closed form that everything else counts with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatherbench.kernels.compiler import KERNEL_SOURCE
from gatherbench.kernels.grid import LINE_BYTES, SECTOR_BYTES, GridPoint
from gatherbench.kernels.requests import RequestCounts, count_requests, counts_of_masks
from tools.shim.execute import Shim, ShimError, build

#: Bytes of a row: Reddit's 602 floats, padded so that every width of an access divides them.
ROW_BYTES = 2416
#: Bytes past a line at which the table begins, so that no row is aligned by chance.
OFFSET = 48
_NUM_ROWS = 41
_TABLE = np.random.default_rng(0).integers(1, 256, (_NUM_ROWS, ROW_BYTES), dtype=np.uint8)
#: Every row once, in an order of no pattern.
IDS = np.random.default_rng(1).permutation(_NUM_ROWS)
_BAD = {5: -1, 20: _NUM_ROWS}  # position: an id just outside the table


class Behaviour(NamedTuple):
    """What the kernels of a source do with the batch.

    Attributes:
        requests: read requests by size in bytes for each kernel, of a batch without bad ids.
        wrong: what a kernel does wrong, for each that does.
    """

    requests: Mapping[str, Mapping[int, int]]
    wrong: Mapping[str, str]


def observe(points: Iterable[GridPoint], source: Path = KERNEL_SOURCE) -> Behaviour:
    """Run the kernels of ``points`` on the host.

    Raises:
        FileNotFoundError: there is no g++ on this machine.
        ShimError: the source does not compile.
    """
    requests: dict[str, Mapping[int, int]] = {}
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), source, sanitize=False)
        for point in points:
            try:
                with Shim(program) as shim:
                    requests[point.kernel], fault = _run(shim, point)
            except ShimError as stopped:
                fault = f"stopped: {stopped}"
            if fault:
                wrong[point.kernel] = fault
    return Behaviour(requests, wrong)


def count_recorded(
    loads: NDArray[np.void], rows: int, max_request: int = LINE_BYTES
) -> RequestCounts:
    """Count the requests of loads that were really made.

    Args:
        loads: records with the fields ``address`` (bytes), ``warp``, ``instruction`` and ``size``
            (bytes), one for each load of each lane, as :class:`shim.execute.Execution` has them.
            No load crosses a sector.
        rows: rows that were gathered.
    """
    order = np.lexsort((loads["address"], loads["instruction"], loads["warp"]))
    loads = loads[order]
    line = loads["address"] // LINE_BYTES
    sector = loads["address"] % LINE_BYTES // SECTOR_BYTES
    starts = np.ones(loads.size, bool)
    starts[1:] = (
        (np.diff(loads["warp"]) != 0) | (np.diff(loads["instruction"]) != 0) | (np.diff(line) != 0)
    )
    bits = np.left_shift(1, sector.astype(np.int64))
    masks = np.bitwise_or.reduceat(bits, np.flatnonzero(starts)) if loads.size else bits
    return counts_of_masks(np.bincount(masks, minlength=16), rows, max_request)


def _run(shim: Shim, point: GridPoint) -> tuple[Mapping[int, int], str]:
    """The requests of one kernel, and what it does wrong."""
    ids, rows = IDS.copy(), _TABLE[IDS]
    for position, bad in _BAD.items():
        ids[position], rows[position] = bad, 0
    got = shim.run(point, _TABLE, ids, table_offset=OFFSET, out_offset=16, report_bad=True)
    loads = shim.run(point, _TABLE, IDS, table_offset=OFFSET, record=True).loads
    counted = count_recorded(loads, IDS.size).requests
    expected = count_requests(point, IDS, ROW_BYTES, OFFSET).requests
    if not np.array_equal(got.rows, rows):
        return counted, "its rows are not those of a plain gather"
    if got.bad_id != -1:
        return counted, f"it reports {got.bad_id} as the bad id, not -1"
    if counted != expected:
        return counted, f"its loads are {counted} requests by size; the accounting says {expected}"
    return counted, ""
