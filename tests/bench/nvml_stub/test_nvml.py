"""The GPU's meters against a driver that tells the truth, and against every way it has not.

The driver is a stub of NVML under the real ``nvidia-ml-py``. Time is the tests' own: it goes on
when a test says so, and whoever polls has every turn that is due meanwhile.
"""

from __future__ import annotations

import ctypes
import shutil
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gatherbench.bench.machine.gpus import list_gpus
from gatherbench.bench.meters import pcie, poller, power
from gatherbench.bench.meters.base import Meter, Reading, closed
from gatherbench.bench.meters.nvml_device import (
    GpuUnderTest,
    NvmlDevice,
    SensorChoice,
    field_value,
    uuids_of,
)
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.trust import Comparison, calibrate, choose
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import sensor_check
from gatherbench.bench.run import session as session_module
from gatherbench.bench.run import worker as worker_module
from gatherbench.bench.run.job import CHOICE, Block, Job
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import RowMaker
from gatherbench.reason import SensorUnavailableError

from ..run.fakes import skipped

FIRST, SECOND = "GPU-first", "GPU-second"
#: Bytes a second of the stub's transfers: below what its link (generation 1, x16) carries.
RATE = 3e9
#: A GPU in good order.
HEALTHY: dict[str, Any] = {
    "devices": 1,
    "driver": "590.10",
    **{f"gpu{i}.{word}": 16 for i in (0, 1) for word in ("width", "width_max")},
    **{f"gpu{i}.{word}": 1 for i in (0, 1) for word in ("gen", "gen_max")},
    "gpu0.uuid": FIRST,
    "gpu0.name": "Stub 1",
    "gpu0.rx": 4_000_000_000,
    "gpu0.power_mw": 250_000,
    "gpu0.temperature": 57,
    "gpu0.clock_mhz": 1830,
    "gpu0.reasons": 0,
    "gpu1.uuid": SECOND,
    "gpu1.name": "Stub 2",
    "gpu1.rx": 77,
}


def gpu(source: str | None = "counters", uuid: str = FIRST) -> GpuUnderTest:
    """A GPU of the stub, whose trusted source is this one."""
    return GpuUnderTest((uuid,), SensorChoice(source))


class Clock:
    """``time`` of the meters, and the driver's."""

    thread_time = staticmethod(time.thread_time)

    def __init__(self, library: ctypes.CDLL) -> None:
        self._told = ctypes.c_double.in_dll(library, "stub_now_s")
        self._told.value = 1000.0
        self._turns, self._due = threading.Condition(), dict[object, float]()

    def time(self) -> float:
        return self._told.value

    monotonic = time

    def sleep(self, seconds: float) -> None:
        """Go on by so much; the caller is no poller."""
        end = self.time() + seconds
        with self._turns:
            while True:
                names = [thread.name for thread in threading.enumerate()]
                if names.count("gatherbench-meter-sensor") > len(self._due):  # one is reading
                    self._turns.wait(0.001)
                    continue
                first = min(self._due, key=self._due.__getitem__, default=None)
                if first is None or self._due[first] > end:
                    self._told.value = end
                    return
                self._told.value = max(self.time(), self._due.pop(first))
                self._turns.notify_all()

    def event(self) -> threading.Event:
        """An event that is waited for by this clock."""
        clock = self

        class Event(threading.Event):
            def set(self) -> None:
                super().set()
                with clock._turns:
                    clock._due.pop(self, None)
                    clock._turns.notify_all()

            def wait(self, timeout: float | None = None) -> bool:
                with clock._turns:
                    if not self.is_set():
                        clock._due[self] = clock.time() + (timeout or 0.0)
                        clock._turns.wait_for(lambda: self not in clock._due)
                return self.is_set()

        return Event()


