"""The page of what an H200 showed is that of the rows, and its readers read what is there."""

import functools
import math
import re
import statistics
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.issuing import host_bound
from gatherbench.bench.run.rows import table_of
from gatherbench.bench.run.store import RunStore
from tools.gpu_results.__main__ import (
    FOLDER,
    PATHS,
    ROOT,
    TEXTS,
    first_picture,
    page,
    runs_of,
    summary_of,
    with_summary,
)
from tools.gpu_results.epoch_tables import LARGE, decided, epochs, host_shares, issuing, ratios
from tools.gpu_results.gathers import gathers, host_gathers, model, pages
from tools.gpu_results.probes import blocks_of, brought_in, kinds_of, overlap
from tools.gpu_results.words import SPANS, ends

page, summary_of = functools.cache(page), functools.cache(summary_of)


def test_the_page_is_that_of_the_rows():
    """Else run ``python -m tools.gpu_results`` and look at what has changed."""
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", TEXTS)
def test_what_the_texts_say_of_it_is_that_of_the_rows(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.count(summary_of()) == 1
    assert with_summary(text) == text
    other = text.replace("16.2 GB/s", "17 GB/s")
    assert other != text
    assert with_summary(other) == text


def test_ends_read_alike_are_one():
    assert ends([0.424, 0.416]) == "0.42"
    assert ends([3.0, 1.25, 2.0], 1) == "1.2 to 3.0"


KINDS = """# comment 64B is not a rate
thp            8 GiB map 0.72 s  64B-g:2.74 512B-s:51.06
   in all 2.4 s
managed       32 GiB map 0.00 s  64B-g:19.65 512B-s:50.58
"""


def test_a_line_of_the_probe_of_kinds():
    one, other = kinds_of(KINDS)
    assert (one.name, one.span, one.rates) == ("thp", 8, {(64, "g"): 2.74, (512, "s"): 51.06})
    assert (other.name, other.span, other.rates[64, "g"]) == ("managed", 32, 19.65)


BESIDE = """== span 256 MiB given, fetch 2.00 ms, block 256
   matrix_products alone 2.00 ms, on the rest 4.38
   memory_pass alone 4.00 ms, on the rest 2.55
blocks 2             fetch  10.26  matrix_products  11.35 (1.11)  memory_pass  11.87 (1.16)
blocks 8             fetch   2.10  matrix_products   5.51 (1.93)  memory_pass   4.46 (1.57)
high 13              fetch   2.00  matrix_products   3.97 (1.42)  memory_pass   3.73 (1.34)
== span 8192 MiB managed, fetch 15.99 ms, loads {'matrix_products': 18.0, 'memory_pass': 16.0}
blocks 10            fetch  15.98  matrix_products  21.10 (1.17)  memory_pass  19.11 (1.20)
green 8 | all        fetch   2.00  matrix_products  18.17 (1.01)  memory_pass  16.00 (1.01)
"""


def test_blocks_of_the_probe_of_overlap():
    """By hand: two of three steps are within a tenth of 2 ms; in turns 4 over 2, and 6 over 4.

    Of managed memory what took longer than 3 ms was disturbed; in turns 20 over 18, and 18 over 16.
    """
    first, second = blocks_of(BESIDE)
    assert (first.title, first.fetch) == ("256 MiB given", 2.0)
    assert first.loads == {"matrix_products": 2.0, "memory_pass": 4.0}
    assert first.steps[0] == ("blocks 2", 10.26, {"matrix_products": 1.11, "memory_pass": 1.16})
    assert second.loads == {"matrix_products": 18.0, "memory_pass": 16.0}
    for block in (first, second):
        for _, _, times in block.steps:
            times["aggregation"] = 1.0
    lines = [line for line in overlap([first, second]) if line.startswith("| ")][1:]
    assert lines == [
        "| 256 MiB given | 1.42 to 1.93 | 1.34 to 1.57 | 1.00 | 1.50 to 2.00 |",
        "| 8 GiB managed | 1.01 | 1.01 | 1.00 | 1.11 to 1.12 |",
    ]


def test_the_cpu_s_gathers_by_threads():
    """By hand: 2 B in 1, 2 and 4 s: the median is 1 B a second."""
    samples = pd.DataFrame(
        [("host_gather", 512, 1, 2.0, t) for t in (1.0, 2.0, 4.0)]
        + [("host_gather", 64, 1, 9.0, 1.0), ("sm_read", 512, 1, 9.0, 1.0)],
        columns=["case", "row_bytes", "threads", "amount", "time_s"],
    )
    assert host_gathers(samples) == {1: 1.0}


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
    column = 1 + 2 * SPANS.index(8 << 30)
    (line,) = [line for line in model_table() if line.startswith(f"| {row_bytes} B |")]
    assert float(line.strip("| ").split(" | ")[column]) == pytest.approx(100 * errors[1], abs=1)


def model_table() -> list[str]:
    summary = pd.read_csv(next(FOLDER.glob("*-gpu-micro")) / "summary.csv")
    return [*model(summary, load_profile("nvidia-h200"))]


def test_wholegraph_is_set_beside_our_sorted_and_our_better_order():
    """By hand: theirs 2, ours 3 as given and 1 sorted: 0.5 and 1.5 times as long."""
    orders = ("given", "sorted")
    rows = [
        ("gpu_gather", n, s, 0, "aligned", o, 1e9)
        for n in (400, 512)
        for s in SPANS
        for o in orders
    ]
    rows += [("sm_read", 0, SPANS[0], 0, "", "", 5e10)]
    rows += [
        ("peer_gather", 512, 2 << 30, 0, policy, order, rate)
        for policy, order, rate in (
            ("WholeGraph", "its own", 2.0), ("aligned", "given", 3.0), ("aligned", "sorted", 1.0)
        )
    ]  # fmt: skip
    names = ["case", "row_bytes", "span_bytes", "grid_percent", "policy", "order", "median_per_s"]
    assert [*gathers(pd.DataFrame(rows, columns=names))][-2] == "| 512 B | 0.50 | 1.50 |"


def test_what_is_said_of_epochs_by_hand():
    """From the rows as text: medians of four processes' epochs of the path ahead, and of the floor.

    The ratio is that of means of logarithms, paired within blocks: of each process its own.
    """
    runs = runs_of(FOLDER)
    run = decided(runs)
    seconds: dict[tuple[str, int], dict[int, float]] = {}
    lines = pd.read_parquet(run.folder / "epochs.parquet")
    mine = lines[(lines["basis"] == "measured") & (lines["dataset"] == LARGE)]
    for line in mine.itertuples():
        key = f"{line.strategy} {line.variant}", line.repeat
        seconds.setdefault(key, {})[line.epoch] = line.epoch_s
    ahead, naive = "async_zero_copy stream,auto,managed", "cpu_gather naive"
    logs = [
        statistics.mean(math.log(seconds[naive, k][e] / seconds[ahead, k][e]) for e in range(10))
        for k in range(4)
    ]
    over = ratios(run, "naive")
    (large,) = (one for one in run.workloads if one.startswith(LARGE))
    assert over[large, "cpu_gather", "naive"] == "1.00"
    text = over[large, *ahead.split()]
    value, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+)–([\d.]+)\)", text).groups())
    assert value == pytest.approx(math.exp(statistics.mean(logs)), rel=0.02)
    # By hand: t of three degrees of freedom is 3.182.
    half = 3.182 * statistics.stdev(logs) / 2
    assert math.log(high / low) / 2 == pytest.approx(half, rel=0.3)
    said = next(one for one in epochs(runs, BROUGHT) if one.startswith(f"| {ahead} "))
    times = [value for k in range(4) for value in seconds[ahead, k].values()]
    assert said.split(" | ")[1] == f"{1e3 * statistics.median(times):.1f} ms"


