"""What a minibatch asks of a machine: the link model's input.

They come from a strategy's ``DataPath`` and its declared overlap, from the request accounting of
the kernels, from the trace, and from the model's operation counts; never from a strategy's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gatherbench.bench.model.estimate import Estimate
from gatherbench.bench.run.training_cost import TrainingCost
from gatherbench.strategies.data_path import BYTES, DataPath

_NOTHING = TrainingCost(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class MinibatchLoad:
    """An average minibatch of an epoch with one strategy.

    Bytes and counts are means over the minibatches, so they need not be whole.

    Attributes:
        payload_bytes: feature rows that the training needs.
        cpu_read_bytes, cpu_write_bytes: what the CPU moves in host memory.
        copy_engine_bytes: what the copy engine carries to the GPU.
        pageable_bytes: of these, bytes that lie in freshly allocated pageable memory.
        gpu_link_read_bytes: row bytes that multiprocessors read from host memory.
        gpu_requests: request size in bytes → count of these reads; ``None`` where not accounted.
        gpu_page_visits: how often these reads move on to another page of the table; ``None`` where
            not counted.
        table_bytes: span of the feature table.
        gpu_table_bytes: of these, what is kept in GPU memory.
        row_bytes: of one feature row; 0 where it is not known (wide rows are then assumed).
        lookahead: minibatches that are fetched ahead of the one in training.
        gpu_share: share of the multiprocessors that an overlapped gather takes from training.
        sampled_edges: edges drawn.
        training: what a training step asks of the GPU.
        handover_s: seconds that each transfer waits for another process, with the link idle.
        sample_s, gather_s, train_s: measured seconds; where given they take the place of the
            model's for the whole part (``gather_s``: of the CPU's gather).
        sample_workers: threads that draw ahead of the loop, one minibatch and core each;
            ``sample_s`` is then what a minibatch takes one of them. 0: the loop draws.
        gpu_samples: minibatches are drawn on the GPU; ``sample_s`` is then that time, and the
            processor has no part in it.
    """

    payload_bytes: float
    cpu_read_bytes: float = 0.0
    cpu_write_bytes: float = 0.0
    copy_engine_bytes: float = 0.0
    pageable_bytes: float = 0.0
    gpu_link_read_bytes: float = 0.0
    gpu_requests: Mapping[int, float] | None = None
    gpu_page_visits: float | None = None
    table_bytes: float = 0.0
    gpu_table_bytes: float = 0.0
    row_bytes: float = 0.0
    lookahead: int = 0
    gpu_share: float = 0.0
    sampled_edges: float = 0.0
    training: TrainingCost = _NOTHING
    handover_s: float = 0.0
    sample_s: Estimate | None = None
    gather_s: Estimate | None = None
    train_s: Estimate | None = None
    sample_workers: int = 0
    gpu_samples: bool = False

    @property
    def brought_bytes(self) -> float:
        """Feature rows that cross the link; the payload beyond them is in GPU memory already."""
        return self.gpu_link_read_bytes + self.copied_bytes

    @property
    def copied_bytes(self) -> float:
        """Rows that the CPU wrote and the copy engine carries, which brings ids in any case.

        None where it carries less than was written: multiprocessors then read those rows, too.
        """
        return self.cpu_write_bytes if self.copy_engine_bytes >= self.cpu_write_bytes else 0.0


def load_of(path: DataPath, share: float = 1.0, **facts: Any) -> MinibatchLoad:
    """The average minibatch, ``share`` of those whose paths add up to ``path``.

    ``facts`` are the other fields of the load. Payload that nothing brings is in GPU memory.
    """
    brought = [n for n in BYTES if n not in ("gpu_memory_bytes", "peer_bytes", "network_bytes")]
    requests, visits = path.gpu_requests, path.gpu_page_visits
    return MinibatchLoad(
        **{name: share * getattr(path, name) for name in brought},
        gpu_requests=requests and {size: share * count for size, count in requests.items()},
        gpu_page_visits=None if visits is None else share * visits,
        **facts,
    )
