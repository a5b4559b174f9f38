"""Writing a dataset folder so that it is either whole or not there.

Everything goes to a hidden folder beside the target, which takes the target's name by one rename
once its spec is written; whatever goes wrong before, a full disk or Ctrl-C, leaves nothing behind.
A killed process cannot tidy up, but its lock on the hidden folder dies with it: the next writer
sees an unlocked leftover and removes it.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gatherbench.datasets.checks import check_shapes, check_values, map_array, remember
from gatherbench.datasets.dataset import DatasetSpec, GraphDataset
from gatherbench.datasets.layout import (
    ARRAYS,
    HEADER_BYTES,
    SPLITS,
    ArrayFile,
    DatasetError,
    array_bytes,
    array_path,
    folder_bytes,
    index_dtype,
    not_ours,
    write_spec,
)
from gatherbench.datasets.source import Progress, silent
from gatherbench.datasets.staging import (
    check_free_space,
    locked_sibling,
    make_parent,
    no_space,
    publish,
    remove_leftovers,
)

#: Elements handled at a time where an array is copied or converted: 32 MiB of int64.
_CHUNK = 1 << 22


class DatasetWriter:
    """Writes one dataset folder; a context manager that publishes the folder when it is left.

    Each of :meth:`write_graph` (or :meth:`write_columns`), :meth:`write_features` (or
    :meth:`features_file`), :meth:`write_labels` and :meth:`write_splits` is called once, in any
    order. A dataset that is there is replaced; any other folder is refused.

    Args:
        folder: where the dataset shall lie, e.g. from ``dataset_folder``.
        spec: its sizes. ``num_edges`` may be an estimate: the number written takes its place.
        progress: told of the full check that comes before publishing.

    Raises:
        DatasetError: a place that cannot be written to, or with too little space (on entering, or
            while writing); on leaving, a part that was not written, has other sizes than the spec
            says, or holds what no dataset may hold (see ``open_dataset``).
    """

    def __init__(self, folder: Path, spec: DatasetSpec, progress: Progress = silent) -> None:
        self.folder = folder
        self.spec = spec
        self._progress = progress
        self._files: dict[str, ArrayFile] = {}
        self._notes: list[str] = []
        self._features: np.memmap[Any, Any] | None = None

    def __enter__(self) -> Self:
        self._refuse_foreign()
        make_parent(self.folder)
        remove_leftovers(self.folder)
        check_free_space(self.folder.parent, folder_bytes(self.spec), self.spec.name)
        self._temporary, self._lock = locked_sibling(self.folder)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is None:
                self._publish()
        except OSError as error:
            self._explain_full_disk(error)
            raise
        finally:
            self._features = None
            shutil.rmtree(self._temporary, ignore_errors=True)  # gone already when published
            os.close(self._lock)
        if isinstance(exc, OSError):
            self._explain_full_disk(exc)

    def note(self, text: str) -> None:
        """Add a sentence to the spec's notes, e.g. what the work has shown."""
        self._notes.append(text)

    def note_content(self) -> None:
        """Add a checksum of all arrays, written before, to the notes.

        For a graph that no seed and no release identifies: two of one size differ in it alone.
        """
        self._progress("checksum", 0.0)
        whole = hashlib.sha256()
        for array in ARRAYS:
            with array_path(self._temporary, array).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        self.note(f"checksum of the arrays: {whole.hexdigest()[:16]}")

    def write_graph(
        self, indptr: NDArray[np.integer[Any]], indices: NDArray[np.integer[Any]]
    ) -> None:
        """Write a graph in CSC: ``indptr`` ``[N + 1]``, ``indices`` ``[E]``, of any integer dtype.

        ``indices`` may be a memory map: it is read and converted piece by piece.
        """
        if indptr.shape != (self.spec.num_nodes + 1,) or indptr[0] != 0:
            raise DatasetError(
                f"{self.folder}: indptr must have {self.spec.num_nodes + 1} entries and begin "
                f"with 0, got shape {indptr.shape}"
            )
        if int(indptr[-1]) != len(indices):
            raise DatasetError(
                f"{self.folder}: indptr ends with {indptr[-1]}, but there are {len(indices)} "
                f"indices"
            )
        self._write("indptr", np.int64, _slices(indptr))
        self._write("indices", index_dtype(self.spec.num_nodes), _slices(indices))

    def write_columns(
        self, columns: Iterable[tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]
    ) -> NDArray[np.int64]:
        """Write a graph column by column, without ever holding all of it; returns the in-degrees.

        Args:
            columns: in order, runs of columns: how many in-neighbours each has (``[n]``), and
                those in-neighbours one after the other (``[sum]``).
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

    def features_file(
        self, dtype: DTypeLike | None = None, shape: tuple[int, int] | None = None
    ) -> np.memmap[Any, np.dtype[Any]]:
        """The feature table ``[N, D]`` as a writable map, to be filled in any order.

        Its blocks are reserved on the disk first, because a full disk would otherwise kill the
        process with SIGBUS in the middle of an assignment.
        """
        real = np.dtype(self.spec.feature_dtype if dtype is None else dtype)
        size = (self.spec.num_nodes, self.spec.feature_dim) if shape is None else shape
        path = array_path(self._temporary, "features")
        with path.open("wb") as file:
            _write_header(file, real, size)
            os.posix_fallocate(file.fileno(), 0, array_bytes(real, size))
        self._features = np.memmap(path, real, "r+", offset=HEADER_BYTES, shape=size)
        self._files["features"] = ArrayFile(real.str, size, array_bytes(real, size))
        return self._features

    def write_features(self, features: NDArray[Any] | Iterable[NDArray[Any]]) -> None:
        """Write the feature table: one array ``[N, D]``, or an iterable of runs of rows."""
        dtype = np.dtype(self.spec.feature_dtype)
        if isinstance(features, np.ndarray):
            rows = max(1, _CHUNK // max(1, self.spec.feature_dim))
            features = _slices(features, rows)
        self._write("features", dtype, features, width=self.spec.feature_dim)

    def write_labels(self, labels: NDArray[np.integer[Any]]) -> None:
        """Write the labels ``[N]``: classes from 0, or -1 for a node without one."""
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
        """Write one array chunk by chunk; its header is written again once its length is known."""
        real, tail = np.dtype(dtype), () if width is None else (width,)
        length = 0
        with array_path(self._temporary, array).open("wb") as file:
            _write_header(file, real, (0, *tail))
            for chunk in chunks:
                if chunk.shape[1:] != tail:
                    raise DatasetError(
                        f"{self.folder}: {array} has rows of shape {chunk.shape[1:]}, expected "
                        f"{tail}"
                    )
                if array == "indices":  # before a narrower dtype could hide a bad id
                    self._check_ids(chunk, length)
                length += len(chunk)
                file.write(np.ascontiguousarray(chunk, real).data)
            file.seek(0)
            _write_header(file, real, (length, *tail))
        shape = (length, *tail)
        self._files[array] = ArrayFile(real.str, shape, array_bytes(real, shape))

    def _check_ids(self, ids: NDArray[Any], offset: int) -> None:
        bad = (ids < 0) | (ids >= self.spec.num_nodes)
        if bad.any():
            where = int(bad.argmax())
            raise DatasetError(
                f"{self.folder}: indices[{offset + where}] = {ids[where]} is no node of "
                f"0..{self.spec.num_nodes - 1}"
            )

    def _publish(self) -> None:
        missing = [array for array in ARRAYS if array not in self._files]
        if missing:
            raise DatasetError(f"{self.folder}: never written: {', '.join(missing)}")
        if self._features is not None:
            self._features.flush()
        spec = dataclasses.replace(
            self.spec,
            num_edges=self._files["indices"].shape[0],
            notes=(*self.spec.notes, *self._notes),
        )
        arrays = {array: map_array(self._temporary, array, self._files[array]) for array in ARRAYS}
        # Errors name the folder as the user knows it, not the hidden one.
        data = GraphDataset(spec=spec, folder=self.folder, **arrays)
        check_shapes(data)
        check_values(data, full=True, progress=self._progress)
        write_spec(self._temporary, spec, {array: self._files[array] for array in ARRAYS})
        remember(self._temporary)
        self._refuse_foreign()  # once more: writing takes its time
        publish(self._temporary, self.folder)

    def _refuse_foreign(self) -> None:
        if os.path.lexists(self.folder) and (why := not_ours(self.folder)):
            raise DatasetError(f"{why}; choose another name")

    def _explain_full_disk(self, error: OSError) -> None:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = folder_bytes(self.spec)
            raise no_space(self.folder.parent, needed, self.spec.name) from error


def _write_header(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    if file.tell() != HEADER_BYTES:
        raise AssertionError(f"NumPy wrote a header of {file.tell()} bytes, not {HEADER_BYTES}")


def _slices(array: NDArray[Any], rows: int = _CHUNK) -> Iterator[NDArray[Any]]:
    return (array[i : i + rows] for i in range(0, len(array), rows))