def test_cases_that_torch_s_spinning_threads_slowed_are_marked_and_left_out():
    """By hand, from the text: torch's pool had 235 and 517 core-ms there, else 4 to 10.

    Of three processes left t is 4.303 (two degrees of freedom).
    """
    said = " ".join((ROOT / "results" / "README.md").read_text(encoding="utf-8").split())
    spun, seconds = {}, {}
    run = decided(runs_of(FOLDER))
    lines = pd.read_parquet(run.folder / "epochs.parquet")
    for line in lines[lines["basis"] == "measured"].itertuples():
        case = line.dataset, line.repeat
        if line.variant == "prefetch":
            spun.setdefault(case, []).append(1e3 * line.cpu_torch_pool_s)
        if line.dataset == "products-like":
            seconds[f"{line.strategy} {line.variant}", line.repeat, line.epoch] = line.epoch_s
    reasons = pd.read_parquet(run.folder / "reasons.parquet")
    wrong = reasons[(reasons["column"] == "check_torch_threads") & (reasons["status"] == "failed")]
    assert set(wrong["variant"]) == {"prefetch"}
    dataset = lines.drop_duplicates("workload").set_index("workload")["dataset"]
    failed = set(zip(wrong["workload"].map(dataset), wrong["repeat"], strict=True))
    middle = {case: statistics.median(values) for case, values in spun.items()}
    assert failed == {(LARGE, 0), ("products-like", 0)} == {c for c, v in middle.items() if v > 20}
    others = [value for case, value in middle.items() if case not in failed]
    ms = [middle[case] for case in sorted(failed)]
    told = f"{ms[0]:.0f} and {ms[1]:.0f} core-ms an epoch, where other repeats have"
    assert f"{told} {min(others):.0f} to {max(others):.0f}" in said
    ahead, in_place = "cpu_gather prefetch", "aligned_zero_copy given"
    logs = [
        statistics.mean(math.log(seconds[ahead, k, e] / seconds[in_place, k, e]) for e in range(10))
        for k in (1, 2, 3)
    ]
    middle_log, half = statistics.mean(logs), 4.303 * statistics.stdev(logs) / math.sqrt(3)
    ends = (f"{math.exp(x):.3g}" for x in (middle_log, middle_log - half, middle_log + half))
    value, low, high = ends
    (fits,) = (one for one in run.workloads if one.startswith("products-like"))
    found = ratios(run, "prefetch")[fits, "aligned_zero_copy", "given"]
    assert found == f"{value} ({low}–{high})" == "1.53 (1.18–1.97)"


