"""The calibration of a GPU's sensors as a job: what the runner hands over and what it gets back.

It runs once, before the first case, in a process of its own; a run without a GPU has none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gatherbench.bench.machine.reason import Reason
from gatherbench.bench.meters.gpu_choice import SensorChoice
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.store import Key, write_atomically

#: Far longer than it takes (half a minute): a driver that hangs costs the run no more than this.
TIMEOUT_S = 300.0
#: Of its rows: they belong to no case.
CALIBRATION_KEY: Key = ("", "", "", 0)


@dataclass(frozen=True, slots=True)
class CalibrationJob:
    """What to calibrate for, and where its rows and its choice go."""

    run_id: str
    commit: str
    machine: str
    part: Path
    choice: Path
    copies_mib: tuple[float, ...]

    def dump(self, path: Path) -> None:
        """Write the job for the process that will do it."""
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    def keep(self, choice: SensorChoice) -> None:
        """Write the choice down for the cases to come."""
        write_atomically(self.choice, json.dumps(asdict(choice), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> CalibrationJob:
        """The inverse of :meth:`dump`."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        for name in ("part", "choice"):
            fields[name] = Path(fields[name])
        fields["copies_mib"] = tuple(fields["copies_mib"])
        return cls(**fields)


def run_maker(run_id: str, commit: str, machine: str) -> RowMaker:
    """Rows that belong to the run as a whole: no workload, no strategy."""
    return RowMaker(run_id, commit, machine, "cuda", "", "", "", "", 0)


def read_choice(path: Path) -> SensorChoice:
    """The choice that :meth:`CalibrationJob.keep` kept."""
    try:
        return SensorChoice.of_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return SensorChoice(None, Reason("failed", f"the calibration left no choice ({error})"))
