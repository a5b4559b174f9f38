"""The host gather: right for every id, width and number of threads, and safe for every id."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gatherbench.kernels import host_gather, native_threads
from gatherbench.kernels.host_gather import HostGather, Tensors, available_cores
from gatherbench.kernels.native_threads import NAME, SLOTS, Job, NativeThreads
from gatherbench.kernels.reference import reference_gather, same_bytes

ID_DTYPES = (torch.int32, torch.int64)


@pytest.fixture(scope="module")
def cpu() -> Iterator[HostGather]:
    with HostGather(threads=3) as gather:
        yield gather


@pytest.fixture
def eager_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits even the smallest gather over the threads."""
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1)


def random_bytes(rows: int, width: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(0, 256, (rows, width * dtype.itemsize), dtype=torch.uint8).view(dtype)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 300),
    row_bytes=st.one_of(st.integers(1, 300), st.sampled_from([2408, 4096, 8192, 20_000])),
    count=st.integers(0, 200),
    kind=st.sampled_from(ID_DTYPES),
    seed=st.integers(0, 2**31),
    share=st.sampled_from([1, 4096, 1 << 40]),
)
def test_any_rows_any_width_any_split(rows, row_bytes, count, kind, seed, share):
    torch.manual_seed(seed)
    table = random_bytes(rows, row_bytes)
    ids = torch.randint(0, rows, (count,), dtype=kind)
    order = torch.randperm(count)
    given_order, scattered = random_bytes(count, row_bytes), random_bytes(count, row_bytes)
    with pytest.MonkeyPatch.context() as patch, HostGather(threads=3) as cpu:
        patch.setattr(host_gather, "CHUNK_BYTES", share)
        cpu.gather(table, ids, given_order)
        cpu.gather(table, ids[order].contiguous(), scattered, order)
    expected = reference_gather(table, ids)
    assert same_bytes(given_order, expected) is None
    assert same_bytes(scattered, expected) is None


def test_a_part_of_a_batch_leaves_the_other_rows_alone(cpu, eager_threads):
    """As where some rows come from the table and some from a cache."""
    table, cache = random_bytes(50, 129), random_bytes(9, 129)
    out = torch.full((20, 129), 7, dtype=torch.uint8)
    far, near = torch.tensor([17, 3, 0, 11]), torch.tensor([19, 5])
    cpu.gather(table, torch.tensor([4, 4, 49, 0]), out, far)
    cpu.gather(cache, torch.tensor([8, 0]), out, near)
    assert same_bytes(out[far], table[[4, 4, 49, 0]]) is None
    assert same_bytes(out[near], cache[[8, 0]]) is None
    rest = [i for i in range(20) if i not in {*far.tolist(), *near.tolist()}]
    assert bool((out[rest] == 7).all())
    cpu.gather(cache[:0], far[:0], out, near[:0])


def test_rows_beyond_4_gib(cpu):
    rows, width = 1_100_000, 4096
    table = torch.from_numpy(np.zeros((rows, width), np.uint8))  # 4.5 GB, hardly a page present
    ids = torch.tensor([0, rows - 1, 1_048_576, 1_048_575], dtype=torch.int32)
    table[ids.long()] = random_bytes(4, width)
    out = torch.zeros((4, width), dtype=torch.uint8)
    cpu.gather(table, ids, out)
    assert same_bytes(out, reference_gather(table, ids)) is None


