"""What two probes printed, as tables: kinds of host memory, and a gather beside loads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from tools.gpu_results.gathers import aligned
from tools.gpu_results.words import SPANS, ends, table

#: A gather that takes longer than this beside managed memory was disturbed (``overlap.txt``).
_QUIET_MS = 3.0
#: How registered memory was had (``memory_kinds.txt``).
_WAYS = {
    "small": "pages of 4 KiB",
    "thp": "transparent huge pages",
    "hugetlb": "reserved huge pages",
    "host_alloc": "`cudaHostAlloc`",
    "vmm": "`cuMemCreate`",
}
_GATHER = re.compile(r"(\d+)B-([gs]):([\d.]+)")
_LOAD = re.compile(r"(\w+)\s+([\d.]+) \(([\d.]+)\)")


@dataclass(frozen=True, slots=True)
class Kind:
    """A line of ``memory_kinds.txt``: GB/s by row, ``g`` as given or ``s`` sorted."""

    name: str
    span: int  # GiB
    rates: dict[tuple[int, str], float]


def kinds_of(text: str) -> Iterator[Kind]:
    for line in text.splitlines():
        rates = {(int(size), order): float(rate) for size, order, rate in _GATHER.findall(line)}
        if rates:
            name, span, *_ = line.split()
            yield Kind(name, int(span), rates)


def brought_in(text: str) -> dict[str, list[float]]:
    """Seconds in which managed memory was there, by who brought it in (``populate.txt``)."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for way, seconds in re.findall(r"^(\w+) +[\d.]+ GiB made ([\d.]+) s", text, re.MULTILINE):
        found[way].append(float(seconds))
    return dict(found)


def managed(kinds: Sequence[Kind], summary: pd.DataFrame) -> Iterator[str]:
    roof = summary[summary["case"] == "sm_read"]["median_per_s"].max() / 1e9
    own = aligned(summary).query("grid_percent == 0 and row_bytes == 512 and order == 'given'")
    far = own.set_index("span_bytes")["median_per_s"][SPANS[-1]] / 1e9
    most = max(rate for kind in kinds for rate in kind.rates.values())
    probe = [k.rates[512, "g"] for k in kinds if k.span == 32 and k.name != "managed"]
    yield "## Managed memory, and how registered memory was had"
    yield ""
    yield "![GB/s over the size of the table](gathers.png)"
    yield ""
    yield (
        "GB/s of 128 MiB of rows (`20261123-probes/memory_kinds.txt`). The probe read the same ids"
        f" again, so a part came from the L2: it reaches {most:.1f}, above the {roof:.1f} of a"
        f" contiguous read, and {ends(probe, 1)} where `gpu-micro` above has {far:.1f}. Compare"
        " within the table."
    )
    yield ""
    groups: dict[tuple[str, int], list[Kind]] = {}
    for kind in kinds:
        name = "managed" if kind.name == "managed" else "registered, all ways"
        groups.setdefault((name, kind.span), []).append(kind)
    cells = [(size, order) for size in (64, 512, 1024) for order in ("g", "s")]
    words = {"g": "given", "s": "sorted"}
    yield from table(
        ["memory", "table", *(f"{size} B, {words[order]}" for size, order in cells)],
        (
            [name, f"{span} GiB", *(ends((k.rates[cell] for k in mine), 1) for cell in cells)]
            for (name, span), mine in sorted(groups.items())
        ),
    )
    ways = dict.fromkeys(_WAYS[kind.name] for kind in kinds if kind.name in _WAYS)
    yield f"Registered memory was had in {len(ways)} ways: {', '.join(ways)}. None is faster."
    yield ""
    yield (
        "With both advices a GPU's fault adds a mapping and moves nothing (`uvm_va_block.c` of"
        " NVIDIA's open kernel modules), so such a table may be larger than GPU memory. That has"
        " not been measured yet."
    )
    yield ""


@dataclass(frozen=True, slots=True)
class Beside:
    """A block of ``overlap.txt``: a gather beside loads as long as itself, or longer."""

    title: str  # ``2048 MiB given``
    fetch: float  # ms alone
    loads: dict[str, float]  # ms alone
    #: (what was launched, ms of the gather, load → how many times the longer of the two it took)
    steps: list[tuple[str, float, dict[str, float]]]


def blocks_of(text: str) -> Iterator[Beside]:
    block: Beside | None = None
    for line in text.splitlines():
        if line.startswith("== span "):
            if block is not None:
                yield block
            title, _, rest = line.removeprefix("== span ").partition(", fetch ")
            loads = dict(re.findall(r"'(\w+)': ([\d.]+)", rest))
            block = Beside(
                title, float(rest.split()[0]), {n: float(v) for n, v in loads.items()}, []
            )
        elif block is not None and (alone := re.match(r"\s+(\w+) alone ([\d.]+) ms", line)):
            block.loads[alone[1]] = float(alone[2])
        elif block is not None and (step := re.match(r"(.+?)\s+fetch\s+([\d.]+)", line)):
            ratios = {name: float(ratio) for name, _, ratio in _LOAD.findall(line[step.end() :])}
            block.steps.append((step[1], float(step[2]), ratios))
    if block is not None:
        yield block


def overlap(blocks: Sequence[Beside]) -> Iterator[str]:
    yield "## A gather beside training"
    yield ""
    yield (
        "How many times the longer of the two both together took (`20261123-probes/overlap.txt`;"
        " 512 B, 128 MiB a gather), over all grids, priorities and partitions in which the gather"
        " alone is within a tenth of its shortest. *In turns* is what no overlap at all would"
        " give: compare within a line."
    )
    yield ""
    names = ("matrix_products", "memory_pass", "aggregation")
    rows, longer = [], [1.0]
    for block in blocks:
        quiet = [s for s in block.steps if "managed" not in block.title or s[1] < _QUIET_MS]
        if not quiet:
            continue
        shortest = min(fetch for _, fetch, _ in quiet)
        full = [step for step in quiet if step[1] <= 1.1 * shortest]
        if "managed" in block.title:
            longer = [load / shortest for load in block.loads.values()]
        turns = [(shortest + t) / max(shortest, t) for t in block.loads.values()]
        rows.append(
            [
                block.title.replace("2048 MiB", "2 GiB").replace("8192 MiB", "8 GiB"),
                *(ends((ratios[name] for *_, ratios in full), 2) for name in names),
                ends(turns, 2),
            ]
        )
    heads = [name.replace("_", " ") for name in names]
    yield from table(["table", *(f"beside {name}" for name in heads), "in turns"], rows)
    yield (
        "Blocks of managed memory beside which other work had the cores are left out. Over managed"
        f" memory the loads were {ends(longer, 1)} times as long as the gather, so its line cannot"
        " be set beside the others."
    )
    yield ""
