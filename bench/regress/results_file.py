"""Reads what pytest-benchmark saved: the times of each benchmark, and the machine they are from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ResultsError(Exception):
    """A file that cannot be compared; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Times:
    """One benchmark's rounds, in seconds. ``data`` is empty unless the rounds were saved.

    ``other_cores``: cores that other work kept busy meanwhile; 0 where nobody looked.
    ``threshold``: what two runs may differ by, where the benchmark asks for more than the usual.
    ``yardstick``: not our code, but what the machine does with the like; ``group`` is its company.
    """

    median_s: float
    iqr_s: float
    rounds: int
    data: tuple[float, ...] = ()
    other_cores: float = 0.0
    threshold: float = 0.0
    group: str | None = None
    yardstick: bool = False


@dataclass(frozen=True, slots=True)
class Results:
    """One file.

    Attributes:
        machine: what decides whether two files can be compared.
        software: versions, which may differ but are worth a warning.
        times: by the benchmark's full name.
    """

    path: Path
    machine: Mapping[str, str]
    software: Mapping[str, str]
    times: Mapping[str, Times]


def read_results(path: Path) -> Results:
    """Read a file of ``pytest --benchmark-save`` or ``--benchmark-json``.

    Raises:
        ResultsError: it is missing, cut off, or something else.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ResultsError(f"{path} is no JSON, perhaps cut off ({error}): run it again") from error
    try:
        info = content["machine_info"]
        times = {entry["fullname"]: _times(entry) for entry in content["benchmarks"]}
        return Results(path, _machine(info), _software(info), times)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(
            f"{path} was not written by pytest-benchmark: {type(error).__name__} {error}"
        ) from error


def newest_pair(folder: Path) -> tuple[Path | None, Path]:
    """The newest file below ``folder``, and before it the newest of the same machine, if any.

    pytest-benchmark numbers its files. An unreadable earlier one is passed over.

    Raises:
        ResultsError: there is no file, or the newest cannot be read.
    """
    files = sorted(folder.glob("**/*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    if not files:
        raise ResultsError(f"{folder} holds no results: run `make regress`")
    machine = read_results(files[-1]).machine
    for file in reversed(files[:-1]):
        try:
            if read_results(file).machine == machine:
                return file, files[-1]
        except ResultsError:
            continue
    return None, files[-1]


def _times(entry: Mapping[str, Any]) -> Times:
    stats, extra_info = entry["stats"], entry.get("extra_info", {})
    times = Times(
        float(stats["median"]),
        float(stats["iqr"]),
        int(stats["rounds"]),
        tuple(map(float, stats.get("data") or ())),
        float(extra_info.get("other_busy_cores", 0.0)),
        float(extra_info.get("threshold", 0.0)),
        entry.get("group"),
        bool(extra_info.get("yardstick", False)),
    )
    if not times.median_s > 0:
        raise ValueError(f"a median of {times.median_s} s")
    return times


def _machine(info: Mapping[str, Any]) -> dict[str, str]:
    cpu, more = info["cpu"], info.get("gatherbench", {})
    return {
        "processor": str(cpu.get("brand_raw") or info.get("processor") or "unknown"),
        "cores": str(cpu.get("count")),
        "cores this process may use": str(more.get("usable_cores")),
        "thread limit": str(more.get("omp_num_threads")),
        "architecture": str(info.get("machine")),
        "system": str(info.get("system")),
    }


def _software(info: Mapping[str, Any]) -> dict[str, str]:
    more = info.get("gatherbench", {})
    return {
        "kernel": str(info.get("release")),
        "python": f"{info.get('python_implementation')} {info.get('python_version')}",
        **{name: str(version) for name, version in more.get("libraries", {}).items()},
    }
