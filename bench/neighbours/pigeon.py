"""Relational models: PyG's R-GCN and R-GAT, and the same layers computed as PIGEON does.

They are used through the model's door. A layer multiplies a source's row by the matrix of the
edge's kind. PyG does so for each edge (R-GAT, "fast" R-GCN) or for each kind over all targets
(R-GCN). *Compact*: a product of source and kind is computed once for each distinct pair of a block.
*Reordered*: attention uses ``x · (W a)`` in place of ``(x W) · a``: no row is multiplied by ``W``
for its score alone (Wu et al., "PIGEON", arXiv 2301.06284, where a compiler does both).
Parameters are those of PyG's layers, and values equal theirs up to the order of float additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu, relu
from torch_geometric.nn import FastRGCNConv, RGATConv, RGCNConv
from torch_geometric.utils import softmax

from gatherbench.bench.run.models import DROPOUT, TalliedModel
from gatherbench.bench.run.training_cost import GAT_HEADS
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.sampler import Counted, Tally


@dataclass(frozen=True, slots=True)
class Pairs:
    """The distinct pairs of a node and a kind in a block, by kind.

    Attributes:
        nodes: int64 ``[U]``, in the order of their kinds.
        ends: those of kind ``k`` end at ``ends[k]`` and begin at the end before, or 0.
        of_edges: int64 ``[E]``: the pair of each edge.
    """

    nodes: Tensor
    ends: tuple[int, ...]
    of_edges: Tensor

    @classmethod
    def of(cls, nodes: Tensor, kinds: Tensor, num_nodes: int, num_kinds: int) -> Pairs:
        """Return the pairs of edges; ``nodes`` (an end of each) and ``kinds`` are int64 ``[E]``."""
        keys, of_edges = torch.unique(kinds * num_nodes + nodes, return_inverse=True)
        counts = torch.bincount(keys // num_nodes, minlength=num_kinds)
        return cls(keys % num_nodes, tuple(counts.cumsum(0).tolist()), of_edges)

    def times(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply each pair's row of ``x`` ``[N, D]`` by its kind's ``weight`` ``[K, D, H]``."""
        begins = (0, *self.ends[:-1])
        parts = [
            x[self.nodes[begin:end]] @ weight[kind]
            for kind, (begin, end) in enumerate(zip(begins, self.ends, strict=True))
            if end > begin
        ]
        return torch.cat(parts) if parts else x.new_zeros(0, weight.shape[2])


class PairTally(Tally):
    """Counts the distinct pairs of a source and a kind, block by block."""

    def __init__(self) -> None:
        self.pairs = 0

    def add(self, batch: MiniBatch) -> None:
        blocks = zip(batch.edges, batch.kinds, batch.num_nodes[1:], strict=True)
        for edges, kinds, nodes in blocks:
            self.pairs += len(torch.unique(kinds * nodes + edges[0]))

    def counted(self, scale: float) -> Iterator[Counted]:
        source = "distinct sources and kinds of a block's edges"
        yield Counted("pairs", "1", round(self.pairs * scale), source)


class CompactRGCNConv(RGCNConv):  # type: ignore[misc]
    """R-GCN's layer: it multiplies a source's row once for each kind of edge that it has."""

    def forward(self, x: tuple[Tensor, Tensor], edges: Tensor, kinds: Tensor) -> Tensor:
        """Return rows ``[T, out]`` of targets from ``(x_source, x_target)``; edges as in PyG."""
        source, target = x
        pairs = Pairs.of(edges[0], kinds, len(source), self.num_relations)
        ends = kinds * len(target) + edges[1]
        alike = torch.bincount(ends, minlength=self.num_relations * len(target))
        messages = pairs.times(source, self.weight)[pairs.of_edges] / alike[ends].unsqueeze(1)
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
        """Return for each edge its end's row times its kind's matrix: ``[E, H]``."""
        if self._compact:
            pairs = Pairs.of(nodes, kinds, len(x), len(weight))
            return pairs.times(x, weight)[pairs.of_edges]
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


class RGCN(TalliedModel):
    """A stack of relational layers over the blocks of a minibatch; here PyG's of R-GCN.

    Args:
        relations: the number of kinds of edges.
    """

    #: Heads of the hidden layers, and PyG's layer or this module's in its place.
    heads, conv = 1, RGCNConv

    def __init__(
        self, in_channels: int, hidden: int, out_channels: int, num_layers: int, *, relations: int
    ) -> None:
        super().__init__()
        inner = [hidden * self.heads] * (num_layers - 1)
        widths = [in_channels, *inner]
        hidden_layers = [self.layer(wide, hidden, relations, self.heads) for wide in widths[:-1]]
        last = self.layer(widths[-1], out_channels, relations, 1)
        self.convs = nn.ModuleList([*hidden_layers, last])

    def layer(self, wide: int, out: int, kinds: int, heads: int) -> nn.Module:
        """Return a layer of widths ``wide`` to ``out`` per head, for so many kinds."""
        layer: nn.Module = self.conv((wide, wide), out, kinds)
        return layer

    def forward(self, x: Tensor, batch: MiniBatch) -> Tensor:
        """Return logits ``[S, classes]`` of the seeds from the fetched rows ``x`` ``[B, D]``."""
        for conv, block in zip(self.convs, reversed(range(len(batch.edges))), strict=True):
            rows = (x, x[: batch.num_nodes[block]])
            x = conv(rows, batch.edges[block], batch.kinds[block])
            if block > 0:
                x = dropout(relu(x), DROPOUT, self.training)
        return x

    @classmethod
    def tally(cls) -> Tally:
        return PairTally()


class FastRGCN(RGCN):
    """PyG's faster layers, which take more memory."""

    conv = FastRGCNConv


class CompactRGCN(RGCN):
    """This module's layers of R-GCN, compact."""

    conv = CompactRGCNConv


class RGAT(RGCN):
    """PyG's layers of R-GAT."""

    heads = GAT_HEADS

    def layer(self, wide: int, out: int, kinds: int, heads: int) -> nn.Module:
        return _Attention(RGATConv(wide, out, kinds + 1, heads=heads), kinds)


class CompactRGAT(RGAT):
    """This module's layers of R-GAT, compact."""

    compact, reordered = True, False

    def layer(self, wide: int, out: int, kinds: int, heads: int) -> nn.Module:
        how = {"compact": self.compact, "reordered": self.reordered}
        return _Attention(PigeonRGATConv(wide, out, kinds + 1, heads=heads, **how), kinds)


class ReorderedRGAT(CompactRGAT):
    """This module's layers of R-GAT, reordered."""

    compact, reordered = False, True


class CompactReorderedRGAT(CompactRGAT):
    """This module's layers of R-GAT, compact and reordered."""

    compact, reordered = True, True
