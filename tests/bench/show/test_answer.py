"""The answer of runs whose truth is known; every number is worked out by hand.

Where repeats take e^-s, 1 and e^s times as long, the variance of a path's three logarithms is s²,
and that of a ratio's 2 s² / 3 with 4 degrees of freedom. So its 95 % interval is the ratio times
e^±r, r = 2.776 √(2/3) s = 2.267 s: r = 0.0227 for s = 0.01, 0.113 for 0.05.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.standings import standings, table
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.run.rows import Key
from gatherbench.bench.show.answer import Answer, answers, call, cautions, joined
from gatherbench.strategies.registry import in_words

from ..written_run import WORKLOAD
from .test_issue import issued

ROOT = Path(__file__).parents[3]
RunOf = Callable[..., Run]
NAIVE, PINNED = ("cpu_gather", "naive"), ("cpu_gather", "pinned")
ALIGNED, UNIFIED = ("aligned_zero_copy", "given"), ("unified_zero_copy", "registered")
ASYNC, CACHED = ("async_zero_copy", "stream,auto"), ("cached_zero_copy", "degree,10%,0,managed")
SORTED, UNIQUE = ("aligned_zero_copy", "sorted"), ("aligned_zero_copy", "unique")
IN_GPU, NO_FETCH = ("all_in_gpu", "default"), ("no_fetch", "default")
GATHERS = {NAIVE: 2.0, PINNED: 1.6}
OF_BEST = "as fast as cpu_gather (pinned), the CPU’s best gather."


def spread(s: float) -> Callable[[int, int, int], float]:
    return lambda _workload, repeat, _epoch: math.exp(s * (repeat - 1))


def answered(run_of: RunOf, seconds: dict[tuple[str, str], float], s: float, **more: Any) -> Answer:
    """Of one workload, whose paths have epochs of so many seconds."""
    series = [(*names, time) for names, time in seconds.items()]
    (one,) = answers(run_of(series=series, longer=spread(s), **more))
    return one


def ranks(run_of: RunOf, seconds: dict[tuple[str, str], float], s: float, **more: Any) -> list[str]:
    """Strategy and rank, in the table's order."""
    series = [(*names, time) for names, time in seconds.items()]
    frame = table(run_of(series=series, longer=spread(s), **more))
    return [f"{name} {rank}" for name, rank in zip(frame["strategy"], frame["rank"], strict=True)]


def test_one_path_wins(run_of):
    """1.6 / 1.0; unified is 1.3 / 1.0 × e^-0.0227 = 1.27 times as long at least."""
    times = {**GATHERS, UNIFIED: 1.3, ALIGNED: 1.0}
    found = answered(run_of, times, 0.01)
    assert (found.verdict, found.paths) == ("fastest", ("aligned_zero_copy",))
    assert found.ratios[0] == pytest.approx((1.6, 1.6 / 1.02293, 1.6 * 1.02293), rel=1e-4)
    assert found.text == f"Fastest: aligned_zero_copy, 1.60× (1.56–1.64) {OF_BEST}"
    assert found.call == 'gatherbench.unified(x, strategy="aligned_zero_copy")'
    assert (found.use, found.change) == ("To use it", "")
    assert ranks(run_of, times, 0.01) == [
        "aligned_zero_copy 1", "unified_zero_copy 2", "cpu_gather 3", "cpu_gather 4",
    ]  # fmt: skip


def test_what_more_repeats_would_separate_ties(run_of):
    """1.02 × e^±0.113 = 0.911 to 1.14; both are 1.6 × e^-0.113 = 1.43 times as fast at least."""
    times = {**GATHERS, UNIFIED: 1.02, ALIGNED: 1.0}
    found = answered(run_of, times, 0.05)
    assert found.verdict == "tie"
    assert found.text == (
        "Too close to separate: aligned_zero_copy, 1.60× (1.43–1.79); unified_zero_copy"
        f" (registered), 1.57× (1.40–1.76) {OF_BEST}"
    )
    assert found.call == 'gatherbench.unified(x, strategy="aligned_zero_copy")'
    assert found.use == "To use the first of them", "which is no choice"
    assert ranks(run_of, times, 0.05) == [
        "aligned_zero_copy 1–2", "unified_zero_copy 1–2", "cpu_gather 3", "cpu_gather 4",
    ]  # fmt: skip


