"""Where the table lies, who waits for whom, what is left behind: what values alone do not show."""

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from gpu_variants import CUDA, VARIANTS, opened, runnable

from gatherbench.kernels.cuda_calls import CudaCallError, pointer_kind
from gatherbench.kernels.host_memory import empty_table
from gatherbench.kernels.managed_memory import empty
from gatherbench.kernels.mapped_memory import HostRegistration
from gatherbench.kernels.reference import reference_gather, same_bytes
from gatherbench.strategies import conformance
from gatherbench.strategies.conformance import open_known
from gatherbench.strategies.cuda_kernel_fetcher import BUDGETS, OverlappedFetcher
from gatherbench.strategies.registry import build

ZERO_COPY = ("unified_zero_copy", "aligned_zero_copy", "async_zero_copy")


MANAGED = [
    ("unified_zero_copy", {}),
    ("aligned_zero_copy", {"order": "unique"}),
    ("async_zero_copy", {"budget": "10"}),
]


@pytest.mark.parametrize(("name", "params"), MANAGED)
def test_managed_memory_is_what_is_read(name, params):
    table = conformance.random_table(1000, 33, torch.float32)
    ids = torch.randint(0, 1000, (700,))
    with opened(name, table, memory="managed", **params) as fetcher:
        assert pointer_kind(fetcher.table.address) == "Managed"
        assert pointer_kind(table.data_ptr()) == "Unregistered"
        assert fetcher._order == params.get("order", "given")
        assert same_bytes(fetcher.submit(ids).result(), reference_gather(table, ids)) is None


@pytest.mark.parametrize(("name", "params"), MANAGED)
def test_a_table_that_lies_in_managed_memory_is_read_in_place_and_stays(name, params):
    """One table on the host, none on the GPU."""
    rows = 1 << 20
    table = empty((rows, 64), torch.float32)  # 256 MiB
    table.copy_(torch.arange(rows)[:, None])
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    with opened(name, table, memory="managed", **params) as fetcher:
        assert fetcher.memory.tensor.data_ptr() == table.data_ptr()
        ids = torch.randperm(rows)[: 1 << 18]
        assert torch.equal(fetcher.submit(ids).result()[:, 7].cpu(), ids.float())
        torch.cuda.synchronize()
        grown = free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
        assert grown < 128 << 20, "the table went to the GPU"
        named = {step.metric: step.value for step in fetcher.setup}
        assert named["managed_copy"] == 0
    with pytest.raises(ValueError, match="cannot be registered"):
        HostRegistration(table)


def test_the_process_under_mps_has_no_managed_memory():
    strategy = build("async_zero_copy", {"provider": "mps", "memory": "managed"})
    assert "registers the copy" in str(strategy.skip(CUDA, 1 << 20))


@pytest.mark.parametrize("name", ZERO_COPY)
def test_a_registered_table_stays_where_it_is(name):
    table = empty_table((1 << 20, 64), torch.float32)  # 256 MiB
    assert pointer_kind(table.data_ptr()) == "Unregistered"
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    with opened(name, table, **({"budget": "10"} if name == "async_zero_copy" else {})) as fetcher:
        assert pointer_kind(fetcher.table.address) == "Host"
        assert pointer_kind(table.data_ptr()) == "Host"
        fetcher.submit(torch.arange(4)).result()
        torch.cuda.synchronize()
        assert free - torch.cuda.mem_get_info()[0] < 128 << 20, "the table went to the GPU"
        named = {step.metric: step.value for step in fetcher.setup}
        assert named["registered"] == table.nbytes
        assert named["register_time"] > 0
    assert pointer_kind(table.data_ptr()) == "Unregistered"


def test_the_resident_table_lies_in_gpu_memory():
    with opened("all_in_gpu", torch.ones(100, 5)) as fetcher:
        assert pointer_kind(fetcher.table.address) == "Device"


