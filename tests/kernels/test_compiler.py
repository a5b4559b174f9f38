"""Compiling without a driver: where what comes of it is kept, and by which CUDA.

Two processes share the cache, and nothing is taken from a folder into which others can put files.
An old driver is named.
"""

import importlib.metadata
import json
import os
import stat
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda.bindings.runtime import cudaError_t

from gatherbench.kernels import compiler, cuda_calls, private_folder
from gatherbench.kernels.compiler import ARCHITECTURES, KERNEL_SOURCE, CompilerError, compile_gather
from gatherbench.kernels.cuda_calls import CudaCallError, call_runtime, driver_shortage
from gatherbench.kernels.grid import GridPoint

PLANTED = b"\x7fELF planted"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kernels are kept; there is nothing yet."""
    folder = tmp_path / "above" / "cache"
    folder.parent.mkdir()
    monkeypatch.setenv("GATHERBENCH_KERNEL_CACHE", str(folder))
    return folder


@pytest.fixture
def planted(cache: Path) -> Path:
    """A cache whose one kernel is not what the compiler made."""
    compiled()
    (kept,) = entries(cache)
    kept.write_bytes(PLANTED)
    return cache


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATHERBENCH_KERNEL_CACHE", str(tmp_path_factory.mktemp("right")))
        return compiled()


def compiled() -> bytes:
    return compile_gather(GridPoint(), "sm_90")


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_whatever_changes_the_code_changes_the_key(cache):
    point = GridPoint()
    assert compiler.KERNEL_NAME.encode() in compile_gather(point, "sm_90")
    compile_gather(replace(point, width=8), "sm_90")
    compile_gather(point, "sm_80")
    edited = KERNEL_SOURCE.read_text() + "\n// edited\n"
    compile_gather(point, "sm_90", source=edited)
    assert len(entries(cache)) == 4
    compile_gather(replace(point, max_blocks=3, block_threads=64), "sm_90")
    assert len(entries(cache)) == 4, "the shape of a launch is no part of the code"


COMPILE_IN_THREADS = """
import hashlib, sys
from concurrent.futures import ThreadPoolExecutor
from gatherbench.kernels.compiler import compile_gather
from tools.sass import kernel_points

assert "cuda.core" not in sys.modules, "imported before it is needed"
with ThreadPoolExecutor(4) as pool:
    cubins = pool.map(lambda point: compile_gather(point, "sm_90"), list(kernel_points())[::24])
    print(hashlib.sha256(b"".join(cubins)).hexdigest())
"""


def test_two_processes_may_fill_one_cache_from_several_threads(cache):
    command = [sys.executable, "-c", COMPILE_IN_THREADS]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert digests[0] == digests[1]
    kept = entries(cache)
    assert len(kept) == 7  # and no temporary file is left behind
    assert all(path.read_bytes().startswith(b"\x7fELF") for path in kept)


def test_errors_name_their_cause(cache):
    with pytest.raises(CompilerError, match=r"(?s)circular-rows-4B-r1l1-i64 for sm_70.*arch"):
        compile_gather(GridPoint(), "sm_70")
    with pytest.raises(CompilerError, match='identifier "nonsense" is undefined'):
        compile_gather(GridPoint(), "sm_90", source="void f() { nonsense(); }")
    assert entries(cache) == []


def test_without_a_compiler_the_error_says_what_to_install(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CompilerError, match=r"pip install .*\[cu13\]'? .*or cu12"):
        compile_gather(GridPoint(), "sm_90")


def test_a_folder_is_made_for_its_user_alone(cache):
    before = os.umask(0)
    try:
        assert private_folder.private_folder(cache)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_what_this_user_keeps_is_taken(planted):
    assert compiled() == PLANTED
    planted.chmod(0o755)  # others may read it
    assert compiled() == PLANTED


WRONG = {
    "everyone writes": lambda folder: folder.chmod(0o777),
    "the group writes": lambda folder: folder.chmod(0o770),
    "may be replaced": lambda folder: folder.parent.chmod(0o777),
    "a link": lambda folder: folder.symlink_to(folder.rename(folder.with_name("elsewhere"))),
    "a link to nowhere": lambda folder: (
        folder.rename(folder.with_name("moved")) and folder.symlink_to("elsewhere")
    ),
    "another's": lambda folder: os.chown(folder, 12345, -1),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_planted_kernel_is_not_taken(planted, right, wrong):
    if wrong == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    WRONG[wrong](planted)
    with pytest.warns(RuntimeWarning, match=f"{planted} is no folder .*remove it"):
        assert compiled() == right
    (kept,) = entries(planted.parent)
    assert kept.read_bytes() == PLANTED, "what is not ours is left as it is"


def test_where_nothing_can_be_made_kernels_are_compiled_all_the_same(right, monkeypatch):
    monkeypatch.setenv("GATHERBENCH_KERNEL_CACHE", "/proc/nowhere/kernels")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled() == right


def test_the_usual_place_is_the_users_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert private_folder.cache_folder("kernels") == Path("/caches/gatherbench/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert private_folder.cache_folder("x") == Path("/home/ann/.cache/gatherbench/x")


# ---- CUDA 12 and CUDA 13 -------------------------------------------------------------------------


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
