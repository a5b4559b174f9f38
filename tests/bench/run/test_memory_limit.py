"""A case is held to its memory, or skipped; what the kernel kills has failed and says so."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run import memory_limit as module
from gatherbench.bench.run import table
from gatherbench.bench.run.job import Job, MemoryLimit
from gatherbench.bench.run.memory_limit import enter, killed_at_limit, limited, peak_row
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.run.store import read_part
from gatherbench.bench.run.worker import measure_case
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.writer import DatasetWriter
from gatherbench.kernels.memory_cgroup import MemoryCgroup, own_cgroup
from gatherbench.kernels.page_cache import pages_in_memory

from .fakes import cases, runner

MIB = 1 << 20
#: A table of 16 MiB.
SPEC = DatasetSpec("wide", 1.0, 4096, 4096, 1024, "float32", 2, "a test", "none")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    nodes = np.arange(SPEC.num_nodes)
    with DatasetWriter(tmp_path / "wide", SPEC) as out:
        out.write_columns([(np.ones_like(nodes), nodes)])
        out.write_features(np.ones((SPEC.num_nodes, SPEC.feature_dim), np.float32))
        out.write_labels(nodes % 2)
        out.write_splits(nodes[:100], nodes[100:200], nodes[200:300])
    return tmp_path / "wide"


def job(dataset: Path, share: float = 0.5, limit: MemoryLimit | None = None) -> Job:
    trace = dataset.parent / "trace"
    trace.mkdir(exist_ok=True)
    (trace / "ids.npy").write_bytes(bytes(10_000))
    (case,) = cases("given", workload=Workload("wide", memory_share=share))
    part = dataset.parent / "part.jsonl"
    run = RowMaker("run", "commit", "box", "host")
    return Job(case, Measure(repeats=1), "cpu", run, dataset, trace, part, memory=limit)


@pytest.fixture
def place(dataset: Path) -> Iterator[Path]:
    """Where cgroups of cases are made; none is left there."""
    with limited(job(dataset)) as given:
        limit = given.memory
    if limit is None or limit.cgroup is None:
        pytest.skip(f"no cgroup can be made here: {limit and limit.reason}")
    yield limit.cgroup.parent
    assert [one for one in limit.cgroup.parent.glob("gatherbench-*") if _ours(one)] == []


def _ours(folder: Path) -> bool:
    return folder.name.startswith(f"gatherbench-{os.getpid()}-")


@pytest.mark.usefixtures("place")
def test_a_limited_case_has_a_cgroup_that_goes_when_it_ends(dataset):
    with limited(job(dataset)) as given:
        assert given.memory is not None
        assert given.memory.cgroup is not None
        limit = given.memory.cgroup / MemoryCgroup(given.memory.cgroup).version.limit
        assert given.memory.size == int(limit.read_text()) == 8 * MIB
    assert not given.memory.cgroup.exists()
    with pytest.raises(KeyboardInterrupt), limited(job(dataset)) as given:
        raise KeyboardInterrupt
    assert given.memory is not None
    assert given.memory.cgroup is not None
    assert not given.memory.cgroup.exists()


def test_a_case_without_a_limit_has_no_cgroup(dataset):
    free = job(dataset, share=0)
    with limited(free) as given:
        assert given is free
    assert enter(free) is peak_row(free) is killed_at_limit(free) is None


def test_what_a_killed_runner_left_is_removed_and_what_another_runs_is_not(dataset, place):
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    stale, alive = place / f"gatherbench-{dead}-0", place / f"gatherbench-{os.getppid()}-99"
    for folder in (stale, alive):
        folder.mkdir()
    try:
        with limited(job(dataset)):
            assert not stale.exists()
            assert alive.exists()
    finally:
        alive.rmdir()


@pytest.mark.usefixtures("place")
def test_the_limit_is_respected_and_neither_graph_nor_earlier_pages_are_charged(dataset):
    """In a fork, which joins: it reads a table of twice the limit through the page cache."""
    table, graph = dataset / "features.npy", dataset / "indices.npy"
    assert table.read_bytes()
    with limited(job(dataset)) as given:
        child = os.fork()
        if child == 0:
            row = enter(given)
            cold = row is not None and row.value == 8 * MIB and pages_in_memory(table) == 0
            warm = pages_in_memory(graph) > 0 == MemoryCgroup(given.memory.cgroup).kills()  # type: ignore[union-attr,arg-type]
            with table.open("rb", buffering=0) as file:
                while file.read(MIB):
                    pass
            few = 0 < pages_in_memory(table) * 4096 <= 8 * MIB
            os._exit(cold * 1 + warm * 2 + few * 4)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        peak = peak_row(given)
        assert peak is not None
        assert 0 < (peak.value or 0) <= 8 * MIB
        assert killed_at_limit(given) is None


def test_a_case_that_takes_more_is_killed_and_says_so_and_the_plan_goes_on(
    dataset, place, store, monkeypatch
):
    monkeypatch.setenv("TEST_FOLDER", str(dataset))
    wide = Workload("wide", memory_share=2.5)  # of 16 MiB: 40 MiB
    assert runner(store, cases("eats", "good", workload=wide)).run() == 1
    eats, good = (r for r in store.rows() if r.stage == "case")
    assert eats.status == "failed"
    assert eats.reason is not None
    said = "out of memory: killed at its limit of 41,943,040 B (memory_share = 2.5) by memory."
    assert eats.reason.startswith(said)
    assert good.status == "ok"
    limits = [r.value for r in store.rows() if r.metric == "memory_limit"]
    assert limits == [40 * MIB] * 2


def test_a_workload_that_cannot_be_limited_is_skipped(dataset, monkeypatch):
    monkeypatch.setattr(module, "own_cgroup", lambda: None)
    with limited(job(dataset)) as given:
        assert given.memory is not None
        assert given.memory.cgroup is None
        measure_case(given)
    records = list(read_part(given.part))
    assert [r["kind"] for r in records] == ["row", "end"]
    assert (records[0]["metric"], records[0]["value"]) == ("memory_limit", None)
    assert records[1]["status"] == "skipped"
    assert records[1]["reason"].startswith("no_permission: the kernel shows no memory cgroup")


def test_a_cgroup_that_refuses_the_process_or_its_limit(dataset, tmp_path):
    refused = module._made(MIB, MemoryCgroup(tmp_path / "nowhere/child"))
    assert refused.cgroup is None
    assert "cannot hold a limit" in str(refused.reason)
    row = enter(job(dataset, limit=MemoryLimit(MIB, tmp_path / "gone")))
    assert row is not None
    assert row.status == "skipped"
    assert "No such file" in str(row.reason)


def test_a_table_that_another_process_keeps_in_memory_is_not_measured(
    dataset, monkeypatch, tmp_path
):
    monkeypatch.setattr(table, "drop_pages", lambda _path: 3)
    row = enter(job(dataset, limit=MemoryLimit(MIB, tmp_path)))
    assert row is not None
    assert str(row.reason).startswith("busy: 3 pages of ")


def test_this_process_is_in_no_cgroup_of_a_case():
    own = own_cgroup()
    assert own is None or not own.folder.name.startswith("gatherbench-")
