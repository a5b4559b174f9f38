"""Sweeps change one thing, keep the model's limits, and are drawn as what they are: modelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatherbench.bench.model.advise.question import Question, dataset_graph, graph_of, graph_sizes
from gatherbench.bench.model.advise.rank import advise
from gatherbench.bench.model.advise.sizes import drawn_sizes
from gatherbench.bench.model.profile import SPECS, load_profile
from gatherbench.bench.model.sweeps import (
    COLUMNS,
    OUTSTANDING_READS,
    Sweep,
    all_sweeps,
    batch_size,
    gpu_count,
    link_generation,
    on_link,
    row_width,
)
from gatherbench.bench.show.figures.curves import sweep_panels
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.registry import STRATEGIES

PROFILE = load_profile("rtx3090-pcie4")
QUESTION = Question(
    graph_of(20_000_000, 400_000_000, 128, classes=50, train_nodes=1_000_000, laws=("rmat",)),
    batch_size=1000,
)
ZERO_COPY = ("aligned_zero_copy", "given")


def line(
    sweep: Sweep, series: tuple[str, str] = ZERO_COPY, column: str = "longest_s"
) -> pd.Series[float]:
    table = sweep.table
    mine = table[(table["strategy"] == series[0]) & (table["variant"] == series[1])]
    return mine.set_index("x")[column].sort_index()


@pytest.fixture(scope="module")
def every() -> dict[str, Sweep]:
    return {sweep.name: sweep for sweep in all_sweeps(QUESTION, PROFILE)}


def test_tables_are_tidy_and_hold_every_strategy(every: dict[str, Sweep]) -> None:
    assert list(every) == ["row_width", "link_generation", "gpu_count", "batch_size"]
    graphless = {kind.name for kind in STRATEGIES if not (kind().needs or kind().aside)}
    sharing = {kind.name for kind in STRATEGIES if "ranks" in kind().needs}
    for name, sweep in every.items():
        table = sweep.table
        assert tuple(table.columns) == COLUMNS
        assert set(table["sweep"]) == {name}
        assert not table.duplicated(["x", "strategy", "variant"]).any()
        for _, point in table.groupby("x"):
            assert set(point["strategy"]) - sharing == graphless
        assert ((table["longest_s"].isna()) == (table["reason"] != "")).all()


def test_one_thing_changes_and_the_epoch_with_it(every: dict[str, Sweep]) -> None:
    widths = line(every["row_width"])
    assert (np.diff(widths) >= 0).all()
    assert widths[1024.0] > 1.5 * widths[64.0]
    resident = line(every["row_width"], ("all_in_gpu", "default"))
    assert not np.isnan(resident[16.0])
    assert np.isnan(resident[1024.0]), "the table outgrows the GPU"
    links = line(every["link_generation"])
    assert list(links.index) == [3, 4, 5]
    assert (np.diff(links) <= 0).all()
    assert links[5.0] < 0.95 * links[3.0]
    gpus = line(every["gpu_count"])
    assert (np.diff(gpus) <= 1e-9).all()
    assert gpus[4.0] > gpus[1.0] / 4
    seeds = line(every["batch_size"])
    four = replace(QUESTION, batch_size=4000)
    times = {o.path: o.longest_s for o in advise(four, graph_sizes(four), PROFILE).ranked}
    assert seeds[4000.0] == times[ZERO_COPY]
    assert widths[128.0] == links[4.0] == gpus[1.0] == seeds[1000.0], "the question itself"


def test_another_generation_keeps_the_machine_and_drops_its_links_limits() -> None:
    known = PROFILE.with_constant("copy.to_device", 12e9, "made up")
    kept = [key for key in SPECS if key.startswith(("host.", "gpu.", "node.", "peer."))]
    for generation in (3, 5):
        profile = on_link(known, generation)
        assert all(profile[key] == known[key] for key in kept)
        assert profile["copy.to_device"].value is None
        assert profile["link.outstanding_reads"].value == OUTSTANDING_READS.get(generation)
        assert f"PCIe {generation}.0" in profile.name
    assert on_link(known, 4) == known, "on its own link it keeps what is known of it"
    assert on_link(known, 5)["link.raw_rate"].value == pytest.approx(63.015e9, rel=1e-3)
    with pytest.raises(ValueError, match="generation 6"):
        on_link(known, 6)


def test_what_gpus_share_and_nobody_knows_is_on_the_axis(every: dict[str, Sweep]) -> None:
    assert every["gpu_count"].label == "GPUs"
    machine = load_profile("a100-pcie4")
    label = gpu_count(QUESTION, machine, (1,)).label
    assert label == "GPUs (as if they shared no host memory or ports)"


def test_a_prepared_dataset_is_sampled_at_every_point(
    tiny_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 nodes train: 64 seeds a minibatch are four of them, 50 on average; 400 are one of 200."""
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    asked = Question(dataset_graph("tiny"), (3, 2), 64)
    drawn = open_dataset(tiny_root / "tiny")
    for value, batches, seeds in ((64, 4, 50), (400, 1, 200)):
        sizes = drawn_sizes(drawn, (3, 2), value)
        assert sizes.num_nodes[0] == seeds
        point = replace(asked, batch_size=value)
        assert point.batches == batches
        times = {o.path: o.longest_s for o in advise(point, (sizes,), PROFILE).ranked}
        assert line(batch_size(asked, PROFILE, (value,)))[value] == times[ZERO_COPY]
    table = row_width(asked, PROFILE, (32, 1024)).table
    cached = table[table["strategy"] == "cached_zero_copy"].dropna(subset="longest_s")
    assert len(cached), "a share that is the best at one width is there at both"
    assert (cached.groupby("variant")["x"].count() == 2).all()


