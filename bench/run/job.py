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
    """A workload that can be measured: its dataset's folder, the identity of dataset and
    minibatches, and the file with the counts of these."""

    dataset: Path
    identity: str
    counts: Path | None = None


@dataclass(frozen=True)
class Job:
    """One case to measure, and its circumstances."""

    case: Case
    measure: Measure
    device: str  # cpu or cuda
    run: RowMaker  # makes the rows of the run
    dataset: Path  # the folder of the graph
    part: Path  # the file that the process writes (bench/run/part.py)
    alone: bool = False  # no other path is open in the process
    sensors: SensorChoice | None = None  # of the GPU, that the run trusts; None: no GPU
    identity: str = ""  # of dataset and minibatches; all ranks have to agree on it
    rank: int = -1  # among several processes; -1: one alone, or the one that starts them
    first: bool = True  # no repeat of the series is measured yet: all rows of this one are checked
    start: int = 0  # the first block to be measured
    spent_s: float = 0.0  # the time of the blocks before it, which another process measured
    tuned: Path | None = None  # the file of choices tuned during training; None: not kept
    counts: Path | None = None  # the file with the counts of its minibatches; None: not counted
    meeting: Launch | None = None  # where ranks of several machines meet; None: all are on one

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
