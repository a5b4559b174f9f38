"""The processes that a launcher started for one run, and their messages to each other.

The first process measures. The first of each further machine starts that machine's ranks of each
case, and sends back what they wrote (:func:`follow`). The others lend their machine's first one
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
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn, Self, TypeVar

import psutil
from pydantic import TypeAdapter
from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from gatherbench.bench.machine.env import commit_id
from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.engine import Engine
from gatherbench.bench.run.guards import RunStopped, terminate_as_interrupt
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.launch import NAMES, Launch, LaunchError
from gatherbench.bench.run.part import rank_part, ranks_folder, read_part
from gatherbench.kernels.private_folder import private_folder
from gatherbench.outside import fresh, parsed

T = TypeVar("T")

#: How long processes wait for each other when a run begins, for an answer, and for others to notice
#: a run's end; and the interval of looks at the store.
START_S, ANSWER_S, _LEAVE_S, _LOOK_S = 120.0, 30.0, 1.0, 0.05
#: Bytes per write to the store, which takes up to 8 MiB.
_PIECE = 1 << 20

_JOB: TypeAdapter[Job] = TypeAdapter(Job)


def answered(call: Callable[[], T], seconds: float = ANSWER_S) -> T:
    """Return the result of a call to a store.

    If the link to it is cut, torch waits for ever, and no signal ends that: so a thread waits.

    Raises:
        TimeoutError: no answer came in time.
    """
    answer = Future[T]()

    def wait() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=wait, daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def say(store: Store, key: str, value: Any, seconds: float = ANSWER_S) -> None:
    """Publish a value for the other processes."""
    text = json.dumps(value)
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    for number, piece in enumerate(pieces):
        answered(partial(store.set, f"{key}/{number}", piece), seconds)
    answered(partial(store.set, key, str(len(pieces))), seconds)


def heard(
    store: Store, key: str, seconds: float = math.inf, look: Callable[[], None] = lambda: None
) -> Any:
    """Wait for a published value and return it; ``look`` is called now and then.

    Raises:
        TimeoutError: no value arrived in time.
    """
    until = time.monotonic() + seconds
    while not answered(partial(store.check, [key])):
        look()
        if time.monotonic() > until:
            raise TimeoutError(f"no word of {key} within {seconds:g} s")
        time.sleep(_LOOK_S)
    names = [f"{key}/{number}" for number in range(int(answered(partial(store.get, key))))]
    return parsed(b"".join(answered(partial(store.get, name)) for name in names))


def _connected(launch: Launch, patience_s: float, listens: int | None = None) -> Store:
    connect = partial(
        TCPStore,
        launch.address,
        launch.port,
        is_master=listens is not None,
        timeout=timedelta(seconds=patience_s),
        wait_for_workers=False,
        master_listen_fd=listens,
    )
    return answered(connect, patience_s + ANSWER_S)


def store_of(job: Job, patience_s: float) -> Store:
    """Return this process's own connection to where a case's ranks meet."""
    if job.meeting is not None:
        return PrefixStore(job.meeting.case, _connected(job.meeting, patience_s))
    store = FileStore(str(ranks_folder(job.part) / "store"), job.case.workload.gpus)
    store.set_timeout(timedelta(seconds=patience_s))
    return store


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


class Group:
    """All processes of a run; each enters it, and leaves when the run has ended."""

    store: Store  #: Where they meet, after entering.

    def __init__(self, launch: Launch) -> None:
        self.launch, self._cases = launch, 0

    def __enter__(self) -> Self:
        """
        Raises:
            LaunchError: they cannot meet, or have different code.
        """
        launch, gpus = self.launch, os.environ.get("CUDA_VISIBLE_DEVICES")
        own = {"commit": commit_id(), "pid": os.getpid(), "gpus": gpus}
        own["cores"] = [*os.sched_getaffinity(0)]
        try:
            store = self._met()
            # A launcher may start several runs in turn, whose keys its store keeps.
            self._run = f"gatherbench{store.add(f'gatherbench-runs-of-{launch.rank}', 1)}"
            self.store = PrefixStore(self._run, store)
            self.say(f"process{launch.rank}", own)
            all_ranks = range(launch.world)
            processes = [heard(self.store, f"process{rank}", START_S) for rank in all_ranks]
        except (OSError, RuntimeError) as error:  # torch raises the latter
            where = f" at {launch.address}:{launch.port}" if launch.machines > 1 else ""
            raise LaunchError(
                f"{launch}, and they cannot meet{where}: {str(error).splitlines()[0]}; have the"
                " launcher start gatherbench itself, with the same arguments everywhere, and"
                " MASTER_PORT be free"
            ) from error
        if len({process["commit"] for process in processes}) > 1:
            raise LaunchError(f"{launch}, not all at one commit: have the same code everywhere")
        self._first = processes[0]["pid"]
        if launch.local_rank == 0:  # launchers bind each to some of the cores and GPUs
            here = processes[launch.rank : launch.rank + launch.local_world]
            os.sched_setaffinity(0, {core for process in here for core in process["cores"]})
            if all(process["gpus"] is not None for process in here):
                every = ",".join(process["gpus"] for process in here).split(",")
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(every))
        return self

    def _met(self) -> Store:
        launch, listens = self.launch, None
        if launch.machines == 1:
            return FileStore(str(_folder_of(launch) / "store"))
        if launch.rank == 0 and not launch.served:
            where = (launch.address, launch.port)
            family, _, _, _, (address, *_) = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
            if address != launch.address and ipaddress.ip_address(address).is_loopback:
                raise LaunchError(
                    f"{launch.address} is {address} here, which no other machine reaches: set"
                    " MASTER_ADDR to this machine's address on their network"
                )
            # By itself the store would listen at every address of the machine.
            listens = socket.create_server((address, launch.port), family=family).detach()
        return _connected(launch, START_S, listens)

    def __exit__(self, *_: object) -> None:
        launch = self.launch
        with suppress(RuntimeError, OSError):  # TimeoutError; or the store is gone: all know it
            say(self.store, f"left{launch.rank}", True, _LEAVE_S)
            until = time.monotonic() + _LEAVE_S
            for rank in range(launch.world if launch.rank == 0 else 0):
                heard(self.store, f"left{rank}", until - time.monotonic())
        if launch.machines == 1 and launch.rank == 0:
            shutil.rmtree(_folder_of(launch), ignore_errors=True)

    def begin(self, job: Job) -> Job | str:
        """Have the other machines start their ranks of a case; return the job of this one's, or why
        one of them cannot start.

        Raises:
            RunStopped: one of them is not ready in time.
        """
        meeting, timeout_s, problems = self.next_case(), job.measure.timeout_s, list[str]()
        counts = job.counts and job.counts.read_text(encoding="utf-8")
        try:
            self.say(meeting.case, {"job": _JOB.dump_python(job, mode="json"), "counts": counts})
            for machine in range(1, self.launch.machines):
                try:
                    problem = heard(self.store, f"{meeting.case}/ready{machine}", timeout_s)
                except TimeoutError:
                    raise RunStopped(
                        f"machine {machine} was not ready in {timeout_s:g} s (timeout_s): it is"
                        " gone, or its data takes longer; prepare that before, with gatherbench"
                        " datasets prepare"
                    ) from None
                problems += [f"machine {machine}: {problem}"] if problem else []
        except (DistError, TimeoutError) as lost:  # of the store, which a launcher may hold
            return str(lost)
        return "; ".join(problems) or replace(job, meeting=meeting)

    def next_case(self) -> Launch:
        """Return where the ranks of the run's next case meet."""
        self._cases += 1
        return replace(self.launch, case=f"{self._run}/case{self._cases}")

    def say(self, key: str, value: Any) -> None:
        """Publish a value for the others."""
        say(self.store, key, value)

    def hear(self, key: str) -> Any:
        """Wait for the first process's value and return it. Errors as `check`."""
        return heard(self.store, key, look=self.check)

    def check(self) -> None:
        """Check that the run goes on, for all but the first process.

        Raises:
            SystemExit: it has ended.
            LaunchError: the first process is gone.
        """
        if answered(partial(self.store.check, ["left0"])):
            raise SystemExit
        if self.launch.machines == 1 and not _runs(self._first):
            raise LaunchError("the first process is gone")