def test_a_missing_wait_would_be_seen():
    """Without the wait of ``result`` a copy must see other rows, or the tests of order see nothing.

    The buffer is filled with zeros beforehand and the gather is held back by a sleep.
    """
    table = conformance.random_table(20_000, 64, torch.float32)
    ids = torch.randint(0, 20_000, (5000,))
    with opened("async_zero_copy", table, budget="5") as fetcher:
        for _ in range(2):
            fetcher.submit(ids).result().zero_()
        torch.cuda.synchronize()
        assert fetcher._side is not None
        with torch.cuda.stream(fetcher._side):
            torch.cuda._sleep(500_000_000)
        place = fetcher._ring._next
        ticket = fetcher.submit(ids)
        early = fetcher._rows[place].rows(ids.numel()).clone()
        difference = same_bytes(early, reference_gather(table, ids))
        assert difference is not None
        assert same_bytes(ticket.result(), reference_gather(table, ids)) is None


@pytest.mark.parametrize("strategy", VARIANTS)
def test_memory_is_constant_over_three_thousand_batches(strategy):
    table = conformance.random_table(10_000, 32, torch.float32)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 10_000, (64 + 8 * k,), generator=generator) for k in range(16)]
    process = psutil.Process()
    with open_known(runnable(strategy), table, CUDA) as fetcher:
        given = [ids.to(fetcher.ids_device) for ids in batches]

        def run(count: int) -> tuple[int, int, int]:
            flight = []
            for k in range(count):
                flight.append(fetcher.submit(given[k % 16]))
                if len(flight) > fetcher.lookahead:
                    flight.pop(0).result()
            for ticket in flight:
                ticket.result()
            torch.cuda.synchronize()
            used = torch.cuda.mem_get_info()[0]
            return torch.cuda.memory_allocated(), -used, process.memory_info().rss

        before = run(300)
        after = run(3000)
    assert after[0] <= before[0] + (1 << 20), "torch's allocations grew"
    assert after[1] <= before[1] + (64 << 20), "GPU memory in use grew"
    assert after[2] <= before[2] + (64 << 20), "host memory grew"


@pytest.mark.parametrize("name", ZERO_COPY)
def test_an_exception_leaves_nothing_registered(name):
    table = torch.ones(5000, 64)

    def interrupted() -> None:
        with runnable(build(name)).open(table, CUDA) as fetcher:
            fetcher.submit(torch.arange(100))
            raise KeyError("mid-way")

    with pytest.raises(KeyError, match="mid-way"):
        interrupted()
    assert pointer_kind(table.data_ptr()) == "Unregistered"


def test_two_fetchers_share_one_registration():
    table = torch.ones(5000, 64)
    first, second = opened("unified_zero_copy", table), opened("aligned_zero_copy", table)
    first.close()
    assert pointer_kind(table.data_ptr()) == "Host"
    assert second.submit(torch.arange(10)).result().all()
    second.close()
    assert pointer_kind(table.data_ptr()) == "Unregistered"


def test_page_locked_memory_of_torch_is_used_as_it_is():
    table = torch.ones(5000, 64).pin_memory()
    with opened("aligned_zero_copy", table) as fetcher:
        assert fetcher.submit(torch.arange(10)).result().all()
    assert table.is_pinned()


def test_a_registration_that_nobody_closes_dies_with_its_object():
    table = torch.ones(5000, 64)
    registration = HostRegistration(table)
    assert pointer_kind(table.data_ptr()) == "Host"
    del registration
    assert pointer_kind(table.data_ptr()) == "Unregistered"


def test_a_read_only_file_is_registered_or_the_remedy_is_named(tmp_path):
    rows = np.arange(64_000, dtype=np.float32).reshape(1000, 64)
    np.save(tmp_path / "features.npy", rows)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once a process that it is not writable
        table = torch.from_numpy(mapped)
    refused = None
    try:
        registration = HostRegistration(table)
    except CudaCallError as error:
        refused = str(error)
    if refused is not None:
        assert "into memory first" in refused
        pytest.skip(f"this machine registers no read-only file: {refused}")
    assert registration._read_only
    registration.close()
    ids = torch.randperm(1000)
    with opened("aligned_zero_copy", table) as fetcher:
        assert torch.equal(fetcher.submit(ids).result().cpu(), torch.from_numpy(rows)[ids])


DIES = """
import torch
from gatherbench.strategies.registry import build
table = torch.ones(5000, 64)
fetcher = build("async_zero_copy", {"budget": "10"}).open(table, torch.device("cuda"))
fetcher.submit(torch.arange(100))
raise RuntimeError("died on purpose")
"""

