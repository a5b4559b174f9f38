"""What the report claims, and what becomes of it when it cannot be written."""

import errno
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.model.roofline import roofline
from gatherbench.bench.read.compare import compare_runs
from gatherbench.bench.read.disturbance import mark_disturbed
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.read.units import quantity, short
from gatherbench.bench.run import store
from gatherbench.bench.run.guards import only_one
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.answer import Point, answer
from gatherbench.bench.show.chart import Axis, Line, Panel
from gatherbench.bench.show.charts import _said_once
from gatherbench.bench.show.comparison import summary
from gatherbench.bench.show.contest import BOUND as BOUND_REACHED
from gatherbench.bench.show.contest import OF_ALL, OVERTAKEN, Contest, contest_points
from gatherbench.bench.show.provenance import cases_ended, in_short
from gatherbench.bench.show.report.against import against
from gatherbench.bench.show.report.page import render_report
from gatherbench.bench.show.run import render
from gatherbench.bench.show.table import Table
from gatherbench.bench.show.views import model
from gatherbench.bench.show.views.epochs import numbers, savings
from gatherbench.bench.show.views.model import roofline_chart
from gatherbench.bench.show.views.requests import data_path
from gatherbench.stats.interval import Logs

from ...printed import answered, printed, told
from ...written_run import edit

MakeRun = Callable[..., Path]

NAIVE = ("cpu_gather", "naive", 2.0)
PINNED = ("cpu_gather", "pinned", 1.5)
ALIGNED = ("aligned_zero_copy", "given", 0.8)
BOUND = ("all_in_gpu", "default", 0.5)
WORKLOAD = "wordnet-sage16x2-b1000-5f292758"
HOST = "Measured in host memory, no GPU: "


def said(folder: Path) -> list[Point]:
    return told(load_run(folder))


def test_a_clear_winner_is_named_with_its_place_and_the_bound(make_run):
    """Repeats of 1.005 and 1.025 of each time: t(1) is 12.706, so two repeats say little."""
    reach = 12.706 * math.log(1.025 / 1.005) / math.sqrt(2) / math.sqrt(2)  # of each mean
    low, high = (2.5 * math.exp(sign * math.sqrt(2) * reach) for sign in (-1, 1))
    assert (f"{low:.2f}", f"{high:.2f}") == ("2.09", "2.98")
    folder = make_run([NAIVE, PINNED, ALIGNED, BOUND])
    over = "as fast as cpu_gather naive"
    texts = [
        f"{HOST}aligned_zero_copy given is the fastest: 2.50× (2.09–2.98) {over}.",
        f"{HOST}aligned_zero_copy given is 1.87× (1.57–2.24) as fast as cpu_gather pinned, the"
        " CPU’s best gather.",
        f"{HOST}all_in_gpu, the upper bound, reached 4.00× (3.35–4.77) {over}.",
    ]
    first, at_best, bound = said(folder)
    assert [first.text, at_best.text, bound.text] == texts
    assert at_best.verdict == "FAST"
    assert (first.verdict, first.subjects) == ("FAST", ("aligned_zero_copy given",))
    assert first.values == (pytest.approx((2.5, low, high), rel=1e-3),)
    page = re.sub("</?(wbr|bdi)>", "", render_report(load_run(folder)))
    assert [text for text in texts if f'<li class="measured">{text}</li>' not in page] == []


def test_of_several_gpus_the_one_that_was_used_is_named(make_run):
    run = load_run(make_run(backend="cuda"))
    two = [{"name": "NVIDIA H200", "uuid_hash": "a"}, {"name": "NVIDIA T400", "uuid_hash": "b"}]
    used = replace(run, env={**run.env, "gpus": two, "gpu_in_use": "a"})
    assert "Measured on NVIDIA H200" in told(used)[0].text
    assert dict(in_short(used))["GPU"] == "NVIDIA H200"
    moved = data_path(load_run(make_run([NAIVE], declared=True)))
    place = [column.field for column in moved.columns].index("gpu_table")
    assert [line.cells[place].text for line in moved.lines] == ["70.0"], "MB kept of the table"
    unsaid = replace(run, env={**run.env, "gpus": two})  # as earlier runs have it
    assert dict(in_short(unsaid))["GPU"] == "NVIDIA H200, NVIDIA T400"


