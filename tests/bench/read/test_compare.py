"""Two runs compared: what is slower, refused or listed, and the exit status."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.compare import COLUMNS, CompareError, choices, compare_runs, deciding
from gatherbench.bench.read.derive import stage_breakdown
from gatherbench.bench.read.tables import Run, run_of
from gatherbench.bench.run.frames import frames_of
from gatherbench.bench.run.rows import PROCESS, Row, RowMaker
from gatherbench.bench.show.comparison import (
    NOT_JUDGED,
    against,
    comparison_json,
    exit_status,
    render_comparison,
)

from ..written_run import FIELDS, change, edit, put

#: Seconds of an epoch of each variant of the CPU's gather.
THREE = {"naive": 1.7, "pinned": 1.3, "prefetch": 1.1}
ONE = ("one",)
ENV = {"cpu": {"model": "EPYC", "usable_cores": 2, "logical_cores": 2}}


def made(
    name: str,
    paths: Mapping[str, float] = THREE,
    *,
    workloads: Sequence[str] = ONE,
    repeats: int = 3,
    scatter: float = 0.005,
    longer: Callable[[int], float] = lambda repeat: 1.0,
    stages: Mapping[tuple[str, str], float] = {},
    busy: Mapping[str, Sequence[int]] = {},
    failed: Mapping[tuple[str, int], tuple[str, str]] = {},
    together: bool = False,
    payload: float = 2e9,
    joules: float | None = None,
    declared: Mapping[str, Mapping[str, float]] = {},
    chosen: Mapping[tuple[str, str], float | Sequence[float]] = {},
    env: Mapping[str, Any] = ENV,
    measure: Mapping[str, Any] = {},
) -> Run:
    """A run of two epochs a case, each with a scatter of its own.

    A repeat is ``longer`` by that factor. ``stages``: seconds of a variant and a stage. Repeats of
    ``busy`` had 1.5 cores of other work. ``failed``: status and reason by variant and repeat.
    ``together``: paths share the repeat's process, each with a speed of its own. ``chosen``: by
    variant and step of the set-up, in each repeat or in all.
    """
    rng, rows, cases = np.random.default_rng(len(name) + ord(name[-1])), list[Row](), []
    for workload in workloads:
        for repeat in range(repeats):
            process = rng.lognormal(0, 0.005) if together else 1.0
            for variant, seconds in paths.items():
                own = {"workload": workload, "strategy": "cpu_gather", "variant": variant}
                cases.append({**own, "repeat": repeat, "params": {}})
                make = RowMaker(name, "c", "m", "host", dataset="tiny", **own, repeat=repeat)
                if bad := failed.get((variant, repeat)):
                    rows.append(make.missing("case", "wall_time", "s", "clock", bad[1], bad[0]))
                    continue
                if together:
                    rows.append(make.ok(*PROCESS, 100.0 + repeat, "clock"))
                for epoch in range(2):
                    factor = process * longer(repeat) * rng.lognormal(0, scatter)
                    whole, parts = seconds * factor, {"sample": 0.2, "fetch": 0.5, "train": 0.25}
                    for stage, share in parts.items():
                        part = stages.get((variant, stage), share) * factor
                        rows.append(make.ok(stage, "wall_time", "s", part, "clock", epoch))
                    other = 1.5 * whole if repeat in busy.get(variant, ()) else 0.0
                    epochs = {"wall_time": whole, "window_time": whole, "cpu_user": whole}
                    epochs |= {"cpu_system": 0.0, "system_cpu_busy": whole + other}
                    rows += [
                        make.ok("epoch", metric, "s", value, "clock", epoch)
                        for metric, value in epochs.items()
                    ]
                    rows.append(make.ok("fetch", "payload", "B", payload, "ids", epoch))
                    if joules is not None:
                        rows.append(make.ok("epoch", "gpu_energy", "J", joules, "nvml", epoch))
                for (path, step), choice in chosen.items():
                    taken = choice[repeat] if isinstance(choice, Sequence) else choice
                    if path == variant:
                        rows.append(make.ok("setup", step, "1", taken, "tried"))
                for metric, value in declared.get(variant, {}).items():
                    unit = "1" if "requests" in metric else "B"
                    computed = replace(make, basis="declared")
                    rows.append(computed.ok("fetch", metric, unit, value, "ids"))
                rows.append(make.ok("case", "wall_time", "s", 10.0, "clock"))
    plan: dict[str, Any] = {
        "workloads": dict.fromkeys(workloads, FIELDS | {"dataset": "tiny"}),
        "cases": cases,
    }
    plan["measure"] = {"epochs": 2, "warmup_epochs": 1, "sampling": "live", **measure}
    return run_of(Path("runs") / name, plan, dict(env), frames_of(rows))


@pytest.fixture(scope="module")
def base() -> Run:
    """The run before; it differs from others by noise of half a per cent."""
    return made("20261121-quick-aaaaaa")


def new(**changes: Any) -> Run:
    return made("20261122-quick-bbbbbb", **changes)


def line(table: pd.DataFrame, variant: str, metric: str = "epoch") -> Any:
    (found,) = table[(table["variant"] == variant) & (table["metric"] == metric)].to_dict("records")
    return found


def shown(table: pd.DataFrame, a: Run, b: Run, width: int = 120) -> str:
    out = io.StringIO()
    Console(width=width, file=out).print(render_comparison(table, a, b))
    return out.getvalue()


def in_a_line(text: str) -> str:
    return " ".join(text.split())


# ---- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True])
def test_equal_runs_are_the_same_and_a_tenth_is_found_in_every_series(together):
    """18 series of six repeats each, whose epochs scatter by half a per cent."""
    paths = {f"s{number}": 1.0 + 0.1 * number for number in range(6)}
    words = []
    for slower in (1.0, 1.1):
        pair = (
            made(
                name,
                {path: seconds * factor for path, seconds in paths.items()},
                workloads=("one", "two", "three"),
                repeats=6,
                together=together,
            )
            for name, factor in (("a", 1.0), ("b", slower))
        )
        words += compare_runs(*pair, metrics=["epoch"])["verdict"].to_list()
    assert words == ["SAME"] * 18 + ["SLOW"] * 18


def test_equal_runs_are_the_same(base):
    table = compare_runs(base, new())
    assert list(table.columns) == COLUMNS
    assert set(table["verdict"]) <= {"SAME", "AMBIGUOUS"}
    assert set(table.loc[table["metric"] == "epoch", "verdict"]) == {"SAME"}
    assert list(dict.fromkeys(table["metric"])) == [
        "epoch", "sample", "fetch", "train", "cpu", "payload_rate"
    ]  # fmt: skip
    assert exit_status(table) == 0
    assert "between two runs" not in in_a_line(shown(table, base, new()))
    pd.testing.assert_frame_equal(table, compare_runs(base, new()))


def test_an_injected_slowdown_of_a_tenth_is_found_where_it_is(base):
    slower = new(paths={**THREE, "naive": 1.1 * 1.7}, stages={("naive", "fetch"): 1.25 * 0.5})
    table = compare_runs(base, slower)
    assert "may also change between two runs" in in_a_line(shown(table, base, slower))
    slow = line(table, "naive")
    assert slow["verdict"] == "SLOW"
    assert 1.05 < slow["low"] < slow["ratio"] < slow["high"] < 1.15
    assert slow["new"] / slow["base"] == pytest.approx(slow["ratio"])
    assert line(table, "naive", "fetch")["verdict"] == "SLOW"
    assert line(table, "naive", "train")["verdict"] == "SAME"
    assert line(table, "pinned")["verdict"] == "SAME"
    rate = line(table, "naive", "payload_rate")
    assert (rate["verdict"], rate["ratio"]) == ("SLOW", pytest.approx(1 / 1.25, rel=0.03))
    assert exit_status(table) == 1
    back = compare_runs(slower, base)
    assert line(back, "naive")["verdict"] == "FAST"
    assert exit_status(back) == 0


def test_a_stage_decides_only_when_it_is_asked_for(base):
    other = new(stages={("naive", "sample"): 0.3})
    table = compare_runs(base, other)
    assert line(table, "naive", "sample")["verdict"] == "SLOW"
    assert exit_status(table) == 0
    only = compare_runs(base, other, metrics=["sample"])
    assert set(only["metric"]) == {"sample"}
    assert exit_status(only, ["sample"]) == 1


def test_a_series_with_a_0_has_no_ratio(base):
    found = line(compare_runs(base, new(stages={("naive", "sample"): 0.0})), "naive", "sample")
    assert (found["verdict"], found["reason"]) == ("AMBIGUOUS", "a value of 0 has no ratio")
    assert np.isnan(found["ratio"])


def test_energy_is_compared_where_it_was_measured(base):
    before = made("20261121-quick-aaaaaa", joules=100.0)
    assert line(compare_runs(before, new()), "naive", "gpu_energy")["verdict"] == "MISSING"
    energy = line(compare_runs(before, new(joules=120.0)), "naive", "gpu_energy")
    assert (energy["verdict"], energy["unit"]) == ("SLOW", "J")


def test_declared_bytes_and_requests_are_compared_exactly():
    counts = {"gpu_requests_32_bytes": 10, "gpu_requests_128_bytes": 90, "gpu_link_read": 12e3}
    a = made("a", declared={"naive": counts})
    more = counts | {"gpu_requests_32_bytes": 30, "gpu_requests_128_bytes": 80}
    b = made("b", declared={"naive": more})
    table = compare_runs(a, b)
    requests = line(table, "naive", "link_requests")
    assert (requests["base"], requests["new"], requests["verdict"]) == (100, 110, "SLOW")
    assert line(table, "naive", "gpu_link_read")["verdict"] == "SAME"
    assert exit_status(table) == 0
    assert "cpu_gather (naive) link_requests: 100 in A, 110 in B" in shown(table, a, b)
    only = ["link_requests"]
    assert exit_status(compare_runs(a, b, metrics=only), only) == 1
    none = made("c", declared={"naive": {"gpu_link_read": 12e3}})
    text = shown(compare_runs(a, none), a, none)
    assert "cpu_gather (naive) link_requests: no link_requests in B" in text


def test_what_is_compared_are_typical_epochs():
    """Repeats of 1 and 4 s: sqrt(1 × 4) = 2 s in A, twice that in B; the median would be 2.5 s."""
    of: dict[str, Any] = {"repeats": 2, "scatter": 0.0, "longer": lambda repeat: 4.0**repeat}
    a, b = made("a", {"naive": 1.0}, **of), made("b", {"naive": 2.0}, **of)
    table = compare_runs(a, b)
    found = line(table, "naive")
    assert [found[name] for name in ("base", "new", "ratio")] == pytest.approx([2, 4, 2])
    assert "geometric mean over repeats of each repeat's median" in in_a_line(shown(table, a, b))
    assert stage_breakdown(a)["median"].to_list() == pytest.approx([2.5])


def test_what_a_path_chose_otherwise_while_it_was_set_up_is_a_changed_fact_of_it():
    """A search's own numbers are no choice; a path of one run alone has none to compare."""
    same, searched = ("naive", "gather_threads"), ("prefetch", "over_kept z")
    pinned, kept = ("pinned", "gather_threads"), ("prefetch", "kept x (y)")
    a = made("a", chosen={pinned: 1, same: 2, kept: 1, searched: 1.1})
    assert choices(a, a).empty
    described = a.columns.query("stage == 'setup'").add_prefix("more_", axis=0)
    unmeasured = replace(a, columns=pd.concat([a.columns, described]))
    assert choices(unmeasured, unmeasured).empty, "a column that no case has"
    other = {pinned: (1, 16, 2), same: 2, ("prefetch", "kept z"): 1, searched: 1.2}
    b = made("b", {**THREE, "new": 1.0}, chosen={**other, ("new", "budget"): 1})
    found = choices(a, b).drop(columns="strategy").to_dict("split", index=False)["data"]
    assert found == [
        ["one", "pinned", "gather_threads", "1", "1 or 2 or 16"],
        ["one", "prefetch", "kept", "x (y)", "z"],
    ]
    table = compare_runs(a, b)
    assert [line["b"] for line in json_of(table, a, b)["choices"]] == ["1 or 2 or 16", "z"]
    for text in map(in_a_line, (shown(table, a, b), "\n".join(against(b, a).notes))):
        assert "changed: gather threads of cpu_gather (pinned): 1 in A, 1 or 2 or 16 in B" in text
        assert "changed: kept of cpu_gather (prefetch): x (y) in A, z in B" in text
        assert text.count("changed: ") == 2


