"""Make a workload ready: its dataset on disk and its minibatches drawn.

Both are kept under the data folder and used again by later runs. Of the minibatches the first of
the first epoch are kept, the *trace*: all others are drawn when they are measured. The trace is
named after the dataset's ``spec.json`` too, so that a dataset that was made anew never meets an old
trace; of an imported graph it holds a checksum.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from gatherbench.bench.plan.workload import Workload
from gatherbench.datasets.source import Progress, silent

#: Folder of the minibatches, below the data folder.
TRACES = "traces"


def prepare(workload: Workload, progress: Progress = silent) -> tuple[Path, Path]:
    """The folders of the workload's dataset and of its trace, made where they are missing.

    Args:
        progress: called with what is being done and the fraction of it that is done.

    Raises:
        DatasetError: the dataset cannot be had or is broken.
        TraceError: the trace on disk is broken.
    """
    from gatherbench.bench.sampling.epoch import workload_seeds
    from gatherbench.bench.sampling.sampler import sampler_of
    from gatherbench.bench.sampling.trace import FILE, KEPT, Trace, draw_trace
    from gatherbench.datasets.registry import prepare_dataset
    from gatherbench.datasets.store import data_root, open_dataset

    folder = prepare_dataset(workload.dataset, workload.scale, progress=progress)
    trace = data_root() / TRACES / f"{workload.trace_id}-{state_of(folder)}"
    world = workload.gpus
    ranks = {0: trace} if world == 1 else {r: rank_trace(trace, r) for r in range(world)}
    missing = {rank: one for rank, one in ranks.items() if not (one / FILE).exists()}
    for rank in ranks.keys() - missing.keys():
        Trace.open(ranks[rank])
    if not missing:
        return folder, trace
    dataset = open_dataset(folder)
    sampler = sampler_of(workload, dataset.indptr, dataset.indices)
    for rank, one in missing.items():
        seeds = workload_seeds(workload, sampler, dataset.train_ids, 0, rank)
        draw_trace(one, sampler, seeds[:KEPT], workload.seed, progress, rank=rank, world=world)
    for old in trace.parent.glob(f"{workload.trace_id}-{'?' * len(state_of(folder))}"):
        if old != trace:  # of a graph that is no more
            shutil.rmtree(old, ignore_errors=True)
    return folder, trace


def rank_trace(trace: Path, rank: int) -> Path:
    """Of the minibatches of several ranks those of one."""
    return trace / f"rank{rank}"


def traces_of(dataset: Path) -> list[Path]:
    """The minibatches below the same data folder that were drawn from a dataset as it is."""
    # By name too: a copy of a graph, or a link to one, has its spec.
    name = re.escape(dataset.name.partition("@")[0])
    mine = re.compile(rf"{name}(@[^-]+)?-f\d.*-{state_of(dataset)}")
    found = sorted((dataset.parent / TRACES).glob("*"))
    return [trace for trace in found if mine.fullmatch(trace.name)]


def state_of(dataset: Path) -> str:
    """What tells the dataset from others of its name; empty where there is none."""
    from gatherbench.datasets.dataset import SPEC_FILE

    try:
        spec = (dataset / SPEC_FILE).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(spec).hexdigest()[:8]


def identity(dataset: Path, trace: Path) -> str:
    """Equal for equal datasets with equal minibatches."""
    from gatherbench.bench.sampling.trace import FILE

    drawn = hashlib.sha256()
    for of_rank in sorted(trace.rglob(FILE)):
        drawn.update(of_rank.read_bytes())
    return f"{state_of(dataset)}-{drawn.hexdigest()}"
