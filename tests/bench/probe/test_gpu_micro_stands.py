"""The micro-benchmark's sections end to end, with CUDA's edge replaced by the host."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gatherbench.bench.probe import (
    micro,
    micro_device,
    micro_gather,
    micro_overlap,
    micro_peer,
    micro_plan,
)
from gatherbench.kernels.cuda_calls import CudaCallError
from gatherbench.kernels.grid import GridPoint
from gatherbench.kernels.launch import Table
from gatherbench.strategies import cuda_overlap

MIB = 1 << 20
HOST = torch.device("cpu")


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Event) -> float:
        return max(1e-6, 1e3 * (later.at - self.at))


class Registered:
    def __init__(self, tensor: Tensor, device: int | None) -> None:
        self.address, self.seconds, self.tensor = tensor.data_ptr(), 0.0, tensor
        self.size_bytes = tensor.nbytes

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def gather(
    out: Tensor, table: Table, ids: Tensor, point: GridPoint, out_rows: Tensor | None = None
) -> None:
    raw = (ctypes.c_uint8 * (table.num_rows * table.row_stride)).from_address(table.address)
    rows = torch.frombuffer(raw, dtype=torch.uint8).view(table.num_rows, -1)
    flat = out.view(torch.uint8).view(out.shape[0], -1)
    flat[slice(None) if out_rows is None else out_rows] = rows[ids, : table.row_bytes]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, device = torch.empty, torch.device

    def unpinned(*shape: Any, pin_memory: bool = False, **kinds: Any) -> Tensor:
        return empty(*shape, **kinds)

    monkeypatch.setattr(torch, "empty", unpinned)
    gpu = SimpleNamespace(
        multi_processor_count=4,
        max_threads_per_multi_processor=2048,
        name="a stand-in",
        L2_cache_size=1,
    )
    for name, value in (
        ("is_available", lambda: True),
        ("current_device", lambda: 0),
        ("Event", Event),
        ("synchronize", lambda device=None: None),
        ("_sleep", lambda cycles: None),
        ("get_device_properties", lambda device: gpu),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "device", lambda kind, index=None: device("cpu"))
    for module in (micro_device, micro_peer):
        monkeypatch.setattr(module, "HostRegistration", Registered)
        monkeypatch.setattr(module, "gather_into", gather)
    monkeypatch.setattr(micro_device, "launch_kernel", lambda *_: None)
    monkeypatch.setattr(micro_device, "load_kernel", lambda cubin, name: name)
    monkeypatch.setattr(micro_device, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(micro_device, "compile_gather", lambda point, arch, source: b"")
    for module in (micro_plan, micro_device):
        monkeypatch.setattr(module, "ROOF_BYTES", MIB)
        monkeypatch.setattr(module, "READ_BYTES", MIB)
    monkeypatch.setattr(micro_plan, "MAX_IDS", 5000)
    monkeypatch.setattr(micro_device, "_CHECKED_ROWS", 99)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_gather_section_measures_every_point_and_reports(
    cuda: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--spans", "0.001", "0.002", "--memory", "1", "--row-bytes", "16", "400"]
    few = ["--policies", "aligned", "dgl", "--caps", "0", "10", "--rounds", "2"]
    assert micro_gather.main(["--out", str(tmp_path), *small, *few]) == 0
    rows = read(tmp_path / "rows.csv")
    kinds = Counter(r["kind"] for r in rows)
    passes = {"sort", "unique", "id_check"}
    assert set(kinds) == passes | {"fill", "cudaHostRegister", "copy_engine", "sm_read", "gather"}
    ours = {(r["order"], r["cap"]) for r in rows if r["policy"] == "aligned"}
    assert ours == {(o, c) for o in ("given", "sorted", "unique") for c in ("0", "10")}
    assert all(float(r["time_s"]) >= 0 for r in rows)
    assert {r["source"] for r in rows if r["kind"] == "id_check"} == {"time.perf_counter"}
    assert {int(r["payload_bytes"]) for r in rows if r["kind"] == "sort"} == {
        8 * n for n in (5000, 2621, 256)
    }
    said = capsys.readouterr().out
    assert "every policy is right" in said
    assert "id_check of 5000 ids" in said
    assert (tmp_path / "summary.csv").exists()
    assert (tmp_path / "gather_rate.png").stat().st_size > 5000


def test_what_the_checks_do_not_launch_is_launched_once_before_it_is_timed(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[micro_plan.Point] = []
    seconds = micro_device.Bench.seconds

    def noted(self: micro_device.Bench, point: micro_plan.Point) -> float:
        launched.append(point)
        return seconds(self, point)

    monkeypatch.setattr(micro_device.Bench, "seconds", noted)
    assert micro_gather.main(["--out", str(tmp_path), *SMALL]) == 0
    others = {point for point in launched if point.kind != "gather"}
    assert {point.kind for point in others} > {"copy_engine", "sm_read", "sort"}
    assert set(launched[: len(others)]) == others
    timed = launched[len(others) :]
    assert len(timed) == len(set(timed))
    assert others < set(timed)


def test_a_span_that_cannot_be_registered_costs_itself_only(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Limited(Registered):
        def __init__(self, tensor: Tensor, device: int | None) -> None:
            if tensor.nbytes > 2 * MIB:
                raise CudaCallError("cudaHostRegister", "cudaErrorInvalidValue", "invalid")
            super().__init__(tensor, device)

    monkeypatch.setattr(micro_device, "HostRegistration", Limited)
    three = ["--spans", "0.001", "0.0015", "0.004", "--memory", "1", "--rounds", "1"]
    few = ["--policies", "aligned", "--caps", "0", "--row-bytes", "400"]
    assert micro_gather.main(["--out", str(tmp_path), *three, *few]) == 0
    spans = {int(r["span_bytes"]) for r in read(tmp_path / "rows.csv") if r["kind"] == "gather"}
    assert spans == {int(span * 2**30) for span in (0.001, 0.0015)}
    assert "span 0.004 GiB left out: cudaHostRegister failed" in capsys.readouterr().out


def test_where_no_span_can_be_registered_the_reason_is_the_last_word(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise CudaCallError("cudaHostRegister", "cudaErrorNotSupported", "not here")

    monkeypatch.setattr(micro_device, "HostRegistration", refuse)
    assert micro_gather.main(["--out", str(tmp_path), *SMALL]) == 1
    said = capsys.readouterr()
    assert "not here" in said.err.splitlines()[-1]
    assert "targets" not in said.out


@pytest.mark.parametrize(("cap", "blocks"), [(10, 1), (25, 1), (50, 2), (800, 32)])
def test_the_read_roof_tries_grids_below_a_block_for_each_multiprocessor(
    cuda: None, cap: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[int] = []
    monkeypatch.setattr(micro_device, "launch_kernel", lambda kernel, grid, *_: grids.append(grid))
    bench = micro_device.Bench(MIB, HOST, lambda row: None)
    bench.seconds(micro_plan.Point("sm_read", MIB, cap))
    assert grids == [blocks]  # of 4 multiprocessors


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (5000, 5000), (5000, 16384), (4999, 1 << 28)])
def test_no_row_is_drawn_twice_in_one_gather(cuda: None, count: int, rows: int) -> None:
    """A row that is still in the GPU's cache would cost the link nothing."""
    bench = micro_device.Bench(MIB, HOST, lambda row: None)
    first, second = bench._ids(count, rows), bench._ids(count, rows)
    assert len(first.unique()) == count
    assert 0 <= int(first.min()) <= int(first.max()) < rows
    assert count == 1 or (
        not torch.equal(first, second) and not torch.equal(first, first.sort()[0])
    )


