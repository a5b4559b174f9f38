"""Runs ``gather.cu`` without a GPU: builds it with g++ behind the shim and feeds it batches.

The kernel runs in a process of its own under AddressSanitizer and UndefinedBehaviorSanitizer, so
that an illegal access ends that process with a report and not ours. It can record the address of
every load of the table, lane by lane, which is the truth that the request accounting is held to.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
from pathlib import Path
from typing import IO, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from gatherbench.kernels.compiler import KERNEL_SOURCE
from gatherbench.kernels.grid import SHIFTS, GridPoint

#: Where the shim lies.
SHIM = Path(__file__).resolve().parent
_HEADER = struct.Struct("<21q")

#: One load of one lane; ``address`` is counted from the 256 B boundary before the table.
RECORD = np.dtype(
    [("address", "<u8"), *((name, "<u4") for name in ("warp", "instruction", "lane", "size"))]
)


class ShimError(RuntimeError):
    """The kernel was stopped by a sanitizer, or the driver refused the job."""


class Execution(NamedTuple):
    """What one batch did: rows uint8 ``[B, row_bytes]``, the bad id, loads."""

    rows: npt.NDArray[np.uint8]
    bad_id: int | None
    loads: npt.NDArray[np.void]


def build(
    folder: Path,
    source: Path = KERNEL_SOURCE,
    *,
    driver: Path = SHIM / "driver.cpp",
    few: bool = False,
    sanitize: bool = True,
) -> Path:
    """Compile ``source`` behind the shim into ``folder``, within ``driver``; return the executable.

    ``few``: only the gather's 4 B accesses with int64 ids and one load in flight.
    """
    program = folder / f"{source.stem}_{'few' if few else 'all'}"
    command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror"]
    command += ["-Wno-unknown-pragmas", f"-I{SHIM}", f'-DKERNEL_FILE="{source}"']
    if sanitize:
        command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if few:
        command += ["-DGATHER_SHIM_FEW"]
    command += [str(driver), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ShimError(f"g++ could not compile {source.name}:\n{done.stderr[:4000]}")
    return program


def gathers(*changes: tuple[str, str]) -> str:
    """Gathers with one change each: what is right, and what it becomes. ``WRONG_KERNEL`` chooses
    by number: one source compiles sooner than each alone."""
    source = KERNEL_SOURCE.read_text()
    text, cases = "#include <cstdlib>\n", ""
    for number, (right, wrong) in enumerate(changes):
        assert right in source, f"the kernel no longer contains {right!r}"
        own = f"namespace gather::wrong_{number} {{"
        text += source.replace(right, wrong).replace("namespace gather {", own) + "\n"
        job = f"reinterpret_cast<const wrong_{number}::Job&>(job)"
        call = f"wrong_{number}::gather<SHIFT, WIDTH, FLAT, ROWS, LOADS>({job}, ids)"
        cases += f"    case {number}: return {call};\n"
    names = "".join(
        f"using wrong_0::{n};\n" for n in ["i64", "u64", "Job", "kNone", "kIdle", "kCircular"]
    )
    return f"""{text}
namespace gather {{
{names}
template <int SHIFT, int WIDTH, bool FLAT, int ROWS, int LOADS, class Id>
void gather(const Job& job, const Id* ids) {{
  static const int chosen = std::atoi(std::getenv("WRONG_KERNEL"));
  switch (chosen) {{
{cases}  }}
}}
}}  // namespace gather
"""


class Driver:
    """A driver's process; a context manager. Not safe for several threads."""

    def __init__(self, program: Path) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([program], stdin=pipe, stdout=pipe, stderr=pipe)
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._to, self._from, self._errors = (cast("IO[bytes]", one) for one in pipes)

    def close(self) -> None:
        """End the process. Safe to call twice."""
        for pipe in (self._to, self._from, self._errors):
            with contextlib.suppress(BrokenPipeError):  # a process that is dead takes no input
                pipe.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            self._to.write(data)
            self._to.flush()
        except BrokenPipeError:
            self._fail()

    def _read(self, size: int) -> bytes:
        data = self._from.read(size)
        if len(data) != size:
            self._fail()
        return data

    def _fail(self) -> None:
        report = self._errors.read().decode(errors="replace")
        raise ShimError(report[:4000] or f"the driver ended with {self._process.wait()}")


