"""Define the command line; each command is a file in `commands/`.

A command loads torch and pandas only when it runs, so that `--help` answers at once. Exit status:
0 all went well, 1 a case failed, nothing was measured or the run was stopped, 2 bad input, and 128
and the number of the signal that ended it: 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from gatherbench import __version__
from gatherbench.bench.commands.about import check, doctor, list_
from gatherbench.bench.commands.common import FAILED, Commands
from gatherbench.bench.commands.datasets import import_, info, list_graphs, prepare, remove
from gatherbench.bench.commands.probe import probe
from gatherbench.bench.commands.results import compare, predict, report, show
from gatherbench.bench.commands.run import run

app = typer.Typer(
    name="gatherbench",
    cls=Commands,
    help="Benchmark and profile the ways of moving GNN node features to a GPU.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)
datasets_app = typer.Typer(
    help="Prepare, import, list, describe or remove a graph.", no_args_is_help=True
)
_Commands = tuple[Callable[..., None], ...]
_OURS: _Commands = (run, list_, show, compare, report, predict, check, probe, doctor)
_OF_GRAPHS: _Commands = (prepare, import_, list_graphs, info, remove)
for _app, _commands in ((app, _OURS), (datasets_app, _OF_GRAPHS)):
    for _command in _commands:
        _app.command(name=_command.__name__.partition("_")[0])(_command)
app.add_typer(datasets_app, name="datasets")


def main() -> None:
    """Run the command line; this is the entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # "?" for what it lacks would read as our mark
            stream.reconfigure(errors="backslashreplace")
    # The source line of a warning is gatherbench's, and of no use to a user.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    # Read when torch is loaded: its store warns of each second of a wait, and of a lost link with
    # a traceback of its own, which our error says in one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        app()
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:  # interrupted: at once, as Python would
            atexit._run_exitfuncs()  # look for garbage among all imports for two seconds
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise
    except OSError as error:  # those of files are bad input
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"gatherbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Define the options that precede a command."""
    # Pictures go to files: a backend for windows that is not there, or none at all, is no matter.
    os.environ["MPLBACKEND"] = "agg"
