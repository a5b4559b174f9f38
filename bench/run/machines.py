"""The processes that a launcher started for one run, and their messages to each other.

Messages are JSON in a store of ``torch.distributed``; nothing is unpickled. Processes of one
machine meet in a file that only this user may open. Those of several meet in a ``TCPStore``:
torchrun's own, or one of the first process, which listens only at MASTER_ADDR.

On each machine one process starts its ranks, case by case. The measurements of ranks on other
machines come back as the text of their parts.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic import TypeAdapter
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from gatherbench.bench.machine.env import commit_id
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.launch import Launch, LaunchError, MachineLostError, Meeting
from gatherbench.bench.run.part import rank_part
from gatherbench.outside import parsed

#: How long processes wait for each other when a run begins, and for a machine whose ranks have
#: ended.
START_S, ANSWER_S = 120.0, 30.0
#: How long the first process waits until the others know that the run is over.
_LEAVE_S = 5.0
#: The interval at which the store is polled.
LOOK_S = 0.05
#: Bytes per write to the store.
_PIECE = 1 << 20

JOB: TypeAdapter[Job] = TypeAdapter(Job)


def say(store: Store, key: str, what: Any) -> None:
    """Publish a value for the other processes."""
    store.set(key, json.dumps(what))


def heard(store: Store, key: str, until: float) -> Any:
    """Wait for a published value and return it.

    Raises:
        TimeoutError: no value arrived by ``until`` (:func:`time.monotonic`).
    """
    while not store.check([key]):
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(LOOK_S)  # get() would wait too, but block Ctrl-C
    return parsed(store.get(key))


def store_of(meeting: Meeting, patience_s: float) -> Store:
    """Return this process's own connection to where a case's ranks meet."""
    store = TCPStore(
        meeting.address,
        meeting.port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=patience_s),
    )
    return PrefixStore(meeting.case, store)


def interfaces(meeting: Meeting | None) -> list[str]:
    """Return the network interfaces that connect the ranks: the loopback, on one machine."""
    mine = "127.0.0.1"
    if meeting is not None:
        where = (meeting.address, meeting.port)
        family, _, _, _, found = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(found)  # sends nothing
            mine = probe.getsockname()[0]
    every = psutil.net_if_addrs().items()
    return [name for name, of in every if any(one.address == mine for one in of)]


def send_parts(job: Job, death: str | None) -> None:
    """Send the first machine the parts that this one's ranks of a case wrote, and their failure."""
    assert job.meeting is not None
    meeting = job.meeting
    store, pieces = store_of(meeting, ANSWER_S), dict[int, int]()
    for rank in job.here:
        path = rank_part(job.part, rank)
        text = path.read_text(encoding="ascii") if path.exists() else ""
        starts = range(0, len(text), _PIECE)
        for number, at in enumerate(starts):
            store.set(f"part{rank}/{number}", text[at : at + _PIECE])
        pieces[rank] = len(starts)
    say(store, f"parts{meeting.machine}", {"pieces": pieces, "death": death})


def collect_parts(meeting: Meeting, part: Path) -> list[str]:
    """Write the parts received from ranks of other machines; return why their processes failed.

    Raises:
        MachineLostError: a machine does not answer.
    """
    store, deaths = store_of(meeting, ANSWER_S), list[str]()
    say(store, "ended", True)
    for machine in range(1, meeting.machines):
        try:
            told = heard(store, f"parts{machine}", time.monotonic() + ANSWER_S)
        except TimeoutError:
            raise MachineLostError(f"machine {machine} does not answer") from None
        for name, pieces in told["pieces"].items():
            with rank_part(part, int(name)).open("wb") as file:
                for number in range(pieces):
                    file.write(store.get(f"part{name}/{number}"))
                    store.delete_key(f"part{name}/{number}")
        if told["death"]:
            deaths.append(f"machine {machine}: {told['death']}")
    return deaths