def _runs(process: int) -> bool:
    """Return whether a process has not ended, even if nobody has waited for it yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def follow(group: Group) -> NoReturn:
    """Follow the first process until the run ends: start this machine's ranks of each case.

    Raises:
        SystemExit: the run has ended.
        LaunchError: the first process is gone.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP.
    """
    temporary = tempfile.TemporaryDirectory(prefix="gatherbench-", ignore_cleanup_errors=True)
    try:
        with terminate_as_interrupt(), temporary as folder:
            while group.launch.local_rank:  # until the run has ended
                group.check()
                time.sleep(_LOOK_S)
            _start_ranks(group, Path(folder))
    except (DistError, TimeoutError) as error:
        raise LaunchError("the first process is gone, or cannot be reached") from error


def _start_ranks(group: Group, folder: Path) -> NoReturn:
    known: dict[Workload, Ready | str] = {}
    environment = Waiting(group.hear("waiting")).environment()
    with closing(Engine(folder, environment, look=group.check)) as engine:
        while True:
            meeting = group.next_case()
            message = group.hear(meeting.case)
            job = replace(
                _JOB.validate_python(message["job"]),
                meeting=meeting,
                part=fresh(folder / "case.jsonl"),
                tuned=folder / "tuned.json",
                counts=None if message["counts"] is None else folder / "counts.jsonl",
            )
            workload = job.case.workload
            if workload not in known:
                own_job = replace(job, part=folder / "prepared.jsonl", first=False)
                known[workload] = engine.prepare(Block("prepare", (own_job,)))
            ready = known[workload]
            problem = ready if isinstance(ready, str) else None
            group.say(f"{meeting.case}/ready{meeting.machine}", problem)
            if isinstance(ready, str):
                continue
            if job.counts is not None:
                job.counts.write_text(message["counts"], encoding="utf-8")
            job = replace(job, dataset=ready.dataset, identity=ready.identity)
            send_parts(job, engine.run(Block("measure", (job,)), job.measure.timeout_s))


def send_parts(job: Job, death: str | None) -> None:
    """Send the first machine what the ranks of this one wrote, and why they failed.

    Args:
        death: why the process that had started them died.
    """
    assert job.meeting is not None
    files = {rank: rank_part(job.part, rank) for rank in job.here}
    parts = {rank: file.read_text() for rank, file in files.items() if file.exists()}
    reasons = [record["reason"] for record in read_part(job.part) if record["kind"] == "end"]
    answer = {"parts": parts, "problem": death or reasons[-1]}
    say(store_of(job, ANSWER_S), f"parts{job.meeting.machine}", answer)


def collect_parts(job: Job) -> list[str]:
    """Write the parts of ranks of other machines; return why their processes failed."""
    if job.meeting is None:
        return []
    store, problems = store_of(job, ANSWER_S), list[str]()
    for machine in range(1, job.meeting.machines):
        key = f"parts{machine}"
        try:
            answer = heard(store, key, ANSWER_S)
        except TimeoutError:
            problems.append(f"machine {machine} does not answer")
            continue
        for rank, text in answer["parts"].items():
            rank_part(job.part, int(rank)).write_text(text, encoding="ascii")
        for number in range(int(store.get(key))):  # nobody else reads them
            store.delete_key(f"{key}/{number}")
        problems += [f"machine {machine}: {answer['problem']}"] if answer["problem"] else []
    return problems


def _folder_of(launch: Launch) -> Path:
    """Return this user's folder for one launch, named after the launcher's process.

    It is the nearest process above that lacks a variable that the launcher sets for each of these.
    """
    variable = NAMES[launch.launcher][0]
    for launcher in psutil.Process().parents():
        with suppress(psutil.Error):  # another user's process, such as Slurm's
            if variable in launcher.environ():
                continue
        began = Path("/proc", str(launcher.pid), "stat").read_text().rpartition(")")[2].split()[19]
        name = f"gatherbench-{os.getuid()}-{launcher.pid}-{began}"
        folder = Path(tempfile.gettempdir(), name)
        if not private_folder(folder):
            raise LaunchError(f"{folder}: is not this user's alone; remove it")
        return folder
    raise LaunchError(f"{variable} is set, and no process is there that set it")