def measured(folder: Path) -> list[str]:
    """What is said of the measured epochs, less what they were measured on."""
    return [p.text.removeprefix(HOST) for p in said(folder) if p.kind == "measured"]


NEAR = ("unified_zero_copy", "registered", 0.81)
SLOWER, AS_SLOW = ("aligned_zero_copy", "given", 2.2), ("unified_zero_copy", "registered", 2.04)
OVER = " as fast as cpu_gather naive."
ANY = "not decided whether any path is faster than cpu_gather naive: "


@pytest.mark.parametrize(
    ("series", "spread", "text"),
    [
        # 0.8 and 0.81 s differ by 1 %: level while the interval is narrow, else not decided.
        (
            [NAIVE, ALIGNED, NEAR],
            0.0,
            "level at the shortest epochs: aligned_zero_copy given 2.50× and unified_zero_copy"
            f" registered 2.47×{OVER}",
        ),
        ([NAIVE, ALIGNED, NEAR], 0.3, f"{ANY}aligned_zero_copy given 2.50× (0.274–22.8) and"),
        ([NAIVE, SLOWER], 0.0, "nothing is faster than cpu_gather naive."),
        (
            [NAIVE, SLOWER, AS_SLOW],
            0.0,
            "nothing is faster than cpu_gather naive; level with it: unified_zero_copy registered"
            " 0.980×.",
        ),
        ([NAIVE, SLOWER], 0.02, f"{ANY}aligned_zero_copy given 0.909× (0.762–1.09)."),
    ],
)
def test_what_is_not_decided_is_no_winner_and_not_level(make_run, series, spread, text):
    (found,) = measured(make_run(series, spread=spread))
    assert found.startswith(text)
    assert "pinned" not in found, "it is slower"


def test_a_bound_that_is_slower_than_what_it_bounds_is_told(make_run):
    _, found = measured(make_run([NAIVE, ALIGNED, (*BOUND[:2], 0.9)], spread=0.0))
    assert found == ("all_in_gpu, the upper bound, came out slower than what it bounds.")


def test_a_bound_whose_interval_holds_what_it_bounds_is_not_decided(make_run):
    _, found = measured(make_run([NAIVE, ALIGNED, (*BOUND[:2], 2.7)], spread=0.2))
    assert found == (
        "not decided whether all_in_gpu, the upper bound, is faster than what it bounds."
    )


def test_of_several_workloads_a_bound_that_is_overtaken_stands_under_its_table():
    times = {"cpu_gather naive": 0.0, "aligned_zero_copy given": -1.0, "all_in_gpu default": -0.5}
    two = [Contest(w, {n: [t] * 3 for n, t in times.items()}, "cpu_gather naive") for w in "ab"]
    found = [point for point in contest_points(two) if point.says == OVERTAKEN]
    assert [(point.of_one, point.workloads) for point in found] == [(True, ("a",)), (True, ("b",))]
    reached = [{**times, "all_in_gpu default": -2.0}] * 2
    two = [Contest(w, {n: [t] * 3 for n, t in of.items()}, "cpu_gather naive")
           for w, of in zip("ab", reached, strict=True)]  # fmt: skip
    weights = {point.says: point.weight for point in contest_points(two)}
    assert weights[BOUND_REACHED] > found[0].weight, "what is decided is told first"


