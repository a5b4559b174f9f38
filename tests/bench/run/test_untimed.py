"""What is done untimed: energy over the epochs, the disk, the known copies of a calibration."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gatherbench.bench.meters import power as power_module
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.nvml_device import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.pcie import DIRECTIONS
from gatherbench.bench.meters.trust import Comparison
from gatherbench.bench.run import sensor_check
from gatherbench.bench.run import untimed as untimed_module
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.sensor_check import PinnedCopier, calibrate_gpu, gpu_under_test
from gatherbench.bench.run.untimed import EnergyBlock, disk_roof, peak_of
from gatherbench.kernels.table_file import TableFile
from gatherbench.reason import Reason, SensorUnavailableError

GPU = GpuUnderTest(("GPU-x",), SensorChoice(None, Reason("unsupported", "nobody is trusted")))
MAKE = RowMaker("run", "abc", "box", "cuda", "w", "d", "s", "v", 0)


class FakeDevice:
    """A GPU whose energy grows by 50 J at every look."""

    joules = 1000.0

    def __init__(self, uuids: tuple[str, ...]) -> None:
        assert uuids == GPU.uuids

    def energy_j(self) -> float:
        FakeDevice.joules += 50
        return FakeDevice.joules

    def fields(self, *ids: int) -> None:
        raise SensorUnavailableError(Reason("unsupported", "not this one"))


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_module, "NvmlDevice", FakeDevice)


def forbidden() -> None:
    raise AssertionError("an epoch more than asked for")


def block_rows(
    block: EnergyBlock,
    one_epoch: Callable[[], object] = forbidden,
    gathered: Callable[[bool], list[bool]] = lambda mine: [mine],
) -> dict[str, Row]:
    """Of three measured epochs, by metric."""
    with block:
        pass
    rows = list(block.rows(3, one_epoch, MAKE, gathered))
    assert {(r.stage, r.epoch) for r in rows} <= {("energy", -1)}
    return {r.metric: r for r in rows}


def test_measured_epochs_that_fill_the_window_are_all_there_is(monkeypatch):
    monkeypatch.setattr(power_module, "SHORTEST_ENERGY_WINDOW_S", 0.0)
    rows = block_rows(EnergyBlock(GPU, shortest_s=0.0))
    assert (rows["gpu_energy"].value, rows["epochs"].value) == (50, 3)
    assert rows["epochs"].source.startswith("the measured epochs")
    assert rows["window_time"].value is not None
    assert block_rows(EnergyBlock(None)) == {}, "without a GPU there is nothing to say"


def test_too_short_a_window_is_run_on_with_whole_epochs(monkeypatch):
    monkeypatch.setattr(power_module, "SHORTEST_ENERGY_WINDOW_S", 10.0)
    ran: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: 4.0 * len(ran), thread_time=lambda: 0.0)
    for module in (power_module, untimed_module):
        monkeypatch.setattr(module, "time", clock)
    rows = block_rows(EnergyBlock(GPU, shortest_s=10.0), lambda: ran.append(1))
    assert rows["epochs"].value == len(ran) == 3, "of 4 s each"
    assert rows["epochs"].source.startswith("further epochs, not timed")
    assert rows["gpu_energy"].value == 50
    # The link is read too, with whatever may run beside what is not timed.
    assert rows["pcie_host_to_device"].reason == "unsupported: nobody is trusted"


def test_ranks_run_on_together_until_no_window_is_too_short(monkeypatch):
    """This rank's own window would do, twice over; another's is short, for three epochs more."""
    monkeypatch.setattr(power_module, "SHORTEST_ENERGY_WINDOW_S", 0.0)
    ran, told = list[int](), list[bool]()

    def gathered(mine: bool) -> list[bool]:
        told.append(mine)
        return [mine, len(told) <= 4]

    rows = block_rows(EnergyBlock(GPU, shortest_s=0.0), lambda: ran.append(1), gathered)
    assert told == [False] * 5
    assert rows["epochs"].value == len(ran) == 3


def test_no_epoch_is_spent_where_none_is_wanted_or_the_sensor_is_missing(monkeypatch):
    rows = block_rows(EnergyBlock(GPU, run_on=False))
    assert (rows["epochs"].value, rows["gpu_energy"].value) == (3, None)
    assert "less than 10 s is too short" in (rows["gpu_energy"].reason or "")

    def refuse(uuids: tuple[str, ...]) -> None:
        raise SensorUnavailableError(Reason("no_permission", "NVML says no", "give access"))

    monkeypatch.setattr(power_module, "NvmlDevice", refuse)
    rows = block_rows(EnergyBlock(GPU))
    assert rows["gpu_energy"].reason == "no_permission: NVML says no; give access"


def read_bytes() -> int:
    """Off disks, by this process, as the kernel counts."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"])


def roof(path: Path, blocks: float) -> list[Row]:
    path.write_bytes(np.random.default_rng(0).bytes(int(4096 * blocks)))
    return disk_roof(TableFile(path, 128, int(4096 * blocks - 128) // 100, 100), MAKE, 1)


def test_every_read_comes_off_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(untimed_module, "_ROOF_S", 1e-3)
    before = read_bytes()
    reads, time = roof(tmp_path / "rows", 100)
    assert (reads.metric, time.metric) == ("disk_roof_reads", "disk_roof_time")
    count, spent_s = reads.value or 0, time.value or 0
    assert count % 1024 == 0 < count
    assert read_bytes() - before >= count * 4096
    assert spent_s >= 1e-3


def test_where_nothing_can_be_read_it_says_why(tmp_path):
    (small,) = roof(tmp_path / "rows", 0.5)
    (gone,) = disk_roof(TableFile(tmp_path / "none", 0, 41, 100), MAKE, 1)
    assert (small.value, small.reason) == (None, "unsupported: the file has less than a block")
    assert gone.value is None
    assert f"cannot read the table {tmp_path / 'none'}: No such file" in str(gone.reason)


def test_the_peak_of_work_is_what_its_tensors_take_together():
    """1000 and 3000 B; what is made behind them is less, and of all nothing is left."""

    def work() -> None:
        one = torch.empty(1000, dtype=torch.uint8)
        two = torch.empty(3000, dtype=torch.uint8)
        del one
        three = torch.empty(500, dtype=torch.uint8)
        del two, three

    assert peak_of(work, torch.device("cpu"))[0] == 4000


# ---- known copies --------------------------------------------------------------------------------


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
