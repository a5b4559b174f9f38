"""Two run folders compared: what is slower, refused or listed, and the exit status."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gatherbench.bench.cli import app
from gatherbench.bench.read.compare import COLUMNS, CompareError, compare_runs, deciding
from gatherbench.bench.read.derive import epoch_times
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.comparison import NOT_JUDGED, exit_status, render_comparison, summary

from ..written_run import ZERO_COPY, Change, append_rows, edit

MakeRun = Callable[..., Path]


def noise(seed: int, share: float = 0.005) -> Change:
    """Every measured time its own scatter."""
    rng = np.random.default_rng(seed)

    def change(row: dict[str, str]) -> None:
        if row["unit"] == "s" and row["value"] and row["basis"] == "measured":
            row["value"] = str(float(row["value"]) * rng.lognormal(0, share))

    return change


def times(factor: float, variant: str, *stages: str) -> Change:
    def change(row: dict[str, str]) -> None:
        if (row["variant"], row["metric"]) == (variant, "wall_time") and row["stage"] in stages:
            row["value"] = str(float(row["value"]) * factor)

    return change


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def pair(make_run: MakeRun) -> tuple[Path, Path]:
    """Two runs of one plan that differ by noise of half a per cent."""
    folders = make_run("20261121-quick-aaaaaa"), make_run("20261122-quick-bbbbbb")
    for seed, folder in enumerate(folders):
        edit(folder, noise(seed))
    return folders


def compared(pair: tuple[Path, Path], **options: Any) -> pd.DataFrame:
    return compare_runs(load_run(pair[0]), load_run(pair[1]), **options)


def line(table: pd.DataFrame, variant: str, metric: str = "epoch", basis: str = "measured") -> Any:
    found = table[
        (table["variant"] == variant) & (table["metric"] == metric) & (table["basis"] == basis)
    ]
    assert len(found) == 1, found
    return found.iloc[0]


def shown(table: pd.DataFrame, pair: tuple[Path, Path], width: int = 120) -> str:
    out = io.StringIO()
    found = render_comparison(table, load_run(pair[0]), load_run(pair[1]), width=width)
    Console(width=width, file=out).print(found)
    return out.getvalue()


def test_every_metric_is_there_in_80_columns(pair):
    table = compared(pair)
    wide, narrow = (shown(table, pair, width) for width in (120, 80))
    for said in ("epoch A", "verdict", " train", " cpu", "payload"):
        assert said in wide
        assert said in narrow, narrow
    ((ident, name),) = load_run(pair[0]).names.items()
    assert f"{name}: {ident}" in wide


def test_columns_name_the_runs_and_the_verdicts_that_occur_are_explained(pair, make_run):
    text = shown(compared(pair), pair)
    heads = text.partition("epoch A")[2].splitlines()
    assert heads[1].split()[:2] == ["aaaaaa", "bbbbbb"]
    assert "SAME: any difference is below the threshold" in text
    assert "SLOW: B is slower" not in text
    single = make_run("20261121-a-1", repeats=1), make_run("20261122-b-2", repeats=1)
    text = " ".join(shown(compared(single), single).split())
    assert "(one repeat)" in text
    assert "inf" not in text


def test_equal_runs_are_the_same(pair):
    table = compared(pair)
    assert list(table.columns) == COLUMNS
    assert set(table["verdict"]) <= {"SAME", "AMBIGUOUS"}
    assert set(table.loc[table["metric"] == "epoch", "verdict"]) == {"SAME"}
    assert list(dict.fromkeys(table["metric"])) == [
        "epoch", "sample", "fetch", "train", "cpu", "payload_rate"
    ]  # fmt: skip
    assert exit_status(table) == 0
    assert "between two runs" not in " ".join(shown(table, pair).split())
    pd.testing.assert_frame_equal(table, compared(pair))


def test_an_injected_slowdown_of_a_tenth_is_found_where_it_is(pair):
    edit(pair[1], times(1.25, "naive", "fetch"), times(1.1, "naive", "epoch"))
    table = compared(pair)
    assert "may also change between two runs" in " ".join(shown(table, pair).split())
    slow = line(table, "naive")
    assert slow["verdict"] == "SLOW"
    assert 1.05 < slow["low"] < slow["ratio"] < slow["high"] < 1.15
    assert slow["new"] / slow["base"] == pytest.approx(slow["ratio"])
    assert line(table, "naive", "fetch")["verdict"] == "SLOW"
    assert line(table, "naive", "train")["verdict"] == "SAME"
    assert line(table, "pinned")["verdict"] == "SAME"
    rate = line(table, "naive", "payload_rate")
    assert rate["verdict"] == "SLOW"
    assert rate["ratio"] == pytest.approx(1 / 1.25, rel=0.03)
    assert exit_status(table) == 1
    back = compared((pair[1], pair[0]))
    assert line(back, "naive")["verdict"] == "FAST"
    assert exit_status(back) == 0


def test_a_stage_decides_only_when_it_is_asked_for(pair):
    edit(pair[1], times(1.5, "naive", "sample"))
    table = compared(pair)
    assert line(table, "naive", "sample")["verdict"] == "SLOW"
    assert exit_status(table) == 0
    only = compared(pair, metrics=["sample"])
    assert set(only["metric"]) == {"sample"}
    assert exit_status(only, ["sample"]) == 1


def test_a_series_with_a_0_has_no_ratio(pair):
    def once(row: dict[str, str]) -> None:
        at = row["variant"], row["stage"], row["metric"], row["repeat"], row["epoch"]
        if at == ("naive", "sample", "wall_time", "0", "0"):
            row["value"] = "0"

    edit(pair[1], once)
    found = line(compared(pair), "naive", "sample")
    assert (found["verdict"], found["reason"]) == ("AMBIGUOUS", "a value of 0 has no ratio")
    assert found[["base", "new"]].to_list() == pytest.approx([0.2, 0.2], rel=0.02)
    assert np.isnan(found["ratio"])


def test_energy_is_compared_where_it_was_measured(pair):
    def measured(joules: float) -> Change:
        def change(row: dict[str, str]) -> None:
            if row["metric"] == "gpu_energy":
                row.update(value=str(joules), status="ok", reason="")

        return change

    edit(pair[0], measured(100.0))
    assert line(compared(pair), "naive", "gpu_energy")["verdict"] == "MISSING"
    edit(pair[1], measured(120.0))
    energy = line(compared(pair), "naive", "gpu_energy")
    assert (energy["verdict"], energy["unit"]) == ("SLOW", "J")


def test_modelled_times_are_compared_exactly(make_run):
    pair = (
        make_run("20261121-a-1", modelled=[ZERO_COPY]),
        make_run("20261122-b-2", modelled=[ZERO_COPY]),
    )
    modelled = line(compared(pair), "registered", basis="predicted")
    assert modelled["verdict"] == "SAME"
    assert "exactly" in modelled["reason"]

    def hair(row: dict[str, str]) -> None:
        if (row["basis"], row["stage"], row["metric"]) == ("predicted", "epoch", "wall_time"):
            row["value"] = str(float(row["value"]) * 1.0001)

    edit(pair[1], hair)
    table = compared(pair)
    assert line(table, "registered", basis="predicted")["verdict"] == "SLOW"
    assert line(table, "registered")["verdict"] == "SAME"
    assert exit_status(table) == 1

    def profile(row: dict[str, str]) -> None:
        if row["basis"] == "predicted":
            row["machine"] = "another-profile"

    edit(pair[1], profile)
    said = shown(compared((pair[0], make_run("20261123-c-3"))), pair)
    assert "MISSING epoch, unified_zero_copy (registered): no modelled epoch in B" in said
    other = line(compared(pair), "registered", basis="predicted")
    assert other["verdict"] == "AMBIGUOUS"
    assert "another-profile in B" in other["reason"]


def test_a_modelled_time_that_rests_on_measured_ones_decides_nothing(make_run):
    borrowed = {ZERO_COPY[:2]: ["sample"]}
    pair = (
        make_run("20261121-a-1", modelled=[ZERO_COPY], borrowed=borrowed),
        make_run("20261122-b-2", modelled=[ZERO_COPY], borrowed=borrowed),
    )
    assert line(compared(pair), "registered", basis="predicted")["verdict"] == "SAME"

    def slower(row: dict[str, str]) -> None:
        if row["basis"] == "predicted" and row["unit"] == "s" and row["value"]:
            row["value"] = str(float(row["value"]) * 1.5)

    edit(pair[1], slower)
    table = compared(pair)
    epoch = line(table, "registered", basis="predicted")
    assert (epoch["verdict"], epoch["ratio"]) == ("AMBIGUOUS", pytest.approx(1.5))
    assert "each run measured" in epoch["reason"]
    assert exit_status(table) == 0


def test_declared_bytes_and_requests_are_compared_exactly(pair):
    for folder, sizes in ((pair[0], (10, 90)), (pair[1], (30, 80))):
        requests = [
            {"metric": f"gpu_requests_{size}_bytes", "unit": "1", "value": count}
            for size, count in zip((32, 128), sizes, strict=True)
        ]
        link = {"metric": "gpu_link_read", "unit": "B", "value": 12e3}
        what = {"strategy": ZERO_COPY[0], "variant": ZERO_COPY[1], "basis": "declared"}
        append_rows(folder, [*requests, link], stage="fetch", **what)
    table = compared(pair)
    requests = line(table, "registered", "link_requests", "declared")
    assert (requests["base"], requests["new"], requests["verdict"]) == (100, 110, "SLOW")
    assert line(table, "registered", "gpu_link_read", "declared")["verdict"] == "SAME"
    assert exit_status(table) == 0
    assert "unified_zero_copy (registered) link_requests: 100 in A, 110 in B" in shown(table, pair)
    assert exit_status(compared(pair, metrics=["link_requests"]), ["link_requests"]) == 1
    edit(pair[1], keep=lambda row: not row["metric"].startswith("gpu_requests"))
    assert "unified_zero_copy (registered) link_requests: no link_requests in B" in shown(
        compared(pair), pair
    )


def test_what_one_run_lacks_is_listed(make_run):
    base = make_run("20261121-a-1", series=_series("naive", "pinned", "prefetch", "gone"))
    new = make_run(
        "20261122-b-2",
        series=_series("naive", "pinned", "prefetch", "added"),
        failures={
            ("cpu_gather", "pinned"): ("failed", "CUDA out of memory"),
            ("cpu_gather", "prefetch"): ("skipped", "no second stream"),
        },
    )
    table = compared((base, new))
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
    assert line(table, "naive")["verdict"] in ("SAME", "AMBIGUOUS")
    assert exit_status(table) == 1
    said = shown(table, (base, new))
    assert "FAILED epoch, cpu_gather (pinned): failed in B: CUDA out of memory" in said
    # Had it failed before as well, that would be nothing new.
    assert exit_status(compared((new, new))) == 0


def _series(*variants: str) -> list[tuple[str, str, tuple[float, float, float]]]:
    return [("cpu_gather", variant, (0.2, 1.0, 0.5)) for variant in variants]


def test_a_reason_names_the_workload_where_it_does_not_hold_for_all(make_run):
    """The second run has the pinned gather on "two" alone."""
    pair = (
        make_run("20261121-a-1", series=_series("naive", "pinned"), workloads=["one", "two"]),
        make_run("20261122-b-2", series=_series("naive", "pinned"), workloads=["one", "two"]),
    )
    edit(pair[1], keep=lambda row: (row["workload"], row["variant"]) != ("one", "pinned"))
    cases = json.loads((pair[1] / "plan.json").read_text())["cases"]
    kept = [c for c in cases if (c["workload"], c["variant"]) != ("one", "pinned")]
    change_json(pair[1] / "plan.json", cases=kept)
    said = shown(compared(pair), pair)
    name = load_run(pair[0]).names["one"]
    assert f"MISSING epoch, cpu_gather (pinned) on {name}: not in B's plan" in " ".join(
        said.split()
    )
    change_json(pair[1] / "plan.json", cases=[c for c in cases if c["variant"] != "pinned"])
    edit(pair[1], keep=lambda row: row["variant"] != "pinned")
    said = shown(compared(pair), pair)
    assert "MISSING epoch, cpu_gather (pinned): not in B's plan" in said


def test_what_is_compared_are_typical_epochs(make_run):
    """Repeats of 1 and 4 s: sqrt(1 × 4) = 2 s in A, twice that in B; the median would be 2.5 s."""
    series, pair = [("cpu_gather", "naive", 1.0)], []
    for name, factor in (("20261121-a-1", 1), ("20261122-b-2", 2)):
        times = {0: 1.0 * factor, 1: 4.0 * factor}
        pair.append(make_run(name, series=series, repeats=2, longer=lambda w, r, e, t=times: t[r]))
    table = compared((pair[0], pair[1]))
    found = line(table, "naive")
    assert found[["base", "new", "ratio"]].to_list() == pytest.approx([2, 4, 2])
    said = " ".join(shown(table, (pair[0], pair[1])).split())
    assert "geometric mean over repeats of each repeat's median" in said
    assert epoch_times(load_run(pair[0]))["median"].to_list() == pytest.approx([2.5])


def test_a_repeat_that_failed_is_a_failure_beside_the_verdict(pair):
    def fail(row: dict[str, str]) -> None:
        if (row["stage"], row["variant"], row["repeat"]) == ("case", "pinned", "2"):
            row.update(status="failed", value="", reason="timed out")

    edit(pair[1], fail)
    table = compared(pair, metrics=["epoch"])
    mine = table[table["variant"] == "pinned"]
    assert list(mine["verdict"]) == ["FAILED", "SAME"]
    assert exit_status(table) == 1


@pytest.mark.parametrize(("factor", "verdict"), [(12.0, "SLOW"), (1 / 12, "AMBIGUOUS")])
def test_other_work_makes_nothing_slow_look_level_nor_anything_fast(make_run, factor, verdict):
    pair = make_run("20261121-a-1"), make_run("20261122-b-2", other_cores=1.5)
    edit(pair[1], noise(1), times(factor, "naive", "epoch"))
    table = compared(pair)
    found = line(table, "naive")
    assert found["verdict"] == verdict
    assert "other work had 1.5 cores in B: run again on an idle machine" in found["reason"]
    assert exit_status(table) == int(verdict == "SLOW")


def test_a_comparison_that_judged_nothing_is_none_that_passed(make_run):
    """Two repeats whose epochs lie 100-fold apart tell nothing; one path is in one run alone."""
    far: dict[str, Any] = {"repeats": 2, "longer": lambda _w, repeat, _e: 100.0**repeat}
    pair = (
        make_run("20261121-a-1", series=_series("naive"), **far),
        make_run("20261122-b-2", series=_series("naive", "pinned"), **far),
    )
    table = compared(pair)
    assert sorted(deciding(table)["verdict"]) == ["AMBIGUOUS", "NEW"]
    assert exit_status(table) == NOT_JUDGED == 3
    assert "Not judged (exit status 3)" in shown(table, pair)
    modelled = deciding(table).assign(basis="predicted", verdict="SAME")
    assert exit_status(pd.concat([table, modelled])) == NOT_JUDGED, "what is computed is no measure"
    assert exit_status(modelled) == 0, "unless nothing was measured"
    level = deciding(table).assign(variant="prefetch", verdict="SAME")
    both = pd.concat([table, level])
    assert (exit_status(both), exit_status(both, strict=True)) == (0, NOT_JUDGED)
    slow = pd.concat([table, level.assign(verdict="SLOW")])
    assert (exit_status(slow), exit_status(slow, strict=True)) == (1, 1)
    assert (exit_status(level), exit_status(level, strict=True)) == (0, 0)


@pytest.mark.parametrize(("count", "verdict"), [(8, "SLOW"), (9, "AMBIGUOUS")])
def test_one_of_many_has_to_be_surer(make_run, count, verdict):
    """Repeats of 0.94, 1 and 1.06, and 1.3 times that: of equal series 0.6 % differ as much.

    8 × 0.6 % are less than 5 %, and 9 × 0.6 % are more.
    """
    series = [("cpu_gather", f"s{number}", 1.0) for number in range(count)]
    scatter = {"repeats": 3, "longer": lambda _w, repeat, _e: (1.0, 1.06, 0.94)[repeat]}
    pair = (
        make_run("20261121-a-1", series=series, **scatter),
        make_run("20261122-b-2", series=series, **scatter),
    )
    edit(pair[1], times(1.3, "s0", "epoch"))
    found = line(compared(pair), "s0")
    assert (found["verdict"], found["low"]) == (verdict, pytest.approx(1.1345, abs=1e-4))
    assert (f"one of {count} may look like that" in found["reason"]) == (count == 9)


def test_other_work_beside_another_series_changes_no_verdict(make_run):
    beside = {"other_cores": 1.5, "beside": ("cpu_gather", "pinned", 0)}
    pair = make_run("20261121-a-1"), make_run("20261122-b-2", **beside)
    edit(pair[1], noise(1), times(1.5, "naive", "epoch"), times(1.5, "pinned", "epoch"))
    table = compared(pair)
    assert line(table, "naive")["verdict"] == "SLOW"
    assert line(table, "pinned")["verdict"] == "SLOW", "two repeats were quiet"


def test_other_work_beside_the_reference_is_told_of_a_ratio(make_run):
    pair = make_run("20261121-a-1"), make_run("20261122-b-2")

    def busy(row: dict[str, str]) -> None:
        if row["metric"] == "system_cpu_busy" and row["variant"] == "naive":
            row["value"] = str(float(row["value"]) + 3.0)

    edit(pair[1], noise(1), times(1.5, "pinned", "epoch"), busy)
    found = line(compared(pair, across_machines=True), "pinned")
    assert found["verdict"] == "SLOW"
    assert "1.5 cores in B" in found["reason"]


def test_other_minibatches_are_refused_always(pair):
    def another_trace(row: dict[str, str]) -> None:
        if row["metric"] == "payload":
            row["value"] = "2000000400"

    edit(pair[1], another_trace)
    for across in (False, True):
        with pytest.raises(CompareError, match="different minibatches"):
            compared(pair, across_machines=across)


def test_a_workload_of_one_run_is_listed(make_run):
    pair = (
        make_run("20261121-a-1", workloads=["one", "two"]),
        make_run("2026-b-2", workloads=["two"]),
    )
    table = compared(pair)
    assert list(table["workload"].unique()) == ["one", "two"]
    lost = table[table["workload"] == "one"]
    assert set(lost["verdict"]) == {"MISSING"}
    assert len(lost) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cpu": {"model": "AMD EPYC", "usable_cores": 4}}, "cores: 2 and 4"),
        ({"cpu": {"model": "Xeon", "usable_cores": 2}}, "AMD EPYC and Xeon"),
        ({"gpus": [{"name": "H200", "power_limit_w": 600.0}]}, r"None and H200 \(600 W\)"),
        ({"thread_limits": {"OMP_NUM_THREADS": "1"}}, "OMP_NUM_THREADS: None and 1"),
    ],
)
def test_other_machines_are_refused_unless_asked_for(pair, change, named):
    change_json(pair[1] / "env.json", **change)
    with pytest.raises(CompareError, match=f"different machines.*{named}.*--across-machines"):
        compared(pair)
    table = compared(pair, across_machines=True)
    assert set(table["variant"]) == {"pinned", "registered"}  # the reference over itself is 1
    assert set(table["unit"]) == {"1"}


def test_runs_whose_threads_waited_otherwise_have_no_verdict(pair):
    """Twice as slow, and nobody knows by what; what is computed is judged as ever."""
    edit(pair[1], times(2.0, "pinned", "epoch"))
    assert line(compared(pair), "pinned")["verdict"] == "SLOW"
    waiting = {"variables": {"OMP_WAIT_POLICY": "PASSIVE"}, "reason": "busy"}
    change_json(pair[1] / "env.json", waiting=waiting)
    table = compared(pair)
    found = line(table, "pinned")
    assert (found["verdict"], exit_status(table)) == ("UNLIKE", NOT_JUDGED)
    said = "threads waited by default in A and passively in B: measure both alike"
    assert found["reason"] == said
    assert said in re.sub(r"\s+", " ", shown(table, pair))
    change_json(pair[0] / "env.json", waiting=waiting | {"reason": ""})
    assert line(compared(pair), "pinned")["verdict"] == "SLOW", "both alike"


def test_across_machines_compares_ratios(pair):
    change_json(pair[1] / "env.json", cpu={"model": "Xeon", "usable_cores": 64})
    for variant in ("naive", "pinned", "registered"):
        edit(pair[1], times(0.3, variant, "epoch", "fetch", "train", "sample"))
    assert set(compared(pair, across_machines=True, metrics=["epoch"])["verdict"]) == {"SAME"}
    edit(pair[1], times(1.3, "registered", "epoch"))
    found = line(compared(pair, across_machines=True), "registered")
    assert found["verdict"] == "SLOW"
    assert found["base"] == pytest.approx(1.11 / 1.71, rel=0.05)


def test_declared_values_of_other_machines_are_compared_as_they_are(make_run):
    """Bytes and requests do not depend on a machine, so they are put over no reference."""
    runs = make_run("20261121-a-1", declared=True), make_run("20261122-b-2", declared=True)
    change_json(runs[1] / "env.json", cpu={"model": "Xeon", "usable_cores": 64})
    across, within = (
        table[table["basis"] == "declared"].set_index(["variant", "metric"])["base"].to_dict()
        for table in (compared(runs, across_machines=True), compared((runs[0], runs[0])))
    )
    assert len(across) > 1
    assert across == within


def test_across_machines_needs_one_reference(make_run):
    pair = make_run("20261121-a-1"), make_run("20261122-b-2", series=_series("pinned"))
    with pytest.raises(CompareError, match=r"cpu_gather naive and cpu_gather pinned"):
        compared(pair, across_machines=True)


def test_other_settings_are_refused(pair):
    measure = json.loads((pair[1] / "plan.json").read_text())["measure"]
    change_json(pair[1] / "plan.json", measure={**measure, "threads": 1})
    with pytest.raises(CompareError, match=r"different settings.*threads: None and 1"):
        compared(pair)
    change_json(pair[1] / "plan.json", measure={**measure, "sampling": "replay"})
    with pytest.raises(CompareError, match=r"different settings.*live and replay"):
        compared(pair, across_machines=True)
    change_json(pair[1] / "plan.json", measure={**measure, "sampler_workers": 0})
    assert len(compared(pair)), "the other run is from before there were workers"
    change_json(pair[1] / "plan.json", measure={**measure, "sampler_workers": 2})
    with pytest.raises(CompareError, match=r"different settings.*sampler_workers: 0 and 2"):
        compared(pair, across_machines=True)


def test_nothing_measured_in_both_is_refused(make_run):
    failed = {("cpu_gather", "naive"): ("failed", "no memory")}
    pair = (
        make_run("20261121-a-1", series=_series("naive")),
        make_run("20261122-b-2", series=_series("naive"), failures=failed),
    )
    with pytest.raises(CompareError, match="no case was measured in both"):
        compared(pair)


def test_the_table_fits_120_columns_and_says_it_all(pair):
    edit(pair[1], times(1.3, "naive", "epoch"), times(2.0, "pinned", "fetch"))
    table = compared(pair)
    said = shown(table, pair)
    assert max(map(len, said.splitlines())) <= 120
    assert "…" not in said
    assert "SLOW epoch, cpu_gather (naive): the whole interval is worse by more than 5%" in said
    assert re.search(r"(1\.9\d|2\.0\d)\s!", said)
    assert said.rstrip().endswith("epoch: measured 1 SLOW, 2 SAME")


def test_hostile_names_stay_text(make_run):
    series = [("cpu_gather", "[red]x[/]", (0.2, 1.0, 0.5))]
    pair = make_run("20261121-a-1", series=series), make_run("20261122-b-2", series=series)
    assert "[red]x[/]" in shown(compared(pair), pair)


def test_the_command_line(pair):
    def call(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["compare", *map(str, arguments)])

    same = call(*pair)
    assert same.exit_code == 0
    assert "measured 3 SAME" in same.output
    change_json(pair[1] / "env.json", libraries={"torch": "9.9"})
    edit(pair[1], times(1.3, "naive", "epoch"))
    slow = call(*pair, "--json")
    assert slow.exit_code == 1
    content = json.loads(slow.output)
    assert content["exit_status"] == 1
    assert content["summary"] == "epoch: measured 1 SLOW, 2 SAME"
    assert content["changed"] == ["torch: none in A, 9.9 in B"]
    assert content["comparisons"][0]["verdict"] == "SLOW"
    assert "changed: torch: none in A, 9.9 in B" in call(*pair).output
    assert call(*pair, "--metric", "train").exit_code == 0
    assert call(*pair, "--threshold", "0.5").exit_code == 0
    edit(pair[1], keep=lambda row: row["variant"] != "pinned" or row["epoch"] == "-1")
    assert call(*pair, "--threshold", "0.5").exit_code == 0
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
    change_json(pair[1] / "env.json", cpu={"model": "Xeon"})
    assert call(*pair).exit_code == 2
    assert call(*pair, "--across-machines", "--metric", "train").exit_code == 0


def test_json_has_null_where_there_is_no_number(make_run):
    one, two = _series("naive", "pinned"), _series("naive")
    pair = make_run("20261121-a-1", series=one), make_run("20261122-b-2", series=two)
    done = CliRunner().invoke(app, ["compare", *map(str, pair), "--json"])
    records = json.loads(done.output)["comparisons"]
    (lost,) = [r for r in records if r["verdict"] == "MISSING"]
    assert lost["ratio"] is None
    assert summary(compared(pair)) == "epoch: measured 1 MISSING, 1 SAME"
