"""What a GPU showed, as a page of tables beside its rows: ``results/nvidia-h200/README.md``.

    python -m tools.gpu_results

Every number of the page comes from the committed rows; a test runs this and compares. So a run that
is added rewrites the page, and a text cannot say what no row does.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from gatherbench.bench.model.profile import load_profile
from gatherbench.bench.probe.machine import Facts
from gatherbench.bench.probe.table import LIMITS, LINES, draw, medians, sent, summary_line
from gatherbench.bench.read.gpu import gpu_energy, idle_power_w
from gatherbench.bench.read.modelled import speedups
from gatherbench.bench.read.points import read_points
from gatherbench.bench.read.summary import summarise
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.read.units import listed
from gatherbench.bench.show.looks import FAINT, RC
from gatherbench.stats.judge import word_of
from tools.gpu_results.epoch_tables import (
    LARGE,
    aligned_over_unaligned,
    decided,
    epochs,
    host_shares,
    processor,
    ratios,
)
from tools.gpu_results.gathers import accounting, aligned, beside_dgl, gathers, model, pages
from tools.gpu_results.probes import blocks_of, brought_in, kinds_of, managed, overlap
from tools.gpu_results.words import SPANS, ends, gib, graph, table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "nvidia-h200"
PROFILE = "nvidia-h200"
#: Which hold the paragraph of :func:`summary_of`.
TEXTS = ("README.md",)
#: Of which README has the energy.
METERED = {
    ("cpu_gather", "naive"): "the baseline",
    ("cpu_gather", "pinned"): "`pinned`",
    ("aligned_zero_copy", "given"): "out of registered memory",
    ("aligned_zero_copy", "given,managed"): "out of managed memory",
}
#: What README has of the paths that it shows, and by which name; in the order of its table.
PATHS = {
    ("cpu_gather", "naive"): ("the CPU gathers, the paper's baseline", "naive"),
    ("cpu_gather", "pinned"): ("the CPU gathers, in turns with training", "pinned"),
    ("cpu_gather", "prefetch"): ("the CPU gathers ahead", "prefetch"),
    ("aligned_zero_copy", "given"): ("the GPU reads registered memory", "aligned_zero_copy"),
    ("aligned_zero_copy", "sorted"): ("the same, ids sorted", ""),
    ("aligned_zero_copy", "given,managed"): ("the GPU reads managed memory", ""),
    ("async_zero_copy", "stream,auto,managed"): ("fetched ahead out of it", "async_zero_copy"),
    ("cached_zero_copy", "degree,10%,0,managed"): (
        "a tenth kept on the GPU, the rest managed",
        "cached_zero_copy",
    ),
    ("all_in_gpu", "default"): ("all rows in GPU memory", ""),
    ("no_fetch", "default"): ("no fetch (limit)", "no_fetch"),
}
#: Of the picture's axis, whose largest interval ends at 6.4.
TICKS = {1 / 8: "⅛×", 1 / 4: "¼×", 1 / 2: "½×", 1: "1×", 2: "2×", 4: "4×", 8: "8×"}
INK = "black"
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


def probed(folder: Path = FOLDER) -> tuple[pd.DataFrame, Facts]:
    """What a probe would have kept, of rows of earlier programs; and the machine.

    The section ``pages`` is of another machine of that kind than the samples behind the profile.
    """
    pages = read_points(next(folder.glob("*-pages")) / "rows.csv")
    names = {"span_registered": "gpu_gather", "span_managed": "managed_gather"}
    pages = pages.assign(case=pages["case"].replace(names))
    samples = read_points(folder / f"{PROFILE}.samples.csv")
    both = pd.concat([pages[pages["case"].isin(names.values())], samples]).assign(held_out=False)
    env = decided(runs_of(folder)).env
    gpu, cpu = env["gpus"][0], env["cpu"]
    facts = Facts(
        machine=PROFILE,
        cpu=cpu["model"],
        cores=cpu["usable_cores"],
        host_memory_bytes=env["memory"]["total"],
        gpus=1,
        gpu=gpu["name"],
        gpu_memory_bytes=gpu["memory_bytes"],
        driver=gpu["driver"],
        link_generation=gpu["link_gen_max"],
        link_lanes=gpu["link_width_max"],
        torch=env["libraries"]["torch"],
        commit=env["commit"],
        date="2026-11-26",
    )
    known = medians(both)
    return known[known["case"].isin([*LINES, *LIMITS])], facts


def machines(folder: Path = FOLDER.parent) -> str:
    """A line for each machine of which somebody has sent a file, as Markdown."""
    lines = []
    for path in sorted(folder.glob("*/probe.csv")):
        known = pd.read_csv(path, keep_default_na=False, na_values={"median_per_s": [""]})
        of, line = known.iloc[0], summary_line(known)
        lines.append([f"{of['gpu'] or of['cpu']}, {of['cores']} cores", of["date"], *line.values()])
        heads = ["machine", "measured", *line]
    return "\n".join(table(heads, lines)).rstrip()


def with_machines(text: str) -> str:
    """The page of results whose table of machines is that of the files."""
    return re.sub(r"^\| machine \|.*?(?=\n\n)", lambda _: machines(), text, flags=re.M | re.S)


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
    memory = metered.env["gpus"][0]["memory_bytes"] / 2**30
    split = pages_of(folder).set_index(["case", "row_bytes"])["rounds"]

    def rate(span: int, order: str) -> str:
        wide = aligned(summary).query("row_bytes == 512 and span_bytes == @span")
        return ends(wide[wide["order"] == order]["median_per_s"] / 1e9, 1)

    ratio = {baseline: ratios(run, baseline) for baseline in ("naive", "prefetch")}

    def over(name: str, path: tuple[str, str], baseline: str) -> str:
        (workload,) = (one for one in run.workloads if one.startswith(name))
        return ratio[baseline][workload, *path]

    energy = gpu_energy(metered).set_index(["strategy", "variant"])
    spent = summarise(metered).query("basis == 'measured'")
    processor = spent.set_index(["strategy", "variant"])["cpu"]

    def spent_by(path: tuple[str, str]) -> str:
        joules, above = (energy[column][path] for column in ("median", "above idle"))
        return f"{METERED[path]} {joules:.2g} J ({above:.2f}), {processor[path]:.2g} core-seconds"

    paths = {f"{words}: `{name}`" if name else words: path for path, (words, name) in PATHS.items()}
    gathers_ahead = speedups(run, "cpu_gather", "pinned").query("variant == 'prefetch'")
    faster = [
        graph(str(line["workload"]))
        for line in gathers_ahead.query("basis == 'measured'").to_dict("records")
        if word_of(1 / line["high"], 1 / line["low"]) == "FAST"
    ]
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
        f"On the two small graphs the CPU spends {ends(100 * host_shares(run), 0)} % of the epochs"
        " of every path but its own gathers on launching draws, steps and fetches: that bounds"
        " them, so no two of these paths are ordered there.",
        "**Alignment** shows in no epoch. An aligned path over an unaligned one, both out of"
        f" registered memory: {listed(aligned_over_unaligned(run))} times as fast.",
        "**Energy** of the GPU for an epoch over 48 GiB, in brackets what of it is above the"
        f" {idle_power_w(metered):.0f} W of an idle GPU, and the processor's time:"
        f" {'; '.join(map(spent_by, METERED))}. The host's joules were not measured. It is one"
        " process.",
        "**Pages decide how fast rows are read in place**, not requests: random rows of 512 B over"
        f" {gib(far)} come at {rates['span_registered', far, 512]:.1f} GB/s out of registered"
        f" memory and at {rates['span_managed', far, 512]:.1f} out of managed memory that is told"
        f" to stay on the host; a contiguous read reached {roof:.1f} on another machine of that"
        " kind. Registered memory has pages of 4 KiB on the GPU. With such pages managed memory"
        f" falls to {rates['split_4k', 2 << 30, 512]:.1f} over 2 GiB (rounds:"
        f" {split['split_4k', 512]}); with 64 KiB it has {rates['split_64k', 2 << 30, 512]:.1f}.",
        f"**Sorting ids** brings registered memory to {rate(middle, 'sorted')} GB/s over"
        f" {gib(middle)}, and with our grids to {rate(farthest, 'sorted')} over {gib(farthest)};"
        f" there DGL's launch policy is {beside_dgl(summary)} faster for rows of 16 to 512 B.",
    ]
    points = [textwrap.fill(s, 115, break_on_hyphens=False, subsequent_indent="  ") for s in said]
    head = (
        "**On an H200** behind PCIe 5.0 x16, in a virtual machine: how many times as fast an epoch"
        f" is, with 95 % intervals ({repeats} processes, 3 of `prefetch` on the first two graphs;"
        f" all paths in turns; rows of 512 B over 48 GiB, {batches} minibatches an epoch; then two"
        f" small graphs). **The table of 48 GiB, too, fits the GPU's memory of {memory:.0f} GiB: a"
        " larger one in managed memory has been measured by nobody.** The paper's baseline is"
        " `cpu_gather naive`. Of the CPU's gathers `prefetch` has the shortest epochs; that is"
        f" decided against `pinned` on {' and '.join(faster)} alone."
    )
    return "\n".join([textwrap.fill(head, 115), "", *lines, *(f"- {one}" for one in points)])


def with_summary(text: str) -> str:
    """A page whose paragraph of the H200 is that of the rows."""
    return _SUMMARY.sub(lambda _: summary_of(), text)


def first_picture(path: Path, folder: Path = FOLDER) -> None:
    """How many times as fast each path is as ``prefetch``, with 95 % intervals, on each graph."""
    run = decided(runs_of(folder))
    found = speedups(run, "cpu_gather", "prefetch").query("basis == 'measured'")
    names = list(PATHS)[::-1]
    with mpl.rc_context(RC):
        figure, panels = plt.subplots(
            1, len(run.workloads), figsize=(9, 3.6), sharey=True, sharex=True, layout="constrained"
        )
        for axes, workload in zip(panels, run.workloads, strict=True):
            axes.axvline(1.0, color=FAINT, linestyle=":")
            mine = found[found["workload"] == workload].set_index(["strategy", "variant"])
            for place, name in enumerate(names):
                value, low, high = (float(mine[c][name]) for c in ("speedup", "low", "high"))
                axes.plot([low, high], [place, place], color=INK, linewidth=1)
                axes.plot(value, place, "o", color=INK, markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(TICKS), list(TICKS.values()))
            axes.set_title("48 GiB" if graph(workload) == LARGE else graph(workload))
        panels[0].set_yticks(range(len(names)), [PATHS[name][0] for name in names])
        figure.supxlabel(
            "times as fast an epoch as with the CPU gathering ahead (prefetch); 95 % intervals",
            fontsize=9,
        )
        figure.savefig(path, dpi=150)
        plt.close(figure)


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    for name in TEXTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(with_summary(text), encoding="utf-8")
    known, facts = probed()
    sent(known, facts).to_csv(FOLDER / "probe.csv", index=False, float_format="%.6g")
    draw(known, f"{facts.description}; two machines of that kind", FOLDER / "gathers.png")
    results = FOLDER.parent / "README.md"
    results.write_text(with_machines(results.read_text(encoding="utf-8")), encoding="utf-8")
    first_picture(FOLDER / "epochs.png")
