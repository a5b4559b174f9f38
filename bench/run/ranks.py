"""A case that several processes train together: torch's elastic launcher starts one a rank.

The case's process loads the table once for its machine; the ranks inherit it through their fork, so
nothing has a name that could be left behind. Each measures its share into a part of its own, and
when all have ended, these make the rows of the case (:mod:`gatherbench.bench.run.joined`).
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import textwrap
import time
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gatherbench.bench.run.fork_server import die_with_parent
from gatherbench.bench.run.group import PATIENCE_S, Together
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.joined import joined
from gatherbench.bench.run.machines import ANSWER_S, exchange_parts, use_interface_towards
from gatherbench.bench.run.measure import measure
from gatherbench.bench.run.store import PartWriter, ranks_folder, read_ranks, rows_of
from gatherbench.bench.run.table import Table, load_table, table_kind
from gatherbench.bench.sampling.prepare import rank_trace
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.registry import build

#: Ranks that may share a core of a host.
RANKS_A_CORE = 4
#: How long a rank that failed stays, so that the launcher first sees one that was killed, not those
#: that lost it.
_LINGER_S = 1.0
#: Length of what is told of an error: torch's have pages, which the log keeps.
_WORDS = 400
#: Exit status of a rank whose part says what went wrong.
_FAILED = 1


class RankError(RuntimeError):
    """A rank died, hung or failed; the message has its number and last words."""


class Launch(LaunchConfig):
    """What to launch, without torch's own NUMA binding of ranks, which bind themselves.

    To find whether it should bind, torch asks CUDA's runtime, and no fork survives that.
    """

    def __post_init__(self) -> None:
        """Complete what was given, as on a machine without a GPU."""
        with mock.patch.object(torch.cuda, "is_available", return_value=False):
            super().__post_init__()  # type: ignore[no-untyped-call]


def measure_ranks(job: Job, out: PartWriter) -> str | None:
    """Measure the case with a process for each rank; on machine 0 ``out`` gets all of its rows.

    Returns:
        Why the strategy cannot run here, or ``None`` when the case has been measured.

    Raises:
        RankError: see there. What the ranks measured before is in ``out``.
    """
    gpus, nodes, meeting = job.case.workload.gpus, job.case.workload.nodes, job.meeting
    if nodes != (meeting.nodes if meeting else 1):
        machines = f"{nodes} machines are asked for and {meeting.nodes if meeting else 1} take part"
        return f"unsupported: {machines}: torchrun --nnodes {nodes} starts gatherbench on each"
    if job.device == "cuda" and torch.cuda.device_count() < gpus:  # asks NVML: no context yet
        return f"no_device: {gpus} GPUs are asked for and {torch.cuda.device_count()} are here"
    cores = len(os.sched_getaffinity(0))
    if job.device == "cpu" and gpus > RANKS_A_CORE * cores:
        return f"unsupported: {gpus} ranks on {cores} cores would only take turns"
    torch.set_num_threads(1)  # a team of OpenMP threads does not survive the forks: they would hang
    dataset, strategy = open_dataset(job.dataset), build(job.case.strategy, job.case.params)
    kind = table_kind(strategy, job.measure, torch.device(job.device), job.case.workload.world)
    # No fork has managed memory: each rank loads its own.
    table = None if kind == "managed" else load_table(dataset, kind)
    folder = ranks_folder(job.part)
    shutil.rmtree(folder, ignore_errors=True)  # of a case that was cut off
    folder.mkdir()
    config = Launch(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=gpus,
        run_id=job.case.id,
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        **_rendezvous(job),
    )
    try:
        killed = _launched(config, job, table, folder)
        if meeting is not None:
            parts = {path.name: path.read_text("utf-8") for path in folder.glob("rank*.jsonl")}
            mine = {"parts": parts, "killed": killed}
            longest_s = min(ANSWER_S, job.measure.timeout_s / 4)
            others = exchange_parts(meeting, job.case.id, mine, longest_s)
            if meeting.node:
                return None
            for found in others:
                killed += found["killed"]
                for name, text in found["parts"].items():
                    (folder / name).write_text(text, "utf-8")
        return _fold(job, killed, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launched(config: LaunchConfig, job: Job, table: Table | None, folder: Path) -> list[str]:
    """Start this machine's ranks and wait until all have ended; which of them were killed."""
    try:
        elastic_launch(config, _one_rank)(job, table, folder, os.getpid())
    except ChildFailedError as error:
        # A signal's exit code is below 0. Ranks that the launcher ended are not among these.
        return [
            f"rank {rank} was killed by {found.signal_name()}"
            for rank, found in sorted(error.failures.items())
            if found.exitcode < 0
        ]
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    else:
        return []
    # Outside of the handler: with that error behind it, this one would stop the whole run.
    raise RankError("the launcher finds no room in /dev/shm for its locks: make some there")


