"""Tables for figures: against values worked out by hand from rows that were made up."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import pytest

from gatherbench.bench.model import profile as profiles
from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.plan.workload import GRAPHLESS, Workload, workload_name, workload_names
from gatherbench.bench.read.derive import speedup_over
from gatherbench.bench.read.reference import load_reference, published_range
from gatherbench.bench.read.standings import table as standing_table
from gatherbench.bench.read.units import with_ends
from helpers.epoch_bars import (
    disturbances,
    gain,
    measured_bars,
    measured_changes,
    measured_stages,
    measured_times,
    measured_transfers,
    passes_over_memory,
    possible,
    predicted_bars,
    published_changes,
    stated_times,
)
from helpers.findings import Findings, load_findings
from helpers.gathers import (
    MICRO,
    SWEEP,
    best_orders,
    gather_against_share,
    live_peers,
    measured_gather_rates,
    measured_roofs,
    modelled_gather_rates,
    modelled_transfers,
    overlap_ratios,
    published_order,
    ratio_over_rounds,
    share_table,
    span_of,
    step_against_share,
)
from helpers.reddit import modelled_scaling, over_cpu_gather, reddit_bars, reddit_stages

from ..bench.show.gpu_rows import (
    ROW_BYTES,
    ROWS_OF_A_MINIBATCH,
    add_gpu_metrics,
    add_overlap,
    add_peer,
    add_rows,
    write_micro,
)
from ..bench.written_run import write_run

MakeRun = Callable[..., Path]
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
SERIES = [
    ("cpu_gather", "naive", (0.2, 1.0, 0.5)),
    ("cpu_gather", "pinned", (0.2, 0.6, 0.5)),
    ("aligned_zero_copy", "given", (0.2, 0.4, 0.5)),
    ("aligned_zero_copy", "sorted", (0.2, 0.25, 0.5)),
    ("async_zero_copy", "stream,auto", (0.2, 0.05, 0.6)),
    ("all_in_gpu", "default", (0.2, 0.1, 0.5)),
]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """A GPU run and gpu-micro of one machine, and the published rows."""
    machine = tmp_path_factory.mktemp("results") / "nvidia-h200"
    folder = machine / "20261121-gpu-aaaaaa"
    write_run(folder, series=SERIES, backend="cuda", machine="nvidia-h200")
    add_gpu_metrics(folder, [(strategy, variant) for strategy, variant, _ in SERIES])
    micro = write_micro(machine / "20261121-micro")
    add_overlap(micro)
    add_peer(micro)
    return load_findings(machine.parent, REFERENCE)


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_reference(REFERENCE)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return load_findings(tmp_path_factory.mktemp("empty"), REFERENCE)


def test_stages_bars_and_gains(findings):
    row = measured_stages(findings, "cuda", "cpu_gather", "naive").iloc[0]
    stages = row[["sample", "fetch", "train", "other"]].tolist()
    assert stages == pytest.approx([0.2, 1.0, 0.5, 0.01])
    assert row["label"] == "wordnet GraphSAGE\nnvidia-h200"
    assert row["share"] == "58.5 % (58.5–58.5)"  # 1 of 1.71 s in every repeat
    bars = measured_bars(findings, "cuda")
    assert set(bars["group"]) == {"wordnet GraphSAGE"}
    ((name, times, _),) = measured_times(findings, "cuda")
    assert name == "wordnet GraphSAGE"
    # By hand: 1.71 s, 1.31 s and 0.81 s beside 0.86 s; the repeats are alike.
    assert gain(times) == (
        "of 3 zero-copy variants `async_zero_copy stream,auto` came out fastest: 1.99×"
        " as fast as `cpu_gather naive`; 1.52× as fast as `cpu_gather pinned`, the best"
        " of 2; it takes 1.06× as long as `all_in_gpu`."
    )
    assert measured_bars(findings, "cuda", "reddit").empty
    assert not list(measured_times(findings, "host"))


def test_what_repeats_do_not_tell_is_not_said():
    naive, pinned = ("cpu_gather", "naive"), ("cpu_gather", "pinned")
    given, managed = ("aligned_zero_copy", "given"), ("aligned_zero_copy", "given,managed")
    said = gain({naive: [0.0], pinned: [0.1], given: [-0.5], managed: [-0.4]})
    # exp(0.5), and the other variant cannot be told from it.
    assert said == (
        "of 2 zero-copy variants `aligned_zero_copy given` came out fastest (1 of the others level"
        " with it or not decided): 1.65× (one repeat) as fast as `cpu_gather naive`, the best of 2."
        " One repeat: how much processes differ is not known."
    )
    said = gain({naive: [0.0, 0.4], given: [-0.1, 0.2], ("all_in_gpu", "default"): [0.05, 0.05]})
    assert "as fast as `cpu_gather naive`, not decided; " in said
    assert said.endswith("as long as `all_in_gpu`, not decided.")
    said = gain({naive: [0.0, 0.0], given: [0.01, 0.01]})
    assert said == "`aligned_zero_copy given`: 0.990× as fast as `cpu_gather naive`, level."
    assert gain({given: [0.0]}) == "`aligned_zero_copy given`: nothing beside it."
    assert gain({naive: [0.0]}) == "no zero-copy to compare."


def test_what_has_no_quiet_repeat_is_in_no_ratio(make_run):
    busy = ("aligned_zero_copy", "sorted", 0)
    machine = {"backend": "cuda", "machine": "nvidia-h200"}
    folder = make_run(series=SERIES, repeats=1, other_cores=1.5, beside=busy, **machine)
    ((_, times, _),) = measured_times(load_findings(folder.parents[1], REFERENCE), "cuda")
    assert set(times) == {(strategy, variant) for strategy, variant, _ in SERIES} - {busy[:2]}


def test_a_run_has_the_ratios_that_show_tells(make_run):
    """Epochs differ from repeat to repeat: medians would give other ratios than means."""
    folder = make_run(series=SERIES, backend="cuda", machine="nvidia-h200", jitter=0.3)
    findings = load_findings(folder.parents[1], REFERENCE)
    (run,) = findings.runs
    table = speedup_over(run).set_index(["strategy", "variant"])
    ends = table.loc[("async_zero_copy", "stream,auto"), ["speedup", "low", "high"]]
    ((_, times, _),) = measured_times(findings, "cuda")
    ratio = with_ends(*ends)
    assert f"{ratio} as fast as `cpu_gather naive`" in gain(times)
    line = standing_table(run).set_index("strategy").loc["async_zero_copy"]
    assert ratio == with_ends(*line[["reference", "reference_low", "reference_high"]])


def test_what_is_stated_ranges_as_far_as_it_is_known(published):
    stated = dict(stated_times(reddit_bars(published)))
    said = gain(stated["RTX 3090, PCIe 4.0, published"], possible)
    # By hand off the chart: 7.35 s over 2.7 s, each to 0.05 s.
    assert "`async_zero_copy mps` came out fastest: 2.72× (2.65–2.79) as fast as" in said
    one = gain(stated["RTX 3090, PCIe 4.0, modelled"], possible)
    assert "came out fastest: 3.15× as fast as `cpu_gather naive`; it takes" in one
    assert "repeat" not in said + one
    bars = reddit_bars(published).query("kind == 'modelled'").assign(machine="rtx3090-pcie4")
    for name, _ in stated_times(bars):
        assert name.endswith(", modelled for rtx3090-pcie4")


def test_two_machines_never_share_a_ratio(make_run):
    slow = [(s, v, (0.4, 4.0, 2.0)) for s, v, _ in SERIES]
    first = make_run("20261120-a-aaaaaa", series=SERIES, backend="cuda", machine="nvidia-h200")
    make_run("20261121-b-bbbbbb", series=slow, backend="cuda", machine="nvidia-t4")
    findings = load_findings(first.parents[1], REFERENCE)
    found = {name: gain(times) for name, times, _ in measured_times(findings, "cuda")}
    assert set(found) == {"wordnet GraphSAGE, nvidia-h200", "wordnet GraphSAGE, nvidia-t4"}
    assert "1.00× as fast as `cpu_gather" in found["wordnet GraphSAGE, nvidia-t4"]
    assert "1.99× as fast as `cpu_gather" in found["wordnet GraphSAGE, nvidia-h200"]


def test_a_workload_is_named_by_what_is_not_the_papers():
    usual = asdict(Workload("reddit-like"))
    assert workload_name(usual) == "reddit-like GraphSAGE"
    modern = {"scale": 0.1, "fanouts": [15, 10, 5], "hidden": 256, "batch_size": 1024}
    assert workload_name({**usual, **modern, "max_batches": 20}) == (
        "reddit-like@0.1 GraphSAGE (fan-outs 15,10,5; hidden 256; batch 1024; 20 minibatches)"
    )
    alike = [Workload("wordnet"), Workload("wordnet", seed=1), Workload("wordnet", model="gat")]
    names = workload_names({one.id: asdict(one) for one in alike})
    first, second, _ = (one.id.rpartition("-")[2] for one in alike)
    told = [f"wordnet GraphSAGE [{first}]", f"wordnet GraphSAGE [{second}]", "wordnet GAT"]
    assert names == dict(zip([one.id for one in alike], told, strict=True))


def test_what_the_meters_watched_is_no_epoch_of_a_graph(make_run):
    folder = make_run("20261121-gpu-energy", series=SERIES, backend="cuda", machine="nvidia-h200")
    plan = json.loads((folder / "plan.json").read_text())
    (fields,) = plan["workloads"].values()
    fields |= {"model": GRAPHLESS, "dataset": "uniform-9-rows", "fanouts": [1], "max_batches": 20}
    (folder / "plan.json").write_text(json.dumps(plan))
    assert workload_name(fields) == "uniform-9-rows (20 minibatches of 1000)"
    findings = load_findings(folder.parents[1], REFERENCE)
    assert len(findings.epochs("cuda"))
    assert measured_bars(findings, "cuda").empty
    assert not list(measured_times(findings, "cuda"))
    assert measured_stages(findings, "cuda", "cpu_gather", "naive").empty


def test_passes_over_memory_are_declared_bytes_over_delivered_ones(make_run):
    folder = make_run(series=SERIES[:1])
    rows = [
        {"stage": "fetch", "metric": name, "unit": "B", "value": 2.0e9}
        for name in ("cpu_read", "cpu_write", "copy_engine")
    ]
    key = {"strategy": "cpu_gather", "variant": "naive"}
    add_rows(folder, rows, basis="declared", **key)
    findings = load_findings(folder.parents[1], REFERENCE)
    assert passes_over_memory(findings.runs[0])["passes"].tolist() == pytest.approx([3.0])


def test_the_chart_beside_its_model(published):
    table = reddit_stages(published).set_index(["kind", "label"])
    chart = table.loc["published", "Reddit, RTX 3090, PCIe 3.0"]
    assert (chart.sum(), chart["fetch"]) == (pytest.approx(7.8), pytest.approx(5.7))
    modelled = table.loc["modelled", "Reddit, RTX 3090, PCIe 3.0"]
    assert modelled.sum() == pytest.approx(7.8, rel=0.01)  # the model was fitted to this bar
    bars = reddit_bars(published)
    assert len(bars) == 16
    fitted = bars[(bars["kind"] == "modelled") & (bars["group"] == "RTX 3090, PCIe 3.0")]
    assert set(fitted["note"]) == {"fitted"}
    chart = bars[bars["kind"] == "published"]
    assert (chart["high"] - chart["median"]).tolist() == pytest.approx([0.05] * 8)


def test_scaling_is_compared_with_as_many_gpus(published):
    epochs = modelled_scaling(published, load_profile("rtx3090-pcie4"), [1, 2])
    assert epochs["series"].iloc[0] == "cpu_gather"
    at = epochs.set_index(["series", "x"])["y"]
    ratio = over_cpu_gather(epochs).set_index(["series", "x"])["y"]
    assert "cpu_gather" not in ratio.index.get_level_values("series")
    expected = at["cpu_gather", 2] / at["aligned_zero_copy", 2]
    assert ratio["aligned_zero_copy", 2] == pytest.approx(expected)
    assert published_range(published)["y"].tolist() == pytest.approx([1.65, 1.92])


def test_ratios_of_gathers_are_within_a_round(findings):
    sides = (("aligned", "sorted"), ("aligned", "given"))
    # The rounds are 10 % slower and faster for both sides alike, at the best cap of each.
    assert ratio_over_rounds(findings.micro, 512, *sides) == pytest.approx([38 / 36] * 3)
    rows = findings.micro
    slow = (rows["round"] == 1) & (rows["order"] == "given")
    uneven = rows.assign(time_s=rows["time_s"].where(~slow, rows["time_s"] * 2))
    found = ratio_over_rounds(uneven, 512, *sides)
    assert found == pytest.approx((38 / 36, 38 / 36, 2 * 38 / 36))
    gone = rows[(rows["round"] != 1) | (rows["order"] != "given")]
    assert ratio_over_rounds(gone, 512, *sides) == pytest.approx([38 / 36] * 3)
    # Another cap, or a smaller span, is another ratio: neither is asked for.
    worse = rows["grid_percent"].eq(5) & rows["order"].eq("given")
    capped = rows.assign(time_s=rows["time_s"].where(~worse, rows["time_s"] * 3))
    small = capped.assign(span_bytes=1 << 30, time_s=capped["time_s"] / 9)
    small = small[small["order"] == "given"]
    both = pd.concat([capped, small])
    assert ratio_over_rounds(both, 512, *sides) == pytest.approx([38 / 36] * 3)
    for width, other in ((512, ("dgl", "no order")), (7, sides[1])):
        assert all(math.isnan(x) for x in ratio_over_rounds(rows, width, sides[0], other))


def test_rates_are_medians_over_rounds_at_the_best_grid_cap(findings):
    assert span_of(findings.micro) == 8 << 30
    larger = findings.micro.iloc[:2].assign(span_bytes=32 << 30)  # no gathers over these
    assert span_of(pd.concat([findings.micro, larger])) == 8 << 30
    assert span_of(findings.micro.assign(span_bytes=32 << 30)) == 32 << 30
    assert span_of(findings.micro.iloc[:0]) == 8 << 30
    table = measured_gather_rates(findings.micro, ["unaligned", "aligned"])
    at = table.set_index(["policy", "order", "x"])
    assert at.loc[("aligned", "sorted", 512), "y"] == pytest.approx(38.0)
    assert at.loc[("aligned", "given", 512), "y"] == pytest.approx(36.0)
    assert at.loc[("aligned", "given", 512), "low"] == pytest.approx(36 / 1.1)
    assert at.loc[("aligned", "given", 512), "high"] == pytest.approx(36 / 0.9)
    assert list(dict.fromkeys(table["policy"])) == ["unaligned", "aligned"]  # as asked for
    best = best_orders(table).set_index(["series", "x"])["y"]
    assert best["aligned", 512] == pytest.approx(38.0)
    roofs = measured_roofs(findings.micro).set_index("name")["y"]
    assert roofs["copy engine"] == pytest.approx(50.0)
    assert roofs["contiguous read by SMs"] == pytest.approx(40.0)
    # A live peer is no policy of it.
    table = live_peers(findings.micro)
    assert table["series"].tolist() == ["WholeGraph 26.10 itself, 2 GiB"]
    assert table["y"].tolist() == pytest.approx([20.0])
    assert table["beside"].tolist() == ["given 25.0"]


def test_shares_of_the_multiprocessors(findings):
    gather = gather_against_share(findings).set_index(["source", "series", "x"])
    sweep = (SWEEP, "stream,auto, wordnet GraphSAGE")
    assert gather["y"][*sweep, 5] == pytest.approx(0.25)
    assert gather["y"][*sweep, 15] == pytest.approx(1.0)
    assert math.isnan(gather["low"][*sweep, 5])  # one repeat
    point = (MICRO, "rows of 2408 B over 8 GiB", 5)
    # The rounds are 10 % slower and faster.
    expected = [0.5, 0.5 / 1.1, 0.5 / 0.9]
    assert gather.loc[point, ["y", "low", "high"]].tolist() == pytest.approx(expected)
    step = step_against_share(findings).set_index(["source", "series", "x"])["y"]
    assert step[*sweep, 10] == pytest.approx(4.0)
    assert step[MICRO, "memory pass, stream", 25] == pytest.approx(1.4)
    rounds = findings.micro[findings.micro["load"] == "memory_pass"]
    slow = rounds.assign(round=2, time_s=[0.01 if t == 0.01 else 0.012 for t in rounds["time_s"]])
    both = replace(findings, runs=[], micro=pd.concat([findings.micro, slow]))
    row = step_against_share(both).iloc[0]
    assert row[["y", "low", "high"]].tolist() == pytest.approx([1.3, 1.2, 1.4])
    (row,) = overlap_ratios(findings).to_dict("records")
    assert (row["series"], row["x"], row["y"]) == (sweep[1], 15, pytest.approx(1.0 / 0.8))


def test_sweeps_of_memory_mapped_otherwise_are_series_of_their_own(make_run):
    """Registered memory takes three times as long: no number stands for both."""
    series = [
        ("async_zero_copy", v, (0.2, 0.1, 0.5)) for v in ("stream,auto", "stream,auto,managed")
    ]
    folder = make_run(series=series, backend="cuda", machine="nvidia-h200")
    for repeat, factor in enumerate((1.0, 1.2)):
        for (strategy, variant, _), step in zip(series, (3.0, 1.0), strict=True):
            times = {"budget_1_gather_time": step, "budget_5_gather_time": step * factor}
            times |= {"budget_1_step_time": step * factor, "train_alone_step_time": 1.0}
            times |= {"fetch_alone_step_time": 0.5}
            rows = [
                {"stage": "setup", "metric": name, "unit": "s", "value": value}
                for name, value in times.items()
            ]
            add_rows(folder, rows, strategy=strategy, variant=variant, repeat=repeat)
    findings = load_findings(folder.parents[1], REFERENCE)
    step = step_against_share(findings).set_index("series")
    registered, managed = "stream,auto, wordnet GraphSAGE", "stream,auto,managed, wordnet GraphSAGE"
    # Geometric means of 1 and 1.2 times.
    assert step["y"][registered] == pytest.approx(3 * math.sqrt(1.2))
    assert step["y"][managed] == pytest.approx(math.sqrt(1.2))
    assert step["low"][managed] < 1 < step["high"][managed]  # two repeats tell little
    (told,) = (line for line in share_table(findings) if managed in line)
    alone, step_s, side = told.strip("| ").split(" | ")[1:]
    assert alone == "**1 %**, the smallest tried: 100 % (100–100)"
    assert step_s.endswith(", not decided (1 %, of 1 shares)")
    assert side.startswith("1.10× (")
    assert side.endswith(", not decided (1 %)")


def test_the_smallest_share_is_the_smallest_that_was_tried(findings):
    told = "\n".join(share_table(findings))
    line = next(line for line in told.splitlines() if "| sweep of stream,auto, wordnet" in line)
    assert line.split(" | ")[1:] == [
        "**15 %**: 100 % (one repeat)",
        "2.00× (one repeat) (15 %, of 4 shares)",
        "1.25× (one repeat) (15 %) |",
    ]
    assert "rows of 2408 B over 8 GiB | none of 1 tried | – | – |" in told
    assert "| – | 1.40× (5 %, of 2 shares) | – |" in told
    whole = (findings.micro["case"] == "gpu_gather") & (findings.micro["grid_percent"] == 0)
    told = "\n".join(share_table(replace(findings, runs=[], micro=findings.micro[~whole])))
    assert "**5 %**, the smallest tried: 100 % (90.9–111), not decided" in told


def test_changes_against_the_papers_baseline(findings, published):
    quantities = {
        "transfer time": ("fetch", "wall_time"),
        "power": ("energy", "power"),
        "processor time": ("epoch", "cpu"),
    }
    table = measured_changes(findings, "cuda", quantities)
    at = table.set_index(["quantity", "strategy"])["median"]
    # The fastest variant stands for its strategy.
    assert at["transfer time", "aligned_zero_copy"] == pytest.approx(-0.75)
    assert at["power", "aligned_zero_copy"] == pytest.approx(-0.25)
    user_and_system = (2.1 * 0.1 + 0.5) / (2.1 * 1.0 + 0.5)
    assert at["processor time", "all_in_gpu"] == pytest.approx(user_and_system - 1)
    assert "cpu_gather" not in at.index.get_level_values("strategy")
    table = published_changes(published).set_index("quantity")
    assert table.loc["power", ["low", "high"]].tolist() == [-0.175, -0.124]
    assert pd.isna(table.loc["power", "median"])
    assert table.loc["transfer time", "median"] == -0.471


def test_of_each_quantity_the_newest_run_that_has_it_counts(make_run):
    """A newer run without energy hides no older one's, and its own epochs count."""
    names = [("cpu_gather", "naive"), ("aligned_zero_copy", "given")]
    old = [(*names[0], (0.2, 1.0, 0.5)), (*names[1], (0.2, 0.5, 0.5))]
    new = [(*names[0], (0.2, 1.0, 0.5)), (*names[1], (0.2, 0.1, 0.5))]
    folder = make_run("20261120-energy-aaaaaa", series=old, backend="cuda", machine="nvidia-h200")
    add_gpu_metrics(folder, names)
    make_run("20261121-fast-bbbbbb", series=new, backend="cuda", machine="nvidia-h200")
    findings = load_findings(folder.parents[1], REFERENCE)
    quantities = {"transfer time": ("fetch", "wall_time"), "power": ("energy", "power")}
    at = measured_changes(findings, "cuda", quantities).set_index("quantity")
    assert at["median"].to_dict() == pytest.approx({"transfer time": -0.9, "power": -0.25})
    assert at["note"].to_dict() == {"transfer time": "", "power": "one repeat"}
    assert at["said"]["power"] == "wordnet GraphSAGE, nvidia-h200, `given`: **-25%** (one repeat)"
    assert at["said"]["transfer time"].endswith("`given`: **-90%** (-90% to -90%)")