@pytest.mark.parametrize(("factor", "verdict"), [(12.0, "SLOW"), (1 / 12, "AMBIGUOUS")])
def test_other_work_makes_nothing_slow_look_level_nor_anything_fast(base, factor, verdict):
    other = new(paths={**THREE, "naive": 1.7 * factor}, busy={"naive": range(3)})
    table = compare_runs(base, other)
    found = line(table, "naive")
    assert found["verdict"] == verdict
    assert "other work had 1.5 cores in B: run again on an idle machine" in found["reason"]
    assert exit_status(table) == int(verdict == "SLOW")


def test_other_work_beside_another_series_changes_no_verdict(base):
    slower = {path: 1.5 * seconds for path, seconds in THREE.items()}
    table = compare_runs(base, new(paths=slower, busy={"pinned": [0]}))
    assert line(table, "naive")["verdict"] == "SLOW"
    assert line(table, "pinned")["verdict"] == "SLOW", "two repeats were quiet"


@pytest.mark.parametrize(("count", "verdict"), [(8, "SLOW"), (9, "AMBIGUOUS")])
def test_one_of_many_has_to_be_surer(count, verdict):
    """Repeats of 0.94, 1 and 1.06, and 1.3 times that: of equal series 0.6 % differ as much.

    8 × 0.6 % are less than 5 %, and 9 × 0.6 % are more.
    """
    of: dict[str, Any] = {"scatter": 0.0, "longer": lambda repeat: (1.0, 1.06, 0.94)[repeat]}
    paths = {f"s{number}": 1.0 for number in range(count)}
    table = compare_runs(made("a", paths, **of), made("b", {**paths, "s0": 1.3}, **of))
    found = line(table, "s0")
    assert (found["verdict"], found["low"]) == (verdict, pytest.approx(1.1345, abs=1e-4))
    assert (f"one of {count} may look like that" in found["reason"]) == (count == 9)


