"""Windows of NVML's GPU performance metrics (GPM): mean rates between snapshots.

A metric needs 200 ms between its two snapshots, and sometimes comes back as exactly 0 beside
traffic; a link with a working GPU at its end is never quite silent, so a 0 is a sample that failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pynvml

from gatherbench.bench.meters.nvml_device import free_gpm_sample, gpm_metrics

SHORTEST_S = 0.2
MIB = 2**20
_METRICS = (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC)

Snapshot = tuple[float, Any]
Series = tuple[tuple[float, float], ...]


class GpmWindow:
    """Snapshots (s, handle) of one window, given back to NVML when it is left."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = list(snapshots)

    @property
    def length_s(self) -> float:
        """From the first snapshot to the last."""
        return self._snapshots[-1][0] - self._snapshots[0][0] if self._snapshots else 0.0

    def chain(self) -> list[Snapshot]:
        """Snapshots from edge to edge, no two closer than :data:`SHORTEST_S`."""
        first, *inner, last = self._snapshots
        chain = [first]
        for snapshot in inner:
            if snapshot[0] - chain[-1][0] >= SHORTEST_S <= last[0] - snapshot[0]:
                chain.append(snapshot)
        return [*chain, last]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for _, sample in self._snapshots:
            free_gpm_sample(sample)


def traffic(chain: Sequence[Snapshot]) -> tuple[Series | str, Series | str]:
    """Bytes from host to device and back since the first snapshot, at each snapshot's time.

    A direction for which an interval came back as exactly 0 has a reason instead.

    Raises:
        SensorUnavailableError: NVML refuses.
    """
    begin_s = chain[0][0]
    totals: tuple[list[tuple[float, float]], ...] = ([(0.0, 0.0)], [(0.0, 0.0)])
    zeros = [0, 0]
    for (early_s, early), (late_s, late) in itertools.pairwise(chain):
        for i, mib_per_s in enumerate(gpm_metrics(early, late, _METRICS)):
            zeros[i] += mib_per_s == 0
            total = totals[i][-1][1] + mib_per_s * MIB * (late_s - early_s)
            totals[i].append((late_s - begin_s, total))

    def answer(i: int) -> Series | str:
        if not zeros[i]:
            return tuple(totals[i])
        return (
            f"unsupported: the metric came back as 0 for {zeros[i]} of {len(chain) - 1} intervals;"
            " a driver fault, run again"
        )

    return answer(0), answer(1)
