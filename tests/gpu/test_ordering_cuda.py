"""No wait that the data paths keep is superfluous: each test fails where one of them is left out.

What reads the rows is a copy to page-locked memory that is only queued, behind a long sleep where
it has to be late. Whatever waits for the GPU would hide what these tests look for, and allocating
may: buffers are there, and the paths have been used, before anything sleeps.
"""

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from gpu_variants import CUDA, VARIANTS, runnable
from torch import Tensor

from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.kernels.native_threads import NAME
from gatherbench.kernels.order import Order, ReadOrder, read_order
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import cuda_kernel_fetcher
from gatherbench.strategies.base import Fetcher, Strategy, Ticket
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.cuda_fetcher import CudaStagedFetcher
from gatherbench.strategies.cuda_kernel_fetcher import KernelFetcher
from gatherbench.strategies.registry import build

#: GPU cycles: 10 to 40 ms, longer than any host needs to queue the work of a minibatch.
SLEEP = 40_000_000
#: Variants that wait for the GPU by their nature; and on the stand-in, where every operator of
#: torch waits for the stream.
WAITING = {"cpu_gather-naive"}
ON_STANDIN = ("aligned_zero_copy-sorted", "cached_zero_copy", "copy_engine_gather-unique,0")
TABLE = torch.randn((20_000, 64), generator=torch.Generator().manual_seed(0))


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 20_000, (3000 - k,), generator=generator) for k in range(count)]


def opened_warm(strategy: Strategy, table: Tensor) -> Fetcher:
    """Opened, and every buffer used once with more rows than a batch has."""
    fetcher = open_known(runnable(strategy), table, CUDA)
    for _ in range(4):
        fetcher.submit(torch.arange(4000)).result()
    torch.cuda.synchronize()
    return fetcher


def page_locked(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def sleep_on(streams: Iterable[torch.cuda.Stream]) -> None:
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)


def own_streams(fetcher: Fetcher) -> Iterator[torch.cuda.Stream]:
    if isinstance(fetcher, CudaStagedFetcher):
        yield fetcher._stream
    if isinstance(fetcher, KernelFetcher):
        yield from (s for s in (fetcher._side, fetcher._ordering) if s is not None)


@pytest.mark.parametrize("slow", ["reader", "fetch"])
@pytest.mark.parametrize("strategy", VARIANTS)
def test_every_batch_reads_its_own_rows(strategy, slow):
    """Whether the reader is late (its rows are not overwritten) or the fetch (it waits for it)."""
    given = batches(8)
    found = [page_locked(len(ids), 64) for ids in given]

    def read(number: int, ticket: Ticket) -> None:
        rows = ticket.result()
        if slow == "reader":
            torch.cuda._sleep(SLEEP)
        found[number].copy_(rows, non_blocking=True)

    with opened_warm(strategy, TABLE) as fetcher:
        flight: deque[tuple[int, Ticket]] = deque()
        for number, ids in enumerate(given):
            if slow == "fetch":
                sleep_on(own_streams(fetcher))
            passed = ids.clone()
            flight.append((number, fetcher.submit(passed)))
            passed.zero_()  # allowed as soon as submit has returned
            if len(flight) > fetcher.lookahead:
                read(*flight.popleft())
        while flight:
            read(*flight.popleft())
        torch.cuda.synchronize()
    for ids, rows in zip(given, found, strict=True):
        assert same_bytes(rows, reference_gather(TABLE, ids)) is None


@pytest.mark.parametrize("strategy", [v for v in VARIANTS if v.id not in WAITING])
def test_the_host_waits_for_no_training(strategy):
    """Nor is there a wait too many: two fetches are queued while all of the training still is."""
    if os.environ.get("STANDIN_KERNELS") and f"{strategy.name}-{strategy.variant}".startswith(
        ON_STANDIN
    ):
        pytest.skip("under a stand-in for CUDA: an operator of torch waits for the stream")
    with opened_warm(strategy, TABLE) as fetcher:
        sleep_on([torch.cuda.current_stream()] * 10)
        trained = torch.cuda.current_stream().record_event()
        for ids in batches(2):
            fetcher.submit(ids).result()
        assert not trained.query()