# ---- cases of one run ----------------------------------------------------------------------------


def test_what_one_run_lacks_is_listed():
    four = dict.fromkeys(("naive", "pinned", "prefetch"), 1.0)
    a = made("a", {**four, "gone": 1.0}, repeats=1)
    lost = {
        ("pinned", 0): ("failed", "CUDA out of memory"),
        ("prefetch", 0): ("skipped", "no second stream"),
    }
    b = made("b", {**four, "added": 1.0}, repeats=1, failed=lost)
    table = compare_runs(a, b)
    found = {
        variant: (line(table, variant)["verdict"], line(table, variant)["reason"])
        for variant in ("pinned", "prefetch", "gone", "added")
    }
    assert found == {
        "pinned": ("FAILED", "failed in B: CUDA out of memory"),
        "prefetch": ("MISSING", "skipped in B: no second stream"),
        "gone": ("MISSING", "not in B's plan"),
        "added": ("NEW", "not in A's plan"),
    }
    assert line(table, "naive")["verdict"] == "AMBIGUOUS", "of one repeat"
    assert exit_status(table) == 1
    text = shown(table, a, b)
    assert "FAILED epoch, cpu_gather (pinned): failed in B: CUDA out of memory" in text
    assert "(one repeat)" in text
    assert "inf" not in text
    # Had it failed before as well, that would be nothing new.
    assert "FAILED" not in set(compare_runs(b, b)["verdict"])
    content = {line["variant"]: line["ratio"] for line in json_of(table, a, b)["comparisons"]}
    assert content["gone"] is None
    assert content["naive"] == pytest.approx(1.0, rel=0.1)


