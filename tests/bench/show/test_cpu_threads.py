"""Core-seconds by thread: groups, what was left, and the cores that count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatherbench.bench.meters.threads import METRICS
from gatherbench.bench.read.cpu import GROUPS, cores_of, thread_seconds
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.rows import HEADER

#: Core-seconds of each group, and a window of 2 s.
USED = {
    "cpu_main": 1.0,
    "cpu_gather_workers": 0.5,
    "cpu_sampler_workers": 0.25,
    "cpu_torch_pool": 0.125,
    "cpu_other_threads": 0.01,
    "cpu_ended_threads": 0.02,
    "cpu_meters": 0.03,
}


def metered(folder: Path, used: dict[str, float]) -> Path:
    """Give every epoch of the run in ``folder`` these rows of threads and no others."""
    rows = pd.read_csv(folder / "rows.csv", keep_default_na=False)
    rows = rows[~rows["metric"].isin(METRICS)]
    epochs = rows[(rows["stage"] == "epoch") & (rows["metric"] == "wall_time")]
    parts = [epochs.assign(metric=metric, value=value) for metric, value in used.items()]
    pd.concat([rows, *parts])[list(HEADER)].to_csv(folder / "rows.csv", index=False)
    return folder


def with_env(folder: Path, env: dict[str, Any], **measure: Any) -> Path:
    (folder / "env.json").write_text(json.dumps(env))
    plan = json.loads((folder / "plan.json").read_text())
    plan["measure"].update(measure)
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def test_the_groups_are_those_of_the_meter() -> None:
    assert sorted(metric for metrics in GROUPS.values() for metric in metrics) == sorted(METRICS)
    assert set(USED) == set(METRICS)


def test_groups_and_what_was_left(make_run, tmp_path: Path) -> None:
    folder = metered(make_run(tmp_path / "run"), USED)
    run = load_run(with_env(folder, {"cpu": {"usable_cores": 2, "model": "X"}, "gpus": []}))
    table = thread_seconds(run)
    assert len(table) == 3
    first = table.iloc[0]
    assert first["main"] == pytest.approx(1.0)
    assert first["rest"] == pytest.approx(0.06)
    assert first["median"] == pytest.approx(sum(USED.values()))
    assert first["unused"] == pytest.approx(2 * 2.0 - sum(USED.values()))  # the window is 2 s
    assert first["low"] <= first["median"] <= first["high"]


def test_more_than_there_is_leaves_nothing(make_run, tmp_path: Path) -> None:
    folder = metered(make_run(tmp_path / "run"), {**USED, "cpu_main": 100.0})
    run = load_run(with_env(folder, {"cpu": {"usable_cores": 1, "model": "X"}, "gpus": []}))
    assert set(thread_seconds(run)["unused"]) == {0.0}


@pytest.mark.parametrize(
    ("threads", "node", "cores"),
    [(0, None, 8), (3, None, 3), (0, 1.0, 2), (1, 1.0, 1), (0, 5.0, 8)],
)
def test_the_cores_that_a_case_may_use(
    make_run, tmp_path: Path, threads: int, node: float | None, cores: int
) -> None:
    folder = make_run(tmp_path / "run")
    if node is not None:
        rows = pd.read_csv(folder / "rows.csv", keep_default_na=False)
        bound = rows[rows["metric"] == "open_time"].assign(metric="numa_node", value=node, unit="1")
        pd.concat([rows, bound])[list(HEADER)].to_csv(folder / "rows.csv", index=False)
    env = {
        "cpu": {"usable_cores": 8, "model": "X"},
        "numa": {"processors_by_node": {"0": 6, "1": 2}},
        "gpus": [],
    }
    assert cores_of(load_run(with_env(folder, env, threads=threads))) == cores
