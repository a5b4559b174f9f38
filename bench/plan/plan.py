"""Read a plan: which strategies are measured on which workloads, how often, and where.

Plans are TOML files. They are checked before anything runs, so that a typo costs a second instead
of a night: the error for an unknown key or name has the nearest right one. Lists in a workload or a
strategy expand to every combination, and each repeat of a combination is a :class:`Case`;
``bench/read/stopping.py`` adds repeats until the intervals of the epochs are narrow enough.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Tag,
    ValidationError,
    model_validator,
)

from gatherbench.bench.plan.doors import MODELS, AroundStep, OwnSampler, opened, own_model
from gatherbench.bench.plan.workload import Case, Workload
from gatherbench.outside import InputError, read_bytes
from gatherbench.plugins import nearest_or_all
from gatherbench.strategies.declared import check_strategy

T = TypeVar("T")

#: The ways of sampling in which a GPU draws.
GPU_SAMPLING = ("gpu", "uva")
#: In place of a strategy's name: every built-in one that the plan does not name. Strategies of
#: other packages are excluded, so that a shipped plan measures the same everywhere.
EVERY_OTHER = "*"
#: The share of free memory and disk that tables and graph may take.
_ROOM = 0.9
PLANS_FOLDER = Path(__file__).parent / "plans"
#: In place of a plan's name: the default plan, which takes some minutes.
USUAL = "usual"
#: The alternatives of a key that takes a value or a list: an error is that of one of them alone.
ONE, MANY = "<one>", "<list>"


class PlanError(InputError):
    """A plan cannot be run as it is written."""


def _as_list(value: T | list[T]) -> list[T]:
    return value if isinstance(value, list) else [value]


def _known_model(name: str) -> str:
    if name not in MODELS and ":" not in name:
        hint = nearest_or_all(name, [*MODELS, "my_module:MyGNN"])
        raise ValueError(f"unknown model {name!r}{hint}")
    return name


def _opens(kind: type[Any]) -> AfterValidator:
    def check(spec: str) -> str:
        if spec:
            opened(spec, kind)
        return spec

    return AfterValidator(check)


def _nested(value: Any) -> Any:
    is_single = isinstance(value, list) and not any(isinstance(item, list) for item in value)
    return [value] if is_single else value


#: Types of values: a list has at least one, and numbers above these limits are typing errors.
_EITHER = Discriminator(lambda value: MANY if isinstance(value, list) else ONE)
OneOrMore: TypeAlias = Annotated[
    Annotated[T, Tag(ONE)] | Annotated[list[T], Field(min_length=1), Tag(MANY)], _EITHER
]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
FromOne = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _Table(BaseModel):
    """A table of a plan, whose keys ``keys.toml`` describes."""

    # Numbers are finite; ``true`` and ``"0.1"`` are no numbers.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Measure(_Table):
    """How each case is measured."""

    repeats: Annotated[
        Annotated[Repeats, Tag(ONE)]
        | Annotated[list[Repeats], Field(min_length=2, max_length=2), Tag(MANY)],
        _EITHER,
    ] = [3, 10]
    precision: Annotated[float, Field(gt=0, le=1)] = 0.03
    budget_s: NonNegativeFloat = 0
    warmup_epochs: NonNegativeInt = 1
    epochs: FromOne = 2
    sampling: Literal["live", "gpu", "uva"] = "live"
    sampler_workers: NonNegativeInt = 0
    step: OneOrMore[Literal["issued", "captured"]] = "issued"
    count_batches: NonNegativeInt = 0
    eval_batches: NonNegativeInt = 0
    eval_every_epoch: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=864_000)] = 3600
    threads: NonNegativeInt = 0
    numa: Literal["gpu", "none"] = "gpu"
    together: bool = False
    energy: bool = True
    peak: bool = False

    @model_validator(mode="after")
    def _fit_together(self) -> Measure:
        if self.min_repeats > self.max_repeats:
            raise ValueError("repeats = [LEAST, MOST]: the smaller number comes first")
        if self.eval_every_epoch and (self.together or not self.eval_batches):
            scores = "eval_every_epoch scores the model after each epoch of one path"
            raise ValueError(f"{scores}: set eval_batches, and leave together out")
        if self.together and self.epochs < 2:
            cached = "the second of two paths would find its rows in the CPU's caches"
            raise ValueError(f"together needs epochs = 2 or more: in a single epoch {cached}")
        return self

    @property
    def min_repeats(self) -> int:
        return _as_list(self.repeats)[0]

    @property
    def max_repeats(self) -> int:
        return _as_list(self.repeats)[-1]


class WorkloadTable(_Table):
    """``[[workload]]``: scalars or lists; lists expand."""

    dataset: OneOrMore[str]
    scale: OneOrMore[PositiveFloat] = 1.0
    fit: bool = False
    model: OneOrMore[Annotated[str, AfterValidator(_known_model)]] = "sage"
    hidden: OneOrMore[Annotated[int, Field(ge=1, le=2**20)]] = 16
    fanouts: Annotated[
        list[Annotated[list[FromOne], Field(min_length=1)]],
        BeforeValidator(_nested, json_schema_input_type=list[int] | list[list[int]]),
    ] = [[25, 10]]
    batch_size: OneOrMore[FromOne] = 1000
    max_batches: NonNegativeInt = 0
    seed: OneOrMore[int] = 0
    gpus: OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = 1
    scaling: OneOrMore[Literal["strong", "weak"]] = "strong"
    sampler: OneOrMore[Annotated[str, _opens(OwnSampler)]] = ""
    around_step: OneOrMore[Annotated[str, _opens(AroundStep)]] = ""

    def expand(self) -> Iterator[Workload]:
        axes = {name: value for name, value in self if name != "fit"}
        for fields in _combined({**axes, "fanouts": list(map(tuple, self.fanouts))}):
            workload = Workload(**fields)
            # Scaling has no meaning for one rank: it would only give the workload a second id.
            yield workload if workload.gpus > 1 else replace(workload, scaling="strong")


class StrategyTable(BaseModel):
    """``[[strategy]]``: a name and the strategy's own parameters; lists expand."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="after")
    def _something(self) -> StrategyTable:
        for value in (self.model_extra or {}).values():
            if value == [] or any(isinstance(item, bool) for item in _as_list(value)):
                raise ValueError("a parameter cannot be an empty list, true or false")
        return self

    def expand(self) -> Iterator[dict[str, Any]]:
        return _combined(self.model_extra or {})


