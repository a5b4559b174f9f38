"""Tables in host memory: right contents, freed in time, honest about huge pages."""

import gc
import mmap
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from gatherbench.kernels import host_memory
from gatherbench.kernels.host_memory import (
    HUGE_PAGE,
    MEMORY_VARIABLE,
    available_bytes,
    available_in_cgroup,
    empty_table,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 0), (100, 129), (70_001, 31)])
def test_empty_table_is_zeroed_and_writable(shape, dtype):
    table = empty_table(shape, dtype)
    assert tuple(table.shape) == shape
    assert table.dtype == dtype
    assert table.is_contiguous()
    assert not bool(table.any())
    table.fill_(3)
    assert bool((table == 3).all())


def test_large_tables_start_at_a_huge_page():
    tables = [empty_table((HUGE_PAGE // 4096 + odd, 4096), torch.uint8) for odd in (0, 1, 3, 7)]
    assert [table.data_ptr() % HUGE_PAGE for table in tables] == [0] * 4


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"\(-1, 3\)"):
        empty_table((-1, 3), torch.uint8)
    with pytest.raises(MemoryError, match="GiB"):
        empty_table((1 << 60, 4), torch.uint8)


def test_memory_is_returned_with_the_last_view():
    process, size = psutil.Process(), 256 << 20
    before = process.memory_info().rss
    view = empty_table((1024, size // 1024), torch.uint8)[5:9]
    held = process.memory_info().rss
    assert held - before > size * 0.9, "pages are not present, or the view did not keep them"
    del view
    gc.collect()
    assert process.memory_info().rss - before < size * 0.1


@pytest.mark.parametrize("advice_fails", [False, True])
def test_without_huge_pages_the_table_is_the_same(monkeypatch, advice_fails):
    class Mapping(mmap.mmap):
        def madvise(self, option: int, *_: int) -> None:
            assert option == mmap.MADV_HUGEPAGE
            if advice_fails:
                raise OSError(22, "Invalid argument")

    monkeypatch.setattr(host_memory.mmap, "mmap", Mapping)
    table = empty_table((HUGE_PAGE, 3), torch.uint8)
    assert not bool(table.any())


@pytest.mark.parametrize("shared", [False, True])
def test_a_table_is_shared_with_a_forked_process_where_asked(shared):
    copy = empty_table((10_000, 60), torch.float32, shared=shared)
    child = os.fork()
    if child == 0:
        copy.numpy()[7] = 5
        os._exit(0)
    os.waitpid(child, 0)
    assert bool((copy[7] == 5).all()) == shared


def test_the_user_may_know_better_what_memory_there_will_be(monkeypatch):
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    assert 0 < available_bytes() <= psutil.virtual_memory().total
    monkeypatch.setenv(MEMORY_VARIABLE, "1.5")
    assert available_bytes() == 3 << 29
    for word in ("plenty", "inf", "nan"):
        monkeypatch.setenv(MEMORY_VARIABLE, word)
        with pytest.raises(ValueError, match=f"GATHERBENCH_MEMORY_GIB='{word}': expected a number"):
            available_bytes()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(host_memory, "_TOUCH_BYTES", HUGE_PAGE)
    monkeypatch.setattr(host_memory, "_LOOK_S", 0.0)
    monkeypatch.setattr(host_memory, "_GROWTH_S", 0.0)
    monkeypatch.setenv(MEMORY_VARIABLE, "9")
    return HUGE_PAGE


def test_where_memory_grows_a_table_may_be_larger_than_what_there_is_now(small_pieces, monkeypatch):
    """Linux refuses such a mapping by default, before a page of it is touched."""
    monkeypatch.setattr(host_memory, "touch", lambda flat: None)
    beyond = 2 * psutil.virtual_memory().total // 4096
    assert empty_table((beyond, 4096), torch.uint8).shape == (beyond, 4096)


def test_a_table_is_touched_no_faster_than_the_machine_grows(small_pieces, monkeypatch):
    monkeypatch.setattr(host_memory, "_GROWTH_S", 1e9)
    free = iter([0, 0, 2 * small_pieces] * 3)  # each piece is waited for
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=next(free)))
    table = empty_table((3, small_pieces), torch.uint8)
    assert next(free, None) is None
    assert not bool(table.any())


def test_a_piece_is_there_before_the_next_is_waited_for(small_pieces, monkeypatch):
    """Twelve pages, four at a time, one for a core at a time; none is written twice."""
    page = mmap.PAGESIZE
    flat, seen = torch.full((12 * page,), 255, dtype=torch.uint8), list[int]()
    monkeypatch.setattr(host_memory, "_TOUCH_BYTES", 4 * page)
    monkeypatch.setattr(host_memory, "_WRITTEN_BYTES", page)

    def has_come(_size: int) -> bool:
        seen.append(int((flat[::page] == 0).sum()))
        flat[: seen[-1] * page : page] = 7  # to be seen if it is written again
        return True

    monkeypatch.setattr(host_memory, "_has_come", has_come)
    host_memory.touch(flat)
    assert seen == [0, 4, 4]
    assert flat[::page].tolist() == [7] * 4 + [0] * 8


def test_a_machine_that_does_not_grow_is_waited_for_once(small_pieces, monkeypatch):
    asked: list[int] = []

    def none_left() -> SimpleNamespace:
        asked.append(1)
        return SimpleNamespace(available=0)

    monkeypatch.setattr(psutil, "virtual_memory", none_left)
    monkeypatch.setattr(host_memory.time, "monotonic", iter(range(99)).__next__)
    assert empty_table((5, small_pieces), torch.uint8).shape == (5, small_pieces)
    assert len(asked) == 1


def cgroup(folder: Path, path: str, *limits: tuple[object, int]) -> int | None:
    """What is left in a cgroup at ``path``, with limits and uses from the innermost one on."""
    (folder / "cgroup").write_text(f"5:cpu,cpuacct:/y\n0::{path}\n")
    group = folder / "mount" / path.lstrip("/")
    for limit, used in limits:
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text("anon 550\ninactive_file 100\nactive_file 50\n")
        group = group.parent
    return available_in_cgroup(folder / "cgroup", folder / "mount")


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ([(1000, 700)], 1000 - (700 - 150)),  # pages of files are given up
        ([(300, 700)], 0),  # above its limit, as while it is being lowered
        ([(1000, 120)], 1000),  # most of its pages are of files
        ([(1000, 700), (800, 600)], 350),  # the narrowest of those above counts
        ([("max", 7)], None),
        ([("max", 7), (900, 250)], 800),
    ],
)
def test_what_a_cgroup_leaves(limits, left, tmp_path):
    assert cgroup(tmp_path, "/a/b", *limits) == left


def test_in_a_container_the_mount_begins_with_its_own_cgroup(tmp_path):
    cgroup(tmp_path, "/", (1000, 700))
    (tmp_path / "cgroup").write_text("0::/docker/1f2e\n")
    assert available_in_cgroup(tmp_path / "cgroup", tmp_path / "mount") == 450
    assert available_in_cgroup(tmp_path / "nothing", tmp_path) is None


def test_no_more_is_available_than_the_cgroup_leaves(monkeypatch):
    monkeypatch.setattr(host_memory, "available_in_cgroup", lambda: 5 << 20)
    assert host_memory.available_bytes() == 5 << 20
    monkeypatch.setenv(host_memory.MEMORY_VARIABLE, "100")
    assert host_memory.available_bytes() == 5 << 20
    monkeypatch.setattr(host_memory, "available_in_cgroup", lambda: None)
    assert host_memory.available_bytes() == 100 << 30
