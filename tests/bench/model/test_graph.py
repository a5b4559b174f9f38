"""Predictions for a graph of which only the size is known: its minibatch, and every path."""

import math
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.model.graph import PATHS, Shape, draw, predict_graph
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.plan.workload import Workload
from gatherbench.datasets.dataset import DatasetError
from gatherbench.strategies.registry import CHOICES, STRATEGIES

SMALL = Shape("20k,300k,128", 20_000, 300_000, 128, 512)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("20k,300k,128", (20_000, 300_000, 512)),
        ("2.4M,124M,100", (2_400_000, 124_000_000, 400)),
        ("1G,0,1", (1_000_000_000, 0, 4)),
        ("products-like", (2_449_029, 123_718_280, 400)),
    ],
)
def test_a_graph_is_named_or_its_size_given(text, sizes):
    shape = Shape.parse(text)
    assert (shape.nodes, shape.edges, shape.row_bytes) == sizes


@pytest.mark.parametrize(
    "text",
    ["1,2", "a,b,c", "99,1,1", "9e9,1,1", "100,1,0", "100,-1,1", "4G,1,1", "1M,1M,nan", ",,"],
)
def test_no_size_is_refused_with_what_one_looks_like(text):
    with pytest.raises(DatasetError, match=r"expected the name of a dataset .* 2\.4M,124M,100"):
        Shape.parse(text)


def test_a_name_that_nobody_has_is_refused_with_the_nearest():
    with pytest.raises(DatasetError, match="products-like"):
        Shape.parse("product-like")


def test_a_minibatch_follows_the_law():
    """Distinct nodes; a tenth of them, the most wanted, gets u³ < 1/10: 46 % of the draws."""
    ranks, nodes, edges = draw(Shape("x", 1_000_000, 16_000_000, 1, 4), Workload("x"))
    assert ranks.size == nodes[-1] == np.unique(ranks).size
    assert nodes == sorted(nodes)
    assert 0 <= ranks.min() <= ranks.max() < 1_000_000
    assert edges[0] == pytest.approx(1000 * 12, rel=0.1)  # of 16 in the mean, 25 at most
    drawn = ranks[nodes[0] : nodes[1]]
    assert 0.35 < (drawn < 100_000).mean() < 0.46  # repeats of the most wanted count once


def test_every_path_is_there_with_seconds_and_room_or_a_reason():
    table = predict_graph(SMALL, load_profile("nvidia-h200"))
    assert set(table["strategy"]) == {s.name for s in (*STRATEGIES, *CHOICES)}
    assert len(table) == len(PATHS)
    assert max(Counter(zip(table["strategy"], table["variant"], strict=True)).values()) == 1
    for row in table.to_dict("records"):
        assert row["notes"] or row["epoch_s"] > 0
        assert math.isnan(row["epoch_s"]) == (row["bound"] == "unknown")
    rows = table.set_index(["strategy", "variant"])
    size = 20_000 * 512.0
    assert rows.loc[("all_in_gpu", "default"), "gpu_bytes"] > size
    cached = rows.loc[("cached_zero_copy", "presampled,10%,0")]
    buffer = rows.loc[("aligned_zero_copy", "given"), "gpu_bytes"]
    assert cached["gpu_bytes"] == pytest.approx(size / 10 + buffer)
    assert cached["host_bytes"] == size
    assert rows.loc[("disk_direct", "io_uring,yes,128,1"), "host_bytes"] == 2 * buffer
    assert set(table["fits"]) == {"GPU yes, host ?", "unknown"}


def test_what_is_extrapolated_or_does_not_fit_says_so():
    large = Shape("400M,4G,128", 400_000_000, 4_000_000_000, 128, 512)
    rows = predict_graph(large, load_profile("h200-sxm-pcie5-low"))
    rows = rows.set_index(["strategy", "variant"])
    read = rows.loc[("unified_zero_copy", "registered")]
    assert any("is known of tables up to" in note for note in read["notes"])
    for said in ("gpu.issue is not known", "without drawing minibatches: neither gpu.draw nor"):
        assert any(said in note for note in read["notes"])
    bound = rows.loc[("all_in_gpu", "default")]
    assert bound["fits"] == "no (GPU)"
    assert "do not fit into" in bound["notes"][0]


def test_the_command_prints_the_fastest_first_and_refuses_a_run_beside_it():
    done = CliRunner().invoke(
        app, ["predict", "--graph", "20k,300k,128", "--profile", "nvidia-h200"]
    )
    assert done.exit_code == 0, done.output
    assert "Predicted for nvidia-h200, not measured" in done.output
    assert "law of hashed graphs" in done.output
    assert all(strategy.name in done.output for strategy in STRATEGIES)
    table = predict_graph(SMALL, load_profile("nvidia-h200")).sort_values("epoch_s", kind="stable")
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert [word for word in first_words if word in set(table["strategy"])] == [*table["strategy"]]
    assert "async_zero_copy (mps)" in done.stdout, "as show names it"
    assert "stream,auto" not in done.stdout
    assert "GPU yes, host ?" in done.stdout
    for wrong in (
        ["--graph", "20k,300k,128"],
        ["run", "--graph", "20k,300k,128", "--profile", "x"],
    ):
        refused = CliRunner().invoke(app, ["predict", *wrong])
        assert refused.exit_code == 2
        assert "--graph needs --profile NAME" in refused.output
