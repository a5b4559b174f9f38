"""Which rows are kept: each policy by its published algorithm, scores by hand, hits as foretold."""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gatherbench
from gatherbench.strategies import places, scores
from gatherbench.strategies.base import Minibatches
from gatherbench.strategies.data_path import DataPath, zero_copy_path
from gatherbench.strategies.knowledge import Adjacency, Knowledge, adjacency_of
from gatherbench.strategies.registry import build
from gatherbench.strategies.row_caches import RowCache, RowPolicy
from gatherbench.strategies.scores import out_degree, placed, reverse_pagerank, times_asked

Held = list[set[int]]


class Lru:
    """The newest row stands first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.queue = capacity, list[int]()

    @property
    def held(self) -> set[int]:
        return set(self.queue)

    def request(self, row: int) -> None:
        if row in self.queue:
            self.queue.remove(row)
        elif len(self.queue) == self.capacity:
            self.queue.pop()
        self.queue.insert(0, row)


class S3Fifo:
    """Lists with the newest row first: small, main and ghost queue."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small, self.main, self.ghost = list[int](), list[int](), list[int]()
        self.uses = dict[int, int]()
        self.main_room = capacity - int(0.1 * capacity)

    @property
    def held(self) -> set[int]:
        return {*self.small, *self.main}

    def request(self, row: int) -> None:
        if row in self.held:
            self.uses[row] = min(3, self.uses[row] + 1)
            return
        into = self.main if row in self.ghost else self.small
        if row in self.ghost:
            self.ghost.remove(row)
        if len(self.held) == self.capacity:
            while not (self.evict_main() if self.main_is_next() else self.evict_small()):
                pass
        into.insert(0, row)
        self.uses[row] = 0

    def main_is_next(self) -> bool:
        return len(self.main) > self.main_room or not self.small

    def evict_main(self) -> bool:
        row = self.main.pop()
        if self.uses[row]:
            self.uses[row] -= 1
            self.main.insert(0, row)
            return self.evict_main()
        return True

    def evict_small(self) -> bool:
        while self.small:
            row = self.small.pop()
            if self.uses[row] < 2:
                self.ghost = [row, *self.ghost][: self.main_room]
                return True
            self.uses[row] = 0
            self.main.insert(0, row)
        return False


MODELS: dict[RowPolicy, Callable[[int], Any]] = {"lru": Lru, "s3-fifo": S3Fifo}


def modelled(model: Any, batches: Sequence[Sequence[int]]) -> Held:
    """What is held before each minibatch, and in the end."""
    found = [set(model.held)]
    for ids in batches:
        for row in dict.fromkeys(ids):
            model.request(row)
        found.append(set(model.held))
    return found


class Memory:
    """A cache and its rows, moved as a path does; it holds what it says, and each row once."""

    def __init__(self, cache: RowCache) -> None:
        self.cache, self.rows = cache, np.full(cache.capacity, -1)
        self.hits = 0

    def step(self, ids: Sequence[int]) -> None:
        rows = np.array(ids, np.int64)
        before = self.held
        slots, fill = self.cache.step(rows)
        assert [row in before for row in ids] == (slots >= 0).tolist()
        assert (self.rows[slots[slots >= 0]] == rows[slots >= 0]).all()
        new = fill >= 0
        assert np.unique(fill[new]).size == new.sum()
        assert all(p == ids.index(ids[p]) for p in np.flatnonzero(new))
        self.rows[fill[new]] = rows[new]
        assert len(self.held) == (self.rows >= 0).sum()
        self.hits += int((slots >= 0).sum())

    @property
    def held(self) -> set[int]:
        return set(self.rows[self.rows >= 0].tolist())

    def over(self, batches: Sequence[Sequence[int]]) -> Held:
        found = [self.held]
        for number, ids in enumerate(batches):
            if self.cache.policy == "belady":  # as far ahead as the loop announces
                ahead = self.cache.ahead
                for late in batches[number + ahead if number else 0 : number + ahead + 1]:
                    self.cache.announce(np.array(late, np.int64))
            self.step(ids)
            found.append(self.held)
        return found


ROWS = 60
BATCHES = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=12)
DISTINCT = st.lists(st.lists(st.integers(0, 8), max_size=5, unique=True), max_size=7)


