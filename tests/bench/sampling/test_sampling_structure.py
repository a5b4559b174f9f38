"""What every minibatch must be, whatever was drawn: checked edge by edge against the graph."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler

from .minibatches import same

pytestmark = pytest.mark.usefixtures("kernels_on_host")

Graph = tuple[NDArray[np.int64], NDArray[np.int32] | NDArray[np.int64]]


def csc(num_nodes: int, edges: Sequence[tuple[int, int]], dtype: type = np.int32) -> Graph:
    """The graph of ``(source, target)`` pairs, lists in the order of the pairs."""
    lists: list[list[int]] = [[] for _ in range(num_nodes)]
    for source, target in edges:
        lists[target].append(source)
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return indptr, np.array([u for neighbours in lists for u in neighbours], dtype)


def check_minibatch(batch: MiniBatch, graph: Graph, fanouts: Sequence[int], seeds: Tensor) -> None:
    """Assert everything that :class:`MiniBatch` promises but the distribution."""
    indptr, indices = graph
    ids = batch.input_ids.tolist()
    assert batch.input_ids.dtype == torch.int64
    assert len(set(ids)) == len(ids), "a node stands twice among the input ids"
    assert len(batch.num_nodes) == len(fanouts) + 1
    assert batch.num_nodes[-1] == len(ids)
    assert torch.equal(batch.seeds, seeds)
    for layer, (edges, fanout) in enumerate(zip(batch.edges, fanouts, strict=True)):
        targets, known = batch.num_nodes[layer], batch.num_nodes[layer + 1]
        assert edges.dtype == torch.int64
        assert edges.shape[0] == 2
        drawn: list[list[int]] = [[] for _ in range(targets)]
        for source, target in edges.T.tolist():
            assert 0 <= source < known, "a source that its layer does not know"
            drawn[target].append(ids[source])
        for target in range(targets):
            v = ids[target]
            listed = indices[indptr[v] : indptr[v + 1]].tolist()
            assert len(drawn[target]) == (len(listed) if fanout < 0 else min(fanout, len(listed)))
            # As often as the graph lists them at most: parallel edges are edges of their own.
            assert Counter(drawn[target]) <= Counter(listed), "no such edge, or drawn twice"
        assert set(range(targets, known)) <= set(edges[0].tolist()), "a node that nothing reached"


def random_graph(num_nodes: int, mean_degree: int, seed: int = 0) -> Graph:
    """No parallel edges; every tenth node has no neighbours, every fifth a long list."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 2 * mean_degree, num_nodes)
    degrees[::10] = 0
    degrees[1::5] = min(num_nodes, 5 * mean_degree)
    lists = [rng.choice(num_nodes, degree, replace=False) for degree in degrees]
    return np.cumsum([0, *degrees], dtype=np.int64), np.concatenate(lists).astype(np.int32)


def both_samplers(graph: Graph, fanouts: Sequence[int], seeds: Tensor, seed: int) -> MiniBatch:
    """The CPU sampler's minibatch, after a look that the GPU's is the same bit for bit."""
    ours = NeighborSampler(*graph, fanouts).sample(seeds, seed)
    assert same(ours, DeviceSampler(*graph, fanouts, torch.device("cpu")).sample(seeds, seed))
    return ours


@st.composite
def sampling_jobs(draw: st.DrawFn) -> tuple[Graph, list[int], Tensor, int]:
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=60))  # self-loops, parallel edges too
    graph = csc(num_nodes, edges, draw(st.sampled_from([np.int32, np.int64])))
    fanouts = draw(st.lists(st.sampled_from([-1, 1, 2, 3, 100]), min_size=1, max_size=3))
    seeds = draw(st.lists(node, min_size=1, unique=True))
    return graph, fanouts, torch.tensor(seeds), draw(st.integers(-(2**63), 2**64))


@given(sampling_jobs())
@settings(deadline=None, max_examples=100)
def test_any_graph(job):
    graph, fanouts, seeds, seed = job
    check_minibatch(both_samplers(graph, fanouts, seeds, seed), graph, fanouts, seeds)


