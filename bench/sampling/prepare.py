"""Make a workload ready: its dataset on disk and its minibatches drawn.

Both are stored under the data folder, and later runs use them again. The *trace* stores the first
minibatches of the first epoch; all others are drawn when they are measured. The trace's name
includes a hash of the dataset's ``spec.json``, so that a dataset that was made again never meets
an old trace; the spec of an imported graph holds a checksum.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from gatherbench.bench.plan.workload import Workload
from gatherbench.datasets.source import Progress, silent

#: The folder of the minibatches, below the data folder.
TRACES = "traces"


def prepare(workload: Workload, progress: Progress = silent) -> tuple[Path, Path]:
    """Return the folders of the workload's dataset and of its trace; make those that are missing.

    Args:
        progress: gets the current step, and the fraction of it that is complete.

    Raises:
        DatasetError: the dataset is unavailable or broken.
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
    missing = {rank: path for rank, path in ranks.items() if not (path / FILE).exists()}
    for rank in ranks.keys() - missing.keys():
        Trace.open(ranks[rank])
    if not missing:
        return folder, trace
    dataset = open_dataset(folder)
    sampler = sampler_of(workload, dataset.indptr, dataset.indices)
    for rank, folder_of_rank in missing.items():
        seeds = workload_seeds(workload, sampler, dataset.train_ids, 0, rank)
        draw_trace(
            folder_of_rank, sampler, seeds[:KEPT], workload.seed, progress, rank=rank, world=world
        )
    for old in trace.parent.glob(f"{workload.trace_id}-{'?' * len(state_of(folder))}"):
        if old != trace:  # a trace of a graph that was replaced
            shutil.rmtree(old, ignore_errors=True)
    return folder, trace


def rank_trace(trace: Path, rank: int) -> Path:
    """Return the folder with the minibatches of one rank, where several ranks train."""
    return trace / f"rank{rank}"


def traces_of(dataset: Path) -> list[Path]:
    """List the minibatches in the same data folder that were drawn from the present dataset."""
    # Compare names too: a copy of a graph, or a link to one, has the same spec.
    name = re.escape(dataset.name.partition("@")[0])
    of_this_graph = re.compile(rf"{name}(@[^-]+)?-f\d.*-{state_of(dataset)}")
    folders = sorted((dataset.parent / TRACES).glob("*"))
    return [trace for trace in folders if of_this_graph.fullmatch(trace.name)]


def state_of(dataset: Path) -> str:
    """Return a hash of the dataset's spec, which names its traces; empty if there is no spec."""
    from gatherbench.datasets.dataset import SPEC_FILE

    try:
        spec = (dataset / SPEC_FILE).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(spec).hexdigest()[:8]


def identity(dataset: Path, trace: Path) -> str:
    """Return a text that is equal for equal datasets with equal minibatches."""
    from gatherbench.bench.sampling.trace import FILE

    drawn = hashlib.sha256()
    for of_rank in sorted(trace.rglob(FILE)):
        drawn.update(of_rank.read_bytes())
    return f"{state_of(dataset)}-{drawn.hexdigest()}"
