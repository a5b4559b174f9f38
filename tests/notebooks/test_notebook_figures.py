"""Figures of the notebooks: one look for each kind, and what is missing says so in its place."""

import io
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from gatherbench.bench.show.figures.curves import CurveAxes, curves, series_looks
from gatherbench.bench.show.figures.paper import NOT_MEASURED
from gatherbench.bench.show.looks import KINDS, MODEL_HATCH, ink
from helpers.bars import changes, epoch_bars, stage_shares
from helpers.gathers import requests_at
from helpers.heatmaps import policy_costs, transfer_heatmap
from helpers.shares import Mark, sm_share

from ..bench.show.pictures import stands_free, texts

REMEDY = "run it on a GPU"
NAN = float("nan")
BARS = pd.DataFrame(
    [
        ("one", "published", "cpu_gather", 7.8, 7.75, 7.85, ""),
        ("one", "modelled", "cpu_gather", 7.0, NAN, NAN, "fitted"),
        ("one", "measured", "cpu_gather", 3.0, 2.0, 4.0, "naive"),
        ("one", "measured", "cpu_gather", 2.5, 2.0, 3.0, "pinned"),
        ("one", "published", "all_in_gpu", 2.1, 2.05, 2.15, ""),
        ("two", "modelled", "all_in_gpu", 2.0, NAN, NAN, ""),
    ],
    columns=["group", "kind", "strategy", "median", "low", "high", "note"],
)
CURVES = pd.DataFrame(
    [
        ("published", "DGL", 188, 19.0),
        ("modelled", "aligned", 16, 9.0),
        ("modelled", "aligned", 512, 25.0),
        ("measured", "aligned", 16, 8.0),
        ("measured", "aligned", 512, 38.0),
    ],
    columns=["kind", "series", "x", "y"],
)
AXES = CurveAxes("row width (B)", "GB/s", [16, 512], log_x=True)
STAGES = pd.DataFrame(
    [
        ("published", "Reddit", 0.0, 6.0, 0.0, 2.0),
        ("modelled", "Reddit", 1.0, 4.0, 3.0, 0.0),
        ("measured", "WordNet", 0.1, 0.5, 0.4, 0.0),
    ],
    columns=["kind", "label", "sample", "fetch", "train", "other"],
)
CHANGES = pd.DataFrame(
    [
        ("power", "published", "unified_zero_copy", "a paper", NAN, -0.175, -0.124),
        ("power", "measured", "async_zero_copy", "ours", -0.25, -0.3, -0.2),
    ],
    columns=["quantity", "kind", "strategy", "label", "median", "low", "high"],
).assign(note=["", "one repeat"])
SHARES = pd.DataFrame({"series": "sweep", "x": [5.0, 15.0], "y": [0.5, 1.0]})
CELLS = pd.DataFrame(
    [(1000, 64, 0.5), (1000, 4096, NAN), (64000, 64, 2.0), (64000, 4096, 4.0)],
    columns=["rows", "row_bytes", "ratio"],
)
POINT = pd.DataFrame([("w", 10_000.0, 2000.0, 3.25)], columns=["workload", *CELLS.columns])
MARKS = ([Mark(15, "saturates")], [Mark(10, "no difference")])


def draw_bars(table: pd.DataFrame) -> Figure:
    absent = {"measured": f"{NOT_MEASURED}: {REMEDY}"}
    return epoch_bars(table, absent, title="t", foot="f")


def draw_curves(table: pd.DataFrame) -> Figure:
    return curves(table, {"measured": REMEDY}, AXES, title="t", foot="f")


def draw_shares(table: pd.DataFrame) -> Figure:
    return sm_share(table, table, MARKS, remedy=REMEDY, foot="f")


def draw_heatmap(measured: pd.DataFrame) -> Figure:
    return transfer_heatmap(CELLS, measured, "1.9", profile="p", remedy=REMEDY, foot="f")


def draw_stages(table: pd.DataFrame) -> Figure:
    missing = [] if (table["kind"] == "measured").any() else [("GPU", f"{NOT_MEASURED}: {REMEDY}")]
    return stage_shares(table, missing, title="t", foot="f")


def draw_changes(table: pd.DataFrame) -> Figure:
    return changes(table, {"power": f"{NOT_MEASURED}: {REMEDY}"}, title="t", foot="f")


#: A function of a table, the table with measurements, and the same without.
CASES: dict[str, tuple[Callable[[pd.DataFrame], Figure], pd.DataFrame, pd.DataFrame]] = {
    "changes": (draw_changes, CHANGES, CHANGES[:1]),
    "curves": (draw_curves, CURVES, CURVES[:3]),
    "sm_share": (draw_shares, SHARES, SHARES[:0]),
    "stage_shares": (draw_stages, STAGES, STAGES[:2]),
    "transfer_heatmap": (draw_heatmap, POINT, POINT[:0]),
}


def bars_of(figure: Figure, panel: int = 0) -> list[Any]:
    return list(figure.axes[panel].patches)


@pytest.mark.parametrize(("draw", "full", "empty"), CASES.values(), ids=list(CASES))
def test_a_panel_without_measurement_says_so_and_fills_itself(draw, full, empty):
    before, after = texts(draw(empty)), texts(draw(full))
    assert NOT_MEASURED in before
    assert REMEDY in " ".join(before.split())
    assert NOT_MEASURED not in after


