"""One thing that the doctor looked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "limited", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for.

    Attributes:
        name: what was looked for.
        status: ``ok``, ``limited`` (there, but less than a benchmark wants) or ``missing``.
        detail: what was found.
        lost: what cannot be measured, or is measured worse, because of it; empty when ok.
        remedy: what to do about it; empty when ok.
    """

    name: str
    status: Status
    detail: str
    lost: str = ""
    remedy: str = ""
