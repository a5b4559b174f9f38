"""What the launcher's process and a rank do around the measurement, without any process."""

import os
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException

from gatherbench.bench.run import rank_processes as ranks_module
from gatherbench.bench.run.job import Block, Job
from gatherbench.bench.run.launch import Launch
from gatherbench.bench.run.part import PartWriter, ranks_folder, read_part, rows_of
from gatherbench.bench.run.rank_processes import measure_ranks
from gatherbench.outside import fresh
from gatherbench.strategies.knowledge import Ranks


@pytest.fixture
def job(make_job: Any) -> Job:
    job: Job = make_job()
    workload = replace(job.case.workload, gpus=2)
    return replace(job, case=replace(job.case, workload=workload))


def launched(monkeypatch: pytest.MonkeyPatch, *statuses: str, killed: int | None = None) -> None:
    """Have the ranks write their parts: rank ``r`` takes ``r + 1`` s for epoch 0; ends so."""

    def write(_work: object, args: Any, *_: object, **__: object) -> None:
        job: Job = args[0]
        folder = ranks_folder(job.part)
        for rank, status in enumerate(statuses):
            with closing(PartWriter(folder / f"rank{rank}.jsonl")) as out:
                make = replace(job.rows, rank=rank)
                out.row(make.ok("epoch", "wall_time", "s", rank + 1, "clock", 0))
                values = {"batch": [0], "value_s": [float(rank)]}
                out.write("samples", **job.case.names, epoch=0, stage="train", **values)
                if status:
                    out.end(make, status, None if status == "ok" else f"it is {status}", 1.0)
        if killed is not None:
            raise ProcessExitedException("", killed, 1, exit_code=-9, signal_name="SIGKILL")

    monkeypatch.setattr(ranks_module, "start_processes", write)
    monkeypatch.setattr(ranks_module, "use_one_network", lambda _: None)


def folded(job: Job) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How the case ended, and the records before that."""
    with closing(PartWriter(fresh(job.part))) as out:
        measure_ranks(Block("measure", (job,)), out)
    *records, end = read_part(job.part)
    assert end["kind"] == "end"
    return end, records


def test_samples_are_the_slowest_ranks_and_no_part_is_left(job, monkeypatch):
    launched(monkeypatch, "ok", "ok")
    end, records = folded(job)
    assert end["status"] == "ok"
    assert [r["value_s"] for r in records if r["kind"] == "samples"] == [[1.0]]
    assert [(r.rank, r.value) for r in rows_of(records)] == [(0, 1.0), (1, 2.0), (-1, 2.0)]
    assert [path.name for path in job.part.parent.iterdir()] == [job.part.name]
    launched(monkeypatch, "skipped", "skipped")
    end, records = folded(job)
    assert (end["status"], end["reason"]) == ("skipped", "it is skipped")
    assert {row.rank for row in rows_of(records)} == {0, 1}, "none of the case as a whole"


@pytest.mark.parametrize(
    ("statuses", "killed", "said"),
    [
        (("ok", ""), None, "rank 1 ended without a word"),
        (("", ""), None, "rank 0, 1 ended without a word"),
        (("ok",), None, "rank 1 ended without a word"),
        (("failed", "failed"), None, "rank 0: it is failed"),  # the first to fail
        (("failed", ""), None, "rank 0: it is failed; rank 1 ended without a word"),
        (("failed", ""), 1, "rank 1 was killed by SIGKILL"),
    ],
)
def test_a_case_fails_with_its_ranks_and_no_part_is_left(job, statuses, killed, said, monkeypatch):
    launched(monkeypatch, *statuses, killed=killed)
    end, records = folded(job)
    assert (end["status"], end["reason"]) == ("failed", f"RankError: {said}")
    rows = rows_of(records)
    assert [row.rank for row in rows] == list(range(len(statuses))), "none of the case as a whole"
    assert [path.name for path in job.part.parent.iterdir()] == [job.part.name]


def test_before_the_forks_no_team_of_threads_a_table_to_register_and_enough_gpus_or_cores(
    job, monkeypatch
):
    order: list[object] = []
    monkeypatch.setattr(torch, "set_num_threads", order.append)
    monkeypatch.setattr(ranks_module, "load_table", lambda _dataset, kind: order.append(kind))
    launched(monkeypatch, "ok", "ok")
    folded(job)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    folded(replace(job, device="cuda"))
    managed = replace(job.case, strategy="unified_zero_copy", params={"memory": "managed"})
    folded(replace(job, case=managed, device="cuda"))  # no fork has it: each loads its own
    assert order.pop() == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    refused, _ = folded(replace(job, device="cuda"))
    assert refused["reason"] == "no_device: 2 GPUs are asked for and 1 are here"
    assert order == [1, "anonymous", 1, "shared"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert folded(job)[0]["status"] == "ok"
    monkeypatch.setattr(ranks_module, "RANKS_A_CORE", 1)
    refused, _ = folded(job)
    assert refused["reason"] == "unsupported: 2 ranks on 1 cores would only take turns"


@pytest.mark.parametrize(
    ("machine", "rank", "named", "own"),
    [(0, 1, "GPU-a,5", "5"), (1, 3, "", "1"), (0, 0, "GPU-a,5", "GPU-a")],
)
def test_a_rank_has_a_gpu_of_its_machine(job, monkeypatch, machine, rank, named, own):
    """Of 4 ranks on 2 machines rank 3 is the second of machine 1."""
    seen: list[Any] = []

    def group(_device: object, ranks: Ranks, store: object, patience_s: float) -> Any:
        seen.append((ranks, store, patience_s, os.environ["CUDA_VISIBLE_DEVICES"]))
        raise RuntimeError("enough")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    monkeypatch.setattr(ranks_module, "Together", group)
    monkeypatch.setattr(ranks_module, "die_with_parent", lambda _: None)
    monkeypatch.setattr(ranks_module, "store_of", lambda job, _: job.meeting)
    monkeypatch.setattr(ranks_module, "_LINGER_S", 0.0)
    monkeypatch.setattr(ranks_module.os, "_exit", seen.append)  # type: ignore[attr-defined]
    meeting = Launch("torchrun", machine, 2, 0, 1, "10.0.0.1", case="case7")
    four = replace(job.case, workload=replace(job.case.workload, gpus=4))
    job = replace(job, case=four, device="cuda", meeting=meeting)
    ranks_folder(job.part).mkdir()
    ranks_module._one_rank(rank % 2, job, None, 77)
    assert seen == [(Ranks(rank, 4, 2), meeting, 30.0, own), 1]
    assert os.environ["LOCAL_WORLD_SIZE"] == "2"
