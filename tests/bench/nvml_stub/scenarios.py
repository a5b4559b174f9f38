"""What happens in a process whose NVML is the stub: ``python scenarios.py NAME``, JSON on stdout.

The real ``nvidia-ml-py`` loads the stub because ``LD_LIBRARY_PATH`` leads there, which the dynamic
linker reads once, when a process begins. Scenarios act; the tests judge.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gatherbench.bench.machine.nvml import SensorUnavailableError, list_gpus
from gatherbench.bench.meters import power
from gatherbench.bench.meters.base import Reading
from gatherbench.bench.meters.gpu_choice import GpuUnderTest, SensorChoice
from gatherbench.bench.meters.nvml_device import NvmlDevice, uuids_of
from gatherbench.bench.meters.pcie import PcieMeter
from gatherbench.bench.meters.pcie_sources import SOURCES, FieldCounters
from gatherbench.bench.meters.power import GpuPowerMeter
from gatherbench.bench.meters.trust import calibrate, choose, verdict
from gatherbench.bench.run.reading_row import row_of

FIRST, SECOND = "GPU-first", "GPU-second"
SCRIPT = Path(os.environ["NVML_STUB_SCRIPT"])
#: Bytes a second of the stub's transfers: below what its link (generation 1, x16) carries.
RATE = 3e9


def say(**changes: Any) -> None:
    """Have the driver say something else from now on: ``gpu0__rx=5`` sets ``gpu0.rx``."""
    lines = dict(line.split(" ", 1) for line in SCRIPT.read_text().splitlines())
    lines |= {name.replace("__", "."): str(value) for name, value in changes.items()}
    draft = SCRIPT.with_suffix(".new")
    draft.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    draft.replace(SCRIPT)


def gpu(source: str | None = "counters", uuid: str = FIRST) -> GpuUnderTest:
    return GpuUnderTest((uuid,), SensorChoice(source, "unsupported: none was chosen"))


def as_json(readings: list[Reading]) -> dict[str, Any]:
    found = {r.metric: r for r in readings}
    assert len(found) == len(readings)
    return {
        name: {
            "value": r.value, "unit": r.unit, "reason": r.reason, "source": r.source,
            "samples": r.samples, "series": r.series,
        }
        for name, r in found.items()
    }  # fmt: skip


def watched(meter: Any, seconds: float, **meanwhile: Any) -> dict[str, Any]:
    """Readings of a window of some length, in the middle of which the driver changes its words."""
    meter.start()
    time.sleep(seconds / 2)
    if meanwhile:
        say(**meanwhile)
    time.sleep(seconds / 2)
    return as_json(meter.stop())


def transfer() -> dict[str, Any]:
    say(gpu0__rx_rate=RATE, gpu0__tx_rate=RATE / 10, gpu0__from=time.monotonic())
    return watched(PcieMeter(gpu()), 0.4)


def seldom_polled() -> dict[str, Any]:
    FieldCounters.period_s = 0.1
    return transfer()


def lost_on_the_way() -> dict[str, Any]:
    link = watched(PcieMeter(gpu()), 0.2, gpu0__lost=1)
    say(gpu0__lost=0)
    return link | watched(GpuPowerMeter(gpu()), 0.3, gpu0__lost=1)


def one_field_fails() -> dict[str, Any]:
    return watched(PcieMeter(gpu()), 0.2, gpu0__rx_return=3)


def lost_and_back() -> dict[str, Any]:
    """A meter that failed in one window is asked again in the next."""
    meter = PcieMeter(gpu())
    watched(meter, 0.1, gpu0__lost=1)
    say(gpu0__lost=0)
    return watched(meter, 0.1)


def counter_resets() -> dict[str, Any]:
    return watched(PcieMeter(gpu()), 0.2, gpu0__rx=3_999_999_999)


def second_gpu() -> dict[str, Any]:
    say(gpu0__rx_rate=RATE / 2, gpu1__rx_rate=RATE, gpu1__from=time.monotonic())
    return watched(PcieMeter(gpu(uuid=SECOND)), 0.2)


def names() -> Any:
    """What the UUIDs that torch would report lead to."""
    found = {}
    for index, uuid in ((0, "first"), (1, "second"), (0, "GPU-first"), (0, "nobody"), (0, "slice")):
        try:
            device = NvmlDevice(uuids_of(index, uuid))
            found[f"{index}:{uuid}"] = device.fields(198)[0].value
        except SensorUnavailableError as unavailable:
            found[f"{index}:{uuid}"] = str(unavailable)
    return found


def gpus() -> Any:
    return [g.name for g in list_gpus()]


def power_window() -> dict[str, Any]:
    power.SHORTEST_ENERGY_WINDOW_S = 0.5
    say(gpu0__from=time.monotonic())
    begin = time.monotonic()
    meter, slept_s = GpuPowerMeter(gpu()), 1.2
    meter.start()
    time.sleep(slept_s)
    readings = as_json(meter.stop())
    return readings | {"slept_s": slept_s, "elapsed_s": time.monotonic() - begin}


def short_power_window() -> dict[str, Any]:
    return watched(GpuPowerMeter(gpu()), 0.2)


def cooling_window() -> dict[str, Any]:
    """A GPU that is hot and slowed down when the window opens, and has recovered when it closes."""
    say(gpu0__temperature=85, gpu0__clock_mhz=1200, gpu0__reasons=0x40)
    return watched(
        GpuPowerMeter(gpu()), 0.8, gpu0__temperature=57, gpu0__clock_mhz=1830, gpu0__reasons=0
    )


class StubCopier:
    """Moves bytes by telling the stub that they move; its link is awake meanwhile."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libnvidia-ml.so.1")
        self.driver.stub_copy_begin.argtypes = (ctypes.c_int, ctypes.c_double)
        self.driver.stub_copy_end.restype = ctypes.c_double
        lines = dict(line.split(" ", 1) for line in SCRIPT.read_text().splitlines())
        self.awake = lines["gpu0.gen_max"]
        say(gpu0__gen=1, gpu0__throughput=RATE)

    def copy(self, direction: str, seconds: float, at_half: Callable[[], None]) -> float:
        say(gpu0__gen=self.awake)
        self.driver.stub_copy_begin(direction == "host_to_device", RATE)
        time.sleep(seconds)
        at_half()
        moved = float(self.driver.stub_copy_end())
        say(gpu0__gen=1)
        return moved


