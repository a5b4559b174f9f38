"""The first minibatches of an epoch on disk: by them a run knows graph and sampler again.

All others are drawn when they are measured: the sampler depends on its seed alone. These are
fetched once more when a path has been measured.

A trace is a folder of flat little-endian arrays, all minibatches one after the other, and
``trace.json``, which says where each begins. It is written under another name and renamed when
complete, so that half a trace is never found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling.epoch import batch_seed
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Sampler
from gatherbench.datasets.files import new_folder
from gatherbench.datasets.source import Progress, silent
from gatherbench.outside import open_file, parsed, read_bytes

FORMAT_VERSION = 1
MANIFEST = "trace.json"
#: Minibatches of a workload's first epoch that are kept.
KEPT = 8
#: The files: node ids of all minibatches; sources and targets of all their layers.
_ARRAYS = ("input_ids", "sources", "targets")
_REMEDY = "delete the folder and draw the trace again"


class TraceError(Exception):
    """A trace that cannot be used; the message names the file and the remedy."""


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
    arguments give the same bytes. A trace that is already there is replaced.

    Args:
        seeds: of :func:`~gatherbench.bench.sampling.epoch.workload_seeds`.
        seed: the workload's.
        progress: called with what is being done and the fraction of it that is done.

    Raises:
        ValueError: there are no seeds.
        DatasetError: the folder cannot be made there, or the disk is full.
    """
    batches = list(seeds)
    if not batches:
        raise ValueError("seeds: a trace needs at least one minibatch, got none")
    id_dtype = "<i4" if sampler.num_nodes <= 2**31 else "<i8"
    num_nodes, num_edges = [], []
    with new_folder(folder) as staged, contextlib.ExitStack() as files:
        ids, sources, targets = writers = [
            _Writer(files.enter_context((staged / f"{name}.bin").open("wb")), dtype)
            for name, dtype in zip(_ARRAYS, (id_dtype, "<i4", "<i4"), strict=True)
        ]
        for i, batch_seeds in enumerate(batches):
            batch = sampler.sample(batch_seeds, batch_seed(seed, 0, i, rank, world))
            ids.add(batch.input_ids)
            for edges in batch.edges:
                sources.add(edges[0])
                targets.add(edges[1])
            num_nodes.append(batch.num_nodes)
            num_edges.append([edges.shape[1] for edges in batch.edges])
            progress("draw the trace", (i + 1) / len(batches))
        manifest: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "graph_nodes": sampler.num_nodes,
            "seed": seed,
            "num_nodes": num_nodes,
            "num_edges": num_edges,
            "arrays": {n: writer.said() for n, writer in zip(_ARRAYS, writers, strict=True)},
        }
        manifest["sha256"] = _digest(manifest)
        (staged / MANIFEST).write_text(json.dumps(manifest) + "\n")


class _Writer:
    """Appends tensors to one file as ``dtype`` and knows what it wrote."""

    def __init__(self, file: BinaryIO, dtype: str) -> None:
        self._file, self._dtype = file, dtype
        self._hash, self._length = hashlib.sha256(), 0

    def add(self, values: Tensor) -> None:
        data = values.cpu().numpy().astype(self._dtype).data
        self._file.write(data)
        self._hash.update(data)
        self._length += values.numel()

    def said(self) -> dict[str, Any]:
        """What the manifest says of the file."""
        return {"dtype": self._dtype, "length": self._length, "sha256": self._hash.hexdigest()}


@dataclass(frozen=True, eq=False)
class Trace:
    """Minibatches of one epoch; ``len``, ``trace[i]`` and iteration give :class:`MiniBatch`.

    The arrays are memory maps: a minibatch is read when it is asked for. Open one with
    :meth:`open`.

    Attributes:
        folder: where the files lie.
        num_nodes: int64 ``[batches, L + 1]``, :attr:`MiniBatch.num_nodes` of each.
        num_edges: int64 ``[batches, L]``, edges of each layer.
    """

    folder: Path
    num_nodes: NDArray[np.int64]
    num_edges: NDArray[np.int64]
    _arrays: dict[str, NDArray[np.int32]]
    _node_offsets: NDArray[np.int64]
    _edge_offsets: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a trace, reading it once to check that it is whole (about a second a gigabyte).

        Raises:
            TraceError: the folder is no trace, is of another version, or a file is damaged.
        """
        manifest = _read_manifest(folder)
        nodes = np.array(manifest["num_nodes"], np.int64)
        edges = np.array(manifest["num_edges"], np.int64)
        return cls(
            folder=folder,
            num_nodes=nodes,
            num_edges=edges,
            _arrays={name: _map(folder, name, manifest["arrays"][name]) for name in _ARRAYS},
            _node_offsets=_offsets(nodes[:, -1]),
            _edge_offsets=_offsets(edges.ravel()),
        )

    def __len__(self) -> int:
        return len(self.num_nodes)

    def __getitem__(self, i: int) -> MiniBatch:
        """Minibatch ``i``, as it was drawn; ``IndexError`` past the end."""
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
        """The node ids whose rows minibatch ``i`` needs, int64 ``[B]``."""
        if not 0 <= i < len(self):
            raise IndexError(f"trace[{i}]: it has minibatches 0..{len(self) - 1}")
        flat = self._arrays["input_ids"][self._node_offsets[i] : self._node_offsets[i + 1]]
        return torch.from_numpy(flat.astype(np.int64))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = parsed(read_bytes(path))
        digest, version = manifest.pop("sha256"), manifest["format_version"]
    except FileNotFoundError:
        raise TraceError(f"{path} is missing: {folder} is no trace; {_REMEDY}") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise TraceError(f"{path} is damaged; {_REMEDY}") from None
    if version != FORMAT_VERSION:
        raise TraceError(f"{path}: format {version}, expected {FORMAT_VERSION}; {_REMEDY}")
    if digest != _digest(manifest):
        raise TraceError(f"{path} is damaged; {_REMEDY}")
    return dict(manifest)


def _map(folder: Path, name: str, expected: dict[str, Any]) -> NDArray[np.int32]:
    path, dtype = folder / f"{name}.bin", np.dtype(expected["dtype"])
    try:
        with open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise TraceError(f"{path} is missing; {_REMEDY}") from None
    if digest != expected["sha256"]:
        raise TraceError(f"{path} is damaged (wrong checksum); {_REMEDY}")
    if not expected["length"]:  # no edge in the whole epoch; an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