#: Behind ALIGNED with 1.0 s; all tie.
LONGER = {ASYNC: 1.01, UNIFIED: 1.02, CACHED: 1.03, SORTED: 1.04, UNIQUE: 1.045}
NAMES = [
    "aligned_zero_copy", "async_zero_copy", "unified_zero_copy (registered)",
    "cached_zero_copy (degree, 10 %, managed)", "aligned_zero_copy (sorted)",
    "aligned_zero_copy (unique)",
]  # fmt: skip


@pytest.mark.parametrize(
    ("tied", "said"),
    [
        # 1.6 over 1.0 to 1.02 s, each times e^±0.113.
        (3, f"{NAMES[0]}, 1.60× (1.43–1.79); {NAMES[1]}, 1.58× (1.41–1.77); {NAMES[2]}, 1.57× "
            "(1.40–1.76)"),
        # Over 1.0 to 1.03, 1.04 and 1.045 s; from the least end to the greatest.
        (4, f"{', '.join(NAMES[:3])} and {NAMES[3]}, 1.55× to 1.60× (1.39–1.79)"),
        (5, f"{', '.join(NAMES[:4])} and {NAMES[4]}, 1.54× to 1.60× (1.37–1.79)"),
        (6, f"{', '.join(NAMES[:5])} and 1 more, 1.53× to 1.60× (1.37–1.79)"),
    ],
)  # fmt: skip
def test_up_to_three_that_tie_have_intervals_and_more_their_range(run_of, tied, said):
    times = {**GATHERS, ALIGNED: 1.0, **dict(list(LONGER.items())[: tied - 1])}
    assert answered(run_of, times, 0.05).text == f"Too close to separate: {said} {OF_BEST}"
    assert [one.split()[1] for one in ranks(run_of, times, 0.05)[:tied]] == [f"1–{tied}"] * tied


def test_table_and_sentences_have_one_order_that_of_the_median_epochs():
    """In this run other orders would result from the ratios."""
    run = load_run(ROOT / "results" / "example")
    frame = table(run)
    for standing, found in zip(standings(run), answers(run), strict=True):
        mine = frame[(frame["workload"] == standing.workload) & frame["rank"].str[0].str.isdigit()]
        assert mine["epoch"].is_monotonic_increasing
        names = [in_words(*pair) for pair in zip(mine["strategy"], mine["variant"], strict=True)]
        assert names == [in_words(*key[1:3]) for key in standing.ranked]
        assert found.paths[0] == next(name for name in names if name != found.over)
        assert not mine["best"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("limit", "said", "change"),
    [
        # 0.99 / 0.8 = 1.2375, of which 1 - 1 / 1.2375 = 19.2 %.
        (
            0.8,
            "Limit, no fetch at all: 1.24× (1.10–1.39), so fetching is 19.2 % of an epoch with",
            "in the plan’s TOML, raise fanouts",
        ),
        (
            0.3,
            "Limit, no fetch at all: 3.30× (2.95–3.70), so fetching is 69.7 % of an epoch with",
            "more repeats (",
        ),
        # 0.99 / 0.97 = 1.02, and 0.911 is within the interval.
        (0.97, "so fetching is no measurable part of an epoch with cpu_gather (pinned).", "in the"),
    ],
)
def test_no_path_is_faster(run_of, limit, said, change):
    """0.99 / 0.98 × e^±0.113 = 0.902 to 1.13."""
    times = {NAIVE: 1.0, PINNED: 0.99, ALIGNED: 0.98, NO_FETCH: limit}
    found = answered(run_of, times, 0.05)
    assert found.verdict == "no difference"
    assert found.text.startswith(
        "No path is measurably faster than cpu_gather (pinned), the CPU’s best gather: no ranked"
        " path’s whole interval lies above 1.05×. The shortest other epoch is that of"
        " aligned_zero_copy: 1.01× (0.902–1.13)."
    )
    assert said in found.text
    assert found.change.startswith(change)
    assert found.call == ""
    assert ranks(run_of, times, 0.05) == [
        "aligned_zero_copy 1–3", "cpu_gather 1–3", "cpu_gather 1–3", "no_fetch limit",
    ]  # fmt: skip


