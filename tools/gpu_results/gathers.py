"""Gathers alone: the accounting of requests and bytes, rates, and how far the model is off."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
import torch

from gatherbench.bench.model.load import MinibatchLoad, load_of
from gatherbench.bench.model.physics import gpu_reads
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.probe.gathers import MAX_IDS, READ_BYTES
from gatherbench.bench.read.link_bytes import link_bytes
from gatherbench.bench.read.tables import Run
from gatherbench.kernels.order import LINE_BYTES
from gatherbench.strategies.data_path import zero_copy_path
from tools.gpu_results.words import SPANS, ends, gib, graph, table


def accounting(rows: pd.DataFrame, runs: Sequence[Run]) -> Iterator[str]:
    yield "## The accounting"
    yield ""
    yield (
        "Reads of host memory by the multiprocessors: counted by the GPU, over those that the"
        " accounting expects of the same ids (below 1: caches saved some)."
    )
    yield ""
    key = ["row_bytes", "policy"]
    of = rows[rows["case"].isin(["counted_requests", "expected_requests_128"])]
    both = of.set_index([*key, "case"])["amount"].unstack("case")
    ratio = (both["counted_requests"] / both["expected_requests_128"]).unstack("policy")
    yield from table(
        ["row", *ratio.columns],
        (
            [f"{size} B", *(f"{one:.3f}" for one in line)]
            for size, line in zip(ratio.index, ratio.to_numpy(), strict=True)
        ),
    )
    yield (
        "Bytes that the link carried for a byte of rows, `aligned_zero_copy`, less what"
        " `all_in_gpu` moves in such an epoch; and as counted from its requests, if the largest"
        " read has 128 or 64 B."
    )
    yield ""
    yield from table(["graph", "measured", "128 B", "64 B"], _link(runs))


def _link(runs: Sequence[Run]) -> Iterator[list[str]]:
    for run in runs:
        lines = {
            (row["workload"], row["strategy"], row["variant"]): row
            for row in link_bytes(run).to_dict("records")
        }
        for workload in run.workloads:
            one = lines.get((workload, "aligned_zero_copy", "given"))
            less = lines.get((workload, "all_in_gpu", "default"))
            if one is not None and less is not None:
                names = ("median", "link_128", "link_64")
                ratios = [(one[n] - less[n]) / one["payload"] for n in names]
                if pd.isna(ratios).any():  # its first repeat failed, and declared nothing
                    continue
                yield [graph(workload), *(f"{ratio:.2f}" for ratio in ratios)]


def gathers(summary: pd.DataFrame) -> Iterator[str]:
    reads = summary[summary["case"] == "sm_read"]
    roof = reads["median_per_s"].max() / 1e9
    yield "## Gathers out of registered memory"
    yield ""
    yield (
        f"GB/s by `aligned` with its own grid; a contiguous read reaches {roof:.1f}. Ids as"
        " given are random."
    )
    yield ""
    own = aligned(summary).query("grid_percent == 0")
    rates = own.set_index(["row_bytes", "span_bytes", "order"])["median_per_s"]
    heads = [f"{gib(s)}, {order}" for s in SPANS for order in ("given", "sorted")]
    sizes = sorted(own["row_bytes"].unique())
    yield from table(
        ["row", *heads],
        (
            [
                f"{size} B",
                *(f"{rates[size, s, o] / 1e9:.1f}" for s in SPANS for o in ("given", "sorted")),
            ]
            for size in sizes
        ),
    )
    narrow = [size for size in sizes if size <= 400]
    visits = {s: [rates[size, s, "given"] / size / 1e6 for size in narrow] for s in SPANS}
    said = ", ".join(f"{ends(v, 0)} M over {gib(s)}" for s, v in visits.items())
    yield (
        f"**Pages decide, not requests**: random rows of {narrow[0]} to {narrow[-1]} B come at"
        f" {said} a second."
    )
    yield ""
    grids = aligned(summary).query("row_bytes == 512 and span_bytes == @SPANS[-1]")
    for order in ("given", "sorted"):
        mine = grids[grids["order"] == order]["median_per_s"] / 1e9
        yield (
            f"Rows of 512 B over {gib(SPANS[-1])}, {order}, with {len(mine)} grids:"
            f" {ends(mine)} GB/s."
        )
        yield ""
    if "dgl" in set(summary["policy"]):
        yield (
            f"Of sorted ids over {gib(SPANS[-1])} DGL's launch policy reads rows of 16 to 512 B"
            f" {beside_dgl(summary)} faster than ours."
        )
        yield ""
    yield "WholeGraph's own gather over 2 GiB: how many times as long as ours it takes."
    yield ""
    peer = summary[summary["case"] == "peer_gather"]
    found = {
        (int(row["row_bytes"]), str(row["order"])): float(row["median_per_s"])
        for row in peer.to_dict("records")
    }
    rows = []
    for size in sorted({size for size, _ in found}):
        given, ordered, theirs = (found[size, o] for o in ("given", "sorted", "its own"))
        best = max(given, ordered)
        rows.append([f"{size} B", f"{ordered / theirs:.2f}", f"{best / theirs:.2f}"])
    yield from table(["row", "over ours, sorted", "over our better order"], rows)


def pages(summary: pd.DataFrame) -> Iterator[str]:
    """By kind of memory and span, and where the driver's pages are split."""
    rounds = summary[summary["case"] == "split_4k"]["rounds"]
    yield "## Pages"
    yield ""
    yield (
        "GB/s of random rows by `aligned`, each round other rows. Managed memory stays on the host"
        " and is mapped by pages of up to 2 MiB; *split*: every second piece has other advice, so"
        " no page is larger than a piece. The machine is another than that of the gathers above;"
        f" by 4 KiB there is {ends(rounds, 0)} round."
    )
    yield ""
    rates = summary.set_index(["case", "span_bytes", "row_bytes"])["median_per_s"] / 1e9
    kinds = {
        "registered": "span_registered",
        "managed": "span_managed",
        "managed, split by 64 KiB": "split_64k",
        "managed, split by 4 KiB": "split_4k",
    }
    sizes = sorted(set(summary["row_bytes"]))
    yield from table(
        ["memory", "table", *(f"{size} B" for size in sizes)],
        (
            [name, gib(span), *(f"{rates[case, span, size]:.1f}" for size in sizes)]
            for name, case in kinds.items()
            for span in sorted(set(summary[summary["case"] == case]["span_bytes"]))
        ),
    )


