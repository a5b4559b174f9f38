"""Both versions of the memory cgroup, by hand-made files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gatherbench.kernels import host_memory, memory_cgroup
from gatherbench.kernels.memory_cgroup import (
    V1,
    V2,
    MemoryCgroup,
    available_in_cgroup,
    own_cgroup,
)

NO_LIMIT_1 = "9223372036854771712"


def group(folder: Path, **files: object) -> MemoryCgroup:
    """A cgroup with these files; ``__`` in a name is a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").touch()
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")
    return MemoryCgroup(folder)


def version_1(folder: Path, limit: object = 1000, used: int = 700) -> MemoryCgroup:
    return group(
        folder,
        memory__limit_in_bytes=limit,
        memory__usage_in_bytes=used,
        memory__stat="inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 50",
    )


def version_2(folder: Path, limit: object = 1000, used: int = 700) -> MemoryCgroup:
    return group(
        folder,
        memory__max=limit,
        memory__current=used,
        memory__stat="anon 550\ninactive_file 100\nactive_file 50",
    )


Made = Callable[..., MemoryCgroup]
both = pytest.mark.parametrize(
    ("made", "names", "no_limit"), [(version_1, V1, NO_LIMIT_1), (version_2, V2, "max")]
)


@both
def test_what_a_cgroup_says(made, names, no_limit, tmp_path):
    found = made(tmp_path)
    assert found.version is names
    assert found.left() == 1000 - (700 - 150)  # pages of files are given up
    assert made(tmp_path, 300).left() == 0  # above its limit, as while it is being lowered
    assert made(tmp_path, 1000, 120).left() == 1000  # most of its pages are of files
    assert made(tmp_path, no_limit).left() is None, "no limit is no large one"


def test_files_that_are_not_there_are_not_zero(tmp_path):
    assert group(tmp_path).left() is None


def proc(tmp_path: Path, cgroup: str, *mounts: str) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text("\n".join(mounts))
    return folder


def mount(place: Path, system: str) -> str:
    return f"31 23 0:28 / {place} rw,relatime shared:9 - {system}"


def test_the_cgroup_of_version_1_beside_a_version_2_without_memory(tmp_path):
    mine = version_1(tmp_path / "memory/a/b")
    folder = proc(
        tmp_path,
        "6:name=memory-of-old:/x\n5:cpu,cpuacct:/other\n4:memory:/a/b\n0::/c\n",
        mount(tmp_path / "unified", "cgroup2 cgroup2 rw"),
        mount(tmp_path / "cpu", "cgroup cgroup rw,cpu"),
        mount(tmp_path / "memory", "cgroup cgroup rw,memory"),
    )
    assert own_cgroup(folder) == mine


def test_the_cgroup_of_version_2(tmp_path):
    mine = version_2(tmp_path / "cgroup/user/me.scope")
    (mine.folder / "cgroup.controllers").write_text("cpu memory pids\n")
    folder = proc(tmp_path, "0::/user/me.scope\n", mount(tmp_path / "cgroup", "cgroup2 none rw"))
    assert own_cgroup(folder) == mine
    (mine.folder / "cgroup.controllers").write_text("cpu pids\n")
    assert own_cgroup(folder) is None


def test_in_a_container_the_mount_begins_with_its_own_cgroup(tmp_path):
    mine = version_1(tmp_path / "memory")
    line = mount(tmp_path / "memory", "cgroup cgroup rw,memory")
    assert own_cgroup(proc(tmp_path, "4:memory:/docker/1f2e\n", line)) == mine


def test_a_system_without_cgroups(tmp_path):
    assert own_cgroup(tmp_path / "nothing") is None


def test_the_narrowest_of_the_cgroups_above_counts(tmp_path, monkeypatch):
    outer = version_2(tmp_path / "outer", 800, 600)  # leaves 350
    inner = version_2(outer.folder / "inner", "max", 10)
    monkeypatch.setattr(memory_cgroup, "own_cgroup", lambda: inner)
    assert available_in_cgroup() == 350
    monkeypatch.setattr(memory_cgroup, "own_cgroup", lambda: None)
    assert available_in_cgroup() is None


def test_no_more_is_available_than_the_cgroup_leaves(monkeypatch):
    monkeypatch.setattr(host_memory, "available_in_cgroup", lambda: 5 << 20)
    assert host_memory.available_bytes() == 5 << 20
    monkeypatch.setenv(host_memory.MEMORY_VARIABLE, "100")
    assert host_memory.available_bytes() == 5 << 20
    monkeypatch.setattr(host_memory, "available_in_cgroup", lambda: None)
    assert host_memory.available_bytes() == 100 << 30
