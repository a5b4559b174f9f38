"""Paths that take turns in one process: what each measures, and what each may cost the others."""

import gc
import json
import math
import random
import time
import weakref
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.bench.run import block as block_module
from gatherbench.bench.run import measure as measure_module
from gatherbench.bench.run import part as part_module
from gatherbench.bench.run import session as session_module
from gatherbench.bench.run import table as table_module
from gatherbench.bench.run.block import apart, measure_block
from gatherbench.bench.run.counting import PAYLOAD
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.job import Block, Job
from gatherbench.bench.run.part import PartWriter, SoFar, read_part, rows_of, take_in
from gatherbench.bench.run.rows import SET, Row
from gatherbench.bench.run.runner import takes_turns
from gatherbench.outside import fresh
from gatherbench.strategies.base import Fetcher
from gatherbench.strategies.registry import build

from .fakes import counted, measured

ASYNC, PINNED, ALL = "async_zero_copy", "cpu_gather", "all_in_gpu"


def taken(jobs: list[Job], until: float = math.inf) -> dict[str, list[dict[str, Any]]]:
    """The records of each path, by strategy."""
    part = fresh(jobs[0].part)
    with closing(PartWriter(part)) as out:
        measure_block(Block("measure", tuple(jobs), until), out)
    found = defaultdict(list)
    for record in read_part(part):
        found[record.get("strategy")].append(record)
    return {job.case.strategy: found[job.case.strategy] for job in jobs}


def values(rows: list[Row], stage: str, metric: str) -> list[float | None]:
    return [row.value for row in rows if (row.stage, row.metric) == (stage, metric)]


def by_set(rows: list[Row]) -> dict[float | None, float | None]:
    """The loss of each set of minibatches."""
    return dict(zip(values(rows, *SET[:2]), values(rows, "train", "loss"), strict=True))


def test_paths_that_take_turns_train_as_each_does_alone(make_job):
    """The same weights, minibatches and dropout: a path that drew from its neighbour's random
    numbers would have another loss."""
    names = (PINNED, ASYNC, ALL)
    jobs = [make_job(name, epochs=3, eval_batches=1) for name in names]
    found = {name: rows_of(part) for name, part in taken(jobs).items()}
    (began,) = {v for rows in found.values() for v in values(rows, "setup", "process_began")}
    assert began is not None
    places = [values(found[name], "epoch", "place") for name in names]
    assert [sorted(block) for block in zip(*places, strict=True)] == [[0, 1, 2]] * 3
    sets = [values(found[name], *SET[:2]) for name in names]
    assert all(sorted(of) == [0, 1, 2] for of in sets), "each path has each set once"
    assert all(len(set(block)) == 3 for block in zip(*sets, strict=True)), "no two of a block"
    assert len(set(by_set(found[PINNED]).values())) == 3, "who was on other rows is found out"
    for name in names:
        alone = measured(make_job(name, epochs=3, eval_batches=1))
        assert by_set(found[name]) == by_set(alone)
        accuracy = ("eval", "test_accuracy")
        assert values(found[name], *accuracy) == values(alone, *accuracy)
        assert not values(alone, "setup", "process_began")


@pytest.mark.parametrize(("energy", "epochs"), [(True, 2), (False, 0)])
def test_energy_is_that_of_further_epochs_behind_the_blocks(make_job, monkeypatch, energy, epochs):
    """Each path has a window of its own, in which it alone trains; that of the blocks is none's."""
    order: list[tuple[str, str]] = []
    trained = measure_module.MeasuredCase._epoch

    class Energy:
        def __init__(self, gpu: object, *, run_on: bool = True) -> None:
            self.gpu = gpu

        def __enter__(self) -> None:
            order.append(("window", ""))

        def __exit__(self, *_: object) -> None:
            assert order[-1] == ("window", ""), "no epoch is in it"

        def rows(self, _epochs: int, one_epoch: Any, *_: Any) -> list[Row]:
            for _ in range(2 if self.gpu else 0):
                order.append(("energy", ""))
                one_epoch()
            return []

    def epoch(self: Any, *given: Any) -> Any:
        order.append(("epoch", self.job.case.strategy))
        return trained(self, *given)

    monkeypatch.setattr(measure_module, "EnergyBlock", Energy)
    monkeypatch.setattr(measure_module.MeasuredCase, "_epoch", epoch)
    monkeypatch.setattr(session_module.Session, "gpu", "a GPU")
    names = (PINNED, ALL)
    taken([make_job(name, epochs=3, warmup_epochs=1, energy=energy) for name in names])
    windows = [order[place + 1] for place, one in enumerate(order) if one == ("energy", "")]
    for name in names:
        assert windows.count(("epoch", name)) == epochs
        assert order.count(("epoch", name)) == 1 + 3 + 1 + epochs, "the last compares rows again"
    first = order.index(("window", ""))
    assert sum(one[0] == "epoch" for one in order[:first]) == 2 * (1 + 3) + 1


