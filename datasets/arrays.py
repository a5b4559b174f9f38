"""Map arrays of a user's files, which may be larger than memory; no file can run code."""

from __future__ import annotations

import contextlib
import csv
import errno
import pickle
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.files import check_free_space

#: Largest id, and class: nodes are numbered by int32.
LARGEST_ID = 2**31 - 2
#: Bytes of a table that are read at a time.
_PIECE = 4 << 20
#: The exceptions that NumPy, PyArrow, SciPy, torch and zip raise on a damaged file.
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, KeyError, TypeError, AttributeError),
    *(IndexError, OverflowError, NotImplementedError),
    *(zlib.error, zipfile.BadZipFile, pickle.UnpicklingError, csv.Error),
)


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Turn each of :data:`_BROKEN` into a ``DatasetError``: ``what``, the cause, and ``remedy``."""
    try:
        yield
    except DatasetError:
        raise
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError from error  # the file may be sound
        raise DatasetError(f"{what} ({error}); {remedy}") from error


def mapped(path: Path) -> NDArray[Any]:
    """Map the array of a ``.npy``; a ``DatasetError`` if it is damaged, or holds more than that."""
    with explained(f"{path}: cannot be read", "fetch it, or numpy.save it again"):
        return _map(path)


def unpacked(path: Path, room: Path, name: str) -> NDArray[Any]:
    """Unpack an array of an ``.npz`` into a nameless file in the folder ``room``, and map it.

    A damaged archive, no such array, Python objects and a full disk are a ``DatasetError``.
    """
    with (
        explained(f"{path}, array {name!r}: cannot be read", "fetch or save it again"),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{name}.npy") as packed,
        tempfile.TemporaryFile(dir=room) as file,
    ):
        check_free_space(room, archive.getinfo(f"{name}.npy").file_size, f"{path}, array {name!r}")
        shutil.copyfileobj(packed, file, 1 << 20)
        file.flush()
        return _map(Path(f"/proc/self/fd/{file.fileno()}"))


def member(path: Path, name: str, room: Path, kinds: str, *shape: int | None) -> NDArray[Any]:
    """Unpack an array as :func:`unpacked` does, and check it by :func:`expect`."""
    return expect(unpacked(path, room, name), f"{path}, array {name!r}", kinds, *shape)


def streamed(
    path: Path, name: str, rows: int
) -> tuple[tuple[int, ...], Iterator[NDArray[np.floating[Any]]]]:
    """Return the shape of a table in an ``.npz``, and an iterator over runs of its rows.

    Nothing is unpacked to the disk, where the table of ogbn-papers100M would take its space twice.
    A damaged archive, or no such array of floats with ``rows`` rows, is a ``DatasetError``, as is
    an array that ends early, during iteration.
    """
    where, remedy = f"{path}, array {name!r}", "fetch or save it again"
    with explained(f"{where}: cannot be read", remedy):
        packed = zipfile.ZipFile(path).open(f"{name}.npy")  # noqa: SIM115  # by its rows' end
        head = np.lib.format
        first = head.read_magic(packed) == (1, 0)
        read = head.read_array_header_1_0 if first else head.read_array_header_2_0
        shape, turned, dtype = read(packed)
        if turned or dtype.hasobject:
            raise ValueError("its rows do not lie one behind the other")
    expect(np.broadcast_to(np.empty((), dtype), shape), where, "f", rows, None)
    row = shape[1] * dtype.itemsize
    step = max(1, _PIECE // max(1, row))

    def runs() -> Iterator[NDArray[np.floating[Any]]]:
        with packed:
            for at in range(0, rows, step):
                wanted = min(step, rows - at) * row
                with explained(f"{where}: cannot be read", remedy):
                    if len(content := packed.read(wanted)) < wanted:
                        raise ValueError("it ends before its last row")
                yield np.frombuffer(content, dtype).reshape(-1, shape[1])

    return shape, runs()


def _map(path: Path) -> NDArray[Any]:
    array = np.lib.format.open_memmap(path, mode="r")
    if array.offset + array.nbytes != path.stat().st_size:
        raise ValueError(f"its header says {array.dtype} {array.shape}, and there is more")
    return array


def expect(array: NDArray[Any], where: str, kinds: str, *shape: int | None) -> NDArray[Any]:
    """Return an array with this kind of dtype (NumPy's letters) and shape (``None``: any).

    Another one is a ``DatasetError`` that begins with ``where``.
    """
    fits = array.dtype.kind in kinds and array.ndim == len(shape)
    if fits and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True)):
        return array
    numbers = "numbers" if "f" in kinds else "whole numbers"
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    found = f"holds {array.dtype} {array.shape}"
    raise DatasetError(f"{where}: {found}, expected {numbers} of shape [{wanted}]")


def class_numbers(labels: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Return classes int64 ``[N]``, -1 for none, from labels ``[N]`` or ``[N, 1]`` (NaN: none).

    A label that is no whole number from -1 up is a ``DatasetError`` that begins with ``where``.
    """
    flat = labels.reshape(-1)
    flat = np.where(np.isnan(flat), -1, flat) if flat.dtype.kind == "f" else flat
    if (bad := (flat < -1) | (flat > LARGEST_ID) | (flat != np.floor(flat))).any():
        label = f"label {bad.argmax()} (from 0) is {flat[bad][0]}"
        raise DatasetError(f"{where}: {label}, expected a class from 0 up, or -1 for none")
    return flat.astype(np.int64)
