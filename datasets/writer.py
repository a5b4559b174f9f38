"""Write a dataset folder array by array, and check it as a whole before it can be opened."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatherbench.datasets.dataset import (
    ARRAYS,
    SPLITS,
    ArrayFile,
    DatasetError,
    DatasetSpec,
    GraphDataset,
    array_path,
    folder_bytes,
    header_bytes,
    index_dtype,
    not_ours,
    write_spec,
)
from gatherbench.datasets.files import check_free_space, exclusive, new_folder
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.store import check_values, map_array, remember

#: Bytes of a header's prefix: the magic, the version, and the length of the rest, two bytes.
_PREFIX_BYTES = np.lib.format.MAGIC_LEN + 2
#: Elements written at a time from a whole table.
_CHUNK = 1 << 22


class DatasetWriter:
    """Write one dataset folder: a context manager that publishes the folder at its end.

    Each of :meth:`write_columns`, :meth:`write_features`, :meth:`write_labels` and
    :meth:`write_splits` is called once, in any order. The writer replaces an existing dataset and
    refuses any other existing folder. A second writer of the same folder waits for the first.

    Args:
        folder: the dataset's folder, e.g. from ``dataset_folder``.
        spec: its sizes. ``num_edges`` may be an estimate: the written number replaces it.
        progress: called during the full check before publishing.

    Raises:
        DatasetError: on entering or while writing, the place is not writable or the disk is full;
            at the end, a part is missing, differs in size from the spec, or holds an invalid value
            (see ``open_dataset``).
    """

    def __init__(self, folder: Path, spec: DatasetSpec, progress: Progress = silent) -> None:
        self.folder = folder
        self.spec = spec
        self._progress = progress
        self._files: dict[str, ArrayFile] = {}
        self._notes: list[str] = []
        self._context = self._publishing()

    def __enter__(self) -> Self:
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    @contextlib.contextmanager
    def _publishing(self) -> Iterator[None]:
        self._refuse_foreign()
        with exclusive(self.folder):
            check_free_space(self.folder.parent, folder_bytes(self.spec), self.spec.name)
            with new_folder(self.folder) as self._staged:
                yield
                self._complete()

    def note(self, text: str) -> None:
        """Add a sentence to the spec's notes, e.g. a property that was found while writing."""
        self._notes.append(text)

    def note_content(self) -> None:
        """Add a checksum of all arrays to the notes; they must be written before.

        It identifies an imported graph, which has neither seed nor release.
        """
        self._progress("checksum", 0.0)
        whole = hashlib.sha256()
        for array in ARRAYS:
            with array_path(self._staged, array).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        self.note(f"checksum of the arrays: {whole.hexdigest()[:16]}")

    def keep(self, name: str, values: NDArray[Any]) -> None:
        """Save an optional array in a file of its own in the folder."""
        np.save(self._staged / name, values)

    def write_columns(
        self, columns: Iterable[tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]
    ) -> NDArray[np.int64]:
        """Write a graph in runs of columns, without holding all of it; return the in-degrees.

        Args:
            columns: runs of columns in order: the number of in-neighbours of each (``[n]``), and
                these in-neighbours one after the other (``[sum]``).
        """
        degrees: list[NDArray[np.int64]] = []

        def indices() -> Iterable[NDArray[np.integer[Any]]]:
            for degree, rows in columns:
                if int(degree.sum()) != len(rows):
                    raise DatasetError(f"{self.folder}: degrees and in-neighbours disagree")
                degrees.append(degree.astype(np.int64, copy=False))
                yield rows

        self._write("indices", index_dtype(self.spec.num_nodes), indices())
        degree = np.concatenate(degrees)
        self._write("indptr", np.int64, (np.zeros(1, np.int64), np.cumsum(degree)))
        return degree

    def write_features(self, features: NDArray[Any] | Iterable[NDArray[Any]]) -> None:
        """Write the feature table: one array ``[N, D]``, or an iterable of runs of rows."""
        width = self.spec.feature_dim
        if isinstance(features, np.ndarray):
            table, rows = features, max(1, _CHUNK // max(1, width))
            features = (table[i : i + rows] for i in range(0, len(table), rows))
        self._write("features", self.spec.feature_dtype, features, width)

    def write_hashed(self) -> None:
        """Write no feature rows: make the table's file a hole (``DatasetSpec.hashed``)."""
        dtype = np.dtype(self.spec.feature_dtype)
        shape = (self.spec.num_nodes, self.spec.feature_dim)
        entry = self._files["features"] = ArrayFile.of("features", dtype, shape)
        with array_path(self._staged, "features").open("wb") as file:
            _write_header(file, "features", dtype, shape)
            file.truncate(entry.bytes)

    def write_labels(self, labels: NDArray[np.integer[Any]]) -> None:
        """Write the labels ``[N]``: classes from 0, or -1 for a node without a label."""
        self._write("labels", np.int64, (labels,))

    def write_splits(
        self,
        train: NDArray[np.integer[Any]],
        val: NDArray[np.integer[Any]],
        test: NDArray[np.integer[Any]],
    ) -> None:
        """Write the node ids of the three splits, each of any length, disjoint."""
        for split, ids in zip(SPLITS, (train, val, test), strict=True):
            self._write(f"{split}_ids", np.int64, (ids,))

    def _write(
        self, array: str, dtype: DTypeLike, chunks: Iterable[NDArray[Any]], width: int | None = None
    ) -> None:
        """Write one array chunk by chunk, and its header again once its length is known."""
        real, tail = np.dtype(dtype), () if width is None else (width,)
        length, nodes = 0, self.spec.num_nodes
        with array_path(self._staged, array).open("wb") as file:
            _write_header(file, array, real, (0, *tail))
            for chunk in chunks:
                if chunk.shape[1:] != tail:
                    raise DatasetError(
                        f"{self.folder}: {array} has rows of shape {chunk.shape[1:]}, expected "
                        f"{tail}"
                    )
                if array == "indices" and len(chunk):  # a narrower dtype could hide a bad id
                    low, high = int(chunk.min()), int(chunk.max())
                    if low < 0 or high >= nodes:
                        raise DatasetError(
                            f"{self.folder}: indices hold {low} to {high}, no nodes of "
                            f"0..{nodes - 1}"
                        )
                length += len(chunk)
                file.write(np.ascontiguousarray(chunk, real).data)
            file.seek(0)
            _write_header(file, array, real, (length, *tail))
        expected = {"indptr": nodes + 1, "labels": nodes, "features": nodes}.get(array, length)
        if length != expected:
            raise DatasetError(f"{self.folder}: {array} has length {length}, expected {expected}")
        self._files[array] = ArrayFile.of(array, real, (length, *tail))

    def _complete(self) -> None:
        """Check the written arrays and add the spec."""
        missing = [array for array in ARRAYS if array not in self._files]
        if missing:
            raise DatasetError(f"{self.folder}: never written: {', '.join(missing)}")
        spec = dataclasses.replace(
            self.spec,
            num_edges=self._files["indices"].shape[0],
            notes=(*self.spec.notes, *self._notes),
        )
        arrays = {array: map_array(self._staged, array, self._files[array]) for array in ARRAYS}
        # Errors name the folder as the user knows it, not the hidden one.
        data = GraphDataset(spec, self.folder, **arrays)
        check_values(data, self._progress)
        write_spec(self._staged, spec, {array: self._files[array] for array in ARRAYS})
        remember(self._staged)
        self._refuse_foreign()  # again: the folder may have appeared while writing

    def _refuse_foreign(self) -> None:
        if os.path.lexists(self.folder) and (why := not_ours(self.folder)):
            raise DatasetError(f"{why}; choose another name")


def _write_header(file: BinaryIO, array: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write NumPy's header of format 1.0, padded with spaces before its last byte, a line feed."""
    made = io.BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(made, fields)
    text = made.getvalue()[_PREFIX_BYTES:].rstrip()
    size = header_bytes(array) - _PREFIX_BYTES
    file.write(np.lib.format.magic(1, 0) + struct.pack("<H", size))
    file.write(text.ljust(size - 1) + b"\n")