def test_the_time_that_all_share_is_in_the_time_of_each(make_job, monkeypatch):
    """Of 60 s for the table each of three paths has 20, beside its own turns."""
    now = [0.0]

    def load(*_: Any, **__: Any) -> Any:
        now[0] += 60
        return loaded(*_, **__)

    loaded = table_module.load_table
    monkeypatch.setattr(table_module, "load_table", load)
    monkeypatch.setattr(block_module.time, "perf_counter", lambda: now[0])
    parts = taken([make_job(name) for name in (PINNED, ASYNC, ALL)])
    assert [part[-1]["value"] for part in parts.values()] == [20.0] * 3


def test_another_repeat_has_other_orders(make_job, monkeypatch):
    seen = []

    def kept(sets: Any, draw: random.Random, before: int | None) -> Any:
        seen.append(draw.random())
        return apart(sets, draw, before)

    monkeypatch.setattr(block_module, "apart", kept)
    for repeat in (0, 0, 1):
        job = make_job()
        taken([replace(job, case=replace(job.case, repeat=repeat))])
    first, again, other = seen[0:2], seen[2:4], seen[4:6]
    assert first == again != other


def test_what_a_path_keeps_of_its_fetches_brings_it_nothing_in_an_epoch(make_job, monkeypatch):
    """A path that knows every minibatch that it has fetched finds none of them again."""
    fetched = defaultdict[int, list[bytes]](list)
    submit = Fetcher.submit

    def noted(self: Fetcher, ids: Any) -> Any:
        fetched[id(self)].append(ids.numpy().tobytes())
        return submit(self, ids)

    trained = measure_module.MeasuredCase._epoch

    def epoch(self: Any, *given: Any) -> Any:
        before = set(fetched[id(self.fetcher)])
        times = trained(self, *given)
        again.append(len(before & set(fetched[id(self.fetcher)][-5:])))
        return times

    again = list[int]()
    monkeypatch.setattr(Fetcher, "submit", noted)
    monkeypatch.setattr(measure_module.MeasuredCase, "_epoch", epoch)
    taken([make_job(name, epochs=3, warmup_epochs=2) for name in (PINNED, ALL)])
    # What is compared before the first warm-up comes again in it, and the first five minibatches
    # after the last epoch: neither is timed.
    assert sorted(again) == [*[0] * 2 * 4, 2, 2, 5, 5]


def test_a_path_that_is_wrong_or_raises_costs_itself(make_job, monkeypatch):
    good, bad, worse = (make_job(name, epochs=2) for name in (PINNED, ASYNC, ALL))
    epoch = measure_module.MeasuredCase.epoch

    def failing(self: Any, number: int, *given: Any) -> None:
        if number == 1 and self.strategy.name == ASYNC:
            raise measure_module.check.WrongRowsError("minibatch 1")
        if number == 0 and self.strategy.name == ALL:
            raise RuntimeError("out of luck")
        epoch(self, number, *given)

    monkeypatch.setattr(measure_module.MeasuredCase, "epoch", failing)
    parts = taken([good, bad, worse])
    ends = {name: (part[-1]["status"], part[-1]["reason"]) for name, part in parts.items()}
    assert ends[PINNED] == ("ok", None)
    assert ends[ASYNC] == ("failed", "WrongRowsError: minibatch 1")
    assert ends[ALL] == ("failed", "RuntimeError: out of luck")
    found = {name: rows_of(part) for name, part in parts.items()}
    assert len(values(found[PINNED], "epoch", "wall_time")) == 2
    (lost,) = [r for r in found[ASYNC] if (r.stage, r.metric) == ("check", "rows")]
    assert lost.status == "failed"


def test_a_path_that_is_found_wrong_behind_its_last_epoch_ends_once(make_job, monkeypatch):
    """Of a rank the last end counts, and of a case the first."""

    def failing(_: object) -> None:
        raise measure_module.check.WrongRowsError("after the last epoch")

    monkeypatch.setattr(measure_module.MeasuredCase, "finish", failing)
    job = make_job(PINNED, epochs=1)
    with closing(PartWriter(fresh(job.part))) as out:
        assert not measure_block(Block("measure", (job,)), out), "none failed"
    ends = [record["status"] for record in read_part(job.part) if record["kind"] == "end"]
    assert ends == ["failed"]


