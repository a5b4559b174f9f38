"""What a training does around its fetches: modes, writes, moves, interrupts and forks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from host_paths import in_a_fork
from tests.at_line import AtLine
from torch import Tensor
from torch_geometric.data import Data

import gatherbench
from gatherbench.kernels.host_memory import HUGE_PAGE
from gatherbench.kernels.native_threads import NativeThreads
from gatherbench.strategies import unified_tensor
from gatherbench.strategies.buffers import RowBuffer
from gatherbench.strategies.conformance import MODES
from gatherbench.strategies.unified_tensor import UnifiedTensor

TABLE = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
PATHS = ("aligned_zero_copy", "cpu_gather", "async_zero_copy", "auto", "all_in_gpu")
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


# Modes of torch


@pytest.mark.parametrize("strategy", PATHS)
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("name", MODES)
def test_a_training_step_after_an_evaluation_under_a_mode(strategy, copy, name):
    """The buffers that the evaluation made are as good as any: rows can be trained with."""
    x = torch.randn(60_000, 16, generator=torch.Generator().manual_seed(1))
    few, many = torch.arange(100), torch.arange(0, 60_000, 1)
    assert many.numel() * 64 > HUGE_PAGE
    mode: Callable[[], AbstractContextManager[object]] = MODES[name]
    weight = torch.ones(16, requires_grad=True)
    with gatherbench.unified(x, strategy, "cpu", copy=copy) as features:
        _ = features[few]
        with mode():
            features.prefetch(many)
            rows = features[many]
        assert torch.equal(rows, x)
        features.prefetch(few)
        (features[few] * weight).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, x[few].sum(0))


@pytest.mark.parametrize("name", MODES)
def test_opened_under_a_mode(name):
    slices: tuple[object, ...] = (slice(0, 9), [3, 4], np.array([5, 6]))
    with MODES[name]():
        features = gatherbench.unified(TABLE, "async_zero_copy", "cpu")
    for rows in slices:
        with MODES[name]():
            got = features[rows]  # type: ignore[index]
        assert torch.equal(got, TABLE[rows])  # type: ignore[index]
        assert not got.is_inference()
    features.close()


def test_a_table_made_under_inference_mode_is_a_table():
    with torch.inference_mode():
        x = TABLE.clone()
    with gatherbench.unified(x, "async_zero_copy", "cpu") as features:
        assert torch.equal(features[[5, 1]], TABLE[[5, 1]])


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_rows_do_not_become_constants_of_a_trace():
    with gatherbench.unified(TABLE, device="cpu") as features:
        with pytest.raises(RuntimeError, match=r"constants of what is traced .*fetch outside"):
            torch.jit.trace(lambda ids: features[ids] * 2, torch.arange(3))
        make_fx = torch.fx.experimental.proxy_tensor.make_fx  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="fetch outside"):
            make_fx(lambda ids: features[ids] * 2)(torch.arange(3))
        assert torch.equal(features[[1]], TABLE[[1]])


# Writes


@pytest.mark.parametrize("strategy", ["aligned_zero_copy", "async_zero_copy", "cpu_gather"])
def test_a_backward_pass_over_rows_that_were_overwritten_raises(strategy):
    """By hand: of x = 1, 2, 3 the gradient of the sum of (w x)² at w = 1 is 2 (1 + 4 + 9) = 28."""
    x = torch.tensor([[1.0], [2.0], [3.0]])
    for copy in (True, False):
        weight = torch.ones(1, requires_grad=True)
        with gatherbench.unified(x, strategy, "cpu", copy=copy) as features:
            loss = sum((features[[k]] * weight).pow(2).sum() for k in range(3))
            assert isinstance(loss, Tensor)
            if copy:
                loss.backward()
                assert weight.grad is not None
                assert weight.grad.item() == 28
            else:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()


def _adam(x: Tensor) -> None:
    parameter = torch.nn.Parameter(x, requires_grad=True)
    parameter.grad = torch.ones_like(x)
    torch.optim.Adam([parameter]).step()


WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x.add_(1),
    "an optimiser": _adam,
    "assigned": lambda x: x.__setitem__(slice(0, 10), 7.0),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([1]), torch.ones(1, x.shape[1])),
    "through a view": lambda x: x.view(-1).mul_(2),
    "_foreach": lambda x: torch._foreach_add_([x], 1.0),
    "into out=": lambda x: torch.mul(x, 2, out=x),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("strategy", PATHS)
def test_what_is_written_later_shows_or_is_refused(strategy, write):
    x, ids = TABLE.clone(), torch.arange(50)
    with gatherbench.unified(x, strategy, "cpu") as features:
        assert torch.equal(features[ids], TABLE[:50])
        features.prefetch(ids)  # of before the write
        WRITES[write](x)
        assert not torch.equal(x, TABLE)
        if features.live:
            assert torch.equal(features[ids], x[:50])
            assert torch.equal(features[:], x)
        else:
            with pytest.raises(RuntimeError, match=r"copied rows .*aligned_zero_copy"):
                _ = features[ids]
    assert features.live == (strategy != "all_in_gpu")


def test_a_table_that_is_to_be_trained_is_left_to_torch():
    embedding = torch.nn.Embedding(5, 2)
    with pytest.raises(ValueError, match=r"would not be trained.*torch\.nn\.Embedding"):
        gatherbench.unified(embedding.weight, device="cpu")
    x = torch.ones(9, 2)
    features = gatherbench.unified(x, device="cpu")
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="would not be trained"):
        _ = features[[1]]
    x.requires_grad_(False)
    assert features[[1]].tolist() == [[1, 1]]


# Moves


MOVES: dict[str, Callable[[Any], object]] = {
    "shared": lambda x: x.share_memory_(),
    "sent": ForkingPickler.dumps,
    "data": lambda x: setattr(x, "data", x.clone()),
    "set_": lambda x: x.set_(x.clone()),
    "emptied": lambda x: x.untyped_storage().resize_(0),  # as FSDP does
    "longer": lambda x: x.resize_(10, 100),
    "shorter": lambda x: x.resize_(50, 50),
    "transposed": lambda x: x.t_(),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
@pytest.mark.parametrize("strategy", ["aligned_zero_copy", "async_zero_copy", "all_in_gpu", "auto"])
def test_a_table_that_has_moved_is_refused(strategy, move):
    x = torch.randn(100, 100)
    with gatherbench.unified(x, strategy, "cpu") as features:
        assert torch.equal(features[[7]], x[[7]])
        move(x)
        with pytest.raises(RuntimeError, match=r"has other memory .*share_memory_\(\).*again"):
            _ = features[[7]]


def test_a_table_shared_before_may_be_sent_and_views_of_it_may_change():
    x = TABLE.clone().share_memory_()
    with gatherbench.unified(x, "async_zero_copy", "cpu") as features:
        ForkingPickler.dumps(x)
        x.view(-1).view(8, -1).t_()
        assert torch.equal(features[[7]], x[[7]])


# Files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", TABLE.numpy())
    return tmp_path / "x.npy"


ANOTHER = "another file than the one that is mapped"
DISKS = [("disk_mmap", {}), ("disk_direct", {}), ("disk_cached", {"policy": "degree"})]


def load(file: Path, mode: str = "r") -> Any:
    return np.load(file, mmap_mode=mode)  # type: ignore[call-overload]


def changed_in_memory(file: Path) -> Any:
    x = load(file, "c")
    x -= x.mean(0)
    return x


def replaced(file: Path, whole: bytes = b"") -> Any:
    x = load(file)
    file.with_name("new.npy").write_bytes(whole or bytes(file.stat().st_size))
    file.with_name("new.npy").replace(file)
    return x


def removed(file: Path) -> Any:
    x = load(file)
    file.unlink()
    return x


def cut_short(file: Path) -> Any:
    x = load(file)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 40)
    return x


def symlink_turned(file: Path) -> Any:
    link, other = file.with_name("link.npy"), file.with_name("other.npy")
    np.save(other, np.zeros((3000, 8), np.float32))
    link.symlink_to(file)
    x = load(link)
    link.unlink()
    link.symlink_to(other)
    return x


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (changed_in_memory, "mode 'c' keeps changes in memory"),
        (replaced, ANOTHER),
        (lambda file: replaced(file, file.read_bytes()), ANOTHER),
        (removed, "cannot be opened"),
        (cut_short, "cut short"),
        (lambda file: load(file).astype(np.float64), r"in memory.*write it to a file"),
        (lambda file: load(file) * 2, "reads a file|in memory"),
        (lambda file: load(file)[:, :4], "as they lie"),
        (lambda file: load(file)[::-1], "as they lie"),
        (lambda file: load(file)[::2], "as they lie"),
        (lambda file: load(file).T, "as they lie"),
    ],
)
@pytest.mark.parametrize(("strategy", "params"), DISKS)
def test_a_file_that_is_not_the_rows_is_refused(file, made, said, strategy, params):
    with pytest.raises((ValueError, TypeError), match=said):
        gatherbench.unified(made(file), strategy, "cpu", **params)


@pytest.mark.parametrize(
    "made",
    [
        load,
        symlink_turned,  # numpy has kept the name of the file itself
        lambda file: load(file)[100:2000],
        lambda file: load(file).view(np.int32),
        lambda file: load(file).reshape(1500, 16),
        lambda file: load(file)[10:][5:],
        lambda file: np.memmap(file, np.uint8, "r")[128:].reshape(3000, 32),
    ],
)
@pytest.mark.parametrize("strategy", ["disk_mmap", "disk_direct", "aligned_zero_copy"])
def test_parts_and_views_of_a_map_are_the_rows_that_they_show(file, made, strategy):
    x = made(file)
    with gatherbench.unified(x, strategy, "cpu") as features:
        assert np.array_equal(features[[7, 1400]].numpy(), x[[7, 1400]])


def test_a_map_that_is_written_to_shows_it_or_is_refused(file):
    x = load(file, "r+")
    x[3] = 5  # not flushed
    for strategy in ("disk_mmap", "disk_direct", "cpu_gather"):
        with gatherbench.unified(x, strategy, "cpu") as features:
            assert features.live
            assert np.array_equal(features[[3, 4]].numpy(), x[[3, 4]])
            x[4] += 1
            assert np.array_equal(features[[3, 4]].numpy(), x[[3, 4]])
    graph = torch.randint(3000, (2, 9000))
    with pytest.raises(ValueError, match="mmap_mode='r'"):
        gatherbench.unified(x, "disk_cached", "cpu", policy="degree", graph=graph)
    gatherbench.unified(load(file), "disk_cached", "cpu", policy="degree", graph=graph).close()
    with pytest.raises(ValueError, match="takes no path from a disk"):
        gatherbench.unified(load(file), "auto", "cpu")


@pytest.mark.parametrize(
    "made", [changed_in_memory, replaced, removed, lambda file: load(file)[np.arange(50)]]
)
def test_a_path_that_reads_memory_takes_what_lies_there(file, made):
    x = made(file)
    with gatherbench.unified(x, "aligned_zero_copy", "cpu") as features:
        assert np.array_equal(features[[7, 3]].numpy(), x[[7, 3]])


# Interrupts and forks


def interrupt() -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        ("auto", "auto.py:search"),
        ("auto", "auto.py"),
        ("auto", "buffers.py"),
        ("auto", "host_gather.py"),
        ("async_zero_copy", "buffers.py"),
        ("async_zero_copy", "base.py"),
        ("aligned_zero_copy", "host_fetcher.py"),
        ("cpu_gather", "host_gather.py"),
    ],
)
def test_an_interrupted_fetch_leaves_the_next_ones_right(strategy, where):
    """As of a cell in Jupyter, which keeps the traceback, and all that its frames hold."""
    x = torch.randn(2_000, 32)
    count = 5_000 if strategy == "cpu_gather" else 500  # torch gathers fewer
    kept: list[BaseException] = []
    with gatherbench.unified(x, strategy, "cpu") as features:
        for number in range(1, 80):
            ids = torch.randint(0, 2_000, (count,))
            try:
                with AtLine(f"/{where}", number, interrupt):
                    features.prefetch(ids)
                    features[ids]
            except KeyboardInterrupt as error:
                kept.append(error)
            for _ in range(3):
                ids = torch.randint(0, 2_000, (count,))
                features.prefetch(ids)
                assert torch.equal(features[ids], x[ids]), number
    assert kept, "no line of the file was run"


@FORK
@pytest.mark.parametrize("strategy", ["cpu_gather", "aligned_zero_copy", "all_in_gpu"])
def test_a_fork_while_a_thread_fetches(strategy):
    x = torch.randn(20_000, 64)
    features, ids = gatherbench.unified(x, strategy, "cpu"), torch.randint(0, 20_000, (5000,))
    stop = threading.Event()

    def fetch() -> None:
        while not stop.is_set():
            _ = features[ids]

    def child() -> None:
        assert torch.equal(features[ids[:10]], x[ids[:10]])
        assert torch.equal(features[ids], torch.from_numpy(x.numpy()[ids.numpy()]))
        features.close()

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(fetch)
        try:
            assert [in_a_fork(child) for _ in range(5)] == ["nothing was raised"] * 5
        finally:
            stop.set()
        going.result()
    assert torch.equal(features[ids], x[ids])


@FORK
def test_a_fork_while_a_fetch_never_ends(monkeypatch):
    """The child is told; it neither hangs nor finds a fetch half done."""
    monkeypatch.setattr(unified_tensor, "FORK_PATIENCE_S", 0.05)
    features = gatherbench.unified(TABLE, device="cpu")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with features._turn:
            held.set()
            done.wait(300)

    def child() -> None:
        with pytest.raises(RuntimeError, match="forked in the middle of a fetch"):
            _ = features[[1]]
        features.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait()
        try:
            assert in_a_fork(child) == "nothing was raised"
        finally:
            done.set()
    assert torch.equal(features[[1]], TABLE[[1]])


# Secondary arguments

EDGES = torch.tensor([[0, 1, 1, 1], [1, 0, 2, 3]])


def kept_rows(**told: object) -> UnifiedTensor:
    return gatherbench.unified(
        torch.arange(8.0).view(4, 2), "cached_zero_copy", "cpu", share="50%", **told
    )


def test_graph_and_minibatches_in_any_form():
    """The other forms, and those of ids: tests/test_checks.py."""
    weighted = {"policy": "weighted_reverse_pagerank", "train_ids": [False, True, True, False]}
    for graph in (EDGES.numpy(), Data(edge_index=EDGES, num_nodes=4)):
        with kept_rows(**weighted, graph=graph) as features:
            assert features[[3]].tolist() == [[6, 7]]
    ids = np.array([1, 2])
    for batches in ([ids], (one for one in [ids]), [Data(n_id=torch.as_tensor(ids))]):
        with kept_rows(policy="presampled", graph=EDGES, minibatches=batches) as features:
            assert features[[3]].tolist() == [[6, 7]]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"graph": EDGES + 1}, "there are 4 nodes, numbered from 0"),
        ({"train_ids": [4]}, "names node 4"),
        ({"train_ids": []}, "train_ids: "),
        ({"minibatches": []}, "names no row"),
        ({"minibatches": iter([])}, "names no row"),
        ({"minibatches": torch.tensor([0, 1])}, r"minibatches\[0\]: has shape \[\]"),
        ({"minibatches": 3}, "a list of n_id"),
        ({"minibatches": [[0], [9]]}, r"minibatches\[1\]: names node 9"),
        ({"minibatches": [[0.0]]}, "whole numbers"),
    ],
)
def test_what_is_told_and_does_not_fit_is_refused_with_the_remedy(told, said):
    policy = "presampled" if "minibatches" in told else "weighted_reverse_pagerank"
    with pytest.raises(ValueError, match=said):
        kept_rows(policy=policy, **({"graph": EDGES, "train_ids": [1]} | told))


# Small fetches


@pytest.mark.parametrize("strategy", ["aligned_zero_copy", "cpu_gather", "async_zero_copy"])
def test_a_few_rows_are_one_operation_of_torch(strategy, monkeypatch):
    """Neither a pass nor a buffer of ours, which cost more than such rows do."""
    selected, real, ids = list[int](), torch.index_select, torch.arange(64)
    with gatherbench.unified(TABLE, strategy, "cpu") as features:
        monkeypatch.setattr(NativeThreads, "post", None)
        monkeypatch.setattr(
            torch, "index_select", lambda *of: (selected.append(len(of[2])), real(*of))[1]
        )
        rows = features[ids]
    assert selected == [64]
    assert torch.equal(rows, TABLE[:64])


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("aligned_zero_copy", {}),
        ("aligned_zero_copy", {"order": "sorted"}),
        ("async_zero_copy", {}),
        ("cached_zero_copy", {"policy": "random"}),
        ("cpu_gather", {"mode": "prefetch"}),
        ("all_in_gpu", {}),
    ],
)
@pytest.mark.parametrize(("count", "width", "most"), [(64, 4, 20), (1000, 64, 30), (50_000, 4, 60)])
def test_a_fetch_on_the_host_is_one_gather(strategy, params, count, width, most, monkeypatch):
    """What it costs beside the rows is counted in Python calls: times scatter. No buffer is filled
    on the way, and nothing is copied or cloned, for which torch would wake its pool."""
    x, ids = torch.randn(50_000, width), torch.randperm(50_000)[:count]

    def other(*_: object, **__: object) -> None:
        raise AssertionError("another pass")

    with gatherbench.unified(x, strategy, "cpu", **params) as features:
        _ = features[ids]
        for owner, name in ((RowBuffer, "rows"), (Tensor, "copy_"), (Tensor, "clone")):
            monkeypatch.setattr(owner, name, other)
        calls: list[str] = []
        sys.setprofile(lambda frame, event, _: calls.append(event))
        try:
            rows = features[ids]
        finally:
            sys.setprofile(None)
        monkeypatch.undo()
        assert torch.equal(rows, x[ids])
        assert calls.count("call") <= most
