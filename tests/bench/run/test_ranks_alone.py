"""What the launcher's process and a rank do around the measurement, without any process."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import FileStore

from gatherbench.bench.run import rank_processes as ranks_module
from gatherbench.bench.run.job import Block, Job
from gatherbench.bench.run.launch import Meeting
from gatherbench.bench.run.part import PartWriter, ranks_folder, read_part, rows_of
from gatherbench.bench.run.rank_processes import measure_ranks
from gatherbench.outside import fresh
from gatherbench.strategies.knowledge import Ranks


@pytest.fixture
def job(make_job: Any) -> Job:
    job: Job = make_job()
    workload = replace(job.case.workload, gpus=2)
    return replace(job, case=replace(job.case, workload=workload))


def launched(monkeypatch: pytest.MonkeyPatch, *statuses: str, killed: tuple[str, ...] = ()) -> None:
    """Have the ranks write their parts: rank ``r`` takes ``r + 1`` s for epoch 0; ends so."""

    def write(job: Job, _table: object, folder: Path) -> list[str]:
        for rank, status in enumerate(statuses):
            with closing(PartWriter(folder / f"rank{rank}.jsonl")) as out:
                make = replace(job.rows, rank=rank)
                out.row(make.ok("epoch", "wall_time", "s", rank + 1, "clock", 0))
                out.samples(job.case, 0, "train", [float(rank)])
                if status:
                    out.end(make, status, None if status == "ok" else f"it is {status}", 1.0)
        return list(killed)

    monkeypatch.setattr(ranks_module, "_launched", write)
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
    assert [r["values"] for r in records if r["kind"] == "samples"] == [[1.0]]
    assert [(r.rank, r.value) for r in rows_of(records)] == [(0, 1.0), (1, 2.0), (-1, 2.0)]
    assert [path.name for path in job.part.parent.iterdir()] == [job.part.name]
    launched(monkeypatch, "skipped", "skipped")
    end, records = folded(job)
    assert (end["status"], end["reason"]) == ("skipped", "it is skipped")
    assert {row.rank for row in rows_of(records)} == {0, 1}, "none of the case as a whole"


@pytest.mark.parametrize(
    ("statuses", "killed", "said"),
    [
        (("ok", ""), (), "rank 1 ended without a word"),
        (("", ""), (), "rank 0, 1 ended without a word"),
        (("ok",), (), "rank 1 ended without a word"),
        (("failed", "failed"), (), "rank 0: it is failed"),  # the first to fail
        (("failed", ""), (), "rank 0: it is failed; rank 1 said nothing"),
        (("failed", ""), ("rank 1 was killed by SIGKILL",), "rank 1 was killed by SIGKILL"),
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


def test_a_rank_measures_its_own_share_on_its_own_gpu(job, monkeypatch, tmp_path):
    told: list[Any] = []

    class Group:
        def __init__(
            self, device: torch.device, ranks: Ranks, store: FileStore, patience_s: float
        ) -> None:
            assert isinstance(store, FileStore)
            assert store.timeout.total_seconds() == patience_s
            told.append((device.type, ranks, patience_s, os.environ["CUDA_VISIBLE_DEVICES"]))

        def gathered(self, value: object) -> list[object]:
            told.append("waits for all" if value is None else value)
            return [value, value]

        def close(self) -> None:
            told.append("leaves")

    for name, value in {"LOCAL_WORLD_SIZE": "", "CUDA_VISIBLE_DEVICES": "GPU-a,5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks_module, "Together", Group)
    monkeypatch.setattr(ranks_module, "die_with_parent", told.append)

    def measured(block: Block, *_: Any) -> bool:
        told.extend(block.jobs)
        return True

    monkeypatch.setattr(ranks_module, "measure_block", measured)
    job = replace(job, device="cuda")
    ranks_folder(job.part).mkdir()
    ranks_module._one_rank(job, None, tmp_path, 77, 1)  # type: ignore[arg-type]
    mine, ranks = replace(job, rank=1, trace=job.trace / "rank1"), Ranks(1, 2, 2)
    same = (job.identity, job.run.commit)
    assert told == [77, ("cuda", ranks, 30.0, "5"), same, mine, "waits for all", "leaves"]
    assert os.environ["LOCAL_WORLD_SIZE"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,5")
    ranks_module._one_rank(replace(job, device="cpu"), None, tmp_path, 77, 1)  # type: ignore[arg-type]
    assert ("cpu", ranks, 30.0, "GPU-a,5") in told, "without one it leaves them be"


def test_a_rank_of_a_further_machine_has_that_machines_gpus(job, monkeypatch, tmp_path):
    """Of 4 ranks on 2 machines rank 3 is the second of machine 1."""
    told: list[Any] = []

    def group(_device: object, ranks: Ranks, store: object, _patience_s: float) -> Any:
        told.append((ranks, store, os.environ["CUDA_VISIBLE_DEVICES"]))
        raise RuntimeError("enough")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    monkeypatch.setattr(ranks_module, "Together", group)
    monkeypatch.setattr(ranks_module, "die_with_parent", lambda _: None)
    monkeypatch.setattr(ranks_module, "store_of", lambda meeting, _: meeting)
    monkeypatch.setattr(ranks_module, "_LINGER_S", 0.0)
    monkeypatch.setattr(ranks_module.os, "_exit", told.append)  # type: ignore[attr-defined]
    meeting = Meeting("10.0.0.1", 29500, case="case7", machine=1, machines=2)
    four = replace(job.case, workload=replace(job.case.workload, gpus=4))
    job = replace(job, case=four, device="cuda", meeting=meeting)
    ranks_folder(job.part).mkdir()
    assert list(job.here) == [2, 3]
    ranks_module._one_rank(job, None, tmp_path, 77, 3)
    assert told == [(Ranks(3, 4, 2), meeting, "1"), 1]
    assert os.environ["LOCAL_WORLD_SIZE"] == "2"
