"""How every figure looks: colours, labels, and how measured, modelled and missing are told apart.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any common
colour vision can tell apart. Modelled values are hatched and called so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#BBBBBB"
FAINT = "#666666"

STAGE_COLOURS = {"sample": SKY, "fetch": VERMILION, "train": GREEN, "other": GREY}
CPU_COLOURS = {"user": BLUE, "system": ORANGE}
STRATEGY_COLOURS = {
    "cpu_gather": ORANGE,
    "unified_zero_copy": SKY,
    "aligned_zero_copy": BLUE,
    "async_zero_copy": GREEN,
    "all_in_gpu": PURPLE,
}

MODEL_HATCH = "////"
BAR_HEIGHT = 0.68
#: Characters of a strategy's or variant's name that fit beside a bar.
LONGEST = 18

#: Settings of matplotlib that hold while a figure is drawn and saved.
RC: Any = {  # matplotlib's stubs list every key there is
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "ytick.left": False,
    "ytick.labelsize": 8,
    "grid.color": "#E4E4E4",
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "gatherbench",  # the same numbers give the same file
}


@dataclass(frozen=True, slots=True)
class Series:
    """What one bar stands for; ``basis`` is empty where nothing was measured at all."""

    strategy: str
    variant: str
    basis: str

    @property
    def label(self) -> str:
        strategy, variant = (_shortened(text) for text in (self.strategy, self.variant))
        name = strategy if self.variant == "default" else f"{strategy}\n{variant}"
        return f"{name} (modelled)" if self.basis == "predicted" else name

    @property
    def colour(self) -> str:
        return STRATEGY_COLOURS.get(self.strategy, YELLOW)

    @property
    def hatch(self) -> str:
        return MODEL_HATCH if self.basis == "predicted" else ""


def _shortened(text: str) -> str:
    """Without its middle where it is longer than the margin of a figure is wide."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 + 1 :]}"
