"""Runs to report on, written through the store, and a real browser to read the reports in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.rows import Row, RowMaker
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.report.page import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

#: Strategy, variant and the seconds of an epoch.
BASELINE = ("cpu_gather", "naive", 2.0)
PINNED = ("cpu_gather", "pinned", 1.5)
ALIGNED = ("aligned_zero_copy", "given", 0.8)
BOUND = ("all_in_gpu", "default", 0.5)
ALL = (BASELINE, PINNED, ALIGNED, BOUND)
WORKLOAD = "wordnet-sage16x2-b1000-5f292758"

Series = tuple[str, str, float]
MakeRun = Callable[..., Path]
OpenReport = Callable[..., "Page"]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run and returns its folder."""

    def make(
        series: Sequence[Series] = ALL,
        *,
        workloads: Sequence[str] = (WORKLOAD,),
        dataset: str = "wordnet",
        name: str = "quick",
        repeats: int = 2,
        failures: dict[tuple[str, str], tuple[str, str]] | None = None,
        not_run: Sequence[tuple[str, str]] = (),
        modelled: Sequence[Series] = (),
        backend: str = "host",
        spread: float = 0.02,
        declared: bool = False,
    ) -> Path:
        cases = [
            {"workload": w, "strategy": s, "variant": v, "params": {}, "repeat": r}
            for w in workloads
            for s, v, _ in series
            for r in range(repeats)
        ]
        fields = {"dataset": dataset, "scale": 1.0, "model": "sage", "hidden": 16}
        fields |= {"fanouts": [25, 10], "batch_size": 1000, "max_batches": 20, "seed": 0}
        measure = {"repeats": repeats, "warmup_epochs": 1, "epochs": 2, "sampling": "live"}
        plan = {"name": name, "description": "a test", "device": "cpu", "measure": measure}
        plan |= {"workloads": dict.fromkeys(workloads, fields), "cases": cases}
        env: dict[str, Any] = {"cpu": {"model": "AMD EPYC", "usable_cores": 2}, "gpus": []}
        env["memory"] = {"total": 25276510208}
        if backend == "cuda":
            env["gpus"] = [{"name": "NVIDIA H200"}]
        store = RunStore.create(tmp_path / "results", "cpu-amd-epyc-2c", plan, env)

        def maker(workload: str, one: Series, repeat: int) -> RowMaker:
            what = (workload, dataset, *one[:2], repeat)
            return RowMaker(store.run_id, "0123456789ab", "cpu-amd-epyc-2c", backend, *what)

        for number, workload in enumerate(workloads):
            for one in series:
                for repeat in range(repeats):
                    rows = maker(workload, one, repeat)
                    if one[:2] in not_run:
                        continue
                    if one[:2] in (failures or {}):
                        status, reason = (failures or {})[one[:2]]
                        row = rows.missing("case", "wall_time", "s", "test", reason, status)
                        store.append([row])
                        continue
                    store.append([rows.ok("check", "batches", "1", 3, "compared bit for bit")])
                    if declared and repeat == 0:
                        store.append(_declared(rows))
                    store.append([rows.ok("setup", "open_time", "s", 0.3, "time.perf_counter")])
                    for epoch in range(2):
                        longer = 1 + spread * (repeat + epoch / 2) + number / 10
                        _epoch(store, rows, one[2] * longer, epoch)
                    store.append([rows.ok("case", "wall_time", "s", 10.0, "time.perf_counter")])
            for one in modelled:
                where = {"machine": "h200-sxm-pcie5", "backend": "cuda", "basis": "predicted"}
                _epoch(store, replace(maker(workload, one, 0), **where), one[2], 0)
        return store.folder

    return make


def _declared(rows: RowMaker) -> list[Row]:
    """What a case says of itself before it is timed: a zero-copy path, 2 GB in 20 minibatches."""
    facts = {
        "fetch": {
            "declared_payload": 2e9,
            "gpu_link_read": 2e9,
            "gpu_table": 7e7,
            "gpu_requests_128_bytes": 2e9 / 128,
        }
        | {"row": 1280, "lookahead": 0, "gpu_share": 0},
        "sample": {"minibatches": 20, "edges": 4e5},
        "train": {"operations": 3e9, "gpu_memory": 2e9, "launches": 1440, "structure": 6e6},
    }
    declared = replace(rows, basis="declared")
    made = [
        declared.ok(stage, metric, "B" if metric in _IN_BYTES else "1", value, "declared")
        for stage, values in facts.items()
        for metric, value in values.items()
    ]
    return [*made, rows.ok("setup", "table", "B", 1.4e8, "tensor.nbytes")]


_IN_BYTES = ("declared_payload", "gpu_link_read", "gpu_table", "row", "gpu_memory", "structure")


def _epoch(store: RunStore, rows: RowMaker, seconds: float, epoch: int) -> None:
    shares = {"sample": 0.2, "fetch": 0.5, "train": 0.29}
    made = [
        rows.ok(stage, "wall_time", "s", share * seconds, "time.perf_counter", epoch)
        for stage, share in shares.items()
    ]
    made.append(rows.ok("epoch", "wall_time", "s", seconds, "time.perf_counter", epoch))
    made.append(rows.ok("epoch", "cpu_user", "s", seconds, "getrusage", epoch))
    made.append(rows.ok("epoch", "cpu_system", "s", seconds / 10, "getrusage", epoch))
    made.append(rows.ok("fetch", "payload", "B", 2e9, "rows fetched × bytes of a row", epoch))
    reason = "no_device: NVML finds no driver; install it on a machine with a GPU"
    made.append(rows.missing("epoch", "gpu_energy", "J", "NVML", reason, epoch=epoch))
    store.append(made)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it; without one the tests are skipped, or fail where required."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if found is None:
        remedy = "no Chromium on this machine: apt-get install chromium"
        if os.environ.get("GATHERBENCH_BROWSER") == "required":
            pytest.fail(remedy)
        pytest.skip(remedy)
    if os.environ.get("GATHERBENCH_BROWSER") != "required":
        pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox does not start for root, and the pages here are ours.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=arguments)
        yield opened
        opened.close()


class Watched:
    """What a page did that it should not: messages on the console, errors, requests."""

    def __init__(self) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        context.on("console", lambda message: self.console.append(message.text))
        context.on("weberror", lambda error: self.console.append(str(error.error)))
        context.on("request", lambda request: self.requests.append(request.url))


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def open_report(browser: Browser, tmp_path: Path, watched: Watched) -> Iterator[OpenReport]:
    """Writes the report of a run and opens it from its file; keywords are the context's.

    At the end of every test the page must have asked nobody for anything and complained of nothing.
    """
    contexts: list[BrowserContext] = []

    def open_(folder: Path, base: Path | None = None, **options: Any) -> Page:
        other = None if base is None else load_run(base)
        path = write_report(load_run(folder), tmp_path / "report.html", other)
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(**options)
        contexts.append(context)
        watched.watch(context)
        page = context.new_page()
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert watched.console == []
    asked = [url for url in watched.requests if not url.startswith(("file://", "data:", "blob:"))]
    assert asked == []
