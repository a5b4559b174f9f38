"""List the graphs that are available by name, and prepare the folder of one.

To add a source, write one file with one class, and one entry in :data:`SOURCES`. Other packages
announce theirs (``docs/extending.md``).
"""

from __future__ import annotations

from pathlib import Path

from gatherbench.datasets.dataset import SPEC_FILE, DatasetError, import_again, not_ours
from gatherbench.datasets.files import exclusive
from gatherbench.datasets.igb_source import SIZES, IgbSource
from gatherbench.datasets.ogb_source import MagSource, OgbSource
from gatherbench.datasets.reddit_source import RedditSource
from gatherbench.datasets.source import GraphSource, Progress, silent
from gatherbench.datasets.store import data_root, dataset_folder, open_dataset
from gatherbench.datasets.synthetic import HashedSource, named_shapes
from gatherbench.datasets.wordnet.source import WordnetSource
from gatherbench.plugins import PluginError, Plugins, nearest

SOURCES: tuple[GraphSource, ...] = (
    WordnetSource(),
    *named_shapes(),
    *map(HashedSource, named_shapes()),
    *map(OgbSource, ("ogbn-arxiv", "ogbn-products", "ogbn-papers100M")),
    MagSource("ogbn-mag"),
    RedditSource(),
    *(IgbSource(f"{family}-{size}") for family in ("igb", "igbh") for size in SIZES),
)


def _checked(loaded: type[GraphSource]) -> GraphSource:
    source = loaded()
    if not isinstance(source, GraphSource):
        raise TypeError("it lacks something of gatherbench.datasets.source.GraphSource")
    source.estimate(1.0)  # fails here if it is broken
    return source


#: Sources of other packages: classes that are built without arguments.
PLUGINS = Plugins("gatherbench.datasets", _checked, lambda: (s.name for s in SOURCES))


def list_sources() -> tuple[GraphSource, ...]:
    """Return every source, in the order of the user's list."""
    return *SOURCES, *PLUGINS.usable()


def source_names() -> list[str]:
    """Return the name of every source, the built-in ones first, without importing a package."""
    return [*(source.name for source in SOURCES), *PLUGINS.packages()]


def get_source(name: str) -> GraphSource:
    """Return the source called ``name``; a ``DatasetError`` names the nearest one, or says that
    a graph of that name was imported, or why another package's source fails."""
    sources = {source.name: source for source in SOURCES}
    try:
        source = sources.get(name) or PLUGINS.load(name)
    except PluginError as error:
        raise DatasetError(str(error)) from error
    if source is not None:
        return source
    known, graphs = source_names(), [folder.name for folder in imported()]
    if name in graphs:
        raise DatasetError(f"{name} was imported: it is one fixed graph, its scale is 1")
    known += graphs
    hint = nearest(name, known, cutoff=0.4)
    raise DatasetError(f"no dataset called {name!r}; there are {', '.join(known)}{hint}")


def imported() -> list[Path]:
    """Return the folders below ``data_root()`` of imported graphs."""
    folders = sorted(spec.parent for spec in data_root().glob(f"*/{SPEC_FILE}"))
    made = source_names()
    return [folder for folder in folders if folder.name.partition("@")[0] not in made]


def prepare_dataset(
    name: str,
    scale: float = 1.0,
    root: Path | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Path:
    """Return the folder of a dataset, ready to be opened; make it first if it is missing.

    A second process that prepares the same dataset waits for the first and uses its folder.

    Args:
        name: a source, or a graph that was imported under this name.
        scale: multiplies the numbers of nodes and edges.
        root: instead of ``data_root()``.
        force: make it anew even if it exists.

    Raises:
        DatasetError: the name is unknown; the source lacks this scale; the folder exists but is
            broken (``force`` replaces it); or the source is unavailable here.
    """
    folder = dataset_folder(name, scale, root)
    if folder.exists() and not force:
        open_dataset(folder)
        return folder
    if folder.exists() and name not in source_names():
        why = not_ours(folder) or f"{name} is no built-in dataset: {import_again(name)}"
        raise DatasetError(why)
    source = get_source(name)
    if scale != 1 and not source.scalable:
        raise DatasetError(f"{name} is one fixed graph: it has no scale {scale:g}, only 1")
    with exclusive(folder):
        if force or not folder.exists():
            source.prepare(folder, scale, progress)
            open_dataset(folder)
    return folder