def test_what_a_wide_interval_leaves_unknown_is_not_called_small(run_of):
    """0.99 / 0.8 × e^±0.680 = 0.627 to 2.44: fetching may be more than half of the epoch."""
    found = answered(run_of, {NAIVE: 1.0, PINNED: 0.99, ALIGNED: 0.98, NO_FETCH: 0.8}, 0.3)
    limit = "Limit, no fetch at all: 1.24× (0.627–2.44), so fetching is an unknown part of an epoch"
    assert limit in found.text
    assert found.change.startswith("more repeats (")


def test_workloads_with_one_answer_share_its_line(run_of):
    times = [(*NAIVE, 2.0), (*ALIGNED, 1.0)]
    run = run_of(series=times, workloads={"a": {"seed": 0}, "b": {"seed": 1}}, repeats=1)
    assert len(answers(run)) == 2
    (found,) = joined(run)
    assert found.workload == "2 workloads"
    assert found.text == "No verdict: one repeat does not tell how much processes differ."


def test_the_cpu_s_own_gather_wins(run_of):
    """1.3 / 1.0."""
    found = answered(run_of, {NAIVE: 2.0, PINNED: 1.0, ALIGNED: 1.3}, 0.01)
    assert (found.verdict, found.paths) == ("fastest", ("cpu_gather (pinned)",))
    assert found.text == (
        "Fastest: cpu_gather (pinned), 1.30× (1.27–1.33) as fast as aligned_zero_copy, the next."
    )
    assert found.call == 'gatherbench.unified(x, strategy="cpu_gather")'


def test_a_noisy_machine_decides_nothing(run_of):
    times = {**GATHERS, ALIGNED: 1.0}
    found = answered(run_of, times, 0.0, other_cores=1.5)
    assert (found.verdict, found.paths, found.over) == ("none", (), "")
    assert found.text.startswith("No verdict: other work had up to 1.5 cores of the host")
    assert found.change == "measure again, several repeats on an idle machine"
    assert ranks(run_of, times, 0.0, other_cores=1.5)[0] == "aligned_zero_copy 1–3"
    series = [(*names, time) for names, time in times.items()]
    run = run_of(
        series=[*series, ("all_in_gpu", "default", 1.0)], longer=spread(0.0), other_cores=1.5
    )
    assert cautions(run)[0].startswith("Busy machine: other work had up to 1.5 cores")
    assert table(run)["open_best"].tolist() == [True, False, True, True], "all but the gather"
    assert table(run)["rank"].tolist()[-1] == "–", "a bound, as in a quiet run"


def test_a_path_that_other_work_met_throughout_is_not_ranked(run_of):
    """It would be the fastest."""
    times = {**GATHERS, UNIFIED: 1.0, ALIGNED: 1.3}
    more = {"repeats": 3, "other_cores": 1.5, "beside": (*UNIFIED, 1)}
    assert answered(run_of, times, 0.0, **more).paths == ("unified_zero_copy (registered)",)
    more["repeats"], more["beside"] = 1, (*UNIFIED, 0)
    assert ranks(run_of, times, 0.0, **more) == [
        "aligned_zero_copy 1–3", "cpu_gather 1–3", "cpu_gather 1–3", "unified_zero_copy noisy",
    ]  # fmt: skip


def test_one_repeat_tells_nothing(run_of):
    times = {**GATHERS, ALIGNED: 1.0}
    found = answered(run_of, times, 0.0, repeats=1)
    assert found.verdict == "none"
    assert found.text == "No verdict: one repeat does not tell how much processes differ."
    assert ranks(run_of, times, 0.0, repeats=1)[0] == "aligned_zero_copy 1–3"
    series = [(*names, time) for names, time in times.items()]
    said = cautions(run_of(series=series, longer=spread(0.0), repeats=1))
    assert said[0].startswith("Too few repeats: 3 series have one")


