"""Hit rates by hand, as the strategy declares them, beside dishonest ones; what they are worth."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from gatherbench.bench.model import hits
from gatherbench.bench.model.advise.kept import keeping
from gatherbench.bench.model.advise.memory import gpu_need
from gatherbench.bench.model.advise.option import average_load, predict
from gatherbench.bench.model.advise.question import Question, graph_of
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.hits import (
    COLUMNS,
    SHARES,
    SHOWN,
    KeptShare,
    best_policy,
    hit_rates,
    kept_share,
    policies,
    simulated,
)
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.sampling.epoch import batch_seed, epoch_seeds
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.show.hits import worth
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.data_path import total
from gatherbench.strategies.knowledge import Adjacency, Knowledge
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.scores import placed

STATIC = [name for name, path in policies().items() if not simulated(path)]
NODES = 640


def minibatches(*rows: list[int]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(ids) for ids in rows)


def at(rates: pd.DataFrame, policy: str) -> pd.DataFrame:
    return rates[rates["policy"] == policy].set_index("share")


def epoch(sampler: NeighborSampler, ids: NDArray[Any], seed: int) -> tuple[Tensor, ...]:
    seeds = epoch_seeds(ids, 16, seed, 0)
    return tuple(sampler.sample(s, batch_seed(seed, 0, i)).input_ids for i, s in enumerate(seeds))


@pytest.fixture(scope="module")
def skewed() -> Knowledge:
    """A graph where low nodes have many neighbours, and what may be known of its training."""
    draw = np.random.default_rng(5)
    nodes = np.sort(draw.integers(0, NODES, 6000))
    sources = (NODES * draw.random(6000) ** 3).astype(np.int64)
    graph = Adjacency(np.searchsorted(nodes, np.arange(NODES + 1)), sources)
    train = np.sort(draw.permutation(NODES)[:200])
    sampler = NeighborSampler(graph.indptr, graph.indices, (4, 3))
    return Knowledge(
        graph=graph,
        training_ids=train,
        earlier=lambda number: epoch(sampler, train, 100 + number),
        measured=epoch(sampler, train, 0),
    )


def test_by_hand():
    """Node 1 is asked for 3 times, 2 twice, 0 once, 3 never; out-degrees are 0, 1, 2, 0."""
    graph = Adjacency(np.array([0, 2, 3, 3, 3]), np.array([1, 2, 2]))
    measured = minibatches([0, 1, 2], [2, 1], [1])
    rates = hit_rates(["degree", "oracle"], 4, Knowledge(graph=graph, measured=measured))
    assert tuple(rates.columns) == COLUMNS
    degree, oracle = at(rates, "degree"), at(rates, "oracle")
    columns = ["rows_kept", "per_fetched", "per_distinct"]
    for share, by_degree, by_oracle in (
        (0.24, (0, 0, 0), (0, 0, 0)),
        (0.25, (1, 2 / 6, 1 / 3), (1, 3 / 6, 1 / 3)),
        (0.5, (2, 5 / 6, 2 / 3), (2, 5 / 6, 2 / 3)),
        (0.75, (3, 1, 1), (3, 1, 1)),
        (1.0, (4, 1, 1), (4, 1, 1)),
    ):
        assert tuple(degree.loc[share, columns]) == by_degree
        assert tuple(oracle.loc[share, columns]) == by_oracle


def test_a_cache_that_learns_by_hand():
    """Two rows of four, one set: warm it holds 0 and 1; then 1 hits, 2 evicts 0, 1 hits, 0 not."""
    known = Knowledge(
        earlier=lambda _: minibatches([0], [1]), measured=minibatches([1], [2], [1], [0])
    )
    lru = at(hit_rates(["lru"], 4, known), "lru")
    # Both fetches of row 1 hit, none of the one of rows 0 and 2.
    assert tuple(lru.loc[0.5, ["rows_kept", "per_fetched", "per_distinct"]]) == (2, 2 / 4, 1 / 3)
    assert list(lru.index) == [share / 1000 for share in SHOWN]


@pytest.mark.parametrize("policy", policies())
def test_the_strategy_declares_the_same(skewed, policy):
    rates = at(hit_rates([policy], NODES, skewed), policy)
    assert skewed.earlier is not None
    for share in SHOWN:
        word: Any = f"{share // 10}%"
        path = replace(policies()[policy], share=word)
        known = skewed.limited_to(path.needs)
        declared = total(
            path.data_paths(skewed.measured or (), 64, NODES, known, [skewed.earlier(0)])
        )
        missed = declared.gpu_link_read_bytes or declared.disk_payload_bytes
        found = (declared.payload_bytes - missed) / declared.payload_bytes
        assert rates.loc[share / 1000, "per_fetched"] == found


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_at_every_share_it_is_what_is_placed_and_the_oracle_is_the_bound(data):
    nodes = data.draw(st.integers(1, 40))
    node = st.integers(0, nodes - 1)
    sources = data.draw(st.lists(node, min_size=2 * nodes, max_size=2 * nodes))
    graph = Adjacency(2 * np.arange(nodes + 1), np.array(sources))  # of two in-neighbours each
    batch = st.lists(node, min_size=1, unique=True)
    epochs = [minibatches(*data.draw(st.lists(batch, min_size=1, max_size=6))) for _ in range(2)]
    known = Knowledge(
        graph=graph,
        training_ids=np.array([nodes // 2]),
        earlier=lambda _: epochs[0],
        measured=epochs[1],
    )
    rates = hit_rates(STATIC, nodes, known)
    fetched = torch.cat(epochs[1]).numpy()
    best = at(rates, "oracle")["per_fetched"].to_numpy()
    for policy in STATIC:
        mine = at(rates, policy)
        assert (mine["per_fetched"].to_numpy() <= best).all()
        for share in (*SHARES[:10], *SHARES[10::7], 1000):
            kept = placed(policy, nodes * share // 1000, nodes, known)
            row = mine.loc[share / 1000]
            assert row["rows_kept"] == kept.capacity
            assert row["per_fetched"] == (kept.slots[fetched] >= 0).sum() / len(fetched)
            assert row["per_distinct"] == (kept.slots[np.unique(fetched)] >= 0).mean()


def test_rows_by_lot_hit_as_often_as_they_are_many(skewed):
    asked = replace(skewed, measured=(torch.arange(0, 50_000, 5),))
    random = at(hit_rates(["random"], 50_000, asked), "random")
    for share in SHOWN:
        low, high = binom.interval(0.999, 10_000, share / 1000)
        assert low <= 10_000 * random.loc[share / 1000, "per_fetched"] <= high


def honest(_: pytest.MonkeyPatch, known: Knowledge) -> Knowledge:
    return known


def reversed_scores(patch: pytest.MonkeyPatch, known: Knowledge) -> Knowledge:
    right = hits.scores
    patch.setattr(hits, "scores", lambda name, *of: (-1) ** (name != "random") * right(name, *of))
    return known


def learns_from_the_measured(_: pytest.MonkeyPatch, known: Knowledge) -> Knowledge:
    return replace(known, earlier=lambda _: known.measured or ())


@pytest.mark.parametrize(
    ("make", "above_random", "below_oracle"),
    [(honest, True, True), (reversed_scores, False, True), (learns_from_the_measured, True, False)],
)
def test_dishonest_policies_are_told_apart(make, above_random, below_oracle, skewed, monkeypatch):
    oracle = at(hit_rates(["oracle"], NODES, skewed), "oracle").loc[0.01:0.5, "per_fetched"]
    known = make(monkeypatch, skewed)
    rates = hit_rates(["presampled", "degree", "random"], NODES, known)
    random = at(rates, "random").loc[0.01:0.5, "per_fetched"]
    for policy in ("presampled", "degree"):
        mine = at(rates, policy).loc[0.01:0.5, "per_fetched"]
        assert (mine > random).mean() == pytest.approx(float(above_random), abs=0.02)
    presampled = at(rates, "presampled").loc[0.01:0.5, "per_fetched"]
    assert (presampled < oracle).any() == below_oracle
    if not below_oracle:
        assert (presampled == oracle).all()


MACHINE = load_profile("rtx3090-pcie4")
QUESTION = Question(graph_of(1_000_000, 9_000_000, 128, classes=5, train_nodes=100_000))
SIZES = MinibatchSizes((1000, 20_000, 60_000), (20_000, 200_000), (torch.arange(0, 60_000, 3),))
TABLE = 1_000_000 * 512


def rates_of(**by_policy: float) -> pd.DataFrame:
    """Hit rates that grow with a power of the share."""
    return pd.DataFrame(
        [
            {"policy": name, "share": s / 1000, "per_fetched": (s / 1000) ** power}
            for name, power in by_policy.items()
            for s in SHARES
        ]
    )


def test_what_is_read_falls_with_the_hits():
    load = MinibatchLoad(
        payload_bytes=800,
        gpu_link_read_bytes=800,
        gpu_requests={128: 4, 96: 8},
        gpu_page_visits=12,
        table_bytes=10_000,
    )
    kept = keeping(load, 0.1, 0.75)
    assert (kept.gpu_link_read_bytes, kept.gpu_page_visits, kept.payload_bytes) == (200, 3, 800)
    assert kept.gpu_requests == {128: 1, 96: 2}
    assert kept.gpu_table_bytes == 1000
    assert keeping(load, 0.0, 0.0) == load


def test_the_best_policy_is_one_that_a_training_could_use():
    rates = rates_of(oracle=0.1, lru=0.2, degree=0.6, presampled=0.5, random=0.3)
    assert best_policy(rates) == "presampled"
    assert best_policy(rates_of(oracle=0.1, lfu=0.2)) == ""
    assert kept_share(QUESTION, SIZES, MACHINE, rates_of(oracle=0.1)) is None


def test_epochs_at_both_ends_and_between():
    found = kept_share(QUESTION, SIZES, MACHINE, rates_of(degree=0.5))
    assert found is not None
    (line,) = found.epochs_s
    load = average_load(AlignedZeroCopy(), QUESTION, SIZES)
    assert line[0] == predict(QUESTION, load, MACHINE)[0].epoch_s.value
    quarter = predict_batches(keeping(load, 0.25, 0.5), MACHINE, 100)
    assert line[25] == pytest.approx(quarter.epoch_s.value)
    assert list(line) == sorted(line, reverse=True)
    assert len(line) == 101
    assert found.room == 100
    (enough,) = found.enough
    assert enough is not None
    gains = [1 - b / a for a, b in pairwise(line)]
    assert min(gains[:enough]) >= 0.01 > gains[enough]


def test_enough_by_hand():
    lines = ((100.0, 90.0, 80.0, 79.9), (100.0, 99.5, 50.0, 40.0), (8.0, 4.0, 2.0, 1.0))
    found = KeptShare("degree", "made up", lines, (), 3)
    assert found.enough == (2, 0, None)
    assert KeptShare("degree", "made up", ((100.0, 98.5, 98.0),), (), 2).enough == (1,)
    text = worth(found, QUESTION.graph)
    assert "takes 8.00 to 100 s with nothing kept and 1.00 to 79.9 s with 3 %" in text
    knees = (
        "At 0 % to 2 %, where it takes 80.0 to 100 s, one more percent first shortens it by less"
    )
    assert f"{knees} than 1 %: gains are small from there on, but they add up." in text
    assert "by its ranges, each percent shortens it by more. There the GPU's memory ends." in text


def test_a_table_of_which_nobody_knows_the_page_visits_has_two_ends():
    """1 GiB is the smallest span at which they were measured."""
    unknown = MACHINE.with_constant("read.page_visits", None, "nobody measured it")
    for rows, ends in ((2**30 // 512, 1), (2**30 // 512 + 1, 2)):
        asked = replace(QUESTION, graph=graph_of(rows, 10 * rows, 128, train_nodes=100_000))
        found = kept_share(asked, SIZES, unknown, rates_of(degree=0.5))
        assert found is not None
        assert len(found.epochs_s) == ends


def machine_with(need: float) -> LinkProfile:
    return MACHINE.with_constant("gpu.memory", need / TABLE_SHARE, "made up")


@pytest.mark.parametrize(
    ("beside", "room", "said"),
    [
        (0.405 * TABLE, 40, "with 40 % of the table (205 MB)"),
        (-1.0, -1, "not even memory for the training"),
        (2.0 * TABLE, 100, "memory for the whole table"),
    ],
)
def test_the_gpus_memory_may_end_before(beside, room, said):
    load = average_load(AlignedZeroCopy(), QUESTION, SIZES)
    machine = machine_with(gpu_need(load, QUESTION, SIZES) + beside)
    found = kept_share(QUESTION, SIZES, machine, rates_of(degree=0.5))
    assert found is not None
    assert found.room == room
    assert all(len(line) == room + 1 for line in found.epochs_s)
    assert said in worth(found, QUESTION.graph)


def test_a_machine_that_is_not_known_well_enough_says_what_is_missing():
    blank = LinkProfile.blank("bare", "", "nobody measured it")
    found = kept_share(QUESTION, SIZES, blank, rates_of(degree=0.5))
    assert found is not None
    assert found.epochs_s == found.enough == ()
    text = worth(found, QUESTION.graph)
    assert "gpu.launch: nobody measured it" in text
    assert "profile bare" in text
