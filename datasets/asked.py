"""What ``gatherbench datasets import`` is asked on the command line: a field an option.

Nothing here loads numpy: the command line reads it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


@dataclass(frozen=True, slots=True)
class Import:
    """A graph of one's own: its file, what comes in other files, and how ids are to be read.

    The kind of ``path`` is told by its name: ``.mtx`` and ``.mtx.gz`` are MatrixMarket, ``.npz``
    and ``.npy`` NumPy arrays (a ``.npy`` without ``indptr`` in its name an ``edge_index``), ``.pt``
    a PyG ``Data``, everything else an edge list ``source target`` (text or CSV, ``.gz`` or not).
    What a ``Data`` or an ``.npz`` with PyG's names has of features, labels and masks is taken too,
    unless other files are given. Where one of the splits is given and another is not, the other is
    empty. Ids of text count from 1 if no id is 0 and, where features or labels say how many nodes
    there are, an id equals it; or 1 is the smallest id, where they do not.
    """

    path: Annotated[
        Path,
        Argument(
            help="Edge list (source, target), MatrixMarket, NumPy (edge_index, CSC) or PyG's Data."
        ),
    ]
    name: Annotated[str, Option(help="The dataset's name in plans.")]
    dim: Annotated[int | None, Option(help="Width of generated features (default: 128).")] = None
    dtype: Annotated[str, Option(help="Type of generated features.")] = "float32"
    labels: Annotated[
        Path | None,
        Option(
            help=".npy, .pt or text: one class a node in the order of ids, -1 for none; or lines "
            "of node,label."
        ),
    ] = None
    features: Annotated[
        Path | None, Option(help="Features [N, D] as .npy or .pt (default: generated).")
    ] = None
    train: Annotated[
        Path | None,
        Option(help="Training nodes: ids as in the graph's file, or a mask (.npy, .pt, text)."),
    ] = None
    val: Annotated[Path | None, Option(help="Validation nodes.")] = None
    test: Annotated[Path | None, Option(help="Test nodes.")] = None
    one_based: Annotated[
        bool | None,
        Option(
            "--one-based/--zero-based",
            help="First id of an edge list (default: told by the ids; NumPy files start from 0).",
        ),
    ] = None
    relabel: Annotated[
        bool,
        Option(
            "--relabel",
            help="Renumber ids that have gaps, in ascending order. Rows of features and "
            "labels follow that order.",
        ),
    ] = False
    csr: Annotated[
        bool,
        Option(
            "--csr/--csc",
            help="Whether NumPy arrays list out-neighbours (CSR) or in-neighbours (CSC).",
        ),
    ] = False
    undirected: Annotated[bool, Option(help="Store every edge in both directions.")] = False
    relations: Annotated[
        str,
        Option(
            metavar="COLUMN",
            help="Column of an edge list with the kind of each edge: its name in the header, or "
            "its number, from 1. For NumPy and PyG files: edge_type.",
        ),
    ] = ""
    force: Annotated[bool, Option(help="Replace a dataset of this name.")] = False