def test_of_several_workloads_those_are_named_that_are_level_on_all():
    times = {"a v": 0.0, "b v": 0.001, "c v": 0.002}
    few = [Contest(w, {n: [t] * 3 for n, t in times.items() if n != left}, "") for w, left in
           (("one", "a v"), ("two", "b v"))]  # fmt: skip
    first = contest_points(few)[0]
    assert (first.text, first.subjects) == (
        "Level at the shortest epochs on 2 workloads: c v.", ("c v",)
    )  # fmt: skip
    apart = [replace(few[0], times={"x v": [0.0] * 3, "y v": [0.0] * 3}), few[1]]
    assert contest_points(apart)[0].text == (
        "Level at the shortest epochs on 2 workloads, none on all of them."
    )


@pytest.mark.parametrize(
    ("pinned", "rest"),
    [(1.5, "."), (0.82, ", level."), (0.83, ", level."), (0.85, ", not decided.")],
)
def test_the_fastest_path_is_set_beside_the_cpus_best_gather(make_run, pinned, rest):
    """Over 0.8 s with intervals of ±0.1 %: 1.5 s is beyond 5 %, 0.82 s within; 0.85 s neither."""
    spread = 0.02 if pinned == 0.85 else 0.0
    series = [NAIVE, ALIGNED, ("cpu_gather", "pinned", pinned), ("cpu_gather", "prefetch", 1.9)]
    (text,) = (one for one in measured(make_run(series, spread=spread)) if "best gather" in one)
    assert text.startswith("aligned_zero_copy given is ")
    assert text.endswith(f" as fast as cpu_gather pinned, the CPU’s best gather{rest}")


@pytest.mark.parametrize("series", [[NAIVE, ALIGNED], [NAIVE, PINNED], [PINNED, ALIGNED]])
def test_the_best_gather_is_no_point_of_its_own_where_it_is_the_reference_or_the_fastest(
    make_run, series
):
    assert not any("best gather" in one for one in measured(make_run(series)))


def test_of_several_workloads_the_fastest_path_of_each_is_over_the_best_gather_of_each(make_run):
    """1.5 and 0.8 s on one, both a tenth longer on the other."""
    points = said(make_run([NAIVE, PINNED, ALIGNED], workloads=["a-sage", "b-gat"], spread=0.0))
    (point,) = (one for one in points if not one.of_one and "best gather" in one.text)
    assert point.text.startswith(f"{HOST}a path with the shortest epochs is ")
    assert point.text.endswith(" as fast as the CPU’s best gather on 2 workloads.")
    assert [value for value, *_ in point.values] == pytest.approx([1.875, 1.875], rel=1e-3)
    assert (point.verdict, point.over) == ("FAST", "")


def test_what_is_not_decided_on_several_workloads_names_who_is_near_on_all(make_run):
    text = "not decided which path is the fastest on 2 workloads: "
    near = make_run([NAIVE, ALIGNED, NEAR, PINNED], workloads=["a-sage", "b-gat"], spread=0.02)
    assert any(one.startswith(f"{text}{BOTH}.") for one in measured(near))


BOTH = "aligned_zero_copy given and unified_zero_copy registered"


def test_what_concerns_one_workload_stands_under_its_table(make_run):
    won = said(make_run([NAIVE, ALIGNED], workloads=["a-sage", "b-sage", "c-gat"]))
    # Workload k is longer by a tenth of the time for each before it, so its spread is less.
    assert won[0].text == (
        f"{HOST}aligned_zero_copy given is the fastest on 3 workloads: from 2.50× (2.09–2.98) to"
        f" 2.50× (2.16–2.90){OVER}"
    )
    assert [point.of_one for point in won] == [False, True, True, True]
    many = load_run(make_run([NAIVE, ALIGNED, NEAR], workloads=list("abcdef"), spread=0.0))
    (point,) = answered(many)
    assert point.text == f"{HOST}level at the shortest epochs on 6 workloads: {BOTH}."
    text = printed(render(many))
    under = f"→ {HOST}level at the shortest epochs: aligned_zero_copy given 2.50×"
    assert text.count(under) == 6
    page = re.sub("</?(wbr|bdi)>", "", render_report(many))
    assert page.count("<li>" + under.removeprefix("→ ")) == 6


