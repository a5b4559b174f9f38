"""The micro-benchmark's summary as a picture and as a few lines of text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gatherbench.bench.probe.micro_plan import GIB
from gatherbench.kernels.policies import POLICIES


def best_by_width(
    table: Sequence[dict[str, Any]], span: int
) -> dict[tuple[str, str], dict[int, float]]:
    """For each (policy, order): row bytes → GB/s at the best grid cap, for one span."""
    lines: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in table:
        if row["kind"] == "gather" and row["span_bytes"] == span:
            line = lines[row["policy"], row["order"]]
            width, rate = row["row_bytes"], row["payload_gb_per_s"]
            line[width] = max(line.get(width, 0.0), rate)
    return dict(lines)


def roofs(table: Sequence[dict[str, Any]], span: int) -> dict[str, float]:
    """GB/s of the copy engine and of the multiprocessors' best contiguous read."""
    best: dict[str, float] = {}
    for row in table:
        if row["kind"] in ("copy_engine", "sm_read") and row["span_bytes"] == span:
            best[row["kind"]] = max(best.get(row["kind"], 0.0), row["payload_gb_per_s"])
    return best


def headline(table: Sequence[dict[str, Any]]) -> str:
    """For each span the roofs, and for each row width our best and the best of the rest."""
    lines = []
    for span in sorted({row["span_bytes"] for row in table}):
        said = ", ".join(f"{kind} {rate:.1f} GB/s" for kind, rate in roofs(table, span).items())
        lines.append(f"span {span / GIB:g} GiB: {said}")
        by_policy = best_by_width(table, span)
        for width in sorted({w for rates in by_policy.values() for w in rates}):
            sides: dict[bool, tuple[float, str]] = {}
            for (policy, order), rates in by_policy.items():
                if width in rates:
                    ours = POLICIES[policy].system == "gatherbench"
                    rated = (rates[width], f"{POLICIES[policy].label}, {order}")
                    sides[ours] = max(sides.get(ours, rated), rated)
            told = "; ".join(f"{sides[k][0]:6.1f} GB/s {sides[k][1]}" for k in sorted(sides)[::-1])
            lines.append(f"  {width:5d} B: {told}")
    return "\n".join(lines)


def draw(table: Sequence[dict[str, Any]], path: Path) -> None:
    """Payload rate against row width, a panel for each span, the roofs as lines across.

    Raises:
        ImportError: there is no matplotlib.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    spans = sorted({row["span_bytes"] for row in table})
    figure, axes = plt.subplots(
        1, len(spans), figsize=(1 + 5 * len(spans), 5), sharey=True, squeeze=False
    )
    for ax, span in zip(axes[0], spans, strict=True):
        for (policy, order), rates in sorted(best_by_width(table, span).items()):
            ours = POLICIES[policy].system == "gatherbench"
            ax.plot(
                *zip(*sorted(rates.items()), strict=True),
                marker="o",
                markersize=3,
                linewidth=2 if ours else 1,
                linestyle="--" if order == "sorted" else "-",
                label=f"{POLICIES[policy].label}, {order}",
            )
        for kind, rate in roofs(table, span).items():
            style = ":" if kind == "copy_engine" else "-."
            ax.axhline(rate, color="black", linestyle=style, linewidth=1, label=kind)
        ax.set(xscale="log", xlabel="bytes of a row", title=f"table span {span / GIB:g} GiB")
    axes[0][0].set(ylabel="payload, GB/s (measured; best grid cap)", ylim=(0, None))
    axes[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