def test_issuing_drawing_and_training_beside_a_gather_by_hand():
    """From the rows: of each process the medians; beside ``prefetch`` over all processes."""
    run = decided(runs_of(FOLDER))
    rows = RunStore(run.folder).frames().rows()
    rows = rows[rows["basis"] == "measured"]
    every, rows = rows[rows["epoch"] >= 0], rows[rows["dataset"] == "products-like"]
    wrong = rows[(rows["stage"] == "check") & (rows["status"] == "failed")]
    assert set(zip(wrong["variant"], wrong["repeat"], strict=True)) == {("prefetch", 0)}
    step = rows[(rows["stage"] == "host") & (rows["metric"] == "issue_train")]
    floor = step[step["strategy"] == "no_fetch"]
    alone = rows[rows["metric"] == "train_alone_step_time"]
    loops, alones = issuing(run)["products-like"]
    for found, of, middle, steps in ((loops, floor, statistics.median, 6), (alones, alone, min, 1)):
        by_hand = [middle(of[of["repeat"] == k]["value"]) / steps for k in range(4)]
        assert found == pytest.approx(by_hand)
    per_layer = []
    for graph, layers, batches in (("reddit-like", 2, 6), ("products-like", 3, 6), (LARGE, 3, 3)):
        drawn = every[(every["stage"] == "sample") & (every["metric"] == "wall_time")]
        drawn = drawn[(drawn["dataset"] == graph) & (drawn["strategy"] == "no_fetch")]
        per_layer += list(drawn.groupby("repeat")["value"].median() / layers / batches)
    assert len(per_layer) == 12
    draw = load_profile("nvidia-h200")["gpu.draw"].value
    assert draw == pytest.approx(statistics.median(per_layer), rel=0.01)
    beside = step[(step["variant"] == "prefetch") & (step["repeat"] != 0)]["value"]
    assert (len(beside), len(floor)) == (30, 40)
    ratio = statistics.median(beside) / statistics.median(floor["value"])
    assert f"{ratio:.2f} (products-like)" in page()


