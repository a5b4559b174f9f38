"""Charts as data: each bar has the length it should, and nothing goes missing in silence."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.rows import HEADER
from gatherbench.bench.run.samples import write_timeline
from gatherbench.bench.show.chart import Axis, Chart, Line, Panel, nice_ticks
from gatherbench.bench.show.charts import (
    CHARTS,
    GPU_CHARTS,
    charts_of,
    cpu_by_thread,
    cpu_core_seconds,
    epoch_breakdown,
    speedup,
)
from gatherbench.bench.show.charts_over_time import MOST, pcie_over_time, power_over_time
from gatherbench.bench.show.looks import PALETTE, colour_of
from gatherbench.strategies.registry import STRATEGIES

from .gpu_rows import EIGHT

MakeRun = Callable[..., Path]
WORKLOAD = "wordnet-sage16x2-b1000-1f2e3d4c"


def bars(chart: Chart, panel: int = 0) -> dict[tuple[str, str], Line]:
    return {(line.name, line.detail): line for line in chart.panels[panel].lines}


@pytest.fixture
def chart(make_run: MakeRun) -> Callable[..., Chart]:
    """The chart that a function makes of a run written for it."""
    names = (f"20261121-quick-{number}" for number in itertools.count())

    def make(draw: Callable[..., Chart], **run: object) -> Chart:
        return draw(load_run(make_run(next(names), **run)))

    return make


def test_stages_stack_up_to_the_epoch(chart: Callable[..., Chart]) -> None:
    drawn = chart(epoch_breakdown, series=EIGHT[:2])
    naive, pinned = bars(drawn).values()
    assert naive.parts == pytest.approx({"sample": 0.2, "fetch": 1, "train": 0.5, "other": 0.01})
    assert pinned.end == pytest.approx(1.31)
    assert [begin for _, begin, _ in naive.pieces()] == pytest.approx([0, 0.2, 1.2, 1.7])
    assert (naive.text, pinned.text) == ("1.71 s", "1.31 s")


def test_speedups_are_ratios_to_the_named_reference(chart: Callable[..., Chart]) -> None:
    drawn = chart(speedup, series=EIGHT[:2])
    assert drawn.title == "Speed-up over cpu_gather naive"
    assert [line.end for line in bars(drawn).values()] == pytest.approx([1.0, 1.71 / 1.31])
    assert drawn.panels[0].marks == [(1.0, "one")]
    without = chart(speedup, series=EIGHT[3:5])
    assert without.absent == "no cpu_gather naive measured to compare with"
    assert {line.missing for line in without.panels[0].lines} == {without.absent}


def test_processor_time_is_user_and_system(chart: Callable[..., Chart]) -> None:
    (naive,) = bars(chart(cpu_core_seconds, series=EIGHT[:1])).values()
    assert naive.parts == pytest.approx({"user": 2.5, "system": 0.1})


def test_a_single_epoch_has_no_whisker(chart: Callable[..., Chart]) -> None:
    one = chart(epoch_breakdown, repeats=1, epochs=1)
    assert {line.ends for line in bars(one).values()} == {None}
    for line in bars(chart(epoch_breakdown, jitter=0.1)).values():
        assert line.ends is not None
        low, high = line.ends
        assert low < sum(line.parts.values()) < high
        assert line.spread.startswith(f"{low:.3g}"[:4])


@pytest.mark.parametrize("draw", CHARTS.values(), ids=list(CHARTS))
def test_what_was_not_measured_is_named_in_its_place(
    chart: Callable[..., Chart], draw: Callable[..., Chart]
) -> None:
    failures = {
        ("cpu_gather", "pinned"): ("failed", "out of memory"),
        ("unified_zero_copy", "registered"): ("skipped", "no CUDA device"),
    }
    drawn = chart(draw, series=EIGHT, failures=failures, cut_off=[("all_in_gpu", "default")])
    found = bars(drawn)
    assert list(found) == [series[:2] for series in EIGHT]  # in the registry's order
    assert found["cpu_gather", "pinned"].missing == "failed: out of memory"
    assert found["unified_zero_copy", "registered"].missing == "skipped: no CUDA device"
    assert found["all_in_gpu", "default"].missing.startswith("not run: ")
    failed = {series[:2]: ("failed", "boom") for series in EIGHT}
    everything = chart(draw, series=EIGHT, failures=failed)
    assert [line.missing for line in bars(everything).values()] == ["failed: boom"] * len(EIGHT)
    assert everything.absent


def test_a_series_with_some_bad_repeats_is_drawn_and_says_so(make_run: MakeRun) -> None:
    folder = make_run(series=EIGHT[:2])
    lines = (folder / "rows.csv").read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if ",case,wall_time,s,10.0,test,ok," in line)
    lines[last] = lines[last].replace("10.0,test,ok,", ",test,failed,timed out")
    (folder / "rows.csv").write_text("".join(lines))
    pinned = bars(epoch_breakdown(load_run(folder)))["cpu_gather", "pinned"]
    assert pinned.note == "1 of 3 repeats failed: timed out"
    assert pinned.end == pytest.approx(1.31)


def test_a_chart_says_of_itself_what_limits_it(chart: Callable[..., Chart]) -> None:
    host, cuda = (chart(speedup, backend=backend, repeats=1) for backend in ("host", "cuda"))
    assert "no GPU" in host.warnings[0]
    assert cuda.warnings == []
    assert "1 repeat × 4 epochs, 1 warm-up epoch dropped" in host.foot
    assert "Machine cpu-amd-epyc-2c (AMD EPYC), backend host, commit 0123456789ab" in host.foot
    busy = chart(speedup, other_cores=1.5)
    assert busy.warnings[-1].startswith("Disturbed: other work had up to 1.5 cores")


def test_what_is_modelled_has_a_panel_and_an_axis_of_its_own(chart: Callable[..., Chart]) -> None:
    """Another machine's epochs may be a hundredth of the host's: slivers on its axis."""
    short = [(s, v, tuple(x / 100 for x in stages)) for s, v, stages in EIGHT[:2]]
    drawn = chart(epoch_breakdown, series=EIGHT[:2], modelled=short)
    above, below = drawn.panels
    assert (above.profile, below.profile) == ("", "rtx3090-pcie4")
    assert [panel.axis.shown[0] for panel in drawn.panels] == ["s", "ms"]
    assert {line.look for line in above.lines} == {"measured"}
    assert {line.look for line in below.lines} == {"modelled"}
    on_gpu = chart(epoch_breakdown, series=EIGHT[:2], modelled=short, backend="cuda")
    assert len({panel.axis for panel in on_gpu.panels}) == 1, "to be compared"
    assert len(chart(cpu_core_seconds, series=EIGHT[:1], modelled=EIGHT[:2]).panels) == 1


def test_other_threads_and_what_was_left(chart: Callable[..., Chart], make_run: MakeRun) -> None:
    drawn = chart(cpu_by_thread, series=EIGHT[:1])
    (line,) = bars(drawn).values()
    # Fetch 1 s and train 0.5 s: the groups of written_run, of two cores for 2 s.
    groups = {"main": 1.5, "gather": 1.0, "sampler": 0.02, "torch": 0.02, "rest": 0.06}
    assert line.parts == pytest.approx({**groups, "unused": 4 - 2.6})
    assert line.text == "2.60 s used"
    assert "on 2 cores" in drawn.reading
    folder = make_run("none", series=EIGHT[:1])
    rows = pd.read_csv(folder / "rows.csv", keep_default_na=False)
    rows[rows["metric"] != "cpu_main"][list(HEADER)].to_csv(folder / "rows.csv", index=False)
    without = cpu_by_thread(load_run(folder))
    assert [line.missing for line in without.panels[0].lines] == ["threads were not metered"]


# ---- over time -------------------------------------------------------------------------------


def polled(folder: Path, metric: str, points: list[tuple[float, float]]) -> None:
    record = {"kind": "series", "workload": WORKLOAD, "strategy": "cpu_gather", "unit": "B"}
    record |= {"variant": "naive", "repeat": 0, "epoch": 0, "metric": metric, "points": points}
    write_timeline([record], folder)


@pytest.mark.parametrize("readings", [2, 3, 1777])
def test_thinning_a_counter_keeps_its_bytes(make_run: MakeRun, readings: int) -> None:
    folder = make_run(series=EIGHT[:1], backend="cuda")
    points = [(0.01 * i, 1e6 * i * i) for i in range(readings)]
    polled(folder, "pcie_host_to_device", points)
    (line,) = pcie_over_time(load_run(folder)).panels[0].lines
    (curve,) = line.curves.values()
    assert len(curve) <= MOST + 1
    begins = [0.0, *(time for time, _ in curve)]
    carried = sum(rate * (end - begin) for (end, rate), begin in zip(curve, begins, strict=False))
    assert carried == pytest.approx(points[-1][1])


def test_what_was_not_polled_has_its_reason_once_and_how_many(make_run: MakeRun) -> None:
    failures = {EIGHT[0][:2]: ("failed", "lost")}
    run = load_run(make_run(series=EIGHT[:3], backend="cuda", failures=failures))
    for drawn in (pcie_over_time(run), power_over_time(run)):
        assert drawn.absent.splitlines() == [
            "1 series: failed: lost",
            "2 series: nothing was polled: a GPU’s sensors are read during runs on a GPU",
        ]


# ---- axes, colours, files --------------------------------------------------------------------


@pytest.mark.parametrize("top", [0.0003, 0.9, 1.0, 7.3, 4200.0])
def test_ticks_are_few_round_and_within_the_axis(top: float) -> None:
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] <= top * (1 + 1e-9)
    assert float(f"{ticks[1]:.0e}") == pytest.approx(ticks[1])


def test_an_axis_says_its_unit_once() -> None:
    axis = Axis("s", 0.4)
    assert axis.ticks()[-1] == (pytest.approx(98.0), "400 ms")
    assert axis.ticks()[1][1] == "100"
    assert (axis.said(0.25), Axis("×", 2.0).said(1.5), Axis("share", 1).said(0.25)) == (
        "250 ms", "1.50×", "25.0 %",
    )  # fmt: skip


def test_what_a_bar_reaches_holds_its_whisker_and_begins_where_it_should() -> None:
    assert Line("a", parts={"x": 2.0, "y": 0.0, "z": 1.0}, ends=(2.5, 3.5)).end == 3.5
    below = Line("a", parts={"x": 5.0}, start=-17.0)
    assert below.pieces() == [("x", -17.0, 5.0)]
    assert below.end == 0.0


def test_every_strategy_has_a_colour_of_its_own() -> None:
    own = [(strategy.colour, "file" in strategy().needs) for strategy in STRATEGIES]
    assert len(set(own)) == len(own), "but one of a table on disk and one of another may be alike"
    own = [colour for colour, _ in own]
    assert set(own) < set(PALETTE)
    assert colour_of("somebody_elses") not in own
    panel = Panel("", [], Axis("s", 1.0))
    drawn = Chart("c", "", "", "", [panel], {"fetch": ("fetch", "vermilion")})
    assert (drawn.colour("fetch"), drawn.colour("cpu_gather")) == ("vermilion", "orange")


def test_pictures_of_the_gpu_are_kept_where_one_took_part(make_run: MakeRun) -> None:
    on_host, on_gpu = (
        load_run(make_run(f"20261121-quick-{b}", series=EIGHT[:1], backend=b))
        for b in ("host", "cuda")
    )
    assert set(charts_of(on_host)) == set(CHARTS)
    assert set(charts_of(on_gpu)) == {*CHARTS, *GPU_CHARTS}


def test_titles_are_the_workloads_in_words(make_run: MakeRun) -> None:
    folder = make_run(series=EIGHT[:1])
    plan = json.loads((folder / "plan.json").read_text())
    plan["workloads"][WORKLOAD]["max_batches"] = 20
    (folder / "plan.json").write_text(json.dumps(plan))
    (panel,) = speedup(load_run(folder)).panels
    assert panel.title == "wordnet GraphSAGE (20 minibatches)"
    assert math.isclose(panel.axis.place(panel.axis.top), 98.0)


def test_that_workers_had_minibatches_ready_is_said(make_run: MakeRun) -> None:
    folder = make_run()
    said = "“sample”: so it is of minibatches, which threads of their own had ready ahead."
    assert said not in epoch_breakdown(load_run(folder)).reading
    plan = json.loads((folder / "plan.json").read_text())
    plan["measure"]["sampler_workers"] = 2
    (folder / "plan.json").write_text(json.dumps(plan))
    assert said in epoch_breakdown(load_run(folder)).reading
