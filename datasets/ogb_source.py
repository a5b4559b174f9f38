"""Read node-classification graphs of the Open Graph Benchmark by the ``ogb`` package itself.

Three habits of ogb 1.3.6 do not suit an unattended run and are avoided here. Its import asks the
network for a newer version. Its loader saves a second copy of the whole graph as a pickle and reads
splits from one that it finds; as a pickle can run any code, this module uses none. And for
ogbn-papers100M it holds every array in memory at once, so that graph is mapped here.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import class_numbers, explained, member, streamed
from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.download import Published, require_folder
from gatherbench.datasets.edges import EdgeKind, edge_keys, one_range
from gatherbench.datasets.source import Progress
from gatherbench.plugins import installing

#: The remedy for an unreadable download.
ANEW = "remove the folder to download it anew"
#: OGB's names of the splits.
_PARTS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True)
class OgbSource(Published):
    """``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-papers100M``, in ``raw/`` as OGB unpacks it."""

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        import pandas as pd

        binary = self.name == "ogbn-papers100M"
        raw, meta = downloaded(self, folder, progress, "data.npz" if binary else "edge.csv.gz")
        progress(f"reading {raw}", 0.0)
        with explained(f"{raw}: ogb cannot read it", ANEW):
            parts = [raw / "split" / meta["split"] / f"{part}.csv.gz" for part in _PARTS]
            splits = [pd.read_csv(part, header=None).to_numpy(np.int64)[:, 0] for part in parts]
        if binary:
            self._map(raw / "raw", folder, splits)
        else:
            self._load(raw / "raw", folder, splits, meta["add_inverse_edge"] == "True")

    def _load(self, raw: Path, folder: Path, splits: list[Any], add_inverse_edge: bool) -> None:
        """Load by OGB's reader of ``.csv.gz`` files, which holds the whole graph in memory."""
        import pandas as pd
        from ogb.io.read_graph_raw import read_csv_graph_raw

        with quiet(), explained(f"{raw}: ogb cannot read it", ANEW):
            graph = read_csv_graph_raw(str(raw), add_inverse_edge)[0]
            labels = pd.read_csv(raw / "node-label.csv.gz", header=None).to_numpy()
        source, target = graph["edge_index"]
        features = graph["node_feat"]
        if features is None:  # for OGB's reader a missing file means a graph without features
            raise DatasetError(f"{raw / 'node-feat.csv.gz'}: missing; remove {raw.parent}")
        nodes, width = features.shape
        both_ways = self.known["symmetrise"]
        keys = edge_keys([(source, target)], len(source), nodes, str(raw), both_ways)
        classes = class_numbers(labels, str(raw / "node-label.csv.gz"))
        self.write(folder, keys, features, classes, splits, num_nodes=nodes, feature_dim=width)

    def _map(self, raw: Path, folder: Path, splits: list[Any]) -> None:
        """Load from ``data.npz``: edges are unpacked to the disk, the table is read in runs."""
        data, file = raw / "data.npz", raw / "node-label.npz"
        labels = class_numbers(member(file, "node_label", folder.parent, "fi", None, 1), str(file))
        edges = member(data, "edge_index", folder.parent, "i", 2, None)
        keys = edge_keys([(edges[0], edges[1])], edges.shape[1], len(labels), str(data))
        del edges  # frees its 26 GB of disk before the table takes 57
        (_, width), table = streamed(data, "node_feat", len(labels))
        self.write(folder, keys, table, labels, splits, feature_dim=width)


