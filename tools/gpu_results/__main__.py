"""What a GPU showed, as a page of tables beside its rows: ``results/nvidia-h200/README.md``.

    python -m tools.gpu_results

Every number of the page comes from the committed rows; a test runs this and compares. So a run that
is added rewrites the page, and a text cannot say what no row does.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.gpu import gpu_energy
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.chart import Chart
from gatherbench.bench.show.figures.draw import draw as draw_chart
from gatherbench.bench.show.figures.paper import save
from gatherbench.bench.show.looks import FAINT, RC
from gatherbench.bench.show.views.epochs import epoch_breakdown
from tools.gpu_results.epoch_tables import (
    LARGE,
    decided,
    epochs,
    host_shares,
    processor,
    ratios,
)
from tools.gpu_results.gathers import accounting, aligned, gathers, model, pages
from tools.gpu_results.probes import blocks_of, brought_in, kinds_of, managed, overlap
from tools.gpu_results.words import SPANS, ends, gib, table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "nvidia-h200"
PROFILE = "nvidia-h200"
#: Which hold the paragraph of :func:`summary_of`.
TEXTS = ("README.md",)
_SUMMARY = re.compile(r"^\*\*On an H200\*\* behind .*?(?=\n\n(?!- |\|))", re.MULTILINE | re.DOTALL)


def page(folder: Path = FOLDER) -> str:
    """The page, as Markdown."""
    runs = runs_of(folder)
    micro = next(folder.glob("*-gpu-micro"))
    summary = pd.read_csv(micro / "summary.csv", keep_default_na=False, na_values=[""])
    counted = pd.read_csv(micro / "rows.csv", low_memory=False)
    probes = next(folder.glob("*-probes"))
    kinds = [*kinds_of((probes / "memory_kinds.txt").read_text(encoding="utf-8"))]
    beside = [*blocks_of((probes / "overlap.txt").read_text(encoding="utf-8"))]
    samples = pd.read_csv(folder / f"{PROFILE}.samples.csv")
    parts = [
        *head(runs),
        *accounting(counted, runs),
        *gathers(summary),
        *pages(pages_of(folder)),
        *managed(kinds, summary),
        *overlap(beside),
        *epochs(runs, brought_in(next(folder.glob("*-populate/populate.txt")).read_text())),
        *processor(samples),
        *model(summary, load_profile(PROFILE)),
    ]
    return "\n".join(parts) + "\n"


@cache
def runs_of(folder: Path) -> tuple[Run, ...]:
    """The runs, in the order of their names."""
    return tuple(load_run(plan.parent) for plan in sorted(folder.glob("*/plan.json")))


def pages_of(folder: Path) -> pd.DataFrame:
    """The rates of the section ``pages``."""
    return pd.read_csv(next(folder.glob("*-pages")) / "summary.csv")


def draw(path: Path, folder: Path = FOLDER) -> None:
    """GB/s over the size of the table: registered, sorted, managed; a panel for each row."""
    summary = pd.read_csv(next(folder.glob("*-gpu-micro")) / "summary.csv")
    roof = summary[summary["case"] == "sm_read"]["median_per_s"].max() / 1e9
    probes = next(folder.glob("*-probes")) / "memory_kinds.txt"
    kinds = [k for k in kinds_of(probes.read_text(encoding="utf-8")) if k.name == "managed"]
    own = aligned(summary).query("grid_percent == 0")
    with mpl.rc_context(RC):
        figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
        for axes, size in zip(panels, (64, 512), strict=True):
            axes.axhline(roof, color=FAINT, linestyle=":", label="a contiguous read")
            for order, name in (("sorted", "sorted"), ("given", "random")):
                mine = own[(own["row_bytes"] == size) & (own["order"] == order)]
                line = mine.sort_values("span_bytes")
                spans, rates = line["span_bytes"] / 2**30, line["median_per_s"] / 1e9
                axes.plot(spans, rates, "o-", label=f"registered, {name}")
            sizes = sorted({kind.span for kind in kinds})
            middle = [np.median([k.rates[size, "g"] for k in kinds if k.span == s]) for s in sizes]
            axes.plot(sizes, middle, "s--", fillstyle="none", label="managed, random (probe)")
            axes.set_xscale("log", base=2)
            axes.set_xticks([s >> 30 for s in SPANS], [gib(s) for s in SPANS])
            axes.set(title=f"rows of {size} B", xlabel="table", ylim=(0, 1.1 * roof))
        panels[0].set_ylabel("GB/s")
        panels[1].legend(loc="lower left", fontsize=7)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def head(runs: Sequence[Run]) -> Iterator[str]:
    env = runs[0].env
    gpu, cpu = env["gpus"][0], env["cpu"]
    dates = sorted({"-".join((i[:4], i[4:6], i[6:8])) for i in (run.run_id for run in runs)})
    yield "# What an H200 showed"
    yield ""
    yield "`python -m tools.gpu_results` writes this page from the rows beside it; a test compares."
    yield ""
    yield (
        f"{gpu['name']}, PCIe {gpu['link_gen_max']}.0 x{gpu['link_width_max']}, driver"
        f" {gpu['driver']}, in virtual machines with {cpu['usable_cores']} processors and"
        f" {env['memory']['total'] / 2**30:.0f} GiB; {' and '.join(dates)}. Gathers are medians of"
        " rounds of one process. [Where the files come from](../README.md)."
    )
    yield ""


def summary_of(folder: Path = FOLDER) -> str:
    """What the README says of it, a line for each finding."""
    summary = pd.read_csv(next(folder.glob("*-gpu-micro")) / "summary.csv")
    roof = summary[summary["case"] == "sm_read"]["median_per_s"].max() / 1e9
    rates = pages_of(folder).set_index(["case", "span_bytes", "row_bytes"])["median_per_s"] / 1e9
    far = max(span for case, span, _ in rates.index if case == "span_managed")
    _, middle, farthest = SPANS
    run = decided(runs_of(folder))
    (metered,) = (one for one in runs_of(folder) if not gpu_energy(one).empty)

    def rate(span: int, order: str) -> str:
        wide = aligned(summary).query("row_bytes == 512 and span_bytes == @span")
        return ends(wide[wide["order"] == order]["median_per_s"] / 1e9, 1)

    ratio = {baseline: ratios(run, baseline) for baseline in ("naive", "prefetch")}

    def over(name: str, path: tuple[str, str], baseline: str) -> str:
        (workload,) = (one for one in run.workloads if one.startswith(name))
        return ratio[baseline][workload, *path]

    energy = gpu_energy(metered).set_index(["strategy", "variant"])["median"]

    def joules(path: tuple[str, str]) -> str:
        return f"{energy[path]:.2g} J"

    spent = summarise(run).query("basis == 'measured' and workload == @run.workloads[0]")
    processor = spent.set_index(["strategy", "variant"])["cpu"]

    def cores(path: tuple[str, str]) -> str:
        return f"{processor[path]:.2g}"

    naive, pinned = (("cpu_gather", v) for v in ("naive", "pinned"))
    managed = ("aligned_zero_copy", "given,managed")
    paths = {
        "the CPU gathers, in turns with training: `pinned`": pinned,
        "the CPU gathers ahead: `prefetch`": ("cpu_gather", "prefetch"),
        "the GPU reads registered memory: `aligned_zero_copy`": ("aligned_zero_copy", "given"),
        "the same, ids sorted": ("aligned_zero_copy", "sorted"),
        "the GPU reads managed memory": managed,
        "fetched ahead out of it: `async_zero_copy`": ("async_zero_copy", "stream,auto,managed"),
        "a tenth kept on the GPU, the rest managed: `cached_zero_copy`": (
            "cached_zero_copy",
            "degree,10%,0,managed",
        ),
        "all rows in GPU memory": ("all_in_gpu", "default"),
        "no fetch at all, the floor": ("no_fetch", "default"),
    }
    columns = {
        "48 GiB: over the paper's baseline": (LARGE, "naive"),
        "48 GiB: over `prefetch`": (LARGE, "prefetch"),
        "products-like: over `prefetch`": ("products-like", "prefetch"),
        "reddit-like: over `prefetch`": ("reddit-like", "prefetch"),
    }
    repeats = len(set(run.rows["repeat"]) - {-1})
    batches = run.plan["workloads"][run.workloads[0]]["max_batches"]
    lines = table(
        ["", *columns],
        (
            [words, *(over(name, path, baseline) for name, baseline in columns.values())]
            for words, path in paths.items()
        ),
    )
    said = [
        "On the graphs that fit the host issues draws, steps and fetches for"
        f" {ends(100 * host_shares(run), 0)} % of the epochs of every path but the CPU's: that"
        " bounds them.",
        f"**Energy** of the GPU for an epoch over 48 GiB, one process: {joules(managed)} out of"
        f" managed memory, {joules(pinned)} with `pinned`, {joules(naive)} with the baseline."
        f" **Processor time**: {cores(managed)}, {cores(pinned)} and {cores(naive)} core-seconds.",
        "**Pages decide how fast rows are read in place**, not requests: random rows of 512 B over"
        f" {gib(far)} come at {rates['span_registered', far, 512]:.1f} GB/s out of registered"
        f" memory and at {rates['span_managed', far, 512]:.1f} out of managed memory that is told"
        f" to stay on the host, where a contiguous read reaches {roof:.1f}. With pages of 4 KiB"
        f" managed memory falls to {rates['split_4k', 2 << 30, 512]:.1f} over 2 GiB; with 64 KiB it"
        f" has {rates['split_64k', 2 << 30, 512]:.1f}.",
        f"**Sorting ids** brings registered memory to {rate(middle, 'sorted')} GB/s over"
        f" {gib(middle)}, and to {rate(farthest, 'sorted')} over {gib(farthest)}.",
    ]
    points = [textwrap.fill(s, 115, break_on_hyphens=False, subsequent_indent="  ") for s in said]
    head = (
        "**On an H200** behind PCIe 5.0 x16: how many times as fast an epoch is, with 95 %"
        f" intervals ({repeats} processes on one machine, all paths in turns; rows of 512 B over 48"
        f" GiB, {batches} minibatches an epoch; then two graphs that fit). The paper's baseline is"
        " `cpu_gather naive`; the CPU's shortest epochs are those of `prefetch`."
    )
    return "\n".join([textwrap.fill(head, 115), "", *lines, *(f"- {one}" for one in points)])


def with_summary(text: str) -> str:
    """A page whose paragraph of the H200 is that of the rows."""
    return _SUMMARY.sub(lambda _: summary_of(), text)


def first_picture(folder: Path = FOLDER) -> Chart:
    """Epochs by stage of the largest table, as measured."""
    chart = epoch_breakdown(decided(runs_of(folder)))
    return replace(chart, panels=chart.panels[:1])


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    for name in TEXTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(with_summary(text), encoding="utf-8")
    draw(FOLDER / "gathers.png")
    save(draw_chart(first_picture()), FOLDER / "epochs.png")
