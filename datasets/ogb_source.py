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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.arrays import class_numbers, explained, member, streamed
from gatherbench.datasets.columns import edge_keys
from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.download import Published, require_folder
from gatherbench.datasets.relations import EdgeKind, one_range, write_edges
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter
from gatherbench.plugins import installing

Triplet = tuple[str, str, str]
#: The remedy for an unreadable download.
ANEW = "remove the folder to download it anew"


@dataclass(frozen=True, slots=True)
class OgbSource(Published):
    """``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-papers100M``.

    OGB's own folder, e.g. ``ogbn_arxiv``, is in ``raw/`` next to the dataset folders; if it is
    missing, it is downloaded.
    """

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        binary = self.name == "ogbn-papers100M"
        raw, meta = downloaded(self, folder, progress, "data.npz" if binary else "edge.csv.gz")
        splits = _splits(raw / "split" / meta["split"])
        if binary:
            self._map(raw / "raw", folder, splits, progress)
        else:
            progress(f"reading {raw}", 0.0)
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
        both_ways = self.known["symmetrise"]
        keys = edge_keys([(source, target)], len(source), len(features), str(raw), both_ways)
        with DatasetWriter(folder, self._spec(features.shape, len(keys))) as writer:
            write_edges(writer, keys)
            writer.write_features(features)
            writer.write_labels(class_numbers(labels, str(raw / "node-label.csv.gz")))
            writer.write_splits(*splits)

    def _map(self, raw: Path, folder: Path, splits: list[Any], progress: Progress) -> None:
        """Load from ``data.npz``: edges are unpacked to the disk, the table is read in runs."""
        data, room = raw / "data.npz", folder.parent
        progress("unpack arrays", 0.0)
        labels = member(raw / "node-label.npz", "node_label", room, "fi", None, 1)
        nodes = len(labels)
        edges = member(data, "edge_index", room, "i", 2, None)
        keys = edge_keys([(edges[0], edges[1])], edges.shape[1], nodes, str(data))
        del edges  # frees its 26 GB of disk before the table takes 57
        shape, table = streamed(data, "node_feat", nodes)
        with DatasetWriter(folder, self._spec(shape, len(keys))) as writer:
            writer.write_labels(class_numbers(labels, str(raw / "node-label.npz")))
            writer.write_splits(*splits)
            write_edges(writer, keys)
            del keys
            writer.write_features(table)

    def _spec(self, shape: tuple[int, ...], edges: int) -> DatasetSpec:
        """Return the estimate with the sizes of the files; merging may leave fewer edges."""
        known = self.estimate(1.0)
        return replace(known, num_nodes=shape[0], num_edges=edges, feature_dim=shape[1])


@dataclass(frozen=True, slots=True)
class MagSource(Published):
    """``ogbn-mag``: types of nodes and kinds of edges, as one graph with one table.

    OGB has rows for papers alone. A node without a row gets the mean of its neighbours' rows, as in
    the baselines of MAG240M (Hu et al., OGB-LSC, NeurIPS 2021).
    """

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        raw, meta = downloaded(self, folder, progress, "triplet-type-list.csv.gz")
        progress(f"reading {raw}", 0.0)
        graph, labels, splits = _read_mag(raw, meta["split"])
        # The type that has labels, and so the training nodes, comes first.
        (scored,) = labels
        numbers: dict[str, int] = graph["num_nodes_dict"]
        types = [scored, *sorted(numbers.keys() - {scored})]
        counts = {node_type: numbers[node_type] for node_type in types}
        triplets = sorted(graph["edge_index_dict"].items())
        edges = [EdgeKind(a, name, b, ends.T, str(raw)) for (a, name, b), ends in triplets]
        keys, kinds, names = one_range(edges, counts, both_ways=True)
        table = table_of(graph["node_feat_dict"], graph["edge_index_dict"], counts)
        spec = replace(
            self.estimate(1.0),
            num_nodes=len(table),
            num_edges=len(keys),
            feature_dim=table.shape[1],
            relations=names,
            node_types=tuple(counts.items()),
        )
        of_nodes = np.full(len(table), -1, np.int64)
        of_nodes[: counts[scored]] = class_numbers(labels[scored], str(raw))
        with DatasetWriter(folder, spec) as writer:
            write_edges(writer, keys, kinds)
            writer.write_features(table)
            writer.write_labels(of_nodes)
            writer.write_splits(*(part[scored].astype(np.int64) for part in splits))


def _read_mag(
    raw: Path, split: str
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], tuple[Any, ...]]:
    """Read the graph, its labels by type, and its splits by type, as OGB has them."""
    from ogb.io import read_graph_raw as ogb

    with quiet(), explained(f"{raw}: ogb cannot read it", ANEW):
        graph = ogb.read_csv_heterograph_raw(str(raw / "raw"))[0]
        labels = ogb.read_node_label_hetero(str(raw / "raw"))
        splits = ogb.read_nodesplitidx_split_hetero(str(raw / "split" / split))
    if len(labels) != 1:
        raise DatasetError(f"{raw}: {len(labels)} types of nodes have labels, expected one; {ANEW}")
    return graph, labels, splits


def table_of(
    given: Mapping[str, NDArray[Any]],
    triplets: Mapping[Triplet, NDArray[np.int64]],
    counts: Mapping[str, int],
) -> NDArray[np.float32]:
    """Return the rows of all nodes, float32 ``[N, D]``, one type after the other.

    A type without rows gets the means of its neighbours' rows, once these have some; a node without
    such a neighbour gets zeros.

    Raises:
        DatasetError: every type lacks rows, or one has only neighbours that lack them.
    """
    from scipy.sparse import coo_array

    rows = {node_type: table.astype(np.float32) for node_type, table in given.items()}
    ways = [(head, ends[0], tail, ends[1]) for (head, _, tail), ends in triplets.items()]
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
    the package ``outdated`` is missing: so this hides it during the import.

    Raises:
        DatasetError: ogb is not installed.
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

    Raises:
        DatasetError: a folder that OGB would ask about on the terminal, or download again: it has
            no file ``first``, or is of another release; or as ``require_folder``.
    """
    import pandas as pd

    master = Path(import_nodeproppred().__file__).with_name("master.csv")
    table = pd.read_csv(master, index_col=0, keep_default_na=False)
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


def _splits(folder: Path) -> list[NDArray[np.int64]]:
    """Read the train, validation and test ids from OGB's text files."""
    import pandas as pd

    with explained(f"{folder}: ogb cannot read it", ANEW):
        files = [folder / f"{part}.csv.gz" for part in ("train", "valid", "test")]
        return [pd.read_csv(file, header=None).to_numpy(np.int64)[:, 0] for file in files]
