"""What lies in the data folder: graphs, their minibatches, downloads, and how much they take.

To have room again: `gatherbench datasets remove`, and `rm` for downloads and what has no graph.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatherbench.bench.read.units import bytes_in_words
from gatherbench.bench.sampling.prepare import TRACES, traces_of
from gatherbench.bench.show.listing import sizes
from gatherbench.datasets.dataset import SPEC_FILE, DatasetError, read_spec


def on_disk(root: Path) -> RenderableType:
    """A line for each graph, with the minibatches that were drawn from it; then what else is there.

    Args:
        root: of :func:`gatherbench.datasets.store.data_root`; it need not exist.

    Raises:
        OSError: a folder cannot be looked into, so nobody knows what it takes.
    """
    table = Table("dataset", "nodes", "edges", "row", "on disk", "its minibatches")
    graphs, traces = _folders(root), _folders(root / TRACES)
    taken = {place: bytes_below(place) for place in [*graphs, *traces]}
    total = sum(taken[place] for place in graphs)
    taken.pop(root / TRACES, None)
    for folder in [place for place in graphs if (place / SPEC_FILE).is_file()]:
        try:
            about = sizes(read_spec(folder)[0])[1:]
        except DatasetError:
            about = ("damaged", "–", "–")
        drawn = [taken.pop(trace) for trace in traces_of(folder) if trace in taken]
        said = f"{bytes_in_words(sum(drawn))} for {len(drawn)}" if drawn else "–"
        table.add_row(Text(folder.name), *about, bytes_in_words(taken.pop(folder)), said)
    # What is left has no graph: the rest of the data folder, and minibatches of graphs now gone.
    others = [Text(f"{bytes_in_words(size):>8}  {place}") for place, size in taken.items()]
    said = f"{bytes_in_words(total)} in {root}; to have room: gatherbench datasets remove NAME"
    return Group(*([table] if table.row_count else []), *others, Text(said))


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def bytes_below(folder: Path) -> int:
    """As the files say; what vanishes meanwhile takes nothing."""
    total = 0
    for parent, _, names in os.walk(folder, onerror=_unless_gone):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
