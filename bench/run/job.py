"""A case as a job for a process of its own: what to measure, where, and where to write."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.plan.case import Case
from gatherbench.bench.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class Job:
    """One case to measure, and where.

    Attributes:
        case: what to measure.
        measure: the plan's ``[measure]`` table.
        device: ``cpu`` or ``cuda``.
        run_id, commit, machine: what the rows say of the run.
        dataset: the dataset's folder.
        trace: the folder of the workload's minibatches.
        part: the file that the case writes.
        traces: folder for a trace of an epoch after the measured ones; ``None``: no trace.
        nvtx: mark the measured epochs for Nsight.
        sensors: which of the GPU's sensors the run's calibration trusts; ``None``: no GPU.
    """

    case: Case
    measure: dict[str, Any]
    device: str
    run_id: str
    commit: str
    machine: str
    dataset: Path
    trace: Path
    part: Path
    traces: Path | None = None
    nvtx: bool = False
    sensors: SensorChoice | None = None

    def dump(self, path: Path) -> None:
        """Write the job for the process that will do it."""
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        """The inverse of :meth:`dump`."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        case = fields.pop("case")
        workload = case.pop("workload")
        workload["fanouts"] = tuple(workload["fanouts"])
        for name in ("dataset", "trace", "part", "traces"):
            fields[name] = None if fields[name] is None else Path(fields[name])
        if fields["sensors"] is not None:
            fields["sensors"] = TypeAdapter(SensorChoice).validate_python(fields["sensors"])
        return cls(case=Case(workload=Workload(**workload), **case), **fields)
