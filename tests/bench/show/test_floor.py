"""The floor of the harness, a line through the bars of epochs."""

import pytest

from gatherbench.bench.read.derive import limit_of
from gatherbench.bench.show.views.epochs import epoch_breakdown, speedup

from ..written_run import BASELINE, WORKLOAD

#: An epoch is its stages and 0.01 s between them: 0.71 s of the floor, 1.71 and 1.01 s of these.
NO_FETCH = ("no_fetch", "default", (0.2, 0.0, 0.5))
ALIGNED = ("aligned_zero_copy", "given", (0.2, 0.3, 0.5))


def test_a_run_without_a_floor_says_nothing_of_one(run_of):
    run = run_of(series=[BASELINE, ALIGNED])
    assert limit_of(run) is None
    assert not epoch_breakdown(run).marks


def test_the_floor_is_a_line_through_the_bars_of_epochs(run_of):
    run = run_of(series=[BASELINE, ALIGNED, NO_FETCH])
    chart = epoch_breakdown(run)
    assert [one[1:] for one in chart.at] == [(pytest.approx(0.71), "limit")]
    assert chart.marks == {"limit": "no fetch (limit)"}
    assert "the epoch of a path that fetches nothing" in chart.reading
    assert speedup(run).marks == {}
    assert [panel.title for panel in chart.panels()] == [run.names[WORKLOAD]]
