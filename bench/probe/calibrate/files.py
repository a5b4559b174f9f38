"""What a calibration leaves beside its profile: every sample, and every check, as CSV."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from gatherbench.bench.probe.calibrate.check import Check
from gatherbench.bench.probe.calibrate.points import UNITS, Point, Sample


class OutputError(RuntimeError):
    """What was measured cannot be kept where it was to be; the message says what to do."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a file that cannot be written from everything else that the system refuses."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror}; choose a folder with --out"
        ) from error


class SampleFile:
    """``samples.csv``: every observation, on disk as soon as it is known; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        names = [f.name for f in dataclasses.fields(Point)]
        self._writer.writerow([*names, "round", "amount", "unit", "time_s", "source"])
        self.kept: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Keep one more."""
        self.kept.append(sample)
        amount, seconds, clock = sample.observed
        unit = UNITS[sample.point.kind][0]
        with writing(self._path):
            self._writer.writerow(
                [*dataclasses.astuple(sample.point), sample.round, amount, unit, seconds, clock]
            )
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # on a full disk the last sample's failure is told
            self._file.close()


def write_checks(checks: Sequence[Check], path: Path) -> None:
    """Measured and modelled rates of each point that the profile predicts, as CSV."""
    names = [f.name for f in dataclasses.fields(Point)]
    rates = ["measured_per_s", "low_per_s", "high_per_s", "samples", "modelled_per_s", "error"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "unit", *rates])
        for one in checks:
            seen = one.measured
            measured = [f"{v:.5g}" for v in (seen.median, seen.low, seen.high)]
            modelled = ["", ""]
            if one.predicted is not None and one.error is not None:
                modelled = [f"{one.predicted:.5g}", f"{one.error:.4f}"]
            point = dataclasses.astuple(one.point)
            writer.writerow([*point, UNITS[one.point.kind][0], *measured, seen.count, *modelled])
