"""What a run leaves when it is over: predictions, a table, pictures and a report.

All of it comes from the rows, so it can be made again: where the disk was full, or for another
machine.
"""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.markup import escape

from gatherbench.bench.model.predict import is_prediction, predict
from gatherbench.bench.model.profile import LinkProfile, ProfileError, load_profile
from gatherbench.bench.read.tables import run_in
from gatherbench.bench.run.guards import only_one
from gatherbench.bench.run.samples import SAMPLES_FILE
from gatherbench.bench.run.store import RunStore, StoreError, write_atomically
from gatherbench.bench.show.figures.draw import save_all
from gatherbench.bench.show.report.page import FILE_NAME, write_report
from gatherbench.bench.show.run import render
from gatherbench.bench.show.sentences.provenance import modelled_for


def finish(store: RunStore, out: Console, err: Console) -> bool:
    """Predict epochs for the run's profile, print the table, write pictures and report, say where.

    Returns:
        Whether all of it was written; ``err`` has been told what was not, and what makes it.

    Raises:
        StoreError: the rows contradict each other.
    """
    profile = own_profile(store)
    predicted = profile is None or _predicted(store, profile, err)
    return _shown(store, out, err) and predicted


def predict_for(store: RunStore, profile: LinkProfile, out: Console, err: Console) -> bool:
    """Predict a run's epochs for ``profile`` in place of the one that it had, and finish it again.

    Raises:
        StoreError: the rows contradict each other, or the run is still going.
        OSError: the profile cannot be kept in the folder.
    """
    with only_one(store.folder):
        # Refuses what cannot be read before anything is replaced.
        others = set(modelled_for(run_in(store))) - {profile.name}
        write_atomically(store.profile_file, profile.to_toml())
        predicted = _predicted(store, profile, err)
    if others and predicted:
        said = f"for {profile.name}, in place of those for {', '.join(sorted(others))}"
        out.print(f"The run's predictions are now {said}: a copy of its folder keeps both.\n")
    # Beyond the lock, by which what is shown would take the run for one that is still going.
    return _shown(store, out, err) and predicted


def own_profile(store: RunStore) -> LinkProfile | None:
    """The profile that the run is predicted for; ``None``: it has none.

    Raises:
        StoreError: its file is damaged.
    """
    try:
        return load_profile(store.profile_file) if store.profile_file.exists() else None
    except ProfileError as error:
        remedy = f"gatherbench predict {shlex.quote(str(store.folder))} --profile NAME"
        raise StoreError(f"{error}; this writes it anew: {remedy}") from error


def _predicted(store: RunStore, profile: LinkProfile, err: Console) -> bool:
    """Replace the predictions among the rows by those for the profile; was there room?"""
    try:
        store.replace(is_prediction, predict(run_in(store), profile))
    except OSError as error:
        remedy = f"gatherbench predict {shlex.quote(str(store.folder))}"
        return _unwritten(err, remedy, "predictions", error)
    return True


def _shown(store: RunStore, out: Console, err: Console) -> bool:
    """Print the table, write pictures and report, say where; whether all of it was written."""
    folder = store.folder
    where = shlex.quote(str(folder))
    whole = True
    measured = run_in(store)
    out.print(render(measured))
    files = [("table", store.rows_file)]
    files += [("samples", path) for path in folder.glob(SAMPLES_FILE)]
    files += [("trace", path) for path in sorted(folder.glob("traces/*.json.gz"))]
    try:
        pictures = save_all(measured, folder / "figures")
        files += [("picture", path) for path in pictures if path.suffix == ".png"]
    except OSError as error:
        whole = _unwritten(err, f"gatherbench plot {where}", "pictures", error)
    try:
        files.append(("report", write_report(measured, folder / FILE_NAME)))
    except OSError as error:
        whole = _unwritten(err, f"gatherbench report {where}", "report", error)
    for what, path in files:
        out.print(f"{what:10}{path}", soft_wrap=True, highlight=False)
    return whole


def _unwritten(err: Console, remedy: str, what: str, error: OSError) -> bool:
    """Say that there is no ``what``, and what makes it once there is room; returns ``False``."""
    err.print(f"[red]no {what}:[/] {escape(str(error))}; every row is safe.")
    err.print(f"When that is put right: {remedy}", soft_wrap=True)
    return False