@dataclass(frozen=True, slots=True)
class MagSource(Published):
    """``ogbn-mag``: types of nodes and kinds of edges, as one graph with one table.

    OGB has rows for papers alone. A node without a row gets the mean of its neighbours' rows, as in
    the baselines of MAG240M (Hu et al., OGB-LSC, NeurIPS 2021).
    """

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        raw, meta = downloaded(self, folder, progress, "triplet-type-list.csv.gz")
        progress(f"reading {raw}", 0.0)
        from ogb.io import read_graph_raw as ogb

        with quiet(), explained(f"{raw}: ogb cannot read it", ANEW):
            graph = ogb.read_csv_heterograph_raw(str(raw / "raw"))[0]
            labels = ogb.read_node_label_hetero(str(raw / "raw"))
            parts = ogb.read_nodesplitidx_split_hetero(str(raw / "split" / meta["split"]))
        if len(labels) != 1:
            many = f"{len(labels)} types of nodes have labels, expected one"
            raise DatasetError(f"{raw}: {many}; {ANEW}")
        # The type that has labels, and so the training nodes, comes first.
        (scored,) = labels
        numbers: dict[str, int] = graph["num_nodes_dict"]
        counts = {kind: numbers[kind] for kind in (scored, *sorted(numbers.keys() - {scored}))}
        triplets = sorted(graph["edge_index_dict"].items())
        edges = [EdgeKind(a, name, b, ends.T, str(raw)) for (a, name, b), ends in triplets]
        keys, kinds, names = one_range(edges, counts, both_ways=True)
        table = table_of(graph["node_feat_dict"], graph["edge_index_dict"], counts)
        classes = np.full(len(table), -1, np.int64)
        classes[: counts[scored]] = class_numbers(labels[scored], str(raw))
        splits = [part[scored].astype(np.int64) for part in parts]
        types = {"relations": names, "node_types": tuple(counts.items())}
        width = table.shape[1]
        self.write(folder, keys, table, classes, splits, kinds, feature_dim=width, **types)


def table_of(
    given: Mapping[str, NDArray[Any]],
    triplets: Mapping[tuple[str, str, str], NDArray[np.int64]],
    counts: Mapping[str, int],
) -> NDArray[np.float32]:
    """Return the rows of all nodes, float32 ``[N, D]``, one type after the other.

    A type without rows gets the means of its neighbours' rows, once these have some; a node without
    such a neighbour gets zeros. If no neighbour ever has rows, it is a ``DatasetError``.
    """
    from scipy.sparse import coo_array

    rows = {node_type: table.astype(np.float32) for node_type, table in given.items()}
    ways = [(a, u, b, v) for (a, _, b), (u, v) in triplets.items()]
    ways = [way for a, u, b, v in ways for way in ((a, u, b, v), (b, v, a, u))]
    while lacking := [node_type for node_type in counts if node_type not in rows]:
        tables: dict[str, NDArray[np.float32]] = {}
        for node_type in lacking:
            size, sums = counts[node_type], []
            degree = np.zeros((size, 1), np.int64)
            for own_type, own, other_type, others in ways:
                if own_type == node_type and other_type in rows:
                    shape = size, counts[other_type]
                    joined = coo_array((np.ones(len(own), np.float32), (own, others)), shape)
                    sums.append(joined.tocsr() @ rows[other_type])
                    degree += np.bincount(own, minlength=size)[:, None]
            if sums:
                tables[node_type] = (sum(sums) / np.maximum(degree, 1)).astype(np.float32)
        if not tables:
            raise DatasetError(f"no rows for nodes of type {', '.join(lacking)}")
        rows |= tables
    return np.concatenate([rows[node_type] for node_type in counts])


def import_nodeproppred() -> Any:
    """Import the package ``ogb.nodeproppred`` without its access to the network.

    ``ogb/version.py`` starts a thread that asks the package index for a newer version, except if
    the package ``outdated`` is missing: so this hides it during the import. A missing ogb is a
    ``DatasetError``.
    """
    hidden = sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        with quiet():
            import ogb.nodeproppred
    except ModuleNotFoundError as error:
        remedy = installing("ogb")
        raise DatasetError(f"the package ogb reads this graph ({error}); {remedy}") from error
    finally:
        del sys.modules["outdated"]
        if hidden is not None:
            sys.modules["outdated"] = hidden
    return ogb.nodeproppred


def downloaded(
    source: Published, folder: Path, progress: Progress, first: str
) -> tuple[Path, dict[str, str]]:
    """Return OGB's own folder of a graph, downloaded if missing, and OGB's record of the graph.

    It raises as ``require_folder``, also for a folder that OGB would ask about on the terminal, or
    download again: one of another release, or without the file ``first``.
    """
    import pandas as pd

    master = Path(import_nodeproppred().__file__).with_name("master.csv")
    table = pd.read_csv(master, index_col=0, keep_default_na=False, dtype=str)
    meta = {str(key): str(value) for key, value in table[source.name].items()}
    raw = folder.parent / "raw" / source.name.replace("-", "_")
    files = f"RELEASE_v{meta['version']}.txt", f"raw/{first}"
    checksum = source.known.get("sha256")
    require_folder(meta["url"], meta["download_name"], raw, files, progress, checksum)
    return raw, meta


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide OGB's output, progress bars included, from the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
