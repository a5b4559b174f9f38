"""Has a benchmark become slower? A verdict with its reason, over two files of pytest-benchmark.

    python -m gatherbench.bench.regress.verdict BASE.json NEW.json
    python -m gatherbench.bench.regress.verdict --newest .benchmarks [--base BASE.json]

The idea is nvbench's (``nvbench_compare.py``: medians, and the interquartile range as noise): a
difference counts only where it exceeds the noise, and noise that hides a difference is called by
its name. The rule here works on the ratio r = median(new) / median(base) and its 95 % interval:

==========  ======================================================================
SLOW        the whole interval lies above 1 + t
FAST        the whole interval lies below 1 / (1 + t)
SAME        the whole interval lies between the two
AMBIGUOUS   it does not: rounds scatter too much to tell, or there are too few
==========  ======================================================================

The interval is a bootstrap percentile interval over the rounds where both files have them (Efron
and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13), else it follows from the
notches of a box plot, median ± 1.57 IQR / √n (McGill, Tukey and Larsen, The American Statistician
32(1), 1978). Both know the scatter within a run only. What differs between two runs of the same
code (layout in memory, clock) is what the threshold t is for; a benchmark may ask for a wider one
by ``extra_info["threshold"]``. SLOW and FAST become AMBIGUOUS where other work kept more than 0.3
cores busy during either run (``conftest.py`` notes it), and beside a yardstick that has moved: a
benchmark of the same group that runs none of our code (``extra_info["yardstick"]``, e.g. torch's
own gather) shows what became of the machine, whose memory neighbours may share unseen.

That takes a quiet machine that stays. ``against.py`` compares a commit within one run.

Exit status: 0, also for AMBIGUOUS, which is a warning; 1 for SLOW; 2 for files that cannot be
compared, as those of different machines.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from gatherbench.bench.regress.results_file import (
    Results,
    ResultsError,
    Times,
    newest_pair,
    read_results,
)

Word = Literal["SAME", "FAST", "SLOW", "AMBIGUOUS", "NEW", "MISSING", "FAILED"]

THRESHOLD = 0.10
#: Fewer rounds say nothing about their scatter.
MIN_ROUNDS = 5
RESAMPLES = 2000
#: Up to so many cores of other work a machine counts as quiet.
QUIET_CORES = 0.3
COLOURS = {
    "SLOW": "red",
    "FAILED": "red",
    "FAST": "green",
    "AMBIGUOUS": "yellow",
    "MISSING": "yellow",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one benchmark; ``low`` and ``high`` bound the ratio of new to base."""

    name: str
    word: Word
    reason: str
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan


def judge(name: str, base: Times, new: Times, threshold: float = THRESHOLD) -> Verdict:
    """The verdict on one benchmark by the rule above."""
    ratio = new.median_s / base.median_s
    fewest = min(base.rounds, new.rounds)
    if fewest < MIN_ROUNDS:
        return Verdict(name, "AMBIGUOUS", f"{fewest} rounds; {MIN_ROUNDS} are needed", ratio)
    low, high = ratio_interval(base, new)
    found = f"{ratio:.3f} × the base ({low:.3f} to {high:.3f})"
    threshold = max(threshold, base.threshold, new.threshold)
    slow, fast = 1 + threshold, 1 / (1 + threshold)
    if max(base.other_cores, new.other_cores) > QUIET_CORES and (low > slow or high < fast):
        busy = f"other work took {base.other_cores:.1f} cores then, {new.other_cores:.1f} now"
        reason = f"{found}, but {busy}: run again on an idle machine"
        return Verdict(name, "AMBIGUOUS", reason, ratio, low, high)
    if low > slow:
        return Verdict(name, "SLOW", f"{found}, above {slow:.3f}", ratio, low, high)
    if high < fast:
        return Verdict(name, "FAST", f"{found}, below {fast:.3f}", ratio, low, high)
    if fast <= low and high <= slow:
        return Verdict(name, "SAME", found, ratio, low, high)
    crossed = slow if low <= slow < high else fast
    reason = f"{found}, on both sides of {crossed:.3f}: run again on an idle machine"
    return Verdict(name, "AMBIGUOUS", reason, ratio, low, high)


def ratio_interval(base: Times, new: Times) -> tuple[float, float]:
    """95 % interval of the ratio of the medians; always the same for the same input."""
    if len(base.data) >= MIN_ROUNDS and len(new.data) >= MIN_ROUNDS:
        generator = np.random.default_rng(0)
        below, above = (
            np.median(generator.choice(t.data, (RESAMPLES, len(t.data))), axis=1)
            for t in (base, new)
        )
        low, high = np.quantile(above / below, (0.025, 0.975))
        return float(low), float(high)
    below, above = (1.57 * t.iqr_s / math.sqrt(t.rounds) / t.median_s for t in (base, new))
    # Relative errors of independent medians add in squares.
    ratio, error = new.median_s / base.median_s, math.hypot(below, above)
    return ratio / (1 + error), ratio * (1 + error)


