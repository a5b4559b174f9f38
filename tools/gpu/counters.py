"""Does the hardware see the requests that the accounting counts? Nsight Compute beside it.

``ncu`` runs this module, which launches one gather for each policy and row width, and reads the
counters of each launch. The table then has both: sectors and requests that the accounting expects,
and sectors, requests and bytes that were counted.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from gatherbench.bench.probe.stand import RefusedError, row_of
from gatherbench.bench.read.points import Point, PointRow
from gatherbench.kernels.compiler import KERNEL_NAME
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import count_requests

SPAN_BYTES = 1 << 30
ROWS = 20_000
POLICY_NAMES = ("unaligned", "aligned", "aligned-idle", "dgl", "torch-quiver")
WIDTHS = (64, 400, 512, 1412, 2408, 4096)
#: Counters (Nsight Compute, "Metrics Reference") by case: reads of sectors of host memory and
#: requests for them that multiprocessors make to the L2, and bytes read over PCIe. Without
#: ``srcunit_tex`` the L2's halves count a read again that one asks the other for: an H200's did so
#: with every second one.
COUNTERS = {
    "counted_sectors": "lts__t_sectors_srcunit_tex_aperture_sysmem_op_read.sum",
    "counted_requests": "lts__t_requests_srcunit_tex_aperture_sysmem_op_read.sum",
    "counted_bytes": "pcie__read_bytes.sum",
}
#: Seconds kept back for the accounting, whose first call is compiled.
CLOSING_S = 20.0
#: How ncu says that this user may read no counters.
_FORBIDDEN = "ERR_NVGPUCTRPERM"

#: What was counted of each launch, by counter; ``None``: this GPU has no such counter.
Counted = list[dict[str, float | None]]


def launches() -> list[tuple[str, int]]:
    """Policy and row width of each launch, in order."""
    return [(name, width) for name in POLICY_NAMES for width in WIDTHS]


def ids_of(name: str, width: int) -> torch.Tensor:
    """The rows of one launch: each once, so that no cache serves a row twice."""
    rows = SPAN_BYTES // POLICIES[name].row_stride(width)
    generator = torch.Generator().manual_seed(width)
    return torch.randperm(ROWS, generator=generator) * (rows // ROWS)


def workload() -> None:
    """Launch each gather once: what ncu runs."""
    from gatherbench.bench.probe.gpu import GpuStand

    device = torch.device("cuda", torch.cuda.current_device())
    with GpuStand((SPAN_BYTES,), device) as stand:
        for name, width in launches():
            out = stand.out[: ROWS * width].view(ROWS, width)
            stand.gather(name, width, ids_of(name, width).to(device), out)
        torch.cuda.synchronize()


def rows_of(name: str, width: int, counted: dict[str, float | None]) -> list[PointRow]:
    """A launch as rows: the accounting's answer, and what was counted."""

    def row(case: str, amount: float | None, source: str, reason: str = "") -> PointRow:
        point = Point(case, width, SPAN_BYTES, policy=name, order="given")
        return row_of(point, 0, amount, None, source, reason)

    policy, ids = POLICIES[name], ids_of(name, width).numpy()
    accounting, stride = "gatherbench.kernels.requests", policy.row_stride(width)
    rows = []
    for size in (128, 64):
        gather = policy.point(width, 4)
        expected = count_requests(gather, ids, width, max_request=size, row_stride=stride)
        rows.append(row(f"expected_requests_{size}", expected.num_requests, accounting))
    rows.append(row("expected_sectors", expected.sectors, accounting))
    for case, counter in COUNTERS.items():
        value = counted.get(counter)
        why = "" if value is not None else f"unsupported: ncu gives no {counter} on this GPU"
        rows.append(row(case, value, f"ncu: {counter}" if not why else "", why))
    return rows


def parse_counters(text: str) -> Counted:
    """What ``ncu --csv`` says of each launch, in their order; empty where there is no table."""
    lines = text.splitlines()
    head = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[int, dict[str, float | None]] = defaultdict(dict)
    columns = ("ID", "Metric Name", "Metric Unit", "Metric Value")
    for row in csv.DictReader(lines[head:]):
        number, name, unit, value = (row.get(column) or "" for column in columns)
        if name in COUNTERS.values() and number.isdigit():
            scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(unit, 1)
            try:
                found[int(number)][name] = float(value.replace(",", "")) * scale
            except ValueError:  # "n/a": this GPU has no such counter
                found[int(number)][name] = None
    return [found[number] for number in sorted(found)]


def read_counters(ncu: str, budget_s: float, counters: Sequence[str]) -> str:
    """What ncu prints of the workload; its last line says so where the time was too short.

    Raises:
        OSError: it cannot be run.
    """
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none"]
    command += ["--kernel-name", KERNEL_NAME, "--metrics", ",".join(counters)]
    command += [sys.executable, "-m", "tools.gpu.counters"]
    # Into a file: what ncu has started may hold a pipe open after ncu is gone.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        late = ""
        try:
            subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, timeout=budget_s, check=False
            )
        except subprocess.TimeoutExpired:
            late = f"\nncu took longer than {budget_s:.0f} s"
        log.seek(0)
        return log.read() + late


def count_launches(ncu: str, budget_s: float) -> tuple[Counted, str]:
    """The counters of every launch, empty where there are none; and what ncu printed last.

    All counters in one go, within half of the time. Where that fails, each by itself: ncu refuses
    all for one that a GPU does not have, and one alone needs no launch to be repeated, for which
    the memory that it may write would be saved and restored.
    """
    began = time.monotonic()
    names = list(COUNTERS.values())
    text = read_counters(ncu, budget_s / 2, names)
    if (counted := _of_all_launches(text)) or _FORBIDDEN in text:
        return counted, text
    merged: Counted = [{} for _ in launches()]
    for number, counter in enumerate(names):
        left_s = budget_s - (time.monotonic() - began)
        text = read_counters(ncu, left_s / (len(names) - number), [counter])
        for launch, values in zip(merged, _of_all_launches(text), strict=False):
            launch.update(values)
    return (merged if any(merged) else []), text


def _of_all_launches(text: str) -> Counted:
    counted = parse_counters(text)
    return counted if len(counted) == len(launches()) else []


def measure(
    add: Callable[[PointRow], None], until: float, wanted: Callable[[Point], bool], _rounds: int = 0
) -> None:
    """Count and compare, once.

    Raises:
        RefusedError: there is no ncu, or it gives no counters.
    """
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        raise RefusedError("unsupported: ncu (Nsight Compute) is not installed")
    counted, text = count_launches(ncu, max(10.0, until - time.monotonic() - CLOSING_S))
    if not counted:
        last = next((x for x in reversed(text.splitlines()) if x.strip()), "it said nothing")
        print(text[-2000:])
        raise RefusedError(
            f"no_permission or unsupported: ncu gave no counters; its last words: {last}"
        )
    for (name, width), values in zip(launches(), counted, strict=True):
        for row in rows_of(name, width, values):
            if wanted(row.point):
                add(row)


if __name__ == "__main__":
    workload()
