"""Energy of a case: over all of its measured epochs together, since one is too short to tell.

The GPU's energy counter wants windows of ten seconds. Where the measured epochs do not fill one,
whole epochs are run on, after everything that is timed or scored, until they do. Either way the
rows of the stage ``energy`` say how many epochs the window held and how long it was; energy an
epoch is derived when they are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.clock import WallClockMeter
from gatherbench.bench.meters.gpu_choice import GpuUnderTest
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import (
    SHORTEST_ENERGY_WINDOW_S,
    GpuEnergyMeter,
    GpuPowerMeter,
)
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.run.reading_row import row_of
from gatherbench.bench.run.rows import Row, RowMaker

STAGE = "energy"


class EnergyBlock:
    """A window around a case's measured epochs; without a GPU it does nothing.

    Args:
        gpu: whose energy; ``None``: no GPU takes part.
        shortest_s: how long further epochs are run, where the measured ones were too short.
        run_on: whether they are; where not, the energy of a short window stays unknown.
    """

    def __init__(
        self,
        gpu: GpuUnderTest | None,
        shortest_s: float = SHORTEST_ENERGY_WINDOW_S,
        *,
        run_on: bool = True,
    ) -> None:
        self._gpu, self._shortest_s, self._run_on = gpu, shortest_s, run_on
        self._recorder = Recorder([] if gpu is None else [GpuEnergyMeter(gpu), WallClockMeter()])

    def __enter__(self) -> Self:
        self._recorder.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.__exit__(exc_type, exc, traceback)

    def rows(self, epochs: int, one_epoch: Callable[[], object], make: RowMaker) -> Iterator[Row]:
        """The block's rows, after further epochs where ``epochs`` were too short a window."""
        if self._gpu is None:
            return
        readings, said = self._recorder.readings, "the measured epochs, from the first to the last"
        if self._run_on and any(_refused(reading) for reading in readings):
            readings, epochs = self._further(one_epoch)
            said = "further epochs, not timed: the measured ones were too short a window"
        yield make.ok(STAGE, "epochs", "1", epochs, said)
        for reading in readings:
            yield row_of(reading, make, STAGE)

    def _further(self, one_epoch: Callable[[], object]) -> tuple[tuple[Reading, ...], int]:
        # Nothing here is timed, so sources of link traffic that block may be read too.
        meters = (PcieMeter(self._gpu, timed=False), GpuPowerMeter(self._gpu), WallClockMeter())
        recorder, epochs = Recorder(meters), 0
        with recorder:
            begin = time.monotonic()
            while time.monotonic() - begin < self._shortest_s:
                one_epoch()
                epochs += 1
        return recorder.readings, epochs


def _refused(reading: Reading) -> bool:
    """Whether the counter is there and only the window was too short for it."""
    short = reading.reason is not None and reading.reason.kind == "too_short"
    return reading.metric == "gpu_energy" and short
