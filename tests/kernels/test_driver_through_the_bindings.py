"""What CUDA's own bindings hand the driver: the real bindings, on a driver that only takes notes.

Stand-ins for ``call_driver`` cannot show that the bindings take our arguments as they are meant.
Here ``stub_libcuda.c`` is loaded as ``libcuda.so.1``, in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GCC = shutil.which("gcc") or shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(GCC is None, reason="no C compiler here"),
    pytest.mark.skipif(sys.platform != "linux", reason="a stub of libcuda.so.1"),
]

LAUNCH = """
import torch
from types import SimpleNamespace
from gatherbench.kernels import launch

torch.cuda.device = lambda device: __import__("contextlib").nullcontext()
torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=0x57E4)
torch.cuda.current_device = lambda: 0
bound = []
launch.call_runtime = lambda *call: bound.append(call)
kernel = launch.load_kernel(b"\\x7fELF and so on", "gather_kernel")
values = (1 << 44, 0x10, 0x20, 0, 5_000_000_000, 1 << 40, 2408, 2409, 0)
launch.launch_kernel(kernel, 7, (32, 8), values, launch._ARGUMENTS, torch.device("cpu"))
assert bound == [("cudaSetDevice", 0)], bound
"""

GREEN = """
import os
from gatherbench.strategies import cuda_overlap

gpu = SimpleNamespace(multi_processor_count=132)
torch.cuda.get_device_properties = lambda device: gpu
cuda_overlap._external = lambda handle, device: hex(handle)
device = torch.device("cuda", 0)
assert cuda_overlap.green_skip(device) is None
print(cuda_overlap.green_stream(device, 10))
assert cuda_overlap.green_stream(device, 10) is cuda_overlap.green_stream(device, 10)
os.environ["STUB_REFUSES_TO_SPLIT"] = "801"
print(cuda_overlap.green_skip(device))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("stub")
    source = Path(__file__).with_name("stub_libcuda.c")
    command = [str(GCC), "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH + GREEN],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_launch_arrives_at_the_driver_as_it_was_meant(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert "cuLibraryGetKernel 0x11b gather_kernel" in done.stderr
    assert (
        "cuLaunchKernel 0x4e1 grid 7 1 1 block 32 8 1 shared 0 stream 0x57e4 extra 0\n"
        "stub arguments 0x100000000000 0x10 0x20 (nil) 5000000000 1099511627776 2408 2409 (nil)"
    ) in done.stderr


def test_a_green_stream_has_the_multiprocessors_it_was_given(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert "GreenStream(stream='0x57e4', multiprocessors=16)" in done.stdout  # 13, rounded up
    assert "cuDevSmResourceSplitByCount 1 groups of 13 from 132 flags 0" in done.stderr
    assert "cuDevResourceGenerateDesc 1 of 16" in done.stderr
    assert "cuGreenCtxCreate 0xde5 device 0 flags 1" in done.stderr
    assert done.stderr.count("cuGreenCtxStreamCreate 0x64ee flags 1 priority 0") == 1


def test_a_driver_without_green_contexts_is_a_reason(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert "unsupported: no green context (cuDevSmResourceSplitByCount failed" in done.stdout
    assert "CUDA_ERROR_NOT_SUPPORTED (operation not supported)" in done.stdout
