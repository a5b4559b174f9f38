"""``gatherbench doctor`` lists what this machine has, what it lacks, and what is lost by that.

It only looks and changes nothing; a remedy is a sentence for the reader. What a probe's cases need
and lack is listed with those cases. A sensor that exists may still refuse, so every meter really
measures a short window of work. Each run on a GPU checks the link's counters itself, with copies
of known size.
"""

from __future__ import annotations

import shutil
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from gatherbench.bench.machine.env import describe_cpu, describe_memory, library_versions
from gatherbench.bench.machine.gpus import list_gpus, used_first
from gatherbench.bench.machine.numa import describe_numa
from gatherbench.bench.meters.base import Meter
from gatherbench.bench.meters.load import Load
from gatherbench.bench.meters.nvml_device import COUNTERS, GpuUnderTest, SensorChoice, uuids_of
from gatherbench.bench.meters.rapl import MIN_WINDOW_S
from gatherbench.bench.meters.registry import open_meters, tried
from gatherbench.bench.probe.case import every_case
from gatherbench.datasets.store import data_root
from gatherbench.kernels.cuda_calls import driver_shortage
from gatherbench.kernels.read_engines import open_engine
from gatherbench.plugins import installing
from gatherbench.reason import Reason, SensorUnavailableError

GIB = 2**30
#: What is lost where a check is not ok, and its remedy, by the check's name.
TEXTS = tomllib.loads(Path(__file__).with_name("doctor.toml").read_text("utf-8"))
#: Seconds that each meter measures: 20 % longer than the shortest window that RAPL allows.
WINDOW_S = 1.2 * MIN_WINDOW_S


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was found, what cannot be measured (or is measured worse)
    because of it, and what to do; the last two are empty when it is ok.

    ``limited`` is there, but less than a benchmark wants.
    """

    name: str
    status: Literal["ok", "limited", "missing"]
    detail: str
    lost: str = ""
    remedy: str = ""


def examine() -> list[Finding]:
    """Check everything; something that is missing is a finding and raises no error."""
    gpus = list[dict[str, Any]]()
    try:
        gpus, _ = used_first(list_gpus())
        of_gpu = [*_gpu(gpus)]
    except SensorUnavailableError as unavailable:
        of_gpu = [_missing("GPU", unavailable.reason)]
    return [*of_gpu, *_host(gpus), *_cases(), *examine_meters()]


def _judged(name: str, fine: bool, detail: str, remedy: str = "") -> Finding:
    """Return a finding that is ``ok``, or ``limited`` with what is lost."""
    if fine:
        return Finding(name, "ok", detail)
    texts = TEXTS[name]
    return Finding(name, "limited", detail, texts["lost"], remedy or texts["remedy"])


def _missing(name: str, reason: Reason, lost: str = "") -> Finding:
    lost = lost or TEXTS[name]["lost"]
    return Finding(name, "missing", reason.cause, lost, reason.remedy or "none is known")


def _gpu(gpus: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    gpu, several = gpus[0], f", the first of {len(gpus)}" * (len(gpus) > 1)
    memory = f", {_size(gpu['memory_bytes'])}" if gpu["memory_bytes"] else ""
    yield Finding("GPU", "ok", f"{gpu['name']}{memory}{several}")
    shortage = driver_shortage()
    served = f"driver {gpu['driver'] or 'unknown'}, CUDA up to {gpu['cuda_driver'] or 'unknown'}"
    yield _judged("Driver", not shortage, served, shortage)
    # The generation drops while the GPU idles, so only the width is judged.
    width, lanes = gpu["link_width_current"], gpu["link_width_max"]
    now, best = gpu["link_gen_current"], gpu["link_gen_max"]
    link = f"generation {now} of {best}, width x{width} of x{lanes}"
    yield _judged("PCIe link", None not in (width, lanes) and width == lanes, link)


def _host(gpus: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    memory, cpu = describe_memory(), describe_cpu()
    pages = memory["transparent_huge_pages"]
    yield _judged("Huge pages", pages in ("always", "madvise"), f"transparent: {pages}")

    free = psutil.virtual_memory().available
    limit = memory["container_limit"] or memory["total"]
    detail = f"{_size(free)} of {_size(memory['total'])} free"
    if limit < memory["total"]:
        detail += f", the container is limited to {_size(limit)}"
    yield _judged("Memory", min(free, limit) >= 8 * GIB, detail)

    graphs = data_root().absolute()
    data_disk = next(folder for folder in (graphs, *graphs.parents) if folder.exists())
    free, free_here = (shutil.disk_usage(folder).free for folder in (data_disk, Path.cwd()))
    detail = f"{_size(free)} free for graphs ({graphs}), {_size(free_here)} for results"
    yield _judged("Disk", free >= 10 * GIB, f"{detail} (current folder)")

    engine, reason = open_engine("io_uring", 1)
    engine.close()
    remedy = f"{installing('disk')}; let a container's profile allow io_uring_setup"
    yield _judged("Disk reads", not reason, reason or "io_uring", remedy)

    nodes, numa = cpu["numa_nodes"] or 1, describe_numa([gpu["numa_node"] for gpu in gpus])
    detail = f"nodes: {nodes}; {numa['binding']}"
    yield _judged("NUMA", nodes == 1 or numa["bound"], detail)

    governor = cpu["scaling_governor"]
    detail = f"governor: {governor or 'not visible (common in a VM)'}"
    yield _judged("CPU clock", governor in (None, "performance"), detail)

    load = Load.now()
    detail = str(load) if load.busy else f"idle (load average {load.average:.1f})"
    yield _judged("Load", not load.busy, detail)

    versions = library_versions()
    installed = (f"{name} {version}" for name, version in versions.items() if version)
    yield Finding("Libraries", "ok", ", ".join(installed))
    if not versions.get("ogb"):
        yield _missing("ogb (extra)", Reason("not_installed", "not installed", installing("ogb")))


def _cases() -> Iterator[Finding]:
    """Give the number of cases that can be measured, then each missing need with its cases."""
    names, cases = defaultdict[tuple[str, Reason], list[str]](list), every_case()
    for case in cases.values():
        for lacking in case.missing().items():
            names[lacking].append(case.name)
    count = len(cases.keys() - set().union(*names.values()))
    yield Finding("Probe", "ok", f"{count} cases can be measured (gatherbench probe --list)")
    for (need, reason), skipped in names.items():
        lost = f"these cases are skipped: {', '.join(skipped)}"
        yield _missing(f"Probe: {need}", reason, lost)


def examine_meters() -> Iterator[Finding]:
    """Give a finding for each meter; a sensor that fails raises no error."""
    gpu = None
    try:
        if torch.cuda.is_available():  # the GPU of a run, as if its link's counters were trusted
            device = torch.cuda.current_device()
            uuids = uuids_of(device, str(torch.cuda.get_device_properties(device).uuid))
            gpu = GpuUnderTest(uuids, SensorChoice(COUNTERS, None))
    except RuntimeError as error:  # CUDA's, if another program holds the GPU's memory
        cause = str(error).partition("\n")[0]
        remedy = "nvidia-smi shows which programs use the GPU"
        yield _missing("CUDA", Reason("failed", cause, remedy))
    yield from map(judge, open_meters(gpu=gpu))


def judge(meter: Meter) -> Finding:
    """Let a meter measure for a short time, and judge it by its readings."""
    name, measured = f"Meter {meter.name}", list[str]()
    absent = defaultdict[Reason, list[str]](list)
    try:
        readings = tried(meter, WINDOW_S)
    except ValueError as error:
        return _missing(name, Reason("failed", str(error)), meter.lost)
    for reading in readings:
        if reading.reason is None or reading.reason.kind == "too_short":  # longer windows have it
            measured.append(reading.metric)
        else:
            absent[reading.reason].append(reading.metric)
    lines = [f"{', '.join(measured)}: {meter.trust}"] if measured else []
    lines += [f"no {', '.join(metrics)}: {reason.cause}" for reason, metrics in absent.items()]
    if not absent:
        return Finding(name, "ok", "\n".join(lines))
    remedies = "; ".join(dict.fromkeys(reason.remedy or "none is known" for reason in absent))
    status: Literal["limited", "missing"] = "limited" if measured else "missing"
    return Finding(name, status, "\n".join(lines), meter.lost, remedies)


def _size(size_bytes: int) -> str:
    unit, name = (GIB, "GiB") if size_bytes >= GIB else (2**20, "MiB")
    return f"{size_bytes / unit:.1f} {name}"