def model(summary: pd.DataFrame, profile: LinkProfile) -> Iterator[str]:
    yield "## The model of gathers"
    yield ""
    yield (
        f"Modelled rate (profile `{profile.name}`) over the measured one, less 1, in per cent:"
        " registered memory, `aligned` with its own grid. Epochs stand in"
        " [bench/model/NOTES](../../bench/model/NOTES.md#epochs-on-an-h200)."
    )
    yield ""
    own = aligned(summary).query("grid_percent == 0")
    measured = own.set_index(["row_bytes", "span_bytes", "order"])["median_per_s"]
    heads = [f"{gib(s)}, {order}" for s in SPANS for order in ("given", "sorted")]

    def off(size: int, span: int, order: str) -> str:
        load = gather_load(int(size), span, order)
        part = gpu_reads(load, profile)
        if not part.known:
            return ""
        rate = load.payload_bytes / part.seconds
        return f"{100 * (rate / measured[size, span, order] - 1):+.0f}"

    sizes = [size for size in sorted(own["row_bytes"].unique()) if size >= 16]
    yield from table(
        ["row", *heads],
        ([f"{n} B", *(off(n, s, o) for s in SPANS for o in ("given", "sorted"))] for n in sizes),
    )


@functools.cache
def gather_load(row_bytes: int, span_bytes: int, order: str) -> MinibatchLoad:
    """The random rows of one gather as the aligned launch policy reads them.

    Requests are a sample's. Sorted, a sample would visit far more pages for each row, so their
    number is what the gather's uniform draws are expected to touch.
    """
    count, sample = min(MAX_IDS, READ_BYTES // row_bytes), 20_000
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, span_bytes // row_bytes, (sample,), generator=draw)
    path = zero_copy_path(ids, row_bytes, "aligned", order, "registered")
    load = load_of(path, count / sample, table_bytes=span_bytes, row_bytes=row_bytes)
    if order == "sorted":
        pages = span_bytes // LINE_BYTES
        load = replace(load, gpu_page_visits=pages * (1 - (1 - 1 / pages) ** count))
    return load


def beside_dgl(summary: pd.DataFrame) -> str:
    """By how much DGL's launch policy is faster than ours, sorted, over the largest table."""
    narrow = summary.query(
        "case == 'gpu_gather' and order == 'sorted' and grid_percent == 0"
        " and span_bytes == @SPANS[-1] and 16 <= row_bytes <= 512"
    )
    rates = narrow.set_index(["policy", "row_bytes"])["median_per_s"]
    return f"{ends(100 * (rates['dgl'] / rates['aligned'] - 1), 0)} %"


def host_gathers(samples: pd.DataFrame) -> dict[int, float]:
    """Threads → bytes of rows of 512 B a second."""
    mine = samples.query("case == 'host_gather' and row_bytes == 512")
    rates = (mine["amount"] / mine["time_s"]).groupby(mine["threads"]).median()
    return dict(zip(map(int, rates.index), map(float, rates), strict=True))


def aligned(summary: pd.DataFrame) -> pd.DataFrame:
    return summary.query("case == 'gpu_gather' and policy == 'aligned'")
