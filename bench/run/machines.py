"""The processes that a launcher started for one run, and their messages to each other.

Messages are JSON in a store of ``torch.distributed``; nothing is unpickled. Processes of one
machine meet in a file that only this user may open. Those of several meet in a ``TCPStore``:
torchrun's own, or one of the first process, which listens only at MASTER_ADDR.

The first process measures. The first of each further machine starts that machine's ranks of each
case, and sends back what they wrote (:func:`follow`).
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import math
import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import closing, suppress
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
from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.engine import Engine
from gatherbench.bench.run.guards import terminate_as_interrupt
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.launch import Launch, LaunchError, MachineLostError, Meeting
from gatherbench.bench.run.part import rank_part, read_part, rows_of
from gatherbench.outside import fresh, parsed

#: How long processes wait for each other when a run begins, and for a machine whose ranks have
#: ended; for ranks to end after those of the first machine; and for others to know of a run's end.
START_S, ANSWER_S, _END_S, _LEAVE_S = 120.0, 30.0, 10.0, 5.0
#: The interval at which the store is polled.
LOOK_S = 0.05
#: Bytes per write to the store.
_PIECE = 1 << 20

_JOB: TypeAdapter[Job] = TypeAdapter(Job)


def say(store: Store, key: str, what: Any) -> None:
    """Publish a value for the other processes."""
    text = json.dumps(what)
    starts = range(0, len(text), _PIECE)
    for number, at in enumerate(starts):
        store.set(f"{key}/{number}", text[at : at + _PIECE])
    store.set(key, str(len(starts)))


def heard(store: Store, key: str, until: float = math.inf, *, last: bool = False) -> Any:
    """Wait for a published value and return it; the ``last`` reader deletes it.

    Raises:
        TimeoutError: no value arrived by ``until`` (:func:`time.monotonic`).
    """
    while not store.check([key]):
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(LOOK_S)  # get() would wait too, but block Ctrl-C
    pieces = [f"{key}/{number}" for number in range(int(store.get(key)))]
    text = b"".join(map(store.get, pieces))
    for piece in pieces if last else ():
        store.delete_key(piece)
    return parsed(text)


def _connected(address: str, port: int, patience_s: float) -> Store:
    patience = timedelta(seconds=patience_s)
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=patience)


def store_of(meeting: Meeting, patience_s: float) -> Store:
    """Return this process's own connection to where a case's ranks meet."""
    return PrefixStore(meeting.case, _connected(meeting.address, meeting.port, patience_s))


def use_one_network(meeting: Meeting | None) -> None:
    """Have gloo and NCCL use the network that connects the ranks: on one machine its loopback.

    Otherwise each takes the one that the machine's name resolves to, and listens there. What is
    configured in the environment stays.
    """
    mine = "127.0.0.1"
    if meeting is not None:
        where = (meeting.address, meeting.port)
        family, _, _, _, found = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(found)  # sends nothing
            mine = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == mine for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def collect_parts(meeting: Meeting, part: Path) -> list[str]:
    """Write the parts received from ranks of other machines; return why their processes failed.

    Raises:
        MachineLostError: a machine does not answer.
    """
    store, deaths = store_of(meeting, ANSWER_S), list[str]()
    say(store, "ended", True)
    for machine in range(1, meeting.machines):
        try:
            until = time.monotonic() + ANSWER_S
            answer = heard(store, f"parts{machine}", until, last=True)
        except TimeoutError:
            raise MachineLostError(f"machine {machine} does not answer") from None
        for rank, text in answer["parts"].items():
            rank_part(part, int(rank)).write_text(text, encoding="ascii")
        if answer["death"]:
            deaths.append(f"machine {machine}: {answer['death']}")
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
            self.store = self._met()
            processes = self._described()
        except (OSError, RuntimeError) as error:  # torch raises the latter
            where = f" at {launch.address}:{launch.port}" if launch.machines > 1 else ""
            raise LaunchError(
                f"{launch}, and they cannot meet{where}: {str(error).splitlines()[0]}"
            ) from error
        if len({process["commit"] for process in processes}) > 1:
            raise LaunchError(f"{launch}, not all at one commit: have the same code everywhere")
        self._first = processes[0]["pid"]
        if launch.local_rank == 0:
            _use_all(processes[launch.rank : launch.rank + launch.local_world])
        return self

    def _met(self) -> Store:
        launch = self.launch
        if launch.machines == 1:
            self._folder = _folder_of(launch)
            return FileStore(str(self._folder / "store"), launch.world)
        if launch.rank == 0 and not launch.served:
            listener = _listener(launch).detach()
            self._served = TCPStore(
                launch.address,
                launch.port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener,
            )
        store = _connected(launch.address, launch.port, START_S)
        # A launcher may start several runs in turn, whose keys its store keeps.
        self._run = f"gatherbench{store.add(f'gatherbench-runs-of-{launch.rank}', 1)}"
        return PrefixStore(self._run, store)

    def _described(self) -> list[dict[str, Any]]:
        """Return every process's description of itself, by rank."""
        mine = {
            "pid": os.getpid(),
            "commit": commit_id(),
            "cores": sorted(os.sched_getaffinity(0)),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        say(self.store, f"process{self.launch.rank}", mine)
        until, processes = time.monotonic() + START_S, list[dict[str, Any]]()
        for rank in range(self.launch.world):
            try:
                processes.append(heard(self.store, f"process{rank}", until))
            except TimeoutError:
                raise LaunchError(
                    f"{self.launch}, and process {rank} did not come within {START_S:g} s: have the"
                    " launcher start gatherbench itself, with the same arguments everywhere"
                ) from None
        return processes

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
        store, meeting = self.of_case(self._cases), self.meeting(self._cases)
        self._cases += 1
        counts = job.counts and job.counts.read_text(encoding="utf-8")
        say(store, "job", {"job": _JOB.dump_python(job, mode="json"), "counts": counts})
        self._answers(store, "here", ANSWER_S, "does not answer")
        late = (
            f"was not ready in {job.measure.timeout_s:g} s (timeout_s): prepare its data before,"
            " with gatherbench datasets prepare"
        )
        reasons = self._answers(store, "ready", job.measure.timeout_s, late)
        if any(reasons):
            self.ended()
            lines = (f"machine {n}: {why}" for n, why in enumerate(reasons, start=1) if why)
            raise RuntimeError("; ".join(lines))
        return replace(job, meeting=meeting)

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
                return heard(store, key)
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


def follow(group: Group) -> int:
    """Follow the first process's instructions until the run ends; return its status.

    Raises:
        LaunchError: the first process is gone.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP.
    """
    with terminate_as_interrupt():
        if group.launch.machine and not group.launch.local_rank:
            temporary = tempfile.TemporaryDirectory(
                prefix="gatherbench-", ignore_cleanup_errors=True
            )
            with temporary as folder:
                _start_ranks(group, Path(folder))
        while not group.over:
            time.sleep(LOOK_S)
        return int(heard(group.store, "end"))


def _start_ranks(group: Group, folder: Path) -> None:
    """Start this machine's ranks of each case, and send the first machine what they wrote."""
    if (waiting := group.hear(group.store, "waiting")) is None:
        return
    known: dict[Workload, Ready | str] = {}
    ended = math.inf

    def look() -> None:
        nonlocal ended
        if group.over:
            raise TimeoutError("the run has ended")
        if store.check(["ended"]):
            ended = min(ended, time.monotonic())
            if time.monotonic() - ended > _END_S:
                raise TimeoutError("it hung when the first machine's ranks had ended")

    with closing(Engine(folder, Waiting(waiting).environment())) as engine:
        for number in itertools.count():
            store, meeting = group.of_case(number), group.meeting(number)
            if (message := group.hear(store, "job")) is None:
                return
            say(store, f"here{meeting.machine}", True)
            job, ended = _JOB.validate_python(message["job"]), math.inf
            workload = job.case.workload
            if workload not in known:
                block = Block("prepare", (replace(job, part=folder / "prepared.jsonl"),))
                known[workload] = engine.prepare(block, look=look)
            ready = known[workload]
            say(store, f"ready{meeting.machine}", ready if isinstance(ready, str) else None)
            if isinstance(ready, str):
                continue
            job = replace(job, tuned=folder / "tuned.json", **ready._asdict())
            job = replace(job, part=fresh(folder / "case.jsonl"), meeting=meeting)
            if message["counts"] is not None:
                counts = folder / "counts.jsonl"
                counts.write_text(message["counts"], encoding="utf-8")
                job = replace(job, counts=counts)
            death = engine.run(Block("measure", (job,)), job.measure.timeout_s, look=look)
            if death is None:
                ends = rows_of(read_part(job.part), "end")
                death = ends[0].reason if ends else "ended without a word"
            if not group.over:
                files = {rank: rank_part(job.part, rank) for rank in job.here}
                parts = {rank: file.read_text() for rank, file in files.items() if file.exists()}
                say(store, f"parts{meeting.machine}", {"parts": parts, "death": death})


def _use_all(processes: list[dict[str, Any]]) -> None:
    """Use the cores and GPUs of all processes of this machine."""
    os.sched_setaffinity(0, {core for process in processes for core in process["cores"]})
    gpus = [process["gpus"] for process in processes]
    if None not in gpus:
        every = ",".join(gpus).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(every))


