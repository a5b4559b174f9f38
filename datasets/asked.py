"""What ``gatherbench datasets import`` is asked on the command line: a field an option.

Nothing here loads numpy: the command line reads it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option


def _column(of: str, otherwise: str) -> Any:
    told = f"its name in the header, or its number from 1 (default: {otherwise})"
    return Option(metavar="COLUMN", help=f"Column of {of}: {told}.")


@dataclass(frozen=True, slots=True)
class Import:
    """A graph of one's own: its file, what comes in other files, and how they are to be read.

    The kind of a file is told by its content: MatrixMarket, NumPy arrays (a ``.npy`` without
    ``indptr`` in its name is an ``edge_index``), a PyG ``Data`` by ``torch.save``, text of a source
    and a target a line; gzipped or not. What a ``Data`` or an ``.npz`` with PyG's names has of
    features, labels and masks is taken too, unless other files are given. Where one of the splits
    is given and another is not, the other is empty. Ids of text count from 1 if its comments say
    so; or no id is 0 and, where features or labels say how many nodes there are, an id equals it;
    or 1 is the smallest id, where they do not. What cannot be told is refused.
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
            help="First id of an edge list (default: by its comments or ids; NumPy files: 0).",
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
    undirected: Annotated[
        bool | None,
        Option(
            "--undirected/--directed",
            help="Store every edge in both directions (default: as the file says, or directed).",
        ),
    ] = None
    source: Annotated[str, _column("sources", "first, or by a header or a comment")] = ""
    target: Annotated[str, _column("targets", "second, or by a header or a comment")] = ""
    relations: Annotated[
        str, _column("kinds of edges", "none; for NumPy and PyG files: edge_type")
    ] = ""
    label: Annotated[str, _column("classes, in the file of labels", "by its header, or last")] = ""
    node: Annotated[
        str, _column("nodes, in the files of labels and splits; 0: line k is node k", "by a header")
    ] = ""
    header: Annotated[
        bool | None,
        Option(
            "--header/--no-header",
            help="Whether a first line names columns that may do so, as the '0,1' of pandas.",
        ),
    ] = None
    classes: Annotated[
        int | None,
        Option(help="Number of classes, where some never occur (default: the largest label + 1)."),
    ] = None
    force: Annotated[bool, Option(help="Replace a dataset of this name.")] = False
