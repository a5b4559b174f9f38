"""`gatherbench probe`: measure memory, link and GPU on their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatherbench.bench.commands.common import (
    FAILED,
    JsonOption,
    bad_input,
    console,
    fail,
    print_frame,
    print_table,
)

if TYPE_CHECKING:
    from rich.table import Table

    from gatherbench.bench.model.profile import LinkProfile
    from gatherbench.bench.probe.probe import Probed


def probe(
    cases: Annotated[
        str, typer.Option(help="Cases of --list in place of the usual ones, by commas.")
    ] = "",
    list_: Annotated[
        bool, typer.Option("--list", help="List the cases and what they lack here; no more.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Measure what the link model needs and write it as this .toml file, or as"
            " MACHINE.toml into this folder."
        ),
    ] = None,
    base: Annotated[
        str, typer.Option(help="With --profile: a profile for what is not measured here.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files (default: a new one in probe/).")
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Seconds (0: 60; with --profile on a GPU 300).", min=0)
    ] = 0,
    rounds: Annotated[
        int, typer.Option(help="So many rounds, whatever the time they take.", min=0)
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    disk: Annotated[
        str,
        typer.Option(
            help="Folder whose disk is timed, by a file of up to 1 GiB that is gone afterwards"
            " (default: the data folder; none: no disk)."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Measure in a minute how fast rows of host memory come: table, picture, file to send in."""
    if list_:
        return print_table(_list(), as_json)
    for wrong, why in (
        (device not in ("auto", "cpu", "cuda"), f"--device {device}: expected auto, cpu or cuda"),
        (
            profile is not None and profile.suffix not in ("", ".toml"),
            f"--profile {profile}: name a folder, or a file that ends in .toml",
        ),
        (base and profile is None, "--base goes with --profile FILE.toml"),
        (profile and cases, "--profile measures all that it needs: leave --cases out"),
    ):
        if wrong:
            fail(why)
    from gatherbench.bench.model.profile import ProfileError, load_profile
    from gatherbench.bench.probe.case import Scope
    from gatherbench.bench.probe.probe import probe as measure
    from gatherbench.bench.probe.rig import ProbeError, writing
    from gatherbench.bench.probe.table import table

    err, screen = console(stderr=True), console(quiet=as_json)
    with bad_input(ProbeError, ProfileError):
        given, folder = load_profile(base) if base else None, disk_folder(disk)
        if profile is not None:  # before it spends a minute
            place = profile.parent if profile.suffix else profile
            with writing(place):
                place.mkdir(parents=True, exist_ok=True)
        try:
            done = measure(
                out,
                names=tuple(filter(None, cases.split(","))),
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
        if as_json:
            print_frame(done.known)
        if profile is not None:
            screen.print(
                f"Use it: gatherbench predict RUN --profile {_write(profile, done, given)}",
                soft_wrap=True,
            )
    astray = done.known["reason"].str.startswith("wrong")
    if astray.any() or not done.known["rounds"].any():
        raise typer.Exit(FAILED)


def _write(place: Path, done: Probed, base: LinkProfile | None) -> Path:
    """Write the profile as the file, or into the folder; return its path."""
    from gatherbench.bench.probe.probe import FEWEST_ROUNDS
    from gatherbench.bench.probe.profile import profile_of
    from gatherbench.bench.probe.rig import writing

    if done.rounds < FEWEST_ROUNDS:
        fail(f"{done.rounds} whole rounds are too few for a profile: give more --budget")
    file = place if place.suffix else place / f"{done.facts.machine}.toml"
    with writing(file):
        file.write_text(profile_of(done.known, done.facts, base).to_toml(), "utf-8")
    return file


def disk_folder(given: str) -> Path | None:
    """Return the folder whose disk is timed, by default the data folder; ``none``: no disk."""
    from gatherbench.datasets.store import data_root

    if given == "none":
        return None
    if given and not Path(given).is_dir():
        fail(f"--disk {given}: no such folder; name a folder on the disk, or none")
    root = Path(given) if given else data_root().absolute()
    # A data folder that does not exist yet will be on the disk of its first existing parent.
    return next(place for place in (root, *root.parents) if place.is_dir())


def _list() -> Table:
    from rich.table import Table

    from gatherbench.bench.probe.case import every_case

    shown = Table(box=None, pad_edge=False)
    for name in ("case", "when", "here", "what"):
        shown.add_column(name, no_wrap=name == "case")
    for one in every_case().values():
        when = ("probe", "--profile", "--cases")[one.scope]
        lacks = one.missing()
        here = "lacks " + ", ".join(lacks) if lacks else "ok"
        shown.add_row(one.name, when, here, f"{one.unit}: {one.what}")
    return shown
