"""Calibrate this machine: measure within a budget of time, fit a profile, say how far it is off.

    gatherbench calibrate
    python -m gatherbench.bench.probe.calibrate     the same where little is installed

needs torch, numba and rich, and on a GPU NVRTC and cuda-bindings: neither a dataset nor a plan.
Samples are on disk as they come. A run that is cut short leaves them, but no profile.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.machine.env import joint_name
from gatherbench.bench.meters.cpu import OtherWork, is_quiet
from gatherbench.bench.model.profile import Constant, LinkProfile, ProfileError, load_profile
from gatherbench.bench.probe import cases
from gatherbench.bench.probe.cases import GIB
from gatherbench.bench.probe.fit import (
    Check,
    Fit,
    Measured,
    blank_profile,
    check,
    held_out_errors,
    smallest_share,
    summarise,
)
from gatherbench.bench.probe.machine import MachineFacts, ask_gpu, ask_host, no_gpu
from gatherbench.bench.probe.stand import (
    Measure,
    Observation,
    PointFile,
    ProbeError,
    ends_within,
    filled_table,
    visit,
    writing,
)
from gatherbench.bench.read.points import POINT_COLUMNS, Point
from gatherbench.bench.read.units import quantity, span
from gatherbench.kernels.compiler import CompilerError
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.host_memory import available_bytes
from gatherbench.outside import plain

Device = Literal["auto", "cpu", "cuda"]
FOLDER = Path("calibration")
#: Seconds for everything: about a minute on a host, less than ten minutes on a GPU.
HOST_BUDGET_S, GPU_BUDGET_S = 60.0, 500.0
#: Kept back for the fit and the files; a GPU's gathers take some seconds to fit.
HOST_CLOSING_S, GPU_CLOSING_S = 3.0, 15.0
#: So much over its time it is taken to hang, and ended.
LATE_S = 30.0
MOST_ROUNDS = 100
#: Fewer whole rounds than this give no quartiles worth the name.
FEWEST_ROUNDS = 3
_WIDTH = 120
DISK_HELP = (
    "folder whose disk is timed, in a file of up to 1 GiB that is gone afterwards (default: the"
    " data folder; none: no disk)"
)


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
    disk: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Measure, fit and write ``<machine>.toml``, ``.samples.csv`` and ``.checks.csv`` to ``out``.

    Args:
        out: made if need be.
        device: ``cpu`` leaves a GPU alone; ``auto`` takes one if there is one.
        budget_s: seconds for everything; by default one minute, on a GPU 500 seconds.
        base: where the constants come from that this machine cannot give.
        disk: a folder whose disk is timed, in a file of at most 1 GiB that is gone afterwards;
            where that cannot be done the profile says why. ``None``: no disk is timed.
        say: told what is being done.

    Raises:
        ProbeError: no such device, too little memory or time, wrong bytes, or no place for files.
        CudaCallError, CompilerError: the GPU could not be used.
    """
    began = time.monotonic()
    on_gpu = _on_gpu(device)
    budget = budget_s or (GPU_BUDGET_S if on_gpu else HOST_BUDGET_S)
    end = began + budget - (GPU_CLOSING_S if on_gpu else HOST_CLOSING_S)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        measure, points, ask = _gpu_stand(stack, say) if on_gpu else _host_stand(stack)
        no_disk = "not asked for"
        if disk is not None:
            measure, points, no_disk = _with_disk(stack, disk, measure, points, say)
        facts = ask()
        written = tuple(
            out / f"{facts.slug}.{kind}" for kind in ("toml", "samples.csv", "checks.csv")
        )
        with writing(out):
            written[1].unlink(missing_ok=True)
        samples = stack.enter_context(PointFile(written[1]))
        took_s = time.monotonic() - began
        say(f"{len(points)} points, set up in {took_s:.0f} s; samples come into {written[1]}")
        work = OtherWork()
        rounds = visit(
            points,
            measure,
            samples.add,
            out_of_time=lambda: time.monotonic() > end,
            warm_up=points,
            most_rounds=MOST_ROUNDS,
        )
        other_cores = work.cores()
        facts = dataclasses.replace(ask(), no_disk=no_disk)  # the link is awake now
    if other_cores is not None and not is_quiet(other_cores):
        note = f"measured beside other work that kept {other_cores:.1f} cores busy"
        facts = dataclasses.replace(facts, description=f"{facts.description}; {note}")
        say(f"{note}: on an idle machine the constants would be others")
    if rounds < FEWEST_ROUNDS:
        raise ProbeError(
            f"{rounds} whole rounds in {budget:.0f} s are too few for a profile"
            f" ({FEWEST_ROUNDS} are needed): give more --budget"
        )
    say(f"{rounds} rounds; fitting")
    found = summarise(samples.rows)
    profile = Fit(named(base, facts) if base else blank_profile(facts), found, facts).run()
    checks = check(profile, found)
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


