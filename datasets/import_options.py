"""Define the options of an import; without numpy, as the command line loads this for its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option


def _column(content: str, default: str) -> Any:
    text = "its name in the header, or its number from 1"
    return Option(metavar="COLUMN", help=f"Column of {content}: {text} (default: {default}).")


_LABELS = ".npy or .pt: the class of each node in the order of ids; -1: no class."
_BASE = "First id (default: 0; required for text without an id 0)."
_BOTH = "Store every edge in both directions (default: no; a symmetric matrix has both)."
_HEADER = "The first line of text names the columns, or not (default: detected)."
_CLASSES = "Number of classes, if some have no node (default: the largest label + 1)."
_ROWS = ".npy or .pt: rows [N, D] (default: generated)."


@dataclass(frozen=True, slots=True)
class Import:
    """The graph's file, further files, and how to read them; content shows a file's kind."""

    path: Annotated[Path, Argument(help="Text, MatrixMarket, NumPy's edge_index or PyG's Data.")]
    name: Annotated[str, Option(help="The dataset's name in plans.")]
    dim: Annotated[int, Option(help="Width of generated features.")] = 128
    dtype: Annotated[str, Option(help="Type of generated features.")] = "float32"
    labels: Annotated[Path | None, Option(help=_LABELS)] = None
    features: Annotated[Path | None, Option(help=_ROWS)] = None
    train: Annotated[Path | None, Option(help="Training nodes: ids as in PATH, or a mask.")] = None
    val: Annotated[Path | None, Option(help="Validation nodes.")] = None
    test: Annotated[Path | None, Option(help="Test nodes.")] = None
    one_based: Annotated[bool | None, Option("--one-based/--zero-based", help=_BASE)] = None
    undirected: Annotated[bool | None, Option("--undirected/--directed", help=_BOTH)] = None
    source: Annotated[str, _column("sources", "first of two, or by a header")] = ""
    target: Annotated[str, _column("targets", "second of two, or by a header")] = ""
    relations: Annotated[str, _column("kinds of edges", "none; of arrays: edge_type")] = ""
    header: Annotated[bool | None, Option("--header/--no-header", help=_HEADER)] = None
    classes: Annotated[int | None, Option(help=_CLASSES)] = None
    force: Annotated[bool, Option(help="Replace a dataset of this name.")] = False
