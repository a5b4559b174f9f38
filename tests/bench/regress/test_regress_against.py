"""A tree against a commit: real processes of a moment's benchmarks, and the rule over pairs.

What the rule says, and how often it errs, is seen on a simulated machine.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatherbench.bench.regress import against, turns, verdicts
from gatherbench.bench.regress.turns import BenchmarkError, Side, run_pair
from gatherbench.bench.regress.verdicts import MIN_PAIRS, MOST_PAIRS, Record, judge_all, worth_more

#: A clock of its own: what a benchmark takes is what its code says that it takes.
WORK = """
import time
now_s = [0.0]

def spend(seconds):
    now_s[0] += seconds
    return now_s[0]

time.perf_counter = lambda: spend(1e-6)

def half():
    pass

def work():
    return spend({size} * 1e-9)
"""
BENCH = """
import pytest
from gatherbench import work

@pytest.mark.parametrize("name", work.NAMES)
def test_work(benchmark, name):
    benchmark.group = "work"
    assert benchmark.pedantic(work.work, rounds=3) > 0

def test_half(benchmark):
    benchmark.pedantic(work.half)

def test_skipped_on_the_base(benchmark):
    if not hasattr(work, "more"):
        pytest.skip("no more")
    benchmark.pedantic(work.work)

def test_nothing():
    pass

def test_wrong(benchmark):
    benchmark.pedantic(work.work)
    assert hasattr(work, "half") and not hasattr(work, "more")

def test_yardstick(benchmark):
    benchmark.group = "other"
    benchmark.extra_info["yardstick"] = True
    assert benchmark.pedantic(lambda: work.spend(2e-5)) > 0
"""
LATE = """
from gatherbench.late import late

def test_late(benchmark):
    assert benchmark.pedantic(late) == 1
"""
Machine = Callable[[float], float]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, tagged ``before``; the working folder."""
    top = tmp_path / "repository"
    package, benchmarks = top / "src" / "gatherbench", top / "bench" / "regress"
    for folder in (package, benchmarks):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (benchmarks / "bench_work.py").write_text(BENCH)
    write_work(top, 20_000, ["one", "gone"])
    (top / ".gitignore").write_text("__pycache__/\n")
    monkeypatch.chdir(top)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "before")
    git("tag", "before")
    return top


def git(*arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    command = ["git", *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_work(repository: Path, size: int, names: list[str]) -> None:
    text = WORK.format(size=size) + f"NAMES = {names}\n"
    (repository / "src" / "gatherbench" / "work.py").write_text(text)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the module makes its temporary folders."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(turns.tempfile, "tempdir", str(folder))
    return folder


def compared(repository: Path, *options: str) -> tuple[int, dict[str, Any]]:
    status = against.main(["before", *options])
    (file,) = (repository / ".regress").iterdir()
    samples: dict[str, Any] = json.loads(file.read_text())
    shutil.rmtree(file.parent)
    return status, samples


def test_both_sides_run_their_own_code(repository, scratch, monkeypatch):
    for bound in ("MIN_PAIRS", "MOST_PAIRS"):
        monkeypatch.setattr(verdicts, bound, 2)
    write_work(repository, 200_000, ["one", "added"])
    package, benchmarks = repository / "src" / "gatherbench", repository / "bench" / "regress"
    with (package / "work.py").open("a") as more:
        more.write("more = 1\ndef half():\n    raise RuntimeError('broken on purpose')\n")
    (package / "late.py").write_text("def late():\n    return 1\n")
    (benchmarks / "bench_late.py").write_text(LATE)
    before = git("status", "--porcelain"), git("worktree", "list"), git("for-each-ref")
    status, result = compared(repository, "--budget", "600")
    assert (git("status", "--porcelain"), git("worktree", "list"), git("for-each-ref")) == before
    entries = {e["name"].rpartition("::")[2]: e for e in result["benchmarks"]}
    words = {name: entry["word"] for name, entry in entries.items()}
    assert words == {
        "test_yardstick": "SAME",
        "test_work[one]": "SLOW",
        "test_work[added]": "NEW",
        "test_half": "FAILED",
        "test_wrong": "FAILED",
        "test_nothing": "NEW",
        "test_skipped_on_the_base": "NEW",
        "test_late": "NEW",
    }
    assert status == 1
    assert "failed in call: RuntimeError: broken on purpose" in entries["test_half"]["reason"]
    assert "skipped in call" in entries["test_skipped_on_the_base"]["reason"]
    assert "it passed, and timed nothing" in entries["test_nothing"]["reason"]
    assert entries["test_work[one]"]["ratio"]["value"] == pytest.approx(201 / 21)
    assert entries["test_late"]["ratio"] is None
    assert entries["test_yardstick"]["yardstick"] is True
    assert all(len(base) == len(head) > 1 for base, head in entries["test_work[one]"]["pairs"])
    assert result["base"] == {"ref": "before", "commit": git("rev-parse", "before")}
    assert result["head"]["ref"] == "working tree"
    assert not list(scratch.iterdir())


def test_a_budget_for_one_pair_judges_nothing(repository, capsys):
    status, result = compared(repository, "--budget", "0.1", "--only", "yardstick")
    assert status == 3
    assert "take a larger budget" in capsys.readouterr().out
    (entry,) = result["benchmarks"]
    assert (entry["word"], entry["reason"]) == ("AMBIGUOUS", "1 of at least 6 pairs")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["SAME", "AMBIGUOUS"], 0),
        (["FAST"], 0),
        (["SAME", "SLOW"], 1),
        (["FAST", "FAILED"], 1),
        (["AMBIGUOUS", "NEW"], 3),
    ],
)
def test_the_exit_status_of_verdicts(repository, monkeypatch, words, status):
    records = [sampled(str(number), [0.0], word=word) for number, word in enumerate(words)]
    monkeypatch.setattr(against, "compare", lambda *_: records)
    assert compared(repository)[0] == status


