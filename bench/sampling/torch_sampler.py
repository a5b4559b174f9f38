"""Neighbour sampling in torch operations, for graphs on a GPU or any other device.

It draws the same random numbers as the CPU sampler. For one seed both give the same minibatch, bit
for bit, so the choice of sampler never changes what is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling.checks import check_fanouts, check_graph, check_seeds
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.splitmix import GOLDEN, MULTIPLIER_1, MULTIPLIER_2, derive

_LOW = 0xFFFFFFFF


class DeviceSampler:
    """Draws what :class:`~gatherbench.bench.sampling.numba_sampler.NeighborSampler` draws.

    The graph is copied to ``device``. The work of a layer grows with the square of its fan-out and
    not with the degrees. Safe to call from several threads.

    On a GPU sampling has to wait several times a minibatch. On a stream of its own it waits for its
    own work only, not for the training that is queued. The edges stay on the GPU. The ids come back
    to the host on that stream too, because every data path checks them there: 8 B a row over the
    link, which all paths pay alike.

    Args:
        indptr, indices, fanouts: as for the other; on the host, may be memory maps.
        device: a GPU, or the host.

    Raises:
        TypeError: an array has the wrong dtype.
        ValueError: the arrays are no graph, or a fan-out is 0 or below -1.
        IndexError: a neighbour is outside the graph.
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32] | NDArray[np.int64],
        fanouts: Sequence[int],
        device: torch.device,
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        self.num_nodes = check_graph(indptr, indices)
        graph = (torch.from_numpy(np.array(part)).to(device) for part in (indptr, indices))
        self._indptr, self._indices = graph
        low, high = torch.aminmax(self._indptr.diff())
        if int(low) < 0 or int(high) >= 2**31:
            raise ValueError("indptr: decreases, or a node has 2^31 neighbours or more")
        if self._indices.numel():
            low, high = torch.aminmax(self._indices)
            if int(low) < 0 or int(high) >= self.num_nodes:
                raise IndexError(
                    f"indices: holds nodes {int(low)}..{int(high)}, outside the graph's"
                    f" 0..{self.num_nodes - 1}"
                )
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def sample(self, seeds: Tensor, seed: int) -> MiniBatch:
        """Draw the minibatch of ``seeds``.

        ``input_ids`` are on the host, the edges on the device, where what the current stream does
        from here on finds them.

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
        if self._stream is None:
            return self._layers(known, seed)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            drawn = self._layers(known.to(self._device), seed)
            ids = drawn.input_ids.cpu()
        current.wait_stream(self._stream)
        for made in drawn.edges:
            made.record_stream(current)  # or it could be handed on while the training reads it
        return MiniBatch(ids, drawn.edges, drawn.num_nodes)

    def clone(self, threads: int) -> Self:
        """Another thread may use the same."""
        return self

    def _layers(self, known: Tensor, seed: int) -> MiniBatch:
        num_nodes, edges = [known.numel()], []
        for layer, fanout in enumerate(self.fanouts):
            sources, targets = self._draw(known, fanout, derive(seed, layer))
            known, local = _relabel(known, sources)
            num_nodes.append(known.numel())
            edges.append(torch.stack([local, targets]))
        return MiniBatch(known, tuple(edges), tuple(num_nodes))

    def _draw(self, nodes: Tensor, fanout: int, key: int) -> tuple[Tensor, Tensor]:
        """Global sources and local targets of the edges drawn for ``nodes``."""
        begins = self._indptr[nodes]
        degrees = self._indptr[nodes + 1] - begins
        taken = degrees if fanout < 0 else degrees.clamp(max=fanout)
        ends = taken.cumsum(0)
        targets = torch.repeat_interleave(taken)
        first = ends - taken
        places = torch.arange(targets.numel(), device=nodes.device) + (begins - first)[targets]
        longer = (degrees > taken).nonzero()[:, 0]
        if longer.numel():
            states = _mix((nodes[longer] + 1) * _signed(GOLDEN) + _signed(key))
            chosen = _choose(degrees[longer], fanout, states)
            columns = first[longer, None] + torch.arange(fanout, device=nodes.device)
            places[columns] = begins[longer, None] + chosen
        return self._indices[places].to(torch.int64), targets


def _choose(degrees: Tensor, taken: int, states: Tensor) -> Tensor:
    """``[T, taken]`` distinct numbers below each degree, by Floyd's algorithm (see kernels).

    All are drawn at once, and only whether one is there already is asked in turn: on a GPU this
    waits for launches, not for arithmetic.
    """
    turns = torch.arange(taken, device=degrees.device)
    highest = degrees[:, None] - taken + turns
    chosen = _below(_mix(states[:, None] + (turns + 1) * _signed(GOLDEN)), highest + 1)
    for j in range(1, taken):
        draw = chosen[:, j]
        repeated = (chosen[:, :j] == draw[:, None]).any(1)
        chosen[:, j] = torch.where(repeated, highest[:, j], draw)
    return chosen


def _relabel(known: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """All nodes in the order of their first appearance, and the sources' places among them."""
    both = torch.cat([known, sources])
    nodes, group = torch.unique(both, return_inverse=True)
    first = torch.full_like(nodes, both.numel())
    first.scatter_reduce_(0, group, torch.arange(both.numel(), device=both.device), "amin")
    order = first.argsort()
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    return nodes[order], place[group[known.numel() :]]


def _signed(word: int) -> int:
    """The int64 with the bits of ``word``: torch wraps around on overflow, as uint64 does."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word


def _shifted(words: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mix(words: Tensor) -> Tensor:
    words = (words ^ _shifted(words, 30)) * _signed(MULTIPLIER_1)
    words = (words ^ _shifted(words, 27)) * _signed(MULTIPLIER_2)
    return words ^ _shifted(words, 31)


def _below(words: Tensor, bound: Tensor) -> Tensor:
    """Uniform integers in [0, bound), bound < 2^31."""
    high = _shifted(words, 32) * bound
    return (high + _shifted((words & _LOW) * bound, 32)) >> 32
