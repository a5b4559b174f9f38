"""Meters that raise or talk nonsense: a reason in the table, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from gatherbench.bench.meters.base import Meter, Recorder, Window
from gatherbench.bench.run import session as session_module

from ..run.fakes import measured


class Scripted(Meter):
    """Answers as told."""

    __hash__ = None  # type: ignore[assignment] # as that of a dataclass
    name: ClassVar[str] = "scripted"
    summary: ClassVar[str] = "a test"

    def __init__(
        self, unit: str, end: Callable[[], Any], begin: Callable[[], object] = lambda: None
    ) -> None:
        metric, _, of = unit.partition(":")
        self.units = {metric: of or "1"}
        self._end, self._begin = end, begin

    def begin(self) -> None:
        self._begin()

    def end(self) -> Window:
        found: Window = self._end()
        return found


def good(metric: str = "good") -> Scripted:
    return Scripted(metric, lambda: {metric: 1.0})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0, 1e308, 5e-324])
def test_a_value_that_is_no_measurement_is_not_written_down(value):
    with Recorder([Scripted("energy:J", lambda: {"energy": value})]) as recorder:
        pass
    (reading,) = recorder.readings
    assert reading.value is None
    assert str(reading.reason) == f"failed: the sensor said {value}"
    assert (reading.metric, reading.unit, reading.source) == ("energy", "J", "a test")


@pytest.mark.parametrize(
    ("unit", "answer"),
    [("x", None), ("x", 7), ("x", {"y": 1.0}), ("x:furlong", {"x": 1.0}), ("x", {"x": "seven"})],
    ids=["nothing", "a number", "an undeclared metric", "unknown unit", "text for a value"],
)
def test_garbage_breaks_its_meter_alone(unit, answer):
    with Recorder([good("a"), Scripted(unit, lambda: answer), good("b")]) as recorder:
        pass
    a, broken, b = recorder.readings
    assert (a.value, b.value) == (1.0, 1.0)
    assert (broken.metric, broken.source) == ("x", "meter scripted")
    assert str(broken.reason).startswith("failed: end raised ")


def test_windows_open_and_close_like_brackets_whatever_happens_inside():
    log: list[str] = []

    def noted(label: str) -> Scripted:
        return Scripted(
            label,
            lambda: log.append(f"end {label}") or {label: 1.0},
            lambda: log.append(f"begin {label}"),
        )

    recorder = Recorder([noted("a"), noted("b")])
    with pytest.raises(ZeroDivisionError), recorder:
        raise ZeroDivisionError
    assert log == ["begin a", "begin b", "end b", "end a"]
    assert [r.metric for r in recorder.readings] == ["a", "b"]


@pytest.mark.parametrize("breaks", ["begin", "end"])
def test_a_meter_that_raises_stops_nothing_and_is_asked_again(breaks):
    errors, called = [OSError("no such sensor")], list[str]()

    def step(verb: str) -> Any:
        called.append(verb)
        if verb == breaks and errors:
            raise errors.pop()
        return {"x": 2.0}

    bad = Scripted("x", lambda: step("end"), lambda: step("begin"))
    with Recorder([good("a"), bad, good("c")]) as recorder:
        pass
    first, broken, last = recorder.readings
    assert (first.value, broken.value, last.value) == (1.0, None, 1.0)
    assert str(broken.reason) == f"failed: {breaks} raised OSError: no such sensor"
    assert ("end" in called) == (breaks == "end"), "a window that never opened is not closed"
    with recorder:
        pass
    assert recorder.readings[1].value == 2.0


def test_a_case_whose_meters_break_is_measured_all_the_same(make_job, monkeypatch):
    """A sensor that raises and one that says NaN: two reasons, a whole case."""
    windows = iter(range(10))

    def breaks_in_the_second_window() -> Any:
        if next(windows):
            raise OSError("the device is lost")
        return {"energy": 5.0}

    meters = [
        Scripted("energy:J", breaks_in_the_second_window),
        Scripted("power:W", lambda: {"power": float("nan")}),
        good("count"),
    ]
    monkeypatch.setattr(session_module, "open_meters", lambda **_: meters)
    job = make_job()
    rows = [r for r in measured(job) if r.stage == "epoch"]
    for epoch in (0, 1):
        failed = {r.metric: r for r in rows if r.epoch == epoch and r.status == "failed"}
        assert "nan" in str(failed["power"].reason)
        times = {r.metric: r.value for r in rows if r.epoch == epoch and r.status == "ok"}
        assert times["count"] == 1.0
        assert times["wall_time"] > 0
    assert [r.value for r in rows if r.metric == "energy" and r.value is not None] == [5.0]
    assert sum("device is lost" in str(r.reason) for r in rows) == 1
