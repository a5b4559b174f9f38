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
from gatherbench.bench.run.job import Job, Preparation, Turn, last_line, read_choice
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
    assert done.returncode == -signal.SIGTERM


#: What torch says of how it was built, it says after it has counted the GPUs.
PROCESS = """
import os, pickle, sys, torch
asked = torch.__config__.show
torch.__config__.show = lambda: sys.exit("asked")
from gatherbench.bench.run import worker
worker.serve_requests = lambda work: print("torch_geometric" in sys.modules)
worker.main(os.getppid())
torch.__config__.show = asked
*jobs, gat = (pickle.load(open(job, "rb")) for job in sys.argv[1:])
for job in jobs:
    worker.do(job)
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


@pytest.mark.parametrize(
    "line", ["", "{", "3", "[" * 10**5, "9" * 5001, '["a", 1, 2, 3]', "[0, 1e400, 0, 0]"]
)
def test_what_a_process_says_of_its_work_ends_no_run(tmp_path, line):
    said = tmp_path / "said"
    said.write_text(f"{line}\n")
    assert last_line(said) == {}
    assert Turn.said(said) in (Turn(), Turn(0))


def test_nobody_waits_for_words_from_a_fifo(tmp_path):
    said = tmp_path / "said"
    os.mkfifo(said)
    assert last_line(said) == {}
    assert Turn.said(said) == Turn()
    assert read_choice(said).pcie is None