def test_what_cannot_be_compared_ends_with_2_and_says_why(
    repository, scratch, tmp_path, capsys, monkeypatch
):
    work = repository / "src" / "gatherbench" / "work.py"
    work.write_text(
        "import os, sys\nNAMES = ['one']\ndef work():\n"
        "    os.write(2, b'the last words')\n    os._exit(3)\n"
    )
    assert against.main(["before", "--only", "one"]) == 2
    message = capsys.readouterr().err
    assert "the head ended with 3" in message
    assert "test_work[one]" in message
    assert "the last words" in message
    assert not list(scratch.iterdir())
    (repository / "bench" / "regress" / "bench_work.py").write_text("import no_such_module\n")
    assert against.main(["before"]) == 2
    assert "no_such_module" in capsys.readouterr().err
    assert against.main(["no-such-ref"]) == 2
    assert "no commit 'no-such-ref': name a commit, branch or tag" in capsys.readouterr().err
    git("stash", "-q")
    assert against.main(["before", "--only", "no such"]) == 2
    assert "no benchmark runs on both sides" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert against.main(["HEAD"]) == 2
    assert "not a git repository" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cleans_up(repository, scratch, monkeypatch, number, status):
    def interrupted(*_: object) -> None:
        (folder,) = scratch.iterdir()
        assert (folder / "tree" / "bench" / "regress" / "bench_work.py").read_text() == BENCH
        os.kill(os.getpid(), number)
        pytest.fail("the signal was not heard")

    # Started in the background, pytest may have inherited a SIGINT that is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(against, "Side", interrupted)
    assert against.main(["before", "--budget", "60"]) == status
    assert not list(scratch.iterdir())


# --- the rule over pairs, on a simulated machine ---


def sampled(name: str, log_ratios: Iterable[float], group: str = "", **more: Any) -> Record:
    pairs = [([1.0], [math.exp(log)]) for log in log_ratios]
    record = Record(name, turns=1, rounds=1, group=group, pairs=pairs, **{"pair_s": 1.0, **more})
    if not record.word:
        record.judge(1)
    return record


