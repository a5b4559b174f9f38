"""``gpu-micro``: how fast the GPU gathers from host memory, beside what the link can give at most.

    python -m gatherbench.bench.gpu.micro --out FOLDER --budget 500

One process, one registered table, everything in turns (``micro_plan.py``). Rows are appended to
``rows.csv`` as they come, so a run that is cut short keeps what it measured; the summary and the
figure are made at the end, from the rows alone. It needs torch, NVRTC and cuda-bindings, and no
more: neither a dataset nor the harness.

Before anything is timed each policy gathers a sample that is compared bit for bit with the host's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gatherbench.bench.gpu.micro_plan import (
    CAPS,
    GIB,
    ROW_BYTES,
    SPANS,
    fitting,
    points,
    rounds,
)
from gatherbench.bench.gpu.micro_rows import MicroRow, RowFile, row_of, write_summary
from gatherbench.kernels.policies import POLICIES

#: Seconds kept back for the summary and the figure.
CLOSING_S = 20.0
FEWEST_ROUNDS = 3


def describe(device: Any) -> dict[str, Any]:
    """The machine, as far as it bears on the numbers."""
    import torch

    gpu = torch.cuda.get_device_properties(device)
    return {
        "gpu": gpu.name,
        "multiprocessors": gpu.multi_processor_count,
        "l2_bytes": gpu.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cores": os.cpu_count(),
    }


def measure(options: argparse.Namespace, began: float) -> list[MicroRow]:
    """Set up, check, then go round until the budget is spent; the rows."""
    import psutil
    import torch

    from gatherbench.bench.gpu.micro_device import Bench

    device = torch.device("cuda", torch.cuda.current_device())
    (options.out / "env.json").write_text(json.dumps(describe(device), indent=2) + "\n")
    free = int(options.memory * GIB) or psutil.virtual_memory().available
    spans = fitting([int(s * GIB) for s in options.spans], free)
    for span in options.spans:
        if int(span * GIB) not in spans:
            print(f"span {span:g} GiB left out: not enough free host memory", flush=True)
    if not spans:
        raise SystemExit("no span fits the free host memory: give smaller ones with --spans")
    plan = points(spans, options.row_bytes, options.policies, options.caps)
    print(f"{len(plan)} points, spans {[s // GIB for s in spans]} GiB", flush=True)
    out = RowFile(options.out / "rows.csv")
    try:
        with Bench(max(spans), device, out.add) as bench:
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
    finally:
        out.close()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpu-micro", description=(__doc__ or "").split("\n")[0])
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
    import torch

    if not torch.cuda.is_available():
        print(f"error: torch {torch.__version__} sees no CUDA GPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault(
        "GATHERBENCH_KERNEL_CACHE", str(Path(tempfile.gettempdir()) / "gatherbench-kernels")
    )
    rows = measure(options, began)
    table = write_summary(rows, options.out / "summary.csv")
    from gatherbench.bench.gpu.micro_figure import draw, headline

    print(headline(table))
    try:
        draw(table, options.out / "gather_rate.png")
    except ImportError as missing:
        print(f"no figure: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