def test_no_more_than_six_points_are_the_answer():
    points = [Point(str(weight), weight=weight) for weight in range(9)]
    points.append(Point("a workload's", of_one=True, weight=99))
    assert [point.text for point in answer(points)] == ["8.", "7.", "6.", "5.", "4.", "3."]


def test_where_an_epoch_is_less_precise_than_asked_it_says_so(make_run):
    folder = make_run([NAIVE, ALIGNED], repeats=3)
    plan = json.loads((folder / "plan.json").read_text())
    del plan["measure"]["repeats"]
    for precision, wide in ((0.03, 2), (0.06, 0)):  # s = 0.0196, t(2) = 4.303: ±5.0 %
        plan["measure"] |= {"min_repeats": 3, "max_repeats": 5, "precision": precision}
        (folder / "plan.json").write_text(json.dumps(plan))
        texts = [s.text for s in said(folder) if "precise" in s.text]
        assert len(texts) == bool(wide)
        assert not wide or "(±3%): the epochs of 2 series" in texts[0]
        assert not wide or "(±5%)" in texts[0]


def test_a_run_of_failures_says_so_and_why(make_run):
    failures = {s[:2]: ("failed", "CUDA error: out of memory") for s in (NAIVE, ALIGNED)}
    folder = make_run([NAIVE, ALIGNED], failures=failures)
    (without,) = said(make_run([ALIGNED, BOUND]))
    assert without.text.startswith("No speed-up can be stated")
    (statement,) = said(folder)
    assert statement.kind == "warning"
    assert statement.text == (
        "Nothing was measured. Cases: 4 failed. The first: CUDA error: out of memory."
    )
    html = render_report(load_run(folder))
    assert "CUDA error: out of memory" in html
    assert "no GPU result" not in html


def test_an_incomplete_run_is_called_so(make_run):
    folder = make_run([NAIVE, ALIGNED, BOUND], cut_off=[BOUND[:2]])
    texts = [s.text for s in said(folder) if s.kind == "warning"]
    assert texts == [
        "Incomplete: 2 of 6 cases have not been run; `gatherbench run --resume FOLDER` completes"
        " it."
    ]
    run = load_run(folder)
    assert cases_ended(run) == {"ok": 4, "failed": 0, "skipped": 0, "not run": 2}
    assert ("Cases", "4 ok, 2 not run") in in_short(run)
    assert "the run was cut off" in render_report(run)
    with only_one(folder):
        going = render_report(load_run(folder))
    assert "have not been run; it was still going when this was written." in going
    assert "cut off" not in going


def test_one_repeat_is_a_reservation(make_run):
    once = [s.text for s in said(make_run([NAIVE, ALIGNED], repeats=1))]
    assert "2.50× (one repeat)" in once[0]
    assert once[-1].startswith("One repeat only of 2 series")
    assert not any("One repeat" in s.text for s in said(make_run(repeats=2)))


def test_other_work_has_a_column_where_there_was_any(make_run):
    run = load_run(make_run())
    epochs = run.rows[(run.rows["stage"] == "epoch") & (run.rows["metric"] == "wall_time")]
    metered = {"system_cpu_busy": 99.0, "window_time": 2.0, "cpu_user": 1.0, "cpu_system": 0.0}
    busy = [epochs.assign(metric=metric, value=value) for metric, value in metered.items()]
    rows = run.rows[~run.rows["metric"].isin(metered)]
    disturbed = replace(run, rows=mark_disturbed(pd.concat([rows, *busy]), run.env))
    before, after = ({c.label for c in numbers(one).columns} for one in (run, disturbed))
    assert after - before == {"other work", "repeats beside other work"}


def cells(table: Table) -> list[dict[str, str]]:
    """What is shown of each line, by the label of its column."""
    return [
        dict(zip(table.labels, (cell.text for cell in line.cells), strict=True))
        for line in table.lines
    ]


