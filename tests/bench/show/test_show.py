"""The table of a run in the terminal: read as a person would read it in a pipe."""

import dataclasses
import fcntl
import io
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console, RenderableType
from tests.bench.observations import rows_of_run

from gatherbench.bench.read import tables
from gatherbench.bench.read.standings import table
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run import guards as run_guards
from gatherbench.bench.run.guards import is_running, only_one
from gatherbench.bench.run.rows import Row
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.run import render, render_all
from gatherbench.bench.show.views.checks import PLAN
from gatherbench.bench.show.views.epochs import epoch_breakdown, speedup

from ..written_run import BASELINE as NAIVE
from ..written_run import PINNED, append_rows, edit, fail, seen

SORTED = ("aligned_zero_copy", "registered,sorted", (0.2, 0.3, 0.5))
MILLISECONDS = ("unified_zero_copy", "registered", (0.002, 0.01, 0.005))


def printed(what: RenderableType, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(what)
    return out.getvalue()


def shown(folder: Path, width: int = 100) -> str:
    return printed(render(load_run(folder)), width)


def all_of(folder: Path, width: int = 100) -> str:
    return printed(render_all(load_run(folder)), width)


def line_of(text: str, *words: str) -> list[str]:
    """The cells of a table's line: it begins with the strategy and holds the other words."""
    lines = [line for line in text.splitlines() if line.startswith(words[0])]
    found = [line.split() for line in lines if all(word in line for word in words)]
    assert len(found) == 1, text
    return found[0]


def test_a_line_holds_the_numbers_and_what_is_derived(make_run):
    """2 GB of rows in 1.01 s; 2.1 × 0.3 + 0.5 core-seconds in windows of 2 s; 1.71 s over 1.01."""
    text = shown(make_run(series=[NAIVE, SORTED]))
    assert line_of(text, "aligned_zero_copy (registered, sorted)")[3:] == [
        "1.01",
        "0.300",
        "1.98",
        "0.565",
        "1.69",
        "1",
    ]
    assert line_of(text, "cpu_gather (naive)")[2] == "1.71"


def test_a_quiet_machine_s_run_ends_in_a_page(make_run):
    """Two workloads, nine paths and bounds each: the tables, the answer, what to do, a caution."""
    names = {"unified": "registered", "aligned": "given", "async": "stream,auto"}
    names |= {"cached": "presampled,10%,0"}
    paths = [(f"{name}_zero_copy", variant, 1.1) for name, variant in names.items()]
    paths.append(("copy_engine_gather", "given,0", 1.2))
    bounds = [("all_in_gpu", "default", 0.9), ("no_fetch", "default", 0.8)]
    series = [NAIVE, PINNED, *paths, *bounds]
    two = ("wordnet-sage16x2-b1000-0000000a", "wordnet-gat16x2-b1000-0000000b")
    lines = shown(make_run(series=series, workloads=two, jitter=0.05)).splitlines()
    assert len(lines) <= 38, "two are left for the first line, and where things are"
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if "Caution: Host memory only" in line]


def test_a_hidden_fetch_has_no_rate(make_run):
    """The wait that is left says nothing of how fast the rows came."""
    folder = make_run(series=[NAIVE, SORTED])
    run = load_run(folder)
    assert table(run)["rate"].notna().all()
    for repeat, (lookahead, hidden) in enumerate(((0.0, False), (1.0, True))):
        one = {"strategy": SORTED[0], "variant": SORTED[1], "repeat": repeat}
        append_rows(folder, seen("fetch", "1", {"lookahead": lookahead}, basis="declared"), **one)
        rates = table(load_run(folder)).set_index("strategy")["rate"]
        assert pd.isna(rates["aligned_zero_copy"]) == hidden
        assert pd.notna(rates["cpu_gather"])


@pytest.mark.parametrize("width", [90, 100])
def test_no_line_is_wider_than_the_terminal_nor_cut(make_run, width):
    failures = {("async_zero_copy", "stream"): ("failed", "a long reason " * 20)}
    series = [NAIVE, SORTED, ("async_zero_copy", "stream", (0.1, 0.1, 0.1))]
    folder = make_run(series=series, failures=failures, jitter=0.1)
    for text in (shown(folder, width), all_of(folder, width)):
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
    short = shown(make_run("20261122-b-2", series=[MILLISECONDS], repeats=1, epochs=1), width)
    assert "epoch" in short
    assert line_of(short, "unified_zero_copy (registered)")[2] == "27.0"


def test_a_failed_case_stands_in_its_place_and_its_reason_below(make_run):
    failures = {("aligned_zero_copy", "registered,sorted"): ("failed", "out of memory")}
    two = ("a-sage16x2-b1-00000000", "b-sage16x2-b1-00000000")
    text = shown(make_run(series=[NAIVE, SORTED], failures=failures, workloads=two))
    places = [line for line in text.splitlines() if line.rstrip().endswith("failed")]
    assert len(places) == 2
    assert text.count("failed: aligned_zero_copy (registered, sorted): out of memory") == 1


def test_a_reason_that_several_share_is_said_once(make_run):
    why = "mine could not be prepared: no space"
    failures = {(name, variant): ("failed", why) for name, variant, _ in (NAIVE, SORTED)}
    text = " ".join(shown(make_run(series=[NAIVE, SORTED], failures=failures), 200).split())
    assert f"failed: cpu_gather (naive), aligned_zero_copy (registered, sorted): {why}" in text
    assert text.count(why) == 2, "in the list and in the verdict"


