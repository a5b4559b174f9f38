"""Neighbour sampling on an NVIDIA GPU, by the kernels of ``kernels/sample.cu``.

It draws the same random numbers as the CPU sampler. For one seed both give the same minibatch, bit
for bit, so the choice of sampler never changes what is trained.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling.checks import check_fanouts, check_graph, check_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.kernels.host_memory import tensor_of
from gatherbench.kernels.launch import architecture, launch_threads, load_from
from gatherbench.kernels.managed_memory import Memory, empty
from gatherbench.kernels.mapped_memory import HostRegistration, ManagedMemory
from gatherbench.strategies.buffers import RowBuffer

#: How the GPU comes to see a graph in host memory, and the memory that it is copied to.
Place = Literal["registered", "managed"]
_MEMORY: dict[Place, Memory] = {"registered": "shared", "managed": "managed"}
_KERNELS = ("count_kernel", "draw_kernel", "mark_kernel", "relabel_kernel")


class DeviceSampler:
    """Draws what :class:`~gatherbench.bench.sampling.numba_sampler.NeighborSampler` draws.

    The work of a layer grows with the square of its fan-out and not with the degrees. Calls from
    several threads wait for one another.

    The host waits for the number of edges of each layer, for that of the nodes, and for their ids.
    On a stream of its own it waits for sampling only, not for the training that is queued; a thread
    that draws ahead waits in the training's place. Ids and edges stay on the GPU.

    Memory of the GPU: a copy of the graph unless it is read in place, 8 B for each of its nodes,
    and about 40 B for each edge of a layer while it is drawn, of which the minibatch keeps 16.

    Args:
        indptr, indices, fanouts: as for the other; on the host, may be memory maps.
        device: the GPU.
        in_place: leave the graph in host memory, in a copy that is mapped so, where each edge
            that is drawn is a read over the link (DGL calls it UVA sampling).
        hot: with ``in_place``: nodes whose lists lie in GPU memory all the same, int64 ``[H]``, as
            in GraphBolt's ``GPUGraphCache``; then ``indptr`` does so, too, and 8 B for each node.

    Raises:
        TypeError: an array has the wrong dtype.
        ValueError: the arrays are no graph, or a fan-out is 0 or below -1.
        IndexError: a neighbour is outside the graph.
        CompilerError, CudaCallError: the kernels cannot be compiled or loaded, or the graph not be
            registered.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32] | NDArray[np.int64],
        fanouts: Sequence[int],
        device: torch.device,
        *,
        in_place: Place | None = None,
        hot: NDArray[np.int64] | None = None,
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        self.num_nodes = check_graph(indptr, indices)
        parts: tuple[NDArray[np.int64], NDArray[Any]] = indptr, indices
        if in_place:  # each on pages of its own, as a page is registered once
            index, memory = device.index or 0, _MEMORY[in_place]
            given = [tensor_of(part[:, None]) for part in parts]
            graph = [
                empty((len(part), 1), part.dtype, memory=memory, device=index).copy_(part).view(-1)
                for part in given
            ]
        else:
            graph = [torch.from_numpy(np.array(part)).to(device) for part in parts]
        # For sample.cu's `first` and `base`. The checks below wait until it has been written.
        self._first = torch.zeros(self.num_nodes, dtype=torch.int64, device=device)
        self._base = 0
        low, high = torch.aminmax(graph[0].diff())
        if int(low) < 0 or int(high) >= 2**31:
            raise ValueError("indptr: decreases, or a node has 2^31 neighbours or more")
        if graph[1].numel():
            low, high = torch.aminmax(graph[1])
            if int(low) < 0 or int(high) >= self.num_nodes:
                raise IndexError(
                    f"indices: holds nodes {int(low)}..{int(high)}, outside the graph's"
                    f" 0..{self.num_nodes - 1}"
                )
        mapped = ManagedMemory if in_place == "managed" else HostRegistration
        self._held = [mapped(part, device.index or 0) for part in graph if in_place]
        self._graph: list[Tensor | int] = [one.address for one in self._held] or [*graph]
        self._kept: list[Tensor | int] = [0, 0]
        if hot is not None:
            offsets, slots, kept = kept_lists(parts[0], parts[1], hot)
            self._graph[0] = offsets.to(device)
            self._kept = [kept.to(device), slots.to(device)]
        self._index_bytes = graph[1].element_size()
        self._device, self._lock = device, threading.Lock()
        self._kernels = {
            name: load_from("sample.cu", name, architecture(device)) for name in _KERNELS
        }
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._seeds, self._sizes = (RowBuffer(partial(_staging, device)) for _ in range(2))

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds``.

        All of it lies on the device and is there: any stream may use it, and the current one as
        long as it likes.

        Args:
            seeds: distinct node ids, int64 ``[S]`` on the host, ``S >= 1``.
            seed: decides, with the seed nodes and the graph, every draw.

        Raises:
            TypeError: seeds are no int64 tensor.
            ValueError: seeds are empty, not one-dimensional, elsewhere, or hold a node twice.
            IndexError: a seed node is outside the graph.
        """
        known = check_seeds(seeds)
        low, high = (int(bound) for bound in torch.aminmax(known))
        if low < 0 or high >= self.num_nodes:
            raise IndexError(
                f"seeds: hold {low if low < 0 else high}, outside the graph's nodes"
                f" 0..{self.num_nodes - 1}"
            )
        if torch.unique(known).numel() != known.numel():
            raise ValueError("seeds: a node stands there twice: make them unique")
        with self._lock, torch.cuda.stream(self._stream):
            here = self._seeds.rows(known.numel()).copy_(known)  # the last ones are there by now
            drawn = self._layers(here.to(self._device, non_blocking=True), seed)
        if self._stream is not None:  # it was waited for, with the last number of nodes
            current = torch.cuda.current_stream(self._device)
            for made in (drawn.input_ids, *drawn.edges):
                made.record_stream(current)  # or it could be handed on while the training reads it
        return drawn

    def clone(self, threads: int) -> Self:
        """Another thread may use the same."""
        return self

    def _layers(self, nodes: Tensor, seed: int) -> MiniBatch:
        """Draw all layers for the seeds ``nodes``, which are on the device. Waits in each."""
        known, edges, added = [nodes.numel()], [], nodes[:0]
        for layer, fanout in enumerate(self.fanouts):
            counts = torch.empty_like(nodes)
            self._launch("count_kernel", nodes.numel(), self._graph[0], nodes, fanout, counts)
            ends = counts.cumsum(0)
            *more, total = self._told(torch.cat([added, ends[-1:]]))
            known += more
            drawn, nodes, added = self._draw(nodes, known[-1], ends, total, derive(seed, layer))
            edges.append(drawn)
        known += self._told(added)
        return MiniBatch(nodes[: known[-1]], tuple(edges), tuple(known))

    def _told(self, sizes: Tensor) -> list[int]:
        """What the GPU says, for which the host waits."""
        here = self._sizes.rows(sizes.numel()).copy_(sizes, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        found: list[int] = here.tolist()
        return found

    def _draw(
        self, nodes: Tensor, targets: int, ends: Tensor, total: int, key: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The ``total`` edges drawn for the first ``targets`` of ``nodes``.

        Returns:
            Edges in local numbers ``[2, total]``, the nodes that are known now with -1 behind them
            ``[targets + total]``, and how many these are ``[1]``.
        """
        positions = targets + total
        self._base -= positions
        edges = nodes.new_empty((2, total))
        marks, known = nodes.new_empty(positions), nodes.new_empty(positions)
        graph = *self._graph, self._index_bytes, *self._kept
        named, first = (nodes, targets, edges), (self._first, self._base)
        self._launch("draw_kernel", positions, *graph, nodes, ends, targets, key, edges, *first)
        self._launch("mark_kernel", positions, *named, *first, marks)
        ranks = marks.cumsum(0)
        self._launch("relabel_kernel", positions, *named, *first, ranks, known)
        return edges, known, ranks[-1:]

    def _launch(self, name: str, positions: int, *arguments: Tensor | int) -> None:
        launch_threads(self._kernels[name], positions, arguments, self._device)


