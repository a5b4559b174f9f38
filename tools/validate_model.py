"""Compare the model's predictions with a published chart.

    python -m tools.validate_model [RESULTS]

Four bars of Reddit's chart for PCIe 3.0 determine four unknowns; the model then predicts the bars
for PCIe 4.0 without further tuning. One assumption is not in the chart: the program of 2021 draws
a minibatch on the CPU while the GPU trains on the previous one. The number of rows of a minibatch
is fitted (uniform neighbours would give :func:`uniform_rows`; Reddit's hubs make it smaller).
``bench/model/epochs.csv`` holds measured epochs.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.optimize import brentq

from gatherbench.bench.model.epoch import EpochPrediction, predict_batches
from gatherbench.bench.model.physics import MinibatchLoad
from gatherbench.bench.model.profile import LinkProfile, load_profile
from gatherbench.bench.read.tables import load_reference
from gatherbench.bench.run.training_cost import training_cost
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import request_row, uniform_ids

FITTED_ON, PREDICTED = "rtx3090-pcie3", "rtx3090-pcie4"
#: Reddit (Hamilton et al., NeurIPS 2017; EVIDENCE's shapes) and the authors' script.
NODES, WIDTH, CLASSES, TRAIN_NODES = 232_965, 602, 41, 153_431
BATCH, HIDDEN, FANOUTS = 1000, 16, (25, 10)
BATCHES = -(-TRAIN_NODES // BATCH)
ROW_BYTES = WIDTH * 4
#: The kernel behind the chart, and its share of the GPU (``--mps 10,90``).
POLICY, GPU_SHARE = "pytorch-direct", 0.10
#: (strategy, variant) of the chart's bars in ``results/reference/reddit_epoch.csv``.
CPU_GATHER = ("cpu_gather", "naive")
ZERO_COPY = ("aligned_zero_copy", "zero-copy")
OVERLAPPED = ("async_zero_copy", "mps")
ALL_IN_GPU = ("all_in_gpu", "default")
BARS = (CPU_GATHER, ZERO_COPY, OVERLAPPED, ALL_IN_GPU)
Bar = tuple[str, str]
#: Each bar depends on one unknown and the bars before; the unknown lies between these limits.
_UNKNOWNS: tuple[tuple[Bar, str, float, float], ...] = (
    (ALL_IN_GPU, "sample_rate", 1e6, 1e9),
    (ZERO_COPY, "rows", 1e4, 1e6),
    (CPU_GATHER, "pageable_rate", 1e9, 1e11),
    (OVERLAPPED, "handover_s", 0.0, 0.1),
)
#: Of the authors' script (dmlc/dgl c96a8b3e91, train_sampling_pytorch_direct.py): four processes
#: for sampling (``--num-workers 4`` by default), and one for training.
SAMPLE_CORES = 5.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """The constants that the four bars of one link determine."""

    #: Edges/s: covers all work for a minibatch except fetching and the GPU's (from all-in-GPU).
    sample_rate: float
    rows: float  # per minibatch (from zero-copy)
    pageable_rate: float  # gather and staging together, B/s (from CPU gather)
    handover_s: float  # per minibatch, from the fetching process to the training one (from overlap)


def uniform_rows() -> tuple[float, float]:
    """Return first-layer nodes, and rows, of a minibatch whose neighbours are uniform draws."""

    def with_draws(nodes: float, draws: float) -> float:
        return NODES - (NODES - nodes) * math.exp(-draws / NODES)

    first = with_draws(BATCH, BATCH * FANOUTS[0])
    return first, with_draws(first, first * FANOUTS[1])


def loads(rows: float, handover_s: float) -> dict[Bar, MinibatchLoad]:
    """Return the minibatch of each bar, with ``rows`` feature rows."""
    first, _ = uniform_rows()
    nodes, edges = [BATCH, first, rows], [BATCH * FANOUTS[0], first * FANOUTS[1]]
    payload = rows * ROW_BYTES
    resident = MinibatchLoad(
        payload_bytes=payload,
        row_bytes=ROW_BYTES,
        gpu_requests={},
        table_bytes=NODES * ROW_BYTES,
        sampled_edges=sum(edges),
        training=training_cost("sage", WIDTH, HIDDEN, CLASSES, nodes, edges),
    )
    requests = {size: n * rows for size, n in _requests_per_row().items()}
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
    counts = request_row(policy(POLICY), ROW_BYTES, 4, uniform_ids(1 << 14, NODES))
    return {size: n / counts.rows for size, n in counts.requests.items() if n}


def charted(profile: LinkProfile, fitted: Fitted) -> LinkProfile:
    """Return the machine of ``profile`` with the constants that were fitted to the chart."""
    profile = profile.with_constant("host.sample_rate", fitted.sample_rate, "fitted to the chart")
    profile = profile.with_constant("host.sample_cores", SAMPLE_CORES, "the authors' script")
    return profile.with_constant("copy.pageable", fitted.pageable_rate, "fitted to the chart")


def predict_bar(profile: LinkProfile, fitted: Fitted, bar: Bar) -> float:
    """Predict the seconds of a bar on the machine of ``profile`` with the fitted constants."""
    load = loads(fitted.rows, fitted.handover_s)[bar]
    return predict_batches(load, charted(profile, fitted), BATCHES).epoch_s


@cache
def fit(profile: LinkProfile, seconds: tuple[float, ...]) -> Fitted:
    """Find the constants with which the model yields the published :data:`BARS`.

    Raises:
        ValueError: no constants within wide limits do.
    """
    wanted = dict(zip(BARS, seconds, strict=True))
    fitted = Fitted(sample_rate=2e7, rows=uniform_rows()[1], pageable_rate=1e10, handover_s=0.0)
    for _ in range(2):  # the second uses the fitted rows for all-in-GPU
        for bar, name, low, high in _UNKNOWNS:
            guess = partial(replace, fitted)

            def off(value: float, bar: Bar = bar, name: str = name, guess: Any = guess) -> float:
                return predict_bar(profile, guess(**{name: value}), bar) - wanted[bar]

            try:
                fitted = guess(**{name: brentq(off, low, high, rtol=1e-10)})
            except ValueError:
                text = f"no {name} between {low:g} and {high:g} yields {wanted[bar]:g} s"
                raise ValueError(f"{bar}: {text}") from None
    return fitted


def published_bars(reference: pd.DataFrame, machine: str) -> dict[tuple[str, str], float]:
    """Return the seconds of the chart's bars for one machine, by strategy and variant."""
    rows = reference[(reference["machine"] == machine) & (reference["metric"] == "wall_time")]
    bars = zip(rows["strategy"], rows["variant"], rows["value"], strict=True)
    return {(strategy, variant): float(value) for strategy, variant, value in bars}


