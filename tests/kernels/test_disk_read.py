"""Rows off a disk: the right ones, by as many reads as declared, and a clear word when it fails."""

import ctypes
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatherbench.kernels import read_engines
from gatherbench.kernels.disk_read import DiskReadError, RowReader, block_bytes, reads_of
from gatherbench.kernels.read_engines import RingEngine, ThreadEngine, latency_bin, open_engine
from gatherbench.kernels.table_file import LATENCY_BINS, TableFile

BLOCK = 4096


def no_ring() -> str:
    engine, reason = open_engine("io_uring", 1)
    engine.close()
    return reason


RING = pytest.param(
    "io_uring", marks=pytest.mark.skipif(bool(no_ring()), reason=no_ring() or "there is one")
)
both = pytest.mark.parametrize("engine", ["threads", RING])


def table(folder: Path, rows: int, row_bytes: int, offset: int = 0, tail: bytes = b"") -> TableFile:
    """A file of random rows."""
    content = np.random.default_rng(rows).integers(0, 256, rows * row_bytes, dtype=np.uint8)
    path = folder / "rows.bin"
    path.write_bytes(bytes(offset) + content.tobytes() + tail)
    return TableFile(path, offset, rows, row_bytes)


def mapped(file: TableFile) -> NDArray[np.uint8]:
    shape = file.num_rows, file.row_bytes
    return np.array(np.memmap(file.path, np.uint8, "r", file.offset, shape))


def read(reader: RowReader, ids: list[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
    out = np.zeros((len(ids), reader.file.row_bytes), np.uint8)
    reader.read(np.asarray(ids, np.int64), out)
    return out


@both
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_rows_at_any_offset_are_those_of_a_map(engine, data):
    rows = data.draw(st.integers(1, 60))
    row_bytes = data.draw(st.one_of(st.integers(1, 600), st.sampled_from([1412, 4096, 9000])))
    offset = data.draw(st.one_of(st.sampled_from([0, 64, 128, BLOCK]), st.integers(1, 9000)))
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=80)), np.int64)
    places = np.array(data.draw(st.permutations(range(len(ids) + 3))), np.int64)[: len(ids)]
    merge = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder:
        file = table(Path(folder), rows, row_bytes, offset, bytes(data.draw(st.integers(0, 99))))
        reader = RowReader(file, engine, data.draw(st.sampled_from([1, 3, 16])), merge)
        out = np.full((len(ids) + 3, row_bytes), 7, np.uint8)
        expected = out.copy()
        expected[places] = mapped(file)[ids]
        reader.read(ids, out, places)
        declared = reads_of(ids, file, merge)
        counts, latencies = reader.counts(), reader.latencies()
        reader.close()
    np.testing.assert_array_equal(out, expected)
    assert (counts["disk_read"], counts["disk_requests"]) == declared
    assert latencies.shape == (LATENCY_BINS,)
    assert latencies.sum() == declared[1]


