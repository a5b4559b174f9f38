"""`gatherbench probe`: measure memory, link and GPU on their own; `calibrate` is its older name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import CALIBRATIONS, FAILED, bad_input, console, fail

Disk = Annotated[
    str,
    typer.Option(
        help="Folder whose disk is timed, by a file of up to 1 GiB that is gone afterwards"
        " (default: the data folder; none: no disk)."
    ),
]
Base = Annotated[str, typer.Option(help="With --profile: a profile for what is not measured here.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Budget = Annotated[float, typer.Option(help="Seconds (0: 60; with --profile on a GPU 300).", min=0)]


def probe(
    cases: Annotated[
        str, typer.Option(help="Cases of --list in place of the usual ones, by commas.")
    ] = "",
    list_: Annotated[
        bool, typer.Option("--list", help="List the cases and what they lack here; no more.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(help="Measure what the link model needs and write it as this .toml file."),
    ] = None,
    base: Base = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files (default: a new one in probe/).")
    ] = None,
    budget: Budget = 0,
    rounds: Annotated[
        int, typer.Option(help="So many rounds, whatever the time they take.", min=0)
    ] = 0,
    device: DeviceOption = "auto",
    disk: Disk = "",
) -> None:
    """Measure in a minute how fast rows of host memory come: table, picture, file to send in."""
    if list_:
        return _list()
    if profile is not None and profile.suffix != ".toml":
        fail(f"--profile {profile}: name a file that ends in .toml")
    if base and profile is None:
        fail("--base goes with --profile FILE.toml")
    if profile is not None and cases:
        fail("--profile measures all that it needs: leave --cases out")
    _measure(
        tuple(filter(None, cases.split(","))), profile, base, out, budget, rounds, device, disk
    )


def calibrate(
    out: Annotated[Path, typer.Option(help="Folder for the profile.")] = CALIBRATIONS,
    budget: Budget = 0,
    base: Base = "",
    device: DeviceOption = "auto",
    disk: Disk = "",
) -> None:
    """The same as `probe --profile calibration/MACHINE.toml`, by its older name."""
    _measure((), out, base, None, budget, 0, device, disk)


def _measure(
    names: tuple[str, ...],
    profile: Path | None,
    base: str,
    out: Path | None,
    budget: float,
    rounds: int,
    device: str,
    disk: str,
) -> None:
    """Measure and print; a ``profile`` that is no .toml file is a folder for it."""
    if device not in ("auto", "cpu", "cuda"):
        fail(f"--device {device}: expected auto, cpu or cuda")
    from gatherbench.bench.model.profile import ProfileError, load_profile
    from gatherbench.bench.probe.case import Scope
    from gatherbench.bench.probe.probe import FEWEST_ROUNDS, Probed
    from gatherbench.bench.probe.probe import probe as measure
    from gatherbench.bench.probe.profile import profile_of
    from gatherbench.bench.probe.rig import ProbeError, writing
    from gatherbench.bench.probe.table import table

    err, screen = console(stderr=True), console()
    with bad_input(ProbeError, ProfileError):
        given, folder = load_profile(base) if base else None, disk_folder(disk)
        if profile is not None:  # before a minute is spent
            place = profile.parent if profile.suffix == ".toml" else profile
            with writing(place):
                place.mkdir(parents=True, exist_ok=True)
        try:
            done: Probed = measure(
                out,
                names=names,
                scope=Scope.PROFILE if profile else Scope.MINUTE,
                device=device,  # type: ignore[arg-type]
                disk=folder,
                budget_s=budget,
                rounds=rounds,
                say=lambda text: err.print(text, highlight=False, markup=False, soft_wrap=True),
            )
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, ProbeError):
                raise
            err.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(FAILED) from error
        screen.print(done.title, highlight=False, markup=False, soft_wrap=True)
        screen.print(table(done.known))
        if not done.facts.gpu:
            screen.print("The host alone was measured: no GPU was used, so nothing crossed a link.")
        screen.print(
            f"Written: {done.folder}/probe.csv (to send in), probe.png, rows.csv", soft_wrap=True
        )
        if profile is not None:
            if done.rounds < FEWEST_ROUNDS:
                fail(f"{done.rounds} whole rounds are too few for a profile: give more --budget")
            if profile.suffix != ".toml":
                profile /= f"{done.facts.machine}.toml"
            with writing(profile):
                profile.write_text(profile_of(done.known, done.facts, given).to_toml(), "utf-8")
            screen.print(f"Use it: gatherbench predict RUN --profile {profile}", soft_wrap=True)
    wrong = done.known["reason"].str.startswith("wrong")
    if wrong.any() or not done.known["rounds"].any():
        raise typer.Exit(FAILED)


def disk_folder(said: str) -> Path | None:
    """The folder whose disk is timed: the data folder where none is said; ``none``: no disk."""
    from gatherbench.datasets.store import data_root

    if said == "none":
        return None
    if said and not Path(said).is_dir():
        fail(f"--disk {said}: no such folder; name a folder on the disk, or none")
    root = Path(said) if said else data_root().absolute()
    # A data folder that is not there yet will lie on the disk of what it is made in.
    return next(place for place in (root, *root.parents) if place.is_dir())


def _list() -> None:
    from rich.table import Table

    from gatherbench.bench.probe.case import every_case

    shown = Table(box=None, pad_edge=False)
    for name in ("case", "when", "here", "what"):
        shown.add_column(name, no_wrap=name == "case")
    for one in every_case().values():
        when = ("probe", "--profile", "--cases")[one.scope]
        lacks = one.missing()
        shown.add_row(
            one.name,
            when,
            "lacks " + ", ".join(lacks) if lacks else "ok",
            f"{one.unit}: {one.what}",
        )
    console().print(shown)
