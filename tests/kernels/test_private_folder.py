"""Where compiled code is kept: nothing is taken from a folder into which others can put files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from gatherbench.kernels import compiler, private_folder
from gatherbench.kernels.compiler import compile_gather
from gatherbench.kernels.grid import GridPoint

PLANTED = b"\x7fELF planted"


def compiled(folder: Path) -> bytes:
    return compile_gather(GridPoint(), "sm_90", folder=folder)


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def modes(folder: Path, *names: str) -> list[int]:
    return [stat.S_IMODE((folder / name).stat().st_mode) for name in names]


def everyone_writes(folder: Path) -> Path:
    folder.chmod(0o777)
    return folder


def the_group_writes(folder: Path) -> Path:
    folder.chmod(0o770)
    return folder


def is_a_link(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return link


def may_be_replaced(folder: Path) -> Path:
    folder.parent.chmod(0o777)
    return folder


WRONG = [
    (everyone_writes, r"others may write there \(mode 0777\)"),
    (the_group_writes, r"others may write there \(mode 0770\)"),
    (is_a_link, "it is a symbolic link"),
    (may_be_replaced, r"others may replace it \(mode 0777 of .*above\)"),
]


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A cache whose one kernel is not what the compiler made."""
    folder = tmp_path / "above" / "cache"
    compiled(folder)
    (kept,) = entries(folder)
    kept.write_bytes(PLANTED)
    return folder


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert private_folder.private_folder(tmp_path / "cache")
    finally:
        os.umask(before)
    assert modes(tmp_path, "cache") == [0o700]


def test_what_this_user_keeps_is_taken(planted: Path) -> None:
    assert compiled(planted) == PLANTED
    planted.chmod(0o755)  # others may read it
    assert compiled(planted) == PLANTED


@pytest.mark.parametrize(("wrong", "reason"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_a_planted_kernel_is_not_taken(
    planted: Path, tmp_path: Path, wrong: Callable[[Path], Path], reason: str
) -> None:
    right = compiled(tmp_path / "right")
    folder = wrong(planted)
    with pytest.warns(RuntimeWarning, match=f"{folder}: {reason}.*remove it"):
        assert compiled(folder) == right
    (kept,) = entries(planted)
    assert kept.read_bytes() == PLANTED, "what is not ours is left as it is"


def test_a_kernel_of_another_user_is_not_taken(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = compiled(tmp_path / "right")
    if os.geteuid() == 0:
        os.chown(planted, 12345, -1)
    else:  # who cannot give a folder away is another user himself
        monkeypatch.setattr(private_folder.os, "geteuid", lambda: 12345)
    with pytest.warns(RuntimeWarning, match="it belongs to user"):
        assert compiled(planted) == right


@pytest.mark.parametrize("leads_nowhere", [False, True])
def test_what_is_no_folder_is_told(tmp_path: Path, leads_nowhere: bool) -> None:
    place = tmp_path / "cache"
    if leads_nowhere:
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.write_text("notes")
    with pytest.warns(RuntimeWarning, match="symbolic link" if leads_nowhere else "no folder"):
        assert not private_folder.private_folder(place)
    assert not (tmp_path / "nowhere").exists()


def test_where_nothing_can_be_made_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(Path("/proc/nowhere/kernels")) == compiled(tmp_path)


def test_the_usual_place_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATHERBENCH_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert compiler.cache_dir() == Path("/caches/gatherbench/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert compiler.cache_dir() == Path("/home/ann/.cache/gatherbench/kernels")


GENERATES = """
import sys
from gatherbench.bench.run.models import build_model
from gatherbench.bench.plan.workload import Workload

for model in ("sage", "gat"):
    build_model(Workload(dataset="wordnet", model=model), 4, 3)
made = [m.__file__ for n, m in sys.modules.items() if n.endswith(("_propagate", "_edge_updater"))]
print(*made, sep="\\n")
"""


def test_the_modules_that_pyg_writes_lie_where_nobody_else_can_write(tmp_path: Path) -> None:
    """PyG executes them from the temporary folder, where ``__pycache__`` may be another's."""
    done = subprocess.run(
        [sys.executable, "-c", GENERATES],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = [Path(line) for line in done.stdout.split()]
    assert len(made) == 3, "one of sage, two of gat"
    assert {path.parent.parent for path in made} == {tmp_path}
    assert not entries(tmp_path), "and they go with the folder that they lay in"