def calibration() -> dict[str, Any]:
    found = calibrate(NvmlDevice((FIRST,)), StubCopier(), 0.4)
    return {
        "choice": choose(found.comparisons).pcie,
        "reason": choose(found.comparisons).pcie_reason,
        "ratios": {f"{c.source}.{c.direction}": c.ratio for c in found.comparisons},
        "verdicts": {f"{c.source}.{c.direction}": verdict(c) for c in found.comparisons},
        "idle": found.link_idle and found.link_idle.gen,
        "loaded": found.link_loaded and found.link_loaded.gen,
    }


def every_source() -> dict[str, Any]:
    """Each source through the meter, timed and not."""
    say(gpu0__rx_rate=RATE, gpu0__tx_rate=RATE / 3, gpu0__from=time.monotonic())
    return {
        f"{kind.name}.{'timed' if timed else 'untimed'}": watched(
            PcieMeter(gpu(kind.name), timed=timed), 0.5
        )
        for kind in SOURCES
        for timed in (True, False)
    }


def short_gpm_window() -> dict[str, Any]:
    return watched(PcieMeter(gpu("gpm")), 0.001)


def worker() -> dict[str, Any]:
    """The worker's verb, with the stub for a driver and stand-ins for torch and its copies."""
    import tempfile
    import types

    from gatherbench.bench.run import sensor_calibration
    from gatherbench.bench.run import worker as worker_module
    from gatherbench.bench.run.calibration_job import CalibrationJob, read_choice
    from gatherbench.bench.run.store import read_part

    cuda = types.SimpleNamespace(
        current_device=lambda: 0,
        synchronize=lambda *_: None,
        get_device_properties=lambda _: types.SimpleNamespace(uuid="first"),
    )
    sensor_calibration.torch = types.SimpleNamespace(  # type: ignore[assignment]
        cuda=cuda,
        device=lambda *_: types.SimpleNamespace(type="cuda", index=0),
        zeros=lambda *_, **__: None,
    )
    sensor_calibration.PinnedCopier = lambda _: StubCopier()  # type: ignore[assignment,misc]
    sensor_calibration.COPY_S, sensor_calibration.SETTLE_S = 0.25, 0.0
    sensor_calibration.IDLE_S = power.SHORTEST_ENERGY_WINDOW_S = 0.3
    folder = Path(tempfile.mkdtemp())
    job = CalibrationJob("run", "abc", "box", folder / "part.jsonl", folder / "sensors.json")
    job.dump(folder / "job.json")
    worker_module.calibrate_sensors(folder / "job.json")
    records = list(read_part(job.part))
    return {
        "choice": read_choice(job.choice).pcie,
        "reason": read_choice(job.choice).pcie_reason,
        "end": [records[-1]["status"], records[-1]["reason"]],
        "rows": {r["metric"]: r["value"] for r in records if r["kind"] == "row"},
        "reasons": {r["metric"]: r["reason"] for r in records if r["kind"] == "row"},
    }


