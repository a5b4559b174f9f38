"""Check whether this tree is slower than a commit; one run times both, in alternation.

    python -m gatherbench.bench.regress.against [BASE] [--budget SECONDS] [--only WORD]

Between two runs a shared machine may change by more than any threshold. So the commit's files go
into a temporary worktree, and processes of both trees run this tree's benchmarks in alternating
blocks (``turns.py``); the ratios of pairs are judged (``verdicts.py``). Both sides run in this
environment, so an upgraded dependency does not show.

Exit status: 0, even where some are AMBIGUOUS, which is a warning; 1 for SLOW or FAILED (a
benchmark that runs on the base alone); 2 for what cannot be compared; 3 where nothing could be
judged, so that a change may be hidden.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gatherbench.bench.meters.cpu import OtherWork
from gatherbench.bench.regress.turns import (
    SideError,
    both_sides,
    git,
    run_pair,
    worktree,
)
from gatherbench.bench.regress.verdicts import Record, Verdict, judge_all, worth_more
from gatherbench.bench.run.guards import status_of, terminate_as_interrupt
from gatherbench.bench.show.terminal import step_bar

BUDGET_S = 270.0
NOT_JUDGED = 3
COLOURS = {"SLOW": "red", "FAILED": "red", "FAST": "green", "AMBIGUOUS": "yellow"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, save, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gatherbench.bench.regress.against",
        description="Time this tree and a commit in one run; judge: SAME, FAST, SLOW, AMBIGUOUS.",
    )
    parser.add_argument("base", nargs="?", default="main", help="commit, branch or tag (main)")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds (%(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="benchmarks with this name")
    options = parser.parse_args(arguments)
    if not 0 < options.budget < math.inf:
        parser.error("--budget: expected seconds above 0")
    out = Console()
    out = out if out.is_terminal else Console(width=160)
    try:
        # On a service's cancellation leave as on Ctrl-C, which cleans up.
        with terminate_as_interrupt():
            return _against(options.base, options.budget, options.only, out)
    except SideError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted: nothing was judged", file=sys.stderr)
        return status_of(stop)


def _against(ref: str, budget_s: float, only: str, out: Console) -> int:
    top = Path(git(Path(), "rev-parse", "--show-toplevel"))
    try:
        base, head = (git(top, "rev-parse", "--verify", f"{r}^{{commit}}") for r in (ref, "HEAD"))
    except SideError as error:
        raise SideError(f"no commit {ref!r}: name a commit, branch or tag; {error}") from error
    changed = bool(git(top, "status", "--porcelain", "--untracked-files=no"))
    out.print(f"base {base[:12]} ({ref})\nhead {head[:12]}{' and changes' * changed}")
    begin, work = time.monotonic(), OtherWork()
    records = compare(top, base, out, only, budget_s)
    verdicts, other = judge_all(records), work.cores()
    if not any(record.runs for record in records):
        reasons = "; ".join(sorted({v.reason for v in verdicts})) or "none was found"
        raise SideError(f"no benchmark runs on both sides: {reasons}")
    show(out, records, verdicts)
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    file = top / ".regress" / f"{now}-{base[:7]}-{head[:7]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    samples = {
        "base": {"ref": ref, "commit": base},
        "head": {"ref": "working tree" if changed else "HEAD", "commit": head},
        "wall_s": time.monotonic() - begin,
        "other_cores": other,
        "benchmarks": [
            asdict(record) | asdict(verdict)
            for record, verdict in zip(records, verdicts, strict=True)
        ],
    }
    file.write_text(json.dumps(samples, indent=1) + "\n")
    busy = "not counted" if other is None else f"{other:.1f} cores"
    summary = f"{samples['wall_s']:.0f} s, other work: {busy}; samples: {file}"
    out.print(summary, highlight=False, soft_wrap=True)
    kinds = {verdict.word for verdict in verdicts}
    if kinds & {"SLOW", "FAILED"}:
        return 1
    return 0 if kinds & {"SAME", "FAST"} else NOT_JUDGED


def compare(top: Path, base: str, out: Console, only: str, budget_s: float) -> list[Record]:
    """Run a pair of processes, and more while the budget lasts and a verdict may still change."""
    begin, rng = time.monotonic(), random.Random()
    records, chosen = list[Record](), list[Record]()
    with worktree(top, base) as scratch, step_bar(out) as progress:
        progress("first pair of processes: every benchmark, compiled", 0.0)
        for pair in itertools.count(2):
            with both_sides(top, scratch) as sides:
                theirs, ours = (side.collect() for side in sides)
                if not records:
                    names = [name for name in ours if only in name]
                    records = [Record(n, "" if n in theirs else "not there") for n in names]
                    chosen = [record for record in records if record.runs]
                run_pair(sides, chosen, rng)
            spent_s = time.monotonic() - begin
            if not (chosen := worth_more(records, budget_s - spent_s)):
                break
            step = f"pair {pair} of processes, {len(chosen)} benchmarks"
            progress(step, min(spent_s / budget_s, 1.0))
    return records


def show(out: Console, records: Sequence[Record], verdicts: Sequence[Verdict]) -> None:
    """Print a line for each benchmark, a count of the verdicts, and what would decide more."""
    table = Table("benchmark", "base", "head / base", "95 % interval", "pairs", "verdict", "reason")
    for record, verdict in zip(records, verdicts, strict=True):
        ratio, words = verdict.ratio, ["", "", ""]
        if ratio:
            base_ms = 1e3 * np.median([base for base, _ in record.pairs])
            interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
            words = [f"{base_ms:.3g} ms", f"{ratio.value:.3f}", interval]
        table.add_row(
            escape(record.name.rpartition("::")[2]),
            *words,
            str(len(record.pairs)),
            f"[{COLOURS.get(verdict.word, 'default')}]{verdict.word}[/]",
            escape(("yardstick; " if record.yardstick else "") + verdict.reason),
        )
    out.print(table)
    counts = Counter(verdict.word for verdict in verdicts)
    out.print(", ".join(f"{count} {word}" for word, count in counts.items()), highlight=False)
    if counts["AMBIGUOUS"]:
        advice = "take a larger budget, a machine with less other work, or a part: --only WORD"
        out.print(f"AMBIGUOUS: {advice}", style="yellow")


if __name__ == "__main__":
    sys.exit(main())
