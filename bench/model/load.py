"""Define a minibatch's load on a machine: the link model's input.

It comes from a strategy's ``DataPath`` and its declared overlap, from the request accounting of
the kernels, from the trace, and from the model's operation counts; never from a strategy's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gatherbench.bench.run.training_cost import TrainingCost
from gatherbench.strategies.data_path import DataPath

_NOTHING = TrainingCost(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class MinibatchLoad:
    """An average minibatch of an epoch with one strategy; means may be fractions.

    The fields down to ``managed_page_visits`` have the names of a ``DataPath``.
    """

    payload_bytes: float
    cpu_read_bytes: float = 0.0
    cpu_write_bytes: float = 0.0
    copy_engine_bytes: float = 0.0
    engine_row_bytes: float = 0.0
    engine_copies: float = 0.0
    pageable_bytes: float = 0.0
    gpu_link_read_bytes: float = 0.0
    disk_payload_bytes: float = 0.0
    disk_bytes: float | None = 0.0
    disk_requests: float | None = 0.0
    gpu_requests: Mapping[int, float] | None = None
    gpu_page_visits: float | None = None
    managed_page_visits: float | None = 0.0
    disk_depth: int = 128  # reads that the path keeps in flight at most
    table_bytes: float = 0.0  # span of the feature table
    gpu_table_bytes: float = 0.0  # the part of it in GPU memory
    row_bytes: float = 0.0  # of one feature row; 0: unknown, so wide rows are assumed
    lookahead: int = 0  # minibatches that are prefetched
    gpu_share: float = 0.0  # of multiprocessors, which an overlapped gather takes from training
    sampled_edges: float = 0.0
    layers: int = 0
    gpu_samples: bool = False  # the GPU draws minibatches
    training: TrainingCost = _NOTHING
    handover_s: float = 0.0  # time of each transfer waiting for another process, link idle
    sample_s: float | None = None  # measured; if given, these replace the model's times
    train_s: float | None = None
    gather_threads: int = 0  # gathering at the same time; 0: one for each core
    gpus: int = 1  # of the machine, each with this load; they share CPU, memory and disk
    remarks: tuple[str, ...] = ()  # sources of these values

    @property
    def copied_bytes(self) -> float:
        """Bytes of rows that the copy engine carries: from the table, or written by the CPU.

        If it carries less than the CPU wrote, multiprocessors read the written rows.
        """
        written = self.copy_engine_bytes >= self.cpu_write_bytes
        return self.engine_row_bytes + (self.cpu_write_bytes if written else 0.0)

    @property
    def brought_bytes(self) -> float:
        """Bytes of feature rows over the link."""
        return self.gpu_link_read_bytes + self.copied_bytes

    @property
    def kept_bytes(self) -> float:
        """Bytes of feature rows that are in this GPU's memory before the minibatch."""
        return max(0.0, self.payload_bytes - self.brought_bytes)


def disk_depth(strategy: object) -> int:
    """Return how many reads a path keeps in flight at a disk: its parameter ``depth``, or 128."""
    return int(getattr(strategy, "depth", MinibatchLoad(0.0).disk_depth))


def load_of(path: DataPath, share: float = 1.0, **facts: Any) -> MinibatchLoad:
    """Return the average minibatch: ``share`` of ``path``, which is the sum of all.

    ``facts`` are the other fields of the load. Payload that crosses no link is in GPU memory.
    """
    found: dict[str, Any] = {f.name: getattr(path, f.name) for f in fields(DataPath)}
    del found["gpu_memory_bytes"], found["peer_bytes"]
    requests = found.pop("gpu_requests")
    for name, value in found.items():
        found[name] = None if value is None else share * value
    found["gpu_share"] = path.gpu_share
    if requests is not None:
        found["gpu_requests"] = {size: share * count for size, count in requests.items()}
    return MinibatchLoad(**found, **facts)
