"""Write a dataset folder array by array, checking every value; it is published as a whole."""

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
    array_path,
    folder_bytes,
    header_bytes,
    index_dtype,
    not_ours,
    write_spec,
)
from gatherbench.datasets.files import check_free_space, exclusive, new_folder

#: Bytes of a header's prefix: the magic, the version, and the length of the rest, two bytes.
_PREFIX_BYTES = np.lib.format.MAGIC_LEN + 2
#: Elements written at a time from a whole table.
_CHUNK = 1 << 22
#: An array of whole numbers.
Whole = NDArray[np.integer[Any]]


class BadArrayError(DatasetError):
    """An array of a dataset holds an invalid value; ``what`` describes it."""

    def __init__(self, folder: Path, array: str, what: str) -> None:
        super().__init__(f"{array_path(folder, array)}: {what}")
        self.array, self.what = array, what


class DatasetWriter:
    """Write one dataset folder: a context manager that publishes the folder at its end.

    Each ``write`` method is called once, in any order. The writer replaces an existing dataset and
    refuses any other existing folder. A second writer of the same folder waits for the first. The
    written number of edges replaces that of ``spec``.

    Raises:
        BadArrayError: a value is no node or class, or not finite.
        DatasetError: the place is not writable, or the disk is full; a part is missing, or differs
            in size from the spec.
    """

    def __init__(self, folder: Path, spec: DatasetSpec) -> None:
        self.folder, self.spec = folder, spec
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
        """Note a checksum of all written arrays: an imported graph has neither seed nor release."""
        whole = hashlib.sha256()
        for array in ARRAYS:
            with array_path(self._staged, array).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        self.note(f"checksum of the arrays: {whole.hexdigest()[:16]}")

    def keep(self, name: str, values: NDArray[Any]) -> None:
        """Save an optional array in a file of its own in the folder."""
        np.save(self._staged / name, values)

    def write_columns(self, columns: Iterable[tuple[Whole, Whole]]) -> NDArray[np.int64]:
        """Write a graph in runs of columns: the number of in-neighbours of each (``[n]``), and
        these one after the other (``[sum]``); return the in-degrees."""
        degrees: list[NDArray[np.int64]] = []

        def indices() -> Iterable[Whole]:
            for degree, rows in columns:
                if int(degree.sum()) != len(rows) or degree.min(initial=0) < 0:
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
        shape = self.spec.num_nodes, self.spec.feature_dim
        entry = self._files["features"] = ArrayFile.of("features", dtype, shape)
        with array_path(self._staged, "features").open("wb") as file:
            _write_header(file, "features", dtype, shape)
            file.truncate(entry.bytes)

    def write_labels(self, labels: Whole) -> None:
        """Write the labels ``[N]``: classes from 0, or -1 for a node without a label."""
        self._write("labels", np.int64, (labels,))

    def write_splits(self, train: Whole, val: Whole, test: Whole) -> None:
        """Write the node ids of the three splits, each of any length, disjoint."""
        named = np.zeros(self.spec.num_nodes, np.bool_)
        for split, ids in zip(SPLITS, (train, val, test), strict=True):
            self._write(f"{split}_ids", np.int64, (ids,))
            before = np.count_nonzero(named)
            named[ids] = True
            if np.count_nonzero(named) != before + len(ids):
                fault = "names a node twice, or one of another split"
                raise BadArrayError(self.folder, f"{split}_ids", fault)

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
                    shapes = f"{chunk.shape[1:]}, expected {tail}"
                    raise DatasetError(f"{self.folder}: {array} has rows of shape {shapes}")
                values = np.ascontiguousarray(chunk, real)
                self._check(array, values if array == "features" else chunk, length)
                length += len(values)
                file.write(values.data)
            file.seek(0)
            _write_header(file, array, real, (length, *tail))
        expected = {"indptr": nodes + 1, "labels": nodes, "features": nodes}.get(array, length)
        if length != expected:
            raise DatasetError(f"{self.folder}: {array} has length {length}, expected {expected}")
        self._files[array] = ArrayFile.of(array, real, (length, *tail))

    def _check(self, array: str, values: NDArray[Any], start: int) -> None:
        """Refuse a value that is no node or class, or not finite; ``start``: the first's place."""
        low, high, fault = 0, self.spec.num_nodes, "is no node"
        if array == "labels":
            low, high, fault = -1, self.spec.num_classes, "is no class"
        if array == "features":
            bad, fault = ~np.isfinite(values), "is not finite"
        elif array == "indptr" or not len(values) or low <= values.min() <= values.max() < high:
            return
        else:
            bad = (values < low) | (values >= high)
        if bad.any():
            first, *more = (int(place) for place in np.argwhere(bad)[0])
            at = ", ".join(map(str, (start + first, *more)))
            raise BadArrayError(self.folder, array, f"[{at}] = {values[first, *more]} {fault}")

    def _complete(self) -> None:
        """Add the spec, once every array has been written."""
        if missing := [array for array in ARRAYS if array not in self._files]:
            raise DatasetError(f"{self.folder}: never written: {', '.join(missing)}")
        edges, notes = self._files["indices"].shape[0], (*self.spec.notes, *self._notes)
        spec = dataclasses.replace(self.spec, num_edges=edges, notes=notes)
        write_spec(self._staged, spec, {array: self._files[array] for array in ARRAYS})
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