@settings(max_examples=100, deadline=None)
@given(
    row_bytes=st.integers(1, 50_000),
    offset=st.integers(0, 9000),
    ids=st.lists(st.integers(0, 400), min_size=1, max_size=60),
)
def test_reads_cover_every_block_and_few_of_them_twice(row_bytes, offset, ids):
    file = TableFile(Path(os.devnull), offset, 401, row_bytes)
    blocks = [
        range((offset + i * row_bytes) // BLOCK, (offset + (i + 1) * row_bytes - 1) // BLOCK + 1)
        for i in ids
    ]
    numbers = np.array(ids, np.int64)
    assert reads_of(numbers, file, False) == (BLOCK * sum(map(len, blocks)), len(ids))
    distinct = {number for of_row in blocks for number in of_row}
    runs = sum(number - 1 not in distinct for number in distinct)
    size, requests = reads_of(numbers, file, True)
    assert runs <= requests <= len(ids)
    # Only where a long read is cut does the next begin with the block at which it ended.
    assert BLOCK * len(distinct) <= size <= BLOCK * (len(distinct) + requests - runs)
    if BLOCK * len(distinct) <= read_engines.MERGE_BYTES:
        assert (size, requests) == (BLOCK * len(distinct), runs)


@pytest.mark.parametrize(
    ("row_bytes", "offset", "ids", "alone", "merged"),
    [
        # Eight rows of 512 B to a block: each alone reads 8.0 times its bytes.
        (512, 0, range(16), (16 * BLOCK, 16), (2 * BLOCK, 1)),
        (512, 0, [0, 8, 24], (3 * BLOCK, 3), (3 * BLOCK, 2)),  # blocks 0, 1 and 3
        (512, 0, [5, 5, 5], (3 * BLOCK, 3), (BLOCK, 1)),
        # Behind NumPy's header row 7 begins at 3712 and ends at 4224.
        (512, 128, [7], (2 * BLOCK, 1), (2 * BLOCK, 1)),
        # 256 rows of 400 B are 25 blocks; all of their 25 ends but the last lie within a row:
        # (256 + 24) blocks of 4096 B are 11.2 times 256 rows of 400 B.
        (400, 0, range(256), (280 * BLOCK, 256), None),
        (4096, 0, [3, 9], (2 * BLOCK, 2), (2 * BLOCK, 2)),
        (4096, 128, [3, 9], (4 * BLOCK, 2), (4 * BLOCK, 2)),
        # 64 KiB in a row are two reads of 32 KiB; a row longer than that is one read.
        (4096, 0, range(16), (16 * BLOCK, 16), (16 * BLOCK, 2)),
        (40_960, 0, [1], (10 * BLOCK, 1), (10 * BLOCK, 1)),
        (40_960, 0, [1, 1], (20 * BLOCK, 2), (10 * BLOCK, 1)),
    ],
)
def test_bytes_and_requests_by_hand(row_bytes, offset, ids, alone, merged):
    file = TableFile(Path(os.devnull), offset, 1000, row_bytes)
    numbers = np.array(list(ids), np.int64)
    assert reads_of(numbers, file, False) == alone
    assert merged is None or reads_of(numbers, file, True) == merged
    if row_bytes == 400:
        assert alone[0] / (256 * 400) == 11.2


@pytest.mark.parametrize(
    ("microseconds", "expected"), [(0.2, 0), (1, 1), (1.18, 1), (1.2, 2), (2, 5), (100, 27)]
)
def test_bins_by_hand(microseconds, expected):
    """A bin grows by the fourth root of 2: from 1 to 1.189 µs, …, from 90.5 to 107.6 µs."""
    assert latency_bin(round(microseconds * 1000)) == expected


@given(st.integers(0, 10**10))
def test_every_time_has_its_bin(nanoseconds):
    found = latency_bin(nanoseconds)
    assert found == LATENCY_BINS - 1 or nanoseconds / 1000 < 2 ** (found / 4) * (1 + 1e-9)
    assert found == 0 or nanoseconds / 1000 >= 2 ** ((found - 1) / 4) * (1 - 1e-9)


@both
def test_a_file_that_is_cut_short_while_it_is_read(tmp_path, engine):
    file = table(tmp_path, 100, 512)
    before = mapped(file)
    reader = RowReader(file, engine, 4, merge=engine == "threads")
    os.truncate(file.path, 51 * 512)
    told = r"row 51 of the table: .*rows\.bin has 26112 bytes .* needs 51200: .*write it anew"
    with pytest.raises(DiskReadError, match=told):
        read(reader, [50, 51])
    np.testing.assert_array_equal(read(reader, [50, 0]), before[[50, 0]])
    reader.close()
    with pytest.raises(DiskReadError, match="cut short"):
        RowReader(file, engine)


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(DiskReadError, match="gone: No such file"):
        RowReader(TableFile(tmp_path / "gone", 0, 1, 1))
    with pytest.raises(DiskReadError, match="maps: its file system has no direct reads"):
        RowReader(TableFile(Path("/proc/self/maps"), 0, 1, 1))


def test_a_disk_of_larger_blocks_is_read_by_those(tmp_path, monkeypatch):
    file = table(tmp_path, 100, 512)
    preadv, tried = os.preadv, list[int]()

    def picky(fd: int, buffers: list[memoryview], offset: int, least: int = 16_384) -> int:
        tried.append(len(buffers[0]))
        if len(buffers[0]) < least:
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", picky)
    assert block_bytes(file.path) == 16_384
    assert tried == [4096, 8192, 16_384]
    reader = RowReader(file, "threads", merge=False)
    np.testing.assert_array_equal(read(reader, [0, 99]), mapped(file)[[0, 99]])
    assert reader.counts() == {"disk_read": 32_768, "disk_requests": 2}
    reader.close()
    monkeypatch.setattr(os, "preadv", lambda *given: picky(*given, least=1 << 30))
    with pytest.raises(DiskReadError, match="in blocks of 65536 B: Invalid argument"):
        RowReader(file)


PREAD = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    use_errno=True,
)


def pretend(reader: RowReader, answer: Callable[[int], tuple[int, int]]) -> object:
    """Reads by threads return and set ``errno`` as ``answer(offset)`` says; to be kept alive."""

    def pread(_fd: int, _to: int, _size: int, offset: int) -> int:
        got, number = answer(offset)
        ctypes.set_errno(number)
        return got

    function = PREAD(pread)
    assert isinstance(reader._engine, ThreadEngine)
    reader._engine._pread = ctypes.cast(function, ctypes.c_void_p).value or 0
    return function


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((-1, errno.EIO), r"row 40 of .*rows\.bin: Input/output error \(errno 5"),
        ((512, 0), r"row 40 of .* the disk gave 512 of 4096 bytes, and no error"),
    ],
)
def test_an_error_of_the_disk_names_row_and_errno(tmp_path, answer, told):
    reader = RowReader(table(tmp_path, 100, 4096), "threads", 3, merge=False)
    keep = pretend(reader, lambda offset: answer if offset == 40 * 4096 else (4096, 0))
    with pytest.raises(DiskReadError, match=told):
        read(reader, np.arange(100))
    assert read(reader, [39, 41]).shape == (2, 4096)  # the rest can still be read
    reader.close()
    assert keep is not None


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[RowReader, RingEngine]]:
    if reason := no_ring():
        pytest.skip(reason)
    reader = RowReader(table(tmp_path, 100, 4096), depth=4, merge=False)
    assert isinstance(reader._engine, RingEngine)
    yield reader, reader._engine
    reader.close()


