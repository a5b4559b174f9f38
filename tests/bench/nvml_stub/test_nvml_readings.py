"""The GPU's meters against a driver that tells the truth, and against every way it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Play = Callable[..., Any]
TO_DEVICE, TO_HOST = "pcie_host_to_device", "pcie_device_to_host"
RATE = 3e9


def rate_of(reading: dict[str, Any]) -> float:
    """Bytes a second between the first and the last reading of a counter."""
    (begin_s, _), (end_s, total) = reading["series"][0], reading["series"][-1]
    assert total == reading["value"]
    return float(total / (end_s - begin_s))


def test_counters_are_unwrapped_and_directions_are_named_from_the_host(play: Play) -> None:
    found = play("transfer")  # begins 295 MB below 2^32 and moves more than 1 GB
    assert found[TO_DEVICE]["value"] > 2**32 - 4_000_000_000
    assert rate_of(found[TO_DEVICE]) == pytest.approx(RATE, rel=0.1)
    assert rate_of(found[TO_HOST]) == pytest.approx(RATE / 10, rel=0.1)
    assert found[TO_DEVICE]["source"] == "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"
    assert found[TO_HOST]["source"] == "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"
    assert found[TO_DEVICE]["samples"] >= 3
    assert found["pcie_polling_cpu"]["value"] > 0


def test_a_driver_that_stamps_nothing_is_read_by_the_hosts_clock(play: Play) -> None:
    found = play("transfer", {"gpu0.timestamp": -1})
    # Stamp and value are two moments then, and a busy machine may come between them.
    assert RATE / 2 < rate_of(found[TO_DEVICE]) < 2 * RATE


def test_a_counter_that_the_driver_does_not_refresh_is_no_zero(play: Play) -> None:
    words = {"gpu0.timestamp": 1_700_000_000_000_000, "gpu0.counter_factor": 0}
    found = play("transfer", words)
    assert found[TO_DEVICE]["value"] is None
    assert "did not refresh" in found[TO_DEVICE]["reason"]


def test_a_gap_in_which_the_counter_may_have_wrapped_gives_no_number(play: Play) -> None:
    # On the fastest link there is, 32 bits last for 34 ms.
    found = play("seldom_polled", {"gpu0.gen_max": 6})
    assert found[TO_DEVICE]["value"] is None
    assert "wrap" in found[TO_DEVICE]["reason"]


def test_a_link_of_an_unknown_kind_gives_no_number(play: Play) -> None:
    found = play("transfer", {"gpu0.gen_max": 9})
    assert found[TO_DEVICE]["value"] is None
    assert found[TO_DEVICE]["reason"].startswith("unsupported: PCIe generation 9")


def test_a_counter_that_is_reset_gives_no_number(play: Play) -> None:
    # From 4.0 e9 to one less is a rise of 2^32 - 1 bytes in 20 ms.
    found = play("counter_resets")
    assert found[TO_DEVICE]["value"] is None
    assert "more than the link carries" in found[TO_DEVICE]["reason"]
    assert found[TO_HOST]["value"] == 0


@pytest.mark.parametrize("how", ["field_return", "rx_return"])
def test_a_driver_too_old_for_the_fields_says_so(play: Play, how: str) -> None:
    found = play("transfer", {f"gpu0.{how}": 3})
    for direction in (TO_DEVICE, TO_HOST):
        assert found[direction]["value"] is None
        assert found[direction]["reason"].startswith("unsupported: NVML says 'Not Supported'")
        assert "driver 555" in found[direction]["reason"]


@pytest.mark.parametrize("words", [{"gpu0.fields_return": 4}, {"init_return": 4}])
def test_permission_denied_is_a_reason_with_a_remedy(play: Play, words: dict[str, int]) -> None:
    found = play("transfer", words) | play("short_power_window", words)
    for metric in (TO_DEVICE, TO_HOST, "gpu_power"):
        assert found[metric]["value"] is None
        assert found[metric]["reason"].startswith("no_permission: NVML says")
        assert "/dev/nvidia" in found[metric]["reason"]


def test_a_gpu_that_is_lost_in_the_middle_costs_its_readings_and_nothing_else(play: Play) -> None:
    found = play("lost_on_the_way")
    for metric in (TO_DEVICE, TO_HOST, "gpu_energy", "gpu_power", "gpu_temperature"):
        assert found[metric]["value"] is None, metric
        assert found[metric]["reason"].startswith("failed: NVML says 'GPU is lost'"), metric


def test_a_field_that_fails_in_the_middle_costs_its_own_direction(play: Play) -> None:
    found = play("one_field_fails")
    assert found[TO_DEVICE]["value"] is None
    assert found[TO_DEVICE]["reason"].startswith("unsupported: NVML says 'Not Supported'")
    assert found[TO_HOST]["value"] == 0


def test_the_next_window_asks_again(play: Play) -> None:
    assert play("lost_and_back")[TO_DEVICE]["value"] == 0


def test_two_gpus_are_told_apart_by_uuid(play: Play) -> None:
    found = play("second_gpu", {"devices": 2})
    assert rate_of(found[TO_DEVICE]) == pytest.approx(RATE, rel=0.1)
    assert play("gpus", {"devices": 2}) == ["Stub 1", "Stub 2"]


@pytest.mark.parametrize("visible", ["", "1,0", "GPU-second", "0"])
def test_torchs_index_is_never_nvmls(play: Play, visible: str) -> None:
    """Whatever CUDA_VISIBLE_DEVICES does to torch's numbers, the UUID leads to the GPU."""
    found = play("names", {"devices": 2}, CUDA_VISIBLE_DEVICES=visible)
    assert found["0:first"] == found["0:GPU-first"] == 4_000_000_000
    assert found["1:second"] == 77
    assert found["0:nobody"].startswith("no_device: ")


