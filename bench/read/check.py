"""Refuse a run's folder whose files contradict each other, or are not a run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.plan import Measure, NamedCase
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.columns import CASES, ENDED, EPOCHS
from gatherbench.bench.run.frames import RESTORE, Frames
from gatherbench.bench.run.part import StoreError
from gatherbench.outside import plain

#: A reader of a run needs one error for all of its damaged files.
RunError = StoreError
_CASE = ["basis", "workload", "strategy", "variant", "rank", "repeat"]


class _Measured(BaseModel):
    """The fields of ``measure`` that are read, in any version."""

    epochs: int
    warmup_epochs: int
    sampling: str = ""
    minibatches: str = ""
    sampler_workers: int = 0
    threads: int = 0
    eval_every_epoch: bool = False


#: The fields of a workload that are read without a default.
_NEEDED = {"dataset", "scale", "model", "hidden", "fanouts", "batch_size", "max_batches", "seed"}


class _Shape(BaseModel):
    """The fields of a plan that are read."""

    workloads: dict[str, Workload]
    cases: list[NamedCase]
    measure: _Measured
    name: str


class _Cpu(BaseModel):
    model: str | None = None
    usable_cores: int | None = None
    logical_cores: int | None = None


class _Gpu(BaseModel):
    name: str
    power_limit_w: float | None = None
    link_gen_max: int | None = None
    link_width_max: int | None = None


class _Package(BaseModel):
    package: str
    version: str


class _Memory(BaseModel):
    total: int | None = None


class _Numa(BaseModel):
    processors_by_node: dict[int, int] = {}


class _Env(BaseModel):
    """The fields of a machine that are read."""

    cpu: _Cpu = _Cpu()
    gpus: list[_Gpu] | None = None
    memory: _Memory = _Memory()
    numa: _Numa = _Numa()
    libraries: dict[str, str | None] | None = None
    thread_limits: dict[str, str | None] | None = None
    plugins: dict[str, dict[str, _Package]] = {}
    waiting: Waiting | None = None


def limits_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of precision in a plan's ``measure``; older plans have other keys."""
    measure = plan.get("measure")
    if not isinstance(measure, dict):
        return {}
    limits = {key: measure[key] for key in ("repeats", "precision") if measure.get(key) is not None}
    older = [measure[key] for key in ("min_repeats", "max_repeats") if key in measure]
    return {**limits, **({"repeats": older} if older and "repeats" not in limits else {})}


def first_of(error: ValidationError) -> str:
    """Return the first error, in a line."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return plain(": ".join(filter(None, (where, first["msg"]))))


def check(folder: Path, plan: dict[str, Any], frames: Frames, env: dict[str, Any]) -> None:
    """Refuse an invalid plan or machine, tables of another plan, and contradictions in them.

    Raises:
        RunError: the message names the file and the remedy.
    """
    for name, shape, what, content in (
        ("plan.json", _Shape, "plan", plan),
        ("plan.json", Measure, "plan", limits_of(plan)),
        ("env.json", _Env, "machine", env),
    ):
        try:
            shape.model_validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            why = f"not a run's {what} ({first_of(error)})"
            raise RunError(f"{folder / name}: {why}; {RESTORE}") from error
    for name, fields in plan["workloads"].items():
        if lacking := _NEEDED - fields.keys():
            raise RunError(f"{folder / 'plan.json'}: {name} has no {min(lacking)}; {RESTORE}")
    if strange := {case["workload"] for case in plan["cases"]} - plan["workloads"].keys():
        why = f"a case has the workload {min(strange)!r}, which is none of it"
        raise RunError(f"{folder / 'plan.json'}: {why}; {RESTORE}")
    if any(case["strategy"] == "null" for case in plan["cases"]):  # it would rank as a data path
        raise RunError(
            f"{folder}: the no-fetch limit is called no_fetch now, and `null` there; read it with"
            " the gatherbench version that wrote it"
        )
    seen = {*frames.epochs["workload"], *frames.cases["workload"]}
    if strange := seen - plan["workloads"].keys():
        raise RunError(
            f"{folder / 'epochs.csv'}: workload {min(strange)!r} does not stand in plan.json;"
            " the files belong to different runs: put those of one run there"
        )
    for table in (EPOCHS, CASES):
        _value_or_reason(folder, table, frames)


def _value_or_reason(folder: Path, table: str, frames: Frames) -> None:
    """Check that a number has a value or a reason, as the time of an epoch with a trained model.

    Raises:
        RunError: names file, line and column.
    """
    frame = frames.table(table)
    mine = frames.reasons[frames.reasons["table"] == table]
    both = pd.MultiIndex.from_frame(pd.concat([frame[_CASE], mine[_CASE]], ignore_index=True))
    codes = pd.factorize(both)[0].astype(np.int64)
    lines, given = codes[: len(frame)], codes[len(frame) :]
    epochs = frame["epoch"].to_numpy(np.int64) if table == EPOCHS else np.full(len(frame), -1)
    of = mine["epoch"].to_numpy(np.int64)
    wide = max([0, *epochs, *of]) + 2

    def told(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        whole = np.isin(lines, given[chosen & (of < 0)])
        one = np.isin(lines * wide + epochs, (given * wide + of)[chosen & (of >= 0)])
        found: NDArray[np.bool_] = whole | one
        return found

    def refuse(wrong: NDArray[np.bool_], name: str) -> None:
        if wrong.any():
            line = int(wrong.argmax())
            where = " ".join(map(str, frame[["workload", "strategy", "variant"]].iloc[line]))
            raise RunError(
                f"{folder / table}.csv: line {line + 2}: {name} of {where} has a value and a reason"
                f" why there is none, or neither; {RESTORE}"
            )

    missing = (mine["status"] != "ok").to_numpy()
    columns = mine["column"].to_numpy()
    for name in set(columns) & set(frame):
        there = frame[name].notna().to_numpy()
        about = columns == name
        refuse(told(about & missing) & there, name)
        refuse(told(about & ~missing) & ~there, name)
    if table == EPOCHS:
        why = told((columns == "epoch_s") & missing)
        times = frame.reindex(columns=["epoch_s", "train_s"])
        lost = (frame["rank"] < 0) & times["epoch_s"].isna() & times["train_s"].notna()
        refuse(lost.to_numpy() & ~why, "epoch_s")
    else:
        ended, ok = frame["status"].notna(), frame["status"] == "ok"
        there = frame[ENDED.name].notna() if ENDED.name in frame else ended & False
        wrong = ended & ((ok != there) | (ok & frame["reason"].notna()))
        refuse(wrong.to_numpy(), ENDED.name)
