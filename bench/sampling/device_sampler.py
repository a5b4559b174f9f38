"""Sample neighbours on an NVIDIA GPU, with the kernels of ``kernels/sample.cu``.

It draws the same random numbers as the CPU sampler. For one seed both give the same minibatch, bit
for bit, so the choice of sampler never changes the training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gatherbench.bench.sampling.kernels import Ids, Ints
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Sampler, check_fanouts, check_graph, check_seeds
from gatherbench.bench.sampling.splitmix import derive
from gatherbench.kernels.host_memory import tensor_of
from gatherbench.kernels.launch import architecture, launch_threads, load_from
from gatherbench.kernels.managed_memory import empty
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.strategies.buffers import RowBuffer

_KERNELS = ("count_kernel", "draw_kernel", "mark_kernel", "relabel_kernel")


class DeviceSampler(Sampler):
    """Draws the minibatches of :class:`~gatherbench.bench.sampling.numba_sampler.NeighborSampler`.

    The work of a layer grows with the square of its fan-out and not with the degrees. Calls from
    several threads wait for one another.

    A minibatch begins without a wait, on a separate stream; only its result waits for its sizes,
    which are ready by then if it begins some steps ahead. So no thread has to take Python's lock
    from the training to draw. Only a fan-out of -1 makes the host wait in its layer, for the number
    of edges.

    GPU memory: a copy of the graph unless it is read in place; 8 B for each node; during a draw
    about 40 B for each edge that a layer could have (targets times fan-out), of which the minibatch
    keeps 16 B, and 8 more for the last layer.

    Args:
        indptr, indices, fanouts: as for ``NeighborSampler``; on the host, may be memory maps.
        device: the GPU.
        in_place: leave the graph in host memory, in a registered copy: each edge that is drawn is
            a read over the link (DGL calls it UVA sampling).

    Raises:
        TypeError: an array has the wrong dtype.
        ValueError: the arrays form no graph, or a fan-out is 0 or below -1.
        IndexError: a neighbour is outside the graph.
        CompilerError, CudaCallError: the kernels cannot be compiled or loaded, or the graph cannot
            be registered.
    """

    def __init__(
        self,
        indptr: Ids,
        indices: Ints,
        fanouts: Sequence[int],
        device: torch.device,
        *,
        in_place: bool = False,
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        self.num_nodes = check_graph(indptr, indices)
        parts: tuple[Ids, Ints] = indptr, indices
        if in_place:  # each on separate pages, as a page is registered once
            given = [tensor_of(part[:, None]) for part in parts]
            pages = [empty((len(part), 1), part.dtype, memory="shared") for part in given]
            graph = [page.copy_(part).view(-1) for page, part in zip(pages, given, strict=True)]
        else:
            graph = [torch.from_numpy(np.array(part)).to(device) for part in parts]
        # sample.cu's `first` and `base`. The checks below wait until it has been written.
        self._first = torch.zeros(self.num_nodes, dtype=torch.int64, device=device)
        self._base = 0
        low, high = torch.aminmax(graph[0].diff())
        if int(low) < 0 or int(high) >= 2**31:
            raise ValueError("indptr: decreases, or a node has 2^31 neighbours or more")
        if graph[1].numel():
            low, high = torch.aminmax(graph[1])
            if int(low) < 0 or int(high) >= self.num_nodes:
                found, last = f"holds nodes {int(low)}..{int(high)}", self.num_nodes - 1
                raise IndexError(f"indices: {found}, outside the graph's 0..{last}")
        self._held = [HostRegistration(part, device.index or 0) for part in graph if in_place]
        self._graph: list[Tensor | int] = [part.address for part in self._held] or [*graph]
        self._index_bytes, self._most_edges = graph[1].element_size(), graph[1].numel()
        self._device, self._lock = device, threading.Lock()
        target = architecture(device)
        self._kernels = {name: load_from("sample.cu", name, target) for name in _KERNELS}
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # A drawing without a result may still use these when the sampler is gone.
            for part in (self._first, *self._graph):
                if isinstance(part, Tensor):
                    part.record_stream(self._stream)
        self._slots: list[_Slot] = []

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        return self.begin(seeds, seed)()

    def begin(self, seeds: Tensor, seed: int) -> Callable[[], MiniBatch]:
        """Begin to draw the minibatch of ``seeds`` on the GPU; return what waits for it, once.

        It is then complete on the device, for any stream to use, and for the current one at any
        time. Arguments and errors are those of :meth:`NeighborSampler.sample`.
        """
        known = check_seeds(seeds)
        low, high = (int(bound) for bound in torch.aminmax(known))
        if low < 0 or high >= self.num_nodes:
            bad, last = low if low < 0 else high, self.num_nodes - 1
            raise IndexError(f"seeds: hold {bad}, outside the graph's nodes 0..{last}")
        if torch.unique(known).numel() != known.numel():
            raise ValueError("seeds: a node stands there twice: make them unique")
        with self._lock, torch.cuda.stream(self._stream):
            slot = self._slots.pop() if self._slots else _Slot(self._device, len(self.fanouts))
            here = slot.seeds.rows(known.numel()).copy_(known)
            # Nodes end with -1s; a layer's edges, all sources before all targets, with anything.
            nodes, edges = here.to(self._device, non_blocking=True), []
            sizes = nodes.new_empty(2 * len(self.fanouts))  # edges and nodes of each layer
            for layer, fanout in enumerate(self.fanouts):
                layer_sizes = sizes[2 * layer : 2 * layer + 2]
                drawn, nodes = self._draw(nodes, fanout, derive(seed, layer), layer_sizes)
                edges.append(drawn)
            slot.sizes.copy_(sizes, non_blocking=True)
            if slot.there is not None:
                slot.there.record()
        return partial(self._drawn, slot, known.numel(), nodes, edges)

    def clone(self, threads: int) -> Self:
        return self  # other threads may share it

    def _drawn(self, slot: _Slot, seeds: int, nodes: Tensor, edges: list[Tensor]) -> MiniBatch:
        """Wait for the sizes of a minibatch that has begun, and cut it to them."""
        if slot.there is not None:
            slot.there.synchronize()
        sizes = slot.sizes.tolist()
        self._slots.append(slot)
        counted = zip(edges, sizes[::2], strict=True)
        parts = tuple(flat[: 2 * count].view(2, count) for flat, count in counted)
        drawn = MiniBatch(nodes[: sizes[-1]], parts, (seeds, *sizes[1::2]))
        if slot.there is not None:
            current = torch.cuda.current_stream(nodes.device)
            for made in (drawn.input_ids, *parts):
                made.record_stream(current)  # else its memory could be reused during the training
        return drawn

    def _draw(self, nodes: Tensor, fanout: int, key: int, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edges that are drawn for ``nodes``, and the nodes that are then known."""
        targets = nodes.numel()
        counts = torch.empty_like(nodes)
        self._launch("count_kernel", targets, self._graph[0], nodes, fanout, counts)
        ends = counts.cumsum(0)
        most = min(targets * fanout, self._most_edges) if fanout >= 0 else int(ends[-1])
        positions = targets + most
        self._base -= positions
        edges, marks, known = (nodes.new_empty(n) for n in (2 * most, positions, positions))
        graph = *self._graph, self._index_bytes
        named, first = (nodes, ends, targets), (self._first, self._base)
        self._launch("draw_kernel", positions, *graph, *named, key, edges, *first)
        self._launch("mark_kernel", positions, *named, edges, *first, marks)
        ranks = marks.cumsum(0)
        self._launch("relabel_kernel", positions, *named, edges, *first, ranks, known, sizes)
        return edges, known[: self.num_nodes]

    def _launch(self, name: str, positions: int, *arguments: Tensor | int) -> None:
        stream = None if self._stream is None else self._stream.cuda_stream
        launch_threads(self._kernels[name], positions, arguments, self._device, stream)


class _Slot:
    """The host memory and event of one minibatch; reused when the minibatch is complete.

    The memory is page-locked: while a copy to pageable memory waits, CUDA may hold a lock that
    launches of other threads need (torch's ``_local_scalar_dense_cuda`` avoids it for that reason).
    """

    def __init__(self, device: torch.device, layers: int) -> None:
        on_gpu = device.type == "cuda"
        room = partial(torch.empty, dtype=torch.int64, pin_memory=on_gpu)
        self.seeds, self.sizes = RowBuffer(room), room(2 * layers)
        self.there = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
