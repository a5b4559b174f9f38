"""Figures: that each bar has the length it should, and that nothing goes missing in silence."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

from gatherbench.bench.plan.workload import Workload, workload_name
from gatherbench.bench.read.epochs import READING_ORDER
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.read.units import three_digits, time_unit
from gatherbench.bench.show.figures.all import FIGURES, save_all
from gatherbench.bench.show.figures.cpu_seconds import cpu_core_seconds
from gatherbench.bench.show.figures.epoch_breakdown import epoch_breakdown
from gatherbench.bench.show.figures.panels import panel_row
from gatherbench.bench.show.figures.speedup import speedup
from gatherbench.bench.show.figures.style import MODEL_HATCH, RC, STRATEGY_COLOURS
from gatherbench.strategies.registry import STRATEGIES

MakeRun = Callable[..., Path]
EIGHT = (
    ("cpu_gather", "naive", (0.2, 1.0, 0.5)),
    ("cpu_gather", "pinned", (0.2, 0.6, 0.5)),
    ("cpu_gather", "prefetch", (0.2, 0.45, 0.5)),
    ("unified_zero_copy", "registered", (0.2, 0.4, 0.5)),
    ("aligned_zero_copy", "registered,given", (0.2, 0.35, 0.5)),
    ("aligned_zero_copy", "registered,sorted", (0.2, 0.3, 0.5)),
    ("async_zero_copy", "green_context", (0.2, 0.05, 0.55)),
    ("all_in_gpu", "default", (0.2, 0.1, 0.5)),
)
FOUR = (
    "wordnet-sage16x2-b1000-1f2e3d4c",
    "wordnet-gat16x2-b1000-1f2e3d4d",
    "papers100M-like@0.01-sage16x2-b1000-1f2e3d4e",
    "ogbn-products-sage256x3-b1024-aabbccdd",
)


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(Text))


def widths(figure: Figure, panel: int = 0) -> list[float]:
    return [patch.get_width() for patch in figure.axes[panel].patches]


def test_other_work_is_said_above_the_bars(make_run: MakeRun) -> None:
    quiet, busy = (
        speedup(load_run(make_run(f"20261121-{name}-1", series=EIGHT[:2], other_cores=cores)))
        for name, cores in (("quiet", 0.1), ("busy", 1.5))
    )
    assert "Disturbed" not in texts(quiet)
    (said,) = [
        t
        for t in busy.texts
        if t.get_text().startswith("Disturbed: other work had up to 1.5 cores")
    ]
    assert said.get_position()[1] > busy.axes[0].get_position().y1
    assert busy.get_figheight() > quiet.get_figheight()


def test_a_modelled_epoch_names_what_was_measured_here(make_run: MakeRun) -> None:
    said = "Modelled epochs take the time of minibatches from this run."
    own = make_run("20261121-a-1", series=EIGHT[:1], modelled=EIGHT[:1])
    assert "take the time" not in texts(epoch_breakdown(load_run(own)))
    borrowed = {EIGHT[0][:2]: ["sample"]}
    folder = make_run("20261121-b-2", series=EIGHT[:1], modelled=EIGHT[:1], borrowed=borrowed)
    assert said in " ".join(texts(epoch_breakdown(load_run(folder))).split())


def test_stages_stack_up_to_the_epoch(make_run: MakeRun) -> None:
    drawn = widths(epoch_breakdown(load_run(make_run(series=EIGHT[:2]))))
    sample, fetch, train, other = drawn[0::2]  # stage by stage, the two bars of each
    assert (sample, fetch, train) == pytest.approx((0.2, 1.0, 0.5))
    assert other == pytest.approx(0.01)
    assert sum(drawn[1::2]) == pytest.approx(1.31)


def test_speedup_bars_are_ratios_to_the_named_reference(make_run: MakeRun) -> None:
    figure = speedup(load_run(make_run(series=EIGHT[:2])))
    assert widths(figure) == pytest.approx([1.0, 1.71 / 1.31])
    assert "Speed-up over cpu_gather naive" in texts(figure)


def test_panels_are_titled_in_words(make_run: MakeRun) -> None:
    run = load_run(make_run(series=EIGHT[:2], workloads=FOUR[:1]))
    figure = speedup(run)
    assert figure.axes[0].get_title("left") == run.names[FOUR[0]]
    assert FOUR[0] not in texts(figure)


def titles_stand_free(figure: Figure) -> bool:
    """Whether the panels' titles touch neither another panel, nor the figure's head, nor bars."""
    FigureCanvasAgg(figure).draw()
    head = [text.get_window_extent() for text in (*figure.texts, *figure.legends)]
    for axes in figure.axes:
        titles = [axes._left_title, *axes.texts[:1]]  # type: ignore[attr-defined]
        title = next(text for text in titles if text.get_text()).get_window_extent()
        others = [other.get_tightbbox() for other in figure.axes if other is not axes]
        bars = axes.get_window_extent()
        if title.y0 < bars.y1 or title.x1 > bars.x1 + 10:
            return False
        if any(title.overlaps(box) for box in (*head, *others) if box is not None):
            return False
    return True


def unspaced(text: str) -> str:
    """Whole, wherever its lines end."""
    return "".join(text.split())


LONG_NAME = {"dataset": "papers100M-like", "scale": 0.2, "fanouts": [15, 10, *[5] * 20]}


def test_long_names_of_workloads_stand_above_their_panels_whole(make_run: MakeRun) -> None:
    folder = make_run(series=EIGHT[:2], workloads=FOUR)
    plan = json.loads((folder / "plan.json").read_text())
    for workload in (FOUR[0], *FOUR[2:]):
        plan["workloads"][workload].update(LONG_NAME, hidden=256, batch_size=1024)
    (folder / "plan.json").write_text(json.dumps(plan))
    run = load_run(folder)
    figure = speedup(run)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert [unspaced(title) for title in titles] == [unspaced(n) for n in run.names.values()]
    assert titles[0].count("\n") > 1 > titles[1].count("\n")
    assert titles_stand_free(figure)


def test_long_names_of_panels_do_not_run_into_each_other() -> None:
    name = workload_name({**asdict(Workload("papers100M-like")), **LONG_NAME})
    legend = [Patch(label="measured")]
    figure, axes = panel_row("t", [name, "short", name], legend=legend, foot="f")
    titles = [unspaced(one.get_title("left")) for one in axes]
    assert titles == [unspaced(name), "short", unspaced(name)]
    assert titles_stand_free(figure)


def test_cpu_bars_are_user_and_system(make_run: MakeRun) -> None:
    assert widths(cpu_core_seconds(load_run(make_run(series=EIGHT[:1])))) == pytest.approx(
        [2.5, 0.1]
    )


#: Of somebody else's plug-in.
LONG = (
    "hot_rows_in_gpu_memory_rest_zero_copy",
    "share=0.10,order=sorted,budget=15",
    (0.2, 0.1, 0.5),
)


@pytest.mark.parametrize("draw", FIGURES.values(), ids=list(FIGURES))
def test_no_text_overlaps_or_leaves_the_paper(
    make_run: MakeRun, draw: Callable[..., Figure]
) -> None:
    failures = {("async_zero_copy", "green_context"): ("failed", "out of memory " * 20)}
    series, fixed = [*EIGHT, LONG], {"workloads": FOUR, "failures": failures, "jitter": 0.1}
    run = load_run(make_run(series=series, modelled=[LONG], **fixed))
    with mpl.rc_context(RC):
        figure = draw(run)
        renderer = FigureCanvasAgg(figure).get_renderer()
        shown = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
        boxes = {t: t.get_window_extent(renderer) for t in shown}
    for text, box in boxes.items():
        assert figure.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.bbox.x1, text
    for axes in figure.axes:
        labels = [boxes[t] for t in axes.get_yticklabels() if t in boxes]
        for above, below in itertools.pairwise(labels):
            assert above.y0 >= below.y1


@pytest.mark.parametrize("draw", FIGURES.values(), ids=list(FIGURES))
def test_what_was_not_measured_is_named_in_its_place(
    make_run: MakeRun, draw: Callable[..., Figure]
) -> None:
    failures = {
        ("cpu_gather", "pinned"): ("failed", "out of memory"),
        ("unified_zero_copy", "registered"): ("skipped", "no CUDA device"),
    }
    run = load_run(make_run(series=EIGHT, failures=failures, cut_off=[("all_in_gpu", "default")]))
    figure = draw(run)
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels[1] == "cpu_gather\npinned"
    found = texts(figure)
    assert "failed: out of memory" in found
    assert "skipped: no CUDA device" in found
    assert "not run: " in found


@pytest.mark.parametrize("draw", FIGURES.values(), ids=list(FIGURES))
def test_a_run_in_which_everything_failed_still_draws(
    make_run: MakeRun, draw: Callable[..., Figure]
) -> None:
    failures = {(s, v): ("failed", "boom") for s, v, _ in EIGHT}
    figure = draw(load_run(make_run(series=EIGHT, failures=failures)))
    assert texts(figure).count("failed: boom") == len(EIGHT)
    assert widths(figure) == []


@pytest.mark.parametrize("draw", FIGURES.values(), ids=list(FIGURES))
def test_host_figures_say_that_no_gpu_took_part(
    make_run: MakeRun, draw: Callable[..., Figure]
) -> None:
    assert "no GPU" in texts(draw(load_run(make_run("20261121-a-1"))))
    assert "no GPU" not in texts(draw(load_run(make_run("20261121-b-2", backend="cuda"))))


@pytest.mark.parametrize("draw", [FIGURES[name] for name in ("epoch_breakdown", "speedup")])
def test_modelled_bars_are_hatched_and_called_so(
    make_run: MakeRun, draw: Callable[..., Figure]
) -> None:
    modelled = draw(load_run(make_run("20261121-a-1", series=EIGHT[:1], modelled=EIGHT[:1])))
    seen, expected = ([patch.get_hatch() for patch in axes.patches] for axes in modelled.axes)
    assert len(seen) == len(expected) > 0
    assert MODEL_HATCH not in seen
    assert set(expected) == {MODEL_HATCH}
    assert "naive (modelled)" in texts(modelled)
    assert "modelled for rtx3090-pcie4, not measured" in texts(modelled)
    found = texts(modelled).replace("\n", " ")
    assert "Machine cpu-amd-epyc-2c (AMD EPYC)" in found  # the model is not among the machines
    measured = draw(load_run(make_run("20261121-b-2", series=EIGHT[:1])))
    assert "modelled" not in texts(measured)


def test_modelled_bars_have_a_panel_and_an_axis_of_their_own_below(make_run: MakeRun) -> None:
    """Another machine's epochs may be a hundredth of the host's: slivers on its axis."""
    short = [(s, v, tuple(x / 100 for x in stages)) for s, v, stages in EIGHT[:2]]
    figure = epoch_breakdown(load_run(make_run(series=EIGHT[:2], modelled=short)))
    above, below = figure.axes
    for axes, modelled in ((above, False), (below, True)):
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert ["(modelled)" in name for name in names] == [modelled, modelled]
        assert ("modelled" in axes.get_xlabel()) is modelled
        begin, end = axes.get_xlim()
        widest = max(patch.get_x() + patch.get_width() for patch in axes.patches)
        assert widest > (end - begin) / 2
    assert (above.get_xlabel(), below.get_xlabel()) == (
        "time per epoch (s)",
        "modelled time per epoch (ms)",
    )
    assert below.get_position().y1 < above.get_position().y0


def test_what_is_not_modelled_has_no_empty_line(make_run: MakeRun) -> None:
    folder = make_run(series=EIGHT[:1], modelled=EIGHT[:2])
    rows = (folder / "rows.csv").read_text().splitlines(keepends=True)
    kept = [r for r in rows if ",model," not in r or ",wall_time," in r]  # as the link model does
    (folder / "rows.csv").write_text("".join(kept))
    labels = cpu_core_seconds(load_run(folder)).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["cpu_gather\nnaive"]


def test_a_series_with_some_bad_repeats_is_drawn_and_says_so(make_run: MakeRun) -> None:
    folder = make_run(series=EIGHT[:2])
    lines = (folder / "rows.csv").read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if ",case,wall_time,s,10.0,test,ok," in line)
    lines[last] = lines[last].replace("10.0,test,ok,", ",test,failed,timed out")
    (folder / "rows.csv").write_text("".join(lines))
    figure = epoch_breakdown(load_run(folder))
    assert "1 of 3 failed" in texts(figure)
    assert sum(widths(figure)[1::2]) == pytest.approx(1.31)


def test_a_series_without_reference_says_so(make_run: MakeRun) -> None:
    figure = speedup(load_run(make_run(series=EIGHT[3:5])))
    assert "no cpu_gather naive measured to compare with" in texts(figure)


def test_the_footer_says_what_was_measured_on_what(make_run: MakeRun) -> None:
    found = texts(epoch_breakdown(load_run(make_run(repeats=1)))).replace("\n", " ")
    assert "1 repeat × 4 epochs, 1 warm-up epoch dropped" in found
    assert "Machine cpu-amd-epyc-2c (AMD EPYC), backend host, commit 0123456789ab" in found


def test_a_single_epoch_has_no_whisker(make_run: MakeRun) -> None:
    one = epoch_breakdown(load_run(make_run("20261121-a-1", repeats=1, epochs=1)))
    assert not one.axes[0].containers or not any(c.has_xerr for c in _errorbars(one))
    many = epoch_breakdown(load_run(make_run("20261121-b-2", jitter=0.1)))
    assert len(_errorbars(many)) == 3


def _errorbars(figure: Figure) -> list[mpl.container.ErrorbarContainer]:
    found = figure.axes[0].containers
    return [c for c in found if isinstance(c, mpl.container.ErrorbarContainer)]


def test_save_all_writes_every_figure_and_the_same_svg_again(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = load_run(make_run(jitter=0.1))
    written = save_all(run, tmp_path / "one" / "figures")
    assert {p.stem for p in written} == set(FIGURES)
    assert {p.suffix for p in written} == {".png", ".svg"}
    assert all(p.stat().st_size > 1000 for p in written)
    again = save_all(run, tmp_path / "two", formats=["svg"])
    digest = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in written}
    assert all(hashlib.sha256(p.read_bytes()).hexdigest() == digest[p.name] for p in again)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (1234.5, "1234"), (12.345, "12.3"), (1.0, "1.00"), (0.0123456, "0.0123"),
     (0.9999, "1.00"), (99.99, "100")],
)  # fmt: skip
def test_three_digits(value: float, shown: str) -> None:
    assert three_digits(value) == shown


@pytest.mark.parametrize(("longest", "unit"), [(2.0, "s"), (0.2, "ms"), (2e-4, "µs")])
def test_time_unit(longest: float, unit: str) -> None:
    assert time_unit(longest)[0] == unit


def test_every_strategy_has_its_place_and_its_colour() -> None:
    """Else it comes last, in the colour of whatever else has none."""
    names = tuple(strategy.name for strategy in STRATEGIES)
    assert names == READING_ORDER, "READING_ORDER in bench/read/epochs.py is that of the registry"
    assert names == tuple(STRATEGY_COLOURS), (
        "STRATEGY_COLOURS in bench/show/figures/style.py has each"
    )