class _Head(_Table):
    """The keys of a plan above its tables, and how it measures."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    description: str = ""
    minutes: NonNegativeFloat = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    profile: str = ""
    measure: Measure = Measure()


class Plan(_Head):
    """A checked plan; see the TOML files in ``bench/plan/plans`` for the format."""

    workload: Annotated[list[WorkloadTable], Field(min_length=1)]
    strategy: Annotated[list[StrategyTable], Field(min_length=1)]

    def fitted(self, host_bytes: int, disk_bytes: int) -> Plan:
        """Return the plan with tables of ``fit`` at the largest scales that fit into these bytes;
        a ``DatasetError`` if every size of a graph is too large."""
        tables = []
        for table in self.workload:
            pairs = itertools.product(_as_list(table.dataset), _as_list(table.scale))
            for graph, scale in pairs if table.fit else ():  # each graph at a scale of its own
                fitting = largest_scale(graph, scale, host_bytes, disk_bytes)
                tables.append(table.model_copy(update={"dataset": graph, "scale": fitting}))
            tables += [] if table.fit else [table]
        return self.model_copy(update={"workload": tables})

    def with_ranks(self, ranks: int) -> Plan:
        """Return the plan with this number of ranks for workloads without ``gpus``."""
        tables = [
            table if "gpus" in table.model_fields_set else table.model_copy(update={"gpus": ranks})
            for table in self.workload
        ]
        return self.model_copy(update={"workload": tables})

    def workloads(self) -> list[Workload]:
        """Return every workload of the plan, each once, in the written order."""
        every = (w for table in self.workload for w in table.expand())
        steps: Any = _as_list(self.measure.step)
        return list(dict.fromkeys(replace(w, step=step) for w in every for step in steps))

    def check(self) -> None:
        """Refuse (``PlanError``) an unknown strategy, parameter, dataset or model, and a workload
        that cannot run here; only a user's own class may import torch."""
        for number, table in enumerate(self.strategy):
            for params in table.expand() if table.name != EVERY_OTHER else ():
                with self._explained(f"strategy[{number}]"):
                    check_strategy(table.name, params)
        for workload in self.workloads():
            with self._explained("workload"):
                _refuse(workload, self.measure)

    @contextlib.contextmanager
    def _explained(self, place: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            words = error.args[0] if error.args else type(error).__name__
            raise PlanError(f"plan {self.name}: {place}: {words}") from error

    def cases(self) -> list[Case]:
        """Return the cases of the least repeats, in the order of the run.

        Repeats are outermost and the strategies are shuffled anew within each, so that a drift of
        the machine (heat, other load) affects all strategies alike. Each strategy runs on all
        workloads, such as numbers of ranks, before the next one. The baseline comes first of all,
        so that an interrupted run can be compared with it. What :meth:`check` refuses, and a
        strategy of another package that cannot be used, is a ``PlanError``.
        """
        self.check()
        from gatherbench.strategies.registry import STRATEGIES, build  # torch, which takes seconds

        named = {table.name for table in self.strategy}
        others = [strategy.name for strategy in STRATEGIES if strategy.name not in named]
        strategies = {}
        for table in self.strategy:
            names = others if table.name == EVERY_OTHER else [table.name]
            for name, params in itertools.product(names, table.expand()):
                with self._explained("strategy"):
                    strategy = build(name, params)
                strategies[name, strategy.variant] = strategy, params
        workloads, rng, cases = self.workloads(), random.Random(0), []
        for repeat in range(self.measure.min_repeats):
            order = list(strategies)
            rng.shuffle(order)
            if repeat == 0:
                order.sort(key=lambda path: strategies[path][0].role != "baseline")
            for name, variant in order:
                strategy, params = strategies[name, variant]
                if name in named or "file" not in strategy.needs:  # "*" adds no reader of a file
                    cases += [Case(w, name, variant, params, repeat) for w in workloads]
        return cases


class NamedCase(_Table):
    """A case with its workload by id."""

    workload: str
    strategy: str
    variant: str
    params: dict[str, Any]
    repeat: int


class ResolvedPlan(_Head, extra="ignore", strict=False):
    """The content of ``plan.json``: a plan with its list of cases, which ``--resume`` reads."""

    device: str  # type: ignore[assignment]  # the one that was chosen
    measure: Measure  # required
    workloads: dict[str, Workload]
    cases: list[NamedCase]

    @classmethod
    def of(cls, plan: Plan, cases: list[Case]) -> ResolvedPlan:
        """Return a plan's content for ``plan.json``, with these cases."""
        return cls(
            **{key: getattr(plan, key) for key in _Head.model_fields},
            workloads={workload.id: workload for workload in plan.workloads()},
            cases=[NamedCase(**case.names, params=case.params) for case in cases],
        )

    def expanded(self) -> list[Case]:
        """Return the cases, each with its workload; a ``KeyError`` names a missing one."""
        cases = [case.model_dump() for case in self.cases]
        return [Case(**{**case, "workload": self.workloads[case["workload"]]}) for case in cases]


def largest_scale(dataset: str, scale: float, host_bytes: int, disk_bytes: int) -> float:
    """Return the largest of ``scale``, its half, its quarter, … that fits; a ``DatasetError`` if
    the scale becomes too small for a graph before one does."""
    from gatherbench.datasets.dataset import folder_bytes
    from gatherbench.datasets.registry import get_source

    while True:
        spec = get_source(dataset).estimate(scale)  # raises once it is too small
        in_memory = 2 * spec.table_bytes + folder_bytes(replace(spec, hashed=True))
        if in_memory <= _ROOM * host_bytes and folder_bytes(spec) <= _ROOM * disk_bytes:
            return scale
        scale /= 2


def _refuse(workload: Workload, measure: Measure) -> None:
    """Refuse (``ValueError``) a workload that cannot run here, or leaves a rank no seed nodes."""
    from gatherbench.datasets.files import make_parent
    from gatherbench.datasets.registry import get_source
    from gatherbench.datasets.store import dataset_folder

    if workload.model not in MODELS:
        own_model(workload.model)
    plain = workload.model == "sage" and workload.gpus == 1 and not workload.around_step
    if workload.step == "captured" and not plain:
        needs = 'model = "sage" on one GPU, without around_step'
        raise ValueError(f'step = "captured" works for {needs}')
    if workload.sampler:
        sampler = opened(workload.sampler, OwnSampler)  # type: ignore[type-abstract]
        if measure.sampling in GPU_SAMPLING:
            raise ValueError(f'{workload.sampler} draws on the CPU: set sampling = "live"')
        if sampler.in_order and measure.sampler_workers > 1:
            raise ValueError(f"{workload.sampler} draws in order: set sampler_workers to 0 or 1")
    if workload.step_seeds < workload.gpus:
        few = f"batch_size = {workload.batch_size} leaves no seed node for some"
        raise ValueError(f"{few} of {workload.gpus} ranks: at least {workload.gpus}")
    folder = dataset_folder(workload.dataset, workload.scale)
    if not folder.exists():  # an imported graph has its folder
        source = get_source(workload.dataset)
        if workload.scale != 1 and not source.scalable:
            raise ValueError(f"{source.name} is one fixed graph: its scale is 1")
        make_parent(folder)  # if this fails, each of its cases would


def _combined(axes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of one value from each list; a scalar counts as a list of one."""
    for values in itertools.product(*map(_as_list, axes.values())):
        yield dict(zip(axes, values, strict=True))


#: The models that check a plan's tables.
TABLES: dict[str, type[BaseModel]] = {
    "measure": Measure,
    "workload": WorkloadTable,
    "strategy": StrategyTable,
}
_KEYS = Path(__file__).with_name("keys.toml").read_text("utf-8")
for _table, _words in tomllib.loads(_KEYS).items():
    _model = TABLES.get(_table, Plan)
    for _key, _text in _words.items():
        _model.model_fields[_key].description = _text
    _model.model_rebuild(force=True)


def plan_names() -> list[str]:
    """Return the names of the plans in the package."""
    return sorted(path.stem for path in PLANS_FOLDER.glob("*.toml"))


def load_plan(name_or_path: str) -> Plan:
    """Read a plan: a shipped one's name, or a path to a TOML file. A missing one, invalid TOML, and
    a wrong key or value are a ``PlanError`` that names the nearest right one."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = PLANS_FOLDER / f"{name_or_path}.toml"
        if not path.is_file():
            hint = nearest_or_all(name_or_path, plan_names())
            advice = "for a plan of your own give a path that ends in .toml"
            raise PlanError(f"no plan is called {name_or_path!r}{hint}; {advice}")
    try:
        text = tomllib.loads(read_bytes(path).decode())
    except FileNotFoundError:
        raise PlanError(f"{name_or_path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path.name}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path.name}: not valid TOML: {error}") from error
    try:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem)[:40]
        return Plan.model_validate({"name": name, **text})
    except ValidationError as error:
        problems = "\n  ".join(map(_explain, error.errors()))
        raise PlanError(f"{path.name}:\n  {problems}") from None


def plan_schema() -> dict[str, Any]:
    """Return a JSON Schema of plan files, for editors: ``#:schema FILE`` in the first line."""
    schema = Plan.model_json_schema()
    schema["required"].remove("name")  # the file's name is the default
    return schema


def _explain(error: Any) -> str:
    """Format one pydantic error: ``workload[0].modle: unknown key; did you mean 'model'?``."""
    key_path = ""
    table: type[BaseModel] = Plan
    for part in error["loc"]:
        if isinstance(part, int):
            key_path += f"[{part}]"
        elif part not in (ONE, MANY):
            key_path += f".{part}" if key_path else part
            table = TABLES.get(part, table)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        key = error["loc"][-1]
        message = f"unknown key{nearest_or_all(key, table.model_fields)}"
        for name, other_table in TABLES.items():
            if other_table is not table and key in other_table.model_fields:
                brackets = "[measure]" if name == "measure" else f"[[{name}]]"
                message = f"{key!r} is a key of {brackets}: write it there"
    elif error["type"] == "list_type" and isinstance(error["input"], dict) and key_path in TABLES:
        message = f"this is a list of tables: write [[{key_path}]], in two brackets"
    elif error["type"].endswith(("_type", "_from_float")):
        message += f", not {error['input']!r}"
    return f"{key_path or 'plan'}: {message}"
