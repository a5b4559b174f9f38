"""The launch as far as it goes without a GPU: what the driver is given, and its errors.

Stand-ins for ``call_driver`` cannot show that CUDA's own bindings take our arguments as they are
meant: the last tests load the real bindings on a driver that only takes notes.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatherbench.kernels import cuda_calls, launch
from gatherbench.kernels.cuda_calls import CudaCallError, call_driver
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table, gather_into
from gatherbench.kernels.policies import POLICIES


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been launched, of a machine with a compiler and a driver."""
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launch, "architecture", lambda _: "sm_90")
    monkeypatch.setattr(launch, "load_gather", lambda *kernel: kernel)
    monkeypatch.setattr(launch, "launch_kernel", lambda *given: made.append(given))
    return made


def test_what_the_kernel_is_given(launched):
    ids, out = torch.arange(33), torch.empty(33, 100, dtype=torch.uint8)
    places, bad_id = torch.arange(33), torch.zeros(1, dtype=torch.int64)
    point = POLICIES["aligned"].point(100, 1, out_address=out.data_ptr())
    gather_into(out, Table(1 << 20, 7_000, 100, 112), ids, point, places, bad_id)
    ((kernel, grid, block, values, kinds, device),) = launched
    assert kernel == (point, "sm_90")
    assert (grid, block) == (point.blocks(33, 100), point.block)
    *tensors, bad = (one.data_ptr() for one in (ids, out, places, bad_id))
    assert values == (1 << 20, *tensors, 33, 7_000, 112, 100, bad)
    sizes = [ctypes.sizeof(kind) for kind in kinds]
    assert sizes == [8, 8, 8, 8, 8, 8, 8, 4, 8], "the arguments of gather_kernel in gather.cu"
    assert device == out.device


def test_nothing_is_launched_for_no_ids_or_a_table_that_cannot_be_read(launched):
    ids, out = torch.arange(4), torch.empty(4, 4)
    gather_into(out[:0], Table(0, 0, 16, 16), ids[:0], GridPoint())  # nothing to do
    with pytest.raises(ValueError, match="width = 16 does not divide"):
        gather_into(out, Table(1 << 20, 4, 20, 20), ids, GridPoint(width=16))
    with pytest.raises(ValueError, match=r"ids are torch\.int32"):
        gather_into(out, Table(1 << 20, 4, 16, 16), ids.int(), GridPoint())
    assert launched == []


def test_tensors_are_given_by_address_and_numbers_as_64_bits(launched):
    tensor = torch.arange(3)
    launch.launch_threads("a kernel", 257, (tensor, -5, 2**64 - 2), tensor.device)
    ((kernel, grid, block, values, kinds, device, stream),) = launched
    assert (kernel, grid, block, device) == ("a kernel", 3, (128, 1), tensor.device)
    assert stream is None, "the current one"
    assert values == (257, tensor.data_ptr(), -5, -2)
    assert kinds == (ctypes.c_longlong, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_driver_the_error_says_so():
    with pytest.raises(CudaCallError, match=r"cuInit failed: no driver .* install the NVIDIA driv"):
        call_driver("cuInit", 0)


def test_a_status_of_the_driver_becomes_an_error(monkeypatch):
    from cuda.bindings.driver import CUresult

    failing = SimpleNamespace(
        cuLaunchKernel=lambda: (CUresult.CUDA_ERROR_INVALID_VALUE,),
        cuGetErrorString=lambda _: (CUresult.CUDA_SUCCESS, b"invalid argument"),
    )
    monkeypatch.setattr(cuda_calls, "driver", lambda: failing)
    with pytest.raises(CudaCallError, match=r"CUDA_ERROR_INVALID_VALUE \(invalid argument\)"):
        call_driver("cuLaunchKernel")


# --- through the bindings ---

GCC = shutil.which("gcc") or shutil.which("cc")

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
del torch.cuda.device, torch.cuda.current_stream
launch.launch_kernel(kernel, 8, (1, 1), values, launch._ARGUMENTS, None, 0xA57)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The program, with ``stub_libcuda.c`` as ``libcuda.so.1``, which only takes notes."""
    if GCC is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("stub")
    source = Path(__file__).with_name("stub_libcuda.c")
    command = [str(GCC), "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_launch_arrives_at_the_driver_as_it_was_meant(done):
    assert "cuLibraryGetKernel 0x11b gather_kernel" in done.stderr
    assert (
        "cuLaunchKernel 0x4e1 grid 7 1 1 block 32 8 1 shared 0 stream 0x57e4 extra 0\n"
        "stub arguments 0x100000000000 0x10 0x20 (nil) 5000000000 1099511627776 2408 2409 (nil)"
    ) in done.stderr
    another = "cuLaunchKernel 0x4e1 grid 8 1 1 block 1 1 1 shared 0 stream 0xa57 extra 0\n"
    assert another in done.stderr
