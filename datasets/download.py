"""Fetch a published archive into a folder that is either whole or absent.

Unlike the downloaders of ogb and PyG this one is silent, never asks, uses https, and compares the
archive with the checksum of ``downloads.toml``, if there is one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import shutil
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gatherbench.datasets.dataset import DatasetError, DatasetSpec
from gatherbench.datasets.edges import write_edges
from gatherbench.datasets.files import check_free_space, make_parent
from gatherbench.datasets.source import Progress
from gatherbench.datasets.writer import DatasetWriter

_CHUNK = 1 << 20
_TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    """A graph of ``downloads.toml``; the base class of the sources that fetch one."""

    name: str
    scalable: bool = False

    @property
    def known(self) -> dict[str, Any]:
        """The graph's table in ``downloads.toml``."""
        return tomllib.loads(Path(__file__).with_name("downloads.toml").read_text())[self.name]

    @property
    def summary(self) -> str:
        return str(self.known["summary"])

    def estimate(self, scale: float) -> DatasetSpec:
        """Return the published sizes."""
        names = {field.name for field in dataclasses.fields(DatasetSpec)}
        fields = {key: value for key, value in self.known.items() if key in names}
        fields |= {"feature_dtype": "float32", "notes": tuple(fields["notes"])}
        return DatasetSpec(name=self.name, scale=scale, **fields)

    def write(
        self,
        folder: Path,
        keys: NDArray[Any],
        features: NDArray[Any] | Iterable[NDArray[Any]],
        labels: NDArray[Any],
        splits: Sequence[NDArray[Any]],
        kinds: NDArray[Any] | None = None,
        **sizes: Any,
    ) -> None:
        """Write the folder: the graph of ``edge_keys``, and what was published of its nodes.
        ``sizes``: fields of the spec that the files decide; merging may leave fewer edges."""
        found = {"num_nodes": len(labels), "num_edges": len(keys), **sizes}
        with DatasetWriter(folder, dataclasses.replace(self.estimate(1.0), **found)) as writer:
            write_edges(writer, keys, kinds)
            writer.write_labels(labels)
            writer.write_splits(*splits)
            writer.write_features(features)


def require_folder(
    url: str,
    inside: str,
    target: Path,
    files: tuple[str, ...],
    progress: Progress,
    sha256: str | None = None,
) -> None:
    """Check that ``target`` has ``files``; if there is no such folder, download it first.

    ``url`` is that of a zip archive, fetched by https, whose folder ``inside`` (``"."``: all of it)
    becomes ``target``; ``sha256`` is the archive's, if it is known.

    Raises:
        DatasetError: there is no network, the disk is too full, the checksum differs, or the
            archive is broken; the message names the folder for a manual download. Or a file is
            missing.
    """
    url = url.replace("http://", "https://", 1)
    if not target.exists():
        make_parent(target)
        _fetch(url, inside, target, progress, sha256)
    for file in files:
        if not (target / file).is_file():
            remedy = f"remove it, or put there what {url} has in {inside!r}"
            fault = f"{target} is an unfinished or an older download"
            raise DatasetError(f"{target / file}: missing; {fault}: {remedy}")


def _fetch(url: str, inside: str, target: Path, progress: Progress, sha256: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        archive, content = Path(scratch) / "archive.zip", Path(scratch) / "content"
        try:
            digest = _download(url, archive, progress)
            if sha256 not in (None, digest):
                raise OSError(f"its SHA-256 is {digest}, expected {sha256}: damaged or changed")
            with zipfile.ZipFile(archive) as opened:
                size = sum(member.file_size for member in opened.infolist())
                check_free_space(target.parent, size, url)
                opened.extractall(content)
            shutil.move(content / inside, target)
        except (OSError, http.client.HTTPException, zipfile.BadZipFile) as error:
            there = f"so that {target} holds what the archive has in {inside!r}"
            raise DatasetError(
                f"{target}: not there, and {url} cannot be fetched ({error}); fetch it on another "
                f"machine and unpack it {there}; a link to a folder that you have will do"
            ) from error


def _download(url: str, archive: Path, progress: Progress) -> str:
    """Download a file; return its SHA-256."""
    seen = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, archive.open("wb") as file:
        if not answer.url.startswith("https:"):
            raise OSError(f"it leads to {answer.url}, which is not https")
        size = int(answer.headers.get("Content-Length", 0))
        check_free_space(archive.parent, 2 * size, url)  # the archive and its unpacked files
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            seen.update(chunk)
            progress(f"downloading {url}", file.tell() / size if size else 0.0)
        if size and file.tell() != size:
            raise OSError(f"the connection ended after {file.tell():,} of {size:,} bytes")
    return seen.hexdigest()
