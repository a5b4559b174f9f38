"""How far off the model is: epochs that were measured on a GPU beside what it says of them.

    python -m gatherbench.bench.model.errors RESULTS     writes ``epochs.csv`` anew from its runs

The file is data; everything that is said of the model's errors is computed from it. A test computes
it anew from ``results/``.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("epochs.csv")
#: Of pairs of measured paths, the share that :func:`told_apart` holds.
SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Beside:
    """A series of measured epochs beside the model's."""

    machine: str
    run: str
    workload: str
    strategy: str
    variant: str
    lookahead: int  # minibatches that the path fetches ahead
    measured_s: float  # median epoch
    modelled_s: float  # training by the profile; sampling as measured
    modelled_path_s: float  # training as measured, too

    @property
    def error(self) -> float:
        """Modelled over measured, less 1."""
        return self.modelled_s / self.measured_s - 1

    @property
    def path_error(self) -> float:
        """The same with training as measured: that of the data path."""
        return self.modelled_path_s / self.measured_s - 1


@cache
def measured_beside() -> tuple[Beside, ...]:
    """Every series that was measured on a GPU whose profile is shipped, in the order of its run."""
    with FILE.open(encoding="utf-8", newline="") as file:
        types = {"lookahead": int, "measured_s": float}
        types |= dict.fromkeys(("modelled_s", "modelled_path_s"), float)
        rows = [{k: types.get(k, str)(v) for k, v in row.items()} for row in csv.DictReader(file)]
    return tuple(Beside(**row) for row in rows)


def error_of(strategy: str, lookahead: int) -> tuple[float, float] | None:
    """The least and the most that epochs of such a path were off; ``None``: never measured."""
    mine = [
        one.error
        for one in measured_beside()
        if (one.strategy, one.lookahead) == (strategy, lookahead)
    ]
    return (min(mine), max(mine)) if mine else None


@cache
def told_apart() -> float:
    """Modelled epochs closer than this ratio have no order: the model's own error is as large.

    That of :func:`ratio_errors` which :data:`SHARE` of the pairs of measured paths do not exceed.
    """
    return float(np.quantile(ratio_errors(measured_beside()), SHARE))


def ratio_errors(series: Sequence[Beside]) -> list[float]:
    """By which factor the ratio of two modelled epochs is off, for each two of a run's workload.

    From 1, whichever way. What all paths of a workload are off alike cancels out.
    """
    groups: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for one in series:
        groups[one.run, one.workload].append(math.log1p(one.error))
    pairs = itertools.chain.from_iterable(itertools.combinations(g, 2) for g in groups.values())
    return [math.exp(abs(a - b)) for a, b in pairs]


def beside_of(results: Path) -> Iterator[Beside]:
    """The series of every run below ``results`` whose machine has a shipped profile."""
    from gatherbench.bench.model.predict import declared_facts, profile_of
    from gatherbench.bench.model.profile import load_profile, profile_names
    from gatherbench.bench.model.roofline import against_measured
    from gatherbench.bench.read.tables import load_run

    for plan in sorted(results.glob("*/*/plan.json")):  # of runs: probes leave rows alone
        run = load_run(plan.parent)
        used = profile_of(run)
        if used is None or used.name not in profile_names():
            continue
        facts = declared_facts(run)
        # Of the profile as it is shipped: a run keeps the one that it was predicted with.
        for row in against_measured(run, load_profile(used.name)).to_dict("records"):
            key = (row["workload"], row["strategy"], row["variant"])
            ahead = int(facts[key]["fetch.lookahead"])
            times = (row[name] for name in ("measured_s", "modelled_s", "modelled_path_s"))
            yield Beside(used.name, run.run_id, *key, ahead, *times)


def write(series: Iterable[Beside], path: Path = FILE) -> None:
    """Six digits of each epoch: more were not measured."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Beside)], lineterminator="\n")
        writer.writeheader()
        for one in series:
            said = asdict(one)
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in said.items()})


if __name__ == "__main__":
    write(beside_of(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
