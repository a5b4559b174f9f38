"""The CUDA kernel's own source, run on the host under sanitizers, against plain indexing."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.shim.execute import Shim, ShimError, build, gathers, sparse_bytes

from gatherbench.kernels.grid import LINE_BYTES, SHIFTS, WIDTHS, GridPoint, access_width
from tools.sass import kernel_points

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ROW_BYTES = (
    *(1, 2, 3, 4, 8, 12, 13, 16, 31, 32, 33, 63, 64, 100, 112, 127, 128, 129, 132, 136, 144),
    *(250, 256, 257, 260, 272, 400, 516, 1040, 1412, 2408),
)
LANES = (0, 1, 4, 16, 32, 128)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for small builds of altered kernels."""
    return tmp_path_factory.mktemp("few")


def table_of(row_bytes: int, num_rows: int = 41) -> np.ndarray:
    rng = np.random.default_rng(row_bytes)
    return rng.integers(1, 256, (num_rows, row_bytes), dtype=np.uint8)


def conformance(shim: Shim, point: GridPoint, row_bytes: int, offset: int = 0) -> None:
    """Random ids with repeats, the first and the last row, and a last tile that is not full."""
    table = table_of(row_bytes)
    ids = np.random.default_rng(offset).integers(0, len(table), 37)
    ids[:4] = 0, len(table) - 1, 5, 5
    got = shim.run(point, table, ids, table_offset=offset, out_offset=offset // 2 // 16 * 16)
    np.testing.assert_array_equal(got.rows, table[ids], err_msg=f"{point} row_bytes={row_bytes}")


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_kernel_on_every_row_width(shim, shift, width):
    points = [p for p in kernel_points() if (p.shift, p.width) == (shift, width)]
    assert len(points) == 10
    for point, row_bytes in itertools.product(points, ROW_BYTES):
        if row_bytes % width == 0:
            block = 32 if row_bytes < 300 else 128
            conformance(shim, replace(point, block_threads=block), row_bytes, offset=48)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("lanes", LANES)
def test_every_mapping_on_every_row_width(shim, shift, lanes):
    for row_bytes, cap in itertools.product(ROW_BYTES, (1, None)):
        width = access_width(row_bytes)
        for loads in (1, 4):
            point = GridPoint(shift, width, lanes, 1, loads, block_threads=128, max_blocks=cap)
            conformance(shim, point, row_bytes)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("lanes", [0, 8, 32])
def test_every_alignment_of_the_table(shim, shift, lanes):
    for offset in range(0, LINE_BYTES, 4):
        for row_bytes in (12, 100, 132, 400):
            conformance(shim, GridPoint(shift, 4, lanes, block_threads=64), row_bytes, offset)


@pytest.mark.parametrize("point", [GridPoint(), GridPoint(lanes=0), GridPoint("idle", lanes=8)])
def test_empty_batch_one_row_and_one_row_table(shim, point):
    table = table_of(100, num_rows=1)
    for count in (0, 1, 70):
        got = shim.run(point, table, np.zeros(count, np.int64), report_bad=True)
        np.testing.assert_array_equal(got.rows, np.repeat(table, count, axis=0))
        assert got.bad_id is None
    empty = shim.run(point, table[:0], np.array([3, 0]), report_bad=True)
    assert empty.bad_id == 3
    assert not empty.rows.any()


@pytest.mark.parametrize("lanes", [0, 8, 32])
def test_padded_rows_and_permuted_output(shim, lanes):
    table, rng = table_of(112), np.random.default_rng(1)
    ids, order = rng.integers(0, len(table), 50), rng.permutation(50)
    for shift in SHIFTS:
        got = shim.run(GridPoint(shift, 4, lanes), table, ids[order], row_bytes=100, out_rows=order)
        np.testing.assert_array_equal(got.rows, table[ids, :100])


@pytest.mark.parametrize("bad", [-1, 41, -(2**31), 2**31 - 1, 2**62, -(2**63)])
@pytest.mark.parametrize("lanes", [0, 8, 32])
def test_a_bad_id_reads_nothing_and_is_reported(shim, bad, lanes):
    table, ids = table_of(100), np.arange(40)
    ids[[17, 23]] = bad
    small = -(2**31) <= bad < 2**31
    expected = table[np.where(ids == bad, 0, ids)]
    expected[[17, 23]] = 0
    for shift, index_bytes in itertools.product(SHIFTS, (4, 8) if small else (8,)):
        point = GridPoint(shift, 4, lanes, index_bytes=index_bytes)
        got = shim.run(point, table, ids, report_bad=True, record=True)
        np.testing.assert_array_equal(got.rows, expected)
        assert got.bad_id == bad
        assert got.loads["address"].max() < table.size


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "num_ids", "point"),
    [
        (2_200_000, 2408, 1000, GridPoint(width=8)),
        (2**31 + 1000, 3, 1000, GridPoint(width=1)),
        (2**32 + 1000, 1, 1000, GridPoint(width=1)),
        (1000, 20, 2**28 + 40, GridPoint(width=1, index_bytes=4)),
    ],
    ids=["5 GiB of rows", "over 2^31 rows", "over 2^32 rows", "over 2^32 units and 4 GiB out"],
)
def test_tables_and_batches_beyond_32_bits(shim, num_rows, row_bytes, num_ids, point):
    tail = num_rows - 1 - np.arange(0, 900, 30)
    for shift, lanes in itertools.product(SHIFTS, (0, 32)):
        at = replace(point, shift=shift, lanes=lanes)
        got = shim.run_sparse(at, num_rows, row_bytes, num_ids, tail)
        np.testing.assert_array_equal(got, sparse_bytes(tail, row_bytes))


