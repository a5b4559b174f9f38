"""Polling beside a run: sensors that hang, break or answer late cost readings and nothing else."""

from __future__ import annotations

import threading

from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.meters.poller import Poller, polling_cost


class Sensor:
    """Counts its readings and lets a test wait for the n-th."""

    def __init__(self) -> None:
        self.count = 0
        self.reached = {n: threading.Event() for n in range(1, 8)}

    def read(self) -> int:
        self.count += 1
        if self.count in self.reached:
            self.reached[self.count].set()
        return self.count


def test_the_window_begins_and_ends_with_a_reading_of_its_own() -> None:
    sensor = Sensor()
    poller = Poller(sensor.read, period_s=60.0)
    poller.start()
    assert poller.stop().samples == [1, 2]  # edges; the thread's turn never came


def test_the_thread_reads_in_between_and_says_what_it_cost() -> None:
    sensor = Sensor()
    poller = Poller(sensor.read, period_s=0.001)
    poller.start()
    assert sensor.reached[4].wait(30)
    polled = poller.stop()
    assert polled.samples == list(range(1, len(polled.samples) + 1))
    assert len(polled.samples) >= 5
    assert polled.error is None
    assert polled.cpu_s is not None
    assert polled.cpu_s > 0
    poller.start()  # a second window begins anew
    assert poller.stop().samples[0] == len(polled.samples) + 1


def test_a_sensor_that_never_answers_is_left_behind() -> None:
    stuck, release = threading.Event(), threading.Event()
    calls = 0

    def read() -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            stuck.set()
            release.wait(30)
        return calls

    poller = Poller(read, period_s=0.001, patience_s=0.01)
    poller.start()
    assert stuck.wait(30)
    polled = poller.stop()
    release.set()
    assert polled.samples == [1]
    assert "did not answer" in str(polled.error)
    cost = polling_cost("cost", polled.cpu_s)
    assert cost.value is None
    assert str(cost.reason).startswith("failed: ")


def test_an_error_ends_the_polling_and_keeps_what_was_read() -> None:
    broke = threading.Event()
    calls = 0

    def read() -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            broke.set()
            raise SensorUnavailableError("failed: the GPU fell off the bus; reset it")
        return calls

    poller = Poller(read, period_s=0.001)
    poller.start()
    assert broke.wait(30)
    polled = poller.stop()
    assert polled.samples == [1, 2]
    assert polled.error == "failed: the GPU fell off the bus; reset it"
    assert calls == 3


def test_an_error_of_another_kind_is_worded() -> None:
    def read() -> int:
        raise ZeroDivisionError("division by zero")

    poller = Poller(read, period_s=60.0)
    poller.start()
    assert poller.stop().error == "failed: ZeroDivisionError: division by zero"


def test_closing_what_was_never_opened_is_no_zero() -> None:
    polled = Poller(lambda: 0, period_s=1.0).stop()
    assert polled.samples == []
    assert str(polled.error).startswith("failed: ")
    assert polled.cpu_s is None