def test_what_a_captured_step_copies_is_a_share_of_a_fetch_by_hand():
    """Each byte is read and written at 4.15 TB/s in all, where the link copies 55.0 GB/s."""
    known = load_profile("nvidia-h200")
    copied, fetched = (known[key].value for key in ("gpu.memory_rate", "copy.to_device"))
    share = 100 * 2 / copied * fetched
    assert share == pytest.approx(100 * 2 * 55.0 / 4146, rel=0.01)
    assert f"{share:.1f} % of a fetch" in (ROOT / "BIAS.md").read_text(encoding="utf-8")


def test_what_the_readme_says_of_energy_processors_and_the_host_by_hand():
    """From the rows: joules of a window over its epochs; core-seconds, and the parts of an epoch
    that the host issues, as medians over processes and epochs."""
    run, said = decided(runs_of(FOLDER)), " ".join(summary_of().split())
    (metered,) = (one.folder for one in runs_of(FOLDER) if "energy" in one.run_id)
    rows, energy = (
        table_of(RunStore(folder).rows()).query("basis == 'measured' and status == 'ok'")
        for folder in (run.folder, metered)
    )
    paths = ("naive", "pinned", "given", "given,managed")
    idle = float(energy[energy["metric"] == "idle_power"]["value"].iloc[0])
    window = energy[energy["stage"] == "energy"].set_index(["variant", "metric"])["value"]
    joules, seconds = (
        [float(window[v, what]) / float(window[v, "epochs"]) for v in paths]
        for what in ("gpu_energy", "window_time")
    )
    above = [j - idle * s for j, s in zip(joules, seconds, strict=True)]
    assert f"above the {idle:.0f} W of an idle GPU" in said
    assert [f"{j:.2f}" for j in above] == ["1.38", "1.18", "1.84", "1.43"]
    timed = energy[(energy["stage"] == "epoch") & (energy["epoch"] >= 0)]
    timed = timed.assign(value=pd.to_numeric(timed["value"])).set_index(["metric", "variant"])
    spent = timed.loc["cpu_user"].set_index("epoch", append=True)["value"]
    spent = spent + timed.loc["cpu_system"].set_index("epoch", append=True)["value"]
    cores = [spent[v].median() for v in paths]
    words = ("the baseline", "`pinned`", "out of registered memory", "out of managed memory")
    for name, whole, rest, busy in zip(words, joules, above, cores, strict=True):
        assert f"{name} {whole:.2g} J ({rest:.2f}), {busy:.2g} core-seconds" in said
    rows = rows[rows["epoch"] >= 0].assign(value=lambda r: pd.to_numeric(r["value"]))
    names = rows["stage"] + "." + rows["metric"]
    keys = [rows[name] for name in ("dataset", "strategy", "variant", "repeat", "epoch")]
    each = rows["value"].groupby([names, *keys]).sum()
    drawn = each["sample.wall_time"] - each["host.wait_sample"]
    parts = (drawn, each["host.issue_train"], each["host.issue_fetch"])
    series = ["dataset", "strategy", "variant"]
    shares = sum((one / each["epoch.wall_time"]).groupby(series).median() for one in parts)
    shares = 100 * shares.drop("cpu_gather", level="strategy")
    issued = shares[shares > 100 * 2 / 3].index
    bound = {(run.rows.set_index("workload")["dataset"][w].iloc[0], s, v)
             for w, s, v, *_ in host_bound(run)}  # fmt: skip
    assert bound == set(issued)
    assert len(bound) == 27, "all but cpu_gather on two graphs, five on the third"
    shares = shares.drop(LARGE)
    assert list(100 * host_shares(run).sort_values()) == pytest.approx(sorted(shares))
    assert f"spends {shares.min():.0f} to {shares.max():.0f} % of the epochs" in said
    steps = 100 * (parts[1] / each["epoch.wall_time"]).groupby(series).median().drop(LARGE)
    steps = steps.drop("cpu_gather", level="strategy")
    plans = " ".join((ROOT / "docs" / "plans.md").read_text(encoding="utf-8").split())
    assert f"steps were {steps.min():.0f} to {steps.max():.0f} % of the epochs of paths" in plans


