"""Several machines in one run: gatherbench is started on each, and they meet at one of them.

That one is machine 0, and keeps the run's folder and its plan. For each case of several machines it
calls the others, who prepare the same dataset and minibatches themselves, and then all start their
ranks. The messages go through a store behind a door (:mod:`gatherbench.bench.run.door`); they are
JSON, and nothing that arrives is unpickled. torchrun would start the ranks as well, but its store
listens on every interface, believes everybody and, to agree on ranks, unpickles what it is told.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import json
import math
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError
from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    DistStoreError,
    TCPStore,
)

from gatherbench.bench.machine.env import commit_id
from gatherbench.bench.run.door import (
    NotAdmittedError,
    enter,
    loopback_store,
    open_door,
    store_at,
    way_to,
)
from gatherbench.bench.run.job import AnyJob, Job, Meeting, Preparation

#: Where a run's token stands; machine 0 makes one where there is none.
TOKEN_VARIABLE = "GATHERBENCH_TOKEN"
#: How long machine 0 waits at most for what the others found in a case that has ended.
ANSWER_S = 30.0
#: How long the machines wait for each other before the first case.
JOIN_S = 900.0
_AGAIN_S = 1.0
#: How long the store stays for those who are told that the run has ended.
_LEAVE_S = 5.0
#: For an answer that is there already; and how long torch waits at a time, deaf to Ctrl-C.
_INSTANT_S, _SLICE_S = 0.1, 1.0
_SAME_CODE = "install the same commit on each machine"
_JOB = TypeAdapter(Job)

#: Does a job in a process of its own, for so many seconds; why it failed, in words.
Work = Callable[[AnyJob, float], str | None]


class MachinesError(ValueError):
    """The machines do not come together, or machine 0 is gone."""


class Machines:
    """The machines of a run, for machine 0; to be closed.

    Attributes:
        token: of the run.
        count: how many take part, once they have come together.
        silent: machines that did not answer, and are not waited for again.
    """

    def __init__(self, listening: socket.socket, token: str) -> None:
        self.token, self.count, self.silent = token, 1, set[int]()
        self._address = str(listening.getsockname()[0])
        self._store = loopback_store()
        self._door = open_door(listening, token.encode(), self._store.port)

    @classmethod
    def at(cls, host: str, port: int) -> Machines | None:
        """Those that meet at an address of this machine; ``None``: it is another one's.

        Raises:
            MachinesError: this machine cannot listen there.
        """
        where = f"{host}:{port}"
        try:
            family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listening = socket.create_server(found[:2], family=family)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return None
            taken = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
            raise MachinesError(
                f"--meet {where}: {taken}; name another one, the same on all machines"
            ) from error
        if ipaddress.ip_address(found[0]).is_loopback and host != found[0]:
            listening.close()
            raise MachinesError(
                f"--meet {where}: here that name is {found[0]}, which no other machine reaches;"
                " give the address"
            )
        return cls(listening, os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(16))

    def assemble(self, count: int) -> None:
        """Wait until ``count`` machines take part, this one among them.

        Raises:
            MachinesError: they do not come, or have other code.
        """
        self.count, until, mine = count, time.monotonic() + JOIN_S, commit_id()
        self._store.set("count", str(count))
        for node in range(1, count):
            if not _has(self._store, f"joined/{node}", until - time.monotonic()):
                raise MachinesError(f"machine {node} did not join within {JOIN_S:g} s")
            host, theirs = json.loads(self._store.get(f"joined/{node}"))
            differ = f"{host} runs {theirs}, and {platform.node()} {mine}: {_SAME_CODE}"
            self._store.set(f"welcome/{node}", differ if theirs != mine else "")
            if theirs != mine:
                raise MachinesError(differ)

    def call(self, number: int, job: Job) -> Job | str:
        """Have the other machines start case ``number`` of this run; the job with where to meet.

        Returns:
            Or why they cannot.
        """
        others = range(1, job.case.workload.nodes)
        if gone := self.silent & set(others):
            return f"machine {min(gone)} has not answered before"
        job = replace(job, meeting=Meeting(0, number, self._address, self._store.port))
        self._store.set(f"case/{number}", _JOB.dump_json(job).decode())
        for node in others:
            if not _has(self._store, f"ready/{number}/{node}", job.measure.timeout_s):
                self.silent.add(node)
                return f"machine {node} did not answer within {job.measure.timeout_s:g} s"
            refused = self._store.get(f"ready/{number}/{node}").decode()
            if refused:
                return f"machine {node}: {refused}"
        return job

    def dismiss(self, number: int) -> None:
        """Tell the others that there is no case ``number``, and let them hear it."""
        self._store.set(f"case/{number}", "")
        until = time.monotonic() + _LEAVE_S
        for node in set(range(1, self.count)) - self.silent:
            _has(self._store, f"left/{node}", until - time.monotonic())

    def close(self) -> None:
        """Let nobody in any more."""
        self._door.close()


def follow(host: str, port: int, work: Work, folder: Path, say: Callable[[str], None]) -> None:
    """Take part in the run of machine 0 until it ends.

    Args:
        host, port: where the machines meet.
        folder: for what this machine writes meanwhile.
        say: is told which machine this is, and how each case ended here.

    Raises:
        MachinesError: machine 0 does not take this one, is gone, or cannot be reached any more.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").encode()
    if not token:
        raise MachinesError(f"{TOKEN_VARIABLE} is not set: machine 0, {host}, says what it is")
    say(f"{host} is another machine: waiting for it")
    _knock(host, port, token)
    try:
        with closing(way_to(host, port, token)) as way:
            store = store_at(way.port, JOIN_S)
            node = _joined(store, say)
            for number in itertools.count():
                _has(store, f"case/{number}", math.inf)
                if not (told := store.get(f"case/{number}")):
                    store.add(f"left/{node}", 1)  # which waits until it is there
                    return
                job = _read(told)
                if node >= job.case.workload.nodes:
                    continue
                meeting = Meeting(node, number, host, way.port)
                mine = _prepared(job, meeting, folder, work)
                refused = mine if isinstance(mine, str) else ""
                store.set(f"ready/{number}/{node}", refused)
                if isinstance(mine, Job):
                    refused = work(mine, mine.measure.timeout_s) or ""
                say(f"{job.case.id}: {refused or 'done'}")
    except DistError as error:
        raise MachinesError(f"machine 0 ({host}:{port}) is gone, or out of reach") from error


