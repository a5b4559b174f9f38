"""Fetching a published archive into a folder that is either whole or not there.

The downloaders of ogb and PyG ask on the terminal, print, and leave half an archive behind when
they are stopped; a benchmark that runs unattended can have none of that.
"""

from __future__ import annotations

import http.client
import shutil
import tempfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from gatherbench.datasets.layout import DatasetError
from gatherbench.datasets.source import Progress
from gatherbench.datasets.staging import check_free_space

_CHUNK = 1 << 20
_TIMEOUT_S = 60


def published(name: str) -> dict[str, Any]:
    """What ``downloads.toml`` says of a graph."""
    text = Path(__file__).with_name("downloads.toml").read_text()
    return tomllib.loads(text)[name]


def fetch_folder(url: str, inside: str, target: Path, progress: Progress) -> None:
    """Downloads a zip archive and makes its folder ``inside`` (``"."``: all of it) ``target``.

    Raises:
        DatasetError: no network, too little disk, or a broken archive; says where the files of
            the archive can be put by hand.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        archive, content = Path(scratch) / "archive.zip", Path(scratch) / "content"
        try:
            _download(url, archive, progress)
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(content)
        except (OSError, http.client.HTTPException, zipfile.BadZipFile) as error:
            raise DatasetError(
                f"{target}: not there, and {url} cannot be fetched ({error}); fetch it on another "
                f"machine and unpack it so that {target} holds what the archive has in "
                f"{inside!r}; a link to a folder that you have will do"
            ) from error
        shutil.move(content / inside, target)


def _download(url: str, archive: Path, progress: Progress) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, archive.open("wb") as file:
        size = int(answer.headers.get("Content-Length", 0))
        check_free_space(archive.parent, 2 * size, url)  # the archive and what it unpacks to
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            progress(f"downloading {url}", file.tell() / size if size else 0.0)
        if size and file.tell() != size:
            raise OSError(f"the connection ended after {file.tell():,} of {size:,} bytes")
