"""How far off the model is: epochs that were measured on a GPU beside what it says of them.

``epochs.csv`` is data: what runs of 2026-11-26 measured, and the model of 2026-11-27.
What is said of the model's errors is computed from it.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("epochs.csv")
#: Of pairs of measured paths, the share that :func:`told_apart` holds.
SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Beside:
    """A series of measured epochs beside the model's, which have sampling as measured.

    Attributes:
        lookahead: minibatches that the path fetches ahead.
        measured_s: median epoch.
        modelled_s: by the profile of the machine.
        chained_s: without ``gpu.issue``, by what a chain of kernels takes to issue.
    """

    machine: str
    run: str
    workload: str
    strategy: str
    variant: str
    lookahead: int
    measured_s: float
    modelled_s: float
    chained_s: float

    @property
    def error(self) -> float:
        """Modelled over measured, less 1."""
        return self.modelled_s / self.measured_s - 1


@cache
def measured_beside() -> tuple[Beside, ...]:
    """Every series that was measured on a GPU whose profile is shipped, in the order of its run."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_read, csv.DictReader(file)))


def _read(row: Mapping[str, str]) -> Beside:
    values: dict[str, Any] = {"lookahead": int(row["lookahead"])}
    values |= {name: float(value) for name, value in row.items() if name.endswith("_s")}
    return Beside(**{**row, **values})


def modelled_beside(*, issue_known: bool = True) -> tuple[Beside, ...]:
    """The same as the model is off for a machine whose profile knows ``gpu.issue``, or not."""
    series = measured_beside()
    if issue_known:
        return series
    return tuple(replace(one, modelled_s=one.chained_s) for one in series)


@cache
def told_apart(*, issue_known: bool = True) -> float:
    """Modelled epochs closer than this ratio have no order: the model's own error is as large.

    That of :func:`ratio_errors` which :data:`SHARE` of the pairs of measured paths do not exceed.
    """
    found = sorted(ratio_errors(modelled_beside(issue_known=issue_known)))
    return found[math.ceil(SHARE * len(found)) - 1]


def ratio_errors(series: Sequence[Beside]) -> list[float]:
    """By which factor the ratio of two modelled epochs is off, for each two of a run's workload.

    From 1, whichever way. What all paths of a workload are off alike cancels out.
    """
    groups: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for one in series:
        groups[one.run, one.workload].append(math.log1p(one.error))
    pairs = itertools.chain.from_iterable(itertools.combinations(g, 2) for g in groups.values())
    return [math.exp(abs(a - b)) for a, b in pairs]
