"""Tables in host memory and in files: contents, freed in time, honest about huge pages."""

import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from gatherbench.kernels import host_memory, table_file
from gatherbench.kernels.host_memory import (
    HUGE_PAGE,
    MEMORY_VARIABLE,
    available_bytes,
    available_in_cgroup,
    empty_table,
)
from gatherbench.kernels.table_file import (
    PagesRemainError,
    TableFile,
    drop_pages,
    mapped_table,
    pages_in_memory,
    read_rows,
    require_cold,
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


# ---- tables in files -----------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 64, 4096, 5000])
@pytest.mark.parametrize("part", [slice(None), slice(7, None), slice(7, 9)])
def test_rows_lie_where_it_says(tmp_path, offset, part):
    path, rows = tmp_path / "rows", np.arange(400, dtype=np.int32).reshape(50, 8)
    path.write_bytes(bytes(offset) + rows.tobytes())
    mapped = np.memmap(path, np.int32, "r", offset, (50, 8))[part]
    file = TableFile.of(mapped)
    assert (file.path, file.row_bytes, file.num_rows) == (path, 32, len(rows[part]))
    assert path.read_bytes()[file.offset : file.end] == rows[part].tobytes()


def test_what_is_no_map_of_rows_is_refused(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((5, 4)))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for wrong in (mapped[:, :2], mapped.T, mapped[0]):
        with pytest.raises(ValueError, match="expected rows"):
            TableFile.of(wrong)
    with pytest.raises(TypeError, match=r"numpy\.memmap of a file, got ndarray"):
        TableFile.of(np.zeros((5, 4)))  # type: ignore[arg-type]


def test_a_map_of_a_file_that_was_cut_short_is_refused(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((5, 4)))  # 128 bytes of header, then 160
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    os.truncate(tmp_path / "rows.npy", 128 + 160)
    assert TableFile.of(mapped).end == 128 + 160
    os.truncate(tmp_path / "rows.npy", 128 + 159)
    with pytest.raises(ValueError, match="cut short"):
        TableFile.of(mapped)


def test_all_rows_are_read_whatever_the_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "_PIECE_BYTES", 48)
    path, rows = tmp_path / "rows", np.arange(404, dtype=np.uint8).reshape(101, 4)
    path.write_bytes(bytes(64) + rows.tobytes())
    file = TableFile(path, 64, 101, 4)
    out = np.zeros(404, np.uint8)
    read_rows(file, out)
    assert out.tobytes() == rows.tobytes()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(OSError, match="rows ends before its table does"):
        read_rows(file, out)
    read_rows(TableFile(path, 64, 0, 4), out[:0])


PAGES, PAGE_BYTES = 64, mmap.PAGESIZE
ROWS, WIDTH = 400, 128  # rows of 512 B: eight to a page, from byte 512 of the first page on


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    path.write_bytes(os.urandom(PAGES * PAGE_BYTES))
    if drop_pages(path, 1.0):
        pytest.skip(f"{tmp_path} lies in memory, or another process reads it")
    return path


@pytest.fixture
def table(file: Path) -> TableFile:
    return TableFile(file, 512, ROWS, 4 * WIDTH)


def test_what_is_read_or_written_is_in_memory_until_it_is_dropped(file):
    os.truncate(file, (PAGES - 1) * PAGE_BYTES + 100)  # the last page is not full
    content = file.read_bytes()
    drop_pages(file)
    assert pages_in_memory(file) == 0
    assert file.read_bytes() == content
    assert pages_in_memory(file) == PAGES
    with file.open("r+b") as opened:
        opened.write(bytes(3 * PAGE_BYTES))  # and not written back yet
    assert drop_pages(file, 0.0) == pages_in_memory(file) == 0, "written back first"
    assert file.read_bytes() == bytes(3 * PAGE_BYTES) + content[3 * PAGE_BYTES :]
    os.truncate(file, 0)
    assert pages_in_memory(file) == drop_pages(file) == 0


def test_maps_of_this_process_let_go_and_stay_valid(table):
    rows = mapped_table(table, torch.float32, "normal")
    before = rows.view(torch.int32).sum()
    assert pages_in_memory(table.path) > 0
    require_cold(table.path)
    assert pages_in_memory(table.path) == 0
    assert rows.view(torch.int32).sum() == before


def test_what_was_written_to_a_private_map_is_not_lost(file):
    with file.open("rb") as opened:
        mine = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    mine[:5] = b"mine!"
    drop_pages(file, 0.0)
    assert mine[:5] == b"mine!"


HOLDER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    print(sum(held[:: mmap.PAGESIZE]) >= 0, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which maps the file and has touched all of its pages."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield other
        other.kill()


def test_pages_that_another_process_maps_remain_and_that_is_said(file, holder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(table_file, "EPOCH_PATIENCE_S", 0.05)
        with pytest.raises(PagesRemainError, match=r"table: \d+ pages stay .* another process"):
            require_cold(file)
    looks = iter([None, holder.kill])  # it ends meanwhile

    def sleep(_seconds: float) -> None:
        (next(looks, None) or (lambda: None))()
        holder.poll()

    monkeypatch.setattr(table_file.time, "sleep", sleep)
    require_cold(file)
    assert pages_in_memory(file) == 0
    assert drop_pages(file) == 0


def test_nobody_is_told_of_a_file_that_is_not_his(file, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="only the file's owner"):
        pages_in_memory(file)


@pytest.mark.parametrize(("advice", "more"), [("normal", True), ("random", False)])
def test_a_map_has_the_rows_of_the_file(table, advice, more):
    rows = mapped_table(table, torch.int32, advice)
    int(rows[100, 0])  # bytes 51712 to 52223: page 12, and those read ahead of it
    assert (pages_in_memory(table.path) > 1) == more
    content = np.fromfile(table.path, np.int32, ROWS * WIDTH, offset=512).reshape(ROWS, WIDTH)
    np.testing.assert_array_equal(rows.numpy(), content)
    assert mapped_table(replace(table, num_rows=0), torch.int32, advice).shape == (0, WIDTH)
    os.truncate(table.path, table.end - 1)
    with pytest.raises(ValueError, match="mmap length is greater than file size"):
        mapped_table(table, torch.int32, advice)
