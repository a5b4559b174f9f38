"""Work of a case after all that is timed: for the energy counter, the disk, and a step's memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from gatherbench.bench.meters.base import Recorder
from gatherbench.bench.meters.cpu import WallClockMeter
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import SHORTEST_ENERGY_WINDOW_S, GpuEnergyMeter, GpuPowerMeter
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.kernels.disk_read import BLOCK_BYTES, DiskReadError, RowReader
from gatherbench.kernels.table_file import TableFile

ENERGY_STAGE = "energy"
#: Reads of the disk in flight; of a batch, enough that filling and draining the queue count little.
DEPTH, _BATCH = 128, 8 * 128
_ROOF_S = 0.3


def peak_of(work: Callable[[], object], device: torch.device) -> tuple[float, str]:
    """Return the peak bytes of the device's memory that work adds; and the source.

    On a host it counts torch's tensors: its allocator reports each of them to the profiler.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, "torch.cuda.max_memory_allocated"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    held = itertools.accumulate((event.nbytes() for event in changes), initial=0)
    return float(max(held)), "torch.profiler, profile_memory of one step"


class EnergyBlock(Recorder):
    """A window around a case's measured epochs; without a GPU it does nothing.

    The GPU's energy counter needs windows of ten seconds (``shortest_s``). If the measured epochs
    together are shorter, further whole epochs ``run_on`` to fill one, or the energy stays unknown.
    Readers derive the energy per epoch from the window's epochs and length.
    """

    def __init__(
        self,
        gpu: GpuUnderTest | None,
        shortest_s: float = SHORTEST_ENERGY_WINDOW_S,
        *,
        run_on: bool = True,
    ) -> None:
        super().__init__([] if gpu is None else [GpuEnergyMeter(gpu), WallClockMeter()])
        self._gpu, self._shortest_s, self._run_on = gpu, shortest_s, run_on

    def rows(
        self,
        epochs: int,
        one_epoch: Callable[[], object],
        make: RowMaker,
        gathered: Callable[[bool], list[bool]] = lambda own: [own],
    ) -> Iterator[Row]:
        """Yield the block's rows, after further epochs if ``epochs`` were too short a window.

        ``gathered`` collects every rank's need for more: ranks that train together continue alike.
        """
        if self._gpu is None:
            return
        readings, source = self.readings, "the measured epochs, from the first to the last"
        reasons = [reading.reason for reading in readings if reading.metric == "gpu_energy"]
        short = any(why is not None and why.kind == "too_short" for why in reasons)
        if self._run_on and any(gathered(short)):
            source = "further epochs, not timed: the measured ones were too short a window"
            meters = [PcieMeter(self._gpu), GpuPowerMeter(self._gpu), WallClockMeter()]
            with Recorder(meters) as recorder:
                begin, epochs = time.monotonic(), 0
                while any(gathered(time.monotonic() - begin < self._shortest_s)):
                    one_epoch()
                    epochs += 1
            readings = recorder.readings
        yield make.ok(ENERGY_STAGE, "epochs", "1", epochs, source)
        for reading in readings:
            yield make.row(ENERGY_STAGE, reading)


def disk_roof(table: TableFile | None, make: RowMaker, seed: int) -> list[Row]:
    """Return rows of random reads of a block, as ``fio`` makes them, and their time; or why not.

    They bypass the page cache, by the engine that ``disk_direct`` would use. A path's own reads may
    be of several blocks, and fewer at a time. Each repeat has a ``seed`` of its own: those that
    read the same blocks might hit a disk's cache.
    """
    if table is None:
        return []
    reads, blocks = ("fetch", "disk_roof_reads", "1"), table.end // BLOCK_BYTES
    source = f"random reads of {BLOCK_BYTES} B of the table's file, {DEPTH} in flight, {_ROOF_S} s"
    if not blocks:
        return [make.missing(*reads, source, "unsupported: the file has less than a block")]
    generator, out = np.random.default_rng(seed), np.empty((_BATCH, BLOCK_BYTES), np.uint8)
    spent, count = 0.0, 0
    try:
        reader = RowReader(TableFile(table.path, 0, blocks, BLOCK_BYTES), depth=DEPTH, merge=False)
        while spent < _ROOF_S:
            ids = generator.integers(0, blocks, _BATCH)
            begin = time.perf_counter()
            reader.read(ids, out)
            spent += time.perf_counter() - begin
            count += _BATCH
        reader.close()
    except DiskReadError as error:
        return [make.missing(*reads, source, f"failed: {error}")]
    source += f", {reader.engine}"
    times = make.ok("fetch", "disk_roof_time", "s", spent, source)
    return [make.ok(*reads, count, source), times]