def json_of(table: pd.DataFrame, a: Run, b: Run) -> Any:
    return json.loads(comparison_json(table, a, b))


def test_a_case_that_failed_in_both_but_was_measured_once_is_listed():
    """A repeat of A failed, too, so its failure in B is nothing new; but the case is lost."""
    a = made("a", failed={("pinned", 0): ("failed", "no memory")})
    b = made("b", failed={("pinned", repeat): ("failed", "no memory") for repeat in range(3)})
    found = line(compare_runs(a, b), "pinned")
    assert (found["verdict"], found["reason"]) == ("MISSING", "failed in B: no memory")


def test_a_reason_names_the_workload_where_it_does_not_hold_for_all():
    """The second run has the pinned gather on "two" alone, or on none."""
    two = {"naive": 1.0, "pinned": 1.0}
    a = made("a", two, workloads=("one", "two"))
    b = made("b", two, workloads=("one", "two"))
    reason = "MISSING epoch, cpu_gather (pinned){}: not in B's plan"
    cases = [c for c in b.plan["cases"] if (c["workload"], c["variant"]) != ("one", "pinned")]
    keys = b.epochs[["workload", "variant"]]
    epochs = b.epochs[(keys != ["one", "pinned"]).any(axis=1)]
    cut = replace(b, plan={**b.plan, "cases": cases}, epochs=epochs)
    table = compare_runs(a, cut)
    assert reason.format(f" on {a.names['one']}") in in_a_line(shown(table, a, cut))
    none = made("c", {"naive": 1.0}, workloads=("one", "two"))
    assert reason.format("") in in_a_line(shown(compare_runs(a, none), a, none))