class Group:
    """All processes of a run; each enters it, and leaves when the run has ended.

    On entering they wait for each other, and the first of a machine takes all cores and GPUs that
    the launcher gave to any process of its machine: mpirun and srun bind each process to some.

    Attributes:
        status: of the run, set by the first process.
        store: available after entering.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch, self.status = launch, 1
        self._cases, self._first, self._run = 0, 0, ""
        self._folder: Path | None = None
        self._served: Store | None = None  # ends with the run
        self.store: Store

    def __enter__(self) -> Self:
        """
        Raises:
            LaunchError: they cannot meet, or have different code.
        """
        launch = self.launch
        try:
            self.store = self._joined()
            told = self._told()
        except (OSError, RuntimeError) as error:  # torch raises the latter
            where = f" at {launch.address}:{launch.port}" if launch.machines > 1 else ""
            raise LaunchError(
                f"{launch}, and they cannot meet{where}: {str(error).splitlines()[0]}"
            ) from error
        if len({of["commit"] for of in told.values()}) > 1:
            raise LaunchError(f"{launch}, not all at one commit: have the same code everywhere")
        self._first = told[0]["pid"]
        if launch.local_rank == 0:
            _use_all([told[launch.rank + local] for local in range(launch.local_world)])
        return self

    def _joined(self) -> Store:
        launch = self.launch
        if launch.machines == 1:
            self._folder = _folder_of(launch)
            return FileStore(str(self._folder / "store"), launch.world)
        if launch.rank == 0 and not launch.served:
            listener = _listener(launch)
            self._served = TCPStore(
                launch.address,
                launch.port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        patience = timedelta(seconds=START_S)
        store = TCPStore(
            launch.address, launch.port, is_master=False, wait_for_workers=False, timeout=patience
        )
        # A launcher may start several runs in turn, whose keys its store keeps.
        self._run = f"gatherbench{store.add(f'gatherbench-runs-of-{launch.rank}', 1)}"
        return PrefixStore(self._run, store)

    def _told(self) -> dict[int, dict[str, Any]]:
        """Return every process's description of itself, by rank."""
        mine = {
            "pid": os.getpid(),
            "commit": commit_id(),
            "cores": sorted(os.sched_getaffinity(0)),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        say(self.store, f"process{self.launch.rank}", mine)
        until, told = time.monotonic() + START_S, dict[int, dict[str, Any]]()
        for rank in range(self.launch.world):
            try:
                told[rank] = heard(self.store, f"process{rank}", until)
            except TimeoutError:
                raise LaunchError(
                    f"{self.launch}, and process {rank} did not come within {START_S:g} s: have the"
                    " launcher start gatherbench itself, with the same arguments everywhere"
                ) from None
        return told

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError, OSError):  # if the store is gone, all processes know it
            if self.launch.rank:
                say(self.store, f"left{self.launch.rank}", True)
                return
            say(self.store, "end", self.status)
            until = time.monotonic() + _LEAVE_S
            with suppress(TimeoutError):
                for rank in range(1, self.launch.world):
                    heard(self.store, f"left{rank}", until)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def begin(self, job: Job) -> Job:
        """Have the other machines start their ranks of a case; return the job of this one's.

        Raises:
            MachineLostError: one of them is not ready in time.
            RuntimeError: one cannot start.
        """
        number = self._cases
        self._cases += 1
        store = self.of_case(number)
        store.set("job", JOB.dump_json(job).decode())
        others = range(1, self.launch.machines)
        self._answers(store, "here", ANSWER_S, "does not answer")
        late = (
            f"was not ready in {job.measure.timeout_s:g} s (timeout_s): prepare its data before,"
            " with gatherbench datasets prepare"
        )
        reasons = self._answers(store, "ready", job.measure.timeout_s, late)
        say(store, "go", not any(reasons))
        if any(reasons):
            told = (f"machine {n}: {why}" for n, why in zip(others, reasons, strict=True) if why)
            raise RuntimeError("; ".join(told))
        return replace(job, meeting=self.meeting(number))

    def _answers(self, store: Store, key: str, seconds: float, else_: str) -> list[Any]:
        """Return the answer of each further machine."""
        until, answers = time.monotonic() + seconds, []
        for machine in range(1, self.launch.machines):
            try:
                answers.append(heard(store, f"{key}{machine}", until))
            except TimeoutError:
                raise MachineLostError(f"machine {machine} {else_}") from None
        return answers

    def meeting(self, number: int) -> Meeting:
        """Return where the ranks of a case meet."""
        launch = self.launch
        case = f"{self._run}/case{number}"
        return Meeting(launch.address, launch.port, case, launch.machine, launch.machines)

    def ended(self) -> None:
        """Record that the first machine's ranks of the last started case have ended."""
        say(self.of_case(self._cases - 1), "ended", True)

    def say(self, key: str, what: Any) -> None:
        """Publish a value for the others."""
        say(self.store, key, what)

    def hear(self, store: Store, key: str) -> Any:
        """Return the first process's value; ``None``: the run ends before. Errors as `over`."""
        while not self.over:
            if store.check([key]):
                return parsed(store.get(key))
            time.sleep(LOOK_S)
        return None

    def of_case(self, number: int) -> Store:
        """Return the store of a case's messages."""
        return PrefixStore(f"case{number}", self.store)

    @property
    def over(self) -> bool:
        """Return whether the run has ended; for processes other than the first.

        Raises:
            LaunchError: the first process is gone.
        """
        try:
            over = self.store.check(["end"])
        except RuntimeError as error:
            raise LaunchError("the first process is gone, and its store with it") from error
        if not over and self.launch.machine == 0 and not psutil.pid_exists(self._first):
            raise LaunchError("the first process is gone")
        return bool(over)

    def wait(self) -> int:
        """Wait until the run ends; return its status. Errors as of :attr:`over`."""
        while not self.over:
            time.sleep(LOOK_S)
        return int(parsed(self.store.get("end")))