def test_each_bar_says_why_it_is_not_there():
    figure = draw_bars(BARS)
    said = texts(figure)
    assert said.count(f"{NOT_MEASURED}: {REMEDY}") == 3
    assert "not modelled" in said  # all_in_gpu in the first panel
    assert "not published" in said
    everything = pd.concat([BARS.assign(group=g, kind=k) for g in ("one", "two") for k in KINDS])
    filled = texts(draw_bars(everything))
    assert NOT_MEASURED not in filled
    assert "not published" not in filled


def test_the_three_kinds_look_different_and_always_the_same():
    colour = ink("orange")
    published, modelled, measured = bars_of(draw_bars(BARS))[:3]
    assert to_hex(published.get_facecolor()) == "#ffffff"
    assert to_hex(published.get_edgecolor()) == colour.lower()
    assert modelled.get_hatch() == MODEL_HATCH
    assert not measured.get_hatch()
    assert to_hex(measured.get_facecolor()) == colour.lower()
    looks = [(look.hatch, look.filled, look.line) for look in KINDS.values()]
    assert len(set(looks)) == 3
    assert len({look.line for look in KINDS.values()}) == 3


def test_the_fastest_variant_stands_for_its_strategy():
    figure = draw_bars(BARS)
    assert [bar.get_width() for bar in bars_of(figure)[:3]] == pytest.approx([7.8, 7.0, 2.5])
    assert "2.50  pinned" in texts(figure)
    assert "naive" not in texts(figure)


def test_a_value_without_spread_has_no_whiskers():
    figure = draw_bars(BARS[1:2])
    assert not figure.axes[0].containers[1:]


def test_curves_stand_in_the_panel_of_their_kind():
    figure = draw_curves(CURVES)
    published, modelled, measured = figure.axes
    assert [len(axes.get_lines()) for axes in figure.axes] == [1, 1, 1]
    assert published.get_lines()[0].get_fillstyle() == "none"
    assert modelled.get_lines()[0].get_linestyle() == "--"
    assert measured.get_lines()[0].get_linestyle() == "-"
    same = {axes.get_lines()[0].get_color() for axes in (modelled, measured)}
    assert len(same) == 1
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_limits_are_drawn_in_their_kinds_panel_alone():
    roofs = pd.DataFrame([("modelled", "raw link", 31.5)], columns=["kind", "name", "y"])
    figure = curves(CURVES, {}, AXES, title="t", foot="f", roofs=roofs)
    assert [len(axes.get_lines()) for axes in figure.axes] == [1, 2, 1]
    assert figure.axes[0].get_ylim()[1] > 31.5


def test_every_policy_has_a_colour_of_its_own():
    names = [f"policy {number}" for number in range(10)]
    assert len({look["color"] for look in series_looks(names).values()}) == 10
    many = series_looks([f"series {i}" for i in range(30)])
    assert len({tuple(look.items()) for look in many.values()}) == 30, "two series look alike"
    assert series_looks(["all_in_gpu"]) == {"all_in_gpu": {"color": ink("purple")}}


def test_stages_are_shares_of_the_epoch():
    figure = draw_stages(STAGES)
    widths = [bar.get_width() for bar in bars_of(figure)]
    assert widths == pytest.approx([75, 25, 12.5, 50, 37.5, 10, 50, 40])
    assert "8.00 s" in texts(figure)


def test_a_published_range_is_no_bar_from_zero():
    published, measured = bars_of(draw_changes(CHANGES))
    assert published.get_x() == pytest.approx(-17.5)
    assert published.get_width() == pytest.approx(5.1)
    assert min(measured.get_x(), measured.get_x() + measured.get_width()) == pytest.approx(-25)
    said = texts(draw_changes(CHANGES))
    assert "-17.5 to -12.4 %" in said
    assert "power: a paper (published)" in said
    assert "power: ours (measured, one repeat)" in said


def test_an_unknown_cell_is_a_question_mark():
    figure = draw_heatmap(POINT)
    cells = figure.axes[1]
    assert [t.get_text() for t in cells.texts].count("?") == 1
    assert len(cells.patches) == 3
    assert all(patch.get_hatch() == MODEL_HATCH for patch in cells.patches)
    assert "3.2" in texts(figure)  # the measured point


def test_policy_costs_are_those_of_the_accounting():
    rows = requests_at(["unaligned", "aligned-idle"], [1412])
    figure = policy_costs(rows, title="t", foot="f")
    said = [t.get_text() for t in figure.axes[0].texts]
    assert said == [f"{1 / row.link_efficiency:.2f}" for row in rows]
    weights = [t.get_fontweight() for t in figure.axes[0].texts]
    assert weights == ["normal", "bold"]  # the least of its column


@pytest.mark.parametrize("name", ["bars", *CASES])
def test_no_text_overlaps_another_or_leaves_the_paper(name):
    draw, *tables = CASES.get(name, (draw_bars, BARS))
    for table in tables:
        stands_free(draw(table))


def test_the_same_figure_gives_the_same_picture_of_few_colours():
    pytest.importorskip("IPython")
    from helpers.shown import png

    one, two = (png(draw_curves(CURVES)) for _ in range(2))
    assert one == two
    picture = Image.open(io.BytesIO(one))
    assert picture.mode == "P"
    colours = [line.get_color() for line in draw_curves(CURVES).axes[1].get_lines()]
    have = {
        to_hex(tuple(c / 255 for c in rgb)) for _, rgb in picture.convert("RGB").getcolors() or []
    }
    assert {c.lower() for c in colours} & have  # a thin line keeps its colour
