"""When two minibatches are one."""

import torch

from gatherbench.bench.sampling.minibatch import MiniBatch


def same(a: MiniBatch, b: MiniBatch) -> bool:
    """Bit for bit, dtypes included."""
    pairs = [(a.input_ids, b.input_ids), *zip(a.edges, b.edges, strict=True)]
    return a.num_nodes == b.num_nodes and all(
        one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs
    )