def _listener(launch: Launch) -> socket.socket:
    """Return a socket that listens only at the address on which the processes meet."""
    where = (launch.address, launch.port)
    family, _, _, _, found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
    if found[0] != launch.address and ipaddress.ip_address(found[0]).is_loopback:
        raise LaunchError(
            f"{launch.address} is {found[0]} here, which no other machine reaches: set MASTER_ADDR"
            " to this machine's address on their network"
        )
    return socket.create_server((str(found[0]), launch.port), family=family)


def _folder_of(launch: Launch) -> Path:
    """Return this user's folder for one launch, named after the launcher's process."""
    launcher = _launcher(launch.variable)
    ticks = Path("/proc", str(launcher), "stat").read_text().rpartition(")")[2].split()[19]
    folder = Path(tempfile.gettempdir(), f"gatherbench-{os.getuid()}-{launcher}-{ticks}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchError(f"{folder}: is not this user's alone; remove it")
    return folder


def _launcher(variable: str) -> int:
    """Return the process that started this one: the nearest that lacks the variable it set."""
    for process in psutil.Process().parents():
        with suppress(psutil.Error):  # another user's process, such as Slurm's
            if variable in process.environ():
                continue
        return process.pid
    raise LaunchError(f"{variable} is set, and no process is there that set it")
