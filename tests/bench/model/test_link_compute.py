"""Operation and byte counts of a training step, beside torch's own count of the same step."""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.run.training_cost import training_cost
from gatherbench.bench.sampling.minibatch import MiniBatch

SEEDS, FAN, DIM, CLASSES, HIDDEN = 60, 4, 33, 7, 8
#: Operations of Adam for each parameter on the CPU; on a GPU as many for all of them.
ADAM = 8


def minibatch(layers: int) -> MiniBatch:
    generator = torch.Generator().manual_seed(0)
    nodes = [SEEDS * (FAN + 1) ** k for k in range(layers + 1)]
    edges = tuple(
        torch.stack(
            [
                torch.randint(0, nodes[k + 1], (nodes[k] * FAN,), generator=generator),
                torch.arange(nodes[k]).repeat_interleave(FAN),
            ]
        )
        for k in range(layers)
    )
    return MiniBatch(torch.arange(nodes[-1]), edges, tuple(nodes))


class Operations(TorchDispatchMode):
    """Counts operations that do something, by name; views and allocations are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        schema = function._schema
        view = any(a.alias_info and not a.alias_info.is_write for a in schema.arguments) and any(
            r.alias_info for r in schema.returns
        )
        name = function.name()
        if not view and not any(word in name for word in ("empty", "detach", "profiler")):
            self.counts[name.partition("::")[2].partition(".")[0]] += 1
        return function(*args, **(kwargs or {}))


def cost_of(model: str, batch: MiniBatch) -> Any:
    edges = [e.shape[1] for e in batch.edges]
    return training_cost(model, DIM, HIDDEN, CLASSES, batch.num_nodes, edges)


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_counts_are_those_of_the_step_that_is_trained(model, layers):
    batch = minibatch(layers)
    workload = Workload("x", model=model, hidden=HIDDEN, fanouts=(FAN,) * layers)
    network = build_model(workload, DIM, CLASSES)
    labels = torch.zeros(batch.num_nodes[-1], dtype=torch.int64)
    trainer = Trainer(network, labels, torch.device("cpu"))
    x = torch.randn(batch.num_nodes[-1], DIM)
    trainer.step(x, batch)
    with warnings.catch_warnings(), FlopCounterMode(display=False) as flops:
        warnings.simplefilter("ignore")
        trainer.step(x, batch)
    with Operations() as operations:
        trainer.step(x, batch)

    cost = cost_of(model, batch)
    products = flops.get_total_flops()
    assert products <= cost.operations  # what torch counts are the matrix products
    assert cost.operations == pytest.approx(products, rel=0.35)
    parameters = len(list(network.parameters()))
    copies = layers + 1
    done = operations.counts.total() - operations.counts["_local_scalar_dense"]
    assert cost.launches == done - ADAM * parameters + ADAM + copies
    assert cost.structure_bytes == sum(e.nbytes for e in batch.edges)


@pytest.mark.parametrize(
    ("model", "operations", "values"),
    [
        # Outer layer, 3 wide to 2: products 2 × 96, messages of 9 edges 27; 173 values. Inner
        # layer, 2 wide to 5: 2 × 80 and 12, and the gradient of its input 80 and 12; 96 and 72.
        ("sage", (192 + 27) + (160 + 12 + 80 + 12), 173 + 96 + 72),
        # 4 heads: 8 wide in between. Outer: 13 edges with loops; products 2 × 528, twice 208 + 520;
        # 2 × 121 + 3 × 552 + 2 × 520 values. Inner, one head: 3 × 480, twice 80 + 80; 946 and 78.
        ("gat", (1056 + 1456) + (1440 + 320), 2938 + 946 + 78),
    ],
)
def test_operations_and_bytes_by_hand(model, operations, values):
    """2, 4 and 7 nodes from the seeds outwards, 6 and 9 edges; 3 columns, 2 hidden, 5 classes."""
    cost = training_cost(model, 3, 2, 5, [2, 4, 7], [6, 9])
    assert (cost.operations, cost.memory_bytes) == (operations, 4 * values)
    assert cost.structure_bytes == 15 * 2 * 8


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_counts_are_linear_in_the_minibatches(model):
    """So that the sum over a trace is the cost of its summed shapes (but for the launches)."""
    one = training_cost(model, 33, 8, 7, [10, 40, 90], [40, 160])
    ten = training_cost(model, 33, 8, 7, [100, 400, 900], [400, 1600])
    assert ten.operations == pytest.approx(10 * one.operations)
    assert ten.memory_bytes == pytest.approx(10 * one.memory_bytes)
    assert ten.launches == one.launches
