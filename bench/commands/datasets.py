"""`gatherbench datasets`: prepare, import, list, describe and remove graphs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import bad_input, console


def prepare(
    name: Annotated[str, typer.Argument(help="See `gatherbench list datasets`.")],
    scale: Annotated[float, typer.Option(help="Share of a generated graph's full size.")] = 1.0,
    force: Annotated[bool, typer.Option(help="Make it anew, even if it exists.")] = False,
) -> None:
    """Download or generate a dataset, so that runs find it on disk."""
    from gatherbench.bench.show.terminal import step_bar
    from gatherbench.datasets.registry import prepare_dataset
    from gatherbench.datasets.store import DatasetError

    with bad_input(DatasetError, OSError), step_bar(console(stderr=True)) as progress:
        folder = prepare_dataset(name, scale, progress=progress, force=force)
    typer.echo(folder)


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            help="Edge list (source, target), MatrixMarket, NumPy (edge_index, CSC) or PyG's Data."
        ),
    ],
    name: Annotated[str, typer.Option(help="The dataset's name in plans.")],
    dim: Annotated[
        int | None, typer.Option(help="Width of generated features (default: 128).")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of generated features.")] = "float32",
    labels: Annotated[
        Path | None,
        typer.Option(
            help=".npy, .pt or text: one class a node in the order of ids, -1 for none; or lines "
            "of node,label."
        ),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help=".npy or .pt [N, D] instead of generated features.")
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            help="Training nodes: ids as in the graph's file, or a mask (.npy, .pt, text)."
        ),
    ] = None,
    val: Annotated[Path | None, typer.Option(help="Validation nodes.")] = None,
    test: Annotated[Path | None, typer.Option(help="Test nodes.")] = None,
    one_based: Annotated[
        bool | None,
        typer.Option(
            "--one-based/--zero-based",
            help="How an edge list counts ids (default: by the ids; NumPy files from 0).",
        ),
    ] = None,
    relabel: Annotated[
        bool,
        typer.Option(
            "--relabel",
            help="Ids have gaps: number those that occur in ascending order. Rows of features and "
            "labels follow that order.",
        ),
    ] = False,
    csr: Annotated[
        bool,
        typer.Option(
            "--csr/--csc", help="NumPy arrays list out-neighbours (CSR) or in-neighbours."
        ),
    ] = False,
    undirected: Annotated[bool, typer.Option(help="Store every edge both ways.")] = False,
    force: Annotated[bool, typer.Option(help="Replace a dataset of this name.")] = False,
) -> None:
    """Import a graph of your own. Plans then name it like any other dataset."""
    from gatherbench.bench.show.listing import imported_summary
    from gatherbench.bench.show.terminal import step_bar
    from gatherbench.datasets.importers import import_graph
    from gatherbench.datasets.store import DatasetError

    with bad_input(DatasetError, OSError), step_bar(console(stderr=True)) as progress:
        folder = import_graph(
            path,
            name,
            dim=dim,
            dtype=dtype,
            labels=labels,
            features=features,
            train=train,
            val=val,
            test=test,
            one_based=one_based,
            relabel=relabel,
            undirected=undirected,
            orientation="csr" if csr else "csc",
            force=force,
            progress=progress,
        )
    for line in imported_summary(folder):
        typer.echo(line, err=True)
    typer.echo(folder)


def list_() -> None:
    """List the datasets on disk, and how much space each takes."""
    from gatherbench.bench.show.listing import on_disk
    from gatherbench.datasets.store import data_root

    with bad_input(OSError):
        console().print(on_disk(data_root()), soft_wrap=True)


def info(
    name: Annotated[str, typer.Argument(help="A dataset's name, or its folder.")],
    scale: Annotated[float, typer.Option(help="Share of a generated graph's full size.")] = 1.0,
) -> None:
    """Describe a prepared dataset."""
    from gatherbench.bench.show.listing import description
    from gatherbench.datasets.registry import get_source
    from gatherbench.datasets.store import DatasetError, dataset_folder

    with bad_input(DatasetError, OSError):
        folder = Path(name) if Path(name).is_dir() else dataset_folder(name, scale)
        if not folder.exists():
            get_source(name)  # a name that is none is refused with the nearest one
        console().print(description(folder))


def remove(
    name: Annotated[str, typer.Argument(help="Its name in `gatherbench datasets list`.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Remove a dataset and the minibatches drawn from it; downloads stay."""
    from gatherbench.bench.read.units import bytes_in_words
    from gatherbench.bench.sampling.prepare import traces_of
    from gatherbench.bench.show.listing import bytes_below
    from gatherbench.datasets.dataset import not_ours
    from gatherbench.datasets.files import discard, exclusive
    from gatherbench.datasets.store import DatasetError, data_root

    with bad_input(DatasetError, OSError):
        folder = data_root() / name
        elsewhere = name.startswith(".") or folder.parent != data_root()
        if elsewhere or not os.path.lexists(folder):
            raise DatasetError(f"{name}: no such dataset in {data_root()}; see `datasets list`")
        if why := not_ours(folder):
            raise DatasetError(why)
        with exclusive(folder):
            doomed = [*traces_of(folder), folder]
            size = bytes_in_words(sum(bytes_below(place) for place in doomed))
            if not yes:
                typer.confirm(f"Remove {folder} and its minibatches, {size}?", abort=True, err=True)
            for place in doomed:
                discard(place)
    typer.echo(f"removed {folder}: {size}")
