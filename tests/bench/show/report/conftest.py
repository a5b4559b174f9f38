"""Runs to report on, and a real browser to read the reports in."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.page import write_report

from ...written_run import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

#: Strategy, variant and the seconds of an epoch.
NAIVE = ("cpu_gather", "naive", 2.0)
PINNED = ("cpu_gather", "pinned", 1.5)
ALIGNED = ("aligned_zero_copy", "given", 0.8)
BOUND = ("all_in_gpu", "default", 0.5)
ALL = (NAIVE, PINNED, ALIGNED, BOUND)
WORKLOAD = "wordnet-sage16x2-b1000-5f292758"

Series = tuple[str, str, float]
MakeRun = Callable[..., Path]
OpenReport = Callable[..., "Page"]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run of such series and returns its folder; keywords are those of ``write_run``.

    Each repeat is longer than the one before by ``spread``, and so is half of that each epoch.
    """
    return functools.partial(_write, tmp_path, itertools.count())


def _write(
    root: Path,
    numbers: Iterator[int],
    series: Sequence[Series] = ALL,
    *,
    name: str = "quick",
    spread: float = 0.02,
    **more: Any,
) -> Path:
    return write_run(
        root / "results" / "cpu-amd-epyc-2c" / f"20261121-{name}-{next(numbers):06x}",
        series=series,
        longer=lambda workload, repeat, epoch: 1 + spread * (repeat + epoch / 2) + workload / 10,
        **{"plan_name": name, "workloads": [WORKLOAD], "repeats": 2, "epochs": 2}
        | {"profile": "h200-sxm-pcie5-low", "max_batches": 20}
        | more,
    )


@pytest.fixture(scope="session")
def report_of(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """The report of a run of these arguments of ``make_run``, made once for all who look at it."""
    root, numbers, made = tmp_path_factory.mktemp("reports"), itertools.count(), dict[str, Path]()

    def report(*series: Any, **more: Any) -> Path:
        key = repr((series, more))
        if key not in made:
            folder = _write(root, numbers, *series, **more)
            made[key] = write_report(load_run(folder), folder / "report.html")
        return made[key]

    return report


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
def open_report(browser: Browser, watched: Watched) -> Iterator[OpenReport]:
    """Opens a report from its file, in a context of the test's own; keywords are the context's.

    At the end of every test the page must have asked nobody for anything and complained of nothing.
    """
    contexts: list[BrowserContext] = []

    def open_(path: Path, **options: Any) -> Page:
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
