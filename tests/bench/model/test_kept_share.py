"""What hit rates are worth on a machine: loads by hand, the first percent that no longer pays."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
import pytest
import torch

from gatherbench.bench.model.advise.question import Question, graph_of
from gatherbench.bench.model.advise.rank import average_load, gpu_need, predict
from gatherbench.bench.model.advise.sizes import MinibatchSizes
from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.hits import SHARES, KeptShare, best_policy, keeping, kept_share
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.show.hits import worth
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.places import TABLE_SHARE

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


def test_what_is_read_falls_with_the_hits() -> None:
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


def test_the_best_policy_is_one_that_a_training_could_use() -> None:
    rates = rates_of(oracle=0.1, lru=0.2, degree=0.6, presampled=0.5, random=0.3)
    assert best_policy(rates) == "presampled"
    assert best_policy(rates_of(oracle=0.1, lfu=0.2)) == ""
    assert kept_share(QUESTION, SIZES, MACHINE, rates_of(oracle=0.1)) is None


def test_epochs_at_both_ends_and_between() -> None:
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


def test_enough_by_hand() -> None:
    lines = ((100.0, 90.0, 80.0, 79.9), (100.0, 99.5, 50.0, 40.0), (8.0, 4.0, 2.0, 1.0))
    found = KeptShare("degree", "made up", lines, (), 3)
    assert found.enough == (2, 0, None)
    assert KeptShare("degree", "made up", ((100.0, 98.5, 98.0),), (), 2).enough == (1,)
    text = worth(found, QUESTION.graph)
    assert "takes 8.00 to 100 s with nothing kept and 1.00 to 79.9 s with 3 %" in text
    assert "At 0 % to 2 %, one more percent first" in text
    assert "by its ranges, each percent shortens it by more. There the GPU's memory ends." in text


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
def test_the_gpus_memory_may_end_before(beside: float, room: int, said: str) -> None:
    load = average_load(AlignedZeroCopy(), QUESTION, SIZES)
    machine = machine_with(gpu_need(load, QUESTION, SIZES) + beside)
    found = kept_share(QUESTION, SIZES, machine, rates_of(degree=0.5))
    assert found is not None
    assert found.room == room
    assert all(len(line) == room + 1 for line in found.epochs_s)
    assert said in worth(found, QUESTION.graph)


def test_a_machine_that_is_not_known_well_enough_says_what_is_missing() -> None:
    blank = LinkProfile.blank("bare", "", "nobody measured it")
    found = kept_share(QUESTION, SIZES, blank, rates_of(degree=0.5))
    assert found is not None
    assert found.epochs_s == found.enough == ()
    text = worth(found, QUESTION.graph)
    assert "gpu.launch: nobody measured it" in text
    assert "profile bare" in text
