"""Refuse a run's folder whose files contradict each other, or are not a run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError, create_model

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.plan import Measure, NamedCase
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.columns import CASES, ENDED, EPOCHS, OF_CASE
from gatherbench.bench.run.frames import RESTORE, Frames
from gatherbench.bench.run.part import StoreError
from gatherbench.outside import plain

#: A reader of a run needs one error for all of its damaged files.
RunError = StoreError
#: The fields of a workload that are read without a default.
_NEEDED = {"dataset", "scale", "model", "hidden", "fanouts", "batch_size", "max_batches", "seed"}


class _Gpu(BaseModel):
    name: str
    power_limit_w: float | None = None
    link_gen_max: int | None = None
    link_width_max: int | None = None


class _Package(BaseModel):
    package: str
    version: str


def _shape(**fields: Any) -> Any:
    """Return a model of the fields that are read: with a type alone one may be missing."""
    kinds: dict[str, Any] = {
        name: of if isinstance(of, tuple) else (of | None, None) for name, of in fields.items()
    }
    return create_model("Shape", **kinds)


#: The fields of ``plan.json`` and ``env.json`` that are read, in any version.
_MEASURE = _shape(
    epochs=(int, ...), warmup_epochs=(int, ...), sampling=(str, ""), minibatches=(str, ""),
    sampler_workers=(int, 0), threads=(int, 0), eval_every_epoch=(bool, False),
)  # fmt: skip
_PLAN = _shape(
    workloads=(dict[str, Workload], ...), cases=(list[NamedCase], ...), measure=(_MEASURE, ...),
    name=(str, ...),
)  # fmt: skip
_CPU = _shape(model=str, usable_cores=int, logical_cores=int)
_ENV = _shape(
    cpu=(_CPU, {}), gpus=list[_Gpu], memory=(_shape(total=int), {}),
    numa=(_shape(processors_by_node=(dict[int, int], {})), {}),
    libraries=dict[str, str | None], thread_limits=dict[str, str | None],
    plugins=(dict[str, dict[str, _Package]], {}), waiting=Waiting,
)  # fmt: skip


def limits_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of precision in a plan's ``measure``; older plans have other keys."""
    measure = plan.get("measure")
    if not isinstance(measure, dict):
        return {}
    limits = {key: measure[key] for key in ("repeats", "precision") if measure.get(key) is not None}
    older = [measure[key] for key in ("min_repeats", "max_repeats") if key in measure]
    return {**({"repeats": older} if older else {}), **limits}


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
    shapes: list[tuple[str, type[BaseModel], str, Any]] = [
        ("plan.json", _PLAN, "plan", plan),
        ("plan.json", Measure, "plan", limits_of(plan)),
        ("env.json", _ENV, "machine", env),
    ]
    for name, shape, what, content in shapes:
        try:
            shape.model_validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            why = f"not a run's {what} ({first_of(error)})"
            raise RunError(f"{folder / name}: {why}; {RESTORE}") from error
    workloads = plan["workloads"]
    for name, fields in workloads.items():
        if lacking := _NEEDED - fields.keys():
            raise RunError(f"{folder / 'plan.json'}: {name} has no {min(lacking)}; {RESTORE}")
    if strange := {case["workload"] for case in plan["cases"]} - workloads.keys():
        why = f"a case has the workload {min(strange)!r}, which is none of it"
        raise RunError(f"{folder / 'plan.json'}: {why}; {RESTORE}")
    if any(case["strategy"] == "null" for case in plan["cases"]):  # it would rank as a data path
        why = "the no-fetch limit is called no_fetch now, and `null` there; read it with the"
        raise RunError(f"{folder}: {why} gatherbench version that wrote it")
    if strange := {*frames.epochs["workload"], *frames.cases["workload"]} - workloads.keys():
        raise RunError(
            f"{folder / 'epochs.csv'}: workload {min(strange)!r} does not stand in plan.json;"
            " the files belong to different runs: put those of one run there"
        )
    for table in (EPOCHS, CASES):
        for name, line in _contradictions(table, frames):
            case = frames.table(table)[["workload", "strategy", "variant"]].iloc[line]
            raise RunError(
                f"{folder / table}.csv: line {line + 2}: {name} of {' '.join(case)} has a value"
                f" and a reason why there is none, or neither; {RESTORE}"
            )


def _contradictions(table: str, frames: Frames) -> list[tuple[str, int]]:
    """Return column and line of numbers that have both a value and a reason, or neither.

    A number may be missing without a reason, but not the time of an epoch with a trained model.
    """
    frame, keys = frames.table(table), list(OF_CASE)
    lines = frame.reindex(columns=[*keys, "epoch"]).fillna({"epoch": -1}).astype({"epoch": int})
    lines["line"] = range(len(lines))
    reasons = frames.reasons[frames.reasons["table"] == table]
    of_cases = reasons[reasons["epoch"] < 0].drop(columns="epoch").merge(lines, on=keys)
    of_epochs = reasons[reasons["epoch"] >= 0].merge(lines, on=[*keys, "epoch"])
    every = pd.concat([of_cases, of_epochs]).assign(missing=lambda of: of["status"] != "ok")
    wrong = list[tuple[str, int]]()
    for name, of in every.groupby("column"):
        if name in frame:
            there = frame[name].notna().to_numpy()[of["line"]]
            wrong += [(str(name), line) for line in of["line"][there == of["missing"]]]
    name = "epoch_s" if table == EPOCHS else ENDED.name
    has = frame.get(name, pd.Series(float("nan"), frame.index)).notna()
    if table == EPOCHS:
        given = every.loc[(every["column"] == name) & every["missing"], "line"]
        trained = frame.reindex(columns=["train_s"])["train_s"].notna()
        lost = (frame["rank"] < 0) & ~has & trained & ~lines["line"].isin(given)
    else:
        ok = frame["status"] == "ok"
        lost = frame["status"].notna() & ((ok != has) | (ok & frame["reason"].notna()))
    return wrong + [(name, line) for line in lines["line"][lost]]
