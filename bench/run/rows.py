"""The table: one observation per row, in SI base units, with the source of its value.

The fields of :class:`Row` are the header of ``calibration.csv`` and of published tables. Derived
numbers (bandwidths, speed-ups, efficiencies) are computed when the table is read and never stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gatherbench.bench.meters.base import LEAST, MOST, UNITS
from gatherbench.bench.plan.workload import Case
from gatherbench.outside import LONGEST, plain
from gatherbench.reason import Reason

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 3

BACKENDS = ("host", "cuda")
BASES = ("measured", "predicted", "declared", "published")
STATUSES = ("ok", "skipped", "failed")
#: Fields of a row that have one of these words.
WORDS = {"backend": BACKENDS, "basis": BASES, "status": STATUSES, "unit": UNITS}


@dataclass(frozen=True, slots=True)
class Row:
    """One observation. Its texts are normalised by :func:`plain <gatherbench.outside.plain>`.

    Attributes:
        run_id: the run that made it.
        schema_version: of this class.
        commit: of the code that measured, ``+dirty`` if the tree had uncommitted changes.
        machine: a short name of the machine; ``env.json`` describes it.
        backend: ``host`` (the device is host memory) or ``cuda`` (it is a GPU).
        basis: how the value was obtained: ``measured``; ``declared`` (computed by the case from its
            ids and data path); ``predicted`` (by the link model, for the machine of a profile);
            ``published`` (by others, about their machines).
        workload: :attr:`Workload.id`.
        dataset: name of the graph.
        strategy, variant: the data path and its parameters.
        repeat: which repetition of the case, from 0.
        epoch: which epoch, from 0; -1 for values of the case as a whole.
        stage: ``sample``, ``fetch``, ``train``, ``epoch``, ``setup``, ``check``, ``eval``,
            ``around_step``, ``harness``, ``host`` (what it issues to a GPU), ``energy`` (of a
            block of epochs), ``calibration`` (of a GPU's sensors; such rows belong to the run:
            workload and strategy are empty) or ``case``.
        metric: the observed quantity, e.g. ``wall_time``, ``cpu_user``, ``payload``.
        unit: an SI base unit of :data:`UNITS`.
        value: the observation; ``None`` if it is missing, and then ``reason`` says why.
        source: the counter, clock or formula that the value comes from.
        status: ``ok``, ``skipped`` (unavailable here) or ``failed`` (went wrong).
        reason: why the value is missing; ``None`` if it is there.
        borrowed: for a prediction: the stage whose time it takes from the run's measurements, or
            empty.
        rank: which of the processes that train together observed it; -1 for the case as a whole,
            and for every row of a case of one process.
    """

    run_id: str
    schema_version: int
    commit: str
    machine: str
    backend: str
    basis: str
    workload: str
    dataset: str
    strategy: str
    variant: str
    repeat: int
    epoch: int
    stage: str
    metric: str
    unit: str
    value: float | None
    source: str
    status: str
    reason: str | None
    borrowed: str = ""
    rank: int = -1

    def __post_init__(self) -> None:
        for name in _TEXTS:
            text = getattr(self, name)
            if text is not None and not (len(text) <= LONGEST and text.isprintable()):
                object.__setattr__(self, name, plain(text))
        if self.reason == "":  # would be read back as missing
            object.__setattr__(self, "reason", "no reason was given")
        if not (self.status == "ok") == (self.value is not None) == (self.reason is None):
            raise ValueError(
                f"{self.stage}.{self.metric}: status ok means a value, others a reason for none"
            )
        if self.value and not LEAST <= abs(self.value) <= MOST:
            raise ValueError(
                f"{self.stage}.{self.metric}: value {self.value} is no measurement:"
                f" expected 0, or a magnitude from {LEAST:g} to {MOST:g}"
            )
        if self.value is not None and self.value < 0 and is_time(self.unit, self.metric):
            raise ValueError(f"{self.stage}.{self.metric}: value {self.value} s is no time")
        for name, allowed in WORDS.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {allowed}")


def is_time(unit: str, metric: str) -> bool:
    """Return whether it is at least 0: seconds are, except a search's extra time."""
    return unit == "s" and metric != "search_extra_time"


HEADER: tuple[str, ...] = tuple(f.name for f in fields(Row))
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


@dataclass(frozen=True, slots=True)
class RowMaker:
    """The coordinates that all rows of a run, or of one case, share; its methods add the rest."""

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

    def _row(self, *values: Any) -> Row:
        names = ("epoch", "stage", "metric", "unit", "value", "source", "status", "reason")
        own_values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Row(
            schema_version=SCHEMA_VERSION, **own_values, **dict(zip(names, values, strict=True))
        )


def table_of(rows: Iterable[Row]) -> pd.DataFrame:
    """Return the rows as a table with the columns :data:`HEADER`."""
    import pandas as pd

    # Texts as plain objects: pandas copies its own strings column by column, four times as long.
    table = pd.DataFrame(map(attrgetter(*HEADER), rows), columns=list(HEADER), dtype=object)
    numbers = dict.fromkeys(("schema_version", "repeat", "epoch", "rank"), int)
    return table.astype({**numbers, "value": float})
