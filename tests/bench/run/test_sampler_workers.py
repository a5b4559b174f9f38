"""Minibatches drawn ahead of the loop train the same model, and the case ends as it began."""

import threading
from typing import Any

import pytest
from torch import Tensor

from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.rows import Row
from gatherbench.bench.sampling.minibatch import MiniBatch
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.datasets.store import open_dataset
from gatherbench.strategies.host_fetcher import HostFetcher

from .fakes import measured

KEEPS = {"policy": "degree", "share": "20%"}
WAYS = [
    ("cpu_gather", {}, {}),
    ("async_zero_copy", {}, {}),
    ("cached_zero_copy", KEEPS, {"warmup_epochs": 2}),
]


def of(rows: list[Row], metric: str) -> list[float]:
    return [row.value for row in rows if row.metric == metric and row.value is not None]


def samplers_threads() -> set[threading.Thread]:
    every = threading.enumerate()
    return {thread for thread in every if thread.name.startswith("gatherbench-sample")}


@pytest.fixture
def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that drew the minibatches."""
    names: list[str] = []
    plain = NeighborSampler.sample

    def noted(self: Any, *task: Any) -> MiniBatch:
        names.append(threading.current_thread().name)
        return plain(self, *task)

    monkeypatch.setattr(NeighborSampler, "sample", noted)
    return names


@pytest.mark.parametrize(("strategy", "params", "how"), WAYS)
def test_losses_and_bytes_are_those_without_workers(make_job, drawn_by, strategy, params, how):
    before = samplers_threads()
    alone = measured(make_job(strategy, params=params, **how))
    assert not any(name.startswith("gatherbench-sample") for name in drawn_by)
    drawn_by.clear()
    ahead = measured(make_job(strategy, params=params, sampler_workers=2, **how))
    for metric in ("loss", "payload", "rows_on_device", "test_accuracy", "minibatches"):
        assert of(ahead, metric) == of(alone, metric)
    assert len(of(ahead, "loss")) == 2
    by_workers = [name for name in drawn_by if name.startswith("gatherbench-sample")]
    # The two that are checked first; the warm-up and two measured epochs, of 5 minibatches each.
    assert len(by_workers) >= 2 + 3 * 5
    assert samplers_threads() <= before


def test_workers_draw_with_one_thread_each(make_job):
    job = make_job(sampler_workers=3)
    epochs = Epochs(job, open_dataset(job.dataset))
    assert [worker.threads for worker in epochs._workers] == [1, 1, 1]
    assert epochs.sampler.threads is None
    wanted = [batch.input_ids.tolist() for batch in epochs.first]
    assert [batch.input_ids.tolist() for batch in epochs.measured(0)] == wanted


def test_a_case_that_fails_in_an_epoch_leaves_no_thread(make_job, monkeypatch):
    before, plain = samplers_threads(), HostFetcher._submit
    fetched: list[Tensor] = []

    def submit(self: HostFetcher, ids: Tensor) -> Any:
        fetched.append(ids)
        if len(fetched) > 9:  # the first checks and the warm-up have gone well
            raise MemoryError("no room for the rows")
        return plain(self, ids)

    monkeypatch.setattr(HostFetcher, "_submit", submit)
    with pytest.raises(MemoryError, match="no room for the rows"):
        measured(make_job(sampler_workers=2))
    assert len(fetched) == 10
    assert samplers_threads() <= before
