"""Charts as data: each bar has the length it should, and nothing goes missing in silence."""

import math
from dataclasses import replace
from typing import Any

import pytest

from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.answer import cautions
from gatherbench.bench.show.drawing import EMPTY, Axis, Chart
from gatherbench.bench.show.looks import PALETTE, colour_of
from gatherbench.bench.show.views.epochs import epoch_breakdown, speedup
from gatherbench.bench.show.views.resources import cpu_core_seconds
from gatherbench.strategies.registry import STRATEGIES

from ..printed import charts_of, lines_of
from ..written_run import EIGHT, edit, fail

TWO = EIGHT[:2]
CHARTS = (epoch_breakdown, speedup, cpu_core_seconds)


def bars(chart: Chart) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["strategy"], line["variant"]): line for line in lines_of(chart)}


def parts(chart: Chart, line: dict[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in chart.legend}


def planned(run: Run, **measure: object) -> Run:
    return replace(run, plan={**run.plan, "measure": {**run.plan["measure"], **measure}})


def test_bars_of_stages_of_processor_time_and_of_ratios(run_of):
    run = run_of(series=TWO)
    stages = epoch_breakdown(run)
    naive, pinned = bars(stages).values()
    wanted = {"sample": 0.2, "fetch": 1, "train": 0.5, "other": 0.01}
    assert parts(stages, naive) == pytest.approx(wanted)
    assert pinned["reach"] == pytest.approx(1.31)
    assert (naive["text"], pinned["text"]) == ("1.71 s", "1.31 s")
    user, _ = bars(cpu_core_seconds(run)).values()
    assert (user["user"], user["system"]) == pytest.approx((2.5, 0.1))
    ratios = speedup(run)
    assert ratios.title == "Speed-up over cpu_gather (naive)"
    assert [line["value"] for line in lines_of(ratios)] == pytest.approx([1.0, 1.71 / 1.31])
    assert [one[1:] for one in ratios.at] == [(1.0, "one")]
    without = speedup(run_of(series=EIGHT[3:5]))
    why = {"no cpu_gather (naive) measured to compare with"}
    assert {line["reason"] for line in lines_of(without)} == why


def test_a_single_epoch_has_no_whisker(run_of):
    for line in lines_of(epoch_breakdown(run_of(repeats=1, epochs=1))):
        assert line["low"] == line["high"]
    for line in lines_of(epoch_breakdown(run_of(jitter=0.1))):
        assert line["low"] < line["value"] < line["high"]


@pytest.mark.parametrize("draw", CHARTS)
def test_what_was_not_measured_is_named_in_its_place(run_of, draw):
    failures = {
        ("cpu_gather", "pinned"): ("failed", "out of memory"),
        ("unified_zero_copy", "registered"): ("skipped", "no CUDA device"),
    }
    cut_off = [("all_in_gpu", "default")]
    found = bars(draw(run_of(series=EIGHT, failures=failures, cut_off=cut_off)))
    assert list(found) == [series[:2] for series in EIGHT]  # in the registry's order
    assert found["cpu_gather", "pinned"]["reason"] == "failed: out of memory"
    assert found["unified_zero_copy", "registered"]["reason"] == "skipped: no CUDA device"
    assert found["all_in_gpu", "default"]["reason"].startswith("not run: ")
    failed = {series[:2]: ("failed", "boom") for series in EIGHT}
    run = run_of(series=EIGHT, failures=failed)
    assert "other repeats count" not in " ".join(cautions(run))  # there are none
    everything = lines_of(draw(run))
    assert [line["reason"] for line in everything] == ["failed: boom"] * len(EIGHT)


def test_a_series_with_some_bad_repeats_is_drawn_and_says_so(make_run):
    folder = make_run(series=TWO)
    edit(folder, fail("timed out", "pinned", "2"))
    run = load_run(folder)
    pinned = bars(epoch_breakdown(run))["cpu_gather", "pinned"]
    assert pinned["note"] == "1 of 3 repeats failed: timed out"
    assert pinned["value"] == pytest.approx(1.31)
    (said,) = (caution for caution in cautions(run) if caution.startswith("Failed"))
    assert "cpu_gather (pinned)" in said
    assert "timed out" in said


def test_a_chart_says_of_itself_what_limits_it(run_of):
    host, cuda = (speedup(run_of(backend=backend, repeats=1)) for backend in ("host", "cuda"))
    assert "no GPU" in host.warnings[0]
    assert cuda.warnings == []
    assert "1 repeat × 4 epochs, 1 warm-up epoch dropped" in host.foot
    assert "Machine cpu-amd-epyc-2c (AMD EPYC), backend host, commit 0123456789ab" in host.foot
    busy = speedup(run_of(other_cores=1.5))
    assert busy.warnings[-1].startswith("Noisy: other work had up to 1.5 cores")
    ready = "“sample” is the time that it waited for minibatches, which other threads draw ahead."
    run = run_of(series=TWO)
    assert ready not in epoch_breakdown(run).reading
    assert ready in epoch_breakdown(planned(run, sampler_workers=2)).reading


def test_what_is_modelled_has_a_panel_and_an_axis_of_its_own(run_of):
    """Another machine's epochs may be a hundredth of the host's: slivers on its axis."""
    short = [(s, v, tuple(x / 100 for x in stages)) for s, v, stages in TWO]
    above, below = epoch_breakdown(run_of(series=TWO, modelled=short)).panels()
    assert (above.profile, below.profile) == ("", "rtx3090-pcie4")
    assert [panel.axis.shown[0] for panel in (above, below)] == ["s", "ms"]
    assert set(above.lines["look"]) == {"measured"}
    assert set(below.lines["look"]) == {"modelled"}
    on_gpu = run_of(series=TWO, modelled=short, backend="cuda")
    assert len({panel.axis for panel in epoch_breakdown(on_gpu).panels()}) == 1, "to be compared"
    assert len(cpu_core_seconds(on_gpu).panels()) == 1


def test_pictures_of_the_gpu_are_kept_where_one_took_part(run_of):
    on_host, on_gpu = (run_of(series=TWO, backend=backend) for backend in ("host", "cuda"))
    names = {"epoch_breakdown", "speedup", "cpu_seconds"}
    assert set(charts_of(on_host)) == names
    assert set(charts_of(on_gpu)) == names | {"gpu_energy"}


# ---- whiskers and marks ----------------------------------------------------------------------


def test_an_interval_far_wider_than_the_bars_does_not_stretch_the_axis(run_of):
    """Repeats of 1 and e s, against two of 1 s: a ratio of exp(-0.5), and its ends far off."""
    spread = {0: 1.0, 1: math.e}
    two = [("cpu_gather", "naive", 1.0), ("cpu_gather", "pinned", 1.0)]
    run = run_of(series=two, repeats=2, epochs=1)
    longer = run.epochs["repeat"].map(spread).where(run.epochs["variant"] == "pinned", 1.0)
    run = replace(run, epochs=run.epochs.assign(epoch_s=run.epochs["epoch_s"] * longer))
    # Standard error of the mean of 0 and 1: 0.5; t(1) is 12.706.
    low, high = (math.exp(-0.5 + sign * 12.7062 * 0.5) for sign in (-1, 1))
    assert (round(low, 5), round(high)) == (0.00106, 348)
    (panel,) = speedup(run).panels()
    line = panel.lines.iloc[1]
    assert panel.axis.top == 4.0, "four times the longest bar"
    assert (line["low"], line["high"]) == pytest.approx((low, 4.0), rel=1e-3)
    assert (line["cut"], line["text"]) == (True, "0.607×? (0.00106 to 348)")
    (narrow,) = speedup(run_of(series=two, repeats=3, jitter=0.01)).panels()
    assert not narrow.lines["cut"].any()
    assert narrow.axis.top < 1.1


def test_an_axis_reaches_its_bars_and_at_most_four_times_as_far():
    assert Axis.of("×", [1.0, 2.5, math.nan], [8488389.0, math.inf]).top == 10.0
    assert Axis.of("share", [0.5, -0.2]) == Axis("share", 0.5, -0.2)
    assert Axis.of("s", [], [2.0]) == Axis("s", 2.0)
    assert Axis.of("s", [0.5], [math.nan]).top == 0.5


def test_a_bar_has_the_marks_of_the_table(make_run):
    """Pinned was always beside other work, naive and prefetch once: 1.71 s over 1.31 and 1.16 s."""
    borrowed = {one[:2]: ["sample"] for one in TWO}
    folder = make_run(series=EIGHT[:3], other_cores=1.5, modelled=TWO, borrowed=borrowed)

    def quiet(row: dict[str, str]) -> None:
        always = row["variant"] == "pinned"
        if row["metric"] == "system_cpu_busy" and not always and row["repeat"] != "0":
            row["value"] = str(float(row["value"]) - 3.0)

    edit(folder, quiet)
    run = load_run(folder)
    shown = speedup(run)
    assert [line["text"] for line in lines_of(shown)] == ["1.00×", "1.31×!?", "1.47×"]
    assert "!: other work ran during every repeat." in shown.reading
    assert "?: not decided" in shown.reading
    lent = [line["text"] for line in lines_of(shown, 1)]
    assert lent == ["1.00×", "1.31×"], "minibatches are lent by quiet series too"
    assert [line["text"][-1] for line in lines_of(epoch_breakdown(run))] == ["s", "!", "s"]
    once = speedup(load_run(make_run("20261122-b-2", series=TWO, repeats=1)))
    assert [line["text"] for line in lines_of(once)] == ["1.00×", "1.31×?"]
    assert "?: not decided: the ratio's 95 % interval does not tell" in once.reading


# ---- axes and colours ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "value", "text"),
    [
        (Axis("s", 0.4), 0.25, "250 ms"),
        (Axis("×", 2.0), 1.5, "1.50×"),
        (Axis("share", 1), 0.25, "25.0 %"),
        (Axis("1/s", 1.2e6), 1e6, "1.00 M/s"),
    ],
)
def test_a_number_has_the_unit_of_its_axis(axis, value, text):
    assert axis.text(EMPTY | {"value": value}) == text


def test_every_strategy_has_a_colour_of_its_own():
    own = [(strategy.colour, "file" in strategy().needs) for strategy in STRATEGIES]
    assert len(set(own)) == len(own), "but one of a table on disk and one of another may be alike"
    assert {colour for colour, _ in own} < set(PALETTE)
    assert colour_of("somebody_elses") not in {colour for colour, _ in own}


# ---- the limit ---------------------------------------------------------------------------------


def test_the_limit_is_a_line_through_the_bars_of_epochs(run_of):
    """An epoch is its stages and 0.01 s between them: 0.71 s of a path that fetches nothing."""
    aligned, no_fetch = (
        ("aligned_zero_copy", "given", (0.2, 0.3, 0.5)),
        ("no_fetch", "default", (0.2, 0.0, 0.5)),
    )
    run = run_of(series=[TWO[0], aligned, no_fetch])
    chart = epoch_breakdown(run)
    assert [one[1:] for one in chart.at] == [(pytest.approx(0.71), "limit")]
    assert chart.marks == {"limit": "no fetch (limit)"}
    assert "the epoch of a path that fetches nothing" in chart.reading
    assert speedup(run).marks == {}
    assert not epoch_breakdown(run_of(series=[TWO[0], aligned])).marks