def test_changes_are_of_means_with_what_repeats_tell(make_run):
    series = [
        ("cpu_gather", "naive", (0.2, 1.0, 0.5)),
        ("aligned_zero_copy", "given", (0.2, 1.0, 0.5)),
    ]
    folder = make_run(series=series, backend="cuda", machine="nvidia-h200", jitter=0.3)
    findings = load_findings(folder.parents[1], REFERENCE)
    (row,) = measured_changes(findings, "cuda", {"time": ("epoch", "wall_time")}).to_dict("records")
    table = speedup_over(findings.runs[0]).set_index("strategy").loc["aligned_zero_copy"]
    expected = [1 / table[end] - 1 for end in ("speedup", "high", "low")]
    assert [row[end] for end in ("median", "low", "high")] == pytest.approx(expected)
    assert row["said"].endswith(", not decided")


def test_changes_of_workloads_span_from_the_least_to_the_greatest(make_run):
    first, second = (f"wordnet-sage16x{n}-b1000-1f2e3d4c" for n in (2, 3))
    fast = {first: (0.2, 0.5, 0.5), second: (0.2, 0.1, 0.5)}
    series = [("cpu_gather", "naive", (0.2, 1.0, 0.5)), ("aligned_zero_copy", "given", fast)]
    folder = make_run(
        series=series, workloads=(first, second), backend="cuda", machine="nvidia-h200"
    )
    findings = load_findings(folder.parents[1], REFERENCE)
    table = measured_changes(findings, "cuda", {"transfer time": ("fetch", "wall_time")})
    (row,) = table.to_dict("records")
    assert row["label"] == "aligned_zero_copy, 2 workloads"
    assert [row[end] for end in ("median", "low", "high")] == pytest.approx([-0.7, -0.9, -0.5])


