"""Complete a run: predictions, a table, pictures and a report.

All of it comes from the rows, so it can be made again: after a full disk, or for another machine.
"""

from __future__ import annotations

import dataclasses
import shlex

from rich.console import Console
from rich.markup import escape

from gatherbench.bench.commands.common import DEFAULT_RESULTS
from gatherbench.bench.model.predict import is_prediction, predict
from gatherbench.bench.model.profile import LinkProfile, ProfileError, load_profile
from gatherbench.bench.read.tables import Run, predicted, run_in
from gatherbench.bench.run.guards import only_one
from gatherbench.bench.run.part import StoreError
from gatherbench.bench.run.store import RunStore, write_atomically
from gatherbench.bench.show.page import FILE_NAME, write_report
from gatherbench.bench.show.run import render, render_all
from gatherbench.bench.show.view import save_all
from gatherbench.bench.show.views.registry import views_of


def finish(store: RunStore, out: Console, err: Console) -> bool:
    """Predict epochs for the run's profile, print the table, write pictures and report.

    Returns:
        Whether all of it was written; ``err`` gets what was not, and the command that writes it.

    Raises:
        StoreError: the rows contradict each other.
    """
    profile, run, complete = own_profile(store), run_in(store), True
    if profile is not None:
        run, complete = _predicted(run, store, profile, err)
    complete = _as_parquet(store, err) and complete
    return _shown(run, store, out, err, everything=False) and complete


def predict_for(store: RunStore, profile: LinkProfile, out: Console, err: Console) -> bool:
    """Replace a run's predictions by those for ``profile``, and show them.

    Raises:
        StoreError: the rows contradict each other, or the run is still going.
        OSError: the predictions cannot be saved in the folder.
    """
    with only_one(store.folder):
        # Refuse unreadable rows before replacing any. The lock is held here, so no run is going.
        run = dataclasses.replace(run_in(store), going=False)
        write_atomically(store.profile_file, profile.to_toml())
        run, complete = _predicted(run, store, profile, err)
        complete = _as_parquet(store, err) and complete
    return _shown(run, store, out, err, everything=True) and complete


def _as_parquet(store: RunStore, err: Console) -> bool:
    """Write the tables of an ended run as Parquet, too, and return whether that worked."""
    if store.parts.is_dir():
        return True
    try:
        store.write_parquet()
    except OSError as error:
        again = f"gatherbench predict {shlex.quote(str(store.folder))}"
        return _unwritten(err, again, "tables as Parquet", error)
    return True


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


def _predicted(run: Run, store: RunStore, profile: LinkProfile, err: Console) -> tuple[Run, bool]:
    """Return the run with new predictions for the profile, and whether they could be saved."""
    rows, saved = predict(run, profile), True
    try:
        store.replace(is_prediction, rows)
    except OSError as error:
        remedy = f"gatherbench predict {shlex.quote(str(store.folder))}"
        saved = _unwritten(err, remedy, "predictions", error)
    return predicted(run, rows), saved


def _shown(run: Run, store: RunStore, out: Console, err: Console, *, everything: bool) -> bool:
    """Print tables, write pictures and report, print their places; return whether all succeeded."""
    folder = store.folder
    quoted = shlex.quote(str(folder))
    complete = True
    views = views_of(run)
    out.print(render_all(run, views) if everything else render(run))
    try:
        save_all(views, folder / "figures")
    except OSError as error:
        complete = _unwritten(err, f"gatherbench show --plot {quoted}", "pictures", error)
    report = folder / FILE_NAME
    try:
        write_report(run, report, views=views)
    except OSError as error:
        complete = _unwritten(err, f"gatherbench report {quoted}", "report", error)
    else:
        is_default = folder.parent.parent == DEFAULT_RESULTS
        command = f"gatherbench show --all {quoted * (not is_default)}".rstrip()
        line = f"Report: {report}; more: {command}"
        out.print(line, soft_wrap=True, highlight=False, markup=False)
    return complete


def _unwritten(err: Console, remedy: str, product: str, error: OSError) -> bool:
    """Print that ``product`` is missing, and the command that makes it later; return ``False``."""
    err.print(f"[red]cannot write the {product}:[/] {escape(str(error))}; every row is saved.")
    err.print(f"Once this is solved, run: {escape(remedy)}", soft_wrap=True)
    return False
