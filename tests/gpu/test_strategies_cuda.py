"""The CUDA paths keep the contract too; their order is of ``test_ordering_cuda.py``."""

import pytest
import torch
from gpu_variants import CUDA, VARIANTS, runnable

from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.registry import build


@pytest.mark.parametrize("strategy", [*VARIANTS, build("no_fetch")], ids=str)
def test_contract(strategy):
    conformance.check_strategy(runnable(strategy), CUDA)


@pytest.mark.parametrize("strategy", VARIANTS)
def test_results_may_be_used_on_another_stream(strategy):
    table = conformance.random_table(50_000, 128, torch.float32)
    ids = torch.randint(0, 50_000, (30_000,))
    with open_known(runnable(strategy), table, CUDA) as fetcher:
        ticket = fetcher.submit(ids.to(fetcher.ids_device))
        with torch.cuda.stream(torch.cuda.Stream()):
            copy = ticket.result().clone()
            torch.cuda.current_stream().synchronize()
    told = "result() has to make the current stream wait for the fetch (cuda_fetcher.after)"
    assert same_bytes(copy, reference_gather(table, ids)) is None, told


# What lies in a file that has just been written is in the page cache still: a case of the harness
# puts it out.
@pytest.mark.parametrize("strategy", [v for v in VARIANTS if "file" not in v.values[0].needs])  # type: ignore[union-attr]
def test_the_table_lies_where_the_strategy_says(strategy):
    table = conformance.random_table(50_000, 128, torch.float32)
    with open_known(runnable(strategy), table, CUDA) as fetcher:
        residency = fetcher.residency()
    assert all(one.found == one.expected for one in residency)


def test_a_table_larger_than_the_gpu_is_skipped_with_its_size():
    reason = build("all_in_gpu").skip(CUDA, table_bytes=1 << 50)
    assert str(reason).startswith("no_memory: the table takes")