def test_what_a_path_that_fetches_ahead_waits_is_no_transfer_time(make_run):
    folder = make_run(series=SERIES, backend="cuda", machine="nvidia-h200")
    add_gpu_metrics(folder, [(strategy, variant) for strategy, variant, _ in SERIES])
    for strategy, variant, _ in SERIES:
        ahead = float((strategy, variant) in (SERIES[1][:2], SERIES[4][:2]))
        row = {"stage": "fetch", "metric": "lookahead", "unit": "1", "value": ahead}
        add_rows(folder, [row], basis="declared", strategy=strategy, variant=variant)
    findings = load_findings(folder.parents[1], REFERENCE)
    quantities = {"transfer time": ("fetch", "wall_time"), "processor time": ("epoch", "cpu")}
    table = measured_changes(findings, "cuda", quantities).groupby("quantity")["strategy"]
    assert list(table.get_group("transfer time")) == ["aligned_zero_copy", "all_in_gpu"]
    assert "async_zero_copy" in list(table.get_group("processor time"))
    assert set(measured_transfers(findings)["over"]) == {"naive"}  # pinned is ahead here


def test_transfers_are_at_the_mean_minibatch(findings):
    table = measured_transfers(findings)
    assert table.iloc[0][["rows", "row_bytes", "ratio"]].tolist() == [
        pytest.approx(ROWS_OF_A_MINIBATCH), ROW_BYTES, pytest.approx(1.0 / 0.4),
    ]  # fmt: skip
    ratios = table.set_index(["over", "variant"])["ratio"].to_dict()
    # Variant by variant, the usual ones first: none is picked.
    assert list(ratios) == [(o, v) for o in ("naive", "pinned") for v in ("given", "sorted")]
    assert list(ratios.values()) == pytest.approx([1 / 0.4, 1 / 0.25, 0.6 / 0.4, 0.6 / 0.25])
    assert {interval.repeats for interval in table["interval"]} == {3}


