"""``gatherbench.unified`` in somebody's own loop: right rows, whose they are, and what overlaps."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from host_paths import HOST, GatedPath, in_a_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gatherbench
from gatherbench.strategies.base import Fetcher, Strategy
from gatherbench.strategies.host_fetcher import DirectPath, HostFetcher
from gatherbench.strategies.knowledge import Knowledge, Ranks, current_ranks
from gatherbench.strategies.registry import build
from gatherbench.strategies.unified_tensor import UnifiedTensor
from gatherbench.strategies.zero_copy import AlignedZeroCopy

from .right_paths import Made

TABLE = torch.randn(500, 7, generator=torch.Generator().manual_seed(0))


class Gated(Made):
    """A background fetch behind a gate."""

    path: ClassVar[GatedPath]

    def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
        type(self).path = GatedPath(features)
        return HostFetcher(self.path, features, lookahead=1)


def draw(batches: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(len(TABLE), (40 + k,), generator=generator) for k in range(batches)]


@pytest.mark.parametrize("strategy", ["cpu_gather", "aligned_zero_copy", "async_zero_copy"])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("copy", [False, True])
def test_rows_live_as_long_as_they_are_promised_to(strategy, prefetch, copy):
    """Copies for good, the strategy's own buffer through the fetch of the next batch."""
    batches = draw(9)
    kept = []
    with gatherbench.unified(TABLE, strategy, "cpu", copy=copy) as features:
        for ids, following in zip(batches, [*batches[1:], None], strict=True):
            kept.append(features[ids])
            if prefetch and following is not None:
                features.prefetch(following)
            assert torch.equal(kept[-1], TABLE[ids])
    assert copy == all(map(torch.equal, kept, (TABLE[ids] for ids in batches)))


@settings(deadline=None, max_examples=60)
@given(
    moves=st.lists(st.tuples(st.sampled_from(["prefetch", "get"]), st.integers(0, 4)), max_size=25),
    strategy=st.sampled_from(["async_zero_copy", "aligned_zero_copy"]),
    copy=st.booleans(),
)
def test_any_order_of_prefetches_and_fetches(moves, strategy, copy):
    """Never asked for, asked for twice, out of order, too many: the rows are right."""
    batches = draw(5)
    with gatherbench.unified(TABLE, strategy, "cpu", copy=copy) as features:
        for move, k in moves:
            if move == "prefetch":
                features.prefetch(batches[k])
            else:
                assert torch.equal(features[batches[k]], TABLE[batches[k]])


def test_prefetch_returns_at_once_and_its_fetch_is_the_only_one():
    features = UnifiedTensor(TABLE, Gated(), HOST)
    ids = draw(1)[0]
    features.prefetch(ids)  # would hang here if it did the work
    Gated.path.gate.set()
    assert torch.equal(features[ids.clone()], TABLE[ids])
    assert Gated.path.fetched == 1
    features.close()


def test_a_path_with_a_managed_copy_holds_the_callers_table_no_more():
    """Else the host would have it twice as long as the features are open."""

    class Copies(Gated):
        memory = "managed"

        def _open(self, features: Tensor, device: torch.device, knowledge: Knowledge) -> Fetcher:
            return super()._open(features.clone(), device, knowledge)

    for kind, held in ((Gated, True), (Copies, False)):
        table = TABLE.clone()
        freed = weakref.ref(table)
        with UnifiedTensor(table, kind(), HOST):
            del table
            gc.collect()
            assert (freed() is not None) == held


@pytest.mark.parametrize("end", ["close", "with", "collected"])
def test_it_lets_go_of_what_the_path_holds(end):
    features, ids = UnifiedTensor(TABLE, Gated(), HOST), torch.arange(3)
    path = Gated.path
    path.gate.set()
    features.prefetch(ids)
    assert not path.closed
    if end == "collected":
        del features
        gc.collect()
    else:
        for _ in range(2):
            features.close() if end == "close" else features.__exit__()
        for use in (features.__getitem__, features.prefetch):
            with pytest.raises(RuntimeError, match="features are closed"):
                use(ids)
    assert path.closed


class OneAtATime(DirectPath):
    """Notices a second fetch that begins before the first has ended."""

    def __init__(self, features: Tensor) -> None:
        super().__init__(features)
        self.inside, self.second = threading.Lock(), threading.Event()

    def fetch(self, ids: Tensor, out: Tensor) -> None:
        if not self.inside.acquire(blocking=False):
            self.second.set()
            return
        self.second.wait(0.05)
        super().fetch(ids, out)
        self.inside.release()


