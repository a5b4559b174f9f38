"""The GPU's own counters confirm the accounting: Nsight Compute counts the requests of gathers.

Run as a program, this file is what ``ncu`` profiles: a gather for each policy and row width.
"""

import csv
import shutil
import subprocess
import sys
import tempfile

import pytest
import torch

from gatherbench.bench.probe.gathers import gathering
from gatherbench.bench.probe.points import Point
from gatherbench.bench.probe.rig import GIB, Rig
from gatherbench.kernels.compiler import KERNEL_NAME
from gatherbench.kernels.policies import POLICIES
from gatherbench.kernels.requests import count_requests

NCU = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
SPAN_BYTES, ROWS = GIB, 20_000
LAUNCHES = [
    (name, width) for name in ("unaligned", "aligned") for width in (64, 400, 512, 1412, 2408, 4096)
]
#: Rows whose warps read a sector twice: the caches may serve the second time, and on an H200 up to
#: 17 % of the requests never reached the link.
SERVED_BY_CACHES = {1412: 0.8, 2408: 0.8}
#: Sectors of host memory that the multiprocessors read, and their requests to the L2 (Nsight
#: Compute, "Metrics Reference"). Without ``srcunit_tex``, a read that one half of the L2 passes to
#: the other counts twice: on an H200 every second read did.
COUNTERS = {
    what: f"lts__t_{what}_srcunit_tex_aperture_sysmem_op_read.sum"
    for what in ("sectors", "requests")
}


def ids_of(name: str, width: int) -> torch.Tensor:
    """The row ids of one launch; each is unique, so that no cache serves a row twice."""
    rows = SPAN_BYTES // POLICIES[name].row_stride(width)
    generator = torch.Generator().manual_seed(width)
    return torch.randperm(ROWS, generator=generator) * (rows // ROWS)


def workload() -> None:
    with Rig(torch.device("cuda", torch.cuda.current_device()), spans=(SPAN_BYTES,)) as rig:
        for name, width in LAUNCHES:
            point = Point("gpu_gather", width, SPAN_BYTES, 0, 0, name, "given")
            gathering(rig, rig.registered.address, point, ids_of(name, width).to(rig.device))()
        torch.cuda.synchronize()


def counted(counter: str) -> list[float]:
    """What the GPU counted in each launch; skips where ncu gives no counters."""
    command = [str(NCU), "--csv", "--print-units", "base", "--clock-control", "none"]
    command += ["--kernel-name", KERNEL_NAME, "--metrics", counter, sys.executable, __file__]
    # Into a file: a program that ncu started may hold a pipe open after ncu ends.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=120, check=False)
        log.seek(0)
        lines = log.read().splitlines()
    head = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = [row for row in csv.DictReader(lines[head:]) if row.get("Metric Name") == counter]
    values = [row["Metric Value"].replace(",", "") for row in rows]
    if len(values) != len(LAUNCHES) or "n/a" in values:
        pytest.skip(f"ncu gives no counters here: {lines[-1:]}")
    return [*map(float, values)]


@pytest.mark.real_gpu("its requests are not counted")
@pytest.mark.skipif(NCU is None, reason="ncu is not installed")
@pytest.mark.parametrize("what", ["sectors", "requests"])
def test_the_gpu_counts_what_the_accounting_expects(what):
    for (name, width), seen in zip(LAUNCHES, counted(COUNTERS[what]), strict=True):
        policy = POLICIES[name]
        expected = count_requests(
            policy.point(width, 4),
            ids_of(name, width).numpy(),
            width,
            row_stride=policy.row_stride(width),
        )
        wanted = expected.sectors if what == "sectors" else expected.num_requests
        least = SERVED_BY_CACHES.get(width, 0.99)
        assert least * wanted <= seen <= 1.01 * wanted, (name, width, seen, wanted)


if __name__ == "__main__":
    workload()
