"""What a run leaves when it is over: predictions, a table, pictures and a report.

All of it comes from the rows, so it can be made again: where the disk was full, or for another
machine.
"""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.markup import escape

from gatherbench.bench.figures.all import save_all
from gatherbench.bench.gathered import SAMPLES_FILE
from gatherbench.bench.linkmodel.predict import is_prediction, predict
from gatherbench.bench.linkmodel.profile import LinkProfile
from gatherbench.bench.report.page import FILE_NAME, write_report
from gatherbench.bench.show.run import render
from gatherbench.bench.store import RunStore, write_atomically
from gatherbench.bench.tables import load_run


def finish(store: RunStore, profile: LinkProfile | None, out: Console, err: Console) -> bool:
    """Predict epochs for ``profile``, print the table, write pictures and report, say where.

    Returns:
        Whether all of it was written; ``err`` has been told what was not, and what makes it.

    Raises:
        RunError: the rows contradict each other.
    """
    folder = store.folder
    where = shlex.quote(str(folder))
    whole = True
    if profile is not None:
        try:
            store.replace(is_prediction, predict(load_run(folder), profile))
        except OSError as error:
            whole = _unwritten(err, f"gatherbench predict {where}", "predictions", error)
    measured = load_run(folder)
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


def predict_for(store: RunStore, profile: LinkProfile, out: Console, err: Console) -> bool:
    """Predict a run's epochs for ``profile`` in place of the one that it had, and finish it again.

    Raises:
        RunError: the rows contradict each other.
        OSError: the profile cannot be kept in the folder.
    """
    load_run(store.folder)  # refuse what cannot be read before anything is replaced
    write_atomically(store.profile_file, profile.to_toml())
    return finish(store, profile, out, err)


def _unwritten(err: Console, remedy: str, what: str, error: OSError) -> bool:
    """Say that there is no ``what``, and what makes it once there is room; returns ``False``."""
    err.print(f"[red]no {what}:[/] {escape(str(error))}; every row is safe.")
    err.print(f"When that is put right: {remedy}", soft_wrap=True)
    return False
