"""Compiling without a driver, and the cache on disk that two processes share."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gatherbench.kernels import compiler
from gatherbench.kernels.compiler import ARCHITECTURES, CompilerError, compile_gather
from gatherbench.kernels.grid import GridPoint

ELF = b"\x7fELF"


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_cubin_for_every_guarded_architecture(tmp_path: Path, arch: str) -> None:
    cubin = compile_gather(GridPoint(), arch, folder=tmp_path)
    assert cubin.startswith(ELF)
    assert compiler.KERNEL_NAME.encode() in cubin


def test_what_is_compiled_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_gather(GridPoint(), "sm_90", folder=tmp_path)
    (kept,) = entries(tmp_path)
    kept.write_bytes(ELF + b"from the cache")
    assert compile_gather(GridPoint(), "sm_90", folder=tmp_path) == ELF + b"from the cache"
    kept.unlink()
    assert compile_gather(GridPoint(), "sm_90", folder=tmp_path) == first

    monkeypatch.setenv("GATHERBENCH_KERNEL_CACHE", str(tmp_path / "elsewhere"))
    compile_gather(GridPoint(), "sm_90")
    assert len(entries(tmp_path / "elsewhere")) == 1


def test_whatever_changes_the_code_changes_the_key(tmp_path: Path) -> None:
    point, source = GridPoint(), compiler.kernel_source()
    compile_gather(point, "sm_90", folder=tmp_path)
    compile_gather(replace(point, width=8), "sm_90", folder=tmp_path)
    compile_gather(point, "sm_80", folder=tmp_path)
    compile_gather(point, "sm_90", source=source + "\n// edited\n", folder=tmp_path)
    compile_gather(point, "sm_90", extra_options=("--maxrregcount=32",), folder=tmp_path)
    assert len(entries(tmp_path)) == 5
    compile_gather(replace(point, max_blocks=3, block_threads=64), "sm_90", folder=tmp_path)
    assert len(entries(tmp_path)) == 5, "the shape of a launch is no part of the code"


COMPILE_ALL = """
import hashlib, sys
from pathlib import Path
from gatherbench.kernels.compiler import compile_gather
from gatherbench.kernels.grid import kernel_points

digest = hashlib.sha256()
for point in list(kernel_points())[::12]:
    digest.update(compile_gather(point, "sm_90", folder=Path(sys.argv[1])))
print(digest.hexdigest())
"""


def test_two_processes_may_fill_one_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILE_ALL, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert digests[0] == digests[1]
    kept = entries(tmp_path)
    assert len(kept) == 13  # and no temporary file is left behind
    assert all(path.read_bytes().startswith(ELF) for path in kept)


COMPILE_IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from gatherbench.kernels.compiler import compile_gather
from gatherbench.kernels.grid import GridPoint

with ThreadPoolExecutor(4) as pool:
    points = [GridPoint(width=w) for w in (4, 8, 16, 4)]
    list(pool.map(lambda p: compile_gather(p, "sm_90", folder=Path(sys.argv[1])), points))
"""


def test_the_first_compilation_may_come_from_several_threads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILE_IN_THREADS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(entries(tmp_path)) == 3


def test_errors_name_their_cause(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match=r"(?s)circular-rows-4B-r1l1-i64 for sm_70.*arch"):
        compile_gather(GridPoint(), "sm_70", folder=tmp_path)
    with pytest.raises(CompilerError, match='identifier "nonsense" is undefined'):
        compile_gather(GridPoint(), "sm_90", source="void f() { nonsense(); }", folder=tmp_path)
    assert entries(tmp_path) == []


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CompilerError, match="pip install cuda-core"):
        compile_gather(GridPoint(), "sm_90", folder=tmp_path)


def test_the_module_loads_no_cuda() -> None:
    code = "import sys, gatherbench.kernels.compiler as c; print('cuda.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