def test_threads_take_turns():
    features = UnifiedTensor(TABLE, build("aligned_zero_copy"), HOST)
    path = OneAtATime(TABLE)
    features._fetcher._path = path  # type: ignore[attr-defined]
    right: list[bool] = []

    def fetch(ids: Tensor) -> None:
        for _ in range(3):
            right.append(torch.equal(features[ids], TABLE[ids]))

    threads = [threading.Thread(target=fetch, args=(ids,)) for ids in draw(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    features.close()
    assert right == [True] * 6
    assert not path.second.is_set(), "two fetches were in the same buffer"


def test_closing_waits_for_the_fetch_of_another_thread_and_not_for_its_own():
    """It would unlock memory that a GPU is about to read; a signal's handler may close, too."""
    features = UnifiedTensor(TABLE, build("aligned_zero_copy"), HOST)
    closer = threading.Thread(target=features.close)
    with features._turn:  # as in a fetch
        closer.start()
        closer.join(0.05)
        assert closer.is_alive()
        assert torch.equal(features[torch.arange(4)], TABLE[:4])
        features.close()
    closer.join()
    assert "closed" in repr(features)


def test_a_call_on_another_cuda_stream_waits_for_the_last(monkeypatch):
    """The rows of the last call may still be copied there out of the buffer that is filled next."""

    class Stream:
        waited: ClassVar[list[tuple[Stream, Stream]]] = []

        def wait_stream(self, other: Stream) -> None:
            self.waited.append((self, other))

    first, second = Stream(), Stream()
    marked: list[Stream] = []
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: marked.append(stream))
    with gatherbench.unified(TABLE, "aligned_zero_copy", "cpu") as features:
        features.device = torch.device("cuda")
        for stream in (first, first, second, second, first):
            monkeypatch.setattr(torch.cuda, "current_stream", lambda device, now=stream: now)
            assert torch.equal(features[torch.arange(3)], TABLE[:3])
    assert Stream.waited == [(second, first), (first, second)]
    assert marked == [first, first, second, second, first]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_forked_child_is_told_where_to_fetch(on_gpu):
    """torch would advise to spawn the workers, which cannot be; a prefetch would hang."""
    name = "aligned_zero_copy" if on_gpu else "async_zero_copy"
    with gatherbench.unified(TABLE, name, "cpu") as features:
        if on_gpu:
            features._fetcher.device = torch.device("cuda")
        ids = torch.arange(4)
        features.prefetch(ids)
        told = "RuntimeError: opened in the parent process, .* workers only sample"
        assert re.match(told, in_a_fork(lambda: features[ids]))
        assert re.match(told, in_a_fork(lambda: features.prefetch(ids)))
        assert in_a_fork(features.close) == "nothing was raised"
        assert torch.equal(features[ids], TABLE[ids])


def test_it_cannot_be_sent_to_another_process():
    with gatherbench.unified(TABLE, "aligned_zero_copy", "cpu") as features:
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"belongs to its process .* only sample"):
                use(features)


