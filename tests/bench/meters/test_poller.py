"""Polling beside a run: sensors that hang, break or answer late cost readings and nothing else."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatherbench.bench.meters.poller import Poller, Wrapping
from gatherbench.reason import Reason, SensorUnavailableError

LOST = Reason("failed", "the GPU fell off the bus", "reset it")


class Sensor:
    """Counts its readings, breaks at one of them, and lets a test wait for the n-th."""

    def __init__(self, breaks_at: int = 0, error: Exception | None = None) -> None:
        self.count, self.breaks_at, self.error = 0, breaks_at, error
        self.reached = {n: threading.Event() for n in range(1, 8)}

    def read(self) -> int:
        self.count += 1
        if self.count in self.reached:
            self.reached[self.count].set()
        if self.count == self.breaks_at and self.error:
            raise self.error
        return self.count


def test_the_window_begins_and_ends_with_a_reading_of_its_own():
    poller = Poller(Sensor().read, period_s=60.0)
    poller.start()
    assert poller.stop().samples == [1, 2]  # edges; the thread's turn never came


def test_the_thread_reads_in_between_and_says_what_it_cost():
    sensor = Sensor()
    poller = Poller(sensor.read, period_s=0.001)
    poller.start()
    assert sensor.reached[4].wait(30)
    polled = poller.stop()
    assert polled.samples == list(range(1, len(polled.samples) + 1))
    assert len(polled.samples) >= 5
    assert polled.error is None
    assert isinstance(polled.cost, float)
    assert polled.cost > 0
    poller.start()  # a second window begins anew
    assert poller.stop().samples[0] == len(polled.samples) + 1


def test_what_polling_cost_is_the_time_of_its_own_thread():
    """Three readings of 5 ms of the processor each in the thread, whatever else there is."""
    sensor = Sensor()

    def read() -> int:
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass
        return sensor.read()

    poller = Poller(read, period_s=0.001)
    poller.start()
    assert sensor.reached[4].wait(30)
    before = time.thread_time()
    cost = poller.stop().cost
    assert isinstance(cost, float)
    assert 0.015 <= cost < 60
    assert time.thread_time() - before >= 0.005, "the last reading is the caller's"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SensorUnavailableError(LOST), str(LOST)),
        (ZeroDivisionError("of what"), "failed: ZeroDivisionError: of what"),
    ],
)
def test_an_error_ends_the_polling_and_keeps_what_was_read(error, said):
    sensor = Sensor(3, error)
    poller = Poller(sensor.read, period_s=0.001)
    poller.start()
    assert sensor.reached[3].wait(30)
    polled = poller.stop()
    assert (polled.samples, str(polled.error), sensor.count) == ([1, 2], said, 3)


def test_closing_what_was_never_opened_is_no_zero():
    polled = Poller(lambda: 0, period_s=1.0).stop()
    assert polled.samples == []
    assert str(polled.error).startswith("failed: ")
    assert polled.cost == polled.error


#: Of a link of 16 lanes of generation 5: 32 bits of bytes are counted in 68 ms.
MODULUS, FAST = 2**32, 63.0e9
COUNTER = Wrapping("the counter", "B", MODULUS, FAST, stamp_s=0.005)


@given(
    start=st.integers(0, MODULUS - 1),
    steps=st.lists(st.tuples(st.floats(0.001, 0.067), st.floats(0, 1)), max_size=60),
)
def test_whatever_a_counter_can_count_is_summed_exactly(start, steps):
    total, now, counts, sums = 0, 1e9, [(1e9, start)], [0]
    for gap_s, load in steps:
        total += int(gap_s * load * FAST)
        now += gap_s
        counts.append((now, (start + total) % MODULUS))
        sums.append(total)
    assert [bytes_ for _, bytes_ in COUNTER.accumulate(counts)] == sums


def test_readings_that_were_not_refreshed_are_left_out():
    counts = [(1.0, 5), (1.0, 5), (1.02, 9), (1.02, 9)]
    assert COUNTER.accumulate(counts) == [(1.0, 0), (1.02, 4)]


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([], "too_short: the counter was never read"),
        ([(1.0, 0), (0.9, 1)], "backwards"),
        ([(1.0, 100), (1.01, 99)], "more than is possible"),
        # At 55 GB/s a plain difference would lose 4 GiB.
        ([(1.0, 0), (1.08, int(0.08 * 55e9) % MODULUS)], r"0\.08 s between two .* every 0.0682 s"),
    ],
)
def test_what_makes_no_sum_is_refused(counts, why):
    with pytest.raises(SensorUnavailableError, match=why):
        COUNTER.accumulate(counts)