@pytest.mark.parametrize("kind", ID_DTYPES)
@pytest.mark.parametrize("bad", [-1, 40, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("where", [0, 17, 99])
def test_bad_id_is_named_and_never_read(cpu, eager_threads, kind, bad, where):
    ids = torch.zeros(100, dtype=kind)
    ids[where] = bad
    with pytest.raises(IndexError, match=rf"ids\[{where}\] = {bad}: the table has rows 0..39"):
        cpu.gather(random_bytes(40, 64), ids, random_bytes(100, 64))


@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_bad_position_is_named_and_never_written(cpu, bad):
    positions = torch.tensor([0, 1, bad, 3, 4])
    with pytest.raises(IndexError, match=rf"positions\[2\] = {bad} of 5"):
        cpu.gather(random_bytes(5, 8), torch.arange(5), random_bytes(5, 8), positions)
    with pytest.raises(IndexError, match=r"positions\[0\] = 9 of 9"):
        cpu.gather(random_bytes(5, 8), torch.arange(1), random_bytes(9, 8), torch.tensor([9]))


WRONG_ARGUMENTS = {
    "table of one dimension": ({"table": torch.zeros(8)}, ValueError, r"table: .*\[N, D\]"),
    "table on meta": ({"table": torch.zeros(8, 4, device="meta")}, ValueError, "table: .*meta"),
    "table transposed": ({"table": torch.zeros(4, 8).t()}, ValueError, "table: .*contiguous"),
    "ids of int16": ({"ids": torch.zeros(3, dtype=torch.int16)}, TypeError, "ids: .*int16"),
    "ids of two dimensions": ({"ids": torch.zeros(3, 1).long()}, ValueError, r"ids: .*\[B\]"),
    "ids with gaps": ({"ids": torch.zeros(6).long()[::2]}, ValueError, "ids: .*contiguous"),
    "out of another dtype": ({"out": torch.zeros(3, 4).double()}, TypeError, "out: .*float64"),
    "out too short": ({"out": torch.zeros(2, 4)}, ValueError, r"out: .*\(3, 4\)"),
    "out too narrow": ({"out": torch.zeros(3, 3)}, ValueError, r"out: .*\(3, 4\)"),
    "out on meta": ({"out": torch.zeros(3, 4, device="meta")}, ValueError, "out: .*meta"),
    "out too long without positions": ({"out": torch.zeros(4, 4)}, ValueError, r"out: .*\(3, 4\)"),
    "out too short for positions": (
        {"out": torch.zeros(2, 4), "positions": torch.arange(3)},
        ValueError,
        r"out: .*\(3, 4\)",
    ),
    "positions of int32": ({"positions": torch.arange(3).int()}, TypeError, "positions: .*int64"),
    "positions too few": ({"positions": torch.arange(2)}, ValueError, "positions: .*ids"),
    "positions beside then": (
        {"positions": torch.arange(3), "then": torch.zeros(3, 4)},
        ValueError,
        "give no positions",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(cpu, case):
    wrong, error, message = WRONG_ARGUMENTS[case]
    right = {"table": torch.ones(8, 4), "ids": torch.arange(3), "out": torch.zeros(3, 4)}
    with pytest.raises(error, match=message):
        cpu.gather(**(right | wrong))
    assert not bool(right["out"].any()), "written to in spite of the error"


def test_copy(cpu, eager_threads):
    source, out = random_bytes(7, 1001), random_bytes(7, 1001)
    cpu.copy(source, out)
    assert same_bytes(out, source) is None
    cpu.copy(source[:0], out[:0])
    with pytest.raises(ValueError, match="expected 7007 bytes"):
        cpu.copy(source, out[:6])
    with pytest.raises(ValueError, match=r"out: .*contiguous"):
        cpu.copy(source[:, :500].contiguous(), out[:, :500])


def test_uses_at_most_as_many_threads_as_told_and_none_for_little(monkeypatch):
    before, ours = set(threading.enumerate()), len(statuses())
    with HostGather(threads=3) as cpu:
        cpu.gather(random_bytes(50, 8), torch.arange(50), random_bytes(50, 8))
        assert len(statuses()) == ours
        monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1)
        cpu.gather(random_bytes(50, 8), torch.arange(50), random_bytes(50, 8))
        assert len(statuses()) == ours + 2, "the caller takes the third share itself"
        cpu.begin(random_bytes(50, 8), torch.arange(50), random_bytes(50, 8)).result()
        assert len(statuses()) == ours + 3, "who has begun it goes on"
    assert len(statuses()) == ours, "close() left threads"
    assert set(threading.enumerate()) == before
    cpu.close()
    with pytest.raises(RuntimeError, match="closed"):
        cpu.gather(random_bytes(5, 8), torch.arange(5), random_bytes(5, 8))


def test_threads_default_to_the_cores_at_hand():
    assert available_cores() == len(os.sched_getaffinity(0))
    with HostGather() as cpu:
        assert cpu.threads == available_cores()
    with pytest.raises(ValueError, match="threads = 0"):
        HostGather(0)


def test_several_threads_may_gather_at_once(cpu, eager_threads):
    table = random_bytes(500, 100)

    def work(seed: int) -> list[str | None]:
        generator = torch.Generator().manual_seed(seed)
        found = []
        for _ in range(30):
            ids = torch.randint(0, 500, (300,), generator=generator)
            out = torch.empty((300, 100), dtype=torch.uint8)
            cpu.gather(table, ids, out)
            found.append(same_bytes(out, reference_gather(table, ids)))
        return found

    with ThreadPoolExecutor(4) as pool:
        assert {d for found in pool.map(work, range(4)) for d in found} == {None}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_in_a_forked_child(eager_threads):
    """Runs without torch's own parallel operations, which no forked child may rely on."""
    table, ids = random_bytes(500, 100), torch.arange(499, 99, -1)
    out = torch.zeros((400, 100), dtype=torch.uint8)
    with HostGather(threads=3) as cpu:
        cpu.gather(table, ids, out)  # the parent's threads exist
        expected = bytes(out.numpy())
        out.zero_()
        child = os.fork()
        if child == 0:
            cpu.gather(table, ids, out)
            same = bytes(out.numpy()) == expected
            cpu.close()
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not bool(out.any()), "the child wrote into the parent's memory"


# --- the reference, by which all others are judged ---


def test_the_reference_has_the_rows_in_the_order_of_the_ids_byte_for_byte():
    bits = torch.tensor([[0x7FC00001, -0x80000000], [0x7F800001, 0x7FC00000]], dtype=torch.int32)
    table = bits.view(torch.float32)  # NaNs with payloads, -0.0
    rows = reference_gather(table, torch.tensor([1, 0, 1], dtype=torch.int32))
    assert rows.dtype == torch.float32
    assert rows.view(torch.int32).tolist() == bits[[1, 0, 1]].tolist()
    none = torch.empty(0, dtype=torch.int64)
    assert tuple(reference_gather(torch.zeros(4, 3).bfloat16(), none).shape) == (0, 3)
    assert tuple(reference_gather(torch.zeros(0, 3), none).shape) == (0, 3)


NAN = torch.tensor([[0x7FC00001]], dtype=torch.int32).view(torch.float32)
ZEROS, WIDE = torch.zeros(5, 4), torch.arange(12.0).view(3, 4)
CHANGED = ZEROS.clone()
CHANGED[2, 3], CHANGED[4, 0] = 1.0, 2.0


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (NAN, NAN.clone(), None),
        (NAN, torch.tensor([[float("nan")]]), "row 0, column 0: nan is not nan"),
        (torch.tensor([[0.0]]), torch.tensor([[-0.0]]), "row 0, column 0: 0.0 is not -0.0"),
        (ZEROS, CHANGED, "row 2, column 3: 0.0 is not 1.0 (2 of 5 rows differ)"),
        (ZEROS, ZEROS.double(), "dtype torch.float32 is not torch.float64"),
        (torch.zeros(1, 2), torch.zeros(2, 1), "shape (1, 2) is not (2, 1)"),
        (torch.zeros(0, 2), torch.zeros(0, 2), None),
        (WIDE[:, :2], WIDE[:, :2].clone(), None),  # a view with gaps
    ],
)
def test_same_bytes_says_what_differs(a, b, said):
    found = same_bytes(a, b)
    assert found is None if said is None else str(found).startswith(said)


def test_rows_go_by_the_numbers_they_are_given():
    assert str(same_bytes(ZEROS, CHANGED, [9, 8, 7, 6, 5])).startswith("row 7, column 3")


def jobs_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Job, int]]:
    """The jobs that native threads get from now on, and by how many of them each is done."""
    jobs: list[tuple[Job, int]] = []
    post = NativeThreads.post

    def noted(self: NativeThreads, job: Job, threads: int, held: object, *, helped: bool) -> int:
        jobs.append((job, threads))
        return post(self, job, threads, held, helped=helped)

    monkeypatch.setattr(NativeThreads, "post", noted)
    return jobs