@pytest.mark.parametrize("visible", ["MIG-slice", "0"])
def test_an_instance_of_a_partitioned_gpu_has_no_sensors(play: Play, visible: str) -> None:
    words = {"devices": 2, "gpu0.mig": 1, "gpu1.uuid": "MIG-slice"}
    found = play("names", words, CUDA_VISIBLE_DEVICES=visible)
    assert "(MIG)" in found["0:slice"]
    # A UUID of the whole GPU must not pass for that of its instance.
    assert "(MIG)" in found["0:first"] or visible.startswith("MIG-")


def test_energy_is_the_counters_difference_over_a_long_window(play: Play) -> None:
    found = play("power_window")
    low, high = (250 * found[edge] for edge in ("slept_s", "elapsed_s"))
    assert low <= found["gpu_energy"]["value"] <= high + 0.001  # the counter's step
    assert found["gpu_power"]["value"] == 250
    assert found["gpu_power"]["samples"] >= 3
    assert found["gpu_power_average"]["value"] == 250
    assert found["gpu_temperature"]["value"] == pytest.approx(273.15 + 57)
    assert found["gpu_clock"]["value"] == found["gpu_clock_lowest"]["value"] == 1.83e9
    assert found["gpu_slowed"]["value"] == 0
    assert found["gpu_power_polling_cpu"]["value"] > 0


def test_short_windows_of_energy_are_refused(play: Play) -> None:
    found = play("short_power_window")
    assert found["gpu_energy"]["value"] is None
    assert "too short" in found["gpu_energy"]["reason"]
    assert "too short for what averages over 1 s" in found["gpu_power_average"]["reason"]
    assert found["gpu_power"]["value"] == 250


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpu0.power_mw": 0}, "stood still"),
        ({"gpu0.energy_return": 3}, "Not Supported"),
        ({"gpu0.energy_return": 4}, "no_permission: "),
    ],
)
def test_an_energy_counter_that_fails_costs_only_itself(
    play: Play, words: dict[str, int], said: str
) -> None:
    found = play("power_window", words)
    assert found["gpu_energy"]["value"] is None
    assert said in found["gpu_energy"]["reason"]
    if "gpu0.power_mw" in words:
        assert "says 0 W" in found["gpu_power"]["reason"]
    assert found["gpu_temperature"]["value"] is not None


@pytest.mark.parametrize(("milliwatts", "watts"), [(240_500, 240.5), (0, None)])
def test_a_driver_without_the_fields_of_power_is_asked_by_the_older_call(
    play: Play, milliwatts: int, watts: float | None
) -> None:
    words = {"gpu0.power_return": 3, "gpu0.usage_mw": milliwatts}
    power = play("short_power_window", words)["gpu_power"]
    assert power["value"] == watts
    if watts is None:  # neither is there: the field's own reason stands
        assert power["reason"].startswith("unsupported: NVML says 'Not Supported'")
    else:
        assert power["source"].startswith("mean of nvmlDeviceGetPowerUsage")


def test_what_slows_the_gpu_down_is_named(play: Play) -> None:
    found = play("power_window", {"gpu0.reasons": 0x1 | 0x4 | 0x40, "gpu0.power_return": 3})
    assert found["gpu_slowed"]["value"] == 1
    assert "power cap, thermal (hardware)" in found["gpu_slowed"]["source"]
    assert found["gpu_power"]["value"] is None
    idle = play("short_power_window", {"gpu0.reasons": 0x1 | 0x2})
    assert idle["gpu_slowed"]["value"] == 0


def test_the_average_of_a_second_is_not_the_power_of_the_moment(play: Play) -> None:
    found = play("power_window", {"gpu0.average_mw": 240_000})
    assert found["gpu_power"]["value"] == 250
    assert found["gpu_power_average"]["value"] == 240


def test_a_window_says_the_worst_that_it_saw(play: Play) -> None:
    found = play("cooling_window")
    assert found["gpu_temperature"]["value"] == pytest.approx(273.15 + 85)
    assert found["gpu_clock_lowest"]["value"] == 1.2e9 < found["gpu_clock"]["value"] < 1.83e9
    assert 0 < found["gpu_slowed"]["value"] < 1
    assert "thermal (hardware)" in found["gpu_slowed"]["source"]


def test_sources_that_block_are_kept_out_of_what_is_timed(play: Play) -> None:
    found = play("every_source")
    blocked = found.pop("throughput.timed")
    assert blocked[TO_DEVICE]["value"] is None
    assert "kept out of timed epochs" in blocked[TO_DEVICE]["reason"]
    assert len(found) == 5
    for name, readings in found.items():
        assert readings[TO_DEVICE]["value"] > 0.4 * RATE, name
        share = readings[TO_HOST]["value"] / readings[TO_DEVICE]["value"]
        assert share == pytest.approx(1 / 3, rel=0.1), f"{name}: the directions are not told apart"


def test_a_metric_that_refuses_alone_is_no_number(play: Play) -> None:
    found = play("every_source", {"gpu0.metric_return": 3})
    for timed in ("timed", "untimed"):
        assert found[f"gpm.{timed}"][TO_DEVICE]["value"] is None
        assert "Not Supported" in found[f"gpm.{timed}"][TO_DEVICE]["reason"]
    assert found["counters.timed"][TO_DEVICE]["value"] is not None


def test_metrics_need_their_interval(play: Play) -> None:
    found = play("short_gpm_window")
    assert found[TO_DEVICE]["value"] is None
    assert "0.2 s" in found[TO_DEVICE]["reason"]


def test_the_cost_of_a_reading_can_be_stated(play: Play) -> None:
    assert play("polling_cost") > 0
