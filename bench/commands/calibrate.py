"""`gatherbench calibrate`: measure this machine's constants for the link model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import bad_input, console, fail

DEFAULT_FOLDER = Path("calibration")


def calibrate(
    out: Annotated[Path, typer.Option(help="Folder for profile and samples.")] = DEFAULT_FOLDER,
    budget: Annotated[
        float, typer.Option(help="Seconds for everything (0: 60, with a GPU 500).", min=0)
    ] = 0,
    base: Annotated[
        str,
        typer.Option(help="A profile (name or .toml) for what cannot be measured here."),
    ] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure this machine and write a profile that plans and `advise` can name."""
    from gatherbench.bench.linkmodel.calibrate import calibrate as measure
    from gatherbench.bench.linkmodel.calibrate_host import CalibrationError
    from gatherbench.bench.linkmodel.calibrate_report import render
    from gatherbench.bench.linkmodel.profile import ProfileError
    from gatherbench.bench.linkmodel.profile_file import load_profile
    from gatherbench.kernels.compiler import CompilerError
    from gatherbench.kernels.cuda_calls import CudaCallError

    if device not in ("auto", "cpu", "cuda"):
        fail(f"--device {device}: expected auto, cpu or cuda")
    err = console(stderr=True)
    with bad_input(CalibrationError, ProfileError, OSError):
        known = load_profile(base) if base else None
        try:
            done = measure(
                out,
                device=device,  # type: ignore[arg-type]
                budget_s=budget or None,
                base=known,
                say=lambda text: err.print(text, highlight=False),
            )
        except (CudaCallError, CompilerError) as broken:
            typer.secho(f"error: {broken}", err=True, fg=typer.colors.RED)
            raise typer.Exit(1) from broken
    console().print(render(done))
