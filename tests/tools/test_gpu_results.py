"""The page of what an H200 showed is that of the rows, and its readers read what is there."""

import math
import re
import statistics
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.derive import host_bound
from tools.gpu_results import (
    FOLDER,
    LARGE,
    PATHS,
    ROOT,
    decided,
    ends,
    findings,
    first_picture,
    host_shares,
    page,
    ratios,
    runs_of,
    with_machines,
    with_summary,
)


def test_the_page_is_that_of_the_rows():
    """Else run ``python -m tools.gpu_results`` and look at what has changed."""
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page()


def test_what_the_readme_says_of_it_is_that_of_the_rows():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count(findings()[0]) == 1
    assert with_summary(text) == text
    other = text.replace("16.2 GB/s", "17 GB/s")
    assert other != text
    assert with_summary(other) == text


def test_ends_read_alike_are_one():
    assert ends([0.424, 0.416]) == "0.42"
    assert ends([3.0, 1.25, 2.0], 1) == "1.2 to 3.0"


@pytest.mark.parametrize(("row_bytes", "pages"), [(400, 1 + 24 / 256), (1412, 1 + 352 / 1024)])
def test_pages_that_rows_straddle_explain_random_rows_over_8_gib_by_hand(row_bytes, pages):
    """42.923 M visits a second (the profile's), of which a row makes one for each of its pages.

    Rows of 400 B begin at multiples of 16 B and are on two pages in 24 of 256 places, of 1412 B at
    multiples of 4 B, in 352 of 1024.
    """
    summary = pd.read_csv(next(FOLDER.glob("*-gpu-micro")) / "summary.csv")
    key = summary.set_index(["case", "policy", "order", "row_bytes", "span_bytes", "grid_percent"])
    rate = key["median_per_s"].loc["gpu_gather", "aligned", "given", row_bytes, 8 << 30, 0].item()
    visits = 4.2923e7
    assert visits == load_profile("nvidia-h200")["read.page_visits"].at(8 << 30)
    errors = [visits / each * row_bytes / rate - 1 for each in (1, pages)]
    assert errors == pytest.approx([0.10, 0.01] if row_bytes == 400 else [0.35, 0.01], abs=0.008)


def epochs_of(dataset: str) -> pd.DataFrame:
    """Measured epochs as they are written, a path and its variant in one column."""
    lines = pd.read_parquet(decided(runs_of(FOLDER)).folder / "epochs.parquet")
    lines = lines.query("basis == 'measured' and dataset == @dataset and epoch >= 0")
    return lines.assign(path=lines["strategy"] + " " + lines["variant"])


def paired(dataset: str, one: str, other: str, t: float, repeats: list[int]) -> list[float]:
    """By hand: the ratio of two paths' epochs and the ends of its interval, of logarithms that are
    paired within blocks, of each process its own mean; ``t`` is that of a process fewer."""
    seconds = epochs_of(dataset).set_index(["path", "repeat", "epoch"])["epoch_s"]
    logs = (seconds[one] / seconds[other]).map(math.log).groupby("repeat").mean()[repeats]
    half = t * logs.std() / math.sqrt(len(repeats))
    return [math.exp(logs.mean() + side * half) for side in (0, -1, 1)]


def test_what_is_said_of_epochs_by_hand():
    """t of three degrees of freedom is 3.182."""
    run = decided(runs_of(FOLDER))
    ahead = "async_zero_copy stream,auto,managed"
    value, low, high = paired(LARGE, "cpu_gather naive", ahead, 3.182, [0, 1, 2, 3])
    over = ratios(run, "naive")
    (large,) = (one for one in run.workloads if one.startswith(LARGE))
    assert over[large, "cpu_gather", "naive"] == "1.00"
    text = over[large, *ahead.split()]
    said, from_, to = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+)–([\d.]+)\)", text).groups())
    assert said == pytest.approx(value, rel=0.02)
    assert math.log(to / from_) == pytest.approx(math.log(high / low), rel=0.3)
    median = epochs_of(LARGE).query("path == @ahead")["epoch_s"].median()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^async_zero_copy \(managed\) +([\d.]+)", text, re.MULTILINE)
    assert shown[1] == f"{1e3 * median:.1f}"