def _rendezvous(job: Job) -> dict[str, Any]:
    """How the launchers of the machines find each other."""
    meeting = job.meeting
    if meeting is None:
        return {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    use_interface_towards(meeting.address, meeting.store_port)
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": f"{meeting.address}:{meeting.port}",
        "rdzv_configs": {"rank": meeting.node, "timeout": _patience_s(job)},
    }


def _patience_s(job: Job) -> float:
    """Seconds that one waits for another: the case shall end of itself before its time is up."""
    return min(PATIENCE_S, job.measure.timeout_s / 2)


def _one_rank(job: Job, table: Table | None, folder: Path, launcher: int) -> None:
    """The process of one rank."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by the launcher's handler it would be an error
    die_with_parent(launcher)
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if job.device == "cuda":
        # One GPU a process, so that "cuda" is the rank's own, for meters and driver calls as well.
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = named.split(",")[local] if named else str(local)
    mine = replace(job, rank=rank, trace=rank_trace(job.trace, rank))
    with closing(PartWriter(folder / f"rank{rank}.jsonl")) as out:
        begin = time.perf_counter()
        try:
            # Not closed where something fails: that would break the others before this one has said
            # what went wrong.
            group = Together(torch.device(job.device), _patience_s(job))
            skipped = measure(mine, out, table, group)
            group.gathered(None)  # nobody leaves before all have ended
            out.end("skipped" if skipped else "ok", skipped, time.perf_counter() - begin)
            group.close()
        except Exception as error:
            traceback.print_exc()
            said = textwrap.shorten(str(error), _WORDS)
            reason = f"{type(error).__name__}: {said}"
            out.end("failed", reason, time.perf_counter() - begin)
            time.sleep(_LINGER_S)
            os._exit(_FAILED)  # threads of a broken group may wait for ever


def _fold(job: Job, killed: list[str], out: PartWriter) -> str | None:
    """Write the case's rows from its ranks' parts; why they were skipped.

    Raises:
        RankError: a rank failed.
    """
    parts = read_ranks(job.part)
    ends = {
        rank: record
        for rank, records in parts.items()
        for record in records
        if record["kind"] == "end"
    }
    rows = {rank: rows_of(records) for rank, records in parts.items()}
    for of_rank in rows.values():
        out.rows(of_rank)
    world = job.case.workload.world
    if len(ends) < world or any(end["status"] == "failed" for end in ends.values()):
        raise RankError(_words(killed, ends, world))
    skipped = next((end["reason"] for end in ends.values() if end["status"] == "skipped"), None)
    if skipped is None:
        slowest = joined(list(rows.values()), job.case.workload.gpus, out)
        # Of each epoch the samples and timelines of its slowest rank, whose stages are the case's.
        for rank, records in parts.items():
            for record in records:
                if record["kind"] in ("samples", "series") and slowest[record["epoch"]] == rank:
                    out.record(record)
    return skipped


def _words(killed: list[str], ends: dict[int, dict[str, Any]], world: int) -> str:
    """Which rank failed first, and what it said."""
    if killed:
        return "; ".join(killed)
    failed = {rank: end for rank, end in ends.items() if end["status"] == "failed"}
    silent = ", ".join(str(rank) for rank in range(world) if rank not in ends)
    if not failed:
        return f"rank {silent} ended without a word"
    first = min(failed, key=lambda rank: failed[rank]["at"])
    rest = f"; rank {silent} said nothing" if silent else ""
    return f"rank {first}: {failed[first]['reason']}{rest}"
