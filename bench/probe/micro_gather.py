"""The micro-benchmark's main section: gathers beside the roofs, in turns, until the time is spent.

    python -m gatherbench.bench.probe.micro_gather --out FOLDER --budget 300

Rows are appended to ``rows.csv`` as they come, so a run that is cut short keeps what it measured;
summary, targets and figure are made at the end, from the rows alone. Before anything is timed each
policy gathers a sample that is compared bit for bit with the host's. One that is wrong is left out,
and the section ends with status 1; one that takes the CUDA context with it ends the process, which
``micro.py`` starts again without it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gatherbench.bench.probe.micro import AGAIN
from gatherbench.bench.probe.micro_machine import prepare
from gatherbench.bench.probe.micro_plan import (
    CAPS,
    GIB,
    PASSES,
    ROW_BYTES,
    SPANS,
    as_large_as_opens,
    fitting,
    points,
    rounds,
)
from gatherbench.bench.probe.micro_rows import RowFile, row_of, write_summary
from gatherbench.bench.probe.watchdog import ends_within
from gatherbench.bench.read.micro_row import MicroRow
from gatherbench.kernels.policies import POLICIES

if TYPE_CHECKING:
    from gatherbench.bench.probe.micro_device import Bench

#: Seconds kept back for the summary and the figure.
CLOSING_S = 20.0
FEWEST_ROUNDS = 3


class ContextLostError(RuntimeError):
    """A kernel has broken the CUDA context: nothing else can be measured in this process."""

    def __init__(self, policy: str, row_bytes: int, error: Exception) -> None:
        super().__init__(f"policy {policy}, rows of {row_bytes} B, broke CUDA's context: {error}")
        self.left_out = f"{policy}:{row_bytes}"


def measure(options: argparse.Namespace, began: float, out: RowFile[MicroRow]) -> list[str]:
    """Set up, check, then go round until the budget is spent; what was left out as wrong.

    Raises:
        ContextLostError: at the check of a policy, before anything was timed.
        RuntimeError: at a timed launch; the rows before it are there.
    """
    import torch

    from gatherbench.bench.probe.micro_device import Bench
    from gatherbench.kernels.host_memory import available_bytes

    device = torch.device("cuda", torch.cuda.current_device())
    free = int(options.memory * GIB) or available_bytes()
    spans = fitting([int(s * GIB) for s in options.spans], free)
    for span in options.spans:
        if int(span * GIB) not in spans:
            print(f"span {span:g} GiB left out: not enough free host memory", flush=True)
    if not spans:
        raise SystemExit("no span fits the free host memory: give smaller ones with --spans")
    with ExitStack() as stack:
        left_s = options.budget - (time.monotonic() - began)
        stack.enter_context(ends_within(left_s, lambda: report(out.rows, options.out)))
        bench, spans = as_large_as_opens(spans, lambda some: Bench(max(some), device, out.add))
        stack.enter_context(bench)
        plan = points(spans, options.row_bytes, options.policies, options.caps)
        print(f"{len(plan)} points, spans {[s // GIB for s in spans]} GiB", flush=True)
        wrong = _wrong(bench, options)
        plan = [point for point in plan if f"{point.policy}:{point.row_bytes}" not in wrong]
        said = "every policy is right" if not wrong else f"{len(wrong)} left out"
        print(f"{said}; {time.monotonic() - began:.0f} s used", flush=True)
        for point in plan:
            if point.kind != "gather":  # gathers have been launched by the checks
                bench.seconds(point)  # loads kernels, takes memory, wakes the link
        last = -1
        for number, point in rounds(plan):
            if number != last:
                elapsed = time.monotonic() - began
                print(f"round {number}, {elapsed:.0f} s used", flush=True)
                last = number
            if time.monotonic() - began > options.budget - CLOSING_S:
                break
            if options.rounds and number >= options.rounds:
                break
            try:
                seconds = bench.seconds(point)
            except RuntimeError:
                print(f"ended at {point}", flush=True)
                raise
            out.add(row_of(point, number, seconds))
        if last < FEWEST_ROUNDS:
            print(f"only {last} whole rounds: give more --budget or fewer points", flush=True)
    return wrong


def _wrong(bench: Bench, options: argparse.Namespace) -> list[str]:
    """``policy:row bytes`` of what is not to be timed: told so, or wrong here."""
    import torch

    wrong = list(options.without)
    for name in options.policies:
        for width in options.row_bytes:
            if f"{name}:{width}" in wrong:
                continue
            try:
                bench.check(name, width)
            except (RuntimeError, ValueError) as error:
                try:
                    torch.cuda.synchronize(bench.device)
                except RuntimeError as lost:
                    raise ContextLostError(name, width, error) from lost
                print(f"left out: policy {name}, rows of {width} B: {error}", flush=True)
                wrong.append(f"{name}:{width}")
    return wrong


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="gpu-micro gather", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for rows and figures")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for everything")
    parser.add_argument("--rounds", type=int, default=0, help="stop after so many (0: the budget)")
    parser.add_argument(
        "--spans", type=float, nargs="+", default=[s / GIB for s in SPANS], help="GiB of table"
    )
    parser.add_argument(
        "--memory", type=float, default=0.0, help="GiB of free host memory (0: ask the system)"
    )
    parser.add_argument("--row-bytes", type=int, nargs="+", default=list(ROW_BYTES))
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument(
        "--without", action="append", default=[], metavar="POLICY:BYTES", help="not to be measured"
    )
    parser.add_argument("--caps", type=int, nargs="+", default=list(CAPS), help="per cent; 0: none")
    parser.add_argument("--dry-run", action="store_true", help="say what would be timed, and stop")
    return parser.parse_args(arguments)


def report(rows: Sequence[MicroRow], out: Path) -> None:
    """Summary, targets, figure and a few lines of text, from the rows alone."""
    from gatherbench.bench.probe.micro_figure import draw, headline
    from gatherbench.bench.probe.micro_targets import write_targets

    table = write_summary(rows, out / "summary.csv")
    print(headline(table))
    print(write_targets(rows, out / "targets.csv"))
    passes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.kind in PASSES:
            passes[row.kind, row.payload_bytes // 8].append(row.time_s)
    for (kind, count), seconds in sorted(passes.items()):
        print(f"  {kind} of {count} ids: {1e6 * statistics.median(seconds):.0f} us")
    if not table:
        return
    try:
        draw(table, out / "gather_rate.png")
    except ImportError as missing:
        print(f"no figure: {missing}")


def main(arguments: Sequence[str]) -> int:
    """Measure, summarise, draw; the exit status."""
    began = time.monotonic()
    options = parse(arguments)
    spans = [int(s * GIB) for s in options.spans]
    try:
        plan = points(spans, options.row_bytes, options.policies, options.caps)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        read = sum(point.payload_bytes for point in plan)
        print(f"{len(plan)} points; one round moves {read / GIB:.1f} GiB of payload")
        return 0
    if (problem := prepare(options.out)) is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    with RowFile(options.out / "rows.csv", MicroRow) as out:
        try:
            wrong, whole = measure(options, began, out), True
        except ContextLostError as lost:
            print(lost, f"--without {lost.left_out}", sep="\n")
            return AGAIN
        except RuntimeError:
            traceback.print_exc()
            wrong, whole = [], False
        if out.rows:
            report(out.rows, options.out)
    if wrong:
        print(f"left out, because wrong or worse: {', '.join(wrong)}")
    return 0 if whole and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