def _staging(device: torch.device, count: int) -> Tensor:
    """Page-locked: while a copy to pageable memory waits, CUDA may hold a lock that launches of
    other threads need (torch's ``_local_scalar_dense_cuda`` avoids it for that reason).
    """
    return torch.empty(count, dtype=torch.int64, pin_memory=device.type == "cuda")


def kept_lists(
    indptr: NDArray[np.int64], indices: NDArray[Any], hot: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """``indptr``, where the list of each node begins in the third (-1: not there), and the lists.

    Args:
        hot: distinct nodes, in the order of their lists.

    Raises:
        IndexError: a node is outside the graph.
    """
    degrees = np.diff(indptr)
    if len(hot) and not 0 <= int(hot.min()) <= int(hot.max()) < len(degrees):
        raise IndexError(f"hot: outside the graph's nodes 0..{len(degrees) - 1}")
    ends = np.cumsum(degrees[hot])
    slots = np.full(len(degrees), -1, np.int64)
    slots[hot] = ends - degrees[hot]
    total = int(ends[-1]) if len(hot) else 0
    # One word more: where nothing is kept a pointer to it is still one.
    kept = np.zeros(total + 1, indices.dtype)
    begins = np.asarray(indptr)[hot]
    places = np.arange(total) + np.repeat(begins - slots[hot], degrees[hot])
    kept[:total] = indices[places]
    return torch.from_numpy(np.array(indptr)), torch.from_numpy(slots), torch.from_numpy(kept)
