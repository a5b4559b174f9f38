"""The known copies of the calibration, with stand-ins for tensors: every byte counts once."""

from __future__ import annotations

import types
from typing import Any

import pytest

from gatherbench.bench.metering import calibration as sensor_calibration
from gatherbench.bench.metering.calibration import PinnedCopier, gpu_under_test

torch = sensor_calibration.torch


class Copied:
    """A tensor that writes down what was copied into it."""

    def __init__(self, log: list[tuple[str, str]], where: str, size: int) -> None:
        self.log, self.where, self.nbytes = log, where, size

    def copy_(self, source: Copied, non_blocking: bool) -> None:
        assert non_blocking
        self.log.append((source.where, self.where))


@pytest.mark.parametrize("direction", ["host_to_device", "device_to_host"])
def test_every_copy_counts_once_and_goes_the_right_way(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    log: list[tuple[str, str]] = []
    clock = iter(range(1000))

    def empty(size: int, **how: Any) -> Copied:
        return Copied(log, "host" if how.get("pin_memory") else "device", size)

    stand_in = types.SimpleNamespace(
        empty=empty, uint8=None, cuda=types.SimpleNamespace(synchronize=lambda _: None)
    )
    monkeypatch.setattr(sensor_calibration, "torch", stand_in)
    monkeypatch.setattr(sensor_calibration.time, "monotonic", lambda: next(clock) * 0.1)
    halves: list[int] = []
    copier = PinnedCopier(types.SimpleNamespace(), size=1000)  # type: ignore[arg-type]
    copied = copier.copy(direction, 2.0, lambda: halves.append(len(log)))
    source, _, target = direction.partition("_to_")
    assert set(log) == {(source, target)}
    assert copied == 1000 * len(log) > 0
    assert len(halves) == 1
    assert 0 < halves[0] < len(log)


def test_a_case_on_the_host_has_no_gpu_under_test() -> None:
    assert gpu_under_test(torch.device("cpu"), None) is None