def fitted_chart(reference: pd.DataFrame) -> Fitted:
    """Fit the constants to the bars of PCIe 3.0."""
    bars = published_bars(reference, FITTED_ON)
    return fit(load_profile(FITTED_ON), tuple(bars[bar] for bar in BARS))


def reddit_chart(reference: pd.DataFrame) -> pd.DataFrame:
    """Return every bar of the chart, published and modelled.

    Columns: ``machine``, ``strategy``, ``variant``, ``published_s``, ``modelled_s``, ``error``
    (modelled over published, less 1), ``fitted`` (whether the bar was used to fit).
    """
    constants = fitted_chart(reference)
    records = [
        (machine, *bar, seconds, predict_bar(load_profile(machine), constants, bar))
        for machine in (FITTED_ON, PREDICTED)
        for bar, seconds in published_bars(reference, machine).items()
        if bar in BARS
    ]
    columns = ["machine", "strategy", "variant", "published_s", "modelled_s"]
    table = pd.DataFrame(records, columns=columns)
    error = table["modelled_s"] / table["published_s"] - 1
    return table.assign(error=error, fitted=table["machine"] == FITTED_ON)


def chart_epochs(fitted: Fitted, profile: LinkProfile, gpus: int = 1) -> dict[Bar, EpochPrediction]:
    """Predict the chart's epochs on the machine of ``profile``, whose GPUs share minibatches."""
    return {
        bar: predict_batches(load, charted(profile, fitted), BATCHES, gpus=gpus)
        for bar, load in loads(fitted.rows, fitted.handover_s).items()
    }


def tables(reference: pd.DataFrame) -> str:
    """Return the comparison with the chart as Markdown; ``NOTES.md`` holds it word for word."""
    lines = ["| link | strategy | published | modelled | error | |", "|" + "---|" * 6]
    for bar in reddit_chart(reference).to_dict("records"):
        name = f"{bar['strategy']} {bar['variant']}".replace(" default", "")
        error = round(bar["error"], 3) + 0.0  # turns -0.0 into 0.0
        lines.append(
            f"| {bar['machine']} | {name} | {bar['published_s']:.2f} s | {bar['modelled_s']:.2f} s"
            f" | {error:+.1%} | {'fitted' if bar['fitted'] else 'predicted'} |"
        )
    return "\n".join(lines) + "\n"


def main(results: Path) -> None:
    reference = load_reference(results / "reference")
    if len(reference):
        print(tables(reference))
        print(f"fitted to {FITTED_ON}: {fitted_chart(reference)}")
        print(f"rows of a minibatch if neighbours were uniform draws: {uniform_rows()[1]:.0f}\n")
    else:
        print(f"published figures: none in {results / 'reference'}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
