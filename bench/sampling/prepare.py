"""Make a workload's dataset ready, and identify the graph and the minibatches drawn from it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gatherbench.bench.plan.workload import Workload
from gatherbench.datasets.source import Progress, silent


def prepare(workload: Workload, progress: Progress = silent) -> tuple[Path, str]:
    """Return the folder of the workload's dataset, made if it is missing, and an identity.

    The identity is equal for equal datasets with equal minibatches: :func:`state_of` the folder,
    then a hash of the first minibatches of every rank. ``progress`` gets the current step, and the
    fraction of it that is complete.

    Raises:
        DatasetError: the dataset is unavailable or broken.
        ValueError, IndexError: no minibatch can be drawn from it.
    """
    from gatherbench.bench.sampling.epoch import FIRST, draws
    from gatherbench.bench.sampling.sampler import sampler_of
    from gatherbench.datasets.registry import prepare_dataset
    from gatherbench.datasets.store import open_dataset

    folder = prepare_dataset(workload.dataset, workload.scale, progress=progress)
    dataset, drawn = open_dataset(folder), hashlib.sha256()
    sampler = sampler_of(workload, dataset.indptr, dataset.indices)
    for rank in range(workload.gpus):
        for task in draws(workload, sampler, dataset.train_ids, 0, rank)[:FIRST]:
            batch = sampler.sample(*task)
            drawn.update(repr(batch.num_nodes).encode())
            for part in (batch.input_ids, *batch.edges):
                drawn.update(part.numpy().tobytes())
    return folder, f"{state_of(folder)}-{drawn.hexdigest()}"


def state_of(dataset: Path) -> str:
    """Return a hash of the dataset's spec (which of an imported graph holds a checksum), or ""."""
    from gatherbench.datasets.dataset import SPEC_FILE

    try:
        spec = (dataset / SPEC_FILE).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(spec).hexdigest()[:8]