def test_published_order_is_dgls(published):
    at = published_order(published).set_index("series")
    assert at.loc["DGL, sorted", "y"] == pytest.approx(19.888, abs=1e-3)
    assert at.loc["DGL, given", "x"] == 188


def test_modelled_rates_stay_below_the_link_and_alignment_never_costs():
    profile = load_profile("rtx3090-pcie4")
    table = modelled_gather_rates(["unaligned", "aligned-idle"], [400, 1412, 2408], profile, 1e9)
    raw = profile["link.raw_rate"].value
    assert raw is not None
    assert (table["y"] < raw / 1e9).all()
    at = table.set_index(["policy", "x"])["y"]
    for width in (400, 1412, 2408):
        assert at["aligned-idle", width] >= at["unaligned", width]


def test_an_unknown_constant_gives_no_ratio():
    profile = load_profile("rtx3090-pcie4")
    known = modelled_transfers(profile, [1000], [400], 10_000)
    assert known["ratio"].notna().all()
    unknown = profile.with_constant("copy.pageable", None, "nobody knows")
    assert modelled_transfers(unknown, [1000], [400], 10_000)["ratio"].isna().all()


def test_without_any_run_every_measured_table_is_empty(nothing):
    quantities = {"power": ("energy", "power")}
    for table in (
        measured_stages(nothing, "cuda", "cpu_gather", "naive"),
        measured_bars(nothing, "cuda"),
        predicted_bars(nothing),
        measured_gather_rates(nothing.micro),
        measured_roofs(nothing.micro),
        live_peers(nothing.micro),
        gather_against_share(nothing),
        step_against_share(nothing),
        overlap_ratios(nothing),
        measured_changes(nothing, "cuda", quantities),
        measured_transfers(nothing),
    ):
        assert table.empty


