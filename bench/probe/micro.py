"""``gpu-micro``: how fast the GPU gathers from host memory, beside what the link can give at most.

    python -m gatherbench.bench.probe.micro --out FOLDER --budget 500

Four sections, each in a process of its own with its share of the time: one that crashes, hangs or
lacks something costs the others nothing, and says why in ``sections.csv``. All need torch, NVRTC
and cuda-bindings, and no more: neither a dataset nor the harness.

    gather    rows.csv, summary.csv, gather_rate.png   rates over width, span, order, policy, grid
              targets.csv                              are they what they are to be?
    overlap   overlap.csv, overlap_targets.csv         a gather beside loads like training
    ncu       ncu.csv                                  counters beside the request accounting
    peer      peer.csv                                 WholeGraph live, where it is installed
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gatherbench.bench.probe.micro_machine import (
    OUT_HELP,
    describe,
    fresh_folder,
    no_gpu,
    provenance,
)
from gatherbench.bench.probe.micro_rows import RowFile

#: Each section's weight in the time that is left when its turn comes, among those still to come.
SECTIONS = {"gather": 11.0, "overlap": 4.0, "ncu": 4.0, "peer": 1.0}
#: Exit status of a section that cannot run here; its last line says why.
SKIPPED = 3
#: Exit status of a section that has lost CUDA's context and can begin anew, with what its line that
#: begins with ``--without`` says.
AGAIN = 5
#: What a section may take beyond its budget before it is ended.
_GRACE_S = 20.0
#: How long a killed process is waited for.
_KILL_S = 10.0


@dataclass(frozen=True, slots=True)
class SectionRow:
    """How a section ended; ``reason`` says why, where it is not ``ok``."""

    section: str
    status: str
    reason: str
    time_s: float


def run_section(name: str, out: Path, budget_s: float, more: Sequence[str]) -> SectionRow:
    """Run a section in a process of its own; what it prints is printed."""
    began, more = time.monotonic(), list(more)
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
        return SectionRow(name, "ok", "", took)
    if status == SKIPPED:
        return SectionRow(name, "skipped", last, took)
    how = "took too long" if status is None else f"ended with status {status}"
    return SectionRow(name, "failed", f"{how}; last words: {last}", took)


def _run_process(
    name: str, out: Path, budget_s: float, more: Sequence[str]
) -> tuple[int | None, str]:
    """The section's exit status (``None``: it was ended for its time) and what it printed."""
    command = [sys.executable, "-m", f"gatherbench.bench.probe.micro_{name}", "--out", str(out)]
    # Into a file: a pipe would be waited for until the last that has inherited it is gone.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--budget", f"{budget_s:.0f}", *more],
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


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and what of it is the section's."""
    parser = argparse.ArgumentParser(prog="gpu-micro", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help=OUT_HELP)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for everything")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    return parser.parse_known_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the sections; the exit status is 1 if one of them failed."""
    deadline = time.monotonic()
    options, more = parse(arguments)
    if more and len(options.sections) > 1:
        print(f"error: {more[0]} is for one section: name it with --sections", file=sys.stderr)
        return 2
    deadline += options.budget
    if (problem := no_gpu()) is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    env = provenance() | describe()
    options.out = fresh_folder(options.out)
    (options.out / "env.json").write_text(json.dumps(env, indent=2) + "\n")
    with RowFile(options.out / "sections.csv", SectionRow) as file:
        for number, name in enumerate(options.sections):
            left = deadline - time.monotonic()
            share = SECTIONS[name] / sum(SECTIONS[other] for other in options.sections[number:])
            budget_s = max(10.0, left * share - _GRACE_S / 2)
            file.add(run_section(name, options.out, budget_s, more))
    for row in file.rows:
        print(f"{row.section}: {row.status} {row.reason}")
    return 1 if any(row.status == "failed" for row in file.rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
