"""Write the results of the GPU runs: README's finding, the page, the picture, the machines' table.

    python -m tools.gpu_results

Every number comes from the committed rows; a test runs this and compares. So a new run rewrites
the texts, and every statement in a text has its rows.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from rich.console import Console

from gatherbench.bench.probe.host import ROW_BYTES
from gatherbench.bench.probe.table import LIMITS, own_best, size_text
from gatherbench.bench.read.derive import gpu_energy, speedup_over
from gatherbench.bench.read.tables import Run, load_run
from gatherbench.bench.read.units import listed
from gatherbench.bench.show.looks import FAINT, RC
from gatherbench.bench.show.run import render
from gatherbench.strategies.registry import in_words

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "nvidia-h200"
LARGE = "hashed-papers"
#: Bytes of the tables of ``gpu-micro``.
MIDDLE, FARTHEST = 8 << 30, 32 << 30
_PATH = ["strategy", "variant"]
#: The paths whose energy the findings report, with their descriptions.
METERED = {
    ("cpu_gather", "naive"): "the baseline",
    ("cpu_gather", "pinned"): "`pinned`",
    ("aligned_zero_copy", "given"): "out of registered memory",
    ("aligned_zero_copy", "given,managed"): "out of managed memory",
}
#: The paths that the picture shows, from top to bottom.
PATHS = (
    ("cpu_gather", "naive"),
    ("cpu_gather", "pinned"),
    ("cpu_gather", "prefetch"),
    ("aligned_zero_copy", "given"),
    ("aligned_zero_copy", "sorted"),
    ("aligned_zero_copy", "given,managed"),
    ("async_zero_copy", "stream,auto,managed"),
    ("cached_zero_copy", "degree,10%,0,managed"),
    ("all_in_gpu", "default"),
    ("no_fetch", "default"),
)
#: The picture's axis; its largest interval ends at 6.4.
TICKS = {1 / 8: "⅛×", 1 / 4: "¼×", 1 / 2: "½×", 1: "1×", 2: "2×", 4: "4×", 8: "8×"}
#: The gathers of a machine's line, by the memory that they read.
MEMORIES = {"gpu_gather": "registered", "managed_gather": "managed", "host_gather": "CPU"}
_SUMMARY = re.compile(r"^- \*\*Pages\*\*: random rows.*?(?=\n\n)", re.MULTILINE | re.DOTALL)


@cache
def runs_of(folder: Path) -> tuple[Run, ...]:
    """Load the runs, in the order of their names."""
    return tuple(load_run(plan.parent) for plan in sorted(folder.glob("*/plan.json")))


def decided(runs: Sequence[Run]) -> Run:
    """Return the run with every path: the newest of the plan ``gpu-decide``."""
    return [run for run in runs if "-gpu-decide-" in run.run_id][-1]


def ratios(run: Run, baseline: str) -> dict[tuple[str, str, str], str]:
    """Return each series' speed over that of a ``cpu_gather``, such as ``13.0 (12.6–13.5)``."""
    ratios_by_path = {}
    for row in speedup_over(run, "cpu_gather", baseline).to_dict("records"):
        value, low, high = (f"{row[name]:#.3g}" for name in ("speedup", "low", "high"))
        path = (str(row["workload"]), str(row["strategy"]), str(row["variant"]))
        ratios_by_path[path] = f"{value} ({low}–{high})" if row["low"] < row["high"] else value
    return ratios_by_path


def host_shares(run: Run) -> pd.Series[float]:
    """Return the share of an epoch that launches take, on graphs that fit, without CPU gathers."""
    shares = run.medians[["issue_draw", "issue_train", "issue_fetch"]]
    large = shares.index.get_level_values("workload").str.startswith(LARGE)
    in_place = shares[~large].query("strategy != 'cpu_gather'").dropna(subset=["issue_train"])
    return in_place.sum(axis=1)


# ---- README --------------------------------------------------------------------------------------