def test_a_series_without_a_quiet_repeat_looks_no_cleaner_than_one_that_has_some(make_run):
    """Other work of 1.5 cores beside all of aligned, one repeat of naive and none of pinned."""
    folder = make_run([NAIVE, PINNED, ALIGNED], repeats=3, other_cores=1.5, spread=0.0)

    def quiet(row: dict[str, str]) -> None:
        loud = row["variant"] == "given" or (row["variant"], row["repeat"]) == ("naive", "0")
        if row["metric"] == "system_cpu_busy" and not loud:
            row["value"] = str(float(row["value"]) - 3.0)

    edit(folder, quiet)
    run = load_run(folder)
    lines = {line["variant"]: line for line in cells(numbers(run))}
    wanted = ["epoch, s", "other work, cores", "repeats", "repeats beside other work", "speed-up"]
    found = {variant: [line[name] for name in wanted] for variant, line in lines.items()}
    assert [float(of.pop(1)) for of in found.values()] == pytest.approx([0, 0, 1.5])
    assert found == {
        "naive": ["2.00", "2/3", "1", "1.00"],
        "pinned": ["1.50", "3", "0", "1.33"],
        "given": ["0.800!", "3", "3", "2.50?"],
    }
    assert "!: there was other work beside every repeat." in numbers(run).note
    assert [line["epoch time, %"] for line in cells(savings(run))] == ["-25.0", "-60.0!"]
    values = {line.cells[2].text: line.cells[4].value for line in savings(run).lines}
    assert float(values["given"] or "nan") == -0.6, "the mark is no part of the number"


def test_ratios_that_decide_nothing_are_told_and_no_saving_is(make_run):
    noisy = load_run(make_run([NAIVE, PINNED], other_cores=1.5))
    assert "nothing is decided" in told(noisy)[0].text
    assert savings(noisy).lines == []
    assert {line["speed-up"] for line in cells(numbers(noisy))} == {"1.00", "1.33?"}
    assert [line.cells[-3].grey for line in numbers(noisy).lines] == [False, True]
    folder = make_run([NAIVE, PINNED, BOUND], other_cores=1.5, workloads=["a-sage", "b-sage"])

    def quiet(row: dict[str, str]) -> None:
        loud = (row["workload"], row["variant"]) == ("a-sage", "naive")
        if row["metric"] == "system_cpu_busy" and not loud:
            row["value"] = str(float(row["value"]) - 3.0)

    edit(folder, quiet)
    run = load_run(folder)
    name = run.names["a-sage"]
    (point,) = [one for one in told(run) if "no quiet" in one.text]
    assert point.text == f"{HOST}no quiet repeat of cpu_gather naive to compare with on {name}."
    assert {line["workload"] for line in cells(savings(run))} == {"b-sage"}


def test_an_exact_ratio_of_the_model_has_no_interval(make_run):
    """2.0 over 0.8 s; and over 0.8 to 1.0 s, whose ends are told."""
    ranging = ("unified_zero_copy", "registered", [0.8, 1.0])
    twice = [(*one[:2], [one[2], one[2]]) for one in (NAIVE, ALIGNED)]
    run = load_run(make_run([NAIVE], modelled=[*twice, ranging]))
    modelled = [line for line in cells(numbers(run)) if line["kind"] == "modelled"]
    names = ("speed-up", "from", "to")
    assert [[line[name] for name in names] for line in modelled] == [
        ["1.00", "–", "–"],
        ["–", "2.00", "2.50"],
        ["2.50", "–", "–"],
    ]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.2134, "s", "213 ms"),
        (1.5, "s", "1.50 s"),
        (2.5e-5, "s", "25.0 µs"),
        (141190800, "B", "141 MB"),
        (1.144e10, "B/s", "11.4 GB/s"),
        (1.98e9, "Hz", "1.98 GHz"),
        (1.4442, "×", "1.44×"),
        (12345, "1", "12\N{NARROW NO-BREAK SPACE}345"),
        (float("nan"), "s", "–"),
    ],
)
def test_a_number_has_the_unit_that_suits_it(value, unit, text):
    assert quantity(value, unit) == text


