"""Tables in files: the file behind a map, its rows, and its pages in memory."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gatherbench.kernels import table_file
from gatherbench.kernels.table_file import (
    PagesRemainError,
    TableFile,
    drop_pages,
    mapped_table,
    pages_in_memory,
    read_rows,
    require_cold,
)


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
