"""Reads arrays of ``.npz`` files from beginning to end without holding them.

``np.load`` holds the whole member of an archive and cannot map it. The feature table of
ogbn-papers100M is a member of 57 GB. And a file of 8 MB may say that it holds 8 GB: headers have to
agree with the file before anything is read.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError
from gatherbench.datasets.source import Progress

#: Elements read at a time.
CHUNK = 1 << 22

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: What NumPy, pandas, torch and zip raise on a damaged file.
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, KeyError, TypeError, AttributeError),
    *(zlib.error, zipfile.BadZipFile, pickle.UnpicklingError),
)
_AGAIN = "fetch or save it again"


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in an archive, of which only the header was read.

    Attributes:
        member: its name in the archive.
        packed: bytes that it takes there.
        fortran: the first axis varies fastest, as in a transposed array.
    """

    path: Path
    member: str
    packed: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def where(self) -> str:
        return _where(self.path, self.member)

    def expect(self, kinds: str, *shape: int | None) -> tuple[int, ...]:
        """The array's shape, if it is as expected; ``None`` stands for any length.

        Raises:
            DatasetError: another shape, or a dtype whose kind is none of ``kinds``.
        """
        fits = len(self.shape) == len(shape) and self.dtype.kind in kinds
        if not fits or any(a not in (None, b) for a, b in zip(shape, self.shape, strict=True)):
            numbers = "numbers" if "f" in kinds else "whole numbers"
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise DatasetError(
                f"{self.where}: holds {self.dtype} {self.shape}, expected {numbers} of shape "
                f"[{wanted}]"
            )
        return self.shape

    def flat(
        self, start: int = 0, stop: int | None = None, step: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Elements ``start`` to ``stop`` in the order of the file, at most ``step`` at a time.

        Raises:
            DatasetError: the file is cut short or damaged.
        """
        end, step = math.prod(self.shape) if stop is None else stop, step or CHUNK
        with _opened(self.path, self.member) as (file, _):
            _read_header(file)
            file.seek(start * self.dtype.itemsize, os.SEEK_CUR)
            for first in range(start, end, step):
                size = min(step, end - first) * self.dtype.itemsize
                data = file.read(size)
                if len(data) != size:
                    raise EOFError("it ends too early")
                yield np.frombuffer(data, self.dtype)

    def rows(self) -> Iterator[NDArray[Any]]:
        """A table ``[N, D]`` in runs of rows.

        Raises:
            DatasetError: it lies column by column.
        """
        width = self.shape[1]
        if self.fortran and min(self.shape) > 1:
            raise DatasetError(f"{self.where}: lies column by column; save it in C order, as .npy")
        for run in self.flat(step=max(1, CHUNK // max(1, width)) * width):
            yield run.reshape(-1, width)

    def whole(self) -> NDArray[Any]:
        """All of it; for arrays whose size was found to be right."""
        flat = np.concatenate([np.empty(0, self.dtype), *self.flat()])
        return flat.reshape(self.shape[::-1]).T if self.fortran else flat.reshape(self.shape)

    def pairs(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """An ``edge_index`` ``[2, E]`` (or ``[E, 2]``) as runs of sources and targets."""
        if (len(self.shape) == 2 and self.shape[0] == 2) == self.fortran:
            for run in self.flat(step=2 * CHUNK):
                yield run[0::2], run[1::2]
        else:
            count = math.prod(self.shape) // 2
            yield from zip(self.flat(0, count), self.flat(count), strict=True)


def stored_array(path: Path, member: str) -> StoredArray:
    """Find an array of an ``.npz`` by its header.

    Raises:
        DatasetError: no such file or array, Python objects, or a header that says another size
            than the file has.
    """
    where = _where(path, member)
    with _opened(path, member) as (file, info):
        shape, fortran, dtype = _read_header(file)
        if dtype.hasobject:
            raise DatasetError(f"{where}: holds Python objects, which are not read")
        said, held = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
        if min(shape, default=0) < 0 or said != held:
            raise DatasetError(
                f"{where}: its header says {dtype} {shape}, {said:,} bytes, and there are "
                f"{held:,}; the file is cut short or damaged"
            )
    packed = min(info.compress_size, path.stat().st_size)  # whatever the archive says of itself
    return StoredArray(path, member, packed, shape, dtype, fortran)


def float_rows(table: StoredArray, progress: Progress) -> Iterator[NDArray[np.float32]]:
    """A table in runs of rows, as float32."""
    done = 0
    for run in table.rows():
        yield run.astype(np.float32, copy=False)
        done += len(run)
        progress("writing features", done / table.shape[0])


def members(path: Path) -> list[str]:
    """The names of the arrays in an ``.npz``.

    Raises:
        DatasetError: it is no such archive.
    """
    with explained(f"{path}: cannot be read", _AGAIN), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


@contextlib.contextmanager
def _opened(path: Path, member: str) -> Iterator[tuple[IO[bytes], zipfile.ZipInfo]]:
    """A member of an archive, and what that says of it."""
    with (
        explained(f"{_where(path, member)}: cannot be read", _AGAIN),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{member}.npy") as packed,
    ):
        yield packed, archive.getinfo(f"{member}.npy")


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return _HEADERS[np.lib.format.read_magic(file)](file)


def _where(path: Path, member: str) -> str:
    return f"{path}, array {member!r}"


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Says ``what`` a damaged file is and does, why, and the ``remedy``.

    Raises:
        DatasetError: for whatever a library raises.
    """
    try:
        yield
    except DatasetError:
        raise
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError from error  # which says nothing of the file
        raise DatasetError(f"{what} ({error}); {remedy}") from error