def compare(base: Results, new: Results, threshold: float = THRESHOLD) -> list[Verdict]:
    """A verdict for each benchmark of either file, in the order of the files.

    Raises:
        ResultsError: the files are from different machines, or have no benchmark in common.
    """
    differs = [
        f"{what}: {base.machine[what]} and {new.machine[what]}"
        for what in base.machine
        if base.machine[what] != new.machine[what]
    ]
    if differs:
        raise ResultsError(
            f"{base.path} and {new.path} are from different machines ({'; '.join(differs)}): "
            "their times cannot be compared"
        )
    if not base.times.keys() & new.times.keys():
        raise ResultsError(f"{base.path} and {new.path} have no benchmark in common")
    verdicts = [
        judge(name, base.times[name], times, threshold)
        if name in base.times
        else Verdict(name, "NEW", "not in the base")
        for name, times in new.times.items()
    ]
    verdicts = beside_yardsticks(verdicts, new.times)
    gone = [name for name in base.times if name not in new.times]
    return verdicts + [Verdict(name, "MISSING", "not in the new file") for name in gone]


def beside_yardsticks(verdicts: Sequence[Verdict], times: Mapping[str, Times]) -> list[Verdict]:
    """The verdicts, SLOW and FAST withdrawn where a yardstick of the group is not SAME."""
    moved = {
        times[v.name].group: v
        for v in verdicts
        if times[v.name].yardstick and v.word not in ("SAME", "NEW")
    }
    judged = []
    for verdict in verdicts:
        mark = moved.get(times[verdict.name].group)
        if mark is not None and verdict.word in ("SLOW", "FAST"):
            if times[verdict.name].yardstick:
                why = "this is not our code: the machine has changed"
            else:
                why = f"{_short(mark.name)}, not our code, took {mark.ratio:.3f} × its base"
            reason = f"{verdict.reason}, but {why}"
            judged.append(replace(verdict, word="AMBIGUOUS", reason=reason))
        else:
            judged.append(verdict)
    return judged


def warnings(base: Results, new: Results) -> list[str]:
    """What else has changed that may explain a difference."""
    names = sorted(base.software.keys() | new.software.keys())
    return [
        f"{name}: {base.software.get(name)} in the base, {new.software.get(name)} now"
        for name in names
        if base.software.get(name) != new.software.get(name)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit status."""
    options = _options(arguments)
    out = Console()
    out = out if out.is_terminal else Console(width=160)
    try:
        before, newest = options.files or newest_pair(options.newest)
        new = read_results(newest)
        before = options.base or before
        if before is None:
            out.print(f"{newest}: the first results of this machine, nothing to compare with")
            return 0
        base = read_results(before)
        verdicts = compare(base, new, options.threshold)
    except ResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print(out, base, new, verdicts)
    return int(any(verdict.word == "SLOW" for verdict in verdicts))


def _print(out: Console, base: Results, new: Results, verdicts: Sequence[Verdict]) -> None:
    out.print(f"base {base.path}\nnew  {new.path}", highlight=False)
    for warning in warnings(base, new):
        out.print(f"warning: {warning}", style="yellow", highlight=False)
    table = Table("benchmark", "verdict", "reason")
    for verdict in verdicts:
        colour = COLOURS.get(verdict.word, "default")
        name = verdict.name.removeprefix("bench/regress/").replace("[", r"\[")
        table.add_row(name, f"[{colour}]{verdict.word}[/]", verdict.reason)
    out.print(table)
    counts = Counter(verdict.word for verdict in verdicts)
    out.print(", ".join(f"{count} {word}" for word, count in counts.items()), highlight=False)


def _short(name: str) -> str:
    return name.removeprefix("bench/regress/").rpartition("::")[2]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gatherbench.bench.regress.verdict",
        description="Verdicts over two files of pytest-benchmark: SAME, FAST, SLOW, AMBIGUOUS. "
        "To compare this tree with a commit: make regress-against.",
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="BASE NEW", help="two files")
    parser.add_argument(
        "--newest", type=Path, metavar="FOLDER", help="the newest file, and the one before it"
    )
    parser.add_argument(
        "--base", type=Path, metavar="FILE", help="with --newest: compare with this one"
    )
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, help="what two runs of one code may differ by"
    )
    options = parser.parse_args(arguments)
    if len(options.files) != (0 if options.newest else 2) or (options.base and options.files):
        parser.error("give BASE and NEW, or --newest FOLDER")
    if not 0 < options.threshold < math.inf:
        parser.error("--threshold: expected a share above 0, e.g. 0.1")
    return options


if __name__ == "__main__":
    sys.exit(main())