@pytest.mark.parametrize("strategy", VARIANTS)
def test_a_caller_may_go_over_to_another_stream(strategy):
    """The first fetch, still waiting on a stream that sleeps, must not write over the second."""
    first, second = batches(2)
    slow, other = torch.cuda.Stream(), torch.cuda.Stream()
    with opened_warm(strategy, TABLE) as fetcher:
        sleep_on([slow])
        with torch.cuda.stream(slow):
            fetcher.submit(first).result()
        with torch.cuda.stream(other):
            rows = fetcher.submit(second).result()
            other.synchronize()
        slow.synchronize()
        assert same_bytes(rows, reference_gather(TABLE, second)) is None


@pytest.mark.parametrize("strategy", VARIANTS)
def test_the_table_may_change_once_the_path_is_closed(strategy):
    """So may the memory that it staged rows in, which torch's allocator has back then.

    The table is page-locked by torch, so that closing has nothing to unregister.
    """
    table = TABLE.clone().pin_memory()
    (ids,) = batches(1)
    stream = torch.cuda.Stream()
    fetcher = opened_warm(strategy, table)
    sleep_on([stream])
    with torch.cuda.stream(stream):
        rows = fetcher.submit(ids).result()
        fetcher.close()
        table.zero_()
        taken = [page_locked(4000, 64).zero_() for _ in range(4)]
    torch.cuda.synchronize()
    assert len(taken) == 4
    assert same_bytes(rows, reference_gather(TABLE, ids)) is None


def test_no_thread_reads_the_table_once_the_path_is_closed():
    fetcher = opened_warm(build("cpu_gather", {"mode": "prefetch"}), TABLE)
    assert isinstance(fetcher, CudaStagedFetcher)
    for _ in range(2):
        fetcher.submit(torch.arange(len(TABLE)))
    fetcher.close()
    assert not fetcher._path.cpu.native.usable
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread of others that has just ended
            names.append((task / "comm").read_text())
    assert not [name for name in names if name.startswith(NAME)]
    assert "gatherbench-fetch" not in {thread.name for thread in threading.enumerate()}


def test_ids_on_the_gpu_are_kept_until_they_are_read():
    """Neither what the caller does to them nor the allocator may change what is being fetched."""
    (wanted,) = batches(1)
    with opened_warm(build("async_zero_copy", {"budget": "10"}), TABLE) as fetcher:
        ids = wanted.to(CUDA)
        spare = [torch.empty_like(ids) for _ in range(4)]
        found = page_locked(len(ids), 64)
        del spare  # what comes next need not ask the driver for memory
        sleep_on(own_streams(fetcher))
        ticket = fetcher.submit(ids)
        ids.zero_()
        taken = [torch.zeros_like(ids) for _ in range(4)]
        found.copy_(ticket.result(), non_blocking=True)
        torch.cuda.synchronize()
    assert len(taken) == 4
    assert same_bytes(found, reference_gather(TABLE, wanted)) is None


@pytest.mark.parametrize("strategy", VARIANTS)
def test_ids_may_still_be_on_their_way(strategy):
    """Nobody looks at them before the gather does."""
    with opened_warm(strategy, TABLE) as fetcher:
        if fetcher.ids_device.type == "cpu":
            pytest.skip("takes its ids from the host")
        for wanted in batches(4):
            given, found = wanted.pin_memory(), page_locked(len(wanted), 64)
            ids, *spare = [torch.zeros_like(wanted, device=CUDA) for _ in range(5)]
            torch.cuda.synchronize()
            del spare  # a copy that is read too early holds zeros
            torch.cuda._sleep(SLEEP)
            ids.copy_(given, non_blocking=True)
            ticket = fetcher.submit(ids)
            ids.zero_()  # allowed as soon as submit has returned
            found.copy_(ticket.result(), non_blocking=True)
            torch.cuda.synchronize()
            assert same_bytes(found, reference_gather(TABLE, wanted)) is None


