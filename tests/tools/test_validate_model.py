"""The model beside published figures: what it was fitted to, what it predicts, where it is off."""

from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.tables import load_reference
from tools import validate_model as validate
from tools.validate_model import (
    ALL_IN_GPU,
    BARS,
    FITTED_ON,
    PREDICTED,
    Fitted,
    fit,
    fitted_chart,
    published_bars,
    reddit_chart,
    tables,
    uniform_rows,
)

RESULTS = Path(__file__).parents[2] / "results"
REFERENCE = load_reference(RESULTS / "reference")


@pytest.fixture(scope="module")
def chart() -> pd.DataFrame:
    return reddit_chart(REFERENCE)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fitted_chart(REFERENCE)


def test_the_bars_that_were_fitted_come_out_as_published(chart):
    bars = chart[chart["fitted"]]
    assert len(bars) == len(BARS)
    assert bars["machine"].eq(FITTED_ON).all()
    assert bars["error"].abs().max() < 1e-3


def test_the_bars_of_the_other_link_are_predicted(chart):
    """The errors as they are: within 9 %, and none of these bars was fitted."""
    bars = chart[~chart["fitted"]].set_index("strategy")
    assert bars["machine"].eq(PREDICTED).all()
    assert bars["error"].to_dict() == pytest.approx(
        {
            "cpu_gather": 0.061,
            "aligned_zero_copy": -0.007,
            "async_zero_copy": -0.084,
            "all_in_gpu": 0.0,
        },
        abs=0.005,
    )


def test_what_is_fitted_makes_sense(fitted):
    first, rows = uniform_rows()
    assert 20_000 < first < 26_000
    assert 0.6 * rows < fitted.rows < rows  # hubs are drawn again and again
    assert 0 < fitted.handover_s < 0.01


@pytest.mark.parametrize("name", [FITTED_ON, PREDICTED])
def test_the_presets_hold_what_was_fitted(name, fitted):
    profile = load_profile(name)
    assert profile["copy.pageable"].value == pytest.approx(fitted.pageable_rate, rel=2e-3)
    assert "fitted to the PCIe 3.0 bars" in profile["copy.pageable"].source
    assert "this project's sampler" in profile["host.sample_rate"].source


def test_the_notes_hold_the_tables_as_they_come_out():
    notes = (RESULTS.parent / "bench" / "model" / "NOTES.md").read_text(encoding="utf-8")
    lines = [line for line in tables(REFERENCE).splitlines() if line]
    fitted = [line for line in lines if "| fitted |" in line]
    assert [line.count("+0.0%") for line in fitted] == [1] * 4, "so they say nothing"
    assert len(lines) == 10
    assert [line for line in lines if line not in notes] == fitted


def test_bars_that_no_constants_yield_are_refused():
    bars = published_bars(REFERENCE, FITTED_ON)
    with pytest.raises(ValueError, match="sample_rate"):
        fit(load_profile(FITTED_ON), tuple({**bars, ALL_IN_GPU: 1e-9}[bar] for bar in BARS))


def test_without_published_figures_there_is_nothing_to_compare(tmp_path, capsys):
    validate.main(tmp_path)
    assert "published figures: none in" in capsys.readouterr().out
