"""What the real worker does with a job."""

import errno
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import table
from gatherbench.bench.run.engine import WORKER
from gatherbench.bench.run.job import Block, Job
from gatherbench.bench.run.part import read_part
from gatherbench.bench.run.worker import DISK_FULL, do, is_disk_full
from gatherbench.outside import fresh


def ended(job: Job) -> dict[str, Any]:
    """How the worker ends the job; it measures nothing before."""
    fresh(job.part)
    do(Block("measure", (replace(job, alone=True),)))
    (end,) = (record for record in read_part(job.part) if record["kind"] == "end")
    return end


def test_a_strategy_that_cannot_run_is_skipped_and_an_error_is_a_reason(
    make_job, tmp_path, monkeypatch
):
    skipped = ended(make_job("unified_zero_copy", params={"memory": "managed"}))
    assert (skipped["status"], bool(skipped["reason"])) == ("skipped", True)
    wrong = ended(replace(make_job(), dataset=tmp_path / "none"))
    assert (wrong["status"], wrong["reason"].partition(":")[0]) == ("failed", "DatasetError")
    beyond_any_address_space = lambda *_, **__: bytearray(1 << 60)  # noqa: E731
    monkeypatch.setattr(table, "empty", beyond_any_address_space)
    full = ended(make_job())
    assert (full["status"], full["reason"].partition(":")[0]) == ("failed", "MemoryError")


def test_a_full_disk_has_an_exit_status_of_its_own(make_job, monkeypatch):
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    job = make_job()
    for do_what, name in (
        ("measure", "gatherbench.bench.run.block.Session"),
        ("prepare", "gatherbench.bench.sampling.prepare.prepare"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, full)
            with pytest.raises(SystemExit) as end:
                do(Block(do_what, (job,)))
        assert end.value.code == DISK_FULL
    assert list(read_part(job.part)) == []


def test_a_full_disk_under_the_datasets_is_known_however_it_is_worded():
    with pytest.raises(OSError, match="No space") as caught:
        Path("/dev/full").write_text("x")
    worded = ValueError("the graph could not be written")
    worded.__cause__ = caught.value
    assert is_disk_full(worded)
    assert not is_disk_full(ValueError("something else"))


def test_a_worker_whose_runner_is_gone_does_nothing():
    done = subprocess.run([*WORKER, "1"], check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGTERM


#: What torch says of how it was built, it says after it has counted the GPUs.
PROCESS = """
import os, pickle, sys, torch
asked = torch.__config__.show
torch.__config__.show = lambda: sys.exit("asked")
from gatherbench.bench.run import worker
worker.serve_requests = lambda work: print("torch_geometric" in sys.modules)
from gatherbench.bench.run.job import Block
worker.main(os.getppid())
torch.__config__.show = asked
*jobs, gat = (pickle.load(open(job, "rb")) for job in sys.argv[1:])
for job in jobs:
    worker.do(Block("measure", (job,)))
    print(len(os.sched_getaffinity(0)), torch.get_num_threads())
from gatherbench.bench.run.models import build_model
build_model(gat.case.workload, 4, 3)
made = [m.__file__ for n, m in sys.modules.items() if n.endswith(("_propagate", "_edge_updater"))]
print(*made)
"""


def test_a_process_asks_no_gpu_keeps_to_its_cores_and_writes_where_nobody_else_can(
    make_job, tmp_path
):
    """Fewer and fewer cores: it does not get back what it has given away.

    PyG executes modules that it writes into the temporary folder, where ``__pycache__`` may be
    another's.
    """
    counts = [n for n in (2, 1) if n <= len(os.sched_getaffinity(0))]
    jobs = [make_job(threads=threads, epochs=1, warmup_epochs=0) for threads in counts]
    files = [tmp_path / f"{number}.job" for number in range(len(jobs) + 1)]
    for file, job in zip(files, [*jobs, make_job(model="gat")], strict=True):
        file.write_bytes(pickle.dumps(job))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *map(str, files)],
        env=os.environ | {"TMPDIR": str(temporary)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    *said, written = done.stdout.splitlines()
    assert said == ["True", *(f"{threads} {threads}" for threads in counts)]
    made = [Path(name) for name in written.split()]
    assert len(made) == 3, "one of sage, two of gat"
    assert {path.parent.parent for path in made} == {temporary}
    assert not [path for path in temporary.rglob("*") if path.is_file()], (
        "they go with their folder"
    )


def prepared(job: Job, workload: Workload) -> list[dict[str, Any]]:
    job = replace(job, case=replace(job.case, workload=workload), part=fresh(job.part), first=False)
    do(Block("prepare", (job,)))
    return list(read_part(job.part))


def test_preparing_an_unknown_dataset_names_the_nearest(make_job):
    assert "wordnet" in prepared(make_job(), Workload("wordnett"))[-1]["failed"]


def test_what_is_prepared_is_told_on_the_way_and_at_the_end(make_job, tmp_path, monkeypatch):
    def talkative(workload: Workload, progress) -> tuple[Path, str]:
        assert workload == Workload("wordnet", fanouts=(3, 2))
        print("{'not': json}")
        progress("drawing", 0.5)
        return tmp_path / "dataset", "mine"

    job = make_job()
    monkeypatch.setattr("gatherbench.bench.sampling.prepare.prepare", talkative)
    assert prepared(job, Workload("wordnet", fanouts=(3, 2))) == [
        {"kind": "work", "what": "drawing", "fraction": 0.5},
        {"kind": "answer", "dataset": str(tmp_path / "dataset"), "identity": "mine"},
    ]
