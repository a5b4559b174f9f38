"""``gatherbench doctor``: what this machine has, and what is lost by each thing that it lacks.

It looks and never changes anything; a remedy is a sentence for the reader. What cases of a probe
need and do not find is named with those cases. A sensor that is there may still refuse, so every
meter watches a short window of work for real. On a GPU the link's counters are first held against
copies of known size, as every run does.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gatherbench.bench.machine.env import (
    describe_cpu,
    describe_memory,
    describe_numa,
    library_versions,
)
from gatherbench.bench.machine.gpus import GpuInfo, gpu_in_use, list_gpus, used_first
from gatherbench.bench.meters.base import Meter, Reading
from gatherbench.bench.meters.load import Load
from gatherbench.bench.meters.nvml_device import GpuUnderTest
from gatherbench.bench.meters.rapl import MIN_WINDOW_S
from gatherbench.bench.meters.recorder import Recorder
from gatherbench.bench.meters.registry import open_meters
from gatherbench.bench.meters.trust import SensorCheck
from gatherbench.bench.probe.case import Case, every_case
from gatherbench.datasets.store import data_root
from gatherbench.plugins import installing
from gatherbench.reason import Reason, SensorUnavailableError

GIB = 2**30
#: How long each meter watches: as long as the shortest window that RAPL is read over.
WINDOW_S = 1.2 * MIN_WINDOW_S
#: In place of a remedy.
_NONE = "none is known"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for.

    Attributes:
        name: what was looked for.
        status: ``ok``, ``limited`` (there, but less than a benchmark wants) or ``missing``.
        detail: what was found.
        lost: what cannot be measured, or is measured worse, because of it; empty when ok.
        remedy: what to do about it; empty when ok.
    """

    name: str
    status: Literal["ok", "limited", "missing"]
    detail: str
    lost: str = ""
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything; never raises for something that is not there."""
    memory, cpu = describe_memory(), describe_cpu()
    gpus: list[GpuInfo] = []
    try:
        gpus = list_gpus()
        of_gpu = _gpu_findings(gpus)
    except SensorUnavailableError as unavailable:
        of_gpu = _no_gpu(unavailable.reason)
    return [
        *of_gpu,
        _huge_pages(memory),
        _pinned_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        _free_memory(memory),
        _free_disk(data_root().absolute()),
        _disk_reads(),
        _numa(cpu, gpus),
        _governor(cpu),
        _load(Load.now()),
        *_libraries(library_versions()),
        *_cases(every_case().values()),
        *_chosen(),
        *examine_meters(),
    ]


def print_doctor(console: Console, findings: Sequence[Finding]) -> None:
    """Print a table of the findings and a line that counts them; readable at 80 columns."""
    colours = {"ok": "green", "limited": "yellow", "missing": "red"}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        lines = [Text(finding.detail)]
        if finding.lost:
            lines.append(Text(f"lost: {finding.lost}", style="yellow"))
            lines.append(Text(f"remedy: {finding.remedy}"))
        status = Text(finding.status, style=colours[finding.status])
        table.add_row(status, Text(finding.name, style="bold"), Group(*lines))
    counts = [f"{sum(f.status == status for f in findings)} {status}" for status in colours]
    console.print(Group(table, Text(", ".join(counts))))


def _no_gpu(why: Reason) -> list[Finding]:
    lost = "no transfer to a GPU is measured, no bytes over a link, no energy of a GPU"
    return [Finding("GPU", "missing", f"{why.kind}: {why.cause}", lost, why.remedy or _NONE)]


def _gpu_findings(gpus: list[GpuInfo]) -> list[Finding]:
    used = gpu_in_use(gpus)
    first = used_first(gpus, used)[0]
    memory = f", {_size(first.memory_bytes)}" if first.memory_bytes else ""
    which = "the one that a run uses" if used else "NVML's first; CUDA does not say which it uses"
    among = f", of {len(gpus)} {which}" if len(gpus) > 1 else ""
    driver = f"driver {first.driver or 'unknown'}, CUDA up to {first.cuda_driver or 'unknown'}"
    return [
        Finding("GPU", "ok", f"{first.name}{memory}{among}"),
        Finding("Driver and NVML", "ok", driver),
        _link(first),
    ]


def _link(gpu: GpuInfo) -> Finding:
    """The generation drops while the GPU idles, so only the width and the maximum are judged."""
    if gpu.link_gen_max is None or gpu.link_width_max is None:
        lost = "the link's share that a strategy reaches cannot be stated"
        remedy = "ask lspci -vv on the host for LnkSta"
        return Finding("PCIe link", "limited", "NVML does not say", lost, remedy)
    detail = (
        f"generation {gpu.link_gen_current} of {gpu.link_gen_max}, "
        f"width x{gpu.link_width_current} of x{gpu.link_width_max}"
    )
    if gpu.link_width_current is not None and gpu.link_width_current < gpu.link_width_max:
        lost = "the link runs on a part of its lanes, and every transfer is slower"
        return Finding("PCIe link", "limited", detail, lost, "reseat the card or change the slot")
    return Finding("PCIe link", "ok", f"{detail} (the generation drops when idle)")


def _judged(name: str, fine: bool, detail: str, lost: str, remedy: str) -> Finding:
    """What is ``ok``, or ``limited`` with what is lost by that."""
    return Finding(name, "ok", detail) if fine else Finding(name, "limited", detail, lost, remedy)


def _huge_pages(memory: dict[str, Any]) -> Finding:
    setting = memory["transparent_huge_pages"]
    fine, detail = setting in ("always", "madvise"), f"transparent: {setting}"
    lost = "random rows cost page-table walks: gathers by the CPU are slower"
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root"
    return _judged("Huge pages", fine, detail, lost, remedy)


def _pinned_limit(limit_bytes: int) -> Finding:
    """RLIMIT_MEMLOCK bounds mlock; the CUDA driver pins by itself and is mostly exempt."""
    if limit_bytes == resource.RLIM_INFINITY:
        return Finding("Pinned memory", "ok", "no limit (RLIMIT_MEMLOCK)")
    limit = f"limit {_size(limit_bytes)} (RLIMIT_MEMLOCK)"
    fine = limit_bytes >= psutil.virtual_memory().total // 2
    lost = "locking a large feature table may be refused (CUDA's own pinning is mostly exempt)"
    return _judged("Pinned memory", fine, limit, lost, "ulimit -l unlimited")


def _free_memory(memory: dict[str, Any]) -> Finding:
    free = psutil.virtual_memory().available
    total = memory["total"]
    detail = f"{_size(free)} of {_size(total)} free"
    if memory["container_limit"] is not None and memory["container_limit"] < total:
        detail += f", the container is limited to {_size(memory['container_limit'])}"
        free = min(free, memory["container_limit"])
    lost = "feature tables of a few GiB do not fit: large graphs need a smaller scale"
    remedy = "free memory, or plan with a lower scale"
    return _judged("Memory", free >= 8 * GIB, detail, lost, remedy)


def _free_disk(graphs: Path) -> Finding:
    """Of the folder where graphs go, which need not be there yet, and of the current one."""
    there = next(folder for folder in (graphs, *graphs.parents) if folder.exists())
    free, here = (shutil.disk_usage(folder).free for folder in (there, Path.cwd()))
    detail = (
        f"{_size(free)} free for graphs ({graphs}), {_size(here)} in the current folder, where"
        " results go"
    )
    remedy = "free space, or set GATHERBENCH_DATA to a folder on a larger disk"
    return _judged("Disk", free >= 10 * GIB, detail, "large graphs cannot be written", remedy)


def _disk_reads() -> Finding:
    from gatherbench.kernels.read_engines import open_engine

    engine, reason = open_engine("io_uring", 1)
    engine.close()
    lost = "a thread waits for each read of a table on disk, which costs the CPU more"
    remedy = f"{installing('disk')}; let a container's profile allow io_uring_setup"
    return _judged("Disk reads", not reason, reason or "io_uring", lost, remedy)


def _numa(cpu: dict[str, Any], gpus: list[GpuInfo]) -> Finding:
    nodes = cpu["numa_nodes"]
    if nodes is None or nodes == 1:
        return Finding("NUMA", "ok", "one node" if nodes else "the kernel names no nodes")
    found = describe_numa([gpu.numa_node for gpu in gpus])
    lost = "a table on the far node is read through the socket link and times scatter"
    remedy = "numactl --cpunodebind=N --membind=N around gatherbench, with the GPU's node if any"
    return _judged("NUMA", found["bound"], f"{nodes} nodes; {found['binding']}", lost, remedy)


def _governor(cpu: dict[str, Any]) -> Finding:
    governor = cpu["scaling_governor"]
    detail = f"governor: {governor or 'not visible (common in a VM)'}"
    lost = "the clock ramps up and down: short epochs scatter"
    remedy = "cpupower frequency-set -g performance, as root"
    return _judged("CPU clock", governor in (None, "performance"), detail, lost, remedy)


def _load(load: Load) -> Finding:
    detail = str(load) if load.busy else f"idle (load average {load.average:.1f})"
    lost = "epochs take longer and differ more; a run lets its threads wait passively"
    return _judged("Load", not load.busy, detail, lost, "end the other work, or wait for it")


def _libraries(versions: dict[str, str | None]) -> list[Finding]:
    there = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    findings = [Finding("Libraries", "ok", there)]
    if not versions.get("ogb"):
        lost = "ogbn-* graphs cannot be prepared"
        findings.append(Finding("ogb (extra)", "missing", "not installed", lost, installing("ogb")))
    return findings


def _cases(cases: Iterable[Case]) -> list[Finding]:
    """What cases of a probe lack, and which; or that all can be measured."""
    there, lacking = 0, defaultdict[str, list[str]](list)
    reasons: dict[str, Reason] = {}
    for one in cases:
        missing = one.missing()
        there += not missing
        for need, why in missing.items():
            lacking[need].append(one.name)
            reasons[need] = why
    found = [Finding("Probe", "ok", f"{there} cases can be measured (gatherbench probe --list)")]
    for need, names in lacking.items():
        why, lost = reasons[need], f"cases of gatherbench probe: {', '.join(names)}"
        found.append(Finding(f"Probe: {need}", "missing", why.cause, lost, why.remedy or _NONE))
    return found


def _chosen() -> list[Finding]:
    """What ``auto`` has found here, for tables of which shape."""
    import torch

    from gatherbench.strategies.auto_kept import kept_for, machine_of

    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.insert(0, torch.device("cuda"))
    lines = [
        f"{asked.rows:,} rows of {asked.row_bytes:,} B to {device.type}: {found} ({found.day})"
        for device in devices
        for asked, found in kept_for(machine_of(device))
    ]
    return [Finding("Chosen by auto", "ok", "\n".join(lines))] if lines else []


def examine_meters() -> list[Finding]:
    """A finding for each meter there is, after one on a GPU's calibration; no sensor raises."""
    uuids, calibration = _calibrated()
    gpu = None if calibration is None else GpuUnderTest(uuids, calibration.choice)
    meters = open_meters(gpu=gpu)
    found = [] if calibration is None else [judge_sensors(calibration)]
    return found + [judge(meter, seen) for meter, seen in watch(meters)]


