"""Predict epochs on a graph from its size alone.

A minibatch is drawn by the law of the hashed graphs (``datasets/synthetic.py``): in-degrees follow
Pareto's law, and a small rank is an in-neighbour more often than a large one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.physics import DISK_DEPTH, MinibatchLoad, load_of
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.units import whole
from gatherbench.bench.run.training_cost import training_cost
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.generated import ALPHA, MOST, PRIME
from gatherbench.datasets.registry import get_source, imported
from gatherbench.datasets.store import dataset_folder, open_dataset
from gatherbench.strategies.base import Strategy
from gatherbench.strategies.data_path import staged_path
from gatherbench.strategies.registry import build

#: Minibatches of the predicted epoch.
BATCHES = 100
#: The predicted paths, by their names in plans.
PATHS: tuple[tuple[str, dict[str, str]], ...] = (
    *(("cpu_gather", {"mode": mode}) for mode in ("naive", "pinned", "prefetch")),
    ("copy_engine_gather", {}),
    *(("unified_zero_copy", {"memory": memory}) for memory in ("registered", "managed")),
    *(("aligned_zero_copy", {"order": order}) for order in ("given", "sorted", "unique")),
    ("aligned_zero_copy", {"memory": "managed"}),
    *(("async_zero_copy", {"memory": memory}) for memory in ("registered", "managed")),
    ("async_zero_copy", {"provider": "mps"}),
    *(("cached_zero_copy", {"memory": memory}) for memory in ("registered", "managed")),
    *((name, {}) for name in ("disk_mmap", "disk_direct", "disk_cached", "partition_buffer")),
    *((name, {}) for name in ("all_in_gpu", "no_fetch", "auto")),
)
#: Paths without a prediction, and why.
_NONE = {
    "auto": "auto takes one of the other paths during training",
    "partition_buffer": "needs a sampler that keeps to the partitions in memory",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a graph with features; ``skew`` is that of ``datasets/shapes.toml``."""

    name: str
    nodes: int
    edges: int
    dim: int
    row_bytes: int
    classes: int = 50
    skew: float = 3.0

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Parse a dataset's ``NAME``, or ``NODES,EDGES,DIM`` (float32) as in ``2.4M,124M,100``.

        Raises:
            DatasetError: the dataset is unknown, or the numbers are invalid.
        """
        if "," not in text:
            folder = dataset_folder(text, 1.0)
            source = None if folder in imported() else get_source(text)
            spec = source.estimate(1.0) if source else open_dataset(folder).spec
            skew = getattr(getattr(source, "shape", source), "skew", 3.0)
            sizes = spec.num_nodes, spec.num_edges, spec.feature_dim
            return cls(text, *sizes, spec.row_bytes, spec.num_classes, skew)
        try:
            nodes, edges, dim = (whole(word.strip().replace("G", "B")) for word in text.split(","))
        except ValueError:
            nodes = edges = dim = 0
        if not (100 <= nodes < PRIME and 0 <= edges <= 1e12 and 1 <= dim <= 1e6):
            raise DatasetError(
                f"--graph {text}: expected the name of a dataset (gatherbench list datasets), or"
                " NODES,EDGES,DIM such as 2.4M,124M,100: 100 to 2^31 nodes, up to 10^12 edges,"
                " features of 1 to 10^6 floats"
            )
        return cls(text, nodes, edges, dim, 4 * dim)


def draw(shape: Shape, workload: Workload) -> tuple[NDArray[np.int64], list[int], list[int]]:
    """Draw a minibatch: ranks (0: the most wanted) of its nodes, nodes and edges of each layer."""
    rng = np.random.default_rng(0)
    least = (1 - 1 / ALPHA) * shape.edges / shape.nodes
    known = np.unique(rng.integers(0, shape.nodes, workload.batch_size))
    nodes, edges = [known.size], []
    for fanout in workload.fanouts:
        degrees = np.minimum(least * rng.random(known.size) ** (-1 / ALPHA), MOST)
        edges.append(int(np.minimum(degrees, fanout).astype(np.int64).sum()))
        drawn = (shape.nodes * rng.random(edges[-1]) ** shape.skew).astype(np.int64)
        known = np.concatenate([known, rng.permutation(np.setdiff1d(drawn, known))])
        nodes.append(known.size)
    return known, nodes, edges


def predict_graph(shape: Shape, profile: LinkProfile) -> pd.DataFrame:
    """Predict every path of :data:`PATHS`, in that order.

    Columns: ``strategy``, ``variant``; ``epoch_s`` (of :data:`BATCHES` minibatches of a workload
    at its defaults; NaN: unknown); ``bound``; ``gpu_bytes``, ``host_bytes`` (the table or its part,
    and buffers); ``fits`` (do both fit; ?: memory of unknown size); ``notes`` (a tuple of texts).
    """
    workload, nan = Workload(shape.name), math.nan
    ranks, nodes, edges = draw(shape, workload)
    on_gpu, on_host = (profile[key].value is not None for key in ("gpu.draw", "host.sample_rate"))
    remark = "minibatches drawn on the CPU: gpu.draw is not known"
    if not on_host:  # the same for all paths
        remark = "without drawing minibatches: neither gpu.draw nor host.sample_rate is known"
    chained = "steps issued as a chain of kernels: gpu.issue is not known"
    facts = {
        "table_bytes": float(shape.nodes * shape.row_bytes),
        "row_bytes": float(shape.row_bytes),
        "sampled_edges": float(sum(edges)),
        "layers": workload.layers,
        "gpu_samples": on_gpu or not on_host,
        "sample_s": None if on_gpu or on_host else 0.0,
        "training": training_cost("sage", shape.dim, workload.hidden, shape.classes, nodes, edges),
        "remarks": () if on_gpu else (remark,),
    }
    lines: list[dict[str, Any]] = []
    for name, params in PATHS:
        strategy = build(name, params)
        line = {"strategy": name, "variant": strategy.variant, "epoch_s": nan}
        line |= {"bound": "unknown", "gpu_bytes": nan, "host_bytes": nan, "fits": "unknown"}
        lines.append(line | {"notes": (_NONE.get(name),)})
        if name in _NONE:
            continue
        load = _load(strategy, ranks, shape, facts)
        epoch = predict_batches(load, profile, BATCHES)
        notes = (*epoch.unknown, *epoch.extrapolated, *epoch.remarks)
        notes += (chained,) * (profile["gpu.issue"].value is None)
        room = _room(strategy, load, profile)
        lines[-1] |= {"epoch_s": epoch.epoch_s, "bound": epoch.bound, **room, "notes": notes}
    return pd.DataFrame(lines)


def _load(
    strategy: Strategy, ranks: NDArray[np.int64], shape: Shape, facts: dict[str, Any]
) -> MinibatchLoad:
    ids = torch.from_numpy(ranks * PRIME % shape.nodes)
    path = strategy.data_path(ids, shape.row_bytes)
    if share := getattr(strategy, "share", ""):  # of the most frequent rows
        cold = ids[torch.from_numpy(ranks >= shape.nodes * int(share.removesuffix("%")) / 100)]
        far = strategy.data_path(cold, shape.row_bytes)
        path = replace(far, payload_bytes=path.payload_bytes)
        if far.disk_payload_bytes:
            off_disk = ("disk_payload_bytes", "disk_bytes", "disk_requests")
            staged = staged_path(ids, shape.row_bytes)
            path = replace(staged, **{name: getattr(far, name) for name in off_disk})
    return load_of(
        path,
        gpu_table_bytes=strategy.kept_bytes(int(facts["table_bytes"])),
        lookahead=strategy.lookahead,
        disk_depth=int(getattr(strategy, "depth", DISK_DEPTH)),
        **facts,
    )


def _room(strategy: Strategy, load: MinibatchLoad, profile: LinkProfile) -> dict[str, Any]:
    """Return a path's bytes on GPU and host, without training's, and whether they fit."""
    buffers = (strategy.lookahead + 1) * load.payload_bytes
    table = load.table_bytes if strategy.role != "no_fetch" else 0.0
    if load.disk_payload_bytes:
        table *= int(getattr(strategy, "share", "0%").removesuffix("%")) / 100
    gpu, host = load.gpu_table_bytes + buffers, table + (buffers if load.cpu_write_bytes else 0.0)
    room = {"GPU": profile.number("gpu.memory"), "host": profile.number("host.memory")}
    short = [place for place, taken in (("GPU", gpu), ("host", host)) if taken > room[place]]
    known = {place: "?" if math.isnan(size) else "yes" for place, size in room.items()}
    fits = ", ".join(f"{place} {word}" for place, word in known.items())
    fits = f"no ({', '.join(short)})" if short else "yes" if "?" not in known.values() else fits
    return {"gpu_bytes": gpu, "host_bytes": host, "fits": fits}