class Driver:
    """What the driver says, and copies that its counters see."""

    def __init__(self, library: ctypes.CDLL, script: Path) -> None:
        self._library, self._script, self._words = library, script, dict(HEALTHY)
        self.clock = Clock(library)
        library.stub_copy_begin.argtypes = (ctypes.c_int, ctypes.c_double)
        library.stub_copy_end.restype = ctypes.c_double
        self.say({})

    def say(self, words: dict[str, Any]) -> None:
        """Say something else from now on."""
        self._words |= words
        draft = self._script.with_suffix(".new")
        draft.write_text("".join(f"{name} {value}\n" for name, value in self._words.items()))
        draft.replace(self._script)

    def transfer(self, to_device: float = RATE, to_host: float = RATE / 10) -> None:
        """Move bytes at these rates (B/s) from now on."""
        since = self.clock.time()
        self.say({"gpu0.rx_rate": to_device, "gpu0.tx_rate": to_host, "gpu0.from": since})

    def copy(self, direction: str, seconds: float) -> float:
        """As a ``Copier``."""
        self._library.stub_copy_begin(direction == "host_to_device", RATE)
        self.clock.sleep(seconds)
        return float(self._library.stub_copy_end())

    def watched(
        self, meter: Meter, seconds: float, meanwhile: Callable[[], object] = lambda: None
    ) -> dict[str, Reading]:
        """Readings of a window of some length, in the middle of which something happens."""
        meter.begin()
        self.clock.sleep(seconds / 2)
        meanwhile()
        self.clock.sleep(seconds / 2)
        readings = closed(meter)
        found = {reading.metric: reading for reading in readings}
        assert len(found) == len(readings)
        return found


@pytest.fixture
def driver(
    shared_library: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Driver:
    """A driver of this test's own, which says :data:`HEALTHY`."""
    own = tmp_path / "libnvidia-ml.so.1"  # a library of another name has variables of its own
    shutil.copy(shared_library(Path(__file__).with_name("nvml_stub.c")), own)
    library, script = ctypes.CDLL(str(own)), tmp_path / "driver.txt"
    monkeypatch.setenv("NVML_STUB_SCRIPT", str(script))
    monkeypatch.setattr(pynvml, "CDLL", lambda _: library)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    found = Driver(library, script)
    for module in (pcie, power, poller, sensor_check):
        monkeypatch.setattr(module, "time", found.clock)
    own_events = types.SimpleNamespace(Thread=threading.Thread, Event=found.clock.event)
    monkeypatch.setattr(poller, "threading", own_events)
    return found


TO_DEVICE, TO_HOST = "pcie_host_to_device", "pcie_device_to_host"


def rate_of(reading: Reading) -> float:
    """Bytes a second between the first and the last reading of a counter."""
    (begin_s, _), (end_s, total) = reading.series[0], reading.series[-1]
    assert total == reading.value
    return total / (end_s - begin_s)


def link(driver: Driver, seconds: float = 0.2) -> dict[str, Reading]:
    """A window of the byte counters beside transfers."""
    driver.transfer()
    return driver.watched(PcieMeter(gpu()), seconds)


def why(reading: Reading) -> str:
    assert reading.value is None
    return str(reading.reason)


def test_counters_are_unwrapped_and_directions_are_named_from_the_host(driver):
    found = link(driver, 0.4)  # begins 295 MB below 2^32 and moves more than 1 GB
    assert (found[TO_DEVICE].value or 0) > 2**32 - 4_000_000_000
    assert rate_of(found[TO_DEVICE]) == pytest.approx(RATE, rel=1e-4)
    assert rate_of(found[TO_HOST]) == pytest.approx(RATE / 10, rel=1e-4)
    begin_s, end_s = (found[TO_DEVICE].series[end][0] for end in (0, -1))
    assert (begin_s, end_s) == pytest.approx((0.0, 0.4), abs=1e-3), "since the window opened"
    for direction, word in ((TO_DEVICE, "RX"), (TO_HOST, "TX")):
        source, _, samples = found[direction].source.partition(" [samples=")
        assert source == f"NVML_FI_DEV_PCIE_COUNT_{word}_BYTES"
        assert samples.endswith(", period=0.02 s]")
        assert int(samples.partition(",")[0]) >= 20
    assert (found["pcie_polling_cpu"].value or 0) > 0


def test_a_driver_that_stamps_nothing_is_read_by_the_hosts_clock(driver):
    driver.say({"gpu0.timestamp": -1})
    assert rate_of(link(driver)[TO_DEVICE]) == pytest.approx(RATE, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpu0.timestamp": 1_700_000_000_000_000, "gpu0.counter_factor": 0}, "did not refresh"),
        ({"gpu0.gen_max": 9}, "unsupported: PCIe generation 9"),
        ({"gpu0.field_return": 3}, "unsupported: NVML says 'Not Supported'"),
        ({"gpu0.rx_return": 3}, "driver 555"),
        ({"gpu0.fields_return": 4}, "no_permission: NVML says"),
        ({"init_return": 4}, "/dev/nvidia"),
    ],
)
def test_counters_that_cannot_be_read_are_no_zero(driver, words, said):
    driver.say(words)
    found = link(driver)
    for direction in (TO_DEVICE, TO_HOST):
        assert said in why(found[direction])


