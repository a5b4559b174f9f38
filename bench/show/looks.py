"""Define the look of drawings: colours, and what distinguishes measured from modelled values.

The colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any
common colour vision can distinguish. A strategy names its own (:attr:`Strategy.colour`).
Published values are outlined, modelled ones hatched, measured ones solid.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from types import MappingProxyType
from typing import Any

from gatherbench.stats.judge import THRESHOLD

#: Name → colour in pictures; a dark page inverts the lightness of its pictures.
PALETTE = MappingProxyType(
    {
        "blue": "#0072B2",
        "orange": "#E69F00",
        "green": "#009E73",
        "vermilion": "#D55E00",
        "sky": "#56B4E9",
        "purple": "#CC79A7",
        "yellow": "#D8C92C",
        "grey": "#A9B0B7",
        "brown": "#8C5A2B",
        "navy": "#332288",
        "pale": "#D3D8DD",
    }
)
FAINT = "#666666"
#: The kinds of values, in the order of a legend.
KINDS = ("published", "modelled", "measured")
MODEL_HATCH = "////"
#: Marks after a number, in tables and in pictures.
NOISY, UNDECIDED = "!", "?"
MARKS = MappingProxyType(
    {
        NOISY: "other work ran during every repeat",
        UNDECIDED: "not decided: the ratio's 95 % interval does not tell a difference of"
        f" {THRESHOLD:.0%} from none, or there was other work",
    }
)

#: Names and colours for the parts of an epoch, by stage; the last two are parts of ``train``.
STAGE_COLOURS = {"sample": "sky", "fetch": "vermilion", "train": "green", "other": "grey"}
EXCHANGE_COLOURS = {"all_reduce": ("all-reduce", "purple"), "wait": ("wait for ranks", "yellow")}

#: Settings of matplotlib while a figure is drawn and saved.
RC: Any = {  # matplotlib's stubs list the allowed keys
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "ytick.left": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "grid.color": "#E4E4E4",
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "gatherbench",  # the same numbers give the same file
}


def explained(numbers: Collection[str]) -> str:
    """Explain the marks in these numbers: a sentence each, after a space."""
    text = "".join(numbers)
    return "".join(f" {mark}: {meaning}." for mark, meaning in MARKS.items() if mark in text)


@functools.cache
def colour_of(strategy: str, other: str = "") -> str:
    """Return the strategy's colour, a name of :data:`PALETTE`; else ``other`` or a default."""
    from gatherbench.strategies.base import Strategy
    from gatherbench.strategies.registry import get

    try:
        colour = get(strategy).colour
    except ValueError:  # it is unknown
        colour = ""
    return colour if colour in PALETTE else other or Strategy.colour


def ink(colour: str) -> str:
    """Return a palette name's colour in pictures; any other colour stays as it is."""
    return PALETTE.get(colour, colour)


def bar(kind: str, colour: str) -> dict[str, Any]:
    """Return matplotlib's arguments for a bar of one of :data:`KINDS`."""
    hatch = MODEL_HATCH if kind == "modelled" else ""
    if kind == "published":
        return {"facecolor": "white", "edgecolor": ink(colour), "linewidth": 1.6, "hatch": hatch}
    # A wider edge would hide a short stage.
    return {"facecolor": ink(colour), "edgecolor": "white", "linewidth": 0.4, "hatch": hatch}
