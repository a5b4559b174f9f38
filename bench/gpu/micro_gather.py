"""The micro-benchmark's main section: gathers beside the roofs, in turns, until the time is spent.

    python -m gatherbench.bench.gpu.micro_gather --out FOLDER --budget 300

Rows are appended to ``rows.csv`` as they come, so a run that is cut short keeps what it measured;
the summary and the figure are made at the end, from the rows alone. Before anything is timed each
policy gathers a sample that is compared bit for bit with the host's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from gatherbench.bench.gpu.micro_machine import prepare
from gatherbench.bench.gpu.micro_plan import (
    CAPS,
    GIB,
    PASSES,
    ROW_BYTES,
    SPANS,
    fitting,
    points,
    rounds,
)
from gatherbench.bench.gpu.micro_rows import MicroRow, RowFile, row_of, write_summary
from gatherbench.bench.gpu.watchdog import ends_within
from gatherbench.kernels.policies import POLICIES

#: Seconds kept back for the summary and the figure.
CLOSING_S = 20.0
FEWEST_ROUNDS = 3


def measure(options: argparse.Namespace, began: float) -> list[MicroRow]:
    """Set up, check, then go round until the budget is spent; the rows."""
    import torch

    from gatherbench.bench.gpu.micro_device import Bench
    from gatherbench.kernels.host_memory import available_bytes

    device = torch.device("cuda", torch.cuda.current_device())
    free = int(options.memory * GIB) or available_bytes()
    spans = fitting([int(s * GIB) for s in options.spans], free)
    for span in options.spans:
        if int(span * GIB) not in spans:
            print(f"span {span:g} GiB left out: not enough free host memory", flush=True)
    if not spans:
        raise SystemExit("no span fits the free host memory: give smaller ones with --spans")
    plan = points(spans, options.row_bytes, options.policies, options.caps)
    print(f"{len(plan)} points, spans {[s // GIB for s in spans]} GiB", flush=True)
    with (
        RowFile(options.out / "rows.csv", MicroRow) as out,
        ends_within(
            options.budget - (time.monotonic() - began), lambda: report(out.rows, options.out)
        ),
        Bench(max(spans), device, out.add) as bench,
    ):
        for name in options.policies:
            for width in options.row_bytes:
                bench.check(name, width)
        print(f"every policy is right; {time.monotonic() - began:.0f} s used", flush=True)
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
            out.add(row_of(point, number, bench.seconds(point)))
        if last < FEWEST_ROUNDS:
            print(f"only {last} whole rounds: give more --budget or fewer points", flush=True)
    return out.rows


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
    parser.add_argument("--caps", type=int, nargs="+", default=list(CAPS), help="per cent; 0: none")
    parser.add_argument("--dry-run", action="store_true", help="say what would be timed, and stop")
    return parser.parse_args(arguments)


def report(rows: Sequence[MicroRow], out: Path) -> None:
    """Summary, figure and a few lines of text, from the rows alone."""
    from gatherbench.bench.gpu.micro_figure import draw, headline

    table = write_summary(rows, out / "summary.csv")
    print(headline(table))
    passes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.kind in PASSES:
            passes[row.kind, row.payload_bytes // 8].append(row.time_s)
    for (kind, count), seconds in sorted(passes.items()):
        print(f"  {kind} of {count} ids: {1e6 * statistics.median(seconds):.0f} us")
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
    report(measure(options, began), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
