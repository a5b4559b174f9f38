"""The figure of requests per row of notebook 2, against the accounting that it is drawn from."""

from collections.abc import Sequence

import numpy as np
import pytest

from gatherbench.bench.read.units import ITEM_BYTES
from gatherbench.bench.show.figures.paper import save
from gatherbench.bench.show.figures.requests_per_row import KINDS, floor_requests, requests_per_row
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import RequestRow, request_table


def rows_of(dim: int, names: Sequence[str]) -> list[RequestRow]:
    return request_table(dim, 4, [policy(name) for name in names])


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_dtypes_are_as_wide_as_torchs(dtype):
    import torch

    assert getattr(torch, dtype).itemsize == ITEM_BYTES[dtype]


def test_the_figure_is_drawn_from_the_counts(tmp_path):
    chosen = [policy("aligned"), policy("unaligned"), policy("torch-quiver")]
    figure = requests_per_row(chosen)
    panels = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [p.label for p in chosen] * 2
    for k, p in enumerate(chosen):
        for line, (_, widths, _, _) in zip(panels[k].lines, KINDS, strict=True):
            assert list(line.get_xdata()) == list(widths)
            (row,) = rows_of(widths[-1] // 4, [p.name])
            drawn = float(np.asarray(line.get_ydata())[-1])
            assert drawn == pytest.approx(row.requests_per_row, rel=0.02)
    assert any("up to" in text.get_text() for text in panels[2].texts)  # cut off, and says so
    assert not panels[0].texts
    assert any("not measured" in text.get_text() for text in figure.texts)
    for name in ("one.svg", "two.svg"):
        save(figure, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_idle_lanes_reach_the_grey_floor_and_no_shift_stays_above_it():
    for width in (132, 400, 1412, 2404, 2560):
        floor = floor_requests(width)
        idle, emogi, glt = rows_of(width // 4, ["aligned-idle", "emogi", "glt"])
        assert idle.requests_per_row == pytest.approx(floor, rel=0.01)
        assert emogi.requests_per_row == pytest.approx(floor, rel=0.01)
        assert glt.requests_per_row > 0.99 * floor