def test_long_names_keep_their_ends():
    assert short("a" * 50 + "\n" + "b" * 50, 20) == "a" * 13 + "…" + "b" * 6
    assert short("two\nlines") == "two lines"


def test_the_roofs_are_those_of_the_profile(make_run):
    folder = make_run([NAIVE, ALIGNED], backend="cuda", declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    (panel,) = roofline_chart(load_run(folder)).panels
    roofs = {kind: value for value, kind in panel.marks}
    assert (
        roofs["raw_link"] == max(roofs.values()) == panel.axis.top == pytest.approx(31.51e9, 1e-3)
    )
    measured = next(
        line for line in panel.lines if not line.modelled and line.name == "aligned_zero_copy"
    )
    # 2 GB of rows an epoch over the median of the fetch stage.
    assert measured.end == pytest.approx(2e9 / (0.4 * 1.015))


def test_rates_of_epochs_and_of_fetches_have_panels_of_their_own(make_run, monkeypatch):
    hidden = ("async_zero_copy", "stream", 0.8)
    folder = make_run([NAIVE, ALIGNED, hidden], backend="cuda", declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    run, profile = load_run(folder), load_profile("rtx3090-pcie4")
    table = roofline(run, profile)
    table["over"] = table["strategy"].map(lambda name: "epoch" if name == hidden[0] else "fetch")
    monkeypatch.setattr(model, "_known", lambda _run: (profile, table, ""))
    chart = roofline_chart(run)
    names = [{line.name for line in panel.lines} for panel in chart.panels]
    assert names == [{"cpu_gather", "aligned_zero_copy"}, {"async_zero_copy"}]
    assert [panel.quantity.split(" of ")[1] for panel in chart.panels] == [
        "fetch", "epoch, fetches hidden",
    ]  # fmt: skip


def test_a_note_that_every_bar_shares_is_said_once():
    bars = [Line(name, parts={name: 1.0}, note="1 of 3 repeats not run") for name in "ab"]
    modelled = Panel("graph", bars[:1], Axis("s", 1.0), profile="h200")
    panel = Panel("graph", [*bars, Line("c", missing="broken")], Axis("s", 1.0))
    found, said = _said_once([panel, modelled])
    assert said == " Of each measured bar: 1 of 3 repeats not run."
    assert [line.note for line in found[0].lines] == ["", "", ""]
    assert found[1] == modelled
    differs = Panel("graph", [*bars, Line("c", parts={"c": 1.0})], Axis("s", 1.0))
    assert _said_once([differs]) == ([differs], "")


def test_energy_is_split_in_what_the_idle_gpu_draws_and_the_rest(make_run):
    folder = make_run([ALIGNED], backend="cuda", repeats=1)
    store = RunStore.open(folder)
    row = store.rows()[0]
    window = {"gpu_energy": ("J", 4000.0), "epochs": ("1", 10.0), "window_time": ("s", 20.0)}
    made = [
        replace(row, stage="energy", metric=metric, unit=unit, value=value, epoch=-1)
        for metric, (unit, value) in window.items()
    ]
    whole = {"workload": "", "strategy": "", "variant": "", "stage": "calibration"}
    idle = replace(row, **whole, metric="idle_power", unit="W", value=80.0)
    store.append([*made, idle])
    html = render_report(load_run(folder))
    assert "idle 160 J, above idle 240 J" in html
    assert 'class="fill-vermilion" x=' in html
    assert "idle_power" in html


def test_what_a_path_saves_stands_beside_what_was_published(make_run):
    folder = make_run([NAIVE, ALIGNED, BOUND], backend="cuda", repeats=1)
    store = RunStore.open(folder)
    rows = store.rows()
    blocks = {
        "cpu_gather": (5000.0, 20.0),
        "aligned_zero_copy": (2000.0, 10.0),
        "all_in_gpu": (4999.99, 20.0),
    }
    for strategy, (joules, seconds) in blocks.items():
        row = next(r for r in rows if r.strategy == strategy)
        window = {"gpu_energy": ("J", joules), "epochs": ("1", 10.0), "window_time": ("s", seconds)}
        store.append(
            replace(row, stage="energy", metric=metric, unit=unit, value=value, epoch=-1)
            for metric, (unit, value) in window.items()
        )
    aligned, bound = cells(savings(load_run(folder)))
    assert (aligned["strategy"], aligned["kind"]) == ("aligned_zero_copy", "measured, GPU")
    assert aligned["epoch time, %"] == "-60.0"  # 0.8 s after 2.0 s
    assert aligned["epoch time while power and energy were read, %"] == "-50.0"  # 1.0 s after 2.0 s
    assert aligned["power of the GPU, %"] == "-20.0"  # 200 W after 250 W
    assert aligned["energy of the GPU, %"] == "-60.0"
    assert bound["energy of the GPU, %"] == "0", "two millionths less are no saving"
    published = load_reference(Path(__file__).parents[4] / "results" / "reference")
    watts = published[published["metric"] == "system_power_change"]["value"]
    low, high = (f"{100 * share:.1f}".replace("-", "−") for share in (watts.max(), watts.min()))
    html = render_report(load_run(folder))
    assert f"power of the whole system {low} to {high} %" in html


def test_without_a_baseline_nothing_is_saved(make_run):
    folder = make_run([ALIGNED, BOUND], repeats=1)
    assert savings(load_run(folder)).lines == []
    assert "of the whole system" not in render_report(load_run(folder))
    on_host = savings(load_run(make_run([NAIVE, PINNED], repeats=1, name="host")))
    assert "epoch time, %" in on_host.labels
    assert not any("GPU" in label for label in on_host.labels), "a column of nothing"


def test_a_full_disk_leaves_the_earlier_report(make_run, monkeypatch):
    folder = make_run()
    before = [p.name for p in folder.iterdir()]
    (folder / "report.html").write_text("the earlier one")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert (folder / "report.html").read_text() == "the earlier one"
    assert {p.name for p in folder.iterdir()} == {*before, "report.html"}, "nothing half-written"


def test_the_same_run_gives_the_same_file(make_run):
    run = load_run(make_run(modelled=[NAIVE]))
    assert render_report(run) == render_report(run)


def test_modelled_comparisons_are_counted_apart(make_run):
    """Four series measured; of two modelled ones the new run's second takes twice as long."""
    modelled = [("cpu_gather", "naive", 1.0), ("all_in_gpu", "default", 0.5)]
    base = load_run(make_run(modelled=modelled))
    new = load_run(make_run(modelled=[modelled[0], (*modelled[1][:2], 1.0)]))
    other = against(new, load_run(make_run(workloads=["another-graph"])))
    assert "no workload in common" in other.refused
    assert len(other.tables[0].lines) > 3
    found = against(new, base)
    assert found.chart is not None
    above, below = found.chart.panels
    assert (above.profile, below.profile) == ("", "h200-sxm-pcie5")
    assert [[line.look for line in panel.lines] for panel in (above, below)] == [
        ["measured"] * 4,
        ["modelled"] * 2,
    ]
    assert below.axis.top == 2.0
    assert above.axis.top < 2.0, "what is modelled does not stretch it"
    said = found.summary
    assert said == summary(compare_runs(base, new))
    measured, _, computed = said.partition("; modelled ")
    assert computed == "1 SLOW, 1 SAME"
    assert "measured 4 " in measured


def test_runs_of_one_repeat_are_compared_without_whiskers(make_run):
    """Nothing bounds a ratio of single repeats: it is drawn alone, on an axis of its own length."""
    base, new = (load_run(make_run(repeats=1, name=name)) for name in ("before", "after"))
    chart = against(new, base).chart
    assert chart is not None
    (panel,) = chart.panels
    assert [(line.ends, line.missing) for line in panel.lines] == [(None, "")] * 4
    assert panel.axis.top == 1.0


def of_gathers(**epochs: float) -> Contest:
    """Seconds of three like epochs, over ``cpu_gather naive``."""
    names = {
        "naive": "cpu_gather naive",
        "pinned": "cpu_gather pinned",
        "aligned": "aligned_zero_copy given",
        "unified": "unified_zero_copy registered",
    }
    times = {names[name]: [math.log(s)] * 3 for name, s in epochs.items()}
    return Contest("w", times, "cpu_gather naive")


def test_who_leads_is_told_by_the_ratios_that_are_shown():
    """Two processes of two blocks, in seconds: by its medians the first is shorter, in each block
    the second: 2 over 1.0 and 4 over 2.0, and 2 over 0.9 and 4 over 1.8."""

    def logs(*epochs: float, medians: float) -> Logs:
        block = dict(enumerate(map(math.log, epochs)))
        return Logs([math.log(medians)] * 2, {0.0: block, 1.0: block})

    times = {
        "cpu_gather naive": logs(2.0, 4.0, medians=3.0),
        "aligned_zero_copy given": logs(1.0, 2.0, medians=1.2),
        "unified_zero_copy registered": logs(0.9, 1.8, medians=1.4),
    }
    (point,) = Contest("w", times, "cpu_gather naive").points()
    assert point.text == (
        "unified_zero_copy registered is the fastest on w: 2.22× as fast as cpu_gather naive."
    )


def test_the_papers_baseline_may_itself_be_the_best_gather():
    """2 s beside 2.4: the ratios are over it already."""
    (won,) = of_gathers(naive=2.0, pinned=2.4, aligned=0.8).points()
    assert won.over == "cpu_gather naive"


def test_of_several_workloads_another_path_may_lead_on_each():
    """1.5 over 0.8 s by one path, 1.5 over 1 by the other."""
    two = [of_gathers(naive=2.0, pinned=1.5, aligned=0.8, unified=1.2),
           of_gathers(naive=2.0, pinned=1.5, aligned=1.2, unified=1.0)]  # fmt: skip
    (point,) = (one for one in contest_points(two) if one.says == OF_ALL)
    assert point.text == (
        "A path with the shortest epochs is from 1.50× to 1.88× as fast as the CPU’s best gather on"
        " 2 workloads."
    )


def test_of_several_workloads_what_is_level_with_the_best_gather_says_so():
    """0.82 over 0.8 s on both."""
    two = [of_gathers(naive=2.0, pinned=0.82, aligned=0.8)] * 2
    (point,) = (one for one in contest_points(two) if one.says == OF_ALL)
    assert point.verdict == "SAME"
    assert point.text.endswith(" as fast as the CPU’s best gather on 2 workloads, level.")


def test_of_several_workloads_who_may_be_the_fastest_on_all_is_named_with_or_others_or_nobody():
    """Means of 1, 1.02 and 1.04 s with intervals of more than 5 %; the other twice as long."""

    def apart(*names: str) -> Contest:
        near = {name: [0.02 * k - 0.02, 0.02 * k, 0.02 * k + 0.02] for k, name in enumerate(names)}
        return Contest("w", {**near, "cpu_gather naive": [1.0] * 3}, "cpu_gather naive")

    said = "Not decided which path is the fastest on 2 workloads"
    some = contest_points([apart("a v", "b v", "c v"), apart("a v", "c v", "d v")])
    assert some[0].text == f"{said}: a v and c v, or others."
    none = contest_points([apart("a v", "b v"), apart("c v", "d v")])
    assert none[0].text == f"{said}."


def test_without_a_reference_nothing_is_said_of_the_best_gather():
    found = replace(of_gathers(pinned=1.5, aligned=0.8), reference="").points()
    assert [point.over for point in found] == [""]
