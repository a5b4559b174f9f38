"""Wherever a process of paths that take turns is cut off, its whole blocks count and stay."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from tests.bench.observations import rows_of_run

from gatherbench.bench.read.derive import repeat_logs
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.engine import TimeUp
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.part import CUT_OFF, PartWriter, counted
from gatherbench.bench.run.rows import PROCESS, SET, Row, RowMaker
from gatherbench.bench.run.store import RunStore
from gatherbench.stats.interval import ratio_of

from .fakes import BLOCKS, PATHS, WORKLOAD, go, repeat
from .test_agreement import strays


def after(store: RunStore, epochs: int, what: str) -> None:
    (store.folder / "after").write_text(f"{epochs} {what}")


def epochs(store: RunStore) -> list[tuple[str, int]]:
    """The epochs in the table."""
    rows = rows_of_run(store)
    return [(r.variant, r.epoch) for r in rows if (r.stage, r.metric) == ("epoch", "wall_time")]


def begun(store: RunStore) -> list[str]:
    """Path and block of each epoch that a process began."""
    return (store.folder / "epochs").read_text().splitlines()


def ends(store: RunStore) -> dict[str, tuple[float | None, str]]:
    return {r.variant: (r.value, r.source) for r in rows_of_run(store) if r.stage == "case"}


@contextmanager
def interrupted_once_reached(store: RunStore) -> Iterator[None]:
    """Ctrl-C when the worker says that it is there."""

    def wait() -> None:
        while not (store.folder / "reached").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()
    signal.signal(signal.SIGINT, before)


def check_completed(store: RunStore, lost: str) -> None:
    """Each epoch stands once in the table, and one alone was begun twice."""
    assert Counter(epochs(store)) == {(path, block): 1 for path in PATHS for block in range(BLOCKS)}
    twice = {what for what, times in Counter(begun(store)).items() if times > 1}
    assert twice == {lost}
    assert len(begun(store)) == len(PATHS) * BLOCKS + 1
    keys = Counter((r.variant, r.epoch, r.stage, r.metric) for r in rows_of_run(store))
    assert set(keys.values()) == {1}, "what each process opened stands once"
    # Two blocks of the first process, and the second one's end.
    assert ends(store) == dict.fromkeys(PATHS, (1.0 + 2.0, "time.perf_counter"))
    frame = store.frames().epochs
    assert Counter(zip(frame["block"], frame["epoch"], strict=True)) == {
        (block // 2, block): 3 for block in range(BLOCKS)
    }
    samples = store.lists("samples")
    assert len(samples) == 2 * len(PATHS) * BLOCKS


SCRIPT = """
import sys; from pathlib import Path
from gatherbench.bench.run.store import RunStore
from tests.bench.observations import rows_of_run
sys.path.insert(0, sys.argv[1])
from fakes import go, repeat
go(RunStore(Path(sys.argv[2])), repeat()).run()
"""


def killed(store: RunStore) -> None:
    """Run the cases, and kill the runner where the worker waits: it takes its worker along."""
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(store.folder)]
    elsewhere = store.folder.parent / "tmp"
    elsewhere.mkdir()
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(elsewhere)}) as process:
        while not (store.folder / "reached").exists():
            assert process.poll() is None
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2, "a server, and what it has forked"
        process.kill()
    assert not psutil.wait_procs(children, timeout=100)[1]
    assert not list(elsewhere.iterdir()), "what nobody would ever sweep"


def out_of_time(store: RunStore) -> None:
    """Run the cases; the time is up once the worker waits."""
    run = go(store, repeat(), budget_s=3600)

    def look() -> None:
        if (store.folder / "reached").exists():
            raise TimeUp

    run.engine.look = look
    assert (run.run(), run.left) == (0, 3)


@pytest.mark.parametrize("ended_by", ["Ctrl-C", "kill -9", "time"])
def test_what_ends_a_run_within_a_block_costs_that_block_alone(store, ended_by):
    after(store, 7, "sleep")
    if ended_by == "kill -9":
        killed(store)
    elif ended_by == "time":
        out_of_time(store)
    else:
        with interrupted_once_reached(store):
            go(store, repeat()).run()
    assert Counter(epochs(store)) == {(path, block): 1 for path in PATHS for block in range(2)}
    assert ends(store) == dict.fromkeys(PATHS, (1.0, CUT_OFF)), "the answer of what there is"
    compared = [r.value for r in rows_of_run(store) if (r.stage, r.metric) == ("check", "rows")]
    assert compared == [96.0] * 3
    after(store, 0, "nothing")
    run = go(store, repeat())
    assert (run.run(), run.left) == (0, 0)
    check_completed(store, "blocks a 2")
    assert not store.parts.exists()


def test_another_process_goes_on_behind_the_last_whole_block_of_one_that_crashed(store):
    """The path whose turn it was has failed; of the others the block in flight is lost."""
    after(store, 8, "die")
    assert go(store, repeat()).run() == 1
    kept = [(path, block) for path in ("blocks a", "blocks c") for block in range(BLOCKS)]
    assert {one for one in epochs(store) if one[0] != "blocks b"} == set(kept)
    assert Counter(begun(store))["blocks a 2"] == 2
    assert Counter(begun(store))["blocks a 1"] == 1


def test_a_further_repeat_that_was_interrupted_is_resumed(store):
    asked = [repeat(1)]
    after(store, len(PATHS) * BLOCKS + 7, "sleep")
    with interrupted_once_reached(store):
        go(store, repeat(), further=lambda _: asked.pop() if asked else []).run()
    after(store, 0, "nothing")
    run = go(store, repeat())
    assert (run.run(), run.left) == (0, 0)
    assert len(epochs(store)) == 2 * len(PATHS) * BLOCKS
    assert len(begun(store)) == 2 * len(PATHS) * BLOCKS + 1


CASE = repeat()[0]
MAKE = RowMaker("r", "c", "m", "host").of(CASE)


def part_of(
    store: RunStore, had: range, whole: int, opened_s: tuple[float, ...] = (0.1,), rows: int = 96
) -> Path:
    """A part of a process that had these epochs of a case; those before ``whole`` count."""
    part = store.new_part()
    with closing(PartWriter(part)) as out:
        out.rows(MAKE.ok("setup", "open_time", "s", seconds, "clock") for seconds in opened_s)
        for block in had:
            out.row(MAKE.ok("epoch", "wall_time", "s", 0.5, "clock", block))
            values = {"stage": "fetch", "batch": [0], "value_s": [0.1]}
            out.write("samples", **CASE.names, epoch=block, **values)
            if block < whole:
                ended = {"number": block, "wall_time_s": 0.5 + block, "rows": rows}
                out.write("block", **CASE.names, **ended)
    return part


def test_of_a_case_that_has_not_ended_whole_blocks_count(store):
    """An epoch that is whole alone, and its samples, do not; nor does what the tear left."""
    part = part_of(store, range(3), whole=2)
    whole = part.read_bytes()
    for torn in range(len(whole.splitlines()[-1])):
        part.write_bytes(whole[: len(whole) - torn])
        kinds = [record["kind"] for record in counted(part)]
        assert kinds == ["row", *("row", "samples", "block") * 2]
    (found,) = store.so_far().values()
    assert (found.blocks, found.spent_s, found.ended) == (2, 1.5, None)
    assert [(r.metric, r.value) for r in found.rows[-2:]] == [("rows", 96), ("wall_time", 1.5)]


def test_of_a_case_that_was_cut_off_before_a_whole_block_nothing_counts(store):
    part = part_of(store, range(1), whole=0)
    assert (list(counted(part)), store.so_far(), rows_of_run(store)) == ([], {}, [])


def test_of_two_processes_the_last_ones_opening_stands_and_of_that_the_first_row(store):
    """The most rows that one of them compared are told, and the time of both."""
    part_of(store, range(1), 2, (0.1, 0.9), rows=96)
    part_of(store, range(1, 2), 2, (0.2, 0.8), rows=32)
    (found,) = store.so_far().values()
    assert [(r.stage, r.epoch, r.value) for r in found.rows] == [
        ("setup", -1, 0.2),
        *(("epoch", block, 0.5) for block in range(2)),
        ("check", -1, 96),
        ("case", -1, 1.5),
    ]


def resumed(
    variant: str, seconds: list[float], losses: list[float], sets: tuple[int, ...] = ()
) -> list[Row]:
    """One repeat: blocks 0 and 1 of a process, 2 and 3 of another."""
    make = replace(MAKE, variant=variant)
    rows = [make.ok(*PROCESS, 100.0, "clock")]
    for epoch, (time_s, loss) in enumerate(zip(seconds, losses, strict=True)):
        if epoch == 2:
            rows.append(make.ok(*PROCESS, 200.0, "clock", epoch))
        rows.append(make.ok("epoch", "wall_time", "s", time_s, "clock", epoch))
        rows.append(make.ok("train", "loss", "1", loss, "mean", epoch))
    rows += [make.ok(*SET, chosen, "number", epoch) for epoch, chosen in enumerate(sets)]
    return [*rows, make.ok("case", "wall_time", "s", 9.0, "clock")]


def read(rows: list[Row]) -> Run:
    text = {"workloads": {WORKLOAD.id: asdict(WORKLOAD)}, "cases": [], "measure": {}}
    return run_of(Path(), text, {}, frames_of(rows), going=False)


def test_each_process_of_a_repeat_is_one_number_paired_in_its_own_blocks():
    """2 and 2 in one process, 3 and 3 in the other, which is slower on the whole: of the two
    logarithms the mean is that of 2 and 3, whatever the process costs."""
    a = resumed("naive", [2.0, 4.0, 30.0, 60.0], [3.0, 2.0, 3.0, 2.0])
    b = resumed("pinned", [1.0, 2.0, 10.0, 20.0], [3.0, 2.0, 3.0, 2.0])
    run = read(a + b)
    assert run.measured["block"].tolist() == [0, 0, 1, 1] * 2
    logs = {key.variant: found for key, found in repeat_logs(run).items()}
    found = ratio_of(logs["naive"], logs["pinned"])
    assert found.value == pytest.approx(math.sqrt(6))
    assert found.repeats == 2


def test_processes_of_a_run_that_goes_on_are_none_of_those_before():
    """Two of one repeat are numbers 0 and 1; of the next repeat there are two more."""
    first = frames_of(resumed("naive", [1.0] * 4, [3.0] * 4))
    again = [replace(row, repeat=1) for row in resumed("naive", [1.0] * 4, [3.0] * 4)]
    assert frames_of(again, first).epochs["block"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_losses_are_compared_by_set_in_whichever_process_and_block_it_was_measured():
    """Sets 0 to 3 have losses 3.0 to 3.3, and one path has others in its last block."""
    naive = resumed("naive", [1.0] * 4, [3.0, 3.1, 3.2, 3.3], (0, 1, 2, 3))
    pinned = resumed("pinned", [1.0] * 4, [3.1, 3.0, 3.3, 3.2], (1, 0, 3, 2))
    assert strays([*naive, *pinned]) == {}
    wrong = resumed("stream", [1.0] * 4, [3.1, 3.0, 3.3, 3.3], (1, 0, 3, 2))
    bad = strays([*naive, *pinned, *(replace(row, strategy="async_zero_copy") for row in wrong)])
    assert list(bad) == [(WORKLOAD.id, "async_zero_copy", "stream", 0)]
    assert "train.loss of minibatch set 2 is 3.3, and 3.2 with cpu_gather" in str(bad)