def test_a_repeat_that_failed_is_a_failure_beside_the_verdict(base):
    table = compare_runs(base, new(failed={("pinned", 2): ("failed", "timed out")}))
    epochs = table[(table["variant"] == "pinned") & (table["metric"] == "epoch")]
    assert list(epochs["verdict"]) == ["FAILED", "SAME"]
    assert exit_status(table) == 1


def test_a_workload_of_one_run_is_listed():
    table = compare_runs(made("a", workloads=("one", "two")), made("b", workloads=("two",)))
    assert list(table["workload"].unique()) == ["one", "two"]
    lost = table[table["workload"] == "one"]
    assert list(lost["verdict"]) == ["MISSING"] * 3


def test_a_comparison_that_judged_nothing_is_none_that_passed():
    """Two repeats whose epochs lie 100-fold apart tell nothing; one path is in one run alone."""
    far: dict[str, Any] = {"repeats": 2, "longer": lambda repeat: 100.0**repeat}
    a, b = made("a", {"naive": 1.0}, **far), made("b", {"naive": 1.0, "pinned": 1.0}, **far)
    table = compare_runs(a, b)
    assert sorted(deciding(table)["verdict"]) == ["AMBIGUOUS", "NEW"]
    assert exit_status(table) == NOT_JUDGED == 3
    assert "Not judged (exit status 3)" in shown(table, a, b)
    declared = deciding(table).assign(basis="declared", verdict="SAME")
    assert exit_status(pd.concat([table, declared])) == NOT_JUDGED, "computed, not measured"
    assert exit_status(declared) == 0, "unless nothing was measured"
    level = deciding(table).assign(variant="prefetch", verdict="SAME")
    both = pd.concat([table, level])
    assert (exit_status(both), exit_status(both, strict=True)) == (0, NOT_JUDGED)
    slow = pd.concat([table, level.assign(verdict="SLOW")])
    assert (exit_status(slow), exit_status(slow, strict=True)) == (1, 1)
    assert (exit_status(level), exit_status(level, strict=True)) == (0, 0)


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"payload": 2e9 + 400}, "different minibatches"),
        ({"workloads": ("two",)}, r"no workload in common \(one and two\): run the same plan"),
        ({"env": {"cpu": {"usable_cores": 4}}}, "different machines.*cores: 2 in A, 4 in B"),
        ({"env": {"cpu": {"model": "Xeon"}}}, "different machines.*EPYC in A, Xeon in B"),
        (
            {"env": {**ENV, "gpus": [{"name": "H200", "power_limit_w": 600.0}]}},
            "GPUs: none in A, H200 in B; power limit, W: none in A, 600.0 in B",
        ),
        ({"env": {**ENV, "thread_limits": {"X": "1"}}}, "X: none in A, 1 in B.*gatherbench show"),
        ({"measure": {"threads": 1}}, "different settings.*threads: none in A, 1 in B"),
        ({"measure": {"sampling": "uva"}}, "different settings.*live in A, uva in B"),
        ({"measure": {"sampler_workers": 2}}, "sampler_workers: none in A, 2 in B"),
        ({"failed": {(v, r): ("failed", "no") for v in THREE for r in range(3)}}, "no case was"),
    ],
)
def test_runs_whose_numbers_mean_other_things_are_refused(base, changes, message):
    with pytest.raises(CompareError, match=message):
        compare_runs(base, new(**changes))


def test_a_setting_that_older_plans_lack_is_its_default(base):
    assert len(compare_runs(base, new(measure={"sampler_workers": 0, "threads": 0})))