def test_cases_that_torch_s_spinning_threads_slowed_are_marked_and_left_out():
    """By hand, from the text: torch's pool had 235 and 517 core-ms there, else 4 to 10.

    Of three processes left t is 4.303 (two degrees of freedom).
    """
    said = " ".join((ROOT / "results" / "README.md").read_text(encoding="utf-8").split())
    run = decided(runs_of(FOLDER))
    lines = pd.read_parquet(run.folder / "epochs.parquet")
    reasons = pd.read_parquet(run.folder / "reasons.parquet")
    wrong = reasons[(reasons["column"] == "check_torch_threads") & (reasons["status"] == "failed")]
    assert set(wrong["variant"]) == {"prefetch"}
    dataset = lines.drop_duplicates("workload").set_index("workload")["dataset"]
    failed = set(zip(wrong["workload"].map(dataset), wrong["repeat"], strict=True))
    ahead = lines[(lines["basis"] == "measured") & (lines["variant"] == "prefetch")]
    spun = 1e3 * ahead.groupby(["dataset", "repeat"])["cpu_torch_pool_s"].median()
    assert failed == {(LARGE, 0), ("products-like", 0)} == set(spun[spun > 20].index)
    ms, others = spun[sorted(failed)], spun.drop(failed)
    told = f"{ms.iloc[0]:.0f} and {ms.iloc[1]:.0f} core-ms an epoch, where other repeats have"
    assert f"{told} {others.min():.0f} to {others.max():.0f}" in said
    paths = "cpu_gather prefetch", "aligned_zero_copy given"
    value, low, high = (f"{x:.3g}" for x in paired("products-like", *paths, 4.303, [1, 2, 3]))
    (fits,) = (one for one in run.workloads if one.startswith("products-like"))
    found = ratios(run, "prefetch")[fits, "aligned_zero_copy", "given"]
    assert found == f"{value} ({low}–{high})" == "1.53 (1.18–1.97)"


def test_what_the_profile_says_of_drawing_by_hand():
    """From the rows: of each process the median draw of ``no_fetch``, a layer and minibatch."""
    per_layer = []
    for graph, layers, batches in (("reddit-like", 2, 6), ("products-like", 3, 6), (LARGE, 3, 3)):
        drawn = epochs_of(graph).query("strategy == 'no_fetch'").groupby("repeat")["sample_s"]
        per_layer += list(drawn.median() / layers / batches)
    assert len(per_layer) == 12
    draw = load_profile("nvidia-h200")["gpu.draw"].value
    assert draw == pytest.approx(statistics.median(per_layer), rel=0.01)


def test_what_a_captured_step_copies_is_a_share_of_a_fetch_by_hand():
    """Each byte is read and written at 4.15 TB/s in all, where the link copies 55.0 GB/s."""
    known = load_profile("nvidia-h200")
    copied, fetched = (known[key].value for key in ("gpu.memory_rate", "copy.to_device"))
    share = 100 * 2 / copied * fetched
    assert share == pytest.approx(100 * 2 * 55.0 / 4146, rel=0.01)
    assert f"{share:.1f} % of a fetch" in (ROOT / "METHODOLOGY.md").read_text(encoding="utf-8")


def test_what_the_readme_says_of_energy_and_processors_by_hand():
    """From the rows: joules of a window over its epochs; core-seconds as medians over epochs."""
    said = " ".join(" ".join(findings()).split())
    (metered,) = (one.folder for one in runs_of(FOLDER) if "energy" in one.run_id)
    calibration = pd.read_csv(metered / "calibration.csv").set_index("metric")["value"]
    idle = float(calibration["idle_power"])
    window = pd.read_parquet(metered / "cases.parquet").set_index("variant")
    joules, seconds = (
        window[f"energy_{what}"] / window["energy_epochs"] for what in ("gpu_energy_j", "window_s")
    )
    above = joules - idle * seconds
    epochs = pd.read_parquet(metered / "epochs.parquet").query("epoch >= 0")
    cores = (epochs["cpu_user_s"] + epochs["cpu_system_s"]).groupby(epochs["variant"]).median()
    paths = ["naive", "pinned", "given", "given,managed"]
    assert f"above the {idle:.0f} W of the idle GPU" in said
    assert [f"{j:.2f}" for j in above[paths]] == ["1.38", "1.18", "1.84", "1.43"]
    words = ("the baseline", "`pinned`", "out of registered memory", "out of managed memory")
    for name, v in zip(words, paths, strict=True):
        assert f"{name} {joules[v]:.2g} J ({above[v]:.2f}), {cores[v]:.2g} core-seconds" in said


