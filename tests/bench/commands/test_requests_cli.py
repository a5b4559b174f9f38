"""``gatherbench requests``: the accounting's numbers as table, CSV and picture."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from gatherbench.bench.cli import app
from gatherbench.bench.read.units import ITEM_BYTES
from gatherbench.bench.show.figures.paper import save
from gatherbench.bench.show.figures.requests_per_row import KINDS, floor_requests, requests_per_row
from gatherbench.bench.show.requests import render, rows_of, to_csv
from gatherbench.kernels.policies import POLICIES, policy


def gatherbench(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_table_has_every_policy_and_says_what_it_is():
    done = gatherbench("requests")
    assert done.exit_code == 0, done.stderr
    assert "602 × float32 = 2,408 B" in done.stdout
    assert "not measured" in done.stdout
    lines = done.stdout.splitlines()
    for name in POLICIES:
        assert any(line.startswith(f"{name} ") for line in lines)


def test_the_table_stands_whole_in_80_columns():
    narrow = Console(width=80, file=io.StringIO())
    narrow.print(render(rows_of(602, "float32"), 602, "float32", 128))
    assert isinstance(narrow.file, io.StringIO)
    said = narrow.file.getvalue()
    assert "…" not in said
    for row in rows_of(602, "float32"):
        assert f"\n{row.policy.name} " in said
    assert "\n  4 B flat circular " in said


def test_csv_holds_the_counts():
    done = gatherbench(
        "requests", "--csv", "--dim", 128, "--dtype", "float16", "--policy", "aligned",
        "--policy", "dgl", "--max-request", 64,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    aligned, dgl = csv.DictReader(io.StringIO(done.stdout))
    assert (aligned["policy"], dgl["policy"]) == ("aligned", "dgl")
    for row in (aligned, dgl):
        rows, payload = int(row["rows"]), int(row["payload_bytes"])
        assert int(row["row_bytes"]) * rows == payload == 256 * rows
        # Whole lines: two of them a row, in four requests of 64 B.
        assert int(row["sectors"]) == 8 * rows
        assert int(row["requests_64B"]) == int(row["requests"]) == 4 * rows
        assert int(row["link_bytes"]) == payload + 20 * 4 * rows
        assert "not measured" in row["source"]
        assert "requests_128B" not in row


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_dtypes_are_as_wide_as_torchs(dtype):
    import torch

    assert getattr(torch, dtype).itemsize == ITEM_BYTES[dtype]
    (row,) = rows_of(6, dtype, ["unaligned"])
    assert row.row_bytes == 6 * ITEM_BYTES[dtype]


def test_a_policy_named_twice_is_one_row():
    rows = rows_of(10, "float32", ["glt", "dgl", "glt"])
    assert [row.policy.name for row in rows] == ["glt", "dgl"]
    assert len(to_csv(rows, 10, "float32", 128).splitlines()) == 3


def test_the_figure_is_drawn_from_the_counts(tmp_path):
    chosen = [policy("aligned"), policy("unaligned"), policy("torch-quiver")]
    figure = requests_per_row(chosen)
    panels = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [p.label for p in chosen] * 2
    for k, p in enumerate(chosen):
        for line, (_, widths, _, _) in zip(panels[k].lines, KINDS, strict=True):
            assert list(line.get_xdata()) == list(widths)
            (row,) = rows_of(widths[-1] // 4, "float32", [p.name])
            drawn = float(np.asarray(line.get_ydata())[-1])
            assert drawn == pytest.approx(row.requests_per_row, rel=0.02)
    assert any("up to" in text.get_text() for text in panels[2].texts)  # cut off, and says so
    assert not panels[0].texts
    assert any("not measured" in text.get_text() for text in figure.texts)
    for name in ("one.svg", "two.svg"):
        save(figure, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_idle_lanes_reach_the_grey_floor_and_no_shift_stays_above_it():
    for max_request in (32, 64, 128):
        for width in (132, 400, 1412, 2404, 2560):
            floor = floor_requests(width, max_request)
            names = ["aligned-idle", "emogi", "glt"]
            idle, emogi, glt = rows_of(width // 4, "float32", names, max_request)
            assert idle.requests_per_row == pytest.approx(floor, rel=0.01)
            assert emogi.requests_per_row == pytest.approx(floor, rel=0.01)
            assert glt.requests_per_row > 0.99 * floor
