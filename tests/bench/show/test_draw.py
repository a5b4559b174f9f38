"""Charts as pictures: drawn as the data say, every text free of the others and on the paper."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from gatherbench.bench.show.drawing import draw
from gatherbench.bench.show.looks import MODEL_HATCH, STAGE_COLOURS, ink
from gatherbench.bench.show.view import save_all
from gatherbench.bench.show.views.epochs import epoch_breakdown, speedup
from gatherbench.bench.show.views.resources import cpu_core_seconds

from ..printed import charts_of, lines_of, stands_free, texts, without_tables
from ..written_run import EIGHT

FOUR = (
    "wordnet-sage16x2-b1000-1f2e3d4c",
    "wordnet-gat16x2-b1000-1f2e3d4d",
    "papers100M-like@0.01-sage16x2-b1000-1f2e3d4e",
    "ogbn-products-sage256x3-b1024-aabbccdd",
)


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


def test_long_names_of_workloads_stand_above_their_panels(run_of):
    long = LONG_NAME | {"hidden": 256, "batch_size": 1024}
    workloads = {
        name: {} if name == FOUR[1] else {**long, "seed": i} for i, name in enumerate(FOUR)
    }
    run = run_of(series=EIGHT[:2], workloads=workloads, repeats=1)
    figure = draw(speedup(run))
    titles = [axes.get_title("left") for axes in figure.axes]
    assert [unspaced(title) for title in titles] == [unspaced(n) for n in run.names.values()]
    assert titles_stand_free(figure)


#: Of somebody else's plug-in.
LONG = (
    "hot_rows_in_gpu_memory_rest_zero_copy",
    "share=0.10,order=sorted,budget=15",
    (0.2, 0.1, 0.5),
)


@pytest.mark.parametrize(
    ("backend", "fetch", "drawn"), [("cuda", 0.3, 0.2), ("cuda", 0.7, 0.0), ("host", 0.3, 0.6)]
)
def test_of_a_wait_that_a_gpu_s_stages_overlap_only_what_they_leave_is_drawn(
    run_of, backend, fetch, drawn
):
    """An epoch of 1 s with 0.3 s of fetches (or 0.7) and 0.5 of training, and 0.6 of waits."""
    times = (0.6, fetch, 0.5, 1 - 0.6 - fetch - 0.5)
    run = run_of(series=[("aligned_zero_copy", "given", times)], backend=backend)
    (line,) = lines_of(epoch_breakdown(run))
    found = [line[stage] for stage in ("sample", "fetch", "train")]
    assert found == pytest.approx([drawn, fetch, 0.5])


@pytest.mark.parametrize("make", [speedup, epoch_breakdown, cpu_core_seconds])
def test_no_text_overlaps_or_leaves_the_paper(run_of, make):
    failures = {("async_zero_copy", "stream"): ("failed", "out of memory " * 20)}
    series, fixed = [*EIGHT, LONG], {"workloads": FOUR, "failures": failures, "jitter": 0.1}
    stands_free(draw(make(run_of(series=series, modelled=[LONG], repeats=1, **fixed))))


def test_bars_are_drawn_as_the_chart_says(run_of):
    failures = {EIGHT[2][:2]: ("failed", "out of memory")}
    drawn = epoch_breakdown(run_of(series=EIGHT[:3], failures=failures, jitter=0.1))
    (axes,) = draw(drawn).axes
    lengths = [patch.get_width() for patch in axes.patches]
    lines = lines_of(drawn)
    measured = [line for line in lines if not line["reason"]]
    wanted = [line[stage] for line in measured for stage in drawn.legend if line[stage]]
    assert lengths == pytest.approx(wanted)
    colours = [to_hex(patch.get_facecolor()) for patch in axes.patches[:4]]
    assert colours == [ink(colour).lower() for colour in STAGE_COLOURS.values()]
    errorbars = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    ends = [one.lines[2][0].get_segments()[0][:, 0] for one in errorbars]
    assert [tuple(pair) for pair in ends] == [
        pytest.approx((line["low"], line["high"])) for line in measured
    ]
    assert len(ends) == 2
    said = [text.get_text() for text in axes.texts if text.get_text()]
    first, second, _ = lines
    names = [f"cpu_gather ({variant})" for variant in ("naive", "pinned", "prefetch")]
    assert set(said) == {*names, "failed: out of memory", first["text"], second["text"]}


def test_warnings_stand_above_the_bars_and_the_foot_below(run_of):
    drawn = speedup(run_of(series=EIGHT[:2], other_cores=1.5))
    figure = draw(drawn)
    FigureCanvasAgg(figure).draw()
    busy = [text for text in figure.texts if text.get_gid() == "warning"][-1]
    assert " ".join(busy.get_text().split()) == drawn.warnings[-1]
    assert busy.get_position()[1] > figure.axes[0].get_position().y1
    for text, kind in ((drawn.foot, "source"), (drawn.reading, "foot")):
        (found,) = (one for one in figure.texts if one.get_gid() == kind)
        assert " ".join(found.get_text().split()) == " ".join(text.split())
        assert found.get_position()[1] < figure.axes[0].get_position().y0


def test_modelled_bars_are_hatched_and_called_so_below_the_others(run_of):
    figure = draw(epoch_breakdown(run_of(series=EIGHT[:1], modelled=EIGHT[:1])))
    above, below = figure.axes
    assert {patch.get_hatch() for patch in above.patches} == {""}
    assert {patch.get_hatch() for patch in below.patches} == {MODEL_HATCH}
    assert below.get_title("left") == "modelled for rtx3090-pcie4, not measured"
    assert (above.get_xlabel(), below.get_xlabel()) == (
        "time per epoch (s)",
        "modelled time per epoch (s)",
    )
    assert below.get_position().y1 < above.get_position().y0
    assert "modelled, not measured" in texts(figure).splitlines()


def test_save_all_writes_every_figure_and_the_same_svg_again(run_of, tmp_path):
    run = run_of(jitter=0.1)
    written = save_all(without_tables(run, draw=True), tmp_path / "one" / "figures")
    assert {p.stem for p in written} == set(charts_of(run))
    assert {p.suffix for p in written} == {".png", ".svg"}
    assert all(p.stat().st_size > 1000 for p in written)
    again = save_all(without_tables(run, draw=True), tmp_path / "two")
    first = {path.name: path.read_bytes() for path in written}
    assert [path.name for path in again if path.read_bytes() != first[path.name]] == []
