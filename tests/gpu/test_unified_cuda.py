"""``gatherbench.unified`` on a GPU: callers on several streams and threads share one path's rows.

The tests of ordering drive fetchers as the harness does, from one stream. Here whoever comes second
must neither overwrite rows that are still to be read nor get memory that is taken away.
"""

import threading

import pytest
import torch
from gpu_variants import CUDA, VARIANTS, runnable
from torch import Tensor

import gatherbench
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies.unified_tensor import UnifiedTensor

#: GPU cycles: longer than any host needs to queue a few fetches.
SLEEP = 40_000_000
TABLE = torch.randn((20_000, 64), generator=torch.Generator().manual_seed(0))


#: A tensor knows no graph, no file and no ranks.
KNOWING_NOTHING = [v for v in VARIANTS if not v.values[0].needs]  # type: ignore[union-attr]


def draw(seed: int) -> Tensor:
    return torch.randint(20_000, (3000,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("strategy", KNOWING_NOTHING)
def test_rows_that_one_stream_still_reads_are_not_overwritten_by_another(strategy):
    first, other = torch.cuda.Stream(), torch.cuda.Stream()
    found = torch.empty(3000, 64, pin_memory=True)
    with UnifiedTensor(TABLE, runnable(strategy), CUDA, copy=False) as features:
        for k in range(4):
            _ = features[draw(k)]
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            rows = features[draw(4)]
            torch.cuda._sleep(SLEEP)
            found.copy_(rows, non_blocking=True)
        with torch.cuda.stream(other):
            for k in range(3):
                _ = features[draw(k)]
        torch.cuda.synchronize()
    assert same_bytes(found, reference_gather(TABLE, draw(4))) is None


@pytest.mark.parametrize("strategy", KNOWING_NOTHING)
def test_threads_with_a_stream_each_get_their_own_rows(strategy):
    wrong: list[str | None] = []

    def work(begin: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for k in range(begin, begin + 5):
                features.prefetch(draw(k))
                rows = features[draw(k)].cpu()
                wanted = reference_gather(TABLE, draw(k))
                wrong.append(same_bytes(rows, wanted))

    with UnifiedTensor(TABLE, runnable(strategy), CUDA) as features:
        threads = [threading.Thread(target=work, args=(begin,)) for begin in (0, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [None] * 10


@pytest.mark.parametrize("pinned", [False, True])
def test_a_slice_outlives_its_whole(pinned):
    table = TABLE.pin_memory() if pinned else TABLE.clone()
    ids = torch.arange(200)
    whole = gatherbench.unified(table, "aligned_zero_copy", CUDA)
    with gatherbench.unified(table[100:300], "aligned_zero_copy", CUDA) as part:
        whole.close()
        assert same_bytes(part[ids].cpu(), TABLE[100:300]) is None
        if pinned:  # nothing of ours is registered, in whatever order they are opened
            with gatherbench.unified(table, "aligned_zero_copy", CUDA) as again:
                assert same_bytes(again[ids].cpu(), TABLE[:200]) is None
