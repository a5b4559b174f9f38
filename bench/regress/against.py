"""Check whether this tree is slower than a commit; one run times both, in alternation.

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
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from gatherbench.bench.meters.cpu import OtherWork
from gatherbench.bench.regress.turns import Side, SideError, git, run_pair, worktree
from gatherbench.bench.regress.verdicts import Record, judge_all, worth_more
from gatherbench.bench.run.guards import status_of, terminate_as_interrupt
from gatherbench.bench.show.terminal import listed, step_bar

NOT_JUDGED = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, save, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gatherbench.bench.regress.against",
        description="Time this tree and a commit in one run; judge: SAME, FAST, SLOW, AMBIGUOUS.",
    )
    parser.add_argument("base", nargs="?", default="main", help="commit, branch or tag (main)")
    parser.add_argument("--budget", type=float, default=270.0, help="seconds (%(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="benchmarks with this name")
    options = parser.parse_args(arguments)
    if not 0 < options.budget < math.inf:
        parser.error("--budget: expected seconds above 0")
    try:
        # On a service's cancellation leave as on Ctrl-C, which cleans up.
        with terminate_as_interrupt():
            return _against(options.base, options.budget, options.only)
    except (SideError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted: nothing was judged", file=sys.stderr)
        return status_of(stop)


def _against(ref: str, budget_s: float, only: str) -> int:
    out, begin, work = Console(), time.monotonic(), OtherWork()
    out = out if out.is_terminal else Console(width=160)
    top = Path(git(Path(), "rev-parse", "--show-toplevel"))
    try:
        base, head = (git(top, "rev-parse", "--verify", f"{r}^{{commit}}") for r in (ref, "HEAD"))
    except SideError as error:
        raise SideError(f"no commit {ref!r}: name a commit, branch or tag; {error}") from error
    changed = bool(git(top, "status", "--porcelain", "--untracked-files=no"))
    out.print(f"base {base[:12]} ({ref})\nhead {head[:12]}{' and changes' * changed}")
    records = compare(top, base, out, only, budget_s)
    if not any(record.runs for record in records):
        reasons = "; ".join(sorted({record.reason for record in records})) or "none was found"
        raise SideError(f"no benchmark runs on both sides: {reasons}")
    words, other = Counter(record.word for record in records), work.cores()
    show(out, records, words)
    samples = {
        "base": {"ref": ref, "commit": base},
        "head": {"ref": "working tree" if changed else "HEAD", "commit": head},
        "wall_s": time.monotonic() - begin,
        "other_cores": other,
        "benchmarks": [asdict(record) for record in records],
    }
    file = top / f".regress/{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{base[:7]}-{head[:7]}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(samples, indent=1) + "\n")
    busy = "not counted" if other is None else f"{other:.1f} cores"
    summary = f"{samples['wall_s']:.0f} s, other work: {busy}; samples: {file}"
    out.print(summary, highlight=False, soft_wrap=True)
    if words["SLOW"] or words["FAILED"]:
        return 1
    return 0 if words["SAME"] or words["FAST"] else NOT_JUDGED


def compare(top: Path, base: str, out: Console, only: str, budget_s: float) -> list[Record]:
    """Run pairs of processes while the budget lasts and a verdict may still change."""
    begin, rng = time.monotonic(), random.Random()
    records, chosen = list[Record](), list[Record]()
    with worktree(top, base) as scratch, step_bar(out) as progress:
        progress("first pair of processes: every benchmark, compiled", 0.0)
        for following in itertools.count(2):
            # The base may lack what a benchmark imports.
            go_on = "--continue-on-collection-errors"
            with (
                closing(Side("the base", scratch / "tree", top, scratch / "base", go_on)) as old,
                closing(Side("the head", top, top, scratch / "head")) as new,
            ):
                there, names = old.ask(), [name for name in new.ask() if only in name]
                if not records:
                    records = [Record(n, "" if n in there else "not there") for n in names]
                    chosen = [record for record in records if record.runs]
                run_pair((old, new), chosen, rng)
            judge_all(records)
            spent_s = time.monotonic() - begin
            if not (chosen := worth_more(records, budget_s - spent_s)):
                break
            step = f"pair {following} of processes, {len(chosen)} benchmarks"
            progress(step, min(spent_s / budget_s, 1.0))
    return records


def show(out: Console, records: Sequence[Record], words: Counter[str]) -> None:
    """Print a line for each benchmark, a count of the verdicts, and what would decide more."""
    lines = []
    for record in records:
        ratio, numbers = record.ratio, ("", "", "")
        if ratio:
            base_ms = 1e3 * np.median([base for base, _ in record.pairs])
            interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
            numbers = f"{base_ms:.3g} ms", f"{ratio.value:.3f}", interval
        reason = "yardstick; " * record.yardstick + record.reason
        name, pairs = record.name.rpartition("::")[2], str(len(record.pairs))
        lines.append((name, *numbers, pairs, record.word, reason))
    head = "benchmark", "base", "head / base", "95 % interval", "pairs", "verdict", "reason"
    out.print(listed(pd.DataFrame(lines, columns=head)))
    out.print(", ".join(f"{n} {word}" for word, n in words.items()), highlight=False)
    if words["AMBIGUOUS"]:
        advice = "take a larger budget, a machine with less other work, or a part: --only WORD"
        out.print(f"AMBIGUOUS: {advice}", style="yellow")


if __name__ == "__main__":
    sys.exit(main())