def test_a_shared_gather_ends_with_small_chunks(monkeypatch):
    """All wait for the last chunk: of 4 MiB for 2 threads it is 256 KiB, and not 512."""
    table, ids = torch.zeros(10, 1024), torch.zeros(1024, dtype=torch.int64)
    with HostGather(2) as cpu:
        jobs = jobs_of(monkeypatch)
        cpu.gather(table, ids, torch.empty(1024, 1024))
        cpu.gather(table, ids[:100], torch.empty(100, 1024))
    (shared, two), (alone, one) = jobs
    assert (shared.total, shared.chunk, two) == (1024, 64, 2), "rows of 4 KiB, 8 turns each"
    assert (alone.total, alone.chunk, one) == (100, 128, 1), "all of it in this thread"


def test_each_chunk_is_copied_on_while_others_are_gathered(cpu, eager_threads):
    table, ids = random_bytes(500, 100), torch.randint(0, 500, (3000,))
    between, out = random_bytes(3000, 100), random_bytes(3000, 100)
    cpu.gather(table, ids, between, then=out)
    for rows in (between, out):
        assert same_bytes(rows, reference_gather(table, ids)) is None
    with pytest.raises(ValueError, match=r"out: expected shape"):
        cpu.gather(table, ids, between, then=out[:9])


