"""A case that several processes train together, forked one per rank.

The case's process loads the table once for its machine; the ranks inherit it through their fork, so
no named shared memory can be left behind. Each measures its share into a part of its own, and
when all have ended, these are joined into the case's rows (:mod:`gatherbench.bench.run.joined`).
"""

from __future__ import annotations

import os
import shutil
import textwrap
import time
import traceback
from contextlib import closing
from dataclasses import replace

import torch
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from gatherbench.bench.run.block import measure_block
from gatherbench.bench.run.group import RanksDisagreeError, Together
from gatherbench.bench.run.job import Block, Job, outcome
from gatherbench.bench.run.joined import joined
from gatherbench.bench.run.machines import collect_parts, store_of, use_one_network
from gatherbench.bench.run.part import (
    LISTS,
    PartWriter,
    rank_part,
    ranks_folder,
    read_part,
    rows_of,
)
from gatherbench.bench.run.table import Table, load_table, table_kind
from gatherbench.bench.run.worker import die_with_parent
from gatherbench.datasets.store import open_dataset
from gatherbench.outside import words_of
from gatherbench.strategies.knowledge import Ranks
from gatherbench.strategies.registry import build

#: The most ranks that may share a core of a host.
RANKS_A_CORE = 4
#: The most seconds that a rank waits for another before the case fails.
PATIENCE_S = 300.0
#: How long a rank that failed stays, so that one that was killed is seen first, before those that
#: lost it.
_LINGER_S = 1.0
#: The most characters of an error's message: torch's have pages, which the log keeps.
_WORDS = 400


class RankError(RuntimeError):
    """A rank died, hung or failed; the message has its number and last words."""


def measure_ranks(block: Block, out: PartWriter) -> None:
    """Measure the block's one case with a process for each rank; ``out`` gets all of its rows.

    On a further machine ``out`` gets only how the case ended, and the ranks' own parts stay.
    """
    (job,), begin = block.jobs, time.perf_counter()
    folder = ranks_folder(job.part)
    shutil.rmtree(folder, ignore_errors=True)  # of a case that was cut off
    folder.mkdir(mode=0o700)
    try:
        status, reason = outcome(lambda: _measured(job, out))
        out.end(job.rows, status, reason, time.perf_counter() - begin)
    finally:
        if 0 in job.here:
            shutil.rmtree(folder, ignore_errors=True)


def _measured(job: Job, out: PartWriter) -> str | None:
    """Measure the case; return why the strategy cannot run here, or ``None``.

    Raises:
        RankError: a rank failed. Earlier measurements of the ranks are in ``out``.
    """
    here, cores = len(job.here), len(os.sched_getaffinity(0))
    if job.device == "cuda" and torch.cuda.device_count() < here:  # by NVML, without a context
        return f"no_device: {here} GPUs are asked for and {torch.cuda.device_count()} are here"
    if job.device == "cpu" and here > RANKS_A_CORE * cores:
        return f"unsupported: {here} ranks on {cores} cores would only take turns"
    torch.set_num_threads(1)  # a team of OpenMP threads does not survive the forks: they would hang
    strategy = build(job.case.strategy, job.case.params)
    kind = table_kind(strategy, torch.device(job.device), job.case.workload.gpus)
    # A fork cannot use managed memory: each rank loads its own.
    table = None if kind == "managed" else load_table(open_dataset(job.dataset), kind)
    use_one_network(job.meeting)
    args, problems = (job, table, os.getpid()), list[str]()
    try:
        start_processes(_one_rank, args, here, start_method="fork")  # type: ignore[no-untyped-call]
    except ProcessExitedException as error:  # the others would wait for it, and were ended
        if error.signal_name is not None:
            problems = [f"rank {job.here[error.error_index]} was killed by {error.signal_name}"]
    if 0 in job.here:
        return _folded(job, problems + collect_parts(job), out)
    if problems:
        raise RankError(problems[0])
    return None


def _one_rank(local: int, job: Job, table: Table | None, parent: int) -> None:
    die_with_parent(parent)
    ranks = Ranks(job.here[local], job.case.workload.gpus, len(job.here))
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks.local_world)  # for a path that uses torch's group
    if job.device == "cuda":
        # One GPU per process, so that "cuda" is the rank's own, for meters and driver calls too.
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = named.split(",")[local] if named else str(local)
    own_job = replace(job, rank=ranks.rank)
    # The case must end before its time limit.
    patience_s = min(PATIENCE_S, job.measure.timeout_s / 2)
    with closing(PartWriter(rank_part(job.part, ranks.rank))) as out:
        begin = time.perf_counter()
        try:
            store = store_of(job, patience_s)
            group = Together(torch.device(job.device), ranks, store, patience_s)
            if len(set(group.gathered(own_job.identity))) > 1:
                raise RanksDisagreeError("the ranks have other minibatches than each other")
            if measure_block(Block("measure", (own_job,)), out, table, group):
                group.gathered(None)  # all leave together
                group.close()
                return
        except SystemExit:  # CUDA is lost, and the part has the reason
            pass
        except Exception as error:
            traceback.print_exc()
            out.end(own_job.rows, "failed", words_of(error), time.perf_counter() - begin)
        # The group stays open: closing would break the others before this one's error is reported.
        time.sleep(_LINGER_S)
        os._exit(1)  # threads of a broken group may wait forever


def _folded(job: Job, problems: list[str], out: PartWriter) -> str | None:
    """Write the case's rows from its ranks' parts; return why they were skipped.

    Args:
        problems: why processes of ranks failed, as their parents saw it.

    Raises:
        RankError: a rank failed.
    """
    files = [rank_part(job.part, rank) for rank in range(job.case.workload.gpus)]
    parts = [list(read_part(file)) if file.exists() else [] for file in files]
    # They may come from elsewhere, and must belong to this case only.
    rows = [[job.rows.own(row) for row in rows_of(part)] for part in parts]
    for of_rank in rows:
        out.rows(of_rank)
    ends = {rank: end for rank, part in enumerate(parts) for end in part if end["kind"] == "end"}
    if not problems:
        failed = [end for end in ends.values() if end["status"] == "failed"]
        for end in sorted(failed, key=lambda end: end["at"])[:1]:  # the others lost it
            problems = [f"rank {end['rank']}: {textwrap.shorten(str(end['reason']), _WORDS)}"]
        if silent := [str(rank) for rank in range(len(parts)) if rank not in ends]:
            problems = [*problems, f"rank {', '.join(silent)} ended without a word"]
    if problems:
        raise RankError("; ".join(problems))
    skipped = next((end["reason"] for end in ends.values() if end["status"] == "skipped"), None)
    if skipped is None:
        slowest = joined(rows, out)
        # For each epoch the samples and timelines of its slowest rank, whose stages are the case's.
        for rank, part in enumerate(parts):
            for record in part:
                if record["kind"] in LISTS and slowest.get(record["epoch"]) == rank:
                    out.write(**{**record, **job.case.names})
    return skipped
