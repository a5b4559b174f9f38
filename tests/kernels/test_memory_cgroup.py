"""Both versions of the memory cgroup, by hand-made files."""

from pathlib import Path

import pytest

from gatherbench.kernels import host_memory
from gatherbench.kernels.memory_cgroup import available_in_cgroup

#: Of each version: its name in /proc, its folder, names of limit, use and pages, and no limit.
VERSIONS = {
    1: ("4:memory:", "memory", "limit_in_bytes", "usage_in_bytes", "total_", 9223372036854771712),
    2: ("0::", ".", "max", "current", "", "max"),
}


def made(tmp_path: Path, version: int, path: str, *limits: tuple[object, int]) -> int | None:
    """What is left in a cgroup at ``path``, with limits and uses from the innermost one on."""
    said, root, limit_name, used_name, pages, _ = VERSIONS[version]
    (tmp_path / "cgroup").write_text(f"6:name=memory-of-old:/x\n5:cpu,cpuacct:/y\n{said}{path}\n")
    folder = tmp_path / "mount" / root / path.lstrip("/")
    for limit, used in limits:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").touch()
        (folder / f"memory.{limit_name}").write_text(f"{limit}\n")
        (folder / f"memory.{used_name}").write_text(f"{used}\n")
        stat = f"anon 550\n{pages}inactive_file 100\n{pages}active_file 50\n"
        (folder / "memory.stat").write_text(stat)
        folder = folder.parent
    return available_in_cgroup(tmp_path, tmp_path / "mount")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ([(1000, 700)], 1000 - (700 - 150)),  # pages of files are given up
        ([(300, 700)], 0),  # above its limit, as while it is being lowered
        ([(1000, 120)], 1000),  # most of its pages are of files
        ([(1000, 700), (800, 600)], 350),  # the narrowest of those above counts
    ],
)
def test_what_a_cgroup_leaves(version, limits, left, tmp_path):
    assert made(tmp_path, version, "/a/b", *limits) == left


@pytest.mark.parametrize("version", VERSIONS)
def test_no_limit_is_no_large_one(version, tmp_path):
    no_limit = VERSIONS[version][-1]
    assert made(tmp_path, version, "/a", (no_limit, 7)) is None
    assert made(tmp_path, version, "/a", (no_limit, 7), (900, 250)) == 800


def test_in_a_container_the_mount_begins_with_its_own_cgroup(tmp_path):
    made(tmp_path, 1, "", (1000, 700))
    (tmp_path / "cgroup").write_text("4:memory:/docker/1f2e\n")
    assert available_in_cgroup(tmp_path, tmp_path / "mount") == 450


def test_files_that_are_not_there_are_not_zero(tmp_path):
    assert available_in_cgroup(tmp_path / "nothing", tmp_path) is None
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cgroup.procs").touch()
    assert available_in_cgroup(tmp_path, tmp_path) is None


def test_no_more_is_available_than_the_cgroup_leaves(monkeypatch):
    monkeypatch.setattr(host_memory, "available_in_cgroup", lambda: 5 << 20)
    assert host_memory.available_bytes() == 5 << 20
    monkeypatch.setenv(host_memory.MEMORY_VARIABLE, "100")
    assert host_memory.available_bytes() == 5 << 20
    monkeypatch.setattr(host_memory, "available_in_cgroup", lambda: None)
    assert host_memory.available_bytes() == 100 << 30
