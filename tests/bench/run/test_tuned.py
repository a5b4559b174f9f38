"""What a path found beside a training is found once a machine and run, and given to all."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from gatherbench.bench.run.group import ALONE, Alone
from gatherbench.bench.run.job import Job
from gatherbench.bench.run.session import Session
from gatherbench.kernels import host_gather
from gatherbench.strategies import host_fetcher
from gatherbench.strategies.base import SetupStep
from gatherbench.strategies.knowledge import Ranks

from .fakes import measured

STEP = SetupStep("gather_threads", "1", 8.0, "a sweep")


class Tuning:
    """Finds another number each time, and takes what it is told."""

    tuning = "gather of 400 B"

    def __init__(self) -> None:
        self.searches, self.recalled = 0, list[SetupStep]()

    def tune(self) -> list[SetupStep]:
        self.searches += 1
        return [replace(STEP, value=self.searches)]

    def recall(self, found: list[SetupStep]) -> list[SetupStep]:
        self.recalled = found
        return found


def asked(job: Job, path: Any, group: Alone = ALONE) -> list[float | None]:
    return [step.value for step in Session(job, None, group).tuned(path, path.tune)]


@pytest.fixture
def job(make_job, tmp_path) -> Job:
    return replace(make_job(), tuned=tmp_path / "tuned.json")


def test_the_first_process_finds_it_and_all_others_take_it(job):
    first, second = Tuning(), Tuning()
    assert asked(job, first) == [1]
    assert asked(job, second) == asked(job, second) == [1]
    assert (first.searches, second.searches) == (1, 0)
    assert second.recalled == [replace(STEP, value=1)]
    second.tuning = "gather of 1412 B"
    assert asked(job, second) == [1]
    assert second.searches == 1, "of other rows it is another question"
    assert asked(job, first) == [1]


@pytest.mark.parametrize("changed", [{"commit": "def"}, {"machine": "another"}])
def test_another_machine_and_another_commit_find_it_anew(job, changed):
    asked(job, Tuning())
    path = Tuning()
    path.searches = 6
    other = replace(job, run=replace(job.run, **changed))
    assert asked(other, path) == [7]
    assert asked(other, Tuning()) == [7]
    assert asked(job, Tuning()) == [1], "what this one found is kept, too"


@pytest.mark.parametrize("damage", ["", "[]", '{"found": 3}', "{"])
def test_a_file_that_cannot_be_read_costs_a_search(job, damage):
    job.tuned.write_text(damage)
    assert asked(job, Tuning()) == asked(job, Tuning()) == [1]


def test_without_a_place_to_keep_it_each_finds_its_own(job):
    for _ in range(2):
        path = Tuning()
        asked(replace(job, tuned=None), path)
        assert path.searches == 1
    path.tuning = ""
    assert [asked(job, path), asked(job, path)] == [[2], [3]]
    assert not job.tuned.exists()


class Ranked(Alone):
    """Rank ``rank`` of four on two machines; the others' values are given."""

    def __init__(self, rank: int, others: list[Any]) -> None:
        self.ranks, self.others = Ranks(rank, 4, 2), iter(others)

    def gathered(self, value: Any) -> list[Any]:
        told = list(next(self.others))
        told[self.rank] = value
        return told


def test_ranks_do_as_the_first_of_their_machine_and_search_together(job):
    found = [[asdict(replace(STEP, value=value))] for value in (5.0, 6.0, 7.0, 8.0)]
    for rank, value, keeps in ((0, 1, True), (1, 5, False), (2, 1, True), (3, 7, False)):
        mine = replace(job, tuned=job.tuned.with_suffix(f".{rank}"))
        path = Tuning()
        assert asked(mine, path, Ranked(rank, [[False] * 4, found])) == [value]
        assert path.searches == 1
        assert mine.tuned.exists() == keeps
    path = Tuning()
    mine = replace(job, tuned=job.tuned.with_suffix(".0"))
    knows = [True, True, False, True]
    asked(mine, path, Ranked(0, [knows, found]))
    assert path.searches == 1, "one machine does not know: all take part in the steps"
    assert asked(mine, path, Ranked(0, [[True] * 4])) == [1]
    assert path.searches == 1


def test_two_cases_of_a_run_have_the_same_threads_and_one_search(job, monkeypatch):
    monkeypatch.setattr(host_gather, "CHUNK_BYTES", 1 << 8)
    monkeypatch.setattr(host_fetcher, "available_cores", lambda: 2)
    searches: list[int] = []
    real = host_fetcher.tuned
    monkeypatch.setattr(host_fetcher, "tuned", lambda *given: (searches.append(1), real(*given))[1])
    rows = [measured(replace(job, part=job.part.with_suffix(f".{n}"))) for n in range(2)]
    told = [
        {r.metric: r.value for r in of if r.stage == "setup" and r.metric.startswith("gather")}
        for of in rows
    ]
    assert searches == [1]
    assert told[0] == told[1]
    assert told[0]["gather_threads"] in (1, 2)
    assert {"gather_1_threads_step_time", "gather_2_threads_step_time"} <= told[0].keys()
