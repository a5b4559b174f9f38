"""Managed memory's counters on a GPU: what moves is counted, and what is told to stay is not.

In a process of its own, because CUPTI stays attached to the process that has used it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.real_gpu("its driver counts no pages")

MIB = 1 << 20
SIZE = 32 * MIB

SCRIPT = f"""
import ctypes, json, torch
from gatherbench.bench.meters.uvm import UvmMeter
from gatherbench.kernels.cuda_calls import call_runtime, device_attribute, runtime
from gatherbench.kernels.mapped_memory import ManagedMemory

SIZE = {SIZE}
device = torch.cuda.current_device()
torch.ones(1 << 20, device="cuda").sum().item()  # the context, and the kernel that reads


class View:
    def __init__(self, address):
        self.__cuda_array_interface__ = {{
            "shape": (SIZE,), "typestr": "|u1", "data": (address, False), "version": 3,
        }}


def watch(work):
    meter = UvmMeter()
    meter.start()
    work()
    torch.cuda.synchronize()
    return {{r.metric: [r.value, r.reason and str(r.reason)] for r in meter.stop()}}


def read_on_gpu(address):
    read = torch.as_tensor(View(address), device="cuda").sum(dtype=torch.int64).item()
    assert read == SIZE, read


found = {{
    "concurrent": device_attribute("cudaDevAttrConcurrentManagedAccess", device),
    "one_memory": device_attribute("cudaDevAttrPageableMemoryAccessUsesHostPageTables", device),
}}
if found["concurrent"] and not found["one_memory"]:
    address = int(call_runtime("cudaMallocManaged", SIZE, runtime().cudaMemAttachGlobal))
    ctypes.memset(address, 1, SIZE)
    found["to_gpu"] = watch(lambda: read_on_gpu(address))
    found["to_cpu"] = watch(lambda: ctypes.string_at(address, SIZE))
    call_runtime("cudaFree", address)
    with ManagedMemory(torch.ones(SIZE, 1, dtype=torch.uint8), device) as stays:
        found["stays"] = watch(lambda: read_on_gpu(stays.address))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "to_gpu" not in said:
        pytest.skip("managed memory does not migrate here")
    value, reason = said["to_gpu"]["gpu_page_faults"]
    if value is None:
        assert not reason.startswith("failed: "), reason
        pytest.skip(reason)
    return said


def test_memory_that_the_gpu_reads_moves_there_and_faults(found: dict[str, Any]) -> None:
    moved, _ = found["to_gpu"]["migrated_host_to_device"]
    assert SIZE <= moved <= 1.25 * SIZE
    assert found["to_gpu"]["gpu_page_fault_records"][0] >= 1
    assert found["to_gpu"]["gpu_page_faults"][0] >= found["to_gpu"]["gpu_page_fault_records"][0]


def test_memory_that_the_cpu_reads_moves_back(found: dict[str, Any]) -> None:
    moved, _ = found["to_cpu"]["migrated_device_to_host"]
    assert SIZE <= moved <= 1.25 * SIZE
    assert found["to_cpu"]["cpu_page_faults"][0] >= 1
    assert found["to_cpu"]["gpu_page_faults"][0] == 0


def test_memory_told_to_stay_neither_moves_nor_faults(found: dict[str, Any]) -> None:
    for metric in ("gpu_page_faults", "migrated_host_to_device", "migrated_device_to_host"):
        assert found["stays"][metric][0] == 0, metric
