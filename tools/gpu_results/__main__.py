"""What a GPU showed, as a page of tables beside its rows: ``results/nvidia-h200/README.md``.

    python -m tools.gpu_results

Every number of the page comes from the committed rows; a test runs this and compares. So a run that
is added rewrites the page, and a text cannot say what no row does.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.show.looks import FAINT, RC
from tools.gpu_results.epoch_tables import epochs, processor
from tools.gpu_results.gathers import accounting, aligned, gathers, host_gathers, model
from tools.gpu_results.probes import blocks_of, kinds_of, managed, overlap
from tools.gpu_results.words import SPANS, ends, gib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "nvidia-h200"
PROFILE = "nvidia-h200"
#: Which hold the paragraph of :func:`summary_of`.
TEXTS = ("README.md",)
_SUMMARY = re.compile(r"^\*\*On an H200\*\* behind .*?(?=\n\n(?!- ))", re.MULTILINE | re.DOTALL)


def page(folder: Path = FOLDER) -> str:
    """The page, as Markdown."""
    runs = [load_run(plan.parent) for plan in sorted(folder.glob("*/plan.json"))]
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
        *managed(kinds, summary),
        *overlap(beside),
        *epochs(runs),
        *processor(runs, samples),
        *model(summary, load_profile(PROFILE)),
    ]
    return "\n".join(parts) + "\n"


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
        " rounds of one process, epochs medians of one process. [Where the files come"
        " from](../README.md)."
    )
    yield ""


def summary_of(folder: Path = FOLDER) -> str:
    """What the README says of it, a line for each finding."""
    summary = pd.read_csv(next(folder.glob("*-gpu-micro")) / "summary.csv")
    roof = summary[summary["case"] == "sm_read"]["median_per_s"].max() / 1e9
    probes = next(folder.glob("*-probes")) / "memory_kinds.txt"
    kinds = [k for k in kinds_of(probes.read_text(encoding="utf-8")) if k.span == 32]
    managed = [k.rates[512, "g"] for k in kinds if k.name == "managed"]
    registered = [k.rates[512, "g"] for k in kinds if k.name != "managed"]
    host = host_gathers(pd.read_csv(folder / f"{PROFILE}.samples.csv"))
    best = max(host, key=lambda threads: host[threads])
    _, middle, far = SPANS

    def rate(span: int, order: str) -> str:
        wide = aligned(summary).query("row_bytes == 512 and span_bytes == @span")
        return ends(wide[wide["order"] == order]["median_per_s"] / 1e9, 1)

    def alignment(size: int) -> float:
        rates = summary.query(
            "case == 'gpu_gather' and grid_percent == 0 and row_bytes == @size"
            " and span_bytes == @SPANS[1] and order == 'given'"
        ).set_index("policy")["median_per_s"]
        return float(rates["aligned"] / rates["unaligned"])

    said = [
        "**Reads in place are slow out of a large table in registered memory**: random rows of"
        f" 512 B over {gib(far)} come at {rate(far, 'given')} GB/s, where a contiguous read"
        f" reaches {roof:.1f}. How many pages a second the GPU can visit decides, not how many"
        " requests it makes.",
        "**Managed memory that is told to stay on the host is faster**, presumably as its pages"
        f" have 2 MiB in place of 64 KiB: {ends(managed, 1)} GB/s, in a probe that has"
        f" {ends(registered, 1)} for registered. (It read its ids again, partly from a cache.)",
        f"**Sorting ids** brings registered memory to {rate(middle, 'sorted')} GB/s over"
        f" {gib(middle)}, and to {rate(far, 'sorted')} over {gib(far)}.",
        f"**The CPU** gathers {host[best] / 1e9:.1f} GB/s with {best} threads, before any copy to"
        f" the GPU, and {host[max(host)] / 1e9:.1f} with {max(host)}.",
        f"**Alignment** to lines of 128 B makes random rows of 1412 B {alignment(1412):.2f} times"
        f" as fast over {gib(middle)}, of 2408 B {alignment(2408):.2f} times, of 512 B"
        f" {alignment(512):.2f} times.",
        "**Which path trains fastest is not decided**: epochs ran in one process or two, and those"
        " of one path differed as much as those of two paths.",
    ]
    lines = [textwrap.fill(s, 115, break_on_hyphens=False, subsequent_indent="  ") for s in said]
    return "\n".join(["**On an H200** behind PCIe 5.0 x16:", "", *(f"- {line}" for line in lines)])


def with_summary(text: str) -> str:
    """A page whose paragraph of the H200 is that of the rows."""
    return _SUMMARY.sub(lambda _: summary_of(), text)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    for name in TEXTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(with_summary(text), encoding="utf-8")
    draw(FOLDER / "gathers.png")
