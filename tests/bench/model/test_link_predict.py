"""Predictions from a run's rows, and for a graph's size alone: what is borrowed, and unknown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.observations import is_prediction, rows_of_run
from typer.testing import CliRunner, Result

from gatherbench.bench.cli import app
from gatherbench.bench.model.epoch import predict_batches
from gatherbench.bench.model.graph import PATHS, Shape, draw, predict_graph
from gatherbench.bench.model.predict import KEYS, declared_load, predict, predictions, series_of
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.model.roofline import against_measured, roofline, roofs
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.run.frames import REASON_KEYS
from gatherbench.bench.run.rows import table_of
from gatherbench.bench.show.views.model import roofline_table
from gatherbench.datasets.dataset import DatasetError
from gatherbench.reason import Reason, unsupported
from gatherbench.strategies import registry
from gatherbench.strategies.cpu_gather import CpuGather
from gatherbench.strategies.registry import CHOICES, STRATEGIES

ShellRun = tuple[Result, Path]

WORKLOAD, BATCHES, PAYLOAD = "tiny-sage", 4, 4e8
COMMON = {
    "declared_payload_bytes": PAYLOAD,
    "declared_row_bytes": 400.0,
    "declared_gpu_table_bytes": 0.0,
    "declared_lookahead": 0.0,
    "declared_gpu_share": 0.0,
    "declared_sample_minibatches": float(BATCHES),
    "declared_sample_edges": 4e6,
    "declared_train_operations": 1e9,
    "declared_train_gpu_memory_bytes": 1e9,
    "declared_train_launches": 400.0,
    "declared_train_structure_bytes": 6.4e7,
}
READS = {"declared_gpu_link_read_bytes": PAYLOAD, "declared_gpu_requests_128b": PAYLOAD / 128}
GATHERS = {
    "declared_cpu_read_bytes": PAYLOAD,
    "declared_cpu_write_bytes": PAYLOAD,
    "declared_copy_engine_bytes": PAYLOAD,
}
DISK = {
    "declared_disk_payload_bytes": PAYLOAD,
    "declared_disk_requests": 8e5,
    "declared_disk_read_bytes": 3.2768e9,
}
#: Names that no strategy has: the model goes by what is declared.
CASES: dict[str, Mapping[str, float]] = {
    "by_cpu": {**COMMON, **GATHERS},
    "by_cpu_fresh": {**COMMON, **GATHERS, "declared_pageable_bytes": PAYLOAD},
    "by_gpu": {**COMMON, **READS},
    "by_gpu_ahead": {**COMMON, **READS, "declared_lookahead": 1.0, "declared_gpu_share": 0.1},
    "resident": {**COMMON, "declared_gpu_table_bytes": 1e9},
}


def make_run(
    folder: Path,
    cases: Mapping[str, Mapping[str, float]] = CASES,
    backend: str = "host",
    sampling: str = "live",
    workers: int = 0,
    **workload: Any,
) -> Run:
    """A run whose cases declared this, and measured 2 s of sampling, 4 of fetching, 1 of steps.

    Minibatches that are not drawn live took 0.04 s. ``workload``: more of its fields.
    """
    drawing = 2 if sampling == "live" else 0.04
    paths = pd.DataFrame({"strategy": list(cases)})
    made = paths.assign(run="r", commit="c", machine="here", backend=backend, basis="measured")
    made = made.assign(borrowed=None, workload=WORKLOAD, dataset="tiny", variant="default")
    made = made.assign(rank=-1, repeat=0, noisy=False, used=True)
    seconds = {"sample_s": drawing, "fetch_s": 4.0, "train_s": 1.0, "epoch_s": 7.0}
    timed = made.assign(block=-1, epoch=0, **seconds)
    ended = made.assign(status="ok", reason=None, other_cores=0.0, setup_table_bytes=1e9)
    index = pd.MultiIndex.from_frame(made[[*KEYS, "backend", "repeat"]])
    declared = pd.DataFrame([dict(of) for of in cases.values()], index)
    reasons = pd.DataFrame(columns=list(REASON_KEYS))
    plan: dict[str, Any] = {
        "measure": {"sampling": sampling, "sampler_workers": workers},
        "workloads": {WORKLOAD: {"dataset": "tiny", **workload}},
        "cases": [
            {"workload": WORKLOAD, "strategy": name, "variant": "default", "repeat": 0}
            for name in {**CASES, **cases}
        ],
    }
    columns = pd.DataFrame({"stage": ["check"]}, index=["check_rows"])
    empty = table_of(())
    return Run(folder, plan, {}, timed, ended, reasons, columns, declared, empty, empty)


@pytest.fixture
def profile() -> LinkProfile:
    return load_profile("rtx3090-pcie4")


def epochs(run: Run, profile: LinkProfile) -> dict[str, float]:
    found = predictions(run, profile)
    return {one.strategy: epoch.epoch_s for one, epoch in found}


def test_of_what_was_found_wrong_nothing_is_predicted(tmp_path, profile):
    run = make_run(tmp_path)
    why = run.epochs[run.epochs["strategy"] == "by_cpu"].assign(status="failed", reason="row 7")
    why = why.assign(column="check_rows").reindex(columns=list(REASON_KEYS))
    found = {one.strategy: one.missing for one in series_of(replace(run, reasons=why))}
    assert found.pop("by_cpu") == "the case was found wrong: row 7"
    assert not any(found.values())


def test_what_is_borrowed_comes_from_cases_without_other_work(tmp_path, profile):
    """Beside other work cases took ten times as long."""
    run = make_run(tmp_path)

    def beside(names: Iterable[str]) -> Run:
        timed = run.epochs.copy()
        slow = timed["strategy"].isin(list(names))
        timed.loc[slow, "noisy"] = True
        timed.loc[slow, ["sample_s", "fetch_s", "train_s", "epoch_s"]] *= 10
        return replace(run, epochs=timed)

    quiet, some = epochs(run, profile), beside({"by_cpu", "by_gpu", "resident"})
    assert epochs(some, profile) == quiet
    everywhere = epochs(beside(CASES), profile)
    assert all(everywhere[name] > quiet[name] for name in CASES)
    for one, said in ((run, False), (some, False), (beside(CASES), True)):
        sources = [row.source for row in predict(one, profile)]
        assert any("not scaled, while other work ran" in text for text in sources) is said


def test_each_series_has_rows_that_add_up(tmp_path, profile):
    rows = predict(make_run(tmp_path), profile)
    assert all(is_prediction(row) and row.status == "ok" for row in rows)
    assert {row.machine for row in rows} == {profile.name}
    assert all("link model, profile rtx3090-pcie4" in row.source for row in rows)
    for name in CASES:
        mine = {(r.stage, r.metric): r.value for r in rows if r.strategy == name}
        waits = [mine[stage, "wall_time"] or 0.0 for stage in ("sample", "fetch", "train")]
        assert mine["epoch", "wall_time"] == pytest.approx(sum(waits))
        assert (("fetch", "transfer_time_alone") in mine) == (name != "resident")
        assert (("fetch", "gather_time_alone") in mine) == (name == "by_cpu")
    bound = next(r for r in rows if r.strategy == "by_gpu" and r.stage == "epoch").source
    assert "bound by cpu (sampling)" in bound
    assert "sampling as measured in the run, not scaled" in bound


@pytest.mark.parametrize(
    ("sampling", "backend", "workers", "seconds", "bound", "said"),
    [
        ("live", "host", 0, 2.0, "cpu (sampling)", "sampling as measured in the run, not scaled"),
        ("live", "host", 2, 2.0, "cpu (sampling)", "waited for sampler workers"),
        ("replay", "cuda", 0, 0.04, "cpu (sampling)", "minibatches read from the trace"),
        ("gpu", "cuda", 0, 0.04, "GPU (sampling)", "by the run's device as measured there"),
        ("uva", "cuda", 0, 0.04, "GPU (sampling)", "by the run's device out of host memory"),
        # Without a GPU these are drawn live, whatever the plan says.
        ("gpu", "host", 0, 0.04, "cpu (sampling)", "sampling as measured in the run, not scaled"),
        ("uva", "host", 0, 0.04, "cpu (sampling)", "sampling as measured in the run, not scaled"),
    ],
)
def test_sampling_is_the_run_s_however_it_got_its_minibatches(
    tmp_path, profile, sampling, backend, workers, seconds, bound, said
):
    """What a measured epoch does not contain must not be in the predicted one beside it."""
    run = make_run(tmp_path, backend=backend, sampling=sampling, workers=workers)
    found = predictions(run, profile)
    assert len(found) == len(CASES)
    for _, epoch in found:
        part = epoch.parts["sample"]
        assert part.seconds == pytest.approx(seconds / BATCHES)
        assert part.bound == bound
        assert any(said in remark for remark in epoch.remarks)


def test_a_prediction_says_what_it_borrowed_and_no_gather_is(tmp_path):
    """An H200's host is anybody's: what the CPU gathers there is not known."""
    machine = load_profile("h200-sxm-pcie5-low")
    rows = predict(make_run(tmp_path), machine)
    assert {row.borrowed for row in rows} == {"sample"}
    found = {r.strategy: r.reason for r in rows if (r.stage, r.epoch) == ("epoch", 0)}
    assert {name for name, reason in found.items() if reason} == {"by_cpu", "by_cpu_fresh"}
    assert (found["by_cpu"] or "").startswith("unknown: host.gather_rate: ")
    assert (found["by_cpu_fresh"] or "").startswith("unknown: copy.pageable: ")


def test_a_disk_has_rows_a_roof_and_a_reason(tmp_path, profile):
    """Four minibatches, 800 000 reads of 4 KiB: 8 s of 100 k a second, beside 3.3 s of 1 GB/s."""
    mapped = {**COMMON, **GATHERS, "declared_disk_payload_bytes": PAYLOAD}
    cases = {"direct": {**COMMON, **GATHERS, **DISK}, "mapped": mapped}
    loads = [declared_load(facts, 1e9) for facts in (cases["direct"], mapped, COMMON)]
    assert [load.disk_payload_bytes for load in loads] == [1e8, 1e8, 0]
    assert [load.disk_bytes for load in loads] == [0.8192e9, None, 0]
    assert [load.disk_requests for load in loads] == [2e5, None, 0]
    run = make_run(tmp_path, cases)
    for key, value in (("disk.iops", 1e5), ("disk.bandwidth", 1e9)):
        profile = profile.with_constant(key, value, "made up")
    rows = {(row.strategy, row.stage, row.metric): row for row in predict(run, profile)}
    alone = rows["direct", "fetch", "disk_time_alone"]
    assert alone.value == pytest.approx(8.0)
    assert alone.source.endswith("bound by disk (reads a second)")
    refused = rows["mapped", "epoch", "wall_time"].reason
    assert refused is not None
    assert refused.startswith("unknown: what is read off the disk: the page cache decides")
    lines = roofline(run, profile).set_index("strategy")
    assert lines.loc["direct", "fetch_bound"] == lines.loc["direct", "bound"]
    assert lines.loc["direct", "bound"] == "disk (reads a second)"
    waited = rows["direct", "fetch", "wall_time"].value
    assert lines.loc["direct", "of_disk"] == pytest.approx(8.0 / (waited or 0))
    assert pd.isna(lines.loc["mapped", "of_disk"])
    table = roofline_table(profile, lines.reset_index())
    assert "disk" in [column.short for column in table.columns]


@dataclass(frozen=True)
class HostOnly(CpuGather):
    """Refuses every GPU, as a strategy of somebody else may; the others only those not here."""

    name: ClassVar[str] = "host_only"

    def skip(self, device: torch.device, table_bytes: int = 0) -> Reason | None:
        return unsupported("host memory only") if device.type == "cuda" else None


def test_a_strategy_that_runs_on_no_gpu_is_predicted_for_none(tmp_path, profile, monkeypatch):
    monkeypatch.setattr(registry, "STRATEGIES", (*registry.STRATEGIES, HostOnly))
    run = make_run(tmp_path, {"host_only": CASES["by_cpu"], "cpu_gather": CASES["by_cpu"]})
    cases = [{**case, "params": {"mode": "pinned"}} for case in run.plan["cases"]]
    run = replace(run, plan={**run.plan, "cases": cases})
    found = {row.strategy: row for row in predict(run, profile) if row.stage == "epoch"}
    assert found["cpu_gather"].status == "ok"
    assert found["host_only"].reason == "unknown: unsupported: host memory only"
    monkeypatch.setattr(HostOnly, "skip", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a fault is no reason
        predict(run, profile)


def test_the_reads_that_a_case_keeps_in_flight_decide(tmp_path, profile):
    """Of 200 000 reads a minibatch 8 or 128 at a time: 20 or 100 thousand a second."""
    run = make_run(tmp_path, {"disk_direct": {**COMMON, **GATHERS, **DISK}})
    curve = ((8.0, 20e3), (128.0, 100e3))
    profile = profile.with_constant("disk.iops", curve, "made up")
    for depth, alone in (("8", 40.0), ("128", 8.0)):
        cases = [{**case, "params": {"depth": depth}} for case in run.plan["cases"]]
        rows = predict(replace(run, plan={**run.plan, "cases": cases}), profile)
        (found,) = [row.value for row in rows if row.metric == "disk_time_alone"]
        assert found == pytest.approx(alone)


def test_what_is_not_known_is_a_reason_in_the_row(tmp_path, profile):
    uncounted = {k: v for k, v in CASES["by_gpu"].items() if "requests" not in k}
    assert math.isnan(epochs(make_run(tmp_path, {"by_gpu": uncounted}), profile)["by_gpu"])
    dark = profile.with_constant("gpu.launch", None, "nobody knows")
    rows = predict(make_run(tmp_path), dark)
    unknown = [r for r in rows if r.metric == "wall_time"]
    assert {r.status for r in unknown} == {"skipped"}
    assert all("gpu.launch: nobody knows" in (r.reason or "") for r in unknown)
    assert any(r.metric == "transfer_time_alone" and r.status == "ok" for r in rows)


def test_a_case_that_declared_nothing_says_so(tmp_path, profile):
    some = {name: facts for name, facts in CASES.items() if name != "by_gpu"}
    rows = predict(make_run(tmp_path, some), profile)
    reason = next(r.reason for r in rows if r.strategy == "by_gpu" and r.stage == "epoch")
    assert reason is not None
    assert "has not been run" in reason
    captured = predict(make_run(tmp_path, step="captured"), profile)
    assert {r.reason for r in captured} == {"unknown: captured steps are not modelled"}
    around = series_of(make_run(tmp_path, around_step="x:ToHost"))
    assert {one.missing for one in around} == {"what is around a step is not modelled"}
    older = {
        name: {k: v for k, v in f.items() if k != "declared_row_bytes"} for name, f in CASES.items()
    }
    reasons = {r.reason for r in predict(make_run(tmp_path, older), profile)}
    (reason,) = reasons
    assert "declares too little" in str(reason)


def test_a_run_of_several_ranks_is_predicted_for_as_many_gpus(tmp_path, profile):
    """Of 4 minibatches each of 4 ranks has one, which it drew in 2 s."""
    run = make_run(tmp_path, gpus=4)
    found = {one.strategy: (one, epoch) for one, epoch in predictions(run, profile)}
    series, epoch = found["by_gpu"]
    assert (series.gpus, series.batches, series.steps) == (4, BATCHES, 1)
    assert series.load is not None
    assert series.load.payload_bytes == PAYLOAD / BATCHES
    assert series.load.sample_s == 2.0
    alone = predict_batches(series.load, profile, 1).epoch_s
    assert epoch.epoch_s == pytest.approx(alone)
    assert "as if each GPU had a port of its own, without averaging gradients" in epoch.remarks


def test_rates_of_several_ranks_are_those_of_one_link(tmp_path, profile):
    """Half of the payload in the 4 s that the slowest of two ranks waited."""
    run = make_run(tmp_path, backend="cuda", gpus=2)
    lines = roofline(run, profile)
    (measured,) = lines[(lines["kind"] == "measured") & (lines["strategy"] == "by_gpu")]["rate"]
    assert measured == pytest.approx(PAYLOAD / 2 / 4.0)


def test_rooflines_are_shares_of_the_roofs(tmp_path, profile):
    table = roofline(make_run(tmp_path, sampling="replay"), profile).set_index("strategy")
    assert set(table["kind"]) == {"modelled"}
    best = roofs(profile, 1e9)
    assert best["copy_engine"] < best["raw_link"]
    assert best["sm_read"] < best["raw_link"]
    by_gpu = table.loc["by_gpu"]
    assert by_gpu["rate"] == pytest.approx(best["sm_read"], rel=0.01)  # whole lines, one at a time
    assert best["sm_read"] != pytest.approx(best["copy_engine"])
    for roof in ("copy_engine", "sm_read", "raw_link"):
        assert by_gpu[f"of_{roof}"] == pytest.approx(by_gpu["rate"] / best[roof])
    assert by_gpu["fetch_bound"] == "link"
    assert table.loc["by_gpu_ahead", "over"] == "epoch"
    assert pd.isna(table.loc["resident", "rate"])
    # A path that keeps nine rows of ten on the GPU would beat the raw link, did they count.
    tenth = {name: value / 10 for name, value in READS.items()}
    run = make_run(tmp_path, {**CASES, "by_gpu": {**COMMON, **tenth}}, sampling="replay")
    assert 0 < roofline(run, profile).set_index("strategy").loc["by_gpu", "of_sm_read"] < 1


def test_measured_gpu_epochs_stand_beside_their_predictions(tmp_path, profile):
    run = make_run(tmp_path, backend="cuda", sampling="replay")
    table = against_measured(run, profile).set_index("strategy")
    assert set(table.index) == set(CASES)
    assert (table["measured_s"] == 7.0).all()
    assert (table["error"] - (table["modelled_s"] / 7.0 - 1)).abs().max() < 1e-9
    assert against_measured(make_run(tmp_path), profile).empty
    assert table["limit_error"].isna().all(), "nothing ran without a fetch"
    limited = {**CASES, "no_fetch": COMMON}
    limited_run = make_run(tmp_path, limited, backend="cuda", sampling="replay")
    beside = against_measured(limited_run, profile).set_index("strategy")
    ratio = beside.loc["by_gpu", "modelled_s"] / beside.loc["no_fetch", "modelled_s"]
    assert beside.loc["by_gpu", "limit_error"] == pytest.approx(ratio - 1)  # both took 7 s
    assert math.isnan(beside.loc["no_fetch", "limit_error"])
    lines = roofline(run, profile)
    measured = lines[(lines["kind"] == "measured") & (lines["strategy"] == "by_gpu")]
    assert measured["rate"].tolist() == [pytest.approx(PAYLOAD / 4.0)]


def test_a_run_keeps_its_predictions(shell_run):
    _, folder = shell_run
    predicted = [row for row in rows_of_run(folder) if is_prediction(row)]
    assert {row.machine for row in predicted} == {"a100-pcie4"}
    assert load_profile(folder / "profile.toml") == load_profile("a100-pcie4")
    assert [r for r in predicted if (r.stage, r.metric, r.status) == ("epoch", "wall_time", "ok")]
    assert predict(load_run(folder), load_profile("a100-pcie4")) == predicted
    again = CliRunner().invoke(app, ["run", "--resume", str(folder), "--profile", "a100-pcie4"])
    assert again.exit_code == 2


BETTER = {
    **dict.fromkeys(("link.raw_rate", "link.outstanding_reads", "copy.pageable"), 1.0),
    **dict.fromkeys(("host.cores", "host.memory_rate", "host.sample_rate"), 1.0),
    **dict.fromkeys(("gpu.memory_rate", "gpu.flops"), 1.0),
    **dict.fromkeys(("link.round_trip", "gpu.launch"), -1.0),
}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.sampled_from(sorted(BETTER)),
    st.floats(1.0, 4.0),
    st.integers(1, 4),
)
def test_a_better_machine_is_never_predicted_slower(case, key, factor, gpus):
    before = load_profile("rtx3090-pcie4").with_constant("link.round_trip", 1.2e-6, "a test")
    constant = before[key]
    assert constant.value is not None
    better = constant.value * factor ** BETTER[key]
    after = before.with_constant(key, better, "a test")
    load = declared_load(CASES[case], 1e9)
    slow, fast = (predict_batches(load, p, 40, gpus=gpus).epoch_s for p in (before, after))
    assert fast <= slow * (1 + 1e-6)


def test_page_visits_are_declared_by_kind_of_memory_and_what_the_gpu_keeps_beside_them():
    """Of 4 minibatches; runs from before managed memory had pages of its own have none there."""
    told = declared_load({**COMMON, **READS, "declared_gpu_page_visits": 8.0}, 1e9)
    assert (told.gpu_page_visits, told.managed_page_visits) == (2.0, 0.0)
    kept = declared_load({**COMMON, "declared_gpu_table_bytes": 5e8}, 1e12)
    assert (kept.gpu_table_bytes, kept.table_bytes) == (5e8, 1e12)
    both = {"declared_gpu_page_visits": 0.0, "declared_managed_page_visits": 8.0}
    managed = declared_load({**COMMON, **READS, **both}, 1e9)
    assert (managed.gpu_page_visits, managed.managed_page_visits) == (0.0, 2.0)


# ---- of a graph's size alone ---------------------------------------------------------------------


SMALL = Shape("20k,300k,128", 20_000, 300_000, 128, 512)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("20k,300k,128", (20_000, 300_000, 512)),
        ("2.4M,124M,100", (2_400_000, 124_000_000, 400)),
        ("1G,0,1", (1_000_000_000, 0, 4)),
        ("products-like", (2_449_029, 123_718_280, 400)),
    ],
)
def test_a_graph_is_named_or_its_size_given(text, sizes):
    shape = Shape.parse(text)
    assert (shape.nodes, shape.edges, shape.row_bytes) == sizes


@pytest.mark.parametrize(
    "text",
    ["1,2", "a,b,c", "99,1,1", "9e9,1,1", "100,1,0", "100,-1,1", "4G,1,1", "1M,1M,nan", ",,"],
)
def test_no_size_is_refused_with_what_one_looks_like(text):
    with pytest.raises(DatasetError, match=r"expected the name of a dataset .* 2\.4M,124M,100"):
        Shape.parse(text)


def test_a_name_that_nobody_has_is_refused_with_the_nearest():
    with pytest.raises(DatasetError, match="products-like"):
        Shape.parse("product-like")


def test_a_minibatch_follows_the_law():
    """Distinct nodes; a tenth of them, the most wanted, gets u³ < 1/10: 46 % of the draws."""
    ranks, nodes, edges = draw(Shape("x", 1_000_000, 16_000_000, 1, 4), Workload("x"))
    assert ranks.size == nodes[-1] == np.unique(ranks).size
    assert nodes == sorted(nodes)
    assert 0 <= ranks.min() <= ranks.max() < 1_000_000
    assert edges[0] == pytest.approx(1000 * 12, rel=0.1)  # of 16 in the mean, 25 at most
    drawn = ranks[nodes[0] : nodes[1]]
    assert 0.35 < (drawn < 100_000).mean() < 0.46  # repeats of the most wanted count once


def test_every_path_is_there_with_seconds_and_room_or_a_reason():
    table = predict_graph(SMALL, load_profile("nvidia-h200"))
    assert set(table["strategy"]) == {s.name for s in (*STRATEGIES, *CHOICES)}
    assert len(table) == len(PATHS)
    assert max(Counter(zip(table["strategy"], table["variant"], strict=True)).values()) == 1
    for row in table.to_dict("records"):
        assert row["notes"] or row["epoch_s"] > 0
        assert math.isnan(row["epoch_s"]) == (row["bound"] == "unknown")
    rows = table.set_index(["strategy", "variant"])
    size = 20_000 * 512.0
    assert rows.loc[("all_in_gpu", "default"), "gpu_bytes"] > size
    cached = rows.loc[("cached_zero_copy", "presampled,10%,0")]
    buffer = rows.loc[("aligned_zero_copy", "given"), "gpu_bytes"]
    assert cached["gpu_bytes"] == pytest.approx(size / 10 + buffer)
    assert cached["host_bytes"] == size
    assert rows.loc[("disk_direct", "io_uring,yes,128,1"), "host_bytes"] == 2 * buffer
    assert set(table["fits"]) == {"GPU yes, host ?", "unknown"}


def test_what_is_extrapolated_or_does_not_fit_says_so():
    large = Shape("400M,4G,128", 400_000_000, 4_000_000_000, 128, 512)
    rows = predict_graph(large, load_profile("h200-sxm-pcie5-low"))
    rows = rows.set_index(["strategy", "variant"])
    read = rows.loc[("unified_zero_copy", "registered")]
    assert any("is known of tables up to" in note for note in read["notes"])
    for said in ("gpu.issue is not known", "without drawing minibatches: neither gpu.draw nor"):
        assert any(said in note for note in read["notes"])
    bound = rows.loc[("all_in_gpu", "default")]
    assert bound["fits"] == "no (GPU)"
    assert "do not fit into" in bound["notes"][0]


def test_the_command_prints_the_fastest_first_and_refuses_a_run_beside_it():
    done = CliRunner().invoke(
        app, ["predict", "--graph", "20k,300k,128", "--profile", "nvidia-h200"]
    )
    assert done.exit_code == 0, done.output
    assert "Predicted for nvidia-h200, not measured" in done.output
    assert "law of hashed graphs" in done.output
    assert all(strategy.name in done.output for strategy in STRATEGIES)
    table = predict_graph(SMALL, load_profile("nvidia-h200")).sort_values("epoch_s", kind="stable")
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert [word for word in first_words if word in set(table["strategy"])] == [*table["strategy"]]
    assert "async_zero_copy (mps)" in done.stdout, "as show names it"
    assert "stream,auto" not in done.stdout
    assert "GPU yes, host ?" in done.stdout
    for wrong in (
        ["--graph", "20k,300k,128"],
        ["run", "--graph", "20k,300k,128", "--profile", "x"],
    ):
        refused = CliRunner().invoke(app, ["predict", *wrong])
        assert refused.exit_code == 2
        assert "--graph needs --profile NAME" in refused.output
