"""Several machines in one run: ``torchrun`` starts one gatherbench on each, and they meet here.

Machine 0 keeps the run's folder and its plan. For each case of several machines it calls the
others, who prepare the same dataset and minibatches themselves, and then all start their ranks. The
messages go through the store of torchrun's own agent.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from gatherbench.bench.machine.env import commit_id
from gatherbench.bench.run.job import AnyJob, Job, Meeting, Preparation

#: How long machine 0 waits at most for what the others found in a case that has ended.
ANSWER_S = 30.0
#: A machine that waits for its next case tries this often to reach machine 0, for as long each
#: time; after this many failures in a row it gives up.
LOOK_S, LOOKS = 30.0, 3
_CONNECT_S = 60.0
_FOR_EVER = timedelta(days=365)
#: For an answer that is there already.
_INSTANT_S = 0.1

#: Does a job in a process of its own, for so many seconds; why it failed, in words.
Work = Callable[[AnyJob, float], str | None]


class MachinesError(ValueError):
    """``torchrun`` started something else than one gatherbench a machine, or machine 0 is gone."""


@dataclass(frozen=True, slots=True)
class Machines:
    """This machine among those of a run.

    Attributes:
        node, count: which machine, of how many.
        address, port: of the store, on a machine that all can reach.
        silent: machines that did not answer, and are not waited for again.
    """

    node: int
    count: int
    address: str
    port: int
    silent: set[int] = field(default_factory=set, compare=False)

    @classmethod
    def of(cls, env: Mapping[str, str] = os.environ) -> Machines | None:
        """What ``torchrun`` told; ``None``: it did not start this process, or one machine only.

        Raises:
            MachinesError: it started several processes on a machine.
        """
        if "TORCHELASTIC_RUN_ID" not in env or int(env["WORLD_SIZE"]) == 1:
            return None
        if int(env["LOCAL_WORLD_SIZE"]) != 1:
            raise MachinesError(
                "torchrun starts one gatherbench on each machine, which starts the ranks itself:"
                " --nproc-per-node 1, and gpus = N in the plan"
            )
        address, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
        return cls(int(env["RANK"]), int(env["WORLD_SIZE"]), address, port)

    def call(self, number: int, job: Job) -> Job | str:
        """Have the other machines start case ``number`` of this run; the job with where to meet.

        Returns:
            Or why they cannot.
        """
        if self.silent:
            return f"machine {min(self.silent)} has not answered before"
        store = self._store()
        meeting = Meeting(self.count, 0, self.address, _free_port(), self.port)
        job = replace(job, meeting=meeting)
        store.set(f"case/{number}", TypeAdapter(Job).dump_json(job).decode())
        for node in range(1, self.count):
            try:
                store.wait([f"ready/{number}/{node}"], timedelta(seconds=job.measure.timeout_s))
            except DistError:
                self.silent.add(node)
                return f"machine {node} did not answer within {job.measure.timeout_s:g} s"
            refused = store.get(f"ready/{number}/{node}").decode()
            if refused:
                return f"machine {node}: {refused}"
        return job

    def dismiss(self, number: int) -> None:
        """Tell the others that there is no case ``number``."""
        self._store().set(f"case/{number}", "")

    def follow(self, work: Work, folder: Path, say: Callable[[str], None]) -> None:
        """Take part in the run of machine 0 until it ends.

        Args:
            folder: for what this machine writes meanwhile.
            say: is told how each case ended here.

        Raises:
            MachinesError: machine 0 is gone, or cannot be reached any more.
        """
        try:
            store, commit = self._store(), commit_id()
            for number in itertools.count():
                told = self._awaited(store, f"case/{number}")
                if not told:
                    return
                job = TypeAdapter(Job).validate_json(told)
                job = replace(job, run=replace(job.run, commit=commit))
                mine = self._prepared(job, folder, work)
                refused = mine if isinstance(mine, str) else ""
                store.set(f"ready/{number}/{self.node}", refused)
                if isinstance(mine, Job):
                    refused = work(mine, mine.measure.timeout_s) or ""
                say(f"{job.case.id}: {refused or 'done'}")
        except DistError as error:
            raise MachinesError(f"machine 0 is gone: {error}") from error

    def _awaited(self, store: TCPStore, key: str) -> bytes:
        """What machine 0 sets ``key`` to, whenever it does."""
        found: Future[bytes] = Future()

        def ask() -> None:
            try:
                store.wait([key], _FOR_EVER)
                found.set_result(store.get(key))
            except Exception as error:
                found.set_exception(error)

        # The store reads from its connection until an answer comes, for ever where the link died.
        # So it waits in a thread that nobody waits for, and others look whether there is a link.
        threading.Thread(target=ask, daemon=True).start()
        lost = 0
        while not wait([found], LOOK_S).done:
            lost = 0 if self._reached() else lost + 1
            if lost == LOOKS:
                raise MachinesError(f"machine 0 ({self.address}:{self.port}) cannot be reached")
        return found.result()

    def _reached(self) -> bool:
        try:
            socket.create_connection((self.address, self.port), LOOK_S).close()
        except OSError:
            return False
        return True

    def _prepared(self, job: Job, folder: Path, work: Work) -> Job | str:
        """The job as this machine does it, or why it cannot."""
        preparation = Preparation(job.case.workload, folder / "prepared.json")
        made = preparation.made(work(preparation, math.inf))
        if isinstance(made, str):
            return made
        assert job.meeting is not None
        meeting, part = replace(job.meeting, node=self.node), folder / "part.jsonl"
        return replace(job, part=part, traces=None, meeting=meeting, **made._asdict())

    def _store(self) -> TCPStore:
        return store_at(self.address, self.port)


def store_at(address: str, port: int) -> TCPStore:
    """The store of torchrun's agent."""
    patience = timedelta(seconds=_CONNECT_S)
    return TCPStore(address, port, is_master=False, timeout=patience)


def exchange_parts(
    meeting: Meeting, case: str, found: dict[str, Any], longest_s: float
) -> list[dict[str, Any]]:
    """Send what this machine's ranks wrote to machine 0; there, what all the others sent.

    All are waited for ``longest_s`` together; a machine that says nothing meanwhile is left out.
    """
    store = store_at(meeting.address, meeting.store_port)
    if meeting.node:
        store.set(f"found/{meeting.port}/{case}/{meeting.node}", json.dumps(found))
        return []
    others, until = [], time.monotonic() + longest_s
    for node in range(1, meeting.nodes):
        key = f"found/{meeting.port}/{case}/{node}"
        left = max(until - time.monotonic(), _INSTANT_S)
        try:
            store.wait([key], timedelta(seconds=left))
        except DistError:
            continue
        others.append(json.loads(store.get(key)))
    return others


def use_interface_towards(address: str, port: int) -> None:
    """Have gloo and NCCL use the network by which ``address`` is reached, unless they are told.

    Else each takes the one that the machine's name stands for, often another.
    """
    with closing(socket.create_connection((address, port), _CONNECT_S)) as connection:
        mine = connection.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(of.address == mine for of in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