def test_an_error_of_the_disk_by_io_uring(ring):
    """Reads end one at a time, and one is made to say EIO: those in flight are waited for."""
    reader, engine = ring
    kind = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
    real, seen = kind(engine._calls.peek_batch_cqe), [0]

    def peek(at: int, entries: int, _count: int) -> int:
        found = real(at, entries, 1)  # others stay in flight
        for entry in (ctypes.c_uint64 * found).from_address(entries):
            seen[0] += 1
            if seen[0] == 7:
                ctypes.c_int32.from_address(entry + 8).value = -errno.EIO
        return found

    function = kind(peek)
    address = ctypes.cast(function, ctypes.c_void_p).value
    engine._calls = engine._calls._replace(peek_batch_cqe=address)
    with pytest.raises(DiskReadError, match=r"row \d+ of .*: Input/output error \(errno 5\)"):
        read(reader, np.arange(100))
    assert 7 <= seen[0] <= 7 + 4
    np.testing.assert_array_equal(read(reader, np.arange(100)), mapped(reader.file))


def test_a_ring_that_breaks_says_so(ring):
    reader, engine = ring
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint)
    answers = iter([-errno.EINTR, -errno.EPERM])
    function = kind(lambda _ring, _count: next(answers))
    address = ctypes.cast(function, ctypes.c_void_p).value
    engine._calls = engine._calls._replace(submit_and_wait=address)
    with pytest.raises(DiskReadError, match="io_uring_enter: Operation not permitted"):
        read(reader, [1])


def answers(said: int) -> ctypes.CDLL:
    library: Any = SimpleNamespace(io_uring_queue_init=lambda *_: -said)
    return cast("ctypes.CDLL", library)


@pytest.mark.parametrize(
    ("name", "instead", "told"),
    [
        ("_liburing", lambda: answers(errno.EPERM), "not permitted: a container's"),
        ("_liburing", lambda: answers(errno.ENOSYS), "kernel has no io_uring"),
        ("_liburing", lambda: answers(errno.EMFILE), "io_uring_setup: Too many open files"),
        ("importlib.util.find_spec", lambda _: None, f"{Path(__file__).parents[2]}[disk]"),
    ],
)
def test_where_there_is_no_io_uring_threads_take_its_place(
    tmp_path, monkeypatch, name, instead, told
):
    file = table(tmp_path, 10, 100)
    monkeypatch.setattr(f"gatherbench.kernels.read_engines.{name}", instead)
    for asked, expected in (("io_uring", told), ("threads", "")):
        reader = RowReader(file, asked)
        assert reader.engine == "threads"
        assert expected in reader.reason
        assert bool(reader.reason) == (asked == "io_uring")
        np.testing.assert_array_equal(read(reader, [9, 2]), mapped(file)[[9, 2]])
        reader.close()


def test_what_cannot_be_asked_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    file = table(tmp_path, 10, 100)
    reader = RowReader(file, "threads")
    one, out = np.array([1]), np.zeros((1, 100), np.uint8)
    for ids, to, places, error, told in (
        (np.array([10]), out, None, IndexError, r"ids\[0\] = 10: the table has rows 0\.\.9"),
        (np.array([-1]), out, None, IndexError, r"ids\[0\] = -1"),
        (one, out, np.array([1]), IndexError, r"places\[0\] = 1: the output has rows 0\.\.0"),
        (np.array([1, 2]), out, None, IndexError, r"places\[1\] = 1"),
        (one, out, np.array([0, 0]), ValueError, "places: expected shape"),
        (one.astype(np.int32), out, None, ValueError, "ids: expected int64"),
        (one, out[:, :50], None, ValueError, "out: expected contiguous"),
        (one, np.zeros((100, 1), np.uint8).T[:, ::-1], None, ValueError, "contiguous"),
    ):
        with pytest.raises(error, match=told):
            reader.read(ids, to, places)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        reader.read(one, out)
    assert reader.counts() == {"disk_read": 0, "disk_requests": 0}
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        with pytest.raises(RuntimeError, match="by the parent"):
            reader.read(one, out)
    reader.close()
    reader.close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.read(one, out)
