"""Caches before a disk: simulated hit rates where they can be worked out, and what they save."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from gatherbench.bench.model.advise import caches
from gatherbench.bench.model.advise.caches import (
    POLICIES,
    ROWS,
    Requests,
    hit_rate,
    keeping,
    requests_of,
)
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.strategies.disk_cached import DiskCached
from gatherbench.strategies.knowledge import Knowledge

ONLINE = [name for name in POLICIES if name != "belady"]


def sizes_of(*classes: tuple[float, float]) -> MinibatchSizes:
    """Minibatches of a law: (nodes, chance that a minibatch asks for one of them) of each class."""
    asked = np.array(classes).T
    rows = float(asked[0] @ asked[1])
    return MinibatchSizes((1.0, rows), (rows,), (), law="made up", asked=asked)


@pytest.mark.parametrize("policy", ONLINE)
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_of_rows_that_are_asked_for_alike_a_cache_holds_its_share(policy, share):
    """Nothing tells one row from another, so whatever is kept is asked for as often."""
    requests = requests_of(sizes_of((1e8, 0.01)), 10**8, 1000)
    assert hit_rate(requests, policy, share) == pytest.approx(share, abs=0.01)


def test_belady_keeps_what_comes_soonest():
    """Rows 0 to 3 in turn, one a minibatch, in a cache of two: online policies never hit.

    Belady keeps two rows and lets the others pass: every other one hits.
    """
    turns = tuple(np.array([i % 4]) for i in range(1200))
    requests = Requests(4, turns[:600], turns[600:], 600)
    assert hit_rate(requests, "lru", 0.5) == 0.0
    assert hit_rate(requests, "belady", 0.5) == pytest.approx(1 / 2, abs=0.01)


@pytest.mark.parametrize("policy", ONLINE)
def test_a_cache_of_nothing_or_of_everything(policy):
    """Of all rows e^-5 were never asked for before counting begins, and then fewer and fewer."""
    requests = requests_of(sizes_of((1e6, 0.02)), 10**6, 1000)
    assert hit_rate(requests, policy, 0.0) == 0.0
    unseen = math.exp(-5) * (1 - math.exp(-5)) / 5
    assert hit_rate(requests, policy, 1.0) == pytest.approx(1 - unseen, abs=3e-4)


def test_requests_are_those_of_the_law():
    """20 000 rows stand for the table: 1 % of them hot, in 9 of 10 minibatches; 99 % in one of 100.

    Of them a minibatch asks for 180 + 198 rows.
    """
    requests = requests_of(sizes_of((99e4, 0.01), (1e4, 0.9)), 10**6, 10)
    assert requests.rows == ROWS == 20_000
    assert np.mean([len(ids) for ids in requests.counted]) == pytest.approx(378, rel=0.05)
    hot = np.mean([(ids < 200).sum() for ids in requests.counted])
    assert hot == pytest.approx(180, rel=0.05)
    assert requests.minibatches == pytest.approx(1.0, rel=0.01)
    # Where minibatches ask for hardly any of the rows, several of them are a step.
    rare = requests_of(sizes_of((1e9, 1e-5)), 10**9, 10)
    assert rare.minibatches == pytest.approx(64 / (20_000 * 1e-5), rel=0.01)


def test_of_a_graph_at_hand_the_requests_are_drawn():
    epochs = [
        [torch.tensor([3, 1, 4]), torch.tensor([5])],
        [torch.tensor([2, 0]), torch.tensor([5])],
    ]
    known = Knowledge(earlier=lambda epoch: epochs[epoch])
    sizes = MinibatchSizes((1.0, 2.0), (1.0,), (), knowledge=known)
    requests = requests_of(sizes, 6, 2)
    assert requests.rows == 6
    assert [len(ids) for ids in (*requests.filling, *requests.counted)] == [3, 1, 2, 1]
    # Of three rows asked for in the second epoch only row 5 was asked for in the first.
    assert hit_rate(requests, "lru", 1.0) == pytest.approx(1 / 3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", ["5%", "20%", "50%"])
def test_what_is_simulated_is_what_the_path_declares(policy, share):
    """Of a table whose rows are all simulated: the same hits, to the last one."""
    draw = np.random.default_rng(3)
    epochs = [
        [torch.from_numpy(np.unique(draw.zipf(1.2, 300) % 2000)) for _ in range(30)]
        for _ in range(2)
    ]
    sizes = MinibatchSizes((1.0, 2.0), (1.0,), (), knowledge=Knowledge(earlier=lambda e: epochs[e]))
    path = DiskCached(policy=policy, share=share, superbatch="1000")
    paths = list(path.data_paths(epochs[1], 64, 2000, before=[epochs[0]]))
    missed = sum(one.disk_payload_bytes for one in paths) / sum(one.payload_bytes for one in paths)
    rate = hit_rate(requests_of(sizes, 2000, 30), policy, int(share[:-1]) / 100)
    assert rate == pytest.approx(1 - missed, abs=1e-12)
    assert 0 < rate < 1


#: Rows of 64 B in every second block: each is a read of its own.
APART = MinibatchSizes((1.0, 4000.0), (1.0,), (torch.arange(0, 256_000, 128),))
LOAD = MinibatchLoad(
    4000 * 64.0,
    cpu_write_bytes=4000 * 64.0,
    disk_payload_bytes=4000 * 64.0,
    disk_bytes=4000 * 4096.0,
    disk_requests=4000.0,
    row_bytes=64,
)
Keeping = Callable[[MinibatchLoad, MinibatchSizes, int, float], MinibatchLoad]


def check_keeping(keep: Keeping) -> None:
    """Of 2000 ids that stand for 4000 a quarter is missing, but for the chance of the draw."""
    kept = keep(LOAD, APART, 256_000, 0.75)
    assert kept.disk_payload_bytes == 64_000
    assert kept.disk_requests == pytest.approx(1000, rel=0.1)
    assert kept.disk_requests is not None
    assert kept.disk_bytes == 4096 * kept.disk_requests
    assert (kept.payload_bytes, kept.cpu_write_bytes) == (256_000, 256_000)
    assert keep(LOAD, APART, 256_000, 0.0) == LOAD


def test_what_is_kept_is_not_read():
    check_keeping(keeping)
    nothing = keeping(LOAD, APART, 256_000, 1.0)
    assert (nothing.disk_bytes, nothing.disk_requests) == (0, 0)


WRONG: dict[str, Keeping] = {
    "the other way round": lambda load, sizes, n, rate: keeping(load, sizes, n, 1 - rate),
    "nothing kept": lambda load, sizes, n, rate: load,
    "as if the ids at hand were all of the minibatch": lambda load, sizes, n, rate: keeping(
        load, replace(sizes, num_nodes=(1.0, float(len(sizes.ids[0])))), n, rate
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_saving_is_rejected(wrong):
    with pytest.raises(AssertionError):
        check_keeping(wrong)


def test_belady_knows_a_superbatch_and_no_more(monkeypatch):
    ahead: list[int] = []

    def remember(capacity: int, rows: int, known: int) -> object:
        ahead.append(known)
        return POLICIES["lru"](capacity, rows, known)

    monkeypatch.setitem(caches.POLICIES, "spy", remember)
    for minibatches in (1.0, 21.0, 1e6):
        hit_rate(Requests(4, (), (np.array([1]),), 1, minibatches), "spy", 0.5)
    assert ahead == [1000, 47, 1]