def test_what_the_readme_says_of_the_host_by_hand():
    """From the rows: the parts of an epoch that the host issues, medians over its epochs."""
    run, said = decided(runs_of(FOLDER)), " ".join(" ".join(findings()).split())
    epochs = pd.concat(epochs_of(one["dataset"]) for one in run.plan["workloads"].values())
    epochs = epochs.query("strategy != 'cpu_gather'").set_index(["dataset", "strategy", "variant"])
    drawn = epochs["sample_s"] - epochs["host_wait_sample_s"]
    parts = (drawn, epochs["host_issue_train_s"], epochs["host_issue_fetch_s"])
    shares = sum(
        (100 * one / epochs["epoch_s"]).groupby(["dataset", "strategy", "variant"]).median()
        for one in parts
    )
    bound = {(run.plan["workloads"][w]["dataset"], s, v) for w, s, v, *_ in host_bound(run)}
    assert bound == set(shares[shares > 100 * 2 / 3].index)
    assert len(bound) == 27, "all but cpu_gather on two graphs, five on the third"
    shares = shares.drop(LARGE)
    assert list(100 * host_shares(run).sort_values()) == pytest.approx(sorted(shares))
    assert f"takes {shares.min():.0f} to {shares.max():.0f} % of the epochs" in said


def test_what_registered_memory_is_not_separated_from_is_quoted_from_the_rows():
    run = decided(runs_of(FOLDER))
    pinned, prefetch = (ratios(run, baseline) for baseline in ("pinned", "prefetch"))
    bias = " ".join((ROOT / "METHODOLOGY.md").read_text(encoding="utf-8").split())
    path = (run.workloads[0], "aligned_zero_copy", "given")
    told = f"{pinned[path]} times as fast as `pinned` and {prefetch[path]} as `prefetch`"
    assert told in bias


def test_alignment_and_what_is_faster_over_32_gib_by_hand():
    """From the rows: paired logarithms of two series; DGL's rates over ours at 16 to 512 B."""
    run, said = decided(runs_of(FOLDER)), " ".join(" ".join(findings()).split())
    paths = "unified_zero_copy registered", "aligned_zero_copy given"
    for workload in run.workloads:
        dataset = run.plan["workloads"][workload]["dataset"]
        value, low, high = paired(dataset, *paths, 3.182, [0, 1, 2, 3])
        assert f"{value:.3f} ({low:.3f}–{high:.3f})" in said
    summary = pd.read_csv(next(FOLDER.glob("*-gpu-micro")) / "summary.csv")
    key = ["case", "order", "span_bytes", "grid_percent", "policy", "row_bytes"]
    rates = summary.set_index(key)["median_per_s"].sort_index()
    rates = rates.loc["gpu_gather", "sorted", 32 << 30, 0]
    more = [100 * (rates["dgl", n] / rates["aligned", n] - 1) for n in (16, 64, 256, 400, 512)]
    assert f"DGL's launch policy is {min(more):.0f} to {max(more):.0f} % faster" in said


def test_the_first_picture_has_the_ratios_of_readme_s_table(tmp_path, monkeypatch):
    """Of its first panel each dot, on a logarithmic axis."""
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    first_picture(tmp_path / "one.png")
    (figure,) = figures
    panel = figure.axes[0]
    assert panel.get_xscale() == "log"
    (line,) = (line for line in panel.lines if line.get_marker() == "o")
    dots = dict(zip(line.get_ydata(), line.get_xdata(), strict=True))
    over = ratios(decided(runs_of(FOLDER)), "prefetch")
    large = decided(runs_of(FOLDER)).workloads[0]
    named = [float(over[large, *path].split()[0]) for path in PATHS]
    assert [dots[place] for place in sorted(dots, reverse=True)] == pytest.approx(named, rel=6e-3)
    low, high = panel.get_xlim()
    assert low < min(named) < max(named) < high
    plt.figure(figure)
    monkeypatch.undo()
    plt.close(figure)


def test_the_newest_run_of_every_path_is_the_one_that_decides():
    ids = ("20261126-gpu-decide-0f", "20261127-gpu-decide-0a", "20261128-gpu-energy-0b")
    runs = [SimpleNamespace(run_id=one) for one in ids]
    assert decided(runs) is runs[1]


def test_the_machines_of_the_results_are_those_of_the_files():
    text = (FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert with_machines(text.replace("| 55.0 |", "| 54.0 |")) == text
