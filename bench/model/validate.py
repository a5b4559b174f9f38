"""How far the model is off: published and measured figures beside its predictions.

    python -m gatherbench.bench.model.validate [RESULTS]

Nothing here is tuned to what it is compared with; where the model has no mechanism for an effect it
predicts none, and the table shows it. Measured epochs are those of GPU runs that name a profile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from gatherbench.bench.model.against_measured import against_measured
from gatherbench.bench.model.epoch import EpochPrediction, predict_batches
from gatherbench.bench.model.physics import link_time
from gatherbench.bench.model.profile import LinkProfile
from gatherbench.bench.model.profile_file import load_profile
from gatherbench.bench.model.published_gathers import published_gathers
from gatherbench.bench.model.reddit_chart import (
    BARS,
    BATCHES,
    CPU_GATHER,
    Bar,
    Fitted,
    charted,
    fit,
    loads,
    predict_bar,
    uniform_rows,
)
from gatherbench.bench.read.reference import load_reference
from gatherbench.bench.read.tables import load_run
from gatherbench.kernels.policies import policy
from gatherbench.kernels.requests import (
    COMPLETION_HEADER_BYTES,
    RequestCounts,
    count_requests,
    uniform_ids,
)

FITTED_ON, PREDICTED = "rtx3090-pcie3", "rtx3090-pcie4"
GPUS = (1, 2, 4, 8)
#: Launch policies without and with alignment: an element a lane (as DGL was before and is since
#: #3254), and accesses as wide as possible.
ALIGNMENT = {"an element a lane": ("glt", "dgl"), "widest": ("unaligned", "aligned")}


#: float32 rows, and the address that their table begins at.
ROWS = {
    "100 floats": (400, 0),
    "353 floats": (1412, 0),
    "602 floats": (2408, 0),
    "128 floats, 32 B into a line": (512, 32),
}


def published_bars(reference: pd.DataFrame, machine: str) -> dict[tuple[str, str], float]:
    """Seconds of the chart's bars for one machine, by strategy and variant."""
    rows = reference[(reference["machine"] == machine) & (reference["metric"] == "wall_time")]
    found = zip(rows["strategy"], rows["variant"], rows["value"], strict=True)
    return {(strategy, variant): float(value) for strategy, variant, value in found}


def fitted_chart(reference: pd.DataFrame) -> Fitted:
    """The constants that the PCIe 3.0 bars determine."""
    return fit(load_profile(FITTED_ON), published_bars(reference, FITTED_ON))


def reddit_chart(reference: pd.DataFrame) -> pd.DataFrame:
    """Every bar of the chart, published and modelled.

    Columns: ``machine``, ``strategy``, ``variant``, ``published_s``, ``modelled_s``, ``error``
    (modelled over published, less 1), ``fitted`` (whether the bar was used to fit).
    """
    constants = fitted_chart(reference)
    records = []
    for machine in (FITTED_ON, PREDICTED):
        published = published_bars(reference, machine)
        modelled = {bar: predict_bar(load_profile(machine), constants, bar) for bar in BARS}
        records += [
            (machine, *bar, published[bar], modelled[bar], modelled[bar] / published[bar] - 1)
            for bar in BARS
        ]
    columns = ["machine", "strategy", "variant", "published_s", "modelled_s", "error"]
    table = pd.DataFrame(records, columns=columns)
    return table.assign(fitted=table["machine"] == FITTED_ON)


def alignment_gain(profile: LinkProfile) -> pd.DataFrame:
    """How much longer reads take without alignment, of :data:`ROWS`, each on the same table.

    Columns: ``access``, ``rows``; ``gain``, the time on the link as the model has it; and between
    what it may really lie: ``headers``, were every sector brought once whoever asks for it, and
    ``requests``, were their number the limit. Published: 0.05 to 0.10 (DGL #3254, width not
    stated).
    """
    records = []
    for access, (off, on) in ALIGNMENT.items():
        for rows, (row_bytes, address) in ROWS.items():
            without, aligned, once = (_counts(p, row_bytes, address) for p in (off, on, "emogi"))
            seconds = [_link_s(profile, counts) for counts in (without, aligned)]
            wire = [
                once.read_bytes + counts.num_requests * COMPLETION_HEADER_BYTES
                for counts in (without, aligned)
            ]
            requests = [counts.num_requests for counts in (without, aligned)]
            gains = [a / b - 1 for a, b in (wire, seconds, requests)]
            records.append((access, rows, *gains))
    return pd.DataFrame(records, columns=["access", "rows", "headers", "gain", "requests"])


