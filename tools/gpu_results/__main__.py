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
from tools.gpu_results.epochs import epochs, processor
from tools.gpu_results.gathers import accounting, aligned, gathers, host_gathers, model
from tools.gpu_results.probes import blocks_of, kinds_of, managed, overlap
from tools.gpu_results.words import SPANS, ends, gib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "nvidia-h200"
PROFILE = "nvidia-h200"
#: Which hold the paragraph of :func:`summary_of`.
TEXTS = ("README.md", "METHODOLOGY.md")
_SUMMARY = re.compile(r"^\*\*On an H200\*\* .*?(?=\n\n)", re.MULTILINE | re.DOTALL)


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
    """The paragraph of README and METHODOLOGY."""
    summary = pd.read_csv(next(folder.glob("*-gpu-micro")) / "summary.csv")
    wide = aligned(summary).query("row_bytes == 512 and span_bytes == @SPANS[-1]")
    given, ordered = (wide[wide["order"] == o]["median_per_s"] / 1e9 for o in ("given", "sorted"))
    roof = summary[summary["case"] == "sm_read"]["median_per_s"].max() / 1e9
    probes = next(folder.glob("*-probes")) / "memory_kinds.txt"
    far = [kind for kind in kinds_of(probes.read_text(encoding="utf-8")) if kind.span == 32]
    managed = [k.rates[512, "g"] for k in far if k.name == "managed"]
    registered = [k.rates[512, "g"] for k in far if k.name != "managed"]
    rates = host_gathers(pd.read_csv(folder / f"{PROFILE}.samples.csv"))
    best = max(rates, key=lambda threads: rates[threads])
    said = (
        f"**On an H200** random rows of 512 B out of 32 GiB came at {ends(given, 1)} GB/s from"
        f" registered memory, sorted at {ends(ordered, 1)}, where a contiguous read reaches"
        f" {roof:.1f}. From managed memory that is told to stay on the host they came at"
        f" {ends(managed, 1)}, in a probe that has {ends(registered, 1)} for registered. The CPU"
        f" gathered {rates[max(rates)] / 1e9:.1f} with {max(rates)} threads, and"
        f" {rates[best] / 1e9:.1f} with {best}. Which path trains fastest is not decided: epochs"
        " ran in one process or two, and those of one path differed as much as those of two paths."
    )
    return textwrap.fill(said, 117, break_on_hyphens=False)


def with_summary(text: str) -> str:
    """A page whose paragraph of the H200 is that of the rows."""
    return _SUMMARY.sub(lambda _: summary_of(), text)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    for name in TEXTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(with_summary(text), encoding="utf-8")
    draw(FOLDER / "gathers.png")
