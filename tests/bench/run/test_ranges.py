"""Ranges and traces: they name the stages, touch no timed epoch, and give nothing private away."""

import getpass
import gzip
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gatherbench.bench.commands.execute import BadRunError, new_run
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run.job import Ready
from gatherbench.bench.run.loop import STAGES, run_epoch
from gatherbench.bench.run.nvtx import unmarked, write_trace
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.runner import PreparedRun, Runner
from gatherbench.bench.run.store import RunStore

from .fakes import measured

CPU = torch.device("cpu")


def opened(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content = json.load(file)
    assert isinstance(content, dict)
    return content


def spans(file: Path) -> Counter[str]:
    """The loop's ranges in a trace."""
    events = opened(file)["traceEvents"]
    return Counter(e["name"] for e in events if e.get("cat") == "user_annotation")


@pytest.mark.parametrize("most", [30, 2])
def test_a_trace_of_an_epoch_apart_holds_every_stage_of_few_minibatches(
    make_job, tmp_path, monkeypatch, most
):
    monkeypatch.setattr(measure_module, "TRACE_BATCHES", most)
    rows = measured(replace(make_job("async_zero_copy"), traces=tmp_path / "run" / "traces"))
    (row,) = [r for r in rows if (r.stage, r.metric) == ("harness", "trace")]
    (file,) = (tmp_path / "run" / "traces").iterdir()
    assert row.value == file.stat().st_size
    assert f"traces/{file.name}, at most {most} minibatches" in row.source
    batches = min(most, 5)
    named = spans(file)
    assert named["train"] == batches
    assert named["fetch"] == 1 + 2 * batches  # begun; submitted and waited for
    assert named["sample"] >= batches + 1  # the last calls find none
    events = opened(file)["traceEvents"]
    assert any("mm" in str(e["name"]) for e in events), "the operators inside the stages"


def test_tracing_changes_nothing_that_is_measured(make_job, tmp_path, monkeypatch):
    marked: list[Any] = []

    def noted(*arguments: Any) -> Any:
        marked.append(arguments[3] if len(arguments) > 3 else None)
        return run_epoch(*arguments)

    def outcome(rows: list[Row]) -> list[Any]:
        return [r.value for r in rows if r.metric in ("loss", "test_accuracy", "payload")]

    plain = outcome(measured(make_job()))
    monkeypatch.setattr(measure_module, "run_epoch", noted)
    traced = measured(replace(make_job(), traces=tmp_path / "traces"))
    assert outcome(traced) == plain
    warm_up, first, second, apart = marked
    assert warm_up is unmarked
    assert first is second is unmarked
    assert apart is torch.profiler.record_function
    assert max(r.epoch for r in traced) == 1


def test_a_profiler_that_fails_costs_a_reason(make_job, tmp_path, monkeypatch):
    def broken(*_: object) -> int:
        raise RuntimeError("no profiler in this build")

    monkeypatch.setattr(measure_module, "write_trace", broken)
    rows = measured(replace(make_job(), traces=tmp_path / "traces"))
    (row,) = [r for r in rows if r.metric == "trace"]
    assert (row.value, row.status) == (None, "failed")
    assert row.reason == "failed: RuntimeError: no profiler in this build"


def test_a_trace_names_no_host_user_or_path(tmp_path):
    def epoch(mark: Any) -> None:
        with mark("train"):
            torch.ones(4, 4).add(1)

    path = tmp_path / "traces" / "x.json.gz"
    assert write_trace(epoch, path, CPU) == path.stat().st_size
    assert [p.name for p in path.parent.iterdir()] == ["x.json.gz"]
    content = opened(path)
    assert set(content) <= {
        "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents",
    }  # fmt: skip
    text = json.dumps(content)
    for private in (str(tmp_path), str(Path.home()), str(Path.cwd())):
        assert private not in text
    words = {str(e.get(key)) for e in content["traceEvents"] for key in ("name", "pid", "args")}
    assert not {socket.gethostname(), getpass.getuser()} & words


@pytest.mark.parametrize(
    ("asked", "earlier", "traced"),
    [(True, None, True), (True, "ok", False), (True, "failed", True), (False, None, False)],
)
def test_only_the_first_repeat_that_is_measured_is_traced_and_only_where_asked(
    make_job, tmp_path, monkeypatch, asked, earlier, traced
):
    job = make_job()
    ready = Ready(job.dataset, job.trace, "")
    monkeypatch.setattr(Runner, "_counted", lambda *_: None)
    (tmp_path / "env.json").write_text("{}")
    runner = Runner(PreparedRun(RunStore(tmp_path), [], Measure(trace=asked), "cpu", "abc", "box"))
    make, what = job.run.of(job.case), ("case", "wall_time", "s")
    if earlier == "ok":
        runner._took_s(make.ok(*what, 3.0, "a clock"))
    if earlier == "failed":
        runner._took_s(make.missing(*what, "a clock", "it broke", "failed"))
    given = runner._job(replace(job.case, repeat=1), ready, job.part)
    assert given.first == (earlier != "ok"), "then it is compared in full, and declared"
    assert given.traces == (tmp_path / "traces" if traced else None)


def test_the_plan_or_the_option_asks_for_a_trace(tmp_path):
    assert new_run("quick", tmp_path, "cpu").measure.trace is False
    assert new_run("quick", tmp_path, "cpu", trace=True).measure.trace is True


def test_the_usual_plan_is_the_one_for_the_device(tmp_path):
    assert new_run("usual", tmp_path, "cpu").store.plan()["name"] == "quick"
    with pytest.raises(BadRunError, match="torch sees no GPU"):
        new_run("usual", tmp_path, "cuda")


def test_nvtx_on_the_host_is_refused(tmp_path):
    with pytest.raises(BadRunError, match="--trace"):
        new_run("quick", tmp_path, "cpu", nvtx=True)
    assert not list(tmp_path.iterdir())


class FakeNvtx:
    """Stands for torch's edge to CUDA's tools and writes down what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("synchronize"))
        monkeypatch.setattr(torch.cuda.profiler, "profile", self.profile)
        monkeypatch.setattr(torch.cuda.nvtx, "range", self.range)

    @contextmanager
    def profile(self) -> Iterator[None]:
        self.log.append("cudaProfilerStart")
        yield
        self.log.append("cudaProfilerStop")

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.log.append(name)
        yield


def test_nvtx_marks_stages_between_profiler_start_and_stop(monkeypatch, make_job):
    fake = FakeNvtx(monkeypatch)
    measured(make_job(epochs=1, nvtx=True))
    begin, end = fake.log.index("cudaProfilerStart"), fake.log.index("cudaProfilerStop")
    # The device is idle at both ends, or Nsight would lose what was launched last.
    assert fake.log[begin - 1] == fake.log[end - 1] == "synchronize"
    assert Counter(fake.log[begin + 1 : end - 1]) == {"sample": 6, "fetch": 11, "train": 5}
    assert set(fake.log) == {"synchronize", "cudaProfilerStart", "cudaProfilerStop", *STAGES}


def test_a_trace_of_a_gpu_has_its_kernels_to_the_last(monkeypatch, tmp_path):
    told: list[object] = []
    profile, activity = torch.profiler.profile, torch.profiler.ProfilerActivity

    def noted(activities: list[object], acc_events: bool) -> object:
        told.append(activities)
        return profile(activities=[activity.CPU], acc_events=acc_events)

    monkeypatch.setattr(torch.profiler, "profile", noted)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("all is done"))
    write_trace(lambda _: told.append("epoch"), tmp_path / "t.json.gz", torch.device("cuda"))
    assert told == [[activity.CPU, activity.CUDA], "epoch", "all is done"]
