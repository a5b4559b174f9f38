"""What ``gpu-decide`` takes, by the rows of an H200; and the size that has room."""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from gatherbench.bench.plan.plan import largest_scale
from gatherbench.bench.plan.plan_file import load_plan
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.hashed import HashedSource

H200 = Path(__file__).parents[3] / "results" / "nvidia-h200"
#: hashed-papers with all paths, and the two graphs beside it with two paths fewer.
RUNS = {"20261126-gpu-decide-papers-95979b": 14 / 14, "20261126-gpu-decide-271123": 14 / 12}
GIB = 1 << 30


def repeat_s() -> list[float]:
    """Seconds of the first repeat's cases, and of a later one's: all three graphs.

    Scores by degree were computed for both paths that keep hot rows, and now are once a process.
    """
    spent: defaultdict[int, float] = defaultdict(float)
    for run, paths in RUNS.items():
        with (H200 / run / "rows.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if (row["dataset"] == "hashed-papers") != (paths == 1) or not row["value"]:
                    continue
                if (row["stage"], row["metric"]) == ("case", "wall_time"):
                    spent[int(row["repeat"])] += paths * float(row["value"])
                elif row["metric"] == "score_time" and row["variant"].endswith("managed"):
                    spent[int(row["repeat"])] -= float(row["value"])
    return [spent[0], spent[1]]


def test_three_repeats_fit_into_its_budget():
    plan, (first, later) = load_plan("gpu-decide"), repeat_s()
    assert plan.measure.min_repeats == 3
    told = (186, 132)  # docs/gpu-machine.md
    assert (first, later) == (pytest.approx(told[0], abs=1), pytest.approx(told[1], abs=1))
    assert first + 2 * later < plan.measure.budget_s


def test_the_large_table_takes_what_host_and_disk_have_room_for():
    """Two tables of 48 GiB and a graph of 8 GiB need 116 GiB: nine tenths of what is free."""
    plan = load_plan("gpu-decide")
    sizes = {
        (host, disk): [w.scale for w in plan.fitted(host * GIB, disk * GIB).workloads()]
        for host, disk in ((120, 50), (110, 50), (50, 50), (120, 5))
    }
    assert sizes == {
        (120, 50): [1, 1, 1],
        (110, 50): [0.5, 1, 1],
        (50, 50): [0.25, 1, 1],
        (120, 5): [0.5, 1, 1],
    }
    assert [w.scale for w in plan.workloads()] == [1, 1, 1], "unless a machine is asked"
    with pytest.raises(DatasetError, match="not 100 to"):
        largest_scale("hashed-papers", 1.0, 1000, GIB)
    assert HashedSource().estimate(1.0).table_bytes == 48 * GIB
