"""Complete a run: predictions, a table, pictures and a report.

All of it comes from the rows, so it can be made again: after a full disk, or for another machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from gatherbench.bench.commands.common import DEFAULT_RESULTS
from gatherbench.bench.model.predict import predict
from gatherbench.bench.model.profile import LinkProfile, ProfileError, load_profile
from gatherbench.bench.read.tables import Run, predicted
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.store import RunStore
from gatherbench.bench.show.page import FILE_NAME, write_report
from gatherbench.bench.show.run import render, render_all
from gatherbench.bench.show.view import save_all
from gatherbench.bench.show.views.registry import views_of


def own_profile(store: RunStore) -> LinkProfile | None:
    """Return the profile that the run is predicted for; ``None``: it has none.

    Raises:
        StoreError: the profile's file is damaged.
    """
    try:
        return load_profile(store.profile_file) if store.profile_file.exists() else None
    except ProfileError as error:
        remedy = f"gatherbench predict {shlex.quote(str(store.folder))} --profile NAME"
        raise StoreError(f"{error}; this writes it anew: {remedy}") from error


def finish(
    run: Run,
    store: RunStore,
    out: Console,
    err: Console,
    command: str = "run --resume",
    *,
    everything: bool = False,
) -> bool:
    """Predict epochs for the run's profile, print the tables, write pictures and report.

    Args:
        command: does this again, for the run's folder.
        everything: print every table.

    Returns:
        Whether all of it was written; ``err`` gets what was not, and the command that writes it.

    Raises:
        StoreError: the rows contradict each other.
    """
    folder, quoted = store.folder, shlex.quote(str(store.folder))
    complete, profile = True, own_profile(store)

    @contextmanager
    def writing(product: str) -> Iterator[None]:
        nonlocal complete
        try:
            yield
        except OSError as error:
            complete = False
            text = f"cannot write the {product}: {error}; every row is saved. Once this is solved"
            err.print(Text(f"{text}, run: gatherbench {command} {quoted}"), soft_wrap=True)

    if profile is not None:
        rows = predict(run, profile)
        run = predicted(run, rows)
        with writing("predictions"):
            store.predict(rows)
    views = views_of(run)
    out.print(render_all(run, views) if everything else render(run))
    with writing("pictures"):
        save_all(views, folder / "figures")
    with writing("report"):
        write_report(run, folder / FILE_NAME, views=views)
        is_default = folder.parent.parent == DEFAULT_RESULTS
        more = f"gatherbench show --all {quoted * (not is_default)}".rstrip()
        out.print(Text(f"Report: {folder / FILE_NAME}; more: {more}"), soft_wrap=True)
    return complete
