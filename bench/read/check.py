"""Refuse a run's folder whose files contradict each other, or are not a run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError, create_model

from gatherbench.bench.meters.load import Waiting
from gatherbench.bench.plan.plan import MANY, ONE, Measure, NamedCase
from gatherbench.bench.plan.workload import Workload
from gatherbench.bench.run.frames import CASES, ENDED, EPOCHS, OF_CASE, RESTORE, Frames
from gatherbench.bench.run.part import StoreError
from gatherbench.outside import plain

#: A reader of a run needs one error for all of its damaged files.
RunError = StoreError
#: The fields of a workload that are read without a default.
_NEEDED = {"dataset", "scale", "model", "hidden", "fanouts", "batch_size", "max_batches", "seed"}


def _shape(**kinds: Any) -> Any:
    """Return a model of the fields that are read: with a type alone one may be missing."""
    optional = {n: (kind | None, None) for n, kind in kinds.items() if not isinstance(kind, tuple)}
    return create_model("Shape", **kinds | optional)


#: The fields of ``plan.json`` and ``env.json`` that are read, in any version.
_MEASURE = _shape(
    epochs=(int, ...), warmup_epochs=(int, ...), sampling=(str, ""), minibatches=(str, ""),
    sampler_workers=(int, 0), threads=(int, 0), eval_every_epoch=(bool, False),
)  # fmt: skip
_PLAN = _shape(
    workloads=(dict[str, Workload], ...), cases=(list[NamedCase], ...), measure=(_MEASURE, ...),
    name=(str, ...),
)  # fmt: skip
_GPU: Any = _shape(name=(str, ...), power_limit_w=float, link_gen_max=int, link_width_max=int)
_PACKAGE: Any = _shape(package=(str, ...), version=(str, ...))
_ENV = _shape(
    cpu=(_shape(model=str, usable_cores=int, logical_cores=int), {}), gpus=list[_GPU],
    memory=(_shape(total=int), {}), numa=(_shape(processors_by_node=(dict[int, int], {})), {}),
    libraries=dict[str, str | None], thread_limits=dict[str, str | None],
    plugins=(dict[str, dict[str, _PACKAGE]], {}), waiting=Waiting,
)  # fmt: skip


def limits_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of precision in a plan's ``measure``; older plans have other keys."""
    measure = plan.get("measure")
    if not isinstance(measure, dict):
        return {}
    older = [measure[key] for key in ("min_repeats", "max_repeats") if key in measure]
    limits = {"repeats": measure.get("repeats") or older, "precision": measure.get("precision")}
    return {key: value for key, value in limits.items() if value not in (None, [])}


def first_of(error: ValidationError) -> str:
    """Return the first error, in a line."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in (ONE, MANY))
    return plain(": ".join(filter(None, (where, first["msg"]))))


def check(folder: Path, plan: dict[str, Any], frames: Frames, env: dict[str, Any]) -> None:
    """Refuse an invalid plan or machine, tables of another plan, and contradictions in them.

    Raises:
        RunError: the message names the file and the remedy.
    """
    for shape, content in ((_PLAN, plan), (Measure, limits_of(plan)), (_ENV, env)):
        try:
            shape.model_validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            name, kind = ("env.json", "machine") if shape is _ENV else ("plan.json", "plan")
            why = f"not a run's {kind} ({first_of(error)})"
            raise RunError(f"{folder / name}: {why}; {RESTORE}") from error
    for name, fields in plan["workloads"].items():
        if lacking := _NEEDED - fields.keys():
            raise RunError(f"{folder / 'plan.json'}: {name} has no {min(lacking)}; {RESTORE}")
    used = {*frames.epochs["workload"], *frames.cases["workload"]}
    used |= {case["workload"] for case in plan["cases"]}
    if strange := used - plan["workloads"].keys():
        raise RunError(
            f"{folder / 'plan.json'}: lacks the workload {min(strange)!r} of a case, or of"
            " epochs.csv; the files belong to different runs: put those of one run there"
        )
    for table in (EPOCHS, CASES):
        for name, line in _contradictions(table, frames):
            case = " ".join(frames.table(table)[["workload", "strategy", "variant"]].iloc[line])
            raise RunError(
                f"{folder / table}.csv: line {line + 2}: {name} of {case} has a value and a reason"
                f" why there is none, or neither; {RESTORE}"
            )


def _contradictions(table: str, frames: Frames) -> list[tuple[str, int]]:
    """Return column and line of numbers that have both a value and a reason, or neither.

    A number may be missing without a reason, but not the time of an epoch with a trained model.
    """
    frame, keys = frames.table(table), [*OF_CASE]
    lines = frame[keys].assign(of_epoch=frame.get("epoch", -1), line=range(len(frame)))
    reasons = frames.reasons[frames.reasons["table"] == table]
    every = reasons[reasons["column"].isin(frame.columns)].merge(lines, on=keys)
    every = every[(every["epoch"] < 0) | (every["epoch"] == every["of_epoch"])]
    missing, places = every["status"] != "ok", frame.columns.get_indexer(pd.Index(every["column"]))
    has_value = frame.notna().to_numpy()[every["line"].to_numpy(), places]
    wrong = every[has_value == missing]
    needed = "epoch_s" if table == EPOCHS else ENDED.name
    whole = frame.reindex(columns=[*frame, *{needed, "train_s"} - {*frame}])
    has = whole[needed].notna()
    if table == EPOCHS:
        explained = every.loc[(every["column"] == needed) & missing, "line"]
        lost = (frame["rank"] < 0) & ~has & whole["train_s"].notna()
        lost &= ~lines["line"].isin(explained)
    else:
        ok = frame["status"] == "ok"
        lost = frame["status"].notna() & ((ok != has) | (ok & frame["reason"].notna()))
    contradictions = list(zip(wrong["column"], wrong["line"], strict=True))
    return contradictions + [(needed, line) for line in lines["line"][lost]]
