"""Meters that hang, raise or talk nonsense: a reason in the table, and the run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar, cast

import pytest

from gatherbench.bench.meters.base import Reading, cited
from gatherbench.bench.meters.recorder import PATIENCE_S, Recorder
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run.store import PartWriter, read_part, rows_of
from gatherbench.reason import Reason


class Scripted:
    """Answers as told."""

    name: ClassVar[str] = "scripted"
    summary: ClassVar[str] = "a test"

    def __init__(self, stop: Callable[[], Any], start: Callable[[], object] = lambda: None) -> None:
        self._stop, self._start = stop, start

    def probe(self) -> Reason | None:
        return None

    def start(self) -> None:
        self._start()

    def stop(self) -> list[Reading]:
        return cast("list[Reading]", self._stop())


def good(name: str = "good") -> Scripted:
    return Scripted(lambda: [Reading(name, "1", 1.0, "test", samples=1)])


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_meter_that_hangs_is_left_behind_and_not_called_again(verb, hang):
    calls: list[str] = []

    def noted() -> None:
        calls.append("called")
        hang()

    hanging = Scripted(noted) if verb == "stop" else Scripted(list, start=noted)
    recorder = Recorder([good("a"), hanging, good("b")])
    for _ in range(2):
        with recorder:
            pass
        a, hung, b = recorder.readings
        assert (a.metric, a.value, b.metric, b.value) == ("a", 1.0, "b", 1.0)
        assert hung.value is None
        assert str(hung.reason) == f"failed: {verb} did not return within {PATIENCE_S:g} s"
    assert calls == ["called"]


def test_an_abandoned_thread_calls_no_further_meter_when_it_comes_back(hang, gate):
    """Else two threads would call one meter at once."""
    started: list[str] = []
    hung_in: list[threading.Thread] = []

    def noted() -> None:
        hung_in.append(threading.current_thread())
        hang()

    after = Scripted(list, start=lambda: started.append("after"))
    with Recorder([Scripted(list, start=noted), after]):
        gate.set()
        hung_in[0].join(100)
        assert not hung_in[0].is_alive()
    assert started == ["after"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0, 1e308, 5e-324])
def test_a_value_that_is_no_measurement_is_not_written_down(value):
    meter = Scripted(lambda: [Reading("energy", "J", value, "sensor", samples=2)])
    recorder = Recorder([meter])
    with recorder:
        pass
    (reading,) = recorder.readings
    assert reading.value is None
    assert str(reading.reason) == f"failed: the sensor said {value}"
    assert (reading.metric, reading.unit, reading.source) == ("energy", "J", "sensor")


@pytest.mark.parametrize(
    "answer",
    [None, 7, ["text"], [Reading("x", "furlong", 1.0, "test")], [Reading("x", "1", "7", "test")]],  # type: ignore[arg-type]
    ids=["nothing", "a number", "no reading", "unknown unit", "text for a value"],
)
def test_garbage_breaks_its_meter_alone(answer):
    recorder = Recorder([good("a"), Scripted(lambda: answer), good("b")])
    with recorder:
        pass
    a, broken, b = recorder.readings
    assert (a.value, b.value) == (1.0, 1.0)
    assert broken.metric == "scripted"
    assert str(broken.reason).startswith("failed: stop raised ")


def test_windows_open_and_close_like_brackets_whatever_happens_inside():
    log: list[str] = []

    def noted(label: str) -> Scripted:
        said = Reading(label, "1", None if label == "a" else 1.0, "test")
        return Scripted(
            lambda: log.append(f"stop {label}") or [said], lambda: log.append(f"start {label}")
        )

    recorder = Recorder([noted("a"), noted("b")])
    with pytest.raises(ZeroDivisionError), recorder:
        raise ZeroDivisionError
    assert log == ["start a", "start b", "stop b", "stop a"]
    assert [r.metric for r in recorder.readings] == ["a", "b"]
    assert recorder.readings[0].reason, "no value without a reason"


@pytest.mark.parametrize("breaks", ["start", "stop"])
def test_a_meter_that_raises_stops_nothing_and_is_asked_again(breaks):
    errors, called = [OSError("no such sensor")], list[str]()

    def step(verb: str) -> Any:
        called.append(verb)
        if verb == breaks and errors:
            raise errors.pop()
        return [Reading("x", "1", 2.0, "test")]

    bad = Scripted(lambda: step("stop"), lambda: step("start"))
    with Recorder([good("a"), bad, good("c")]) as recorder:
        pass
    first, broken, last = recorder.readings
    assert (first.value, broken.value, last.value) == (1.0, None, 1.0)
    assert str(broken.reason) == f"failed: {breaks} raised OSError: no such sensor"
    assert ("stop" in called) == (breaks == "stop"), "a window that never opened is not closed"
    with recorder:
        pass
    assert recorder.readings[1].value == 2.0


def test_a_source_says_how_often_its_sensor_was_read():
    for samples, period_s, said in (
        (0, None, "counter"),
        (2, None, "counter [samples=2]"),
        (51, 0.02, "counter [samples=51, period=0.02 s]"),
    ):
        assert cited(Reading("x", "1", 1.0, "counter", None, samples, period_s)) == said


def test_a_case_whose_meters_break_is_measured_all_the_same(make_job, monkeypatch, hang):
    """A sensor that raises, one that hangs and one that says NaN: three reasons, a whole case."""
    windows = iter(range(10))

    def breaks_in_the_second_window() -> Any:
        if next(windows):
            raise OSError("the device is lost")
        return [Reading("energy", "J", 5.0, "sensor", samples=2)]

    meters = [
        Scripted(breaks_in_the_second_window),
        Scripted(hang),
        Scripted(lambda: [Reading("power", "W", float("nan"), "sensor")]),
        good("count"),
    ]
    monkeypatch.setattr(measure_module, "open_meters", lambda **_: meters)
    job = make_job()
    with closing(PartWriter(job.part)) as out:
        assert measure_module.measure(job, out) is None
    rows = [r for r in rows_of(read_part(job.part)) if r.stage == "epoch"]
    for epoch in (0, 1):
        said = {r.metric: r for r in rows if r.epoch == epoch and r.status == "failed"}
        assert "nan" in str(said["power"].reason)
        assert len([r for r in rows if r.epoch == epoch and "did not return" in str(r.reason)]) == 1
        times = {r.metric: r.value for r in rows if r.epoch == epoch and r.status == "ok"}
        assert times["count"] == 1.0
        assert times["wall_time"] > 0
    assert [r.value for r in rows if r.metric == "energy"] == [5.0]
    assert sum("device is lost" in str(r.reason) for r in rows) == 1
    assert next(r.source for r in rows if r.metric == "energy") == "sensor [samples=2]"
