"""Page visits that are counted again: where they stood, and only if all else is as it was."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.run.rows import RowMaker
from tools.declare_anew import AGAIN, visits

ROOT = Path(__file__).parents[2]
THEN = RowMaker("run", "then", "box", "cuda", strategy="aligned", basis="declared")
BEFORE = [
    THEN.ok("fetch", "gpu_requests_128_bytes", "1", 40, "count"),
    THEN.ok("fetch", "gpu_page_visits", "1", 7, "pages of 2 MiB"),
    THEN.ok("train", "launches", "1", 3, "count"),
    replace(THEN, basis="measured").ok("fetch", "wall_time", "s", 2, "clock"),
]
NOW = [
    replace(row, commit="now", value=value, metric=metric, source=source)
    for row, value, metric, source in (
        (BEFORE[0], 40.0, "gpu_requests_128_bytes", "count"),
        (BEFORE[1], 100.0, "gpu_page_visits", "pages of 64 KiB"),
        (BEFORE[1], 0.0, "managed_page_visits", "pages of 2048 KiB"),
    )
]


def test_both_counts_stand_where_one_stood():
    """In the coordinates of the run; what training takes does not depend on the rows' places."""
    found = visits(BEFORE, NOW)
    said = [(r.metric, r.value, r.commit, r.reason) for r in found]
    assert said == [
        ("gpu_page_visits", 100.0, "then", None),
        ("managed_page_visits", 0.0, "then", None),
    ]
    assert found[0].source == f"pages of 64 KiB; {AGAIN}"
    assert visits([BEFORE[0], *found, *BEFORE[2:]], NOW) == found, "a second time changes nothing"


@pytest.mark.parametrize("now", [[replace(NOW[0], value=41.0), *NOW[1:]], NOW[1:]])
def test_where_another_count_differs_there_is_none(now):
    for row in visits(BEFORE, now):
        assert (row.value, row.status) == (None, "failed")
        assert row.reason == (
            "failed: fetch.gpu_requests_128_bytes came out otherwise when counted again"
        )


def test_the_committed_runs_say_of_which_pages_they_count():
    """Registered memory by 64 KiB, managed by 2 MiB, each path in one of them alone."""
    sorted_visits = {}
    for file in (ROOT / "results/nvidia-h200").glob("*/rows.csv"):
        rows = pd.read_csv(file, low_memory=False)
        if "rank" not in rows:  # of probes
            continue
        for metric, page in (("gpu_page_visits", "64"), ("managed_page_visits", "2048")):
            mine = rows[(rows["metric"] == metric) & (rows["basis"] == "declared")]
            assert len(mine)
            assert mine["source"].str.contains(f"pages of {page} KiB").all()
            elsewhere = mine["variant"].str.contains("managed") == (metric == "gpu_page_visits")
            assert not mine["value"][elsewhere].any()
            found = mine[mine["variant"].str.startswith("sorted") & (mine["value"] > 0)]
            for workload, value in found[["workload", "value"]].values:  # more in longer epochs
                key = workload[:6], metric
                sorted_visits[key] = max(value, sorted_visits.get(key, 0))
    assert sorted_visits == {
        ("reddit", "gpu_page_visits"): 426_041,
        ("produc", "gpu_page_visits"): 737_014,
        ("papers", "gpu_page_visits"): 2_565_910,
        ("papers", "managed_page_visits"): 203_394,
        ("hashed", "gpu_page_visits"): 1_040_239,
    }
