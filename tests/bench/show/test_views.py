"""Views: one file for terminal, report and pictures; those of other packages stand beside ours."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.page import render_report
from gatherbench.bench.show.run import render, render_all
from gatherbench.bench.show.table import Column, Table, table_of
from gatherbench.bench.show.terminal import in_terminal
from gatherbench.bench.show.view import View, shown
from gatherbench.bench.show.views import registry
from gatherbench.bench.show.views.checks import readings, setup
from gatherbench.bench.show.views.epochs import EPOCHS
from gatherbench.bench.show.views.registry import PLUGINS, VIEWS, views_of

from ..written_run import seen
from .gpu_rows import add_rows
from .test_show import line_of, printed

EXTENDING = Path(__file__).parents[3] / "docs" / "extending.md"


def test_of_set_up_no_time_of_day_is_shown_and_nothing_that_has_no_value(make_run):
    series = [("cpu_gather", "naive", (0.2, 1.0, 0.5))]
    folder = make_run("20261121-quick-aaaaaa", series=series, repeats=1)
    told = seen("setup", "s", {"open_time": 0.25, "process_began": 1.8e9})
    none = {"status": "skipped", "reason": "unsupported: not bound"}
    told += seen("setup", "1", {"numa_node": None}, **none)
    add_rows(folder, told, strategy="cpu_gather", variant="naive")
    shown = {column.field for column in setup(load_run(folder)).columns}
    assert "setup.open_time" in shown
    assert not shown & {"setup.process_began", "setup.numa_node"}


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> View:
    """The view of the docs, as another package would bring it."""
    text = EXTENDING.read_text(encoding="utf-8").partition("## Add a view")[2]
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:1]:
        exec(block, names)
    view = names["TRAINING"]
    assert isinstance(view, View)
    monkeypatch.setattr(type(PLUGINS), "usable", lambda self: [view] if self is PLUGINS else [])
    return view


def test_the_view_of_the_docs_is_shown_everywhere(training, make_run, tmp_path):
    folder = make_run()
    run = load_run(folder)
    assert [view.name for view in views_of(run)] == [
        *("results", "model", "processor", "training", "checks", "unmeasured", "sensors", "plan")
    ], "a run of one rank in memory has neither ranks nor a disk"
    text = printed(render_all(run), 120)
    table = text.partition("Training: ")[2]
    (seconds,) = run.measured["train_s"].groupby("strategy").median()[["cpu_gather"]]
    shown_ms = float(line_of(table, "cpu_gather", "naive")[2])
    assert shown_ms == pytest.approx(1e3 * seconds, rel=0.01)
    page = render_report(run)
    assert '<a href="#training">Training</a>' in page
    assert 'id="training-table"' in page
    assert '<figure id="training">' in page
    assert "3 series trained." in text
    said = CliRunner().invoke(app, ["show", str(folder), "--json"])
    (view,) = [one for one in json.loads(said.stdout)["views"] if one["name"] == "training"]
    assert view["tables"][0]["lines"][0]["train_s"] == pytest.approx(seconds)
    assert view["notes"] == ["3 series trained."]


@pytest.mark.parametrize("part", ["frame", "note", "figure"])
def test_a_view_of_another_package_that_fails_says_so_and_stops_no_other(
    part, training, monkeypatch, make_run, tmp_path
):
    def broken(_run: Run) -> Any:
        raise KeyError("no such column")

    bad = replace(training, **{part: broken})
    monkeypatch.setattr(registry, "FOUND", (EPOCHS,))
    monkeypatch.setattr(registry, "HOW", ())
    monkeypatch.setattr(type(PLUGINS), "usable", lambda self: [bad] if self is PLUGINS else [])
    folder = make_run()
    said = "The view training failed: KeyError: 'no such column'"
    everywhere = (("report", "report.html"), ("show --all", ""))
    for command, place in everywhere[: 1 if part == "figure" else 2]:
        done = CliRunner().invoke(app, [*command.split(), str(folder)])
        assert done.exit_code == 0
        text = (folder / place).read_text() if place else done.output
        assert html.unescape(text).count(said) == 1
    assert "Answer" in printed(render(load_run(folder)), 120)
    assert (folder / "figures" / "speedup.png").exists()
    wrong = replace(EPOCHS, frame=broken)
    with pytest.raises(KeyError):  # one of ours is a fault to be found
        shown(wrong, load_run(folder))


def test_each_view_has_a_name_of_its_own_and_is_no_section_of_the_page():
    names = [view.name for view in VIEWS]
    assert len(set(names)) == len(names)


def test_what_is_no_view_is_refused():
    with pytest.raises(TypeError, match="no gatherbench"):
        PLUGINS.checked(lambda run: run)


def lines(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"workload": ["w", "w"], "strategy": ["s", "s"], "variant": "v", **columns})


NAMES = [
    Column("workload", "workload"),
    Column("strategy", "strategy"),
    Column("variant", "variant"),
]


def test_a_terminal_has_intervals_in_brackets():
    frame = lines(
        ranks=[1, 2],
        ratio=[1.0, 1.6],
        ratio_low=[1.0, 1.5],
        ratio_high=[1.0, 1.7],
        why=["", "nobody knows"],
        bytes=[1e9, 2e9],
    )
    table = Table(
        "t",
        "caption",
        [
            *NAMES,
            Column("ranks", "ranks", "1", short="ranks"),
            Column("ratio", "ratio", "×", short="ratio", interval=True),
            Column("bytes", "bytes", "B"),
            Column("why", "why"),
        ],
        frame,
        title="Title",
        note="A note.",
    )
    text = "\n".join(printed(part, 80) for part in in_terminal(table, {"w": "in words"}))
    assert text.startswith("Title: in words")
    assert ["s", "(v)", "1", "1.00"] in [line.split() for line in text.splitlines()], (
        "by definition"
    )
    assert ["2", "1.60", "(1.50–1.70)"] in [line.split() for line in text.splitlines()]
    assert "GB" not in text
    assert "A note." in text
    assert table.data().iloc[1].to_dict() == {
        "workload": "w", "strategy": "s", "variant": "v", "ranks": 2, "ratio": 1.6,
        "ratio_low": 1.5, "ratio_high": 1.7, "bytes_B": 2e9, "why": "nobody knows",
    }  # fmt: skip
    assert table.data()["why"][0] is None


def test_one_repeat_has_no_ends_and_what_is_not_known_no_brackets():
    nan = float("nan")
    frame = lines(x=[2.0, nan], x_low=[nan, nan], x_high=[nan, nan])
    column = Column("x", "x", "s", short="x", interval=True)
    text = printed(in_terminal(Table("t", "c", [*NAMES, column], frame), {})[0], 80)
    assert "2.00 (one repeat)" in text
    assert text.count("(") == 2, "that of the variant"
    assert not in_terminal(Table("t", "c", [*NAMES, Column("x", "x", "s")], frame), {})


def test_what_any_meter_reads_of_an_epoch_is_shown(run_of):
    """No view has to know of it: 3 and 5 of a metric of its own in two epochs of each repeat."""

    def more(_case: object, _repeat: int, epoch: int) -> Iterator[Mapping[str, Any]]:
        if epoch >= 0:
            yield from seen("epoch", "W", {"moon_light": 3.0 + 2 * (epoch % 2)})

    table = readings(run_of(more=more, epochs=2))
    assert set(table.data()["epoch.moon_light_W"]) == {4.0}
    assert "epoch: moon light, W" in table.labels
    assert table.folded


def test_of_a_plain_frame_the_names_of_its_columns_say_the_units():
    frame = lines(
        **{"link_B_per_s": [2e9, 1e9], "kept_share": [0.5, None], "epoch_s": [0.2, 0.25]},
        **{"epoch_low_s": [0.1, 0.25], "epoch_high_s": [0.3, 0.25], "why": ["", "no count"]},
    )
    table = table_of("t", "Title", frame)
    assert table.labels[3:] == ["link, GB/s", "kept, %", "epoch, ms", "why"]
    found = [[cell.text for cell in line.cells[3:]] for line in table.lines]
    assert found == [["2.00", "50.0", "200 (100–300)", "–"], ["1.00", "–", "250", "no count"]]
    whole = table.data()
    assert list(whole) == [str(name) for name in frame if name != "why"] + ["why"]
    assert whole["kept_share"].tolist() == [0.5, None]
