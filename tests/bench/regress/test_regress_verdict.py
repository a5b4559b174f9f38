"""Verdicts over made-up results: what is slower is said to be, and noise is called noise."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatherbench.bench.regress.results_file import (
    Results,
    ResultsError,
    Times,
    newest_pair,
    read_results,
)
from gatherbench.bench.regress.verdict import compare, judge, main, ratio_interval

NAME = "bench/regress/bench_x.py::test_it[1]"
MACHINE: dict[str, Any] = {
    "machine": "x86_64",
    "system": "Linux",
    "release": "6.1",
    "python_implementation": "CPython",
    "python_version": "3.11.2",
    "cpu": {"brand_raw": "A Processor", "count": 2},
    "gatherbench": {"usable_cores": 2, "omp_num_threads": None, "libraries": {"torch": "2.9"}},
}


def rounds(median: float, spread: float, count: int = 60, seed: int = 0) -> list[float]:
    """Seconds that scatter about ``median`` by the share ``spread``, with a long tail."""
    generator = np.random.default_rng(seed)
    scatter = generator.lognormal(0, spread, count) if spread else np.ones(count)
    return list(median * scatter / np.median(scatter))


def entry(name: str, data: list[float], save_data: bool = True) -> dict[str, Any]:
    q1, median, q3 = np.quantile(data, (0.25, 0.5, 0.75))
    stats = {"median": median, "iqr": q3 - q1, "rounds": len(data)}
    return {"fullname": name, "stats": {**stats, "data": data} if save_data else stats}


def write(path: Path, *entries: dict[str, Any], machine: dict[str, Any] = MACHINE) -> Path:
    path.write_text(json.dumps({"machine_info": machine, "benchmarks": entries}))
    return path


def times(data: list[float], save_data: bool = True) -> Times:
    stats = entry(NAME, data, save_data)["stats"]
    return Times(stats["median"], stats["iqr"], stats["rounds"], tuple(stats.get("data", ())))


@pytest.mark.parametrize("save_data", [True, False])
@pytest.mark.parametrize(
    ("base", "new", "word"),
    [
        (rounds(1e-3, 0.02), rounds(1e-3, 0.02, seed=1), "SAME"),
        (rounds(1e-3, 0.02), rounds(1.03e-3, 0.02, seed=1), "SAME"),
        (rounds(1e-3, 0.02), rounds(1.2e-3, 0.02, seed=1), "SLOW"),
        (rounds(1e-3, 0.02), rounds(0.8e-3, 0.02, seed=1), "FAST"),
        (rounds(1e-3, 0.02), rounds(1.1e-3, 0.02, seed=1), "AMBIGUOUS"),
        (rounds(1e-3, 0.5), rounds(1e-3, 0.5, seed=1), "AMBIGUOUS"),
        (rounds(1e-3, 0.5), rounds(1.2e-3, 0.5, seed=1), "AMBIGUOUS"),
        (rounds(1e-3, 0.5), rounds(3e-3, 0.5, seed=1), "SLOW"),
        (rounds(1e-3, 0), rounds(1e-3, 0), "SAME"),
        (rounds(1e-3, 0), rounds(1.2e-3, 0), "SLOW"),
        (rounds(1e-3, 0.02, 4), rounds(2e-3, 0.02), "AMBIGUOUS"),
    ],
)
def test_verdicts(base: list[float], new: list[float], word: str, save_data: bool) -> None:
    verdict = judge(NAME, times(base, save_data), times(new, save_data))
    assert verdict.word == word, verdict.reason


def test_one_disturbed_round_changes_nothing() -> None:
    base, new = rounds(1e-3, 0.02), rounds(1e-3, 0.02, seed=1)
    new[7] = 1.0
    assert judge(NAME, times(base), times(new)).word == "SAME"


@pytest.mark.parametrize("which", ["base", "new"])
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_busy_machine_proves_nothing(which: str, factor: float) -> None:
    files = {"base": times(rounds(1e-3, 0.01)), "new": times(rounds(factor * 1e-3, 0.01, seed=1))}
    quiet = {k: dataclasses.replace(v, other_cores=0.1) for k, v in files.items()}
    assert judge(NAME, **quiet).word == ("SLOW" if factor > 1 else "FAST")
    busy = {**quiet, which: dataclasses.replace(files[which], other_cores=0.9)}
    verdict = judge(NAME, **busy)
    assert verdict.word == "AMBIGUOUS"
    assert "0.9" in verdict.reason
    same = dataclasses.replace(times(rounds(1e-3, 0.01, seed=2)), other_cores=0.9)
    assert judge(NAME, files["base"], same).word == "SAME"


def test_the_threshold_decides_what_matters() -> None:
    base, new = times(rounds(1e-3, 0.01)), times(rounds(1.2e-3, 0.01, seed=1))
    assert judge(NAME, base, new, 0.05).word == "SLOW"
    assert judge(NAME, base, new, 0.30).word == "SAME"
    assert "1.2" in judge(NAME, base, new).reason
    asks = dataclasses.replace(new, threshold=0.5)
    assert judge(NAME, base, asks).word == judge(NAME, asks, new).word == "SAME"


@settings(max_examples=40, deadline=None)
@given(
    ratio=st.floats(0.3, 3), spread=st.floats(0, 0.3), count=st.integers(5, 40), raw=st.booleans()
)
def test_the_interval_holds_the_ratio_and_swaps_with_the_files(
    ratio: float, spread: float, count: int, raw: bool
) -> None:
    base = times(rounds(1e-3, spread, count), raw)
    new = times(rounds(ratio * 1e-3, spread, count, 1), raw)
    low, high = ratio_interval(base, new)
    assert low <= ratio * (1 + 1e-9)
    assert high >= ratio * (1 - 1e-9)
    back_low, back_high = ratio_interval(new, base)
    assert back_low == pytest.approx(1 / high, rel=0.25)
    assert back_high == pytest.approx(1 / low, rel=0.25)
    assert ratio_interval(base, new) == (low, high)


def test_exit_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write(tmp_path / "base.json", entry(NAME, rounds(1e-3, 0.02)))
    for word, status, data in (
        ("SAME", 0, rounds(1e-3, 0.02, seed=1)),
        ("FAST", 0, rounds(0.5e-3, 0.02, seed=1)),
        ("AMBIGUOUS", 0, rounds(1.1e-3, 0.3, seed=1)),
        ("SLOW", 1, rounds(1.2e-3, 0.02, seed=1)),
    ):
        new = write(tmp_path / f"{word}.json", entry(NAME, data))
        assert main([str(base), str(new)]) == status
        said = capsys.readouterr().out
        assert f"1 {word}" in said
        assert "bench_x.py::test_it[1]" in said


def test_new_and_missing_benchmarks_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = entry(NAME, rounds(1e-3, 0.02))
    base = write(tmp_path / "base.json", same, entry("a::gone", rounds(1, 0.01)))
    new = write(tmp_path / "new.json", same, entry("a::added", rounds(1, 0.01)))
    assert main([str(base), str(new)]) == 0
    said = capsys.readouterr().out
    assert "1 SAME, 1 NEW, 1 MISSING" in said
    assert "a::gone" in said
    assert "a::added" in said


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cpu": {"brand_raw": "Another", "count": 2}}, "A Processor and Another"),
        ({"cpu": {"brand_raw": "A Processor", "count": 64}}, "cores: 2 and 64"),
        ({"machine": "aarch64"}, "x86_64 and aarch64"),
        ({"gatherbench": {"usable_cores": 1}}, "may use: 2 and 1"),
        ({"gatherbench": {"usable_cores": 2, "omp_num_threads": "1"}}, "thread limit: None and 1"),
    ],
)
def test_different_machines_are_refused(
    change: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = entry(NAME, rounds(1e-3, 0.02))
    base = write(tmp_path / "base.json", one)
    new = write(tmp_path / "new.json", one, machine={**MACHINE, **change})
    assert main([str(base), str(new)]) == 2
    said = capsys.readouterr().err
    assert "different machines" in said
    assert named in said


def test_other_versions_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = entry(NAME, rounds(1e-3, 0.02))
    more = {**MACHINE["gatherbench"], "libraries": {"torch": "2.10"}}
    later = {**MACHINE, "python_version": "3.12.0", "gatherbench": more}
    base = write(tmp_path / "base.json", one)
    new = write(tmp_path / "new.json", one, machine=later)
    assert main([str(base), str(new)]) == 0
    said = capsys.readouterr().out
    assert "warning: torch: 2.9 in the base, 2.10 now" in said
    assert "warning: python: CPython 3.11.2 in the base, CPython 3.12.0 now" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ('{"machine_info": {"cpu"', "cut off"),
        ("[]", "not written by pytest-benchmark"),
        ('{"benchmarks": []}', "not written by pytest-benchmark"),
        ("\x00\x01", "no JSON"),
    ],
)
def test_files_that_are_no_results(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write(tmp_path / "good.json", entry(NAME, rounds(1e-3, 0.02)))
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_text(content)
    for pair in ((good, bad), (bad, good)):
        assert main([str(path) for path in pair]) == 2
        assert said in capsys.readouterr().err


def test_a_median_of_nothing_and_files_without_a_common_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ResultsError, match="a median of 0"):
        read_results(write(tmp_path / "zero.json", entry(NAME, [0.0] * 9)))
    one = write(tmp_path / "one.json", entry("a", rounds(1, 0.01)))
    other = write(tmp_path / "other.json", entry("b", rounds(1, 0.01)))
    assert main([str(one), str(other)]) == 2
    assert "no benchmark in common" in capsys.readouterr().err


def test_the_newest_is_compared_with_the_last_of_the_same_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(number: int, median: float, machine: dict[str, Any] = MACHINE) -> Path:
        folder = tmp_path / "Linux"
        folder.mkdir(exist_ok=True)
        path = folder / f"{number:04}_host.json"
        write(path, entry(NAME, rounds(median, 0.02, seed=number)), machine=machine)
        os.utime(path, (number, number))
        return path

    with pytest.raises(ResultsError, match="make regress"):
        newest_pair(tmp_path)
    first = add(1, 1e-3)
    assert main(["--newest", str(tmp_path)]) == 0
    assert "nothing to compare with" in capsys.readouterr().out
    add(2, 9e-3, {**MACHINE, "cpu": {"brand_raw": "Another", "count": 2}})
    add(3, 1e-3).write_text("{")
    os.utime(tmp_path / "Linux" / "0003_host.json", (3, 3))
    newest = add(4, 2e-3)
    assert newest_pair(tmp_path) == (first, newest)
    assert main(["--newest", str(tmp_path)]) == 1
    add(5, 2e-3)
    assert main(["--newest", str(tmp_path)]) == 0
    assert main(["--newest", str(tmp_path), "--base", str(first)]) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["one.json"], ["a", "b", "c"], ["a", "b", "--newest", "c"],
                  ["a", "b", "--base", "c"], ["a", "b", "--threshold", "0"]],
)  # fmt: skip
def test_wrong_arguments_end_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("yardstick", "group", "words"),
    [
        (1.0, "gather", ["SAME", "SLOW"]),  # the machine is as it was: ours got slower
        (1.3, "gather", ["AMBIGUOUS", "AMBIGUOUS"]),  # the machine got slower
        (1.3, "another", ["AMBIGUOUS", "SLOW"]),  # ... at something else
    ],
)
def test_beside_a_yardstick_that_moved_nothing_is_proven(
    yardstick: float, group: str, words: list[str]
) -> None:
    def measured(mark: float, own: float) -> Results:
        return Results(
            Path("some.json"),
            {},
            {},
            {
                "a::theirs": dataclasses.replace(times([mark] * 20), group=group, yardstick=True),
                "a::ours": dataclasses.replace(times([own] * 20), group="gather"),
            },
        )

    verdicts = compare(measured(1.0, 1.0), measured(yardstick, 1.4))
    assert [verdict.word for verdict in verdicts] == words
    if words == ["AMBIGUOUS", "AMBIGUOUS"]:
        assert "theirs, not our code, took 1.300 × its base" in verdicts[1].reason
