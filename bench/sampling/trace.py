"""Store the first minibatches of an epoch, by which a run recognises its graph and sampler.

All others are drawn when they are measured, as the sampler depends only on its seed. After the
measurement of a path, the stored ones are fetched once more.

A trace is a folder with one NumPy file: node ids and edges of all minibatches, one after the
other, and their numbers. It is written under another name and renamed when complete, so that
a reader never finds half a trace.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from gatherbench.bench.sampling.epoch import batch_seed
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Sampler
from gatherbench.datasets.files import new_folder
from gatherbench.datasets.source import Progress, silent
from gatherbench.outside import open_file

FILE = "trace.npz"
#: The number of minibatches of a workload's first epoch that are stored.
KEPT = 8
_REMEDY = "delete the folder and draw the trace again"
#: The exceptions that NumPy, zip and torch raise on a damaged file.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile)


class TraceError(Exception):
    """A trace cannot be used; the message names the file and the remedy."""


def draw_trace(
    folder: Path,
    sampler: Sampler,
    seeds: Iterable[Any],
    seed: int,
    progress: Progress = silent,
    *,
    rank: int = 0,
    world: int = 1,
) -> None:
    """Sample a minibatch for each of ``seeds`` and write them all to ``folder``.

    Minibatch ``i`` is ``sampler.sample(seeds[i], batch_seed(seed, 0, i, rank, world))``. The same
    arguments give the same bytes. An existing trace is replaced.

    Args:
        seeds: from :func:`~gatherbench.bench.sampling.epoch.workload_seeds`.
        seed: the workload's seed.
        progress: gets the current step, and the fraction of it that is complete.

    Raises:
        ValueError: there are no seeds.
        DatasetError: the folder cannot be made, or the disk is full.
    """
    tasks, batches = list(seeds), list[MiniBatch]()
    if not tasks:
        raise ValueError("seeds: a trace needs at least one minibatch, got none")
    with new_folder(folder) as staged:
        for i, task in enumerate(tasks):
            batches.append(sampler.sample(task, batch_seed(seed, 0, i, rank, world)))
            progress("draw the trace", (i + 1) / len(tasks))
        ids = torch.cat([batch.input_ids for batch in batches]).numpy()
        sources, targets = torch.cat([e for batch in batches for e in batch.edges], dim=1).numpy()
        np.savez(
            staged / FILE,
            input_ids=ids.astype(np.int32 if sampler.num_nodes <= 2**31 else np.int64),
            sources=sources.astype(np.int32),
            targets=targets.astype(np.int32),
            num_nodes=np.array([batch.num_nodes for batch in batches], np.int64),
            num_edges=np.array([[e.shape[1] for e in b.edges] for b in batches], np.int64),
            drawn_for=np.array([sampler.num_nodes, seed], np.int64),
        )


class Trace(list[MiniBatch]):
    """The stored minibatches, in their order.

    Attributes:
        num_nodes: int64 ``[batches, L + 1]``, :attr:`MiniBatch.num_nodes` of each.
        num_edges: int64 ``[batches, L]``, edges of each layer.
    """

    num_nodes: NDArray[np.int64]
    num_edges: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a trace, and verify its checksums.

        Raises:
            TraceError: the folder is no trace, or its file is damaged.
        """
        path, trace = folder / FILE, cls()
        try:
            with open_file(path) as file, np.load(file, allow_pickle=False) as arrays:
                trace.num_nodes, trace.num_edges = arrays["num_nodes"], arrays["num_edges"]
                ids = torch.from_numpy(arrays["input_ids"].astype(np.int64))
                pairs = np.stack([arrays["sources"], arrays["targets"]]).astype(np.int64)
            lengths = trace.num_edges.ravel().tolist()
            edges = iter(torch.split(torch.from_numpy(pairs), lengths, dim=1))
            by_batch = torch.split(ids, trace.num_nodes[:, -1].tolist())
            for nodes, counts in zip(by_batch, trace.num_nodes.tolist(), strict=True):
                layers = (next(edges).clone() for _ in range(trace.num_edges.shape[1]))
                trace.append(MiniBatch(nodes.clone(), tuple(layers), tuple(counts)))
        except FileNotFoundError:
            raise TraceError(f"{path} is missing: {folder} is no trace; {_REMEDY}") from None
        except _DAMAGED:
            raise TraceError(f"{path} is damaged; {_REMEDY}") from None
        return trace
