"""Tables and numbers as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

#: Of the tables that were gathered from.
SPANS = (1 << 30, 8 << 30, 32 << 30)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def ends(values: Iterable[float], digits: int = 2, unit: str = "") -> str:
    """``0.42 to 0.49``; one number where the ends read alike."""
    found = [*values]
    ends = dict.fromkeys(f"{end:.{digits}f}{unit}" for end in (min(found), max(found)))
    return " to ".join(ends)


def graph(workload: str) -> str:
    return workload.partition("-sage")[0]


def plan_of(run_id: str) -> str:
    return run_id.split("-", 1)[1].rpartition("-")[0]


def gib(size: int) -> str:
    return f"{size >> 30} GiB"