def test_the_gather_waits_for_what_the_order_pass_has_queued(monkeypatch):
    """torch.unique has to wait for the number of distinct ids; it promises no more than that."""

    def queued(ids: Tensor, order: Order) -> ReadOrder:
        found = read_order(ids, order)
        distinct = found.ids.cpu().pin_memory()
        found.ids.zero_()
        torch.cuda._sleep(SLEEP)
        found.ids.copy_(distinct, non_blocking=True)
        return found

    (ids,) = batches(1)
    found = page_locked(len(ids), 64)
    with opened_warm(build("aligned_zero_copy", {"order": "unique"}), TABLE) as fetcher:
        monkeypatch.setattr(cuda_kernel_fetcher, "read_order", queued)
        found.copy_(fetcher.submit(ids).result(), non_blocking=True)
        torch.cuda.synchronize()
    assert same_bytes(found, reference_gather(TABLE, ids)) is None


@pytest.mark.parametrize("name", ["cpu_gather", "async_zero_copy"])
def test_rows_that_nobody_waits_for_are_not_handed_on(name):
    """A fetcher is dropped in mid-fetch: its buffer stays taken until the fetch has written it."""
    fetcher = opened_warm(build(name), TABLE.clone().pin_memory())
    (stream,) = own_streams(fetcher)
    ids = torch.arange(4000)
    address = fetcher.submit(ids).result().data_ptr()
    torch.cuda.synchronize()
    sleep_on([stream] * 10)
    for _ in range(fetcher.lookahead + 1):
        left = fetcher.submit(ids)
    gone = weakref.ref(fetcher)
    del left, fetcher
    fresh = [torch.empty(4000, 64, device=CUDA) for _ in range(8)]
    assert gone() is None
    assert not stream.query(), "something has waited for the fetch: nothing is shown"
    assert address not in {tensor.data_ptr() for tensor in fresh}


@pytest.mark.parametrize("strategy", VARIANTS)
def test_buffers_outgrown_on_another_stream_are_kept(strategy):
    """They come from this stream's memory, and must not go back to it while the other works."""
    other = torch.cuda.Stream()
    ids, more = torch.arange(4000), torch.arange(4001)

    def outgrow(fetcher: Fetcher) -> None:
        for _ in range(2):
            fetcher.submit(more).result()

    with opened_warm(strategy, TABLE) as cached, torch.cuda.stream(other):
        outgrow(cached)  # leaves with the allocators what the next one will ask for
    with opened_warm(strategy, TABLE) as fetcher:
        sleep_on([other] * 5)
        with torch.cuda.stream(other):
            rows = fetcher.submit(ids).result()
            outgrow(fetcher)
        taken = [torch.zeros(4000, 64, device=CUDA) for _ in range(6)]
        taken += [torch.zeros(4000, dtype=torch.int64, device=CUDA) for _ in range(6)]
        torch.cuda.synchronize()
    assert not any(bool(tensor.any()) for tensor in taken), "a fetch wrote to what was handed on"
    assert same_bytes(rows, reference_gather(TABLE, ids)) is None


@pytest.mark.parametrize("in_place", [False, True])
def test_edges_drawn_on_the_gpu_are_kept_until_they_are_read(in_place):
    """A minibatch that is dropped while its training is queued must not be drawn over."""
    generator = torch.Generator().manual_seed(0)
    graph = (torch.arange(0, 20_001, 10), torch.randint(0, 2000, (20_000,), generator=generator))
    arrays = [part.numpy() for part in graph]
    on_gpu = DeviceSampler(*arrays, (5, 3), CUDA, in_place=in_place)
    on_host = NeighborSampler(*arrays, (5, 3))
    seeds = torch.arange(256)
    wanted = [on_host.sample(seeds, number).edges for number in range(4)]
    found = [[page_locked(*e.shape, dtype=e.dtype) for e in edges] for edges in wanted]
    on_gpu.sample(seeds, 0)
    for number, room in enumerate(found):
        batch = on_gpu.sample(seeds, number)
        torch.cuda._sleep(SLEEP)
        for there, edges in zip(room, batch.edges, strict=True):
            there.copy_(edges, non_blocking=True)
        del batch, edges
    torch.cuda.synchronize()
    for room, expected in zip(found, wanted, strict=True):
        assert all(map(torch.equal, room, expected))
