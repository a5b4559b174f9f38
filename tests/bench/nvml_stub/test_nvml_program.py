"""``gpu-meters`` from calibration to pictures, with the stub's sensors and no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Play = Callable[..., Any]


def about(watts: float, told: float) -> bool:
    """Energy's window holds the clock's, so that power is never too low, and on a busy machine
    somewhat high."""
    return 0.99 * watts <= told < 2 * watts


def test_the_workers_verb_writes_rows_and_a_choice(play: Play) -> None:
    found = play("worker")
    assert found["choice"] == "counters"
    assert found["end"] == ["ok", None]
    rows = found["rows"]
    assert about(250, rows["idle_power"])
    assert rows["idle_gpu_temperature"] == pytest.approx(273.15 + 57)
    assert rows["link_gen_idle"] == rows["link_gen_loaded"] == 1
    assert rows["pcie_trusted"] == 1


@pytest.mark.parametrize(
    ("words", "kind"), [({"init_return": 4}, "no_permission: "), ({"gpu0.lost": 1}, "failed: ")]
)
def test_a_driver_that_refuses_ends_the_verb_well(
    play: Play, words: dict[str, int], kind: str
) -> None:
    found = play("worker", words)
    assert found["end"] == ["ok", None]
    assert found["choice"] is None
    assert kind in found["reason"]
    assert found["reasons"]["idle_power"].startswith(kind)
    assert found["rows"]["idle_power"] is None


def test_from_calibration_to_pictures(play: Play) -> None:
    found = play("program")
    assert found["status"] == "ok"
    value = {(stage, metric): v for stage, metric, v, _, _ in found["rows"]}
    source = {(stage, metric): s for stage, metric, _, _, s in found["rows"]}
    reason = {(stage, metric): r for stage, metric, _, r, _ in found["rows"]}
    assert source["calibration", "pcie_trusted"].startswith("counters")
    assert about(250, value["calibration", "idle_power"])
    assert value["calibration", "link_gen_loaded"] == 1
    watts = value["energy", "gpu_energy"] / value["energy", "window_time"]
    assert about(400, watts)
    assert value["energy", "epochs"] >= 1
    assert source["energy", "epochs"].startswith("further epochs")
    assert value["energy", "pcie_host_to_device"] > 0
    assert "too short" in reason["epoch", "gpu_energy"]
    assert "zeus" in reason["cross_check", "gpu_energy_zeus"]
    wanted = {"calibration.csv", "env.json", "epoch_breakdown.png", "rows.csv", "timeline.parquet"}
    assert wanted <= set(found["files"])
