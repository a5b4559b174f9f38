"""`gatherbench datasets`: prepare, import, list, describe and remove graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from gatherbench.bench.commands.common import JsonOption, console, fail, print_json, print_table
from gatherbench.datasets.import_options import Import

ScaleOption = Annotated[float, typer.Option(help="Share of a generated graph's full size.")]


def prepare(
    name: Annotated[str, typer.Argument(help="A dataset of `gatherbench list datasets`.")],
    scale: ScaleOption = 1.0,
    force: Annotated[bool, typer.Option(help="Make the dataset again even if it exists.")] = False,
) -> None:
    """Download or generate a dataset, so that runs find it on disk."""
    from gatherbench.datasets.registry import prepare_dataset

    with _making() as progress:
        folder = prepare_dataset(name, scale, progress=progress, force=force)
    typer.echo(folder)


def import_(**options: Any) -> None:
    """Import a graph of your own, so that plans can name it like any other dataset."""
    from gatherbench.bench.show.listing import imported_summary
    from gatherbench.datasets.importers import import_graph

    with _making() as progress:
        folder = import_graph(Import(**options), progress=progress)
    for line in imported_summary(folder):
        typer.echo(line, err=True)
    typer.echo(folder)


# Typer reads the options of a command here: they are the fields of the dataclass.
import_.__signature__ = signature(Import, eval_str=True)  # type: ignore[attr-defined]


@contextmanager
def _making() -> Iterator[Callable[[str, float], None]]:
    """Show the progress of making a dataset; an error of a file or the network is bad input."""
    from gatherbench.bench.show.terminal import step_bar

    try:
        with step_bar(console(stderr=True)) as progress:
            yield progress
    except OSError as error:
        fail(str(error))


def list_graphs(as_json: JsonOption = False) -> None:
    """List the datasets on disk, and how much space each takes."""
    from gatherbench.bench.show.listing import on_disk
    from gatherbench.datasets.store import data_root

    table, summary = on_disk(data_root())
    if len(table) or as_json:
        print_table(table, as_json)
    typer.echo(summary, err=as_json)


def info(
    name: Annotated[str, typer.Argument(help="A dataset's name, or its folder.")],
    scale: ScaleOption = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Describe a prepared dataset."""
    from gatherbench.bench.show.listing import description
    from gatherbench.datasets.registry import get_source
    from gatherbench.datasets.store import dataset_folder, describe

    folder = Path(name) if Path(name).is_dir() else dataset_folder(name, scale)
    if not folder.exists():
        get_source(name)  # refuses an unknown name, and suggests the nearest
    if as_json:
        return print_json(describe(folder))
    print_table(description(folder), as_json=False)


def remove(
    name: Annotated[str, typer.Argument(help="A name of `gatherbench datasets list`.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Remove a dataset; downloads stay."""
    from gatherbench.bench.read.units import quantity
    from gatherbench.bench.show.listing import bytes_below
    from gatherbench.datasets.dataset import not_ours
    from gatherbench.datasets.files import discard, exclusive
    from gatherbench.datasets.store import data_root

    folder = data_root() / name
    if name.startswith(".") or folder.parent != data_root() or not os.path.lexists(folder):
        fail(f"{name}: no such dataset in {data_root()}; see `datasets list`")
    if refusal := not_ours(folder):
        fail(refusal)
    with exclusive(folder):
        size = quantity(bytes_below(folder), "B")
        if not yes:
            typer.confirm(f"Remove {folder}, {size}?", abort=True, err=True)
        discard(folder)
    typer.echo(f"removed {folder}: {size}")
