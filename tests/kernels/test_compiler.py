"""Compiling without a driver, and where what comes of it is kept.

Two processes share the cache, and nothing is taken from a folder into which others can put files.
"""

import os
import stat
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from gatherbench.kernels import compiler, private_folder
from gatherbench.kernels.compiler import KERNEL_SOURCE, CompilerError, compile_gather
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
