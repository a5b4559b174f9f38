"""What a minibatch asks of a machine: the link model's input.

They come from a strategy's ``DataPath`` and its declared overlap, from the request accounting of
the kernels, from the trace, and from the model's operation counts; never from a strategy's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.run.training_cost import TrainingCost
from gatherbench.strategies.data_path import DataPath

_NOTHING = TrainingCost(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class MinibatchLoad:
    """An average minibatch of an epoch with one strategy.

    Bytes and counts are means over the minibatches, so they need not be whole.

    Attributes:
        payload_bytes: feature rows that the training needs.
        cpu_read_bytes, cpu_write_bytes: what the CPU moves in host memory.
        copy_engine_bytes: what the copy engine carries to the GPU.
        engine_row_bytes, engine_copies: of these, rows that it takes from the table itself, and in
            how many copies.
        pageable_bytes: of these, bytes that lie in freshly allocated pageable memory.
        gpu_link_read_bytes: row bytes that multiprocessors read from host memory.
        gpu_requests: request size in bytes → count of these reads; ``None`` where not accounted.
        gpu_page_visits, managed_page_visits: how often these reads move on to another page of a
            table in registered, in managed memory; ``None`` where not counted.
        table_bytes: span of the feature table, or of the part that this rank holds.
        gpu_table_bytes: of these, what is kept in GPU memory.
        row_bytes: of one feature row; 0 where it is not known (wide rows are then assumed).
        lookahead: minibatches that are fetched ahead of the one in training.
        gpu_share: share of the multiprocessors that an overlapped gather takes from training.
        sampled_edges: edges drawn.
        training: what a training step asks of the GPU.
        disk_payload_bytes: rows that come off a disk, on their way into host memory.
        disk_bytes, disk_requests: what is read there for them; ``None`` where nobody knows.
        disk_depth: reads that the path keeps in flight at most.
        activation_bytes: that leave the GPU in a step and are brought back for its backward pass.
        gradient_bytes: that the ranks average after a step; ``None`` where nobody knows, 0 where
            ``train_s`` holds that already.
        handover_s: seconds that each transfer waits for another process, with the link idle.
        sample_s, gather_s, train_s: measured seconds; where given they take the place of the
            model's for the whole part (``gather_s``: of the CPU's gather; ``train_s``: what a step
            takes the GPU).
        sample_workers: threads that draw ahead of the loop, one minibatch and core each;
            ``sample_s`` is then what a minibatch takes one of them. 0: the loop draws.
        gather_threads: that gather at a time; 0: one for each core.
        cpu_share: of the cores of a machine that these seconds of its processor were measured
            with: several ranks divide them.
        step_calls: calls of the host for a step that it has the GPU replay; 0: it issues the step
            operation by operation.
        gpu_samples: minibatches are drawn on the GPU; ``sample_s`` is then that time, and the
            processor has no part in it.
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
    training: TrainingCost = _NOTHING
    activation_bytes: float = 0.0
    gradient_bytes: float | None = None
    handover_s: float = 0.0
    sample_s: Estimate | None = None
    gather_s: Estimate | None = None
    train_s: Estimate | None = None
    sample_workers: int = 0
    gather_threads: int = 0
    cpu_share: float = 1.0
    step_calls: float = 0.0
    gpu_samples: bool = False

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


def _times(value: Any, times: float) -> Any:
    if isinstance(value, Mapping):
        return {size: times * count for size, count in value.items()}
    return None if value is None else value * times


def load_of(path: DataPath, share: float = 1.0, **facts: Any) -> MinibatchLoad:
    """The average minibatch, ``share`` of those whose paths add up to ``path``.

    ``facts`` are the other fields of the load. Payload that nothing brings is in GPU memory.
    """
    names = [f.name for f in fields(DataPath) if f.name not in ("gpu_memory_bytes", "peer_bytes")]
    return MinibatchLoad(**{n: _times(getattr(path, n), share) for n in names}, **facts)
