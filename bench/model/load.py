"""What a minibatch asks of a machine: the link model's input.

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
    """An average minibatch of an epoch with one strategy.

    Bytes and counts are means over the minibatches, so they need not be whole. Those that a
    :class:`~gatherbench.strategies.data_path.DataPath` has are called as there.

    Attributes:
        table_bytes: span of the feature table.
        gpu_table_bytes: of these, what is kept in GPU memory.
        row_bytes: of one feature row; 0 where it is not known (wide rows are then assumed).
        lookahead: minibatches that are fetched ahead of the one in training.
        gpu_share: share of the multiprocessors that an overlapped gather takes from training.
        sampled_edges, layers: drawn for a minibatch.
        training: what a training step asks of the GPU.
        disk_depth: reads that the path keeps in flight at most.
        activation_bytes: that leave the GPU in a step and are brought back for its backward pass.
        gradient_bytes: that the ranks average after a step; ``None`` where nobody knows, 0 where
            ``train_s`` holds that already.
        handover_s: seconds that each transfer waits for another process, with the link idle.
        sample_s, train_s: measured seconds; where given they take the place of the model's.
        remarks: where these come from.
        gather_threads: that gather at a time; 0: one for each core.
        step_calls: calls of the host for a step that it has the GPU replay; 0: it issues the step
            operation by operation.
        gpu_samples: minibatches are drawn on the GPU.
        gpus: of the machine, each of which does this; they share processor, memory and disk.
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
    disk_depth: int = 128
    gpu_requests: Mapping[int, float] | None = None
    gpu_page_visits: float | None = None
    managed_page_visits: float | None = 0.0
    table_bytes: float = 0.0
    gpu_table_bytes: float = 0.0
    row_bytes: float = 0.0
    lookahead: int = 0
    gpu_share: float = 0.0
    sampled_edges: float = 0.0
    layers: int = 0
    training: TrainingCost = _NOTHING
    activation_bytes: float = 0.0
    gradient_bytes: float | None = None
    handover_s: float = 0.0
    sample_s: float | None = None
    train_s: float | None = None
    remarks: tuple[str, ...] = ()
    gather_threads: int = 0
    step_calls: float = 0.0
    gpu_samples: bool = False
    gpus: int = 1

    @property
    def brought_bytes(self) -> float:
        """Feature rows over the link."""
        return self.gpu_link_read_bytes + self.copied_bytes

    @property
    def kept_bytes(self) -> float:
        """Feature rows that this GPU's memory holds before the minibatch."""
        return max(0.0, self.payload_bytes - self.brought_bytes)

    @property
    def copied_bytes(self) -> float:
        """Rows that the copy engine carries, beside ids: from the table, or as the CPU wrote them.

        None of the second where it carries less than was written: multiprocessors then read those.
        """
        written = self.copy_engine_bytes >= self.cpu_write_bytes
        return self.engine_row_bytes + (self.cpu_write_bytes if written else 0.0)


def load_of(path: DataPath, share: float = 1.0, **facts: Any) -> MinibatchLoad:
    """The average minibatch, ``share`` of those whose paths add up to ``path``.

    ``facts`` are the other fields of the load. Payload that nothing brings is in GPU memory.
    """

    def part(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {size: share * count for size, count in value.items()}
        return None if value is None else value * share

    names = [f.name for f in fields(DataPath) if f.name not in ("gpu_memory_bytes", "peer_bytes")]
    return MinibatchLoad(**{name: part(getattr(path, name)) for name in names}, **facts)