@cache
def findings(folder: Path = FOLDER) -> list[str]:
    """Write the findings from the rows, one list item each; README has the first."""
    summary = _summary(folder, "gpu-micro")
    roof = summary[summary["case"] == "sm_read"]["median_per_s"].max() / 1e9
    pages = _summary(folder, "pages").set_index(["case", "span_bytes", "row_bytes"])
    rates = pages["median_per_s"] / 1e9
    far = max(span for case, span, _ in rates.index if case == "span_managed")
    run = decided(runs_of(folder))
    (metered,) = (run for run in runs_of(folder) if not gpu_energy(run).empty)
    wide = _aligned(summary).query("row_bytes == 512 and order == 'sorted'")
    by_span = (wide.set_index("span_bytes")["median_per_s"] / 1e9).groupby(level=0)
    ordered = {int(str(span)): ends(rates, 1) for span, rates in by_span}
    energy = gpu_energy(metered).set_index(_PATH)
    processor = metered.medians["cpu_s"].groupby(_PATH).first()
    spent = [
        f"{name} {energy['median'][path]:.2g} J ({energy['above idle'][path]:.2f}),"
        f" {processor[path]:.2g} core-seconds"
        for path, name in METERED.items()
    ]
    in_place = speedup_over(run, "unified_zero_copy", "registered").query(
        "strategy == 'aligned_zero_copy' and variant == 'given'"
    )
    aligned = [
        f"{row['speedup']:.3f} ({row['low']:.3f}–{row['high']:.3f}) on {graph(str(workload))}"
        for workload, row in in_place.set_index("workload").loc[run.workloads].iterrows()
    ]
    texts = [
        f"**Pages**: random rows of 512 B over {gib(far)} come at"
        f" {rates['span_registered', far, 512]:.1f} GB/s out of registered memory and at"
        f" {rates['span_managed', far, 512]:.1f} out of managed memory; a contiguous read reached"
        f" {roof:.1f} on another H200. Over 2 GiB managed memory gives"
        f" {rates['split_64k', 2 << 30, 512]:.1f} in pages of 64 KiB, and"
        f" {rates['split_4k', 2 << 30, 512]:.1f} in pages of 4 KiB (rounds of measurement:"
        f" {pages['rounds']['split_4k', 2 << 30, 512]}).",
        f"**Sorted ids** bring registered memory to {ordered[MIDDLE]} GB/s over {gib(MIDDLE)} and"
        f" {ordered[FARTHEST]} over {gib(FARTHEST)}; there DGL's launch policy is"
        f" {_beside_dgl(summary)} faster for rows of 16 to 512 B.",
        f"**Two small graphs**: issuing GPU work takes {ends(100 * host_shares(run), 0)} % of the"
        " epochs of all paths but the CPU's gathers, so no two of these paths are separated.",
        "**Alignment** shows in no epoch: aligned over unaligned, both out of registered memory,"
        f" {listed(aligned)}.",
        f"**Energy** of the GPU for an epoch over 48 GiB, in brackets above the"
        f" {metered.idle_power_w:.0f} W of the idle GPU, and the processor's time:"
        f" {'; '.join(spent)}. One process; the host's joules were not measured.",
    ]
    return [
        textwrap.fill(f"- {text}", 140, break_on_hyphens=False, subsequent_indent="  ")
        for text in texts
    ]


def with_summary(text: str) -> str:
    """Return README with its first finding of the H200 computed from the rows."""
    return _SUMMARY.sub(lambda _: findings()[0], text)


def first_picture(path: Path, folder: Path = FOLDER) -> None:
    """Draw the speed of each path over ``prefetch``, with 95 % intervals, on each graph."""
    run = decided(runs_of(folder))
    speedups = speedup_over(run, "cpu_gather", "prefetch")
    names = list(PATHS)[::-1]
    with mpl.rc_context(RC):
        figure, panels = plt.subplots(
            1, len(run.workloads), figsize=(9, 3.6), sharey=True, sharex=True, layout="constrained"
        )
        for axes, workload in zip(panels, run.workloads, strict=True):
            axes.axvline(1.0, color=FAINT, linestyle=":")
            of_workload = speedups[speedups["workload"] == workload].set_index(_PATH).loc[names]
            ratio = of_workload["speedup"].to_numpy()
            arms = [ratio - of_workload["low"], of_workload["high"] - ratio]
            axes.errorbar(ratio, range(len(names)), xerr=arms, fmt="ok", markersize=4, linewidth=1)
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(TICKS), list(TICKS.values()))
            axes.set_title("48 GiB" if graph(workload) == LARGE else graph(workload))
        panels[0].set_yticks(range(len(names)), [in_words(*name) for name in names])
        figure.supxlabel(
            "times as fast an epoch as with cpu_gather (prefetch); 95 % intervals",
            fontsize=9,
        )
        figure.savefig(path, dpi=150)
        plt.close(figure)


# ---- the page of the rows ------------------------------------------------------------------------


