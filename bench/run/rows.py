"""Observations: each is one value in an SI base unit with its source, or the reason for none.

Derived numbers (bandwidths, speed-ups, efficiencies) are computed when a table is read and never
stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gatherbench.bench.meters.base import LEAST, MOST, UNITS, Reading
from gatherbench.bench.plan.workload import Case
from gatherbench.outside import LONGEST, plain
from gatherbench.reason import Reason

if TYPE_CHECKING:
    import pandas as pd

    from gatherbench.strategies.base import SetupStep

SCHEMA_VERSION = 3

BASES = ("measured", "predicted", "declared", "published")
#: Fields of a row that have one of these words.
WORDS = {
    **{"backend": ("host", "cuda"), "basis": BASES, "unit": UNITS},
    "status": ("ok", "skipped", "failed"),
}


@dataclass(frozen=True, slots=True)
class RowMaker:
    """The coordinates that all rows of a run, or of one case, share; its methods add the rest.

    Attributes:
        commit: of the code that measured, ``+dirty`` if the tree had uncommitted changes.
        machine: a short name of the machine; ``env.json`` describes it.
        backend: ``host`` (the device is host memory) or ``cuda`` (it is a GPU).
        workload: :attr:`Workload.id`; it and ``strategy`` are empty for rows of the run as a whole.
        repeat: which repetition of the case, from 0.
        basis: ``measured``; ``declared`` (computed by the case from its ids and data path);
            ``predicted`` (by the link model, for the machine of a profile); ``published`` (by
            others, about their machines).
        borrowed: the stage whose time a prediction takes from the run's measurements, if any.
        rank: which of the processes that train together observed it; -1: the case as a whole.
    """

    run_id: str
    commit: str
    machine: str
    backend: str
    workload: str = ""
    dataset: str = ""
    strategy: str = ""
    variant: str = ""
    repeat: int = 0
    basis: str = "measured"
    borrowed: str = ""
    rank: int = -1

    def of(self, case: Case, rank: int = -1) -> RowMaker:
        """Return the maker of the rows of a case, or of one rank of it."""
        return replace(self, **case.names, dataset=case.workload.dataset, rank=rank)

    def own(self, row: Row) -> Row:
        """Return a row that another process wrote, with this case's names."""
        names = ("run_id", "workload", "dataset", "strategy", "variant", "repeat")
        return replace(row, **{name: getattr(self, name) for name in names})

    def ok(
        self, stage: str, metric: str, unit: str, value: float, source: str, epoch: int = -1
    ) -> Row:
        """Return a row with a value. Counts become floats, so that it reads back as written."""
        return self._row(epoch, stage, metric, unit, float(value), source, "ok", None)

    def missing(
        self,
        stage: str,
        metric: str,
        unit: str,
        source: str,
        reason: str | Reason,
        status: str = "skipped",
        epoch: int = -1,
    ) -> Row:
        """Return a row without a value, and with the reason."""
        return self._row(epoch, stage, metric, unit, None, source, status, str(reason))

    def row(self, stage: str, seen: Reading | SetupStep, epoch: int = -1) -> Row:
        """Return a reading as a row; a broken sensor is ``failed``, an absent one ``skipped``."""
        columns, why = (stage, seen.metric, seen.unit), seen.reason or ""
        if seen.value is not None:
            return self.ok(*columns, seen.value, seen.source, epoch)
        status = "failed" if isinstance(why, Reason) and why.kind == "failed" else "skipped"
        return self.missing(*columns, seen.source, why, status, epoch)

    def _row(self, *values: Any) -> Row:
        names = ("epoch", "stage", "metric", "unit", "value", "source", "status", "reason")
        shared = {f.name: getattr(self, f.name) for f in fields(RowMaker)}
        return Row(**shared, **dict(zip(names, values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(RowMaker):
    """One observation. Its texts are normalised by :func:`plain <gatherbench.outside.plain>`.

    Attributes:
        epoch: which epoch, from 0; -1 for values of the case as a whole.
        stage: ``sample``, ``fetch``, ``train``, ``epoch``, ``setup``, ``check``, ``eval``,
            ``around_step``, ``harness``, ``host`` (what it issues to a GPU), ``energy`` (of a
            block of epochs), ``calibration`` (of a GPU's sensors) or ``case``.
        metric, unit: the observed quantity, e.g. ``wall_time``, in an SI base unit.
        value: ``None`` if it is missing, and then ``reason`` says why.
        source: the counter, clock or formula that the value comes from.
        status: ``ok``, ``skipped`` (unavailable here) or ``failed`` (went wrong).
    """

    epoch: int
    stage: str
    metric: str
    unit: str
    value: float | None
    source: str
    status: str
    reason: str | None
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name in _TEXTS:
            text = getattr(self, name)
            if text is not None and not (len(text) <= LONGEST and text.isprintable()):
                object.__setattr__(self, name, plain(text))
        if self.reason == "":  # would be read back as missing
            object.__setattr__(self, "reason", "no reason was given")
        what = f"{self.stage}.{self.metric}"
        if not (self.status == "ok") == (self.value is not None) == (self.reason is None):
            raise ValueError(f"{what}: status ok means a value, others a reason for none")
        if self.value and not LEAST <= abs(self.value) <= MOST:
            raise ValueError(
                f"{what}: value {self.value} is no measurement: expected 0, or a magnitude from"
                f" {LEAST:g} to {MOST:g}"
            )
        if self.value is not None and self.value < 0 and is_time(self.unit, self.metric):
            raise ValueError(f"{what}: value {self.value} s is no time")
        for name, allowed in WORDS.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {allowed}")


def is_time(unit: str, metric: str) -> bool:
    """Return whether it is at least 0: seconds are, except a search's extra time."""
    return unit == "s" and metric != "search_extra_time"


#: The columns of ``calibration.csv`` and of published tables.
HEADER: tuple[str, ...] = (
    *("run_id", "schema_version", "commit", "machine", "backend", "basis", "workload", "dataset"),
    *("strategy", "variant", "repeat", "epoch", "stage", "metric", "unit", "value", "source"),
    *("status", "reason", "borrowed", "rank"),
)
#: Texts of any content; the others are checked against the allowed words.
_TEXTS = tuple(f.name for f in fields(Row) if "str" in str(f.type) and f.name not in WORDS)
#: The rows (stage, metric, unit) that show which paths took turns in one process, and in which
#: order.
PROCESS, PLACE = ("setup", "process_began", "s"), ("epoch", "place", "1")
#: The row with the set of minibatches of an epoch: paths that take turns have the sets in
#: orders of their own, and losses are compared by set.
SET = ("epoch", "minibatch_set", "1")


class Key(NamedTuple):
    """The key of a bar in a panel: it keeps predicted and measured values separate."""

    workload: str
    strategy: str
    variant: str
    backend: str
    basis: str


SERIES = list(Key._fields)


def table_of(rows: Iterable[Row]) -> pd.DataFrame:
    """Return the rows as a table with the columns :data:`HEADER`."""
    import pandas as pd

    # Texts as plain objects: pandas copies its own strings column by column, four times as long.
    table = pd.DataFrame(map(attrgetter(*HEADER), rows), columns=list(HEADER), dtype=object)
    numbers = dict.fromkeys(("schema_version", "repeat", "epoch", "rank"), int)
    return table.astype({**numbers, "value": float})
