"""The real worker in a process of its own, driven by the real runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.runner import WORKER, Runner
from gatherbench.bench.run.store import RunStore, read_part
from gatherbench.bench.run.worker import DISK_FULL, is_disk_full, measure_case, prepare_workload


def work(verb: str, file: Path) -> subprocess.CompletedProcess[str]:
    command = [*WORKER, verb, str(file), str(os.getpid())]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_runner_measures_cases_with_the_real_worker(make_job, tmp_path: Path) -> None:
    job = make_job("async_zero_copy")
    store = RunStore.create(tmp_path, "box", {"name": "mine", "cases": []}, {})
    assert Runner(store, [job.case], Measure(**job.measure), "cpu", "abc", "box").run() == 0
    (ended,) = [r for r in store.rows() if r.stage == "case"]
    assert (ended.variant, ended.status) == (job.case.variant, "ok")
    assert [r.value for r in store.rows() if r.metric == "test_accuracy"]


def test_a_strategy_that_cannot_run_is_skipped_with_its_reason(make_job, tmp_path: Path) -> None:
    job = make_job("unified_zero_copy", params={"memory": "managed"})
    job.dump(tmp_path / "job.json")
    measure_case(tmp_path / "job.json")
    (end,) = read_part(job.part)
    assert end["status"] == "skipped"
    assert end["reason"]


def test_an_error_becomes_a_reason(make_job, tmp_path: Path) -> None:
    job = replace(make_job(), dataset=tmp_path / "none")
    job.dump(tmp_path / "job.json")
    measure_case(tmp_path / "job.json")
    (end,) = read_part(job.part)
    assert end["status"] == "failed"
    assert end["reason"].startswith("DatasetError")


def test_a_full_disk_has_an_exit_status_of_its_own(make_job, tmp_path: Path) -> None:
    job = replace(make_job(), part=Path("/dev/full"))
    job.dump(tmp_path / "job.json")
    assert work("measure", tmp_path / "job.json").returncode == DISK_FULL


def test_a_full_disk_under_the_datasets_is_known_however_it_is_worded() -> None:
    def write() -> None:
        try:
            Path("/dev/full").write_text("x")
        except OSError as error:
            raise ValueError("the trace could not be written") from error

    with pytest.raises(ValueError, match="trace") as caught:
        write()
    assert is_disk_full(caught.value)
    assert not is_disk_full(ValueError("something else"))


def test_a_worker_whose_runner_is_gone_does_nothing(make_job, tmp_path: Path) -> None:
    make_job().dump(tmp_path / "job.json")
    command = [*WORKER, "measure", str(tmp_path / "job.json"), "1"]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL


def test_lack_of_memory_fails_the_case_and_says_so(make_job, tmp_path: Path) -> None:
    job = make_job()
    job.dump(tmp_path / "job.json")
    script = (
        "import sys; from gatherbench.bench.run import measure, worker;"
        "measure.resident_copy = lambda t: bytearray(1 << 60);"  # beyond any address space
        "worker.main(sys.argv[1:])"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "measure",
        str(tmp_path / "job.json"),
        str(os.getpid()),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (end,) = read_part(job.part)
    assert end["status"] == "failed"
    assert end["reason"].startswith("MemoryError")


def test_the_process_keeps_to_the_cores_it_was_given(make_job, tmp_path: Path) -> None:
    counts = [n for n in (2, 1) if n <= len(os.sched_getaffinity(0))]
    for threads in counts:
        make_job(threads=threads).dump(tmp_path / f"{threads}.json")
    # Fewer and fewer cores of one process: it does not get back what it has given away.
    script = (
        "import os, sys; from gatherbench.bench.run import worker\n"
        "for job in sys.argv[2:]:\n"
        "    worker.main(['measure', job, sys.argv[1]])\n"
        "    import torch; print(len(os.sched_getaffinity(0)), torch.get_num_threads())"
    )
    jobs = [str(tmp_path / f"{threads}.json") for threads in counts]
    command = [sys.executable, "-c", script, str(os.getpid()), *jobs]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"{threads} {threads}" for threads in counts]


def test_preparing_an_unknown_dataset_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "workload.json"
    file.write_text(json.dumps(asdict(Workload("wordnett"))))
    with pytest.raises(SystemExit) as ended:
        prepare_workload(file)
    assert ended.value.code == 1
    assert "wordnet" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]


def test_what_a_library_prints_is_no_answer(tmp_path: Path, capsys, monkeypatch) -> None:
    def talkative(_workload: Workload, progress) -> tuple[Path, Path]:
        print("{'not': json}")
        progress("drawing", 0.5)
        return tmp_path / "dataset", tmp_path / "trace"

    monkeypatch.setattr("gatherbench.bench.sampling.prepare.prepare", talkative)
    monkeypatch.setattr("gatherbench.bench.sampling.prepare.identity", lambda *_: "mine")
    file = tmp_path / "workload.json"
    file.write_text(json.dumps(asdict(Workload("wordnet"))))
    prepare_workload(file)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"what": "drawing", "fraction": 0.5},
        {
            "dataset": str(tmp_path / "dataset"),
            "trace": str(tmp_path / "trace"),
            "identity": "mine",
        },
    ]
