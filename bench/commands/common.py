"""Give the commands their consoles, the options that several have, and errors for bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gatherbench.outside import InputError, plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

#: Exit statuses of a command.
OK, FAILED, BAD_INPUT = 0, 1, 2
#: The folder where ``make calibrate`` puts the profile of this machine, and others look for it.
CALIBRATIONS = Path("calibration")

RunArgument = Annotated[
    Path | None, typer.Argument(help="Folder of a run (default: the newest one in --results).")
]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder that holds the runs.")]
DEFAULT_RESULTS = Path("results")
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


class Commands(TyperGroup):
    """Commands in which an error of the user's input, or of a file, ends with status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            fail(str(error))
        except OSError as error:
            if error.filename is None:  # of what is printed
                raise
            fail(str(error))


def console(stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console as wide as the terminal; 120 columns into a file or a pipe."""
    from rich.console import Console

    screen = Console(stderr=stderr, quiet=quiet)
    # A file or a pipe has no width: use one at which tables do not fold.
    return screen if screen.is_terminal else Console(stderr=stderr, quiet=quiet, width=120)


def print_table(frame: pd.DataFrame, as_json: bool) -> None:
    """Print a frame of texts as a table, or as JSON: a list with an object for each line."""
    from gatherbench.bench.show.terminal import listed

    if not as_json:
        return console().print(listed(frame))
    cells = frame.astype(object)
    print_json(cells.where(cells.notna(), None).to_dict("records"))


def print_json(value: object) -> None:
    """Print a value as JSON that every reader accepts: without NaN."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def fail(message: str) -> NoReturn:
    """Print the message as an error, and end with exit status 2."""
    text = "\n".join(map(plain, message.splitlines()))
    colour = False if os.environ.get("NO_COLOR") else None  # None: on a terminal
    typer.secho(f"error: {text}", err=True, fg=typer.colors.RED, color=colour)
    raise typer.Exit(BAD_INPUT)
