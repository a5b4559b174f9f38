"""Which of the GPU's sensors tell the truth, and what they say of each data path.

    python -m gatherbench.bench.probe.meters --out FOLDER --budget 500

First every source of link traffic is held against copies of known size, both ways and in several
sizes, and the GPU's idle power is taken. Then each strategy fetches and trains on random rows of a
made-up table, in turns, with the energy of each over ten seconds and more; and last, once, managed
memory with its page faults and migrations. The folder is a run's: rows.csv, env.json, plan.json,
timeline.parquet, figures; and calibration.csv. Rows are on disk as they come.

Of 500 s, the table, idle power and copies take about 60 and closing 30. The rest is for up to three
rounds of six cases and for managed memory: 19 windows of 10 s, which leaves 11 s a case for opening
the path and four epochs. Where that is not enough, rounds are left out and not managed memory.

It needs torch, numba, pynvml, pandas, pyarrow, matplotlib, psutil and what the CUDA paths need, and
no dataset.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gatherbench.bench.machine.env import describe_cpu, describe_memory
from gatherbench.bench.machine.nvml import SensorUnavailableError
from gatherbench.bench.meters.gpu_choice import GpuUnderTest
from gatherbench.bench.meters.nvml_device import NvmlDevice
from gatherbench.bench.meters.trust import calibrate
from gatherbench.bench.probe.machine import (
    OUT_HELP,
    describe,
    fresh_folder,
    no_gpu,
    provenance,
)
from gatherbench.bench.probe.meters_case import EPOCHS, Session, cases, last_case
from gatherbench.bench.probe.meters_loop import Size, make_batches, make_table
from gatherbench.bench.probe.watchdog import ends_within
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.samples import write_timeline
from gatherbench.bench.run.sensor_calibration import COPY_BYTES as RUN_COPY_BYTES
from gatherbench.bench.run.sensor_calibration import (
    COPY_S,
    PinnedCopier,
    calibrate_gpu,
    rows_of_calibration,
    torch_gpu_uuids,
)
from gatherbench.bench.run.store import CASE_METRIC, CASE_STAGE, write_atomically
from gatherbench.bench.show.figures.draw import save_all
from gatherbench.kernels.host_memory import available_bytes

GIB = 1 << 30
MIB = 1 << 20
#: Copies of these sizes, beside those of a run's own calibration.
COPY_BYTES = (1 * MIB, 16 * MIB, 1 * GIB)
#: Seconds kept back for tables and figures.
CLOSING_S = 30.0
#: Less than this is not worth a new start: half a minute each to begin, to calibrate and to close.
LEAST_S = 120.0
MOST_REPEATS = 3
NOT_MEASURED = (
    "not measured when the program ended; its output says why, and BUDGET= gives it more time"
)


def describe_here() -> dict[str, Any]:
    """The machine as ``env.json`` says it, without the packages that a GPU machine may lack."""
    return {
        **provenance(),
        "cpu": describe_cpu(),
        "memory": describe_memory(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **(describe() if torch.cuda.is_available() else {"torch": torch.__version__}),
    }


def calibrate_sizes(session: Session, sizes: Sequence[int] = COPY_BYTES) -> None:
    """Hold every source against copies of several sizes; rows only."""
    for size in sizes:
        copier = PinnedCopier(session.device, size)
        try:
            found = calibrate(NvmlDevice(torch_gpu_uuids(session.device)), copier, COPY_S)
        except SensorUnavailableError as unavailable:
            print(f"no calibration with copies of {size / MIB:g} MiB: {unavailable}", flush=True)
            return
        of = f"copies of {size / MIB:g} MiB"
        for row in rows_of_calibration(found, session.whole, of):
            if "ratio" in row.metric or "copied" in row.metric:
                session.emit(row)


def calibration_table(rows: pd.DataFrame) -> pd.DataFrame:
    """``source``, ``copied`` (what), ``direction``, ``ratio``, ``verdict`` from a run's rows."""
    wanted = rows[rows["metric"].str.fullmatch(r"pcie_(host_to_device|device_to_host)_ratio")]
    parts = wanted["source"].str.extract(
        r"^(?P<source>\w+): [^,]+, (?P<copied>[^;]+)(?:; (?P<trust>\w+))?$"
    )
    size = f"copies of {RUN_COPY_BYTES / MIB:g} MiB"
    return pd.DataFrame(
        {
            "source": parts["source"],
            "copied": parts["copied"].replace("pinned memory", size),
            "direction": wanted["metric"].str.removeprefix("pcie_").str.removesuffix("_ratio"),
            "ratio": wanted["value"],
            "verdict": parts["trust"].fillna(wanted["reason"]),
        }
    ).reset_index(drop=True)


def plan(session: Session, size: Size, repeat: int, without: Sequence[str] = ()) -> None:
    """Add a round to ``plan.json``, so that the folder reads as any run's."""
    begun = [*cases(), last_case()] if repeat == 0 else cases()
    session.planned += [
        case.row_maker(session, size.workload, repeat)
        for case in begun
        if case.label not in without
    ]
    text = {
        "name": "gpu-meters",
        "description": f"{(__doc__ or '').splitlines()[0]} Managed memory comes once, and last.",
        "measure": {
            "repeats": repeat + 1,
            "epochs": EPOCHS,
            "warmup_epochs": 1,
            "sampling": "replay",
        },
        "workloads": {size.workload.id: dataclasses.asdict(size.workload)},
        "cases": [
            {
                "workload": make.workload,
                "strategy": make.strategy,
                "variant": make.variant,
                "params": {},
                "repeat": make.repeat,
            }
            for make in session.planned
        ],
    }
    write_atomically(session.store.folder / "plan.json", json.dumps(text, indent=2) + "\n")


