"""Says what a file is, by its content, before anything in it is believed."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

from gatherbench.datasets.dataset import DatasetError

Kind = Literal["npy", "npz", "torch", "matrix", "text"]

#: No list of edges unpacks to more than this many times its size, of which gzip's most is 1032; the
#: first bytes may.
MOST_RATIO, _FREE_BYTES = 100, 1 << 17

_CSV = "write it as text first: pandas' to_csv(index=False)"
_EDGES = "networkx reads it, and networkx.write_edgelist(graph, FILE, data=False) writes edges"
_ARRAYS = "numpy.save its arrays"
#: How files of other kinds begin, what they are, and what to do about it.
_OTHERS = (
    (rb"BZh\d", "bz2-compressed", "bunzip2 it first"),
    (rb"\xfd7zXZ", "xz-compressed", "unxz it first"),
    (rb"\x28\xb5\x2f\xfd|\x04\x22\x4d\x18|7z\xbc\xaf|Rar!", "compressed", "unpack it first"),
    (rb"PAR1|ORC|Obj\x01", "a Parquet, ORC or Avro file", _CSV),
    (rb"ARROW1|FEA1|\xff{4}", "a Feather or Arrow file", _CSV),
    (rb"\x89HDF|MATLAB [57]\.", "a MATLAB or HDF5 file", f"scipy.io.loadmat or h5py; {_ARRAYS}"),
    (rb"\xd0\xcf\x11\xe0", "an Excel workbook", "save the sheet as CSV"),
    (rb".{7}\0\{", "a safetensors file", "torch.save the dict of its tensors"),
    (rb"\xff\xfe|\xfe\xff|.\0.\0|\0.\0.", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 converts it"),
    (rb"SQLite format 3|%PDF|RD[XA]\d|\x7fELF", "a file of another program", _CSV),
    (rb"\x80[\x01-\x05].{0,9}l\xfc\x9cF", "of torch.save's old form", "torch.save it again"),
    (rb"\x80[\x01-\x05]", "a pickle, which could run code", _ARRAYS),
    (rb"\s*<", "XML (GraphML, GEXF) or RDF", _EDGES),
    (rb"\s*[{\[]", "JSON", _EDGES),
    (rb"(?i)\s*(\*(vertices|network)|nodedef>|dl\s)", "a Pajek, GDF or UCINET file", _EDGES),
    (rb"(?i)\s*((strict\s|di)?\s*graph\b[^\n]*[\[{\n]|creator\b)", "a GML or DOT file", _EDGES),
    (rb"(c\b[^\n]*\n)*p (edge|col|sp|max)\b", "a DIMACS file", "keep the two ids of each line"),
    (rb"(?i)\s*@(relation|prefix|base)\b", "an ARFF or Turtle file", _CSV),
    (rb".*\0", "a binary file of an unknown kind", _ARRAYS),
)


def identify(path: Path) -> Kind:
    """The kind of a file.

    Raises:
        DatasetError: there is no such file, or it is of another kind: names that and the remedy.
    """
    with opened(path) as (stream, raw):
        head = stream.read(4096).removeprefix(b"\xef\xbb\xbf")
    found: tuple[Kind | None, str, str] = None, "", ""
    if head.startswith(b"\x93NUMPY"):
        found = "npy", "an array", ""
    elif head.startswith(b"PK\3\4"):
        found = _archive(path) if stream is raw else (None, "an archive, gzipped", "gunzip it")
    else:
        others = (other for other in _OTHERS if re.match(other[0], head, re.DOTALL))
        if other := next(others, None):
            found = None, *other[1:]
        else:
            banner = re.match(rb"(?i)%%?MatrixMarket\b", head)
            found = "matrix" if banner else "text", "", ""
    if stream is not raw and found[1]:
        found = None, f"{found[1]}, gzipped", f"gunzip it first{found[2] and f'; then {found[2]}'}"
    if found[0] is None:
        raise DatasetError(f"{path}: it is {found[1]}, which is not read; {found[2]}")
    return found[0]


def _archive(path: Path) -> tuple[Kind | None, str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); fetch or save it again") from error
    if any("/code/" in name for name in names):
        return None, "a TorchScript model", "torch.save its tensors"
    if any(name.endswith("/data.pkl") for name in names):
        return "torch", "of torch.save", ""
    if any(name.endswith(".npy") for name in names):
        return "npz", "an archive of arrays", ""
    if "xl/workbook.xml" in names:
        return None, "an Excel workbook", "save the sheet as CSV"
    return None, "a zip archive", "unzip it first"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], BinaryIO]]:
    """What a file holds, unpacked where it is gzipped; and the file itself.

    Raises:
        DatasetError: it is no file, cannot be opened, or (while reading) its compression is broken.
    """
    if not os.path.isfile(path):  # noqa: PTH113  # raises for long names
        pipe = "not a regular file; write a pipe's data to a file first"
        raise DatasetError(f"{path}: {pipe if os.path.lexists(path) else 'no such file'}")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: Any = _Unpacked(fileobj=raw) if packed else raw
        try:
            yield stream, raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(
                f"{path}: the gzip file is cut short or damaged ({error}); fetch it again"
            ) from error


class _Unpacked(gzip.GzipFile):
    """Refuses a file that unpacks to far more than text does, before all of it is unpacked."""

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        packed = self.fileobj.tell()  # type: ignore[union-attr]
        if self.tell() > max(_FREE_BYTES, MOST_RATIO * packed):
            raise DatasetError(
                f"{self.name}: {packed:,} bytes of it unpack to {self.tell():,}, which no graph's"
                " edges do; if it is right, unpack it first"
            )
        return found
