"""Jobs that the runner hands to a process of its own, and the outcome of a piece of work there."""

from __future__ import annotations

import errno
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run.launch import Launch
from gatherbench.bench.run.rows import RowMaker
from gatherbench.outside import words_of

#: The type with which a choice of sensors is stored.
CHOICE = TypeAdapter(SensorChoice)


class Ready(NamedTuple):
    """A workload that can be measured: its dataset's folder, their identity, and the file with the
    counts of the minibatches."""

    dataset: Path
    identity: str
    counts: Path | None = None


@dataclass(frozen=True)
class Job:
    """One case to measure, and its circumstances.

    Attributes:
        device: ``cpu`` or ``cuda``.
        run: makes the rows of the run.
        dataset: the folder of the graph.
        part: the file that the process writes (bench/run/part.py).
        alone: no other path is open in the process.
        sensors: the GPU's sensors that the run's calibration trusts; ``None``: no GPU.
        identity: of dataset and minibatches; all ranks have to agree on it.
        rank: the number among several processes; -1 for one alone, or the one that starts them.
        first: no repeat of the series has been measured yet, so all rows of this one are checked.
        start: the first block to be measured; another process has those before.
        spent_s: the time of those blocks.
        tuned: the file of choices tuned during training (bench/run/tuned.py); ``None``: not kept.
        counts: the file with the counts of its minibatches; ``None``: they were not counted.
        meeting: where ranks of several machines meet; ``None``: all are on one machine.
    """

    case: Case
    measure: Measure
    device: str
    run: RowMaker
    dataset: Path
    part: Path
    alone: bool = False
    sensors: SensorChoice | None = None
    identity: str = ""
    rank: int = -1
    first: bool = True
    start: int = 0
    spent_s: float = 0.0
    tuned: Path | None = None
    counts: Path | None = None
    meeting: Launch | None = None

    @property
    def counted(self) -> bool:
        """Return whether it needs the counts of its minibatches: for its rows, or its steps."""
        return self.first or self.case.workload.step == "captured"

    @property
    def here(self) -> range:
        """Return the ranks of this machine."""
        gpus = self.case.workload.gpus
        return self.meeting.ranks(gpus) if self.meeting else range(gpus)

    @property
    def rows(self) -> RowMaker:
        """Return the maker of the rows of the case, or of its rank."""
        return self.run.of(self.case, self.rank)


@dataclass(frozen=True)
class Block:
    """Jobs of one process: its task for them, and the deadline.

    Attributes:
        do: ``prepare`` the workload's dataset and minibatches, and count these for a job of each
            path; ``check`` the GPU's sensors; or ``measure`` cases of one workload and repeat,
            whose paths take turns.
        jobs: at least one; all have one part.
        until: by :func:`time.monotonic`: the moment at which it is cut off.
    """

    do: Literal["prepare", "check", "measure"]
    jobs: tuple[Job, ...]
    until: float = math.inf

    @property
    def part(self) -> Path:
        """Return the file that its process writes."""
        return self.jobs[0].part


#: Exit status that tells the runner that the disk is full (EX_IOERR of sysexits.h): no case can
#: be measured until there is room, so the run stops where a failed case would not stop it.
DISK_FULL = 74


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether a full disk caused an error, whatever its present wording."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(work: Callable[[], str | None]) -> tuple[str, str | None]:
    """Return the status of a piece of work that returns why it was skipped, and the reason.

    Raises:
        Exception: the disk is full.
    """
    try:
        skipped = work()
    except Exception as error:
        if is_disk_full(error):
            raise
        traceback.print_exc()
        return "failed", words_of(error)
    return ("skipped", skipped) if skipped else ("ok", None)
