"""What the runner hands to a process of its own, and how a piece of work in it ended."""

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
from gatherbench.bench.run.launch import Meeting
from gatherbench.bench.run.rows import RowMaker
from gatherbench.outside import words_of

#: As which a choice of sensors is kept.
CHOICE = TypeAdapter(SensorChoice)


class Ready(NamedTuple):
    """A workload that can be measured: folders of dataset and minibatches, and their identity."""

    dataset: Path
    trace: Path
    identity: str


#: Size of the known copies that decide which sensors the cases read.
COPIES_MIB = (256.0,)


@dataclass(frozen=True)
class Job:
    """One case to measure, and where.

    Attributes:
        device: ``cpu`` or ``cuda``.
        run: makes the rows of the run.
        dataset, trace: folders of the graph and of the minibatches, of one rank its own.
        part: the file that the process writes (bench/run/part.py).
        alone: no other path is open in the process.
        traces: folder for a trace of an epoch after the measured ones; ``None``: no trace.
        sensors: which of the GPU's sensors the run's calibration trusts; ``None``: no GPU.
        identity: of dataset and minibatches, which all ranks have to agree on.
        rank: which of several processes; -1 for one that is alone, or that starts the others.
        first: no repeat of the series has been measured: it is this one that is looked at whole.
        start: the first block to be measured; another process has those before.
        spent_s: that these took.
        tuned: what paths have found beside a training (bench/run/tuned.py); ``None``: not kept.
        counts: the file of what was counted of its minibatches; ``None``: nothing was.
        meeting: where ranks of several machines meet; ``None``: all are here.
    """

    case: Case
    measure: Measure
    device: str
    run: RowMaker
    dataset: Path
    trace: Path
    part: Path
    alone: bool = False
    traces: Path | None = None
    sensors: SensorChoice | None = None
    identity: str = ""
    rank: int = -1
    first: bool = True
    start: int = 0
    spent_s: float = 0.0
    tuned: Path | None = None
    counts: Path | None = None
    meeting: Meeting | None = None

    @property
    def here(self) -> range:
        """The ranks of this machine."""
        gpus = self.case.workload.gpus
        return self.meeting.ranks(gpus) if self.meeting else range(gpus)

    @property
    def rows(self) -> RowMaker:
        """Makes the rows of the case, or of its rank."""
        return self.run.of(self.case, self.rank)


@dataclass(frozen=True)
class Block:
    """Jobs of one process: what it is to do for them, and by when.

    Attributes:
        do: ``prepare`` the workload's dataset and minibatches; ``check`` the GPU's sensors;
            ``count`` what the minibatches of the workload ask for, of one job for each path; or
            ``measure`` cases of one workload and repeat, whose paths take turns.
        jobs: at least one; all have one part.
        until: by :func:`time.monotonic`, when it will be cut off.
    """

    do: Literal["prepare", "check", "count", "measure"]
    jobs: tuple[Job, ...]
    until: float = math.inf

    @property
    def part(self) -> Path:
        """The file that its process writes."""
        return self.jobs[0].part


#: Exit status that tells the runner that the disk is full (EX_IOERR of sysexits.h): no case can
#: be measured until there is room, so the run stops where a failed case would not stop it.
DISK_FULL = 74


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error, however it has been worded since."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(work: Callable[[], str | None]) -> tuple[str, str | None]:
    """Status of a piece of work that returns why it was skipped; why it is not ``ok``.

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
