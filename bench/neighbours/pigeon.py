"""Relational models: PyG's R-GCN and R-GAT, and the same layers computed as PIGEON does.

A layer multiplies a source's row by the matrix of the edge's kind. PyG does so for each edge
(R-GAT, "fast" R-GCN) or for each kind over all targets (R-GCN). *Compact*: a product of source and
kind is computed once for each distinct pair of a block. *Reordered*: attention uses ``x · (W a)``
in place of ``(x W) · a``: no row is multiplied by ``W`` for its score alone (Wu et al., "PIGEON",
arXiv 2301.06284, where a compiler does both). Parameters are those of PyG's layers, and values
equal theirs up to the order of float additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv
from torch_geometric.utils import softmax

from gatherbench.bench.run.models import BlockGNN, TalliedModel
from gatherbench.bench.run.training_cost import GAT_HEADS
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Counted, Tally


def compact_rows(x: Tensor, nodes: Tensor, kinds: Tensor, weight: Tensor) -> Tensor:
    """Multiply each edge's row of ``x`` ``[N, D]`` by its kind's ``weight`` ``[K, D, H]``.

    Each distinct pair of a node and a kind is multiplied once, those of a kind together. ``nodes``
    (an end of each edge) and ``kinds`` are int64 ``[E]``; the result is ``[E, H]``.
    """
    pairs, of_edges = torch.unique(kinds * len(x) + nodes, return_inverse=True)
    counts = torch.bincount(pairs // len(x), minlength=len(weight)).tolist()
    parts = enumerate(torch.split(pairs % len(x), counts))
    rows = [x[part] @ weight[kind] for kind, part in parts if len(part)]
    return torch.cat(rows)[of_edges] if rows else x.new_zeros(0, weight.shape[2])


class PairTally(Tally):
    """Counts the distinct pairs of a source and a kind, block by block."""

    pairs = 0

    def add(self, batch: MiniBatch) -> None:
        for edges, kinds, nodes in zip(batch.edges, batch.kinds, batch.num_nodes[1:], strict=True):
            self.pairs += len(torch.unique(kinds * nodes + edges[0]))

    def counted(self, scale: float) -> Iterator[Counted]:
        source = "distinct sources and kinds of a block's edges"
        yield Counted("pairs", "1", round(self.pairs * scale), source)


class CompactRGCNConv(RGCNConv):  # type: ignore[misc]
    """R-GCN's layer, compact."""

    def forward(self, x: tuple[Tensor, Tensor], edges: Tensor, kinds: Tensor) -> Tensor:
        """Return rows ``[T, out]`` of targets from ``(x_source, x_target)``; edges as in PyG."""
        source, target = x
        ends = kinds * len(target) + edges[1]
        alike = torch.bincount(ends, minlength=self.num_relations * len(target))
        messages = compact_rows(source, edges[0], kinds, self.weight) / alike[ends].unsqueeze(1)
        out = target.new_zeros(len(target), self.out_channels).index_add(0, edges[1], messages)
        rows: Tensor = out + target @ self.root + self.bias
        return rows


class PigeonRGATConv(RGATConv):  # type: ignore[misc]
    """R-GAT's layer (additive attention, over all kinds together), compact or reordered or both."""

    def __init__(self, *sizes: int, heads: int, compact: bool, reordered: bool) -> None:
        super().__init__(*sizes, heads=heads)
        self._compact, self._reordered = compact, reordered

    def forward(self, x: Tensor, edges: Tensor, kinds: Tensor, size: tuple[int, int]) -> Tensor:
        """Return rows ``[N, heads * out]``; only those of targets, the first of ``x``, are used."""
        source = self._rows(x, edges[0], kinds, self.weight)
        if self._reordered:
            # [K, D, heads]: maps a row to its score for an edge of that kind.
            query, key = self.weight @ self.q, self.weight @ self.k
            score = self._rows(x, edges[1], kinds, query) + self._rows(x, edges[0], kinds, key)
        else:
            score = self._rows(x, edges[1], kinds, self.weight) @ self.q + source @ self.k
        alpha = softmax(leaky_relu(score, self.negative_slope), edges[1], num_nodes=size[1])
        rows = source.view(-1, self.heads, self.out_channels) * alpha.unsqueeze(2)
        rows = rows.view(-1, self.heads * self.out_channels)
        out = x.new_zeros(size[1], rows.shape[1]).index_add(0, edges[1], rows)
        return out.add(self.bias)

    def _rows(self, x: Tensor, nodes: Tensor, kinds: Tensor, weight: Tensor) -> Tensor:
        if self._compact:
            return compact_rows(x, nodes, kinds, weight)
        return torch.bmm(x[nodes].unsqueeze(1), weight[kinds]).squeeze(1)


class _Attention(nn.Module):
    """A layer of R-GAT over a block: each target also attends to itself, by a kind of its own."""

    def __init__(self, conv: nn.Module, self_kind: int) -> None:
        super().__init__()
        self.conv, self.self_kind = conv, self_kind

    def forward(self, x: tuple[Tensor, Tensor], edges: Tensor, kinds: Tensor) -> Tensor:
        rows, targets = x[0], len(x[1])
        itself = torch.arange(targets, device=edges.device)
        edges = torch.cat([edges, itself.expand(2, -1)], dim=1)
        kinds = torch.cat([kinds, torch.full_like(itself, self.self_kind)])
        out: Tensor = self.conv(rows, edges, kinds, size=(len(rows), len(rows)))
        return out[:targets]


class RGCN(BlockGNN, TalliedModel):
    """A model over the blocks of a minibatch with ``relations`` kinds of edges: PyG's R-GCN."""

    heads = 1  # of the hidden layers
    conv: ClassVar[Any] = RGCNConv

    def __init__(
        self, in_channels: int, hidden: int, out_channels: int, num_layers: int, *, relations: int
    ) -> None:
        *inner, last = [in_channels, *[hidden * self.heads] * (num_layers - 1)]
        layers = [self.layer(wide, hidden, relations, self.heads) for wide in inner]
        super().__init__([*layers, self.layer(last, out_channels, relations, 1)])

    def layer(self, wide: int, out: int, kinds: int, heads: int) -> nn.Module:
        """Return a layer of widths ``wide`` to ``out`` per head."""
        layer: nn.Module = self.conv((wide, wide), out, kinds)
        return layer

    @classmethod
    def tally(cls) -> Tally:
        return PairTally()


class FastRGCN(RGCN):
    """PyG's faster layers, which take more memory."""

    conv = FastRGCNConv


class CompactRGCN(RGCN):
    conv = CompactRGCNConv


class RGAT(RGCN):
    """PyG's layers of R-GAT."""

    heads, conv = GAT_HEADS, RGATConv
    how: ClassVar[dict[str, bool]] = {}

    def layer(self, wide: int, out: int, kinds: int, heads: int) -> nn.Module:
        return _Attention(self.conv(wide, out, kinds + 1, heads=heads, **self.how), kinds)


class CompactRGAT(RGAT):
    conv, how = PigeonRGATConv, {"compact": True, "reordered": False}


class ReorderedRGAT(CompactRGAT):
    how: ClassVar = {"compact": False, "reordered": True}


class CompactReorderedRGAT(CompactRGAT):
    how: ClassVar = {"compact": True, "reordered": True}
