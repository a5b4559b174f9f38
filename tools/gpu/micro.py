"""``gpu-micro``: how fast the GPU gathers from host memory, beside what the link can give at most.

    python -m tools.gpu.micro --list
    python -m tools.gpu.micro --out FOLDER --budget 500
    python -m tools.gpu.micro --out FOLDER --cases sm_read gpu_gather --spans 1 8

Every point is a row of ``rows.csv`` as soon as it is measured, so a run that is cut short keeps
what it has; ``summary.csv`` and ``targets.csv`` are derived from the rows at the end.

The cases are grouped in sections, each in a process of its own with its share of the time: one that
crashes, hangs or lacks something costs the others nothing, and its cases are rows with the reason.

    gather     rates over row width, span, order, policy and grid, beside the roofs
    pages      registered and managed memory by span, also by others' kernels, and where pages split
    overlap    a gather beside loads that are like training
    ncu        the GPU's counters beside the request accounting
    peer       WholeGraph live, where it is installed

Measuring needs torch, NVRTC and cuda-bindings, and no more: neither a dataset nor the harness. The
tables at the end need pandas and scipy; ``--report FOLDER`` makes them elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gatherbench.bench.probe.cases import (
    CASES,
    GIB,
    SPANS,
    amount_of,
    as_large_as_opens,
    fitting,
    gpu_points,
    host_points,
)
from gatherbench.bench.probe.machine import describe, no_gpu
from gatherbench.bench.probe.stand import PointFile, RefusedError, ends_within, row_of, visit
from gatherbench.bench.read.points import Point, PointRow
from gatherbench.kernels.policies import POLICIES
from tools.gpu.points import CAPS, ROW_BYTES, gather_points

if TYPE_CHECKING:
    from gatherbench.bench.probe.gpu import GpuStand

#: Each section's weight in the time that is left when its turn comes, among those still to come.
SECTIONS = {"gather": 11.0, "pages": 6.0, "overlap": 4.0, "ncu": 4.0, "peer": 1.0}
#: Exit status of a section that cannot run here; its last line says why.
SKIPPED = 3
#: Exit status of a section that has lost CUDA's context and can begin anew, with what its line that
#: begins with ``--without`` says.
AGAIN = 5
#: What a section may take beyond its budget before it is ended.
_GRACE_S = 20.0
#: How long a killed process is waited for.
_KILL_S = 10.0
#: Kept back by the gathers for giving back the table, and by the whole run for its tables.
_CLOSING_S, _REPORT_S = 15.0, 5.0
FEWEST_ROUNDS = 3
ROOFS_AND_GATHERS = ("copy_to_device", "sm_read", "gpu_gather")

Add = Callable[[PointRow], None]


class ContextLostError(RuntimeError):
    """A kernel has broken the CUDA context: nothing else can be measured in this process."""

    def __init__(self, gather: str, error: Exception) -> None:
        super().__init__(f"{gather} (policy:row bytes) broke CUDA's context: {error}")
        self.left_out = gather


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="gpu-micro", description=(__doc__ or "").split("\n")[0], allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        help="folder for rows and figures; -2, -3 … is added where it exists",
    )
    add("--list", action="store_true", help="list the cases, and stop")
    add("--report", type=Path, metavar="FOLDER", help="derive its tables anew, and stop")
    add("--dry-run", action="store_true", help="say what the gathers would time, and stop")
    add("--budget", type=float, default=500.0, help="seconds for everything")
    add("--rounds", type=int, default=0, help="end after so many (0: the budget decides)")
    add("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    cases = [case.name for case in CASES.values() if case.section in SECTIONS]
    add("--cases", nargs="+", choices=cases, metavar="CASE", help="cases to run; --list has them")
    of_gathers = parser.add_argument_group("of the gathers")
    add = of_gathers.add_argument
    add("--spans", type=float, nargs="+", default=[s / GIB for s in SPANS], help="table, GiB")
    add("--memory", type=float, default=0.0, help="GiB of free host memory (0: ask the system)")
    add("--row-bytes", type=int, nargs="+", default=list(ROW_BYTES))
    add("--policies", nargs="+", default=list(POLICIES))
    add("--without", action="append", default=[], metavar="POLICY:BYTES", help="leave it out")
    add("--caps", type=int, nargs="+", default=list(CAPS), help="per cent of the GPU; 0: no cap")
    # A section in its own process.
    parser.add_argument("--section", choices=list(SECTIONS), help=argparse.SUPPRESS)
    return parser


def gathers(options: argparse.Namespace, spans: Sequence[int]) -> list[Point]:
    """What the section ``gather`` measures: the usual points, and others if named by ``--cases``.

    Raises:
        ValueError: see :func:`tools.gpu.points.gather_points`.
    """
    points = gather_points(spans, options.row_bytes, options.policies, options.caps)
    if not options.cases:
        return points
    usual = {point.case for point in points}
    cores = len(os.sched_getaffinity(0))
    others = [*host_points(cores, max(spans)), *gpu_points(spans, cores)]
    points += [point for point in others if point.case not in usual]
    return [point for point in points if point.case in options.cases]


def measure_gathers(options: argparse.Namespace, began: float, add: Add) -> list[str]:
    """Set up, check, then go round until the budget is spent; what was left out as wrong.

    Raises:
        ContextLostError: at the check of a policy, before anything was timed.
        RefusedError: no span fits the memory.
        RuntimeError: at a timed launch; the rows before it are there.
    """
    import torch

    from gatherbench.bench.probe.gpu import GpuStand
    from gatherbench.kernels.host_memory import available_bytes

    device = torch.device("cuda", torch.cuda.current_device())
    free = int(options.memory * GIB) or available_bytes()
    spans = fitting([int(s * GIB) for s in options.spans], free)
    for span in options.spans:
        if int(span * GIB) not in spans:
            print(f"span {span:g} GiB left out: not enough free host memory", flush=True)
    if not spans:
        raise RefusedError("no span fits the free host memory: give smaller ones with --spans")
    with ExitStack() as stack:
        stack.enter_context(ends_within(options.budget - (time.monotonic() - began)))
        stand = stack.enter_context(as_large_as_opens(spans, lambda some: GpuStand(some, device)))
        for point, seen in stand.setup.items():
            add(row_of(point, 0, *seen))
        plan = gathers(options, stand.spans)
        print(f"{len(plan)} points, spans {[s / GIB for s in stand.spans]} GiB", flush=True)
        wrong = find_wrong(stand, plan, options.without)
        for point in plan:
            if gather_of(point) in wrong:
                add(row_of(point, reason=wrong[gather_of(point)]))
        plan = [point for point in plan if gather_of(point) not in wrong]
        said = "every policy is right" if not wrong else f"{len(wrong)} left out"
        print(f"{said}; {time.monotonic() - began:.0f} s used", flush=True)
        rounds = visit(
            plan,
            stand.measure,
            add,
            out_of_time=lambda: time.monotonic() - began > options.budget - _CLOSING_S,
            warm_up=[point for point in plan if point.case != "gpu_gather"],  # those were checked
            most_rounds=options.rounds,
            begins=lambda number: print(
                f"round {number}, {time.monotonic() - began:.0f} s used", flush=True
            ),
        )
        if rounds < FEWEST_ROUNDS:
            print(f"only {rounds} whole rounds: give more --budget or fewer points", flush=True)
    return list(wrong)


def gather_of(point: Point) -> str:
    """What ``--without`` calls it: policy and row width."""
    return f"{point.policy}:{point.row_bytes}"


def find_wrong(stand: GpuStand, plan: Sequence[Point], without: Sequence[str]) -> dict[str, str]:
    """What is not to be timed, told so or wrong here, and why.

    Raises:
        ContextLostError: a policy has broken CUDA's context.
    """
    import torch

    wrong = dict.fromkeys(without, "left out with --without")
    gathers = {gather_of(p): p for p in plan if p.case == "gpu_gather"}
    for name, point in gathers.items():
        if name in wrong:
            continue
        try:
            stand.check(point.policy, point.row_bytes)
        except (RuntimeError, ValueError) as error:
            try:
                torch.cuda.synchronize(stand.device)
            except RuntimeError as lost:
                raise ContextLostError(name, error) from lost
            print(f"left out: {name}: {error}", flush=True)
            wrong[name] = str(error)
    return wrong


def run_here(options: argparse.Namespace, add: Add) -> int:
    """One section, in this process; its exit status."""
    began = time.monotonic()

    def wanted(point: Point) -> bool:
        return not options.cases or point.case in options.cases

    try:
        if options.section == "gather":
            if wrong := measure_gathers(options, began, add):
                print(f"left out, because wrong or worse: {', '.join(wrong)}")
            return 1 if wrong else 0
        from tools.gpu import counters, overlap, pages, peer

        sections = {
            "pages": pages.measure,
            "overlap": overlap.measure,
            "ncu": counters.measure,
            "peer": peer.measure,
        }
        sections[options.section](add, began + options.budget, wanted, options.rounds)
    except RefusedError as why:
        print(why)
        return SKIPPED
    except ContextLostError as lost:
        print(lost, f"--without {lost.left_out}", sep="\n")
        return AGAIN
    except RuntimeError:
        traceback.print_exc()
        return 1
    return 0


def run_section(name: str, out: Path, budget_s: float, arguments: Sequence[str]) -> tuple[str, str]:
    """Run a section in a process of its own; how it ended (``ok``, skipped, failed) and why."""
    began, more = time.monotonic(), list(arguments)
    while True:
        left_s = budget_s - (time.monotonic() - began)
        status, said = _run_process(name, out, left_s, more)
        took = time.monotonic() - began
        print(f"== {name}, {took:.0f} s", said.rstrip(), sep="\n", flush=True)
        without = next((x for x in said.splitlines() if x.startswith("--without ")), None)
        if status != AGAIN or without is None or took > budget_s / 2:
            break
        more += without.split()
    last = next((x.strip() for x in reversed(said.splitlines()) if x.strip()), "it said nothing")
    if status == 0:
        return "ok", ""
    if status == SKIPPED:
        return "skipped", last
    how = "took too long" if status is None else f"ended with status {status}"
    return "failed", f"{how}; last words: {last}"


def _run_process(
    name: str, out: Path, budget_s: float, more: Sequence[str]
) -> tuple[int | None, str]:
    """The section's exit status (``None``: it was ended for its time) and what it printed."""
    command = [sys.executable, "-m", "tools.gpu.micro", *more]
    command += ["--section", name, "--out", str(out), "--budget", f"{budget_s:.0f}"]
    # Into a file: a pipe would be waited for until the last that has inherited it is gone.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts, e.g. ncu, can be ended with it
        )
        status = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(budget_s + _GRACE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has started goes with it
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a hung driver holds it
                process.wait(_KILL_S)
        log.seek(0)
        return status, log.read().decode(errors="replace")


def fresh_folder(wanted: Path) -> Path:
    """A folder with nothing in it, and say which: no measurement overwrites an earlier one.

    ``wanted`` itself where it is new or empty, otherwise the first of ``wanted-2``, ``wanted-3`` …
    that is not there yet.
    """
    folder = wanted = wanted.resolve()
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(2):
        try:
            folder.mkdir()  # of two programs that start at once, one makes it
            break
        except FileExistsError:
            if folder == wanted and wanted.is_dir() and not any(wanted.iterdir()):
                break
        folder = wanted.with_name(f"{wanted.name}-{number}")
    taken = "" if folder == wanted else f" ({wanted.name} has been written before)"
    print(f"writes to {folder}{taken}", flush=True)
    return folder


def run_sections(options: argparse.Namespace, arguments: Sequence[str], deadline: float) -> int:
    """Each section in turn, then the tables; 1 if a section failed."""
    table = options.out / "rows.csv"
    usual = {point.case for point in gather_points()}
    usual |= {case.name for case in CASES.values() if case.section != "gather"}
    asked = [case for case in CASES.values() if case.name in (options.cases or usual)]
    names = [name for name in options.sections if any(case.section == name for case in asked)]
    ended = {}
    for number, name in enumerate(names):
        left = deadline - time.monotonic() - _REPORT_S
        share = SECTIONS[name] / sum(SECTIONS[other] for other in names[number:])
        budget_s = max(10.0, left * share - _GRACE_S / 2)
        ended[name] = status, reason = run_section(name, options.out, budget_s, arguments)
        with PointFile(table) as file:
            for case in asked:
                if status != "ok" and case.section == name:
                    file.add(row_of(Point(case.name), reason=f"{status}: {reason}"))
        report(options.out)  # as it goes: what is cut off later has its tables
    for name, (status, reason) in ended.items():
        print(f"{name}: {status} {reason}")
    return 1 if any(status == "failed" for status, _ in ended.values()) else 0


def report(folder: Path) -> None:
    """Derive the tables from the rows, and print them."""
    try:
        from tools.gpu.targets import write_report
    except ImportError as missing:
        print(f"no summary.csv, no targets.csv: {missing}; make them elsewhere with --report")
        return
    print(write_report(folder))


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if a section failed, 2 for what cannot be begun."""
    began = time.monotonic()
    options = parser().parse_args(arguments)
    if options.list:
        for case in CASES.values():
            needs = f"; needs {case.needs}" if case.needs else ""
            print(f"{case.name:22} {case.section:8} {case.unit:2} {case.what}{needs}")
        return 0
    if options.report is not None:
        report(options.report)
        return 0
    problem = None
    try:
        points = gathers(options, [int(span * GIB) for span in options.spans])
        if options.dry_run:
            read = sum(amount_of(p) for p in points if p.case in ROOFS_AND_GATHERS)
            print(f"{len(points)} points; one round moves {read / GIB:.1f} GiB of payload")
            return 0
    except ValueError as error:
        problem = str(error)
    problem = problem or ("--out is missing" if options.out is None else no_gpu())
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    if options.section is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with PointFile(options.out / "rows.csv") as file:
            return run_here(options, file.add)
    env = describe()
    options.out = fresh_folder(options.out)
    (options.out / "env.json").write_text(json.dumps(env, indent=2) + "\n")
    return run_sections(options, arguments, began + options.budget)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