_Ready = tuple[Measure, list[Point], Callable[[], MachineFacts]]


def _host_stand(stack: ExitStack) -> _Ready:
    from gatherbench.bench.probe.host import HostStand, table_bytes

    size = table_bytes(available_bytes())
    stand = stack.enter_context(HostStand(filled_table(size)))
    return stand.measure, cases.host_points(ask_host().cores, size), ask_host


def _gpu_stand(stack: ExitStack, say: Callable[[str], None]) -> _Ready:
    import torch

    from gatherbench.bench.probe.gpu import GpuStand

    device = torch.device("cuda", torch.cuda.current_device())
    spans = cases.fitting(cases.SPANS, available_bytes())
    if not spans:
        raise ProbeError("not 2 GiB of host memory are free: close other programs")
    stand = stack.enter_context(cases.as_large_as_opens(spans, lambda some: GpuStand(some, device)))
    spans = tuple(stand.spans)
    say(f"spans of {', '.join(f'{s / GIB:g}' for s in spans)} GiB of host memory")
    for width in (*cases.FITTED_ROW_BYTES, *cases.HELD_OUT_ROW_BYTES):
        stand.check(cases.OUR_BEST, width)
    cores = ask_host().cores
    points = [*cases.host_points(cores, max(spans)), *cases.gpu_points(spans, cores)]
    if managed := cases.fitting(spans, available_bytes()):
        try:
            stand.bring_managed(max(managed))
        except (CudaCallError, MemoryError) as why:
            say(f"managed memory is not timed: {why}")
        else:
            for width in (cases.MANAGED_ROW_BYTES, cases.USUAL_ROW_BYTES):
                stand.check(cases.OUR_BEST, width, managed=True)
            points += cases.managed_points(managed)
    return stand.measure, points, lambda: ask_gpu(device)


def _with_disk(
    stack: ExitStack,
    folder: Path,
    others: Measure,
    points: list[Point],
    say: Callable[[str], None],
) -> tuple[Measure, list[Point], str]:
    """The same with a disk's points, or why they cannot be had."""
    from gatherbench.bench.probe.disk_timing import DiskStand

    try:
        stand = stack.enter_context(DiskStand(folder, say))
    except ProbeError as why:
        say(f"no disk is timed: {why}")
        return others, points, str(why)
    more = cases.disk_points()

    def measure(point: Point) -> Observation:
        return stand.measure(point) if point in more else others(point)

    return measure, [*points, *more], ""


def _on_gpu(device: Device) -> bool:
    missing = "not asked" if device == "cpu" else no_gpu()
    if device == "cuda" and missing is not None:
        raise ProbeError(f"{missing}; --device cpu calibrates the host alone")
    return missing is None


def write_checks(checks: Sequence[Check], path: Path) -> None:
    """Measured and modelled rates of each point that the profile predicts, as CSV."""
    rates = ["measured_per_s", "low_per_s", "high_per_s", "samples", "modelled_per_s", "error"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*POINT_COLUMNS, "unit", *rates])
        for one in checks:
            point, unit = dataclasses.astuple(one.point), cases.CASES[one.point.case].unit
            *measured, count = dataclasses.astuple(one.measured)
            rates = ["" if v is None else f"{v:.5g}" for v in (*measured, one.predicted, one.error)]
            writer.writerow([*point, unit, *rates[:3], count, *rates[3:]])