def _knock(host: str, port: int, token: bytes) -> None:
    """Wait until machine 0 opens its door, and go through it once."""
    until = time.monotonic() + JOIN_S
    while True:
        try:
            return enter(host, port, token).close()
        except NotAdmittedError as error:
            raise MachinesError(
                f"{host}:{port} does not know this {TOKEN_VARIABLE}, or is no gatherbench"
            ) from error
        except OSError as error:
            if time.monotonic() > until:
                why = f"machine 0 ({host}:{port}) cannot be reached: {error}"
                raise MachinesError(why) from error
        time.sleep(_AGAIN_S)


def _joined(store: TCPStore, say: Callable[[str], None]) -> int:
    """Which machine this is."""
    node = store.add("machines", 1)
    store.set(f"joined/{node}", json.dumps([platform.node(), commit_id()]))
    if not _has(store, "count", JOIN_S):
        raise MachinesError("machine 0 does not begin")
    count = int(store.get("count"))
    if node >= count:
        raise MachinesError(f"the run has its {count} machines already")
    if not _has(store, f"welcome/{node}", JOIN_S):
        raise MachinesError(f"not all of {count} machines came")
    if refused := store.get(f"welcome/{node}").decode():
        raise MachinesError(refused)
    say(f"machine {node} of {count}: machine 0 keeps the run's folder")
    return node


def _read(told: bytes) -> Job:
    try:
        job = _JOB.validate_json(told)
    except ValidationError as error:
        raise MachinesError(f"machine 0 calls for what is no case here: {_SAME_CODE}") from error
    return replace(job, run=replace(job.run, commit=commit_id()))


def _prepared(job: Job, meeting: Meeting, folder: Path, work: Work) -> Job | str:
    """The job as this machine does it, or why it cannot."""
    preparation = Preparation(job.case.workload, folder / "prepared.json")
    made = preparation.made(work(preparation, math.inf))
    if isinstance(made, str):
        return made
    part = folder / "part.jsonl"
    return replace(job, part=part, traces=None, meeting=meeting, **made._asdict())


def exchange_parts(
    meeting: Meeting, nodes: int, found: dict[str, Any], longest_s: float
) -> list[dict[str, Any]]:
    """Send what this machine's ranks wrote to machine 0; there, what all the others sent.

    All are waited for ``longest_s`` together; a machine that says nothing meanwhile is left out.
    """
    store = store_at(meeting.port)
    if meeting.node:
        store.set(f"found/{meeting.number}/{meeting.node}", json.dumps(found))
        return []
    until = time.monotonic() + longest_s
    keys = (f"found/{meeting.number}/{node}" for node in range(1, nodes))
    there = (key for key in keys if _has(store, key, until - time.monotonic()))
    return [json.loads(store.get(key)) for key in there]


def _has(store: TCPStore, key: str, seconds: float) -> bool:
    """Whether the store has the key within so many seconds.

    Raises:
        DistError: the store is gone.
    """
    until = time.monotonic() + seconds
    while True:
        left = max(until - time.monotonic(), _INSTANT_S)
        try:
            store.wait([key], timedelta(seconds=min(left, _SLICE_S)))
        except DistStoreError:  # it is not there yet
            if left <= _SLICE_S:
                return False
        else:
            return True


def use_interface_towards(address: str) -> None:
    """Have gloo and NCCL use the network by which ``address`` is reached, unless they are told.

    Else each takes the one that the machine's name stands for, often another. They listen there.
    """
    family, kind, protocol, _, there = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, kind, protocol)) as nothing_is_sent:
        nothing_is_sent.connect(there)
        mine = nothing_is_sent.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(of.address == mine for of in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
