"""The CUDA paths keep the contract too, and never reuse a buffer that a queued copy still needs."""

from __future__ import annotations

import pytest
import torch
from gpu_variants import CUDA, VARIANTS, runnable

from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.base import Strategy, Ticket
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.registry import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]


@pytest.mark.parametrize("strategy", VARIANTS)
def test_contract(strategy: Strategy) -> None:
    conformance.check_strategy(runnable(strategy), CUDA)


@pytest.mark.parametrize("strategy", VARIANTS)
def test_no_buffer_is_overwritten_while_a_slow_consumer_reads_it(strategy: Strategy) -> None:
    """The consumer is queued behind a long sleep; each batch must still see its own rows."""
    table = conformance.random_table(50_000, 128, torch.float32)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 50_000, (20_000 - k,), generator=generator) for k in range(8)]
    seen = []
    flight: list[Ticket] = []
    with open_known(runnable(strategy), table, CUDA) as fetcher:
        for ids in batches:
            flight.append(fetcher.submit(ids.to(fetcher.ids_device)))
            if len(flight) > fetcher.lookahead:
                rows = flight.pop(0).result()
                torch.cuda._sleep(50_000_000)
                seen.append(rows.clone())
        seen += [ticket.result().clone() for ticket in flight]
    for ids, rows in zip(batches, seen, strict=True):
        assert same_bytes(rows, reference_gather(table, ids)) is None


@pytest.mark.parametrize("strategy", VARIANTS)
def test_results_may_be_used_on_another_stream(strategy: Strategy) -> None:
    table = conformance.random_table(50_000, 128, torch.float32)
    ids = torch.randint(0, 50_000, (30_000,))
    with open_known(runnable(strategy), table, CUDA) as fetcher:
        ticket = fetcher.submit(ids.to(fetcher.ids_device))
        with torch.cuda.stream(torch.cuda.Stream()):
            copy = ticket.result().clone()
            torch.cuda.current_stream().synchronize()
    told = "result() has to make the current stream wait for the fetch (cuda_fetcher.after)"
    assert same_bytes(copy, reference_gather(table, ids)) is None, told


@pytest.mark.parametrize("strategy", VARIANTS)
def test_the_table_lies_where_the_strategy_says(strategy: Strategy) -> None:
    table = conformance.random_table(50_000, 128, torch.float32)
    with open_known(runnable(strategy), table, CUDA) as fetcher:
        residency = fetcher.residency()
    assert all(one.found == one.expected for one in residency)


def test_a_table_larger_than_the_gpu_is_skipped_with_its_size() -> None:
    reason = build("all_in_gpu").skip(CUDA, table_bytes=1 << 50)
    assert str(reason).startswith("no_memory: the table takes")
