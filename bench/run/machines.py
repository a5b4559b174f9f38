"""The processes that a launcher started for one run, and their messages to each other.

The first process measures. The first of each further machine starts that machine's ranks of each
case, which send back what they wrote (:func:`follow`). The others lend their machine's first one
the cores and GPUs that the launcher gave them, and wait.

Processes of one machine meet in a folder of this user's. The first ones of several meet in a
``TCPStore`` of ``torch.distributed``: torchrun's own, or one of the first process, which listens
only at MASTER_ADDR. Messages are JSON; nothing is unpickled.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic import TypeAdapter
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from gatherbench.bench.machine.env import commit_id
from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.engine import Engine
from gatherbench.bench.run.guards import terminate_as_interrupt
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.launch import Launch, LaunchError, MachineLostError
from gatherbench.bench.run.part import rank_part
from gatherbench.kernels.private_folder import private_folder
from gatherbench.outside import fresh, parsed

#: How long processes wait for each other when a run begins, for a machine whose ranks have ended,
#: and for others to know of a run's end.
START_S, ANSWER_S, _LEAVE_S = 120.0, 30.0, 5.0
#: The interval of looks at the store, a file or a process.
LOOK_S = 0.05
#: Bytes per write to the store, which takes up to 8 MiB.
_PIECE = 1 << 20

_JOB: TypeAdapter[Job] = TypeAdapter(Job)


def _wait_for(there: Callable[[], bool], seconds: float) -> None:
    """
    Raises:
        TimeoutError: it is not there in time.
    """
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(LOOK_S)


def say(store: Store, key: str, value: Any) -> None:
    """Publish a value for the other processes."""
    text = json.dumps(value)
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}/{number}", piece)
    store.set(key, str(len(pieces)))


def heard(store: Store, key: str, seconds: float = math.inf, *, last: bool = False) -> Any:
    """Wait for a published value and return it; the ``last`` reader deletes it.

    Raises:
        TimeoutError: no value arrived in time.
    """
    _wait_for(lambda: bool(store.check([key])), seconds)  # get() would block Ctrl-C
    pieces = [f"{key}/{number}" for number in range(int(store.get(key)))]
    text = b"".join(map(store.get, pieces))
    for piece in pieces if last else ():
        store.delete_key(piece)
    return parsed(text)


def _connected(launch: Launch, patience_s: float) -> Store:
    patience = timedelta(seconds=patience_s)
    return TCPStore(launch.address, launch.port, wait_for_workers=False, timeout=patience)


def store_of(meeting: Launch, patience_s: float) -> Store:
    """Return this process's own connection to where a case's ranks meet."""
    return PrefixStore(meeting.case, _connected(meeting, patience_s))


def use_one_network(meeting: Launch | None) -> None:
    """Have gloo and NCCL use the network that connects the ranks: on one machine its loopback.

    Otherwise each takes the one that the machine's name resolves to, and listens there. What is
    configured in the environment stays.
    """
    own_address = "127.0.0.1"
    if meeting is not None:
        with socket.create_connection((meeting.address, meeting.port), ANSWER_S) as probe:
            own_address = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own_address for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def send_parts(job: Job, problem: str | None) -> None:
    """Send the parts of this machine's ranks to the first one; ``problem``: why they failed."""
    assert job.meeting is not None
    files = {rank: rank_part(job.part, rank) for rank in job.here}
    parts = {rank: file.read_text() for rank, file in files.items() if file.exists()}
    answer = {"parts": parts, "problem": problem}
    say(store_of(job.meeting, ANSWER_S), f"parts{job.meeting.machine}", answer)


def collect_parts(meeting: Launch, part: Path) -> list[str]:
    """Write the parts received from ranks of other machines; return why their processes failed."""
    store, problems = store_of(meeting, ANSWER_S), list[str]()
    for machine in range(1, meeting.machines):
        try:
            answer = heard(store, f"parts{machine}", ANSWER_S, last=True)
        except TimeoutError:
            problems.append(f"machine {machine} does not answer")
            continue
        for rank, text in answer["parts"].items():
            rank_part(part, int(rank)).write_text(text, encoding="ascii")
        if answer["problem"]:
            problems.append(f"machine {machine}: {answer['problem']}")
    return problems


