"""A table replicated or sharded: what crosses, which is faster, and where both are level."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.model import placement
from gatherbench.bench.model.advise.question import Question, graph_of, graph_sizes
from gatherbench.bench.model.advise.rank import Advice, Option, advise, average_load, gpu_need
from gatherbench.bench.model.epoch import epoch_seconds
from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.model.load import MinibatchLoad
from gatherbench.bench.model.placement import Even, crosses, even_of, even_rate, even_words, sharded
from gatherbench.bench.model.profile import LinkProfile, Range, load_profile
from gatherbench.bench.show.advice import headline, placements, render, to_json
from gatherbench.strategies.aligned_zero_copy import AlignedZeroCopy
from gatherbench.strategies.places import TABLE_SHARE
from gatherbench.strategies.sharded import Sharded

from ..printed import printed

ROWS = 100e6
#: 128 B with 20 B of header and framing, on 31.51 GB/s less 8 %.
TRANSFER_S = ROWS / 128 * 148 / (31.51e9 * 0.92)
WHOLE = MinibatchLoad(
    ROWS,
    gpu_link_read_bytes=ROWS,
    gpu_requests={128: ROWS / 128},
    table_bytes=1e9,
    sample_s=Estimate(0.0),
    train_s=Estimate(2e-3),
    gradient_bytes=0.0,
)
MACHINE = load_profile("rtx3090-pcie4")
GRAPH = graph_of(20_000_000, 400_000_000, 512, classes=50, train_nodes=10**6, laws=("rmat",))
ASKED = Question(GRAPH, gpus=2, machines=2)


def test_the_even_network_by_hand() -> None:
    """Two machines of a GPU each: half of the rows cross a network, in place of all over the link.

    What the network has is the transfer less three exchanges of a collective and a hop, and less
    three passes over the rows in GPU memory: its own and the other rank's, those put in place.
    """
    left = TRANSFER_S - 3 * (6.6e-6 + 2.7e-6) - 3 * ROWS / 936e9
    even = even_rate(WHOLE, MACHINE, 60, gpus=1, nodes=2)
    assert even.key == "network.rate"
    (rate,) = even.rates
    assert rate.value == pytest.approx(ROWS / 2 / left, rel=5e-3)


def test_the_even_link_of_peers_by_hand() -> None:
    """Four GPUs of one machine with a port each: three rows of four come from peers."""
    local = 2 * (ROWS + 3 / 4 * ROWS) / 936e9
    left = TRANSFER_S - 3 * (6.6e-6 + 1e-6) - local
    even = even_rate(WHOLE, MACHINE, 120, gpus=4, nodes=1)
    assert even.key == "peer.rate"
    assert even.rates[0].value == pytest.approx(3 / 4 * ROWS / left, rel=5e-3)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(2, 3), st.sampled_from([0, 1]))
def test_at_the_even_rate_both_are_level_and_beyond_it_one_is_ahead(
    gpus: int, nodes: int, lookahead: int
) -> None:
    load = replace(WHOLE, lookahead=lookahead, train_s=Estimate(1e-4))
    rate = even_rate(load, MACHINE, 120, gpus=gpus, nodes=nodes).rates[0].value
    assert rate is not None

    def seconds(one: MinibatchLoad, factor: float) -> float:
        there = MACHINE.with_constant("network.rate", rate * factor, "made up")
        found = epoch_seconds(one, there, 120, gpus, nodes).value
        assert found is not None
        return found

    spread = sharded(load, gpus, nodes)
    assert seconds(spread, 1.0) == pytest.approx(seconds(load, 1.0), rel=5e-3)
    assert seconds(spread, 1.3) < seconds(load, 1.3)
    assert seconds(spread, 0.7) > seconds(load, 0.7)


def test_no_rate_and_any_rate_are_said_as_such() -> None:
    slow = MACHINE.with_constant("peer.latency", 1e-2, "made up")
    (never,) = even_rate(WHOLE, slow, 60, gpus=2, nodes=1).rates
    assert never.value == math.inf
    slow_link = MACHINE.with_constant("link.raw_rate", 1e8, "made up")
    (always,) = even_rate(WHOLE, slow_link, 60, gpus=2, nodes=1).rates
    assert always.value == 0.0
    assert even_words(Even("network.rate", (never,))) == "no rate"
    assert even_words(Even("peer.rate", (always,))) == "any rate"
    both = Even("network.rate", (Estimate(50e9), Estimate(100e9)))
    assert even_words(both) == "50.0 to 100 GB/s (400 to 800 Gb/s)"
    assert even_words(Even("peer.rate", (Estimate(50e9),))) == "50.0 GB/s"
    assert even_words(Even("peer.rate", (Estimate(50e9), never))) == "50.0 GB/s, or no rate"


def test_what_an_even_rate_needs_is_said() -> None:
    dark = MACHINE.with_constant("peer.rate", None, "nobody knows")
    even = even_rate(WHOLE, dark, 60, gpus=2, nodes=2)
    assert even_words(even) == "not known: peer.rate: nobody knows"
    with pytest.raises(ValueError, match="one rank has the whole table"):
        even_rate(WHOLE, MACHINE, 60, gpus=1, nodes=1)
    ranged = MACHINE.with_constant("link.max_request", Range(64.0, 128.0), "nobody knows")
    assert even_rate(WHOLE, ranged, 60, gpus=1, nodes=2).ends == (
        "link.max_request low", "link.max_request high",
    )  # fmt: skip


@cache
def machine() -> LinkProfile:
    profile = MACHINE.with_constant("node.gpus", 2.0, "made up")
    return profile.with_constant("network.rate", 50e9, "made up")


@cache
def advice_on(question: Question, profile: LinkProfile | None = None) -> Advice:
    return advise(question, graph_sizes(question), profile or machine())


def options(advice: Advice) -> dict[tuple[str, str], Option]:
    return {o.path: o for o in (*advice.ranked, *advice.unranked, *advice.others)}


def test_a_sharded_path_is_the_average_over_its_ranks() -> None:
    (sizes,) = graph_sizes(ASKED)
    load = average_load(Sharded(memory="gpu", ahead="0"), ASKED, sizes)
    assert load.payload_bytes == pytest.approx(sizes.rows * 2048)
    assert load.kept_bytes == pytest.approx(load.payload_bytes / 4)
    assert load.sent_bytes == pytest.approx(load.payload_bytes * 3 / 4)
    # Which rows a minibatch asks for is chance; that over all ranks each has one owner is not.
    assert load.peer_bytes == pytest.approx(load.payload_bytes / 4, rel=0.03)
    assert load.gpu_table_bytes == pytest.approx(GRAPH.table_bytes / 4, rel=1e-6)
    assert load.table_bytes == GRAPH.table_bytes / 4
    even = sharded(average_load(AlignedZeroCopy(), ASKED, sizes), 2, 2)
    run = (machine(), ASKED.batches, 2, 2)
    assert epoch_seconds(load, *run).value == pytest.approx(
        epoch_seconds(even, *run).value, rel=0.02
    )


def test_advice_knows_both_placements_in_the_same_words() -> None:
    found = options(advice_on(ASKED))
    words = {path: (o.placement, o.sharded) for path, o in found.items()}
    assert words["sharded", "gpu,0,0"] == ("sharded over 4 ranks in GPU memory", True)
    assert words["sharded", "host,0,0"] == ("sharded over 4 ranks in host memory", True)
    assert words["aligned_zero_copy", "given"] == ("replicated host table", False)
    assert words["all_in_gpu", "default"] == ("replicated in GPU memory", False)
    table = GRAPH.table_bytes
    needs = {path: o.host_bytes for path, o in found.items()}
    assert needs["sharded", "gpu,0,0"] == needs["all_in_gpu", "default"] == 0
    assert needs["sharded", "host,0,0"] == table / 2
    assert needs["aligned_zero_copy", "given"] == table
    assert found["sharded", "host,0,0"].pinned_bytes == table / 4
    # The placement is said wherever the choice is.
    advice = advice_on(ASKED)
    said = printed(render(advice))
    for option in advice.ranked:
        assert option.placement in said
    first = advice.ranked[0]
    assert f"Take {first.strategy} ({first.variant}), {first.placement}: " in headline(advice)


def test_one_gpu_has_nothing_to_shard() -> None:
    alone = advice_on(replace(ASKED, gpus=1, machines=1))
    assert not any(o.sharded for o in options(alone).values())
    assert not any("sharded" in remark for remark in alone.remarks)
    assert placements(alone) == []
    assert to_json(alone)["sharded_above"] is None


def test_a_table_that_no_host_holds_is_refused_and_sharded_is_what_is_left() -> None:
    """38.1 GiB: on hosts of 32 GiB a half each, on GPUs of 24 GiB a quarter each."""
    advice = advice_on(replace(ASKED, host_memory_bytes=32 * 2.0**30))
    assert {o.path for o in advice.ranked} == {
        ("sharded", f"{memory},{ahead},0") for memory in ("gpu", "host") for ahead in (0, 1)
    }
    refused = options(advice)["aligned_zero_copy", "given"]
    assert refused.fits is False
    assert refused.reason == (
        "Replicated host table: 38.1 GiB of host memory a machine, and 32 GiB are there."
    )
    small = advice_on(replace(ASKED, host_memory_bytes=8 * 2.0**30, gpu_memory_bytes=8 * 2.0**30))
    assert not small.ranked
    assert "GPU's 8 GiB, nor in the 8 GiB of a host: take more machines, or a disk" in headline(
        small
    )
    assert options(advice_on(ASKED))["aligned_zero_copy", "given"].fits is True


def test_the_faster_placement_follows_the_network() -> None:
    """Above the even rate the sharded path is ahead of the one that reads in place."""
    advice = advice_on(ASKED)
    rate, free = even_of(advice).rates  # page visits cost what they do on an H200, or nothing
    assert rate.value is not None
    assert rate.value == free.value, "it is the link that bounds the reads"
    for factor, ahead in ((1.5, True), (0.5, False)):
        there = machine().with_constant("network.rate", factor * rate.value, "made up")
        found = options(advice_on(ASKED, there))
        one, other = found["sharded", "gpu,0,0"], found["aligned_zero_copy", "given"]
        assert one.ahead_of(other) is ahead
        assert other.ahead_of(one) is not ahead
    said = placements(advice)
    assert even_words(even_of(advice)) in said[0]
    assert said[0].startswith("Modelled: sharded over 4 ranks in GPU memory")
    assert "is ahead of" in said[1]
    assert said[2] == (
        "The largest table, less what training needs: replicated in host memory not known, sharded"
        " over host memory not known, sharded over GPU memory 86.4 GiB."
    )
    assert pytest.approx(86.4) == 4 * 24 * TABLE_SHARE
    told = json.loads(json.dumps(to_json(advice)))["sharded_above"]
    assert told == {
        "constant": "network.rate",
        "rates": {"read.page_visits low": rate.value, "read.page_visits high": rate.value},
        "said": even_words(even_of(advice)),
    }
    with_host = placements(advice_on(replace(ASKED, host_memory_bytes=2.0**40)))
    assert "in host memory 1,024 GiB, sharded over host memory 2,048 GiB" in with_host[-1]


def test_an_even_rate_of_parts_that_no_gpu_holds_is_none() -> None:
    """A quarter of 38.1 GiB and what training needs do not fit into 8 GiB."""
    advice = advice_on(replace(ASKED, gpu_memory_bytes=8 * 2.0**30))
    said = even_words(even_of(advice))
    assert said.startswith("not known: a rank's part and its minibatches need ")
    assert said.endswith("GiB of GPU memory, and 8 GiB are there")
    assert placements(advice)[0].endswith(f" at which rate of network a machine is {said}.")
    (sizes,) = graph_sizes(ASKED)
    part = average_load(Sharded(memory="gpu", ahead="0"), ASKED, sizes)
    assert gpu_need(part, ASKED, sizes) > GRAPH.table_bytes / 4
    assert set(to_json(advice)["sharded_above"]["rates"].values()) == {None}


def test_what_crosses_the_network_by_hand() -> None:
    """Two GPUs in each of two machines, 1000 rows of 512 B: half of the rows, with their ids."""
    load = MinibatchLoad(512e3, row_bytes=512, gradient_bytes=1e5)
    assert crosses(load, 2, 2) == (2 * 500 * 520, pytest.approx(1.5e5))
    assert crosses(load, 1, 4) == (750 * 520, pytest.approx(1.5e5))
    assert crosses(load, 4, 1)[0] == 0


def test_the_tables_of_the_page_are_the_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MACHINES", (2,))  # the others take long
    page = (Path(__file__).parents[3] / "docs" / "several-machines.md").read_text(encoding="utf-8")
    for line in placement.tables().splitlines():
        assert line in page
