"""The processes that a launcher started for one run, and their messages to each other.

The first process measures. The first of each further machine starts that machine's ranks of each
case, and sends back what they wrote (:func:`follow`). The others lend their machine's first one the
cores and GPUs that the launcher gave them, and wait.

Processes of one machine meet in a folder of this user's. The first ones of several meet in a
``TCPStore`` of ``torch.distributed``: torchrun's own, or one of the first process, which listens
only at MASTER_ADDR. Messages are JSON; nothing is unpickled.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import math
import os
import shutil
import socket
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic import TypeAdapter
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from gatherbench.bench.machine.env import commit_id
from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.engine import Engine
from gatherbench.bench.run.guards import terminate_as_interrupt
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.launch import Launch, LaunchError, MachineLostError, Meeting
from gatherbench.bench.run.part import rank_part, read_part, rows_of
from gatherbench.outside import fresh, parsed, read_json

#: How long processes wait for each other when a run begins, and for a machine whose ranks have
#: ended; for ranks to end after those of the first machine; and for others to know of a run's end.
START_S, ANSWER_S, _END_S, _LEAVE_S = 120.0, 30.0, 10.0, 5.0
#: The interval of looks at the store, a file or a process.
LOOK_S = 0.05
#: Bytes per write to the store, which takes up to 8 MiB.
_PIECE = 1 << 20

_JOB: TypeAdapter[Job] = TypeAdapter(Job)


def say(store: Store, key: str, what: Any) -> None:
    """Publish a value for the other processes."""
    text = json.dumps(what)
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    for number, piece in enumerate(pieces):
        store.set(f"{key}/{number}", piece)
    store.set(key, str(len(pieces)))


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
    return TCPStore(address, port, wait_for_workers=False, timeout=timedelta(seconds=patience_s))


def store_of(meeting: Meeting, patience_s: float) -> Store:
    """Return this process's own connection to where a case's ranks meet."""
    return PrefixStore(meeting.case, _connected(meeting.address, meeting.port, patience_s))


def use_one_network(meeting: Meeting | None) -> None:
    """Have gloo and NCCL use the network that connects the ranks: on one machine its loopback.

    Otherwise each takes the one that the machine's name resolves to, and listens there. What is
    configured in the environment stays.
    """
    own_address = "127.0.0.1"
    if meeting is not None:
        with socket.create_connection((meeting.address, meeting.port), ANSWER_S) as probe:
            own_address = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == own_address for one in addresses):
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

    Attributes:
        status: of the run, set by the first process.
        first: the process of this machine that the others wait for; 0 in that one itself.
        store: of the first processes of several machines, after entering; others have none.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch, self.status, self.first = launch, 1, 0
        self._cases, self._run = 0, ""
        self._served: Store | None = None  # ends with the run
        self.store: Store = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        """
        Raises:
            LaunchError: they cannot meet, or have different code.
        """
        launch = self.launch
        try:
            self.first = _met_here(launch, time.monotonic() + START_S)
            if self.first or launch.machines == 1:
                return self
            self.store = self._met()
            say(self.store, f"commit{launch.machine}", commit_id())
            until = time.monotonic() + START_S
            commits = {heard(self.store, f"commit{n}", until) for n in range(launch.machines)}
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
        if len(commits) > 1:
            raise LaunchError(f"{launch}, not all at one commit: have the same code everywhere")
        return self

    def _met(self) -> Store:
        launch = self.launch
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
        store = _connected(*where, START_S)
        # A launcher may start several runs in turn, whose keys its store keeps.
        self._run = f"gatherbench{store.add(f'gatherbench-runs-of-{launch.rank}', 1)}"
        return PrefixStore(self._run, store)

    def __exit__(self, *_: object) -> None:
        if self.store is None:
            return
        with suppress(RuntimeError, OSError):  # TimeoutError; or the store is gone: all know it
            if self.launch.rank:
                say(self.store, f"left{self.launch.machine}", True)
                return
            say(self.store, "end", self.status)
            until = time.monotonic() + _LEAVE_S
            for machine in range(1, self.launch.machines):
                heard(self.store, f"left{machine}", until)

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
        timeout_s, reasons = job.measure.timeout_s, list[str]()
        until = time.monotonic() + timeout_s
        for machine in range(1, self.launch.machines):
            try:
                reason = heard(store, f"ready{machine}", until)
            except TimeoutError:
                raise MachineLostError(
                    f"machine {machine} was not ready in {timeout_s:g} s (timeout_s): it is gone,"
                    " or its data takes longer; prepare that before, with gatherbench datasets"
                    " prepare"
                ) from None
            if reason is not None:
                reasons.append(f"machine {machine}: {reason}")
        if reasons:
            self.ended()
            raise RuntimeError("; ".join(reasons))
        return replace(job, meeting=meeting)

    def meeting(self, number: int) -> Meeting:
        """Return where the ranks of a case meet."""
        launch, case = self.launch, f"{self._run}/case{number}"
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
        """Return whether the run has ended; for the first processes of further machines.

        Raises:
            LaunchError: the first process is gone.
        """
        try:
            return bool(self.store.check(["end"]))
        except RuntimeError as error:
            raise LaunchError("the first process is gone, and its store with it") from error


def follow(group: Group) -> int:
    """Follow the first process until the run ends; return its status, if it is known here.

    Raises:
        LaunchError: the first process is gone.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP.
    """
    with terminate_as_interrupt():
        if group.store is None:
            while _runs(group.first):
                time.sleep(LOOK_S)
            return 0  # the launcher knows the status of the first
        temporary = tempfile.TemporaryDirectory(prefix="gatherbench-", ignore_cleanup_errors=True)
        with temporary as folder:
            _start_ranks(group, Path(folder))
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


def _met_here(launch: Launch, until: float) -> int:
    """Meet the other processes of this machine; return the first of them, 0 in that one itself.

    That one uses the cores and GPUs of all: mpirun and srun bind each process to some.

    Raises:
        TimeoutError: one did not come by ``until``.
    """
    folder = _folder_of(launch)
    files = [folder / f"{rank}.json" for rank in range(launch.local_world)]

    def read(file: Path) -> dict[str, Any]:
        while not file.exists():
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(LOOK_S)
        return dict(read_json(file))

    first = read(files[0])["pid"] if launch.local_rank else 0
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    described = {"pid": os.getpid(), "cores": [*os.sched_getaffinity(0)], "gpus": gpus}
    half = folder / f"{launch.local_rank}.half"
    half.write_text(json.dumps(described), encoding="ascii")
    half.rename(files[launch.local_rank])
    if first:
        return int(first)
    try:
        processes = [read(file) for file in files]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os.sched_setaffinity(0, {core for process in processes for core in process["cores"]})
    if all(process["gpus"] is not None for process in processes):
        every = ",".join(process["gpus"] for process in processes).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(every))
    return 0


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
        name = f"gatherbench-{os.getuid()}-{launcher.pid}-{began}-{launch.machine}"
        folder = Path(tempfile.gettempdir(), name)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise LaunchError(f"{folder}: is not this user's alone; remove it")
        return folder
    raise LaunchError(f"{launch.variable} is set, and no process is there that set it")
