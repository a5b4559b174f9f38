"""What is looked at before a dataset folder is believed.

``quick`` compares every file with the spec and looks at the same few places of each array every
time; ``full`` looks at every element, chunk by chunk. A full check that was passed is written down
in the folder with the files' lengths and times of change, and not repeated while these stay.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import GraphDataset
from gatherbench.datasets.layout import (
    ARRAYS,
    HEADER_BYTES,
    MARKER,
    SPEC_FILE,
    SPLITS,
    ArrayFile,
    DatasetError,
    array_path,
    remedy,
)
from gatherbench.datasets.source import Progress, silent

#: Bytes looked at in one piece.
_CHUNK_BYTES = 32 << 20
#: The quick check looks at this many pieces of this many bytes, evenly spaced, of each array.
_SAMPLES, _SAMPLE_BYTES = 64, 16 << 10

#: Marks the bad elements of a piece of an array.
_Look = Callable[[NDArray[Any]], NDArray[np.bool_]]


def map_array(folder: Path, array: str, file: ArrayFile) -> NDArray[Any]:
    """Map one ``.npy`` file, read-only, if it is what the spec says.

    Raises:
        DatasetError: missing, cut short, too long, garbled, or of another dtype or shape.
    """
    path = array_path(folder, array)
    try:
        found = path.stat().st_size
        if found != file.bytes:
            raise DatasetError(
                f"{path}: {found:,} bytes, and {SPEC_FILE} says {file.bytes:,}; {remedy(folder)}"
            )
        with path.open("rb") as stream:
            np.lib.format.read_magic(stream)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            offset = stream.tell()
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing; {remedy(folder)}") from None
    except ValueError as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path}: no .npy file ({error}); {remedy(folder)}") from error
    if (dtype.str, shape, fortran, offset) != (file.dtype, file.shape, False, HEADER_BYTES):
        raise DatasetError(
            f"{path}: holds {dtype.str} {shape}, and {SPEC_FILE} says {file.dtype} {file.shape}; "
            f"{remedy(folder)}"
        )
    if 0 in shape:  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset=offset, shape=shape)


def check_shapes(data: GraphDataset) -> None:
    """Refuse arrays whose sizes or dtypes contradict the spec's numbers.

    Raises:
        DatasetError: naming the file.
    """
    n, spec = data.spec.num_nodes, data.spec
    expected: dict[str, tuple[tuple[int, ...], str]] = {
        "indptr": ((n + 1,), "<i8"),
        "indices": ((spec.num_edges,), data.indices.dtype.str),
        "features": ((n, spec.feature_dim), np.dtype(spec.feature_dtype).str),
        "labels": ((n,), "<i8"),
        **{f"{s}_ids": (getattr(data, f"{s}_ids").shape, "<i8") for s in SPLITS},
    }
    for array, (shape, dtype) in expected.items():
        found: NDArray[Any] = getattr(data, array)
        if found.shape != shape or found.dtype.str != dtype:
            _refuse(data, array, f"holds {found.dtype} {found.shape}, expected {dtype} {shape}")
    if data.indices.dtype not in (np.int32, np.int64) or data.indices.ndim != 1:
        _refuse(data, "indices", f"holds {data.indices.dtype}, expected int32 or int64")
    for split in SPLITS:
        if getattr(data, f"{split}_ids").ndim != 1:
            _refuse(data, f"{split}_ids", "is not one-dimensional")


def check_values(data: GraphDataset, *, full: bool, progress: Progress = silent) -> None:
    """Refuse values that no dataset may have, in every element or in the sampled pieces.

    Raises:
        DatasetError: naming the file and the first bad element that was looked at.
    """
    n, spec = data.spec.num_nodes, data.spec
    if data.indptr[0] != 0:
        _refuse(data, "indptr", f"begins with {data.indptr[0]}, expected 0")
    if data.indptr[-1] != spec.num_edges:
        _refuse(data, "indptr", f"ends with {data.indptr[-1]}, expected {spec.num_edges} edges")
    looks: dict[str, tuple[_Look, str]] = {
        "indptr": (_descents, "is smaller than the entry before it"),
        "indices": (_outside(0, n), "is no node"),
        "labels": (_outside(-1, spec.num_classes), "is no class"),
    }
    if data.features.dtype.kind == "f":
        looks["features"] = (_not_finite, "is not finite")
    for array, (look, what) in looks.items():
        values: NDArray[Any] = getattr(data, array)
        for start, piece in _pieces(values, full=full, overlap=int(array == "indptr")):
            progress(f"check {array}", start / len(values))
            bad = look(piece)
            if bad.any():
                where = tuple(int(x) for x in np.argwhere(bad)[0])
                at = ", ".join(str(x) for x in (start + where[0], *where[1:]))
                _refuse(data, array, f"[{at}] = {piece[where]} {what}")
    _check_splits(data)


def _check_splits(data: GraphDataset) -> None:
    """Looks at every id: a mask of the nodes costs little beside the rest."""
    seen = np.zeros(data.spec.num_nodes, np.bool_)
    total = 0
    for split in SPLITS:
        ids: NDArray[np.int64] = getattr(data, f"{split}_ids")
        if len(ids) and (ids.min() < 0 or ids.max() >= len(seen)):
            _refuse(data, f"{split}_ids", "holds an id that is no node")
        seen[ids] = True
        total += len(ids)
        if np.count_nonzero(seen) != total:
            _refuse(data, f"{split}_ids", "names a node twice, or one of another split")


def _pieces(
    values: NDArray[Any], *, full: bool, overlap: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Runs of rows and where they start; with ``overlap``, each begins in the one before it."""
    row_bytes = max(1, values.itemsize * int(np.prod(values.shape[1:])))
    rows = max(2, (_CHUNK_BYTES if full else _SAMPLE_BYTES) // row_bytes)
    if full or len(values) <= _SAMPLES * rows:
        starts: Sequence[int] = range(0, len(values), rows - overlap)
    else:
        starts = np.linspace(0, len(values) - rows, _SAMPLES, dtype=np.int64).tolist()
    for start in starts:
        yield start, values[start : start + rows]


def _descents(piece: NDArray[Any]) -> NDArray[np.bool_]:
    return np.concatenate([[False], piece[1:] < piece[:-1]])


def _not_finite(piece: NDArray[Any]) -> NDArray[np.bool_]:
    return ~np.isfinite(piece)


def _outside(low: int, high: int) -> _Look:
    return lambda piece: (piece < low) | (piece >= high)


def _refuse(data: GraphDataset, array: str, what: str) -> None:
    raise DatasetError(f"{array_path(data.folder, array)}: {what}; {remedy(data.folder)}")


def is_remembered(folder: Path) -> bool:
    """Whether a full check was passed and no file has changed since."""
    try:
        return bool(json.loads((folder / MARKER).read_bytes()) == _fingerprint(folder))
    except (OSError, ValueError):
        return False


def remember(folder: Path) -> None:
    """Write down that a full check was passed; a folder that cannot be written to is let be."""
    try:
        (folder / MARKER).write_text(json.dumps(_fingerprint(folder)))
    except PermissionError:
        return
    except OSError as error:
        if error.errno != errno.EROFS:
            raise


def _fingerprint(folder: Path) -> dict[str, list[int]]:
    names = [SPEC_FILE, *(f"{array}.npy" for array in ARRAYS)]
    stats = {name: (folder / name).stat() for name in names}
    return {name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()}
