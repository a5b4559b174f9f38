"""Launch policies: how other systems would place a gather on the GPU, as points of the grid.

A policy is a rule: for a table, it gives the :class:`GridPoint` to launch and the order of the ids.
All run on the same kernel, so two policies differ only in lanes, widths, shift and order. That is
why a policy is "the policy of X" and never X.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from gatherbench.kernels.grid import LINE_BYTES, WARP_LANES, GridPoint, Shift, access_width

Order = Literal["given", "sorted"]


@dataclass(frozen=True, slots=True)
class Policy:
    """One launch policy; ``policies.toml`` explains the fields."""

    name: str
    system: str
    source: str
    width: Literal["element", "widest"] | int
    mapping: Literal["flat", "warp", "block", "fitted"]
    block_threads: int
    in_flight: int = 1
    shift: Shift = "none"
    shift_above: int = 0
    shift_whole_lines: bool = True
    order: Order = "given"
    order_up_to: int | None = None
    pad: int = 1
    max_threads: int | None = None
    differs: str = ""

    @property
    def label(self) -> str:
        """The policy's name in tables and plots."""
        return self.name if self.system == "gatherbench" else f"policy of {self.system}"

    def row_stride(self, row_bytes: int) -> int:
        """Return the bytes from row to row in a table laid out for this policy."""
        return -(-row_bytes // self.pad) * self.pad

    def order_of(self, row_bytes: int) -> Order:
        """Return the order of the ids that this policy makes before its kernel."""
        if self.order_up_to is not None and row_bytes > self.order_up_to:
            return "given"
        return self.order

    def point(
        self,
        row_bytes: int,
        item_bytes: int,
        *,
        table_address: int = 0,
        out_address: int = 0,
        index_bytes: int = 8,
    ) -> GridPoint:
        """Return the launch for a table with rows of ``row_bytes`` and elements of ``item_bytes``.

        Args:
            table_address, out_address: in bytes; they limit the width of an access.
            index_bytes: bytes of an id, 4 or 8.
        """
        wanted = int({"element": item_bytes, "widest": 16}.get(str(self.width), self.width))
        multiples = row_bytes, self.row_stride(row_bytes), table_address, out_address
        width = access_width(*multiples, at_most=min(wanted, 16))
        units = row_bytes // width
        lanes = self._lanes(units)
        shifted = row_bytes > self.shift_above and (
            self.shift_whole_lines or row_bytes % LINE_BYTES != 0
        )
        one_load = lanes and units <= lanes
        max_blocks = None if self.max_threads is None else self.max_threads // self.block_threads
        return GridPoint(
            self.shift if shifted else "none",
            width,
            lanes,
            rows=self.in_flight if one_load else 1,
            loads=1 if one_load else self.in_flight,
            index_bytes=index_bytes,
            block_threads=self.block_threads,
            max_blocks=max_blocks,
        )

    def _lanes(self, units: int) -> int:
        if self.mapping == "flat":
            return 0
        if self.mapping == "warp":
            return WARP_LANES
        if self.mapping == "fitted":
            return min(WARP_LANES, 1 << (units - 1).bit_length())
        lanes = self.block_threads
        while lanes >= 2 * units:
            lanes //= 2
        return lanes


_RULES = tomllib.loads(Path(__file__).with_name("policies.toml").read_text())
#: Every policy by name, in the order of ``policies.toml``.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {name: Policy(name=name, **rule) for name, rule in _RULES.items()}
)


def policy(name: str) -> Policy:
    """Return the policy called ``name``; ``ValueError`` with all names if there is none."""
    if name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}: choose from {', '.join(POLICIES)}")
    return POLICIES[name]
