"""A run's folder, written so that a crash at any moment loses no measurement.

Each process of a run writes its measurements, as it makes them, into a *part* of its own
(:mod:`gatherbench.bench.run.part`). The run is its parts: a reader reads them before it has ended.
When it ends, or its time is up, the tables are written from them, each as a whole; once
all cases are measured the parts are deleted. A run that is stopped leaves its parts.

    plan.json          the resolved plan: every workload and every case
    env.json           the machine, and when the run began
    profile.toml       the machine that epochs are predicted for, if any
    epochs.csv         a line per epoch (:mod:`gatherbench.bench.run.frames`)
    cases.csv          a line per case
    reasons.csv        a line per missing number
    columns.toml       the meaning of the columns
    epochs.parquet, …  these tables, once more
    calibration.csv    the check of a GPU's sensors, a line per observation; absent without a GPU
    samples.parquet    seconds of every stage of every minibatch
    timeline.parquet   values polled during epochs; absent without any
    tuned.json         choices tuned during training, for all processes of the machine
    sensors.json       the GPU's sensors that the calibration trusts; absent without a GPU
    parts/             the parts of a run that has not ended
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from gatherbench.bench.run.frames import (
    RESTORE,
    Frames,
    among,
    frames_of,
    ids_in,
    read_frames,
    read_table,
    reading,
)
from gatherbench.bench.run.part import LISTS, CaseId, SoFar, StoreError, counted, take_in
from gatherbench.bench.run.rows import HEADER, Row, table_of
from gatherbench.datasets.files import discard, replacing
from gatherbench.outside import open_file, read_bytes, read_json

_T = TypeVar("_T")


class RunStore:
    """One run's folder. All that read it raise a :class:`StoreError` for a file that is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_id = folder, folder.name
        self.calibration_file = folder / "calibration.csv"
        self.profile_file = folder / "profile.toml"
        self.parts = folder / "parts"
        self.sensors_file = folder / "sensors.json"
        self.tuned_file = folder / "tuned.json"

    @classmethod
    def create(
        cls, root: Path, machine: str, plan: dict[str, Any], env: dict[str, Any]
    ) -> RunStore:
        """Create a folder ``root/<machine>/<date>-<plan>-<6 hex digits>``."""
        run_id = f"{date.today():%Y%m%d}-{plan['name']}-{secrets.token_hex(3)}"
        store = cls(root / machine / run_id)
        store.parts.mkdir(parents=True)
        began = {"began": datetime.now(UTC).isoformat(timespec="seconds")}
        frames_of(()).write(store.folder)
        # The plan last: a folder with a plan is a run.
        for name, content in {"env": env | began, "plan": plan}.items():
            write_atomically(store.folder / f"{name}.json", json.dumps(content, indent=2) + "\n")
        return store

    @classmethod
    def open(cls, folder: Path) -> RunStore:
        """Open the folder of an earlier run.

        Raises:
            StoreError: it is not a run, or its name is invalid for a folder.
        """
        try:
            if (folder / "plan.json").exists():
                return cls(folder)
            why = "it has no plan.json"
        except OSError as error:
            why = str(error.strerror)
        raise StoreError(
            f"{folder}: not a run folder ({why}); name one, such as results/MACHINE/RUN, or put"
            " its file back"
        )

    def plan(self) -> dict[str, Any]:
        """Return the resolved plan of the run."""
        return _read_json(self.folder / "plan.json")

    def env(self) -> dict[str, Any]:
        """Return the machine of the run."""
        return _read_json(self.folder / "env.json")

    def new_part(self) -> Path:
        """Return a part for one more process that measures."""
        self.parts.mkdir(exist_ok=True)
        last = max((int(part.stem[5:]) for part in self._parts()), default=0)
        return self.parts.absolute() / f"block{last + 1:06}.jsonl"

    def _parts(self) -> list[Path]:
        """Return the parts of processes that measured, in the order in which they began."""
        return sorted(self.parts.glob("block" + "[0-9]" * 6 + ".jsonl"))

    def so_far(self) -> dict[CaseId, SoFar]:
        """Return the cases that have records in the parts."""
        ended: dict[CaseId, SoFar] = {}
        for part in self._parts():
            take_in(ended, part)
        return ended

    def frames(self) -> Frames:
        """Return the tables, with the parts' records in place of a case's older ones."""
        return _read_again(self._tables)

    def _tables(self) -> Frames:
        cases = self.so_far()
        frames = read_frames(self.folder, cases)
        rows = chain.from_iterable(case.rows for case in cases.values())
        return frames_of(rows, frames.without(cases)) if cases else frames

    def lists(self, kind: str) -> pd.DataFrame:
        """Return the table ``samples`` or ``timeline`` (:data:`LISTS`)."""
        return _read_again(partial(self._list, kind))

    def _list(self, kind: str) -> pd.DataFrame:
        path, kinds = self.folder / f"{kind}.parquet", LISTS[kind]
        before = pd.DataFrame(columns=list(kinds))
        remedy = "put a whole copy of it there, or delete it: the rows are read without it"
        with reading(path, "cannot be read ({})", remedy):
            if path.exists():
                with open_file(path) as file:
                    before = pd.read_parquet(file)
            if missing := kinds.keys() - set(before.columns):
                raise ValueError(f"it has no column {min(missing)!r}")
        records = [r for part in self._parts() for r in counted(part) if r["kind"] == kind]
        if not records:
            return before
        tables = [pd.DataFrame({name: record[name] for name in kinds}) for record in records]
        table = pd.concat(tables, ignore_index=True)
        kept = before[~among(before, set(ids_in(table)))]
        return (pd.concat([kept, table]) if len(kept) else table).astype(kinds)

    def calibration(self) -> pd.DataFrame:
        """Return the observations of the run as a whole: :data:`HEADER`; empty without a GPU."""
        file = self.calibration_file
        return read_observations(file) if file.exists() else table_of(())

    def take_sensors(self, checked: RunStore) -> None:
        """Take over the check of the sensors of an earlier run with the same GPU."""
        self.sensors_file.write_bytes(read_bytes(checked.sensors_file))
        self.keep_calibration(checked.calibration().assign(run_id=self.run_id))

    def keep_calibration(self, table: pd.DataFrame) -> None:
        """Write the observations of the run as a whole."""
        with replacing(self.calibration_file) as temporary:
            table.to_csv(temporary, index=False, lineterminator="\n")

    def predicted(self, rows: Iterable[Row]) -> Frames:
        """Return the tables with these predictions in place of earlier ones."""
        return frames_of(rows, self.frames().only(lambda table: table["basis"] != "predicted"))

    def end(self, frames: Frames, *, finished: bool) -> None:
        """Write tables, samples and timelines of all records; a finished run drops its parts."""
        if not self.parts.is_dir():
            return
        frames.write(self.folder)
        for kind in LISTS:
            if not (table := self._list(kind)).empty:
                with replacing(self.folder / f"{kind}.parquet") as temporary:
                    table.to_parquet(temporary, compression="zstd", index=False)
        if finished:  # all at once: the records of parts that remain would replace full cases
            discard(self.parts)


def _read_again(read: Callable[[], _T]) -> _T:
    """Return what is read. A run that ends changes its files twice: tables come, then parts go."""
    for _ in range(2):
        with suppress(StoreError):
            return read()
    return read()


def read_observations(path: Path) -> pd.DataFrame:
    """Read a table with one observation per line: the columns :data:`HEADER`.

    Raises:
        StoreError: the file cannot be read, or is not such a table.
    """
    keys = [name for name in HEADER if name != "value"]
    table = read_table(path, keys, ["value"])[list(HEADER)].fillna({"borrowed": "", "source": ""})
    ok = table["status"] == "ok"
    wrong = (ok != table["value"].notna()) | (ok == table["reason"].notna())
    if wrong.any():
        line = table.index[wrong][0] + 2
        raise StoreError(f"{path}: line {line}: expected a value, or a reason for none; {RESTORE}")
    return table


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the whole old or the whole new text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    with reading(path):
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        return content
