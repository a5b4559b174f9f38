"""The published chart of Reddit as loads, and the constants that its PCIe 3.0 half is fitted to.

Four bars for PCIe 3.0, four unknowns, one for each bar; the bars for PCIe 4.0 are then predicted.
What the chart does not say is assumed in the open: the program of 2021 draws a minibatch on the CPU
while the GPU trains on the one before, and how many rows a minibatch has is itself fitted (uniform
neighbours would give :func:`uniform_rows`; Reddit's hubs make it fewer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from gatherbench.bench.model.epoch import minibatch_parts
from gatherbench.bench.model.minibatch_load import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.schedule import run_epoch
from gatherbench.bench.run.training_cost import training_cost, widths_of
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import request_row, uniform_ids

#: Reddit (Hamilton et al., NeurIPS 2017; EVIDENCE's shapes) and the authors' script.
NODES, WIDTH, CLASSES, TRAIN_NODES = 232_965, 602, 41, 153_431
BATCH, HIDDEN, FANOUTS = 1000, 16, (25, 10)
BATCHES = -(-TRAIN_NODES // BATCH)
ROW_BYTES = WIDTH * 4
#: The kernel behind the chart, and the share of the GPU that it got (``--mps 10,90``).
POLICY, GPU_SHARE = "pytorch-direct", 0.10

#: The program behind the chart, what of its rate the PCIe 3.0 bars tell, and its busy cores.
PROGRAM = "pytorch-direct"
SAMPLE_RATE, SAMPLE_CORES = 20.93e6, 5.0
SAMPLE_RATE_SOURCE = (
    "fitted to the PCIe 3.0 bars of the Reddit chart of K-Wu/pytorch-direct_dgl: all that the"
    " program of 2021 does for a minibatch besides fetching it and running on the GPU"
)
SAMPLE_CORES_SOURCE = (
    "the authors' script (dmlc/dgl c96a8b3e91, train_sampling_pytorch_direct.py): four processes"
    " that sample (--num-workers 4 by default) and the one that trains"
)

#: (strategy, variant) of the chart's bars in ``results/reference/reddit_epoch.csv``.
CPU_GATHER = ("cpu_gather", "naive")
ZERO_COPY = ("aligned_zero_copy", "zero-copy")
OVERLAPPED = ("async_zero_copy", "mps")
ALL_IN_GPU = ("all_in_gpu", "default")
BARS = (CPU_GATHER, ZERO_COPY, OVERLAPPED, ALL_IN_GPU)
Bar = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the four bars of one link determine.

    Attributes:
        sample_rate: edges a second; all that the program does for a minibatch besides fetching it
            and running on the GPU (from all-in-GPU).
        rows: a minibatch (from zero-copy).
        pageable_rate: of gather and staging together, B/s (from CPU gather).
        handover_s: between the fetching and the training process, a minibatch (from the overlap).
    """

    sample_rate: float
    rows: float
    pageable_rate: float
    handover_s: float


def uniform_rows() -> tuple[float, float]:
    """Nodes of the first layer, and rows, of a minibatch whose neighbours are uniform draws."""

    def with_draws(nodes: float, draws: float) -> float:
        return NODES - (NODES - nodes) * math.exp(-draws / NODES)

    first = with_draws(BATCH, BATCH * FANOUTS[0])
    return first, with_draws(first, first * FANOUTS[1])


