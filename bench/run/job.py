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
    """A workload that can be measured: its dataset's folder, the identity of it and its
    minibatches, and the file with these' counts."""

    dataset: Path
    identity: str
    counts: Path | None = None


@dataclass(frozen=True)
class Job:
    """One case to measure, and its circumstances."""

    case: Case
    measure: Measure
    #: ``cpu`` or ``cuda``.
    device: str
    #: Makes the rows of the run.
    run: RowMaker
    #: The folder of the graph.
    dataset: Path
    #: The file that the process writes (bench/run/part.py).
    part: Path
    #: No other path is open in the process.
    alone: bool = False
    #: The GPU's sensors that the run's calibration trusts; ``None``: no GPU.
    sensors: SensorChoice | None = None
    #: Of dataset and minibatches; all ranks have to agree on it.
    identity: str = ""
    #: The number among several processes; -1 for one alone, or the one that starts them.
    rank: int = -1
    #: No repeat of the series has been measured yet, so all rows of this one are checked.
    first: bool = True
    #: The first block to be measured, and the time of those that another process has measured.
    start: int = 0
    spent_s: float = 0.0
    #: The file of choices tuned during training; ``None``: not kept.
    tuned: Path | None = None
    #: The file with the counts of its minibatches; ``None``: they were not counted.
    counts: Path | None = None
    #: Where ranks of several machines meet; ``None``: all are on one machine.
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
    """Jobs of one process, with one part: what to do for them, and the deadline.

    ``prepare`` the workload's dataset and minibatches, and count these for a job of each path;
    ``check`` the GPU's sensors; or ``measure`` cases of one workload and repeat, whose paths take
    turns. It is cut off at ``until``, by :func:`time.monotonic`.
    """

    do: Literal["prepare", "check", "measure"]
    jobs: tuple[Job, ...]
    until: float = math.inf

    @property
    def part(self) -> Path:
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