def test_where_prefetch_is_faster_than_pinned_and_what_is_not_separated_by_hand():
    """By the intervals on the page: beyond 5 % on one graph; BIAS quotes two others."""
    run, said = decided(runs_of(FOLDER)), " ".join(summary_of().split())
    pinned, prefetch = (ratios(run, baseline) for baseline in ("pinned", "prefetch"))
    lows = [float(re.search(r"\(([\d.]+)–", pinned[w, "cpu_gather", "prefetch"])[1])
            for w in run.workloads]  # fmt: skip
    assert [low > 1.05 for low in lows] == [False, False, True]
    assert "decided against `pinned` on reddit-like alone." in said
    bias = " ".join((ROOT / "BIAS.md").read_text(encoding="utf-8").split())
    path = (run.workloads[0], "aligned_zero_copy", "given")
    told = f"{pinned[path]} times as fast as `pinned` and {prefetch[path]} as `prefetch`"
    assert told in bias


def test_alignment_and_what_is_faster_over_32_gib_by_hand():
    """From the rows: paired logarithms of two series; DGL's rates over ours at 16 to 512 B."""
    run, said = decided(runs_of(FOLDER)), " ".join(summary_of().split())
    times = run.values("epoch", "wall_time").reset_index()
    for workload in run.workloads:
        one, other = (
            times[(times["workload"] == workload) & (times["strategy"] == name)]
            .query("variant == @variant")
            .set_index(["repeat", "epoch"])["value"]
            for name, variant in (
                ("unified_zero_copy", "registered"),
                ("aligned_zero_copy", "given"),
            )
        )
        logs = (one / other).map(math.log).groupby("repeat").mean()
        half = 3.182 * logs.std() / 2
        value, low, high = (
            math.exp(x) for x in (logs.mean(), logs.mean() - half, logs.mean() + half)
        )
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
    dots = {line.get_ydata()[0]: line.get_xdata()[0] for line in panel.lines
            if line.get_marker() == "o"}  # fmt: skip
    over = ratios(decided(runs_of(FOLDER)), "prefetch")
    large = decided(runs_of(FOLDER)).workloads[0]
    named = [float(over[large, *path].split()[0]) for path in PATHS]
    assert [dots[place] for place in sorted(dots, reverse=True)] == pytest.approx(named, rel=6e-3)
    low, high = panel.get_xlim()
    assert low < min(named) < max(named) < high
    plt.figure(figure)
    monkeypatch.undo()
    plt.close(figure)


BROUGHT = {"touch16": [8.0, 3.0], "touch4": [6.0], "prefetch": [12.0], "pthreads": [11.0]}


def test_who_brought_managed_memory_in_and_how_long_it_took():
    text = "# touch16 is a comment\ntouch16   48.0 GiB made 7.56 s filled 0.86 s\n"
    text += "prefetch  48.0 GiB made 11.94 s filled\ntouch16  48.0 GiB made 2.99 s filled\n"
    assert brought_in(text) == {"touch16": [7.56, 2.99], "prefetch": [11.94]}


def test_pages_are_told_by_memory_and_span():
    rows = [
        ("span_registered", 1 << 30, 64, 7.4e9), ("span_managed", 1 << 30, 64, 3.29e10),
        ("split_64k", 2 << 30, 64, 2.5e10), ("split_4k", 2 << 30, 64, 3.86e9),
    ]  # fmt: skip
    names = ["case", "span_bytes", "row_bytes", "median_per_s"]
    frame = pd.DataFrame(rows, columns=names).assign(rounds=1)
    assert any("by 4 KiB there is 1 round." in line for line in pages(frame))
    assert [*pages(frame)][-5:-1] == [
        "| registered | 1 GiB | 7.4 |",
        "| managed | 1 GiB | 32.9 |",
        "| managed, split by 64 KiB | 2 GiB | 25.0 |",
        "| managed, split by 4 KiB | 2 GiB | 3.9 |",
    ]


def test_the_newest_run_of_every_path_is_the_one_that_decides():
    ids = ("20261126-gpu-decide-0f", "20261127-gpu-decide-0a", "20261128-gpu-energy-0b")
    runs = [SimpleNamespace(run_id=one) for one in ids]
    assert decided(runs) is runs[1]
