"""The floor of the harness: which part of an epoch is the path's, and when nobody can say so."""

import pytest

from gatherbench.bench.read.floor import floor_of, floors, path_shares
from gatherbench.bench.show.views.epochs import epoch_breakdown, speedup

from ..printed import told
from ..written_run import BASELINE, WORKLOAD

#: An epoch is its stages and 0.01 s between them: 0.71 s of the floor, 1.71 and 1.01 s of these.
NO_FETCH = ("no_fetch", "default", (0.2, 0.0, 0.5))
ALIGNED = ("aligned_zero_copy", "given", (0.2, 0.3, 0.5))


def test_what_a_path_has_beyond_the_floor_is_its_share_of_the_epoch(run_of):
    run = run_of(series=[BASELINE, ALIGNED, NO_FETCH])
    shares = path_shares(run).set_index("strategy")
    assert list(shares.index) == ["cpu_gather", "aligned_zero_copy"], "the floor has no share"
    assert shares.loc["cpu_gather", "share"] == pytest.approx(1 - 0.71 / 1.71)
    assert shares.loc["aligned_zero_copy", "share"] == pytest.approx(1 - 0.71 / 1.01)
    said = [one.text for one in told(run)]
    assert (
        "Share of the epoch that is the data path’s: cpu_gather naive 58.5 % and aligned_zero_copy"
        " given 29.7 %; the rest is common to all."
    ) in said
    assert not any("no_fetch" in one for one in said), "it is never ranked"


def test_the_interval_of_a_share_is_the_ratios_the_other_way_round(run_of):
    run = run_of(series=[BASELINE, NO_FETCH], jitter=0.05)
    (line,) = path_shares(run).to_dict("records")
    assert line["low"] < line["share"] < line["high"] < 1
    assert line["low"] > 0, "so it is told from the floor"


@pytest.mark.parametrize("fetch", [0.0, 0.01])
def test_paths_that_are_the_floor_but_for_noise_are_the_first_thing_said(run_of, fetch):
    near = ("cpu_gather", "naive", (0.2, fetch, 0.5))
    run = run_of(
        series=[near, ("aligned_zero_copy", "given", (0.2, 0.0, 0.5)), NO_FETCH], jitter=0.3
    )
    first = told(run)[0]
    assert first.kind == "warning"
    assert first.text.startswith("No data path differs from no_fetch, the floor of the harness, by")
    assert "fanouts, batch_size" in first.text
    assert not [one for one in told(run) if one.text.startswith("Share of the epoch")]


def test_one_path_that_differs_from_the_floor_is_enough(run_of):
    run = run_of(series=[BASELINE, ("aligned_zero_copy", "given", (0.2, 0.0, 0.5)), NO_FETCH])
    assert not [one for one in told(run) if one.text.startswith("No data path differs")]


def test_one_repeat_tells_nothing_of_the_floor(run_of):
    run = run_of(series=[BASELINE, NO_FETCH], repeats=1)
    assert path_shares(run)["low"].isna().all()
    assert not any("floor" in one.text for one in told(run))


def test_a_run_without_a_floor_says_nothing_of_one(run_of):
    run = run_of(series=[BASELINE, ALIGNED])
    assert floor_of(run) is None
    assert path_shares(run).empty
    assert not any("data path’s" in one.text or "floor" in one.text for one in told(run))
    assert not epoch_breakdown(run).marks


def test_the_floor_is_a_line_through_the_bars_of_epochs(run_of):
    run = run_of(series=[BASELINE, ALIGNED, NO_FETCH])
    chart = epoch_breakdown(run)
    assert [panel.marks for panel in chart.panels] == [[(pytest.approx(0.71), "floor")]]
    assert chart.marks == {"floor": "floor of the harness"}
    assert "the epoch of a path that fetches nothing" in chart.reading
    assert floors(run, path_shares(run).assign(median=1.0, basis="measured")) == {}
    assert speedup(run).marks == {}
    assert [panel.title for panel in chart.panels] == [run.names[WORKLOAD]]
