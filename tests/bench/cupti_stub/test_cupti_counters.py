"""Managed memory's counters against a CUPTI that plays every trick: right sums, or a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Scenario = Callable[..., Any]

#: By counter, as JSON has them: moved to the GPU, to the host, faults of the CPU and of the GPU.
RECORDS = {"1": 3, "2": 1, "3": 1, "4": 2}
MOVED = {"1": 65536 + (2 << 20) + 4096, "2": 1 << 33, "4": 4}


def assert_all_counted(found: dict[str, Any]) -> None:
    assert found["records"] == RECORDS
    assert {k: v for k, v in found["values"].items() if k != "3"} == MOVED


@pytest.mark.parametrize("how", ["sums", "on_a_thread", "late"])
def test_records_are_added_up_however_they_are_handed_over(scenario: Scenario, how: str) -> None:
    found = scenario(how)
    assert_all_counted(found)
    assert found["api"] == 130001


def test_the_smaller_records_of_older_libraries_are_read_as_such(scenario: Scenario) -> None:
    found = scenario("smaller_records")
    assert_all_counted(found)
    assert found["api"] == 22


def test_a_thread_of_the_driver_may_ask_while_python_works(scenario: Scenario) -> None:
    found = scenario("beside")
    assert found["records"] == {"1": 20_000}
    assert found["values"] == {"1": 20_000 * 4096}


def test_records_of_other_kinds_are_stepped_over(scenario: Scenario) -> None:
    assert scenario("unknown_records")["values"] == {"1": 4096}


def test_records_that_cannot_be_stepped_over_leave_no_sum(scenario: Scenario) -> None:
    found = scenario("broken_records")
    assert set(found) == {"reason"}
    assert found["reason"].startswith("failed: cuptiActivityGetNextRecord")


def test_dropped_records_leave_no_sum_and_the_next_window_its_own(scenario: Scenario) -> None:
    found = scenario("too_many")
    assert found["full"] == {
        "reason": "failed: CUPTI dropped 3 records; count a shorter epoch"
    }  # of five, two fitted
    assert found["next"]["values"] == {"1": 4096}


def test_records_held_back_leave_no_sum_now_or_later(scenario: Scenario) -> None:
    found = scenario("kept_with_records")
    assert found["first"]["reason"].startswith("failed: ")
    assert found["next"]["reason"].startswith("failed: ")


def test_an_empty_buffer_that_is_held_back_loses_nothing(scenario: Scenario) -> None:
    found = scenario("kept_empty")
    assert found["first"]["records"] == {}
    assert found["next"]["values"] == {"1": 4096}


def test_each_window_has_its_own_records(scenario: Scenario) -> None:
    first, second, empty, enabled, buffers = scenario("windows")
    assert first["values"] == {"1": 4096}
    assert second["values"] == {"1": 8192}
    assert empty["records"] == {}
    assert enabled == 0
    assert buffers == 1  # the same one each time


def test_whatever_cupti_refuses_is_a_reason_and_counting_stops(scenario: Scenario) -> None:
    found = scenario("refusals")
    tools = Path("/dev/nvidia-uvm-tools").exists()
    kinds = {
        "version": "failed",
        "configure": "unsupported" if tools else "no_permission",
        "privileges": "no_permission",
        "mps": "unsupported",
        "enable": "busy",
        "flush": "failed",
        "disable": "failed",
    }
    for name, kind in kinds.items():
        reason, enabled = found[name]
        assert reason.startswith(f"{kind}: "), (name, reason)
        assert "; " in reason  # and the remedy
        assert not enabled, name
    assert found["after"] == [None, 0]


def test_a_library_that_is_not_understood_is_not_read(scenario: Scenario) -> None:
    found = scenario("libraries")
    assert "libcupti.so.nowhere" in found["none"]
    for name in ("newer", "older", "larger", "smaller"):
        assert found[name]["reason"].startswith("unsupported: ")
    assert "104 bytes" in found["larger"]["reason"]


def test_a_case_with_managed_memory_gets_an_epoch_of_its_own(scenario: Scenario) -> None:
    found = scenario("meter")
    assert (found["unmanaged"], found["epochs"]) == ([], 0)
    counted = {row[0]: row for row in found["counted"]}
    assert found["epochs_counted"] == 1
    assert {row[-1] for row in found["counted"]} == {"uvm"}
    values = {metric: (row[1], row[2]) for metric, row in counted.items()}
    assert values.pop("window_time")[1] > 0
    assert values == {
        "epochs": ("1", 1),
        "gpu_page_fault_records": ("1", 2),
        "gpu_page_faults": ("1", 4),
        "cpu_page_faults": ("1", 1),
        "migrated_host_to_device": ("B", MOVED["1"]),
        "migrated_device_to_host": ("B", MOVED["2"]),
    }
    source = counted["migrated_host_to_device"][3]
    assert source == "cupti BYTES_TRANSFER_HTOD values, API 130001 [samples=3]"


def test_counters_that_miss_a_known_move_are_not_believed(scenario: Scenario) -> None:
    found = scenario("meter")
    for case, kind in (("half_known", "failed"), ("no_move", "unsupported")):
        read = [row for row in found[case] if row[3].startswith("cupti ")]
        assert len(read) == 5
        assert {row[2] for row in read} == {None}
        assert {row[5].partition(":")[0] for row in read} == {kind}
    assert "counted 1048576" in found["half_known"][1][5]
    assert found["closed"] == 5  # however each of the windows ended


def test_with_a_trace_no_epoch_is_spent(scenario: Scenario) -> None:
    found = scenario("meter")
    assert found["epochs_traced"] == found["epochs_counted"]
    assert len(found["traced"]) == 5
    for row in found["traced"]:
        assert row[2] is None
        assert row[5].startswith("busy: --trace ")


def test_a_profiler_around_the_process_is_told(scenario: Scenario) -> None:
    found = scenario("meter", CUDA_INJECTION64_PATH="libprofiler.so")
    assert {row[5].partition(":")[0] for row in found["counted"]} == {"busy"}
    assert found["epochs_counted"] == 0


def test_what_fails_costs_the_case_nothing(scenario: Scenario) -> None:
    found = scenario("meter")
    refused = {row[0]: row for row in found["refused"]}
    assert refused["gpu_page_faults"][5].startswith("no_permission: ")
    ((metric, _, value, _, status, reason, _),) = found["breaks"]
    assert (metric, value, status) == ("epochs", None, "failed")
    assert "ZeroDivisionError" in reason
    assert found["enabled"] == 0
    assert found["idle"].startswith("unsupported: ")