LOAD_MASK = "const bool wanted = rows[r].readable && unit >= 0 && unit < units;"
STORE_MASK = "if (rows[r].exists && unit >= 0 && unit < units) {"
CHECK = "const bool readable = entry.id >= 0 && entry.id < job.num_rows;"
IDLE = "row.shift = static_cast<int>(address % kLine) / WIDTH;"
WRAP = "return unit < units ? unit : unit - units;"
STRIDE = "base < job.num_ids; base += gridDim.x * tile"
SHORT = "if (row.shift >= job.row_bytes / WIDTH) row.shift = 0;"
FROM = "row.from += entry.id * job.row_stride;"
#: What is right, and what it becomes. The first reach for memory that is not theirs, and may
#: make the right rows all the same: only a sanitizer tells.
WRONG = {
    "missing tail mask": (LOAD_MASK, LOAD_MASK.replace(" && unit < units", "")),
    "missing store mask": (STORE_MASK, STORE_MASK.replace(" && unit < units", "")),
    "no check of ids": (CHECK, "const bool readable = entry.exists;"),
    "negative ids pass": (CHECK, CHECK.replace("entry.id >= 0", "entry.exists")),
    "idle shift off by a line": (IDLE, IDLE.replace(";", " - kLine / WIDTH;")),
    "no slots for the idle lanes": ("(SHIFT == kIdle ? kLine / WIDTH - 1 : 0)", "0"),
    "circular wrap by one too many": (WRAP, WRAP.replace("<", "<=")),
    "circular without wrap": (WRAP, "return unit;"),
    "circular shift past a short row": (SHORT, ""),
    "32-bit offset": (
        FROM,
        "row.from += static_cast<int>(entry.id) * static_cast<int>(job.row_stride);",
    ),
    "output not permuted": ("job.out_rows != nullptr ? job.out_rows[known] : known;", "known;"),
    "grid stride one block short": (STRIDE, STRIDE + " + 1"),
    "every lane reads the team's first unit": (
        "static_cast<int>(threadIdx.x), units,",
        "0, units,",
    ),
}


#: Nothing is wrong, and what only a sanitizer refuses.
RIGHT, MISALIGNED = ("", ""), (FROM, FROM.replace(";", " + 1;"))
#: How many reach astray.
ASTRAY = 4


