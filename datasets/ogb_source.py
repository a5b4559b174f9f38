"""The node-classification graphs of the Open Graph Benchmark, read by the ``ogb`` package itself.

What of ogb 1.3.6 does not suit an unattended run is fenced in here. It asks the network for a
newer version when imported. Its loader saves a second copy of the whole graph as a pickle, which
``torch.load`` refuses to read since torch 2.6 and which could run any code: so that copy is
neither written nor read. And for ogbn-papers100M it holds every array at once: so that graph is
streamed out of the archive, in OGB's layout.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.columns import check_nodes, columns, edge_keys
from gatherbench.datasets.dataset import DatasetSpec
from gatherbench.datasets.download import fetch_folder, published
from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.npz_stream import NpyStream, npz_member
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

Splits = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class OgbSource:
    """``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-papers100M``.

    OGB's own folder, e.g. ``ogbn_arxiv``, is looked for in ``raw/`` beside the dataset folders,
    and downloaded to there if it is missing.
    """

    name: str
    scalable: bool = False

    @property
    def summary(self) -> str:
        return str(published(self.name)["summary"])

    def estimate(self, scale: float) -> DatasetSpec:
        known = published(self.name)
        return DatasetSpec(
            name=self.name,
            scale=scale,
            num_nodes=known["nodes"],
            num_edges=known["edges"],
            feature_dim=known["feature_dim"],
            feature_dtype="float32",
            num_classes=known["num_classes"],
            source=known["source"],
            licence=known["licence"],
            notes=(*known["notes"], "repeated edges merged, self-loops kept"),
        )

    def prepare(self, folder: Path, scale: float, progress: Progress) -> None:
        nodeproppred = import_nodeproppred()
        raw = folder.parent / "raw" / self.name.replace("-", "_")
        meta = _meta(nodeproppred, self.name)
        if not raw.exists():
            fetch_folder(meta["url"], meta["download_name"], raw, progress)
        _check_release(raw, meta)
        splits = _splits(nodeproppred, self.name, raw)
        if meta["binary"] == "True":
            self._stream(raw / "raw", folder, splits, progress)
        else:
            progress(f"reading {raw}", 0.0)
            self._load(raw / "raw", folder, splits, meta["add_inverse_edge"] == "True", progress)
            progress(f"reading {raw}", 1.0)

    def _load(
        self, raw: Path, folder: Path, splits: Splits, add_inverse_edge: bool, progress: Progress
    ) -> None:
        """Through OGB's reader of ``.csv.gz`` files, which holds the whole graph."""
        import pandas as pd
        from ogb.io.read_graph_raw import read_csv_graph_raw

        with _quiet(), _explained(raw):
            graph = read_csv_graph_raw(str(raw), add_inverse_edge)[0]
            labels = classes(pd.read_csv(raw / "node-label.csv.gz", header=None).to_numpy())
        source, target = graph["edge_index"]
        features = graph["node_feat"]
        if features is None:  # OGB's reader takes a missing file for a graph without features
            raise DatasetError(f"{raw / 'node-feat.csv.gz'}: missing; remove {raw.parent}")
        symmetrise = published(self.name)["symmetrise"]
        keys = edge_keys(source, target, len(features), str(raw), symmetrise)
        spec = self._spec(features.shape, len(keys))
        with DatasetWriter(folder, spec, progress) as writer:
            writer.write_columns(columns(keys, spec.num_nodes))
            writer.write_features(features)
            writer.write_labels(labels)
            writer.write_splits(*splits)

    def _stream(self, raw: Path, folder: Path, splits: Splits, progress: Progress) -> None:
        """Out of ``data.npz``: 8 bytes an edge in memory, and never more than some rows."""
        data = raw / "data.npz"
        with npz_member(data, "node_feat") as table:
            if table.fortran or len(table.shape) != 2:
                raise DatasetError(f"{table.where}: expected rows, one after the other")
            shape = table.shape[0], table.shape[1]
        with npz_member(data, "edge_index") as edges:
            spec = self._spec(shape, max(edges.shape, default=0))
        with _explained(raw), np.load(raw / "node-label.npz") as file:
            labels = classes(file["node_label"])
        with DatasetWriter(folder, spec, progress) as writer:
            writer.write_labels(labels)
            writer.write_splits(*splits)
            with npz_member(data, "edge_index") as edges:
                keys = _streamed_keys(edges, spec.num_nodes, progress)
            writer.write_columns(columns(keys, spec.num_nodes))
            del keys
            with npz_member(data, "node_feat") as table:
                writer.write_features(_rows(table, progress))

    def _spec(self, shape: tuple[int, int], edges: int) -> DatasetSpec:
        """The estimate with the sizes that the files have; merging may leave fewer edges."""
        known = self.estimate(1.0)
        return replace(known, num_nodes=shape[0], num_edges=edges, feature_dim=shape[1])