def test_a_disturbed_run_says_so(make_run):
    make_run("20261121-quiet-aaaaaa", series=SERIES[:1])
    folder = make_run("20261120-busy-bbbbbb", series=SERIES[:1], other_cores=1.5)
    runs = load_findings(folder.parents[1], REFERENCE).runs
    (sentence,) = disturbances(runs)
    assert "20261120-busy-bbbbbb" in sentence
    assert "1.5 cores" in sentence


def test_what_a_run_declares_is_predicted_for_its_machine(make_run, tmp_path, monkeypatch):
    folder = make_run(series=SERIES[2:3], backend="cuda", machine="nvidia-h200")
    declared = {
        "fetch": {
            **dict.fromkeys(("declared_payload", "gpu_link_read"), ("B", 2.0e9)),
            "row": ("B", 2000.0),
            "gpu_table": ("B", 0.0),
            "lookahead": ("1", 0.0),
            "gpu_share": ("1", 0.0),
            "gpu_requests_128_bytes": ("1", 2.0e9 / 128),
        },
        "sample": {"minibatches": ("1", 100.0), "edges": ("1", 1e6)},
        "train": {
            "operations": ("1", 1e9),
            "gpu_memory": ("B", 1e9),
            "launches": ("1", 1e3),
            "structure": ("B", 1e6),
        },
    }
    rows = [
        {"stage": stage, "metric": metric, "unit": unit, "value": value}
        for stage, metrics in declared.items()
        for metric, (unit, value) in metrics.items()
    ]
    key = {"strategy": "aligned_zero_copy", "variant": "given"}
    add_rows(folder, rows, basis="declared", **key)
    table = {"stage": "setup", "metric": "table", "unit": "B", "value": 1e9}
    add_rows(folder, [table], **key)
    shipped = tmp_path / "profiles"
    shipped.mkdir()
    nearest = load_profile("h200-sxm-pcie5")
    (shipped / "h200-sxm-pcie5.toml").write_text(nearest.to_toml())
    monkeypatch.setattr(profiles, "PROFILES_FOLDER", shipped)
    bars = predicted_bars(load_findings(folder.parents[1], REFERENCE))
    assert bars["machine"].tolist() == ["h200-sxm-pcie5"]
    own = replace(nearest, name="nvidia-h200")  # what was fitted on the machine is nearer
    (shipped / "nvidia-h200.toml").write_text(own.to_toml())
    bars = predicted_bars(load_findings(folder.parents[1], REFERENCE))
    assert bars["machine"].tolist() == ["nvidia-h200"]
    assert bars["group"].tolist() == ["wordnet GraphSAGE"]
    assert 0 < bars["median"].iloc[0] < 10