@settings(deadline=None)  # the first minibatch compiles
@given(st.sampled_from(list(MODELS)), st.integers(0, 30), BATCHES)
@example("s3-fifo", 10, [[row // 2] for row in range(30)] + [[3], [3], [3], [9], [20]])
@example("lru", 2, [[1, 2], [3, 1]])  # 1 is read, evicted by 3, and enters again
def test_each_policy_holds_what_its_algorithm_holds(policy, capacity, batches):
    memory = Memory(RowCache(policy, capacity, ROWS))
    model = MODELS[policy](capacity) if capacity else Lru(0)
    expected = modelled(model, batches) if capacity else [set[int]()] * (len(batches) + 1)
    assert memory.over(batches) == expected


@functools.cache
def skewed() -> tuple[tuple[int, ...], ...]:
    """Minibatches in which low ids occur often, beside others that come once in a while."""
    draw = np.random.default_rng(7)
    return tuple(
        (*(ROWS * draw.random(12) ** 3).astype(int).tolist(), t * 7 % ROWS) for t in range(80)
    )


def test_a_window_by_hand():
    """Two rows, and two minibatches known ahead."""
    memory = Memory(RowCache("belady", 2, 9, 2))
    batches = [[1, 2], [3], [1], [4], [2], [4], [5], [6], [4], [5]]
    assert memory.over(batches)[1:] == [
        {1, 2},  # 1 is asked for again in minibatch 2, of 2 nobody knows
        {1, 3},  # nor of 3; but 2 was used longer ago
        {1, 3},
        {1, 4},  # 4 comes again; 3 was used longer ago than 1
        {2, 4},
        {2, 4},
        {4, 5},  # 4 comes again in 8
        {4, 5},  # 6 is not taken in: now 5 is announced too
        {4, 5},
        {4, 5},
    ]
    assert memory.hits == 4


def most_hits(batches: Sequence[Sequence[int]], capacity: int) -> int:
    """Of every choice of rows to hold after each minibatch."""
    best = {frozenset[int](): 0}
    for ids in batches:
        after = dict[frozenset[int], int]()
        for held, before in best.items():
            hits = before + sum(row in held for row in ids)
            for chosen in subsets(sorted({*held, *ids}), capacity):
                after[chosen] = max(after.get(chosen, 0), hits)
        best = after
    return max(best.values())


def subsets(rows: list[int], most: int) -> list[frozenset[int]]:
    if not rows or not most:
        return [frozenset()]
    without = subsets(rows[1:], most)
    return without + [one | {rows[0]} for one in subsets(rows[1:], most - 1)]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 3), DISTINCT)
def test_belady_has_as_many_hits_as_the_best_of_all_choices(capacity, batches):
    memory = Memory(RowCache("belady", capacity, 9, len(batches)))
    memory.over(batches)
    assert memory.hits == most_hits(batches, capacity)


def test_windows_of_any_size_decide_as_was_recorded():
    """The order among rows of equal worth, too; recorded where a model in plain Python agreed."""
    found = []
    for ahead, capacity in ((0, 20), (1, 20), (4, 10), (4, 30)):
        memory = Memory(RowCache("belady", capacity, ROWS, ahead))
        held = memory.over(skewed())
        found.append((memory.hits, zlib.crc32(str([sorted(rows) for rows in held]).encode())))
    assert found == [(573, 2404487272), (634, 1316497193), (631, 863576721), (810, 1750385318)]


def test_what_nobody_announced_is_known_when_it_comes():
    memory = Memory(RowCache("belady", 2, 9, 3))
    for ids in ([1, 2], [2], [3]):
        memory.step(ids)
    assert memory.held == {2, 3}


def test_other_rows_than_were_announced_are_refused():
    cache = RowCache("belady", 2, 9, 1)
    cache.announce(np.array([1, 2]))
    with pytest.raises(RuntimeError, match="2 distinct rows were announced and 1 are asked for"):
        cache.step(np.array([1, 1]))


@pytest.mark.parametrize("policy", get_args(RowPolicy))
def test_what_was_forgotten_leaves_no_trace(policy):
    cache, again = (RowCache(policy, 15, ROWS, 5) for _ in range(2))
    memory = Memory(cache)
    memory.over(skewed())
    cache.announce(np.array([1]))
    cache.drop_caches()
    memory.rows.fill(-1)
    assert memory.over(skewed()) == Memory(again).over(skewed())


def test_state_by_hand():
    """A row of the table has 4 B, and 8 B more for Belady; a slot 20 B, and a ghost 16 B."""
    both = 100 * 4 + 10 * (8 + 3 * 4) + 3 * 8
    assert RowCache("lru", 10, 100).state_bytes == both + 3 * 8
    assert RowCache("s3-fifo", 10, 100).state_bytes == both + 9 * 16 + 3 * 8
    belady = RowCache("belady", 10, 100, 7)
    assert belady.state_bytes == both + 100 * 8 + 10 * 8
    belady.step(np.arange(5))
    assert belady.state_bytes == both + 100 * 8 + 10 * 8 + 8 * 5 * 4, "uses of the window"


def test_what_makes_no_cache_is_refused():
    with pytest.raises(ValueError, match="policy = 'fifo': expected one of lru, s3-fifo, belady"):
        RowCache("fifo", 10, 100)  # type: ignore[arg-type]
    for capacity in (-1, 101):
        with pytest.raises(ValueError, match=f"capacity = {capacity}: expected 0 to 100"):
            RowCache("belady", capacity, 100, 10)


# ---- scores --------------------------------------------------------------------------------------


#: Node 0 aggregates from 1 and 2, node 1 from 2; node 3 has no edge at all.
HAND_MADE = Adjacency(np.array([0, 2, 3, 3, 3]), np.array([1, 2, 2]))


def graph_of(num_nodes: int, edges: list[tuple[int, int]], dtype: Any = np.int64) -> Adjacency:
    """The CSC arrays of edges (node, in-neighbour)."""
    ordered = np.array(sorted(edges), np.int64).reshape(-1, 2)
    begins = np.searchsorted(ordered[:, 0], np.arange(num_nodes + 1))
    return Adjacency(begins, ordered[:, 1].astype(dtype))


def test_the_hand_made_graph():
    """With damping 1/2 every number is a sum of powers of two, so these are exact."""
    assert out_degree(HAND_MADE).tolist() == [0, 1, 2, 0]
    once = reverse_pagerank(HAND_MADE, damping=0.5, iterations=1)
    assert once.tolist() == [1 / 8, 1 / 8 + 1 / 16, 1 / 8 + 1 / 16 + 1 / 8, 1 / 8]
    # No way is longer than two edges: 0 gives 1/8 to 1 and 2 alike, 1 gives all of 5/32 to 2.
    all_the_way = reverse_pagerank(HAND_MADE, damping=0.5)
    assert all_the_way.tolist() == [1 / 8, 5 / 32, 1 / 8 + 1 / 32 + 5 / 64, 1 / 8]
    weighted = reverse_pagerank(HAND_MADE, restart=np.array([0]), damping=0.5)
    assert weighted.tolist() == [1 / 2, 1 / 8, 1 / 8 + 1 / 16, 0]


GRAPHS = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=25),
        st.none() | st.lists(st.integers(0, n - 1), min_size=1),
    )
)