SHARES = """
import sys
import torch
from gatherbench.strategies.registry import build
table = torch.from_file(sys.argv[1], shared=True, size=64_000).view(1000, 64)
with build("aligned_zero_copy").open(table, torch.device("cuda")) as fetcher:
    rows = fetcher.submit(torch.arange(1000)).result().cpu()
assert torch.equal(rows, torch.arange(64_000.0).view(1000, 64))
print("same")
"""


def run_script(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_that_dies_by_an_exception_ends_like_one():
    died = run_script(DIES)
    assert died.returncode == 1, died.stderr  # no abort, no signal
    assert died.stderr.count("Traceback") == 1, died.stderr
    assert "died on purpose" in died.stderr


def test_processes_share_one_table_and_each_registers_it():
    path = Path(f"/dev/shm/gatherbench-test-{psutil.Process().pid}")
    try:
        table = torch.from_file(str(path), shared=True, size=64_000)
        table.copy_(torch.arange(64_000.0))
        with HostRegistration(table):
            done = [run_script(SHARES, str(path)) for _ in range(2)]
    finally:
        path.unlink(missing_ok=True)
    assert [(p.returncode, p.stdout.strip()) for p in done] == [(0, "same")] * 2, done


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda f: f.submit(torch.tensor([5000])), IndexError),
        (lambda f: f.submit(torch.tensor([-1])), IndexError),
    ],
)
def test_errors_come_before_anything_is_launched(action, error):
    with opened("async_zero_copy", torch.ones(5000, 64), budget="10") as fetcher:
        rows = fetcher.submit(torch.arange(9)).result()
        with pytest.raises(error):
            action(fetcher)
        assert rows.all()


@pytest.mark.parametrize("order", ["given", "sorted", "unique"])
@pytest.mark.parametrize("bad", [5000, -1, -(2**62)])
def test_a_bad_id_on_the_gpu_is_named_behind_the_epoch_and_when_it_is_closed(order, bad):
    fetcher = opened("aligned_zero_copy", torch.ones(5000, 64), order=order)
    ids = torch.tensor([4, bad, 7], device="cuda")
    rows = fetcher.submit(ids).result()
    assert rows.sum(dim=1).tolist() == [64, 0, 64]
    with pytest.raises(IndexError, match=rf"hold {bad}: the table has rows 0\.\.4999"):
        fetcher.check_fetched()
    fetcher.submit(ids).result()
    with pytest.raises(IndexError, match=f"hold {bad}"):
        fetcher.close()


# Beside training: the share of the GPU, and other threads.

SHARES = {percent / 100 for percent in BUDGETS}


def test_the_sweep_records_its_curve():
    table = empty_table((1 << 19, 64), torch.float32)  # 128 MiB: large enough to be swept
    with opened("async_zero_copy", table) as fetcher:
        assert isinstance(fetcher, OverlappedFetcher)
        named = {step.metric: step.value for step in fetcher.setup}
        assert named["budget"] == 0.1
        assert all(p.max_blocks for p in fetcher.points.values())
        busy = torch.randn(2048, 2048, device=CUDA)
        found = {s.metric: s.value for s in fetcher.tune(torch.arange(9999), lambda: busy @ busy)}
        assert found["budget_beside_training"] in SHARES
        curve = {k: v for k, v in found.items() if k.endswith("_step_time")}
        assert len(curve) == len(BUDGETS) + 2, "and of training alone, and of a fetch"
        assert all(v > 0 for v in curve.values())
        ids = torch.randperm(1 << 19)[:9999]
        assert same_bytes(fetcher.submit(ids).result(), reference_gather(table, ids)) is None


def test_a_thread_that_has_never_used_the_gpu_can_gather():
    table = conformance.random_table(5000, 64, torch.float32)
    ids = torch.randperm(5000)
    with opened("aligned_zero_copy", table) as fetcher, ThreadPoolExecutor(1) as other:
        rows = other.submit(lambda: fetcher.submit(ids).result().clone()).result()
    assert same_bytes(rows, reference_gather(table, ids)) is None
