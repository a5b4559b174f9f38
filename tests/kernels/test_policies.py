"""The launch policies as data, the points they pick, and the tables made from them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.policies import POLICIES, policy
from gatherbench.kernels.requests import request_row, uniform_ids

SYSTEMS = {
    *("PyTorch-Direct", "DGL", "GraphBolt", "torch-quiver", "GLT", "WholeGraph", "EMOGI"),
    "gatherbench",
}


def test_every_system_has_a_policy_with_its_source():
    assert {p.system for p in POLICIES.values()} == SYSTEMS
    for p in POLICIES.values():
        assert p.source
        assert p.label == (p.name if p.system == "gatherbench" else f"policy of {p.system}")
    assert len({p.label for p in POLICIES.values()}) == len(POLICIES)


@settings(deadline=None)
@given(
    name=st.sampled_from(list(POLICIES)),
    units=st.integers(1, 2500),
    item=st.sampled_from([1, 2, 4, 8]),
    offset=st.integers(0, 16),
    index_bytes=st.sampled_from([4, 8]),
)
def test_every_policy_has_a_point_for_every_table(name, units, item, offset, index_bytes):
    rule, row_bytes, address = policy(name), units * item, (1 << 30) + offset * item
    point = rule.point(row_bytes, item, table_address=address, index_bytes=index_bytes)
    point.check(row_bytes, rule.row_stride(row_bytes), address)
    assert point.index_bytes == index_bytes
    assert point.blocks(1000, row_bytes) > 0


POINTS = [
    ("pytorch-direct", 2408, GridPoint("circular", 4, 0, 1, 4, block_threads=128)),
    ("pytorch-direct", 512, GridPoint("none", 4, 0, 1, 4, block_threads=128)),
    ("pytorch-direct", 100, GridPoint("none", 4, 0, 1, 4, block_threads=128)),
    ("dgl", 2408, GridPoint("idle", 4, 256, block_threads=256)),
    ("dgl", 256, GridPoint("idle", 4, 64, block_threads=256)),
    ("dgl", 252, GridPoint("none", 4, 64, block_threads=256)),
    ("dgl", 4, GridPoint("none", 4, 1, block_threads=256)),
    ("graphbolt", 2408, GridPoint("idle", 8, 512, block_threads=1024, max_blocks=10)),
    ("graphbolt", 128, GridPoint("none", 16, 8, block_threads=1024, max_blocks=10)),
    ("torch-quiver", 400, GridPoint("none", 1, 32, block_threads=1024)),
    ("torch-quiver", 2408, GridPoint("none", 1, 32, block_threads=1024)),
    ("glt", 2408, GridPoint("none", 4, 32, block_threads=1024)),
    ("glt", 4, GridPoint("none", 4, 32, block_threads=1024)),
    ("emogi", 2408, GridPoint("idle", 4, 32, block_threads=1024)),
    ("emogi", 128, GridPoint("idle", 4, 32, block_threads=1024)),
    ("emogi", 4, GridPoint("idle", 4, 32, block_threads=1024)),
    ("wholegraph", 400, GridPoint("none", 16, 32, block_threads=1024, max_blocks=1568)),
    ("wholegraph", 64, GridPoint("none", 16, 4, block_threads=1024, max_blocks=1568)),
    ("aligned", 2408, GridPoint("circular", 8, 32, 1, 4, block_threads=256)),
    ("aligned", 400, GridPoint("circular", 16, 32, 4, 1, block_threads=256)),
    ("aligned", 128, GridPoint("none", 16, 8, 4, 1, block_threads=256)),
    ("aligned", 132, GridPoint("circular", 4, 32, 1, 4, block_threads=256)),
    ("unaligned", 2408, GridPoint("none", 8, 32, 1, 4, block_threads=256)),
    ("unaligned", 400, GridPoint("none", 16, 32, 4, 1, block_threads=256)),
    ("unaligned", 64, GridPoint("none", 16, 4, 4, 1, block_threads=256)),
    ("aligned-idle", 2408, GridPoint("idle", 8, 32, 1, 4, block_threads=256)),
    ("aligned-idle", 512, GridPoint("idle", 16, 32, 4, 1, block_threads=256)),
    ("aligned-idle", 128, GridPoint("none", 16, 8, 4, 1, block_threads=256)),
    ("aligned-block", 512, GridPoint("idle", 4, 128, block_threads=256)),
    ("aligned-block", 252, GridPoint("none", 4, 64, block_threads=256)),
]


def test_every_policy_has_points_that_were_worked_out_by_hand():
    assert {name for name, _, _ in POINTS} == POLICIES.keys()


@pytest.mark.parametrize(("name", "row_bytes", "expected"), POINTS)
def test_the_points_are_what_the_sources_say(name, row_bytes, expected):
    assert policy(name).point(row_bytes, 4) == expected


def test_order_and_padding_depend_on_the_row():
    wholegraph = policy("wholegraph")
    assert wholegraph.order_of(512) == "sorted"
    assert wholegraph.order_of(513) == "given"
    assert wholegraph.row_stride(2408) == 2416
    assert policy("dgl").order_of(10_000) == "sorted"
    assert policy("glt").row_stride(2408) == 2408


def test_an_unknown_policy_names_those_there_are():
    with pytest.raises(ValueError, match=r"'dlg': choose from pytorch-direct, dgl"):
        policy("dlg")


def test_the_table_tells_the_papers_story():
    ids = uniform_ids(1 << 15)
    table = {name: request_row(rule, 2408, 4, ids) for name, rule in POLICIES.items()}
    assert table["unaligned"].requests_per_row > 1.3 * table["aligned"].requests_per_row
    # Idle lanes read each line once; the circular shift may read the row's head in two goes.
    lines = (2408 + 126) / 128  # mean number of lines under a row at even 8 B offsets, rounded
    assert table["aligned-idle"].requests_per_row == pytest.approx(lines, rel=0.01)
    assert table["aligned-idle"].requests_per_row <= table["aligned"].requests_per_row
    assert max(table, key=lambda name: table[name].requests_per_row) == "torch-quiver"


def test_a_sorted_policy_reads_repeats_of_narrow_rows_once():
    ids = np.repeat(np.arange(64), 4)
    np.random.default_rng(0).shuffle(ids)
    sorted_first = request_row(policy("graphbolt"), 32, 4, ids)
    given = request_row(dataclasses.replace(policy("graphbolt"), order="given"), 32, 4, ids)
    assert sorted_first.num_requests < given.num_requests / 2