def test_a_gather_of_more_rows_than_there_are_stays_inside_the_table(cuda: None) -> None:
    ids = micro_device.Bench(MIB, HOST, lambda row: None)._ids(1000, 7)
    assert set(ids.tolist()) == set(range(7))


SMALL = ["--spans", "0.001", "--memory", "1", "--row-bytes", "16", "400", "--rounds", "1"]


def test_a_policy_that_is_wrong_is_left_out_and_said(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(out: Tensor, table: Table, ids: Tensor, point: GridPoint, places: Any = None) -> None:
        gather(out, table, ids, point, places)
        if table.row_bytes == 400 and point.shift == "idle":
            out[-1, -1] += 1

    monkeypatch.setattr(micro_device, "gather_into", wrong)
    few = ["--policies", "aligned", "dgl", "--caps", "0"]
    assert micro_gather.main(["--out", str(tmp_path), *SMALL, *few]) == 1
    timed = {(r["policy"], r["row_bytes"]) for r in read(tmp_path / "rows.csv")}
    assert {("dgl", "16"), ("aligned", "16"), ("aligned", "400")} <= timed
    assert ("dgl", "400") not in timed
    assert read(tmp_path / "targets.csv")
    said = capsys.readouterr().out
    assert "left out: policy dgl, rows of 400 B: policy dgl, rows of 400 B, given: wrong" in said
    assert said.rstrip().endswith("left out, because wrong or worse: dgl:400")


def test_a_lost_context_names_what_broke_it_or_ends_with_what_there_is(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost: list[str] = []

    def breaks(
        out: Tensor, table: Table, ids: Tensor, point: GridPoint, places: Any = None
    ) -> None:
        if table.row_bytes == 400 and len(ids) >= first:
            lost.append("illegal memory access")
            raise RuntimeError(lost[0])
        gather(out, table, ids, point, places)

    def synchronize(device: object = None) -> None:
        if lost:
            raise RuntimeError(lost[0])

    monkeypatch.setattr(micro_device, "gather_into", breaks)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    few = ["--policies", "aligned", "--caps", "0"]
    first = 1
    assert micro_gather.main(["--out", str(tmp_path), *SMALL, *few]) == micro.AGAIN
    assert capsys.readouterr().out.rstrip().endswith("\n--without aligned:400")
    lost.clear()
    without = ["--without", "aligned:400"]
    assert micro_gather.main(["--out", str(tmp_path), *SMALL, *few, *without]) == 1
    assert {r["row_bytes"] for r in read(tmp_path / "rows.csv") if r["policy"]} == {"16"}
    first = 100  # not in the check, but once it is timed
    assert micro_gather.main(["--out", str(tmp_path), *SMALL, *few]) == 1
    assert (tmp_path / "summary.csv").exists()
    assert "ended at Point(kind='gather'" in capsys.readouterr().out


def test_the_unique_order_gathers_each_row_once_and_expands(cuda: None) -> None:
    point = micro_plan.Point("gather", MIB, 0, "aligned", "unique", 400)
    ids = torch.tensor([7, 3, 7, 7, 0]).repeat(point.num_ids)[: point.num_ids]
    with micro_device.Bench(MIB, HOST, lambda row: None) as bench:
        bench._ids = lambda count, rows: ids  # type: ignore[method-assign]
        bench._gathering(point)()
        got = bench.out[: point.payload_bytes].view(-1, 400)
        table = bench.bytes[: point.num_rows * 400].view(-1, 400)
        assert torch.equal(got, table[ids])


class Fetcher:
    """Stands for the overlapped fetcher: a fetch takes 2, training 1, and overlap is perfect."""

    def __init__(self) -> None:
        self.shares: list[tuple[str, int]] = []

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None: ...

    def step_seconds(self, ids: Tensor, beside: Callable[[], object]) -> float:
        assert beside() is None
        if self.shares[-1:] == [("green", 0)]:
            raise RuntimeError("CUDA error: invalid resource handle")
        return 2.0


@pytest.mark.parametrize("refused", ["when it is made", "when it is used"])
def test_the_overlap_section_tries_every_share_and_goes_on_without_green_contexts(
    refused: str,
    cuda: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetcher = Fetcher()

    def green(_: object, percent: int) -> None:
        if refused == "when it is made":
            raise CudaCallError("cuGreenCtxCreate", "CUDA_ERROR_NOT_SUPPORTED", "no")
        fetcher.shares.append(("green", 0))

    work = dict.fromkeys(("matrix_products", "memory_pass"), lambda: None)
    for name, value in (
        ("open_overlapped", lambda *_: fetcher),
        ("empty_table", lambda shape, dtype: torch.zeros(8, 4)),
        ("loads", lambda device, seconds: work),
        ("alone_seconds", lambda device, beside: 1.0),
        ("share_threads", lambda f, percent: f.shares.append(("stream", percent))),
        ("share_multiprocessors", green),
    ):
        monkeypatch.setattr(micro_overlap, name, value)
    assert micro_overlap.main(["--out", str(tmp_path), "--budget", "0"]) == 0
    rows = read(tmp_path / "overlap.csv")
    streams = {str(p) for provider, p in micro_overlap.SHARES if provider == "stream"}
    assert {r["budget_percent"] for r in rows} == streams
    assert Counter(r["kind"] for r in rows) == dict.fromkeys(("train", "fetch", "both"), 10)
    said = capsys.readouterr().out
    words = {"when it is made": "cuGreenCtxCreate failed", "when it is used": "CUDA error: invalid"}
    assert said.count("green_context left out: " + words[refused]) == 1
    assert "memory_pass: both / max(train, fetch) = 1.000 (1.000 to 1.000) with stream" in said
    assert {r["verdict"] for r in read(tmp_path / "overlap_targets.csv")} == {"reached"}


def test_the_overlap_section_ends_where_no_kind_of_share_is_left(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise CudaCallError("cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "no")

    for name, value in (
        ("open_overlapped", lambda *_: Fetcher()),
        ("empty_table", lambda shape, dtype: torch.zeros(8, 4)),
        ("loads", lambda device, seconds: {"memory_pass": lambda: None}),
        ("share_threads", refuse),
        ("share_multiprocessors", refuse),
    ):
        monkeypatch.setattr(micro_overlap, name, value)
    assert micro_overlap.measure(tmp_path, 3600) == []
    assert capsys.readouterr().out.count("left out: cuLaunchKernelEx failed") == 2


def test_loads_last_about_as_long_as_they_are_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = iter((0.0, 10 * 0.002))
    monkeypatch.setattr(micro_overlap.time, "perf_counter", lambda: next(clock))
    calls: list[int] = []
    step = micro_overlap._repeated(lambda: calls.append(1), 0.008)
    calls.clear()
    step()
    assert len(calls) == 4


class Library:
    """What of pylibwholegraph and librmm is used."""

    __version__ = "26.10"

    def __init__(self, wrong: bool) -> None:
        self.wrong, self.freed = wrong, 0
        self.asked: list[Tensor] = []
        self.calls: list[str] = []

    def module(self, name: str) -> Library:
        self.calls.append(name)
        return self

    def load_library(self) -> None:
        self.calls.append("load_library")

    def finalize(self) -> None:
        self.calls.append("finalize")

    def init_torch_env_and_create_wm_comm(self, *world: int, wm_log_level: str) -> tuple[str, None]:
        assert world == (0, 1, 0, 1)
        return "communicator", None

    def create_wholememory_tensor(
        self, comm: str, kind: str, place: str, sizes: list[int], dtype: Any, strides: list[int]
    ) -> Any:
        assert (comm, kind, place, strides) == ("communicator", "continuous", "cpu", [sizes[1], 1])
        values = torch.zeros(sizes, dtype=dtype)

        def gathered(ids: Tensor) -> Tensor:
            self.asked.append(ids)
            return values[(ids + int(self.wrong)) % sizes[0]]

        return SimpleNamespace(get_local_tensor=lambda host_view: (values, 0), gather=gathered)

    def destroy_wholememory_tensor(self, table: Any) -> None:
        self.freed += 1


@pytest.mark.parametrize("wrong", [False, True])
def test_the_peer_is_compared_before_it_is_timed(
    wrong: bool, cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(wrong)
    monkeypatch.setattr(micro_peer.importlib, "import_module", library.module)
    monkeypatch.setattr(micro_peer.importlib.util, "find_spec", lambda name: library)
    monkeypatch.setattr(micro_peer, "SPAN_BYTES", MIB)
    monkeypatch.setattr(micro_peer, "READ_BYTES", MIB // 4)
    monkeypatch.setattr(micro_peer, "WIDTHS", (16, 100))
    if wrong:
        with pytest.raises(RuntimeError, match="other rows of 64 B"):
            micro_peer.main(["--out", str(tmp_path), "--budget", "0"])
        return
    assert micro_peer.main(["--out", str(tmp_path), "--budget", "0"]) == 0
    rows = read(tmp_path / "peer.csv")
    assert {r["gatherer"] for r in rows} == {"WholeGraph 26.10", "aligned"}
    assert len(rows) == 2 * 3 * micro_peer.FEWEST_ROUNDS
    assert library.freed == 2
    assert all(len(ids.unique()) == len(ids) for ids in library.asked), "rows come from a cache"
    # librmm before what is linked to it; the end only when every row is written.
    assert library.calls[:3] == ["librmm", "load_library", "pylibwholegraph"]
    assert library.calls[-1] == "finalize"


def test_a_step_keeps_a_fetch_beside_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """result, submit, work: the order in which the loop does them."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    events: list[str] = []
    fetcher = cuda_overlap.OverlappedFetcher.__new__(cuda_overlap.OverlappedFetcher)
    fetcher.device = HOST
    ticket = SimpleNamespace(result=lambda: events.append("result"))
    monkeypatch.setattr(
        cuda_overlap.OverlappedFetcher,
        "submit",
        lambda self, ids: events.append("submit") or ticket,
    )
    assert fetcher.step_seconds(torch.arange(3), lambda: events.append("work")) >= 0
    assert events == ["submit", *["result", "submit", "work"] * 4, "result"]


def test_the_sweep_runs_on_the_gathers_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(
        torch.cuda, "stream", lambda stream: seen.append(stream) or contextlib.nullcontext()
    )
    monkeypatch.setattr(cuda_overlap, "gather_into", lambda *_: None)
    fetcher = cuda_overlap.OverlappedFetcher.__new__(cuda_overlap.OverlappedFetcher)
    fetcher.device, fetcher._side = HOST, "green"  # type: ignore[assignment]
    fetcher.table, fetcher.points = Table(0, 1, 4, 4), {torch.int64: GridPoint()}
    assert fetcher._gather_seconds(torch.arange(1), torch.zeros(1, 1)) > 0
    assert seen == ["green"]
