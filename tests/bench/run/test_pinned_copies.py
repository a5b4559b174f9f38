"""The known copies of the calibration, with stand-ins for tensors: every byte counts once."""

from __future__ import annotations

import types
from typing import Any

import pytest

from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.meters.trust import Comparison
from gatherbench.bench.run import sensor_check
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.sensor_check import PinnedCopier, calibrate_gpu, gpu_under_test
from gatherbench.reason import Reason

torch = sensor_check.torch


class Copied:
    """A tensor that writes down what was copied into it."""

    def __init__(self, log: list[tuple[str, str]], where: str, size: int) -> None:
        self.log, self.where, self.nbytes = log, where, size

    def copy_(self, source: Copied, non_blocking: bool) -> None:
        assert non_blocking
        self.log.append((source.where, self.where))


@pytest.mark.parametrize("direction", ["host_to_device", "device_to_host"])
def test_every_copy_counts_once_and_goes_the_right_way(monkeypatch, direction):
    log: list[tuple[str, str]] = []
    clock = iter(range(1000))

    def empty(size: int, **how: Any) -> Copied:
        return Copied(log, "host" if how.get("pin_memory") else "device", size)

    waited_for: list[int] = []
    cuda = types.SimpleNamespace(synchronize=lambda _: waited_for.append(len(log)))
    stand_in = types.SimpleNamespace(empty=empty, uint8=None, cuda=cuda)
    monkeypatch.setattr(sensor_check, "torch", stand_in)
    monkeypatch.setattr(sensor_check.time, "monotonic", lambda: next(clock) * 0.1)
    copier = PinnedCopier(types.SimpleNamespace(), size=1000)  # type: ignore[arg-type]
    copied = copier.copy(direction, 2.0)
    source, _, target = direction.partition("_to_")
    assert set(log) == {(source, target)}
    assert copied == 1000 * len(log) > 0
    assert waited_for[-1] == len(log), "a copy that is still under way was taken for done"


def test_the_idle_gpu_is_watched_once_its_context_is_open_and_has_calmed_down(monkeypatch):
    log: list[object] = []
    cuda = types.SimpleNamespace(
        current_device=lambda: 0,
        synchronize=lambda _: log.append("synchronised"),
        get_device_properties=lambda _: types.SimpleNamespace(uuid="x"),
    )
    stand_in = types.SimpleNamespace(
        cuda=cuda,
        device=lambda *_: types.SimpleNamespace(type="cuda", index=0),
        zeros=lambda *_, **__: log.append("context"),
    )
    monkeypatch.setattr(sensor_check, "torch", stand_in)
    monkeypatch.setattr(sensor_check.time, "sleep", log.append)
    none_idle = Reading("idle_power", "W", None, "NVML", Reason("unsupported", "none"))
    monkeypatch.setattr(sensor_check, "idle_power", lambda *_: log.append("idle") or none_idle)

    none = [Comparison(direction, Reason("unsupported", "none"), 0.0) for direction in DIRECTIONS]
    monkeypatch.setattr(sensor_check, "calibrate", lambda *_: none)
    monkeypatch.setattr(sensor_check, "PinnedCopier", lambda *_: None)
    rows: list[Row] = []
    calibrate_gpu(RowMaker("run", "abc", "box", "cuda"), rows.append)
    assert log == ["context", "synchronised", sensor_check.SETTLE_S, "idle"]
    assert {row.reason for row in rows} == {"unsupported: none"}


def test_a_case_on_the_host_has_no_gpu_under_test():
    assert gpu_under_test(torch.device("cpu"), None) is None