@pytest.mark.parametrize(
    ("ratio", "spread", "count", "family", "word"),
    [
        (1.0, 0.02, 6, 50, "SAME"),
        (1.0, 0.5, 16, 50, "AMBIGUOUS"),
        (1.02, 0.01, 6, 50, "SAME"),
        (1.2, 0.02, 6, 1, "SLOW"),
        (1.2, 0.02, 6, 50, "SLOW"),
        (1.2, 0.1, 6, 50, "AMBIGUOUS"),
        (1.0 / 1.2, 0.02, 12, 50, "FAST"),
        (1.1, 0.02, 12, 50, "SLOW"),
        (1.06, 0.05, 12, 50, "AMBIGUOUS"),
        (2.0, 0.0, MIN_PAIRS - 1, 1, "AMBIGUOUS"),  # too few decide nothing
        (2.0, 0.0, MIN_PAIRS, 1, "SLOW"),
    ],
)
def test_words(ratio, spread, count, family, word):
    record = sampled("x", math.log(ratio) + np.linspace(-spread, spread, count))
    record.judge(family)
    assert record.word == word, record.reason
    assert record.ratio is not None
    assert record.ratio.value == pytest.approx(ratio)


def test_a_yardstick_that_moves_the_same_way_takes_slow_back():
    slow, fast = [0.5] * 12, [-0.5] * 12
    ours, other = sampled("b.py::ours", slow, "gather"), sampled("b.py::else", slow, "other")
    for marks, word in ((slow, "AMBIGUOUS"), ([0.0] * 12, "SLOW"), (fast, "SLOW")):
        mark = sampled("b.py::torch", marks, "gather", yardstick=True)
        judge_all([ours, mark, other])
        assert [ours.word, other.word] == [word, "SLOW"]
    mark = sampled("b.py::torch", slow, "gather", yardstick=True)
    judge_all([mark])
    assert mark.word == "AMBIGUOUS"


class Simulated(Side):
    """A side whose rounds take ``cost_s``, and whose processes differ among themselves.

    ``now_s`` is the machine's one clock, and ``speed`` stretches what runs on it.
    """

    def __init__(
        self, now_s: list[float], speed: Machine, rng: np.random.Generator, cost_s: float,
        process_spread: float = 0.02, tail: float = 0.1,
    ) -> None:  # fmt: skip
        self._now_s, self._speed, self._rng, self._tail = now_s, speed, rng, tail
        self._cost_s = cost_s * math.exp(rng.normal(0, process_spread))
        self.error, self.fails_in, self.calls = None, "", list[str]()

    def send(self, command: list[str]) -> None: ...

    def ask(self, *command: Any) -> Any:
        """As a side answers: it begins, runs a block or ends."""
        name = "begin" if not command else "end" if command == (None,) else "block"
        self.calls.append(name)
        if name in ("end", self.fails_in):
            self.error = "it broke" if name == self.fails_in else ""
            if self.error:
                raise BenchmarkError(self.error)
        if name != "block":
            return None, False
        untimed, rounds = command[0]
        times_s = []
        for _ in range(untimed + rounds):
            tail = self._rng.lognormal(0, self._tail)
            times_s.append(float(self._cost_s * self._speed(self._now_s[0]) * tail))
            self._now_s[0] += times_s[-1]
        return times_s[untimed:]


def sides_of(machine: Machine, *cost_s: float, seed: int = 0, **spreads: float) -> Any:
    now_s, rng = [0.0], np.random.default_rng(seed)
    return lambda: tuple(Simulated(now_s, machine, rng, cost, **spreads) for cost in cost_s)


def verdict_of(machine: Machine, head_s: float, seed: int, pairs: int = MOST_PAIRS) -> str:
    sides, rng = sides_of(machine, 0.010, head_s, seed=seed), random.Random(seed)
    record = Record("x", rounds=8, turns=15)
    for _ in range(pairs):
        run_pair(sides(), [record], rng)
    record.judge(20)
    return record.word