def test_a_gather_that_was_begun_goes_on_and_tells_its_end(cpu, eager_threads):
    """More of them than there are slots, asked for in any order, and again."""
    table = random_bytes(500, 100)
    wanted = [torch.randint(0, 500, (70 + k,)) for k in range(SLOTS + 40)]
    rows = [random_bytes(len(ids), 100) for ids in wanted]
    begun = [cpu.begin(table, ids, out) for ids, out in zip(wanted, rows, strict=True)]
    for one, ids, out in reversed(list(zip(begun, wanted, rows, strict=True))):
        assert one.result() > 0
        assert one.result() == 0, "it is counted once"
        assert same_bytes(out, reference_gather(table, ids)) is None
    assert cpu.begin(table, wanted[0][:0], rows[0][:0]).result() >= 0
    bad = cpu.begin(table, torch.tensor([3, 500]), random_bytes(2, 100))
    for _ in range(2):
        with pytest.raises(IndexError, match=r"ids\[1\] = 500"):
            bad.result()


def test_what_was_begun_and_not_done_when_it_closes_is_dropped_by_name(monkeypatch):
    """Nobody waits for ever: no thread has it, as if an interrupt had come between."""
    cpu = HostGather(2)
    monkeypatch.setattr(NativeThreads, "_start", lambda *_: None)
    table = random_bytes(50, 8)
    begun = cpu.begin(table, torch.arange(50), random_bytes(50, 8))
    waiting = ThreadPoolExecutor(1).submit(begun.result)
    later = ThreadPoolExecutor(1).submit(cpu.native.wait, cpu.native.posted)
    cpu.close()
    with pytest.raises(RuntimeError, match="closed before this fetch began"):
        waiting.result(30)
    assert later.result(30) is None