def page(folder: Path = FOLDER) -> str:
    """Return the page in Markdown: the machine, the findings, and the tables of the epochs."""
    run = decided(runs_of(folder))
    gpu, cpu, memory = run.env["gpus"][0], run.env["cpu"], run.env["memory"]["total"]
    parts = [
        "# What an H200 showed",
        "`python -m tools.gpu_results` writes this page from the rows beside it; a test compares.",
        f"{gpu['name']}, PCIe {gpu['link_gen_max']}.0 x{gpu['link_width_max']}, driver"
        f" {gpu['driver']}, in virtual machines with {cpu['usable_cores']} processors and"
        f" {memory / 2**30:.0f} GiB. [Where the files come from](../README.md). Requests, pages and"
        " gathers alone, shares of the multiprocessors and energy stand in the"
        " [notebooks](../../notebooks/README.md); `gatherbench show FOLDER` prints the answers,"
        " `--all` set-up and issuing. [README](../../README.md) has the table of the"
        " largest graph.",
        "![GB/s over the size of the table](gathers.png)",
        "\n".join(findings(folder)),
        "## Epochs",
        f"`{run.folder.name}`: all paths of a graph took turns in one process a repeat, on one"
        " machine. Left out are epochs of `prefetch` that torch's spinning threads slowed"
        " ([why](../README.md)). The CPU's gathers ran on"
        f" {ends(run.cases['setup_gather_threads'].dropna(), 0)} of 16 threads.",
    ]
    printed = io.StringIO()
    Console(file=printed, width=115, no_color=True).print(render(run))
    tables = printed.getvalue().partition("\nAnswer\n")[0].strip().split("\n\n")
    for table in tables[1:]:  # README has the first
        parts.append("\n".join(["```text", *map(str.rstrip, table.splitlines()), "```"]))
    return "\n\n".join(parts) + "\n"


# ---- machines ------------------------------------------------------------------------------------


def summary_line(table: pd.DataFrame) -> dict[str, str]:
    """Return a machine's line of the comparison: GB/s of random rows of 64 and 512 B, and limits.

    The GPU's gathers are those of the largest table with the most results; the processor's are of
    its largest table.
    """
    best = own_best(table)
    narrow = best[best["row_bytes"].isin(ROW_BYTES) & best["case"].isin(MEMORIES)]
    of_host = narrow["case"] == "host_gather"
    gpu, host = narrow[~of_host], narrow[of_host]
    kinds = gpu["span_bytes"].value_counts()
    span = max(kinds[kinds == kinds.max()].index, default=0)
    largest = [gpu[gpu["span_bytes"] == span], host[host["span_bytes"] == host["span_bytes"].max()]]
    rates = pd.concat(largest).set_index(["case", "row_bytes"])["median_per_s"]
    line = {"table": size_text(span) if span else "–"}
    for case, name in MEMORIES.items():
        line[name] = " / ".join(_gb(rates.get((case, width))) for width in ROW_BYTES)
    for case, (name, _) in LIMITS.items():
        line[name] = _gb(best[best["case"] == case]["median_per_s"].max())
    return line


def _gb(rate: float | None) -> str:
    return "–" if rate is None or pd.isna(rate) else f"{rate / 1e9:.1f}"


def with_machines(text: str, folder: Path = FOLDER.parent) -> str:
    """Return the page of results with its table of machines made from the files, a line each."""
    lines, heads = [], list[str]()
    for path in sorted(folder.glob("*/probe.csv")):
        known = pd.read_csv(path, keep_default_na=False, na_values={"median_per_s": [""]})
        first, line = known.iloc[0], summary_line(known)
        lines.append(
            [
                f"{first['gpu'] or first['cpu']}, {first['cores']} cores",
                first["date"],
                *line.values(),
            ]
        )
        heads = ["machine", "measured", *line]
    table = "\n".join(_table(heads, lines)).rstrip()
    return re.sub(r"^\| machine \|.*?(?=\n\n)", lambda _: table, text, flags=re.M | re.S)


# ---- words ---------------------------------------------------------------------------------------


def ends(values: Iterable[float], digits: int = 2) -> str:
    """Return the least and the greatest: ``0.42 to 0.49``, or one number where they read alike."""
    numbers = [*values]
    return " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in (min(numbers), max(numbers))))


def graph(workload: str) -> str:
    return workload.partition("-sage")[0]


def gib(size: int) -> str:
    return f"{size >> 30} GiB"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _summary(folder: Path, section: str) -> pd.DataFrame:
    """Read the medians of a stored probe, by point."""
    return pd.read_csv(next(folder.glob(f"*-{section}")) / "summary.csv")


def _aligned(summary: pd.DataFrame) -> pd.DataFrame:
    return summary.query("case == 'gpu_gather' and policy == 'aligned'")


def _beside_dgl(summary: pd.DataFrame) -> str:
    """Return by how much DGL's policy is faster than ``aligned``, sorted, on the largest table."""
    narrow = summary.query(
        "case == 'gpu_gather' and order == 'sorted' and grid_percent == 0"
        " and span_bytes == @FARTHEST and 16 <= row_bytes <= 512"
    )
    rates = narrow.set_index(["policy", "row_bytes"])["median_per_s"]
    return f"{ends(100 * (rates['dgl'] / rates['aligned'] - 1), 0)} %"


def main() -> None:
    """Write README's part, the page, the picture and the table of machines."""
    readme, results = ROOT / "README.md", FOLDER.parent / "README.md"
    readme.write_text(with_summary(readme.read_text(encoding="utf-8")), encoding="utf-8")
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    first_picture(FOLDER / "epochs.png")
    results.write_text(with_machines(results.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