def test_a_range_over_laws_is_two_lines_of_a_look(every: dict[str, Sweep]) -> None:
    graph = replace(QUESTION.graph, laws=("rmat", "uniform"))
    sweep = gpu_count(replace(QUESTION, graph=graph), PROFILE, (1,))
    alone = line(every["gpu_count"], column="shortest_s")[1.0]
    assert line(sweep, column="shortest_s")[1.0] == alone < line(sweep)[1.0]
    figure = sweep_panels([sweep], title="", foot="")
    faint = [one.get_alpha() is not None for one in figure.axes[0].lines]
    assert faint.count(True) == faint.count(False) > 0
    assert "the faint one the" in " ".join(text.get_text() for text in figure.texts)


def test_every_line_is_dashed_and_the_figure_says_modelled(every: dict[str, Sweep]) -> None:
    drawn = sweep_panels(list(every.values()), title="Epochs", foot="Profile rtx3090-pcie4.")
    lines = [one for axes in drawn.axes for one in axes.lines]
    assert len(lines) >= 12
    assert {one.get_linestyle() for one in lines} == {"--"}
    texts = [text.get_text() for text in drawn.texts]
    assert any("(modelled)" in text for text in texts)
    assert any("not measured" in text for text in texts)
    assert drawn.axes[0].get_ylabel().startswith("modelled epoch")
    assert all(axes.get_ylim()[0] == 0 for axes in drawn.axes)
    (legend,) = drawn.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[0].startswith("cpu_gather")
    assert names[-1] == "all_in_gpu"


def test_a_panel_without_values_says_why() -> None:
    unknown = PROFILE.with_constant("gpu.submit", None, "nobody measured it")
    figure = sweep_panels([gpu_count(QUESTION, unknown, (1,))], title="None", foot="")
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "not modelled" in words
    assert "gpu.submit" in words
    figure = sweep_panels([link_generation(QUESTION, load_profile("gh200-c2c"))], title="", foot="")
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "is no PCIe" in words.replace("\n", " ")
    assert "gather_rate" not in words
