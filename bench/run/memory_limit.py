"""Hold a case to a share of its table's bytes, so that a table larger than memory can be had.

The runner makes a memory cgroup for the case, and the case's process joins it before it loads
anything. From then on all counts that it and its ranks take: their own memory, and pages of files
that they bring into the page cache. What is in memory before is not charged: what the process holds
(Python, torch, the libraries), and the graph with its minibatches, which are read in first. Else
the sampler would fight for pages with the table, and its waits hide those of the fetches; those who
train on tables larger than memory hold the graph there, too. Pages of the table that somebody
brought in earlier are dropped. No allowance is added: what a case's buffers and its model leave of
the limit is what may be kept of the table.

A workload that cannot be limited is skipped, and never measured as if it were.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from gatherbench.bench.run.job import Job, MemoryLimit
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.table import dropped
from gatherbench.datasets.dataset import array_path, read_spec
from gatherbench.kernels.memory_cgroup import MemoryCgroup, own_cgroup
from gatherbench.kernels.page_cache import read_in
from gatherbench.reason import Reason, unsupported

#: Of cgroups: then the id of the process that made it, and a number.
_NAME = "gatherbench"
#: How long the last of a case's processes may take to be gone, and how often that is looked at.
_GONE_S, _LOOK_S = 2.0, 0.02
_REMEDY = "run as root, or where systemd delegates memory to the user"
_FREE = "graph, minibatches and what the process held before are not charged"
_ROW = ("setup", "memory_limit", "B")

_numbers = itertools.count()


@contextlib.contextmanager
def limited(job: Job) -> Iterator[Job]:
    """The job with a memory cgroup of its own, where its workload wants one; removed afterwards."""
    share = job.case.workload.memory_share
    if not share:
        yield job
        return
    size = int(share * read_spec(job.dataset)[0].table_bytes)
    limit = _made(size, own_cgroup())
    try:
        yield replace(job, memory=limit)
    finally:
        if limit.cgroup is not None:
            _remove(limit.cgroup)


def _made(size: int, own: MemoryCgroup | None) -> MemoryLimit:
    """A new cgroup below that of this process or, in version 2, beside it: there a cgroup that has
    processes shares nothing among those below it."""
    refused = "the kernel shows no memory cgroup of this process"
    for place in [own.folder, own.folder.parent] if own else []:
        _sweep(place)
        folder = place / f"{_NAME}-{psutil.Process().pid}-{next(_numbers)}"
        try:
            folder.mkdir()
            MemoryCgroup(folder).set_limit(size)
        except OSError as error:
            refused = f"{folder} cannot hold a limit ({error.strerror})"
            with contextlib.suppress(OSError):
                folder.rmdir()
        else:
            return MemoryLimit(size, folder)
    return MemoryLimit(size, None, Reason("no_permission", refused, _REMEDY))


def _sweep(place: Path) -> None:
    """Remove what a runner left that was killed. A cgroup that has processes cannot be removed."""
    for folder in place.glob(f"{_NAME}-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _remove(folder: Path) -> None:
    until = time.monotonic() + _GONE_S
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until:  # a hung driver holds a process; a later run removes it
                return
            time.sleep(_LOOK_S)


def enter(job: Job) -> Row | None:
    """Hold this process, and those that it will fork, to the job's limit; its row.

    ``None``: the job has no limit. A row without a value: it cannot be held to it, and why.
    """
    limit, group = job.memory, _group(job)
    if limit is None:
        return None
    reason, source = limit.reason, "memory cgroup"
    if group is not None:
        source = f"{group.version.limit} of the case's own cgroup"
        try:
            reason = _settled(job)
            group.join()
        except OSError as error:
            reason = Reason("no_permission", str(error), _REMEDY)
    if reason is not None:
        return job.rows.missing(*_ROW, source, reason)
    return job.rows.ok(*_ROW, limit.size, f"{source}; {_FREE}")


def _settled(job: Job) -> Reason | None:
    """Have no page of the table in memory, and all of the case's other files; why that is not so.

    Raises:
        OSError: the kernel does not tell what is in memory.
    """
    table = array_path(job.dataset, "features")
    for file in (*job.dataset.iterdir(), *job.trace.rglob("*")):
        if file.is_file() and file != table:
            read_in(file)
    return dropped(table)


def peak_row(job: Job) -> Row | None:
    """The most that the case has taken; ``None``: it was held to nothing."""
    if (group := _group(job)) is None:
        return None
    what, source = ("setup", "memory_peak", "B"), f"{group.version.peak} of the case's own cgroup"
    peak = group.peak()
    if peak is None:
        return job.rows.missing(*what, source, unsupported("this kernel does not tell"))
    return job.rows.ok(*what, peak, f"{source}, pages of files included")


def killed_at_limit(job: Job) -> str | None:
    """That the kernel killed processes of the case for want of memory; ``None``: it did not."""
    group = _group(job)
    if job.memory is None or group is None or not group.kills():
        return None
    return (
        f"out of memory: killed at its limit of {job.memory.size:,} B (memory_share ="
        f" {job.case.workload.memory_share:g}) by {group.version.kills}: its buffers and model need"
        " more; raise memory_share, or take a larger table or smaller minibatches"
    )


def _group(job: Job) -> MemoryCgroup | None:
    """The case's own; ``None``: it is held to nothing."""
    return MemoryCgroup(job.memory.cgroup) if job.memory and job.memory.cgroup else None