def test_a_gap_in_which_the_counter_may_have_wrapped_gives_no_number(driver, monkeypatch):
    monkeypatch.setattr(pcie, "PERIOD_S", 0.1)
    driver.say({"gpu0.gen_max": 6})  # on the fastest link there is, 32 bits last for 34 ms
    assert "can start anew every 0.0336 s" in why(link(driver, 0.4)[TO_DEVICE])


def test_a_counter_that_is_reset_gives_no_number(driver):
    # From 4.0 e9 to one less is a rise of 2^32 - 1 bytes in 20 ms.
    found = driver.watched(PcieMeter(gpu()), 0.2, lambda: driver.say({"gpu0.rx": 3_999_999_999}))
    assert "more than is possible" in why(found[TO_DEVICE])
    assert found[TO_HOST].value == 0


def test_a_gpu_that_is_lost_in_the_middle_costs_that_window_alone(driver):
    meter = PcieMeter(gpu())
    lost = driver.watched(meter, 0.1, lambda: driver.say({"gpu0.lost": 1}))
    driver.say({"gpu0.lost": 0})
    assert driver.watched(meter, 0.1)[TO_DEVICE].value == 0, "the next window asks again"
    broken = driver.watched(meter, 0.1, lambda: driver.say({"gpu0.rx_return": 3}))
    assert why(broken[TO_DEVICE]).startswith("unsupported: NVML says 'Not Supported'")
    assert broken[TO_HOST].value == 0, "a field that fails costs its own direction"
    lost |= driver.watched(GpuPowerMeter(gpu()), 0.3, lambda: driver.say({"gpu0.lost": 1}))
    for metric in (TO_DEVICE, TO_HOST, "gpu_energy", "gpu_power", "gpu_temperature"):
        assert why(lost[metric]).startswith("failed: NVML says 'GPU is lost'"), metric


def test_two_gpus_are_told_apart_by_uuid(driver):
    begin = {"gpu0.rx_rate": RATE / 2, "gpu1.rx_rate": RATE, "gpu1.from": driver.clock.time()}
    driver.say({"devices": 2, **begin})
    found = driver.watched(PcieMeter(gpu(uuid=SECOND)), 0.2)
    assert rate_of(found[TO_DEVICE]) == pytest.approx(RATE, rel=1e-4)
    assert [described["name"] for described in list_gpus()] == ["Stub 1", "Stub 2"]


def looked_up(index: int, uuid: str) -> Any:
    """What the UUID that torch would report leads to: the GPU's counter, or why there is none."""
    try:
        return NvmlDevice(uuids_of(index, uuid)).fields(198)[0].value
    except SensorUnavailableError as unavailable:
        return str(unavailable)


