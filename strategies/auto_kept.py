"""What ``auto`` has found, kept for the machine and the shape of the table.

A file each in the user's cache folder: JSON that names a path, of which nothing is executed. A file
that is damaged, of another machine or of other paths counts as none. It is written beside its place
and then moved there, so that of two processes one wins and no reader sees a part.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
import torch

from gatherbench.kernels.host_gather import available_cores
from gatherbench.kernels.private_folder import cache_folder
from gatherbench.outside import read_bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: A file that is larger is none of ours.
_MOST_BYTES = 1 << 16
#: pydantic's, which a machine that only probes a GPU may lack: it is asked when a file is.
_EXACT = {"strict": True, "extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a finding holds for.

    Attributes:
        machine: processor, cores, memory and GPU (:func:`machine_of`).
        rows, row_bytes, dtype: of the table.
        paths: that could be had.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _EXACT

    machine: str
    rows: int
    row_bytes: int
    dtype: str
    paths: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Where its finding is kept."""
        return cache_folder("auto") / f"{hashlib.sha256(repr(self).encode()).hexdigest()[:24]}.json"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found.

    Attributes:
        kept: the path, one of :attr:`Asked.paths`.
        over: the path that it is told against; empty where there was no other.
        ratio, ends: the cost of that over the cost of what was kept, and its 95 % interval, which
            nothing gives where the two met once.
        word: the verdict: SLOW (the other path is slower), SAME or AMBIGUOUS.
        minibatches, seconds: what the search went on for.
        extra_s: what it took longer than the same minibatches with the path that was kept.
        day: when, as 2026-11-24.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _EXACT

    kept: str
    over: str
    ratio: float
    ends: tuple[float, float] | None
    word: str
    minibatches: int
    seconds: float
    extra_s: float
    day: str

    def __str__(self) -> str:
        ends = "{:.2f}–{:.2f}".format(*self.ends) if self.ends else "met once"
        verdict = {"SAME": ", level", "AMBIGUOUS": ", not decided"}.get(self.word, "")
        over = f", {self.ratio:.2f}× ({ends}) over {self.over}{verdict}" if self.over else ""
        return (
            f"kept {self.kept}{over}; the search took {self.minibatches} minibatches,"
            f" {self.extra_s:.3g} s longer than they take with it"
        )


def machine_of(device: torch.device) -> str:
    """What of this machine decides which path to ``device`` is fastest."""
    name = ""
    with contextlib.suppress(OSError):
        told = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = told[1] if told else ""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    memory = round(psutil.virtual_memory().total / 2**30)
    return f"{name or 'unnamed processor'}, {available_cores()} cores, {memory} GiB, {gpu}"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A file."""

    asked: Asked
    found: Finding


@cache
def _file() -> TypeAdapter[_Kept]:
    from pydantic import TypeAdapter

    return TypeAdapter(_Kept)


def load(asked: Asked) -> Finding | None:
    """What was found for it."""
    read = _read(asked.file)
    return read.found if read else None


def save(asked: Asked, found: Finding) -> None:
    """Keep it, if the folder can be written."""
    with contextlib.suppress(OSError):
        asked.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, beside = tempfile.mkstemp(".part", dir=asked.file.parent)
        with os.fdopen(number, "wb") as part:
            part.write(_file().dump_json(_Kept(asked, found), indent=1))
        Path(beside).replace(asked.file)


def kept_for(machine: str) -> list[tuple[Asked, Finding]]:
    """All that was found on a machine, as :func:`machine_of` names it."""
    read = map(_read, sorted(cache_folder("auto").glob("*.json")))
    return [(one.asked, one.found) for one in read if one and one.asked.machine == machine]


def _read(file: Path) -> _Kept | None:
    """What a file says, if it is whole and lies where what it was asked for belongs."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            return None
        read = _file().validate_json(read_bytes(file))
    except (OSError, ValueError):  # pydantic's is a ValueError
        return None
    right = read.asked.file == file and read.found.kept in read.asked.paths
    return read if right else None
