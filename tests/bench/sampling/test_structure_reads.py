"""Neighbour lists on the GPU and in host memory: the same minibatches, and counted reads."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.sampling import device_sampler
from gatherbench.bench.sampling.device_sampler import DeviceSampler, kept_lists
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.structure_reads import hot_lists, sectors_of, structure_reads

from .host_kernels import SOURCE, built, on_host
from .minibatches import same
from .test_sample_kernels import HOST, NODES, graph_of

GRAPHS = [graph_of(np.int32), graph_of(np.int64)]
HOT = [
    np.empty(0, np.int64),
    np.array([7]),
    np.array([499, 0, 7, 3]),
    np.arange(NODES)[::-1].copy(),
    np.arange(0, NODES, 3),
]


def conforms() -> None:
    """Some lists kept, others read where they lie: minibatches are the CPU's, bit for bit."""
    for indptr, indices in GRAPHS:
        right = NeighborSampler(indptr, indices, (10, 5))
        for hot in HOT:
            # Lists that are kept are wrong where they lie: nobody may read them there.
            broken, kept = indices.copy(), kept_lists(indptr, indices, hot)
            for v in hot:
                broken[indptr[v] : indptr[v + 1]] = 0
            tried = DeviceSampler(indptr, broken, (10, 5), HOST, hot=hot)
            tried._graph[0], tried._kept = kept[0], [kept[2], kept[1]]
            for seed, seeds in enumerate(([7], [0], [499, 7, 3], list(range(300, 340)))):
                wanted = right.sample(torch.tensor(seeds), seed)
                assert same(wanted, tried.sample(torch.tensor(seeds), seed))


@pytest.mark.usefixtures("kernels_on_host")
def test_lists_on_the_gpu_and_in_host_memory_give_one_minibatch():
    conforms()


