"""A sampled minibatch: the seed nodes, the rows it needs and the edges between them.

The layout is that of message-flow blocks. Layer ``k`` (counted from the seeds outwards) connects
its source nodes, the targets of layer ``k + 1``, to its target nodes, the first of its sources.
Each layer samples anew for *all* its targets, like DGL's ``MultiLayerNeighborSampler`` in the
paper's training script.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """One minibatch of ``S`` seed nodes that needs ``B`` feature rows, sampled over ``L`` layers.

    Tensors on a GPU are complete: no work that makes them is pending.

    Attributes:
        input_ids: int64 ``[B]``, distinct node ids; the first ``S`` are the seed nodes.
        edges: ``L`` tensors int64 ``[2, E_k]`` in local numbers (positions in ``input_ids``),
            from the seeds outwards; row 0 is the source (``< num_nodes[k + 1]``), row 1 the
            target (``< num_nodes[k]``).
        num_nodes: ``L + 1`` counts, ``num_nodes[0] = S``, ``num_nodes[L] = B``, non-decreasing.
        kinds: each edge's kind (:mod:`.typed`), ``L`` tensors int64 ``[E_k]``; empty if not needed.
    """

    input_ids: Tensor
    edges: tuple[Tensor, ...]
    num_nodes: tuple[int, ...]
    kinds: tuple[Tensor, ...] = ()

    @property
    def seeds(self) -> Tensor:
        """The seed nodes, int64 ``[S]``."""
        return self.input_ids[: self.num_nodes[0]]