def _calibrated() -> tuple[tuple[str, ...], SensorCheck | None]:
    """Names of the GPU that a run would use, and its calibration; ``None`` without one."""
    import torch

    if not torch.cuda.is_available():
        return (), None
    from gatherbench.bench.run.job import COPIES_MIB
    from gatherbench.bench.run.rows import RowMaker
    from gatherbench.bench.run.sensor_check import calibrate_gpu, torch_gpu_uuids

    uuids: tuple[str, ...] = ()
    try:
        uuids = torch_gpu_uuids(torch.device("cuda"))
        make = RowMaker("doctor", "", "", "cuda")
        return uuids, calibrate_gpu(make, lambda _: None, COPIES_MIB, idle_s=0.0)
    except RuntimeError as error:  # CUDA's: another program holds the GPU or its memory, say
        cause = str(error).partition("\n")[0]
        why = Reason("failed", cause, "nvidia-smi says who holds the GPU, if anyone")
        return uuids, SensorCheck(unavailable=why)


def judge_sensors(found: SensorCheck) -> Finding:
    """What each source of link traffic counted for each byte of known copies, and on what link."""
    said = defaultdict[str, list[str]](list)
    for one in found.comparisons:
        told = one.ratio.cause if isinstance(one.ratio, Reason) else f"{one.ratio:.3f}"
        if not isinstance(one.ratio, Reason) and not one.trusted:
            told += " (untrusted)"
        said[one.source].append(f"{one.direction.replace('_', ' ')} {told}")
    lines = [f"{source}: {', '.join(words)}" for source, words in said.items()]
    if lines:
        lines.append("(bytes counted for each byte of a known copy)")
    loaded = found.link_loaded
    if loaded is not None:
        lines.append(
            "the link while it copied: generation {gen} of {gen_max},"
            " width x{width} of x{width_max}".format_map(asdict(loaded))
        )
    name, choice = "Link sensors", found.choice
    if choice.pcie_reason is not None:
        lost = "bytes over the link: no source of them can be believed"
        lines = lines or [choice.pcie_reason.cause]
        return Finding(name, "missing", "\n".join(lines), lost, choice.pcie_reason.remedy or _NONE)
    lines.append(f"{choice.pcie} is read by all cases")
    if loaded and (loaded.gen, loaded.width) != (loaded.gen_max, loaded.width_max):
        lost = "the link is slower under load than it can be, and so is every transfer"
        remedy = "hold LnkSta against LnkCap in lspci -vv, look at the slot and the BIOS"
        return Finding(name, "limited", "\n".join(lines), lost, remedy)
    return Finding(name, "ok", "\n".join(lines))