WRONG = {
    "reads every list in host memory": (
        "slot < 0 ? indices : kept",
        "kept != nullptr ? indices : kept",
    ),
    "reads every list on the GPU": (
        "slots == nullptr ? -1 : slots[v]",
        "slots[v] < 0 ? 0 : slots[v]",
    ),
    "begins at the list's place in host memory": ("slot < 0 ? begin : slot", "begin"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_kernels_fail(wrong, tmp_path):
    text, (right, instead) = SOURCE.read_text(), WRONG[wrong]
    assert text.count(right) == 1
    source = tmp_path / "sample.cu"
    source.write_text(text.replace(right, instead))
    from tools.shim.execute import ShimError

    with (
        on_host(built(tmp_path, source, sanitize=True)),
        pytest.raises((AssertionError, ShimError, IndexError)),
    ):
        conforms()


def test_hot_nodes_outside_the_graph_are_refused():
    for hot in ([-1], [NODES]):
        with pytest.raises(IndexError, match="outside the graph"):
            kept_lists(*GRAPHS[0], np.array(hot))


def test_sectors_and_requests_by_hand():
    """Warp 0 reads bytes 0, 4, 40, 100 and 130; warp 1 byte 0 again.

    Sectors 0, 1, 3 and 4, and 0: five. Of warp 0 the run 0-1 is a request of 64 B; 3 and 4 lie in
    two lines, and are one request of 32 B each, as that of warp 1.
    """
    warps = np.array([0, 0, 0, 0, 0, 1])
    addresses = np.array([0, 4, 40, 100, 130, 0])
    assert sectors_of(warps, addresses) == (5, {64: 1, 32: 3})
    whole = np.arange(0, 256, 8)  # a warp that reads 256 B in a row
    assert sectors_of(np.zeros(32, np.int64), whole) == (8, {128: 2})
    assert sectors_of(np.empty(0, np.int64), np.empty(0, np.int64)) == (0, {})


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=60))
def test_requests_are_those_of_a_plain_loop(loads):
    wanted: Counter[int] = Counter()
    sectors = sorted({(warp, 4 * word // 32) for warp, word in loads})
    run = 0
    for number, (warp, sector) in enumerate(sectors):
        run += 32
        following = sectors[number + 1] if number + 1 < len(sectors) else None
        if following != (warp, sector + 1) or (sector + 1) % 4 == 0:
            wanted[run] += 1
            run = 0
    warps, words = (np.array([one[k] for one in loads], np.int64) for k in (0, 1))
    assert sectors_of(warps, 4 * words) == (len(sectors), dict(wanted))


def dataset(graph: Any = GRAPHS[0]) -> Any:
    indptr, indices = graph
    return SimpleNamespace(
        indptr=indptr,
        indices=indices,
        spec=SimpleNamespace(num_nodes=NODES),
        train_ids=np.arange(NODES),
    )


def test_reads_of_a_small_minibatch_by_hand():
    """Node 1's list of d neighbours, all drawn, at its place b: threads 1 to d of the launch.

    In place: d words of 4 B, the two ends of the list once by the thread that counts and by each
    edge's. Kept: nothing but what is read on the GPU.
    """
    indptr, _indices = GRAPHS[0]
    begin, degree = int(indptr[1]), int(indptr[2] - indptr[1])
    assert 1 < degree < 32
    draws = [(torch.tensor([1]), 0)]
    reads = structure_reads(dataset(), (-1,), draws)
    first, last = 4 * begin // 32, (4 * (begin + degree) - 1) // 32
    sectors = last - first + 1
    # Ends: bytes 8 to 23 of indptr, in one sector, for the counting and the drawing warp, 2 loads.
    warps = 1 if degree < 32 else 2
    assert reads.wanted_bytes == 4 * degree + 8 * 2 * (1 + degree)
    assert reads.read_bytes == 32 * (sectors + 2 + 2 * warps)
    assert sum(size * count for size, count in reads.requests.items()) == reads.read_bytes
    kept = structure_reads(dataset(), (-1,), draws, np.array([1]))
    assert (kept.wanted_bytes, kept.read_bytes, kept.kept_bytes) == (0, 0, 4 * degree)
    away = structure_reads(dataset(), (-1,), draws, np.array([2]))
    assert (away.wanted_bytes, away.read_bytes) == (4 * degree, 32 * sectors)


@pytest.mark.usefixtures("kernels_on_host")
def test_what_is_counted_is_what_the_kernel_reads(monkeypatch):
    """Edges of each launch, by its own arguments: kept and read lists add up to all neighbours."""
    asked = []
    plain = device_sampler.launch_threads

    def launch(kernel: str, positions: int, arguments: Any, *where: Any) -> None:
        if kernel == "draw_kernel":
            asked.append(int(arguments[6][-1]))
        plain(kernel, positions, arguments, *where)

    monkeypatch.setattr(device_sampler, "launch_threads", launch)
    indptr, indices = GRAPHS[1]
    hot = np.arange(0, NODES, 2)
    sampler = DeviceSampler(indptr, indices, (10, 5), HOST, hot=hot)
    sampler.sample(torch.arange(40), 3)
    reads = structure_reads(dataset(GRAPHS[1]), (10, 5), [(torch.arange(40), 3)], hot)
    assert reads.wanted_bytes + reads.kept_bytes == 8 * sum(asked)
    assert reads.wanted_bytes > 0 < reads.kept_bytes


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_lists_of_the_hot_nodes_fit_their_share(share):
    indptr, indices = GRAPHS[0]
    hot = hot_lists(Workload("tiny", structure=f"cached share={share} scores=degree"), dataset())
    degrees = np.diff(indptr)
    assert degrees[hot].sum() <= share * len(indices)
    assert len(hot) == len(set(hot.tolist()))
    if share == 1.0:
        assert len(hot) == NODES
    elif share:
        # As often as it is a neighbour, 25 of its list, or all of it; for each of the list.
        spared = np.bincount(indices, minlength=NODES) * np.minimum(degrees, 25)
        worth = spared / np.maximum(degrees, 1)
        left = np.setdiff1d(np.arange(NODES), hot)
        assert worth[hot].min() >= worth[left].max()


def test_minibatches_of_kept_lists_are_no_other_trace():
    plain = Workload("tiny")
    cached = Workload("tiny", structure="cached share=0.1 scores=degree")
    snapshot = Workload("tiny", structure="dependent keep=0.9")
    assert cached.trace_id == plain.trace_id != snapshot.trace_id
    assert len({one.id for one in (plain, cached, snapshot)}) == 3
