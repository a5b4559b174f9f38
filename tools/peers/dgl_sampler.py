"""Our CPU sampler against DGL 1.1.3's, taking turns in one process on one graph.

DGL is the peer to beat: the paper's own scripts sample with it. It is no dependency of ours, so it
is installed into a folder of its own (without its dependencies, which our environment has) that
only this script puts on its path. Both samplers get the same seed nodes and the same two threads,
take turns in changing order, and give the same thing: relabelled blocks (DGL's ``to_block`` and our
relabelling are part of their times). That the work is the same is checked by the sizes of what was
sampled. A turn is a dozen batches, of which the first two are not counted: OpenMP's idle threads
spin on for a while, on the cores that the next contestant needs.

DGL runs as it does by default (fused, 64-bit ids), unfused, and unfused with 32-bit ids; its fused
sampler with 32-bit ids is left out because it returns too few nodes. Run with::

    python -m tools.peers.dgl_sampler
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VERSION = "1.1.3"
#: Batches in a turn, and how many of its first are not counted.
TURN, UNCOUNTED = 12, 2
#: How far the mean number of input nodes may differ, as a share: ours and theirs draw apart.
SAME_WORK = 0.02
#: Given a batch's seed nodes and number: input nodes, and edges of each layer from the seeds out.
Sample = Callable[["Tensor", int], tuple[int, list[int]]]


def install(folder: Path) -> None:
    """Install DGL into ``folder`` unless it is there.

    Raises:
        SystemExit: pip failed; DGL 1.1.3 has wheels for CPython 3.8 to 3.11 on Linux.
    """
    if (folder / f"dgl-{VERSION}.dist-info").is_dir():
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--target", str(folder), f"dgl=={VERSION}"]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"dgl {VERSION} could not be installed (it needs CPython 3.8 to 3.11)")


def samplers(graph: tuple[Any, Any], fanouts: tuple[int, ...], threads: int) -> dict[str, Sample]:
    """The contestants on one graph."""
    import dgl
    import torch

    from gatherbench.bench.sampling.epoch import batch_seed
    from gatherbench.bench.sampling.numba_sampler import NeighborSampler

    indptr, indices = graph
    ours = NeighborSampler(indptr, indices, fanouts, threads)

    def sample_ours(seeds: Tensor, number: int) -> tuple[int, list[int]]:
        batch = ours.sample(seeds, batch_seed(0, 0, number))
        return batch.input_ids.numel(), [edges.shape[1] for edges in batch.edges]

    def dgl_with(dtype: torch.dtype, *, fused: bool) -> Sample:
        arrays = (torch.from_numpy(indptr).to(dtype), torch.from_numpy(indices).to(dtype))
        csc = ("csc", (*arrays, torch.empty(0, dtype=dtype)))
        dgl_graph = dgl.graph(csc, num_nodes=len(indptr) - 1, idtype=dtype)
        theirs = dgl.dataloading.NeighborSampler(list(reversed(fanouts)), fused=fused)

        def sample(seeds: Tensor, _number: int) -> tuple[int, list[int]]:
            inputs, _, blocks = theirs.sample_blocks(dgl_graph, seeds.to(dtype))
            return inputs.numel(), [block.num_edges() for block in reversed(blocks)]

        return sample

    dgl.utils.set_num_threads(threads)
    return {
        "ours": sample_ours,
        "dgl": dgl_with(torch.int64, fused=True),
        "dgl, unfused": dgl_with(torch.int64, fused=False),
        "dgl, unfused, int32": dgl_with(torch.int32, fused=False),
    }


def compare(contestants: dict[str, Sample], batches: list[Tensor]) -> dict[str, Any]:
    """Quartiles of each contestant's time a batch (s), and how much it sampled."""
    import numpy as np

    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    sizes: dict[str, list[list[int]]] = {name: [] for name in names}
    for first in range(0, len(batches), TURN):
        turn = first // TURN % len(names)
        for name in names[turn:] + names[:turn]:
            for number in range(first, min(first + TURN, len(batches))):
                start = time.perf_counter()
                nodes, edges = contestants[name](batches[number], number)
                elapsed = time.perf_counter() - start
                if number - first >= UNCOUNTED:
                    seconds[name].append(elapsed)
                    sizes[name].append([nodes, *edges])
    return {
        name: {
            "quartiles_s": np.percentile(seconds[name], [25, 50, 75]).tolist(),
            "mean_input_nodes": float(np.mean(sizes[name], axis=0)[0]),
            "mean_edges": np.mean(sizes[name], axis=0)[1:].tolist(),
        }
        for name in names
    }


def main() -> None:
    """Install, generate, measure, print a table and, with ``--json``, every number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--edges", type=int, default=62_000_000)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[25, 10], help="seeds outwards")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=300, help="of each contestant, counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where DGL is, or goes (default: a cache)")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read once, when the libraries are loaded
    os.environ["DGLBACKEND"] = "pytorch"
    from platformdirs import user_cache_path

    folder = args.folder or user_cache_path("gatherbench") / "peers" / f"dgl-{VERSION}"
    install(folder)
    sys.path.append(str(folder))

    import numpy as np
    import torch

    from gatherbench.bench.regress.rmat_graph import rmat_graph
    from gatherbench.bench.sampling.epoch import epoch_seeds

    torch.set_num_threads(args.threads)
    graph = rmat_graph(args.nodes, args.edges, threads=args.threads)
    with_neighbours = np.flatnonzero(np.diff(graph[0]))
    turns = -(-args.batches // (TURN - UNCOUNTED))
    batches = epoch_seeds(with_neighbours, args.batch_size, 0, 0, turns * TURN)
    contestants = samplers(graph, tuple(args.fanouts), args.threads)
    result = compare(contestants, batches)

    print(
        f"RMAT {args.nodes:,} nodes, {len(graph[1]):,} edges; fan-outs {args.fanouts}, batches of"
        f" {args.batch_size}, {args.threads} threads, {turns * (TURN - UNCOUNTED)} batches each"
    )
    ours = result["ours"]["quartiles_s"][1]
    nodes = result["ours"]["mean_input_nodes"]
    for name, row in result.items():
        low, median, high = (1e3 * quartile for quartile in row["quartiles_s"])
        edges = " + ".join(f"{count:,.0f}" for count in row["mean_edges"])
        print(
            f"{name:20} median {median:6.2f} ms (quartiles {low:.2f} to {high:.2f}),"
            f" {median / 1e3 / ours:5.2f} x ours;"
            f" a batch has {row['mean_input_nodes']:,.0f} input nodes, {edges} edges"
        )
        if abs(row["mean_input_nodes"] / nodes - 1) > SAME_WORK:
            raise SystemExit(f"{name}: not the same work as ours, so the times say nothing")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
