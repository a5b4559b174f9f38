"""Store the first minibatches of an epoch, by which a run recognises its graph and sampler.

All others are drawn when they are measured, as the sampler depends only on its seed. After the
measurement of a path, the stored ones are fetched once more.

A trace is a folder with one NumPy file: node ids and edges of all minibatches, one after the
other, and their numbers. It is written under another name and renamed when complete, so that
a reader never finds half a trace.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


@dataclass(frozen=True, eq=False)
class Trace:
    """Minibatches of one epoch; ``len``, ``trace[i]`` and iteration give :class:`MiniBatch`.

    Attributes:
        num_nodes: int64 ``[batches, L + 1]``, :attr:`MiniBatch.num_nodes` of each.
        num_edges: int64 ``[batches, L]``, edges of each layer.
    """

    num_nodes: NDArray[np.int64]
    num_edges: NDArray[np.int64]
    _arrays: Mapping[str, NDArray[Any]]
    _node_offsets: NDArray[np.int64]
    _edge_offsets: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read a trace, and verify its checksums.

        Raises:
            TraceError: the folder is no trace, or its file is damaged.
        """
        path = folder / FILE
        try:
            with open_file(path) as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found}
            nodes, edges = arrays["num_nodes"], arrays["num_edges"]
            return cls(nodes, edges, arrays, _offsets(nodes[:, -1]), _offsets(edges.ravel()))
        except FileNotFoundError:
            raise TraceError(f"{path} is missing: {folder} is no trace; {_REMEDY}") from None
        except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile):
            raise TraceError(f"{path} is damaged; {_REMEDY}") from None

    def __len__(self) -> int:
        return len(self.num_nodes)

    def __getitem__(self, i: int) -> MiniBatch:
        """Return minibatch ``i`` as it was drawn; ``IndexError`` past the end."""
        layers = self.num_edges.shape[1]
        ids, edges = self.input_ids(i), []
        for layer in range(i * layers, (i + 1) * layers):
            columns = slice(self._edge_offsets[layer], self._edge_offsets[layer + 1])
            pair = np.empty((2, columns.stop - columns.start), np.int64)
            pair[0] = self._arrays["sources"][columns]
            pair[1] = self._arrays["targets"][columns]
            edges.append(torch.from_numpy(pair))
        return MiniBatch(ids, tuple(edges), tuple(int(n) for n in self.num_nodes[i]))

    def __iter__(self) -> Iterator[MiniBatch]:
        return (self[i] for i in range(len(self)))

    def input_ids(self, i: int) -> Tensor:
        """Return the node ids whose rows minibatch ``i`` needs, int64 ``[B]``."""
        if not 0 <= i < len(self):
            raise IndexError(f"trace[{i}]: it has minibatches 0..{len(self) - 1}")
        flat = self._arrays["input_ids"][self._node_offsets[i] : self._node_offsets[i + 1]]
        return torch.from_numpy(flat.astype(np.int64))


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