def program() -> dict[str, Any]:
    """``gpu-meters`` on the stub's sensors: strategies run in host memory, the stub's GPU draws."""
    import tempfile

    import torch

    from gatherbench.bench.probe import meters
    from gatherbench.bench.probe.meters_case import Session, cases
    from gatherbench.bench.probe.meters_loop import Size, make_batches, make_table
    from gatherbench.bench.read.tables import load_run
    from gatherbench.bench.run import sensor_calibration

    power.SHORTEST_ENERGY_WINDOW_S = 0.8  # longer than a small epoch takes on a busy machine
    size, folder = Size(1 << 18, batch_rows=64, batches=3), Path(tempfile.mkdtemp())
    session = Session.open(folder, torch.device("cpu"), meters.describe_here())
    session.shortest_s = 0.9
    session.whole = dataclasses.replace(session.whole, backend="cuda")
    found = calibrate(NvmlDevice((FIRST,)), StubCopier(), 0.25)
    for row in sensor_calibration.rows_of_calibration(found, session.whole, "copies of 1 MiB"):
        session.emit(row)
    for reading in sensor_calibration.idle_power(gpu(), 0.9):
        session.emit(row_of(reading, session.whole, "calibration"))
    say(gpu0__power_mw=400_000, gpu0__from=time.monotonic(), gpu0__rx=0, gpu0__rx_rate=RATE)
    session.gpu = gpu(choose(found.comparisons).pcie)
    meters.plan(session, size, 1)
    status = cases()[0].measure(
        session, make_table(size), make_batches(size), size.workload, repeat=0
    )
    with contextlib.redirect_stdout(sys.stderr):
        meters.finish(session)
    run = load_run(folder)
    rows = [*run.rows.to_dict("records"), *run.whole.to_dict("records")]
    return {
        "status": status,
        "files": sorted(path.name for path in folder.rglob("*") if path.is_file()),
        "rows": [[r["stage"], r["metric"], r["value"], r["reason"], r["source"]] for r in rows],
    }


def polling_cost() -> Any:
    """Core-seconds of one reading of both counters; the stub parses its script meanwhile."""
    source = FieldCounters(NvmlDevice((FIRST,)))
    begin = time.thread_time()
    for _ in range(1000):
        source._read()
    return (time.thread_time() - begin) / 1000


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
