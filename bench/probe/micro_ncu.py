"""Does the hardware see the requests that the accounting counts? Nsight Compute beside it.

    python -m gatherbench.bench.probe.micro_ncu --out FOLDER --budget 80

``ncu`` runs this module again with ``--workload``, which launches one gather for each policy and
row width, and reads the counters of each launch. ``ncu.csv`` has both: sectors and requests that
the accounting expects, and sectors, requests and bytes that were counted. From the last follows the
mean read on the link, if each completion is counted with a header of 12 B: (bytes − 32 × sectors) /
12 of them.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gatherbench.bench.probe.micro import SKIPPED
from gatherbench.bench.probe.micro_machine import prepare
from gatherbench.bench.probe.micro_rows import RowFile
from gatherbench.kernels.compiler import KERNEL_NAME
from gatherbench.kernels.grid import SECTOR_BYTES
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import count_requests

SPAN_BYTES = 1 << 30
ROWS = 20_000
POLICY_NAMES = ("unaligned", "aligned", "aligned-idle", "dgl", "torch-quiver")
WIDTHS = (64, 400, 512, 1412, 2408, 4096)
#: Counters (Nsight Compute, "Metrics Reference"): reads of sectors of host memory and requests for
#: them at the L2, and bytes read over PCIe.
SECTORS = "lts__t_sectors_aperture_sysmem_op_read.sum"
REQUESTS = "lts__t_requests_aperture_sysmem_op_read.sum"
READ_BYTES = "pcie__read_bytes.sum"
COUNTERS = (SECTORS, REQUESTS, READ_BYTES)
#: Of a completion, as the byte counter seems to count it: derived from published counts, and to be
#: confirmed.
COUNTED_HEADER_BYTES = 12
#: Seconds kept back for the accounting, whose first call is compiled.
CLOSING_S = 20.0
#: How ncu says that this user may read no counters.
_FORBIDDEN = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One launch: what is expected of it, and what was counted; empty: not to be had."""

    policy: str
    row_bytes: int
    rows: int
    expected_sectors: int
    expected_requests_128: int
    expected_requests_64: int
    sectors: float | None
    requests: float | None
    pcie_read_bytes: float | None
    source: str


def launches() -> list[tuple[str, int]]:
    """Policy and row width of each launch, in order."""
    return [(name, width) for name in POLICY_NAMES for width in WIDTHS]


def ids_of(name: str, width: int) -> torch.Tensor:
    """The rows of one launch: each once, so that no cache serves a row twice."""
    rows = SPAN_BYTES // POLICIES[name].row_stride(width)
    step = rows // ROWS
    generator = torch.Generator().manual_seed(width)
    return torch.randperm(ROWS, generator=generator) * step


