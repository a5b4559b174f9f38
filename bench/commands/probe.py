"""`gatherbench probe`: measure memory, link and GPU on their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gatherbench.bench.commands.common import FAILED, JsonOption, console, fail, print_table

_PROFILE = "Measure what the link model needs, into this .toml file or MACHINE.toml in this folder."
_BUDGET = "Seconds for all (0: 60, or 300 with --profile on a GPU)."


def probe(
    cases: Annotated[str, typer.Option(help="Names of --list, separated by commas.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="List cases, and what each lacks.")] = False,
    profile: Annotated[Path | None, typer.Option(help=_PROFILE)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder (default: a new one in probe/).")] = None,
    budget: Annotated[float, typer.Option(min=0, help=_BUDGET)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast the CPU and the GPU read rows of host memory, in one minute."""
    if profile is not None and profile.suffix not in ("", ".toml"):
        fail(f"--profile {profile}: name a folder, or a file that ends in .toml")
    if profile and cases:
        fail("--profile chooses its own cases: leave --cases out")
    import pandas as pd

    from gatherbench.bench.probe.case import Scope, every_case
    from gatherbench.bench.probe.points import writing
    from gatherbench.bench.probe.probe import probe as measure
    from gatherbench.bench.probe.profile import profile_of
    from gatherbench.bench.probe.table import table

    if list_:
        whens, lines = ("probe", "--profile", "--cases"), list[dict[str, str]]()
        for case in every_case().values():
            here = "lacks " + ", ".join(missing) if (missing := case.missing()) else "ok"
            what = f"{case.unit}: {case.what}"
            lines.append({"case": case.name, "when": whens[case.scope], "here": here, "what": what})
        return print_table(pd.DataFrame(lines), as_json)

    def say(text: str, stderr: bool = False) -> None:
        screen = console(stderr=stderr, quiet=as_json and not stderr)
        screen.print(text, highlight=False, markup=False, soft_wrap=True)

    if profile is not None:  # before it spends a minute
        place = profile.parent if profile.suffix else profile
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
    names = tuple(filter(None, cases.split(",")))
    scope = Scope.PROFILE if profile else Scope.MINUTE
    try:
        result = measure(
            out, names=names, scope=scope, budget_s=budget, say=partial(say, stderr=True)
        )
    except (MemoryError, RuntimeError) as error:
        say(f"error: {error}", stderr=True)
        raise typer.Exit(FAILED) from error
    say(result.title)
    console(quiet=as_json).print(table(result.medians))
    has_gpu = bool(result.facts["gpu"])
    if not has_gpu:
        say("No GPU was used: only the host was measured.")
    say(f"Written: {result.folder}/probe.csv (to send in), probe.png, rows.csv")
    if as_json:
        print_table(result.medians, as_json)
    if profile is not None:
        file = profile if profile.suffix else profile / f"{result.facts['machine']}.toml"
        with writing(file):
            file.write_text(profile_of(result.medians, result.facts).to_toml(), "utf-8")
        say(
            f"Use it: gatherbench predict RUN --profile {file}"
            if has_gpu
            else f"Written: {file}. It has no constants of a GPU and its link: measure on a machine"
            " with a GPU, or copy them from a profile (gatherbench list profiles)"
        )
    wrong_rows = result.medians["reason"].str.startswith("wrong")
    if wrong_rows.any() or not result.medians["rounds"].any():
        raise typer.Exit(FAILED)
