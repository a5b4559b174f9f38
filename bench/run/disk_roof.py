"""What the disk itself gives beside a case: random blocks of the table's file, many in flight."""

from __future__ import annotations

import time

import numpy as np

from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.kernels.disk_read import BLOCK_BYTES, DiskReadError, RowReader
from gatherbench.kernels.table_file import TableFile

DEPTH = 128
#: Reads of a batch: filling and draining the queue then count little.
_BATCH = 8 * DEPTH
_SECONDS = 0.3
_READS, _TIME = ("fetch", "disk_roof_reads", "1"), ("fetch", "disk_roof_time", "s")


def disk_roof(table: TableFile | None, make: RowMaker, seed: int) -> list[Row]:
    """Random reads of a block, as ``fio`` makes them, and their time; or why there are none.

    No rows of a case without a file.

    Past the page cache, by the engine that ``disk_direct`` would have. A path's own reads may be of
    several blocks, and fewer at a time.

    Args:
        seed: of the blocks' places; repeats that read the same ones might meet a disk's cache.
    """
    if table is None:
        return []
    blocks = table.end // BLOCK_BYTES
    source = f"random reads of {BLOCK_BYTES} B of the table's file, {DEPTH} in flight, {_SECONDS} s"
    if not blocks:
        return [make.missing(*_READS, source, "unsupported: the file has less than a block")]
    generator = np.random.default_rng(seed)
    out = np.empty((_BATCH, BLOCK_BYTES), np.uint8)
    try:
        reader = RowReader(TableFile(table.path, 0, blocks, BLOCK_BYTES), depth=DEPTH, merge=False)
        spent, read = 0.0, 0
        while spent < _SECONDS:
            ids = generator.integers(0, blocks, _BATCH)
            begin = time.perf_counter()
            reader.read(ids, out)
            spent += time.perf_counter() - begin
            read += _BATCH
        reader.close()
    except DiskReadError as error:
        return [make.missing(*_READS, source, f"failed: {error}")]
    source += f", {reader.engine}"
    return [make.ok(*_READS, read, source), make.ok(*_TIME, spent, source)]
