"""What the first process and one of another machine say to each other, over a store in memory."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from gatherbench.bench.run import machines
from gatherbench.bench.run.guards import RunStopped
from gatherbench.bench.run.job import Block, Job, Ready
from gatherbench.bench.run.launch import Launch
from gatherbench.bench.run.part import PartWriter, rank_part, ranks_folder
from gatherbench.outside import fresh

FIRST = Launch("torchrun", 0, 2, 0, 1, served=True)


class Machine:
    """Stands for the engine of the second machine, and does what a case's variant says."""

    def __init__(self, _folder: Path, environment: dict[str, str], look: Callable[[], None]):
        self.environment = environment

    def prepare(self, block: Block) -> Ready | str:
        dataset = block.jobs[0].case.workload.dataset
        return Ready(Path("/there"), "same") if dataset == "tiny" else f"no {dataset} here"

    def run(self, block: Block, timeout_s: float) -> str | None:
        (job,), counts = block.jobs, ""
        if job.counts is not None:
            counts = job.counts.read_text()
        fresh(job.part)
        ranks_folder(job.part).mkdir(exist_ok=True)
        said = [job.dataset, job.identity, timeout_s, self.environment["OMP_WAIT_POLICY"], counts]
        rank_part(job.part, 1).write_text(repr(list(map(str, said))))
        if job.case.variant == "dies":
            return "killed by SIGKILL"
        failed = job.case.variant == "fails"
        with closing(PartWriter(job.part)) as out:
            out.end(job.rows, *(("failed", "rank 1 broke") if failed else ("ok", None)), 1.0)
        return None

    def close(self) -> None: ...


@pytest.fixture
def job(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> Job:
    """One of two ranks; both processes find the store, and the second one has the engine above."""
    store, made = HashStore(), make_job()
    monkeypatch.setattr(machines, "_connected", lambda *_: store)
    monkeypatch.setattr(machines, "Engine", Machine)
    case = replace(made.case, workload=replace(made.case.workload, gpus=2))
    ranks_folder(made.part).mkdir()
    return replace(made, case=case, counts=None)


def followed(end: list[BaseException]) -> None:
    try:
        with machines.Group(replace(FIRST, rank=1)) as second:
            machines.follow(second)
    except BaseException as error:
        end.append(error)


def test_another_machine_measures_its_ranks_and_answers_what_became_of_them(job, monkeypatch):
    """Its ranks' lines, and its words of each failure; then it leaves, and the first one knows."""
    keys, heard, end = list[str](), machines.heard, list[BaseException]()

    def recorded(store: Any, key: str, *more: Any, **named: Any) -> Any:
        value = heard(store, key, *more, **named)
        keys.append(key)
        return value

    monkeypatch.setattr(machines, "heard", recorded)
    monkeypatch.setattr(machines, "_LEAVE_S", 100.0)
    second = Thread(target=followed, args=(end,), daemon=True)
    second.start()
    counts = job.part.with_name("counts")
    counts.write_text("12 rows")
    with machines.Group(FIRST) as first:
        first.say("waiting", {"OMP_WAIT_POLICY": "PASSIVE"})
        for variant, counted, problems in (
            ("good", counts, []),
            ("fails", None, ["machine 1: rank 1 broke"]),
            ("dies", None, ["machine 1: killed by SIGKILL"]),
        ):
            case = replace(job.case, variant=variant)
            begun = first.begin(replace(job, case=case, counts=counted))
            assert isinstance(begun, Job)
            assert machines.collect_parts(begun) == problems
            said = ["/there", "same", "60.0", "PASSIVE", "12 rows" if counted else ""]
            assert rank_part(job.part, 1).read_text() == repr(said)
        other = replace(job.case, workload=replace(job.case.workload, dataset="other"))
        assert first.begin(replace(job, case=other)) == "machine 1: no other here"
    second.join(100)
    assert [type(error) for error in end] == [SystemExit]
    assert keys[-1] == "left1"
    monkeypatch.setattr(machines, "ANSWER_S", 0.1)
    nowhere = replace(begun, meeting=replace(FIRST, case="none"))
    assert machines.collect_parts(nowhere) == ["machine 1 does not answer"]
    hasty = replace(job, measure=job.measure.model_copy(update={"timeout_s": 0.1}))
    with pytest.raises(RunStopped, match=r"machine 1 was not ready in 0\.1 s \(timeout_s\)"):
        first.begin(hasty)
