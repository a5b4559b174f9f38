"""Which source a run believes: every way in which drivers have been wrong, against known copies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

Play = Callable[..., Any]
Begin = Callable[..., "Future[Any]"]


DRIVERS: list[tuple[dict[str, float], str, str | None]] = [
    ({}, "counters", None),
    ({"gpu0.counter_factor": 1.1}, "counters", None),  # headers of packets
    ({"gpu0.counter_factor": 1.67}, "gpm", "outside 0.95 to 1.25"),
    ({"gpu0.counter_factor": 0.001}, "gpm", "counts 0.001 B for each byte"),
    ({"gpu0.counter_factor": 1000}, "gpm", ""),  # wraps beyond recognition
    ({"gpu0.counter_factor": 0}, "gpm", "counts 0 B for each byte"),
    ({"gpu0.field_return": 3}, "gpm", "driver 555"),
    ({"gpu0.field_return": 3, "gpu0.gpm": 0}, "throughput", "begin with Hopper"),
    ({"gpu0.field_return": 3, "gpu0.gpm_zero": 1}, "throughput", "came back as 0"),
    ({"gpu0.field_return": 3, "gpu0.gpm_factor": 1000}, "throughput", "outside"),
]


@pytest.fixture(scope="module")
def calibrations(begin: Begin) -> list[Future[Any]]:
    """What becomes of the calibration with each of :data:`DRIVERS`."""
    # What comes after the source that is taken costs the test its time alone.
    silent = {"gpu0.throughput_return": 3}
    return [
        begin("calibration", words | silent if chosen == "gpm" else words)
        for words, chosen, _ in DRIVERS
    ]


@pytest.mark.parametrize("number", range(len(DRIVERS)), ids=lambda n: str(DRIVERS[n][0]))
def test_the_first_source_that_is_right_both_ways_is_taken(
    calibrations: list[Future[Any]], number: int
) -> None:
    _, chosen, said = DRIVERS[number]
    found = calibrations[number].result()
    assert found["choice"] == chosen, found
    for direction in ("host_to_device", "device_to_host"):
        assert 0.95 <= found["ratios"][f"{chosen}.{direction}"] <= 1.25
    against = " ".join(v for v in found["verdicts"].values() if v)
    if said is None:
        assert not against
    else:
        assert said in against
    assert found["loaded"] == 1


def test_the_link_is_looked_at_before_and_while_it_carries(play: Play) -> None:
    found = play("calibration", {"gpu0.gen_max": 4, "gpu0.gpm": 0, "gpu0.throughput_return": 3})
    assert (found["idle"], found["loaded"]) == (1, 4)


def test_where_nothing_is_right_nothing_is_read_and_the_reason_names_all(play: Play) -> None:
    words = {"gpu0.field_return": 3, "gpu0.gpm": 0, "gpu0.throughput_factor": 1.67}
    found = play("calibration", words)
    assert found["choice"] is None
    assert "counters host to device" in found["reason"]
    assert "gpm host to device" in found["reason"]
    assert "throughput host to device: counts 1." in found["reason"]


def test_a_gpu_lost_during_the_calibration_ends_without_a_choice(play: Play) -> None:
    found = play("calibration", {"gpu0.lost_after": 20})
    assert found["choice"] is None
    assert "GPU is lost" in found["reason"]