def test_a_reason_names_the_workloads_where_it_does_not_hold_for_all(make_run):
    """Sorted reads failed on b alone, twice; the gather on both, but not with all repeats on a."""
    two, names = ("a-sage16x2-b1-0000000a", "b-sage16x2-b1-0000000b"), "cpu_gather (naive)"
    why = ("failed", "out of memory")
    failures = {(two[1], *SORTED[:2]): why, (two[1], *NAIVE[:2]): why}
    folder = make_run(series=[NAIVE, SORTED], failures=failures, workloads=two, repeats=2)
    edit(folder, fail(why[1], "naive", "1"))
    text, on = " ".join(all_of(folder).split()), [*load_run(folder).names.values()]
    assert (
        f"failed: {names} (1 of 2 repeats) on {on[0]}; {names}, aligned_zero_copy (registered,"
        f" sorted) on {on[1]}: out of memory"
    ) in text


def test_a_run_that_is_still_going_is_not_called_cut_off(make_run, monkeypatch):
    folder = make_run(series=[NAIVE, SORTED])
    edit(folder, keep=lambda row: row["variant"] != "registered,sorted")
    with only_one(folder):
        text = shown(folder)
    assert "not run: aligned_zero_copy (registered, sorted): the run is still going\n" in text
    assert "cut off" not in text
    assert "the run was cut off; --resume completes it" in shown(folder)
    monkeypatch.setattr(tables, "is_running", lambda _: None)  # a file system without locks
    assert "the run is still going or was cut off" in " ".join(shown(folder).split())


def test_who_looks_at_a_run_does_not_keep_it_from_being_run(make_run, monkeypatch):
    folder = make_run(series=[NAIVE])
    look = os.open(folder, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        os.close(look)  # the look is over in an instant

    monkeypatch.setattr(run_guards.time, "sleep", sleep)
    with only_one(folder):
        assert is_running(folder) is True
    assert len(waited) == 1
    assert is_running(folder) is False
    assert is_running(folder / "none") is None


def test_an_epoch_that_cannot_be_modelled_says_why_and_where(make_run):
    three = [f"{name}-sage16x2-b1-0000000{name}" for name in "abc"]
    folder = make_run(series=[NAIVE], modelled=[NAIVE], workloads=three)
    store = RunStore(folder)
    reasons = dict(zip(three, ("gpu.launch", "gpu.launch", "link.round_trip"), strict=True))

    def unknown(row: Row) -> Row:
        reason = f"unknown: {reasons[row.workload]}"
        return dataclasses.replace(row, value=None, status="skipped", reason=reason)

    said = "not modelled for rtx3090-pcie4: cpu_gather (naive) on"
    failed = {NAIVE[:2]: ("failed", "gpu.launch")}
    other = make_run("20261122-b-2", series=[NAIVE], failures=failed, modelled=[NAIVE])
    old = [r for r in rows_of_run(store) if r.basis == "predicted" and r.metric == "wall_time"]
    store.predicted(unknown(r) for r in old).write(store.folder)
    text, on = " ".join(all_of(folder).split()), [*load_run(folder).names.values()]
    assert text.count(f"{said} {on[0]}, {on[1]}: unknown: gpu.launch") == 1
    assert text.count(f"{said} {on[2]}: unknown: link.round_trip") == 1
    assert text.count("not modelled for") == 2
    told = RunStore(other)
    lost = [r for r in rows_of_run(told) if r.basis == "predicted" and r.metric == "wall_time"]
    why = "unknown: the case did not get so far: gpu.launch"
    lost = [dataclasses.replace(r, value=None, status="skipped", reason=why) for r in lost]
    told.predicted(lost).write(told.folder)
    assert "not modelled" not in all_of(other), "that it failed was told"


def test_a_modelled_epoch_names_what_was_measured_here(make_run):
    said = "Modelled epochs take the time of minibatches from this run."
    own = make_run("20261121-a-1", series=[NAIVE], modelled=[NAIVE])
    assert "take the time" not in all_of(own)
    borrowed = {NAIVE[:2]: ["sample"]}
    folder = make_run("20261121-b-2", series=[NAIVE], modelled=[NAIVE], borrowed=borrowed)
    assert said in " ".join(all_of(folder).split())
    for chart in (speedup, epoch_breakdown):
        assert chart(load_run(folder)).reading.endswith(said)


def test_a_predicted_speed_up_names_its_baseline(make_run):
    text = all_of(make_run(series=[NAIVE, PINNED], modelled=[NAIVE, PINNED]), 120)
    heads = text.partition("Predicted for rtx3090-pcie4, not measured")[2].splitlines()[1:4]
    assert ("speed-up over" in heads[0], heads[1].split()[-2:]) == (True, ["cpu_gather", "(naive)"])


def test_a_host_run_says_that_no_gpu_took_part(make_run):
    assert "no GPU" in shown(make_run("20261121-a-1"))
    assert "no GPU" not in shown(make_run("20261121-b-2", backend="cuda"))


def test_repeats_beside_other_work_are_counted_apart(make_run):
    beside = make_run(
        "20261121-a-1", series=[NAIVE, SORTED], other_cores=1.5, beside=(*SORTED[:2], 1)
    )
    summary = table(load_run(beside)).set_index("strategy")
    assert summary["other"].to_dict() == pytest.approx({NAIVE[0]: 0.0, SORTED[0]: 0.0})
    assert summary["repeats"].to_dict() == {NAIVE[0]: 3, SORTED[0]: 2}
    assert summary["left_out"].to_dict() == {NAIVE[0]: 0, SORTED[0]: 1}


def test_a_plans_workloads_are_listed_field_by_field(make_run):
    run = load_run(make_run())
    shown: Any = PLAN.frame(run)
    listed = {made.ident: made.frame.set_index("what")["value"] for made in shown}
    for name, fields in run.plan["workloads"].items():
        for field, value in fields.items():
            assert listed["workloads"][f"{run.names[name]} › {field}"] == str(value)
    assert listed["machine"]["cpu › model"] == run.env["cpu"]["model"]
