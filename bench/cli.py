"""The command line. It loads torch and pandas only in the commands that need them.

Exit status: 0 all went well, 1 a case failed or the run was stopped, 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gatherbench import __version__

if TYPE_CHECKING:
    from rich.console import Console

BAD_INPUT = 2

app = typer.Typer(
    name="gatherbench",
    help="Benchmark and profile the ways of moving GNN node features to a GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
datasets_app = typer.Typer(help="Prepare, import and describe graphs.", no_args_is_help=True)
app.add_typer(datasets_app, name="datasets")

RunArgument = Annotated[
    Path | None, typer.Argument(help="Folder of a run; without it the newest below --results.")
]
ResultsOption = Annotated[Path, typer.Option("--results", help="Where runs are kept.")]
DEFAULT_RESULTS = Path("results")


def main() -> None:
    """Entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gatherbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program as a whole."""


@app.command()
def run(
    plan: Annotated[str, typer.Argument(help="A shipped plan's name or a .toml file.")] = "",
    resume: Annotated[
        Path | None, typer.Option(help="Complete the run in this folder instead of a new one.")
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda; overrides the plan's.")] = "",
) -> None:
    """Measure every case of a plan; print the table, and where table and pictures are."""
    from gatherbench.bench.execute import BadRunError, execute, new_run, reopen

    if bool(plan) == (resume is not None):
        _fail("give a plan, or --resume FOLDER to complete an earlier run")
    if resume is not None and device:
        _fail("--device goes with a new run: a resumed one keeps the device of its plan")
    out = _console()
    with _bad_input(BadRunError):
        prepared = reopen(resume) if resume is not None else new_run(plan, results, device)
        raise typer.Exit(execute(prepared, out, _console(stderr=True)))


@app.command(name="list")
def list_things(
    what: Annotated[str, typer.Argument(help="strategies, policies, datasets, plans or meters.")],
) -> None:
    """List what there is to choose from."""
    from gatherbench.bench.listing import LISTINGS

    if what not in LISTINGS:
        _fail(f"cannot list {what!r}: one of {', '.join(LISTINGS)}")
    _console().print(LISTINGS[what]())


@app.command()
def show(folder: RunArgument = None, results: ResultsOption = DEFAULT_RESULTS) -> None:
    """Print a run's results as a table."""
    from gatherbench.bench.show import render
    from gatherbench.bench.tables import RunError, load_run

    with _bad_input(RunError):
        _console().print(render(load_run(_run_folder(folder, results))))


@app.command()
def plot(
    folder: RunArgument = None,
    results: ResultsOption = DEFAULT_RESULTS,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the pictures; default: figures/ in the run's.")
    ] = None,
) -> None:
    """Draw a run's figures."""
    from gatherbench.bench.figures.all import save_all
    from gatherbench.bench.tables import RunError, load_run

    with _bad_input(RunError):
        where = _run_folder(folder, results)
        for path in save_all(load_run(where), out or where / "figures"):
            typer.echo(path)


@app.command()
def requests(
    dim: Annotated[int, typer.Option(help="Elements of a feature row.")] = 602,
    dtype: Annotated[str, typer.Option(help="Of the features.")] = "float32",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A launch policy; repeat for several, leave out for all."),
    ] = None,
    max_request: Annotated[
        int, typer.Option(help="Largest read request on the link: 32, 64, 96 or 128 B.")
    ] = 128,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draw requests against row width into this file instead.")
    ] = None,
) -> None:
    """Compute what each launch policy's reads cost on the link; no GPU is needed."""
    from gatherbench.bench.requests_table import BadRequestError, render, rows_of, to_csv

    with _bad_input(BadRequestError):
        rows = rows_of(dim, dtype, policy or (), max_request)
    if figure is not None:
        from gatherbench.bench.figures.requests_per_row import requests_per_row, save

        with _bad_input(ValueError, OSError):
            save(requests_per_row([row.policy for row in rows], max_request), figure)
        typer.echo(figure)
    elif csv:
        typer.echo(to_csv(rows, dim, dtype, max_request), nl=False)
    else:
        _console().print(render(rows, dim, dtype, max_request))


@app.command()
def doctor() -> None:
    """Say what this machine has, and for each missing thing what is lost by it."""
    from gatherbench.bench.doctor import print_doctor

    print_doctor(_console())


@datasets_app.command(name="prepare")
def datasets_prepare(
    name: Annotated[str, typer.Argument(help="See `gatherbench list datasets`.")],
    scale: Annotated[float, typer.Option(help="Size of a synthetic graph, 1 = full.")] = 1.0,
    force: Annotated[bool, typer.Option(help="Make it anew even if it is there.")] = False,
) -> None:
    """Make a dataset ready on disk, under $GATHERBENCH_DATA."""
    from gatherbench.bench.progress import step_bar
    from gatherbench.datasets.registry import prepare_dataset
    from gatherbench.datasets.store import DatasetError

    with _bad_input(DatasetError), step_bar(_console(stderr=True)) as progress:
        folder = prepare_dataset(name, scale, progress=progress, force=force)
    typer.echo(folder)


@datasets_app.command(name="import")
def datasets_import(
    path: Annotated[Path, typer.Argument(help="Edge list, MatrixMarket or NumPy file.")],
    name: Annotated[str, typer.Option(help="What the dataset shall be called.")],
    dim: Annotated[int, typer.Option(help="Width of generated features.")] = 128,
    dtype: Annotated[str, typer.Option(help="Of the features.")] = "float32",
    labels: Annotated[Path | None, typer.Option(help=".npy of one label a node.")] = None,
    features: Annotated[Path | None, typer.Option(help=".npy [N, D] instead of --dim.")] = None,
    one_based: Annotated[
        bool | None, typer.Option("--one-based/--zero-based", help="Numbering of an edge list.")
    ] = None,
    undirected: Annotated[bool, typer.Option(help="Store every edge both ways.")] = False,
    force: Annotated[bool, typer.Option(help="Replace a dataset of this name.")] = False,
) -> None:
    """Import a graph of your own."""
    from gatherbench.bench.progress import step_bar
    from gatherbench.datasets.importers import import_graph
    from gatherbench.datasets.store import DatasetError

    with _bad_input(DatasetError), step_bar(_console(stderr=True)) as progress:
        folder = import_graph(
            path,
            name,
            dim=dim,
            dtype=dtype,
            labels=labels,
            features=features,
            one_based=one_based,
            undirected=undirected,
            force=force,
            progress=progress,
        )
    typer.echo(folder)


@datasets_app.command(name="info")
def datasets_info(
    name: Annotated[str, typer.Argument(help="A dataset's name, or its folder.")],
    scale: Annotated[float, typer.Option(help="Of a synthetic graph.")] = 1.0,
) -> None:
    """Describe a prepared dataset."""
    from gatherbench.bench.listing import description
    from gatherbench.datasets.store import DatasetError, dataset_folder

    with _bad_input(DatasetError):
        folder = Path(name) if Path(name).is_dir() else dataset_folder(name, scale)
        _console().print(description(folder))


def _run_folder(folder: Path | None, results: Path) -> Path:
    from gatherbench.bench.tables import newest_run

    return folder if folder is not None else newest_run(results)


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr)
    # Into a file or a pipe there is no width to fit: wide enough that tables do not fold.
    return console if console.is_terminal else Console(stderr=stderr, width=120)


def _fail(message: str) -> NoReturn:
    typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(BAD_INPUT)


@contextmanager
def _bad_input(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into a message and exit status 2."""
    try:
        yield
    except kinds as error:
        _fail(str(error))
