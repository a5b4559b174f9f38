"""The table: one observation a row, in SI base units, with the source of its value.

The fields of :class:`Row` are the header of ``rows.csv``. Derived numbers (bandwidths, speed-ups,
efficiencies) are computed when the table is read and never stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.base import UNITS

SCHEMA_VERSION = 1

BACKENDS = ("host", "cuda", "model")
STATUSES = ("ok", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """One observation.

    Attributes:
        run_id: the run that made it.
        schema_version: of this class.
        commit: of the code that measured, ``+dirty`` when the tree was not clean.
        machine: a short name of the machine; ``env.json`` describes it.
        backend: ``host`` (measured in host memory), ``cuda`` (measured on a GPU) or ``model``
            (predicted, not measured).
        workload: :attr:`Workload.id`.
        dataset: name of the graph.
        strategy, variant: the data path and its parameters.
        repeat: which repetition of the case, from 0.
        epoch: which epoch, from 0; -1 for what belongs to the case as a whole.
        stage: ``sample``, ``fetch``, ``train``, ``epoch``, ``setup``, ``check``, ``eval``,
            ``harness``, ``energy`` (of a block of epochs), ``uvm`` (of managed memory, in an epoch
            that is not timed), ``calibration`` (of a GPU's sensors;
            such rows belong to the run: workload and strategy are empty) or ``case``.
        metric: what was observed, e.g. ``wall_time``, ``cpu_user``, ``payload``.
        unit: an SI base unit of :data:`UNITS`.
        value: the observation; ``None`` when there is none, and then ``reason`` says why.
        source: the counter, clock or formula that the value comes from.
        status: ``ok``, ``skipped`` (could not be had here) or ``failed`` (went wrong).
        reason: why there is no value; ``None`` when there is one.
    """

    run_id: str
    schema_version: int
    commit: str
    machine: str
    backend: str
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

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError(f"{self.stage}.{self.metric}: exactly one of value and reason is set")
        if (self.status == "ok") != (self.value is not None):
            raise ValueError(f"{self.stage}.{self.metric}: status ok means a value, others none")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"{self.stage}.{self.metric}: value {self.value} is not finite")
        for name, allowed in (("backend", BACKENDS), ("status", STATUSES), ("unit", UNITS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: expected one of {allowed}")


#: What tells two bars of one panel apart: modelled and measured values never mix.
SERIES = ["workload", "strategy", "variant", "backend"]
HEADER: tuple[str, ...] = tuple(f.name for f in fields(Row))


@dataclass(frozen=True, slots=True)
class RowMaker:
    """The coordinates that all rows of a case share; its methods add the rest."""

    run_id: str
    commit: str
    machine: str
    backend: str
    workload: str
    dataset: str
    strategy: str
    variant: str
    repeat: int

    def ok(
        self, stage: str, metric: str, unit: str, value: float, source: str, epoch: int = -1
    ) -> Row:
        """A value. Counts become floats here, so that a row reads back as it was written."""
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
        """No value, and why."""
        return self._row(epoch, stage, metric, unit, None, source, status, str(reason))

    def _row(
        self,
        epoch: int,
        stage: str,
        metric: str,
        unit: str,
        value: float | None,
        source: str,
        status: str,
        reason: str | None,
    ) -> Row:
        return Row(
            run_id=self.run_id,
            schema_version=SCHEMA_VERSION,
            commit=self.commit,
            machine=self.machine,
            backend=self.backend,
            workload=self.workload,
            dataset=self.dataset,
            strategy=self.strategy,
            variant=self.variant,
            repeat=self.repeat,
            epoch=epoch,
            stage=stage,
            metric=metric,
            unit=unit,
            value=value,
            source=source,
            status=status,
            reason=reason,
        )