def loads(rows: float, handover_s: float) -> dict[Bar, MinibatchLoad]:
    """The minibatch of each bar, with ``rows`` feature rows."""
    first, _ = uniform_rows()
    nodes, edges = [BATCH, first, rows], [BATCH * FANOUTS[0], first * FANOUTS[1]]
    widths = widths_of("sage", WIDTH, HIDDEN, len(FANOUTS), CLASSES, heads=1)
    cost = training_cost("sage", widths, nodes, edges)
    payload = rows * ROW_BYTES
    requests = {size: n * rows for size, n in _requests_per_row().items()}
    resident = MinibatchLoad(
        payload_bytes=payload,
        row_bytes=ROW_BYTES,
        gpu_requests={},
        table_bytes=NODES * ROW_BYTES,
        sampled_edges=sum(edges),
        train_operations=cost.operations,
        train_bytes=cost.memory_bytes,
        train_launches=cost.launches,
        structure_bytes=cost.structure_bytes,
    )
    zero_copy = replace(resident, gpu_link_read_bytes=payload, gpu_requests=requests)
    return {
        ALL_IN_GPU: replace(resident, gpu_table_bytes=resident.table_bytes),
        ZERO_COPY: zero_copy,
        OVERLAPPED: replace(zero_copy, lookahead=1, gpu_share=GPU_SHARE, handover_s=handover_s),
        CPU_GATHER: replace(
            resident,
            cpu_read_bytes=payload,
            cpu_write_bytes=payload,
            copy_engine_bytes=payload,
            pageable_bytes=payload,
        ),
    }


@cache
def _requests_per_row() -> dict[int, float]:
    counts = request_row(policy(POLICY), ROW_BYTES, 4, uniform_ids(1 << 14, NODES)).counts
    return {size: n / counts.rows for size, n in counts.requests.items() if n}


def drawn_by_program(profile: LinkProfile, rate: float = SAMPLE_RATE) -> LinkProfile:
    """The machine of ``profile`` with minibatches drawn by the chart's program."""
    profile = profile.with_constant("host.sample_rate", rate, SAMPLE_RATE_SOURCE)
    return profile.with_constant("host.sample_cores", SAMPLE_CORES, SAMPLE_CORES_SOURCE)


def charted(profile: LinkProfile, fitted: Fitted) -> LinkProfile:
    """The machine of ``profile`` with the constants that were fitted to the chart."""
    profile = drawn_by_program(profile, fitted.sample_rate)
    return profile.with_constant("copy.pageable", fitted.pageable_rate, "fitted to the chart")


def predict_bar(profile: LinkProfile, fitted: Fitted, bar: Bar) -> float:
    """Seconds of a bar on the machine of ``profile`` with the fitted constants.

    Raises:
        ValueError: the profile lacks a constant that the bar needs.
    """
    load = loads(fitted.rows, fitted.handover_s)[bar]
    return run_epoch(minibatch_parts(load, charted(profile, fitted)), BATCHES).epoch_s


def fit(profile: LinkProfile, bars: Mapping[Bar, float]) -> Fitted:
    """The constants with which the model yields the four published bars (s).

    Raises:
        ValueError: no constants do, within wide limits.
    """
    found = Fitted(sample_rate=2e7, rows=uniform_rows()[1], pageable_rate=1e10, handover_s=0.0)
    for _ in range(2):  # a second round settles what all-in-GPU takes of the rows
        for bar, name, low, high in _UNKNOWNS:
            found = _solved(profile, bars[bar], found, bar, name, low, high)
    return found


#: In this order each bar depends on what was found and on one unknown, between these limits.
_UNKNOWNS: tuple[tuple[Bar, str, float, float], ...] = (
    (ALL_IN_GPU, "sample_rate", 1e6, 1e9),
    (ZERO_COPY, "rows", 1e4, 1e6),
    (CPU_GATHER, "pageable_rate", 1e9, 1e11),
    (OVERLAPPED, "handover_s", 0.0, 0.1),
)


def _solved(
    profile: LinkProfile,
    wanted_s: float,
    guess: Fitted,
    bar: Bar,
    name: str,
    low: float,
    high: float,
) -> Fitted:
    """The guess with ``name`` such that the bar is ``wanted_s`` long, by bisection."""

    def changed(value: float) -> Fitted:
        change: dict[str, float] = {name: value}
        return replace(guess, **change)

    def above(value: float) -> bool:
        return predict_bar(profile, changed(value), bar) > wanted_s

    low_is_above = above(low)
    if low_is_above == above(high):
        raise ValueError(f"{bar}: no {name} between {low:g} and {high:g} yields {wanted_s:g} s")
    for _ in range(30):
        middle = (low + high) / 2
        if above(middle) == low_is_above:
            low = middle
        else:
            high = middle
    return changed((low + high) / 2)