def test_runs_whose_threads_waited_otherwise_have_no_verdict(base):
    """Twice as slow, and nobody knows by what; what is computed is judged as ever."""
    slower = {**THREE, "pinned": 2.6}
    waiting = {"variables": {"OMP_WAIT_POLICY": "PASSIVE"}, "reason": "busy"}
    passive = new(paths=slower, env={**ENV, "waiting": waiting})
    table = compare_runs(base, passive)
    found = line(table, "pinned")
    assert (found["verdict"], exit_status(table)) == ("UNLIKE", NOT_JUDGED)
    reason = "threads waited by default in A and passively in B: measure both alike"
    assert found["reason"] == reason
    assert reason in in_a_line(shown(table, base, passive))
    alike = made("a", env={**ENV, "waiting": waiting | {"reason": ""}})
    assert line(compare_runs(alike, passive), "pinned")["verdict"] == "SLOW", "both alike"


# ---- shown ---------------------------------------------------------------------------------------


def test_the_table_fits_its_columns_and_says_it_all(base):
    slower = new(paths={**THREE, "naive": 1.3 * 1.7}, stages={("pinned", "fetch"): 1.0})
    table = compare_runs(base, slower)
    wide, narrow = (shown(table, base, slower, width) for width in (120, 80))
    for text, width in ((wide, 120), (narrow, 80)):
        for part in ("epoch A", "verdict", " train", " cpu", "payload"):
            assert part in text
        assert max(map(len, text.splitlines())) <= width
    assert f"{base.names['one']}: one" in wide
    assert "SAME: any difference is below the threshold" in wide
    assert "FAST: B is faster" not in wide
    assert "…" not in wide
    assert "SLOW epoch, cpu_gather (naive): the whole interval is worse by more than 5%" in wide
    assert re.search(r"(1\.9\d|2\.0\d)\s!", wide)
    assert wide.rstrip().endswith("epoch: 1 SLOW, 2 SAME")


def test_hostile_names_stay_text():
    a, b = made("a", {"[red]x[/]": 1.0}), made("b", {"[red]x[/]": 1.0})
    assert "[red]x[/]" in shown(compare_runs(a, b), a, b)


def test_the_command_line(make_run):
    series = [("cpu_gather", variant, seconds) for variant, seconds in THREE.items()]
    pair = [
        make_run(name, series=series, epochs=2, jitter=0.005)
        for name in ("20261121-quick-aaaaaa", "20261122-quick-bbbbbb")
    ]

    def call(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["compare", *map(str, arguments)])

    same = call(*pair)
    assert same.exit_code == 0
    assert "epoch: 3 SAME" in same.output

    change(pair[1] / "env.json", lambda env: env.update(libraries={"torch": "9.9"}))
    epoch = {"variant": "naive", "stage": "epoch", "metric": "wall_time"}
    edit(pair[1], put(lambda row: 1.3 * float(row["value"]), **epoch))
    slow = call(*pair, "--json")
    assert slow.exit_code == 1
    content = json.loads(slow.output)
    assert content["exit_status"] == 1
    assert content["summary"] == "epoch: 1 SLOW, 2 SAME"
    assert content["changed"] == ["torch: none in A, 9.9 in B"]
    assert content["comparisons"][0]["verdict"] == "SLOW"
    assert "changed: torch: none in A, 9.9 in B" in call(*pair).output
    assert call(*pair, "--metric", "train").exit_code == 0
    assert call(*pair, "--threshold", "0.5").exit_code == 0
    edit(pair[1], keep=lambda row: row["variant"] != "pinned" or row["epoch"] == "-1")
    lost = call(*pair, "--threshold", "0.5", "--strict", "--json")
    assert (lost.exit_code, json.loads(lost.output)["exit_status"]) == (3, 3)
    for wrong, word in (
        ((pair[0],), "Missing argument"),
        ((pair[0], pair[1].parent), "plan.json"),
        ((*pair, "--metric", "speed"), "unknown metric"),
        ((*pair, "--threshold", "0"), "share above 0"),
    ):
        found = call(*wrong)
        assert found.exit_code == 2
        assert word in found.output
    text = in_a_line(call("--help").output)
    for word in ("SAME", "FAST", "SLOW", "AMBIGUOUS", "UNLIKE", "FAILED", "Exit status"):
        assert word in text
