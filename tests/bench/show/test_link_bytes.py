"""What the sensors saw on the link beside what was counted from the ids, worked out by hand."""

import html
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.read.gpu import copied_ratio, link_bytes
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.page import render_report
from gatherbench.bench.show.views.requests import link_traffic

from .gpu_rows import add_rows, declare_path, measure_link

MakeRun = Callable[..., Path]
SERIES = [("cpu_gather", "naive", (0.2, 1.0, 0.5)), ("aligned_zero_copy", "given", (0.2, 0.4, 0.5))]


def calibrate(folder: Path, *ratios: tuple[Any, ...]) -> None:
    """Of each source what it counted for a byte copied to the device, and back."""
    rows: list[dict[str, object]] = [
        {"metric": f"pcie_{way}_ratio", "source": source, "value": value}
        for source, *both in ratios
        for way, value in zip(("host_to_device", "device_to_host"), both, strict=False)
    ]
    whole = {"workload": "", "dataset": "", "strategy": "", "variant": ""}
    add_rows(folder, rows, stage="calibration", unit="1", **whole)


@pytest.fixture
def folder(make_run: MakeRun) -> Path:
    return make_run(series=SERIES, backend="cuda", machine="nvidia-h200")


def test_measured_bytes_stand_beside_those_of_requests_and_copies(folder):
    pinned = "bytes counted for each byte copied, pinned memory"
    calibrate(
        folder,
        ("gpm: " + pinned, 1.2, 1.3),
        ("one way: " + pinned, 1.0),
        ("counters: " + pinned, 1.1, 1.2),
        # Runs of before give copies of other sizes the same name, after those that decide.
        ("counters: bytes counted for each byte copied, pieces of 4 kB", 1.15, 1.2),
    )
    declare_path(folder, "cpu_gather", "naive", copy_engine=1000.0)
    measure_link(folder, "cpu_gather", "naive", 1100.0, 1110.0, 1120.0)
    requests = {"gpu_requests_32_bytes": 2.0, "gpu_requests_96_bytes": 1.0}
    requests |= {"gpu_requests_128_bytes": 7.0}
    reads = {"gpu_link_read": 1000.0, "copy_engine": 80.0}
    declare_path(folder, "aligned_zero_copy", "given", **reads, **requests)
    measure_link(folder, "aligned_zero_copy", "given", 1400.0)
    run = load_run(folder)
    assert copied_ratio(run) == 1.1
    table = link_bytes(run).set_index("strategy")
    copied, read = table.loc["cpu_gather"], table.loc["aligned_zero_copy"]
    assert list(table.index) == ["cpu_gather", "aligned_zero_copy"]
    assert (copied["median"], copied["low"], copied["high"], copied["count"]) == (
        1110.0, 1105.0, 1115.0, 3,
    )  # fmt: skip
    assert copied[["payload", "read", "link_128", "link_64"]].tolist() == pytest.approx(
        [1000, 1000, 1100, 1100]
    )
    sectors = 2 * 32 + 96 + 7 * 128
    assert read["read"] == sectors + 80
    assert read["link_128"] == pytest.approx(sectors + 20 * 10 + 80 * 1.1)
    assert read["link_64"] == pytest.approx(sectors + 20 * (2 + 2 + 14) + 80 * 1.1)
    page = html.unescape(render_report(run))
    assert "counted from the ids, and measured" in page
    assert "which counted 1.100 B for each byte copied" in page


def test_what_was_not_counted_is_not_made_up(folder):
    declare_path(folder, "aligned_zero_copy", "given", gpu_link_read=1000.0)
    measure_link(folder, "aligned_zero_copy", "given", 1400.0)
    measure_link(folder, "cpu_gather", "naive", 1100.0)
    run = load_run(folder)
    assert copied_ratio(run) is None
    table = link_bytes(run).set_index("strategy")
    assert table.loc["aligned_zero_copy", "payload"] == 1000
    for strategy, names in (("aligned_zero_copy", 3), ("cpu_gather", 4)):
        missing = table.loc[strategy, ["payload", "read", "link_128", "link_64"]]
        assert missing.isna().sum() == names


def test_reads_of_a_graph_in_host_memory_are_said_to_be_in_what_is_measured(folder):
    measure_link(folder, "cpu_gather", "naive", 1100.0)
    run = load_run(folder)
    said = "Measured bytes include reads of the graph, which are not counted"
    for sampling in ("gpu", "uva"):
        plan = {**run.plan, "measure": {**run.plan["measure"], "sampling": sampling}}
        found = link_traffic(replace(run, plan=plan)).caption
        assert (said in found) == (sampling == "uva")


def test_without_a_measurement_there_is_nothing_to_compare(folder):
    declare_path(folder, "cpu_gather", "naive", copy_engine=1000.0)
    calibrate(folder, ("counters: of pinned memory", math.pi, 1.1))
    run = load_run(folder)
    assert link_bytes(run).empty
    assert copied_ratio(run) is None
    assert link_traffic(run).lines == []
