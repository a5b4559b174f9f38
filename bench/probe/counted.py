"""Compare the requests that the accounting expects with those that Nsight Compute counts.

``ncu`` runs this module, which launches a gather for each policy and row width, and reads a counter
of each launch.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile

import torch

from gatherbench.bench.probe.case import KERNEL, NAMED, Scope, case, ncu_program
from gatherbench.bench.probe.gathers import gathering
from gatherbench.bench.probe.rig import GIB, Observation, RefusedError, Rig
from gatherbench.bench.read.points import Point
from gatherbench.kernels.compiler import KERNEL_NAME
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import count_requests

SPAN_BYTES, ROWS = GIB, 20_000
POLICY_NAMES = ("unaligned", "aligned", "aligned-idle", "dgl", "torch-quiver")
WIDTHS = (64, 400, 512, 1412, 2408, 4096)
#: Counters (Nsight Compute, "Metrics Reference") by name of the case: sectors of host memory that
#: the multiprocessors read, and their requests to the L2. Without ``srcunit_tex``, a read that one
#: half of the L2 passes to the other counts twice: on an H200 every second read did.
COUNTERS = {
    f"counted_{what}": f"lts__t_{what}_srcunit_tex_aperture_sysmem_op_read.sum"
    for what in ("sectors", "requests")
}
EXPECTED = ("expected_sectors", "expected_requests_128", "expected_requests_64")
#: The time limit of one run of ncu, seconds.
_LIMIT_S = 120.0


def launches() -> list[tuple[str, int]]:
    """Return the policy and row width of each launch, in order."""
    return [(name, width) for name in POLICY_NAMES for width in WIDTHS]


def ids_of(name: str, width: int) -> torch.Tensor:
    """Return the row ids of one launch; each is unique, so that no cache serves a row twice."""
    rows = SPAN_BYTES // POLICIES[name].row_stride(width)
    generator = torch.Generator().manual_seed(width)
    return torch.randperm(ROWS, generator=generator) * (rows // ROWS)


def workload() -> None:
    """Launch each gather once; ncu runs and profiles this."""
    with Rig(torch.device("cuda", torch.cuda.current_device()), spans=(SPAN_BYTES,)) as rig:
        for name, width in launches():
            point = Point("gpu_gather", width, SPAN_BYTES, 0, 0, name, "given")
            gathering(rig, rig.registered.address, point, ids_of(name, width).to(rig.device))()
        torch.cuda.synchronize()


def parse(text: str, counter: str) -> list[float | None]:
    """Read a counter's value of each launch from ``ncu --csv``; ``None`` where it has no value."""
    lines = text.splitlines()
    head = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    values: list[float | None] = []
    for row in csv.DictReader(lines[head:]):
        if row.get("Metric Name") == counter:
            try:
                values.append(float((row["Metric Value"] or "").replace(",", "")))
            except ValueError:  # "n/a": this GPU has no such counter
                values.append(None)
    return values


def counts(counter: str) -> dict[tuple[str, int], float | None]:
    """Return what the GPU counted in each launch.

    Raises:
        RefusedError: ncu gives no counters; the message holds the last line that it printed.
    """
    command = [ncu_program() or "ncu", "--csv", "--print-units", "base", "--clock-control", "none"]
    command += ["--kernel-name", KERNEL_NAME, "--metrics", counter]
    command += [sys.executable, "-m", "gatherbench.bench.probe.counted"]
    # Into a file: a program that ncu started may hold a pipe open after ncu ends.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        timeout = ""
        try:
            subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            timeout = f"\nit took longer than {_LIMIT_S:.0f} s"
        log.seek(0)
        text = log.read() + timeout
    values = parse(text, counter)
    if len(values) != len(launches()):
        last = next((x for x in reversed(text.splitlines()) if x.strip()), "none")
        raise RefusedError(f"no_permission or unsupported: ncu's last words: {last}")
    return dict(zip(launches(), values, strict=True))


def _points(name: str, rig: Rig, scope: Scope) -> list[Point]:
    return [
        Point(quantity, width, SPAN_BYTES, policy=policy, order="given")
        for policy, width in launches()
        for quantity in (*EXPECTED, *COUNTERS)
    ]


@case(
    "1", "requests of gathers: expected, and counted by the GPU", (*KERNEL, "ncu"), NAMED, _points
)
def requests(rig: Rig, point: Point) -> Observation:
    width = point.row_bytes
    if point.case in COUNTERS:
        amount = rig.once(counts, COUNTERS[point.case])[point.policy, width]
        if amount is None:
            raise RefusedError(f"unsupported: this GPU has no counter {COUNTERS[point.case]}")
        return Observation(amount, None, f"Nsight Compute: {COUNTERS[point.case]}")
    policy = POLICIES[point.policy]
    expected = count_requests(
        policy.point(width, 4),
        ids_of(point.policy, width).numpy(),
        width,
        max_request=64 if point.case.endswith("_64") else 128,
        row_stride=policy.row_stride(width),
    )
    sectors = point.case == "expected_sectors"
    amount = expected.sectors if sectors else expected.num_requests
    return Observation(float(amount), None, "gatherbench.kernels.requests")


if __name__ == "__main__":
    workload()