def workload() -> None:
    """Launch each gather once."""
    from gatherbench.kernels.host_memory import empty_table
    from gatherbench.kernels.launch import Table, gather_into, policy_point
    from gatherbench.kernels.mapped_memory import HostRegistration

    device = torch.device("cuda", torch.cuda.current_device())
    table = empty_table((SPAN_BYTES // 8, 1), torch.int64)
    out = torch.empty(ROWS * max(WIDTHS), dtype=torch.uint8, device=device)
    with HostRegistration(table, device.index) as memory:
        for name, width in launches():
            stride = POLICIES[name].row_stride(width)
            seen = Table(memory.address, SPAN_BYTES // stride, width, stride)
            point = policy_point(name, width, 4, memory.address % 16, 0, 8)
            ids = ids_of(name, width).to(device)
            gather_into(out[: ROWS * width].view(ROWS, width), seen, ids, point)
        torch.cuda.synchronize()


def expected(name: str, width: int, **counted: float | None) -> CounterRow:
    """The accounting's answer for a launch, with what was counted."""
    policy = POLICIES[name]
    point, stride, ids = policy.point(width, 4), policy.row_stride(width), ids_of(name, width)
    of_128, of_64 = (
        count_requests(point, ids.numpy(), width, max_request=size, row_stride=stride)
        for size in (128, 64)
    )
    return CounterRow(
        name,
        width,
        ROWS,
        of_128.sectors,
        of_128.num_requests,
        of_64.num_requests,
        counted.get("sectors"),
        counted.get("requests"),
        counted.get("pcie_read_bytes"),
        f"ncu: {', '.join(COUNTERS)}; kernels.requests",
    )


def parse_counters(text: str) -> list[dict[str, float | None]]:
    """What ``ncu --csv`` says of each launch, in their order.

    Raises:
        ValueError: there is no table in it.
    """
    lines = text.splitlines()
    head = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise ValueError("ncu printed no table")
    found: dict[int, dict[str, float | None]] = defaultdict(dict)
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        name, value = row.get("Metric Name"), (row.get("Metric Value") or "").replace(",", "")
        if name in COUNTERS and (row.get("ID") or "").isdigit():
            scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(row.get("Metric Unit") or "", 1)
            try:
                found[int(row["ID"])][name] = float(value) * scale
            except ValueError:  # "n/a": this GPU has no such counter
                found[int(row["ID"])][name] = None
    return [found[number] for number in sorted(found)]


def read_counters(ncu: str, budget_s: float, counters: Sequence[str] = COUNTERS) -> str:
    """What ncu prints of the workload; its last line says so where the time was too short.

    Raises:
        OSError: it cannot be run.
    """
    command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none"]
    command += ["--kernel-name", KERNEL_NAME, "--metrics", ",".join(counters)]
    command += [sys.executable, "-m", "gatherbench.bench.probe.micro_ncu", "--workload"]
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


def count_launches(ncu: str, budget_s: float) -> tuple[list[dict[str, float | None]], str]:
    """The counters of every launch, empty where there are none; and what ncu printed last.

    All counters in one go, within half of the time. Where that fails, each by itself: ncu refuses
    all for one that a GPU does not have, and one alone needs no launch to be repeated, for which
    the memory that it may write would be saved and restored.
    """
    began = time.monotonic()
    text = read_counters(ncu, budget_s / 2)
    if (counted := _of_all_launches(text)) or _FORBIDDEN in text:
        return counted, text
    merged: list[dict[str, float | None]] = [{} for _ in launches()]
    for number, counter in enumerate(COUNTERS):
        left_s = budget_s - (time.monotonic() - began)
        text = read_counters(ncu, left_s / (len(COUNTERS) - number), [counter])
        for launch, values in zip(merged, _of_all_launches(text), strict=False):
            launch.update(values)
    return (merged if any(merged) else []), text


def _of_all_launches(text: str) -> list[dict[str, float | None]]:
    try:
        counted = parse_counters(text)
    except ValueError:
        return []
    return counted if len(counted) == len(launches()) else []


def table_of(rows: Sequence[CounterRow]) -> str:
    """Counted over expected, and the mean read that follows from the bytes."""
    lines = ["policy, row bytes: sectors and requests counted / expected, mean read on the link"]
    for row in rows:
        if row.sectors is None:
            lines.append(f"  {row.policy:14} {row.row_bytes:5d}: no counters")
            continue
        said = f"  {row.policy:14} {row.row_bytes:5d}: {row.sectors / row.expected_sectors:6.3f}"
        if row.requests is not None:
            said += f" {row.requests / row.expected_requests_128:6.3f}"
        if row.pcie_read_bytes is not None:
            payload = SECTOR_BYTES * row.sectors
            completions = (row.pcie_read_bytes - payload) / COUNTED_HEADER_BYTES
            mean = f"{payload / completions:.0f} B" if completions > 0 else "not to be derived"
            said += f" {mean}"
        lines.append(said)
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Count and compare; the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-micro ncu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", type=float, default=80.0)
    parser.add_argument("--workload", action="store_true")
    options = parser.parse_args(arguments)
    if options.workload:
        workload()
        return 0
    ncu = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if ncu is None:
        print("unsupported: ncu (Nsight Compute) is not installed")
        return SKIPPED
    if (problem := prepare(options.out)) is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    counted, text = count_launches(ncu, max(10.0, options.budget - CLOSING_S))
    if not counted:
        last = next((x for x in reversed(text.splitlines()) if x.strip()), "it said nothing")
        print(text[-2000:])
        print(f"no_permission or unsupported: ncu gave no counters; its last words: {last}")
        return SKIPPED
    named = {"sectors": SECTORS, "requests": REQUESTS, "pcie_read_bytes": READ_BYTES}
    with RowFile(options.out / "ncu.csv", CounterRow) as file:
        for (name, width), values in zip(launches(), counted, strict=True):
            file.add(expected(name, width, **{k: values.get(c) for k, c in named.items()}))
    print(table_of(file.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
