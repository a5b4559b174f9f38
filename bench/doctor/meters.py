"""What each meter reads on this machine, found out by reading it: source, trust, loss and remedy.

A sensor that is there may still refuse, so every meter watches a short window of work for real. On
a GPU the link's counters are first held against copies of known size, as every run does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gatherbench.bench.doctor.finding import Finding
from gatherbench.bench.meters.base import TOO_SHORT, Meter, Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.rapl import MIN_WINDOW_S
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import APART, open_meters
from gatherbench.bench.run.rows import Row

#: For each meter: as long as the shortest window that RAPL is read over, and no longer.
WINDOW_S = 1.2 * MIN_WINDOW_S


def examine_meters() -> list[Finding]:
    """A finding for each meter there is, after one on a GPU's calibration; no sensor raises."""
    gpu, rows = _gpu()
    found = [] if gpu is None else [judge_calibration(rows, gpu.choice)]
    meters = [*open_meters(gpu=gpu), *(meter() for meter in APART)]
    return found + [judge(meter, seen) for meter, seen in watch(meters)]


def judge_calibration(rows: Sequence[Row], choice: SensorChoice) -> Finding:
    """What each source of link traffic counted for each byte of known copies, and on what link."""
    said: dict[str, list[str]] = {}
    for row in rows:
        if row.metric.endswith("_ratio"):
            direction = row.metric.removeprefix("pcie_").removesuffix("_ratio").replace("_", " ")
            told = _cause(row.reason or "") if row.value is None else format(row.value, ".3f")
            doubt = " (untrusted)" if row.source.endswith("; untrusted") else ""
            said.setdefault(row.source.partition(":")[0], []).append(f"{direction} {told}{doubt}")
    lines = [f"{source}: {', '.join(words)}" for source, words in said.items()]
    if lines:
        lines.append("(bytes counted for each byte of a known copy)")
    loaded = {
        row.metric.removeprefix("link_").removesuffix("_loaded"): row.value
        for row in rows
        if row.metric.startswith("link_") and row.metric.endswith("_loaded") and row.value
    }
    if loaded:
        lines.append(
            "the link while it copied: generation {gen:g} of {gen_max:g},"
            " width x{width:g} of x{width_max:g}".format_map(loaded)
        )
    name = "Link calibration"
    if choice.pcie is None:
        lost = "bytes over the link: no source of them can be believed"
        lines = lines or [_cause(choice.pcie_reason)]
        return Finding(name, "missing", "\n".join(lines), lost, _remedy(choice.pcie_reason))
    lines.append(f"{choice.pcie} is read by all cases")
    if loaded and (loaded["gen"], loaded["width"]) != (loaded["gen_max"], loaded["width_max"]):
        lost = "the link is slower under load than it can be, and so is every transfer"
        remedy = "hold LnkSta against LnkCap in lspci -vv, look at the slot and the BIOS"
        return Finding(name, "limited", "\n".join(lines), lost, remedy)
    return Finding(name, "ok", "\n".join(lines))


def watch(meters: Sequence[Meter]) -> list[tuple[Meter, tuple[Reading, ...]]]:
    """What each meter says of a window in which this process works."""
    watched = []
    for meter in meters:  # one at a time: what a meter says is then its own
        recorder = Recorder([meter])
        with recorder:
            end = time.perf_counter() + WINDOW_S
            while time.perf_counter() < end:
                pass
        watched.append((meter, recorder.readings))
    return watched


def judge(meter: Meter, readings: Sequence[Reading]) -> Finding:
    """What a meter's readings say of it."""
    there = [reading for reading in readings if reading.value is not None]
    absent = [reading for reading in readings if reading.value is None]
    later = [r.metric for r in absent if (r.reason or "").startswith(TOO_SHORT)]
    absent = [reading for reading in absent if reading.metric not in later]
    name = f"Meter {meter.name}"
    lines = [f"{', '.join(metrics)}: {source}" for source, metrics in _by_source(there).items()]
    if later:
        lines.append(f"{', '.join(later)}: read over longer windows than the doctor's")
    if there or later:
        lines.append(f"checked: {meter.trust}")
    if not absent:
        return Finding(name, "ok", "\n".join(lines))
    whys = list(dict.fromkeys(reading.reason or "" for reading in absent))
    remedies = dict.fromkeys(_remedy(why) for why in whys)
    missing = [f"no {reading.metric}: {_cause(reading.reason or '')}" for reading in absent]
    if len(whys) == 1:
        names = ", ".join(reading.metric for reading in absent)
        missing = [f"no {names}: {_cause(whys[0])}"]
    return Finding(
        name,
        "limited" if there or later else "missing",
        "\n".join(lines + missing),
        meter.lost,
        "; ".join(remedies),
    )


def _by_source(readings: Sequence[Reading]) -> dict[str, list[str]]:
    metrics: dict[str, list[str]] = {}
    for reading in readings:
        metrics.setdefault(reading.source, []).append(reading.metric)
    return metrics


def _cause(reason: str) -> str:
    """A reason without its kind and its remedy."""
    kind, _, rest = reason.partition(": ")
    return (rest or kind).rpartition("; ")[0] or rest or kind


def _remedy(reason: str) -> str:
    return reason.rpartition("; ")[2] if "; " in reason else "none is known"


def _gpu() -> tuple[GpuUnderTest | None, list[Row]]:
    """The GPU that a run would use and the rows of its calibration; ``None`` without one."""
    import torch

    rows: list[Row] = []
    if not torch.cuda.is_available():
        return None, rows
    from gatherbench.bench.run.calibration_job import run_maker
    from gatherbench.bench.run.sensor_calibration import calibrate_gpu, torch_gpu_uuids

    uuids: tuple[str, ...] = ()
    try:
        uuids = torch_gpu_uuids(torch.device("cuda"))
        choice = calibrate_gpu(run_maker("doctor", "", ""), rows.append, idle_s=0.0)
    except RuntimeError as error:  # CUDA's: another program holds the GPU or its memory, say
        why = str(error).partition("\n")[0].replace(";", ",")
        choice = SensorChoice(None, f"failed: {why}; nvidia-smi says who holds the GPU, if anyone")
    return GpuUnderTest(uuids, choice), rows
