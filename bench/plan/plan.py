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


class _Keys(BaseModel):
    """A table of a plan; the text below a key describes the key."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class _Table(_Keys, extra="forbid", strict=True, allow_inf_nan=False):
    """A table whose numbers are finite; ``true`` and ``"0.1"`` are no numbers."""


class Measure(_Table):
    """How each case is measured."""

    repeats: Annotated[
        Annotated[Repeats, Tag(ONE)]
        | Annotated[list[Repeats], Field(min_length=2, max_length=2), Tag(MANY)],
        _EITHER,
    ] = [3, 10]
    """Number of processes for each series: 6, or [3, 10] for at least 3, up to 10 until the epoch
    is precise or budget_s is spent."""
    precision: Annotated[float, Field(gt=0, le=1)] = 0.03
    """Largest half-width of the 95 % confidence interval of an epoch, as a share of it; this is
    judged from six repeats on."""
    budget_s: NonNegativeFloat = 0
    """Seconds for cases after the least repeats, which always complete (0: no limit). --budget
    SECONDS limits the whole run instead."""
    warmup_epochs: NonNegativeInt = 1
    """Epochs that are run and dropped before the measured ones."""
    epochs: FromOne = 2
    """Measured epochs of each case."""
    sampling: Literal["live", "gpu", "uva"] = "live"
    """What draws the minibatches; each epoch has its own. live: the CPU. gpu: the GPU (without a
    GPU, the CPU). uva: the GPU, which reads the graph in host memory over the link of the rows."""
    sampler_workers: NonNegativeInt = 0
    """Threads of each rank that prefetch minibatches, at most two each, like the workers of a
    DataLoader. Each takes one of the case's cores, and the stage sample is then the wait for a
    minibatch. 0: the loop draws on every core. A GPU always draws ahead."""
    step: OneOrMore[Literal["issued", "captured"]] = "issued"
    """How the GPU receives a training step; a list makes a workload of each. issued: operation by
    operation. captured: as a CUDA graph that each minibatch replays, padded to the size of the
    largest (GraphSAGE on one GPU)."""
    count_batches: NonNegativeInt = 0
    """Number of minibatches, evenly spread over an epoch, from which the bytes and requests of all
    are estimated (0: all are counted). All are counted, too, if steps are captured, a workload has
    a sampler of its own, or a path reads a disk."""
    eval_batches: NonNegativeInt = 0
    """Minibatches of test nodes that score the trained model at the end (0: none)."""
    eval_every_epoch: bool = False
    """Keep the model from epoch to epoch, and score it after each measured one, outside the
    measured time: this gives accuracy over time. It excludes together and the GPU's energy."""
    timeout_s: Annotated[float, Field(gt=0, le=864_000)] = 3600
    """Seconds after which a case fails."""
    threads: NonNegativeInt = 0
    """CPU threads of torch, the sampler and the gather (0: every core of the process)."""
    numa: Literal["gpu", "none"] = "gpu"
    """gpu: bind threads and memory to the GPU's NUMA node. none: leave them unbound."""
    together: bool = False
    """Train all paths of a workload in one process for each repeat, in shuffled blocks of one epoch
    each; ratios are paired within blocks. Neighbours in a block have different minibatches, and
    each path has all of them during a repeat, so epochs is 2 or more. A case keeps its own process
    if its path reads a disk, uses MPS or takes all the room, or if it has several ranks or a memory
    limit."""
    energy: bool = True
    """On a GPU, add epochs until its energy counter has run for the 10 s that it needs. false:
    energy is not measured, and cases may take half as long."""
    peak: bool = False
    """Measure the peak memory of one step of the first repeat, after all timed epochs."""

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
    """Graph: a name of `gatherbench list datasets`, or of an imported graph. Required."""
    scale: OneOrMore[PositiveFloat] = 1.0
    """Share of a generated graph's full size."""
    fit: bool = False
    """Halve each scale until twice the table and the graph fit into host memory, and the graph onto
    the disk."""
    model: OneOrMore[Annotated[str, AfterValidator(_known_model)]] = "sage"
    """sage, gat, mlp (ignores edges), or a class of your own: "my_module:MyGNN". bench/neighbours
    has some that use the kinds of edges."""
    hidden: OneOrMore[Annotated[int, Field(ge=1, le=2**20)]] = 16
    """Width of the hidden layers; for gat, of each head."""
    fanouts: Annotated[
        list[Annotated[list[FromOne], Field(min_length=1)]],
        BeforeValidator(_nested, json_schema_input_type=list[int] | list[list[int]]),
    ] = [[25, 10]]
    """Neighbours drawn for each node, layer by layer from the seed nodes outwards; one list or
    several."""
    batch_size: OneOrMore[FromOne] = 1000
    """Seed nodes of a minibatch."""
    max_batches: NonNegativeInt = 0
    """Number of minibatches after which an epoch ends (0: the whole epoch)."""
    seed: OneOrMore[int] = 0
    """Seed of the minibatches and the model's weights."""
    gpus: OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = 1
    """GPUs of the machine that train together, one process each; without a GPU, processes."""
    scaling: OneOrMore[Literal["strong", "weak"]] = "strong"
    """With several GPUs, strong splits each minibatch of batch_size seeds over them, and weak gives
    each of them batch_size seeds, so an epoch has fewer steps."""
    sampler: OneOrMore[Annotated[str, _opens(OwnSampler)]] = ""
    """Sampler that draws the minibatches on the CPU instead of ours: "module:Class key=value".
    bench/neighbours has some."""
    around_step: OneOrMore[Annotated[str, _opens(AroundStep)]] = ""
    """Context around the forward and backward pass of each training step:
    "module:Class key=value". bench/neighbours has some."""

    def expand(self) -> Iterator[Workload]:
        axes = {name: value for name, value in self if name != "fit"}
        for fields in _combined({**axes, "fanouts": list(map(tuple, self.fanouts))}):
            workload = Workload(**fields)
            # Scaling has no meaning for one rank: it would only give the workload a second id.
            yield workload if workload.gpus > 1 else replace(workload, scaling="strong")


class StrategyTable(_Keys, extra="allow"):
    """``[[strategy]]``: a name and the strategy's own parameters; lists expand."""

    name: str
    """A name of `gatherbench list strategies`, which also lists its parameters; or "*" for every
    other built-in strategy with its default parameters, except paths that read a file. Required."""

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
    """Part of the run folder's name (default: the file's name)."""
    description: str = ""
    """Purpose of the plan."""
    minutes: NonNegativeFloat = 0
    """Minutes that it took on an idle machine, printed at the start (0: unknown)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to measure on; auto: a GPU if there is one."""
    profile: str = ""
    """Profile of the machine to predict epochs for: a shipped name or a .toml file (default: this
    GPU's calibration; without a GPU, the paper's machine)."""
    measure: Measure = Measure()
    """How each case is measured."""


class Plan(_Head):
    """A checked plan; see the TOML files in ``bench/plan/plans`` for the format."""

    workload: Annotated[list[WorkloadTable], Field(min_length=1)]
    """Graphs and models to train; lists expand to every combination."""
    strategy: Annotated[list[StrategyTable], Field(min_length=1)]
    """A strategy and its parameters; lists expand to every combination."""

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
