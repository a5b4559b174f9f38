"""A model of one's own: a plan in this folder says `model = "own_model:SumGNN"`.

`Counted` and `cost` are optional: without them its epochs are measured but not predicted.
"""

from itertools import pairwise

from torch import nn

from gatherbench.bench.run.training_cost import Counted, TrainingCost


class SumGNN(nn.Module, Counted):
    """A model that sums neighbours' rows and applies a linear layer, once for each hop."""

    def __init__(self, in_channels, hidden, out_channels, num_layers):
        super().__init__()
        widths = [in_channels, *[hidden] * (num_layers - 1), out_channels]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x, batch):
        """Turn the minibatch's rows ``[B, D]`` into its seeds' logits ``[S, out_channels]``."""
        for layer, block in zip(self.layers, reversed(range(len(batch.edges))), strict=True):
            source, target = batch.edges[block]
            sums = x[: batch.num_nodes[block]].clone().index_add_(0, target, x[source])
            x = layer(sums) if block == 0 else layer(sums).relu()
        return x

    @staticmethod
    def cost(in_channels, hidden, out_channels, num_nodes, num_edges):
        """Return what a step takes: operations, bytes of GPU memory, kernels, bytes of edges."""
        widths = [in_channels, *[hidden] * (len(num_edges) - 1), out_channels]
        operations = bytes_moved = 0
        for layer, block in enumerate(reversed(range(len(num_edges)))):
            wide, out, targets = widths[layer], widths[layer + 1], num_nodes[block]
            forward = 2 * targets * wide * out  # backward: weights, and inputs but the first
            operations += (3 if layer else 2) * forward + num_edges[block] * wide
            bytes_moved += 4 * (3 * num_edges[block] * wide + 4 * targets * (wide + out))
        return TrainingCost(operations, bytes_moved, 30 * len(num_edges), 16 * sum(num_edges))
