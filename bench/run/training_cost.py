"""Operations and bytes of a training step, counted from the shapes of a minibatch.

Layer by layer as PyG computes them: messages are materialised, one row for each edge. Matrix
products are exact (the tests compare them with torch's own count); bytes count each tensor that an
operation reads or writes once, as if no cache held any of it, so the roofline's memory side errs on
the slow side for small minibatches. The number of operations is that of the same step on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

#: Heads of the hidden GAT layers, each ``hidden`` wide (DGL's and PyG's GAT examples use 8 × 8;
#: the paper gives no number). The output layer has one.
GAT_HEADS = 4
_FLOAT = 4  # bytes: features are widened to float32 on the device
_INDEX = 8  # bytes: edges are int64
#: Operations of forward, loss and backward, for each layer and outside them, as torch dispatches
#: them (views left out; the tests count them again).
_OPERATIONS = {"sage": (28, -8), "gat": (71, -4)}
#: The models whose operations are counted.
COUNTED = tuple(_OPERATIONS)
#: Operations of an Adam step, which torch does for all parameters at once on a GPU.
_ADAM = 8


class Counted(ABC):
    """A base next to ``nn.Module``: a model of your own that declares a step's cost on a GPU."""

    @staticmethod
    @abstractmethod
    def cost(
        in_channels: int,
        hidden: int,
        out_channels: int,
        num_nodes: Sequence[float],
        num_edges: Sequence[float],
    ) -> TrainingCost:
        """Return the cost of a whole step on one minibatch; widths as the class is given.

        It is linear in nodes and edges, except ``launches``: an epoch's cost is one call. Sizes are
        as of :func:`training_cost`.
        """


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """The demands of a training step on the GPU."""

    operations: float  # float32 operations; a multiply-add counts two
    memory_bytes: float  # read from and written to GPU memory
    launches: float  # GPU operations issued by the host
    structure_bytes: float  # edges that are copied to the GPU for the step


def training_cost(
    model: str,
    in_dim: int,
    hidden: int,
    classes: int,
    num_nodes: Sequence[float],
    num_edges: Sequence[float],
) -> TrainingCost:
    """Return the cost of forward, backward and optimiser step on one minibatch.

    Args:
        model: ``sage`` or ``gat``, as ``bench/run/models.py`` builds them.
        hidden: width of the hidden layers; of GAT's, of each head.
        num_nodes, num_edges: ``L + 1`` and ``L`` counts from the seeds outwards.

    Raises:
        ValueError: another model, or counts that are inconsistent.
    """
    layers = len(num_edges)
    if model not in _OPERATIONS:
        raise ValueError(f"unknown model {model!r}: sage or gat")
    if len(num_nodes) != layers + 1:
        raise ValueError(f"{layers} layers need {layers + 1} node counts")
    inner = hidden * GAT_HEADS if model == "gat" else hidden
    widths = [in_dim, *[inner] * (layers - 1), classes]
    operations = floats = 0.0
    for layer in range(layers):  # layer 0 turns the input features into hidden rows
        block = layers - 1 - layer
        sizes = num_nodes[block + 1], num_nodes[block], num_edges[block]
        shape = *sizes, widths[layer], widths[layer + 1], layer > 0
        done = _sage_layer(*shape) if model == "sage" else _gat_layer(*shape, block > 0)
        operations, floats = operations + done[0], floats + done[1]
    a_layer, beside = _OPERATIONS[model]
    copies = layers + 1  # each layer's edges, and the ids
    launches = a_layer * layers + beside + _ADAM + copies
    return TrainingCost(operations, floats * _FLOAT, launches, sum(num_edges) * 2 * _INDEX)


def _sage_layer(
    sources: float, targets: float, edges: float, wide: int, out: int, inner: bool
) -> tuple[float, float]:
    """Return operations, and floats read or written; an ``inner`` layer's input has a gradient."""
    products = 2 * (2 * targets * wide * out)  # neighbours' mean and the target's own row
    dense = 2 * targets * (wide + out)
    messages = 3 * edges * wide + targets * wide  # select, write, read again and add up
    backward = 3 * edges * wide + sources * wide + dense if inner else 0
    return (2 + inner) * products + (1 + inner) * edges * wide, messages + 2 * dense + backward


def _gat_layer(
    sources: float, targets: float, edges: float, wide: int, out: int, inner: bool, hidden: bool
) -> tuple[float, float]:
    heads = GAT_HEADS if hidden else 1
    edges = edges + targets  # PyG adds a loop to each target
    products = 2 * (sources + targets) * wide * out
    dense = (sources + targets) * (wide + out)
    messages = 5 * edges * out + targets * out  # select, scale by attention, add up
    attention = 10 * edges * heads  # scores, their softmax over each target's edges
    operations = (2 + inner) * products + 2 * (2 * edges * out + attention)
    return operations, (2 + inner) * dense + 3 * messages + 2 * attention