def test_without_a_gather_paths_are_compared_with_the_next(run_of):
    """1.3 / 1.0; then all tie, and there is no next."""
    found = answered(run_of, {UNIFIED: 1.3, ALIGNED: 1.0}, 0.01)
    assert (found.verdict, found.over) == ("fastest", "unified_zero_copy (registered)")
    assert found.text == (
        "Fastest: aligned_zero_copy, 1.30× (1.27–1.33) as fast as unified_zero_copy (registered),"
        " the next."
    )
    found = answered(run_of, {UNIFIED: 1.02, ALIGNED: 1.0}, 0.05)
    assert (found.verdict, found.ratios, found.over) == ("tie", (), "")
    assert found.text == (
        "Too close to separate: aligned_zero_copy and unified_zero_copy (registered)."
    )


def test_a_path_alone_has_nothing_to_compare_with(run_of):
    assert answered(run_of, {PINNED: 1.0}, 0.01).text.startswith(
        "No verdict: the plan has one path"
    )


def test_bounds_and_what_nobody_would_train_with_have_no_rank(run_of):
    oracle = ("cached_zero_copy", "oracle,10%,0")
    times = {**GATHERS, ALIGNED: 1.0, oracle: 0.9, IN_GPU: 0.8, NO_FETCH: 0.5}
    assert answered(run_of, times, 0.0).paths == ("aligned_zero_copy",)
    assert ranks(run_of, times, 0.0)[0] == "aligned_zero_copy 1"
    assert ranks(run_of, times, 0.0)[-1] == "no_fetch limit"
    assert {"cached_zero_copy –", "all_in_gpu –"} < {*ranks(run_of, times, 0.0)}


@pytest.mark.parametrize(("train", "verdict"), [(0.5, "host-bound"), (0.4, "fastest")])
def test_between_two_paths_that_the_host_bounds_there_is_no_verdict(run_of, train, verdict):
    """Of 0.2 s for a minibatch 0.1 are a wait, and 0.1 s issue the fetch: with 0.5 s of training
    issued are 0.7 s, 69 % of 1.01 s and 86 % of 0.81 s; with 0.4 s 59 and 74 %."""
    series = [(*NAIVE, (0.2, 1.0, 0.5)), (*ALIGNED, (0.2, 0.3, 0.5)), (*UNIFIED, (0.2, 0.1, 0.5))]
    more = issued(train, 0.1, 0.05, 0.1)
    run = run_of(series=series, backend="cuda", sampling="gpu", more=more)
    (found,) = answers(run)
    assert found.verdict == verdict
    shared = ["1–2", "1–2", "3"] if verdict == "host-bound" else ["1", "2", "3"]
    assert list(table(run)["rank"]) == shared
    if verdict == "host-bound":  # 1.71 s over 0.81 and 1.01
        assert found.text.startswith(
            "Host-bound, so in no order: unified_zero_copy (registered), 2.11× (2.11–2.11);"
            " aligned_zero_copy, 1.69× (1.69–1.69) as fast as cpu_gather (naive), the CPU’s best"
            " gather. The CPU issues GPU work for more than two thirds of their epochs, which hides"
            " how the paths differ."
        )
        assert found.call == 'gatherbench.unified(x, strategy="unified_zero_copy")'
        assert '`step = "captured"`' in found.change


