"""The grid of launch policies: every way in which the one gather kernel can be specialised.

A :class:`GridPoint` and the size of a batch fix the macros with which the kernel is compiled and
the shape of its launch. Other systems' launches (``policies.py``), the strategies' choices and the
request accounting all use points of this grid. This module needs no GPU, compiler or torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Shift = Literal["none", "idle", "circular"]

#: Bytes of a GPU cache line, the unit of alignment (Min et al., PVLDB 14(11) 2021, section 4).
LINE_BYTES = 128
#: Bytes of a sector, the smallest part of a line that is fetched.
SECTOR_BYTES = 32
#: Bytes that a PCIe read completion carries besides its payload: 12 B of header and 8 B of framing
#: (Neugebauer et al., "Understanding PCIe performance for end host networking", SIGCOMM 2018).
COMPLETION_HEADER_BYTES = 20
WARP_LANES = 32
SHIFTS: tuple[Shift, ...] = ("none", "idle", "circular")
WIDTHS = (1, 2, 4, 8, 16)
#: (rows, loads) that a lane has in flight; more of both at once would spill registers.
IN_FLIGHT = ((1, 1), (1, 4), (4, 1))
#: The largest gridDim.x (CUDA C++ Programming Guide, "Technical Specifications").
MAX_GRID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One specialisation of the gather kernel and the shape of its launch.

    Attributes:
        shift: the lanes of a row that does not begin on a line of 128 B; see ``gather.cu``.
        width: bytes that a lane loads at once.
        lanes: lanes that share a row, a power of two up to ``block_threads``; 0 for the flat
            mapping (one thread per unit, rows end to end).
        rows: rows that a lane has in flight at once (1 in the flat mapping).
        loads: loads of one row that a lane has in flight at once.
        index_bytes: bytes of an id, 4 or 8.
        block_threads: threads of a block, a multiple of 32 up to 1024.
        max_blocks: the grid's cap; ``None``: as many blocks as the work needs.
    """

    shift: Shift = "circular"
    width: int = 4
    lanes: int = 32
    rows: int = 1
    loads: int = 1
    index_bytes: int = 8
    block_threads: int = 256
    max_blocks: int | None = None

    def __post_init__(self) -> None:
        threads, lanes, in_flight = self.block_threads, self.lanes, (self.rows, self.loads)
        fits = {
            "shift": self.shift in SHIFTS,
            "width": self.width in WIDTHS,
            "index_bytes": self.index_bytes in (4, 8),
            "rows, loads": in_flight in IN_FLIGHT and not (self.flat and self.rows > 1),
            "block_threads": threads in range(32, 1025, WARP_LANES),
            "lanes": self.flat or (lanes > 0 and lanes.bit_count() == 1 and threads % lanes == 0),
            "max_blocks": self.max_blocks is None or self.max_blocks >= 1,
        }
        if wrong := [field for field, right in fits.items() if not right]:
            raise ValueError(f"{self}: its documentation says which {', '.join(wrong)} there are")

    @property
    def flat(self) -> bool:
        return self.lanes == 0

    @property
    def kernel(self) -> str:
        """The name of the compiled kernel; points that differ only in their launch share it."""
        mapping = "flat" if self.flat else "rows"
        in_flight = f"r{self.rows}l{self.loads}"
        return f"{self.shift}-{mapping}-{self.width}B-{in_flight}-i{8 * self.index_bytes}"

    @property
    def macros(self) -> tuple[tuple[str, str], ...]:
        """The macros with which the kernel is compiled."""
        shift = SHIFTS.index(self.shift)
        values = {"SHIFT": shift, "WIDTH": self.width, "FLAT": int(self.flat), "ROWS": self.rows}
        values |= {"LOADS": self.loads, "INDEX": self.index_bytes}
        return tuple((f"GATHER_{name}", str(value)) for name, value in values.items())

    @property
    def block(self) -> tuple[int, int]:
        """blockDim.x and blockDim.y."""
        if self.flat:
            return self.block_threads, 1
        return self.lanes, self.block_threads // self.lanes

    def slots(self, row_bytes: int) -> int:
        """Return the places for lanes in a row of ``row_bytes``: its units, and idle places first;
        in the flat mapping with idle lanes, as many whole lines as it can touch."""
        units, line_units = row_bytes // self.width, LINE_BYTES // self.width
        if self.shift != "idle":
            return units
        if self.flat:
            return (units + 2 * line_units - 2) // line_units * line_units
        return units + line_units - 1

    def blocks(self, num_ids: int, row_bytes: int) -> int:
        """Return gridDim.x for ``num_ids`` rows of ``row_bytes``; 0 if there is no work."""
        if self.flat:
            work, tile = num_ids * self.slots(row_bytes), self.block_threads * self.loads
        else:
            work, tile = num_ids, self.block[1] * self.rows
        return min(-(-work // tile), self.max_blocks or MAX_GRID, MAX_GRID)

    def check(self, row_bytes: int, *multiples: int) -> None:
        """Refuse a table that this point cannot read; ``multiples`` are the addresses of table and
        output, and the row stride, in bytes.

        Raises:
            ValueError: the row is empty or longer than 2³¹ - 1 - 128 bytes, or one of the values is
                not a multiple of ``width``.
        """
        if not 0 < row_bytes < 2**31 - LINE_BYTES:
            raise ValueError(f"row_bytes = {row_bytes}: expected 1 to {2**31 - LINE_BYTES - 1}")
        if access_width(row_bytes, *multiples) < self.width:
            raise ValueError(
                f"GridPoint.width = {self.width} does not divide row bytes, row stride and "
                f"addresses {(row_bytes, *multiples)}; access_width(...) gives the widest that does"
            )


def access_width(*multiples: int, at_most: int = 16) -> int:
    """Return the widest access (1, 2, 4, 8 or 16 B) aligned for rows, strides and addresses."""
    return math.gcd(at_most, *multiples)