class Shim(Driver):
    """Runs the gather."""

    def run(
        self,
        point: GridPoint,
        table: npt.NDArray[np.uint8],
        ids: npt.NDArray[np.signedinteger],
        *,
        row_bytes: int | None = None,
        out_rows: npt.NDArray[np.int64] | None = None,
        table_offset: int = 0,
        out_offset: int = 0,
        record: bool = False,
        report_bad: bool = False,
    ) -> Execution:
        """Gather rows ``ids`` ``[B]``, maybe bad ones, of ``table``, uint8 ``[N, row stride]``.

        ``table_offset`` and ``out_offset`` are bytes past a 256 B boundary; with ``record`` every
        load of the table is returned, by warp, instruction and lane. A report of a sanitizer is a
        ``ShimError``.
        """
        num_rows, stride = table.shape
        row_bytes = stride if row_bytes is None else row_bytes
        point.check(row_bytes, stride, table_offset, out_offset)
        self._send(
            point,
            (ids.size, num_rows, row_bytes, stride, table_offset, out_offset),
            (out_rows is not None, record, report_bad),
        )
        if num_rows:
            self._write(table.tobytes()[: (num_rows - 1) * stride + row_bytes])
        self._write(ids.astype(f"<i{point.index_bytes}").tobytes())
        if out_rows is not None:
            self._write(out_rows.astype("<i8").tobytes())
        return self._reply(row_bytes)

    def run_sparse(
        self,
        point: GridPoint,
        num_rows: int,
        row_bytes: int,
        num_ids: int,
        tail: npt.NDArray[np.signedinteger],
    ) -> npt.NDArray[np.uint8]:
        """The last ``len(tail)`` rows of a huge batch from a huge table of :func:`sparse_bytes`:
        only their blocks are run, and every earlier id is 0."""
        work = num_ids * (point.slots(row_bytes) if point.flat else 1)
        tail_work = tail.size * (point.slots(row_bytes) if point.flat else 1)
        tile = point.block_threads * point.loads if point.flat else point.block[1] * point.rows
        self._send(
            point,
            (num_ids, num_rows, row_bytes, row_bytes, 0, 0),
            (False, False, False),
            tail=tail.size,
            first_block=(work - tail_work) // tile,
        )
        self._write(tail.astype(f"<i{point.index_bytes}").tobytes())
        return self._reply(row_bytes).rows

    def _send(
        self,
        point: GridPoint,
        shape: tuple[int, ...],
        flags: tuple[int, ...],
        tail: int = 0,
        first_block: int = 0,
    ) -> None:
        blocks = point.blocks(shape[0], shape[2])
        specialisation = (SHIFTS.index(point.shift), point.width, point.flat, point.rows)
        launch = (point.loads, point.index_bytes, *point.block, blocks, first_block, blocks)
        self._write(_HEADER.pack(*specialisation, *launch, *shape, *flags, tail))

    def _reply(self, row_bytes: int) -> Execution:
        bad_id, out_bytes, num_records = struct.unpack("<q2Q", self._read(24))
        rows = np.frombuffer(self._read(out_bytes), np.uint8).reshape(-1, row_bytes)
        loads = np.frombuffer(self._read(num_records * RECORD.itemsize), RECORD)
        order = np.lexsort((loads["lane"], loads["instruction"], loads["warp"]))
        return Execution(rows, bad_id or None, loads[order])


def sparse_bytes(ids: npt.NDArray[np.signedinteger], row_bytes: int) -> npt.NDArray[np.uint8]:
    """Rows ``ids`` of the table of :meth:`Shim.run_sparse`: a byte is the top byte of its offset
    times 2⁶⁴ / golden ratio (Fibonacci hashing)."""
    columns = np.arange(row_bytes, dtype=np.uint64)
    hashed = ids.astype(np.uint64)[:, None] * np.uint64(row_bytes) + columns
    hashed *= np.uint64(0x9E3779B97F4A7C15)
    return (hashed >> np.uint64(56)).astype(np.uint8)
