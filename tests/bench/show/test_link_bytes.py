"""What was counted from the ids beside what was measured, worked out by hand.

Bytes on the link beside those that sensors saw; rows found on the device beside the share kept.
"""

import html
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gatherbench.bench.read.axis import axis
from gatherbench.bench.read.derive import copied_ratio, link_bytes
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.page import render_report
from gatherbench.bench.show.views.requests import data_path, link_traffic

from ..written_run import seen, write_run
from .gpu_rows import add_rows, declare_path, measure_link
from .test_show import all_of

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


# Rows found on the device, and the share that is kept.

CACHED = "cached_zero_copy"
#: Strategy, variant, parameters, bytes kept of the table of 1000 B, rows of 10 B found of 100.
KEPT = [
    ("cpu_gather", "naive", {"mode": "naive"}, 0, None),
    ("aligned_zero_copy", "given", {}, 0, None),
    (CACHED, "presampled,10%,0", {}, 100, 25),
    (CACHED, "presampled,50%,0", {"share": "50%"}, 500, 80),
    (CACHED, "oracle,10%,0", {"policy": "oracle"}, 100, 30),
    ("all_in_gpu", "default", {}, 1000, None),
]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPU's run with an epoch of 1.7 s and 0.1 s less for each series after the first."""
    times = [(s, v, (0.2, 1.0 - 0.1 * i, 0.49)) for i, (s, v, *_) in enumerate(KEPT)]
    folder = tmp_path_factory.mktemp("results") / "nvidia-h200" / "20261121-gpu-aaaaaa"
    write_run(folder, series=times, backend="cuda", machine="nvidia-h200", epochs=1)
    plan = json.loads((folder / "plan.json").read_text())
    params = {(s, v): given for s, v, given, *_ in KEPT}
    for case in plan["cases"]:
        case["params"] = params[case["strategy"], case["variant"]]
    (folder / "plan.json").write_text(json.dumps(plan))
    for strategy, variant, _, kept, found in KEPT:
        case = {"strategy": strategy, "variant": variant}
        add_rows(folder, seen("setup", "B", {"table": 1000}), **case)
        reads = 0 if strategy == "cpu_gather" else 1000 - 10 * (found or kept / 10)
        facts = {"row": 10.0, "gpu_table": kept, "gpu_link_read": reads, "copy_engine": 8}
        facts["gpu_memory_read"] = 0 if strategy == "cpu_gather" else 1000 - reads
        declare_path(folder, strategy, variant, **facts)
        if found is not None:  # of the 200 M rows in the 2 GB of an epoch of `write_run`
            (hits,) = seen("fetch", "1", {"rows_on_device": found * 2e6 + 1e6})
            add_rows(folder, [hits | {"repeat": n} for n in range(3)], epoch=0, **case)
    return folder


def test_found_rows_are_counted_beside_declared(caches):
    run = load_run(caches)
    columns = ["counted_on_device", "declared_on_device"]
    found = run.medians[columns].droplevel(["workload", "backend", "basis"])
    assert found.loc[(CACHED, "presampled,10%,0")].tolist() == pytest.approx([0.255, 0.25])
    assert found.loc[("all_in_gpu", "default"), "declared_on_device"] == 1
    assert found["counted_on_device"].notna().sum() == 3, "nobody counts the others"
    text = all_of(caches, 100).partition("Rows kept on the device: wordnet GraphSAGE")[2]
    assert "10% 1.50 1.00 25.5 25.0 758" in " ".join(text.split())
    shares = axis(run, "share")
    assert list(shares["value"]) == ["10%", "50%"], "of the oracle there is one share"
    assert shares["ratio"].tolist() == pytest.approx([1.0, 1.4 / 1.5])
    assert shares["link"].tolist() == [758, 208]
    policies = axis(run, "policy")
    assert list(policies["value"]) == ["presampled", "oracle"]
    table = data_path(run)
    columns = [column.field for column in table.columns]
    line = next(one for one in table.lines if "presampled,50%,0" in [c.value for c in one.cells])
    cells = dict(zip(columns, line.cells, strict=True))
    assert (cells["declared"].text, cells["counted"].text) == ("80.0", "80.5")


def test_paths_that_keep_nothing_have_no_table(make_run):
    folder = make_run(declared=True)
    run = load_run(folder)
    assert not {"declared", "counted"} & {column.field for column in data_path(run).columns}
    (nothing,) = seen("fetch", "1", {"rows_on_device": 0})
    path = {"strategy": "unified_zero_copy", "variant": "registered", "backend": "host"}
    path |= {"machine": "cpu-amd-epyc-2c"}
    add_rows(folder, [nothing | {"repeat": n} for n in range(3)], epoch=0, **path)
    assert load_run(folder).medians["counted_on_device"].notna().any()
    assert "Rows kept" not in all_of(folder)