def watch(meters: Sequence[Meter]) -> list[tuple[Meter, tuple[Reading, ...]]]:
    """What each meter says of a window in which this process works."""
    watched = []
    for meter in meters:  # one at a time: what a meter says is then its own
        with Recorder([meter]) as recorder:
            end = time.perf_counter() + WINDOW_S
            while time.perf_counter() < end:
                pass
        watched.append((meter, recorder.readings))
    return watched


def judge(meter: Meter, readings: Sequence[Reading]) -> Finding:
    """What a meter's readings say of it."""
    sources, absent = defaultdict[str, list[str]](list), defaultdict[Reason, list[str]](list)
    later: list[str] = []
    for reading in readings:
        if reading.reason is None:
            sources[reading.source].append(reading.metric)
        elif reading.reason.kind == "too_short":
            later.append(reading.metric)
        else:
            absent[reading.reason].append(reading.metric)
    name = f"Meter {meter.name}"
    lines = [f"{', '.join(metrics)}: {source}" for source, metrics in sources.items()]
    if later:
        lines.append(f"{', '.join(later)}: read over longer windows than the doctor's")
    if sources or later:
        lines.append(f"checked: {meter.trust}")
    if not absent:
        return Finding(name, "ok", "\n".join(lines))
    lines += [f"no {', '.join(metrics)}: {why.cause}" for why, metrics in absent.items()]
    remedies = "; ".join(dict.fromkeys(why.remedy or _NONE for why in absent))
    status: Literal["limited", "missing"] = "limited" if sources or later else "missing"
    return Finding(name, status, "\n".join(lines), meter.lost, remedies)


def _size(size_bytes: int) -> str:
    unit, name = (GIB, "GiB") if size_bytes >= GIB else (2**20, "MiB")
    return f"{size_bytes / unit:.1f} {name}"
