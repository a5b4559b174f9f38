"""What a case declares of its workload and path: each sum worked out by hand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gatherbench.bench.run.declared_rows import declared_rows
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.sampling.trace import Trace
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.base import Fetcher, Minibatches, Strategy
from gatherbench.strategies.data_path import DataPath
from gatherbench.strategies.knowledge import NOTHING, Knowledge


@dataclass(frozen=True)
class FromPeers(Strategy):
    name: ClassVar[str] = "from_peers"
    summary: ClassVar[str] = "for tests"
    lookahead = 3
    gpu_share = 0.25

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return DataPath(payload_bytes=8, peer_bytes=8)

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        return (self.data_path(ids, of.row_bytes) for ids in of.batches)

    def gpu_table_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return table_bytes // 4

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        raise NotImplementedError


def test_every_sum_is_its_own(make_job):
    """5 minibatches of 32 seeds, fan-outs 4 and 3, over a table of 400 rows of 33 float32."""
    job = make_job()
    trace = Trace.open(job.trace)
    epochs = Epochs(job, open_dataset(job.dataset), trace)
    rows = list(declared_rows(job, epochs, FromPeers(), NOTHING, ()))
    assert {row.basis for row in rows} == {"declared"}
    said = {f"{row.stage}.{row.metric}": row.value for row in rows}
    expected = {
        "fetch.declared_payload": 40,
        "fetch.peer_read": 40,
        "fetch.gpu_link_read": 0,
        "fetch.gpu_table": 400 * 33 * 4 / 4,
        "fetch.row": 33 * 4,
        "fetch.lookahead": 3,
        "fetch.gpu_share": 0.25,
        "sample.minibatches": 5,
        "sample.seeds": 5 * 32,
        "train.launches": 5 * (2 * 28 - 8 + 8 + 3),  # two layers of 28, Adam 8, three copies
        "sample.edges": sum(int(part.shape[1]) for one in trace for part in one.edges),
    }
    assert {name: said[name] for name in expected} == expected
