"""``gatherbench hits`` as a user meets it: table, CSV, picture, JSON, and exit status 2."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from gatherbench.bench.cli import app
from gatherbench.bench.model.hits import SHARES, SHOWN, policies, simulated
from gatherbench.bench.show.hits import published_rates

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
TINY = ["tiny", "--fanouts", "3,2", "--batch-size", "50", "--profile", "rtx3090-pcie4"]


@pytest.fixture(autouse=True)
def _data(tiny_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))


def gatherbench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["hits", *arguments])


def test_table_csv_and_picture(tmp_path):
    done = gatherbench(*TINY, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Counted on 4 minibatches" in said
    assert "oracle: the bound of rows that stay: it knows the minibatches" in said
    assert "belady: it hears of 100 minibatches beforehand and replaces rows" in said
    assert "Modelled, profile rtx3090-pcie4, rows by" in said
    table = pd.read_csv(tmp_path / "out" / "hits.csv")
    assert set(table["policy"]) == set(policies())
    for name, mine in table.groupby("policy"):
        shares = SHOWN if simulated(policies()[str(name)]) else SHARES
        assert mine["share"].to_list() == [share / 1000 for share in shares]
        assert (mine["bytes_kept"] == mine["rows_kept"] * 33 * 4).all()
        assert mine[["per_fetched", "per_distinct"]].stack().between(0, 1).all()
    assert set(table["basis"]) == {"measured"}
    assert (tmp_path / "out" / "hits.png").stat().st_size > 10_000


def test_published_rates_are_drawn_wherever_somebody_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn: list[Path] = []
    monkeypatch.setattr(
        "gatherbench.bench.show.hits.figure_of", lambda _, where: drawn.append(where)
    )
    monkeypatch.setattr("gatherbench.bench.show.figures.paper.save", lambda *_: None)
    few = ("--policies", "degree", "--max-batches", "2", "--out", str(tmp_path / "out"))
    done = gatherbench(*TINY, *few)
    assert done.exit_code == 0, done.stderr
    assert len(published_rates(drawn[0])) > 0


def test_json_is_json_and_nothing_else():
    done = gatherbench(*TINY, "--policies", "degree,random", "--max-batches", "2", "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert [rate["policy"] for rate in said["rates"][:: len(SHARES)]] == ["degree", "random"]
    assert said["kept_share"]["policy"] == "degree"
    assert said["kept_share"]["basis"] == "modelled"
    assert said["counted"].startswith("Counted on 2 minibatches")


def test_published_rates_are_read_and_may_be_absent(tmp_path):
    rates = published_rates(REFERENCE)
    papers = rates[(rates["graph"] == "ogbn-papers100M") & (rates["series"] == "degree")]
    assert dict(zip(papers["x"], papers["y"], strict=True)) == pytest.approx(
        {5: 28.9, 10: 49.6, 20: 75.1, 30: 88.4}
    )
    assert published_rates(tmp_path).empty
