"""What was published, what is modelled and what was measured: one look for each, everywhere.

Published values are outlined (as points: open diamonds), modelled ones hatched (as lines: dashed,
with dots), measured ones solid (as lines: solid, with discs). Where something has not been
measured yet its place says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gatherbench.bench.show.figures.style import FAINT, MODEL_HATCH


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    Attributes:
        name: ``published``, ``modelled`` or ``measured``; the column ``kind`` of figures' tables.
        hatch: of its bars.
        filled: whether its bars have their strategy's colour inside.
        line: style, marker and filling of its curves.
    """

    name: str
    hatch: str
    filled: bool
    line: tuple[str, str, str]

    def bar(self, colour: str) -> dict[str, Any]:
        """How matplotlib is to draw a bar of this kind."""
        if self.filled:
            return {
                "facecolor": colour,
                "edgecolor": "white",
                "linewidth": 0.4,
                "hatch": self.hatch,
            }
        return {"facecolor": "white", "edgecolor": colour, "linewidth": 1.6, "hatch": self.hatch}

    def curve(self, colour: str) -> dict[str, Any]:
        """How matplotlib is to draw a line of this kind."""
        style, marker, filling = self.line
        return {
            "color": colour,
            "linestyle": style,
            "marker": marker,
            "fillstyle": filling,
            "markersize": 3.5 if marker == "." else 5,
            "linewidth": 1.5,
        }


PUBLISHED = Kind("published", "", filled=False, line=("none", "D", "none"))
MODELLED = Kind("modelled", MODEL_HATCH, filled=True, line=("--", ".", "full"))
MEASURED = Kind("measured", "", filled=True, line=("-", "o", "full"))
KINDS = (PUBLISHED, MODELLED, MEASURED)


def bar_legend() -> list[Patch]:
    """Patches that explain the kinds, in grey."""
    return [Patch(label=kind.name, **kind.bar(FAINT)) for kind in KINDS]


def curve_legend() -> list[Line2D]:
    """Lines that explain the kinds, in grey."""
    return [Line2D([], [], label=kind.name, **kind.curve(FAINT)) for kind in KINDS]