class Group:
    """All processes of a run; each enters it, and leaves when the run has ended.

    Attributes:
        store: where they meet, after entering.
    """

    store: Store

    def __init__(self, launch: Launch) -> None:
        self.launch, self._cases = launch, 0
        self._served: Store | None = None  # ends with the run

    def __enter__(self) -> Self:
        """
        Raises:
            LaunchError: they cannot meet, or have different code.
        """
        launch, gpus = self.launch, os.environ.get("CUDA_VISIBLE_DEVICES")
        described = {"commit": commit_id(), "pid": os.getpid(), "gpus": gpus}
        described["cores"] = [*os.sched_getaffinity(0)]
        try:
            store = self._met()
            # A launcher may start several runs in turn, whose keys its store keeps.
            self._run = f"gatherbench{store.add(f'gatherbench-runs-of-{launch.rank}', 1)}"
            self.store = PrefixStore(self._run, store)
            say(self.store, f"process{launch.rank}", described)
            ranks = range(launch.world)
            processes = [heard(self.store, f"process{rank}", START_S) for rank in ranks]
        except TimeoutError:
            raise LaunchError(
                f"{launch}, and not all came within {START_S:g} s: have the launcher start"
                " gatherbench itself, with the same arguments everywhere"
            ) from None
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
            return FileStore(str(_folder_of(launch) / "store"))
        where = (launch.address, launch.port)
        if launch.rank == 0 and not launch.served:
            family, _, _, _, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
            if address[0] != launch.address and ipaddress.ip_address(address[0]).is_loopback:
                raise LaunchError(
                    f"{launch.address} is {address[0]} here, which no other machine reaches: set"
                    " MASTER_ADDR to this machine's address on their network"
                )
            # By itself the store would listen at every address of the machine.
            listener = socket.create_server((str(address[0]), launch.port), family=family)
            listens = listener.detach()
            self._served = TCPStore(
                *where, is_master=True, wait_for_workers=False, master_listen_fd=listens
            )
        return _connected(launch, START_S)

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError, OSError):  # TimeoutError; or the store is gone: all know it
            say(self.store, f"left{self.launch.rank}", True)
            until = time.monotonic() + _LEAVE_S
            for rank in range(self.launch.world if self.launch.rank == 0 else 0):
                heard(self.store, f"left{rank}", until - time.monotonic())
        if self.launch.machines == 1 and self.launch.rank == 0:
            shutil.rmtree(_folder_of(self.launch), ignore_errors=True)

    def begin(self, job: Job) -> Job:
        """Have the other machines start their ranks of a case; return the job of this one's.

        Raises:
            MachineLostError: one of them is not ready in time.
            RuntimeError: one cannot start.
        """
        meeting, timeout_s = self.next_case(), job.measure.timeout_s
        store, problems = store_of(meeting, ANSWER_S), list[str]()
        counts = job.counts and job.counts.read_text(encoding="utf-8")
        say(store, "job", {"job": _JOB.dump_python(job, mode="json"), "counts": counts})
        for machine in range(1, self.launch.machines):
            try:
                problem = heard(store, f"ready{machine}", timeout_s)
            except TimeoutError:
                raise MachineLostError(
                    f"machine {machine} was not ready in {timeout_s:g} s (timeout_s): it is gone,"
                    " or its data takes longer; prepare that before, with gatherbench datasets"
                    " prepare"
                ) from None
            if problem is not None:
                problems.append(f"machine {machine}: {problem}")
        if problems:
            raise RuntimeError("; ".join(problems))
        return replace(job, meeting=meeting)

    def next_case(self) -> Launch:
        """Return where the ranks of the run's next case meet."""
        self._cases += 1
        return replace(self.launch, case=f"{self._run}/case{self._cases}")

    def say(self, key: str, value: Any) -> None:
        """Publish a value for the others."""
        say(self.store, key, value)

    def hear(self, store: Store, key: str) -> Any:
        """Wait for the first process's value and return it. Errors as `check`."""

        def there() -> bool:
            self.check()
            return bool(store.check([key]))

        _wait_for(there, math.inf)
        return heard(store, key)

    def check(self) -> None:
        """Check that the run goes on, for all but the first process.

        Raises:
            TimeoutError: it has ended.
            LaunchError: the first process is gone.
        """
        try:
            ended = self.store.check(["left0"])
        except RuntimeError as error:
            raise LaunchError("the first process is gone, and its store with it") from error
        if ended:
            raise TimeoutError("the run has ended")
        if self.launch.machines == 1 and not _runs(self._first):
            raise LaunchError("the first process is gone")