def test_what_ties_with_a_host_bound_path_without_being_so_is_named_too(run_of):
    """Epochs of 0.81 and 1.01 s that issuing bounds. Not bound by it are 0.83 s, within 5 % of the
    first, and 0.95 s.
    """
    series = [(*NAIVE, (0.2, 1.0, 0.5)), (*UNIFIED, (0.2, 0.1, 0.5)), (*ASYNC, (0.2, 0.12, 0.5)),
              (*CACHED, (0.2, 0.24, 0.5)), (*ALIGNED, (0.2, 0.3, 0.5))]  # fmt: skip
    held, free = issued(0.5, 0.1, 0.05, 0.1), issued(0.1, 0.1, 0.05, 0.1)

    def more(case, *of):
        return (held if case[1:] in (UNIFIED, ALIGNED) else free)(case, *of)

    run = run_of(series=series, backend="cuda", sampling="gpu", more=more)
    (found,) = answers(run)
    assert found.paths == ("unified_zero_copy (registered)", "async_zero_copy", "aligned_zero_copy")
    assert found.text.endswith("which hides how the paths differ.")


def test_each_workload_has_a_line_and_json_the_same_fields(make_run):
    """a: 1.6 / 1.0. b takes twice as long, in which all but naive are alike."""
    two = ["a-sage16x2-b1-0000000a", "b-sage16x2-b1-0000000b"]
    series = [
        (*NAIVE, 2.0), (*PINNED, 1.6), (*ALIGNED, dict(zip(two, (1.0, 1.6), strict=True))),
    ]  # fmt: skip
    folder = make_run(series=series, workloads=two, repeats=3)
    said = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    first, second = said["answer"]
    assert [first["verdict"], second["verdict"]] == ["fastest", "no difference"]
    assert first["ratios"] == [pytest.approx([1.6, 1.6, 1.6])]
    assert said["cautions"][0].startswith("Host memory only")
    (view,) = [one for one in said["views"] if one["name"] == "results"]
    lines = view["tables"][0]["lines"]
    got = [(line["strategy"], line["rank"], line["best"]) for line in lines[:3]]
    assert got == [
        ("aligned_zero_copy", "1", pytest.approx(1.6)),
        ("cpu_gather", "2", 1.0),
        ("cpu_gather", "3", pytest.approx(0.8)),
    ]
    assert [line["rank"] for line in lines[3:]] == ["1–2", "1–2", "3"]


def test_what_an_epoch_takes_stands_in_the_first_table(run_of):
    """Of the host 2e9 B of rows; 2.1 × 0.5 + 0.29 core-seconds in windows of 2 s."""
    line = table(run_of(series=[(*NAIVE, 1.0)], repeats=2)).iloc[0]
    assert line[["epoch", "waiting", "link", "cores"]].tolist() == pytest.approx(
        [1.0, 0.5, 2e9, (2.1 * 0.5 + 0.29) / 2]
    )
    assert math.isnan(line["watts"])


@pytest.mark.parametrize(
    ("series", "name", "how"),
    [
        (NAIVE, "cpu_gather (naive)", '"cpu_gather", mode="naive"'),
        (ALIGNED, "aligned_zero_copy", '"aligned_zero_copy"'),
        (("aligned_zero_copy", "given,managed"), "aligned_zero_copy (managed)",
         '"aligned_zero_copy", memory="managed"'),
        (CACHED, "cached_zero_copy (degree, 10 %, managed)",
         '"cached_zero_copy", policy="degree", memory="managed", graph=edge_index'),
        (("copy_engine_gather", "given,1"), "copy_engine_gather (ahead 1)",
         '"copy_engine_gather", ahead="1"'),
        (IN_GPU, "all_in_gpu", '"all_in_gpu"'),
        (("somebody_s", "fast,2"), "somebody_s (fast, 2)", '"somebody_s"'),
    ],
)  # fmt: skip
def test_a_path_is_named_by_what_differs_from_its_default(series, name, how):
    assert in_words(*series) == name
    said = call(Key("w", *series, "cuda", "measured"))
    assert said == f"gatherbench.unified(x, strategy={how})"
    compile(said, "a line that is pasted", "eval")


def test_standings_are_of_measured_epochs_alone(run_of):
    run = run_of(series=[(*NAIVE, 2.0)], modelled=[(*ALIGNED, 1.0)])
    (one,) = standings(run)
    assert (one.workload, [key.strategy for key in one.logs]) == (WORKLOAD, ["cpu_gather"])
    assert len(table(run)) == 1