@pytest.mark.parametrize("visible", ["", "1,0", "GPU-second", "0"])
def test_torchs_index_is_never_nvmls(driver, monkeypatch, visible):
    """Whatever CUDA_VISIBLE_DEVICES does to torch's numbers, the UUID leads to the GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver.say({"devices": 2})
    assert looked_up(0, "first") == looked_up(0, "GPU-first") == 4_000_000_000
    assert looked_up(1, "second") == 77
    assert looked_up(0, "nobody").startswith("no_device: ")


@pytest.mark.parametrize("visible", ["MIG-slice", "0"])
def test_an_instance_of_a_partitioned_gpu_has_no_sensors(driver, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    driver.say({"devices": 2, "gpu0.mig": 1, "gpu1.uuid": "MIG-slice"})
    assert "(MIG)" in looked_up(0, "slice")
    # A UUID of the whole GPU must not pass for that of its instance.
    assert visible.startswith("MIG-") or "(MIG)" in looked_up(0, "first")


def test_energy_is_the_counters_difference_over_a_long_window(driver):
    driver.say({"gpu0.from": driver.clock.time()})
    found = driver.watched(GpuPowerMeter(gpu()), 11.0)
    assert found["gpu_energy"].value == 250 * 11
    assert found["gpu_power"].value == 250
    samples = int(found["gpu_power"].source.partition("[samples=")[2].partition(",")[0])
    assert samples >= 2 + 109
    assert found["gpu_temperature"].value == pytest.approx(273.15 + 57)
    assert found["gpu_clock"].value == found["gpu_clock_lowest"].value == 1.83e9
    assert found["gpu_slowed"].value == 0
    assert (found["gpu_power_polling_cpu"].value or 0) > 0


def test_short_windows_of_energy_are_refused(driver):
    driver.say({"gpu0.reasons": 0x1 | 0x2})
    found = driver.watched(GpuPowerMeter(gpu()), 0.1)
    assert why(found["gpu_energy"]).startswith("too_short: ")
    assert found["gpu_power"].value == 250
    assert found["gpu_slowed"].value == 0, "idle clocks are not slowed down"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpu0.power_mw": 0}, "stood still"),
        ({"gpu0.energy_return": 3}, "Not Supported"),
        ({"gpu0.energy_return": 4}, "no_permission: "),
    ],
)
def test_an_energy_counter_that_fails_costs_only_itself(driver, monkeypatch, words, said):
    driver.say(words)
    monkeypatch.setattr(power, "SHORTEST_ENERGY_WINDOW_S", 0.05)
    found = driver.watched(GpuPowerMeter(gpu()), 0.1)
    assert said in why(found["gpu_energy"])
    if "gpu0.power_mw" in words:
        assert "says 0 W" in why(found["gpu_power"])
    assert found["gpu_temperature"].value is not None


def test_a_window_says_the_worst_that_it_saw_and_what_slowed_the_gpu(driver):
    hot = {"gpu0.temperature": 85, "gpu0.clock_mhz": 1200, "gpu0.reasons": 0x1 | 0x4 | 0x40}
    driver.say({**hot, "gpu0.power_return": 3})
    cool = {"gpu0.temperature": 57, "gpu0.clock_mhz": 1830, "gpu0.reasons": 0}
    found = driver.watched(GpuPowerMeter(gpu()), 0.6, lambda: driver.say(cool))
    assert found["gpu_temperature"].value == pytest.approx(273.15 + 85)
    lowest, mean = found["gpu_clock_lowest"].value, found["gpu_clock"].value
    assert lowest == 1.2e9 < (mean or 0) < 1.83e9
    assert 0 < (found["gpu_slowed"].value or 0) < 1
    assert "power cap, thermal (hardware)" in found["gpu_slowed"].source
    assert found["gpu_power"].value is None


def test_what_the_driver_says_in_an_unknown_type_is_no_number(driver):
    (answer,) = NvmlDevice((FIRST,)).answers(198)
    answer.valueType = 99  # type: ignore[attr-defined]
    assert "value type 99" in str(field_value(answer).value)


# Whether a run believes the counters.


def calibrated(driver: Driver, words: dict[str, Any]) -> list[Comparison]:
    driver.say(words)
    return calibrate((FIRST,), driver, 0.25)


@pytest.mark.parametrize("factor", [1, 1.1])  # without and with headers of packets
def test_counters_that_are_right_both_ways_are_taken(driver, factor):
    comparisons = calibrated(driver, {"gpu0.counter_factor": factor})
    assert choose(comparisons) == SensorChoice("counters", None)
    assert [one.ratio for one in comparisons] == [pytest.approx(factor, rel=1e-3)] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpu0.counter_factor": 1.67}, ["host to device: counts 1.67 B", "device to host: "]),
        ({"gpu0.counter_factor": 1000}, [""]),  # wraps beyond recognition
        ({"gpu0.counter_factor": 0}, ["counts 0 B"]),
        ({"gpu0.field_return": 3}, ["driver 555"]),
        ({"gpu0.gen_max": 9}, ["PCIe generation 9"]),
        ({"gpu0.lost_after": 20}, ["GPU is lost"]),
    ],
)
def test_wrong_counters_are_not_read_and_the_reason_says_why(driver, words, said):
    choice = choose(calibrated(driver, words))
    assert choice.pcie is None
    assert all(part in str(choice.pcie_reason) for part in said)


@pytest.fixture
def job(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The worker's job, with the stub for a driver and stand-ins for torch and its copies."""
    cuda = types.SimpleNamespace(
        current_device=lambda: 0,
        synchronize=lambda *_: None,
        get_device_properties=lambda _: types.SimpleNamespace(uuid="first"),
    )
    torch = types.SimpleNamespace(
        cuda=cuda,
        device=lambda *_: types.SimpleNamespace(type="cuda", index=0),
        zeros=lambda *_, **__: None,
    )
    monkeypatch.setattr(sensor_check, "torch", torch)
    monkeypatch.setattr(sensor_check, "PinnedCopier", lambda *_: driver)
    monkeypatch.setattr(sensor_check, "COPY_S", 0.25)
    monkeypatch.setattr(sensor_check, "SETTLE_S", 0.0)
    monkeypatch.setattr(sensor_check, "IDLE_S", 0.3)
    monkeypatch.setattr(power, "SHORTEST_ENERGY_WINDOW_S", 0.25)
    case, none = Case(Workload("tiny"), "cpu_gather", "", {}, 0), Path()
    run = RowMaker("run", "abc", "box", "cuda")
    return Job(case, Measure(), "cuda", run, none, tmp_path / "part.jsonl")


