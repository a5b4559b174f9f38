"""Reading one array of an ``.npz`` from beginning to end without ever holding it.

``np.load`` makes an array of every member it is asked for, and cannot map a member of an archive.
The feature table of ogbn-papers100M is a member of 57 GB.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gatherbench.datasets.layout import DatasetError


@dataclass(frozen=True, slots=True)
class NpyStream:
    """An array that is read in the order in which its elements lie in the file.

    Attributes:
        fortran: the first axis varies fastest, as in a transposed array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    where: str
    file: IO[bytes]

    def read(self, count: int) -> NDArray[Any]:
        """The next ``count`` elements, flat.

        Raises:
            DatasetError: the file ends before, or its checksum is wrong.
        """
        try:
            data = self.file.read(count * self.dtype.itemsize)
        except (EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise DatasetError(f"{self.where}: broken ({error}); fetch it again") from error
        if len(data) != count * self.dtype.itemsize:
            raise DatasetError(f"{self.where}: ends too early; fetch it again")
        return np.frombuffer(data, self.dtype)


@contextlib.contextmanager
def npz_member(path: Path, name: str) -> Iterator[NpyStream]:
    """Opens the array ``name`` of the archive ``path``, compressed or not.

    Raises:
        DatasetError: no such file, no such array, or no archive of arrays.
    """
    where = f"{path}, array {name!r}"
    with contextlib.ExitStack() as opened:
        try:
            archive = opened.enter_context(zipfile.ZipFile(path))
            file = opened.enter_context(archive.open(f"{name}.npy"))
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read_header(file)
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DatasetError(f"{where}: cannot be read ({error}); fetch it again") from error
        if dtype.hasobject:
            raise DatasetError(f"{where}: holds Python objects, which are not read")
        yield NpyStream(shape, dtype, fortran, where, file)
