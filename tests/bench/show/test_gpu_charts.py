"""Energy, power and link traffic of runs that this file makes up: no GPU has ever said these."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.patches import StepPatch

from gatherbench.bench.read.gpu import energy, gpu_energy, gpu_power, idle_power_w, link_rate
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.run.store import TIMELINE_COLUMNS
from gatherbench.bench.show.charts import MOST
from gatherbench.bench.show.drawing import Chart, draw
from gatherbench.bench.show.views.requests import pcie_over_time
from gatherbench.bench.show.views.resources import (
    gpu_energy_per_epoch,
    gpu_mean_power,
    power_over_time,
)

from ..printed import lines_of
from ..written_run import WORKLOAD, edit
from .gpu_rows import add_rows
from .pictures import stands_free

MakeRun = Callable[..., Path]
MakeChart = Callable[[Run], Chart]
SERIES = (
    ("cpu_gather", "naive", (0.2, 1.0, 0.5)),
    ("aligned_zero_copy", "registered,given", (0.2, 0.35, 0.5)),
    ("async_zero_copy", "stream", (0.2, 0.05, 0.55)),
)
IDLE_W = 70.0
#: Joules of a block of 10 epochs and its seconds, by strategy.
BLOCKS = {"cpu_gather": (3400.0, 17.0), "aligned_zero_copy": (2100.0, 10.5)}


@pytest.fixture
def folder(make_run: MakeRun) -> Path:
    """A run on a made-up GPU: two series with energy, one without, and an idle power."""
    made = make_run(series=SERIES, backend="cuda", machine="nvidia-h200", repeats=2)
    nobody = {"workload": "", "dataset": "", "strategy": "", "variant": "", "stage": "calibration"}
    whole = (
        ("idle_power", "W", IDLE_W),
        ("link_gen_loaded", "1", 4),
        ("link_width_loaded", "1", 16),
    )
    add_rows(made, [{"metric": m, "unit": u, "value": v} for m, u, v in whole], **nobody)
    lost = {"status": "failed", "reason": "failed: the GPU is lost; reset it"}
    for (strategy, variant, _), repeat in itertools.product(SERIES, (0, 1)):
        at = {"strategy": strategy, "variant": variant, "repeat": repeat, "stage": "energy"}
        if strategy not in BLOCKS:
            add_rows(made, [{"metric": "gpu_energy", "unit": "J", "value": "", **lost}], **at)
            continue
        joules, seconds = BLOCKS[strategy]
        block = (("gpu_energy", "J", joules * (1 + 0.1 * repeat)), ("window_time", "s", seconds))
        block += (("epochs", "1", 10),)
        add_rows(made, [{"metric": m, "unit": u, "value": v} for m, u, v in block], **at)
    return made


@pytest.fixture
def run(folder: Path) -> Run:
    return load_run(folder)


def by_strategy(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {r["strategy"]: r for r in table.to_dict("records")}


def test_rows_of_the_whole_run_are_no_cases(run):
    assert set(run.epochs["workload"]) == set(run.cases["workload"]) == {WORKLOAD}
    assert len(run.calibration) == 3
    assert idle_power_w(run) == IDLE_W
    assert link_rate(run) == (pytest.approx(31.51e9, rel=1e-3), "")


def test_energy_an_epoch_splits_at_the_idle_power(run):
    found = by_strategy(gpu_energy(run))
    assert set(found) == set(BLOCKS)
    baseline = found["cpu_gather"]
    assert baseline["median"] == pytest.approx(340 * 1.05)  # of two repeats
    assert baseline["idle"] == pytest.approx(IDLE_W * 1.7)
    assert baseline["idle"] + baseline["above idle"] == pytest.approx(baseline["median"])
    assert baseline["not split"] == 0


def test_power_is_energy_over_the_window(run):
    found = by_strategy(gpu_power(run))
    assert found["aligned_zero_copy"]["median"] == pytest.approx(200 * 1.05)
    assert found["aligned_zero_copy"]["idle"] == IDLE_W
    assert energy(run)["power"].groupby("strategy").count().to_dict() == {
        "aligned_zero_copy": 2,
        "cpu_gather": 2,
    }


def test_energy_of_repeats_that_do_not_count_stays_out(folder):
    """Those beside other work, where there are quiet ones."""
    run = load_run(folder)
    quiet = replace(run, cases=run.cases.assign(used=run.cases["repeat"] != 1))
    both, one = (energy(of).index.get_level_values("repeat") for of in (run, quiet))
    assert (set(both), set(one)) == ({0, 1}, {0})


def test_without_an_idle_power_nothing_is_split(run):
    bare = replace(run, calibration=run.calibration.query("metric != 'idle_power'"))
    found = by_strategy(gpu_energy(bare))["cpu_gather"]
    assert (found["idle"], found["above idle"]) == (0, 0)
    assert found["not split"] == found["median"]
    assert "Idle power, with a process on the GPU: unknown" in gpu_energy_per_epoch(bare).reading


def test_bars_are_as_long_as_the_energy_and_the_missing_is_named(run):
    chart = gpu_energy_per_epoch(run)
    naive, aligned, lost = lines_of(chart)
    idle = IDLE_W * 1.7
    assert (naive["idle"], naive["above idle"]) == pytest.approx((idle, 357 - idle))
    assert (naive["text"], aligned["text"]) == ("357 J", "220 J")
    assert lost["reason"] == "failed: the GPU is lost; reset it"
    assert "Idle power, with a process on the GPU: 70 W" in chart.reading
    assert list(chart.legend) == ["idle", "above idle"]
    assert lines_of(gpu_mean_power(run))[0]["text"] == "210 W"


def test_a_repeat_without_energy_has_a_reason_of_its_own(make_run):
    """That the other repeats have not been run is none for the one that has."""
    folder = make_run(series=SERIES[:1], backend="cuda", repeats=2)
    edit(folder, keep=lambda row: row["repeat"] == "0")
    (line,) = lines_of(gpu_energy_per_epoch(load_run(folder)))
    assert line["reason"] == "no_device: none here"


def write_timeline(folder: Path, *points: tuple[Any, ...]) -> None:
    """Points: strategy, variant, epoch, metric, seconds and bytes."""
    rows = [(WORKLOAD, s, v, 0, epoch, m, "B", at, value) for s, v, epoch, m, at, value in points]
    pd.DataFrame(rows, columns=list(TIMELINE_COLUMNS)).to_parquet(folder / "timeline.parquet")


def traffic(*strategies: str, share: float = 1.0) -> list[tuple[Any, ...]]:
    """An epoch of 1 s with a share of 4 GB to the device in bursts, and of 0.1 GB back."""
    return [
        (strategy, variant, 0, metric, 0.1 * step, share * value)
        for strategy, variant, _ in SERIES
        if strategy in strategies
        for step in range(11)
        for metric, value in (
            ("pcie_host_to_device", 4e9 * 0.1 * (step // 2 * 2)),
            ("pcie_device_to_host", 0.1e9 * 0.1 * step),
        )
    ]


def test_of_a_case_that_was_cut_off_nothing_is_drawn(folder):
    """Its readings may lie there, and no row of the table stands behind them."""
    write_timeline(folder, *traffic("cpu_gather", "aligned_zero_copy"))
    edit(folder, keep=lambda row: row["strategy"] != "aligned_zero_copy")
    run = load_run(folder)
    drawn = {line["strategy"] for line in lines_of(pcie_over_time(run)) if line["curves"]}
    assert drawn == {"cpu_gather"}
    assert set(run.samples["strategy"]) == {"cpu_gather", "async_zero_copy"}


def test_traffic_is_drawn_for_each_series_and_the_missing_is_named(folder):
    write_timeline(folder, *traffic("cpu_gather", "aligned_zero_copy"))
    gone = {"status": "skipped", "reason": "unsupported: the counter could wrap; leave a core free"}
    counter = {"metric": "pcie_host_to_device", "unit": "B", "value": "", "stage": "epoch"}
    at = {"strategy": "async_zero_copy", "variant": "stream", "epoch": 0}
    add_rows(folder, [counter | gone], **at)
    chart = pcie_over_time(load_run(folder))
    first, _, last = lines_of(chart)
    assert last["reason"] == "skipped: unsupported: the counter could wrap; leave a core free"
    rates = [rate for _, rate in first["curves"]["pcie_host_to_device"]]
    assert (max(rates), min(rates)) == (pytest.approx(8e9), 0)
    assert first["note"] == "4.00 GB host to device, 100 MB device to host, payload 2.00 GB"
    assert "raw rate, 31.5 GB/s" in chart.reading
    assert "No raw rate" not in chart.reading
    figure = draw(chart)
    drawn = [axes.findobj(StepPatch) for axes in figure.axes]
    assert [len(patches) for patches in drawn] == [2, 2, 0]
    assert drawn[0][0].get_data().values.max() == pytest.approx(8.0)
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 0]  # the raw rate


def test_the_epoch_shown_is_the_first_that_was_polled_with_its_own_payload(folder):
    points = [
        ("cpu_gather", "naive", epoch, "pcie_host_to_device", time_s, epoch * of_first)
        for epoch in (2, 1)  # of the first epoch nothing was read
        for time_s, of_first in ((0.0, 0.0), (1.0, 1e9), (3.0, 1.5e9))
    ]
    write_timeline(folder, *points)
    run = load_run(folder)
    run.epochs["fetch_payload_bytes"] = 1e9 * (5 + run.epochs["epoch"])
    line = lines_of(pcie_over_time(run))[0]
    assert line["note"] == "1.50 GB host to device, payload 6.00 GB"


def test_a_mean_of_readings_is_one_of_their_time(folder):
    """Of 100 W up to 1 s and of 40 up to 3 s: (100 + 2 × 40) / 3."""
    rows = [(WORKLOAD, "cpu_gather", "naive", 0, 0, "gpu_power", "W", t, w)
            for t, w in ((1.0, 100.0), (3.0, 40.0))]  # fmt: skip
    pd.DataFrame(rows, columns=list(TIMELINE_COLUMNS)).to_parquet(folder / "timeline.parquet")
    assert lines_of(power_over_time(load_run(folder)))[0]["note"] == "60.0 W mean"


@pytest.mark.parametrize(
    ("share", "top", "to_device", "to_host"),
    [
        (1.0, 31.5, "4.00 GB", "100 MB"),
        (0.5, 31.5, "2.00 GB", "50.0 MB"),
        (0.01, 0.08, "40.0 MB", "1.00 MB"),
        (0.0, 31.5, "0 B", "0 B"),
    ],
)
def test_little_traffic_has_a_scale_of_its_own(folder, share, top, to_device, to_host):
    write_timeline(folder, *traffic("cpu_gather", share=share))
    chart = pcie_over_time(load_run(folder))
    (panel,) = chart.panels()
    assert panel.values is not None
    assert panel.values.top == pytest.approx(top * 1e9, rel=0.01)
    assert "The scale ends at the link’s raw rate" in chart.reading
    note = panel.lines["note"].iloc[0]
    assert note.startswith(f"{to_device} host to device, {to_host} device to host")


@pytest.mark.parametrize(
    ("status", "why"), [("ok", "PCIe generation 9"), ("skipped", "does not tell")]
)
def test_a_link_without_a_raw_rate_says_why(folder, status, why):
    write_timeline(folder, *traffic("cpu_gather"))
    table = load_run(folder)
    gen = table.calibration["metric"] == "link_gen_loaded"
    table.calibration.loc[gen, ["value", "status"]] = (9.0, status)
    rate, reason = link_rate(table)
    assert rate is None
    assert why in reason
    chart = pcie_over_time(table)
    assert chart.roof is None
    assert f"No raw rate of the link: {reason}." in chart.reading
    assert "raw rate, " not in chart.reading


@pytest.mark.parametrize("readings", [2, 3, 1777])
def test_thinning_a_counter_keeps_its_bytes(folder, readings):
    points = [(0.01 * i, 1e6 * i * i) for i in range(readings)]
    case = ("cpu_gather", "naive", 0, "pcie_host_to_device")
    write_timeline(folder, *((*case, *point) for point in points))
    (curve,) = lines_of(pcie_over_time(load_run(folder)))[0]["curves"].values()
    assert len(curve) <= MOST + 1
    begins = [0.0, *(time for time, _ in curve)]
    carried = sum(rate * (end - begin) for (end, rate), begin in zip(curve, begins, strict=False))
    assert carried == pytest.approx(points[-1][1])


def test_where_nothing_was_polled_the_reasons_stand_with_how_many(run_of):
    run = run_of(series=SERIES, backend="cuda", failures={SERIES[0][:2]: ("failed", "lost")})
    for make in (pcie_over_time, power_over_time):
        assert [(line["name"], line["reason"]) for line in lines_of(make(run))] == [
            ("1 series", "failed: lost"),
            ("2 series", "nothing was polled: a GPU’s sensors are read during runs on a GPU"),
        ]
        assert not draw(make(run)).legends  # of what is not drawn


@pytest.mark.parametrize("make", [gpu_energy_per_epoch, gpu_mean_power])
def test_a_run_in_which_nothing_was_read_says_so_in_place(run_of, make):
    chart = make(run_of(series=SERIES, backend="cuda"))
    assert {line["reason"] for line in lines_of(chart)} == {"no_device: none here"}


def test_no_text_leaves_the_paper(folder):
    write_timeline(folder, *traffic("cpu_gather"))
    run = load_run(folder)
    for make in (gpu_energy_per_epoch, gpu_mean_power, power_over_time, pcie_over_time):
        stands_free(draw(make(run)))
