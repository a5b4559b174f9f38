"""The calibration of a GPU's sensors as a job: what the runner hands over and what it gets back.

It runs once, before the first case, in a process of its own; a run without a GPU has none.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.store import Key, write_atomically

#: Far longer than it takes (half a minute): a driver that hangs costs the run no more than this.
TIMEOUT_S = 300.0
#: Of its rows: they belong to no case.
CALIBRATION_KEY: Key = ("", "", "", 0)
_CHOICE = TypeAdapter(SensorChoice)


class CalibrationJob(BaseModel):
    """What to calibrate for, and where its rows and its choice go."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    commit: str
    machine: str
    part: Path
    choice: Path
    copies_mib: tuple[float, ...]

    def dump(self, path: Path) -> None:
        """Write the job for the process that will do it."""
        path.write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> CalibrationJob:
        """The inverse of :meth:`dump`."""
        return cls.model_validate_json(path.read_bytes())

    def keep(self, choice: SensorChoice) -> None:
        """Write the choice down for the cases to come."""
        write_atomically(self.choice, _CHOICE.dump_json(choice, indent=2).decode() + "\n")


def run_maker(run_id: str, commit: str, machine: str) -> RowMaker:
    """Rows that belong to the run as a whole: no workload, no strategy."""
    return RowMaker(run_id, commit, machine, "cuda", "", "", "", "", 0)


def read_choice(path: Path) -> SensorChoice:
    """The choice that :meth:`CalibrationJob.keep` kept."""
    try:
        return _CHOICE.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        cause = str(error).partition("\n")[0]
        return SensorChoice(None, Reason("failed", f"the calibration left no choice ({cause})"))
