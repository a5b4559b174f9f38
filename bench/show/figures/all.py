"""Every figure of a run, by the name of its file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from gatherbench.bench.read.tables import Run
from gatherbench.bench.show.figures.cpu_seconds import cpu_core_seconds
from gatherbench.bench.show.figures.cpu_threads import cpu_by_thread
from gatherbench.bench.show.figures.epoch_breakdown import epoch_breakdown
from gatherbench.bench.show.figures.gpu_energy import gpu_energy_per_epoch, gpu_mean_power
from gatherbench.bench.show.figures.pcie_over_time import pcie_over_time
from gatherbench.bench.show.figures.speedup import speedup
from gatherbench.bench.show.figures.style import RC
from gatherbench.bench.show.sentences.provenance import has_gpu

#: Drawn of runs in which a GPU took part: elsewhere they could only say that none did.
GPU_FIGURES: dict[str, Callable[[Run], Figure]] = {
    "gpu_energy": gpu_energy_per_epoch,
    "gpu_power": gpu_mean_power,
    "pcie_over_time": pcie_over_time,
}
FIGURES: dict[str, Callable[[Run], Figure]] = {
    "epoch_breakdown": epoch_breakdown,
    "speedup": speedup,
    "cpu_seconds": cpu_core_seconds,
    "cpu_threads": cpu_by_thread,
}


def save_all(run: Run, folder: Path, formats: Iterable[str] = ("png", "svg")) -> list[Path]:
    """Draw every figure into ``folder`` (made if need be); returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    figures = FIGURES | (GPU_FIGURES if has_gpu(run) else {})
    for name, draw in figures.items():
        figure = draw(run)
        for extension in formats:
            path = folder / f"{name}.{extension}"
            # Without its date the same run gives the same SVG.
            metadata = {"Date": None} if extension == "svg" else None
            with mpl.rc_context(RC):
                figure.savefig(path, metadata=metadata)
            written.append(path)
    return written
