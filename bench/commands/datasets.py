"""`gatherbench datasets`: prepare, import, list, describe and remove graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from gatherbench.bench.commands.common import (
    JsonOption,
    ScaleOption,
    bad_input,
    console,
    print_json,
    print_table,
)
from gatherbench.datasets.import_options import Import


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
    """Show the progress of making a dataset; its errors end with exit status 2."""
    from gatherbench.bench.show.terminal import step_bar
    from gatherbench.datasets.store import DatasetError

    with bad_input(DatasetError, OSError), step_bar(console(stderr=True)) as progress:
        yield progress


def list_graphs(as_json: JsonOption = False) -> None:
    """List the datasets on disk, and how much space each takes."""
    from gatherbench.bench.show.listing import on_disk
    from gatherbench.datasets.store import data_root

    with bad_input(OSError):
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
    from gatherbench.datasets.store import DatasetError, dataset_folder, describe

    with bad_input(DatasetError, OSError):
        folder = Path(name) if Path(name).is_dir() else dataset_folder(name, scale)
        if not folder.exists():
            get_source(name)  # refuses an unknown name, and suggests the nearest
        if as_json:
            print_json(describe(folder))
        else:
            print_table(description(folder), as_json=False)


def remove(
    name: Annotated[str, typer.Argument(help="A name of `gatherbench datasets list`.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Remove a dataset; downloads stay."""
    from gatherbench.bench.read.units import bytes_in_words
    from gatherbench.bench.show.listing import bytes_below
    from gatherbench.datasets.dataset import not_ours
    from gatherbench.datasets.files import discard, exclusive
    from gatherbench.datasets.store import DatasetError, data_root

    with bad_input(DatasetError, OSError):
        folder = data_root() / name
        elsewhere = name.startswith(".") or folder.parent != data_root()
        if elsewhere or not os.path.lexists(folder):
            raise DatasetError(f"{name}: no such dataset in {data_root()}; see `datasets list`")
        if refusal := not_ours(folder):
            raise DatasetError(refusal)
        with exclusive(folder):
            size = bytes_in_words(bytes_below(folder))
            if not yes:
                typer.confirm(f"Remove {folder}, {size}?", abort=True, err=True)
            discard(folder)
    typer.echo(f"removed {folder}: {size}")