@pytest.mark.parametrize("fanouts", [(25, 10), (3,), (80, 5), (1, 1, 1), (-1,), (-1, 2)], ids=str)
def test_lists_short_and_long(fanouts):
    graph = random_graph(600, 30)
    seeds = torch.arange(40, 0, -1)
    check_minibatch(both_samplers(graph, fanouts, seeds, 7), graph, fanouts, seeds)


@pytest.mark.parametrize("degree", [63, 64, 65, 127, 128, 129])
def test_where_the_marking_of_places_changes(degree):
    graph = csc(degree + 1, [(u + 1, 0) for u in range(degree)])
    for fanout in (1, degree - 1, degree, degree + 1):
        batch = both_samplers(graph, (fanout,), torch.tensor([0]), 3)
        check_minibatch(batch, graph, (fanout,), torch.tensor([0]))


def test_a_hub():
    hub = 100_000
    indptr = np.full(hub + 2, 0, np.int64)
    indptr[-1] = hub
    graph = (indptr, np.arange(hub, dtype=np.int32))
    seeds = torch.tensor([hub, 5])
    for fanout in (10, 5000):
        check_minibatch(both_samplers(graph, (fanout,), seeds, 1), graph, (fanout,), seeds)
    everything = NeighborSampler(*graph, (-1,)).sample(seeds, 1)
    assert everything.num_nodes == (2, hub + 1)  # 5 is a seed and a neighbour
    assert torch.equal(everything.input_ids[everything.edges[0][0]], torch.arange(hub))


def test_more_edges_than_int32_can_count(tmp_path):
    """A file with a hole of 8 GiB, which takes no room on disk and reads as zeros."""
    nodes, degree = 3000, 2**31 // 3000 + 1
    path = tmp_path / "indices.bin"
    with path.open("wb") as file:
        file.truncate(4 * nodes * degree)
        file.seek(-4 * degree, 2)
        file.write((np.arange(degree) % nodes).astype(np.int32).tobytes())
    indices = np.memmap(path, np.int32, "r")
    indptr = np.arange(nodes + 1, dtype=np.int64) * degree
    assert indptr[-1] > 2**31
    batch = NeighborSampler(indptr, indices, (40,), threads=1).sample(torch.tensor([nodes - 1]), 0)
    check_minibatch(batch, (indptr, indices), (40,), torch.tensor([nodes - 1]))
    assert batch.num_nodes[1] > 30  # not the hole, where every neighbour is node 0


def test_parallel_edges_may_both_be_drawn():
    graph = csc(3, [(1, 0), (1, 0), (2, 0)])
    sampler = NeighborSampler(*graph, (2,))
    drawn = Counter(
        tuple(sorted(batch.input_ids[batch.edges[0][0]].tolist()))
        for batch in (sampler.sample(torch.tensor([0]), seed) for seed in range(300))
    )
    assert set(drawn) == {(1, 1), (1, 2)}
    assert 60 < drawn[1, 1] < 140  # one in three


def test_minibatches_with_a_mistake_fail():
    graph, fanouts, seeds = random_graph(200, 20), (6, 4), torch.arange(0, 60, 2)
    right = NeighborSampler(*graph, fanouts).sample(seeds, 0)
    first, second = right.edges
    twice, strange, few = first.clone(), first.clone(), first[:, 1:]
    twice[:, 1] = twice[:, 0]
    strange[0, 0] = right.num_nodes[1] - 1  # another target's
    far = torch.stack([right.input_ids[second[0]], second[1]])
    for wrong, said in (
        ((twice, second), "drawn twice"),
        ((strange, second), "no such edge"),
        ((few, second), "assert"),
        ((first, far), "does not know|no such edge"),
    ):
        with pytest.raises(AssertionError, match=said):
            check_minibatch(replace(right, edges=wrong), graph, fanouts, seeds)
    with pytest.raises(AssertionError, match="stands twice"):
        check_minibatch(replace(right, input_ids=right.input_ids * 0), graph, fanouts, seeds)