def render(calibration: Calibration) -> RenderableType:
    """For a reader: the constants, then the held-out points, then what to make of them."""
    constants = Table(title=f"Profile {calibration.profile.name}", title_justify="left", box=None)
    constants.add_column("constant", no_wrap=True)
    constants.add_column("value", justify="right", no_wrap=True)
    constants.add_column("source")
    for key, constant in calibration.profile.constants.items():
        constants.add_row(key, _value(constant), Text(constant.source, style="dim"))
    held_out = Table(title="\nHeld out, and predicted", title_justify="left", box=None)
    held_out.add_column("what", no_wrap=True)
    for name in ("measured", "modelled", "error"):
        held_out.add_column(name, justify="right", no_wrap=True)
    for one in calibration.checks:
        if one.point.held_out:
            predicted = "unknown" if one.predicted is None else quantity(one.predicted, "B/s")
            error = "" if one.error is None else f"{one.error:+.0%}"
            measured = quantity(one.measured.median, "B/s")
            held_out.add_row(_what(one.point), measured, predicted, error)
    return Group(constants, held_out, *_closing(calibration))


def _value(constant: Constant) -> str:
    numbers = constant.numbers
    return span(min(numbers), max(numbers), constant.unit) if numbers else "unknown"


def _what(point: Point) -> str:
    words = {"host_gather": "CPU gather", "gpu_gather": "GPU gather", "sm_read": "GPU read"}
    words["managed_gather"] = "GPU gather, managed memory"
    parts = [words[point.case]]
    if point.row_bytes:
        parts.append(f"rows of {point.row_bytes} B")
    if point.threads:
        parts.append(f"{point.threads} thread{'s' if point.threads > 1 else ''}")
    if point.order == "sorted":
        parts.append("sorted ids")
    if point.span_bytes >= GIB and not point.threads:
        parts.append(f"{point.span_bytes / GIB:g} GiB")
    return ", ".join(parts)


def _closing(calibration: Calibration) -> Iterator[Text]:
    errors = [abs(error) for error in held_out_errors(calibration.checks)]
    if errors:
        yield Text(
            f"\n{len(errors)} held-out points are off by {statistics.median(errors):.0%} (median)"
            f" and {max(errors):.0%} at most."
        )
    share = smallest_share(calibration.found)
    if share is not None:
        yield Text(f"{share} % of the GPU's threads reach 95 % of the best gather.")
    yield Text(f"{calibration.rounds} rounds, {calibration.seconds:.0f} s in all. Written:")
    for path in calibration.files:
        yield Text(f"  {path}", no_wrap=True)
    if calibration.profile["gpu.launch"].value is None:
        yield Text(
            "It knows no GPU, so nothing is predicted with it; `gatherbench calibrate --base"
            " h100-sxm-pcie5` (or another of `gatherbench list profiles`) joins the two."
        )
    else:
        yield Text(
            f"Use it: gatherbench predict RUN --profile {calibration.files[0]} (below"
            " calibration/ it is found by itself), or as the profile of a plan."
        )


def folder_of_disk(said: str) -> Path | None:
    """The folder whose disk is timed: the data folder where none is said; ``none``: no disk.

    Raises:
        ProbeError: there is no such folder.
    """
    from gatherbench.datasets.store import data_root

    if said == "none":
        return None
    if said and not Path(said).is_dir():
        raise ProbeError(f"--disk {said}: no such folder; name a folder on the disk, or none")
    try:
        root = Path(said) if said else data_root().absolute()
    except ImportError:  # where little is installed there are no data, nor a folder for them
        root = Path.cwd()
    # A data folder that is not there yet will lie on the disk of what it is made in.
    return next(place for place in (root, *root.parents) if place.is_dir())


def run(out: Path, budget_s: float, base: str, device: Device, disk: str = "none") -> int:
    """Calibrate and print what came of it; 0, 1 if the machine failed, 2 for bad input."""
    err, console = Console(stderr=True), Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    try:
        done = calibrate(
            out,
            device=device,
            budget_s=budget_s or None,
            base=load_profile(base) if base else None,
            disk=folder_of_disk(disk),
            say=lambda text: err.print(text, highlight=False),
        )
    except (ProbeError, ProfileError) as error:
        err.print(Text(f"error: {plain(error)}", style="red"), soft_wrap=True)
        return 2
    except (CudaCallError, CompilerError, MemoryError, OSError) as error:
        err.print(Text(f"error: {plain(error)}", style="red"), soft_wrap=True)
        return 1
    console.print(render(done))
    return 0


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="calibrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for profile and samples")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds (0: 60, a GPU 500)")
    parser.add_argument("--base", default="", help="profile for what cannot be measured here")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--disk", default="", help=DISK_HELP)
    asked = parser.parse_args(arguments)
    with ends_within((asked.budget or GPU_BUDGET_S) + LATE_S):
        return run(asked.out, asked.budget, asked.base, asked.device, asked.disk)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
