"""A plan: which strategies are measured on which workloads, how often, and where.

Plans are TOML files. They are checked before anything runs, so that a typo costs a second and not
a night: an unknown key or name is answered with the nearest right one. Lists in a workload or a
strategy expand to every combination, and every combination times ``min_repeats`` is a
:class:`Case`; ``bench/stopping.py`` adds repeats until the epochs are known precisely enough.
"""

from __future__ import annotations

import difflib
import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from gatherbench.bench.case import Case
from gatherbench.bench.workload import Workload

T = TypeVar("T")


class PlanError(ValueError):
    """A plan that cannot be run as it is written."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Measure(_Table):
    """How each case is measured."""

    #: Processes in which each series is measured: exactly so many.
    repeats: int | None = Field(default=None, ge=1)
    #: Or: ``min_repeats`` in any case, and further ones until the 95 % interval of each series'
    #: epoch is within ``precision`` (a share of it; from six repeats on), or ``max_repeats`` are
    #: there, or the cases have taken ``budget_s`` seconds together (0: as long as it takes).
    min_repeats: int = Field(default=3, ge=1)
    max_repeats: int = Field(default=10, ge=1)
    precision: float = Field(default=0.03, gt=0)
    budget_s: float = Field(default=0, ge=0)
    warmup_epochs: int = Field(default=1, ge=0)
    epochs: int = Field(default=2, ge=1)
    #: ``live`` draws the trace's minibatches anew in every epoch, so that sampling is part of
    #: the epoch; ``replay`` reads them back, so that the data path is seen alone; ``gpu`` draws
    #: them on the device, so that the CPU's sampler does not hide the data path.
    sampling: Literal["live", "replay", "gpu"] = "live"
    check_batches: int = Field(default=2, ge=1)
    #: Minibatches of test nodes on which the trained model is scored at the end (0: none).
    eval_batches: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=3600, gt=0)
    #: CPU threads of torch, the sampler and the gather (0: every core the process may use).
    threads: int = Field(default=0, ge=0)
    #: ``gpu`` binds threads and memory to the GPU's NUMA node, ``none`` leaves them unbound.
    numa: Literal["gpu", "none"] = "gpu"
    order_seed: int = 0
    #: On a GPU: run further epochs where the measured ones do not fill the 10 s that its energy
    #: counter needs. Without them a case may be half as long, and its energy stays unknown.
    energy: bool = True
    #: Write a Chrome trace of one more epoch of each strategy, after its measured ones.
    trace: bool = False
    #: Mark the measured epochs for Nsight Systems (on a GPU).
    nvtx: bool = False

    @model_validator(mode="before")
    @classmethod
    def _exactly(cls, given: Any) -> Any:
        """``repeats`` as the least and the most."""
        exact = given.get("repeats") if isinstance(given, dict) else None
        if exact is None:
            return given
        for bound in ("min_repeats", "max_repeats"):
            if given.get(bound, exact) != exact:
                raise ValueError(f"repeats says how many: leave it or {bound} out")
        return {**given, "min_repeats": exact, "max_repeats": exact}

    @model_validator(mode="after")
    def _in_order(self) -> Measure:
        if self.min_repeats > self.max_repeats:
            raise ValueError("min_repeats must not be above max_repeats")
        return self


class WorkloadTable(_Table):
    """``[[workload]]``: scalars or lists; lists expand."""

    dataset: str | list[str]
    scale: float | list[float] = 1.0
    model: str | list[str] = "sage"
    hidden: int | list[int] = 16
    fanouts: list[list[int]] = [[25, 10]]
    batch_size: int | list[int] = 1000
    max_batches: int = Field(default=0, ge=0)
    seed: int | list[int] = 0

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str | list[str]) -> str | list[str]:
        for name in _as_list(value):
            if name not in ("sage", "gat"):
                raise ValueError(f"unknown model {name!r}{nearest(name, ['sage', 'gat'])}")
        return value

    @field_validator("fanouts", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, list) and value and isinstance(value[0], int) else value

    @field_validator("fanouts")
    @classmethod
    def _positive(cls, value: list[list[int]]) -> list[list[int]]:
        if not value or any(not fan or any(f < 1 for f in fan) for fan in value):
            raise ValueError("each list of fan-outs holds one positive number a layer")
        return value

    @field_validator("dataset", "scale", "model", "hidden", "batch_size", "seed", mode="before")
    @classmethod
    def _something(cls, value: Any) -> Any:
        return _refuse_nothing(value)

    @field_validator("batch_size", "hidden")
    @classmethod
    def _at_least_one(cls, value: int | list[int]) -> int | list[int]:
        if any(v < 1 for v in _as_list(value)):
            raise ValueError("must be at least 1")
        return value

    @field_validator("scale")
    @classmethod
    def _above_zero(cls, value: float | list[float]) -> float | list[float]:
        if any(v <= 0 for v in _as_list(value)):
            raise ValueError("must be above 0")
        return value

    def expand(self) -> Iterator[Workload]:
        for dataset, scale, model, hidden, fanouts, batch_size, seed in itertools.product(
            _as_list(self.dataset),
            _as_list(self.scale),
            _as_list(self.model),
            _as_list(self.hidden),
            self.fanouts,
            _as_list(self.batch_size),
            _as_list(self.seed),
        ):
            yield Workload(
                dataset=dataset,
                scale=scale,
                model=model,
                hidden=hidden,
                fanouts=tuple(fanouts),
                batch_size=batch_size,
                max_batches=self.max_batches,
                seed=seed,
            )


class StrategyTable(BaseModel):
    """``[[strategy]]``: a name and the strategy's own parameters; lists expand."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="after")
    def _something(self) -> StrategyTable:
        for value in (self.model_extra or {}).values():
            _refuse_nothing(value)
        return self

    def expand(self) -> Iterator[dict[str, Any]]:
        params = self.model_extra or {}
        for values in itertools.product(*(_as_list(v) for v in params.values())):
            yield dict(zip(params, values, strict=True))


