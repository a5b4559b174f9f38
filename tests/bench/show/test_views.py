"""Views: one file for terminal, report and pictures; those of other packages stand beside ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.report.page import render_report
from gatherbench.bench.show.run import render
from gatherbench.bench.show.sentences.verdict import verdict
from gatherbench.bench.show.table import Column, records, tabulate
from gatherbench.bench.show.terminal import in_terminal
from gatherbench.bench.show.view import View
from gatherbench.bench.show.views.registry import PLUGINS, VIEWS, views_of

from .test_show import line_of, printed

MakeRun = Callable[..., Path]
CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> View:
    """The view of CONTRIBUTING, as another package would bring it."""
    text = CONTRIBUTING.read_text(encoding="utf-8").partition("## Add a view")[2]
    names: dict[str, object] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    view = names["TRAINING"]
    assert isinstance(view, View)
    monkeypatch.setattr(type(PLUGINS), "usable", lambda self: [view] if self is PLUGINS else [])
    return view


def test_the_view_of_contributing_is_shown_everywhere(
    training: View, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = make_run()
    run = load_run(folder)
    assert views_of(run) == [training], "a run of one rank in memory has neither ranks nor a disk"
    text = printed(render(run), 120)
    table = text.partition("Training: ")[2]
    (seconds,) = run.values("train", "wall_time").groupby("strategy").median()[["cpu_gather"]]
    shown_ms = float(line_of(table, "cpu_gather", "naive")[2])
    assert shown_ms == pytest.approx(1e3 * seconds, rel=0.01)
    page = render_report(run)
    assert '<a href="#training">Training</a>' in page
    assert 'data-name="training"' in page
    assert "3 series trained." in [statement.text for statement in verdict(run)]
    said = CliRunner().invoke(app, ["show", str(folder), "--json"])
    (view,) = json.loads(said.stdout)["views"]
    assert view["tables"][0]["lines"][0]["train"] == pytest.approx(seconds)
    assert view["points"] == ["3 series trained."]


def test_each_view_has_a_name_of_its_own_and_is_no_section_of_the_page() -> None:
    names = [view.name for view in VIEWS]
    assert len(set(names)) == len(names)
    files = [file for view in VIEWS for file in view.charts]
    assert len(set(files)) == len(files)


def test_what_is_no_view_is_refused() -> None:
    with pytest.raises(TypeError, match="no gatherbench"):
        PLUGINS.checked(lambda run: run)


def lines(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"workload": ["w", "w"], "strategy": ["s", "s"], "variant": "v", **columns})


NAMES = [
    Column("workload", "workload"),
    Column("strategy", "strategy"),
    Column("variant", "variant"),
]


def test_a_terminal_has_intervals_in_brackets_and_reasons_below() -> None:
    frame = lines(
        ranks=[1, 2],
        ratio=[1.0, 1.6],
        ratio_low=[1.0, 1.5],
        ratio_high=[1.0, 1.7],
        why=["", "nobody knows"],
        bytes=[1e9, 2e9],
    )
    table = tabulate(
        "t",
        "caption",
        [
            *NAMES,
            Column("ranks", "ranks", "1", short="ranks"),
            Column("ratio", "ratio", "×", short="ratio", interval=True),
            Column("bytes", "bytes", "B"),
            Column("why", "why", below="no bytes of {series}: {value}"),
        ],
        frame,
        title="Title",
        note="A note.",
    )
    text = "\n".join(printed(part, 80) for part in in_terminal(table, {"w": "in words"}))
    assert text.startswith("Title: in words")
    assert ["s", "v", "1", "1.00"] in [line.split() for line in text.splitlines()], "by definition"
    assert ["2", "1.60", "(1.50–1.70)"] in [line.split() for line in text.splitlines()]
    assert "no bytes of s v: nobody knows" in text
    assert "GB" not in text
    assert "A note." in text
    assert [column.field for column in table.columns][4:7] == ["ratio", "ratio_low", "ratio_high"]
    assert records(table)[1] == {
        "workload": "w", "strategy": "s", "variant": "v", "ranks": 2.0, "ratio": 1.6,
        "ratio_low": 1.5, "ratio_high": 1.7, "bytes": 2e9, "why": "nobody knows",
    }  # fmt: skip
    assert records(table)[0]["why"] is None


def test_one_repeat_has_no_ends_and_what_is_not_known_no_brackets() -> None:
    nan = float("nan")
    frame = lines(x=[2.0, nan], x_low=[nan, nan], x_high=[nan, nan])
    column = Column("x", "x", "s", short="x", interval=True)
    text = printed(in_terminal(tabulate("t", "c", [*NAMES, column], frame), {})[0], 80)
    assert "2.00 (one repeat)" in text
    assert text.count("(") == 1
    assert not in_terminal(tabulate("t", "c", [*NAMES, Column("x", "x", "s")], frame), {})
