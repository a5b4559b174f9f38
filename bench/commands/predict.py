"""`gatherbench predict`: what another machine would do with a run that is there."""

from __future__ import annotations

from typing import Annotated

import typer

from gatherbench.bench.commands.common import (
    DEFAULT_RESULTS,
    FAILED,
    ResultsOption,
    RunArgument,
    bad_input,
    console,
    fail,
    run_folder,
)


def predict(
    folder: RunArgument = None,
    profile: Annotated[
        str,
        typer.Option(
            help="Machine to predict for: a name of `gatherbench list profiles`, or a .toml file "
            "(default: the run's own, else as for a new run)."
        ),
    ] = "",
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Predict a run's epochs on another machine. Nothing is measured again."""
    from gatherbench.bench.commands.execute import usual_profile
    from gatherbench.bench.commands.finish import own_profile, predict_for
    from gatherbench.bench.model.profile import ProfileError, load_profile
    from gatherbench.bench.read.tables import run_in
    from gatherbench.bench.run.store import RunStore, StoreError

    with bad_input(StoreError, ProfileError):
        store = RunStore.open(run_folder(folder, results))
        machine = run_in(store).machine
        own = None if profile else own_profile(store)
        named = profile or usual_profile(str(store.plan().get("device", "")), machine)
        if own is None and not named:
            fail(
                f"{store.folder}: has no profile, and its machine no calibration here; name one:"
                " --profile NAME (gatherbench list profiles)"
            )
        try:
            wanted = own or load_profile(named)
            whole = predict_for(store, wanted, console(), console(stderr=True))
        except OSError as error:
            fail(
                f"{store.profile_file}: cannot be written: {error}; make room, or copy the folder"
                " where you may write and predict the copy"
            )
    if not whole:
        raise typer.Exit(FAILED)