class Plan(_Table):
    """A checked plan; see the TOML files in ``bench/plans`` for the format."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    description: str = ""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Link profile (a shipped one's name, or a .toml file) that epochs are predicted for. Empty:
    #: the paper's machine where there is no GPU, none where there is.
    profile: str = ""
    measure: Measure = Measure()
    workload: list[WorkloadTable] = Field(min_length=1)
    strategy: list[StrategyTable] = Field(min_length=1)

    def workloads(self) -> list[Workload]:
        """Every workload of the plan, each once, in the order written."""
        return list(dict.fromkeys(w for table in self.workload for w in table.expand()))

    def cases(self) -> list[Case]:
        """Every case that is run whatever it finds, in order.

        Repeats are outermost and the strategies are shuffled anew within each, so that a drift of
        the machine (heat, a neighbour) falls on all strategies alike.

        Raises:
            PlanError: a strategy, one of its parameters or a dataset is not known.
        """
        from gatherbench.datasets.registry import get_source
        from gatherbench.datasets.store import dataset_folder
        from gatherbench.strategies.registry import build

        chosen: dict[tuple[str, str], dict[str, Any]] = {}
        for table in self.strategy:
            for params in table.expand():
                try:
                    variant = build(table.name, params).variant
                except (ValueError, TypeError, KeyError) as error:
                    raise PlanError(f"plan {self.name}: strategy: {_words(error)}") from error
                chosen[table.name, variant] = params
        for workload in self.workloads():
            try:  # a graph of the user's own is known by its folder
                if not dataset_folder(workload.dataset, workload.scale).exists():
                    source = get_source(workload.dataset)
                    if workload.scale != 1 and not source.scalable:
                        raise ValueError(f"{source.name} is one fixed graph: its scale is 1")
            except (ValueError, KeyError) as error:
                raise PlanError(f"plan {self.name}: workload: {_words(error)}") from error
        rng = random.Random(self.measure.order_seed)
        cases = []
        for repeat in range(self.measure.min_repeats):
            for workload in self.workloads():
                keys = list(chosen)
                rng.shuffle(keys)
                cases += [
                    Case(workload, name, variant, chosen[name, variant], repeat)
                    for name, variant in keys
                ]
        return cases


def resolved(plan: Plan, cases: list[Case]) -> dict[str, Any]:
    """The plan as ``plan.json`` keeps it: every case spelled out, workloads by their id."""
    workloads = {}
    for workload in plan.workloads():
        fields = asdict(workload)
        fields["fanouts"] = list(workload.fanouts)
        workloads[workload.id] = fields
    return {
        "name": plan.name,
        "description": plan.description,
        "device": plan.device,
        "profile": plan.profile,
        "measure": plan.measure.model_dump(),
        "workloads": workloads,
        "cases": [case.to_json() for case in cases],
    }


def cases_from_json(text: dict[str, Any]) -> list[Case]:
    """The inverse of :func:`resolved` for the cases: what ``--resume`` goes by."""
    workloads = {
        key: Workload(**{**fields, "fanouts": tuple(fields["fanouts"])})
        for key, fields in text["workloads"].items()
    }
    return [
        Case(workloads[c["workload"]], c["strategy"], c["variant"], c["params"], c["repeat"])
        for c in text["cases"]
    ]


def nearest(word: str, known: list[str]) -> str:
    """What to say of a word that is not known: the nearest one, or all there are."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(known)})"


def _refuse_nothing(value: Any) -> Any:
    """Refuse an empty list, which would leave no case, and ``true`` where a number belongs."""
    if value == [] and isinstance(value, list):
        raise ValueError("an empty list leaves nothing to measure")
    if any(isinstance(item, bool) for item in _as_list(value)):
        raise ValueError("true and false are no values here")
    return value


def _as_list(value: T | list[T]) -> list[T]:
    return value if isinstance(value, list) else [value]


def _words(error: BaseException) -> str:
    """A message without the quotes that ``str(KeyError)`` adds."""
    return str(error.args[0]) if error.args else type(error).__name__