@given(graph=GRAPHS, dtype=st.sampled_from([np.int32, np.int64]), iterations=st.integers(0, 5))
@settings(deadline=None)
def test_any_graph_against_a_dense_matrix(graph, dtype, iterations):
    num_nodes, edges, nodes = graph
    made = graph_of(num_nodes, edges, dtype)
    restart = None if nodes is None else np.array(nodes)
    asks = np.zeros((num_nodes, num_nodes))
    for node, neighbour in edges:
        asks[neighbour, node] += 1
    assert (out_degree(made) == asks.sum(1)).all()
    start = np.isin(np.arange(num_nodes), range(num_nodes) if nodes is None else nodes) * 1.0
    start /= start.sum()
    rank = start
    for _ in range(iterations):
        rank = 0.15 * start + 0.85 * asks @ (rank / asks.sum(0).clip(1))
    np.testing.assert_allclose(
        reverse_pagerank(made, restart, iterations=iterations), rank, rtol=1e-12
    )


def test_times_asked_counts_minibatches_not_ids():
    minibatches = (torch.tensor([1, 3, 3]), torch.tensor([3]).int(), torch.empty(0).long())
    assert times_asked(iter(minibatches), 5).tolist() == [0, 1, 0, 2, 0]


@pytest.mark.parametrize(("count", "kept"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3])])
def test_a_use_counts_more_than_any_degree(count, kept):
    """Row 3 was used once and is nobody's neighbour; row 2, the most common one, was not used."""
    known = Knowledge(graph=HAND_MADE, earlier=lambda _: iter([torch.tensor([3])]))
    assert placed("presampled", count, 4, known).ids.tolist() == kept


@given(degrees=st.lists(st.integers(0, 2), min_size=1), share=st.floats(0, 1))
def test_of_rows_of_equal_score_the_lower_are_kept(degrees, share):
    ends = np.repeat(np.arange(len(degrees)), degrees)
    graph = Adjacency(np.r_[np.zeros(len(degrees), np.int64), len(ends)], ends)
    count = int(share * len(degrees))
    order = sorted(range(len(degrees)), key=lambda node: (-degrees[node], node))
    kept = placed("degree", count, len(degrees), Knowledge(graph=graph)).ids
    assert kept.dtype == np.int64
    assert kept.tolist() == sorted(order[:count])


@pytest.mark.parametrize(
    "broken",
    [([0, 2, 3, 3, 3], [3, 4, 4]), ([0, 2, 3, 3, 3], [-1, 0, 0]), ([0, 2, 1, 3, 4], [1, 2, 2])],
)
def test_a_broken_graph_is_named(broken):
    with pytest.raises(ValueError, match="the graph is broken"):
        out_degree(Adjacency(*map(np.array, broken)))