def test_a_program_that_forgets_to_close_ends_and_the_package_alone_loads_no_torch():
    script = (
        "import sys, gatherbench\n"
        "assert 'torch' not in sys.modules\n"
        "from gatherbench import unified\n"
        "import torch\n"
        "f = unified(torch.ones(9, 2), 'async_zero_copy', 'cpu')\n"
        "f.prefetch(torch.arange(4))\n"
        "print(float(f[torch.arange(4)].sum()))"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8.0\n", "")


@pytest.mark.parametrize(
    ("x", "strategy", "params", "error", "said"),
    [
        (TABLE, "cpu_gather", {"device": "cuda:x"}, ValueError, "device = 'cuda:x': expected"),
        (TABLE, "async_zero_copy", {"provider": "mps"}, ValueError, "mps,auto.* cannot run on cpu"),
        (TABLE, "aligned_zero_copy", {"ordr": "given"}, ValueError, "did you mean 'order'"),
        (np.ma.array(TABLE), "aligned_zero_copy", {}, TypeError, r"x\.filled\(value\)"),
        (TABLE, "no_fetch", {}, ValueError, "no_fetch fetches nothing"),
        (TABLE.to_sparse(), "aligned_zero_copy", {}, ValueError, "dense tensor, got .*sparse_coo"),
        (TABLE.to(torch.complex64).conj(), "cpu_gather", {}, ValueError, "resolve_conj"),
        (torch._neg_view(TABLE), "aligned_zero_copy", {}, ValueError, "resolve_neg"),
    ],
)
def test_what_is_no_table_or_no_strategy(x, strategy, params, error, said):
    with pytest.raises(error, match=said):
        gatherbench.unified(x, strategy, **({"device": "cpu"} | params))


#: ``(rank, world, LOCAL_WORLD_SIZE)``
Join = Callable[[int, int, str | None], None]


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Makes this process one of a world whose other ranks are imagined."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def join(rank: int, world: int, local_world: str | None) -> None:
        if local_world is not None:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_ranks_are_those_of_torch_distributed(grouped):
    assert current_ranks() == Ranks(0, 1, 1), "no group: nobody else"
    grouped(0, 1, None)
    assert current_ranks() == Ranks(0, 1, 1), "nor a launcher"
    dist.destroy_process_group()
    grouped(4, 6, "3")
    ranks = current_ranks()
    assert ranks == Ranks(4, 6, 3)
    assert [replace(ranks, rank=rank).first for rank in range(6)] == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize("local_world", [None, "", "0", "4", "two", "-3"])
def test_a_machine_whose_ranks_nobody_counted(grouped, local_world):
    grouped(0, 6, local_world)
    with pytest.raises(
        ValueError, match=r"LOCAL_WORLD_SIZE='.*': .* of 6 in all; torchrun sets it"
    ):
        current_ranks()


def test_a_strategy_over_ranks_is_told_of_them(grouped, monkeypatch):
    told: list[Knowledge] = []

    def opened(_self: Strategy, features: Tensor, _device: object, known: Knowledge) -> Fetcher:
        told.append(known)
        return HostFetcher(DirectPath(features), features, lookahead=0)

    monkeypatch.setattr(AlignedZeroCopy, "needs", frozenset({"ranks"}))
    monkeypatch.setattr(AlignedZeroCopy, "_open", opened)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"one of 2 ranks .* call .*init_process_group\(\) first"):
        gatherbench.unified(TABLE, "aligned_zero_copy", "cpu")
    grouped(1, 2, "2")
    with gatherbench.unified(TABLE, "aligned_zero_copy", "cpu") as features:
        assert torch.equal(features[[7]], TABLE[[7]])
    assert [known.ranks for known in told] == [Ranks(1, 2, 2)]


MASK = torch.arange(500) % 7 == 3
INDICES: list[Any] = [
    *(slice(None), slice(5), slice(-3, None), slice(490, 600, 4), slice(5, 2)),
    *(slice(None, None, -100), [4, 4, 0], [], MASK, MASK.tolist(), MASK.numpy()),
    *(np.arange(9)[::-1], np.array([3, 1], np.int32)),
    np.broadcast_to(np.arange(3), (3,)),  # read-only
]


def test_rows_are_named_as_those_of_a_tensor():
    with gatherbench.unified(TABLE, "async_zero_copy", "cpu") as features:
        assert (features.shape, features.dtype, len(features)) == (TABLE.shape, TABLE.dtype, 500)
        for rows in INDICES:
            for _ in range(2):
                assert np.array_equal(features[rows].numpy(), TABLE.numpy()[rows]), rows
                assert not features._ahead, "what was prefetched is what is asked for"
                features.prefetch(rows)
            _ = features[rows]


@pytest.mark.parametrize(
    ("ids", "error", "said"),
    [
        (3, TypeError, r"write features\[\[3\]\] for row 3, and .*columns"),
        ((slice(None), 3), TypeError, "columns"),
        (slice(0.0, 2.0), TypeError, "."),
        (torch.tensor([1.0]), TypeError, "got torch.float32"),
        (["one"], TypeError, "."),
        ([[1]], ValueError, r"expected shape \[B\]"),
        ([-1], IndexError, r"rows 0\.\.499"),
        (torch.tensor([500]), IndexError, r"rows 0\.\.499"),
        (torch.tensor([True, False]), IndexError, r"mask: expected shape \(500,\), got \(2,\)"),
        (np.ones(501, bool), IndexError, "mask"),
    ],
)
def test_ids_that_name_no_rows(ids, error, said):
    with gatherbench.unified(TABLE, "async_zero_copy", "cpu") as features:
        for _ in range(2):  # then with something to compare the ids with
            with pytest.raises(error, match=said):
                _ = features[ids]
            with pytest.raises(error, match=said):
                features.prefetch(ids)
            features.prefetch(torch.arange(5))
        assert torch.equal(features[torch.arange(5)], TABLE[:5])