def classes(labels: NDArray[Any]) -> NDArray[np.int64]:
    """OGB's labels ``[N, 1]``, NaN where there is none, as int64 ``[N]`` with -1 there."""
    flat = labels.reshape(-1)
    if flat.dtype.kind == "f":
        flat = np.where(np.isnan(flat), -1, flat)
    return flat.astype(np.int64)


def import_nodeproppred() -> Any:
    """The package ``ogb.nodeproppred``, imported without its look at the network.

    ``ogb/version.py`` starts a thread that asks the package index for a newer version, and goes
    without where the package ``outdated`` is missing: so it is missing for that moment.

    Raises:
        DatasetError: ogb is not installed.
    """
    hidden = sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        with _quiet():
            import ogb.nodeproppred
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"this graph is read by the package ogb ({error}); pip install 'gatherbench[ogb]'"
        ) from error
    finally:
        del sys.modules["outdated"]
        if hidden is not None:
            sys.modules["outdated"] = hidden
    return ogb.nodeproppred


def _meta(nodeproppred: Any, name: str) -> dict[str, str]:
    """OGB's own record of a dataset, from the table in its package."""
    import pandas as pd

    master = Path(nodeproppred.__file__).with_name("master.csv")
    table = pd.read_csv(master, index_col=0, keep_default_na=False)
    return {str(key): str(value) for key, value in table[name].items()}


def _check_release(raw: Path, meta: dict[str, str]) -> None:
    """Refuses what OGB would ask about on the terminal, or want to download again."""
    first = "data.npz" if meta["binary"] == "True" else "edge.csv.gz"
    for needed in (f"RELEASE_v{meta['version']}.txt", f"raw/{first}"):
        if not (raw / needed).is_file():
            raise DatasetError(
                f"{raw / needed}: missing; {raw} is an unfinished or an older download: remove "
                f"it, or put there what {meta['url']} has in {meta['download_name']!r}"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what OGB prints, its progress bars included, from the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _explained(raw: Path) -> Iterator[None]:
    """Turns what OGB, pandas, NumPy and torch raise on a damaged file into a remedy."""
    try:
        yield
    except (
        *(OSError, EOFError, KeyError, ValueError, RuntimeError),
        *(pickle.UnpicklingError, zipfile.BadZipFile),
    ) as error:
        raise DatasetError(
            f"{raw}: ogb cannot read it ({error}); remove the folder to download it anew"
        ) from error


@contextlib.contextmanager
def _numpy_in_pickles() -> Iterator[None]:
    """Lets ``torch.load`` read NumPy arrays of node ids, and still nothing that could run code.

    Files that were written with NumPy 1 name its module as it was called then.
    """
    import torch
    from numpy._core.multiarray import _reconstruct

    allowed: list[Any] = [
        np.ndarray,
        np.dtype,
        type(np.dtype(np.int64)),
        (_reconstruct, "numpy._core.multiarray._reconstruct"),
        (_reconstruct, "numpy.core.multiarray._reconstruct"),
    ]
    with torch.serialization.safe_globals(allowed):
        yield


def _splits(nodeproppred: Any, name: str, raw: Path) -> Splits:
    """The train, validation and test ids, as OGB reads them."""

    class Layout(nodeproppred.NodePropPredDataset):
        """OGB's dataset without the step that loads and saves the graph."""

        def pre_process(self) -> None:
            pass

    with _explained(raw), _numpy_in_pickles():
        split = Layout(name, root=str(raw.parent)).get_idx_split()
        train, val, test = (np.asarray(split[p], np.int64) for p in ("train", "valid", "test"))
    return train, val, test


def _streamed_keys(edges: NpyStream, num_nodes: int, progress: Progress) -> NDArray[np.int64]:
    """The keys of ``edge_index`` ``[2, E]``: all sources, then all targets, or pairs if Fortran."""
    if len(edges.shape) != 2 or edges.shape[0] != 2:
        raise DatasetError(f"{edges.where}: expected shape (2, E), found {edges.shape}")
    count = edges.shape[1]
    keys = np.empty(count, np.int64)
    for first in range(0, 2 * count, _CHUNK):
        ids = edges.read(min(_CHUNK, 2 * count - first)).astype(np.int64)
        check_nodes(ids, num_nodes, edges.where)
        progress("reading edges", first / (2 * count))
        if edges.fortran:
            keys[first // 2 : (first + len(ids)) // 2] = ids[1::2] * num_nodes + ids[0::2]
            continue
        sources = ids[: max(0, count - first)]
        keys[first : first + len(sources)] = sources
        targets = ids[len(sources) :]
        start = max(0, first - count)
        keys[start : start + len(targets)] += targets * num_nodes
    return keys


def _rows(table: NpyStream, progress: Progress) -> Iterator[NDArray[np.float32]]:
    """The feature table in runs of rows, as float32."""
    rows, width = table.shape
    step = max(1, _CHUNK // width)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        yield table.read(count * width).reshape(count, width).astype(np.float32, copy=False)
        progress("writing features", (first + count) / rows)