def follow(group: Group) -> None:
    """Follow the first process until the run ends: start this machine's ranks of each case.

    Raises:
        LaunchError: the first process is gone.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP.
    """
    with terminate_as_interrupt(), suppress(TimeoutError):
        while group.launch.local_rank:  # until the run has ended
            group.check()
            time.sleep(LOOK_S)
        temporary = tempfile.TemporaryDirectory(prefix="gatherbench-", ignore_cleanup_errors=True)
        with temporary as folder:
            _start_ranks(group, Path(folder))


def _start_ranks(group: Group, folder: Path) -> None:
    known: dict[Workload, Ready | str] = {}
    environment = Waiting(group.hear(group.store, "waiting")).environment()
    with closing(Engine(folder, environment, look=group.check)) as engine:
        while True:
            meeting = group.next_case()
            store = store_of(meeting, ANSWER_S)
            message = group.hear(store, "job")
            job = replace(_JOB.validate_python(message["job"]), meeting=meeting)
            workload = job.case.workload
            if workload not in known:
                own_job = replace(job, part=folder / "prepared.jsonl", first=False)
                known[workload] = engine.prepare(Block("prepare", (own_job,)))
            ready = known[workload]
            say(store, f"ready{meeting.machine}", ready if isinstance(ready, str) else None)
            if isinstance(ready, str):
                continue
            job = replace(job, tuned=folder / "tuned.json", **ready._asdict())
            counts = None if message["counts"] is None else folder / "counts.jsonl"
            if counts is not None:
                counts.write_text(message["counts"], encoding="utf-8")
            job = replace(job, part=fresh(folder / "case.jsonl"), counts=counts)
            death = engine.run(Block("measure", (job,)), job.measure.timeout_s)
            if death is not None:
                send_parts(job, death)


def _use_all(processes: Sequence[dict[str, Any]]) -> None:
    """Use the cores and GPUs of all processes of the machine: launchers bind each to some."""
    os.sched_setaffinity(0, {core for process in processes for core in process["cores"]})
    if all(process["gpus"] is not None for process in processes):
        every = ",".join(process["gpus"] for process in processes).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(every))


def _runs(process: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def _folder_of(launch: Launch) -> Path:
    """Return this user's folder for one launch, named after the launcher's process.

    It is the nearest process above that lacks the variable that a launcher sets.
    """
    for launcher in psutil.Process().parents():
        with suppress(psutil.Error):  # another user's process, such as Slurm's
            if launch.variable in launcher.environ():
                continue
        began = Path("/proc", str(launcher.pid), "stat").read_text().rpartition(")")[2].split()[19]
        name = f"gatherbench-{os.getuid()}-{launcher.pid}-{began}"
        folder = Path(tempfile.gettempdir(), name)
        if not private_folder(folder):
            raise LaunchError(f"{folder}: is not this user's alone; remove it")
        return folder
    raise LaunchError(f"{launch.variable} is set, and no process is there that set it")
