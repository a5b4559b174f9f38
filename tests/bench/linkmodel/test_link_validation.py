"""The model beside published figures: what it was fitted to, what it predicts, where it is off."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.linkmodel import validate
from gatherbench.bench.linkmodel.chart import ALL_IN_GPU, BARS, Fitted, fit, uniform_rows
from gatherbench.bench.linkmodel.profile_file import load_profile
from gatherbench.bench.linkmodel.validate import (
    FITTED_ON,
    PREDICTED,
    alignment_gain,
    fitted_chart,
    published_bars,
    reddit_chart,
    sorting_gain,
    tables,
)
from gatherbench.bench.reference import load_reference

REFERENCE = load_reference(Path(__file__).parents[3] / "results" / "reference")


@pytest.fixture(scope="module")
def chart() -> pd.DataFrame:
    return reddit_chart(REFERENCE)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fitted_chart(REFERENCE)


def test_the_bars_that_were_fitted_come_out_as_published(chart: pd.DataFrame) -> None:
    bars = chart[chart["fitted"]]
    assert len(bars) == len(BARS)
    assert bars["machine"].eq(FITTED_ON).all()
    assert bars["error"].abs().max() < 1e-3


def test_the_bars_of_the_other_link_are_predicted(chart: pd.DataFrame) -> None:
    """The errors as they are: within 11 %, and none of these bars was fitted."""
    bars = chart[~chart["fitted"]].set_index("strategy")
    assert bars["machine"].eq(PREDICTED).all()
    assert bars["error"].to_dict() == pytest.approx(
        {
            "cpu_gather": 0.061,
            "aligned_zero_copy": -0.019,
            "async_zero_copy": -0.102,
            "all_in_gpu": 0.0,
        },
        abs=0.005,
    )


def test_the_published_order_of_strategies_is_predicted(chart: pd.DataFrame) -> None:
    for _, bars in chart.groupby("machine"):
        by_model = list(bars.sort_values("modelled_s")["strategy"])
        assert by_model == list(bars.sort_values("published_s")["strategy"])


def test_what_is_fitted_makes_sense(fitted: Fitted) -> None:
    first, rows = uniform_rows()
    assert 20_000 < first < 26_000
    assert 0.6 * rows < fitted.rows < rows  # hubs are drawn again and again
    assert 0 < fitted.handover_s < 0.01


@pytest.mark.parametrize("name", [FITTED_ON, PREDICTED])
def test_the_presets_hold_what_was_fitted(name: str, fitted: Fitted) -> None:
    profile = load_profile(name)
    assert profile.host.sample_rate.value == pytest.approx(fitted.sample_rate, rel=2e-3)
    assert profile.copy.pageable.value == pytest.approx(fitted.pageable_rate, rel=2e-3)
    for constant in (profile.host.sample_rate, profile.copy.pageable):
        assert "fitted to the PCIe 3.0 bars" in constant.source


def test_the_notes_hold_the_tables_as_they_come_out() -> None:
    notes = (Path(validate.__file__).parent / "NOTES.md").read_text(encoding="utf-8")
    lines = [line for line in tables(REFERENCE).splitlines() if line]
    assert len(lines) == 15
    assert [line for line in lines if line not in notes] == []


def test_bars_that_no_constants_yield_are_refused() -> None:
    bars = published_bars(REFERENCE, FITTED_ON)
    with pytest.raises(ValueError, match="sample_rate"):
        fit(load_profile(FITTED_ON), {**bars, ALL_IN_GPU: 1e-9})


def test_alignment_gains_more_by_the_model_than_was_published() -> None:
    """Published: 5 to 10 %. Every sector counts as often as an instruction wants it: no caches."""
    gains = alignment_gain(load_profile(PREDICTED)).set_index(["access", "dim"])["gain"]
    assert gains.loc["an element a lane"].between(0.20, 0.32).all()
    assert gains.loc[("widest", 602)] == pytest.approx(0.133, abs=0.01)
    assert gains.loc[("widest", 100)] == pytest.approx(0.0, abs=1e-6)
    assert (gains >= -1e-9).all()


def test_the_model_does_not_know_why_sorting_helps() -> None:
    """Published: 4.3 times. No request changes, so the model predicts nothing; it says so."""
    assert sorting_gain(load_profile(PREDICTED)) == pytest.approx(1.0, abs=0.01)
