"""`gatherbench calibrate`: measure this machine's constants for the link model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import CALIBRATIONS, fail


def calibrate(
    out: Annotated[
        Path, typer.Option(help="Folder for the profile and its samples.")
    ] = CALIBRATIONS,
    budget: Annotated[
        float, typer.Option(help="Seconds to take in all (0: 60, or 500 with a GPU).", min=0)
    ] = 0,
    base: Annotated[
        str,
        typer.Option(help="Profile (name or .toml file) for what cannot be measured here."),
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    disk: Annotated[
        str,
        typer.Option(
            help="Folder whose disk is timed, with a temporary file of up to 1 GiB"
            " (default: the data folder; none: no disk)."
        ),
    ] = "",
) -> None:
    """Measure this machine and write a profile that plans and `predict` can name."""
    from gatherbench.bench.probe.calibrate import run

    if device not in ("auto", "cpu", "cuda"):
        fail(f"--device {device}: expected auto, cpu or cuda")
    raise typer.Exit(run(out, budget, base, device, disk))  # type: ignore[arg-type]
