"""What a minibatch in steady state asks of a GPU, counted by the stand-in.

A count is the same on every machine, so what brought it down stays.
"""

import os
from pathlib import Path

import counting
import pytest
from counting import Minibatch, counted

pytestmark = pytest.mark.skipif(
    not os.environ.get("STANDIN_KERNELS"), reason="only the stand-in for CUDA counts"
)
TABLE = Path(__file__).with_name("counts.csv")
#: Paths whose rows no CPU gathers: ids that the GPU drew stay there, and nobody waits for it.
ON_GPU = [
    ("unified_zero_copy", {}),
    ("unified_zero_copy", {"memory": "managed"}),
    ("aligned_zero_copy", {}),
    ("aligned_zero_copy", {"order": "sorted"}),
    ("async_zero_copy", {}),
    ("cached_zero_copy", {}),
    ("all_in_gpu", {}),
    ("no_fetch", {}),
]


@pytest.mark.parametrize("sampling", ["gpu", "uva"])
@pytest.mark.parametrize(("name", "params"), ON_GPU, ids=str)
def test_the_thread_that_trains_waits_for_sizes_alone_and_moves_no_id(name, params, sampling):
    found = counted(name, params, sampling)
    drawn = found.sampler
    assert (found.training.waits, drawn.waits) == (1, 1), "of a minibatch that is two steps ahead"
    # The seeds there and the sizes back; ids or rows would be one more for each minibatch.
    assert (round(found.training.to_device), found.training.to_host) == (1, 1)
    assert (drawn.to_device, drawn.to_host) == (1, 1)
    assert (found.every.events, found.every.allocations) == (0, 0)
    most = {"no_fetch": 0, "cached_zero_copy": 4}.get(name, 3)
    assert found.fetch.launches + found.fetch.operators <= most
    layers = len(counting.WORKLOAD.fanouts)
    assert (drawn.launches, drawn.operators) == (4 * layers, 2 * layers)


def test_a_path_that_gathers_on_the_cpu_fetches_the_ids_itself():
    """And the counters see it."""
    found = counted("cpu_gather", {"mode": "pinned"}, "gpu")
    assert found.training.to_host - found.sampler.to_host == 1, "the ids"
    assert found.training.to_device - found.sampler.to_device == 1, "the rows"
    assert found.training.waits > found.sampler.waits


def test_a_captured_step_is_few_calls_however_many_operations_it_has():
    """The labels and what fills them up, the edges of two layers, and the replay; copies of rows,
    labels and loss come on top, and two that torch makes for a replay with dropout, which the
    stand-in does not. Nothing waits."""
    issued, captured = (counted("no_fetch", {}, "gpu", step) for step in ("issued", "captured"))
    assert captured.every.operators - captured.sampler.operators == 5
    assert issued.every.operators - issued.sampler.operators == 48
    assert captured.training.waits == issued.training.waits == 1
    assert (captured.every.events, captured.every.allocations) == (0, 0)
    assert (round(captured.training.to_device), captured.training.to_host) == (1, 1)


@pytest.mark.parametrize("sampling", ["gpu", "live"])
@pytest.mark.parametrize(("name", "params"), counting.PATHS, ids=str)
def test_the_table_holds(name, params, sampling):
    words = f"{' '.join((name, *params.values()))},{sampling},"
    text = TABLE.read_text(encoding="utf-8")
    (line,) = [one for one in text.splitlines() if one.startswith(words)]
    assert line.removeprefix(words).split(",") == numbers(counted(name, params, sampling))


def numbers(found: Minibatch) -> list[str]:
    return [f"{round(number)}" for number in counting.columns(found)]