def test_a_job_that_nobody_helps_is_done_when_its_slot_is_wanted(monkeypatch):
    """An interrupt may come between a gather's begin and the caller's part in it."""
    table, ids = random_bytes(50, 8), torch.arange(50)
    with HostGather(1) as cpu:
        out = [random_bytes(50, 8) for _ in range(SLOTS + 1)]
        tensors = [Tensors(table, ids, one, None, None) for one in out]
        left = [cpu._begin(one, helped=True) for one in tensors]
        assert same_bytes(out[0], table) is None, "by whoever wanted its slot"
        left[-1].result(help_first=True)
        assert same_bytes(out[-1], table) is None


def test_what_an_interrupt_left_no_longer_writes_when_a_buffer_is_filled_again(cpu, eager_threads):
    """Three are under way where a fetcher knows of one: all are waited for, and keep their ends."""
    table, ids = random_bytes(500, 100), torch.randint(0, 500, (3000,))
    out = [random_bytes(3000, 100) for _ in range(3)]
    begun = [cpu.begin(table, ids, one) for one in out]
    cpu.native.settle(1)
    assert all(same_bytes(one, reference_gather(table, ids)) is None for one in out)
    assert all(one.result() > 0 for one in begun)


def test_an_interrupt_behind_a_job_leaves_the_threads_right(monkeypatch, eager_threads):
    """It comes as soon as a job is posted: counts of Python and of the threads would differ."""
    real, interrupts = native_threads._post, [KeyboardInterrupt, None, None]

    def post(*arguments: object) -> None:
        real(*arguments)
        if interrupts and (error := interrupts.pop(0)):
            raise error

    table, ids = random_bytes(500, 100), torch.randint(0, 500, (3000,))
    with HostGather(3) as cpu:
        cpu.gather(table, ids, random_bytes(3000, 100))  # the threads have begun
        monkeypatch.setattr(native_threads, "_post", post)
        with pytest.raises(KeyboardInterrupt):
            cpu.begin(table, ids, random_bytes(3000, 100))
        for _ in range(SLOTS + 2):
            out = random_bytes(3000, 100)
            waiting = ThreadPoolExecutor(1).submit(cpu.begin(table, ids, out).result)
            assert waiting.result(60) > 0
            assert same_bytes(out, reference_gather(table, ids)) is None


def test_threads_are_woken_by_one_call_and_python_is_asked_once(cpu, monkeypatch):
    """Of a minibatch for three threads: two are woken, and the caller waits in one call."""
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1 << 12)
    calls: list[tuple[object, ...]] = []
    for name in ("_post", "_finish"):
        real = getattr(native_threads, name)
        monkeypatch.setattr(
            native_threads,
            name,
            lambda *a, name=name, real=real: (calls.append((name, *a[2:])), real(*a)),
        )
    table, ids = random_bytes(500, 100), torch.randint(0, 500, (3000,))
    python = set(threading.enumerate())
    for _ in range(20):
        cpu.gather(table, ids, random_bytes(3000, 100))
    assert calls == [("_post", 2), ("_finish", True)] * 20
    assert set(threading.enumerate()) <= python, "no thread that would ask for the lock"


def test_signals_are_pythons_to_answer(eager_threads):
    with HostGather(threads=3) as cpu:
        cpu.gather(random_bytes(50, 8), torch.arange(50), random_bytes(50, 8))
        blocked = {status["SigBlk"] for status in statuses()}
    every = sum(1 << (number - 1) for number in signal.valid_signals())
    assert {int(mask, 16) & every | (1 << 8) | (1 << 18) for mask in blocked} == {
        every | (1 << 8) | (1 << 18)
    }, "all but SIGKILL and SIGSTOP"


def statuses() -> list[dict[str, str]]:
    """What the kernel says of each thread of ours."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        if status["Name"] == NAME:
            found.append(status)
    return found
