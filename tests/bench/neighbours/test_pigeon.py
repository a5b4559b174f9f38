"""Relational layers: those of one family have the same values and gradients, in less memory."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gatherbench.bench.neighbours import pigeon
from gatherbench.bench.neighbours.pigeon import PairTally, PigeonRGATConv, compact_rows
from gatherbench.bench.plan.doors import is_relational
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.axis import AXES
from gatherbench.bench.run.models import Trainer, build_model
from gatherbench.bench.run.untimed import peak_of
from gatherbench.bench.sampling.minibatch import MiniBatch

KINDS, WIDTH, CLASSES = 4, 6, 3
#: Models, and PyG's of the same values.
RELATIONAL = AXES["model"].over
OWN = [model for model, base in RELATIONAL.items() if model != base]


def drawn(seed: int, nodes: tuple[int, int, int] = (3, 8, 20), edges: int = 30) -> MiniBatch:
    torch.manual_seed(seed)
    ends = [
        torch.stack([torch.randint(wide, (edges,)), torch.randint(narrow, (edges,))])
        for narrow, wide in pairwise(nodes)
    ]
    kinds = tuple(torch.randint(KINDS, (edges,)) for _ in ends)
    return MiniBatch(torch.arange(nodes[-1]), tuple(ends), nodes, kinds)


def model_of(name: str) -> nn.Module:
    return build_model(
        Workload("x", model=f"{pigeon.__name__}:{name}", hidden=5), WIDTH, CLASSES, KINDS
    ).eval()


def test_every_relational_model_is_told_the_kinds_of_edges():
    assert all(is_relational(f"{pigeon.__name__}:{name}") for name in RELATIONAL)
    assert not is_relational("sage")


def check_layer(name: str, seed: int, edges: int) -> None:
    """Raises where a layer of ours has other values or gradients than PyG's."""
    batch, rows = drawn(seed, edges=edges), torch.randn(20, WIDTH)
    theirs, ours = model_of(RELATIONAL[name]), model_of(name)
    ours.load_state_dict(theirs.state_dict())
    wanted, found = theirs(rows, batch), ours(rows, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(wanted)
    for out in (wanted, found):
        (out * weights).sum().backward()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        if one.grad is not None and edges:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", OWN)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), edges=st.integers(0, 40))
def test_a_layer_of_ours_has_the_values_and_gradients_of_pygs(name, seed, edges):
    check_layer(name, seed, edges)


def kinds_lost(x: Tensor, nodes: Tensor, kinds: Tensor, weight: Tensor) -> Tensor:
    """Wrong: what a source has of one kind stands for all of its kinds."""
    return compact_rows(x, nodes, torch.zeros_like(kinds), weight)


def next_row(x: Tensor, nodes: Tensor, kinds: Tensor, weight: Tensor) -> Tensor:
    """Wrong: an edge has the row of the edge beside it."""
    return compact_rows(x, nodes, kinds, weight).roll(1, 0)


def swapped(self: PigeonRGATConv, *given: Any, size: tuple[int, int]) -> Tensor:
    """Wrong: what scores a target scores a source."""
    self.q, self.k = self.k, self.q
    try:
        return RIGHT(self, *given, size)
    finally:
        self.q, self.k = self.k, self.q


RIGHT = PigeonRGATConv.forward
WRONG = [
    *(
        (name, "compact_rows", wrong)
        for name in OWN
        if "Compact" in name
        for wrong in (kinds_lost, next_row)
    ),
    *((name, "PigeonRGATConv.forward", swapped) for name in OWN if "RGAT" in name),
]


@pytest.mark.parametrize(("name", "part", "wrong"), WRONG)
def test_wrong_layers_have_other_values(name, part, wrong, monkeypatch):
    monkeypatch.setattr(f"{pigeon.__name__}.{part}", wrong)
    with pytest.raises(AssertionError):
        check_layer(name, seed=1, edges=30)


def test_each_edge_has_its_row_times_the_matrix_of_its_kind():
    nodes, kinds = torch.tensor([5, 2, 5, 2, 0]), torch.tensor([1, 0, 1, 3, 0])
    weight = torch.arange(4.0).view(4, 1, 1).expand(4, 1, 2)
    rows = compact_rows(torch.arange(6.0).view(6, 1), nodes, kinds, weight)
    assert rows.tolist() == [[5, 5], [0, 0], [5, 5], [6, 6], [0, 0]]


def test_pairs_of_a_minibatch_are_counted_a_block():
    ends = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]])
    batch = MiniBatch(
        torch.arange(2),
        (ends, ends),
        (2, 2, 2),
        (torch.zeros(4).long(), torch.tensor([0, 1, 0, 0])),
    )
    tally = PairTally()
    tally.add(batch)
    assert [(one.metric, one.value) for one in tally.counted(2.0)] == [("pairs", 2 * (2 + 3))]


@pytest.mark.parametrize("name", ["FastRGCN", "RGAT"])
def test_compact_layers_take_less_at_a_time(name):
    """400 edges of 20 sources: PyG holds a matrix for each edge, we a row for each pair."""
    batch, rows = drawn(0, (10, 20, 20), 400), torch.randn(20, WIDTH)
    labels, cpu, peaks = torch.zeros(20).long(), torch.device("cpu"), []
    for model in (name, f"Compact{RELATIONAL[name]}"):
        trainer = Trainer(model_of(model), labels, cpu)
        peaks.append(peak_of(partial(trainer.step, rows, batch), cpu)[0])
    assert peaks[1] < peaks[0] / 1.5