def test_a_path_that_does_not_fit_has_its_blocks_later_in_the_same_process(make_job, monkeypatch):
    """On this host ``all_in_gpu`` keeps a second copy: there is room for its half alone."""
    jobs = [make_job(name, epochs=2) for name in (ALL, PINNED, ASYNC)]
    size = session_module.open_dataset(jobs[0].dataset).spec.table_bytes
    room = 1.5 * size  # of which a path may take half
    monkeypatch.setattr(block_module, "free_bytes", lambda _device: room)
    monkeypatch.setattr(block_module.random.Random, "shuffle", lambda _self, paths: paths.reverse())
    found = {name: rows_of(part) for name, part in taken(jobs).items()}
    places = {name: values(rows, "epoch", "place") for name, rows in found.items()}
    assert places[ALL] == [0, 0]
    assert sorted(map(sum, zip(places[PINNED], places[ASYNC], strict=True))) == [1, 1]
    assert len({values(rows, "setup", "process_began")[0] for rows in found.values()}) == 1


def test_a_table_of_another_kind_is_loaded_behind_the_first_where_there_is_no_room_for_both(
    make_job, monkeypatch
):
    """The first is let go of before, or the host would have both."""
    held, loaded = [], table_module.load_table

    def load(dataset: Any, kind: Any, device: Any) -> Any:
        gc.collect()
        assert kind == "anonymous" or room > 2 * size or held[0]() is None
        table = loaded(dataset, "shared" if kind == "managed" else kind)
        held.append(weakref.ref(table.features))
        return replace(table, kind=kind)

    def kind(strategy: Any, *_: Any) -> str:
        return "managed" if strategy.name == ASYNC else "anonymous"

    monkeypatch.setattr(table_module, "load_table", load)
    monkeypatch.setattr(table_module, "table_kind", kind)
    monkeypatch.setattr(session_module.Session, "table_refusal", lambda *_: None)
    monkeypatch.setattr(block_module, "has_room", lambda spec, _: spec.table_bytes < room / 2)
    monkeypatch.setattr(block_module.random.Random, "shuffle", lambda _self, paths: None)
    for times in (1, 3):
        held.clear()
        jobs = [make_job(name, epochs=2) for name in (PINNED, ASYNC)]
        size = session_module.open_dataset(jobs[0].dataset).spec.table_bytes
        room = times * size
        found = {name: rows_of(part) for name, part in taken(jobs).items()}
        places = [values(found[name], "epoch", "place") for name in (PINNED, ASYNC)]
        assert len(held) == 2
        blocks_of_one = [place for path in places for place in path]
        assert (sum(blocks_of_one) == 0) == (times == 1), "beside each other, or one by one"


@pytest.mark.parametrize(
    ("until", "blocks_done"), [(39.0, 2), (40.0, 3), (1000.0, 4), (5.0, 1), (-1.0, 1)]
)
def test_paths_end_before_a_block_that_the_runs_time_would_cut_off(
    make_job, monkeypatch, until, blocks_done
):
    """Two paths of 5 s an epoch: a block takes 10 s, and as long is kept for what follows it."""
    now, epoch = [0.0], measure_module.MeasuredCase.epoch

    def slow(self: Any, number: int, *given: Any) -> None:
        now[0] += 5
        epoch(self, number, *given)

    monkeypatch.setattr(measure_module.MeasuredCase, "epoch", slow)
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0], time=time.time)
    monkeypatch.setattr(block_module, "time", clock)
    jobs = [make_job(name, epochs=4, eval_batches=1) for name in (PINNED, ALL)]
    for records in taken(jobs, until).values():
        assert records[-1]["status"] == "ok"
        rows = rows_of(records)
        assert len(values(rows, "epoch", "wall_time")) == blocks_done
        scored = len(values(rows, "eval", "test_accuracy"))
        assert scored == (blocks_done == 4), "a model that was trained less has no score"


def test_a_case_alone_has_all_its_epochs_however_late_it_is(make_job):
    """Cut off, it is measured again; with fewer epochs it would pass for whole."""
    (records,) = taken([replace(make_job(epochs=4), alone=True)], until=-1.0).values()
    assert len(values(rows_of(records), "epoch", "wall_time")) == 4