def test_paths_that_know_the_same_share_their_scores(monkeypatch):
    """On 1.5 G edges they take seconds: two paths of one process ask for them once."""
    asked = []

    def degree(graph: Adjacency) -> Any:
        asked.append(len(graph.indices))
        return np.diff(graph.indptr)

    monkeypatch.setattr(scores, "out_degree", degree)
    graph = Adjacency(np.array([0, 2, 3]), np.array([0, 1, 1]))
    known = Knowledge(graph=graph, training_ids=np.array([1]))
    for needs in ({"graph"}, {"graph"}, {"graph", "training_ids"}):
        of = known.limited_to(frozenset(needs))
        assert (of.training_ids is not None) == ("training_ids" in needs)
        assert placed("degree", 1, 2, of).ids.tolist() == [0]
    assert asked == [3, 3]


# ---- kept on a GPU -------------------------------------------------------------------------------


HOST = torch.device("cpu")
#: Node 3 is a source five times, 1 twice, 0 once; the training node 9 aggregates from 1 and 3.
EDGES = torch.tensor([[3, 3, 3, 3, 3, 1, 1, 0], [0, 1, 2, 4, 9, 9, 2, 5]])
KNOWN = Knowledge(
    graph=adjacency_of(EDGES, 10),
    training_ids=np.array([9]),
    earlier=lambda epoch: [torch.tensor([9, 7, 3]), torch.tensor([7, 1])][epoch:],
    measured=[torch.tensor([6, 5]), torch.tensor([6])],
)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("degree", [1, 3]),
        ("reverse_pagerank", [0, 3]),  # 0 has all of 5, and 1 half of 2 and of 9: a tie
        ("weighted_reverse_pagerank", [3, 9]),  # 9 restarts, and gives 1 and 3 equal parts
        ("presampled", [3, 7]),  # 7 twice; of those asked for once, 3 has the highest degree
        ("oracle", [5, 6]),
    ],
)
def test_each_policy_keeps_what_it_scores_highest(policy, kept):
    found = placed(policy, 2, 10, KNOWN)
    assert found.ids.tolist() == kept
    assert [v for v in range(10) if found.slots[v] >= 0] == kept
    assert found.slots[kept].tolist() == [0, 1]


def test_the_path_of_a_minibatch_by_hand():
    strategy = build("cached_zero_copy", {"policy": "degree", "share": "20%"})
    ids = torch.tensor([3, 5, 1, 3, 8], dtype=torch.int32)  # 3, 1 and 3 again are kept
    (path,) = strategy.data_paths(Minibatches([ids], 400, 10, KNOWN))
    cold = zero_copy_path(torch.tensor([5, 8]), 400, "aligned", "given")
    assert path == DataPath(
        payload_bytes=5 * 400,
        copy_engine_bytes=5 * 4,
        gpu_link_read_bytes=2 * 400,
        gpu_memory_bytes=3 * 400,
        gpu_requests=cold.gpu_requests,
        gpu_page_visits=1,
    )


def test_a_graph_of_other_nodes_than_the_tables_rows_is_refused():
    with pytest.raises(ValueError, match="the graph has 10 nodes and the table 11 rows"):
        build("cached_zero_copy", {"policy": "degree"}).open(torch.zeros(11, 3), HOST, KNOWN)


def test_an_edge_index_becomes_in_neighbours():
    graph = adjacency_of(EDGES, 10)
    found = {v: sorted(graph.indices[graph.indptr[v] : graph.indptr[v + 1]]) for v in range(10)}
    assert {v: ids for v, ids in found.items() if ids} == {
        0: [3], 1: [3], 2: [1, 3], 4: [3], 5: [0], 9: [1, 3],
    }  # fmt: skip
    for wrong in (torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[1], [10]])):
        with pytest.raises(ValueError, match="graph: "):
            adjacency_of(wrong, 10)


def test_in_a_loop_of_ones_own_it_says_what_it_has_to_know():
    needs = r"cached_zero_copy \(.*\) needs minibatches=, the n_id .* and graph=, the edge_index"
    with pytest.raises(ValueError, match=needs):
        gatherbench.unified(torch.randn(10, 4), "cached_zero_copy")


def test_a_part_for_which_there_is_no_room_is_refused(monkeypatch):
    monkeypatch.setattr(places, "free_bytes", lambda _device: 1000)
    twentieth, half = (build("cached_zero_copy", {"share": share}) for share in ("5%", "50%"))
    assert twentieth.skip(HOST, 10_000) is None
    assert str(half.skip(HOST, 10_000)).startswith("no_memory: the part that is kept takes 0.0 MiB")
    assert build("disk_cached", {"share": "5%"}).skip(HOST, 10_000) is None
    refused = str(build("disk_cached", {"share": "50%"}).skip(HOST, 10_000))
    assert refused.startswith("no_memory: the part that is kept takes 0.0 MiB and cpu has")
