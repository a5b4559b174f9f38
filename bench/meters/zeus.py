"""A second opinion on energy: what ``zeus`` (ml-energy/zeus) says, where it is installed.

It reads the same counter of the same driver, so agreement says that the window and the device are
the right ones, not that the counter is.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from gatherbench.bench.meters.base import Reading

_WINDOW = "gatherbench"
SOURCE = "zeus.monitor.ZeusMonitor"


class ZeusMeter:
    """Energy of one GPU by zeus. Units: J.

    Args:
        torch_index: the GPU, counted as torch counts; zeus heeds ``CUDA_VISIBLE_DEVICES`` too.
    """

    name: ClassVar[str] = "zeus"
    summary: ClassVar[str] = "energy of the GPU, cross-checked by zeus where it is installed"
    lost: ClassVar[str] = "a second opinion on energy"
    trust: ClassVar[str] = "another library's reading of the same counter"

    def __init__(self, torch_index: int) -> None:
        self._index = torch_index
        self._monitor: Any = None
        self._reason: str | None = None

    def probe(self) -> str | None:
        if self._monitor is None and self._reason is None:
            self._reason = self._open()
        return self._reason

    def _open(self) -> str | None:
        try:
            zeus = importlib.import_module("zeus.monitor")
        except ImportError as missing:
            return f"unsupported: zeus cannot be imported ({missing}); pip install zeus"
        self._monitor = zeus.ZeusMonitor(gpu_indices=[self._index])
        return None

    def start(self) -> None:
        if self.probe() is None:
            self._monitor.begin_window(_WINDOW)

    def stop(self) -> list[Reading]:
        if self._monitor is None:
            reason = self._reason or "failed: the window was never opened"
            return [Reading("gpu_energy_zeus", "J", None, SOURCE, reason)]
        joules = float(self._monitor.end_window(_WINDOW).gpu_energy[self._index])
        if joules <= 0:
            reason = "failed: zeus says no energy was drawn; see its warnings"
            return [Reading("gpu_energy_zeus", "J", None, SOURCE, reason, samples=2)]
        return [Reading("gpu_energy_zeus", "J", joules, SOURCE, samples=2)]