def test_a_second_process_measures_the_blocks_that_are_left_and_scores_nothing(make_job):
    """One path had two whole blocks, the other none: they take turns from block 2 on."""
    jobs = counted(*(make_job(name, epochs=4, eval_batches=1) for name in (PINNED, ALL)))
    whole = rows_of(taken(jobs)[PINNED])
    first, second = jobs[0].part, jobs[0].part.with_suffix(".second")
    kept = list[str]()
    for line in first.read_text().splitlines(keepends=True):
        kept += [line] if f'"{PINNED}"' in line else []
        if f'"{PINNED}"' in line and '"block"' in line and '"number": 1' in line:
            break
    commit = json.dumps({"commit": rows_of(read_part(first))[0].commit})[1:-1]
    first.write_text("".join(kept).replace(commit, '"commit": "older"'))
    found: dict[Any, SoFar] = {}
    take_in(found, first)
    (before,) = found.values()
    assert (before.blocks, before.ended) == (2, None)
    spent_s = before.spent_s + 1e6
    again = [replace(jobs[0], start=2, spent_s=spent_s), jobs[1]]
    taken([replace(job, part=second) for job in again])
    take_in(found, second)
    rows = {key[1]: one.rows for key, one in found.items()}
    epochs = [r.epoch for r in rows[PINNED] if (r.stage, r.metric) == ("epoch", "wall_time")]
    assert epochs == [0, 1, 2, 3]
    assert [r.epoch for r in rows[PINNED] if r.metric == "process_began"] == [-1, 2]
    assert rows[PINNED][-1].value > spent_s
    turns = [record["before_s"] for record in read_part(second) if record["kind"] == "turn"]
    assert max(turns) < 1e6, "a case's time limit is for this process"
    frames = frames_of(rows[PINNED])
    assert len(frames.cases) == 1, "the code was changed between: its epochs tell, the case is one"
    assert (frames.epochs["commit"] == "older").tolist() == [True, True, False, False]
    places = {name: values(of, "epoch", "place") for name, of in rows.items()}
    assert places[ALL][:2] == [0, 0]
    assert all(
        sorted(two) == [0, 1] for two in zip(places[PINNED][2:], places[ALL][2:], strict=True)
    )
    keys = Counter((r.epoch, r.stage, r.metric, r.basis) for r in rows[PINNED])
    assert set(keys.values()) == {1}
    assert not [r for r in rows[PINNED] if r.stage == "eval"]
    assert by_set(rows[PINNED]) == by_set(whole), "sets go on where they were, and so do losses"
    for of in (SET[:2], PAYLOAD[:2]):
        assert values(rows[PINNED], *of) == values(whole, *of), "each epoch has what it declares"
    for of_path in rows.values():
        assert values(of_path, *PAYLOAD[:2]) == values(of_path, "fetch", "payload"), "of its set"


def test_a_block_is_on_the_disk_before_the_next_one_begins(make_job, monkeypatch):
    """Two paths: two records of a block after the first, four after the second."""
    jobs, synced = [make_job(name, epochs=2) for name in (PINNED, ALL)], list[int]()
    fsync = part_module.os.fsync

    def noted(descriptor: int) -> None:
        synced.append(jobs[0].part.read_text().count('"kind": "block"'))
        fsync(descriptor)

    monkeypatch.setattr(part_module.os, "fsync", noted)
    taken(jobs)
    assert synced == [2, 4, 4, 4], "and each of the two ends"


def test_how_much_of_the_work_is_done_is_said_and_never_falls(make_job):
    """Of two paths: each opens (3), has two epochs and ends (1), in twelve parts."""
    jobs = [make_job(name, epochs=2) for name in (PINNED, ALL)]
    taken(jobs)
    told = [one for one in read_part(jobs[0].part) if one["kind"] == "turn"]
    idle = [turn["done"] * 12 for turn in told if turn["case"] is None]
    assert idle == pytest.approx([3, 6, 7, 8, 9, 10, 11, 12])
    assert [turn["done"] for turn in told] == sorted(turn["done"] for turn in told)


def test_only_what_a_repeat_needs_is_compared_in_full(make_job):
    """Every row of the warm-up in the first repeat; later spots of it, as in the timed epochs."""
    compared = []
    for first, start in ((True, 0), (False, 0), (True, 1)):
        (part,) = taken([replace(make_job(warmup_epochs=3), first=first, start=start)]).values()
        compared += values(rows_of(part), "check", "rows")
    assert compared[0] > 1.5 * max(compared[1:])


def test_who_keeps_a_process_of_its_own():
    workload = Workload("tiny")

    def turns(name: str, of: Workload = workload, **params: str) -> bool:
        return takes_turns(Case(of, name, build(name, params).variant, params, 0))

    assert turns(PINNED)
    assert turns(ASYNC)
    assert not turns(ASYNC, provider="mps")
    assert not turns("disk_mmap")
    assert not turns(PINNED, replace(workload, gpus=2))


def test_rows_that_no_disk_holds_are_read_off_none(make_job, monkeypatch):
    job = make_job("disk_mmap")
    session = session_module.Session(job)
    hashed = replace(session.dataset.spec, hashed=True)
    session.dataset = replace(session.dataset, spec=hashed)
    case = measure_module.MeasuredCase(job, None, session)  # type: ignore[arg-type]
    assert str(case.refused()).startswith("unsupported: rows of tiny are made in memory")
