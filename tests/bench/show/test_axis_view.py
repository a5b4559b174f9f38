"""How one field's values stand beside each other: in the terminal, in JSON and as a picture."""

import json

import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.drawing import draw
from gatherbench.bench.show.views.axis import chart

from ..disk_run import write_disk
from ..printed import stands_free
from ..ranks_run import write_ranks
from .test_show import all_of, shown

ALIGNED = ("aligned_zero_copy", "given")


@pytest.fixture
def folder(make_run):
    times = {ALIGNED: {1: 2.0, 2: 1.25, 4: 1.0}}
    return write_ranks(make_run, times, failures={(4, *ALIGNED): "it broke"})


def test_a_line_a_value_and_what_was_not_measured_says_so(folder):
    text = all_of(folder, 100).partition("Over the number of ranks: wordnet GraphSAGE")[2]
    assert "epoch vs first value" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["aligned_zero_copy", "1", "2.00", "1.00", "100", "–", "–"] in lines
    assert ["2", "strong", "1.25", "0.625", "(0.625–0.625)", "80.0"] in [one[:6] for one in lines]
    assert ["4", "strong", "failed"] in lines


def test_a_run_of_one_path_shows_what_its_plan_compares(folder, make_run):
    """With a second path to rank, the table of paths is there instead."""
    text = shown(folder, 120)
    title = "Over the number of ranks: wordnet GraphSAGE: host memory, no GPU"
    assert title in text
    assert "epoch vs first value" in text
    assert "over best gather" not in text
    assert "2 workloads: No verdict: the plan has one path, and paths are what is ranked;" in text
    assert "To separate paths" not in text
    several = make_run("several", series=[(*ALIGNED, 1.0), ("cpu_gather", "naive", 2.0)])
    assert "over best gather" in shown(several, 120)


def test_json_has_the_columns_that_the_field_names(folder):
    said = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    (view,) = [one for one in said["views"] if one["name"] == "axis-gpus"]
    line = view["tables"][0]["lines"][1]
    assert (line["value"], line["efficiency_share"]) == ("2 strong", pytest.approx(0.8))
    assert line["wait_s"] == pytest.approx(0.0125)


def test_the_picture_has_a_bar_a_value_and_a_reason_in_place_of_one(folder):
    for column, values in {"epoch": [2.0, 1.25], "efficiency": [1.0, 0.8]}.items():
        found = chart(load_run(folder), "gpus", column)
        (panel,) = found.panels()
        *bars, missing = panel.lines.to_dict("records")
        assert [bar["value"] for bar in bars] == pytest.approx(values)
        said = [name.partition(", gpus ")[2] for name in panel.lines["name"]]
        assert said == ["1", "2 strong", "4 strong"]
        assert missing["reason"] == "failed: it broke"
        stands_free(draw(found))


def test_published_epochs_stand_beside_as_published(make_run):
    folder = write_disk(make_run)
    run = load_run(folder)
    frame = chart(run, "path").frame
    beside = frame[frame["panel"].str.startswith("published")]
    caches = beside[beside["panel"].str.contains("disk-250k-iops")].set_index("variant")["value"]
    assert (caches["sieve"], caches["s3-fifo"]) == (97.0, 108.3)
    assert set(beside["look"]) == {"published"}
    assert "97.0 s" in all_of(folder, 140)
    assert not chart(run, "path", "iops").frame["panel"].str.startswith("published").any()
