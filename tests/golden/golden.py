"""What ``quick`` and ``gpu-decide`` do in small, by plans beside this, against what was recorded.

    python tests/golden/golden.py             compares; exit status 1, and each difference
    python tests/golden/golden.py --renew     records anew

``quick`` runs on the host; ``gpu-decide`` on the stand-in for CUDA, by the same command there
(tests/gpu/standin/README.md). A change that should change nothing leaves what was recorded as it
is. It tells of each process the order in which paths were opened, trained and closed; of each path
how it ended, the operations of its epochs, a checksum of each minibatch's rows, which set of
minibatches each epoch had, the losses, and the bytes and requests that it declares; on the stand-in
also the calls of CUDA in one epoch, of the thread that trains and of all. No clock decides any of
it. An operation is a letter: d(raw) a minibatch, r(ead) it, a(nnounce) it, s(ubmit) its fetch,
g(et) its rows, t(rain).
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import Tensor

from gatherbench.bench.plan.plan import Plan, load_plan
from gatherbench.bench.plan.workload import Case
from gatherbench.bench.run.epoch_minibatches import Epochs
from gatherbench.bench.run.job import Block, Job
from gatherbench.bench.run.models import Trainer
from gatherbench.bench.run.part import read_part, rows_of
from gatherbench.bench.run.rows import SET, RowMaker
from gatherbench.bench.run.runner import takes_turns
from gatherbench.bench.run.worker import do
from gatherbench.bench.sampling.device_sampler import DeviceSampler
from gatherbench.bench.sampling.numba_sampler import NeighborSampler
from gatherbench.bench.sampling.prepare import prepare
from gatherbench.kernels.reference import byte_rows
from gatherbench.strategies.base import Fetcher, Strategy

#: Of a path's epochs the last that is measured: calls of CUDA are counted, and no checksum made.
COUNTED = 4
#: Relative difference of losses on two processors.
TOLERANCE = 1e-4

ON_STANDIN = bool(os.environ.get("STANDIN_KERNELS"))
Found = dict[str, Any]


def record(plan: Plan) -> Found:
    """What the plan does, by workload, path and kind."""
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, GATHERBENCH_DATA=f"{folder}/data"))
        # Which rows of a timed epoch are compared is drawn, and comparing takes calls of CUDA.
        seeded = partial(Random, 0)
        stack.enter_context(mock.patch("gatherbench.bench.run.check.Random", seeded))
        processes: dict[object, list[Case]] = {}
        for case in plan.cases():
            own = "" if plan.measure.together and takes_turns(case) else case.id
            processes.setdefault((case.workload, own), []).append(case)
        for number, cases in enumerate(processes.values()):
            found |= _measured(plan, cases, Path(folder, str(number)))
    return found


def _measured(plan: Plan, cases: list[Case], folder: Path) -> Found:
    """Measure the cases of a process, here."""
    folder.mkdir()
    dataset, _ = prepare(cases[0].workload)
    run, device = RowMaker("golden", "", "", "host"), "cuda" if ON_STANDIN else "cpu"
    counts, alone = folder / "counts", len(cases) == 1
    jobs = [
        Job(case, plan.measure, device, run, dataset, folder / "part", alone, counts=counts)
        for case in cases
    ]
    do(Block("prepare", tuple(replace(job, part=counts) for job in jobs)))
    with ExitStack() as hooks:
        watch = _Watch(hooks)
        do(Block("measure", tuple(jobs)))
    records: dict[object, list[Any]] = {}
    for record in read_part(jobs[0].part):
        records.setdefault((record.get("strategy"), record.get("variant")), []).append(record)
    workload = cases[0].workload.id
    found: Found = {f"{workload} | order from {cases[0].strategy}": watch.order}
    for job in jobs:
        path = f"{job.case.strategy} {job.case.variant}"
        mine = records[job.case.strategy, job.case.variant]
        every = rows_of(mine)
        rows = [row for row in every if row.value]
        said = {"end": mine[-1]["status"], **watch.found.get(path, {})}
        said["sets"] = [int(row.value or 0) for row in every if (row.stage, row.metric) == SET[:2]]
        said["losses"] = [row.value for row in rows if (row.stage, row.metric) == ("train", "loss")]
        declared: dict[str, list[float]] = {}  # in each measured epoch, or once
        for row in rows:
            if row.basis == "declared" and row.value is not None:
                declared.setdefault(f"{row.stage}.{row.metric}", []).append(row.value)
        said["declared"] = declared
        found |= {f"{workload} | {path} | {kind}": value for kind, value in said.items()}
    return found


class _Watch:
    """What paths, samplers and the model are asked for, by the contract's own calls.

    Attributes:
        order: the paths as they are opened, have an epoch, and are closed.
        found: by path the operations and checksums of its epochs, and its calls of CUDA.
    """

    def __init__(self, hooks: ExitStack) -> None:
        self.order: list[str] = []
        self.found: dict[str, Found] = {}
        self._begin()
        opened = Strategy.open

        def opening(strategy: Strategy, *given: Any) -> Fetcher:
            fetcher = opened(strategy, *given)
            self._look_at(fetcher, f"{strategy.name} {strategy.variant}")
            return fetcher

        hooks.enter_context(mock.patch.object(Strategy, "open", opening))
        read = self._said("r", lambda batch: batch)

        class First(list[Any]):
            def __iter__(self) -> Iterator[Any]:
                return map(read, super().__iter__())

        draw = Epochs.first.func
        first = cached_property(lambda epochs: First(draw(epochs)))
        first.__set_name__(Epochs, "first")
        hooks.enter_context(mock.patch.object(Epochs, "first", first))
        calls: list[tuple[Any, str, str]] = [(Trainer, "step", "t")]
        calls += [(NeighborSampler, "sample", "d"), (DeviceSampler, "begin", "d")]
        for owner, name, letter in calls:
            said = self._said(letter, getattr(owner, name))
            hooks.enter_context(mock.patch.object(owner, name, said))

    def _begin(self) -> None:
        """An epoch begins."""
        self._letters, self._rows, self._before = list[str](), list[int](), _calls()

    def _said(self, letter: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def saying(*given: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self._letters.append(letter)
            return call(*given)

        return saying

    def _look_at(self, fetcher: Fetcher, path: str) -> None:
        said = self.found[path] = {"operations": [], "rows": []}
        self.order.append(f"open {path}")
        submit, check_fetched = fetcher.submit, fetcher.check_fetched

        def submitting(ids: Tensor) -> Any:
            ticket = submit(ids)

            def result() -> Tensor:
                rows = ticket.result()
                if len(said["operations"]) != COUNTED:
                    self._rows.append(zlib.crc32(byte_rows(rows.cpu().contiguous()).numpy()))
                return rows

            return SimpleNamespace(result=self._said("g", result))

        def ended() -> None:
            check_fetched()
            if not self._letters:  # asked again by close
                return
            if len(said["operations"]) == COUNTED and ON_STANDIN:
                pairs = zip(_calls(), self._before, strict=True)
                said["calls"] = [asdict(after - before) for after, before in pairs]
            said["operations"].append("".join(self._letters))
            said["rows"].append(self._rows)
            self.order.append(path)
            self._begin()

        def after(first: Callable[[], object], call: Callable[[], None]) -> Callable[[], None]:
            return lambda: (first(), call())[1]

        fetcher.__dict__.update(
            drop_caches=after(self._begin, fetcher.drop_caches),
            announce=self._said("a", fetcher.announce),
            submit=self._said("s", submitting),
            check_fetched=ended,
            close=after(partial(self.order.append, f"close {path}"), fetcher.close),
        )


def _calls() -> tuple[Any, ...]:
    """Calls of CUDA so far: of the thread that trains, and of all."""
    if not ON_STANDIN:
        return ()
    sys.path.append(str(Path(__file__).parents[1] / "gpu"))
    from counting import Counts

    return Counts.now(), Counts.now(everywhere=True)


def differences(recorded: Found, found: Found) -> Iterator[str]:
    """A line for each key whose values differ; losses may differ by :data:`TOLERANCE`."""
    for key in sorted({*recorded, *found}):
        was, now = recorded.get(key), found.get(key)
        alike = key.endswith("losses") and was and now and len(was) == len(now)
        if alike and all(map(partial(math.isclose, rel_tol=TOLERANCE), was, now)):
            continue
        if was != now:
            yield f"{key}\n    recorded: {json.dumps(was)}\n    now:      {json.dumps(now)}"


def main() -> int:
    """Compare or record; the exit status."""
    name = "gpu-decide" if ON_STANDIN else "quick"
    file = Path(__file__).with_name(f"{name}.json")
    found = record(load_plan(str(file.with_suffix(".toml"))))
    if "--renew" in sys.argv:
        entries = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
        file.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")
    lines = list(differences(json.loads(file.read_text(encoding="utf-8")), found))
    print("\n".join(lines) or f"{name} in small does what was recorded")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