def conforms(shim: Shim) -> None:
    """A small suite that touches every line of the kernel; raises where something is wrong."""
    for shift, lanes in itertools.product(SHIFTS, (0, 8, 32)):
        point = GridPoint(shift, 4, lanes, block_threads=64, max_blocks=2)
        for row_bytes in (4, 12, 100, 132, 400):
            conformance(shim, point, row_bytes, offset=36)
        table, ids, order = table_of(100), np.arange(40), np.arange(40)[::-1].copy()
        ids[7], ids[11] = -1, 41
        expected = np.zeros((40, 100), np.uint8)
        good = np.setdiff1d(np.arange(40), [7, 11])
        expected[order[good]] = table[ids[good]]
        got = shim.run(point, table, ids, out_rows=order, report_bad=True)
        np.testing.assert_array_equal(got.rows, expected)
        assert got.bad_id == -1, "of -1 and 41 the larger without a sign"
        tail = 2_200_000 - np.arange(1, 20)
        got_tail = shim.run_sparse(replace(point, max_blocks=None), 2_200_000, 2408, 100, tail)
        np.testing.assert_array_equal(got_tail, sparse_bytes(tail, 2408))


@pytest.fixture(scope="module")
def kernels(few: Path) -> dict[str, tuple[Path, int]]:
    """The program of each of :data:`WRONG` and of two more, and its number there."""
    more = {"none": RIGHT, "misaligned": MISALIGNED}
    changes, found = list(WRONG.items()), {}
    for sanitize, some in ((True, [*changes[:ASTRAY], *more.items()]), (False, changes[ASTRAY:])):
        path = few / f"wrong_{sanitize}.cu"
        path.write_text(gathers(*(change for _, change in some)))
        program = build(few, path, few=True, sanitize=sanitize)
        found |= {name: (program, number) for number, (name, _) in enumerate(some)}
    return found


@pytest.fixture
def chosen(
    kernels: dict[str, tuple[Path, int]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Shim]:
    """Starts the program of one of them."""

    def start(name: str) -> Shim:
        program, number = kernels[name]
        monkeypatch.setenv("WRONG_KERNEL", str(number))
        return Shim(program)

    return start


def test_the_small_suite_accepts_the_right_kernel(chosen):
    with chosen("none") as shim:
        conforms(shim)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_rejected(chosen, name):
    with chosen(name) as shim, pytest.raises((AssertionError, ShimError)):
        conforms(shim)


def test_a_misaligned_access_is_stopped_by_the_sanitizer(chosen):
    with chosen("misaligned") as shim, pytest.raises(ShimError, match="misaligned address"):
        shim.run(GridPoint("none"), table_of(100), np.arange(5))


def test_a_source_that_does_not_compile_says_so(few):
    broken = few / "broken.cu"
    broken.write_text("namespace gather { this is no C++ }")
    with pytest.raises(ShimError, match=r"could not compile broken\.cu"):
        build(few, broken, few=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("shift", "left"), ("width", 3), ("lanes", 24), ("lanes", 512), ("rows", 2)),
        *(("index_bytes", 2), ("block_threads", 2048), ("block_threads", 40), ("max_blocks", 0)),
    ],
)
def test_a_point_outside_the_grid_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        replace(GridPoint(), **{field: value})


def test_a_point_that_cannot_read_the_table_is_refused():
    with pytest.raises(ValueError, match="width = 16 does not divide"):
        GridPoint(width=16).check(2408, 0)
    with pytest.raises(ValueError, match="row_bytes = 0"):
        GridPoint().check(0)
    assert access_width(2408, 256) == 8
    assert access_width(2408, 4) == 4


def test_the_grid_covers_the_work_and_obeys_its_cap():
    assert GridPoint(lanes=32, block_threads=256).blocks(17, 400) == 3
    assert GridPoint(lanes=0, block_threads=256, loads=4).blocks(17, 400) == 2
    assert GridPoint(max_blocks=2).blocks(1000, 400) == 2
    assert GridPoint().blocks(0, 400) == 0
