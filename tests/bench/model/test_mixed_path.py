"""A path that keeps a part of the table in GPU memory is predicted from what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor

from gatherbench.bench.model.advise import rank
from gatherbench.bench.model.advise.memory import pinned_need, table_on_gpu
from gatherbench.bench.model.advise.option import Option, average_load
from gatherbench.bench.model.advise.question import Question, graph_of, graph_sizes
from gatherbench.bench.model.advise.rank import Advice, advise
from gatherbench.bench.model.advise.sizes import drawn_sizes
from gatherbench.bench.model.epoch import EpochPrediction, predict_batches
from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.profile import load_profile
from gatherbench.datasets.store import open_dataset
from gatherbench.reason import Reason
from gatherbench.strategies.base import Fetcher, Minibatches, Strategy
from gatherbench.strategies.data_path import DataPath, total, zero_copy_path
from gatherbench.strategies.knowledge import NOTHING, Knowledge
from gatherbench.strategies.registry import STRATEGIES

PROFILE = load_profile("rtx3090-pcie4")
#: A table of 53 GiB: half of it fits in no RTX 3090 either, an eighth does.
QUESTION = Question(
    graph_of(111_059_956, 1_615_685_872, 128, classes=172, train_nodes=1_207_179, laws=("rmat",)),
    (15, 10),
)


@dataclass(frozen=True)
class FirstRowsKept(Strategy):
    """The first rows lie in GPU memory, the rest is read in place; it only declares."""

    name: ClassVar[str] = "first_rows_kept"
    summary: ClassVar[str] = "for tests"

    parts: Literal["8", "2", "1"] = "8"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        return None

    def gpu_table_bytes(self, table_bytes: int, knowledge: Knowledge = NOTHING) -> int:
        return table_bytes // int(self.parts)

    def data_path(self, ids: Tensor, row_bytes: int) -> DataPath:
        return zero_copy_path(ids, row_bytes, "aligned", "given")

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        for ids in of.batches:
            far = self.data_path(ids[ids >= of.num_rows // int(self.parts)], of.row_bytes)
            yield replace(far, payload_bytes=ids.numel() * of.row_bytes)

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        raise AssertionError("nothing is fetched here")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "STRATEGIES", (*STRATEGIES, FirstRowsKept))


def advice(question: Question = QUESTION) -> Advice:
    sizes = graph_sizes(question)
    return advise(question, sizes, PROFILE)


def option(found: Advice, parts: str) -> Option:
    every = (*found.ranked, *found.unranked)
    return next(o for o in every if (o.strategy, o.variant) == ("first_rows_kept", parts))


@pytest.mark.usefixtures("registered")
def test_advice_refuses_what_does_not_fit_and_ranks_what_does():
    found = advice()
    half, eighth = option(found, "2"), option(found, "8")
    assert half in found.unranked
    assert half.fits is False
    assert half.reason == "It needs 26.6 GiB of GPU memory, and 90% of 24 GiB may be taken."
    assert eighth.fits is True
    ranks = [(o.strategy, o.variant) for o in found.ranked]
    assert ranks.index(("first_rows_kept", "8")) < ranks.index(("aligned_zero_copy", "given"))
    assert found.table_fits is False
    said = [remark for remark in found.remarks if "every row alike" in remark]
    assert any("keeps some rows (first_rows_kept)" in remark for remark in said)


@pytest.mark.usefixtures("registered")
def test_a_minibatch_that_is_wholly_kept_is_no_table_that_fits():
    """Ids that happen to lie in the kept part say nothing of the rest of the table."""
    (sizes,) = graph_sizes(QUESTION)
    hot = replace(sizes, ids=(torch.arange(20_000),))
    assert not table_on_gpu(average_load(FirstRowsKept("8"), QUESTION, hot))
    found = advise(QUESTION, (hot,), PROFILE)
    assert option(found, "8").epochs_s
    assert option(found, "8").gpu_bytes > QUESTION.graph.table_bytes / 8
    assert found.table_fits is False


@dataclass(frozen=True)
class LastSeenKept(FirstRowsKept):
    """Keeps the rows of the last minibatch that it has seen."""

    def _data_paths(self, of: Minibatches) -> Iterator[DataPath]:
        *_, (*_, last) = of.before
        for ids in of.batches:
            far = self.data_path(ids[~torch.isin(ids, last)], of.row_bytes)
            yield replace(far, payload_bytes=ids.numel() * of.row_bytes)


def test_advice_judges_a_path_by_minibatches_that_it_has_not_seen(tiny_root):
    """Else what it has just learnt by heart would be in every minibatch."""
    graph = graph_of(200_000, 5_000_000, 100, train_nodes=50_000, laws=("rmat",))
    question = Question(graph)
    (computed,) = graph_sizes(question)
    drawn = drawn_sizes(open_dataset(tiny_root / "tiny"), (3, 2), 20)
    for sizes in (computed, drawn):
        assert sizes.seen
        assert not any(torch.equal(a, b) for a in sizes.seen for b in sizes.ids)
        assert not torch.equal(sizes.seen[0][:20], sizes.ids[0][:20]), "the same seeds"
        load = average_load(LastSeenKept(), question, sizes)
        assert 0 < load.gpu_link_read_bytes < load.payload_bytes


def predicted(load: MinibatchLoad) -> EpochPrediction:
    return predict_batches(load, PROFILE, 100)


HALF = 5e8
READ = MinibatchLoad(
    HALF, gpu_link_read_bytes=HALF, gpu_requests={128: HALF / 128}, gpu_page_visits=0.0
)
GATHERED = MinibatchLoad(
    HALF, cpu_read_bytes=HALF, cpu_write_bytes=HALF, copy_engine_bytes=HALF, gpu_requests={}
)
BOTH = replace(
    READ, payload_bytes=2 * HALF, cpu_read_bytes=HALF, cpu_write_bytes=HALF, copy_engine_bytes=HALF
)


def test_rows_that_are_gathered_and_rows_read_in_place_both_cross_the_link():
    parts = {
        name: predicted(one).parts for name, one in (("r", READ), ("g", GATHERED), ("b", BOTH))
    }
    together, alone = parts["b"]["transfer"], (parts["r"]["transfer"], parts["g"]["transfer"])
    lengths = [part.seconds.value or 0.0 for part in alone]
    assert together.seconds.value == pytest.approx(sum(lengths))
    assert together.bound == alone[lengths.index(max(lengths))].bound
    busy = sum(t * part.demands["link"] for t, part in zip(lengths, alone, strict=True))
    assert together.demands["link"] == pytest.approx(busy / sum(lengths))
    assert parts["b"]["gather"] == parts["g"]["gather"]
    assert "expand" not in parts["b"]
    assert BOTH.brought_bytes == 2 * HALF
    assert pinned_need(replace(BOTH, table_bytes=1e10)) == 1e10 + 2 * 2**29


def test_paths_add_up_and_a_count_that_one_lacks_is_lacking():
    reads = DataPath(10, gpu_link_read_bytes=10, gpu_requests={32: 1, 128: 2}, gpu_page_visits=3)
    copies = DataPath(5, cpu_write_bytes=5, copy_engine_bytes=6, gpu_requests={})
    both = total([reads, copies, reads])
    assert (both.payload_bytes, both.gpu_link_read_bytes, both.copy_engine_bytes) == (25, 20, 6)
    assert both.gpu_requests == {32: 2, 128: 4}
    assert both.gpu_page_visits == 6, "copies visit no page"
    uncounted = replace(reads, gpu_requests=None, gpu_page_visits=None)
    for paths in ([reads, uncounted], [uncounted, reads]):
        assert total(paths).gpu_requests is None
        assert total(paths).gpu_page_visits is None
    half = load_of(both, 0.5, row_bytes=4)
    assert (half.payload_bytes, half.gpu_page_visits, half.row_bytes) == (12.5, 3.0, 4)
    assert half.gpu_requests == {32: 1, 128: 2}
    assert load_of(total([]), 1.0).gpu_requests == {}


def test_rows_that_the_gpu_reads_where_the_cpu_wrote_them_cross_once():
    once = replace(BOTH, payload_bytes=HALF, copy_engine_bytes=HALF / 50)
    assert once.brought_bytes == HALF
    assert predicted(once).parts["transfer"] == predicted(READ).parts["transfer"]
    assert predicted(once).parts["gather"] == predicted(GATHERED).parts["gather"]