MACHINES: dict[str, Machine] = {
    "steady": lambda now_s: 1.0,
    "drifts to half its speed": lambda now_s: 1 + now_s / 3,
    "a slow phase in the middle": lambda now_s: 1.7 if 0.8 < now_s < 1.6 else 1.0,
    "bursts": lambda now_s: 3.0 if math.sin(1000 * now_s) > 0.8 else 1.0,
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_what_slows_the_machine_down_is_not_blamed_on_the_code_and_ten_per_cent_are_found(machine):
    words = [verdict_of(machine, 0.010, seed) for seed in range(40)]
    assert not {"SLOW", "FAST"} & set(words)
    assert words.count("SAME") >= 36
    words = [verdict_of(machine, 0.011, seed) for seed in range(20)]
    assert words.count("SLOW") >= 18
    assert not {"SAME", "FAST"} & set(words)


def test_one_run_after_the_other_would_have_blamed_the_code():
    """The machine of the slow phase fools a comparison that does not take turns."""
    base, head = sides_of(MACHINES["a slow phase in the middle"], 0.010, 0.010)()
    alone = np.median(base.ask((0, 80))), np.median(head.ask((0, 40)))
    assert alone[1] / alone[0] > 1.3


def names(records: list[Record]) -> list[str]:
    return [record.name for record in records]


def test_all_go_on_until_each_has_enough_then_those_in_doubt():
    same = sampled("same", [0.0] * MIN_PAIRS)
    slow = sampled("slow", [0.3] * MIN_PAIRS)
    late = sampled("late", [0.0] * (MIN_PAIRS - 1))
    new = Record("new", base_error="not there")
    assert names(worth_more([same, slow, late, new], 1e3)) == ["same", "slow", "late"]
    late.pairs.append(late.pairs[0])
    judge_all([same, slow, late, new])
    assert names(worth_more([same, slow, late, new], 1e3)) == ["slow"]
    done = sampled("done", [0.3] * MOST_PAIRS)
    assert worth_more([same, done], 1e3) == []


def test_too_little_time_for_all_goes_to_what_differs_most():
    rest = [sampled(f"same {number}", [0.0] * MIN_PAIRS) for number in range(48)]
    noisy = sampled("noisy", [-0.9, 0.9, -0.5, 0.5, -0.2, 0.2], pair_s=30)
    slow = sampled("slow", [0.3] * MIN_PAIRS, pair_s=1)
    assert names(worth_more([*rest, noisy, slow], 30.0)) == ["slow"]
    assert names(worth_more([*rest, noisy, slow], 900.0)) == ["noisy", "slow"]
    assert worth_more([*rest, noisy, slow], 5.0) == []


@pytest.mark.parametrize(
    ("round_s", "rounds", "turns_"), [(1e-5, 400, 15), (0.01, 1, 10), (3.0, 1, 7)]
)
def test_blocks_are_as_long_as_needed_and_not_too_few_or_many(round_s, rounds, turns_):
    record = Record("x")
    sides = sides_of(lambda now_s: 1.0, round_s, 2 * round_s, process_spread=0.0, tail=0.0)()
    run_pair(sides, [record], random.Random(0))
    assert (record.rounds, record.turns) == (rounds, turns_)
    assert len(record.pairs[0][1]) == record.turns
    record.judge(1)
    assert record.ratio is not None
    assert record.ratio.value == pytest.approx(2)


@pytest.mark.parametrize("fails_in", ["begin", "block", "end"])
@pytest.mark.parametrize("base_fails", [False, True])
def test_where_one_side_breaks_the_other_ends_once_and_goes_on(fails_in, base_fails):
    record = Record("x", rounds=1, turns=3)
    base, head = sides_of(lambda now_s: 1.0, 0.01, 0.01)()
    broken, whole = (base, head) if base_fails else (head, base)
    broken.fails_in = fails_in
    if fails_in != "end":  # what is ended early fails its own check, and is not to blame
        whole.fails_in = "end"
    run_pair((base, head), [record], random.Random(0))
    errors = ("it broke", "") if base_fails else ("", "it broke")
    assert (record.base_error, record.head_error, record.pairs) == (*errors, [])
    record.judge(1)
    assert record.word == ("NEW" if base_fails else "FAILED")
    assert (whole.calls.count("begin"), whole.calls.count("end")) == (1, 1)


def test_the_order_within_a_turn_is_drawn_anew(monkeypatch):
    (base, head), order = sides_of(lambda now_s: 1.0, 0.01, 0.01)(), list[str]()
    record = Record("x", rounds=1, turns=12)
    for name, side in (("base", base), ("head", head)):
        ask = side.ask
        monkeypatch.setattr(side, "ask", lambda *c, n=name, a=ask: (order.append(n), a(*c))[1])
    run_pair((base, head), [record], random.Random(0))
    turns_ = order[4:-2]  # after both began and ran a first block, and before they end
    assert {tuple(turns_[n : n + 2]) for n in range(0, 24, 2)} == {
        ("base", "head"),
        ("head", "base"),
    }
