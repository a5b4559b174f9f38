"""CUDA 12 and CUDA 13: the kernels compile with both compilers, and an old driver is named."""

import importlib.metadata
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cuda.bindings.runtime import cudaError_t

from gatherbench.kernels import cuda_calls
from gatherbench.kernels.compiler import ARCHITECTURES, KERNEL_SOURCE
from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime, driver_shortage
from gatherbench.kernels.grid import GridPoint

SOURCES = sorted(path.name for path in KERNEL_SOURCE.parent.glob("*.cu"))


#: Compiles each source of a JSON list with CUDA 12's compiler, by its C interface. In a process of
#: its own: whoever loads NVRTC later in the same one is given the one that is loaded.
COMPILE = """
import ctypes, importlib.metadata, json, sys
files = importlib.metadata.files("nvidia-cuda-nvrtc-cu12")
(found,) = (f for f in files if f.name == "libnvrtc.so.12")
nvrtc = ctypes.CDLL(str(found.locate()))
for source, options in json.load(sys.stdin):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    make = nvrtc.nvrtcCreateProgram
    assert make(ctypes.byref(program), source.encode(), b"kernel", 0, None, None) == 0
    given = (ctypes.c_char_p * len(options))(*(one.encode() for one in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), given)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == 0, log.value.decode()
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    print(size.value)
"""


def cubin_bytes(jobs: list[tuple[str, list[str]]]) -> list[int]:
    command, given = [sys.executable, "-c", COMPILE], json.dumps(jobs)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(size) for size in done.stdout.split()]


def test_cuda_12_compiles_every_kernel():
    macros = [f"-D{name}={value}" for name, value in GridPoint().macros]
    jobs = [
        (KERNEL_SOURCE.with_name(file).read_text(), [f"-arch={arch}", "-std=c++17", *macros])
        for file in SOURCES
        for arch in ARCHITECTURES
    ]
    assert all(size > 1000 for size in cubin_bytes(jobs))


def test_a_compiler_that_refuses_is_noticed():
    with pytest.raises(AssertionError, match='identifier "nonsense" is undefined'):
        cubin_bytes([("void f() { nonsense(); }", ["-arch=sm_80"])])


@pytest.fixture
def old_driver(monkeypatch):
    """Of CUDA 12.8 (R570), below packages of CUDA 13."""
    old = SimpleNamespace(cuDriverGetVersion=lambda: (0, 12080))
    monkeypatch.setattr(cuda_calls, "driver", lambda: old)
    monkeypatch.setattr(importlib.metadata, "version", {"cuda-bindings": "13.5.0"}.__getitem__)


def test_an_old_driver_is_told_from_none(old_driver):
    shortage = driver_shortage()
    assert shortage.startswith("The driver serves CUDA 12.8, and CUDA 13 is installed here: ")
    assert "[cu12]" in shortage
    assert "driver 580.65 or newer" in shortage
    assert driver_shortage(12) == ""


def test_a_call_that_an_old_driver_refuses_says_what_to_do(old_driver, monkeypatch):
    old = SimpleNamespace(
        cudaFree=lambda _: (cudaError_t.cudaErrorInsufficientDriver,),
        cudaGetLastError=lambda: None,
        cudaGetErrorString=lambda _: (0, b"too old"),
    )
    monkeypatch.setattr(cuda_calls, "runtime", lambda: old)
    with pytest.raises(CudaCallError, match=r"serves CUDA 12\.8.*\[cu12\]"):
        call_runtime("cudaFree", 0)
