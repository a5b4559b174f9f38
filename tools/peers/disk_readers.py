"""Our reads of a table on disk against other people's, taking turns in one process on one file.

GraphBolt's ``OnDiskNpyArray`` (behind DGL's ``DiskBasedFeature``) is the peer to beat. Its wheels
are made for old releases of torch, so its reader is compiled here from a checkout of DGL that
``--dgl`` names, with a binding of a dozen lines: by g++, with liburing's headers and libcudacxx
of the CUDA toolkit, in a minute. ``numpy.memmap`` is what OGB and PyG do. Of a table that fits in
memory the kernel then reads ahead until it has all of it, so a map is also measured with
``MADV_RANDOM``. The file's pages are dropped before each turn. fio, where it is installed, says
what the disk gives.

Every contestant gets the same ids, takes turns in changing order, and delivers the same rows, which
is checked each time. Run with::

    python -m tools.peers.disk_readers --dgl ~/dgl
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.kernels.disk_read import RowReader
from gatherbench.kernels.page_cache import drop_pages, mapped_table
from gatherbench.kernels.table_file import TableFile

BINDING = """
#include <torch/script.h>
#include "cnumpy.h"
#include "io_uring.h"
using namespace graphbolt;
TORCH_LIBRARY(gatherbench_peer, m) {
  m.class_<Future<torch::Tensor>>("TensorFuture").def("wait", &Future<torch::Tensor>::Wait);
  m.class_<storage::OnDiskNpyArray>("OnDiskNpyArray")
      .def("index_select", &storage::OnDiskNpyArray::IndexSelect);
  m.def("ondisk_npy_array", &storage::OnDiskNpyArray::Create);
}
"""
#: Reads the rows of the ids.
Read = Callable[[NDArray[np.int64]], NDArray[np.float32]]
WIDTH = 128
BLOCK, DEPTH = 4096, 128


def write_table(path: Path, rows: int) -> None:
    """Rows of :data:`WIDTH` floats, row ``i`` full of ``i``; no map of it stays."""
    table = np.lib.format.open_memmap(path, "w+", np.float32, (rows, WIDTH))
    for begin in range(0, rows, 1 << 16):
        part = table[begin : begin + (1 << 16)]
        part[:] = np.arange(begin, begin + len(part), dtype=np.float32)[:, None]
    table.flush()


def graphbolt(dgl: Path, file: Path, rows: int, scratch: Path, cuda: Path) -> Read:
    """GraphBolt's reader, compiled from the checkout ``dgl``.

    Raises:
        SystemExit: it does not compile; the compiler's words are on the terminal.
    """
    source, of_torch = dgl / "graphbolt" / "src", Path(torch.__file__).parent
    binding, library = scratch / "binding.cc", scratch / "peer.so"
    binding.write_text(BINDING)
    include = [source, source.parent / "include", cuda / "include" / "cccl"]
    include += [of_torch / "include", of_torch / "include/torch/csrc/api/include"]
    command = ["g++", "-shared", "-O3", "-std=c++20", "-fPIC", "-fopenmp", "-w"]
    command += ["-DHAVE_LIBRARY_LIBURING", *(f"-I{path}" for path in include), str(binding)]
    command += [str(source / name) for name in ("cnumpy.cc", "io_uring.cc", "utils.cc")]
    command += ["-o", str(library), "-luring", f"-L{of_torch / 'lib'}"]
    command += ["-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{of_torch / 'lib'}"]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"GraphBolt's reader in {dgl} does not compile (see above)")
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    array = torch.ops.gatherbench_peer.ondisk_npy_array(
        str(file), torch.float32, [rows, WIDTH], None
    )
    return lambda ids: array.index_select(torch.from_numpy(ids)).wait().numpy()


def ours(file: TableFile, engine: str, merge: bool) -> Read:
    """Our reader."""
    reader = RowReader(file, engine, DEPTH, merge)

    def read(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        out = np.empty((len(ids), file.row_bytes), np.uint8)
        reader.read(ids, out)
        return out.view(np.float32)

    return read


def fio_iops(file: Path) -> float | None:
    """What fio reads at random at the same block size and depth; ``None`` where it is not here."""
    if shutil.which("fio") is None:
        return None
    command = ["fio", "--name=r", f"--filename={file}", "--rw=randread", f"--bs={BLOCK}"]
    command += ["--ioengine=io_uring", f"--iodepth={DEPTH}", "--direct=1", "--time_based"]
    command += ["--runtime=3", "--readonly", "--output-format=json"]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    return float(json.loads(said)["jobs"][0]["read"]["iops"])


def compare(
    contestants: dict[str, Read], table: np.memmap[Any, Any], file: Path, turns: int, count: int
) -> dict[str, list[float]]:
    """Seconds of each turn of each contestant, the first one not counted.

    Raises:
        SystemExit: one of them delivered other rows.
    """
    names, draw = list(contestants), np.random.default_rng(1)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns + 1):
        ids = draw.integers(0, len(table), count)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if left := drop_pages(file):
                raise SystemExit(f"{left} pages of {file} stay in memory: another process maps it")
            begin = time.perf_counter()
            rows = contestants[name](ids)
            seconds[name].append(time.perf_counter() - begin)
            if (rows[:, 0] != ids).any() or (rows[:, -1] != ids).any():
                raise SystemExit(f"{name}: other rows than the table has")
    return {name: of[1:] for name, of in seconds.items()}


def main() -> None:
    """Write the table, measure, and print a table and, with ``--json``, every number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dgl", type=Path, help="a checkout of DGL (without: no GraphBolt)")
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"), help="CUDA toolkit")
    parser.add_argument("--folder", type=Path, help="where the table is written, and removed again")
    parser.add_argument("--rows", type=int, default=2 << 20, help=f"of {4 * WIDTH} B")
    parser.add_argument("--ids", type=int, default=20_000, help="of a turn")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write every turn's seconds here")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "table.npy"
        print(f"writing {args.rows * 4 * WIDTH / 2**30:.1f} GiB to {path}, to be removed again")
        write_table(path, args.rows)
        table = np.load(path, mmap_mode="r")
        file = TableFile.of(table)
        at_random = mapped_table(file, torch.float32, "random")
        contestants = {
            "io_uring": ours(file, "io_uring", False),
            "io_uring, merged": ours(file, "io_uring", True),
            "threads": ours(file, "threads", False),
            "numpy.memmap": lambda ids: table[ids],
            "map, MADV_RANDOM": lambda ids: at_random[torch.from_numpy(ids)].numpy(),
        }
        if args.dgl is not None:
            scratch = Path(folder)
            contestants["GraphBolt"] = graphbolt(args.dgl, path, args.rows, scratch, args.cuda)
        before = fio_iops(path)
        seconds = compare(contestants, table, path, args.turns, args.ids)
        after = fio_iops(path)

    print(f"{args.turns} turns of {args.ids:,} rows; {os.cpu_count()} cores")
    reference = np.median(seconds["io_uring"])
    for name, of in seconds.items():
        low, median, high = np.percentile(of, [25, 50, 75])
        print(
            f"{name:20} {args.ids / median / 1e3:7.1f} thousand rows/s (quartiles"
            f" {args.ids / high / 1e3:.1f} to {args.ids / low / 1e3:.1f}),"
            f" {median / reference:5.2f} x the time of ours"
        )
    if before is not None and after is not None:
        print(
            f"fio, {BLOCK} B at random, depth {DEPTH}: {before / 1e3:.1f} and {after / 1e3:.1f}"
            " thousand reads/s, before and after"
        )
    if args.json:
        args.json.write_text(json.dumps({"seconds": seconds, "fio": [before, after]}) + "\n")


if __name__ == "__main__":
    main()
