"""What the real worker does with a job."""

import contextlib
import errno
import json
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
from gatherbench.bench.run.job import Job, Preparation
from gatherbench.bench.run.runner import WORKER
from gatherbench.bench.run.store import read_part
from gatherbench.bench.run.worker import DISK_FULL, do, is_disk_full


def ended(job: Job) -> dict[str, Any]:
    """How the worker ends the job; it measures nothing before."""
    do(job)
    (end,) = read_part(job.part)
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


def test_a_full_disk_has_an_exit_status_of_its_own(make_job, tmp_path, monkeypatch):
    job = replace(make_job(), part=Path("/dev/full"))
    with pytest.raises(SystemExit) as end:
        ended(job)
    assert end.value.code == DISK_FULL
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("gatherbench.bench.sampling.prepare.prepare", full)
    preparation = Preparation(Workload("wordnet"), tmp_path / "answers.json")
    with pytest.raises(SystemExit) as end:
        do(preparation)
    assert end.value.code == DISK_FULL
    assert preparation.told() == {}


def test_a_full_disk_under_the_datasets_is_known_however_it_is_worded():
    with pytest.raises(OSError, match="No space") as caught:
        Path("/dev/full").write_text("x")
    worded = ValueError("the trace could not be written")
    worded.__cause__ = caught.value
    assert is_disk_full(worded)
    assert not is_disk_full(ValueError("something else"))


def test_a_worker_whose_runner_is_gone_does_nothing():
    done = subprocess.run([*WORKER, "1"], check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL


def test_the_server_imports_without_asking_cuda_and_a_process_keeps_to_its_cores(
    make_job, tmp_path
):
    """What torch says of how it was built, it says after it has counted the GPUs."""
    counts = [n for n in (2, 1) if n <= len(os.sched_getaffinity(0))]
    for threads in counts:
        job = make_job(threads=threads, epochs=1, warmup_epochs=0)
        (tmp_path / f"{threads}.job").write_bytes(pickle.dumps(job))
    # Fewer and fewer cores of one process: it does not get back what it has given away.
    script = (
        "import os, pickle, sys, torch\n"
        "asked = torch.__config__.show\n"
        "torch.__config__.show = lambda: sys.exit('asked')\n"
        "from gatherbench.bench.run import worker\n"
        "worker.serve_requests = lambda work: print('torch_geometric' in sys.modules)\n"
        "worker.main(os.getppid())\n"
        "torch.__config__.show = asked\n"
        "for job in sys.argv[1:]:\n"
        "    worker.do(pickle.load(open(job, 'rb')))\n"
        "    print(len(os.sched_getaffinity(0)), torch.get_num_threads())"
    )
    jobs = [str(tmp_path / f"{threads}.job") for threads in counts]
    command = [sys.executable, "-c", script, *jobs]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True", *(f"{threads} {threads}" for threads in counts)]


def prepared(workload: Workload, folder: Path) -> list[dict[str, Any]]:
    job = Preparation(workload, folder / "answers.json")
    with contextlib.suppress(SystemExit):
        do(job)
    return [json.loads(line) for line in job.answers.read_text().splitlines()]


def test_preparing_an_unknown_dataset_names_the_nearest(tmp_path):
    assert "wordnet" in prepared(Workload("wordnett"), tmp_path)[-1]["error"]


def test_what_is_prepared_is_told_on_the_way_and_at_the_end(tmp_path, monkeypatch):
    def talkative(workload: Workload, progress) -> tuple[Path, Path]:
        assert workload == Workload("wordnet", fanouts=(3, 2))
        print("{'not': json}")
        progress("drawing", 0.5)
        return tmp_path / "dataset", tmp_path / "trace"

    monkeypatch.setattr("gatherbench.bench.sampling.prepare.prepare", talkative)
    monkeypatch.setattr("gatherbench.bench.sampling.prepare.identity", lambda *_: "mine")
    folders = {"dataset": str(tmp_path / "dataset"), "trace": str(tmp_path / "trace")}
    assert prepared(Workload("wordnet", fanouts=(3, 2)), tmp_path) == [
        {"what": "drawing", "fraction": 0.5},
        {**folders, "identity": "mine"},
    ]