def test_the_worker_writes_rows_and_a_choice(job, driver):
    worker_module.do(Block("check", (job,)))
    *records, end, answer = read_part(job.part)
    rows = {r["metric"]: r for r in records if r["kind"] == "row"}
    assert (end["status"], end["reason"]) == ("ok", None)
    assert CHOICE.validate_python(answer["choice"]).pcie == "counters"
    assert rows["idle_power"]["value"] == pytest.approx(250)
    assert rows["pcie_trusted"]["value"] == 1
    ratios = [r for r in records if r.get("metric") == "pcie_host_to_device_ratio"]
    assert [r["source"].partition(":")[0] for r in ratios] == ["counters"]
    assert all("copies of 256 MiB of pinned memory" in r["source"] for r in ratios)
    assert ratios[0]["value"] == pytest.approx(1)
    assert ratios[0]["source"].endswith("; trusted")
    driver.say({"gpu0.lost": 1})  # a driver that refuses ends the job well
    worker_module.do(Block("check", (job,)))
    *_, answer = read_part(job.part)
    choice = CHOICE.validate_python(answer["choice"])
    assert choice.pcie is None
    assert choice.pcie_reason
    assert choice.pcie_reason.kind == "failed"


def test_a_case_reads_link_power_and_energy(make_job, driver, monkeypatch):
    """A whole case in host memory, while the stub's GPU draws 400 W and its link carries."""
    monkeypatch.setattr(session_module, "gpu_under_test", lambda *_: gpu())
    monkeypatch.setattr(power, "SHORTEST_ENERGY_WINDOW_S", 0.0)
    driver.say({"gpu0.power_mw": 400_000, "gpu0.rx": 0, "gpu0.from": driver.clock.time()})
    driver.transfer()
    run_epoch = measure_module.loop.run_epoch

    def timed(*given: Any) -> Any:
        driver.clock.sleep(0.1)
        return run_epoch(*given)

    monkeypatch.setattr(measure_module.loop, "run_epoch", timed)
    job = make_job(epochs=1)
    assert skipped(job) is None
    records = list(read_part(job.part))
    rows = {(r.stage, r.metric): r for r in rows_of(records)}
    for stage in ("epoch", "energy"):
        assert rows[stage, "gpu_energy"].value == pytest.approx(400 * 0.1)
    assert rows["epoch", "gpu_power"].value == 400
    assert rows["epoch", "pcie_host_to_device"].value == pytest.approx(RATE * 0.1)
    kept = {(r["metric"], r["unit"], r["epoch"]) for r in records if r["kind"] == "timeline"}
    link = {("pcie_host_to_device", "B", 0), ("pcie_device_to_host", "B", 0)}
    assert kept == {("gpu_power", "W", 0), *link}