def _counts(name: str, row_bytes: int, address: int) -> RequestCounts:
    """Of one batch of uniform ids with a launch policy, on a table that begins at ``address``."""
    point = policy(name).point(row_bytes, 4, table_address=address)
    return count_requests(point, uniform_ids(1 << 14), row_bytes, address)


def _link_s(profile: LinkProfile, counts: RequestCounts) -> float:
    requests = {float(size): float(n) for size, n in counts.requests.items()}
    return link_time(requests, profile).value or float("nan")


def chart_epochs(fitted: Fitted, profile: LinkProfile, gpus: int = 1) -> dict[Bar, EpochPrediction]:
    """The chart's epochs on the machine of ``profile``, whose GPUs share the minibatches."""
    return {
        bar: predict_batches(load, charted(profile, fitted), BATCHES, gpus=gpus)
        for bar, load in loads(fitted.rows, fitted.handover_s).items()
    }


def several_gpus(reference: pd.DataFrame) -> dict[str, list[float]]:
    """How much faster than CPU gather the chart's other bars are by the model, on :data:`GPUS`.

    Published, for several GPUs and other graphs: 0.65 to 0.92 (Min et al., PVLDB 14(11) 2021).
    """
    fitted, profile = fitted_chart(reference), load_profile(PREDICTED)
    epochs = [chart_epochs(fitted, profile, gpus) for gpus in GPUS]
    seconds = [{bar: e.epoch_s.value or float("nan") for bar, e in one.items()} for one in epochs]
    return {
        f"{bar[0]} {bar[1]}".removesuffix(" default"): [s[CPU_GATHER] / s[bar] - 1 for s in seconds]
        for bar in BARS
        if bar != CPU_GATHER
    }


def tables(reference: pd.DataFrame) -> str:
    """The comparison with published figures as Markdown; ``NOTES.md`` holds it word for word."""
    lines = [
        "| link | strategy | published | modelled | error | |",
        "|---|---|---|---|---|---|",
    ]
    for bar in reddit_chart(reference).to_dict("records"):
        name = f"{bar['strategy']} {bar['variant']}".replace(" default", "")
        error = round(bar["error"], 3) + 0.0  # never -0.0
        lines.append(
            f"| {bar['machine']} | {name} | {bar['published_s']:.2f} s | {bar['modelled_s']:.2f} s"
            f" | {error:+.1%} | {'fitted' if bar['fitted'] else 'predicted'} |"
        )
    lines += ["", "| accesses | rows | headers | as reckoned | requests |", "|---" * 5 + "|"]
    for one in alignment_gain(load_profile(PREDICTED)).to_dict("records"):
        gains = " | ".join(f"{one[name]:+.1%}" for name in ("headers", "gain", "requests"))
        lines.append(f"| {one['access']} | {one['rows']} | {gains} |")
    lines += ["", "| rows | of | ids | order | published | modelled | error | |", "|---" * 8 + "|"]
    for one in published_gathers(reference, load_profile(PREDICTED)).to_dict("records"):
        lines.append(
            f"| {one['rows'] / 1e6:g} M | {one['dim']} {one['dtype']} | {one['ids'] / 1e6:g} M"
            f" | {one['order']} | {one['published_s'] * 1e3:.3g} ms"
            f" | {one['modelled_s'] * 1e3:.3g} ms | {one['error']:+.0%}"
            f" | {'fitted' if one['fitted'] else 'predicted'} |"
        )
    lines += ["", "| GPUs | " + " | ".join(f"{n}" for n in GPUS) + " |", "|---" * 5 + "|"]
    for strategy, ratios in several_gpus(reference).items():
        lines.append(f"| {strategy} | " + " | ".join(f"{gain:+.0%}" for gain in ratios) + " |")
    return "\n".join(lines) + "\n"


def main(results: Path) -> None:
    reference = load_reference(results / "reference")
    if len(reference):
        print(tables(reference))
        print(f"fitted to {FITTED_ON}: {fitted_chart(reference)}")
        print(f"rows of a minibatch if neighbours were uniform draws: {uniform_rows()[1]:.0f}\n")
    else:
        print(f"published figures: none in {results / 'reference'}\n")
    for rows in sorted(results.glob("*/*/rows.csv")):
        run = load_run(rows.parent)
        profile_file = rows.parent / "profile.toml"
        if profile_file.is_file():
            table = against_measured(run, load_profile(profile_file))
            if len(table):
                print(rows.parent, table.to_string(index=False), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
