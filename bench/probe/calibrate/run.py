"""Calibrate this machine: measure within a budget of time, fit a profile, say how far it is off.

    gatherbench calibrate

It needs torch, numba and rich, and on a GPU NVRTC and cuda-bindings: neither a dataset nor a plan.
Samples are on disk as they come. A run that is cut short leaves them, but no profile.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gatherbench.bench.machine.env import joint_name
from gatherbench.bench.meters.other_work import OtherWork, is_quiet
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.probe.calibrate.check import Check, Measured, check, summarise
from gatherbench.bench.probe.calibrate.files import SampleFile, write_checks, writing
from gatherbench.bench.probe.calibrate.fit import Fit, blank_profile
from gatherbench.bench.probe.calibrate.host import (
    CalibrationError,
    HostStand,
    filled_table,
    table_bytes,
)
from gatherbench.bench.probe.calibrate.machine import MachineFacts, ask_gpu, ask_host
from gatherbench.bench.probe.calibrate.points import (
    HELD_OUT_ROW_BYTES,
    POLICY,
    ROW_BYTES,
    Observation,
    Point,
    Stand,
    gpu_points,
    host_points,
    measure_all,
)
from gatherbench.bench.probe.micro_plan import GIB, SPANS, as_large_as_opens, fitting
from gatherbench.kernels.host_memory import available_bytes

Device = Literal["auto", "cpu", "cuda"]
#: Seconds for everything: about a minute on a host, less than ten minutes on a GPU.
HOST_BUDGET_S, GPU_BUDGET_S = 60.0, 500.0
#: Kept back for the fit and the files; a GPU's gathers take some seconds to fit.
HOST_CLOSING_S, GPU_CLOSING_S = 3.0, 15.0
MOST_ROUNDS = 100
#: Fewer whole rounds than this give no quartiles worth the name.
FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of it.

    Attributes:
        profile: of this machine; constants that were not measured are those of the base.
        found: what was seen of each point.
        checks: every point that the profile predicts, held out or fitted.
        rounds: whole rounds that were measured.
        seconds: that everything took.
        files: written: the profile, the samples, the checks.
    """

    profile: LinkProfile
    found: dict[Point, Measured]
    checks: list[Check]
    rounds: int
    seconds: float
    files: tuple[Path, ...]


def calibrate(
    out: Path,
    *,
    device: Device = "auto",
    budget_s: float | None = None,
    base: LinkProfile | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measure, fit and write ``<machine>.toml``, ``.samples.csv`` and ``.checks.csv`` to ``out``.

    Args:
        out: made if need be.
        device: ``cpu`` leaves a GPU alone; ``auto`` takes one if there is one.
        budget_s: seconds for everything; by default one minute, on a GPU 500 seconds.
        base: where the constants come from that this machine cannot give.
        say: told what is being done.

    Raises:
        CalibrationError: no such device, too little memory or time, or wrong bytes.
        CudaCallError, CompilerError: the GPU could not be used.
        OutputError: a file could not be written.
    """
    began = time.monotonic()
    on_gpu = _on_gpu(device)
    budget = budget_s or (GPU_BUDGET_S if on_gpu else HOST_BUDGET_S)
    end = began + budget - (GPU_CLOSING_S if on_gpu else HOST_CLOSING_S)
    with ExitStack() as stack:
        if on_gpu:
            stand, points, ask = _gpu_stand(stack, say)
        else:
            stand, points, ask = _host_stand(stack)
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        facts = ask()
        file = out / f"{facts.slug}.samples.csv"
        samples = stack.enter_context(SampleFile(file))
        say(f"{len(points)} points, set up in {time.monotonic() - began:.0f} s")
        load = OtherWork()
        rounds = measure_all(
            points,
            stand,
            most_rounds=MOST_ROUNDS,
            out_of_time=lambda: time.monotonic() > end,
            report=samples.add,
        )
        other_cores = load.cores()
        facts = ask()  # the link is awake now
    if other_cores is not None and not is_quiet(other_cores):
        note = f"measured beside other work that kept {other_cores:.1f} cores busy"
        facts = dataclasses.replace(facts, description=f"{facts.description}; {note}")
        say(f"{note}: on an idle machine the constants would be others")
    if rounds < FEWEST_ROUNDS:
        raise CalibrationError(
            f"{rounds} whole rounds in {budget:.0f} s are too few for a profile"
            f" ({FEWEST_ROUNDS} are needed): give more --budget"
        )
    say(f"{rounds} rounds; fitting")
    found = summarise(samples.kept)
    profile = Fit(named(base, facts) if base else blank_profile(facts), found, facts).run()
    checks = check(profile, found)
    written = (out / f"{facts.slug}.toml", file, out / f"{facts.slug}.checks.csv")
    with writing(out):
        written[0].write_text(profile.to_toml(), encoding="utf-8")
        write_checks(checks, written[2])
    return Calibration(profile, found, checks, rounds, time.monotonic() - began, written)


def named(base: LinkProfile, facts: MachineFacts) -> LinkProfile:
    """The base under this machine's name; it says whose constants it has beside measured ones.

    How fast a processor gathers into fresh memory is never another one's.
    """
    why = f"of the processor of {base.name}, not of this one: it takes a GPU to measure it here"
    base = base.with_constant("copy.pageable", None, why)
    text = f"{facts.description}; what was not measured there is of {base.name}"
    return dataclasses.replace(base, name=joint_name(facts.slug, base.name), description=text)


class _Both:
    """The host and the GPU as one stand."""

    def __init__(self, host: Stand, gpu: Stand) -> None:
        self._host, self._gpu = host, gpu

    def measure(self, point: Point) -> Observation:
        stand = self._host if point.kind.startswith("host_") else self._gpu
        return stand.measure(point)


_Ready = tuple[Stand, list[Point], Callable[[], MachineFacts]]


def _host_stand(stack: ExitStack) -> _Ready:
    size = table_bytes(available_bytes())
    stand = stack.enter_context(HostStand(filled_table(size)))
    return stand, host_points(ask_host().cores, size), ask_host


def _gpu_stand(stack: ExitStack, say: Callable[[str], None]) -> _Ready:
    import torch

    from gatherbench.bench.probe.calibrate.gpu import GpuStand

    device = torch.device("cuda", torch.cuda.current_device())
    spans = fitting(SPANS, available_bytes())
    if not spans:
        raise CalibrationError("not 2 GiB of host memory are free: close other programs")
    gpu, spans = as_large_as_opens(spans, lambda some: GpuStand(some, device))
    stack.enter_context(gpu)
    say(f"spans of {', '.join(f'{s / GIB:g}' for s in spans)} GiB of host memory")
    for width in (*ROW_BYTES, *HELD_OUT_ROW_BYTES):
        gpu.check(POLICY, width)
    host = stack.enter_context(HostStand(gpu.bytes))
    cores = ask_host().cores
    points = [*host_points(cores, max(spans)), *gpu_points(spans, cores)]
    return _Both(host, gpu), points, lambda: ask_gpu(device)


def _on_gpu(device: Device) -> bool:
    if device == "cpu":
        return False
    import torch

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise CalibrationError(
            f"torch {torch.__version__} sees no CUDA GPU; --device cpu calibrates the host alone"
        )
    return there
