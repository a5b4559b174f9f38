"""A tiny dataset on disk, and jobs on it, for the tests of the harness."""

import functools
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from gatherbench.bench.cli import app
from gatherbench.bench.plan.plan import Measure
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run.engine import KILL_S, WORKER, Engine
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.rows import RowMaker
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.writer import DatasetWriter
from gatherbench.strategies.registry import build

from .written_run import write_run

NODES, DEGREE, WIDTH, CLASSES = 400, 6, 33, 3
MEASURE = Measure(repeats=1, eval_batches=2, timeout_s=60)

JobMaker = Callable[..., Job]
MakeRun = Callable[..., Path]
ShellRun = tuple[Result, Path]


@pytest.fixture(scope="session")
def c_compiler() -> str:
    """For the stubs of NVIDIA's libraries, and for its headers."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    return compiler


@pytest.fixture(scope="session")
def shared_library(
    c_compiler: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], Path]:
    """Builds one of a C source, once."""

    @functools.cache
    def build(source: Path) -> Path:
        library = tmp_path_factory.mktemp("stub") / "stub.so"
        command = [c_compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        return library

    return build


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that holds one prepared graph, ``tiny``."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    spec = DatasetSpec(
        "tiny", 1.0, NODES, NODES * DEGREE, WIDTH, "float32", CLASSES, "made", "none"
    )
    labels = np.arange(NODES) % CLASSES
    # Neighbours share the label: what a GNN learns from.
    neighbours = (rng.integers(0, NODES, (NODES, DEGREE)) // CLASSES) * CLASSES + labels[:, None]
    features = rng.standard_normal((NODES, WIDTH)).astype(np.float32)
    features[:, :CLASSES] += 4 * np.eye(CLASSES, dtype=np.float32)[labels]
    with DatasetWriter(root / "tiny", spec) as writer:
        writer.write_columns([(np.full(NODES, DEGREE), neighbours.ravel() % NODES)])
        writer.write_features(features)
        writer.write_labels(labels)
        order = rng.permutation(NODES)
        writer.write_splits(order[:200], order[200:300], order[300:])
    return root


PLAN = """
description = "a plan for a test"
[measure]
repeats = 1
warmup_epochs = 0
epochs = 1
threads = 1
[[workload]]
dataset = "tiny"
fanouts = [3, 2]
batch_size = 50
max_batches = 2
[[strategy]]
name = "cpu_gather"
[[strategy]]
name = "aligned_zero_copy"
"""


@pytest.fixture
def plan(tmp_path: Path, tiny_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of two strategies on the tiny graph."""
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    path = tmp_path / "mine.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="session", autouse=True)
def kept_servers() -> Iterator[None]:
    """Keep a runner's server for the next run: what it has imported takes longer than most runs."""
    kept = dict[object, Engine]()

    def engine(folder: Path, environ: Mapping[str, str], command: Any) -> Engine:
        made = Engine(folder, environ, command)
        if command == WORKER:  # not one that misbehaves
            env = frozenset(one for one in environ.items() if not one[0].startswith("PYTEST_"))
            made = kept.setdefault((Path.cwd(), env), made)
            made.folder, made.look = folder, lambda: None
            made.close = lambda: None  # type: ignore[method-assign]
        return made

    with mock.patch("gatherbench.bench.run.runner.Engine", engine):
        yield
    for made in kept.values():
        made._end(KILL_S)


@pytest.fixture(scope="session")
def shell_run(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> ShellRun:
    """The plan run once by the command, with predictions for ``a100-pcie4``.

    Returns what it printed and the run's folder; a test that changes the folder copies it.
    """
    root = tmp_path_factory.mktemp("shell_run")
    (root / "mine.toml").write_text(PLAN)
    command = ["run", str(root / "mine.toml"), "--results", str(root / "results")]
    command += ["--profile", "a100-pcie4"]
    done = CliRunner().invoke(app, command, env={"GATHERBENCH_DATA": str(tiny_root)})
    assert done.exit_code == 0, done.output
    (folder,) = (root / "results").glob("*/*")
    return done, folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run leaves, but for its pictures: they take longer than all the rest."""
    monkeypatch.setattr("gatherbench.bench.commands.execute.save_all", lambda *_, **__: [])


@pytest.fixture
def make_job(tiny_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobMaker:
    """Makes a job for a strategy on the tiny graph; keywords change the measure table."""
    monkeypatch.setenv("GATHERBENCH_DATA", str(tiny_root))
    # On so small a graph a second thread only waits for its turn.
    torch.set_num_threads(1)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def make(strategy: str = "cpu_gather", model: str = "sage", **changes: Any) -> Job:
        params = changes.pop("params", {})
        workload = Workload("tiny", model=model, fanouts=(4, 3), batch_size=32, max_batches=5)
        dataset, _ = prepare(workload)
        case = Case(workload, strategy, build(strategy, params).variant, params, 0)
        return Job(
            case,
            MEASURE.model_copy(update=changes),
            "cpu",
            RowMaker("run", "abc", "box", "host"),
            dataset,
            tmp_path / f"{case.id}.jsonl",
        )

    return make


@pytest.fixture
def once() -> Callable[..., AbstractContextManager[None]]:
    """``with once(parts, act, number)``: acts when so many parts have been begun there."""
    return _once


@contextmanager
def _once(
    parts: Path, act: Callable[[], None], number: int = 1, names: str = "block"
) -> Iterator[None]:
    ended = threading.Event()

    def wait() -> None:
        while sum(part.stat().st_size > 0 for part in parts.glob(f"{names}*.jsonl")) < number:
            if ended.wait(0.01):
                return
        act()

    watcher = threading.Thread(target=wait)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run folder (arguments of :func:`write_run`) and returns it."""

    def make(name: str = "20261121-quick-abc123", **arguments: Any) -> Path:
        return write_run(tmp_path / "results" / "cpu-amd-epyc-2c" / name, **arguments)

    return make
