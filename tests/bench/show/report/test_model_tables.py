"""The link model's tables below those of ``gatherbench show``, and in the report."""

import html
from pathlib import Path

import pytest
from rich.console import Group

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.page import write_report
from gatherbench.bench.show.terminal import in_terminal
from gatherbench.bench.show.view import shown as shown_of
from gatherbench.bench.show.views.model import MODEL, model_errors

from ...written_run import edit, put
from ..test_show import all_of, printed
from .conftest import ALIGNED, NAIVE


def of_the_model(folder: Path) -> str:
    """What the terminal has of the link model."""
    run = load_run(folder)
    view = shown_of(MODEL, run)
    assert view is not None
    tables = [part for table in view.tables for part in in_terminal(table, run.names)]
    return printed(Group(*tables, *view.notes), 200)


def test_rates_stand_as_shares_of_the_roofs_of_what_measured_them(make_run):
    folder = make_run([NAIVE, ALIGNED], backend="cuda", declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    text = all_of(folder, 90)
    assert max(map(len, text.splitlines())) <= 90
    _, roofline = text.split("Roofline for ", 1)
    assert roofline.startswith("rtx3090-pcie4: wordnet GraphSAGE (20 minibatches)")
    rates, errors = roofline.split("\nEpochs, and how far", 1)
    line = next(words for words in rates.splitlines() if "aligned_zero_copy" in words)
    cells = line.split()
    # 2 GB of rows an epoch in 0.4 s of fetching; the raw link gives 31.51 GB/s.
    assert 4.8 < float(cells[1]) < 5.1
    assert 15 <= float(cells[4]) < 16.5
    assert "link" in cells[5:]
    line = next(words for words in errors.splitlines() if "aligned_zero_copy" in words)
    measured, modelled, error = map(float, line.split()[1:4])
    assert error == pytest.approx(100 * (modelled / measured - 1), abs=1)


def test_without_a_gpu_the_model_has_nothing_to_be_held_against(make_run):
    folder = make_run([NAIVE, ALIGNED], declared=True)
    (folder / "profile.toml").write_text(load_profile("rtx3090-pcie4").to_toml())
    _, roofline = of_the_model(folder).split("Roofline for ", 1)
    assert "aligned_zero_copy, predicted" in roofline
    assert "off by" not in roofline
    assert model_errors(load_run(folder)) is None


def test_the_report_says_how_far_the_model_is_off(make_run, tmp_path):
    folder = make_run([ALIGNED, NAIVE], backend="cuda", declared=True)
    assert model_errors(load_run(folder)) is None  # no profile
    file = folder / "profile.toml"
    file.write_text(load_profile("rtx3090-pcie4").to_toml())
    table = model_errors(load_run(folder))
    assert table is not None
    lines = table.data().to_dict("records")
    assert [one["strategy"] for one in lines] == ["cpu_gather", "aligned_zero_copy"]
    for one in lines:
        off = one["modelled_s"] / one["measured_s"] - 1 if one["modelled_s"] else None
        assert one["off_by_share"] == (off and pytest.approx(off))
    page = write_report(load_run(folder), tmp_path / "report.html").read_text()
    assert table.caption in html.unescape(page)
    file.write_text("name = ")
    assert model_errors(load_run(folder)) is None  # the roofline says why


def test_nothing_that_was_modelled_is_no_table(make_run):
    profile = load_profile("rtx3090-pcie4").to_toml()
    still = make_run([ALIGNED], backend="cuda", declared=True)  # nothing crosses the link
    edit(still, put(lambda _: 0.0, metric="gpu_link_read"))
    (still / "profile.toml").write_text(profile)
    assert "Roofline for" not in of_the_model(still)
    assert model_errors(load_run(still)) is not None, "it does not hang on a roofline"
    silent = make_run([ALIGNED], backend="cuda")  # it does not say what it moves
    failed = make_run(
        [ALIGNED], backend="cuda", failures={ALIGNED[:2]: ("failed", "out of memory")}
    )
    for folder in (silent, failed):
        (folder / "profile.toml").write_text(profile)
        assert model_errors(load_run(folder)) is None
        assert "off by" not in of_the_model(folder)


def test_without_a_profile_it_says_what_to_do(make_run):
    folder = make_run([NAIVE], backend="cuda", declared=True)
    without = of_the_model(folder)
    assert "No roofline: this run has no link profile" in without
    assert "gatherbench predict RUN --profile NAME" in without
    (folder / "profile.toml").write_text("name = ")
    assert "not valid TOML" in " ".join(of_the_model(folder).split())
