"""The package as it is imported: by users who may write nowhere but into the temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADS = """
import os, sys
os.access = lambda path, mode: os.fspath(path) == sys.argv[1]  # root may write everywhere
import gatherbench
from gatherbench.kernels import host_kernels
folder = os.environ.get("NUMBA_CACHE_DIR", "")
if folder:
    assert os.path.isdir(folder)
    if os.fork() == 0:
        sys.exit(0)  # a child that ends takes nothing along
    os.wait()
    assert os.path.isdir(folder)
print(folder)
"""


def load(tmp_path: Path, writable: str, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", LOADS, writable],
        env=inherited | {"HOME": "/nonexistent", "TMPDIR": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_who_may_write_nowhere_has_compiled_loops_in_a_folder_that_goes(tmp_path: Path) -> None:
    folder = Path(load(tmp_path, writable="nowhere"))
    assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_given_is_taken(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    assert load(tmp_path, "nowhere", NUMBA_CACHE_DIR=str(given)) == str(given)
    assert given.exists()


@pytest.mark.parametrize("place", ["XDG_CACHE_HOME", "HOME"])
def test_a_home_or_a_cache_folder_is_enough(tmp_path: Path, place: str) -> None:
    """Of the user's ``.cache``, which need not exist, the home is the nearest that does."""
    assert load(tmp_path, writable=str(tmp_path), **{place: str(tmp_path)}) == ""