def measure(session: Session, size: Size, deadline: float, without: Sequence[str] = ()) -> None:
    """Each case but those ``without`` in turns until the time is up, then the last one.

    The first round has been planned; the others are as they begin.
    """
    table, batches = make_table(size), make_batches(size)
    in_turns, last = [c for c in cases() if c.label not in without], last_case()
    longest_s = 0.0
    for repeat, case in itertools.product(range(MOST_REPEATS), in_turns):
        begin = time.monotonic()
        # The last case has its room kept from the second round on.
        if begin + longest_s * (1 if repeat == 0 else 2) > deadline:
            print(f"time is up at round {repeat}, {case.label}", flush=True)
            break
        if repeat > 0 and case is in_turns[0]:
            plan(session, size, repeat, without)
        status = case.measure(session, table, batches, size.workload, repeat)
        longest_s = max(longest_s, time.monotonic() - begin)
        print(f"round {repeat} {case.label}: {status}", flush=True)
        if status.startswith("failed") and context_is_broken(session.device):
            print(f"after {case.label} CUDA answers no more in this process", flush=True)
            session.broken = case.label
            return
    if last.label in without:
        return
    if time.monotonic() + longest_s > deadline:
        print(f"no time for {last.label}", flush=True)
        return
    write_tables(session)  # should the driver end the process, only figures are missing
    if session.device.type == "cuda":
        torch.cuda.empty_cache()  # managed memory is refused by what the driver has free
    status = last.measure(session, table, batches, size.workload, 0)
    print(f"last {last.label}: {status}", flush=True)


def context_is_broken(device: torch.device) -> bool:
    """Whether an error of an earlier kernel has made every later call of this process fail."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def again_without(options: argparse.Namespace, broken: str, left_s: float) -> None:
    """Measure the others in a process and a folder of their own, if there is time for it.

    Not in the same folder: ratios are of one run, and its calibration is its own.
    """
    without = [*options.without, broken]
    if left_s < LEAST_S:
        print(f"no time for the other strategies: --without {' '.join(map(repr, without))}")
        return
    folder = options.out.with_name(f"{options.out.name}-without-{len(without)}")
    print(f"the other strategies go to {folder.name}", flush=True)
    command = [sys.executable, "-m", "gatherbench.bench.probe.meters", "--out", str(folder)]
    command += ["--budget", f"{left_s:.0f}", "--table", str(options.table)]
    command += ["--batch-rows", str(options.batch_rows), "--without", *without]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=False)


def write_tables(session: Session) -> pd.DataFrame:
    """``timeline.parquet`` and ``calibration.csv`` of what is known; the latter's table."""
    write_timeline(session.series, session.store.folder)
    table = calibration_table(load_run(session.store.folder).whole)
    table.to_csv(session.store.folder / "calibration.csv", index=False)
    return table


def finish(session: Session) -> None:
    """Tables and figures, from what is on disk alone; a reason for what was planned and is not."""
    ended = {
        (row.strategy, row.variant, row.repeat)
        for row in session.store.rows()
        if row.stage == CASE_STAGE
    }
    for make in session.planned:
        if (make.strategy, make.variant, make.repeat) not in ended:
            session.emit(make.missing(CASE_STAGE, CASE_METRIC, "s", "gpu-meters", NOT_MEASURED))
    print(write_tables(session).to_string(index=False), flush=True)
    for path in save_all(load_run(session.store.folder), session.store.folder / "figures"):
        print(path)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="gpu-meters", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help=OUT_HELP)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for everything")
    parser.add_argument("--table", type=float, default=8.0, help="GiB of feature table")
    parser.add_argument("--batch-rows", type=int, default=100_000, help="rows of a minibatch")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="STRATEGY", help="as the rounds name it"
    )
    options = parser.parse_args(arguments)
    if options.batch_rows < 1:
        parser.error("--batch-rows: a minibatch has one row or more")
    known = [case.label for case in (*cases(), last_case())]
    for name in options.without:
        if name not in known:
            parser.error(f"--without {name!r}: one of {', '.join(map(repr, known))}")
    if set(known) <= set(options.without):
        parser.error("--without: nothing is left to measure")
    return options


def main(arguments: Sequence[str]) -> int:
    """Calibrate, measure, draw; the exit status."""
    began = time.monotonic()
    options = parse(arguments)
    reason = no_gpu()
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    free = min(available_bytes(), torch.cuda.mem_get_info(device)[0])
    size = Size(min(int(options.table * GIB), free // 4), options.batch_rows)
    env = describe_here()
    options.out = fresh_folder(options.out)
    session = Session.open(options.out, device, env)
    plan(session, size, 0, options.without)
    left_s = began + options.budget - time.monotonic()
    try:
        with ends_within(left_s, lambda: finish(session)):
            choice = calibrate_gpu(session.whole, session.emit)
            calibrate_sizes(session)
            print(f"trusted: {choice.pcie or choice.pcie_reason}", flush=True)
            session.gpu = GpuUnderTest(torch_gpu_uuids(device), choice)
            measure(session, size, began + options.budget - CLOSING_S, options.without)
    finally:
        finish(session)
    if session.broken:
        again_without(options, session.broken, began + options.budget - time.monotonic())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