def _use_all(processes: list[dict[str, Any]]) -> None:
    """Use the cores and GPUs of all processes of this machine."""
    os.sched_setaffinity(0, {core for of in processes for core in of["cores"]})
    gpus = [of["gpus"] for of in processes]
    if None not in gpus:
        every = (one for of in gpus for one in of.split(","))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(every))


def _listener(launch: Launch) -> socket.socket:
    """Return a socket that listens only at the address on which the processes meet."""
    try:
        ipaddress.ip_address(launch.address)
        named = False
    except ValueError:
        named = True
    where = (launch.address, launch.port)
    family, _, _, _, found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
    if named and ipaddress.ip_address(found[0]).is_loopback:
        raise LaunchError(
            f"{launch.address} is {found[0]} here, which no other machine reaches: set MASTER_ADDR"
            " to this machine's address on their network"
        )
    return socket.create_server((str(found[0]), launch.port), family=family)


def _folder_of(launch: Launch) -> Path:
    """Return this user's folder for one launch, named after the launcher's process."""
    began = Path("/proc", str(_launcher(launch.variable)), "stat").read_text()
    ticks = began.rpartition(")")[2].split()[19]
    name = f"gatherbench-{os.getuid()}-{_launcher(launch.variable)}-{ticks}"
    folder = Path(tempfile.gettempdir(), name)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchError(f"{folder}: is not this user's alone; remove it")
    return folder


def _launcher(variable: str) -> int:
    """Return the process that started this one: the nearest that lacks the variable it set."""
    for one in psutil.Process().parents():
        try:
            if variable in one.environ():
                continue
        except psutil.Error:  # another user's process, such as Slurm's
            pass
        return one.pid
    raise LaunchError(f"{variable} is set, and no process is there that set it")
