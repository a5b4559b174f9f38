"""What the runner hands to a process of its own (a workload, sensors, a case), and how it ended."""

from __future__ import annotations

import errno
import json
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from gatherbench.bench.meters.nvml_device import SensorChoice
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.launch import Meeting
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.store import CaseId, write_atomically
from gatherbench.outside import parsed, read_bytes, words_of
from gatherbench.reason import Reason

#: Of the calibration's rows: they belong to no case.
CALIBRATION_KEY: CaseId = ("", "", "", 0)
_CHOICE = TypeAdapter(SensorChoice)


class Ready(NamedTuple):
    """A workload that can be measured: folders of dataset and minibatches, and their identity."""

    dataset: Path
    trace: Path
    identity: str


@dataclass(frozen=True)
class Preparation:
    """A workload whose dataset and minibatches are to be made ready.

    ``answers`` gets one JSON object a line: ``what`` and ``fraction`` of the work on the way, at
    the end ``dataset``, ``trace`` and ``identity``, or ``error``.
    """

    workload: Workload
    answers: Path

    def told(self) -> dict[str, Any]:
        """The last whole line of ``answers``; empty before there is one."""
        return last_line(self.answers)

    def made(self, death: str | None) -> Ready | str:
        """What was prepared, or why it was not; ``death`` is why its process failed, if it did."""
        found = self.told()
        if "dataset" not in found:
            why = found.get("error") or death
            return f"{self.workload.dataset} could not be prepared: {why}"
        return Ready(Path(found["dataset"]), Path(found["trace"]), found["identity"])


#: Size of the known copies that decide which sensors the cases read.
COPIES_MIB = (256.0,)


@dataclass(frozen=True)
class SensorCheckJob:
    """The sensors of a GPU, which are calibrated once, before the first case.

    Rows that ``rows`` makes go to ``part``, which sensors to trust to ``choice``; known copies have
    ``copies_mib``.
    """

    rows: RowMaker
    part: Path
    choice: Path
    copies_mib: tuple[float, ...] = COPIES_MIB

    def keep(self, choice: SensorChoice) -> None:
        """Write the choice down for the cases to come."""
        write_atomically(self.choice, _CHOICE.dump_json(choice, indent=2).decode() + "\n")


def read_choice(path: Path) -> SensorChoice:
    """The choice that :meth:`SensorCheckJob.keep` kept."""
    try:
        return _CHOICE.validate_json(read_bytes(path))
    except (OSError, ValidationError) as error:
        cause = str(error).partition("\n")[0]
        return SensorChoice(None, Reason("failed", f"the calibration left no choice ({cause})"))


@dataclass(frozen=True)
class Job:
    """One case to measure, and where.

    Attributes:
        device: ``cpu`` or ``cuda``.
        run: makes the rows of the run.
        dataset, trace: folders of the graph and of the minibatches, of one rank its own.
        part: the file that the case writes.
        traces: folder for a trace of an epoch after the measured ones; ``None``: no trace.
        sensors: which of the GPU's sensors the run's calibration trusts; ``None``: no GPU.
        identity: of dataset and minibatches, which all ranks have to agree on.
        rank: which of several processes; -1 for one that is alone, or that starts the others.
        first: no repeat of the series has been measured: it is this one that is looked at whole.
        start: the first block to be measured; those before are in the part, of another process.
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
    traces: Path | None = None
    sensors: SensorChoice | None = None
    identity: str = ""
    rank: int = -1
    first: bool = True
    start: int = 0
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
class Counting:
    """Cases of one workload, one of each path, whose minibatches are to be counted.

    ``into`` gets one JSON object a line: ``fraction`` of the work on the way, at the end what was
    found (:mod:`gatherbench.bench.run.counting`), or why it ``failed``.
    """

    jobs: tuple[Job, ...]
    into: Path

    @property
    def fraction(self) -> float:
        """What of the work is done."""
        return float(last_line(self.into).get("fraction", 0.0))


@dataclass(frozen=True)
class Turns:
    """Cases of one workload and repeat whose paths take turns in one process.

    Attributes:
        jobs: at least one.
        now: the file in which the process says whose turn it is (:class:`Turn`).
        until: by :func:`time.monotonic`, when it will be cut off.
    """

    jobs: tuple[Job, ...]
    now: Path
    until: float = math.inf


class Turn(NamedTuple):
    """Whose turn it is: ``case`` of the jobs, -1 for what they share.

    ``since`` is by :func:`time.monotonic`, ``before_s`` the seconds of its earlier turns. ``done``
    is the share of all the jobs' work that is done.
    """

    case: int = -1
    since: float = math.inf
    before_s: float = 0.0
    done: float = 0.0

    def say(self, path: Path) -> None:
        """Have it in the file, whatever becomes of the process."""
        path.write_text(json.dumps(self))

    @classmethod
    def said(cls, path: Path) -> Turn:
        """The last that was said; nobody's turn where it cannot be read."""
        try:
            return _TURN.validate_json(read_bytes(path))
        except (OSError, ValueError):  # of pydantic, too
            return cls()


_TURN = TypeAdapter(Turn)


def last_line(file: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON objects; empty where there is none."""
    try:
        found = parsed(read_bytes(file).rpartition(b"\n")[0].rpartition(b"\n")[2])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


#: What a process of its own is started for.
AnyJob = Job | Turns | Preparation | Counting | SensorCheckJob


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
